"""Kafka topics with watermark records, as a streaming DataFrame: each Kafka record is read once.

The watermark records leave the data path by Spark's own ``observe``, which carries them to the driver at the end of the
batch, where `drive` takes them.  What remains are decoded data rows with an event-time column.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from floodmark.producers.kafka import Config, require_topics
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import KEY_PREFIX, SUBSTREAM_HEADER, TIME_HEADER, WatermarkRecord
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, milliseconds
from floodmark.spark_jobs.engine import operators
from floodmark.spark_jobs.event_time import NEVER
from floodmark.spark_jobs.judge import SPLITTING, judged
from floodmark.spark_jobs.lateness import shifted
from floodmark.spark_jobs.observation import columns
from floodmark.spark_jobs.plain import refuse_plain_queries
from floodmark.spark_jobs.security import Client, resolved, settings_of, spark_options
from floodmark.spark_jobs.source_options import from_earliest, source_options
from floodmark.spark_jobs.values import Format
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructType, TimestampType

MAX_OFFSETS_PER_TRIGGER: Final = 1_000_000
_MILLISECONDS: Final = r"\A-?[0-9]{1,15}\z"
_FIRST: Final = 1
"""Microseconds since 1970: Spark's watermark begins at 0, and operators drop what is not above it."""

_LAST: Final = 253_370_764_800_000_000 - 1
"""The last microsecond of 9998: an ended input's watermark is that of 9999, and windows behind it never close."""


Decoder = Callable[[Column], Column]
"""From a column of binary values to a column of structs; null where a value cannot be read."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Reading:
    """One call of `read`: what the drive must know of it."""

    name: str
    topics: tuple[str, ...]
    event_time: Column
    decode: Decoder
    client: Config = field(repr=False)  # may hold secrets, as the options
    options: Mapping[str, str] = field(repr=False)
    percentile: int | None = None
    shift: int = 0
    """How far event times may lie before those that the marks speak of, milliseconds."""
    settings: Config = field(default_factory=dict, repr=False)
    """Those of the client as they were given: with the places of secrets, where ``client`` has the secrets."""
    late: str | None = None
    """What becomes of late rows: ``drop``, ``adjust``, or the topic they go to; ``None``: Spark's operators decide."""

    @property
    def late_topic(self) -> str | None:
        """The topic that late rows go to."""
        return None if self.late in {None, "drop", "adjust"} else self.late

    @property
    def from_earliest(self) -> bool:
        """Whether a new query begins with the first record that Kafka has."""
        return from_earliest(self.options)

    def shifted(self, record: WatermarkRecord) -> WatermarkRecord:
        """Say what a mark promises of this reading's event times."""
        return shifted(record, self.shift)


_readings: Final[dict[str, Reading]] = {}


def reading_of(name: str) -> Reading | None:
    """Return the reading behind an observation's name, or ``None`` for somebody else's observation."""
    return _readings.get(name)


def _topics_of(frame: DataFrame) -> list[str]:
    """Return the topics that the readings in a streaming DataFrame read."""
    nodes = operators(frame, _readings.__contains__).walk() if frame.isStreaming else ()
    names = dict.fromkeys(node.reading for node in nodes if node.reading is not None)
    return [topic for name in names for topic in _readings[name].topics]


def read(  # noqa: PLR0913  # each is a decision of the user, most have defaults
    spark: SparkSession,
    *,
    topics: str | Sequence[str],
    value: Format | Decoder,
    event_time: str | Column,
    bootstrap_servers: str,
    client: Client | None = None,
    options: Mapping[str, str] | None = None,
    max_offsets_per_trigger: int | None = MAX_OFFSETS_PER_TRIGGER,
    adjusted: str | None = None,
    substream: str | None = None,
    percentile: int | None = None,
    shift: timedelta = timedelta(0),
    late: str | None = None,
) -> DataFrame:
    """Read topics whose producers interleave watermark records with their data.

    Use any of Spark's event-time operators on the result, then `floodmark.spark_jobs.write`.  Rows whose value cannot
    be decoded, that have no event time, or one that Spark's watermark cannot judge (not after 1970-01-01T00:00:00Z, or
    not before 9999-01-01T00:00:00Z), are skipped and counted (`Batch.unreadable`, `timeless`, `out_of_range`).

    Where an injector has adjusted the time of a record (header ``floodmark-time``), the adjusted time counts: the
    event-time column has it.

    Args:
        spark: a classic session with the Kafka connector.
        topics: one or several; each must exist.
        value: what the bytes mean, see `values`.
        event_time: the timestamp field of the decoded values that becomes Spark's event-time column; or the path of one
            (``"payload.at"``), or an expression over them (SQL or a Column).  A column of the path's last name, or of
            the expression's (``"date_trunc('minute', at) AS minute"``; without one ``event_time``), is added then.
        bootstrap_servers: Kafka's address.
        client: confluent-kafka settings (security and so on), or a function that returns them.  What Spark's own Kafka
            client needs of them is translated; a secret is best given as the place where it is, see `security`.
        options: options of Spark's Kafka source, for example ``kafka.max.poll.records``; they overrule ours.
        max_offsets_per_trigger: the most records of one batch, so that a backfill cannot exhaust the driver.
        adjusted: the name of an extra column with the time that counts.  It becomes Spark's event-time column, and the
            field of the value stays what it was.
        substream: the name of an extra column with the watermark of the record's key (header ``floodmark-substream``),
            for `substreams`; null where there is none.
        percentile: let these percentile watermarks drive the job, where the sources tell them: earlier results, more
            late rows.  `Batch.promised` keeps what all events together allow.
        shift: the longest time by which ``event_time`` lies before the time that the marks speak of: one minute for
            ``date_trunc('minute', at)``, 0 where it is not earlier.  The watermark stays this far behind the marks;
            rows that lie further back are late, and counted.
        late: what becomes of late rows: ``"drop"``; ``"adjust"``, which lifts their event time to the watermark they
            are behind; or the name of a topic that they go to, in the transaction of their batch.  A row is then judged
            by what was promised before it in its partition, so neither batches nor replays change what is late; a
            partition that was idle or unknown is judged by the watermark that the batch runs with, too.  Default: the
            operators keep or drop them, as Spark does.

    Returns:
        A streaming DataFrame of the decoded fields.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once.
        UsageError: where the event time cannot be resolved or is no timestamp, or the session has no Kafka connector.
    """
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise UsageError(reason="read() was given no topic")
    if percentile is not None and percentile not in range(1, 101):
        raise UsageError(reason=f"percentile is {percentile}, expected 1 to 100")
    if shift < timedelta(0):
        raise UsageError(reason=f"shift is {shift}, expected 0 or more")
    settings = settings_of(client)
    config = {"bootstrap.servers": bootstrap_servers, **resolved(settings)}
    require_topics(config, list(names))
    source = source_options(bootstrap_servers, names, {**spark_options(settings), **(options or {})})
    if max_offsets_per_trigger is not None and "maxoffsetspertrigger" not in map(str.lower, source):
        source["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    decode = value.decode if isinstance(value, Format) else value
    _require_whole_partitions(late, source)
    name = f"floodmark-read-{next(_numbers)}"
    kafka = _load(spark, source)
    fields = _fields(kafka, decode)
    column, own = _event_time(_flat(kafka, decode), event_time, fields)
    reading = Reading(name, names, column, decode, config, source, percentile, milliseconds(shift), settings, late)
    observed = decoded(kafka, reading).observe(reading.name, *columns(names, judged=late is not None))
    rows = observed.where(F.col("kind") == "row")
    if late == "adjust":
        lifted = F.when(F.col("late"), F.timestamp_millis("behind.watermark")).otherwise(F.col("event_time"))
        rows = rows.withColumn("event_time", lifted)
    elif late is not None:
        rows = rows.where("not late")
    time = adjusted or own
    if adjusted is not None and adjusted in fields:
        raise UsageError(reason=f"adjusted is {adjusted!r}, which is a field of the values: choose another name")
    counts = F.col("event_time")
    values = [(counts if field == time else F.col("value").getField(field)).alias(field) for field in fields]
    values += [] if time in fields else [counts.alias(time)]
    values += [_header(SUBSTREAM_HEADER).alias(substream)] if substream is not None else []
    _readings[reading.name] = reading
    refuse_plain_queries(_topics_of)
    return rows.select(values).withWatermark(time, NEVER)


_OURS: Final = "floodmark "
"""How the names of our columns begin, beside fields whose names may be any."""


def _load(spark: SparkSession, source: Mapping[str, str]) -> DataFrame:
    try:
        return spark.readStream.format("kafka").options(**source).load()
    except AnalysisException as error:
        if "Failed to find" not in str(error):
            raise
        reason = (
            "this session cannot read Kafka: start it with floodmark.spark_jobs.packages() in spark.jars.packages, "
            f"or use floodmark.spark_jobs.local_session() ({str(error).splitlines()[0]})"
        )
        raise UsageError(reason=reason) from error


def _header(name: str) -> Column:
    """Return the time in the last header of a name that holds one; null: there is none."""
    texts = F.transform(
        F.filter("headers", lambda header: header["key"] == name), lambda header: header["value"].cast("string")
    )
    times = F.transform(texts, lambda text: F.when(text.rlike(_MILLISECONDS), text.try_cast("long")))
    readable = F.filter(times, lambda time: time.between(EARLIEST, END_OF_TIME))
    return F.timestamp_millis(F.try_element_at(readable, F.lit(-1)))


def _fields(kafka: DataFrame, decode: Decoder) -> list[str]:
    """Return the names of the fields that values have."""
    values = kafka.select(decode(F.col("value"))).schema[0].dataType
    if not isinstance(values, StructType):
        raise UsageError(reason=f"values decode to {values.simpleString()}, expected a struct")
    return list(values.names)


def _flat(kafka: DataFrame, decode: Decoder) -> DataFrame:
    """Decode: the columns of Kafka under names that no field has, and beside them the fields of the values."""
    control = F.coalesce(F.startswith(F.col("key"), F.lit(KEY_PREFIX)), F.lit(False))  # noqa: FBT003  # a SQL literal
    found = {
        **{name: F.col(name) for name in ("topic", "partition", "offset", "timestamp", "key", "headers")},
        "raw": F.col("value"),
        "control": control,
        "task": F.spark_partition_id(),
        "value": F.when(~control, decode(F.col("value"))),
    }
    kept = [column.alias(_OURS + name) for name, column in found.items() if name != "headers" or name in kafka.columns]
    return kafka.select(kept).select("*", F.col(f"`{_OURS}value`.*"))


def decoded(kafka: DataFrame, reading: Reading) -> DataFrame:
    """Tell what each record is, and decode it.

    Adds ``raw``, ``control``, ``task``, ``value``, ``event_time`` and ``kind``: ``mark``, ``row``, or what the
    record is counted as; and what `judge.judged` adds, where late rows are judged.
    """
    flat = _flat(kafka, reading.decode).withColumn(f"{_OURS}event_time", reading.event_time)
    ours = [name for name in flat.columns if name.startswith(_OURS)]
    rows = flat.select([F.col(f"`{name}`").alias(name.removeprefix(_OURS)) for name in ours])
    if "headers" in rows.columns:
        rows = rows.withColumn("event_time", F.coalesce(_header(TIME_HEADER), "event_time"))
    kind = (
        F.when(F.col("control"), "mark")
        .when(F.col("raw").isNull(), "tombstones")
        .when(F.col("value").isNull(), "unreadable")
        .when(F.col("event_time").isNull(), "timeless")
        .when(~F.unix_micros("event_time").between(_FIRST, _LAST), "out_of_range")
        .otherwise("row")
    )
    rows = rows.withColumn("kind", kind)
    return rows if reading.late is None else judged(rows, reading.name)


def _require_whole_partitions(late: str | None, options: Mapping[str, str]) -> None:
    splitting = [name for name in options if name.lower() in SPLITTING]
    if late is not None and splitting:
        reason = f"option {splitting[0]} gives a partition to several tasks; late= follows each in one: leave it out"
        raise UsageError(reason=reason)


def _event_time(flat: DataFrame, event_time: str | Column, fields: list[str]) -> tuple[Column, str]:
    """Return the event time as a column over the fields, and the name it has in the result."""
    if isinstance(event_time, str) and event_time in fields:
        column, own = F.col("`{}`".format(event_time.replace("`", "``"))), True
    else:
        column = F.expr(event_time) if isinstance(event_time, str) else event_time
        own = any(str(column) == str(F.col(field)) for field in fields)
    label = repr(event_time) if isinstance(event_time, str) else str(event_time)
    try:
        found = flat.select(column).schema[0]
    except (AnalysisException, ParseException) as error:
        reason = f"event time {label} is missing in the values ({', '.join(fields)}): {str(error).splitlines()[0]}"
        raise UsageError(reason=reason) from error
    if not isinstance(found.dataType, TimestampType):
        reason = f"event time {label} is a {found.dataType.simpleString()}, expected a timestamp"
        raise UsageError(reason=reason)
    name = found.name if own or found.name.isidentifier() else "event_time"
    if name in fields and not own:
        raise UsageError(reason=f"event time {label}: the values have a field {name!r} already; name it with AS")
    return column, name
