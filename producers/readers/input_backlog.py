"""The unread records of a job's input topics, and how quickly the topics grow.  A thin shell around a consumer."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing

from confluent_kafka import TopicPartition
from floodmark.producers.board.estimate import JobMark, JobProgress, TopicGap, ids_read, inputs_named, offsets_read
from floodmark.producers.clients.admin import (
    LATELY,
    QUIET,
    TIMEOUT,
    Config,
    admin_client,
    answering,
    described,
    first_since,
    hidden_records,
    offset_bounds,
    shared,
)
from floodmark.producers.clients.consumers import reading_consumer
from floodmark.producers.event_times.injection import STATE_HEADER, InjectorState
from floodmark.producers.readers.replay import REACHES, BackwardReader
from floodmark.schemas.classify import Mark, Partition, mark_header
from floodmark.schemas.completeness.position import TopicIds, TopicUser
from floodmark.schemas.errors import DeletedRecordsError, UsageError
from floodmark.schemas.records import READ_HEADER, Status, processing_time_of


class InputBacklog:
    """The unread records of some topics, from their offsets at its creation."""

    def __init__(self, config: Config, topics: Iterable[str]) -> None:
        self._config = config
        self._topics = tuple(dict.fromkeys(topics))
        self._bounds = {place: bound for topic in self._topics for place, bound in offset_bounds(config, topic).items()}

    def offsets_at(self, time: int | None) -> dict[Partition, int]:
        """Return the first offset of each partition with a log time of ``time`` (epoch milliseconds) or later."""
        if time is None:
            return {place: low for place, (low, _) in self._bounds.items()}
        return first_since(self._config, self._bounds, time)

    def offsets_since(self, time: int) -> dict[Partition, int]:
        """Return `offsets_at` a time, without partitions of which Kafka has no record from before it."""
        begins = self.offsets_at(None)
        return {place: at for place, at in self.offsets_at(time).items() if at > begins[place]}

    def offsets_of_group(self, group: str) -> dict[Partition, int]:
        """Return the committed offsets of a consumer group, or raise UsageError if a topic has none."""
        with (
            closing(reading_consumer({**self._config, "group.id": group}, group, QUIET.name)) as consumer,
            answering(
                self._config.get("bootstrap.servers"),
                about=f"the offsets of group {group!r}, which need its right Describe",
            ),
        ):
            answers = consumer.committed([TopicPartition(*place) for place in self._bounds], timeout=TIMEOUT)
        known = {(one.topic, one.partition): one.offset for one in answers if one.offset >= 0}
        for topic in self._topics:
            if all(topic != place[0] for place in known):
                reason = f"group {group!r} has committed nothing of {topic!r}; Spark jobs and injectors commit to none"
                raise UsageError(reason=f"{reason}: name the output topic (--output), or a time (--since)")
        return known

    def gaps(self, read: Mapping[Partition, int], now: int, windows: Iterable[int]) -> tuple[TopicGap, ...]:
        """Return the unread records of each topic, and its growth, the highest of the ``windows`` (milliseconds).

        Partitions that ``read`` lacks are unread from their first offset.
        """
        before, client = [(window, self.offsets_at(now - window)) for window in windows], admin_client(self._config)
        found = []
        for topic in self._topics:
            bounds = {place: bound for place, bound in self._bounds.items() if place[0] == topic}
            self._require_same(topic, read)
            grown = [(sum(high - at[place] for place, (_, high) in bounds.items()), window) for window, at in before]
            rate = max((count * 1_000 / window for count, window in grown), default=0.0)
            unread = tuple(max(0, high - max(low, read.get(place, low))) for place, (low, high) in bounds.items())
            deleted = sum(max(0, low - read.get(place, low)) for place, (low, _) in bounds.items())
            unknown = [low for place, (low, high) in bounds.items() if high and place not in read]
            since = {place[1]: now - LATELY for place in bounds}
            hidden = next(map(str, hidden_records(client, self._config, topic, since, TIMEOUT).values()), None)
            found.append(TopicGap(topic, unread, rate, deleted, len(unknown), any(unknown), hidden))
        return tuple(found)

    def _require_same(self, topic: str, read: Mapping[Partition, int]) -> None:
        """Raise DeletedRecordsError if a topic ends before what was read of it, since it was created again."""
        if all(read.get(place, 0) <= high for place, (_, high) in self._bounds.items() if place[0] == topic):
            return
        for place, (low, high) in offset_bounds(self._config, topic).items():  # it may have grown since
            if (at := read.get(place, 0)) > high:
                raise DeletedRecordsError(topic=topic, partition=place[1], position=at, earliest=low, end=high)


def progress_of(config: Config, topic: str, inputs: Collection[str]) -> JobProgress:
    """Return how far the job of ``inputs`` that writes to ``topic`` has read, by its marks; or UsageError.

    It raises RecreatedTopicError if the job has read another topic of the name of an input.
    Of several jobs, it is the one that is furthest behind, and has not ended.
    """
    if topic in inputs:
        raise UsageError(reason=f"{topic!r} is the input: name the output topic of the job that reads it (--output)")
    bounds = offset_bounds(config, topic)
    by_source: defaultdict[str, list[Mark]] = defaultdict(list)
    for record in BackwardReader(config, bounds).stretch(bounds, REACHES[1]):
        if isinstance(record, Mark):
            by_source[record.record.source].append(record)
    known = described(admin_client(shared(config)), inputs, config.get("bootstrap.servers"))
    topics = {id_: name for name, (id_, _) in known.items()}
    named = {source: _inputs(marks, topics) for source, marks in by_source.items()}
    jobs = {source: _progress(source, marks, named[source]) for source, marks in by_source.items()}
    jobs = {source: job for source, job in jobs.items() if job.marks or job.reads}
    if not jobs:
        reason = f"no mark near the end of {topic!r} says up to when a job has worked off its input"
        raise UsageError(reason=f"{reason}: say it with --since, or name the group (--group)")
    # A job that names no input, such as one of another program, may read any topic.
    found = [job for source, job in jobs.items() if not named[source] or named[source] >= set(inputs)]
    if not found:
        told = "; ".join(f"{job} reads {', '.join(sorted(named[job]))}" for job in sorted(jobs))
        reason = f"no job that writes to {topic!r} reads {', '.join(inputs)}, by its marks: {told}"
        raise UsageError(reason=f"{reason}. Name the input topics of the job, or its own output topic")
    job = min(found, key=lambda job: (job.ended, job.marks[-1].processing_time if job.marks else 0))
    known_ids = (ids_read(mark_header(mark, job.job, READ_HEADER)) for mark in reversed(_in_order(by_source[job.job])))
    last: dict[str, str] = next((ids for ids in known_ids if ids), {})
    TopicIds(last).compare({topic: id_ for topic, (id_, _) in known.items() if id_ is not None}, TopicUser.job(job.job))
    return job


def _in_order(marks: Sequence[Mark]) -> list[Mark]:
    return sorted(marks, key=lambda mark: (mark.record.epoch, mark.record.sequence))


def _progress(source: str, marks: Sequence[Mark], inputs: Collection[str]) -> JobProgress:
    """Return how far a job has read ``inputs``; without marks and offsets, it is a source without an input."""
    ordered = _in_order(marks)
    told = ((mark.record.emitted_at, offsets_read(mark_header(mark, source, READ_HEADER))) for mark in ordered)
    reads = [(at, read) for at, read in told if read]
    states = {mark.partition: state for mark in marks if (state := mark_header(mark, source, STATE_HEADER)) is not None}
    if states and len(inputs) == 1:
        (name,) = inputs
        nexts = {(name, number): InjectorState.unpack(state).next_offset for number, state in states.items()}
        reads = [(ordered[-1].record.emitted_at, nexts)]
    epoch, running = ordered[-1].record.epoch, [one for one in marks if one.record.status is not Status.ENDED]
    ended = any(one.record.epoch == epoch and one.record.status is Status.ENDED for one in marks)
    return JobProgress(source, _worked_off(running), reads, ended)


def _worked_off(marks: Iterable[Mark]) -> list[JobMark]:
    """Return up to when a job has worked off its input, by its marks; nothing for a source without an input."""
    records = [mark.record for mark in marks]
    if any(record.processing_time_watermark is None and record.holder is None for record in records):
        return []
    said = ((record.emitted_at, processing_time_of(record)) for record in records)
    return sorted({JobMark(at, time) for at, time in said if time is not None})


def _inputs(marks: Iterable[Mark], topics: Mapping[str | None, str]) -> set[str]:
    """Return the inputs that the marks of a job or an injector name; ``topics``: known names by their ids."""
    named, state = set[str](), None
    for mark in marks:
        named |= inputs_named(mark.record.holder, mark_header(mark, mark.record.source, READ_HEADER))
        state = mark_header(mark, mark.record.source, STATE_HEADER) or state
    id_ = None if state is None else InjectorState.unpack(state).topic_id
    return named if id_ is None else {topics.get(id_, f"another topic (id {id_})")}
