"""The recipes of the page `TEMPORAL.md`, as steps of a query, and what each must give."""

import re
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.operators import Out, Row, Rows, Step, groups_of, joined

_SPAN = 10_000
_NONE = 999
PAGE = (Path(__file__).parents[2] / "spark_jobs" / "TEMPORAL.md").read_text(encoding="utf-8")
RECIPES: dict[str, Any] = {"__name__": "__main__"}  # so that Spark's workers get the functions, not their names
for _code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
    exec(_code, RECIPES)  # noqa: S102  # our own page


def _of_recipe(name: str, frames: list[DataFrame], *numbers: str) -> DataFrame:
    """Call a recipe, and pack the columns of its result into one number."""
    result, number = RECIPES[name](*(frame.selectExpr("k AS device", "at", "n AS value") for frame in frames)), F.lit(0)
    for column in numbers:
        number = number * 1000 + F.coalesce(F.col(column).cast("bigint"), F.lit(_NONE))
    stamp = F.timestamp_millis(F.unix_millis("at")).alias("stamp")
    return result.select(F.col("device").alias("k"), "at", number.alias("n"), stamp)


def _packed(*numbers: int | None) -> int:
    return reduce(lambda packed, number: packed * 1000 + (_NONE if number is None else number), numbers, 0)


def _in_order(rows: Rows) -> dict[str, Rows]:
    """Return the rows of each key, by their times; at the same time as the text of their JSON."""
    return groups_of(sorted(rows, key=lambda row: (row.at, f"{row.n}}}")), lambda row: row.k)


def _looked_back(rows: Rows, out: Out) -> Rows:
    results = []
    for ordered in _in_order(rows).values():
        for number, row in enumerate(ordered):
            before = [one for one in ordered[:number] if one.at > row.at - _SPAN * 1000]
            high = [one.n for one in [*before, row] if one.n >= 50]
            is_first = not any(one.at // (_SPAN * 1000) == row.at // (_SPAN * 1000) for one in before)
            lag, last_high = before[-1].n if before else None, high[-1] if high else None
            packed = _packed(row.n, lag, [*before, row][0].n, last_high, int(is_first))
            results.append(replace(row, n=packed, out=out(row.at)))
    return results


looked_back = Step(
    "lag, first, last, is first",
    lambda frame: _of_recipe("looked_back", [frame], "value", "previous", "first", "last_high", "is_first"),
    _looked_back,
    stateful=True,
)


def _sliding_sums(rows: Rows, out: Out) -> Rows:
    results = []
    for key, ordered in _in_order(rows).items():
        for time in {row.at + later for row in ordered for later in (0, _SPAN * 1000)}:
            known = [row.n for row in ordered if time - _SPAN * 1000 < row.at <= time]
            if known:
                results.append(Row(key, time, _packed(len(known), sum(known)), time // 1000, out(time)))
    return results


sliding_sums = Step(  # whenever the content of the window changes
    "sliding window by content",
    lambda frame: _of_recipe("sliding_sums", [frame], "count", "sum"),
    _sliding_sums,
    stateful=True,
)
temporal_join = replace(  # of each row with those of the other input within the span after it
    joined("inner", _SPAN),
    name="temporal join",
    spark=lambda frames: _of_recipe("joined", frames, "value", "alarm"),
)
