"""Run a query as a job over written topics, and hold every batch of it against the plain computation."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from floodmark.schemas import END_OF_TIME, Status
from floodmark.schemas.timestamps import to_datetime
from floodmark.spark_jobs import Batch, Job, Start, WriteOptions, avro, write
from pyspark.sql import DataFrame, SparkSession
from support.counting import fails, read_events, with_options
from support.harness import until
from support.operators import Query, Rows
from support.row_store import RowStore
from support.streams import ROW, Log, Values, Written, batches_of, total

_LIMIT = 240
_LOOK = 20.0
STATE_STORES = [  # the setting of Spark, and each of its state stores
    ("spark.sql.streaming.stateStore.providerClass", f"org.apache.spark.sql.execution.streaming.state.{name}")
    for name in ("HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider")
]


@dataclass(slots=True)
class Trial:
    """A query, its input, and how it is run."""

    query: Query
    logs: Sequence[Log]
    per_batch: int = 1000
    restarts: Sequence[int] = ()  # after how many batches of a start the job is stopped and started again
    write: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1  # partitions of the output topic
    lost: bool = False  # whether a stop loses the checkpoint, so that the job goes on behind what it has published
    stored: bool = False  # whether the output is a store with the job's position, not a topic
    output_at: int | None = None  # at which time of its output the job begins
    live: bool = False
    """Whether the input is written while the job runs, so many entries at a time, and the job looks ahead."""
    read: Callable[..., list[DataFrame]] | None = None  # how topics are read, as `frames` does


@dataclass(slots=True)
class Ran:
    batches: dict[int, Batch]
    written: list[Written]
    counts: Mapping[str, int]

    @property
    def looked_ahead(self) -> int:
        """Return how many batches ran with more than the batches before had read."""
        pairs = itertools.pairwise(self.batches[number] for number in sorted(self.batches))
        return sum(batch.batch_watermark != before.watermark for before, batch in pairs)


def frames(spark, servers, topics, per_batch=1000, percentile=None):
    given = {"value": avro(ROW), "max_offsets_per_trigger": per_batch, "percentile": percentile}
    return [read_events(spark, servers, *([topic] if isinstance(topic, str) else topic), **given) for topic in topics]


def start(result: DataFrame, out: str | RowStore, checkpoint: str, **options: Any) -> Job:
    target = {"topic": out, "value": avro(ROW)} if isinstance(out, str) else {"writer": out, "job": "stored"}
    given = {"event_time": "at", **target, **options}
    return write(result, checkpoint_location=checkpoint, **with_options(WriteOptions, given))


def run(spark: SparkSession, config, trial: Trial, new_topic, place: str) -> Ran:
    """Write the input, run the job to its end, and read the output."""
    rocksdb = any(step.name.startswith("transformWithState") for step in trial.query.steps)  # it asks for it
    spark = spark.newSession()
    spark.conf.set(*STATE_STORES[rocksdb])
    topics = [new_topic(log.partitions) for log in trial.logs]
    feed = [log.writing(config, topic, trial.per_batch) for log, topic in zip(trial.logs, topics, strict=True)]
    for entries in () if trial.live else feed:
        list(entries)  # at once
    out = RowStore(f"{place}.db", "k", "unix_millis(at)", "n") if trial.stored else new_topic(trial.outputs)
    batches: dict[int, Batch] = {}
    stops = list(trial.restarts)
    for number in itertools.count():
        together = [topics] if trial.query.source.together else topics
        most = None if trial.live else trial.per_batch
        given = (trial.read or frames)(spark, config["bootstrap.servers"], together, most)
        enough = len(batches) + stops.pop(0) if stops else None
        first = 10_000 * number if trial.lost else 0
        job = start(
            trial.query.spark(given),
            out,
            f"{place}-{number}" if trial.lost else place,
            watermark_hold=trial.query.given_hold,
            on_batch=lambda batch, first=first: batches.update({first + batch.batch_id: batch}),
            **_start(trial),
            **{"lookahead": timedelta(seconds=60 if trial.live else 0), **trial.write},
        )
        try:
            _feed(job, feed, batches, enough)
            until(partial(_reached, job, batches, enough), "the end" if enough is None else f"{enough} batches", _LIMIT)
        finally:
            job.stop()
        if enough is None or job.ended:
            written = batches_of(config, out) if isinstance(out, str) else [Written(Counter(out.rows))]
            return Ran(batches, written, job.counts)
    raise AssertionError


def _start(trial: Trial) -> dict[str, Any]:
    """Say where the job begins, where that is not the first record, and how far back results reach."""
    if not trial.lost and trial.output_at is None:
        return {}
    untold = ("session", "per time", "applyInPandas", "transformWithState", "mapInPandas", "floor")  # no window says it
    told = not trial.query.source.stateful and not any(step.name.startswith(untold) for step in trial.query.steps)
    where = {"published": "continue"} if trial.lost else {"output_at": to_datetime(trial.output_at)}
    return {"start": Start(**where, largest_window=None if told else timedelta(hours=10), early=timedelta(0))}


def _feed(job: Job, feed: Sequence[Iterator[int]], batches: Mapping[int, Batch], enough: int | None) -> None:
    """Write on whenever the job has seen all, or has had `_LOOK` seconds for it, until enough batches are done."""
    while not _reached(job, batches, enough):
        written = [next(log, None) for log in feed]
        if written == [None] * len(feed):
            return
        deadline, seen = time.monotonic() + _LOOK, -1
        while time.monotonic() < deadline and seen < sum(n or 0 for n in written) and not fails(job):
            time.sleep(0.01)
            ahead = job._handler.lookahead.marks_ahead.records_ahead  # noqa: SLF001  # no user's business
            seen = ahead + sum(batch.records for batch in list(batches.values()))


def _reached(job: Job, batches: Mapping[int, Batch], enough: int | None) -> bool:
    return fails(job) or job.ended or (enough is not None and len(batches) >= enough)


def differences(trial: Trial, ran: Ran) -> list[str]:
    """Say where a run differs from the plain computation: no line where it is right."""
    closes = int(trial.write.get("windows_close", "after") == "after")
    rows = trial.query.plain([log.rows for log in trial.logs], closes)
    if trial.lost or trial.output_at is not None:  # other batches than those that were published
        kept = Counter(row.values for row in rows if row.stamp >= (trial.output_at or 0))
        late = [f"batch {number}: {batch.late} rows late" for number, batch in ran.batches.items() if batch.late]
        doubts = [str(found) for batch in ran.batches.values() for found in batch.discrepancies]
        return [*_of_all(kept, total(ran.written)), *doubts, *late]
    return [*_of_rows(rows, ran), *_of_marks(trial.query, ran), *_of_counts(trial, ran)]


def _of_rows(rows: Rows, ran: Ran) -> list[str]:
    whole, timed, done = Counter(row.values for row in rows), [row for row in rows if row.out is not None], Counter()
    for number, batch in enumerate(ran.written):
        done.update(batch.rows)
        watermark = ran.batches[number].batch_watermark or -math.inf
        missing = Counter(row.values for row in timed if row.out <= watermark) - done
        hasty = done - (whole - Counter(row.values for row in timed if row.out > watermark))
        if missing or hasty:
            lacks = f"lacks {_few(missing)}, is too early with, or wrong in, {_few(hasty)}"
            return [f"batch {number} ran with {watermark}: {lacks}", *_of_all(whole, done)]
    return _of_all(whole, done)


def _of_all(whole: Counter[Values], done: Counter[Values]) -> list[str]:
    differing = {"missing": whole - done, "too many": done - whole}
    return [f"in all {rows.total()} rows are {what}: {_few(rows)}" for what, rows in differing.items() if rows]


def _of_marks(query: Query, ran: Ran) -> list[str]:
    """Marks keep up with what a batch ran with, and are never ahead of what it has read.

    `batches_of` has compared them with the rows of later batches.
    """
    least, most, behind = -math.inf, -math.inf, query.source.behind
    stateful = any(each.stateful for each in (query.source, *query.steps))  # then rows are complete a batch after marks
    for number, batch in enumerate(ran.written):
        with_, read_ = ran.batches[number].batch_watermark, ran.batches[number].watermark
        least = max(least, _level(with_ if stateful else read_, behind + query.hold))
        most = max(most, _level(with_, behind), _level(read_, behind))
        for mark in batch.marks:
            watermark = -math.inf if mark.watermark is None else mark.watermark
            if read_ != END_OF_TIME if mark.status is Status.ENDED else not least <= watermark <= most:
                return [f"batch {number} is marked {mark.status} {mark.watermark}, expected {least} to {most}"]
    return []


def _level(watermark: int | None, behind: int) -> float:
    return -math.inf if watermark in {None, END_OF_TIME} else watermark - behind


def _of_counts(trial: Trial, ran: Ran) -> list[str]:
    counts = {**ran.counts, "data": ran.counts["records"] - ran.counts["marks"]}
    none = ("late", "lost", "surplus", "unreadable", "missing_event_time", "sequence_gaps")
    expected = {"data": sum(len(log.rows) for log in trial.logs), **dict.fromkeys(none, 0)}
    wrong = {name: n for name, n in expected.items() if counts.get(name, 0) != n}
    return [f"{name} is {counts.get(name, 0)}, expected {n}" for name, n in wrong.items()]


def _few(rows: Counter[Values]) -> str:
    return f"{', '.join(map(str, sorted(rows)[:4]))} of {len(rows)}"
