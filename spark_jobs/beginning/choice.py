"""Choose where a job without a checkpoint begins: asks Kafka, writes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from floodmark.producers.clients.admin import Config, RetainedOffsets, answering, retained_since
from floodmark.producers.clients.topic_watch import TopicWatch
from floodmark.producers.readers.replay import last_matching
from floodmark.schemas.classify import Classified, Mark, Partition, mark_header
from floodmark.schemas.errors import ContinueError, RetentionError, UsageError
from floodmark.schemas.records import Status
from floodmark.schemas.timestamps import milliseconds, to_datetime
from floodmark.spark_jobs.beginning.beginning import Beginning
from floodmark.spark_jobs.progress.published import READ_HEADER, Published
from floodmark.spark_jobs.progress.spark_watermark import WindowsClose, from_spark_watermark
from floodmark.spark_jobs.reading.source_spec import SourceSpec


@dataclass(frozen=True, slots=True)
class LastMark:
    """What the newest mark of a job in its output topic says."""

    watermark: int | None
    epoch: int
    ended: bool
    published: Published | None
    """``None``: it does not say how far the job had read."""


def last_mark(config: Config, topic: str, job: str) -> LastMark | None:
    """Read the newest mark of a job in its output topic; ``None``: there is none.

    Raises:
        BrokerUnavailableError: where the topic cannot be read, for lack of the right, too.
    """

    def read(record: Classified) -> LastMark | None:
        if not isinstance(record, Mark) or record.source != job:
            return None
        text, mark = mark_header(record, job, READ_HEADER), record.record
        published = None if text is None else Published.of(text)
        return LastMark(mark.watermark, mark.epoch, mark.status is Status.ENDED, published)

    with answering(config.get("bootstrap.servers"), about=f"topic {topic!r}"):
        return last_matching(config, topic, [0], read).get(0)


@dataclass(frozen=True, slots=True)
class Needs:
    """What a job needs of its input before its first result.

    Args:
        job: for errors.
        specs: what it reads.
        stateful: whether operators keep state.
        widths: how far back a result reaches, where the query says so, see `plan.widths`; milliseconds.
        largest_window: the same, as the user says.
        early: how far event times may lie ahead of Kafka's timestamps.
    """

    job: str
    specs: Sequence[SourceSpec]
    stateful: bool
    widths: int | None
    largest_window: timedelta | None
    early: timedelta

    def begins(self, time: int) -> tuple[int, dict[Partition, RetainedOffsets]]:
        """Return since when records must be there for results from a time on to be complete, and what is there.

        Raises:
            UsageError: where neither the plan nor `largest_window` says how far back a result reaches.
        """
        since = time - self._reach() - milliseconds(self.early)
        return since, self.kept(since)

    def kept(self, since: int) -> dict[Partition, RetainedOffsets]:
        """Return what Kafka has of each partition."""
        found: dict[Partition, RetainedOffsets] = {}
        for spec in self.specs:
            found |= retained_since(spec.connection.config(), spec.topics, since)
        return found

    def _reach(self) -> int:
        if not self.stateful:
            return 0
        given = None if self.largest_window is None else milliseconds(self.largest_window)
        if given is None and self.widths is None:
            reason = (
                f"job {self.job!r} keeps state of which the query does not say how far back it reaches: give "
                "Start(largest_window=), the longest session or the bound of the join"
            )
            raise UsageError(reason=reason)
        if given is not None and self.widths is not None and given < self.widths:
            least = timedelta(milliseconds=self.widths)
            reason = f"largest_window is {self.largest_window}, and the windows of job {self.job!r} need {least}"
            raise UsageError(reason=reason)
        return given if given is not None else self.widths or 0

    def deleted(self, place: Partition, since: str, kept: RetainedOffsets, advice: str) -> RetentionError:
        """Return the error for records that are not there any more."""
        name = f"{place[0]}/{place[1]}"
        return RetentionError(job=self.job, place=name, since=since, first=kept.first, advice=advice)


def at_time(needs: Needs, time: int) -> Beginning:
    """Begin where records arrived that results from a time on may need.

    Args:
        needs: of the job.
        time: epoch milliseconds.

    Raises:
        RetentionError: where Kafka has deleted some of them.
        UsageError: where neither the plan nor `largest_window` says how far back a result reaches.
    """
    since, kept = needs.begins(time)
    for place, found in kept.items():
        if not found.is_complete:
            raise needs.deleted(place, _since(since), found, "give a later output_at")
    return Beginning({place: found.since for place, found in kept.items()}, output_at=time)


def behind(needs: Needs, last: LastMark, topic: str, windows_close: WindowsClose, output_at: int | None) -> Beginning:
    """Begin behind what the output topic has from the job.

    Args:
        needs: of the job.
        last: the job's newest mark there.
        topic: the output topic.
        windows_close: as the job has it.
        output_at: results with an earlier event time are left out; ``None``: none is.

    Raises:
        ContinueError: where the job has ended, or the topics do not fit what it had read.
        RecreatedTopicError: where a topic was deleted and created again since the job had read it.
        RetentionError: where Kafka has deleted records that it needs.
        UsageError: where neither the plan nor `largest_window` says how far back a result reaches.
    """
    published = last.published
    if last.ended or published is None:
        reason = "it has ended there" if last.ended else "its marks do not say how far it had read"
        raise ContinueError(job=needs.job, topic=topic, reason=reason)
    for spec in needs.specs:
        TopicWatch(spec.connection.config(), spec.topics, published.ids, f"job {needs.job!r}")
    read, topics = published.read, {name for name, _ in published.read}
    ran = from_spark_watermark(published.ran, windows_close)
    since, kept = (0, needs.kept(0)) if ran is None or not needs.stateful else needs.begins(ran)
    begins, ends = dict[Partition, int](), dict[Partition, int]()
    for place, found in kept.items():
        # A partition that has come since begins with its first record; a topic that is new to the job, as the others.
        end = ends[place] = read.get(place, 0 if place[0] in topics else found.since)
        if end > found.end:
            reason = f"it had read {place[0]}/{place[1]} up to offset {end}, which ends at {found.end} now"
            raise ContinueError(job=needs.job, topic=topic, reason=reason)
        if end < found.first:
            raise needs.deleted(place, f"from offset {end} on", found, "use a new output topic")
        if not needs.stateful:
            begins[place] = end
        elif ran is None and found.first > 0:
            raise needs.deleted(place, "from the first one on", found, "use a new output topic")
        elif not found.is_complete:
            raise needs.deleted(place, _since(since), found, "use a new output topic")
        else:
            begins[place] = min(found.since, end)
    return Beginning(
        begins,
        ends if needs.stateful else None,
        published.ran if needs.stateful else 0,
        last.watermark,
        last.epoch,
        output_at=output_at,
    )


def _since(time: int) -> str:
    return f"that came since {to_datetime(time).isoformat()}"
