"""A query as a tree of operators, and what of it a checkpoint depends on.  Pure: `internals.analysed` reads it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_KEEP_STATE: Final = {"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "GlobalLimit"}
_SILENT: Final = {"CollectMetrics", "LocalLimit", "ResolvedHint", "SubqueryAlias", "UnresolvedHint", "View"}
"""Operators that change no row, or only as another one beside them says."""
_LIMITS: Final = {"GlobalLimit", "LocalLimit"}
_STREAMING: Final = "~"
"""How Spark marks the lines of streaming operators."""
_ID: Final = re.compile(r"#\d+L?")
_DELAY_OF_READ: Final = re.compile(r"-T\d{14,}ms")
_OBJECT: Final = re.compile(r"@[0-9a-f]{5,}")
_SEED: Final = re.compile(r"\b(randn?\(|Some\(|(?:randstr|uniform)\(.*?, )-?\d{12,}(?=\)|, (?:true|false)\b)")
"""A seed that Spark has drawn: one of a program's own is shorter."""
_LAMBDA: Final = re.compile(r"\b(lambda \w+)_\d+(?=#)")
"""A parameter of a Python lambda, which a session numbers."""
_LIST: Final = re.compile(r" IN \(((?:[^()]|\([^()]*\))*)\)")
"""Values of which a column has one: in any order, as those of a Python set are."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows that begin at a time and each period after it, and are so wide; microseconds."""

    slide: int
    start: int
    width: int


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a query as Spark has analysed it."""

    kind: str
    """Spark's name for it."""
    text: str = ""
    """Spark's own line for it."""
    streaming: bool = True
    children: tuple["Operator", ...] = ()
    columns: str = ""
    """The columns and types, where the operators below are not shown: of a table, or of a stream."""
    source: str | None = None
    """The name of the source that it is the observation of: what stands below is not shown."""
    bounded: bool = True
    """For a join of streams: whether its condition bounds, by event time, how long the rows of each side are kept."""
    observation: str | None = None
    """The name of the observation that it is."""
    within: int = 0
    """For a deduplication within a time: that time, milliseconds."""
    windows: Windows | None = None
    """For an aggregate: the fixed windows of the event time that it groups by; ``None``: none are recognised."""

    @property
    def keeps_state(self) -> bool:
        """Whether it keeps state from batch to batch."""
        if not self.streaming:
            return False
        if self.kind == "Join":
            return all(child.streaming for child in self.children)
        return self.kind in _KEEP_STATE or "WithState" in self.kind

    def walk(self) -> Iterator["Operator"]:
        """Yield it and all operators below, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()


def observations_behind_state(plan: Operator) -> set[str]:
    """Return the names of those observations that stand behind an operator with state.

    >>> below = Operator("CollectMetrics", observation="below")
    >>> above = Operator("CollectMetrics", observation="above", children=(Operator("Aggregate", children=(below,)),))
    >>> observations_behind_state(above)
    {'above'}
    """
    observed = [node for node in plan.walk() if node.observation is not None]
    return {str(node.observation) for node in observed if any(below.keeps_state for below in node.walk())}


def limited(plan: Operator, *, by_limit: bool = False) -> set[str]:
    """Return the names of those sources whose tasks a limit may end before they have read all of a batch.

    An aggregation reads all before it gives a row.

    >>> read = Operator("CollectMetrics", source="read")
    >>> limited(Operator("GlobalLimit", children=(read,)))
    {'read'}
    >>> limited(Operator("GlobalLimit", children=(Operator("Aggregate", children=(read,)),)))
    set()
    """
    if plan.source is not None:
        return {plan.source} if by_limit else set()
    by_limit = plan.kind in _LIMITS or (by_limit and plan.kind != "Aggregate")
    return {name for child in plan.children for name in limited(child, by_limit=by_limit)}


def meaning(plan: Operator) -> list[str]:
    """Return what of a query its stored state depends on: each topmost operator with state, and all below.

    What comes behind the last operator with state may change freely, and so may all of a query without any.  Two plans
    of one query give the same lines, whatever the ids of their columns.

    >>> table = Operator("Relation", streaming=False, columns="struct<k:string>")
    >>> stream = Operator("EventTimeWatermark", columns="struct<k:string>", children=(Operator("CollectMetrics"),))
    >>> joined = Operator("Join", "Join Inner, (k#7 = k#8)", children=(stream, table))
    >>> for line in meaning(Operator("Project", children=(Operator("Aggregate", "Aggregate [k#7]", True, (joined,)),))):
    ...     print(line)
    Aggregate [k#1]
      Join Inner, (k#1 = k#2)
        read struct<k:string>
        table struct<k:string>
    """
    return _renumbered(_lines(plan))


def _lines(node: Operator) -> Iterator[str]:
    if node.keeps_state:
        yield from _whole(node, 0)
    else:
        for child in node.children:
            yield from _lines(child)


def _whole(node: Operator, depth: int) -> Iterator[str]:
    margin = "  " * depth
    if not node.streaming:
        yield f"{margin}table {node.columns}"
    elif node.kind == "EventTimeWatermark":
        yield f"{margin}read {node.columns}"
    else:
        if node.kind not in _SILENT:
            depth += 1
            yield margin + " ".join(node.text.split()).lstrip(_STREAMING)
        for child in node.children:
            yield from _whole(child, depth)


def _renumbered(lines: Iterator[str]) -> list[str]:
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"#{numbers.setdefault(found[0].rstrip('L'), len(numbers) + 1)}"

    return [_ID.sub(number, _without_chance(line)) for line in lines]


def _without_chance(line: str) -> str:
    """Leave out what differs between two starts of one program.

    >>> _without_chance("Filter (k#3 IN (b,a) AND (rand(-8163384240873071259) < rand(7)))")
    'Filter (k#3 IN (a,b) AND (rand() < rand(7)))'
    """
    line = _LAMBDA.sub(r"\1", _SEED.sub(r"\1", _OBJECT.sub("", _DELAY_OF_READ.sub("", line))))
    return _LIST.sub(lambda found: f" IN ({','.join(sorted(map(str.strip, found[1].split(','))))})", line)
