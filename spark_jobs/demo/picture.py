"""The demo's picture: the result, what a guess loses, and what each stage knows at each moment."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from floodmark.schemas.timestamps import to_datetime
from floodmark.spark_jobs.demo.outcome import Outcome
from floodmark.spark_jobs.demo.watch import Line
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

_Axes = Any  # matplotlib draws dates, and its types do not know them
_STYLE: Final[Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titleweight": "bold",
}
_BLUE: Final = "#1f6f8b"
_RED: Final = "#b5443c"
_PALE: Final = "#c9d6df"
_STAGES: Final = (_BLUE, "#c9722b", "#7a4988")


def draw(outcome: Outcome, lines: dict[str, Line], present: Line, began: float) -> None:
    """Write the picture, a PNG where the outcome says.

    Args:
        outcome: what the demo found.
        lines: the watermark of each topic, upstream first.
        present: the newest landing, the simulated present.
        began: when the sources came to their full pace, in seconds as the lines have them.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(10, 8), layout="constrained")
        axes = figure.subplot_mosaic([["days", "days"], ["stages", "wrong"]], width_ratios=[3, 2])
        _draw_days(axes["days"], outcome)
        _draw_stages(axes["stages"], lines, present, began)
        _draw_wrong(axes["wrong"], outcome)
        figure.savefig(Path(outcome.picture), dpi=130)


def _draw_days(axes: _Axes, outcome: Outcome) -> None:
    results = outcome.results
    days = [to_datetime(start) for start in results["window_start"]]
    axes.bar(days, results["waves"], width=timedelta(days=1), lw=0, color=_PALE)
    axes.set_ylabel("waves that ended on the day")
    axes.set_title(f"The result: {outcome.waves:,} departure waves of {outcome.flights:,} flights", loc="left")
    _date_ticks(axes, "x")


def _draw_stages(axes: _Axes, lines: dict[str, Line], present: Line, began: float) -> None:
    times, moments = _moments(present, began)
    axes.plot(times, moments, color="black", lw=1, ls=":", label="the present: the newest landing")
    for (topic, line), color in zip(lines.items(), _STAGES, strict=False):
        times, moments = _moments(line, began)
        axes.step(times, moments, where="post", color=color, lw=1.6, label=f"watermark of {topic}")
    axes.legend(loc="best", frameon=False, labelcolor="linecolor")  # where there is room depends on the machine
    axes.set_xlabel("seconds since both jobs run")
    axes.set_ylabel("event time")
    axes.set_title("Each stage knows up to when it is complete", loc="left")
    _date_ticks(axes, "y")


def _draw_wrong(axes: _Axes, outcome: Outcome) -> None:
    names = ["in band", *(f"withWatermark\n'{guess.guess}'" for guess in outcome.guesses)]
    waits = [f"{outcome.lag_hours:g} hours", *(guess.guess for guess in outcome.guesses)]
    share = outcome.differing_waves / max(1, outcome.waves)
    wrong = [share * 100, *(guess.share_wrong * 100 for guess in outcome.guesses)]
    colors = [_BLUE, *[_RED] * len(outcome.guesses)]
    places = range(len(names))
    axes.bar(places, wrong, color=colors, width=0.6)
    axes.set_xticks(places, [f"{name}\nwaits {wait}" for name, wait in zip(names, waits, strict=True)])
    for place, count in zip(places, wrong, strict=True):
        axes.annotate(f"{count:.0f} %", (place, count), xytext=(0, 3), textcoords="offset points", ha="center")
    axes.set_ylim(0, max(1, *wrong) * 1.12)
    tried = f" (guesses: first {outcome.guesses[0].days} days)" if outcome.guesses else ""
    axes.set_ylabel(f"wrong waves, %{tried}")
    axes.set_title("What a guess gets wrong", loc="left")


def _date_ticks(axes: _Axes, which: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    locator = AutoDateLocator(maxticks=8)  # type: ignore[no-untyped-call]  # matplotlib.dates has no types
    axis.set_major_locator(locator)
    axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]  # the same


def _moments(line: Line, began: float) -> tuple[list[float], list[datetime]]:
    """Return a line from a moment on, in seconds since then; it begins where it stood."""
    before = [watermark for seconds, watermark in line if seconds <= began][-1:]
    after = [(seconds - began, watermark) for seconds, watermark in line if seconds > began]
    shown = [*((0.0, watermark) for watermark in before), *after]
    return [seconds for seconds, _ in shown], [to_datetime(watermark) for _, watermark in shown]
