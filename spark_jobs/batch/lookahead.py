"""Looks at the marks that the next batch will read, so that it can close its own windows.

Theory of operation
-------------------
At the end of batch n - 1, behind its commit and before Spark's own, the query's thread reads on with a client of its
own and waits, for as long as the settings say, for the marks that decide.  Spark asks Kafka where batch n ends only
after that, so batch n reads all that was seen here.  It must: the handler makes sure of it before anything of n is
durable.

It looks only from close by: while a job catches up, the watermark moves with each batch anyway, and reading on would
cost more than it brings.

A watermark that was found so stands in Spark's log before batch n is planned.  Where batch n turns out to end earlier,
the watermark is withdrawn from the log: see `withdraw`.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from floodmark.producers.clients.consumers import Record, classified, consume, is_end
from floodmark.schemas.classify import Data, Offsets
from floodmark.schemas.errors import SnapshotError
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.rebuild import rebuild
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.internals.checkpoint import Checkpoint
from floodmark.spark_jobs.lookahead.marks_ahead import Ahead, MarksAhead
from floodmark.spark_jobs.lookahead.rules import most_ahead
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.spark_watermark import WindowsClose, spark_watermark
from floodmark.spark_jobs.reading.source_spec import SourceSpec

_log = logging.getLogger(__name__)
_SLICE: Final = 0.02
"""Seconds between two looks at whether somebody is in a hurry."""
_SETTLE: Final = 0.01
"""Seconds in which the rest of what was written together arrives."""
_FIXED: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 8_192,
}


class Lookahead:
    """The marks ahead of one job."""

    def __init__(self, job: str, specs: Sequence[SourceSpec], settings: Settings, stopping: Stopping) -> None:
        self._job = job
        self._specs = specs
        self._settings = settings
        self._stopping = stopping
        self._marks_ahead = MarksAhead({topic: spec.mark_policy for spec in specs for topic in spec.topics})
        self._consumers: list[Consumer] = []
        self._assigned: set[tuple[str, int]] = set()
        self._hurried: Final = set[object]()
        most = [most_ahead(spec.connection.source_options()) for spec in specs]
        self._most = min(most) if settings.rules.possible and settings.lookahead else 0

    @property
    def records_ahead(self) -> int:
        """At most so many records stand ahead, as far as they were seen."""
        return self._marks_ahead.records_ahead

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Within the block somebody waits until all is worked off: what is not there yet is not waited for."""
        token = object()
        self._hurried.add(token)
        try:
            yield
        finally:
            self._hurried.remove(token)

    def look(self, progress: Progress, end: Offsets, records: int) -> Ahead | None:
        """Wait for the watermark that decides the next batch.

        Returns:
            A watermark above the job's own, and what it rests on; ``None``: none is known.
        """
        if not self._most or progress.watermark == END_OF_TIME:
            return None
        if records > self._most:
            self._stop_reading()
            return None
        try:
            self._read_from(end)
            self._marks_ahead.start_from(progress.tracked(), end)
            ahead = self._wait(progress.watermark)
            is_burst = ahead is not None and self._unread(end) > self._most
        except KafkaException as error:
            _log.warning("job %s: marks ahead cannot be read, the next batch runs without them: %s", self._job, error)
            self._stop_reading()
            return None
        if is_burst:  # the next batch may end before the marks
            self._stop_reading()
            return None
        return ahead

    def _wait(self, known: int | None) -> Ahead | None:
        now = time.monotonic()
        deadline = now + self._settings.lookahead.total_seconds()
        while True:
            hurried = bool(self._hurried) or self._stopping.is_requested
            for consumer in self._consumers:
                self._read(consumer, 0 if hurried else min(_SLICE, max(0.0, deadline - now)))
            if self._marks_ahead.records_ahead > self._most:
                self._stop_reading()
                return None
            now = time.monotonic()
            if hurried or now >= deadline or self._decides(known):
                return self._marks_ahead.ahead()

    def _unread(self, end: Offsets) -> int:
        """Return how many records Kafka has behind some offsets, as of the last answers of its brokers."""
        highs = {
            (topic, number): consumer.get_watermark_offsets(TopicPartition(topic, number), cached=True)[1]
            for spec, consumer in zip(self._specs, self._consumers, strict=True)
            for topic, number in self._assigned
            if topic in spec.topics
        }
        return sum(max(0, high - end.get(place, 0)) for place, high in highs.items())

    def _decides(self, known: int | None) -> bool:
        """Tell whether the next batch should begin."""
        rules, then = self._settings.rules, self._marks_ahead.watermark
        if then is not None and then != known:
            if known is None or rules.ends is None or then == END_OF_TIME:
                return True
            close = self._settings.windows_close
            return rules.ends.lie_between(spark_watermark(known, close), spark_watermark(then, close))
        return self._marks_ahead.records_ahead > 0 and not rules.waits_for_watermark

    def _read(self, consumer: Consumer, seconds: float) -> None:
        """Take in what comes; waits for the first record, and a moment for those that were written with it."""
        first = consume(consumer, seconds, 1)
        for record in [*first, *consume(consumer, _SETTLE if seconds else 0)] if first else ():
            self._take(record)

    def _take(self, record: Record) -> None:
        error = record.error()
        if error is not None:
            if not (is_end(error) or error.retriable()):
                raise KafkaException(error)
            return
        found = classified(record)
        if isinstance(found, Data):
            self._marks_ahead.note_offset((found.topic, found.partition), found.offset)
        else:
            self._marks_ahead.add_mark(found)

    def _read_from(self, end: Offsets) -> None:
        """Read on from where the last batch has ended, or go on reading."""
        if end.keys() == self._assigned:
            return
        if not self._consumers:
            for spec in self._specs:
                config = {"group.id": "floodmark-lookahead", **spec.connection.config(), **_FIXED}
                self._consumers.append(Consumer(config, logger=_log))
        for spec, consumer in zip(self._specs, self._consumers, strict=True):
            consumer.assign([TopicPartition(*place, at) for place, at in end.items() if place[0] in spec.topics])
        self._assigned = set(end)
        self._marks_ahead.clear()

    def _stop_reading(self) -> None:
        """Read nothing until the job is close by again."""
        if self._assigned:
            self._assigned = set()
            for consumer in self._consumers:
                consumer.unassign()

    def close(self) -> None:
        """Let go of the clients."""
        self._assigned = set()
        while self._consumers:
            with suppress(KafkaException):
                self._consumers.pop().close()


def withdraw_at_start(specs: Sequence[SourceSpec], snapshots: Snapshots, settings: Settings) -> None:
    """Lower Spark's watermark to what the records up to the end of the next batch give, before the query starts.

    A look ahead may have raised it further.  That stays only where the next batch is planned and reads all that the
    watermark rests on: the batch may have been written.  Where it is not planned, it may read no record at all.

    Args:
        specs: what the job reads.
        snapshots: of its checkpoint.
        settings: of the job.
    """
    checkpoint = snapshots.checkpoint
    last = checkpoint.last_committed
    if last is None:
        return
    try:
        progress = snapshots.load(last)
    except SnapshotError:
        if settings.rebuild:
            _withdraw_unknown(specs, checkpoint, settings, last)
        return  # else `resume` says it
    if progress.ahead is not None and progress.withdraw_ahead(checkpoint.planned_end(last + 1)):
        withdraw(snapshots, last, progress, settings.windows_close)


def _withdraw_unknown(specs: Sequence[SourceSpec], checkpoint: Checkpoint, settings: Settings, last: int) -> None:
    """Lower it where the snapshot is lost: what it rests on is lost, too, so the topics tell what it may be.

    It stays at what the last batch ran with where Kafka has deleted marks and the rest give less: that batch had read
    all that its watermark rested on.
    """
    end = checkpoint.planned_end(last + 1) or checkpoint.planned_end(last) or {}
    read = rebuild(specs, end).watermark
    allowed = 0 if read is None else spark_watermark(read, settings.windows_close)
    checkpoint.lower_watermark(last, max(allowed, checkpoint.planned_watermark(last)))


def withdraw_stored(snapshots: Snapshots, last: int, windows_close: WindowsClose) -> None:
    """Take the watermark of a batch out of Spark's log, so that the next start runs it with what was read before.

    Args:
        snapshots: of the job's checkpoint.
        last: the last batch that Spark has committed, before that one.
        windows_close: as the job has it.
    """
    progress = snapshots.load(last)
    if progress.withdraw_ahead():
        withdraw(snapshots, last, progress, windows_close)


def withdraw(snapshots: Snapshots, last: int, progress: Progress, windows_close: WindowsClose) -> None:
    """Lower the watermark of the next batch in Spark's log to that of a progress, and store that progress.

    Args:
        snapshots: of the job's checkpoint.
        last: the last batch that Spark has committed, or commits before it plans the next.
        progress: of the job, as of that batch.
        windows_close: as the job has it.
    """
    allowed = 0 if progress.watermark is None else spark_watermark(progress.watermark, windows_close)
    snapshots.checkpoint.lower_watermark(last, allowed)
    snapshots.store(last, progress.snapshot())
