"""Refuse queries that no watermark can drive, before a job starts.  Pure: judges the tree of operators.

Spark would fail such a query later, run it for ever, or drop rows uncounted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from floodmark.schemas.errors import UnsupportedQueryError, UsageError
from floodmark.spark_jobs.queries.plan import Operator

_MODES: Final = ("append", "update")
_TRIGGERS: Final = ("processingTime", "availableNow")
_AT_ONCE: Final = "omit trigger=: each batch then starts when the one before has ended"
_UNFIT_TRIGGERS: Final = {
    "once": "use {'availableNow': True} to stop when all existing records are processed",
    "continuous": _AT_ONCE,
    "realTime": _AT_ONCE,
}
"""Triggers of Spark that are refused, and what to do instead."""
MULTIPLE: Final = "spark.sql.streaming.statefulOperator.allowMultiple"
NO_DATA_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
SETTINGS: Final = {
    MULTIPLE: "several operators with state in a row would all use the watermark of the input",
    NO_DATA_BATCHES: "a watermark without rows would move nothing",
}
"""Settings of the session that must be on, and why."""


def refuse(
    plan: Operator, *, output_mode: str, trigger: Mapping[str, Any] | None, settings: Mapping[str, str | None]
) -> None:
    """Refuse a query that cannot be exact; ``settings``: the values of `SETTINGS` in the session.

    >>> try:
    ...     refuse(Operator("StreamingRelation", text="rate"), output_mode="append", trigger=None, settings={})
    ... except UnsupportedQueryError as error:
    ...     print(error.operator)
    the stream 'rate', not from read(),
    >>> refuse(Operator("Project"), output_mode="append", trigger="1 s", settings={})
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: trigger is '1 s', expected a dict such as {"processingTime": "10 seconds"}
    """
    for name, reason in SETTINGS.items():
        if str(settings.get(name) or "true").lower() != "true":
            raise UnsupportedQueryError(operator=f"{name}=false", reason=reason, advice="leave it on")
    if output_mode == "complete":
        reason = "each batch writes the whole table, so no row is ever final"
        advice = "use 'append' for final results, or 'update' for partial ones"
        raise UnsupportedQueryError(operator=f"output_mode={output_mode!r}", reason=reason, advice=advice)
    _require("output_mode", output_mode, _MODES)
    _require_dict(trigger)
    for name in trigger or {}:
        if name in _UNFIT_TRIGGERS:
            reason = "it does not run batch after batch, and only a batch advances the watermark"
            raise UnsupportedQueryError(operator=f"trigger {name!r}", reason=reason, advice=_UNFIT_TRIGGERS[name])
        _require("the key of trigger", name, _TRIGGERS)
    _refuse_operators(plan, under_watermark=False, under_state=False)


def _require_dict(trigger: object) -> None:
    if not isinstance(trigger, Mapping | None):
        reason = f'trigger is {trigger!r}, expected a dict such as {{"processingTime": "10 seconds"}}'
        raise UsageError(reason=reason)


def _require(what: str, found: str, expected: Sequence[str]) -> None:
    if found not in expected:
        raise UsageError(reason=f"{what} is {found!r}, expected {' or '.join(map(repr, expected))}")


def refuse_two_event_times(judged: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Refuse operators with state whose rows have two event times, of which Spark would take one.

    >>> try:
    ...     refuse_two_event_times([("Aggregate", ["at"]), ("Deduplicate", ["at", "at2"])])
    ... except UnsupportedQueryError as error:
    ...     print(error.operator, error.reason)
    Deduplicate its rows have the event times at, at2, and Spark takes one
    """
    for kind, columns in judged:
        if len(columns) > 1:
            reason = f"its rows have the event times {', '.join(columns)}, and Spark takes one"
            advice = (
                f"leave all but one of them out before it, or make a plain time of one: "
                f'withColumn("{columns[-1]}", timestamp_millis(unix_millis("{columns[-1]}")))'
            )
            raise UnsupportedQueryError(operator=kind, reason=reason, advice=advice)


def _refuse_operators(node: Operator, *, under_watermark: bool, under_state: bool) -> None:
    if not node.streaming or node.source is not None:
        return
    if node.kind == "EventTimeWatermark":
        if under_watermark:
            reason = "read() has made its event_time the event-time column, and Spark takes no second one"
            advice = "leave withWatermark() out; read(event_time=) names the column"
            raise UnsupportedQueryError(operator="withWatermark", reason=reason, advice=advice)
        under_watermark = True
    elif node.kind == "Join" and node.keeps_state and not node.bounded:
        reason = "its condition does not bound the event times of both sides, so old rows could match for ever"
        advice = "add a bound for both, for example: at2 BETWEEN at - INTERVAL 1 HOUR AND at + INTERVAL 1 HOUR"
        raise UnsupportedQueryError(operator="a join of streams", reason=reason, advice=advice)
    elif node.kind == "Sort":
        reason, advice = "a stream has no last row", "leave orderBy() out, and sort where you read the results"
        raise UnsupportedQueryError(operator="sorting", reason=reason, advice=advice)
    elif node.clock == "timeout" or (under_state and node.clock):
        reason = "it follows the clock, so no watermark tells how complete its results are"
        advice = "use event time"
        raise UnsupportedQueryError(operator=_called(node.kind), reason=reason, advice=advice)
    elif not node.children:
        reason = "it has no watermark records, so watermarks of other streams would drop its rows as late, uncounted"
        advice = "copy its topic with `floodmark inject` and read() the copy; static tables can be joined"
        stream = f"the stream {node.text[:100]!r}, not from read(),"
        raise UnsupportedQueryError(operator=stream, reason=reason, advice=advice)
    for child in node.children:
        _refuse_operators(child, under_watermark=under_watermark, under_state=under_state or node.keeps_state)


_FOR_EVER: Final = "it keeps its state for ever, so it needs all records ever written"


def refuse_output_at(plan: Operator, judged: Iterable[tuple[str, Sequence[str]]]) -> None:
    """Refuse a start at a time of a query whose first results may depend on all rows ever written.

    >>> read = Operator("EventTimeWatermark")
    >>> refuse_output_at(Operator("Deduplicate", children=(read,)), [("Deduplicate", ["at"])])
    >>> try:
    ...     refuse_output_at(Operator("Deduplicate", timed=False, children=(read,)), [("Deduplicate", ["at"])])
    ... except UnsupportedQueryError as error:
    ...     print(error.operator, "-", error.reason)
    output_at with dropDuplicates - it keeps its state for ever, so it needs all records ever written
    """
    for operator in _kept_for_ever(plan, judged):
        advice = "leave output_at out; the job then reads all records"
        raise UnsupportedQueryError(operator=f"output_at with {operator}", reason=_FOR_EVER, advice=advice)


def refuse_replay(plan: Operator, judged: Iterable[tuple[str, Sequence[str]]], new_output: str) -> None:
    """Refuse a query whose state a replay would not restore.

    A replay reads the operators' input again: without a watermark up to its end, then with the job's last watermark.
    If state depends on the watermarks in between, or on all rows ever read, it would differ.  ``new_output``: what to
    use instead of the output.

    >>> read = Operator("EventTimeWatermark")
    >>> refuse_replay(Operator("Aggregate", children=(read,)), [("Aggregate", ["at"])], "")
    >>> try:
    ...     refuse_replay(Operator("Aggregate", children=(read,)), [("Aggregate", [])], "")
    ... except UnsupportedQueryError as error:
    ...     print(error.operator, "-", error.reason)
    published='continue' with Aggregate - it keeps its state for ever, so it needs all records ever written
    """
    found = next(_unlike_after_replay(plan, judged), None)
    if found is not None:
        operator, reason = found
        advice = f"use {new_output} and read the input from its beginning"
        raise UnsupportedQueryError(operator=f"published='continue' with {operator}", reason=reason, advice=advice)


def _unlike_after_replay(plan: Operator, judged: Iterable[tuple[str, Sequence[str]]]) -> Iterator[tuple[str, str]]:
    """Yield the operators whose state a replay would not restore, each with the reason."""
    for node in plan.walk():
        if node.keeps_state and "WithState" in node.kind:
            yield _called(node.kind), "its state depends on when the watermark advanced, which a replay cannot repeat"
        if node.kind == "DeduplicateWithinWatermark":
            yield "drop_duplicates_within", "the order of near rows decides which of them it has kept"
    yield from ((operator, _FOR_EVER) for operator in _kept_for_ever(plan, judged))


def _called(kind: str) -> str:
    """Return how users call a kind of operator.

    >>> _called("FlatMapGroupsInPandasWithState"), _called("TransformWithStateInPySpark"), _called("Aggregate")
    ('applyInPandasWithState', 'transformWithState', 'Aggregate')
    """
    if "WithState" not in kind:
        return kind
    return "applyInPandasWithState" if kind.startswith("FlatMapGroups") else "transformWithState"


def _kept_for_ever(plan: Operator, judged: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield the operators that never forget; the user's functions tell by ``largest_window`` what they need."""
    for node in plan.walk():
        if node.keeps_state and node.kind == "GlobalLimit":
            yield "limit"
        if node.kind == "Deduplicate" and not node.timed:
            yield "dropDuplicates"
    yield from (kind for kind, columns in judged if not columns and "WithState" not in kind)
