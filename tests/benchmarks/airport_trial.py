"""The steps of the trial with hundreds of airports: write, check, run a job, and hold its results against pandas."""

import gc
import json
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pandas as pd
from benchmarks.airport_flights import Flights
from floodmark.producers import SourcePool, WatermarkedProducer, bounded_out_of_orderness
from floodmark.producers.clients.admin import begin_offsets
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.readers.check import findings
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.checker import Checker, Finding
from floodmark.schemas.classify import Data
from floodmark.schemas.records import Membership
from floodmark.spark_jobs import Batch, Job, WriteOptions, formats, read, write
from floodmark.spark_jobs.progress.unusable import UNUSABLE
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

Advance = Callable[[int], None]
"""Is told how many rows are done."""
Result = tuple[str, int, int, int, int]
"""Airport, end of the hour (epoch milliseconds), flights, minutes of delay in all, the longest delay."""

_CLIENT: Final = {"linger.ms": 20}
_FLIGHT: Final = "airport STRING, airline STRING, departed TIMESTAMP, landed TIMESTAMP, delay BIGINT"
_HOURLY: Final = "airport STRING, hour TIMESTAMP, flights BIGINT, delay BIGINT, longest BIGINT"
_HOUR: Final = 3_600_000
_CHUNK: Final = 10_000
_LIMIT: Final = 1_800.0
"""Seconds that a step may take."""


@dataclass(frozen=True, slots=True)
class Writers:
    """The sources of a topic, one for each airport or one for all."""

    sources: Sequence[WatermarkedProducer]
    flush: Callable[[], object]
    end: Callable[[], object]


Way = Callable[[dict[str, Any], str, Sequence[str], timedelta], AbstractContextManager[Writers]]


@contextmanager
def one_source(config: dict[str, Any], topic: str, _airports: Sequence[str], bound: timedelta) -> Iterator[Writers]:
    """Write all rows from one source."""
    strategy = bounded_out_of_orderness(bound)
    with WatermarkedProducer(config, topic=topic, source="all", strategy=strategy) as source:
        yield Writers([source], source.flush, source.end)


@contextmanager
def a_client_each(config: dict[str, Any], topic: str, airports: Sequence[str], bound: timedelta) -> Iterator[Writers]:
    """Write from a source for each airport, each with a Kafka client of its own, which has five files open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    strategy, membership = bounded_out_of_orderness(bound), Membership(version=1, size=len(airports))
    with ExitStack() as stack:
        sources = [
            stack.enter_context(
                WatermarkedProducer(
                    config, topic=topic, source=name, strategy=strategy, membership=membership, background=False
                )
            )
            for name in airports
        ]
        yield Writers(sources, lambda: [source.flush() for source in sources], lambda: [one.end() for one in sources])


@contextmanager
def a_pool(config: dict[str, Any], topic: str, airports: Sequence[str], bound: timedelta) -> Iterator[Writers]:
    """Write from a source for each airport, over one Kafka client."""
    with SourcePool(config, topic=topic) as pool:
        yield Writers(pool.join(*airports, strategy=bounded_out_of_orderness(bound)), pool.flush, pool.end)


WAYS: Final[dict[str, Way]] = {"one source": one_source, "a client each": a_client_each, "a pool": a_pool}


@dataclass(frozen=True, slots=True)
class Written:
    """How quickly a way has written."""

    rows: int
    start: float
    """Seconds until its sources were there."""
    rate: float
    """Rows a second, from the first one until all were acknowledged."""
    processor: float
    """Time of it for a row, microseconds."""
    end: float
    """Seconds until all sources had ended."""
    threads: int
    """Of the process, while it wrote."""


def write_rows(  # what a topic is written with
    way: Way,
    config: dict[str, Any],
    topic: str,
    flights: Flights,
    bound: timedelta,
    advance: Advance,
    rows: int | None = None,
) -> Written:
    """Write the first rows, or all; a row's key is its airport, and the promise its last departure less the bound."""
    airports, keys = flights.airports, [name.encode() for name in flights.airports]
    count = len(flights) if rows is None else min(rows, len(flights))
    columns = flights.frame["airport"].tolist(), flights.frame["departed"].tolist(), flights.json
    began = time.perf_counter()
    with way({**config, **_CLIENT}, topic, airports, bound) as writers:
        there, worked = time.perf_counter(), time.process_time()
        sources = list(writers.sources) * (len(airports) if len(writers.sources) == 1 else 1)
        for first in range(0, count, _CHUNK):
            part = slice(first, min(first + _CHUNK, count))
            for airport, departed, value in zip(*(column[part] for column in columns), strict=True):
                sources[airport].produce(value, key=keys[airport], event_time=departed)
            advance(part.stop)
        threads = sum(1 for _ in Path("/proc/self/task").iterdir())
        writers.flush()
        written, spent = time.perf_counter(), time.process_time() - worked
        writers.end()
        ended = time.perf_counter()
    del writers, sources
    gc.collect()  # a client's threads and connections go with its object, which stands in a circle
    return Written(count, there - began, count / (written - there), spent / count * 1e6, ended - written, threads)


class OrderedChecker(Checker):
    """Checks, and counts the rows that are out of order: behind one of the same partition with a later event time."""

    def __init__(self) -> None:
        super().__init__()
        self.out_of_order = 0
        self._latest: dict[int, int] = {}

    def data(self, partition: int, offset: int, event_time: int | None, **more: Any) -> list[Finding]:
        if event_time is not None:
            latest = self._latest.get(partition, event_time)
            self.out_of_order += event_time < latest
            self._latest[partition] = max(latest, event_time)
        return super().data(partition, offset, event_time, **more)


def check(config: dict[str, Any], topic: str, advance: Advance) -> tuple[OrderedChecker, list[Finding]]:
    """Check a topic as ``floodmark check TOPIC --json-field departed`` does."""
    checker = OrderedChecker()

    def progress(count: int) -> None:
        if count % _CHUNK == 0:
            advance(checker.records["data"])

    return checker, list(findings(config, topic, JsonField("departed"), checker, progress))


def start_job(
    spark: SparkSession, servers: str, source: str, target: str, place: Path, on_batch: Callable[[Batch], None]
) -> Job:
    """Start the job: what left each airport in each hour, into a topic, exactly once."""
    flights = read(
        spark, topics=source, value=formats.json(_FLIGHT, unit="ms"), event_time="departed", bootstrap_servers=servers
    )
    hourly = flights.groupBy("airport", F.window("departed", "1 hour")).agg(
        F.count("*").alias("flights"), F.sum("delay").alias("delay"), F.max("delay").alias("longest")
    )
    return write(
        hourly.selectExpr("airport", "window.end AS hour", "flights", "delay", "longest"),
        topic=target,
        value=formats.json(_HOURLY, unit="ms"),
        key="airport",
        event_time="hour",
        checkpoint_location=str(place),
        options=WriteOptions(on_batch=on_batch),
    )


def run_job(  # as `start_job`
    spark: SparkSession, servers: str, source: str, target: str, place: Path, advance: Advance
) -> tuple[Job, float]:
    """Run the job until all sources have ended; returns it, and the seconds that it took."""
    done = 0

    def on_batch(batch: Batch) -> None:
        nonlocal done
        done += batch.records - batch.marks
        advance(done)

    began = time.perf_counter()
    job = start_job(spark, servers, source, target, place, on_batch)
    job.awaitTermination(_LIMIT)
    return job, time.perf_counter() - began


def results(config: dict[str, Any], topic: str, advance: Advance) -> Counter[Result]:
    """Read the results back, each as often as it is there."""
    found, count = Counter[Result](), 0
    for record in read_until_end(config, begin_offsets(config, [topic])):
        if isinstance(record, Data) and record.value is not None:
            row = json.loads(record.value)
            found[row["airport"], row["hour"], row["flights"], row["delay"], row["longest"]] += 1
            count += 1
            if count % _CHUNK == 0:
                advance(count)
    return found


def expected(flights: Flights) -> Counter[Result]:
    """Return the results that pandas has for the same rows.  It shares no code with the job."""
    frame = flights.frame.assign(hour=(flights.frame["departed"] // _HOUR + 1) * _HOUR)
    hourly = frame.groupby(["airport", "hour"])["delay"].agg(["size", "sum", "max"]).reset_index()
    names = pd.Series(flights.airports)[hourly["airport"]]
    return Counter(zip(names, *(hourly[name].tolist() for name in ("hour", "size", "sum", "max")), strict=True))


def compare(found: Counter[Result], due: Counter[Result]) -> tuple[dict[str, int], list[str]]:
    """Compare row by row: how many are missing and how many too many, and what is wrong, in words."""
    missing, surplus = due - found, found - due
    wrong = [
        f"{kind.total():,} results {name}, the first: {_shown(min(kind, key=lambda row: row[1]))}"
        for name, kind in (("missing", missing), ("too many", surplus))
        if kind
    ]
    return {"results": found.total(), "missing": missing.total(), "too_many": surplus.total()}, wrong


def amiss(counts: Mapping[str, int], rows: int, faults: int) -> list[str]:
    """Say what is wrong by a job's counts, and by the number of faults in its topic."""
    seen = counts["records"] - counts["marks"]
    wrong = [f"{counts[name]:,} rows {name}" for name in ("late", *UNUSABLE, "lost", "surplus") if counts[name]]
    wrong += [f"{seen:,} rows read of {rows:,}"] if seen != rows else []
    return wrong + ([f"{faults:,} faults in the topic"] if faults else [])


def _shown(row: Result) -> str:
    airport, hour, count, delay, longest = row
    when = pd.Timestamp(hour, unit="ms", tz="UTC")
    return f"{airport}, the hour to {when:%Y-%m-%dT%H:%MZ}, {count} flights, {delay} minutes late, at most {longest}"
