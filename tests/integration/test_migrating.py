"""The page on migrating: its code of before and after, on one topic in which a partition lags by an hour."""

import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from floodmark.producers import WatermarkedProducer, explicit
from floodmark.schemas import Membership
from floodmark.schemas.errors import ForeignCheckpointError

_PAGE = Path(__file__).parents[2] / "spark_jobs" / "MIGRATING.md"
_LIMIT = 180
_MINUTE = 60_000
_HOUR = 60 * _MINUTE
_NOON = 1_600_000_000_000 // _HOUR * _HOUR
_FAST = [(shop, 1, _NOON + at) for at in range(0, 2 * _HOUR, 45_000) for shop in ("north", "south")]
_SLOW = [(shop, 100, _NOON + at) for at in range(0, _HOUR, 50_000) for shop in ("north", "south")]
_GUESSED = _FAST[-1][2] - 10 * _MINUTE


def functions(topics):
    """Return the page's `before` and `after`, with topics of their own."""
    found = {}
    for code in re.findall(r"```python\n(from [^`]*?\ndef .*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL):
        for name, topic in topics.items():
            code = code.replace(f'"{name}"', f'"{topic}"')  # noqa: PLW2901  # the same code, with another topic
        exec(code, found)  # noqa: S102  # our own page
    return found["before"], found["after"]


def totals(orders):
    """Sum up per shop and end of the minute: the plain computation."""
    found = Counter()
    for shop, amount, at in orders:
        found[shop, at // _MINUTE * _MINUTE + _MINUTE] += amount
    return found


def written(spark, kafka, topic):
    """Return what a job has written; a row that is there twice shows as a sum too high."""
    table = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    table = table.option("kafka.isolation.level", "read_committed").option("subscribe", topic).load()
    found = Counter()
    for row in table.where("key IS NULL OR NOT startswith(CAST(key AS STRING), '__floodmark__/')").collect():
        value = json.loads(row.value)
        end = datetime.fromisoformat(value["minute"]).astimezone(UTC)
        found[value["shop"], round(end.timestamp() * 1000)] += value["revenue"]
    return found


@pytest.mark.spark
def test_the_guess_loses_the_partition_that_lags_and_the_job_after_it_counts_every_row(spark, kafka, topic, tmp_path):
    orders, old, new = topic(2), topic(1), topic(1)
    before, after = functions({"orders": orders, "revenue-per-minute": old, "revenue-complete": new})
    servers, place, other = kafka.bootstrap_servers, str(tmp_path / "old"), str(tmp_path / "new")
    tills = [
        WatermarkedProducer(
            kafka.config,
            topic=orders,
            source=name,
            strategy=explicit(),
            membership=Membership(version=1, size=2),
            background=False,  # else Spark's processAllAvailable would wait for marks that never end
        )
        for name in ("till-1", "till-2")
    ]

    def work_off():
        query = before(spark, servers, place)
        query.processAllAvailable()
        query.stop()

    for partition, (till, rows) in enumerate(zip(tills, (_FAST, _SLOW), strict=True)):
        for shop, amount, at in rows:
            time = datetime.fromtimestamp(at / 1000, UTC).isoformat()
            value = json.dumps({"shop": shop, "amount": amount, "at": time}).encode()
            till.produce(value, key=shop, event_time=at, partition=partition)
        till.flush()
        work_off()
    assert written(spark, kafka, old) == totals(
        row for row in _FAST if row[2] // _MINUTE * _MINUTE + _MINUTE <= _GUESSED
    )

    for till in tills:
        till.end()
    with pytest.raises(ForeignCheckpointError):
        after(spark, servers, place)
    job = after(spark, servers, other)
    job.awaitTermination(_LIMIT)
    assert written(spark, kafka, new) == totals(_FAST + _SLOW)
    assert job.counts["late"] == 0

    guessed = written(spark, kafka, old)
    work_off()  # the way back: the old job goes on at its checkpoint
    assert written(spark, kafka, old) == guessed
