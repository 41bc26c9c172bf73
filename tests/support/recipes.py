"""The recipes of the page `TEMPORAL.md`, as steps of a query, and what each must give."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.operators import Clock, Row, Rows, Source, Step, joined

_PAGE = Path(__file__).parents[2] / "spark_jobs" / "TEMPORAL.md"
_SPAN = 10_000
_NONE = 999


def _recipes() -> dict[str, Any]:
    """Run the code of the page, and return its functions."""
    found: dict[str, Any] = {"__name__": "__main__"}  # so that Spark's workers get the functions, not their names
    for code in re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(code, found)  # noqa: S102  # our own page
    return found


RECIPES = _recipes()


def _readings(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("k AS device", "at", "n AS value")


def _numbered(frame: DataFrame, *numbers: str) -> DataFrame:
    """Pack the columns of a result into one number."""
    number = F.lit(0)
    for name in numbers:
        number = number * 1000 + F.coalesce(F.col(name).cast("bigint"), F.lit(_NONE))
    stamp = F.timestamp_millis(F.unix_millis("at")).alias("stamp")
    return frame.select(F.col("device").alias("k"), "at", number.alias("n"), stamp)


def _packed(numbers: Sequence[int | None]) -> int:
    packed = 0
    for number in numbers:
        packed = packed * 1000 + (_NONE if number is None else number)
    return packed


def _in_order(rows: Rows) -> Iterator[tuple[str, Rows]]:
    """Return the rows of each key, by their times; at the same time as the text of their JSON."""
    by_key = defaultdict(list)
    for row in rows:
        by_key[row.k].append(row)
    for key, found in by_key.items():
        yield key, sorted(found, key=lambda row: (row.at, f"{row.n}}}"))


def looked_back() -> Step:
    """Lag, first, last and whether it is the first, of each row."""

    def plain(rows: Rows, clock: Clock) -> Rows:
        results = []
        for _, ordered in _in_order(rows):
            for number, row in enumerate(ordered):
                before = [one for one in ordered[:number] if one.at > row.at - _SPAN * 1000]
                high = [one.n for one in [*before, row] if one.n >= 50]
                first_of = not any(one.at // (_SPAN * 1000) == row.at // (_SPAN * 1000) for one in before)
                numbers = [row.n, before[-1].n if before else None, [*before, row][0].n, high[-1] if high else None]
                results.append(replace(row, n=_packed([*numbers, int(first_of)]), out=clock.out(row.at)))
        return results

    def spark(frame: DataFrame) -> DataFrame:
        found = RECIPES["looked_back"](_readings(frame))
        return _numbered(found, "value", "previous", "first", "last_high", "is_first")

    return Step("lag, first, last, is first", spark, plain, stateful=True, event_time=False)


def sliding_sums() -> Step:
    """Count and sum whenever the content of the window changes."""

    def plain(rows: Rows, clock: Clock) -> Rows:
        results = []
        for key, ordered in _in_order(rows):
            for time in {row.at for row in ordered} | {row.at + _SPAN * 1000 for row in ordered}:
                known = [row.n for row in ordered if time - _SPAN * 1000 < row.at <= time]
                if known:
                    results.append(Row(key, time, _packed([len(known), sum(known)]), time // 1000, clock.out(time)))
        return results

    def spark(frame: DataFrame) -> DataFrame:
        return _numbered(RECIPES["sliding_sums"](_readings(frame)), "count", "sum")

    return Step("sliding window by content", spark, plain, stateful=True, event_time=False)


def temporal_join() -> Source:
    """Join each row with those of the other input within the span after it."""

    def spark(frames: Sequence[DataFrame]) -> DataFrame:
        return _numbered(RECIPES["joined"](*map(_readings, frames)), "value", "alarm")

    return replace(joined("inner", _SPAN), name="temporal join", spark=spark)
