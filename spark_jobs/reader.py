"""Kafka topics with watermark records, as a streaming DataFrame: each Kafka record is read once.

Spark's ``observe`` takes the watermark records out of the data and carries them to the driver at the end of the batch,
where the batch handler applies them.  The decoded data rows remain, with an event-time column.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from floodmark.producers.clients.admin import require_topics
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import SUBSTREAM_HEADER
from floodmark.schemas.timestamps import duration_of
from floodmark.spark_jobs.formats.format import Format
from floodmark.spark_jobs.internals.analysed import definition, with_event_time
from floodmark.spark_jobs.internals.engine import refuse_plain_queries
from floodmark.spark_jobs.internals.jvm import machine, without_lines
from floodmark.spark_jobs.internals.texts import field_of, without_suggestion
from floodmark.spark_jobs.options import ReadOptions
from floodmark.spark_jobs.queries.source_options import fitting_batch, starting_small
from floodmark.spark_jobs.reading.judge import SPLITTING
from floodmark.spark_jobs.reading.observation import PREPARED, columns, prepared
from floodmark.spark_jobs.reading.rows import decoded, flat, header_time
from floodmark.spark_jobs.reading.source_spec import (
    Connection,
    Decoder,
    Late,
    SourceSpec,
    check_late,
    register,
    topics_of,
)
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

_numbers = itertools.count()


@without_lines()
def read(
    spark: SparkSession,
    *,
    topics: str | Sequence[str],
    value: Format | Decoder,
    event_time: str | Column,
    bootstrap_servers: str,
    late: Late | None = None,
    shift: timedelta = timedelta(0),
    options: ReadOptions = ReadOptions(),  # noqa: B008  # frozen
) -> DataFrame:
    """Return a streaming DataFrame of topics whose producers interleave watermark records with their data.

    Use any of Spark's event-time operators on the result, then `floodmark.spark_jobs.write`.  Rows are skipped and
    counted, see `Batch`, if their value cannot be decoded, or they have no event time, or one that Spark's watermark
    cannot judge (until 1970-01-01T00:00:00Z, or from 9999-01-01T00:00:00Z on).

    If an injector has adjusted the time of a record (header ``floodmark-time``), the event-time column has the adjusted
    time.

    Args:
        spark: a classic session with the Kafka connector.
        topics: one or several existing topics.
        value: the format: `avro`, `json`, another one, or a function from a binary column to a struct column.
        event_time: the timestamp field of the decoded values that becomes Spark's event-time column; or the path of one
            (``"payload.at"``), an expression over the fields (SQL or a Column), or `kafka_timestamp`.  A path or an
            expression adds a column.  Its name is the last part of the path or the alias of the expression
            (``"date_trunc('minute', at) AS minute"``); without an alias, ``event_time``.
        bootstrap_servers: Kafka's address.
        late: what to do with late rows: ``"drop"`` them; ``"adjust"`` their event time to the watermark that makes them
            late; or `route` them to a topic, in the transaction of their batch.  Each row is judged by what was
            promised before it in its partition, so neither batches nor replays change what is late.  In a partition
            that was idle or unknown, the watermark of the batch counts, too.  Default: Spark's operators keep or drop
            late rows.
        shift: the longest time, 0 or more, by which ``event_time`` is before the time that the marks promise: one
            minute for ``date_trunc('minute', at)``, 0 if it is never earlier.  The watermark stays this far behind the
            marks; rows that are shifted further may be late; late rows are counted.
        options: the less common settings.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once.
        UsageError: if the event time cannot be resolved or is no timestamp, or the session has no Kafka connector.
    """
    if isinstance(value, str):
        raise UsageError(reason=f"value is the text {value!r}, expected a format, such as json({value!r})")
    UsageError.unless_type("value", value, (Callable, Format), "a format, such as json('at TIMESTAMP')")
    UsageError.unless_type("event_time", event_time, (str, Column), "a field, an expression or a Column")
    UsageError.unless_type("options", options, ReadOptions, "ReadOptions(...)")
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise UsageError(reason="read() got no topic")
    check_late(late)
    shift_ms = duration_of(shift, "shift")
    source_options = dict(options.source_options)
    most, given = options.max_offsets_per_trigger, set(map(str.lower, source_options))
    grows = most == "auto" and not given & {"minoffsetspertrigger", "maxoffsetspertrigger"}
    if most == "auto":
        most = fitting_batch(*machine(spark))
    if most is not None and "maxoffsetspertrigger" not in given:
        source_options["maxOffsetsPerTrigger"] = str(most)
    connection = Connection(names, bootstrap_servers, options.client, source_options)
    config, zone = connection.config(), str(spark.conf.get("spark.sql.session.timeZone"))
    if config["bootstrap.servers"] != bootstrap_servers:
        reason = f"bootstrap_servers is {bootstrap_servers!r}, and client= has {config['bootstrap.servers']!r}"
        raise UsageError(reason=f"{reason}: Spark would read from the first, and the look ahead from the second")
    require_topics(config, list(names))
    source = connection.source_options()
    _require_whole_partitions(late, source)
    decode, unit = (value.decode, value.unit) if isinstance(value, Format) else (value, None)
    kafka = _load(spark, starting_small(source) if grows else source)
    fields = _fields(kafka, decode)
    if options.adjusted in fields:
        reason = f"adjusted is {options.adjusted!r}, which is a field of the values: choose another name"
        raise UsageError(reason=reason)
    rows = flat(kafka, decode)
    column, own = _event_time(rows, event_time, fields)
    name = f"floodmark-read-{next(_numbers)}"
    grown = most if grows else None
    text = definition(rows, column)
    spec = SourceSpec(name, connection, column, decode, options.percentile, shift_ms, late, grown, unit, text, zone)
    time = options.adjusted or own
    result = _selected(fields, time, options.substream, _time(late), shift_ms)
    records = prepared(decoded(kafka, spec), result, names, judged=late is not None)
    rows = records.observe(name, *columns(judged=late is not None)).where(F.col(_quoted(time)).isNotNull())
    rows = rows.drop(*PREPARED)
    register(spark, spec)
    refuse_plain_queries(topics_of)
    return with_event_time(rows, time)


def _time(late: Late | None) -> Column:
    """Return the event time of rows, adjusted if ``late`` says so; null for all other records."""
    time, is_row = F.col("event_time"), F.col("kind") == "row"
    if late == "adjust":
        time = F.when(F.col("late"), F.timestamp_millis("threshold.watermark")).otherwise(time)
    elif late is not None:
        is_row &= ~F.col("late")
    return F.when(is_row, time)


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))


def _selected(fields: list[str], name: str, substream: str | None, time: Column, shift: int) -> list[Column]:
    """Return the columns of the result: the fields, the event time, and the watermark of the key."""
    values = [F.col("value").getField(field).alias(field) for field in fields if field != name]
    at = fields.index(name) if name in fields else len(values)
    values.insert(at, time.alias(name))
    if substream is not None:
        watermark = F.unix_millis(header_time(SUBSTREAM_HEADER)) - shift
        values.append(F.timestamp_millis(watermark).alias(substream))
    return values


def _load(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    try:
        return spark.readStream.format("kafka").options(**source).load()
    except AnalysisException as error:
        if "Failed to find" not in str(error):
            raise
        reason = (
            "this session cannot read Kafka: stop it, and start one with SparkSession.builder.config("
            '"spark.jars.packages", floodmark.spark_jobs.packages()), or with floodmark.spark_jobs.local_session() '
            f"({str(error).splitlines()[0]})"
        )
        raise UsageError(reason=reason) from error


def _fields(kafka: DataFrame, decode: Decoder) -> list[str]:
    """Return the names of the fields of the values."""
    column = decode(F.col("value"))
    UsageError.unless_type("the result of value=", column, Column, "a Column: give a format, such as json(...)")
    values = kafka.select(column).schema[0].dataType
    if not isinstance(values, StructType):
        raise UsageError(reason=f"values decode to {values.simpleString()}, expected a struct")
    return list(values.names)


def _require_whole_partitions(late: Late | None, options: Mapping[str, str]) -> None:
    splitting = [name for name in options if name.lower() in SPLITTING]
    if late is not None and splitting:
        reason = f"option {splitting[0]} gives a partition to several tasks; late= follows each in one: leave it out"
        raise UsageError(reason=reason)


def _event_time(flat: DataFrame, event_time: str | Column, fields: list[str]) -> tuple[Column, str]:
    """Return the event time as a column of the fields, and its name in the result."""
    if isinstance(event_time, str) and event_time in fields:
        column, own = F.col(_quoted(event_time)), True
    else:
        column = F.expr(event_time) if isinstance(event_time, str) else event_time
        own = any(str(column) == str(F.col(field)) for field in fields)
    label = repr(event_time) if isinstance(event_time, str) else str(event_time)
    try:
        found = field_of(flat, column)
    except (AnalysisException, ParseException) as error:
        why = "" if str(event_time).isidentifier() else f": {without_suggestion(error)}"
        raise UsageError(reason=f"event time {label} is missing in the values ({', '.join(fields)}){why}") from error
    if not isinstance(found.dataType, TimestampType):
        reason = f"event time {label} is a {found.dataType.simpleString()}, expected a timestamp"
        is_local = isinstance(found.dataType, TimestampNTZType)
        raise UsageError(reason=f"{reason}: declare it, or cast it, as TIMESTAMP_LTZ" if is_local else reason)
    name = found.name if own or found.name.isidentifier() else "event_time"
    if name in fields and not own:
        raise UsageError(reason=f"event time {label}: the values have a field {name!r} already; name it with AS")
    return column, name
