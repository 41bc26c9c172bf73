"""State and timers in Python, as users write them: windows by hand, and rows seen once."""

import json
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Spark's workers have no path to the tests


def _numbers(frames: Iterator[pd.DataFrame]) -> Iterator[tuple[int, int]]:
    for frame in frames:
        yield from zip(map(int, frame["ms"]), map(int, frame["n"]), strict=True)


def _frame(key: tuple[str, ...], ends: list[tuple[int, int]]) -> pd.DataFrame:
    times = pd.to_datetime([end for end, _ in ends], unit="ms")
    return pd.DataFrame({"k": [key[0]] * len(ends), "at": times, "n": [n for _, n in ends]})


def pandas_windows(width: int) -> Callable[..., Iterator[pd.DataFrame]]:
    """Return a function for ``applyInPandasWithState`` that sums in tumbling windows."""

    def run(key: tuple[str, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        open_ = {int(end): n for end, n in json.loads(state.get[0]).items()} if state.exists else {}
        for ms, n in () if state.hasTimedOut else _numbers(frames):
            end = ms // width * width + width
            open_[end] = open_.get(end, 0) + n
        watermark = state.getCurrentWatermarkMs()
        due = sorted((end, open_.pop(end)) for end in list(open_) if end <= watermark)
        if open_:
            state.update((json.dumps(open_),))
            state.setTimeoutTimestamp(min(open_) - 1)  # Spark fires once the watermark is past it, and not at it
        elif state.exists:
            state.remove()
        yield _frame(key, due)

    return run


class PandasWindows(StatefulProcessor):
    """Tumbling windows for ``transformWithStateInPandas``, each with a timer at its end."""

    def __init__(self, width: int) -> None:
        self.width = width

    def init(self, handle):
        self.handle = handle
        self.open = handle.getMapState("open", "ended BIGINT", "n BIGINT")

    def handleInputRows(self, key, rows, timerValues):  # noqa: ARG002, N802, N803  # Spark's names
        for ms, n in _numbers(rows):
            end = ms // self.width * self.width + self.width
            before = self.open.getValue((end,))[0] if self.open.containsKey((end,)) else 0
            self.open.updateValue((end,), (before + n,))
            self.handle.registerTimer(end)
        yield from ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):  # noqa: ARG002, N802, N803  # Spark's names
        end = expiredTimerInfo.getExpiryTimeInMs()
        n = self.open.getValue((end,))[0]
        self.open.removeKey((end,))
        yield _frame(key, [(end, n)])


class SeenOnce(StatefulProcessor):
    """Return each row once; a row that was seen is forgotten after an hour of the clock."""

    def init(self, handle):
        self.seen = handle.getMapState("seen", "ms BIGINT, n BIGINT", "once BOOLEAN", timedelta(hours=1).seconds * 1000)

    def handleInputRows(self, key, rows, timerValues):  # noqa: ARG002, N802, N803  # Spark's names
        new = []
        for row in _numbers(rows):
            if not self.seen.containsKey(row):
                self.seen.updateValue(row, (True,))
                new.append(row)
        yield _frame(key, new)
