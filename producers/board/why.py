"""Why the watermark of a topic does not advance: the path from the topic back to the cause.  Pure."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from floodmark.producers.board.causes import Cause, advice_on
from floodmark.producers.board.model import FORMAT, STATUSES, UNNAMED, Board, SourceView, State, TopicView
from floodmark.producers.board.source_history import Health, is_ahead, is_failure, severity
from floodmark.schemas.tracker import START_OR_INJECT

_STOPPED: Final = {Cause.SILENT, Cause.HIDDEN, Cause.DELETED, Cause.RECREATED, Cause.SHARDS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One topic on the path back, and the source that holds it."""

    topic: str
    held_by: SourceView | None  # ``None``: no source holds it, or the topic could not be read
    partitions: int = 0  # the number of partitions in which it does
    others: tuple[str, ...] = ()  # the other sources that hold the topic at the same watermark, or fail
    unread: str = ""
    unmarked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The path from a topic to the source that holds it back."""

    topic: str
    watermark: int | None
    state: State
    steps: tuple[Step, ...]  # from the topic back
    cause: SourceView | None  # the source to look at; ``None``: no source, or it is unknown
    advice: str
    exit_status: int  # 0 nothing is stuck, 1 something is stuck, 2 unknown

    def as_json(self) -> dict[str, Any]:
        """Return a value for JSON; times are epoch milliseconds."""
        status = STATUSES[self.exit_status]
        body = {name: value for name, value in asdict(self).items() if name != "exit_status"}
        return {"format": FORMAT, "status": status, **body}


def trace(board: Board, topic: str) -> Why:
    """Follow what holds a topic from job to job, up to a source that is no job, or a job that fails before its input.

    A silent job whose input is no further than the job does not end the path: a restart alone would advance nothing.
    """
    steps: list[Step] = []
    name: str | None = topic
    view = None
    while name is not None and all(step.topic != name for step in steps):
        view = board.topic(name)
        if view is None:
            reason = dict(board.unread).get(name, "it was not read")
            steps.append(Step(topic=name, held_by=None, unread=reason))
            break
        held_by = next(iter(view.held_by), None)
        steps.append(_step(view, held_by))
        name = None if held_by is None else _input(board, held_by)
    first = board.topic(topic)
    state = State.UNKNOWN if first is None else first.state
    holders = [step.held_by for step in reversed(steps) if step.held_by is not None]
    cause = next((row for row in holders if row.verdict is not Health.OK), None)
    failing = None
    if cause is None or not is_failure(cause.verdict):
        failing = _failing(board, topic)
        # What fails elsewhere gives the topic no watermark, if a source of it has none yet.
        if cause is None or cause.cause is not Cause.NOTHING_PROMISED or steps[-1].unmarked:
            cause = failing or (None if steps[-1].unmarked else cause)
    unread = any(step.unread for step in steps)
    unclear = (
        unread
        or steps[-1].unmarked
        or state in {State.UNKNOWN, State.MISSING}
        or (cause is not None and cause.verdict is None)
    )
    status = 1 if failing is not None or (cause is not None and is_failure(cause.verdict)) else 2 if unclear else 0
    silent = (row for row in holders if row.cause in _STOPPED and row.inputs)
    advised = dict.fromkeys(() if cause is None else (cause, failing or cause, *silent))  # each once
    parts = (advice_on(row.cause, row.source, is_job=bool(row.inputs), injects=row.injects) for row in advised)
    advice = ". Also ".join(filter(None, parts))
    waiting = [row.source for row in holders if row.cause is Cause.WAITS and row.state is State.SILENT]
    if advice and waiting:
        advice += f". Then check whether job {waiting[-1]} goes on"
    says = any("has no watermark" in step.unread for step in steps)  # of a table: what to do, too
    if unread and not advice and not says:
        lacks = any("floodmark[" in (step.unread or "") for step in steps)
        name = "the name" if len(steps) == 1 else f"whether {steps[-1].topic} was deleted"
        advice = f"check {name}, and whether you have {'installed what it needs' if lacks else 'the right to read it'}"
    elif cause is None and steps[-1].unmarked:
        advice = START_OR_INJECT
    elif cause is None and view is not None and view.state is State.IDLE:
        advice = advice_on(Cause.IDLE, view.topic)
    elif cause is None and steps[-1].held_by is not None and is_ahead(steps[-1].held_by.watermark, board.now):
        ahead = steps[-1].held_by
        advice = advice_on(Cause.AHEAD, ahead.source, injects=ahead.injects)
    return Why(
        topic=topic,
        watermark=None if first is None else first.watermark,
        state=state,
        steps=tuple(steps),
        cause=cause,
        advice=advice,
        exit_status=status,
    )


def _step(view: TopicView, held_by: SourceView | None) -> Step:
    """Return the step through a topic, and the source that holds it."""
    if held_by is None:
        return Step(topic=view.topic, held_by=None, unmarked=not view.partitions)
    failing = [row for row in view.sources() if is_failure(row.verdict)] if is_failure(held_by.verdict) else []
    others = {row.source or UNNAMED for row in (*view.held_by, *failing) if row.source != held_by.source}
    partitions = {row.partition for row in view.held_by if row.source == held_by.source}
    return Step(topic=view.topic, held_by=held_by, partitions=len(partitions), others=tuple(sorted(others)))


def _failing(board: Board, topic: str) -> SourceView | None:
    """Return the worst failing source of a topic and what leads to it; of equally bad ones, a job that has ended."""
    names, open_ = {topic}, [topic]
    while open_:
        view = board.topic(open_.pop())
        found = {name for row in view.sources() for name in row.inputs} - names if view is not None else set[str]()
        names |= found
        open_ += found
    rows = [row for view in board.topics() if view.topic in names for row in view.sources() if is_failure(row.verdict)]
    return max(rows, key=lambda row: (severity(row.verdict), row.cause is Cause.OUTLIVED), default=None)


def _input(board: Board, row: SourceView) -> str | None:
    """Return the topic that a source waits for, as a job or by alignment; ``None``: it holds its own topic itself."""
    if row.cause is Cause.ALIGNED:
        return row.waits_for
    drained = row.cause is Cause.SILENT and row.lags.local == 0
    if is_failure(row.verdict) and row.cause is not Cause.WAITS and not drained:
        return None
    if not row.inputs:
        return None
    views = {name: board.topic(name) for name in row.inputs}
    unread = [name for name, view in views.items() if view is None]
    if unread:
        named = None if row.holder is None else row.holder.topic
        return named if named in views else unread[0]
    return min((view for view in views.values() if view is not None), key=_order).topic


def _order(view: TopicView) -> tuple[bool, bool, int, str]:
    """Sort by what holds a job most: an unknown topic, then the lowest watermark, then idle and ended ones."""
    waited_for = view.state not in {State.IDLE, State.ENDED}
    return not waited_for, view.watermark is not None, view.watermark or 0, view.topic
