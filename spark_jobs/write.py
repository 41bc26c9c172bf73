"""Write a job's results, and its progress behind them: the second half of the public API."""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, Literal

import pyspark
from floodmark.producers.clients.admin import require_topics
from floodmark.schemas.errors import UnsupportedQueryError, UsageError
from floodmark.schemas.records import Membership
from floodmark.spark_jobs.batch import output
from floodmark.spark_jobs.batch.handler import BatchHandler
from floodmark.spark_jobs.batch.report import Batch
from floodmark.spark_jobs.batch.settings import Settings
from floodmark.spark_jobs.batch.sinks import AtLeastOnceSink, BatchWriter, ExactlyOnceSink, FunctionSink, Sink
from floodmark.spark_jobs.batch.snapshots import REBUILD, SAME_QUERY, JobIdentity, Query, Snapshots
from floodmark.spark_jobs.formats.values import Format
from floodmark.spark_jobs.internals.analysed import check
from floodmark.spark_jobs.job import Job
from floodmark.spark_jobs.progress.spark_watermark import WindowsClose
from floodmark.spark_jobs.queries import refusals
from floodmark.spark_jobs.queries.plan import Operator, meaning
from floodmark.spark_jobs.reading import plain
from floodmark.spark_jobs.reading.event_time import derived_times
from floodmark.spark_jobs.reading.registry import plan_of, specs_of
from floodmark.spark_jobs.reading.security import Client, resolved, settings_of, spark_options
from floodmark.spark_jobs.reading.source import SourceSpec
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

_RECENT: Final = "spark.sql.streaming.numRecentProgressUpdates"
Delivery = Literal["exactly-once", "at-least-once"]


def write(  # noqa: PLR0913  # each is a decision of the user, most have defaults
    result: DataFrame,
    *,
    checkpoint_location: str,
    topic: str | None = None,
    writer: BatchWriter | None = None,
    event_time: str | None = None,
    value: Format | None = None,
    key: str | Column | None = None,
    bootstrap_servers: str | None = None,
    job: str | None = None,
    hold: timedelta = timedelta(0),
    windows_close: WindowsClose = "after",
    delivery: Delivery = "exactly-once",
    output_mode: Literal["append", "update"] = "append",
    trigger: Mapping[str, Any] | None = None,
    membership: Membership = Membership(),  # noqa: B008  # frozen
    rebuild: bool | None = None,
    client: Client | None = None,
    options: Mapping[str, str] | None = None,
    on_batch: Callable[[Batch], None] | None = None,
) -> Job:
    """Start a job that writes ``result`` and re-emits watermark records behind it.

    Args:
        result: any operators over one or more `floodmark.spark_jobs.read`.
        checkpoint_location: where Spark and Floodmark keep the job's state; one per job.
        topic: the output topic (with ``value`` and ``event_time``); or else
        writer: a function of the batch (a DataFrame, which stands in Spark's cache while it runs) and its id; then no
            watermark records are written.
        event_time: the timestamp column of ``result`` that the next stage takes for the event time.
        value: the format of the output values; it picks its fields from the columns of ``result``.
        key: the column, or its name, that becomes the Kafka key.
        bootstrap_servers: the address of the Kafka that is written to; default: that of the input.
        job: the job's name and source id in the output topic; default: the topic's name.
        hold: how much earlier than its completion a result may be stamped: 0 for the end of a window, the window's
            length for its start.  The output watermark stays this far behind.
        windows_close: ``after``: a window ends when the watermark is past its end, and no row at exactly the watermark
            is dropped; ``at``: when the watermark reaches its end, see `progress.spark_watermark`.
        delivery: ``exactly-once``: a transaction a batch, through the driver; ``at-least-once``: Spark's own writer on
            the executors, with duplicates after a crash.
        output_mode: Spark's: ``append``, final results, or ``update``, each result again when it changes.
        trigger: Spark's, ``{"processingTime": "1 second"}`` or ``{"availableNow": True}``; default: batch after batch.
        membership: how many jobs or producers write to the output topic.
        rebuild: where a snapshot is lost or damaged, work it out again from the topics, as far as they reach back,
            instead of raising; default: as ``spark.floodmark.rebuild`` of the session says, which
            ``spark-submit --conf spark.floodmark.rebuild=true`` sets without a change of the program.
        client: confluent-kafka settings for the output (security and so on), or a function that returns them; they
            overrule those of `read`, which hold for the output, too, where ``bootstrap_servers`` is not given.
        options: options of Spark's Kafka writer, for ``at-least-once``.
        on_batch: is told what each batch did.

    Raises:
        UsageError: where the arguments contradict each other, or ``result`` does not come from `read`.
        UnsupportedQueryError: where no watermark can drive the query.
        ChangedQueryError: where the state of the checkpoint is that of another query.
        UnreadInputError: where the job had ended, and rows have come since.
        UnknownTopicError, BrokerUnavailableError, SnapshotError, UnsupportedSparkError: at once.
    """
    if not result.isStreaming:
        raise UsageError(reason="write() was given a batch DataFrame; begin with floodmark.spark_jobs.read")
    plan = plan_of(result)
    derived = derived_times(result, plan)
    specs = [replace(spec, shift=spec.shift + derived.shift) for spec in _specs(plan)]
    _refuse(result, plan, output_mode, trigger)
    if (topic is None) == (writer is None):
        raise UsageError(reason="write() needs either topic= or writer=")
    if hold < timedelta(0):
        raise UsageError(reason=f"hold is {hold}, expected 0 or more")
    name = job or topic
    if name is None:
        raise UsageError(reason="write() with writer= needs job=, the name of the job")
    topics = tuple(sorted({source for spec in specs for source in spec.topics}))
    spark = result.sparkSession
    snapshots = Snapshots(spark, checkpoint_location)
    first = specs[0].connection.config()
    servers = bootstrap_servers or first["bootstrap.servers"]
    ours = settings_of(specs[0].connection.client) if bootstrap_servers is None else {}
    security = {**ours, **settings_of(client)}
    config = {"bootstrap.servers": servers, **resolved(security)}
    if topic is not None:
        address = config["bootstrap.servers"]
        if any(topic in spec.topics and spec.connection.config()["bootstrap.servers"] == address for spec in specs):
            raise UsageError(reason=f"topic {topic!r} is both input and output of job {name!r}: it would never end")
        require_topics(config, [topic])
    _require_late_topics(specs, topic, config)
    frame = _output(result, topic, key, value, event_time)
    if rebuild is None:
        rebuild = spark.conf.get(REBUILD, "false") == "true"
    identity = snapshots.claim(JobIdentity(name, topics, topic), adopt=rebuild)
    lines = [f"output_mode={output_mode!r}, windows_close={windows_close!r}", *meaning(plan)]
    same = spark.conf.get(SAME_QUERY, "false") == "true"
    snapshots.recognise(name, Query(pyspark.__version__, lines), same=same)
    sink = _sink(identity, writer, delivery, config, {**spark_options(security), **(options or {})})
    settings = Settings(hold, windows_close, rebuild, membership, derived)
    recent: deque[Batch] = deque(maxlen=int(spark.conf.get(_RECENT) or 0))
    handler = BatchHandler(identity, specs, sink, snapshots, settings, _reporting(recent, on_batch))
    stream = (
        frame.writeStream.foreachBatch(handler)
        .option("checkpointLocation", checkpoint_location)
        .outputMode(output_mode)
        .queryName(f"{name}-{next(_starts)}")
    )
    if trigger is not None:
        stream = stream.trigger(**trigger)
    snapshots.checkpoint.plan_empty_batch()
    query = plain.start(stream)
    started = Job(query, handler, recent, available_now="availableNow" in (trigger or {}))
    try:
        handler.attach(query)
    except BaseException:
        started.stop()
        raise
    return started


_starts = itertools.count()


def _reporting(recent: deque[Batch], on_batch: Callable[[Batch], None] | None) -> Callable[[Batch], None]:
    def report(batch: Batch) -> None:
        recent.append(batch)
        if on_batch is not None:
            on_batch(batch)

    return report


def _refuse(result: DataFrame, plan: Operator, output_mode: str, trigger: Mapping[str, Any] | None) -> None:
    """Refuse what cannot be exact, and what Spark itself does not take, before anything is written."""
    settings = {name: result.sparkSession.conf.get(name, None) for name in refusals.SETTINGS}
    refusals.refuse(plan, output_mode=output_mode, trigger=trigger, settings=settings)
    try:
        check(result, output_mode)
    except AnalysisException as error:
        reason = str(error).splitlines()[0].rstrip(";")
        advice = "group by a window of the event time, or choose an output_mode that Spark takes for these operators"
        raise UnsupportedQueryError(operator="the query", reason=reason, advice=advice) from error


def _specs(plan: Operator) -> list[SourceSpec]:
    found = specs_of(plan)
    if not found:
        raise UsageError(
            reason="the DataFrame does not come from floodmark.spark_jobs.read: no watermark would move it"
        )
    topics = Counter(topic for spec in found for topic in spec.topics)
    twice = [topic for topic, count in topics.items() if count > 1]
    if twice:
        # Spark reads each on its own: the marks that one has read say nothing of the rows that the other has not.
        reason = f"topic {twice[0]!r} comes from two read(): call it once, and use its DataFrame twice"
        raise UsageError(reason=reason)
    return found


def _require_late_topics(specs: list[SourceSpec], output: str | None, config: dict[str, Any]) -> None:
    late = {spec.late_topic for spec in specs} - {None}
    taken = {output, *(topic for spec in specs for topic in spec.topics)}
    for topic in sorted(filter(None, late)):
        if output is None:
            reason = f"late={topic!r} needs topic=: late rows go to their topic in the transaction of their batch"
            raise UsageError(reason=reason)
        if topic in taken:
            raise UsageError(
                reason=f"late={topic!r} is an input or the output of the job: give late rows their own topic"
            )
        require_topics(config, [topic])


def _sink(
    identity: JobIdentity,
    writer: BatchWriter | None,
    delivery: Delivery,
    config: dict[str, Any],
    options: Mapping[str, str],
) -> Sink:
    if writer is not None:
        return FunctionSink(writer)
    topic = str(identity.output)
    if delivery == "exactly-once":
        return ExactlyOnceSink(config, topic, identity.job, identity.checkpoint_id)
    servers = {"kafka.bootstrap.servers": str(config["bootstrap.servers"])}
    return AtLeastOnceSink(config, topic, identity.job, {**servers, **options})


def _output(
    result: DataFrame, topic: str | None, key: str | Column | None, value: Format | None, event_time: str | None
) -> DataFrame:
    """Bring the rows into Kafka's shape, and watch their event times; for a writer, just count them."""
    if topic is None:
        return output.counted(result)
    if value is None or event_time is None:
        raise UsageError(reason=f"write() to topic {topic!r} needs value= (a format) and event_time= (a column)")
    kind = dict(result.dtypes).get(event_time)
    if kind != "timestamp":
        found = "is missing" if kind is None else f"is a {kind}"
        raise UsageError(reason=f"event_time column {event_time!r} of the result {found}, expected a timestamp")
    missing = [field for field in value.fields if field not in result.columns]
    if missing:
        reason = f"the values of topic {topic!r} need the column(s) {missing}, and the result has {result.columns}"
        raise UsageError(reason=reason)
    keys = F.lit(None) if key is None else F.col(key) if isinstance(key, str) else key
    shaped = result.select(
        keys.cast("binary").alias("key"),
        value.encode(F.struct("*")).alias("value"),
        F.unix_millis(F.col(event_time)).alias("event_time"),
    )
    return output.watched(shaped)
