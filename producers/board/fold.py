"""Fold the marks of any number of topics into a board: states, lags, verdicts, the chain of stages.  Pure.

A job is a source whose marks name a holder; the holder's topic is one of its inputs.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import islice, pairwise
from typing import Final, NamedTuple

from floodmark.producers.board.causes import Cause, cause_of, reason_of
from floodmark.producers.board.estimate import ids_read, offsets_read
from floodmark.producers.board.model import (
    SOURCES,
    Board,
    Lags,
    PartitionView,
    SourceView,
    Stage,
    State,
    TopicView,
    goes_on,
    lost_input,
)
from floodmark.producers.board.source_history import Health, History, TopicMarks, is_ahead, severity
from floodmark.schemas.classify import Classified, Data, Mark, Place
from floodmark.schemas.errors.base import iso
from floodmark.schemas.partition_state import Combined, PartitionState, least, lowest
from floodmark.schemas.records import Holder, Status
from floodmark.schemas.timestamps import END_OF_TIME, milliseconds
from floodmark.schemas.topic_state import TopicState
from floodmark.schemas.tracker import missing

KEPT: Final = timedelta(minutes=15)  # how much of the past a timeline holds
_KEPT: Final = milliseconds(KEPT)
_POINTS: Final = 900  # a screen has room for about as many
_STEP: Final = _KEPT // _POINTS  # milliseconds between two points
_CLOCK_SKEW: Final = 1_000  # milliseconds that a log time may be ahead of the reader's clock without a note
_BATCHES: Final = 3  # marks of a job after a rise of its input: the first may be of a batch that ran before
_MOST: Final = 100  # partitions without a mark, and members without a name, to show at most

_Topics = Mapping[str, TopicMarks]
_STATES: Final = {Status.ACTIVE: State.ACTIVE, Status.IDLE: State.IDLE, Status.ENDED: State.ENDED}


class Point(NamedTuple):
    """The watermark of a topic at a time."""

    number: int  # rises with each point that is added, over all topics
    at: int  # log time of the mark, epoch milliseconds
    watermark: int  # epoch milliseconds


class Timeline:
    """Keep the watermark of each topic over the last 15 minutes, one point a second."""

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}
        self._added = 0

    def note(self, topic: str, log_time: int, state: TopicState) -> None:
        """Add the topic's watermark, at most once a second; ``log_time``: of the last mark, epoch milliseconds."""
        points = self._points.setdefault(topic, deque(maxlen=_POINTS))
        if points and abs(log_time - points[-1].at) < _STEP:
            return
        watermark = state.combine().watermark
        if watermark is None:
            return
        while points and points[-1].at > log_time:
            points.pop()  # its log time was ahead of the clock
        self._added += 1
        points.append(Point(self._added, log_time, watermark))

    def last_rise(self, topic: str) -> int | None:
        """Return the log time at which a topic's watermark last rose, or of its first point; ``None``: no points."""
        highest = max(self._points.get(topic, ()), key=lambda point: point.watermark, default=None)
        return None if highest is None else highest.at

    def rose_above(self, topic: str, watermark: int) -> int | None:
        """Return the log time at which a topic's watermark rose above another; ``None``: its points do not show it."""
        steps = [*pairwise(self._points.get(topic, ()))]
        return next((after.at for one, after in steps[::-1] if one.watermark <= watermark < after.watermark), None)

    def points(self, now: int) -> dict[str, list[Point]]:
        """Return the points of each topic since 15 minutes before ``now``, epoch milliseconds."""
        return {topic: [point for point in points if now - _KEPT <= point.at] for topic, points in self._points.items()}


class Fold:
    """Takes marks, and gives the board of them at any time.

    >>> from floodmark.schemas.records import WatermarkRecord
    >>> fold = Fold(["clicks"])
    >>> for number in range(2):
    ...     mark = WatermarkRecord(source="web", epoch=1, sequence=number, watermark=number, partitions=1, emitted_at=0)
    ...     fold.take(Mark("clicks", 0, number, number * 1_000, mark))
    >>> clicks = fold.board(now=1_500).topic("clicks")
    >>> clicks.watermark, str(clicks.state), str(clicks.verdict), clicks.lags.wall
    (1, 'active', 'OK', 1499)
    """

    def __init__(self, topics: Iterable[str] = ()) -> None:
        self._topics = {topic: TopicMarks() for topic in topics}
        self._unread: dict[str, str] = {}
        self._counts: Counter[str] = Counter()
        self._newest: tuple[int, str] | None = None
        self.awaited: Collection[Holder] = ()  # the sources that jobs of tables wait for
        self.sought = set[Holder]()  # the sources for which topics were read `again`
        self.timeline: Final = Timeline()

    @property
    def topics(self) -> frozenset[str]:
        """The topics on the board."""
        return frozenset(self._topics)

    @property
    def unread(self) -> frozenset[str]:
        """The topics of the chain that could not be read."""
        return frozenset(self._unread)

    def named(self) -> set[str]:
        """Return the topics that marks name and that were not tried yet: inputs of jobs, and what holds sources."""
        inputs = {topic for marks in self._topics.values() for named in marks.inputs.values() for topic in named}
        held = {one.topic for marks in self._topics.values() for one in marks.held.values() if one and one.topic}
        return (inputs | held) - self._topics.keys() - self._unread.keys()

    def unseen(self, sought: Iterable[Holder | None] | None = None) -> set[Holder]:
        """Return the sources of which no mark was taken, by default of those that jobs and tables wait for."""
        if sought is None:
            histories = (history for marks in self._topics.values() for history in marks.histories.values())
            sought = {*self.awaited, *(history.waits_for for history in histories)}
        read = ((one, self._topics.get(one.topic)) for one in sought if one is not None)
        return {one for one, marks in read if marks and (one.partition, one.source) not in marks.histories}

    def again(self, awaited: Collection[Holder]) -> set[str]:
        """Drop the topics of `unseen` sources, for each source once, and return them: they are read further back.

        ``awaited``: the sources that jobs of tables wait for.
        """
        self.awaited = awaited
        new = self.unseen() - self.sought
        self.sought |= new
        topics = {one.topic for one in new}
        for topic in topics:
            self.refuse(topic, "it is read again")
        return topics

    def add(
        self,
        topic: str,
        *,
        whole: bool = False,
        begins: Mapping[int, int] | None = None,
        topic_id: str | None = None,
    ) -> None:
        """Put a topic on the board; ``begins``: the offset of the first record that Kafka has, by partition."""
        marks = self._topics.setdefault(topic, TopicMarks())
        marks.whole, marks.begins, marks.topic_id = whole, begins or {}, topic_id
        self._unread.pop(topic, None)

    def refuse(self, topic: str, reason: str) -> None:
        """Note that a topic of the chain could not be read."""
        self._topics.pop(topic, None)
        self._unread[topic] = reason

    def take(self, record: Classified, read_at: int | None = None) -> None:
        """Take the next record of a partition; ``read_at``: the clock when it arrived, ``None`` for past records."""
        if isinstance(record, Data):
            return
        marks = self._topics.setdefault(record.topic, TopicMarks())
        if not isinstance(record, Mark):
            if record.source is not None:
                marks.state.apply_unreadable(record.source, record.partition, record.offset, record.log_time)
            return
        marks.take(record, self._counts, read_at)
        self.timeline.note(record.topic, record.log_time, marks.state)
        if self._newest is None or record.log_time > self._newest[0]:
            self._newest = (record.log_time, str(record.place))

    def sources(self, topic: str) -> dict[str, int]:
        """Return the highest epoch of each source of a topic."""
        found: dict[str, int] = {}
        for (_, name), history in self._topics[topic].histories.items():
            found[name] = max(found.get(name, -1), -1 if history.mark is None else history.mark.epoch)
        return found

    def unexplained(self, topic: str, now: int) -> set[str]:
        """Return the sources that are ahead of the clock; marks from around their starts show whether they always were.

        ``now``: epoch milliseconds.
        """
        return {name for (_, name), history in self._topics[topic].histories.items() if history.is_unexplained(now)}

    def read_until(self, topic: str, time: int) -> None:
        """Note when the reader was last at the end of a topic, epoch milliseconds: later silence says nothing."""
        self._topics[topic].read_until = time

    def await_shards(self, topic: str, job: str, shards: tuple[int, int]) -> None:
        """Note how many shards of its last batch a job has not written, and how many it has."""
        self._topics[topic].waiting_shards[job] = shards

    def hide(self, topic: str, hidden: Mapping[int, Place]) -> None:
        """Note from where on open transactions hide the records of a topic, by partition."""
        self._topics[topic].hidden = hidden

    def lacking(self, topic: str, partitions: Collection[int], *, since: bool = False) -> set[int]:
        """Return the partitions of which earlier records are needed for the verdicts."""
        return {number for number in partitions if self._topics[topic].lacks(number, since=since)}

    def board(self, now: int, *, answered: bool = True) -> Board:
        """Return the board at ``now``, epoch milliseconds; ``answered``: whether Kafka answers."""
        notes = [] if answered else ["no Kafka broker answers; the board shows the last records that it has read"]
        if self._newest is not None and _CLOCK_SKEW < self._newest[0] - now < END_OF_TIME:
            ahead = f"{(self._newest[0] - now) / 1000:,.0f} s ahead of this machine"
            notes.append(f"clocks disagree: the log time of {self._newest[1]} is {ahead}")
        unread = tuple(sorted(self._unread.items()))
        stages = _stages(self._topics, self.unseen(), self.timeline, now)
        if not answered:
            stages = tuple(replace(stage, topics=tuple(map(_unknown_now, stage.topics))) for stage in stages)
        return Board(now=now, stages=stages, unread=unread, notes=tuple(notes), answered=answered)


def _unknown_now(topic: TopicView) -> TopicView:
    """Withdraw the good verdict on a topic that cannot be read now."""
    return replace(topic, verdict=None) if topic.verdict is Health.OK else topic


def _stages(topics: _Topics, unseen: Collection[Holder], timeline: Timeline, now: int) -> tuple[Stage, ...]:
    inputs = {name: set().union(*marks.inputs.values()) for name, marks in topics.items()}
    views: dict[str, TopicView] = {}
    stages: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in filter(topics.__contains__, _roots_first(inputs)):
        views[name] = _topic(name, topics, inputs, views, unseen, timeline, now)
        stages[tuple(sorted(topics[name].inputs))].append(name)
    drawn = []
    for jobs, names in stages.items():
        read = set[str]().union(*(inputs[name] for name in names))
        shown = tuple(views[name] for name in names)
        drawn.append(Stage(name=", ".join(jobs) or SOURCES, inputs=tuple(sorted(read)), topics=shown))
    return tuple(drawn)


def _roots_first(inputs: Mapping[str, set[str]]) -> list[str]:
    """Sort topics: the inputs of a job before its outputs; a circle is cut at its first topic by name."""
    depth: dict[str, int] = {}

    def visit(name: str, above: frozenset[str]) -> int:
        if name in depth or name in above:
            return depth.get(name, 0)
        below = [visit(named, above | {name}) for named in sorted(inputs.get(name, ()))]
        depth[name] = 1 + max(below) if below else 0
        return depth[name]

    for name in sorted(inputs):
        visit(name, frozenset())
    return sorted(depth, key=lambda name: (depth[name], name))


def _roots(name: str, inputs: Mapping[str, set[str]]) -> set[str]:
    """Return the first topics of the chain of a topic."""
    found, open_, seen = set(), [name], {name}
    while open_:
        topic = open_.pop()
        named = inputs.get(topic, set())
        if not named:
            found.add(topic)
        open_ += named - seen
        seen |= named
    return found


def _minimum(names: Collection[str], topics: _Topics) -> int | None:
    """Return the minimum over some topics; ``None``: unknown."""
    if not names or not all(name in topics for name in names):
        return None
    return least(topics[name].state.combine() for name in names).watermark


def _ahead(lowest: int | None, watermark: int | None) -> int | None:
    """Return how far the minimum over some topics is ahead of a watermark; ``None``: unknown."""
    return None if lowest is None or watermark is None else max(0, lowest - watermark)


def _age(time: int | None, now: int) -> int | None:
    return None if time is None else now - time


def _topic(
    name: str,
    topics: _Topics,
    inputs: Mapping[str, set[str]],
    views: Mapping[str, TopicView],
    unseen: Collection[Holder],
    timeline: Timeline,
    now: int,
) -> TopicView:
    marks = topics[name]
    unmarked = [marks.state.empty(number) for number in marks.state.unmarked(_MOST)]
    parts = sorted([*marks.state.partitions.values(), *unmarked], key=lambda part: part.number)
    roots = _roots(name, inputs)
    partitions, all_rows = [], list[SourceView]()
    heard = now if marks.read_until is None else min(now, marks.read_until)
    retired, front = marks.retired(heard), marks.front(heard)
    uncounted = marks.uncounted(lambda history: history.lives(heard) or history.has_one_mark)
    awaited = marks.uncounted(lambda history: history.lives(heard) or history.is_waited_for)
    living = {source for (_, source), history in marks.histories.items() if history.lives(heard)}
    for part in parts:
        names = sorted({*marks.members(part.number), *part.unreadable})
        marked = [_row(name, marks, part, source, now, heard, front, living) for source in names]
        found = [_counted(row, marks, uncounted, awaited) for row in marked]
        found += _uncounted(name, marks, part, retired.get(part.number, []))
        found += [_unseen_row(one) for one in unseen if (one.topic, one.partition) == (name, part.number)]
        rows = tuple(_placed(row, marks, topics, roots, views, timeline, now) for row in found)
        at, number = part.combine(), part.number
        offsets = {"begin": marks.begins.get(number), "counted": marks.counted.get(number)}
        view = PartitionView(partition=number, state=_state(at, rows), watermark=at.watermark, sources=rows, **offsets)
        partitions.append(view)
        all_rows += rows
    combined = marks.state.combine()
    held_by, lowest_input = _held_by(combined, all_rows), _minimum(inputs[name], topics)
    lags = Lags(
        wall=None if combined.watermark is None else now - combined.watermark,
        processing=_age(lowest(marks.state.processing_times()), now),
        local=_ahead(lowest_input, combined.watermark),
        root=_ahead(_minimum(roots, topics), combined.watermark) if inputs[name] else None,
    )
    oldest = min(held_by, key=lambda row: (row.since is None, row.since), default=None)
    verdict = max((row.verdict for row in all_rows), key=severity, default=None)
    return TopicView(
        topic=name,
        state=_state(combined, held_by or all_rows),
        verdict=None if combined.unknown and severity(verdict) < severity(None) else verdict,
        watermark=combined.watermark,
        lags=lags,
        since=None if oldest is None else oldest.since,
        since_exact=oldest is not None and oldest.since_exact,
        held_by=held_by,
        partitions=tuple(partitions),
        whole=marks.whole,
        input_watermark=lowest_input,
        batch_watermark=marks.batch_watermark(),
        topic_id=marks.topic_id,
    )


def _state(combined: Combined, rows: Collection[SourceView]) -> State:
    if combined.unknown:
        return State.MISSING if any(row.state is State.MISSING for row in rows) or not rows else State.UNKNOWN
    if combined.status is not Status.ACTIVE:
        return _STATES[combined.status]
    shown = {row.state for row in rows}
    return next((state for state in (State.SILENT, State.CATCHING_UP) if state in shown), State.ACTIVE)


def _held_by(combined: Combined, rows: Collection[SourceView]) -> tuple[SourceView, ...]:
    """Return the sources that hold a topic: unseen ones, else those that make it unknown, else the slowest."""
    found = [row for row in rows if row.cause is Cause.UNSEEN]
    if found:
        return tuple(found)
    if combined.unknown:
        found = [row for row in rows if row.state in {State.MISSING, State.UNKNOWN}]
    elif combined.watermark is None:
        found = [row for row in rows if row.state is State.IDLE]
    else:
        found = [row for row in rows if row.watermark == combined.watermark and row.state is not State.ENDED]
    return tuple(sorted(found, key=lambda row: (-severity(row.verdict), row.partition, row.source or "")))


def _placed(
    row: SourceView,
    marks: TopicMarks,
    topics: _Topics,
    roots: Collection[str],
    views: Mapping[str, TopicView],
    timeline: Timeline,
    now: int,
) -> SourceView:
    """Compare a job with its inputs: it is not stuck if they are, and not right if it is ahead of them."""
    named = tuple(sorted(marks.inputs.get(row.source or "", ())))
    if not named:
        return row
    lowest, first, wrong = _minimum(named, topics), _minimum(roots, topics), None
    lags = replace(row.lags, local=_ahead(lowest, row.watermark), root=_ahead(first, row.watermark))
    row = replace(row, lags=lags, inputs=named)
    found = [views[name] for name in named if name in views]
    if row.state is State.ENDED and goes_on(found, marks.read_to_the_end(row.source or "")):
        wrong = Cause.OUTLIVED, Health.STOP
    elif is_ahead(row.watermark, now) and lowest not in {None, END_OF_TIME} and not is_ahead(lowest, now):
        wrong = Cause.BEFORE_INPUT, Health.TIME
    if wrong is not None:
        return replace(row, cause=wrong[0], verdict=wrong[1], reason=reason_of(wrong[0]))
    if row.cause in {Cause.SILENT, Cause.HIDDEN} and (why := _of_silence(found, marks, row.source or "")) is not None:
        return replace(row, cause=why[0], reason=why[1])
    has_no_input = (
        row.cause is Cause.SILENT and lags.local == 0 and len(found) == len(named) and _wrote_last(row, found)
    )
    if not has_no_input and (row.verdict not in {Health.WARN, Health.STALL} or row.cause is Cause.RESTARTS):
        return row
    holders = [row for view in found for row in view.held_by if row.cause is not Cause.TWINS]  # twins hold no watermark
    worst = max((row.verdict for row in holders), key=severity, default=Health.OK)
    stand = any(view.watermark is None and view.state is not State.ENDED for view in found)
    stand = stand or any(row.cause is Cause.UNSEEN for row in holders)
    excused = (
        has_no_input
        or stand
        or severity(worst) >= severity(row.verdict)
        or (row.verdict is Health.STALL and (lags.local == 0 or _may_still_follow(row, marks, timeline, now)))
    )
    if not excused and len(found) == len(named):
        return row
    verdict = Health.OK if excused else row.verdict  # an unread input is no excuse, and may be the cause
    return replace(row, verdict=verdict, cause=Cause.WAITS, reason=reason_of(Cause.WAITS))


def _may_still_follow(row: SourceView, marks: TopicMarks, timeline: Timeline, now: int) -> bool:
    """Tell whether the input rose above a job's watermark within its last batches: the next one may follow."""
    rises = (timeline.rose_above(name, row.watermark or 0) for name in row.inputs)
    rose = max((at for at in rises if at is not None and at <= now + _CLOCK_SKEW), default=None)
    return rose is not None and marks.histories[row.partition, row.source or ""].marks_since(rose) < _BATCHES


def _wrote_last(row: SourceView, inputs: Collection[TopicView]) -> bool:
    """Tell whether a job marked after the last mark of each source of its inputs: without more, it runs no batch."""
    wrote = row.last
    marked = [one.last for view in inputs for one in view.sources()]
    return wrote is not None and all(last is not None and last <= wrote for last in marked)


def _of_silence(inputs: Collection[TopicView], marks: TopicMarks, job: str) -> tuple[Cause, str] | None:
    """Return why a job is silent, with the reason; ``None``: Kafka does not show that."""
    published = marks.published.get(job)
    if (lost := lost_input(inputs, offsets_read(published), ids_read(published))) is not None:
        return lost
    waiting, shards = marks.waiting_shards.get(job, (0, 0))
    return (Cause.SHARDS, reason_of(Cause.SHARDS, waiting, shards)) if waiting else None


def _counted(row: SourceView, marks: TopicMarks, uncounted: Collection[str], awaited: Collection[str]) -> SourceView:
    """Note that the membership counts fewer sources than write, unless the source has a worse problem.

    Also note that a silent source is one of more sources that readers wait for: it may have another name now.
    """
    if row.cause is Cause.SILENT and row.source in awaited and not (row.injects or marks.inputs.get(row.source or "")):
        reason = reason_of(Cause.RENAMED, len(awaited), marks.state.roster.size)
        return replace(row, cause=Cause.RENAMED, reason=reason)
    if row.source not in uncounted or severity(row.verdict) >= severity(Health.UNCOUNTED):
        return row
    reason = reason_of(Cause.UNCOUNTED, len(uncounted), marks.state.roster.size)
    return replace(row, verdict=Health.UNCOUNTED, cause=Cause.UNCOUNTED, reason=reason)


def _uncounted(name: str, marks: TopicMarks, part: PartitionState, retired: list[str]) -> Iterator[SourceView]:
    """Yield the members that have not reported in a partition, and the sources whose membership is too old."""
    number, roster = part.number, marks.state.roster
    view = partial(SourceView, topic=name, partition=number)
    here = {*marks.members(number), *part.absent()}
    retired = [source for source in retired if source not in here]  # the rows of members say so themselves
    lacking = max(0, roster.size - len(here))
    reason, sizes = missing(marks.state, part, here) if lacking else "", marks.sizes()
    for source in retired:
        history = marks.histories[number, source]
        state, told = State.MISSING if lacking else State.UNKNOWN, _of_retirement(history, marks)
        row = view(source=source, state=state, verdict=Health.FENCED, cause=Cause.RETIRED, reason=reason or told)
        yield replace(row, last=history.seen)
    known = sorted(n for n, member in roster.members.items() if member.version == roster.version and n not in here)
    others: list[str | None] = [*known, *[None] * (lacking - len(known))]
    verdict = Health.STOP if marks.whole else None
    cause = Cause.SIZES if len(sizes) > 1 else Cause.MISSING
    if cause is Cause.SIZES:
        reason = f"{reason_of(cause, ' and '.join(map(str, sizes)), sizes[-1])}: {reason}"
    for source_or_none in islice(others[: max(0, lacking - len(retired))], _MOST):
        if source_or_none not in part.unreadable:
            yield view(source=source_or_none, state=State.MISSING, verdict=verdict, cause=cause, reason=reason)


def _of_retirement(history: History, marks: TopicMarks) -> str:
    version = 0 if history.mark is None else history.mark.membership.version
    return reason_of(Cause.RETIRED, version, marks.state.roster.version)


def _unseen_row(holder: Holder) -> SourceView:
    """Return the row of a source that a job waits for, and of which no mark was read."""
    view = partial(SourceView, topic=holder.topic, partition=holder.partition or 0, source=holder.source)
    return view(state=State.UNKNOWN, verdict=None, cause=Cause.UNSEEN, reason=reason_of(Cause.UNSEEN))


def _row(
    name: str,
    marks: TopicMarks,
    part: PartitionState,
    source: str,
    now: int,
    heard: int,
    front: int | None,
    living: Collection[str],
) -> SourceView:
    view = partial(SourceView, topic=name, partition=part.number, source=source)
    if source in part.unreadable:
        offset, at = part.unreadable[source]
        reason = f"its mark at offset {offset} cannot be read"
        unknown = view(state=State.UNKNOWN, verdict=None, cause=Cause.UNREADABLE, reason=reason)
        return replace(unknown, since=at, since_exact=True, last=at)
    history, state = marks.histories[part.number, source], part.sources[source]
    status = _STATES[state.status]
    if status is State.ACTIVE and not state.active:
        status = State.IDLE
    elif status is State.ACTIVE and state.watermark is None:
        status = State.UNKNOWN
    elif status is State.ACTIVE and history.gains:
        status = State.CATCHING_UP
    verdict = history.verdict(heard, front)
    if verdict is Health.STOP and status in {State.ACTIVE, State.CATCHING_UP}:
        status = State.SILENT
    cause = cause_of(history, verdict, heard, lives=source in living)
    held = marks.held.get((part.number, source))
    *older, newer = history.epochs(heard) or (None,)
    earlier = iso(history.peak) if cause is Cause.REWOUND else " and ".join(map(str, older))
    reason = reason_of(cause, earlier, newer)
    if cause in {Cause.SILENT, Cause.SILENT_HERE} and part.number in marks.hidden:
        cause, reason = Cause.HIDDEN, reason_of(Cause.HIDDEN, marks.hidden[part.number].offset)
    if held is not None and verdict in {Health.WARN, Health.STALL}:
        cause, reason = Cause.ALIGNED, reason_of(Cause.ALIGNED, held.topic, iso(held.watermark))
    if history.retired and history.lives(heard):
        verdict, cause, reason = Health.FENCED, Cause.RETIRED, _of_retirement(history, marks)
    if verdict is Health.STOP and status is State.IDLE:
        reason = f"readers no longer wait for it, since its lease has run out: {reason}"
    behind = status in {State.ACTIVE, State.CATCHING_UP, State.SILENT}
    return view(
        state=status,
        verdict=None if status is State.UNKNOWN and verdict is Health.OK else verdict,
        watermark=state.watermark,
        lags=Lags(
            wall=_age(state.watermark, now) if behind else None,
            processing=_age(state.processing_time, now) if state.active else None,
        ),
        since=history.since,
        since_exact=history.since_exact,
        last=history.seen,
        holder=None if history.mark is None else history.mark.holder,
        waits_for=None if held is None else held.topic,
        injects=source in marks.injectors,
        cause=cause,
        reason=reason,
    )
