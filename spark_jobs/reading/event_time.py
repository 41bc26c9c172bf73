"""The event-time column: how Spark marks it, how a derived column becomes it, and what follows from its delay.

Spark marks the event-time column in its metadata, with the delay of ``withWatermark``.  Python functions
(``mapInPandas`` and others) and expressions (``date_trunc``) lose it, and a query can call ``withWatermark`` only once.
This module sets it by the public ``withMetadata``.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from floodmark.schemas.errors import EventTimeShiftError, UsageError
from floodmark.schemas.timestamps import duration_of, is_late
from floodmark.spark_jobs.internals.analysed import DELAY, NEVER_MS
from floodmark.spark_jobs.progress.lateness import of_rows
from floodmark.spark_jobs.queries.plan import Operator, observations_after_state
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import TimestampType

OBSERVATION: Final = "floodmark-event-time"
_SPAN: Final = "floodmark span"
_numbers = itertools.count()


def event_time(rows: DataFrame, name: str, *, shift: timedelta = timedelta(0)) -> DataFrame:
    """Make a column Spark's event time, after an expression or a Python function has computed it.

    No other column is then the event time.

    Args:
        rows: from `read`.
        name: a timestamp column.
        shift: the longest time by which it may be before the event time that `read` gave the row: one minute for
            ``date_trunc('minute', at)``, 0 if it is never earlier.  The watermark of the whole job stays this far
            behind its input.  A row that is shifted further, and late, fails the job with
            `EventTimeShiftError`.

    Raises:
        UsageError: if there is no such column, it is no timestamp, or the shift is negative.  `write` raises it for a
            shift after an operator with state, which has already used the watermark.
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
    """Return the shift in the name of an observation of `event_time`, milliseconds; ``None``: another observation.

    >>> shift_of("floodmark-event-time-60000-3"), shift_of("floodmark-read-0")
    (60000, None)
    """
    if not observation.startswith(f"{OBSERVATION}-"):
        return None
    return int(observation.split("-")[-2])


def drop_duplicates_within(rows: DataFrame, columns: list[str], within: timedelta) -> DataFrame:
    """Drop rows that repeat the columns of another row within some event time.

    Of the resulting rows, no two of one key are ``within`` or less apart.  A row is dropped only if another row of its
    key is less than twice as far away, or if it is late.  Neither the watermark nor the cut of batches changes that.
    The order in which Spark processes near rows decides which of them stays.

    Args:
        rows: from `read`.
        columns: the columns that make two rows the same.
        within: the longest event time between duplicates; more than 0.

    Raises:
        UsageError: if the rows do not have exactly one event-time column, ``columns`` names none or one that they do
            not have, or the time is 0.
    """
    milliseconds = duration_of(within, "drop_duplicates_within(): within", 1)
    if not isinstance(columns, list) or not columns:
        reason = f"drop_duplicates_within(): columns is {columns!r}, expected a list of one or more, such as ['id']"
        raise UsageError(reason=reason)
    timed = [field for field in rows.schema if DELAY in field.metadata]
    if len(timed) != 1:
        found = ", ".join(field.name for field in timed) or "none"
        reason = f"drop_duplicates_within(): event-time columns are {found}, expected one: choose it with event_time()"
        raise UsageError(reason=reason)
    known = {column.lower() for column in rows.columns}  # as Spark compares, unless told otherwise
    if missing := [column for column in columns if column.lower() not in known]:
        reason = f"drop_duplicates_within(): the rows have no column {missing[0]!r}, only {', '.join(rows.columns)}"
        raise UsageError(reason=reason)
    name, metadata = timed[0].name, timed[0].metadata
    width, at = 2 * milliseconds, F.unix_millis(F.col("`{}`".format(name.replace("`", "``"))))
    # Spark's operator alone forgets a key at the end of a batch, and drops any row of a key that it knows.  So it runs
    # twice, over spans that overlap by half: rows that are ``within`` apart share one, which the watermark completes.
    for offset in (0, milliseconds):
        span = at - F.pmod(at + offset, F.lit(width))
        kept = rows.withMetadata(name, {**metadata, DELAY: width}).withColumn(_SPAN, span)
        rows = kept.dropDuplicatesWithinWatermark([*columns, _SPAN]).drop(_SPAN).withMetadata(name, metadata)
    return rows


@dataclass(frozen=True, slots=True)
class Derived:
    """The event times that a query derives."""

    shift: int = 0  # how far they may be before those of the input, milliseconds
    observations: tuple[str, ...] = ()  # the names of the observations of their minimum
    is_used: bool = False  # whether there are any: they may be later than those of the input, by any time

    def of_rows(self, watermark: int | None) -> int | None:
        """See `lateness.of_rows`."""
        return None if watermark is None else of_rows(watermark, self.shift)


def derived_times(plan: Operator) -> Derived:
    """Return the event times that a query derives."""
    names = [node.observation for node in plan.walk() if node.observation is not None]
    found = {name: shift for name in names if (shift := shift_of(name)) is not None}
    after_state = observations_after_state(plan)
    for name in after_state & found.keys():
        if found[name]:
            reason = (
                f"event_time(..., shift={timedelta(milliseconds=found[name])}) is behind an operator with state (a "
                "window, join, deduplication ...), so its rows would be earlier than the watermark of this operator; "
                "shift before the operator, or give its results no time before their completion"
            )
            raise UsageError(reason=reason)
    if any(node.within == NEVER_MS for node in plan.walk()):
        reason = (
            "dropDuplicatesWithinWatermark() takes its time from withWatermark(), and there is none: it would never "
            "forget a key; use floodmark.spark_jobs.drop_duplicates_within(rows, columns, within)"
        )
        raise UsageError(reason=reason)
    # The check of the output judges the results of an operator with state.
    return Derived(max(found.values(), default=0), tuple(found.keys() - after_state), bool(found))


def require_shift(
    job: str,
    derived: Derived,
    observed: Mapping[str, Mapping[str, Any]],
    watermark: int | None,
    late: Iterable[int] = (),
) -> None:
    """Refuse a batch whose derived event times are shifted further than stated: operators would drop these rows.

    ``late``: the event times that late rows of the batch had before; their derived times may be late, too.
    """
    if watermark is None:
        return
    lowest = min([of_rows(watermark, derived.shift), *late]) - derived.shift
    for name in derived.observations:
        earliest = observed.get(name, {}).get("earliest")
        if earliest is not None and is_late(int(earliest), lowest):
            shift = timedelta(milliseconds=derived.shift)
            raise EventTimeShiftError(job=job, event_time=int(earliest), watermark=watermark, shift=shift)
