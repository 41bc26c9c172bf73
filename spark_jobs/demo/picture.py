"""The demo's picture: results over event time, and the watermark of every stage against processing time."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import matplotlib as mpl
import pandas as pd
from floodmark.schemas.timestamps import to_datetime
from floodmark.spark_jobs.demo.watch import Line
from matplotlib.figure import Figure

_HOUR: Final = 3_600_000
_BLUE: Final = "#1f6f8b"
_STAGES: Final = ("#1f6f8b", "#e08e45", "#7a4988")


def draw(results: pd.DataFrame, lines: dict[str, Line], present: Line, path: Path) -> None:
    """Write the picture.

    Args:
        results: the means, as `batch.means` returns them.
        lines: the watermark of each topic, upstream first.
        present: the newest landing, the simulated present.
        path: a PNG.
    """
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 7), layout="constrained")
        above, below = figure.subplots(2, 1)
        days = [to_datetime(start) for start in results["window_start"]]
        above.bar(
            days,
            results["sessions"],
            width=timedelta(days=1),
            lw=0,
            color="#c9d6df",
            label="sessions that ended (left)",
        )
        above.set_ylabel("sessions per day")
        above.set_title("Aircraft sessions per day: how many ended, and their mean length", loc="left")
        right = above.twinx()
        right.plot(days, results["mean_length"] / _HOUR, color=_BLUE, lw=1.4, label="mean length (right)")
        right.set_ylabel("hours from first to last departure")
        right.set_ylim(bottom=0)
        handles = [*above.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
        above.legend(handles=handles, loc="lower center", frameon=False, ncols=2)

        began = present[0][0]
        times, moments = _moments(present, began)
        below.plot(times, moments, color="black", lw=1, ls=":", label="newest landing (the present)")
        for (topic, line), color in zip(lines.items(), _STAGES, strict=False):
            times, moments = _moments(line, began)
            below.step(times, moments, where="post", color=color, lw=1.6, label=f"watermark of {topic}")
        below.set_xlabel("seconds since the first landing (processing time)")
        below.set_ylabel("event time")
        below.set_title("Watermarks: what each stage knows to be complete", loc="left")
        below.legend(loc="upper left", frameon=False)
        figure.savefig(path, dpi=130)


def _moments(line: Line, began: float) -> tuple[list[float], list[datetime]]:
    """Return a line from the first landing on, when the jobs are warm and the clocks run."""
    return [max(0.0, seconds - began) for seconds, _ in line], [to_datetime(watermark) for _, watermark in line]
