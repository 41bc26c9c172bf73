"""Draw `spark_jobs/stamps.svg`: when each stage of a chain closes a window, by the stamp of its results.

PYTHONPATH=tests python tests/benchmarks/stamps.py
"""

from pathlib import Path

from floodmark.spark_jobs.progress.watermarks import Bound, Stamp
from floodmark.spark_jobs.queries.plan import Windows

PICTURE = Path(__file__).parents[2] / "spark_jobs" / "stamps.svg"
WINDOWS = Windows(slide=5_000_000, start=0, width=10_000_000)
STAMPS = {"end": 0, "start": WINDOWS.width}
STAGES = 3
END = 20_000
"""The end of the window, milliseconds."""
_LEFT, _TOP, _SECOND, _LINE = 150, 34, 17, 26


def closes(before: int, stage: int) -> int:
    """Return the T after which a stage closes the window, if each stage stamps ``before`` microseconds early."""
    stamp = Stamp([Bound(before=before, is_end=True, windows=WINDOWS)])

    def watermark(at: int) -> int:
        for _ in range(1, stage):
            at = stamp.output(at, "after") or 0
        return at

    return next(at for at in range(END, 10 * END) if watermark(at + 1) > END)


def drawn() -> str:
    """Return the picture."""
    lines = []
    for row, (name, stage) in enumerate((name, stage) for name in STAMPS for stage in range(1, STAGES + 1)):
        at, y = closes(STAMPS[name], stage) / 1_000, _TOP + row * _LINE
        lines += [
            f'<text x="8" y="{y + 15}">stamped {name}, stage {stage}</text>',
            f'<rect x="{_x(10)}" y="{y}" width="{_x(20) - _x(10)}" height="20" fill="#4c9f70"/>',
            f'<rect x="{_x(20)}" y="{y}" width="{_x(at) - _x(20)}" height="20" fill="#e0a458"/>',
            f'<text x="{_x(at) + 6}" y="{y + 15}">closes at T &gt; {at:g}</text>',
        ]
    bottom = _TOP + len(STAMPS) * STAGES * _LINE
    for second in range(10, 45, 5):
        lines += [
            f'<line x1="{_x(second)}" x2="{_x(second)}" y1="{_TOP - 6}" y2="{bottom}" stroke="#8888" />',
            f'<text x="{_x(second)}" y="{_TOP - 12}" text-anchor="middle">{second}</text>',
        ]
    style = 'font-family="sans-serif" font-size="12" fill="#777"'
    size = f'width="{_x(49)}" height="{bottom + 6}"'
    text = "\n".join(['<text x="8" y="22">T, seconds</text>', *lines])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n{text}\n</svg>\n'


def _x(second: float) -> int:
    return round(_LEFT + (second - 10) * _SECOND)


if __name__ == "__main__":
    PICTURE.write_text(drawn(), encoding="utf-8")
