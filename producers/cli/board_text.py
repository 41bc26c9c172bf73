"""The board and the answer of ``why`` on a terminal: as text of any width, as plain lines, or as JSON."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from json import dumps
from typing import Final

import typer
from floodmark.producers.board.causes import Cause
from floodmark.producers.board.model import UNNAMED, Board, SourceView, Stage, State, TopicView
from floodmark.producers.board.source_history import Health, is_failure, severity
from floodmark.producers.board.why import Step, Why, trace
from floodmark.producers.cli.command_line import moment, quietly, span
from floodmark.producers.readers.chain import ChainReader
from floodmark.schemas.errors.base import printable, printable_lines
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typing_extensions import override

_STYLES: Final = {Health.OK: "green", Health.WARN: "yellow", None: "yellow"}
_WORDS: Final = (("all is well", "green"), ("stuck or failing", "bold red"), ("unknown", "yellow"))
_NARROW: Final = 72
_WIDE: Final = 100
_WIDEST: Final = 120
_ALL: Final = 150
_SHOWN: Final = 8
_LONG: Final = 60_000  # milliseconds of unfinished work
_LASTING: Final = {
    *(Cause.TWINS, Cause.ZOMBIE, Cause.RETIRED, Cause.UNCOUNTED, Cause.SECONDS, Cause.FUTURE, Cause.REWOUND)
}
"""For these causes, the time since the watermark last advanced means nothing."""


def _watermark(watermark: int | None, state: State, now: int) -> str:
    return str(state) if watermark is None else moment(watermark, now)


def watermark_of(topic: TopicView, now: int) -> str:
    """Return the watermark of a topic, or why it has none."""
    return _watermark(topic.watermark, topic.state, now) if topic.partitions else "no marks"


def verdict_text(verdict: Health | None) -> Text:
    """Return a verdict in its color; ``?``: unknown."""
    return Text("?" if verdict is None else str(verdict), style=_STYLES.get(verdict, "bold red"))


def place(row: SourceView) -> str:
    """Return a source as topic, partition and name."""
    return f"{row.topic}/{row.partition}/{row.source or UNNAMED}"


def place_of(step: Step) -> str:
    """Return the source that holds a topic, and in how many partitions; empty: there is none."""
    if step.held_by is None:
        return ""
    return place(step.held_by) + (f" ({step.partitions} partitions)" if step.partitions > 1 else "")


def others_of(step: Step, most: int = _SHOWN) -> str:
    """Return the other sources that hold a topic or fail; empty: there are none."""
    count, names = len(step.others), ", ".join(step.others[:most])
    more = ", ..." if count > most > 0 else ""
    text = f"{count} more hold it" if count > 1 else "1 more holds it"
    if step.held_by is not None and is_failure(step.held_by.verdict):
        text += " or fail" if count > 1 else " or fails"
    return f"{text}{names and ': '}{names}{more}" if count else ""


def distance(lag: int) -> str:
    """Return how far a watermark is from the clock."""
    return f"{span(-lag)} ahead of the clock" if lag < 0 else f"{span(lag)} behind the clock"


def _wall(lag: int | None) -> str:
    return f"{span(-lag)} ahead" if lag is not None and lag < 0 else span(lag)


def _since(row: SourceView | TopicView, now: int) -> str:
    if row.since is None:
        return "-"
    return f"{'' if row.since_exact else 'over '}{span(max(0, now - row.since))}"


def reason_of(row: SourceView, now: int) -> str:
    """Return why a source has a problem, and since when."""
    if row.cause in _LASTING:
        return row.reason
    if row.verdict is Health.STOP and row.last is not None:
        return f"{row.reason}, for {span(max(0, now - row.last))} (the last at {moment(row.last, now)})"
    if row.since is None:
        return row.reason
    exactly = f" (since {moment(row.since, now)})" if row.since_exact else ""
    return f"{row.reason}, for {_since(row, now)}{exactly}"


def held_by(board: Board, topic: TopicView) -> str:
    """Return the source or topic that a topic waits for, at the start of the chain."""
    last = trace(board, topic.topic).steps[-1]
    if last.held_by is None:
        return last.topic if last.unread else "-"
    return ", ".join(text for text in (place_of(last), others_of(last, 0)) if text)


def board_table(board: Board, width: int, *, every: bool = False) -> RenderableType:
    """Return the board as a table of topics, followed by the sources with a problem."""
    rows = [row for topic in board.topics() for row in topic.sources()]
    words, style = _WORDS[board.exit_status]
    if not board.answered:  # the note may be below the end of the screen
        words, style = "Kafka does not answer: this was read last", "yellow"
    head = Text.assemble((f"{moment(board.now, board.now)}  ", "bold"), (words, style))
    parts: list[RenderableType] = [head, _topics(board, width)]
    shown = [group for group in groups(rows) if every or group[0].verdict is not Health.OK]
    if shown:
        parts += ["", *(_row(group, board.now) for group in (shown if every else shown[:_SHOWN]))]
    if len(shown) > _SHOWN and not every:
        parts.append(Text(f"and {len(shown) - _SHOWN} more: --all shows them", "dim"))
    parts += [Text(f"{name}: {reason}", "yellow") for name, reason in board.unread]
    parts += [Text(note, "yellow") for note in board.notes]
    return Group(*parts)


def _topics(board: Board, width: int) -> Table:
    """Return the table of topics, with the columns that fit."""
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
    if width < _NARROW:
        return ("topic", "watermark", "wall lag", "verdict", "held by")
    if width < _WIDE:
        return ("topic", "watermark", "wall lag", "local", "verdict", "held by", "for")
    lags = ("wall lag", "local", "global") if width < _WIDEST else ("wall lag", "processing", "local", "global")
    components = ("input", "batch") if width >= _ALL else ()
    return ("stage", "topic", *components, "watermark", *lags, "state", "verdict", "held by", "for")


def _cells(board: Board, stage: Stage, topic: TopicView) -> dict[str, str | Text]:
    now, lags = board.now, topic.lags
    return {
        "stage": stage.name,
        "topic": topic.topic,
        "input": moment(topic.input_watermark, now),
        "batch": moment(topic.batch_watermark, now),
        "watermark": watermark_of(topic, now),
        "wall lag": _wall(lags.wall),
        "processing": _wall(lags.processing),
        "local": span(lags.local),
        "global": span(lags.root),
        "state": str(topic.state),
        "verdict": verdict_text(topic.verdict),
        "held by": held_by(board, topic),
        "for": _since(topic, now),
    }


def groups(rows: Iterable[SourceView]) -> list[list[SourceView]]:
    """Group sources that are the same in several partitions, the worst first."""
    found: defaultdict[tuple[object, ...], list[SourceView]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: (row.watermark is None, row.watermark)):
        found[row.topic, row.source, row.verdict, row.state, row.cause].append(row)
    return sorted(found.values(), key=lambda group: (-severity(group[0].verdict), places(group)))


def places(group: Sequence[SourceView]) -> str:
    """Return a group's source as topic, partitions and name."""
    numbers = [str(number) for number in sorted(row.partition for row in group)]
    more = f" +{len(numbers) - _SHOWN}" if len(numbers) > _SHOWN else ""
    return f"{group[0].topic}/{','.join(numbers[:_SHOWN])}{more}/{group[0].source or UNNAMED}"


def _row(group: Sequence[SourceView], now: int) -> Text:
    row = group[0]
    watermark = _watermark(row.watermark, row.state, now)
    gone = f" {row.state}" if row.watermark is not None and row.state in {State.IDLE, State.ENDED} else ""
    line = verdict_text(row.verdict).append(f"  {places(group)}  {watermark}{gone}", "default")
    return line.append(f": {reason_of(row, now)}", "default") if row.reason else line


def board_lines(board: Board) -> list[str]:
    """Return the board as plain lines, one for each topic."""
    lines = []
    for topic in board.topics():
        verdict = verdict_text(topic.verdict).plain
        line = f"{moment(board.now, board.now)} {topic.topic}: {verdict}, watermark {watermark_of(topic, board.now)}"
        line += f", {distance(topic.lags.wall)}" if topic.lags.wall is not None else ""
        held = next((row for row in topic.held_by if row.verdict is not Health.OK), None)
        lines.append(line if held is None else f"{line}; {place(held)}: {reason_of(held, board.now)}")
    return [*lines, *(f"{name}: not read: {reason}" for name, reason in board.unread), *board.notes]


def why_text(why: Why, now: int) -> RenderableType:
    """Return the way from a topic to its root cause: a line for each topic, then the cause and what to do."""
    if why.watermark is not None and why.state is not State.ENDED:
        reached = f"watermark {moment(why.watermark, now)} ({distance(now - why.watermark)})"
    else:
        reached = "no watermark" if why.state in {State.UNKNOWN, State.MISSING} else str(why.state)
    title = Text.assemble((why.topic, "bold"), f": {reached}")
    parts: list[RenderableType] = [title, *(_step(step, depth, now) for depth, step in enumerate(why.steps))]
    if why.cause is not None:
        reason = f": {reason_of(why.cause, now)}"
        parts += ["", Text.assemble(("cause  ", "bold"), (place(why.cause), "bold red"), reason)]
    elif why.exit_status == 0:
        lags = [step.held_by.lags for step in why.steps if step.held_by is not None]
        # The processing time of a job whose input is idle stands, and so does that of a source between two marks.
        behind = max((min(lag.processing or 0, lag.local or 0) for lag in lags), default=0)
        more = f"; processing is {span(behind)} behind: see floodmark catch-up" if behind >= _LONG else ""
        parts += ["", Text(f"nothing is stuck{more}", "green")]
    if why.advice:
        parts.append(Text.assemble(("do     ", "bold"), why.advice))
    return Group(*parts)


def _step(step: Step, depth: int, now: int) -> Text:
    line = Text("  " * depth + "<- " if depth else "")
    row = step.held_by
    if step.unread:
        return line.append(f"{step.topic}: could not be read: {step.unread}")
    if row is None:
        unmarked = "it is empty, or its last records have no marks"
        return line.append(f"{step.topic}: {unmarked if step.unmarked else 'no source holds it'}")
    line.append(f"{place_of(step)}  ").append_text(verdict_text(row.verdict))
    line.append(f"  {_watermark(row.watermark, row.state, now)}")
    line.append(f"  for {_since(row, now)}" if row.since is not None else "")
    if (lag := row.lags.processing) is not None:  # of the writer's clock, which may be ahead
        line.append(f"  processing {_wall(lag)}{' behind' if lag >= 0 else ''}")
    return line.append(f"; {others_of(step)}" if step.others else "")


@contextmanager
def reading(
    settings: dict[str, str],
    topics: list[str],
    tables: list[str],
    *,
    since: bool = False,
) -> Iterator[ChainReader]:
    """Read the chain; Ctrl-C and SIGTERM end the command, and no log disturbs the screen."""
    with quietly():
        with Console(stderr=True).status("reading") as status:
            reader = ChainReader(
                settings,
                topics,
                since=since,
                progress=lambda topic: status.update(f"reading {escape(printable(topic))}"),
                tables=tables,
            )
        with reader:
            yield reader


class _Screen(Console):
    """A console that prints names from marks neither as markup nor as control sequences."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False)

    @override
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)


def _console() -> Console:
    """Return the console for a board; without a terminal, it wraps no line, for `grep`."""
    console = _Screen()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 10_000
    return console


def show(found: Board, *, every: bool, json: bool) -> None:
    """Print the board once."""
    if json:
        typer.echo(dumps(found.as_json()))
        return
    console = _console()
    console.print(board_table(found, console.width, every=every))


def follow(reader: ChainReader, interval: float, *, every: bool, json: bool) -> None:
    """Print the board every ``interval`` seconds."""
    console = _Screen()
    if json or not console.is_terminal:
        while True:
            found = reader.board()
            typer.echo(dumps(found.as_json()) if json else "\n".join(map(printable, board_lines(found))))
            reader.poll(interval)
    table: RenderableType = ""
    try:
        with Live(console=console, auto_refresh=False, screen=True) as live:
            while True:
                table = board_table(reader.board(), console.width, every=every)
                live.update(table, refresh=True)
                reader.poll(interval)
    finally:
        console.print(table, end="")  # keeps the last board on the normal screen


def explain(found: Board, topic: str, *, json: bool) -> int:
    """Print why the watermark of a topic does not advance; return the exit status."""
    answer = trace(found, topic)
    if json:
        typer.echo(dumps(answer.as_json()))
    else:
        _console().print(why_text(answer, found.now))
    return answer.exit_status
