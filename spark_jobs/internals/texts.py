"""Texts of Spark: its lines of a plan, the bins of a histogram, the causes of errors.  Only this file depends on them.

Each version of Spark may change these texts.
"""

import re
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final

import pyspark
from floodmark.schemas.errors import UnsupportedSparkError
from floodmark.spark_jobs.queries.plan import Operator
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructField

_quiet: Final = threading.Lock()  # while the loggers of PySpark are disabled
_SILENT: Final = {"CollectMetrics", "LocalLimit", "ResolvedHint", "SubqueryAlias", "UnresolvedHint", "View"}
"""Operators that change no row, or only what another operator next to them tells."""
_STREAMING: Final = "~"  # how Spark marks the lines of streaming operators
_ID: Final = re.compile(r"#\d+L?")
_DELAY_OF_READ: Final = re.compile(r"-T\d{14,}ms")
_OBJECT: Final = re.compile(r"@[0-9a-f]{5,}")
_SEED: Final = re.compile(r"\b(randn?\(|Some\(|(?:randstr|uniform)\(.*?, )-?\d{12,}(?=\)|, (?:true|false)\b)")
"""A seed that Spark has drawn; a program's own seed is shorter."""
_LAMBDA: Final = re.compile(r"\b(lambda \w+)_\d+(?=#)")
"""A parameter of a Python lambda, with a number of the session."""
_LIST: Final = re.compile(r" IN \(((?:[^()]|\([^()]*\))*)\)")
"""The values of an ``IN``; those of a Python set come in any order."""

_BINS: Final = re.compile(r"\[(?:\{[0-9.E]+, [0-9.E]+\}(?:, (?!\])|(?=\])))*\]")
"""Pairs of a bin and its count: ``[{1048576, 3.0}, {1048577, 1.2E7}]``."""
_NUMBER: Final = re.compile(r"[0-9.E]+")
_SHOWN: Final = 100
_NOTHING: Final = "nothing in its place"
_SUGGESTION: Final = re.compile(r" Did you mean one of the following\? \[.*?\]\.")
_ITEM: Final = re.compile(r"[\s,]*[\[\],][\s,]*")  # what separates the items of a line
_WINDOW: Final = "precisetimestampconversion"  # Spark's function in windows
_FIXED: Final = re.compile(r" - (\d+)\) % (\d+)\).*?END\) - \d+\) \+ (\d+)\), LongType")
"""The start, the slide and the width of fixed windows, microseconds."""
_GAP: Final = re.compile(r"cast\(([^()]+) as interval\)")

_LONGEST: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):"
_PLAN: Final = "=== Streaming Query ==="  # the plan of the query follows in Spark's message
_CAUSED_BY: Final = "Caused by: "
_CANCELLED: Final = "cancelled as part of cancellation of all jobs"
_INTERRUPTS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


def meaning(plan: Operator) -> list[str]:
    """Return the part of a query that its stored state depends on: each topmost operator with state, and all below.

    The operators after the last one with state may change, and so may all operators of a query without state.  Two
    plans of one query give the same lines, whatever the ids of their columns.

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


def meaning_of_column(text: str) -> str:
    """Return Spark's text of a column, the same at each start.

    >>> meaning_of_column("date_trunc(hour, at#17, Some(UTC)) AS time#23")
    'date_trunc(hour, at#1, Some(UTC)) AS time#2'
    """
    return _renumbered(iter([text]))[0]


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


def unused_event_times(plan: Operator, reason: str) -> list[str]:
    """Return the event times of a query that Spark refuses, for this reason, because its windows are of other columns.

    >>> read = Operator("EventTimeWatermark", "EventTimeWatermark at#5: timestamp, 290000000 years")
    >>> plan = Operator("Aggregate", "Aggregate [session_window#7, k#3], [count(1)]", children=(read,))
    >>> unused_event_times(plan, "Append output mode not supported for streaming aggregations without watermark")
    ['at']
    >>> read = Operator("EventTimeWatermark", "EventTimeWatermark 5f-1, received-at?#5: timestamp, 290000000 years")
    >>> unused_event_times(Operator("Aggregate", "[session_window#7]", children=(read,)), "no watermark")
    ['received-at?']
    """
    nodes = list(plan.walk())
    windows = any(name in node.text for node in nodes for name in (_WINDOW, "session_window#"))
    if "watermark" not in reason or not windows:
        return []
    return [_ID.split(node.text)[0].split()[-1] for node in nodes if node.kind == "EventTimeWatermark"]


def lacks_topic(text: str) -> bool:
    """Tell whether a query may have failed, by this text, because a topic was deleted, or created again."""
    return "UnknownTopic" in text or "failOnDataLoss" in text


def lacks_records(text: str) -> bool:
    """Tell whether a query has failed, by this text, because Kafka has deleted records before it read them."""
    return "not available in Kafka any more" in text


def has_a_twin(reason: str) -> bool:
    """Tell whether a query failed, for this reason, because another one has the same checkpoint."""
    return "CONCURRENT_STREAM_LOG_UPDATE" in reason


def _renumbered(lines: Iterator[str]) -> list[str]:
    numbers: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"#{numbers.setdefault(found[0].rstrip('L'), len(numbers) + 1)}"

    return [_ID.sub(number, _without_chance(line)) for line in lines]


def _without_chance(line: str) -> str:
    """Remove what differs between two starts of one program.

    >>> _without_chance("Filter (k#3 IN (b,a) AND (rand(-8163384240873071259) < rand(7)))")
    'Filter (k#3 IN (a,b) AND (rand() < rand(7)))'
    """
    line = _LAMBDA.sub(r"\1", _SEED.sub(r"\1", _OBJECT.sub("", _DELAY_OF_READ.sub("", line))))
    return _LIST.sub(lambda found: f" IN ({','.join(sorted(map(str.strip, found[1].split(','))))})", line)


def change(stored: Sequence[str], found: Sequence[str]) -> tuple[str, str]:
    """Return a difference of two queries, as lines of `meaning`: of their windows if these differ, else the first.

    >>> text = "Project [(((at#2 - CASE WHEN ((at#2 - 0) % 60000000) THEN 1 END) - 0) + {}), LongType, TimestampType)]"
    >>> change([text.format(60000000), "Filter (k#1)"], [text.format(3600000000), "Filter (k#2)"])
    ('a window of 0:01:00', 'a window of 1:00:00 every 0:01:00')
    >>> change(["Project [at + cast(8 seconds as interval)]"], ["Project [at + cast(9 minutes as interval)]"])
    ('a session gap of 8 seconds', 'a session gap of 9 minutes')
    >>> change(["Aggregate [k#1], [k#1, sum(v#3) AS total#4]"], ["Aggregate [k#1], [k#1, count(1) AS n#3]"])
    ('sum(v) AS total', 'count(1) AS n')
    >>> change(["read x"], ["  Filter (k#1 > 0)", "read x"]), change(["mode='a', close='b'"], ["mode='a', close='c'"])
    (('nothing in its place', 'Filter (k > 0)'), ("close='b'", "close='c'"))
    >>> change(["Join (a#1 = b#2)"], ["Join (a#1 = b#3)"])
    ('Join (a#1 = b#2)', 'Join (a#1 = b#3)')
    >>> change(["Union", " read a", " read b"], ["Union", " read a", "read b"])
    ('the same operators', 'the same operators, nested otherwise')
    """
    old, new = ([line.strip() for line in lines] for lines in (stored, found))
    for windows in (_fixed_windows, _sessions):
        pairs = zip_longest(windows(old), windows(new), fillvalue=_NOTHING)
        if (changed := next((pair for pair in pairs if pair[0] != pair[1]), None)) is not None:
            return changed
    places = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changed_place = next((place for place in places if place[0] != "equal"), None)
    if changed_place is None:
        return "the same operators", "the same operators, nested otherwise"
    _, first, last, begin, end = changed_place
    before, after = old[first] if first < last else "", new[begin] if begin < end else ""
    if _ID.sub("", before) != _ID.sub("", after):
        before, after = _ID.sub("", before), _ID.sub("", after)
    return _from_first_difference(_ITEM.split(before), _ITEM.split(after))


def _from_first_difference(before: list[str], after: list[str]) -> tuple[str, str]:
    while before and after and before[0] == after[0]:
        before, after = before[1:], after[1:]
    first, second = (", ".join(filter(None, items))[:_SHOWN] or _NOTHING for items in (before, after))
    return first, second


def _fixed_windows(lines: Sequence[str]) -> list[str]:
    windows = []
    for found in filter(None, map(_FIXED.search, lines)):
        start, slide, width = (timedelta(microseconds=int(part)) for part in found.groups())
        every = f" every {slide}" if slide != width else ""
        windows.append(f"a window of {width}{every}" + (f" from {start}" if start else ""))
    return windows


def _sessions(lines: Sequence[str]) -> list[str]:
    return [f"a session gap of {gap}" for line in lines for gap in _GAP.findall(line)]


def bins(numbers: Column, most: int) -> Column:
    """Return the counts of fewer than ``most`` bins as text for `sizes`; a bin from two tasks occurs twice."""
    return F.histogram_numeric(numbers, F.lit(most)).cast("string")


def sizes(text: str | None) -> list[tuple[int, int]]:
    """Return each bin and its count from the text of `bins`; ``None``: no row."""
    if text is None:
        return []
    if not _BINS.fullmatch(text):
        missing = "text of histogram_numeric()"
        raise UnsupportedSparkError(version=pyspark.__version__, missing=missing, reason=text[:_SHOWN])
    numbers = [int(float(number)) for number in _NUMBER.findall(text)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def field_of(rows: DataFrame, column: Column) -> StructField:
    """Return the field of a column; if there is no such column, PySpark raises its error, and does not log it."""
    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("DataFrame", "SQL")]
    with _quiet:
        disabled = [logger.disabled for logger in loggers]
        try:
            for logger in loggers:
                logger.disabled = True
            return rows.select(column).schema[0]
        finally:
            for logger, before in zip(loggers, disabled, strict=True):
                logger.disabled = before


def without_suggestion(error: Exception) -> str:
    """Return the first line of an error without Spark's suggestion of columns, which names internal ones, too.

    >>> without_suggestion(ValueError("`ts` cannot be resolved. Did you mean one of the following? [`at`, `x`]."))
    '`ts` cannot be resolved.'
    """
    return _SUGGESTION.sub("", str(error).splitlines()[0])


def reason_of(error: BaseException) -> str:
    """Return the line that names the cause of an error of Spark."""
    return cause(str(error), "".join(_traces(error)))


def cause(text: str, trace: str = "") -> str:
    r"""Return the line of an error's text, or else of its trace, that names the cause.

    >>> python = "Traceback (most recent call last):\n  File 'job.py', line 3, in f\nValueError: no such user\n"
    >>> cause("An error occurred: org.apache.spark.SparkException: aborted: " + python + "\n\tat org.apache.spark")
    'ValueError: no such user'
    >>> cause("org.apache.spark.SparkException: [SOME_CLASS] what it is\n\tat org.apache.spark")
    'org.apache.spark.SparkException: [SOME_CLASS] what it is'
    >>> cause("An error occurred while calling o1.sql.\n: java.io.IOException: no disk\n\tat a.B")
    'java.io.IOException: no disk'
    >>> cause("null\n=== Streaming Query ===\nIdentifier: j", "a.B\n\tat a.C\nCaused by: java.util.D: none\n\tat a.C")
    'java.util.D: none'
    >>> cause("worker exited", "a.B\n\tat a.C\nCaused by: java.util.D: [E] Cause: " + python + "\n\tat a.C")
    'ValueError: no such user'
    """
    if raised := _raised(text):
        return raised
    message = text.partition(_PLAN)[0].strip()
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith("\t")]
    named = " ".join(line for line in lines if "Exception" in line)
    if not named and not message.startswith("["):  # neither a class nor an error condition of Spark
        if raised := _raised(trace):
            return raised
        thrown = [line for line in trace.splitlines() if line.strip() and not line.startswith("\t")]
        innermost = [line.removeprefix(_CAUSED_BY) for line in thrown if line.startswith(_CAUSED_BY)] or thrown
        named = innermost[-1] if innermost else ""
    return (named or message).removeprefix(": ")[:_LONGEST]


def _raised(text: str) -> str:
    """Return the line behind the last traceback of Python in a text; empty if there is none."""
    _, found, python = text.rpartition(_TRACEBACK)
    last = [line for line in python.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return last[0][:_LONGEST] if found and last else ""


def was_cancelled(error: BaseException) -> bool:
    """Tell whether all jobs of Spark were cancelled, as PySpark does at Ctrl-C."""
    return any(_CANCELLED in str(link) for link in _chain(error))


def was_interrupted(error: BaseException) -> bool:
    """Tell whether an interrupt of the JVM has caused an error."""
    told = [text for link in _chain(error) for text in (str(link), *_traces(link))]
    return any(name in text for text in told for name in _INTERRUPTS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _traces(error: BaseException | None) -> Iterator[str]:
    """Yield the JVM's stack traces of an error and its causes."""
    while error is not None:
        yield f"{getattr(error, '_stackTrace', '')}\n"
        error = getattr(error, "_cause", None)
