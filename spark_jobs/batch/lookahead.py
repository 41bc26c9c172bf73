"""Look at the marks that the next batch will read, so that it can close its own windows.

After batch n - 1 has committed its results, and before Spark commits it, the query's thread reads on with a client of
its own and waits, up to the configured time, for the deciding marks.  Spark asks Kafka for the end of batch n only
after that, so batch n normally reads all these marks; before anything of batch n is durable, the handler checks it.

It looks ahead only if few records are unread: while a job catches up, each batch advances the watermark anyway.

If more jobs look ahead than the process has cores, each also waits for its turn here, and longer for a record.

The watermark is in Spark's log before batch n is planned.  If batch n turns out to end earlier, `withdraw` removes it.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from floodmark.producers.clients.consumers import Record, classified, client_log, consume, is_end
from floodmark.schemas.classify import Data, Offsets
from floodmark.schemas.errors import SnapshotError
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.resume import rebuild
from floodmark.spark_jobs.batch.snapshots import Snapshots
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.batch.turns import Turns
from floodmark.spark_jobs.internals.checkpoint import Checkpoint
from floodmark.spark_jobs.lookahead.marks_ahead import Ahead, MarksAhead
from floodmark.spark_jobs.lookahead.rules import most_ahead
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.watermarks import WindowsClose, spark_watermark
from floodmark.spark_jobs.reading.source_spec import SourceSpec

_log = client_log(__name__)
_SLICE: Final = 0.02  # seconds between two checks whether a caller wants no wait
_PATIENCE: Final = 10.0  # seconds to wait for a first record, if other jobs need the cores
_turns: Final = Turns()
_SETTLE: Final = 0.01  # seconds to wait for records that were written together with the first one
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
        self.marks_ahead: Final = MarksAhead({topic: spec.mark_policy for spec in specs for topic in spec.topics})
        self._consumers: list[Consumer] = []
        self._assigned: set[tuple[str, int]] = set()
        self._unwaiting_callers: Final = set[object]()
        most = [most_ahead(spec.connection.source_options()) for spec in specs]
        self._most = min(most) if settings.rules.possible and settings.lookahead else 0

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """Wait for no marks within the block, in which a caller wants all existing records processed."""
        token = object()
        self._unwaiting_callers.add(token)
        try:
            yield
        finally:
            self._unwaiting_callers.remove(token)

    def look(self, progress: Progress, end: Offsets, records: int) -> Ahead | None:
        """Wait for marks that raise the watermark of the next batch; ``None``: the watermark stays as it is."""
        if not self._most:
            return None
        _turns.end(self)
        if progress.watermark == END_OF_TIME:
            return None
        try:
            if records <= self._most:
                self._read_from(end)
                self.marks_ahead.start_from(progress.tracker_copy(), end)
                ahead = self._wait(progress.watermark)
                if ahead is None or self._unread(end) <= self._most:  # else the next batch may end before the marks
                    return ahead
        except KafkaException as error:
            _log.warning("job %s: the look ahead failed, the next batch runs without it: %s", self._job, error)
        self._stop_reading()
        return None

    def _wait(self, known: int | None) -> Ahead | None:
        most, seconds = self._settings.turns, self._settings.lookahead.total_seconds()
        now = began = time.monotonic()
        deadline = began + seconds
        while True:
            is_unwaiting = bool(self._unwaiting_callers) or self._stopping.is_requested
            for consumer in self._consumers:
                self._read(consumer, 0 if is_unwaiting else _SLICE if now >= deadline else min(_SLICE, deadline - now))
            if self.marks_ahead.records_ahead > self._most:
                self._stop_reading()
                return None
            now = time.monotonic()
            is_empty = not self.marks_ahead.records_ahead
            if is_empty and _turns.is_crowded(most):  # the seconds begin with the first record
                deadline = min(now + seconds, max(began + _PATIENCE, deadline))
            decides = self._decides(known)
            if is_unwaiting or (
                (decides or now >= deadline) and (is_empty or _turns.take(self, (not decides, known or 0), most))
            ):
                return self.marks_ahead.ahead()

    def _unread(self, end: Offsets) -> int:
        """Return how many records Kafka has from ``end`` on, according to the last fetches."""
        highs = {
            (topic, number): consumer.get_watermark_offsets(TopicPartition(topic, number), cached=True)[1]
            for spec, consumer in zip(self._specs, self._consumers, strict=True)
            for topic, number in self._assigned
            if topic in spec.topics
        }
        return sum(max(0, high - end.get(place, 0)) for place, high in highs.items())

    def _decides(self, known: int | None) -> bool:
        """Tell whether the next batch should begin."""
        rules, new = self._settings.rules, self.marks_ahead.watermark
        if self.marks_ahead.all_have_ended:
            return True
        if new is not None and new != known:
            if known is None or rules.ends is None:
                return True
            close = self._settings.windows_close
            return rules.ends.lie_between(spark_watermark(known, close), spark_watermark(new, close))
        return self.marks_ahead.records_ahead > 0 and not rules.waits_for_watermark

    def _read(self, consumer: Consumer, seconds: float) -> None:
        """Wait for a record, and take it with those that were written together with it."""
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
            self.marks_ahead.note_offset((found.topic, found.partition), found.offset)
        else:
            self.marks_ahead.add_mark(found)

    def _read_from(self, end: Offsets) -> None:
        """Read from the end of the last batch, or continue to read."""
        if end.keys() == self._assigned:
            return
        if not self._consumers:
            configs = [
                {"group.id": "floodmark-lookahead", **spec.connection.config(), **_FIXED} for spec in self._specs
            ]
            self._consumers = [Consumer(config, logger=_log) for config in configs]  # all, or none if one fails
        for spec, consumer in zip(self._specs, self._consumers, strict=True):
            consumer.assign([TopicPartition(*place, at) for place, at in end.items() if place[0] in spec.topics])
        self._assigned = set(end)
        self.marks_ahead.clear()

    def _stop_reading(self) -> None:
        """Read nothing until few records are unread again."""
        if self._assigned:
            self._assigned = set()
            for consumer in self._consumers:
                consumer.unassign()

    def close(self) -> None:
        """Close the clients."""
        _turns.leave(self)
        self._assigned = set()
        while self._consumers:
            with suppress(KafkaException):
                self._consumers.pop().close()


def withdraw_at_start(specs: Sequence[SourceSpec], snapshots: Snapshots, settings: Settings) -> None:
    """Lower Spark's watermark to that of the records up to the end of the next batch; call it before the query starts.

    A look ahead may have set a higher one.  This stays only if the next batch is planned and reads all the marks that
    it rests on, since this batch may have been written.  A batch that is not planned may read no record at all.
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
        return  # without ``rebuild`` the handler raises this error
    if progress.ahead is not None and progress.withdraw_ahead(checkpoint.planned_end(last + 1)):
        withdraw(snapshots, last, progress, settings.windows_close)


def _withdraw_unknown(specs: Sequence[SourceSpec], checkpoint: Checkpoint, settings: Settings, last: int) -> None:
    """Lower the watermark, if the snapshot is lost, to what the topics give."""
    end = checkpoint.planned_end(last + 1) or checkpoint.planned_end(last) or {}
    read = rebuild(specs, end, checkpoint.next_watermark(last)).watermark
    allowed = 0 if read is None else spark_watermark(read, settings.windows_close)
    # If Kafka has deleted marks and the others give less, the last batch still had read all its marks.
    checkpoint.lower_watermark(last, max(allowed, checkpoint.planned_watermark(last)))


def withdraw_stored(snapshots: Snapshots, last: int, windows_close: WindowsClose) -> None:
    """Withdraw a watermark set ahead from Spark's log and the snapshot of ``last``, the last committed batch."""
    progress = snapshots.load(last)
    if progress.withdraw_ahead():
        withdraw(snapshots, last, progress, windows_close)


def withdraw(snapshots: Snapshots, last: int, progress: Progress, windows_close: WindowsClose) -> None:
    """Lower the next batch's watermark in Spark's log to that of ``progress``, and store this as the snapshot.

    ``last``: the last batch that Spark has committed, or commits before it plans the next.
    """
    allowed = 0 if progress.watermark is None else spark_watermark(progress.watermark, windows_close)
    snapshots.checkpoint.lower_watermark(last, allowed)
    snapshots.store(last, progress.snapshot())
