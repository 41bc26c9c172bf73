"""The analysed plan of a DataFrame: its operators, and whether Spark supports them in a streaming query."""

import re
from collections.abc import Callable
from typing import Any, Final, Literal

import pyspark
from floodmark.schemas.errors import UnsupportedSparkError
from floodmark.spark_jobs.internals.jvm import RELEASE, each, kind_of, nodes, reaching
from floodmark.spark_jobs.queries.plan import Operator, Windows
from pyspark.sql import Column, DataFrame

PLAN: Final = "DataFrame._jdf.queryExecution().analyzed()"
DELAY: Final = "spark.watermarkDelayMs"  # the metadata that makes a column Spark's event time
_SESSION: Final = "spark.sessionWindow"  # the same, of a column that groups by sessions

_NEVER: Final = "9000 years"
NEVER_MS: Final = 289_267_200_000_000
"""The delay of the event-time column of `read`: in it, a year has twelve months of 31 days."""

_INLINE: Final = (True, False) if RELEASE < (4, 3) else (True, False, False)
"""The arguments of `InlineCTE`: always; leave no definition; not during the analysis."""

NAMED: Final = {"AttributeReference", "Alias"}
PASSING: Final = {
    *("CollectMetrics", "EventTimeWatermark", "Expand", "Filter", "Generate", "Project", "Repartition"),
    *("RepartitionByExpression", "ResolvedHint", "SubqueryAlias", "UnresolvedHint", "View"),
}
"""Operators that change no column of their input, and may add columns."""

_STRUCT: Final = "named_struct(start, knownnullable("
"""How Spark's text of a fixed window begins.  The text repeats three numbers, microseconds:"""
_SLIDE: Final = re.compile(r" % (\d+)\)")
_START: Final = re.compile(r" - (-?\d+)\) % ")
_WIDTH: Final = re.compile(r" \+ (\d+)\), LongType, TimestampType")
_ALL_FIELDS: Final = 2**31 - 1
_SOME_TIME: Final = 10**13  # any time that is too large for a JVM's int


def with_event_time(rows: DataFrame, name: str) -> DataFrame:
    """Make a column Spark's event time, with a delay so long that data never advance the watermark."""
    timed = rows.withWatermark(name, _NEVER)
    found = [field.metadata.get(DELAY) for field in timed.schema if DELAY in field.metadata]
    if found != [NEVER_MS]:
        missing = f"withWatermark({_NEVER!r}) as {NEVER_MS} ms"
        raise UnsupportedSparkError(version=pyspark.__version__, missing=missing, reason=f"it is {found}")
    return timed


def operators(frame: DataFrame, is_source: Callable[[str], bool]) -> Operator:
    """Return a query's operators down to tables and sources; ``is_source``: whether an observation is a source's."""
    with reaching(PLAN):
        plan = analysed(frame)
        jvm: Any = frame.sparkSession._jvm  # noqa: SLF001
        helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
        some = jvm.scala.Some(_SOME_TIME)
        return _operator(plan, is_source, lambda join: _is_bounded(join, helper, some))


def event_times_of_state(frame: DataFrame) -> list[tuple[str, list[str]]]:
    """Return Spark's name of each operator with state, and the event-time columns that it could judge its input by.

    An operator with two inputs occurs twice.  Unused columns are left out, as Spark's optimizer does.
    """
    with reaching("SessionState.optimizer()"):
        optimizer = frame._jdf.sparkSession().sessionState().optimizer()  # noqa: SLF001
        plan = optimizer.execute(analysed(frame))
        return [
            (kind_of(node), [str(column.name()) for column in columns if is_event_time(column)])
            for node in nodes(plan)
            if node.isStreaming()
            for columns in _judged(node)
        ]


def _judged(node: Any) -> list[list[Any]]:  # noqa: ANN401  # a JVM plan
    """Return, for each input of an operator with state, the columns among which Spark looks for the event time."""
    kind, children = kind_of(node), list(each(node.children()))
    if kind == "Join":
        return [list(each(child.output())) for child in children] if all(one.isStreaming() for one in children) else []
    if kind == "Aggregate":
        return [[column for column in each(node.groupingExpressions()) if kind_of(column) in NAMED]]
    if kind.startswith("Deduplicate") or "WithState" in kind:
        return [list(each(children[0].output()))]
    return []


def is_event_time(column: Any) -> bool:  # noqa: ANN401  # a JVM column
    """Tell whether Spark takes a column, or the windows in it, for the event time."""
    return bool(column.metadata().contains(DELAY))


def keys_of_sessions(frame: DataFrame) -> list[int]:
    """Return the number of keys of each streaming aggregate by sessions, besides the session; a constant is none."""
    with reaching("Aggregate.groupingExpressions()"):
        return _keys_of_sessions(analysed(frame))


def _keys_of_sessions(plan: Any) -> list[int]:  # noqa: ANN401  # a JVM plan
    found = []
    for node in nodes(plan):
        keys = list(each(node.groupingExpressions())) if kind_of(node) == "Aggregate" and node.isStreaming() else []
        if any(kind_of(key) in NAMED and key.metadata().contains(_SESSION) for key in keys):
            found.append(sum(not key.foldable() for key in keys) - 1)
    return found


def filters_sessions(frame: DataFrame) -> bool:
    """Tell whether a filter or join has streaming sessions below it."""
    with reaching("Aggregate.groupingExpressions()"):
        plan = analysed(frame)
        above = (node for node in nodes(plan) if kind_of(node) in {"Filter", "Join"})
        # First one walk for all: each takes many calls of the JVM.
        return bool(_keys_of_sessions(plan)) and any(map(_keys_of_sessions, above))


def check_supported(frame: DataFrame, output_mode: str) -> None:
    """Let Spark check a streaming query as at its start."""
    with reaching("UnsupportedOperationChecker.checkForStreaming()"):
        spark: Any = frame.sparkSession._jvm.org.apache.spark.sql  # type: ignore[union-attr]  # noqa: SLF001
        mode = getattr(spark.streaming.OutputMode, output_mode.capitalize())()
        spark.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(analysed(frame), mode)


def analysed(frame: DataFrame) -> Any:  # noqa: ANN401  # a JVM plan
    """Return a DataFrame's plan, with the names of a WITH clause replaced by their queries."""
    jvm: Any = frame.sparkSession._jvm  # noqa: SLF001
    inline = jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(*_INLINE)
    return inline.apply(frame._jdf.queryExecution().analyzed())  # noqa: SLF001


def definition(rows: DataFrame, column: Column) -> str:
    """Return Spark's text of a column, with the ids of its columns."""
    with reaching("QueryExecution.analyzed()"):
        return str(analysed(rows.select(column)).expressions().head())


def _operator(node: Any, is_source: Callable[[str], bool], is_bounded: Callable[[Any], bool]) -> Operator:  # noqa: ANN401
    kind = kind_of(node)
    if not node.isStreaming():
        return Operator(kind, streaming=False, columns=str(node.schema().simpleString()))
    observation = str(node.name()) if kind == "CollectMetrics" else None
    if observation is not None and is_source(observation):
        return Operator(kind, source=observation)
    children = tuple(_operator(child, is_source, is_bounded) for child in each(node.children()))
    return Operator(
        kind,
        text=str(node.simpleString(_ALL_FIELDS)),
        children=children,
        columns=str(node.schema().simpleString()) if kind == "EventTimeWatermark" else "",
        bounded=kind != "Join" or not all(child.streaming for child in children) or is_bounded(node),
        observation=observation,
        within=_delay(node.child()) if kind == "DeduplicateWithinWatermark" else 0,
        windows=windows_in(time_of(node)[0]) if kind == "Aggregate" else None,
        timed=kind != "Deduplicate" or any(map(is_event_time, each(node.keys()))),
        clock=_clock(node, kind) if "WithState" in kind else "",
    )


def _clock(node: Any, kind: str) -> Literal["", "timeout", "timers"]:  # noqa: ANN401  # a JVM plan
    if kind.startswith("FlatMapGroups"):
        return "timeout" if str(node.timeout().toString()) == "ProcessingTimeTimeout" else ""
    return "timers" if str(node.timeMode().toString()) == "ProcessingTime" else ""


def windows_in(expressions: list[Any]) -> Windows | None:
    """Return the fixed windows that expressions of the JVM define, one for each row of a group."""
    texts = [str(expression) for expression in expressions]
    if not texts or not all(text.startswith(_STRUCT) for text in texts):
        return None
    numbers = [{int(number) for text in texts for number in part.findall(text)} for part in (_SLIDE, _START, _WIDTH)]
    return Windows(*(one.pop() for one in numbers)) if all(len(one) == 1 for one in numbers) else None


def time_of(aggregate: Any) -> tuple[list[Any], Any]:  # noqa: ANN401  # a JVM plan
    """Return the expressions that define the event time an aggregate groups by, and the operator they read.

    They are found by the ids of columns.  None: it groups by no event time, or by several.
    """
    times = [column for column in _judged(aggregate)[0] if is_event_time(column)]
    if len(times) != 1:
        return [], aggregate
    found, node = times, aggregate.child()
    while len(ids := {id_of(column) for column in found}) == 1 and None not in ids and kind_of(node) in PASSING:
        found, node = definitions(node, found[0]), node.child()
    return found, node


def _delay(node: Any) -> int:  # noqa: ANN401  # a JVM plan
    """Return the delay of the event time, milliseconds; 0: no event time."""
    times = [column.metadata().getLong(DELAY) for column in each(node.output()) if is_event_time(column)]
    return max(map(int, times), default=0)


def definitions(node: Any, column: Any) -> list[Any]:  # noqa: ANN401  # a JVM plan, a column
    """Return the expressions that define a column in an operator: one for each output row of an input row."""
    kind, id_ = kind_of(node), id_of(column)
    if kind == "Expand":
        at = [id_of(one) for one in each(node.output())].index(id_)
        return [row.apply(at) for row in each(node.projections())]
    columns = each(node.projectList()) if kind == "Project" else iter(())
    return [one.child() for one in columns if kind_of(one) == "Alias" and id_of(one) == id_] or [column]


def id_of(column: Any) -> int | None:  # noqa: ANN401  # a JVM expression
    """Return the id of a column; ``None`` for an expression of columns."""
    return int(column.exprId().id()) if kind_of(column) in NAMED else None


def _is_bounded(join: Any, helper: Any, some: Any) -> bool:  # noqa: ANN401  # a JVM join, Spark's own judge, a time
    if helper.isWatermarkInJoinKeys(join):
        return True
    left, right, condition = join.left().outputSet(), join.right().outputSet(), join.condition()
    both = ((left, right), (right, left))
    return all(helper.getStateValueWatermark(one, other, condition, some).isDefined() for one, other in both)
