"""Find where a job without a checkpoint starts: asks Kafka, writes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from floodmark.producers.clients.admin import TopicWatch
from floodmark.producers.readers.replay import RetainedOffsets, retained_since
from floodmark.schemas.classify import Partition
from floodmark.schemas.completeness.position import TopicIds, TopicUser
from floodmark.schemas.errors import ContinueError, RetentionError, UsageError
from floodmark.schemas.timestamps import milliseconds, to_datetime
from floodmark.spark_jobs.progress.watermarks import WindowsClose, from_spark_watermark
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from floodmark.spark_jobs.start.job_output import JobOutput, LastBatch
from floodmark.spark_jobs.start.start_point import StartPoint


@dataclass(frozen=True, slots=True)
class Needs:
    """What decides which input a job needs before its first result."""

    job: str
    specs: Sequence[SourceSpec]
    stateful: bool  # whether operators keep state
    widths: int | None
    """How far before a result its input may be, according to the query, see `plan.widths`; milliseconds."""
    later: bool  # whether it may be further, since the query makes times later, by how much is not known
    largest_window: timedelta | None  # the same, according to the user
    early: timedelta  # how far event times may be ahead of Kafka's timestamps

    def since(self, time: int) -> int:
        """Return the lowest Kafka timestamp of records that results from ``time`` on may need, epoch milliseconds."""
        return time - self._reach() - milliseconds(self.early)

    def retained(self, since: int) -> dict[Partition, RetainedOffsets]:
        """Return the offsets that Kafka has of each partition."""
        found: dict[Partition, RetainedOffsets] = {}
        for spec in self.specs:
            found |= retained_since(spec.connection.config(), spec.topics, since)
        return found

    def compare(self, ids: TopicIds) -> None:
        """Add the ids of the input topics, or raise `RecreatedTopicError` if one is not as known."""
        for spec in self.specs:
            TopicWatch(spec.connection.config(), spec.topics, ids, TopicUser.job(self.job))

    def _reach(self) -> int:
        if self.largest_window is None:
            if self.widths is None or self.later:
                reason = (
                    f"the query of job {self.job!r} does not tell how far before a result its input may be: give "
                    "Start(largest_window=), the longest session with its gap, the bound of the join, or how much "
                    "later the query makes times, plus its windows"
                )
                raise UsageError(reason=reason)
            return self.widths
        given = milliseconds(self.largest_window)
        if self.widths is not None and given < self.widths:
            least = timedelta(milliseconds=self.widths)
            reason = f"largest_window is {self.largest_window}, and the windows of job {self.job!r} need {least}"
            raise UsageError(reason=reason)
        return given

    def deleted(self, place: Partition, since: str, retained: RetainedOffsets, advice: str) -> RetentionError:
        """Return the error for records that Kafka has deleted."""
        name = f"{place[0]}/{place[1]}"
        return RetentionError(reader=f"job {self.job!r}", place=name, since=since, first=retained.first, advice=advice)


def start_at_time(needs: Needs, time: int) -> StartPoint:
    """Start with the first record that results from ``time`` (epoch milliseconds) on may need."""
    since, ids = needs.since(time), TopicIds()
    needs.compare(ids)
    retained = needs.retained(since)
    for place, found in retained.items():
        if not found.is_complete:
            raise needs.deleted(place, _since(since), found, "give a later output_at")
    return StartPoint({place: found.since for place, found in retained.items()}, output_at=time, ids=ids)


def start_after_published(
    needs: Needs, last: LastBatch, output: JobOutput, windows_close: WindowsClose, output_at: int | None
) -> StartPoint:
    """Start after the results that the output has from the job, by ``last``, its newest batch there."""
    published = last.published
    refused = partial(ContinueError, job=needs.job, output=output.name, new_output=output.new)
    if last.ended or published is None:
        reason = "it has ended there" if last.ended else "its marks do not have the offsets that it had read"
        raise refused(reason=reason)
    needs.compare(published.ids)
    read, topics = published.read, {name for name, _ in published.read}
    ran = from_spark_watermark(published.ran, windows_close)
    since = 0 if ran is None or not needs.stateful else needs.since(ran)
    begins, ends = dict[Partition, int](), dict[Partition, int]()
    for place, found in needs.retained(since).items():
        # A new partition is read from its first record; a topic that is new to the job from ``since``, as the others.
        end = ends[place] = read.get(place, 0 if place[0] in topics else found.since)
        if end > found.end:
            reason = f"it had read {place[0]}/{place[1]} up to offset {end}, which ends at {found.end} now"
            raise refused(reason=reason)
        if end < found.first:
            raise needs.deleted(place, f"from offset {end} on", found, f"use {output.new}")
        if not needs.stateful:
            begins[place] = end
        elif ran is None and found.first > 0:
            raise needs.deleted(place, "from the first one on", found, f"use {output.new}")
        elif not found.is_complete:
            raise needs.deleted(place, _since(since), found, f"use {output.new}")
        else:
            begins[place] = min(found.since, end)
    replayed, replay_watermark = (ends, published.ran) if needs.stateful else (None, 0)
    return StartPoint(
        *(begins, replayed, replay_watermark, last.watermark, last.epoch),
        output_at=output_at,
        follows=last.batch,
        ids={topic: id_ for topic, id_ in published.ids.items() if any(topic in spec.topics for spec in needs.specs)},
    )


def _since(time: int) -> str:
    return f"that came since {to_datetime(time).isoformat()}"
