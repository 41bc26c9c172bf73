"""Spark's operators, and what each must give, worked out in plain Python: the table and the generator build on them.

An operator is a step: ``spark`` applies it to a frame, ``plain`` to a list of rows.  Plain rows know the input
watermark from which they are out (``None``: as soon as their input is read), and the clock how far the watermark of
a step is behind that of the input.  A frame has the columns ``k``, ``at`` (the event time), ``n``, and ``stamp``, the
time that is written for the next stage.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from floodmark.spark_jobs import drop_duplicates_within, event_time
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import LongType
from support.stateful import PandasWindows, SeenOnce, pandas_windows
from support.streams import Values


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the plain computation; ``at`` in microseconds, as Spark has it, the others in milliseconds."""

    k: str
    at: int
    n: int
    stamp: int
    out: int | None = None


@dataclass(frozen=True, slots=True)
class Clock:
    """How a step's watermark follows the input's.

    ``behind``: by how much it is lower; ``closes``: 1 where windows close after their end, 0 at their end;
    ``stateful``: whether rows are complete one batch after the marks.
    """

    closes: int = 1
    behind: int = 0
    stateful: bool = False

    def out(self, time: int) -> int:
        """Return the input watermark at which what ends at ``time`` (microseconds) is complete."""
        return -(-time // 1000) + self.closes + self.behind


Rows = list[Row]


@dataclass(frozen=True, slots=True)
class Step:
    """An operator on one frame."""

    name: str
    spark: Callable[[DataFrame], DataFrame]
    plain: Callable[[Rows, Clock], Rows]
    stateful: bool = False
    event_time: bool = True  # whether ``at`` still carries Spark's event time behind it
    ends: bool = False  # whether ``at`` is then the end of a window, less a microsecond
    hold: int = 0  # how much earlier than its completion a result may be stamped, milliseconds
    ordered: bool = False
    """Whether its rows depend on the order of the input: it comes from one partition, and state has one, too."""
    shift: int = 0  # how much earlier than their input's the event times of its rows may be, milliseconds


@dataclass(frozen=True, slots=True)
class Source:
    """Where a query begins: one or two inputs."""

    name: str
    inputs: int
    spark: Callable[[Sequence[DataFrame]], DataFrame]
    plain: Callable[[Sequence[Rows], Clock], Rows]
    behind: int = 0
    stateful: bool = False
    event_time: bool = True
    ends: bool = False
    together: bool = False  # whether one `read` takes all inputs


@dataclass(frozen=True, slots=True)
class Query:
    """A source and the steps behind it."""

    source: Source
    steps: tuple[Step, ...] = ()

    @property
    def name(self) -> str:
        """Say what it does."""
        return " > ".join([self.source.name, *(step.name for step in self.steps)])

    @property
    def hold(self) -> int:
        """Return how far the marks may be behind the completion of results, milliseconds.

        Rows of an outer join that have no partner, sessions and times of rows wait for Spark's watermark, which is a
        millisecond lower: a time may have microseconds, and a stamp has none.
        """
        hold = int(self.source.name.startswith(("left", "right", "full")))
        for step in self.steps:
            if step.ends:
                hold = step.hold + step.name.startswith("session")
            elif step.name.startswith("per time"):
                hold = 1
        return hold

    @property
    def given_hold(self) -> timedelta | None:
        """Return the hold for `write`: none, except where a Python function hides what is stamped."""
        hidden = any(step.name == "mapInPandas" for step in self.steps)
        return timedelta(milliseconds=self.hold) if hidden else None

    @property
    def shift(self) -> int:
        """Return how far the job's watermark is behind the marks of its input, milliseconds."""
        return max((step.shift for step in self.steps), default=0)

    def spark(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Build Spark's query; its columns are those of `streams.ROW`."""
        # A copy of the event time would be a second event time to Spark; this is only a time.
        stamp = F.timestamp_millis(F.unix_millis("at"))
        frame = self.source.spark([given.withColumn("stamp", stamp) for given in frames])
        for step in self.steps:
            frame = step.spark(frame)
        return frame.select("k", F.col("stamp").alias("at"), "n")

    def plain(self, inputs: Sequence[Iterable[Values]], closes: int = 1) -> tuple[Rows, Clock]:
        """Work the same out; returns the rows, and the clock of the output."""
        clock = Clock(closes)
        rows = self.source.plain([[Row(k, at * 1000, n, at) for k, at, n in given] for given in inputs], clock)
        clock = replace(clock, behind=self.source.behind, stateful=self.source.stateful)
        for step in self.steps:
            rows = step.plain(rows, clock)
            clock = replace(clock, stateful=clock.stateful or step.stateful)
        return rows, clock


def _grouped(rows: Rows, windows: Callable[[Row], list[tuple[int, int]]]) -> dict[tuple[str, int, int], Rows]:
    groups: dict[tuple[str, int, int], Rows] = defaultdict(list)
    for row in rows:
        for start, end in windows(row):
            groups[row.k, start, end].append(row)
    return groups


def _window(key: str, end: int, n: int, rows: Rows, clock: Clock) -> Row:
    out = max([clock.out(end), *(row.out for row in rows if row.out is not None)])
    return Row(key, end - 1, n, end // 1000, out)


# Windows -------------------------------------------------------------------------------------------------------------

Stamp = Literal["end", "start", "earliest", "latest"]


def _cut(width: int, slide: int) -> Callable[[Row], list[tuple[int, int]]]:
    def windows(row: Row) -> list[tuple[int, int]]:
        last = row.at // (slide * 1000) * slide * 1000
        return [(start, start + width * 1000) for start in range(last, row.at - width * 1000, -slide * 1000)]

    return windows


def sliding(width: int, slide: int, stamp: Stamp = "end", beside: int | None = None) -> Step:
    """Sum in windows of a width, one each slide; ``beside``: the width of other windows of each row; milliseconds."""
    column = {"end": "window.end", "start": "window.start", "earliest": "least", "latest": "most"}[stamp]

    def spark(frame: DataFrame) -> DataFrame:
        window = F.window("at", f"{width} milliseconds", f"{slide} milliseconds")
        if beside is not None:
            other = F.window("at", f"{beside} milliseconds")
            frame, window = frame.withColumn("window", window).withColumn("other", other), F.col("window")
        times = F.min("at").alias("least"), F.max("at").alias("most")
        summed = frame.groupBy("k", window).agg(F.sum("n").alias("n"), *times)
        return summed.select("k", F.window_time("window").alias("at"), "n", F.col(column).alias("stamp"))

    def plain(rows: Rows, clock: Clock) -> Rows:
        results = []
        for (key, start, end), group in _grouped(rows, _cut(width, slide)).items():
            row = _window(key, end, sum(one.n for one in group), group, clock)
            times = [one.at for one in group]
            time = {"end": end, "start": start, "earliest": min(times), "latest": max(times)}[stamp]
            results.append(replace(row, stamp=time // 1000))
        return results

    kind = f"tumbling {width}" if width == slide else f"sliding {width}/{slide}"
    kind += "" if beside is None else f" beside {beside}"
    name, hold = (kind, 0) if stamp == "end" else (f"{kind} stamped {stamp}", width)
    return Step(name, spark, plain, stateful=True, ends=True, hold=hold)


def tumbling(width: int, stamp: Stamp = "end") -> Step:
    """Sum in tumbling windows."""
    return sliding(width, width, stamp)


def crossed(width: int, other: int) -> Step:
    """Sum in tumbling windows of the event time and of another time of the same row, ``n`` times 100 ms later."""

    def spark(frame: DataFrame) -> DataFrame:
        then = frame.withColumn("then", F.timestamp_millis(F.unix_millis("at") + F.col("n") * 100))
        both = then.withColumn("window", F.window("at", f"{width} milliseconds"))
        both = both.withColumn("other", F.window("then", f"{other} milliseconds"))
        summed = both.groupBy("k", "other", "window").agg(F.sum("n").alias("n"))
        return summed.select("k", F.window_time("window").alias("at"), "n", F.col("window.end").alias("stamp"))

    def plain(rows: Rows, clock: Clock) -> Rows:
        parts: dict[int, Rows] = defaultdict(list)
        for row in rows:
            parts[(row.at // 1000 + row.n * 100) // other].append(row)
        return [row for part in parts.values() for row in tumbling(width).plain(part, clock)]

    return Step(f"tumbling {width} by {other} of another time", spark, plain, stateful=True, ends=True)


def per_time(beside: int) -> Step:
    """Sum the rows of the same time, each of which has a window and its end beside that."""

    def spark(frame: DataFrame) -> DataFrame:
        window = F.window("at", f"{beside} milliseconds")
        more = frame.withColumn("window", window).withColumn("end", F.window("at", f"{beside} milliseconds")["end"])
        return more.groupBy("k", "at").agg(F.sum("n").alias("n"), F.min("stamp").alias("stamp"))

    def plain(rows: Rows, clock: Clock) -> Rows:
        groups = _grouped(rows, lambda row: [(row.at, row.at)])
        return [
            replace(_window(key, at, sum(row.n for row in group), group, clock), at=at, stamp=group[0].stamp)
            for (key, at, _), group in groups.items()
        ]

    return Step(f"per time beside {beside}", spark, plain, stateful=True)


def first_and_last(width: int) -> Step:
    """Take the first and the last number in time of each tumbling window."""

    def spark(frame: DataFrame) -> DataFrame:
        order = F.struct("at", "n")
        grouped = frame.groupBy("k", F.window("at", f"{width} milliseconds"))
        picked = grouped.agg((F.min_by("n", order) * 1000 + F.max_by("n", order)).alias("n"))
        return picked.select("k", F.window_time("window").alias("at"), "n", F.col("window.end").alias("stamp"))

    def plain(rows: Rows, clock: Clock) -> Rows:
        results = []
        for (key, _, end), group in _grouped(rows, _cut(width, width)).items():
            ordered = sorted(group, key=lambda row: (row.at, row.n))
            results.append(_window(key, end, ordered[0].n * 1000 + ordered[-1].n, group, clock))
        return results

    return Step(f"min_by, max_by {width}", spark, plain, stateful=True, ends=True)


def session(gap: int, stamp: Literal["end", "latest"] = "end") -> Step:
    """Sum in sessions; a row at exactly the end of a session still belongs to it: that is Spark's rule."""

    def spark(frame: DataFrame) -> DataFrame:
        grouped = frame.groupBy("k", F.session_window("at", f"{gap} milliseconds"))
        summed = grouped.agg(F.sum("n").alias("n"), F.max("at").alias("most"))
        time = F.col("session_window.end" if stamp == "end" else "most")
        return summed.select("k", F.window_time("session_window").alias("at"), "n", time.alias("stamp"))

    def plain(rows: Rows, clock: Clock) -> Rows:
        results = []
        for key in {row.k for row in rows}:
            runs: list[Rows] = []
            for row in sorted((row for row in rows if row.k == key), key=lambda row: row.at):
                if runs and row.at <= runs[-1][-1].at + gap * 1000:
                    runs[-1].append(row)
                else:
                    runs.append([row])
            for run in runs:
                latest = run[-1].at
                row = _window(key, latest + gap * 1000, sum(row.n for row in run), run, clock)
                results.append(row if stamp == "end" else replace(row, stamp=latest // 1000))
        return results

    name, hold = (f"session {gap}", 0) if stamp == "end" else (f"session {gap} stamped latest", gap)
    return Step(name, spark, plain, stateful=True, ends=True, hold=hold)


_RESULT = "k STRING, at TIMESTAMP, n BIGINT"


def _by_hand(name: str, width: int, run: Callable[[Any], DataFrame]) -> Step:
    """Tumbling windows by a function of the grouped rows, which writes the time of their end itself."""

    def spark(frame: DataFrame) -> DataFrame:
        given = frame.select("k", "at", F.unix_millis("at").alias("ms"), "n")
        return run(given.groupBy("k")).withColumn("stamp", F.col("at"))

    def plain(rows: Rows, clock: Clock) -> Rows:
        return [replace(row, at=row.stamp * 1000) for row in tumbling(width).plain(rows, clock)]

    return Step(f"{name} {width}", spark, plain, stateful=True, event_time=False)


def pandas_state(width: int) -> Step:
    """Tumbling windows by a function of state and timeouts."""
    settings = pandas_windows(width), _RESULT, "open STRING", "append", "EventTimeTimeout"
    return _by_hand("applyInPandasWithState", width, lambda given: given.applyInPandasWithState(*settings))


def timers(width: int) -> Step:
    """Tumbling windows by a stateful processor with event-time timers."""
    settings = PandasWindows(width), _RESULT, "Append", "EventTime"
    return _by_hand("transformWithStateInPandas", width, lambda given: given.transformWithStateInPandas(*settings))


# Duplicates ----------------------------------------------------------------------------------------------------------


def _unique(rows: Rows, _clock: Clock) -> Rows:
    found: dict[tuple[str, int, int], Row] = {}
    for row in rows:
        found.setdefault((row.k, row.at, row.n), row)
    return list(found.values())


def deduplicated() -> Step:
    """Drop rows that are equal, event time and all."""
    return Step("dropDuplicates", lambda frame: frame.dropDuplicates(["k", "at", "n"]), _unique, stateful=True)


def distinct() -> Step:
    """Drop rows that are equal in all columns."""
    return Step("distinct", lambda frame: frame.distinct(), _unique, stateful=True)


def seen_once() -> Step:
    """Drop rows that are equal, by a stateful processor whose state lives an hour of the clock."""

    def spark(frame: DataFrame) -> DataFrame:
        given = frame.select("k", F.unix_millis("stamp").alias("ms"), "n")
        results = given.groupBy("k").transformWithStateInPandas(SeenOnce(), _RESULT, "Append", "ProcessingTime")
        return results.withColumn("stamp", F.col("at"))

    return Step("transformWithStateInPandas with TTL", spark, _unique, stateful=True, event_time=False)


# Row by row ----------------------------------------------------------------------------------------------------------


def _map(name: str, number: Callable[[Any], Any], python: Callable[[int], int]) -> Step:
    def plain(rows: Rows, _clock: Clock) -> Rows:
        return [replace(row, n=python(row.n)) for row in rows]

    return Step(name, lambda frame: frame.withColumn("n", number(F.col("n"))), plain)


def renumbered() -> Step:
    """Compute in SQL."""
    return _map("n + 7", lambda n: n + 7, lambda n: n + 7)


def udf() -> Step:
    """Compute in a Python function."""
    return _map("udf", F.udf(lambda n: n * 2 + 1, LongType()), lambda n: n * 2 + 1)


def pandas_udf() -> Step:
    """Compute in a pandas function."""
    function: Any = F.pandas_udf  # its hints know no lambda
    return _map("pandas udf", function(lambda n: n * 3 + 2, LongType()), lambda n: n * 3 + 2)


def filtered() -> Step:
    """Leave a third of the rows out."""
    return Step("filter", lambda frame: frame.where("n % 3 != 0"), lambda rows, _: [row for row in rows if row.n % 3])


def past() -> Step:
    """Leave out rows of the future, by the clock of each batch: there are none."""
    condition = "stamp < now() AND to_date(at) < current_date()"
    return Step("past", lambda frame: frame.where(condition), lambda rows, _: rows)


def exploded() -> Step:
    """Make two rows of each."""

    def plain(rows: Rows, _clock: Clock) -> Rows:
        return [replace(row, n=row.n + more) for row in rows for more in (0, 1)]

    return Step("explode", lambda frame: frame.withColumn("n", F.explode(F.array("n", F.col("n") + 1))), plain)


def mapped_in_pandas() -> Step:
    """Compute in a function from frames to frames; Spark's event time ends here."""
    spark = _in_pandas(lambda frame: frame.assign(n=frame["n"] * 2))
    return Step("mapInPandas", spark, lambda rows, _: [replace(row, n=row.n * 2) for row in rows], event_time=False)


def _in_pandas(change: Callable[[Any], Any]) -> Callable[[DataFrame], DataFrame]:
    schema = "k STRING, at TIMESTAMP, n BIGINT, stamp TIMESTAMP"
    return lambda frame: frame.mapInPandas(lambda frames: map(change, frames), schema)


def again() -> Step:
    """Make ``at`` Spark's event time again, behind Python functions."""
    return Step("event_time", lambda frame: event_time(frame, "at"), lambda rows, _: rows)


def floored(unit: int) -> Step:
    """Round event times down, in Python, and make that Spark's event time: the whole job is so much behind."""

    def round_down(frame: Any) -> Any:
        return frame.assign(at=frame["at"].dt.floor(f"{unit}ms"), stamp=frame["stamp"].dt.floor(f"{unit}ms"))

    def spark(frame: DataFrame) -> DataFrame:
        return event_time(_in_pandas(round_down)(frame), "at", shift=timedelta(milliseconds=unit))

    def plain(rows: Rows, _clock: Clock) -> Rows:
        return [replace(row, at=row.at // (unit * 1000) * unit * 1000, stamp=row.stamp // unit * unit) for row in rows]

    return Step(f"floor {unit}", spark, plain, shift=unit)


def deduplicated_within(within: int) -> Step:
    """Drop rows that are equal, event time and all, and forget them after some event time."""
    spark = partial(drop_duplicates_within, columns=["k", "at", "n"], within=timedelta(milliseconds=within))
    return Step(f"drop_duplicates_within {within}", spark, _unique, stateful=True)


def first_within(within: int) -> Step:
    """Drop rows whose key was there before, less than some event time away."""
    spark = partial(drop_duplicates_within, columns=["k"], within=timedelta(milliseconds=within))

    def plain(rows: Rows, _clock: Clock) -> Rows:
        for offset in (0, within):
            first: dict[tuple[str, int], Row] = {}
            for row in rows:
                first.setdefault((row.k, (row.at // 1000 + offset) // (2 * within)), row)
            rows = list(first.values())
        return rows

    return Step(f"drop_duplicates_within {within} by key", spark, plain, stateful=True, ordered=True)


def viewed(width: int) -> Step:
    """Sum in tumbling windows, in SQL over a view."""

    def spark(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("given")
        return frame.sparkSession.sql(
            "WITH sums AS (SELECT k, sum(n) AS n, window FROM given "  # noqa: S608  # a number
            f"GROUP BY k, window(at, '{width} milliseconds')) "
            "SELECT k, window_time(window) AS at, n, window.end AS stamp FROM sums"
        )

    return Step(f"SQL view, tumbling {width}", spark, tumbling(width).plain, stateful=True, ends=True)


def static_join(how: Literal["inner", "left"]) -> Step:
    """Join a table that stands still."""
    table = {"a": 1, "b": 2}

    def spark(frame: DataFrame) -> DataFrame:
        known = frame.sparkSession.createDataFrame(list(table.items()), "k STRING, v BIGINT")
        number = (F.col("n") * 10 + F.coalesce("v", F.lit(0))).alias("n")
        return frame.join(known, "k", how).select("k", "at", number, "stamp")

    def plain(rows: Rows, _clock: Clock) -> Rows:
        kept = [row for row in rows if how == "left" or row.k in table]
        return [replace(row, n=row.n * 10 + table.get(row.k, 0)) for row in kept]

    return Step(f"{how} join of a table", spark, plain)


# Where a query begins ------------------------------------------------------------------------------------------------


def one() -> Source:
    return Source("read", 1, lambda frames: frames[0], lambda inputs, _: inputs[0])


def _both(inputs: Sequence[Rows], _clock: Clock) -> Rows:
    return [*inputs[0], *inputs[1]]


def union() -> Source:
    return Source("union", 2, lambda frames: frames[0].unionByName(frames[1]), _both)


def together() -> Source:
    """Read two topics at once."""
    return Source("read of two topics", 2, lambda frames: frames[0], _both, together=True)


Kind = Literal["inner", "left", "right", "full", "semi"]


def joined(kind: Kind, bound: int) -> Source:
    """Join two inputs by key, the right row at most ``bound`` after the left one; stamped with the earlier time."""

    def spark(frames: Sequence[DataFrame]) -> DataFrame:
        left = frames[0]
        right = frames[1].select(F.col("k").alias("k2"), F.col("at").alias("at2"), F.col("n").alias("n2"))
        condition = F.expr(f"k = k2 AND at2 >= at AND at2 <= at + INTERVAL {bound} MILLISECONDS")
        how = {"semi": "left_semi", "left": "left_outer", "right": "right_outer", "full": "full_outer"}.get(kind, kind)
        both = left.join(right, condition, how)
        if kind == "semi":
            return both
        number = (F.coalesce("n", F.lit(999)) * 1000 + F.coalesce("n2", F.lit(999))).alias("n")
        # coalesce() of two event times is none to Spark; each side alone is.
        time = {"right": F.col("at2"), "full": F.coalesce("at", "at2")}.get(kind, F.col("at"))
        stamp = F.timestamp_millis(F.unix_millis(time)).alias("stamp")  # not a second event time
        return both.select(F.coalesce("k", "k2").alias("k"), time.alias("at"), number, stamp)

    def plain(inputs: Sequence[Rows], clock: Clock) -> Rows:
        left, right = inputs
        pairs = [
            (one, other)
            for one in left
            for other in right
            if one.k == other.k and one.at <= other.at <= one.at + bound * 1000
        ]
        matched = {id(row) for pair in pairs for row in pair}
        if kind == "semi":
            return [row for row in left if id(row) in matched]
        results = [replace(other if kind == "right" else one, n=one.n * 1000 + other.n) for one, other in pairs]
        if kind in {"left", "full"}:
            alone = [row for row in left if id(row) not in matched]
            # A partner may come until the watermark is past the bound; Spark waits a millisecond more.
            results += [replace(row, n=row.n * 1000 + 999, out=clock.out(row.at) + bound + 1) for row in alone]
        if kind in {"right", "full"}:
            alone = [row for row in right if id(row) not in matched]
            results += [replace(row, n=999_000 + row.n, out=clock.out(row.at) + 1) for row in alone]
        return results

    name, timed = f"{kind} join within {bound}", kind != "full"
    return Source(name, 2, spark, plain, behind=bound + 1, stateful=True, event_time=timed)


def joined_windows(width: int) -> Source:
    """Join the sums of two inputs in the same tumbling window."""

    def spark(frames: Sequence[DataFrame]) -> DataFrame:
        left, right = (
            frame.groupBy("k", F.window("at", f"{width} milliseconds")).agg(F.sum("n").alias(name))
            for frame, name in zip(frames, ("n1", "n2"), strict=True)
        )
        number = (F.col("n1") * 1000 + F.col("n2")).alias("n")
        both = left.join(right, ["k", "window"])
        return both.select("k", F.window_time("window").alias("at"), number, F.col("window.end").alias("stamp"))

    def plain(inputs: Sequence[Rows], clock: Clock) -> Rows:
        left, right = (_grouped(rows, _cut(width, width)) for rows in inputs)
        sums = {
            window: sum(row.n for row in left[window]) * 1000 + sum(row.n for row in right[window])
            for window in left.keys() & right.keys()
        }
        return [_window(key, end, n, [], clock) for (key, _, end), n in sums.items()]

    return Source(f"join of windows {width}", 2, spark, plain, stateful=True, ends=True)
