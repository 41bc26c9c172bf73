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


def _frame(key: tuple[str, ...], ends: list[tuple[int, int]]) -> pd.DataFrame:
    times = pd.to_datetime([end for end, _ in ends], unit="ms")
    return pd.DataFrame({"k": [key[0]] * len(ends), "at": times, "n": [n for _, n in ends]})


def pandas_windows(width: int) -> Callable[..., Iterator[pd.DataFrame]]:
    """Return a function for ``applyInPandasWithState`` that sums in tumbling windows."""

    def run(key: tuple[str, ...], frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        open_ = {int(end): n for end, n in json.loads(state.get[0]).items()} if state.exists else {}
        if not state.hasTimedOut:
            for frame in frames:
                for ms, n in zip(frame["ms"], frame["n"], strict=True):
                    end = int(ms) // width * width + width
                    open_[end] = open_.get(end, 0) + int(n)
        watermark = state.getCurrentWatermarkMs()
        due = sorted((end, n) for end, n in open_.items() if end <= watermark)
        for end, _ in due:
            del open_[end]
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
        for frame in rows:
            for ms, n in zip(frame["ms"], frame["n"], strict=True):
                end = int(ms) // self.width * self.width + self.width
                before = self.open.getValue((end,))[0] if self.open.containsKey((end,)) else 0
                self.open.updateValue((end,), (before + int(n),))
                self.handle.registerTimer(end)
        yield from ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):  # noqa: ARG002, N802, N803  # Spark's names
        end = expiredTimerInfo.getExpiryTimeInMs()
        n = self.open.getValue((end,))[0]
        self.open.removeKey((end,))
        yield _frame(key, [(end, n)])

    def close(self):
        pass


class SeenOnce(StatefulProcessor):
    """Hand on each row once; what was seen is forgotten after an hour of the clock."""

    def init(self, handle):
        self.seen = handle.getMapState("seen", "ms BIGINT, n BIGINT", "once BOOLEAN", timedelta(hours=1).seconds * 1000)

    def handleInputRows(self, key, rows, timerValues):  # noqa: ARG002, N802, N803  # Spark's names
        new = []
        for frame in rows:
            for ms, n in zip(frame["ms"], frame["n"], strict=True):
                if not self.seen.containsKey((int(ms), int(n))):
                    self.seen.updateValue((int(ms), int(n)), (True,))
                    new.append((int(ms), int(n)))
        yield _frame(key, new)

    def close(self):
        pass
