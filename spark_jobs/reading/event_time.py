"""The event-time column: how Spark knows it, how a derived one becomes it, and what follows from its delay.

Spark marks the event-time column in the column's metadata, with the delay of ``withWatermark`` there.  Python
functions (``mapInPandas`` and its like) and expressions (``date_trunc``) lose that mark, and ``withWatermark`` can be
called but once in a query.  Here it is set through the public ``withMetadata``.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from floodmark.schemas.errors import EventTimeShiftError, UsageError
from floodmark.schemas.timestamps import duration_of, is_late
from floodmark.spark_jobs.internals.analysed import DELAY, NEVER_MS
from floodmark.spark_jobs.queries.plan import Operator, observations_behind_state
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import TimestampType

OBSERVATION: Final = "floodmark-event-time"
_SPAN: Final = "floodmark span"
_numbers = itertools.count()


def event_time(rows: DataFrame, name: str, *, shift: timedelta = timedelta(0)) -> DataFrame:
    """Make a column Spark's event time, after an expression or a Python function has computed it.

    No other column is the event time then.

    Args:
        rows: what comes from `read`.
        name: a timestamp column.
        shift: the longest time by which it lies before the event time that `read` gave the row: one minute after
            ``date_trunc('minute', at)``, 0 for what is not earlier.  The watermark of the whole job stays this far
            behind its input.  A row that lies further back fails the job, see `EventTimeShiftError`.

    Raises:
        UsageError: where there is no such column, it is no timestamp, or the shift is negative.  `write` raises it for
            a shift behind an operator with state: that has the watermark behind it already.
    """
    milliseconds = duration_of(shift, "event_time(): shift")
    kinds = {field.name: field for field in rows.schema}
    if name not in kinds or not isinstance(kinds[name].dataType, TimestampType):
        found = f"is a {kinds[name].dataType.simpleString()}" if name in kinds else "is missing"
        raise UsageError(reason=f"event_time(): column {name!r} {found}, expected a timestamp")
    for column, field in kinds.items():
        metadata: dict[str, Any] = {key: value for key, value in field.metadata.items() if key != DELAY}
        if column == name:
            metadata[DELAY] = NEVER_MS
        if metadata != field.metadata:
            rows = rows.withMetadata(column, metadata)
    observation = f"{OBSERVATION}-{milliseconds}-{next(_numbers)}"
    return rows.observe(observation, F.unix_millis(F.min(name)).alias("earliest"))


def shift_of(observation: str) -> int | None:
    """Return the shift that `event_time` has stated in an observation's name, milliseconds.

    >>> shift_of("floodmark-event-time-60000-3"), shift_of("floodmark-read-0")
    (60000, None)
    """
    if not observation.startswith(f"{OBSERVATION}-"):
        return None
    return int(observation.split("-")[-2])


def drop_duplicates_within(rows: DataFrame, columns: list[str], within: timedelta) -> DataFrame:
    """Drop rows that repeat another one's columns within some event time.

    Of the rows that come out, no two of one key are ``within`` or less apart.  A row is dropped only for another one of
    its key that is less than twice as far away; or where it is late, as by any operator.  Neither depends on the
    watermark, nor on how batches cut the input.  Which of several near rows comes out depends on the order in which
    Spark sees them.

    Spark's ``dropDuplicatesWithinWatermark`` alone forgets a key at the end of a batch, and before that drops any row
    with the key, also one of an hour later.  So it runs twice, over spans of twice the time that overlap by half: rows
    that are ``within`` apart share one, and when the watermark has passed a span, no more rows of it come.

    Args:
        rows: what comes from `read`.
        columns: what makes two rows the same.
        within: the longest event time between duplicates; more than 0.

    Raises:
        UsageError: where the rows have not exactly one event-time column, or the time is 0.
    """
    milliseconds = duration_of(within, "drop_duplicates_within(): within", 1)
    timed = [field for field in rows.schema if DELAY in field.metadata]
    if len(timed) != 1:
        found = ", ".join(field.name for field in timed) or "none"
        reason = f"drop_duplicates_within(): event-time columns are {found}, expected one: choose it with event_time()"
        raise UsageError(reason=reason)
    name, metadata = timed[0].name, timed[0].metadata
    width, at = 2 * milliseconds, F.unix_millis(F.col("`{}`".format(name.replace("`", "``"))))
    for offset in (0, milliseconds):
        span = at - F.pmod(at + offset, F.lit(width))
        kept = rows.withMetadata(name, {**metadata, DELAY: width}).withColumn(_SPAN, span)
        rows = kept.dropDuplicatesWithinWatermark([*columns, _SPAN]).drop(_SPAN).withMetadata(name, metadata)
    return rows


@dataclass(frozen=True, slots=True)
class Derived:
    """The event times that a query derives: how far they may lie before those of its input, and where that is seen."""

    shift: int = 0
    """Milliseconds."""
    observations: tuple[str, ...] = ()


def derived_times(plan: Operator) -> Derived:
    """Find the event times that a query derives.

    Raises:
        UsageError: where a shift is stated behind an operator with state, which has the watermark behind it already; or
            where ``dropDuplicatesWithinWatermark`` has no time.
    """
    names = [node.observation for node in plan.walk() if node.observation is not None]
    found = {name: shift for name in names if (shift := shift_of(name)) is not None}
    behind_state = observations_behind_state(plan)
    for name in behind_state & found.keys():
        if found[name]:
            reason = (
                f"event_time(..., shift={timedelta(milliseconds=found[name])}) stands behind an operator with state "
                "(a window, join, deduplication ...): rows that lie back there come behind the watermark that this "
                "operator hands on; shift before it, or stamp its results no earlier than their completion"
            )
            raise UsageError(reason=reason)
    if any(node.within == NEVER_MS for node in plan.walk()):
        reason = (
            "dropDuplicatesWithinWatermark() takes its time from withWatermark(), and there is none: it would never "
            "forget a key; use floodmark.spark_jobs.drop_duplicates_within(rows, columns, within)"
        )
        raise UsageError(reason=reason)
    # What an operator with state gives out is judged by the check of the output.
    return Derived(max(found.values(), default=0), tuple(found.keys() - behind_state))


def require_shift(job: str, derived: Derived, observed: Mapping[str, Mapping[str, Any]], watermark: int | None) -> None:
    """Refuse a batch whose derived event times lie further back than stated: operators would drop these rows.

    Raises:
        EventTimeShiftError: names the time and the watermark.
    """
    for name in derived.observations:
        earliest = observed.get(name, {}).get("earliest")
        if earliest is not None and is_late(int(earliest), watermark):
            shift = timedelta(milliseconds=derived.shift)
            raise EventTimeShiftError(job=job, event_time=int(earliest), watermark=watermark, shift=shift)
