"""The demo's output: its progress; at its end a table, a summary and a picture."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from floodmark.producers.cli.board_text import held_by, verdict_text, watermark_of
from floodmark.schemas.timestamps import to_datetime
from floodmark.spark_jobs.demo.outcome import Outcome
from floodmark.spark_jobs.demo.run import Line, Moment, Watch
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

_HOUR: Final = 3_600_000
_PLAIN_INTERVAL: Final = 5.0
_EDGE: Final = 5
_Axes = Any  # matplotlib draws dates, and its types do not know them
_STYLE: Final[Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "bold"}
_BLUE: Final = "#1f6f8b"
_RED: Final = "#b5443c"
_STAGES: Final = (_BLUE, "#c9722b", "#7a4988")


@contextmanager
def progress(console: Console) -> Iterator[Callable[[Moment], None]]:
    """Show moments: live on a terminal, a line every few seconds elsewhere."""
    if not console.is_terminal:
        yield _plain(console)
        return
    began = time.monotonic()
    with Live(console=console, refresh_per_second=5, transient=True) as live:
        yield lambda moment: live.update(_panel(moment, time.monotonic() - began))


def _plain(console: Console) -> Callable[[Moment], None]:
    began = time.monotonic()
    printed, doing = -_PLAIN_INTERVAL, ""

    def show(moment: Moment) -> None:
        nonlocal printed, doing
        now = time.monotonic()
        if moment.doing == doing and now - printed < _PLAIN_INTERVAL:
            return
        printed, doing = now, moment.doing
        stages = ", ".join(f"{topic} {count:,}" for topic, count in moment.counts.items())
        text = f"{now - began:5.0f} s  {moment.doing}" + (f": {stages}" if stages else "")
        text += f"; complete: {_day(moment.newest)}" if moment.newest else ""
        console.print(text, highlight=False, soft_wrap=True)

    return show


def _panel(moment: Moment, seconds: float) -> Group:
    title = Text(f"{seconds:4.0f} s  {moment.doing}", style="bold")
    if moment.board is None or not any(moment.counts.values()):
        return Group(title)
    right = (Column(name, justify="right") for name in ("records", "watermark", "behind"))
    table = Table("topic", *right, "verdict", "held by", box=None, padding=(0, 1))
    for topic in filter(None, map(moment.board.topic, moment.counts)):
        count, watermark = f"{moment.counts[topic.topic]:,}", watermark_of(topic, moment.board.now)
        behind = "" if topic.watermark is None else f"{max(0, moment.present - topic.watermark) / _HOUR:,.1f} h"
        verdict, held = verdict_text(topic.verdict), held_by(moment.board, topic)
        table.add_row(topic.topic, count, watermark, behind, verdict, held)
    flights = next(iter(moment.counts.values()))
    done = Padding(ProgressBar(total=moment.total, completed=flights, width=60), 0)  # a bar alone ends no line
    newest = "" if moment.newest is None else f"complete: {_day(moment.newest)}"
    return Group(title, done, table, Text(newest, style="green"))


def _day(row: Mapping[str, Any]) -> str:
    """Return a result in words."""
    counts = f"{row['waves']:,} waves of {row['flights']:,} flights, the largest of {row['largest']:,}"
    return f"{to_datetime(row['window_start']):%Y-%m-%d}, {counts}"


def results_table(outcome: Outcome) -> Table:
    """Return a table of the results: of a long run only the first and last windows."""
    numbers = (Column(name, justify="right") for name in ("waves", "flights", "largest", "mean length"))
    table = Table("day", *numbers, title="Departure waves per day", title_justify="left", box=None, padding=(0, 2))
    rows = []
    for day in outcome.results.to_dict("records"):
        counts = (f"{day[name]:,}" for name in ("waves", "flights", "largest"))
        rows.append((f"{to_datetime(day['window_start']):%Y-%m-%d}", *counts, f"{day['mean_length'] / _HOUR:.2f} h"))
    if len(rows) > 2 * _EDGE + 1:
        rows[_EDGE:-_EDGE] = [("...", "", "", "", "")]
    for row in rows:
        table.add_row(*row)
    return table


def account(console: Console, outcome: Outcome) -> None:
    """Print the outcome."""
    write = partial(console.print, highlight=False, soft_wrap=True)  # do not wrap lines in a file
    console.print(results_table(outcome))
    console.print()
    out = f"{outcome.cancelled:,} cancelled and {outcome.lost:,} diverted or lost, left out on both sides"
    write(f"Input      {outcome.flights:,} flights of {_first(outcome.days)} ({out})")
    if outcome.equal:
        verdict = "[green]equal row by row[/green]"
    else:
        verdict = f"[red]{outcome.differing_waves} waves, {outcome.differing_windows} windows differ[/red]"
    sizes = f"{outcome.waves:,} waves, {outcome.windows:,} windows"
    write(f"Batch      {verdict} ({sizes}), {outcome.late} late rows")
    if outcome.rows_read is not None:
        scans = "; ".join(
            f"{topic}: {rows:,} rows read of {outcome.records[topic]:,} records"
            for topic, rows in outcome.rows_read.items()
        )
        write(f"Scan       {scans}")
    if outcome.crashes:
        write(f"Crashes    {outcome.crashes} jobs killed in the middle and started again")
    in_band = f"{outcome.late} rows dropped, {outcome.differing_waves} waves wrong"
    write(f"In band    {in_band}, {outcome.lag_hours:g} hours behind (median: the oldest flight in the air)")
    for guess in outcome.guesses:
        dropped = f"{guess.dropped:,} of {guess.flights:,} rows dropped"
        wrong_waves = f"{guess.wrong:,} of {guess.waves:,} waves wrong"
        loss = f"{dropped}, {wrong_waves}, {guess.guess} behind"
        write(f"Guess      withWatermark('{guess.guess}') on {_first(guess.days)}: {loss}")
    write(f"Picture    {outcome.picture}")
    write(f"Took       {outcome.seconds:g} s")
    console.print()
    write(f"[bold]{conclusion(outcome)}[/bold]")
    if outcome.table is not None:
        days = f"{outcome.table.rows:,} days, complete until {outcome.table.complete_until}"
        write(f"[bold]pyiceberg reads {days}, in the Iceberg table {outcome.table.folder}.[/bold]")


def conclusion(outcome: Outcome) -> str:
    """Return one sentence on what the demo has shown."""
    if not outcome.equal:
        return "The stream does NOT equal the batch computation: this is a fault of Floodmark, please report it."
    kills = f", although {outcome.crashes} jobs were killed on the way" if outcome.crashes else ""
    sentence = f"With watermarks in the topics, two Spark jobs computed what a batch job computes, row by row{kills}"
    worst = max(outcome.guesses, key=lambda guess: guess.share_wrong, default=None)
    if worst is None or worst.wrong == 0:
        return f"{sentence}."
    loss = f"dropped {worst.share_dropped:.0%} of the flights and got {worst.share_wrong:.0%} of the waves wrong"
    guess = f"withWatermark('{worst.guess}') on {_first(worst.days)} of the same topic"
    return f"{sentence}; {guess} {loss}, without an error."


def _first(days: int) -> str:
    return "the first day" if days == 1 else f"the first {days} days"


def draw(outcome: Outcome, watch: Watch) -> None:
    """Write the picture, a PNG: what a guess gets wrong, and the watermark of each topic over time."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        wrong, stages = figure.subplots(1, 2, width_ratios=[2, 3])
        _draw_wrong(wrong, outcome)
        _draw_stages(stages, watch)
        figure.savefig(Path(outcome.picture), dpi=130)


def _draw_stages(axes: _Axes, watch: Watch) -> None:
    times, moments = _moments(watch.present, watch.started)
    axes.plot(times, moments, color="black", lw=1, ls=":", label="the clock: the newest landing")
    for (topic, line), color in zip(watch.lines.items(), _STAGES, strict=False):
        times, moments = _moments(line, watch.started)
        axes.step(times, moments, where="post", color=color, lw=1.6, label=f"watermark of {topic}")
    axes.legend(loc="best", frameon=False, labelcolor="linecolor")  # where there is room depends on the machine
    axes.set_xlabel("seconds since the start of both jobs")
    axes.set_ylabel("event time")
    axes.set_title("Watermarks: up to when each topic is complete", loc="left")
    locator = AutoDateLocator(minticks=3, maxticks=8)  # type: ignore[no-untyped-call]  # matplotlib.dates has no types
    axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # the same


def _draw_wrong(axes: _Axes, outcome: Outcome) -> None:
    names = ["in band", *(f"withWatermark\n'{guess.guess}'" for guess in outcome.guesses)]
    waits = [f"{outcome.lag_hours:g} hours", *(guess.guess for guess in outcome.guesses)]
    share = outcome.differing_waves / max(1, outcome.waves)
    wrong = [share * 100, *(guess.share_wrong * 100 for guess in outcome.guesses)]
    colors = [_BLUE, *[_RED] * len(outcome.guesses)]
    places = range(len(names))
    axes.bar(places, wrong, color=colors, width=0.6)
    axes.set_xticks(places, [f"{name}\n{wait} behind" for name, wait in zip(names, waits, strict=True)])
    for place, count in zip(places, wrong, strict=True):
        axes.annotate(f"{count:.0f} %", (place, count), xytext=(0, 3), textcoords="offset points", ha="center")
    axes.set_ylim(0, max(1, *wrong) * 1.12)
    tried = f" (guesses: {_first(outcome.guesses[0].days)})" if outcome.guesses else ""
    axes.set_ylabel(f"wrong results, %{tried}")
    axes.set_title("Wrong results: marks in band, and guesses", loc="left")


def _moments(line: Line, began: float) -> tuple[list[float], list[datetime]]:
    """Return a line from a time on, in seconds since then, which begins with the value at that time."""
    before = [watermark for seconds, watermark in line if seconds <= began][-1:]
    after = [(seconds - began, watermark) for seconds, watermark in line if seconds > began]
    shown = [*((0.0, watermark) for watermark in before), *after]
    return [seconds for seconds, _ in shown], [to_datetime(watermark) for _, watermark in shown]
