"""The drive: what happens around each micro-batch so that in-band watermarks move Spark's own operators.

Theory of operation
-------------------
Spark calls the drive with each batch, on the query's own thread.  Then, in this order and no other:

1. the batch runs (``sink.consume``), with the watermark that the batch before has set;
2. the watermark records that this very batch read are taken from its observation and applied to the tracker;
3. the snapshot of batch n is stored;
4. the rows are made durable, and behind them the output's watermark records (``sink.commit``);
5. Spark's watermark is set for the next batch; Spark then commits batch n.

A crash between any two steps runs batch n again from the snapshot of batch n - 1, with the same offsets and the same
watermark: the records are the same, the snapshot is replaced by its equal, and the sink sees that the batch is there
already (exactly once) or writes it again (at least once).
"""

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final, NoReturn

from floodmark.producers.clients.admin import begin_offsets, compacted_topics
from floodmark.producers.strategies.basic import Explicit
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas.counts import Discrepancy, Mismatch, RecordCounts
from floodmark.schemas.errors import (
    InvalidOutputError,
    PromiseBrokenError,
    SnapshotError,
)
from floodmark.schemas.records import Membership, WatermarkRecord
from floodmark.schemas.timestamps import END_OF_TIME, is_late, milliseconds
from floodmark.schemas.tracker import Hold, Tracker
from floodmark.spark_jobs.batch.rebuild import rebuild
from floodmark.spark_jobs.batch.reread import count_late, late_rows, observation
from floodmark.spark_jobs.batch.sinks import Sink
from floodmark.spark_jobs.batch.snapshots import JobIdentity, Snapshots
from floodmark.spark_jobs.batch.unread import refuse_unread
from floodmark.spark_jobs.internals.checkpoint import Committed, committed
from floodmark.spark_jobs.internals.engine import Engine, InterruptedBatchError
from floodmark.spark_jobs.progress.lateness import NOTHING, Brief, Promises, driving
from floodmark.spark_jobs.progress.progress import Progress, WindowsClose, ran_with_of, spark_watermark
from floodmark.spark_jobs.progress.reconcile import Offsets, SeenMark, Sight
from floodmark.spark_jobs.progress.unusable import UNUSABLE, is_tally, nothing_usable, tally
from floodmark.spark_jobs.reading.event_time import Derived, require_shift
from floodmark.spark_jobs.reading.observation import Observation
from floodmark.spark_jobs.reading.rows import Reading
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_POLL: Final = 0.005
_STILL: Final = 10
OUTPUT: Final = "floodmark-output"
"""The name of the observation of a job's output rows."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one batch did; the counts are of this batch alone.

    ``watermark`` is the input watermark that the next batch runs with, ``output`` the one handed on,
    ``promised`` what all events together allow: less, where a percentile drives the job.  ``late``: rows
    behind their watermark, see ``README.md`` beside this module.  ``unreadable``: values that could not be decoded;
    ``timeless``: rows without event time; ``out_of_range``: rows whose event time Spark's watermark cannot judge; all
    were skipped.  ``unreadable_marks``: mark keys without a readable watermark record.
    ``lost``, ``surplus``: rows by which the partitions fall short of, or exceed, what the marks have counted;
    ``discrepancies`` says where, and which marks are missing.
    """

    job: str
    batch_id: int
    watermark: int | None
    promised: int | None
    output: int | None
    ended: bool
    records: int
    marks: int
    late: int
    unreadable: int
    timeless: int
    out_of_range: int
    unreadable_marks: int
    tombstones: int
    lost: int
    surplus: int
    rows: int
    seconds: float
    discrepancies: tuple[Discrepancy, ...] = ()

    def to_json(self) -> str:
        """Return it as one line of JSON."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Settings:
    """How a job hands its progress on."""

    hold: timedelta = timedelta(0)
    windows_close: WindowsClose = "after"
    rebuild: bool = False
    membership: Membership = Membership()  # noqa: RUF009  # frozen
    derived: Derived = Derived()  # noqa: RUF009  # frozen


class Drive:
    """The function that Spark calls with each batch."""

    def __init__(
        self,
        identity: JobIdentity,
        readings: list[Reading],
        sink: Sink,
        snapshots: Snapshots,
        settings: Settings,
        on_batch: Callable[[Batch], None] | None = None,
    ) -> None:
        """Nothing is opened yet: `attach` learns where the job stands."""
        self.identity = identity
        self.failure: BaseException | None = None
        self.last: int | None = None
        """The last batch that was worked off; Spark commits it after that."""
        self.between: Final = threading.Event()
        """The query is being stopped, and has committed its last batch."""
        self._lock: Final = threading.Lock()
        self._stopping = False
        self._readings = readings
        self._sink = sink
        self._snapshots = snapshots
        self._settings = settings
        self._inputs = {topic: reading.client for reading in readings for topic in reading.topics}
        self._of = {topic: reading for reading in readings for topic in reading.topics}
        self._hold = milliseconds(settings.hold)
        self._on_batch = on_batch
        self._query: StreamingQuery | None = None
        self._started = threading.Event()
        self._progress: Progress | None = None
        self._emitter: Emitter | None = None
        self._generator = Explicit(identity.job)
        self._percentiles = {
            topic: reading.percentile
            for reading in readings
            for topic in reading.topics
            if reading.percentile is not None
        }
        self._still = 0
        """How many batches in a row have not moved the watermark."""
        self._uncounted: set[str] = set()
        """Topics in which rows may vanish by design, so that counts prove nothing."""

    def attach(self, query: StreamingQuery) -> None:
        """Learn which query it drives, and where that stands; its first batch waits for this.

        Raises:
            SnapshotError: where that is not known any more, or where the job has ended and would not read what came
                since; the query fails with it, too.
        """
        self._query = query
        try:
            last = committed(query)
            progress = self._resume(last)
            if progress.ended and last is not None:
                refuse_unread(self.identity.job, self._inputs, last.offsets)
            self._progress = progress
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._started.set()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Run one batch; any error fails the query, and is kept for `Job` to raise as it is."""
        with self._lock:
            if self._stopping:
                self._interrupt()
            try:
                batch = self._run(frame, batch_id)
            except BaseException as error:
                self.failure = error
                raise
            finally:
                self._sink.release()
            self.last = batch_id
        if self._on_batch is not None:
            self._on_batch(batch)

    def forbid(self) -> None:
        """Wait for the batch in work, and let no other begin."""
        with self._lock:
            self._stopping = True

    def _interrupt(self) -> NoReturn:
        """Keep the query where it is until it is stopped: what has not begun can be begun by a later start."""
        self.between.set()
        while self._query is not None and self._query.isActive:
            time.sleep(_POLL)
        raise InterruptedBatchError

    def _run(self, frame: DataFrame, batch_id: int) -> Batch:
        began = time.monotonic()
        self._started.wait()  # write() attaches right after it starts the query
        query, progress = self._query, self._progress
        if query is None or progress is None:
            raise self.failure or AssertionError
        engine = Engine(query)
        ran_with = progress.applied
        self._brief(frame, progress)
        self._sink.consume(frame, batch_id)
        metrics = engine.observed()
        output_metrics = metrics.get(OUTPUT, {})
        start, end = engine.offsets()
        observed = [
            (reading, observation(frame.sparkSession, reading, metrics.get(reading.name, {}), start, end))
            for reading in self._readings
        ]
        seen, discrepancies = self._take_in(progress, observed, (start, end))
        complete, passes_late = self._complete(engine, ran_with, progress.advance())
        close = self._settings.windows_close
        judged_by = ran_with if passes_late else ran_with_of(engine.late_watermark, close)
        seen["late"] = self._late(frame, observed, (start, end), judged_by)
        # Rows of broken promises may pass; where rows are judged one by one, they do not.
        passed = any(reading.late is None and _earlier(found, ran_with) for reading, found in observed)
        if not passed:
            require_shift(self.identity.job, self._settings.derived, metrics, ran_with)
        self._check_output(progress, output_metrics, batch_id, excused=passes_late and passed)
        output = progress.hand_on(complete, self._hold)
        progress.counts.update(seen)
        self._require_usable(progress)
        self._snapshots.store(batch_id, progress.snapshot())
        self._commit(batch_id, progress, output)
        if progress.applied is not None:
            engine.set_watermark(spark_watermark(progress.applied, self._settings.windows_close))
        self._name_holder(progress, moved=progress.applied != ran_with)
        counts = {name: seen[name] for name in _COUNTED}
        return Batch(
            job=self.identity.job,
            batch_id=batch_id,
            watermark=progress.applied,
            promised=(progress.promised or progress.tracker).watermark,
            output=output,
            ended=progress.ended,
            rows=int(output_metrics.get("rows") or 0),
            seconds=round(time.monotonic() - began, 3),
            discrepancies=discrepancies,
            **counts,
        )

    def _complete(self, engine: Engine, ran_with: int | None, next_: int | None) -> tuple[int | None, bool]:
        """Return up to where the results of a batch are complete, and whether late rows may be among them."""
        close = self._settings.windows_close
        ran, then = (None if time_ is None else spark_watermark(time_, close) for time_ in (ran_with, next_))
        # What Spark really ran with may be less than the snapshot says, but never more counts.
        results = engine.results(None if ran is None else min(ran, engine.watermark) or None, then)
        complete = None if results.complete is None else ran_with_of(results.complete, close)
        return complete, results.passes_late

    def _name_holder(self, progress: Progress, *, moved: bool) -> None:
        """Say once who holds the watermark, where it has stood still for some batches."""
        self._still = 0 if moved or progress.ended else self._still + 1
        if self._still == _STILL:
            held = "; ".join(map(str, progress.tracker.holders()[:3]))
            _log.warning("job %s: %d batches have not moved the watermark: %s", self.identity.job, _STILL, held)

    def _resume(self, last: Committed | None) -> Progress:
        """Take up the progress of the last committed batch, and a new epoch."""
        if last is None:
            promised = Tracker(self._inputs) if self._percentiles else None
            progress = Progress(Tracker(self._inputs), ledger=RecordCounts(self._partial()), promised=promised)
        else:
            try:
                progress = self._snapshots.load(last.batch_id)
            except SnapshotError as error:
                if not self._settings.rebuild:
                    raise
                _log.warning("job %s: %s", self.identity.job, error)
                progress = rebuild(self._inputs, last.offsets, self._promise)
                ran_with, known = ran_with_of(last.watermark, self._settings.windows_close), progress.applied
                if not self._snapshots.checkpoint.is_stateful:
                    progress.hand_on(known, self._hold)
                elif ran_with == known == END_OF_TIME:
                    progress.hand_on(END_OF_TIME, self._hold)
                # Else the next batch tells: how far operators were complete, no record says.
                if self._percentiles:
                    progress.promised = Tracker.restore(progress.tracker.snapshot())
        if not any(reading.late for reading in self._readings):
            progress.promises = None
        elif progress.promises is None:
            progress.promises = Promises.of(progress.tracker)
        self._uncounted = {
            topic for reading in self._readings for topic in compacted_topics(reading.client, reading.topics)
        }
        progress.epoch = max(progress.epoch + 1, time.time_ns() // 1_000_000)
        self._sink.open()
        partitions = self._sink.partitions()
        if partitions is not None:
            identity = Identity(self.identity.job, progress.epoch, self._settings.membership)
            self._emitter = Emitter(identity, self._generator, partitions)
        return progress

    def _partial(self) -> set[tuple[str, int]]:
        """Name the partitions whose first records this job does not read."""
        return {
            (topic, number)
            for reading in self._readings
            for (topic, number), low in begin_offsets(reading.client, reading.topics).items()
            if low > 0 or not reading.from_earliest
        }

    def _take_in(
        self, progress: Progress, observed: list[tuple[Reading, Observation]], offsets: tuple[Offsets, Offsets]
    ) -> tuple[dict[str, int], tuple[Discrepancy, ...]]:
        """Take in what the batch observed; return what is counted of it, and where rows and marks disagree."""
        job, sight, seen = self.identity.job, Sight(), dict.fromkeys(_COUNTED, 0)
        for reading, found in observed:
            sight.add(found.marks, found.records)
            seen["records"] += found.total
            seen["tombstones"] += found.tombstones
            for kind, skipped in found.unusable.items():
                seen[kind] += skipped.count
                if skipped.count:
                    _log.warning("job %s: %s rows: %s", job, kind, skipped)
            tally(progress.counts, reading.topics[0], found.rows, found.unusable)
        for mark in sight.marks:
            seen["marks"] += 1
            if mark.record is None:
                seen["unreadable_marks"] += 1
                _log.warning("job %s: %s/%d@%d: %s", job, mark.topic, mark.partition, mark.offset, mark.reason)
            self._apply(progress, mark, mark.record)
        discrepancies = tuple(sight.audit(progress.ledger, *offsets, self._uncounted))
        for discrepancy in discrepancies:
            _log.warning("job %s: %s", job, discrepancy)
            if discrepancy.kind is not Mismatch.GAP:
                seen["lost" if discrepancy.kind is Mismatch.LOST else "surplus"] += discrepancy.records
        return seen, discrepancies

    def _require_usable(self, progress: Progress) -> None:
        """Say that no record of a reading could be used so far; once the input has ended, that is an error."""
        for reading in self._readings:
            error = nothing_usable(progress.counts, reading.topics)
            if error is not None and progress.applied == END_OF_TIME:
                raise error
            if error is not None:
                _log.error("job %s, so far: %s", self.identity.job, error)

    def _promise(self, topic: str, record: WatermarkRecord) -> WatermarkRecord:
        return self._of[topic].shifted(record)

    def _apply(self, progress: Progress, mark: SeenMark, record: WatermarkRecord | None) -> None:
        place: Any = {"topic": mark.topic, "partition": mark.partition, "log_time": mark.log_time}
        percentile = self._percentiles.get(mark.topic)
        if progress.promises is not None:
            progress.promises.take(mark, percentile, self._of[mark.topic].shift)
        if record is None:
            for tracker in filter(None, (progress.promised, progress.tracker)):
                tracker.apply_unreadable(mark.source, offset=mark.offset, **place)
            return
        record = self._promise(mark.topic, record)
        if progress.promised is not None:
            progress.promised.apply(record, **place)
        progress.tracker.apply(driving(record, percentile), **place)

    def _brief(self, frame: DataFrame, progress: Progress) -> None:
        """Tell the tasks of the batch what they need to judge its rows."""
        for reading in self._readings:
            if reading.late is not None and progress.promises is not None:
                watermark = NOTHING if progress.applied is None else progress.applied
                shift = self._of[reading.topics[0]].shift
                brief = Brief(progress.promises, watermark, reading.percentile, shift)
                frame.sparkSession.sparkContext.setLocalProperty(reading.name, brief.to_text(reading.topics))

    def _late(
        self,
        frame: DataFrame,
        observed: list[tuple[Reading, Observation]],
        offsets: tuple[Offsets, Offsets],
        watermark: int | None,
    ) -> int:
        """Count the late rows: those judged one by one, and those of other readings behind a watermark."""
        job, judged, behind = self.identity.job, 0, 0
        for reading, seen in observed:
            if reading.late is not None:
                judged += seen.late
                if seen.late:
                    where = f"{seen.late_elsewhere} of them only behind that of the batch, the first at {seen.late_at}"
                    _log.warning("job %s: %d row(s) behind their watermark, %s", job, seen.late, where)
                if seen.late and reading.late_topic is not None:
                    self._sink.route(reading.late_topic, late_rows(frame.sparkSession, reading, *offsets))
            elif _earlier(seen, watermark):
                behind += count_late(frame.sparkSession, reading, *offsets, watermark or 0)
        if behind:
            _log.warning("job %s: %d row(s) behind the watermark %s", job, behind, watermark)
        return judged + behind

    def _check_output(self, progress: Progress, output: dict[str, Any], batch_id: int, *, excused: bool) -> None:
        """Refuse rows that would break what was promised, before anything of the batch is durable."""
        if "earliest" not in output:  # a user's writer is told no event time
            return
        job = self.identity.job
        if output["timeless"]:
            advice = "give event_time= a column that is never null"
            raise InvalidOutputError(
                job=job, count=output["timeless"], batch_id=batch_id, reason="no event time", advice=advice
            )
        if output["valueless"]:
            advice = "check that the value's columns fit its schema"
            raise InvalidOutputError(
                job=job, count=output["valueless"], batch_id=batch_id, reason="no value", advice=advice
            )
        earliest = output["earliest"]
        # Late input that operators let pass is excused: that promise was broken before it came here, and is counted.
        if earliest is not None and not excused and is_late(int(earliest), progress.output):
            raise PromiseBrokenError(
                job=job, event_time=earliest, watermark=progress.output, topic=self.identity.output
            )

    def _commit(self, batch_id: int, progress: Progress, output: int | None) -> None:
        marks = []
        emitter = self._emitter
        # A mark that is not written must not take a number of the sequence; nothing follows the end of an epoch.
        if emitter is not None and not emitter.ended and not self._sink.is_there(batch_id):
            emitter.grow(self._sink.partitions() or 1)
            written = self._sink.rows()
            for partition, rows in (written or {}).items():
                emitter.count(partition, rows)
            if output is not None and not progress.ended:
                self._generator.advance(output)
            if progress.ended:
                emitter.end()
            holds = progress.tracker.holders()
            holder = None if not holds else holds[0].holder
            marks = emitter.marks(time.time_ns() // 1_000_000, holder, counted=written is not None)
        self._sink.commit(batch_id, marks)

    @property
    def ended(self) -> bool:
        """Whether all input has ended and every result is out."""
        return self._progress is not None and self._progress.ended

    @property
    def counts(self) -> dict[str, int]:
        """Totals of what `Batch` counts, since the checkpoint began, and what became of the watermark records."""
        progress = self._progress
        if progress is None:
            return dict.fromkeys(_COUNTED, 0)
        counts = {name: count for name, count in progress.counts.items() if not is_tally(name)}
        return {**dict.fromkeys(_COUNTED, 0), **counts, **progress.tracker.counts}

    @property
    def watermark(self) -> int | None:
        """The input watermark."""
        return None if self._progress is None else self._progress.tracker.watermark

    def holds(self) -> list[Hold]:
        """Name what holds the input watermark."""
        return [] if self._progress is None else self._progress.tracker.holders()

    def close(self) -> None:
        """Let go of the sink's clients."""
        if self._progress is not None:
            self._sink.close()


def _earlier(seen: Observation, watermark: int | None) -> bool:
    return seen.earliest is not None and is_late(seen.earliest, watermark)


_INPUT: Final = ("records", "marks", "late", *UNUSABLE, "unreadable_marks", "tombstones")
_COUNTED: Final = (*_INPUT, "lost", "surplus")
