"""Queries made up from seeds, over inputs that are adjusted, empty, of topics that grow, or read in small batches."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from floodmark.schemas.classify import Headers
from floodmark.schemas.records import TIME_HEADER
from floodmark.spark_jobs import ReadOptions, avro, read
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support import operators as ops
from support.query_cases import case
from support.streams import ROW, Grow, Log, Put, Say, Values, encode
from support.trial import Trial, differences, run

pytestmark = pytest.mark.spark
_COUNTS = "counts_at"


def adjusted(seed: int) -> Trial:
    """Let an injector have adjusted the times of two rows in three: the values have others."""
    trial = case(seed)
    trial.logs = [replace(log, record=_adjusted) for log in trial.logs]
    return replace(trial, read=_read_adjusted)


def _adjusted(values: Values) -> tuple[bytes, Headers]:
    key, at, number = values
    if number % 3 == 0:
        return encode(values), []
    before: Headers = [(TIME_HEADER, b"1e3"), (TIME_HEADER, b"1")]
    return encode((key, at + number * 7_919 % 200_000 - 100_000, number)), [*before, (TIME_HEADER, b"%d" % at)]


def _read_adjusted(
    spark: SparkSession, servers: str, topics: Sequence[str | Sequence[str]], per_batch: int | None
) -> list[DataFrame]:
    options = ReadOptions(max_offsets_per_trigger=per_batch, adjusted=_COUNTS)
    given = [
        read(spark, topics=topic, value=avro(ROW), event_time="at", bootstrap_servers=servers, options=options)
        for topic in topics
    ]
    return [frame.select("k", F.col(_COUNTS).alias("at"), "n") for frame in given]


def growing(seed: int) -> Trial:
    """Let each topic get one partition more, twice, while the job runs."""
    trial, chance = case(seed), random.Random(~seed)  # noqa: S311  # a repeatable case
    logs = []
    for log in trial.logs:
        partitions, entries = log.partitions, list[Put | Say | Grow]()
        at = chance.sample(range(len(log.entries)), min(2, len(log.entries)))
        for number, entry in enumerate(log.entries):
            if number in at:
                partitions += 1
                entries.append(Grow(partitions))
            entries.append(replace(entry, partition=chance.randrange(partitions)) if isinstance(entry, Put) else entry)
        logs.append(Log(log.partitions, entries))
    write = {**trial.write, "lookahead": timedelta(seconds=1)}
    return replace(trial, logs=logs, live=True, per_batch=max(3, trial.per_batch // 2), write=write)


def empty(seed: int) -> Trial:
    """Let one input have no row: it ends at once, is idle first, or says how complete it is."""
    trial, chance = case(seed), random.Random(~seed)  # noqa: S311  # a repeatable case
    which = chance.randrange(len(trial.logs))
    log = trial.logs[which]
    said = [entry for entry in log.entries if isinstance(entry, Say)]
    entries: list[Put | Say | Grow] = chance.choice(
        [
            [Say("s0", "end")],
            [Say("s0", "idle"), Say("s0", "end")],
            [entry for entry in said if entry.what != "idle"],
        ]
    )
    logs = [Log(log.partitions, entries) if number == which else one for number, one in enumerate(trial.logs)]
    return replace(trial, logs=logs)


def small_batches(seed: int) -> Trial:
    """Join in batches of few records, with stops."""
    chance = random.Random(~seed)  # noqa: S311  # a repeatable case
    source = ops.joined(chance.choice(["right", "full"]), chance.choice([0, 500, 9_999]))
    logs = next(trial.logs for trial in map(case, range(seed * 1_000, seed * 1_000 + 999)) if len(trial.logs) == 2)
    restarts = [chance.randrange(1, 4) for _ in range(2)]
    return Trial(ops.Query(source), logs, chance.choice([3, 5]), restarts)


@pytest.mark.parametrize(("kind", "seed"), [(adjusted, 1), (empty, 1), (growing, 1), (small_batches, 1)])
def test_a_query_over_another_input_equals_its_plain_computation(spark, kafka, topic, checkpoint, kind, seed):
    trial = kind(seed)
    assert differences(trial, run(spark, kafka.config, trial, topic, checkpoint)) == [], trial.query.name
