"""Draw `spark_jobs/examples/session_means.svg` from the records of a run of that example.

As figures 3-8 and 3-9 of "Streaming Systems": results and watermarks of each stage, in event time and in processing
time.  It takes two minutes: `PYTHONPATH=tests python tests/benchmarks/session_pictures.py`.
"""

import json
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl
from floodmark.producers import Data, EmbeddedKafka, Mark, Observer
from floodmark.schemas import END_OF_TIME, Status
from floodmark.spark_jobs.examples import session_means as book
from matplotlib.figure import Figure
from support.harness import until

PICTURE = Path(book.__file__).with_suffix(".svg")
COLORS = {"mobile": "#c2410c", "console": "#1d4ed8"}
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "same",
}
_PAPER = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.5}
"""The background of a text: lines do not cross it."""
_LAST = 690
"""Where lines end that have ended, in seconds since noon."""

Line = list[tuple[float, float]]


def records(config: dict[str, Any]) -> list[Data | Mark]:
    """Read all topics to their ends, in the order of Kafka's timestamps."""
    with Observer(config, list(book.TOPICS)) as observer:
        found = []

        def ended():
            found.extend(observer.poll())
            return all(tracker.advance() == END_OF_TIME for tracker in observer.trackers.values())

        until(ended, "the end of all topics")
    return sorted(found, key=lambda record: record.log_time)


def since_noon(milliseconds: float) -> float:
    """Return seconds."""
    return min(_LAST, milliseconds / 1000 - book.NOON.timestamp())


class Run:
    """What stands in the topics: results and watermarks, with the seconds since the first record."""

    def __init__(self, found: list[Data | Mark]) -> None:
        self.rows: dict[str, list[tuple[float, dict[str, Any]]]] = {topic: [] for topic in book.TOPICS}
        self.lines: dict[str, Line] = {topic: [] for topic in book.TOPICS}
        partitions: dict[str, dict[int, int]] = {topic: {} for topic in book.TOPICS}
        for record in found:
            seconds = (record.log_time - found[0].log_time) / 1000
            if isinstance(record, Data):
                self.rows[record.topic].append((seconds, json.loads(record.value)))
                continue
            mark, known = record.record, partitions[record.topic]
            known[record.partition] = END_OF_TIME if mark.status is Status.ENDED else mark.watermark or 0
            if len(known) == book.TOPICS[record.topic]:
                self.lines[record.topic].append((since_noon(min(known.values())), seconds))


def time_of(row: dict[str, Any]) -> float:
    """Return the event time of a row, in seconds since noon."""
    return datetime.fromisoformat(row["at"]).timestamp() - book.NOON.timestamp()


def least(one: Line, other: Line) -> Line:
    """Return the lower of two watermarks at each moment."""
    now, found = {}, []
    for seconds, name, watermark in sorted([(y, 0, x) for x, y in one] + [(y, 1, x) for x, y in other]):
        now[name] = watermark
        if len(now) == 2:
            found.append((min(now.values()), seconds))
    return found


def draw_line(axes: Any, line: Line, **style: Any) -> None:
    """Draw a watermark; event time is on the x axis, so a step goes up first."""
    shown = [(x, y) for x, y in line if x > -60]
    axes.step([x for x, _ in shown], [y for _, y in shown], where="pre", **style)


def draw(run: Run) -> None:
    """Write the picture: a panel for each job."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.4), layout="constrained")
        *inputs, means = figure.subplots(1, 3, sharex=True, sharey=True)
        for axes, platform in zip(inputs, book.SCORES, strict=True):
            out = f"{platform}-sessions"
            scores = run.rows[platform]
            axes.plot([time_of(row) for _, row in scores], [y for y, _ in scores], "k.", label="score")
            draw_job(axes, run.lines[platform], run.lines[out], COLORS[platform])
            results = [(y, time_of(row) - 60 - row["seconds"], time_of(row), row) for y, row in run.rows[out]]
            draw_results(axes, results, COLORS[platform])
            axes.set_title(f"Sessions of {platform}", loc="left")
            draw_line(means, run.lines[out], color=COLORS[platform], lw=1.4, ls=":", label=f"output of {platform}")
        draw_job(means, least(*(run.lines[f"{name}-sessions"] for name in book.SCORES)), run.lines["means"], "#15803d")
        results = [(y, time_of(row) - 120, time_of(row), row) for y, row in run.rows["means"]]
        draw_results(means, results, "#15803d")
        means.set_title("Mean length: the minimum of both", loc="left")
        inputs[0].set_ylabel("processing time, seconds")
        for axes in (*inputs, means):
            axes.set_xlabel("event time")
            axes.set_xticks(range(0, 661, 120), [f"12:{minute:02}" for minute in range(0, 12, 2)])
            axes.legend(frameon=False, loc="upper left", fontsize=8)
        figure.savefig(PICTURE, metadata={"Date": None})


def draw_job(axes: Any, before: Line, after: Line, color: str) -> None:
    """Draw the watermarks of a job."""
    draw_line(axes, before, color=color, lw=1.3, label="input watermark")
    draw_line(axes, after, color=color, lw=1.3, ls="--", label="output watermark")


def draw_results(axes: Any, results: list[tuple[float, float, float, Any]], color: str) -> None:
    """Draw each result from its begin to its end, when it came out; those of one batch beneath each other."""
    last, lower = float("-inf"), 0
    for seconds, begin, end, row in sorted(results, key=lambda result: result[0]):
        lower = lower + 7 if seconds - last < 1 else 0
        last = seconds
        axes.plot([begin, end], [seconds - lower] * 2, color=color, lw=5, alpha=0.35, solid_capstyle="butt")
        text = f"{row.get('user', '')} {row['seconds']:g} s"
        place = {"xytext": (0, 5), "textcoords": "offset points", "zorder": 3}
        axes.annotate(text.strip(), (begin, seconds - lower), fontsize=8, bbox=_PAPER, **place)


def main() -> None:
    """Run the example, and draw."""
    with TemporaryDirectory() as folder, EmbeddedKafka(Path(folder, "kafka")) as kafka:
        book.run(kafka, Path(folder))
        draw(Run(records(kafka.config)))


if __name__ == "__main__":
    main()
