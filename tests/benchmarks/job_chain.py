"""Chains of jobs, each the same window count, with marks or in plain Spark, and what one run of a chain measures.

A producer in a process of its own writes a row every 10 ms, paced by the wall clock, which is the event time, too: ten
rows a window-second for each of ten users.  Every job sums them up per user and second, and stamps the result with
Spark's own time of the window (its end less a millisecond), so that all jobs of a chain have the same windows, and no
query adds a delay of its own.  Each window must come out of the last job once for each user, with ten rows counted.
"""

import itertools
import math
import multiprocessing
import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import wraps
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Final, Protocol, Self
from unittest.mock import patch

from confluent_kafka import Producer
from floodmark.producers import Data, EmbeddedKafka, Observer, WatermarkedProducer, ascending, create_topics
from floodmark.schemas import AvroCodec
from floodmark.schemas.codec import without_logical_types
from floodmark.spark_jobs import WriteOptions, avro, read, write
from floodmark.spark_jobs.batch.sinks import ExactlyOnceSink
from floodmark.spark_jobs.batch.snapshots import Snapshots
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

WIDTH: Final = 1_000
"""Of a window, milliseconds."""
USERS: Final = 10
PER_USER: Final = 10
"""Rows of a user in a window."""
PARTITIONS: Final = 2
_PACE: Final = WIDTH // (USERS * PER_USER)
_MARKS: Final = timedelta(milliseconds=100)
_LEAD: Final = 3_000
"""Milliseconds that the producer's process is given to start."""
_PATIENCE: Final = (120.0, 30.0)
"""Seconds that the last windows may take: in any case, and for each job."""
_END: Final = 300.0
"""Seconds that a job may take to its end, when its input has ended."""
_CHECK: Final = 2.0
"""Seconds between two looks at whether the jobs still run."""
ROW: Final = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "user", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "n", "type": "long"},
    ],
}
_rows = AvroCodec(without_logical_types(ROW))

STEPS: Final = ("consume", "snapshot", "commit", "rest", "around")
"""What ``addBatch`` of a job with marks is made of: the steps of its handler, with all between them as ``rest``, and
``around`` it what Spark does before it calls Python and after that."""


def counted(rows: DataFrame, width: int = WIDTH) -> DataFrame:
    """Return the query of every job of every chain."""
    summed = rows.groupBy("user", F.window("at", f"{width} milliseconds")).agg(F.sum("n").alias("n"))
    return summed.select("user", F.window_time("window").alias("at"), "n")


@dataclass(frozen=True, slots=True)
class Running:
    """A job of a chain, and per batch the milliseconds of the handler's steps.

    ``finish`` waits until it has worked off all input, which has ended, and stops it; ``stop`` stops it at once.
    """

    query: StreamingQuery
    finish: Callable[[], object]
    stop: Callable[[], None]
    failure: Callable[[], BaseException | None]
    steps: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


class Chain(Protocol):
    """A way to run the jobs of a chain."""

    name: str
    marked: bool
    """Whether the producer writes marks."""

    def start(self, spark: SparkSession, servers: str, source: str, target: str, checkpoint: str) -> Running:
        """Start one job from a topic to a topic."""


class Floodmark:
    """Jobs that read marks and write marks, exactly once; enter it to have the steps of the handler timed."""

    name = "Floodmark"
    marked = True

    def __init__(self) -> None:
        self._taken = threading.local()
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        """Put a clock around the steps."""
        for name, kind, method in (
            ("consume", ExactlyOnceSink, "consume"),
            ("snapshot", Snapshots, "store"),
            ("commit", ExactlyOnceSink, "commit"),
        ):
            self._patches.enter_context(patch.object(kind, method, self._timed(name, getattr(kind, method))))
        return self

    def __exit__(self, *_error: object) -> None:
        """Take the clocks away."""
        self._patches.close()

    def _timed(self, name: str, step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return step(*args, **kwargs)
            finally:
                setattr(self._taken, name, (time.perf_counter() - began) * 1000)

        return timed

    def start(self, spark: SparkSession, servers: str, source: str, target: str, checkpoint: str) -> Running:
        """Start one job from a topic to a topic."""
        steps: dict[int, dict[str, float]] = {}

        def keep(batch: Any) -> None:
            taken = dict(vars(self._taken))  # on the thread that ran the batch
            steps[batch.batch_id] = {**taken, "rest": batch.duration / timedelta(milliseconds=1) - sum(taken.values())}

        rows = read(spark, topics=source, value=avro(ROW), event_time="at", bootstrap_servers=servers)
        options = WriteOptions(watermark_hold=timedelta(milliseconds=1), on_batch=keep)
        job = write(
            counted(rows),
            topic=target,
            value=avro(ROW),
            event_time="at",
            key="user",
            checkpoint_location=checkpoint,
            options=options,
        )
        return Running(job.query, lambda: job.awaitTermination(_END), job.stop, job.exception, steps)


def plain_rows(spark: SparkSession, servers: str, topic: str, **options: str) -> DataFrame:
    """Read rows as Spark alone does, with a watermark that guesses no delay."""
    options = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest", **options}
    values = spark.readStream.format("kafka").options(**options).load()
    rows = values.select(avro(ROW).decode(F.col("value")).alias("value")).select("value.*")
    return rows.withWatermark("at", "0 seconds")


def plain_writer(result: DataFrame, servers: str, topic: str) -> DataStreamWriter:
    """Write results with Spark's own Kafka sink."""
    encoded = result.select(F.col("user").alias("key"), avro(ROW).encode(F.struct("*")).alias("value"))
    return encoded.writeStream.format("kafka").options(**{"kafka.bootstrap.servers": servers}, topic=topic)


class Plain:
    """Spark alone: ``withWatermark`` without a delay, append mode, and its own Kafka sink."""

    name = "plain"
    marked = False

    def start(self, spark: SparkSession, servers: str, source: str, target: str, checkpoint: str) -> Running:
        """Start one job from a topic to a topic."""
        writer = plain_writer(counted(plain_rows(spark, servers, source)), servers, target)
        query = writer.option("checkpointLocation", checkpoint).outputMode("append").start()

        def finish() -> None:
            query.processAllAvailable()
            query.stop()

        return Running(query, finish, query.stop, query.exception)


def feed(servers: str, topic: str, began: int, stop: Event, *, marked: bool) -> None:
    """Write rows until told to stop, the first at ``began`` (epoch milliseconds); a process of its own."""
    config = {"bootstrap.servers": servers, "enable.idempotence": True}
    send, end = _with_marks(config, topic) if marked else _bare(config, topic)
    number = 0
    while not stop.is_set():
        at = began + number * _PACE
        wait = at / 1000 - time.time()
        if wait > 0:
            time.sleep(wait)
        user = f"u{number % USERS}"
        send(user, at, _rows.encode({"user": user, "at": at, "n": 1}))
        number += 1
    end()


_Send = tuple[Callable[[str, int, bytes], None], Callable[[], object]]
"""Sends a row (user, event time, value); and ends."""


def _with_marks(config: dict[str, Any], topic: str) -> _Send:
    producer = WatermarkedProducer(config, topic=topic, source="clock", strategy=ascending(), interval=_MARKS)
    return lambda user, at, value: producer.produce(value, key=user, event_time=at), producer.end


def _bare(config: dict[str, Any], topic: str) -> _Send:
    producer = Producer(config)

    def send(user: str, _at: int, value: bytes) -> None:
        producer.produce(topic, value, user)
        producer.poll(0)

    return send, producer.flush


@contextmanager
def feeding(servers: str, topic: str, began: int, *, marked: bool) -> Iterator[None]:
    """Feed a topic within the block."""
    spawned = multiprocessing.get_context("spawn")
    stop = spawned.Event()
    feeder = spawned.Process(target=feed, args=(servers, topic, began, stop), kwargs={"marked": marked}, daemon=True)
    feeder.start()
    try:
        yield
    finally:
        stop.set()
        feeder.join(30)


@dataclass(frozen=True, slots=True)
class Spent:
    """What has been spent so far, CPU in seconds."""

    at: float
    """When, epoch seconds."""
    jvm: float
    """CPU of the driver's JVM and of what it forked."""
    python: float
    """CPU of the driver's Python."""
    busy: float
    """CPU of all cores, for whomever."""
    all: float
    """All time of all cores."""
    compiled: int
    """Classes that Spark generated and compiled, because no equal one was in its cache."""

    @classmethod
    def now(cls, spark: SparkSession) -> "Spent":
        """Look."""
        tick = os.sysconf("SC_CLK_TCK")
        pid = spark.sparkContext._gateway.proc.pid  # noqa: SLF001
        times = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:15]
        cores = [int(found) / tick for found in Path("/proc/stat").read_text(encoding="ascii").split()[1:9]]
        whole = sum(cores)
        idle, jvm = cores[3] + cores[4], sum(map(int, times)) / tick
        codegen = spark._jvm.org.apache.spark.metrics.source.CodegenMetrics  # noqa: SLF001
        compiled = int(codegen.METRIC_COMPILATION_TIME().getCount())
        return cls(time.time(), jvm, time.process_time(), whole - idle, whole, compiled)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a chain.

    ``latencies``: seconds from the end of a window to its row in the last topic, for each window and user after the
    warm-up.  ``phases``: milliseconds by name, one of each batch.  ``jvm``, ``python`` (CPU seconds) and ``compiled``
    (classes) are of one batch.  ``busy``: the share of all cores that worked, for whomever.  ``load``: the load average
    of the minute before.
    """

    latencies: Sequence[float]
    phases: Mapping[str, Sequence[float]]
    batches: int
    jvm: float
    python: float
    compiled: float
    busy: float
    load: float
    windows: int
    """Results expected: windows since the beginning, for each user."""
    missing: int
    doubled: int
    wrong: int
    """Results seen once, but with another count."""

    @property
    def exact(self) -> bool:
        """Whether each result was seen once, and right."""
        return not (self.missing or self.doubled or self.wrong)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a run is, seconds: the warm-up, which is left out, and what is measured."""

    warm_up: int
    seconds: int


class Results:
    """What a reader of committed records has seen in the last topic."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], list[tuple[float, int]]] = defaultdict(list)
        """User and end of the window, epoch milliseconds, to when it was seen, epoch seconds, and its count."""

    def poll(self, observer: Observer) -> int:
        """Take in what has come, and return how many records that were; waits a moment for the first."""
        found = list(observer.poll(0.1))
        for record in found:
            if isinstance(record, Data) and record.value is not None:
                row = _rows.decode(record.value)
                self.seen[row["user"], row["at"] + 1].append((time.time(), row["n"]))
        return len(found)

    def latencies(self, ends: range) -> list[float]:
        """Return the latencies of the windows with these ends, in their order, as far as they were seen."""
        return [self.seen[key][0][0] - key[1] / 1000 for key in _keys(ends) if key in self.seen]

    def verdict(self, ends: range) -> dict[str, int]:
        """Return how many results of these windows there should be, and how many are not as they should be."""
        found = [self.seen.get(key, []) for key in _keys(ends)]
        return {
            "windows": len(found),
            "missing": sum(not rows for rows in found),
            "doubled": sum(len(rows) > 1 for rows in found),
            "wrong": sum(len(rows) == 1 and rows[0][1] != PER_USER for rows in found),
        }

    def complete(self, ends: range) -> bool:
        """Tell whether all results of these windows were seen."""
        return all(key in self.seen for key in _keys(ends))


def _keys(ends: range) -> Iterator[tuple[str, int]]:
    return ((f"u{user}", end) for end in ends for user in range(USERS))


def measure(
    chain: Chain,
    jobs: int,
    plan: Plan,
    *,
    kafka: EmbeddedKafka,
    spark: SparkSession,
    folder: Path,
    report: Callable[[str], None],
) -> Run:
    """Run a chain on new topics and checkpoints, and stop it.

    Args:
        chain: with marks or without.
        jobs: how many, 1 or more.
        plan: how long.
        kafka: the broker.
        spark: the session of all jobs.
        folder: an empty one, whose name is new: topics are named after it.
        report: is told what is being done.

    Raises:
        RuntimeError: where a job fails.
    """
    load = os.getloadavg()[0]
    servers = kafka.bootstrap_servers
    topics = [f"{folder.name}-{number}" for number in range(jobs + 1)]
    create_topics(kafka.config, dict.fromkeys(topics, PARTITIONS))
    report("starting")
    running: list[Running] = []
    observer = Observer({**kafka.config, "fetch.wait.max.ms": 100}, [topics[-1]])
    try:
        for source, target in itertools.pairwise(topics):
            running.append(chain.start(spark, servers, source, target, str(folder / target)))
        began = math.ceil(time.time() * 1000 + _LEAD) // WIDTH * WIDTH
        with feeding(servers, topics[0], began, marked=chain.marked):
            results, before, after = _watch(observer, running, plan, began, spark, report)
        report("stopping")
        for job in running:
            job.finish()
        while results.poll(observer):
            pass
    finally:
        observer.close()
        for job in running:
            if job.query.isActive:
                job.stop()
    warm = began + plan.warm_up * 1000
    phases = _phases(running, warm / 1000, after.at)
    batches = len(phases["triggerExecution"])
    return Run(
        latencies=results.latencies(_ends(warm, plan.seconds)),
        phases=phases,
        batches=batches,
        jvm=(after.jvm - before.jvm) / max(batches, 1),
        python=(after.python - before.python) / max(batches, 1),
        compiled=(after.compiled - before.compiled) / max(batches, 1),
        busy=(after.busy - before.busy) / (after.all - before.all),
        load=load,
        **results.verdict(_ends(began, plan.warm_up + plan.seconds)),
    )


def _ends(began: int, seconds: int) -> range:
    return range(began + WIDTH, began + seconds * 1000 + 1, WIDTH)


def _watch(
    observer: Observer,
    running: Sequence[Running],
    plan: Plan,
    began: int,
    spark: SparkSession,
    report: Callable[[str], None],
) -> tuple[Results, Spent, Spent]:
    """Read the last topic until all results are there, or will not come any more."""
    results, ends = Results(), _ends(began, plan.warm_up + plan.seconds)
    warm, last = began / 1000 + plan.warm_up, ends[-1] / 1000
    deadline = last + _PATIENCE[0] + _PATIENCE[1] * len(running)
    before: Spent | None = None
    checked = 0.0
    while True:
        results.poll(observer)
        now = time.time()
        if before is None and now >= warm:
            before = Spent.now(spark)
        if before is not None and (results.complete(ends) or now >= deadline):
            return results, before, Spent.now(spark)
        if now - checked >= _CHECK:
            checked = now
            for job in running:
                failure = job.failure()
                if failure is not None:
                    raise RuntimeError(f"a job of the chain has failed: {failure}") from failure
            what = "warming up" if before is None else "measuring" if now < last else "waiting for the last windows"
            report(f"{what}, {now - began / 1000:.0f} s, {len(results.seen) / USERS:.0f} windows of {len(ends)}")


def _phases(running: Sequence[Running], began: float, ended: float) -> dict[str, list[float]]:
    """Return the milliseconds of all batches that began within a time (epoch seconds), by phase."""
    phases: dict[str, list[float]] = {"triggerExecution": []}
    for job in running:
        for progress in job.query.recentProgress:
            taken = dict(progress["durationMs"])
            when = datetime.fromisoformat(progress["timestamp"]).timestamp()
            if "addBatch" in taken and began <= when < ended:
                steps = job.steps.get(progress["batchId"])
                if steps is not None:
                    taken |= {**steps, "around": taken["addBatch"] - sum(steps.values())}
                for name, milliseconds in taken.items():
                    phases.setdefault(name, []).append(milliseconds)
    return phases


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that so large a share of all values does not exceed; not a number, where there are none.

    >>> quantile([4, 1, 3, 2], 0.5), quantile([4, 1, 3, 2], 0.99)
    (2, 4)
    """
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan


def median(values: Sequence[float]) -> float:
    """Return the median; not a number, where there is none."""
    return statistics.median(values) if values else math.nan
