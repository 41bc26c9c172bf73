"""What a batch has read and written, and how this changes the progress of the job."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from floodmark.producers.clients.admin import offset_bounds
from floodmark.schemas.classify import AnyMark, Mark, Offsets, Unreadable
from floodmark.schemas.counts import Discrepancy, Mismatch
from floodmark.schemas.errors import EventTimeUnitError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.timestamps import END_OF_TIME, are_seconds
from floodmark.spark_jobs.batch.output_observation import Output
from floodmark.spark_jobs.batch.report import COUNTED
from floodmark.spark_jobs.batch.reread import observation
from floodmark.spark_jobs.internals.engine import Engine
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.reconcile import BatchMarks
from floodmark.spark_jobs.reading.observation import Observation
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_UNITS: Final = ("ns", "us", "ms", "s")
_FACTORS: Final = (1_000, 1_000_000, 1_000_000_000)  # between two of them


@dataclass(frozen=True, slots=True)
class ObservedBatch:
    """What one batch has read and written, and its offsets."""

    inputs: Sequence[tuple[SourceSpec, Observation]]
    output: Output
    metrics: Mapping[str, Mapping[str, Any]]  # the metrics of all observations, by their names
    start: Offsets
    end: Offsets

    @classmethod
    def of(cls, spark: SparkSession, engine: Engine, specs: Sequence[SourceSpec]) -> "ObservedBatch":
        """Ask the engine; call it right after the batch ran."""
        metrics, (start, end) = engine.observed(), engine.offsets()
        inputs = [(spec, observation(spark, spec, metrics.get(spec.name, {}), start, end)) for spec in specs]
        return cls(inputs, Output.of(metrics), metrics, start, end)

    @property
    def topics(self) -> set[str]:
        """The topics of its records."""
        return {topic for _, found in self.inputs for (topic, _), count in found.records.items() if count}


def is_to_end(specs: Iterable[SourceSpec], read: Offsets) -> bool:
    """Ask Kafka whether all topics end where they were read to."""
    bounds = (offset_bounds(spec.connection.config(), topic) for spec in specs for topic in spec.topics)
    return all(read.get(place, 0) >= end for topic in bounds for place, (_, end) in topic.items())


def update_progress(
    job: str, progress: Progress, observed: ObservedBatch, uncounted: Collection[str]
) -> tuple[Counter[str], tuple[Discrepancy, ...]]:
    """Apply a batch to the progress; return its counts without late rows, and where marks and counted rows disagree."""
    counts = Counter(dict.fromkeys(COUNTED, 0))
    _tally(job, progress, observed, counts)
    marks = BatchMarks.of((found.marks, found.records) for _, found in observed.inputs)
    for mark in marks.marks:
        counts["marks"] += 1
        if isinstance(mark, Unreadable):
            counts["unreadable_marks"] += 1
            _log.warning("job %s: %s: %s", job, mark.place, mark.reason)
    policies = {topic: spec.mark_policy for spec, _ in observed.inputs for topic in spec.topics}
    progress.apply(marks.marks, policies, lambda: is_to_end((spec for spec, _ in observed.inputs), observed.end))
    _judge_units(job, progress, observed, marks.marks)
    for process in progress.ignored.news():
        _log.warning("job %s: %s", job, process)
    discrepancies = progress.reconcile(marks, observed.start, observed.end, uncounted)
    for discrepancy in discrepancies:
        # An ignored process, which has been logged, explains surplus rows; they are counted all the same.
        is_known = progress.ignored.writes_to(discrepancy.topic, discrepancy.partition)
        if discrepancy.kind is not Mismatch.SURPLUS or not is_known:
            _log.warning("job %s: %s", job, discrepancy)
        if discrepancy.kind is not Mismatch.GAP:
            counts["lost" if discrepancy.kind is Mismatch.LOST else "surplus"] += discrepancy.records
    return counts, tuple(discrepancies)


def _tally(job: str, progress: Progress, observed: ObservedBatch, counts: Counter[str]) -> None:
    """Count the records of a batch; log the number of unusable ones when it has doubled."""
    for spec, found in observed.inputs:
        counts.update(records=found.total, tombstones=found.tombstones)
        for kind, skipped in found.unusable.items():
            counts[kind] += skipped.count
        for kind, total in progress.tally(spec.topics[0], found.rows, found.unusable, found.latest).items():
            if progress.doublings.has_doubled((spec.topics[0], kind), total):
                _log.warning("job %s: %d %s rows so far; in this batch: %s", job, total, kind, found.unusable[kind])


def _judge_units(job: str, progress: Progress, observed: ObservedBatch, marks: Sequence[AnyMark]) -> None:
    """Compare rows with marks: if either are in January 1970, their unit is wrong.

    It fails the job if all rows so far are, before it writes a mark, and logs a warning of others.
    """
    known = [mark for mark in marks if isinstance(mark, Mark)]
    times = [mark.record.watermark for mark in known]
    reached = [time for time in (*times, progress.watermark) if time is not None and time < END_OF_TIME]
    highest = max(reached, default=0)
    for spec, found in observed.inputs:
        topics, latest = ", ".join(spec.topics), progress.latest(spec.topics[0])
        factor = None if latest is None or progress.watermark is None else _too_fine(latest, highest)
        if latest is not None and factor is not None:
            advice = _advice(spec.unit, factor)
            raise EventTimeUnitError(
                job=job, topic=topics, latest=latest, watermark=highest, factor=factor, advice=advice
            )
        if found.earliest is None:
            continue
        factor = _too_fine(found.earliest, highest)
        if factor is not None:
            _log.warning(
                "job %s: event times of %s begin at %s, but its marks are at %s. Are the values in a unit that is "
                "%s times as long? Then pass that unit=",
                *(job, topics, iso(found.earliest), iso(highest), f"{factor:,}"),
            )
        for mark, time in zip(known, times, strict=True):
            if mark.topic not in spec.topics or time is None or not are_seconds(time, found.earliest):
                continue
            if progress.doublings.has_doubled((mark.topic, mark.source, "seconds"), 1):
                _log.warning(
                    "job %s: the marks of source %s of topic %s are at %s, but rows begin at %s. Does its producer "
                    "pass event_time= in seconds? Then pass milliseconds",
                    *(job, mark.source, mark.topic, iso(time), iso(found.earliest)),
                )


def _too_fine(time: int, watermark: int) -> int | None:
    """Return how many times as long the unit of an event time would fit a watermark; ``None``: it is not in 1970."""
    return next((factor for factor in _FACTORS if are_seconds(time * factor // 1_000, watermark)), None)


def _advice(unit: str | None, factor: int) -> str:
    """Return what to do about a unit that is too short; ``None``: the format does not tell its unit.

    >>> _advice("us", 1_000), _advice("s", 1_000)
    ("use unit='ms' instead of 'us'", 'check what the producer writes')
    """
    longer = _UNITS[_UNITS.index(unit) + 1 + _FACTORS.index(factor) :] if unit in _UNITS else ()
    return f"use unit={longer[0]!r} instead of {unit!r}" if longer else "check what the producer writes"


def require_usable(job: str, progress: Progress, specs: Sequence[SourceSpec]) -> bool:
    """Tell whether each source with records has had a usable one; raise an error if one has not, and all have ended.

    Before their end, log it.
    """
    usable = True
    for spec in specs:
        error = progress.nothing_usable(spec.topics)
        if error is not None:
            if progress.next_watermark == END_OF_TIME:
                raise error
            usable = False
            if progress.doublings.has_doubled(error.topic, error.count):
                _log.error("job %s, so far: %s Until one has, the output has no watermark", job, error)
    return usable
