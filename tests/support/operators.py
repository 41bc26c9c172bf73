"""Spark's operators, and what each must give, worked out in plain Python: the table and the generator build on them.

An operator is a step: ``spark`` applies it to a frame, ``plain`` to a list of rows.  Plain rows know the input
watermark from which they are out (``None``: as soon as their input is read).  A frame has the columns ``k``, ``at``
(the event time), ``n``, and ``stamp``, the time that is written for the next stage.  All numbers in calls are
milliseconds.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from floodmark.spark_jobs import drop_duplicates_within, event_time
from pyspark.sql import Column, DataFrame
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

    @property
    def values(self) -> Values:
        return self.k, self.stamp, self.n


Rows = list[Row]
Stamp = Literal["end", "start", "earliest", "latest"]  # which time a result has
Out = Callable[[int], int]  # gives the input watermark at which what ends at a time (microseconds) is complete


@dataclass(frozen=True)
class Step:
    name: str
    spark: Callable[..., DataFrame]
    plain: Callable[..., Rows]
    stateful: bool = False
    aggregates: bool = False  # whether its rows are results of groups, with a hold of their own
    hold: int = 0  # how much earlier than its completion a result of an aggregation or a join may be stamped
    ordered: bool = False  # whether its rows depend on the order of the input, which then comes from one partition
    shift: int = 0  # how much earlier than their input's the event times of its rows may be


@dataclass(frozen=True)
class Source(Step):
    """Where a query begins: its functions take lists of frames, and of rows, one for each input."""

    inputs: int = 1
    behind: int = 0
    event_time: bool = True  # whether ``at`` still carries Spark's event time behind it
    together: bool = False  # whether one `read` takes all inputs


@dataclass(frozen=True, slots=True)
class Query:
    """A source and the steps behind it."""

    source: Source
    steps: tuple[Step, ...] = ()

    @property
    def name(self) -> str:
        return " > ".join([self.source.name, *(step.name for step in self.steps)])

    @property
    def hold(self) -> int:
        """Return how far the marks may be behind the completion of results."""
        return next((step.hold for step in reversed(self.steps) if step.aggregates), self.source.hold)

    @property
    def given_hold(self) -> timedelta | None:
        """Return the hold for `write`: none, except where a Python function hides what is stamped."""
        hidden = any(step.name == "mapInPandas" for step in self.steps)
        return timedelta(milliseconds=self.hold) if hidden else None

    @property
    def shift(self) -> int:
        """Return how far the job's watermark is behind the marks of its input."""
        return max((step.shift for step in self.steps), default=0)

    def spark(self, frames: Sequence[DataFrame]) -> DataFrame:
        """Build Spark's query; its columns are those of `streams.ROW`."""
        # A copy of the event time would be a second event time to Spark; this is only a time.
        stamp = F.timestamp_millis(F.unix_millis("at"))
        frame = self.source.spark([given.withColumn("stamp", stamp) for given in frames])
        for step in self.steps:
            frame = step.spark(frame)
        return frame.select("k", F.col("stamp").alias("at"), "n")

    def plain(self, inputs: Sequence[Iterable[Values]], closes: int = 1) -> Rows:
        """Work the same out; ``closes``: 1 where windows close after their end, 0 at their end."""

        def out(time: int, behind: int = 0) -> int:
            return -(-time // 1000) + closes + behind

        given = [[Row(k, at * 1000, n, at) for k, at, n in rows] for rows in inputs]
        rows = self.source.plain(given, out)
        for step in self.steps:
            rows = step.plain(rows, partial(out, behind=self.source.behind))
        return rows

    def results(self, *inputs: Iterable[Values]) -> Counter[Values]:
        """Work out what the job writes in all."""
        return Counter(row.values for row in self.plain(inputs))


def _window(width: int, slide: int | None = None, of: str = "at") -> Column:
    return F.window(of, f"{width} milliseconds", f"{slide or width} milliseconds")


def _of_windows(frame: DataFrame, n: str | Column = "n", stamp="window.end", window="window") -> DataFrame:
    """Take the time of each row from its window."""
    return frame.select("k", F.window_time(window).alias("at"), n, F.col(stamp).alias("stamp"))


def groups_of(rows: Rows, key: Callable[[Row], Any]) -> dict[Any, Rows]:
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _result(key: str, end: int, rows: Rows, out: Out, n: int | None = None) -> Row:
    """Make the row of a window: by default, the sum."""
    complete = max([out(end), *(row.out for row in rows if row.out is not None)])
    return Row(key, end - 1, sum(row.n for row in rows) if n is None else n, end // 1000, complete)


def _in_windows(width: int, slide: int, stamp: Stamp = "end", number: Callable[[Rows], int] | None = None):
    """Return the plain computation of windows: by default, the sum of each."""

    def plain(rows: Rows, out: Out) -> Rows:
        groups, results = defaultdict(list), []
        for row in rows:
            last = row.at // (slide * 1000) * slide * 1000
            for start in range(last, row.at - width * 1000, -slide * 1000):
                groups[row.k, start].append(row)
        for (key, start), group in groups.items():
            times, end = [row.at for row in group], start + width * 1000
            time = {"end": end, "start": start, "earliest": min(times), "latest": max(times)}[stamp]
            result = _result(key, end, group, out, number and number(group))
            results.append(replace(result, stamp=time // 1000))
        return results

    return plain


def sliding(width: int, slide: int, stamp: Stamp = "end", beside: int | None = None) -> Step:
    """Sum in windows of a width, one each slide; ``beside``: the width of other windows of each row."""
    column = {"end": "window.end", "start": "window.start", "earliest": "least", "latest": "most"}[stamp]

    def spark(frame: DataFrame) -> DataFrame:
        window = _window(width, slide)
        if beside is not None:
            frame, window = frame.withColumn("window", window).withColumn("other", _window(beside)), F.col("window")
        times = F.min("at").alias("least"), F.max("at").alias("most")
        return _of_windows(frame.groupBy("k", window).agg(F.sum("n").alias("n"), *times), stamp=column)

    kind = f"tumbling {width}" if width == slide else f"sliding {width}/{slide}"
    kind += "" if beside is None else f" beside {beside}"
    name, hold = (kind, 0) if stamp == "end" else (f"{kind} stamped {stamp}", width)
    return Step(name, spark, _in_windows(width, slide, stamp), stateful=True, aggregates=True, hold=hold)


def tumbling(width: int, stamp: Stamp = "end") -> Step:
    return sliding(width, width, stamp)


def crossed(width: int, other: int) -> Step:
    """Sum in tumbling windows of the event time and of another time of the same row, ``n`` times 100 ms later."""

    def spark(frame: DataFrame) -> DataFrame:
        then = frame.withColumn("then", F.timestamp_millis(F.unix_millis("at") + F.col("n") * 100))
        both = then.withColumn("window", _window(width)).withColumn("other", _window(other, of="then"))
        return _of_windows(both.groupBy("k", "other", "window").agg(F.sum("n").alias("n")))

    def plain(rows: Rows, out: Out) -> Rows:
        parts = groups_of(rows, lambda row: (row.at // 1000 + row.n * 100) // other).values()
        return [row for part in parts for row in tumbling(width).plain(part, out)]

    return Step(f"tumbling {width} by {other} of another time", spark, plain, stateful=True, aggregates=True)


def per_time(beside: int) -> Step:
    """Sum the rows of the same time, each of which has a window and its end beside that."""

    def spark(frame: DataFrame) -> DataFrame:
        more = frame.withColumn("window", _window(beside)).withColumn("end", _window(beside)["end"])
        return more.groupBy("k", "at").agg(F.sum("n").alias("n"), F.min("stamp").alias("stamp"))

    def plain(rows: Rows, out: Out) -> Rows:
        groups = groups_of(rows, lambda row: (row.k, row.at)).items()
        return [replace(_result(k, at, group, out), at=at, stamp=group[0].stamp) for (k, at), group in groups]

    return Step(f"per time beside {beside}", spark, plain, stateful=True, aggregates=True, hold=1)  # as sessions


def first_and_last(width: int) -> Step:
    """Take the first and the last number in time of each tumbling window."""

    def spark(frame: DataFrame) -> DataFrame:
        order = F.struct("at", "n")
        picked = (F.min_by("n", order) * 1000 + F.max_by("n", order)).alias("n")
        return _of_windows(frame.groupBy("k", _window(width)).agg(picked))

    def number(group: Rows) -> int:
        ordered = sorted(group, key=lambda row: (row.at, row.n))
        return ordered[0].n * 1000 + ordered[-1].n

    plain = _in_windows(width, width, number=number)
    return Step(f"min_by, max_by {width}", spark, plain, stateful=True, aggregates=True)


def session(gap: int, stamp: Literal["end", "latest"] = "end", longer: int = 0) -> Step:
    """Sum in sessions that are longer; a row at exactly the end still belongs to its session: that is Spark's rule."""

    def spark(frame: DataFrame) -> DataFrame:
        grouped = frame.groupBy("k", F.session_window("at", f"{gap} milliseconds"))
        summed = grouped.agg(F.sum("n").alias("n"), F.max("at").alias("most"))
        if longer:
            summed = summed.where(
                F.expr("unix_millis(session_window.end) - unix_millis(session_window.start)") > longer
            )
        column = "session_window.end" if stamp == "end" else "most"
        return _of_windows(summed, stamp=column, window="session_window")

    def plain(rows: Rows, out: Out) -> Rows:
        sessions: list[Rows] = []
        for row in sorted(rows, key=lambda row: (row.k, row.at)):
            if sessions and row.k == sessions[-1][-1].k and row.at <= sessions[-1][-1].at + gap * 1000:
                sessions[-1].append(row)
            else:
                sessions.append([row])
        sessions = [one for one in sessions if (one[-1].at - one[0].at) // 1000 + gap > longer]
        results = [_result(group[0].k, group[-1].at + gap * 1000, group, out) for group in sessions]
        return results if stamp == "end" else [replace(row, stamp=row.stamp - gap) for row in results]

    # As a time of a row, its end may have microseconds, and a stamp has none.
    name, hold = (f"session {gap}", 1) if stamp == "end" else (f"session {gap} stamped latest", gap + 1)
    name += f" longer than {longer}" if longer else ""
    return Step(name, spark, plain, stateful=True, aggregates=True, hold=hold)


def viewed(width: int) -> Step:
    def spark(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("given")
        return frame.sparkSession.sql(
            "WITH sums AS (SELECT k, sum(n) AS n, window FROM given "  # noqa: S608  # a number
            f"GROUP BY k, window(at, '{width} milliseconds')) "
            "SELECT k, window_time(window) AS at, n, window.end AS stamp FROM sums"
        )

    return Step(f"SQL view, tumbling {width}", spark, tumbling(width).plain, stateful=True, aggregates=True)


_RESULT = "k STRING, at TIMESTAMP, n BIGINT"


def _by_hand(method: str, width: int, *arguments: Any) -> Step:
    """Tumbling windows by a method of grouped rows, which writes the time of their end itself."""

    def spark(frame: DataFrame) -> DataFrame:
        given = frame.select("k", "at", F.unix_millis("at").alias("ms"), "n").groupBy("k")
        return getattr(given, method)(*arguments).withColumn("stamp", F.col("at"))

    def plain(rows: Rows, out: Out) -> Rows:
        return [replace(row, at=row.stamp * 1000) for row in tumbling(width).plain(rows, out)]

    return Step(f"{method} {width}", spark, plain, stateful=True)


def pandas_state(width: int) -> Step:
    settings = pandas_windows(width), _RESULT, "open STRING", "append", "EventTimeTimeout"
    return _by_hand("applyInPandasWithState", width, *settings)


def timers(width: int) -> Step:
    return _by_hand("transformWithStateInPandas", width, PandasWindows(width), _RESULT, "Append", "EventTime")


def _unique(rows: Rows, _out: Out) -> Rows:
    return list({(row.k, row.at, row.n): row for row in reversed(rows)}.values())


deduplicated = Step("dropDuplicates", lambda frame: frame.dropDuplicates(["k", "at", "n"]), _unique, stateful=True)
distinct = Step("distinct", lambda frame: frame.distinct(), _unique, stateful=True)


def _seen_once(frame: DataFrame) -> DataFrame:
    given = frame.select("k", F.unix_millis("stamp").alias("ms"), "n")
    results = given.groupBy("k").transformWithStateInPandas(SeenOnce(), _RESULT, "Append", "ProcessingTime")
    return results.withColumn("stamp", F.col("at"))


seen_once = Step("transformWithStateInPandas with TTL", _seen_once, _unique, stateful=True)


def deduplicated_within(within: int) -> Step:
    """Drop rows that are equal, event time and all, and forget them after some event time."""
    spark = partial(drop_duplicates_within, columns=["k", "at", "n"], within=timedelta(milliseconds=within))
    return Step(f"drop_duplicates_within {within}", spark, _unique, stateful=True)


def first_within(within: int) -> Step:
    """Drop rows whose key was there before, less than some event time away."""
    spark = partial(drop_duplicates_within, columns=["k"], within=timedelta(milliseconds=within))

    def plain(rows: Rows, _out: Out) -> Rows:
        for offset in (0, within):
            first: dict[tuple[str, int], Row] = {}
            for row in rows:
                first.setdefault((row.k, (row.at // 1000 + offset) // (2 * within)), row)
            rows = list(first.values())
        return rows

    return Step(f"drop_duplicates_within {within} by key", spark, plain, stateful=True, ordered=True)


def _map(name: str, number: Callable[[], Column], python: Callable[[int], int]) -> Step:
    return Step(
        name,
        lambda frame: frame.withColumn("n", number()),
        lambda rows, _: [replace(row, n=python(row.n)) for row in rows],
    )


renumbered = _map("n + 7", lambda: F.col("n") + 7, lambda n: n + 7)
udf = _map("udf", lambda: F.udf(lambda n: n * 2 + 1, LongType())("n"), lambda n: n * 2 + 1)
pandas_udf = _map("pandas udf", lambda: F.pandas_udf(lambda n: n * 3 + 2, LongType())("n"), lambda n: n * 3 + 2)
filtered = Step("filter", lambda frame: frame.where("n % 3 != 0"), lambda rows, _: [row for row in rows if row.n % 3])


def since(time: int) -> Step:
    """Keep what is stamped from a time on: Spark may move such a filter before the operators that made the stamp."""
    return Step(
        f"since {time}",
        lambda frame: frame.where(F.unix_millis("stamp") >= time),
        lambda rows, _: [row for row in rows if row.stamp >= time],
    )


past = Step(  # by the clock of each batch, no row is of the future
    "past", lambda frame: frame.where("stamp < now() AND to_date(at) < current_date()"), lambda rows, _: rows
)
exploded = Step(
    "explode",
    lambda frame: frame.withColumn("n", F.explode(F.array("n", F.col("n") + 1))),
    lambda rows, _: [replace(row, n=row.n + more) for row in rows for more in (0, 1)],
)


def _in_pandas(change: Callable[[Any], Any]) -> Callable[[DataFrame], DataFrame]:
    schema = "k STRING, at TIMESTAMP, n BIGINT, stamp TIMESTAMP"
    return lambda frame: frame.mapInPandas(lambda frames: map(change, frames), schema)


mapped_in_pandas = Step(  # Spark's event time ends here
    "mapInPandas",
    _in_pandas(lambda frame: frame.assign(n=frame["n"] * 2)),
    lambda rows, _: [replace(row, n=row.n * 2) for row in rows],
)
again = Step("event_time", lambda frame: event_time(frame, "at"), lambda rows, _: rows)  # behind Python functions


def floored(unit: int) -> Step:
    """Round event times down, in Python, and make that Spark's event time: the whole job is so much behind."""

    def round_down(frame: Any) -> Any:
        return frame.assign(at=frame["at"].dt.floor(f"{unit}ms"), stamp=frame["stamp"].dt.floor(f"{unit}ms"))

    def spark(frame: DataFrame) -> DataFrame:
        return event_time(_in_pandas(round_down)(frame), "at", shift=timedelta(milliseconds=unit))

    def plain(rows: Rows, _out: Out) -> Rows:
        return [replace(row, at=row.at // (unit * 1000) * unit * 1000, stamp=row.stamp // unit * unit) for row in rows]

    return Step(f"floor {unit}", spark, plain, shift=unit)


def static_join(how: Literal["inner", "left"]) -> Step:
    table = {"a": 1, "b": 2}

    def spark(frame: DataFrame) -> DataFrame:
        known = frame.sparkSession.createDataFrame(list(table.items()), "k STRING, v BIGINT")
        number = (F.col("n") * 10 + F.coalesce("v", F.lit(0))).alias("n")
        return frame.join(known, "k", how).select("k", "at", number, "stamp")

    def plain(rows: Rows, _out: Out) -> Rows:
        return [replace(row, n=row.n * 10 + table.get(row.k, 0)) for row in rows if how == "left" or row.k in table]

    return Step(f"{how} join of a table", spark, plain)


def _both(inputs: Sequence[Rows], _out: Out) -> Rows:
    return [*inputs[0], *inputs[1]]


one = Source("read", lambda frames: frames[0], lambda inputs, _: inputs[0])
union = Source("union", lambda frames: frames[0].unionByName(frames[1]), _both, inputs=2)
together = Source("read of two topics", lambda frames: frames[0], _both, inputs=2, together=True)


def joined(kind: Literal["inner", "left", "right", "full", "semi"], bound: int) -> Source:
    """Join two inputs by key, the right row at most ``bound`` after the left one; stamped with the earlier time."""

    def spark(frames: Sequence[DataFrame]) -> DataFrame:
        left, right = frames[0], frames[1].selectExpr("k AS k2", "at AS at2", "n AS n2")
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

    def plain(inputs: Sequence[Rows], out: Out) -> Rows:
        left, right = inputs
        pairs = [(a, b) for a in left for b in right if a.k == b.k and a.at <= b.at <= a.at + bound * 1000]
        matched = {id(row) for pair in pairs for row in pair}
        if kind == "semi":
            return [row for row in left if id(row) in matched]
        results = [replace(b if kind == "right" else a, n=a.n * 1000 + b.n) for a, b in pairs]
        if kind in {"left", "full"}:
            # A partner may come until the watermark is past the bound; Spark waits a millisecond more.
            alone = [(row, out(row.at) + bound + 1) for row in left if id(row) not in matched]
            results += [replace(row, n=row.n * 1000 + 999, out=out) for row, out in alone]
        if kind in {"right", "full"}:
            alone = [(row, out(row.at) + 1) for row in right if id(row) not in matched]
            results += [replace(row, n=999_000 + row.n, out=out) for row, out in alone]
        return results

    hold = int(kind in {"left", "right", "full"})  # rows without a partner wait for Spark's watermark, 1 ms lower
    more = {"hold": hold, "behind": bound + 1, "event_time": kind != "full"}
    return Source(f"{kind} join within {bound}", spark, plain, stateful=True, inputs=2, **more)


def joined_windows(width: int) -> Source:
    def spark(frames: Sequence[DataFrame]) -> DataFrame:
        sums = F.sum("n").alias("n1"), F.sum("n").alias("n2")
        left, right = (frame.groupBy("k", _window(width)).agg(total) for frame, total in zip(frames, sums, strict=True))
        return _of_windows(left.join(right, ["k", "window"]), (F.col("n1") * 1000 + F.col("n2")).alias("n"))

    def plain(inputs: Sequence[Rows], out: Out) -> Rows:
        left, right = (tumbling(width).plain(rows, out) for rows in inputs)
        sums = {(row.k, row.at): row.n for row in right}
        return [replace(row, n=row.n * 1000 + sums[row.k, row.at]) for row in left if (row.k, row.at) in sums]

    return Source(f"join of windows {width}", spark, plain, stateful=True, aggregates=True, inputs=2)
