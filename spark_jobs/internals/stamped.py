"""How early a time of a query's results may be, from the analysed plan: the column is followed to what defines it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from floodmark.spark_jobs.internals.analysed import (
    PASSING,
    PLAN,
    analysed,
    definitions,
    id_of,
    is_event_time,
    time_of,
    windows_in,
)
from floodmark.spark_jobs.internals.jvm import each, kind_of, reaching
from floodmark.spark_jobs.progress.watermarks import UNLIMITED, Bound, Stamp
from floodmark.spark_jobs.queries.plan import LIMITS, SILENT_STATE
from pyspark.sql import DataFrame

_SAME_COLUMNS: Final = PASSING | SILENT_STATE | LIMITS
_PICKING: Final = {"AnyValue", "First", "Last", "Max", "MaxBy", "Min", "MinBy"}
"""Aggregates whose result is one of their values."""
_CHOOSING: Final = {"Coalesce", "Greatest", "Least"}  # functions whose result is one of their arguments
_SESSION: Final = "named_struct(start, precisetimestampconversion(precisetimestampconversion("
"""How Spark's text of a session window begins."""
_WINDOW_TIME: Final = ".end, TimestampType, LongType) - 1), LongType, TimestampType)"
"""How Spark's text of ``window_time()`` ends."""
_GAP: Final = re.compile(r" \+ cast\(((?:[0-9.]+ \w+ ?)+) as interval\) as timestamp\)")
"""The gap in Spark's text of a session window, as the query gives it, if it is a constant."""
_UNITS: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
}

_Bounds = list[Bound] | None  # a bound for each way in which a column is computed; ``None``: not recognised
_Leaf = Callable[[Any, str], _Bounds]
"""Returns the bounds of a column, or of a field (``start`` or ``end``) of a window; without a field it is ``""``."""


def stamp_of(frame: DataFrame, name: str) -> Stamp:
    """Return how early the times in a column of a query's results may be, if its plan tells it."""
    with reaching(PLAN):
        plan = analysed(frame)
        (column,) = (one for one in each(plan.output()) if str(one.name()) == name)
        return Stamp(_column(plan, column, "") or ())


def _column(node: Any, column: Any, field: str) -> _Bounds:  # noqa: ANN401  # a JVM plan, one of its columns
    """Return the bounds of an output column of an operator."""
    kind = kind_of(node)
    if not _has(node, column):
        return None
    if kind == "EventTimeWatermark":
        return [Bound(_anchor(column))] if is_event_time(column) and not field else None
    if kind == "Aggregate":
        made = next(one for one in each(node.aggregateExpressions()) if id_of(one) == id_of(column))
        return _value(made, partial(_result, node), field)
    if kind in _FOLLOWED:
        return _FOLLOWED[kind](node, column, field)
    return _defined(node, column, field) if kind in _SAME_COLUMNS else None


def _joined(join: Any, column: Any, field: str) -> _Bounds:  # noqa: ANN401  # a JVM plan, one of its columns
    """Return the bounds of a column of a join: rows without a partner wait until Spark's watermark is past them."""
    sides = list(each(join.children()))
    number = next(number for number, side in enumerate(sides) if _has(side, column))
    waits = "Outer" in str(join.joinType()) and all(side.isStreaming() for side in sides)
    found = _of_part(number, _column(sides[number], column, field))
    return found and [replace(bound, is_end=bound.is_end or waits) for bound in found]


def _united(union: Any, column: Any, field: str) -> _Bounds:  # noqa: ANN401  # a JVM plan, one of its columns
    at = [id_of(one) for one in each(union.output())].index(id_of(column))
    inputs = [(child, list(each(child.output()))[at]) for child in each(union.children())]
    return _all(_of_part(number, _column(*input_, field)) for number, input_ in enumerate(inputs))


def _of_part(number: int, found: _Bounds) -> _Bounds:
    """Tell the rows of an operator's inputs apart, which may be the same rows."""
    return found and [replace(bound, anchor=(*bound.anchor, number)) for bound in found]


_FOLLOWED: Final = {"Join": _joined, "Union": _united}


def _defined(node: Any, column: Any, field: str) -> _Bounds:  # noqa: ANN401  # a JVM plan, one of its columns
    made = definitions(node, column)
    if is_event_time(column) and kind_of(made[0]) == "AttributeReference" and not is_event_time(made[0]):
        return [Bound(_anchor(column))]  # event_time() has made it the event time
    return _all(_value(one, partial(_column, node.child()), field) for one in made)


def _value(expression: Any, leaf: _Leaf, field: str) -> _Bounds:  # noqa: ANN401  # a JVM expression
    """Return the bounds of an expression; ``leaf`` gives those of the columns in it."""
    kind = kind_of(expression)
    if kind in {"AggregateExpression", "AttributeReference"}:
        return leaf(expression, field)
    if kind == "Alias":
        return _value(expression.child(), leaf, field)
    if kind == "GetStructField":
        return None if field else _value(expression.child(), leaf, str(expression.extractFieldName()))
    if kind in _CHOOSING:
        return _all(_value(child, leaf, field) for child in each(expression.children()))
    inner, earlier = None, 0
    if kind == "MillisToTimestamp" and kind_of(expression.child()) == "UnixMillis":
        inner = expression.child().child()
    elif kind == "PreciseTimestampConversion" and str(expression).endswith(_WINDOW_TIME):
        inner, earlier = expression.child().left().child(), 1
    found = None if inner is None else _value(inner, leaf, field)
    return found and [bound.earlier(earlier) for bound in found]


def _result(aggregate: Any, expression: Any, field: str) -> _Bounds:  # noqa: ANN401  # a JVM plan, an expression
    """Return the bounds of the time of a group, or of a time that it picks from its rows."""
    named = [one for one in each(aggregate.groupingExpressions()) if id_of(one) is not None]
    grouping = [one for one in named if is_event_time(one)]
    if len(grouping) != 1:
        return None
    grouped = grouping[0].child() if kind_of(grouping[0]) == "Alias" else grouping[0]
    made, below = time_of(aggregate)
    windows = windows_in(made)
    is_session = all(str(one).startswith(_SESSION) for one in made)
    if windows is None and not is_session:
        made, below = [grouped], aggregate.child()
        if str(grouped.dataType().typeName()) != "timestamp":
            return None
    end = Bound(_anchor(grouping[0]), is_end=True, windows=windows)
    width = windows.width if windows else UNLIMITED if is_session else 0
    if id_of(expression) in {id_of(grouping[0]), id_of(grouped)}:
        return [end.earlier(width if field == "start" else 0)]
    times = [one for expression in made for one in each(expression.references()) if is_event_time(one)]
    anchors = {bound.anchor for time in times for bound in _column(below, time, "") or ()}
    picked, function = _picked(expression)
    gap = _gap(made) if is_session and function == "Max" else width
    if gap is None:
        return None
    found = picked and _value(picked, partial(_column, aggregate.child()), field)
    if not found or not {bound.anchor for bound in found} <= anchors:
        return None
    return [end.earlier(gap + bound.before) for bound in found]


def _picked(expression: Any) -> tuple[Any, str]:  # noqa: ANN401  # a JVM expression
    """Return the values among which an aggregate function chooses, and its name; ``None``: it does not choose."""
    if kind_of(expression) != "AggregateExpression":
        return expression, ""
    function = expression.aggregateFunction()
    name = kind_of(function)
    return next(each(function.children())) if name in _PICKING else None, name


def _gap(expressions: list[Any]) -> int | None:
    """Return the gap of session windows, microseconds; ``None``: it is no constant, or of another form."""
    found = _GAP.search(str(expressions[0]))
    parts = found[1].lower().split() if found else []
    sizes = [_UNITS.get(unit.removesuffix("s")) for unit in parts[1::2]]
    if not sizes or None in sizes:
        return None
    return sum(round(float(number) * (size or 0)) for number, size in zip(parts[::2], sizes, strict=True))


def _anchor(column: Any) -> tuple[int, ...]:  # noqa: ANN401  # a JVM column
    return (int(column.exprId().id()),)


def _has(node: Any, column: Any) -> bool:  # noqa: ANN401  # a JVM plan, a column
    return id_of(column) in [id_of(one) for one in each(node.output())]


def _all(found: Iterable[_Bounds]) -> _Bounds:
    bounds = list[Bound]()
    for each_ in found:
        if each_ is None:
            return None
        bounds += each_
    return bounds
