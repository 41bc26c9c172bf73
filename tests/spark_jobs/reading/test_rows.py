"""What a record is: the time in its headers, and that Spark compiles all of it into one stage."""

import random
import re

import pytest
from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import TIME_HEADER
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME
from floodmark.spark_jobs import avro
from floodmark.spark_jobs.reading.observation import columns, prepared
from floodmark.spark_jobs.reading.rows import decoded, header_time
from floodmark.spark_jobs.reading.source_spec import Connection, SourceSpec
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import EVENT

pytestmark = pytest.mark.spark
_HEADERS = "ARRAY<STRUCT<key: STRING, value: BINARY>>"
_KAFKA = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "headers": _HEADERS,
}
_KEYS = (
    TIME_HEADER,
    TIME_HEADER,
    TIME_HEADER,
    "other",
    f'x"}},{{"key":"{TIME_HEADER}", "value":"5',
    f"{TIME_HEADER}s",
    "",
)
_BOUNDS = (0, EARLIEST, END_OF_TIME, 10**13, 10**14, 62_099_999_999_999, 250_000_000_000_000)


def _value(chance):
    number = chance.choice(_BOUNDS) + chance.randrange(-2, 3) * chance.choice((1, 10**9))
    text = str(number)
    if chance.random() < 0.3:
        text = text.replace("-", "-0" * chance.randrange(2)) if number < 0 else text.zfill(chance.randrange(13, 17))
    odd = (None, b"", b"-", b"\xff12", b"12\n", b" 12", b"+5", b"1e3", b"12.0", b'5"}', b"\\", "é1".encode())
    return text.encode() if chance.random() < 0.7 else chance.choice(odd)


def _expected(headers):
    """Say what the last readable header of the name says: the rule, header by header."""
    for key, value in reversed(headers or []):
        if key != TIME_HEADER or not re.fullmatch(rb"-?[0-9]{1,15}", value or b""):
            continue
        if EARLIEST <= int(value) <= END_OF_TIME:
            return int(value)
    return None


def test_the_last_readable_header_counts_whatever_stands_beside_it(spark):
    chance = random.Random(5)  # noqa: S311  # repeatable
    given = [
        [(chance.choice(_KEYS), _value(chance)) for _ in range(chance.randrange(5))] if number else None
        for number in range(3_000)
    ]
    frame = spark.createDataFrame(list(enumerate(given)), f"id INT, headers {_HEADERS}")
    found = dict(frame.select("id", F.unix_millis(header_time(TIME_HEADER))).collect())
    expected = {number: _expected(headers) for number, headers in enumerate(given)}
    assert found == expected
    assert len(set(expected.values())) > 50


@pytest.mark.every_spark
def test_spark_compiles_all_that_is_done_to_a_record_into_one_stage(spark):
    """A lambda or another function that it interprets would split the stage, and cost a copy of each record."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.codegen.wholeStage", "true")
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    kafka = session.range(1).select(*(F.lit(None).cast(kind).alias(name) for name, kind in _KAFKA.items()))
    spec = SourceSpec("one-stage", Connection(("clicks",), "nowhere"), F.col("at"), avro(EVENT).decode)
    records = prepared(
        decoded(kafka, spec), [F.col("value.user").alias("user"), F.col("event_time").alias("at")], ["clicks"]
    )
    plan = records.observe("one-stage", *columns())._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001
    above, below = plan.split("CollectMetrics")[0], plan.split("\n", 1)[1]
    assert not above.strip(), plan
    lines = [line.lstrip(" +-:") for line in below.splitlines() if line.strip()]
    assert lines, plan
    assert all(line.startswith("*(1) ") for line in lines), plan


def test_more_topics_than_can_be_counted_are_refused(spark):
    with pytest.raises(UsageError, match="1,025 topics"):
        prepared(spark.range(1), [], [str(number) for number in range(1_025)])
