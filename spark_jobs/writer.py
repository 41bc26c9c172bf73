"""Start a job that writes results and watermark records: the second half of the public API."""

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from sys import maxsize
from tempfile import TemporaryDirectory
from types import NoneType
from typing import Any, Final, Literal

import pyspark
from floodmark.producers.clients.admin import require_topics
from floodmark.producers.clients.secrets import resolved
from floodmark.producers.other_runs import Predecessors, last_marks
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas.errors import UnsupportedQueryError, UsageError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import membership_of
from floodmark.schemas.timestamps import END_OF_TIME, duration_of
from floodmark.schemas.tracker import AS_WRITTEN, sentences
from floodmark.spark_jobs.batch import output_observation
from floodmark.spark_jobs.batch.handler import BatchHandler, register_running, stop_running
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.lookahead import withdraw_at_start
from floodmark.spark_jobs.batch.sinks import (
    AtLeastOnceSink,
    BatchWriter,
    ExactlyOnceSink,
    ExactlyOnceWriter,
    FunctionSink,
    Sink,
    StoreSink,
)
from floodmark.spark_jobs.batch.snapshots import REBUILD, SAME_QUERY, JobIdentity, Query, Snapshots
from floodmark.spark_jobs.formats.format import Format
from floodmark.spark_jobs.internals.analysed import check_supported, event_times_of_state, keys_of_sessions
from floodmark.spark_jobs.internals.engine import start_query
from floodmark.spark_jobs.internals.files import FILE_MANAGER, is_for_disks, require_replacing
from floodmark.spark_jobs.internals.jvm import require_callbacks, without_lines
from floodmark.spark_jobs.internals.stamped import stamp_of
from floodmark.spark_jobs.internals.texts import (
    field_of,
    meaning,
    meaning_of_column,
    unused_event_times,
)
from floodmark.spark_jobs.job import Job
from floodmark.spark_jobs.lookahead.rules import LookaheadRules
from floodmark.spark_jobs.options import WriteOptions
from floodmark.spark_jobs.progress.watermarks import Stamp
from floodmark.spark_jobs.queries import refusals
from floodmark.spark_jobs.queries.plan import Operator, limited
from floodmark.spark_jobs.queries.source_options import next_limits
from floodmark.spark_jobs.reading.event_time import Derived, derived_times
from floodmark.spark_jobs.reading.security import settings_of, spark_options
from floodmark.spark_jobs.reading.source_spec import SourceSpec, plan_of, specs_of
from floodmark.spark_jobs.start.job_output import job_output
from floodmark.spark_jobs.start.job_start import JobStart
from floodmark.spark_jobs.tables.staging import Staging
from floodmark.spark_jobs.tables.table import Table
from floodmark.spark_jobs.tables.table_sink import TableSink
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import BinaryType, NullType, StringType

_log = logging.getLogger(__name__)
_RECENT: Final = "spark.sql.streaming.numRecentProgressUpdates"
_FRAME: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_POLL: Final = 0.05
_UTC: Final = ("UTC", "Etc/UTC", "GMT", "Z")
_starts = itertools.count()


@without_lines()
def write(  # noqa: PLR0913  # each is a decision of the user, most have defaults
    result: DataFrame,
    *,
    checkpoint_location: str,
    topic: str | None = None,
    table: Table | None = None,
    writer: BatchWriter | ExactlyOnceWriter | None = None,
    value: Format | None = None,
    event_time: str | None = None,
    key: str | Column | None = None,
    job: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    output_mode: Literal["append", "update"] = "append",
    options: WriteOptions = WriteOptions(),  # noqa: B008  # frozen
) -> Job:
    """Start a job that writes ``result``, and watermark records after it.

    Args:
        result: any operators over one or more `floodmark.spark_jobs.read`.
        checkpoint_location: the folder for the state of Spark and Floodmark; one per job.
        topic: the output topic (with ``value`` and ``event_time``); or else
        table: an Iceberg or Delta table (with ``event_time``), see `iceberg` and `delta`; each of its commits has the
            watermark; or else
        writer: a function of the batch (a DataFrame in Spark's cache) and its id, or an `ExactlyOnceWriter`; the job
            then writes no watermark records.
        value: the format of the output values; it takes its fields from the columns of ``result``.
        event_time: the timestamp column of ``result`` that is the event time of the output; with ``writer``, only
            ``Start(output_at=)`` needs it.
        key: the column, or its name, that becomes the Kafka key.
        job: the name of the job, and its source id in the output topic; default: the name of the topic or table.
        trigger: Spark's, ``{"processingTime": "1 second"}`` or ``{"availableNow": True}``; default: the next batch
            starts at once.
        output_mode: Spark's: ``append``, final results, or ``update``, each result again when it changes.
        options: the less common settings.

    Raises:
        UsageError: if the arguments contradict each other, or ``result`` does not come from `read`.
        UnsupportedQueryError: if no watermark can drive the query.
        ChangedQueryError: if the checkpoint has the state of another query.
        CheckpointAccessError, CheckpointFilesError: if the files of the checkpoint cannot be read, written or replaced.
        PublishedError: if the checkpoint is new, and the output has results of the job.
        ContinueError, RetentionError: if the job cannot start as ``options.start`` says.
        UnreadInputError: if all sources had ended, and there are new rows.
        TableColumnsError, ForeignTableError, MissingConnectorError, TableError: if the table cannot take the rows.
        UnknownTopicError, BrokerUnavailableError, SnapshotError, UnsupportedSparkError: at once.
    """
    _require_arguments(result, checkpoint_location, table, writer, value, options)
    plan = plan_of(result)
    derived = derived_times(plan)
    cut = limited(plan, int(result.sparkSession.conf.get(_FRAME) or 0))
    specs = [
        replace(spec, shift=spec.shift + derived.shift, derived=derived.shift, limited=cut.get(spec.name))
        for spec in _specs(plan)
    ]
    _refuse(result, plan, output_mode, trigger)
    name = _name(topic, table, writer, job, options.delivery)
    spark = result.sparkSession
    snapshots = Snapshots(spark, checkpoint_location)
    _require_session(spark, snapshots, specs)
    security = _security(options, specs[0])
    servers = options.bootstrap_servers or specs[0].connection.config()["bootstrap.servers"]
    config = {"bootstrap.servers": servers, **resolved(security)}
    _require_topics(name, topic, specs, config)
    _require_table(table, result, name, output_mode)
    target = job_output(topic, writer, table, config, name, spark)
    start = JobStart(name, target, specs, snapshots, options.start, plan, options.windows_close)
    start.refuse()
    frame = _output(result, topic, table, key, value, event_time, start.output_at)
    stamp = _stamp(result, None if writer is not None else event_time, options.watermark_hold)
    judged = event_times_of_state(frame)
    refusals.refuse_two_event_times(judged)
    start.refuse_query(judged, later=_makes_later(result, event_time, derived, start.output_at))
    rebuild = _is_on(spark, REBUILD) if options.rebuild is None else options.rebuild
    topics = tuple(sorted({source for spec in specs for source in spec.topics}))
    identity = snapshots.claim(
        JobIdentity(name, topics, topic if table is None else table.name, start.output_at),
        None if target is None else target.new,
        start.wrote,
        start.last_id,
        rebuild=rebuild,
    )
    require_replacing(spark, checkpoint_location, snapshots.checkpoint.files)
    noted = _noted(plan, specs, f"output_mode={output_mode!r}, windows_close={options.windows_close!r}")
    same = _is_on(spark, SAME_QUERY)
    snapshots.recognise(name, noted, start.advice, same=same, rebuild=rebuild)
    sink = _sink(table, writer, identity, snapshots, result, start) or _kafka_sink(
        spark, identity, snapshots, options, config, security, start
    )
    settings = Settings(
        stamp,
        options.windows_close,
        rebuild,
        options.lookahead,
        LookaheadRules.of(plan, output_mode=output_mode, trigger=trigger),
        derived,
        next_limits(
            {topic: spec.most for spec in specs if spec.most is not None for topic in spec.topics},
            at_once="processingTime" in (trigger or {}),
        ),
        _batches_at_once(spark),
        start.epoch,
    )
    handler = BatchHandler(
        identity,
        specs,
        sink,
        snapshots,
        settings,
        recent=int(spark.conf.get(_RECENT) or 0),
        on_batch=options.on_batch,
    )

    def query(function: BatchWriter) -> DataStreamWriter:
        stream = frame.writeStream.option("checkpointLocation", checkpoint_location).outputMode(output_mode)
        return stream.queryName(f"{name}-{next(_starts)}").foreachBatch(function)

    def begin() -> StreamingQuery:
        stream = query(handler)
        return start_query(stream.trigger(**trigger) if trigger else stream)

    if not stop_running(identity.checkpoint_id):  # a running job has done this
        start.prepare(spark, sink, query)
    withdraw_at_start(specs, snapshots, settings)
    snapshots.checkpoint.plan_empty_batch()
    started = begin()
    started_job = Job(started, handler, available_now="availableNow" in (trigger or {}))
    try:
        handler.attach(started, spark, begin)
    except BaseException:
        handler.stopping.stop()
        raise
    register_running(handler)
    return started_job


def preview(result: DataFrame, *, wait: timedelta = timedelta(seconds=30), rows: int = 20) -> None:
    """Print the first complete results of a query, its watermark, and which source holds the watermark back.

    The query runs as a job with a temporary checkpoint and writes nothing to Kafka.  It stops when it has enough rows,
    when its input has ended, or ``wait`` after the start of the first batch.

    Args:
        result: any operators over one or more `floodmark.spark_jobs.read`, in a session with a local master.
        wait: the longest time to wait for rows, more than 0.
        rows: the number of rows to print, 1 or more.

    Raises:
        UsageError: if an argument is out of its bounds, or the session's master is a cluster.
        JobFailedError, UnsupportedQueryError: as `floodmark.spark_jobs.write`.
    """
    seconds = duration_of(wait, "wait", least=1) / 1_000
    if rows < 1:
        raise UsageError(reason=f"rows is {rows}, expected 1 or more")
    spark = result.sparkSession
    if not str(spark.sparkContext.master).startswith("local"):
        reason = "preview() needs a session with a local master, because its checkpoint is on this machine; use write()"
        raise UsageError(reason=reason)
    found: list[Row] = []
    began: list[float] = []  # when each batch has; the first one does even without a record, but Spark starts slowly
    enough = threading.Event()

    # As text, since Python's local times are ambiguous where the clock is set back.
    kinds = {f"c{number}": "binary" if kind == "binary" else "string" for number, (_, kind) in enumerate(result.dtypes)}

    def keep(batch: DataFrame, _batch_id: int) -> None:
        began.append(time.monotonic())
        texts = batch.toDF(*kinds).select(*(F.col(name).cast(kind) for name, kind in kinds.items()))
        found.extend(texts.limit(max(0, rows + 1 - len(found))).collect())  # one more tells that there are more
        if len(found) >= rows:
            enough.set()

    with TemporaryDirectory(prefix="floodmark-preview-", ignore_cleanup_errors=True) as directory:
        job = write(result, writer=keep, job="preview", checkpoint_location=directory)
        try:
            while job.isActive and not job.ended and not enough.wait(_POLL):
                if began and time.monotonic() >= began[0] + seconds:
                    break
        finally:
            job.stop()
    failure = job.exception()
    if failure is not None:
        raise failure
    if found:
        schema = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
        spark.createDataFrame(found[:rows], schema).toDF(*result.columns).show(rows, truncate=False)
    shown = f"{len(found)} row{'s' * (len(found) != 1)}" if len(found) <= rows else f"the first {rows} of more rows"
    has_ended = job.watermark == END_OF_TIME
    told = [f"{shown}, {'the input has ended' if has_ended else f'watermark {iso(job.watermark)}'}"]
    if not job.ended and not enough.is_set():
        told += [sentences(job.holders()) or "the results are not computed yet: pass a longer wait="]
    print("; ".join(told))  # noqa: T201  # as DataFrame.show does


def _require_arguments(
    result: DataFrame,
    checkpoint_location: str,
    table: Table | None,
    writer: BatchWriter | ExactlyOnceWriter | None,
    value: Format | None,
    options: WriteOptions,
) -> None:
    UsageError.unless_type("result", result, DataFrame, "a DataFrame")
    UsageError.unless_type("checkpoint_location", checkpoint_location, str, "a str")
    UsageError.unless_type("writer", writer, (Callable, ExactlyOnceWriter, NoneType), "a function")
    UsageError.unless_type("table", table, (Table, NoneType), "iceberg('catalog.database.table') or delta('folder')")
    UsageError.unless_type("value", value, (Format, NoneType), "a format, such as json('at TIMESTAMP')")
    UsageError.unless_type("options", options, WriteOptions, "WriteOptions(...)")
    if not result.isStreaming:
        raise UsageError(reason="the result is a batch DataFrame: begin with read()")


def _makes_later(result: DataFrame, event_time: str | None, derived: Derived, output_at: int | None) -> bool:
    """Tell whether event times, or the stamps that ``output_at`` cuts, may be later than those of the rows."""
    unknown = output_at is not None and event_time is not None and not stamp_of(result, event_time).bounds
    return derived.is_used or unknown


def _stamp(result: DataFrame, event_time: str | None, hold: timedelta | None) -> Stamp:
    """Return how early results may be stamped; refuses a stamp for which no hold would be enough."""
    if hold is not None:
        return Stamp.held(hold)
    stamp = Stamp() if event_time is None else stamp_of(result, event_time)
    if stamp.is_unlimited:
        reason = "it can be any time before the end of its session, so no watermark could follow the results"
        advice = (
            "stamp the end (session_window.end) or the latest row (max) of the session, or set "
            "WriteOptions(watermark_hold=) to the longest session"
        )
        raise UnsupportedQueryError(operator=f"event_time={event_time!r}", reason=reason, advice=advice)
    return stamp


def _noted(plan: Operator, specs: list[SourceSpec], modes: str) -> Query:
    """Return what the state of a query, and the watermark of each source so far, depend on."""
    steps = meaning(plan)
    policies = sorted((topic, spec.mark_policy) for spec in specs for topic in spec.topics)
    marks = [
        f"percentile={percentile}, shift={timedelta(milliseconds=shift)} of the marks in {topic}"
        for topic, (percentile, shift) in policies
        if (percentile, shift) != AS_WRITTEN
    ]
    zone = "" if specs[0].zone in _UTC else f" and time zone {specs[0].zone!r}"
    units = [f"unit={spec.unit!r}{zone} of the times in {', '.join(spec.topics)}" for spec in specs]
    times = [f"event_time={meaning_of_column(spec.time)} of the rows in {', '.join(spec.topics)}" for spec in specs]
    return Query(pyspark.__version__, [modes, *marks, *([*units, *times] if steps else ()), *steps])


def _is_on(spark: SparkSession, setting: str) -> bool:
    return spark.conf.get(setting, "false") == "true"


def _name(
    topic: str | None,
    table: Table | None,
    writer: BatchWriter | ExactlyOnceWriter | None,
    job: str | None,
    delivery: str,
) -> str:
    outputs = {"topic=": topic, "table=": table, "writer=": writer}
    given = [option for option, output in outputs.items() if output is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise UsageError(reason=f"write() needs exactly one of {', '.join(outputs)}, and got {found}")
    if topic is None and delivery == "exactly-once-executors":
        reason = "the executors write a table in any case, and writer= gets the rows from them; omit delivery="
        raise UsageError(reason=f"delivery={delivery!r} needs topic=: {reason}")
    name = job or topic or (None if table is None else table.name)
    if name is None:
        raise UsageError(reason="write() with writer= needs job=, the name of the job")
    return name


def _batches_at_once(spark: SparkSession) -> int:
    """Return how many batches of the process the cores can serve at once; on a cluster, any number."""
    context = spark.sparkContext
    return context.defaultParallelism if (context.master or "").startswith("local") else maxsize


def _security(options: WriteOptions, first: SourceSpec) -> dict[str, Any]:
    """Return the client's settings for the output: those of the input, too, if it is the same cluster."""
    inherited = settings_of(first.connection.client) if options.bootstrap_servers is None else {}
    return {**inherited, **settings_of(options.client)}


def _refuse(result: DataFrame, plan: Operator, output_mode: str, trigger: Mapping[str, Any] | None) -> None:
    """Refuse a query that cannot be exact, or that Spark does not support, before anything is written."""
    settings = {name: result.sparkSession.conf.get(name, None) for name in refusals.SETTINGS}
    refusals.refuse(plan, output_mode=output_mode, trigger=trigger, settings=settings)
    try:
        _ = result.writeStream.trigger(**trigger) if trigger else None
    except PySparkException as error:
        raise UsageError(reason=f"Spark refuses trigger={trigger!r}: {str(error).splitlines()[0]}") from error
    if 0 in keys_of_sessions(result):  # which Spark refuses only when the query runs
        reason, advice = "Spark needs another key to group sessions of a stream by", "group by a column of rows, too"
        raise UnsupportedQueryError(operator="session_window", reason=reason, advice=advice)
    try:
        check_supported(result, output_mode)
    except AnalysisException as error:
        reason = str(error).splitlines()[0].rstrip(";")
        advice = "group by a window of the event time, or choose an output_mode that Spark takes for these operators"
        if times := unused_event_times(plan, reason):
            advice = (
                f"the event time is {' or '.join(times)}, so group by a window of it. For a window of another column, "
                "or of one computed from it, call event_time(rows, column, shift=) first, see spark_jobs/FORMATS.md"
            )
        raise UnsupportedQueryError(operator="the query", reason=reason, advice=advice) from error


def _require_session(spark: SparkSession, snapshots: Snapshots, specs: Sequence[SourceSpec]) -> None:
    """Refuse a session whose file manager is not safe, whose time zone has changed, or that cannot call this process.

    Late rows are decoded again, in the time zone of now.
    """
    require_callbacks(spark)
    zone = spark.conf.get("spark.sql.session.timeZone")
    if other := next((spec.zone for spec in specs if spec.zone != zone), None):
        reason = f"spark.sql.session.timeZone was {other!r} in read(), and is {zone!r} now"
        raise UsageError(reason=f"{reason}: call read() again, or restore it")
    manager = str(spark.conf.get(FILE_MANAGER, None) or "")
    if is_for_disks(manager) and not snapshots.checkpoint.is_on_disk:
        reason = (
            f"checkpoint_location {snapshots.checkpoint_location} is not on a local disk, and {manager} is safe there "
            f"alone; expected another file manager: spark.conf.unset({FILE_MANAGER!r})"
        )
        raise UsageError(reason=reason)


def _specs(plan: Operator) -> list[SourceSpec]:
    found = specs_of(plan)
    if not found:
        raise UsageError(reason="the DataFrame does not come from floodmark.spark_jobs.read, so it has no watermark")
    topics = Counter(topic for spec in found for topic in spec.topics)
    twice = [topic for topic, count in topics.items() if count > 1]
    if twice:
        # Spark reads each separately: the marks that one has read do not tell which rows the other has read.
        reason = f"topic {twice[0]!r} comes from two read(): call it once, and use its DataFrame twice"
        raise UsageError(reason=reason)
    return found


def _require_topics(job: str, output: str | None, specs: list[SourceSpec], config: dict[str, Any]) -> None:
    """Make sure that the topics which the job writes to exist, and that it reads none of them."""
    servers = config["bootstrap.servers"]
    same = [spec for spec in specs if spec.connection.config()["bootstrap.servers"] == servers]
    if output is not None:
        if any(output in spec.topics for spec in same):
            raise UsageError(reason=f"topic {output!r} is both input and output of job {job!r}: it would never end")
        require_topics(config, [output])
    taken = {output, *(topic for spec in specs for topic in spec.topics)}
    for topic in sorted({spec.late_topic for spec in specs if spec.late_topic is not None}):
        if output is None:
            reason = (
                f"late=route({topic!r}) needs topic=: late rows go to their topic in the transaction of their batch "
                "(for preview, read with late='drop')"
            )
            raise UsageError(reason=reason)
        if topic in taken:
            reason = f"late=route({topic!r}) is an input or the output of the job: give late rows their own topic"
            raise UsageError(reason=reason)
        require_topics(config, [topic])


def _require_table(table: Table | None, result: DataFrame, job: str, output_mode: str) -> None:
    if table is not None:
        table.require(result, job, output_mode)


def _sink(
    table: Table | None,
    writer: BatchWriter | ExactlyOnceWriter | None,
    identity: JobIdentity,
    snapshots: Snapshots,
    result: DataFrame,
    start: JobStart,
) -> Sink | None:
    """Return the sink for a table, which is created if it does not exist, or for a writer; ``None``: for a topic."""
    if table is not None:
        table.create(result, identity.job)
        staging = Staging(result.sparkSession, snapshots.checkpoint_location, snapshots.checkpoint.files)
        place = table, result.sparkSession, staging
        return TableSink(*place, identity.job, identity.checkpoint_id, start.committed, start.may_follow)
    if isinstance(writer, ExactlyOnceWriter):
        return StoreSink(writer, identity.job, identity.checkpoint_id, start.committed, start.may_follow)
    return None if writer is None else FunctionSink(writer)


def _kafka_sink(
    spark: SparkSession,
    identity: JobIdentity,
    snapshots: Snapshots,
    options: WriteOptions,
    config: dict[str, Any],
    security: dict[str, Any],
    start: JobStart,
) -> Sink:
    """Return the sink for a topic; warns of sources in it that the membership does not count, however old."""
    topic, source = str(identity.output), Identity(identity.job, 0, membership_of(options.membership, "WriteOptions"))
    if snapshots.checkpoint.last_committed is None:
        before = Predecessors(identity.job, last_marks(config, topic, time.time_ns() // 1_000_000))
        if (advice := before.advice(source.membership, wall=0)) is not None:
            more = (
                ". A job has membership= in its WriteOptions. If one of them is this job under another name, each "
                "result is written again: give job= that name"
            )
            _log.warning("job %s, topic %r: %s%s", identity.job, topic, advice, more if before.others else "")
    if options.delivery != "at-least-once":
        shards = spark.sparkContext.defaultParallelism if options.delivery == "exactly-once-executors" else None
        return ExactlyOnceSink(config, topic, source, identity.checkpoint_id, start.may_follow, shards=shards)
    servers = {"kafka.bootstrap.servers": str(config["bootstrap.servers"])}
    settings = {**servers, **spark_options(security, options.sink_options)}
    return AtLeastOnceSink(config, topic, source, settings)


def _require_key(result: DataFrame, column: Column, name: object) -> None:
    try:
        kind = field_of(result, column).dataType
    except AnalysisException as error:
        reason = f"key column {name!r} cannot be computed from the result, which has {result.columns}"
        raise UsageError(reason=reason) from error
    if not isinstance(kind, (StringType, BinaryType, NullType)):
        reason = f"key column {name!r} is a {kind.simpleString()}, expected a string or binary: cast the key to STRING"
        raise UsageError(reason=reason)


def _output(
    result: DataFrame,
    topic: str | None,
    table: Table | None,
    key: str | Column | None,
    value: Format | None,
    event_time: str | None,
    output_at: int | None,
) -> DataFrame:
    """Return the columns for Kafka, and observe their event times; for a writer, count the rows."""
    if table is not None and (event_time is None or key is not None or value is not None):
        reason = f"write() to table {table.name!r} needs event_time= (a column), and takes neither key= nor value="
        raise UsageError(reason=reason)
    if topic is None and table is None and output_at is None:
        return output_observation.counted(result)
    if topic is None and event_time is None:
        raise UsageError(reason="Start(output_at=) needs event_time=, the column of the result that is its event time")
    if topic is not None and (value is None or event_time is None):
        raise UsageError(reason=f"write() to topic {topic!r} needs value= (a format) and event_time= (a column)")
    time = F.col(str(event_time))
    kind = dict(result.dtypes).get(str(event_time))
    if kind != "timestamp":
        found = "is missing" if kind is None else f"is a {kind}"
        raise UsageError(reason=f"event_time column {event_time!r} of the result {found}, expected a timestamp")
    if output_at is not None:  # a row without an event time stays: it is an error
        result = result.where(F.coalesce(F.unix_millis(time) >= output_at, F.lit(True)))  # noqa: FBT003  # Spark's
    if table is not None:
        return output_observation.timed(result, time)
    if topic is None or value is None:
        return output_observation.counted(result, time)
    missing = [field for field in value.fields if field not in result.columns]
    if missing:
        reason = f"the values of topic {topic!r} need the column(s) {missing}, and the result has {result.columns}"
        raise UsageError(reason=reason)
    value.require(result.schema)
    written = value.for_topic(topic)
    keys = F.lit(None) if key is None else F.col(key) if isinstance(key, str) else key
    _require_key(result, keys, key)
    shaped = result.select(
        keys.cast("binary").alias("key"),
        written.encode(F.struct("*")).alias("value"),
        F.unix_millis(time).alias("event_time"),
    )
    return output_observation.watched(shaped)
