"""Kafka topics with watermark records, as a streaming DataFrame: each Kafka record is read once.

The watermark records leave the data path by Spark's own ``observe``, which carries them to the driver at the end of the
batch, where `drive` takes them.  What remains are decoded data rows with an event-time column.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from floodmark.producers.kafka import Config, require_topics
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import KEY_PREFIX, SUBSTREAM_HEADER, TIME_HEADER
from floodmark.spark_jobs.observation import columns
from floodmark.spark_jobs.values import Format
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructType, TimestampType

# Data must never move Spark's watermark, only the drive does: no event time lies further from 1970 than this.
_NEVER: Final = "9000 years"
_TUNED: Final = {"kafka.max.poll.records": "20000", "kafka.max.partition.fetch.bytes": "8388608"}
MAX_OFFSETS_PER_TRIGGER: Final = 1_000_000

Decoder = Callable[[Column], Column]
"""From a column of binary values to a column of structs; null where a value cannot be read."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Reading:
    """One call of `read`: what the drive must know of it."""

    name: str
    topics: tuple[str, ...]
    event_time: str
    decode: Decoder
    client: Config = field(repr=False)  # may hold secrets, as the options
    options: Mapping[str, str] = field(repr=False)
    percentile: int | None = None

    @property
    def from_earliest(self) -> bool:
        """Whether a new query begins with the first record that Kafka has."""
        return self.options.get("startingOffsets") == "earliest"


_readings: Final[dict[str, Reading]] = {}


def reading_of(name: str) -> Reading | None:
    """Return the reading behind an observation's name, or ``None`` for somebody else's observation."""
    return _readings.get(name)


def read(  # noqa: PLR0913  # each is a decision of the user, most have defaults
    spark: SparkSession,
    *,
    topics: str | Sequence[str],
    value: Format | Decoder,
    event_time: str,
    bootstrap_servers: str,
    client: Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    max_offsets_per_trigger: int | None = MAX_OFFSETS_PER_TRIGGER,
    adjusted: str | None = None,
    substream: str | None = None,
    percentile: int | None = None,
) -> DataFrame:
    """Read topics whose producers interleave watermark records with their data.

    Use any of Spark's event-time operators on the result, then `floodmark.spark_jobs.write`.  Rows whose value cannot
    be decoded, or that have no event time, are skipped and counted (`Batch.unreadable`, `Batch.timeless`).

    Args:
        spark: a classic session with the Kafka connector.
        topics: one or several; each must exist.
        value: what the bytes mean, see `values`.
        event_time: the timestamp field of the decoded values; it becomes Spark's event-time column.
        bootstrap_servers: Kafka's address.
        client: confluent-kafka settings (security and so on) for what is asked of Kafka beside the query: whether the
            topics exist, where they begin, and what `write` reads again of them to rebuild its progress.
        options: options of Spark's Kafka source, for example ``kafka.security.protocol``; they overrule ours.
        max_offsets_per_trigger: the most records of one batch, so that a backfill cannot exhaust the driver.
        adjusted: the name of an extra column with the time that counts: that of the header ``floodmark-time`` where an
            injector has adjusted it, else the event time.  It becomes Spark's event-time column, and the field of the
            value stays what it was.
        substream: the name of an extra column with the watermark of the record's key (header ``floodmark-substream``),
            for `substreams`; null where there is none.
        percentile: let these percentile watermarks drive the job, where the sources tell them: earlier results, more
            late rows.  `Batch.promised` keeps what all events together allow.

    Returns:
        A streaming DataFrame of the decoded fields.

    Raises:
        UnknownTopicError, BrokerUnavailableError: at once.
        UsageError: where the event-time field is missing or is no timestamp.
    """
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise UsageError(reason="read() was given no topic")
    config = {"bootstrap.servers": bootstrap_servers, **(client or {})}
    require_topics(config, list(names))
    source = {
        **_TUNED,
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(names),
        "startingOffsets": "earliest",
        **(options or {}),
    }
    if max_offsets_per_trigger is not None:
        source.setdefault("maxOffsetsPerTrigger", str(max_offsets_per_trigger))
    decode = value.decode if isinstance(value, Format) else value
    if adjusted is not None or substream is not None:
        source.setdefault("includeHeaders", "true")
    if percentile is not None and percentile not in range(1, 101):
        raise UsageError(reason=f"percentile is {percentile}, expected 1 to 100")
    name = f"floodmark-read-{next(_numbers)}"
    reading = Reading(name, names, event_time, decode, config, source, percentile)
    raw = decoded(spark.readStream.format("kafka").options(**source).load(), reading)
    observed = raw.observe(reading.name, *columns(names))
    rows = observed.where("not control and value is not null and event_time is not null")
    extra = [F.col("event_time").alias(adjusted)] if adjusted is not None else []
    extra += [_header(SUBSTREAM_HEADER).alias(substream)] if substream is not None else []
    _readings[reading.name] = reading
    return rows.select("value.*", *extra).withWatermark(adjusted or event_time, _NEVER)


def _header(name: str) -> Column:
    """Return the time in a header, null where it is not there or no number."""
    found = F.filter("headers", lambda header: header["key"] == name)
    return F.timestamp_millis(F.get(found, F.lit(0))["value"].cast("string").try_cast("long"))


def decoded(kafka: DataFrame, reading: Reading) -> DataFrame:
    """Tell marks from data, and decode the data: adds ``raw``, ``control``, ``task``, ``value`` and ``event_time``."""
    control = F.coalesce(F.startswith(F.col("key"), F.lit(KEY_PREFIX)), F.lit(False))  # noqa: FBT003  # a SQL literal
    rows = kafka.select(
        *("topic", "partition", "offset", "timestamp", "key", F.col("value").alias("raw")),
        *(["headers"] if "headers" in kafka.columns else []),
        control.alias("control"),
        F.spark_partition_id().alias("task"),
        F.when(~control, reading.decode(F.col("value"))).alias("value"),
    )
    _require_timestamp(rows, reading.event_time)
    own = F.col("value").getField(reading.event_time)
    has_headers = "headers" in kafka.columns
    return rows.withColumn("event_time", F.coalesce(_header(TIME_HEADER), own) if has_headers else own)


def _require_timestamp(decoded: DataFrame, event_time: str) -> None:
    values = decoded.schema["value"].dataType
    if not isinstance(values, StructType):
        raise UsageError(reason=f"values decode to {values.simpleString()}, expected a struct")
    kinds = {field.name: field.dataType for field in values}
    kind = kinds.get(event_time)
    if not isinstance(kind, TimestampType):
        found = "is missing" if kind is None else f"is a {kind.simpleString()}"
        raise UsageError(reason=f"field {event_time!r} of the values {found}, expected a timestamp as the event time")
