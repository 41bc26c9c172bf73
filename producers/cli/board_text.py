"""The board and the way to a root cause as people read them: in a terminal of any width, and as plain lines."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from floodmark.producers.board.history import Health, severity
from floodmark.producers.board.view import Board, SourceView, Stage, State, TopicView
from floodmark.producers.board.why import Step, Why, trace
from floodmark.producers.cli.times import moment, span
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_STYLES: Final = {Health.OK: "green", Health.WARN: "yellow", None: "yellow"}
_WORDS: Final = (("all is well", "green"), ("stuck or failing", "bold red"), ("cannot tell", "yellow"))
_NARROW: Final = 72
_WIDE: Final = 100
_WIDEST: Final = 120
_SHOWN: Final = 8


def _watermark(watermark: int | None, state: State, now: int) -> str:
    return str(state) if watermark is None else moment(watermark, now)


def watermark_of(topic: TopicView, now: int) -> str:
    """Return the watermark of a topic; where it has none, the state says why."""
    return _watermark(topic.watermark, topic.state, now) if topic.partitions else "no marks"


def verdict_text(verdict: Health | None) -> Text:
    """Return a verdict in its color; ``?``: it cannot be told."""
    return Text("?" if verdict is None else str(verdict), style=_STYLES.get(verdict, "bold red"))


def place(row: SourceView) -> str:
    """Return where a source stands: topic, partition and name."""
    return f"{row.topic}/{row.partition}/{row.source or '(no name)'}"


def _since(row: SourceView | TopicView, now: int) -> str:
    if row.since is None:
        return "-"
    return f"{'' if row.since_exact else 'over '}{span(max(0, now - row.since))}"


def reason_of(row: SourceView, now: int) -> str:
    """Return why a source is not well, and for how long."""
    if row.verdict is Health.STOP and row.last is not None:
        return f"{row.reason}, for {span(max(0, now - row.last))} (the last at {moment(row.last, now)})"
    if row.since is None:
        return row.reason
    exactly = f" (since {moment(row.since, now)})" if row.since_exact else ""
    return f"{row.reason}, for {_since(row, now)}{exactly}"


def held_by(board: Board, topic: TopicView) -> str:
    """Return where the way from a topic to what holds it ends."""
    last = trace(board, topic.topic).steps[-1]
    if last.held_by is None:
        return last.topic if last.unread else "-"
    return place(last.held_by) + (f" +{last.more}" if last.more else "")


def board_table(board: Board, width: int, *, every: bool = False) -> RenderableType:
    """Return the board as a table: a row for each topic, then the sources that are not well.

    Args:
        board: what to show.
        width: of the terminal; narrow ones get fewer columns.
        every: all sources, not only those that are not well.
    """
    rows = [row for topic in board.topics() for row in topic.sources()]
    words, style = _WORDS[board.exit_status]
    head = Text.assemble((f"{moment(board.now, board.now)}  ", "bold"), (words, style))
    parts: list[RenderableType] = [head, _topics(board, width)]
    shown = [group for group in _groups(rows) if every or group[0].verdict is not Health.OK]
    if shown:
        parts += ["", *(_row(group, board.now) for group in (shown if every else shown[:_SHOWN]))]
    if len(shown) > _SHOWN and not every:
        parts.append(Text(f"and {len(shown) - _SHOWN} more: --all shows them", "dim"))
    parts += [Text(f"{name}: {reason}", "yellow") for name, reason in board.unread]
    parts += [Text(note, "yellow") for note in board.notes]
    return Group(*parts)


def _topics(board: Board, width: int) -> Table:
    """Return the table of topics, with as many columns as there is room for."""
    columns = _columns(width)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        lag = name in {"wall lag", "processing", "local", "global"}
        table.add_column(name, justify="right" if lag else "left", no_wrap=lag or name == "verdict", overflow="fold")
    for stage in board.stages:
        for topic in stage.topics:
            cells = _cells(board, stage, topic)
            table.add_row(*(cells[name] for name in columns))
    for name, _ in board.unread:
        cells = {"topic": name, "watermark": "not read", "verdict": verdict_text(None)}
        table.add_row(*(cells.get(column, "-") for column in columns))
    return table


def _columns(width: int) -> tuple[str, ...]:
    """Return the columns that there is room for."""
    if width < _NARROW:
        return ("topic", "watermark", "wall lag", "verdict", "held by")
    if width < _WIDE:
        return ("topic", "watermark", "wall lag", "local", "verdict", "held by", "for")
    lags = ("wall lag", "local", "global") if width < _WIDEST else ("wall lag", "processing", "local", "global")
    return ("stage", "topic", "watermark", *lags, "state", "verdict", "held by", "for")


def _cells(board: Board, stage: Stage, topic: TopicView) -> dict[str, str | Text]:
    """Return what stands in each column of a topic's row."""
    now, lags = board.now, topic.lags
    return {
        "stage": stage.name,
        "topic": topic.topic,
        "watermark": watermark_of(topic, now),
        "wall lag": span(lags.wall),
        "processing": span(lags.processing),
        "local": span(lags.local),
        "global": span(lags.root),
        "state": str(topic.state),
        "verdict": verdict_text(topic.verdict),
        "held by": held_by(board, topic),
        "for": _since(topic, now),
    }


def _groups(rows: Iterable[SourceView]) -> list[list[SourceView]]:
    """Return the sources with what is the same in several partitions together, the worst first."""
    found: defaultdict[tuple[object, ...], list[SourceView]] = defaultdict(list)
    for row in rows:
        found[row.topic, row.source, row.verdict, row.state, row.watermark, row.reason].append(row)
    return sorted(found.values(), key=lambda group: -severity(group[0].verdict))


def _row(group: Sequence[SourceView], now: int) -> Text:
    row = group[0]
    numbers = [str(one.partition) for one in group]
    more = f" +{len(numbers) - _SHOWN}" if len(numbers) > _SHOWN else ""
    where = f"{row.topic}/{','.join(numbers[:_SHOWN])}{more}/{row.source or '(no name)'}"
    line = verdict_text(row.verdict).append(f"  {where}  {_watermark(row.watermark, row.state, now)}", "default")
    return line.append(f": {reason_of(row, now)}", "default") if row.reason else line


def board_lines(board: Board) -> list[str]:
    """Return the board as plain lines: one for each topic."""
    lines = []
    for topic in board.topics():
        verdict = verdict_text(topic.verdict).plain
        line = f"{moment(board.now, board.now)} {topic.topic}: {verdict}, watermark {watermark_of(topic, board.now)}"
        line += f", {span(topic.lags.wall)} behind the clock" if topic.lags.wall is not None else ""
        held = next((row for row in topic.held_by if row.verdict is not Health.OK), None)
        lines.append(line if held is None else f"{line}; {place(held)}: {reason_of(held, board.now)}")
    return [*lines, *(f"{name}: not read: {reason}" for name, reason in board.unread), *board.notes]


def why_text(why: Why, now: int) -> RenderableType:
    """Return the way from a topic to its root cause: a line for each topic, then the cause and what to do."""
    title = Text.assemble((why.topic, "bold"), f": watermark {_watermark(why.watermark, why.state, now)}")
    title.append(f" ({span(now - why.watermark)} behind the clock)" if why.watermark is not None else "")
    parts: list[RenderableType] = [title, *(_step(step, depth, now) for depth, step in enumerate(why.steps))]
    if why.cause is not None:
        parts += [
            "",
            Text.assemble(("cause  ", "bold"), (place(why.cause), "bold red"), f": {reason_of(why.cause, now)}"),
        ]
    elif why.exit_status == 0:
        parts += ["", Text("nothing is stuck", "green")]
    if why.advice:
        parts.append(Text.assemble(("do     ", "bold"), why.advice))
    return Group(*parts)


def _step(step: Step, depth: int, now: int) -> Text:
    line = Text("  " * depth + "<- " if depth else "")
    row = step.held_by
    if step.unread:
        return line.append(f"{step.topic}: could not be read: {step.unread}")
    if row is None:
        unmarked = "no watermark record was seen near its end"
        return line.append(f"{step.topic}: {unmarked if step.unmarked else 'no source holds it'}")
    line.append(f"{place(row)}  ").append_text(verdict_text(row.verdict))
    line.append(f"  {_watermark(row.watermark, row.state, now)}")
    line.append(f"  for {_since(row, now)}" if row.since is not None else "")
    line.append(f"  processing {span(row.lags.processing)} behind" if row.lags.processing is not None else "")
    return line.append(f"  and {step.more} more" if step.more else "")
