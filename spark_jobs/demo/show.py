"""What the demo prints: progress while it runs, a table and a summary at its end."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from floodmark.producers.cli.board_text import held_by, verdict_text, watermark_of
from floodmark.schemas.timestamps import to_datetime
from floodmark.spark_jobs.demo.outcome import Outcome
from floodmark.spark_jobs.demo.run import Moment
from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

_HOUR: Final = 3_600_000
_PLAIN_INTERVAL: Final = 5.0
_EDGE: Final = 5


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
    done = Padding(ProgressBar(total=moment.total, completed=flights, width=60), 0)  # a bar alone does not end its line
    newest = "" if moment.newest is None else f"complete: {_day(moment.newest)}"
    return Group(title, done, table, Text(newest, style="green"))


def _day(row: Mapping[str, Any]) -> str:
    """Return a result in words."""
    counts = f"{row['waves']:,} waves of {row['flights']:,} flights, the largest of {row['largest']:,}"
    return f"{to_datetime(row['window_start']):%Y-%m-%d}, {counts}"


def results_table(outcome: Outcome) -> Table:
    """Return the results: all windows of a short run, the first and last ones of a long one."""
    numbers = (Column(name, justify="right") for name in ("waves", "flights", "largest", "mean length"))
    table = Table("day", *numbers, title="Departure waves per day", title_justify="left", box=None, padding=(0, 2))
    rows = [
        (
            f"{to_datetime(day['window_start']):%Y-%m-%d}",
            f"{day['waves']:,}",
            f"{day['flights']:,}",
            f"{day['largest']:,}",
            f"{day['mean_length'] / _HOUR:.2f} h",
        )
        for day in outcome.results.to_dict("records")
    ]
    if len(rows) > 2 * _EDGE + 1:
        rows[_EDGE:-_EDGE] = [("...", "", "", "", "")]
    for row in rows:
        table.add_row(*row)
    return table


def account(console: Console, outcome: Outcome) -> None:
    """Print the outcome."""
    write = partial(console.print, highlight=False, soft_wrap=True)  # a file has no width
    console.print(results_table(outcome))
    console.print()
    out = f"{outcome.cancelled:,} cancelled and {outcome.lost:,} diverted or lost, left out on both sides"
    write(f"Input      {outcome.flights:,} flights of {outcome.days} days ({out})")
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
    wrong = outcome.differing_waves
    loss = f"{outcome.late} rows dropped, {wrong} waves wrong"
    write(f"In band    {loss}, {outcome.lag_hours:g} hours behind (median: the oldest flight in the air)")
    for guess in outcome.guesses:
        dropped = f"{guess.dropped:,} of {guess.flights:,} rows dropped"
        wrong_waves = f"{guess.wrong:,} of {guess.waves:,} waves wrong"
        said = f"{dropped}, {wrong_waves}, {guess.guess} behind"
        write(f"Guess      withWatermark('{guess.guess}') on {_first(guess.days)}: {said}")
    write(f"Picture    {outcome.picture}")
    write(f"Took       {outcome.seconds:g} s")
    console.print()
    write(f"[bold]{conclusion(outcome)}[/bold]")


def conclusion(outcome: Outcome) -> str:
    """Say in one sentence what was shown."""
    if not outcome.equal:
        return "The stream does NOT equal the batch computation: this is a fault of Floodmark, please report it."
    kills = f", although {outcome.crashes} jobs were killed on the way" if outcome.crashes else ""
    sentence = f"With watermarks in the topics, two Spark jobs computed what a batch job computes, row by row{kills}"
    if not outcome.guesses:
        return f"{sentence}."
    worst = max(outcome.guesses, key=lambda guess: guess.share_wrong)
    if worst.wrong == 0:
        return f"{sentence}."
    loss = f"dropped {worst.share_dropped:.0%} of the flights and got {worst.share_wrong:.0%} of the waves wrong"
    return (
        f"{sentence}; withWatermark('{worst.guess}') on {_first(worst.days)} of the same topic {loss}, without a word."
    )


def _first(days: int) -> str:
    return "the first day" if days == 1 else f"the first {days} days"
