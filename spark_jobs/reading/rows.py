"""Decode Kafka records to marks, to rows with an event time, or to the kinds of records that are only counted."""

import re
from typing import Final

from floodmark.schemas.records import KEY_PREFIX, TIME_HEADER
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME
from floodmark.spark_jobs.reading.judge import judged
from floodmark.spark_jobs.reading.source_spec import Decoder, SourceSpec
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

_MILLISECONDS: Final = "-?[0-9]{1,15}"
_FIRST: Final = 1  # microseconds since 1970: Spark's watermark begins at 0, and operators drop rows that are not later

_LAST: Final = 253_370_764_800_000_000 - 1
"""The last microsecond of 9998: the watermark of ended input is that of 9999, and later windows never close."""

OURS: Final = "floodmark "  # the prefix of our columns, since fields may have any other names


def kafka_timestamp() -> Column:
    """Return Kafka's timestamp of a record as the event time: ``read(event_time=kafka_timestamp())``.

    Use it if the time of arrival is the event time: for a producer with the strategy ``ingress()``, or ``floodmark
    inject --log-time``.  The resulting column is ``kafka_timestamp``; ``.alias("arrived")`` renames it.  A record
    without a timestamp is counted as ``out_of_range``.
    """
    return F.col(f"`{OURS}timestamp`").alias("kafka_timestamp")


def header_time(name: str) -> Column:
    """Return the time in the last header of a name that has one; null: none.

    This uses no lambda, which would keep Spark from compiling the whole stage.  In JSON, texts have no bare quotation
    marks, so no text can look like a header.
    """
    headers = F.col("headers")
    texts = F.to_json(headers.cast("array<struct<key:string,value:string>>"))
    number = rf"-{_at_most(-EARLIEST)}|{_at_most(END_OF_TIME)}"
    last = rf'.*\{{"key":"{re.escape(name)}","value":"(?={_MILLISECONDS}")({number})"\}}'
    found = F.regexp_extract(texts, last, 1).try_cast("long")
    return F.timestamp_millis(F.when(F.array_contains(headers["key"], name), found))


def _at_most(limit: int) -> str:
    """Return a regular expression for the numbers from 0 to a limit, with leading zeros allowed.

    >>> _at_most(213)
    '0*(?:[0-9]{0,2}|[0-1][0-9]{2}|2[0-0][0-9]{1}|21[0-2]|213)'
    """
    digits = str(limit)
    left = len(digits) - 1
    less = [
        f"{digits[:at]}[0-{int(digit) - 1}]" + (f"[0-9]{{{left - at}}}" if at < left else "")
        for at, digit in enumerate(digits)
        if digit != "0"
    ]
    return f"0*(?:{'|'.join([f'[0-9]{{0,{left}}}', *less, digits])})"


def flat(kafka: DataFrame, decode: Decoder) -> DataFrame:
    """Return the columns of Kafka, with our prefix, and the fields of the decoded values."""
    control = F.coalesce(F.startswith(F.col("key"), F.lit(KEY_PREFIX)), F.lit(False))  # noqa: FBT003  # a SQL literal
    found = {
        **{name: F.col(name) for name in ("topic", "partition", "offset", "timestamp", "key", "headers")},
        "raw": F.col("value"),
        "control": control,
        "task": F.spark_partition_id(),
        "value": F.when(~control, decode(F.col("value"))),
    }
    kept = [column.alias(OURS + name) for name, column in found.items() if name != "headers" or name in kafka.columns]
    return kafka.select(kept).select("*", F.col(f"`{OURS}value`.*"))


def decoded(kafka: DataFrame, spec: SourceSpec) -> DataFrame:
    """Decode records, and add ``raw``, ``control``, ``task``, ``value``, ``adjusted``, ``event_time`` and ``kind``.

    ``adjusted`` is the time that an injector has set, or null.  ``kind`` is ``mark``, ``row``, or the name of a count.
    If late rows are judged, `judge.judged` adds its columns.
    """
    columns = flat(kafka, spec.decode).withColumn(f"{OURS}event_time", spec.event_time)
    added = [name for name in columns.columns if name.startswith(OURS)]
    rows = columns.select([F.col(f"`{name}`").alias(name.removeprefix(OURS)) for name in added])
    adjusted = header_time(TIME_HEADER) if "headers" in rows.columns else F.lit(None).cast("timestamp")
    rows = rows.withColumn("adjusted", adjusted).withColumn("event_time", F.coalesce("adjusted", "event_time"))
    kind = (
        F.when(F.col("control"), "mark")
        .when(F.col("raw").isNull(), "tombstones")
        .when(F.col("value").isNull(), "unreadable")
        .when(F.col("event_time").isNull(), "missing_event_time")
        .when(~F.unix_micros("event_time").between(_FIRST, _LAST), "out_of_range")
        .otherwise("row")
    )
    rows = rows.withColumn("kind", kind)
    return rows if spec.late is None else judged(rows, spec.name)
