"""The execution of a running query: what its batch observed, how far its operators are complete, and its watermark.

``setWatermark`` of the query's watermark tracker moves the watermark that the next batch runs with.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from floodmark.schemas.classify import Offsets
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs.internals.checkpoint import merged
from floodmark.spark_jobs.internals.jvm import RELEASE, each, kind_of, nodes, reaching
from floodmark.spark_jobs.lookahead.rules import WindowEnds
from floodmark.spark_jobs.progress.spark_watermark import WindowsClose, from_spark_watermark, spark_watermark
from pyspark.sql.streaming.query import StreamingQuery

_STATEFUL: Final = "StateStoreWriter"
"""The interface of all operators that keep state from batch to batch."""

_FAILS_UNASKED: Final = (4, 1)

_INNER: Final = {
    "AdaptiveSparkPlanExec": "executedPlan",
    "ReusedExchangeExec": "child",
    "ShuffleQueryStageExec": "plan",
}
"""Operators that hide others, and the method that shows them."""

_known: Final[dict[tuple[str, str], bool]] = {}
"""Which class of operators has which interface: a class does not change."""


class InterruptedBatchError(Exception):
    """A batch that does not begin because its query is being stopped: Spark knows its own interrupt by this text."""

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
        )


class Engine:
    """The execution engine of one running query; valid on the query's own thread, that is inside ``foreachBatch``.

    Its watermarks are Floodmark's, epoch milliseconds: `spark_watermark` translates them.

    Args:
        query: the query.
        windows_close: when Spark closes windows.
        ends: where windows are all that the query keeps: when they end; Spark is then told of their ends alone, for it
            would run a batch for each watermark between them, in vain.

    Raises:
        UnsupportedSparkError: where this Spark lacks what is needed; before any watermark has moved.
    """

    def __init__(
        self, query: StreamingQuery, windows_close: WindowsClose = "after", ends: WindowEnds | None = None
    ) -> None:
        self._windows_close: Final = windows_close
        self._ends: Final = ends
        with reaching("StreamExecution.watermarkTracker()"):
            self._engine = query._jsq.streamingQuery()  # noqa: SLF001
            self._tracker = self._engine.watermarkTracker()
            self._tracker.currentWatermark()

    def late_watermark(self, known: int | None) -> int | None:
        """Return the watermark by which this batch's operators judge late rows: that of the batch before.

        Args:
            known: what that batch ran with, as far as is known; ``None``: nothing is.

        Returns:
            It, or less where Spark really ran with less; ``None``: none.
        """
        with reaching("IncrementalExecution.prevOffsetSeqMetadata()"):
            before = self._engine.lastExecution().prevOffsetSeqMetadata()
            watermark = int(before.get().batchWatermarkMs()) if before.isDefined() else 0
        if known is not None and self._told(self._spark_watermark(known)) == watermark:
            return known
        return from_spark_watermark(watermark, self._windows_close)

    def set_watermark(self, watermark: int | None) -> None:
        """Set the watermark that the next batch runs with; a lower one than now, or none, is not taken."""
        then = self._told(self._spark_watermark(watermark))
        if then is not None and then > self.ran:
            self._tracker.setWatermark(then)

    @property
    def ran(self) -> int:
        """The watermark of this batch as Spark counts it, until the next one is set; 0: none is."""
        return int(self._tracker.currentWatermark())

    def _spark_watermark(self, watermark: int | None) -> int | None:
        return None if watermark is None else spark_watermark(watermark, self._windows_close)

    def _told(self, watermark: int | None) -> int | None:
        """Return what Spark is told of a watermark of its own kind."""
        if watermark is None or watermark == END_OF_TIME or self._ends is None:
            return watermark
        return self._ends.floor(watermark)

    def observed(self) -> dict[str, dict[str, Any]]:
        """Return what the observations of this batch saw, by name; one without a row may be missing."""
        with reaching("IncrementalExecution.observedMetrics()"):
            metrics = self._engine.lastExecution().observedMetrics()
            found = {}
            for name in each(metrics.keys()):
                row = metrics.apply(name)
                fields = row.schema().fieldNames()
                found[str(name)] = {fields[index]: row.get(index) for index in range(len(fields))}
        return found

    def offsets(self) -> tuple[Offsets, Offsets]:
        """Return where this batch begins and ends, over all its sources."""
        with reaching("StreamExecution.availableOffsets()"):
            begins, ends = self._engine.committedOffsets(), self._engine.availableOffsets()
            started = merged(pair.productElement(1) for pair in each(begins))
            return started or self._initial(), merged(pair.productElement(1) for pair in each(ends))

    def ask_latest_offsets(self) -> None:
        """Let each source ask Kafka where its topics end; needed in the first batch of a start.

        Spark asks before it plans a batch.  Where an earlier start has planned it, nothing was asked yet, and the
        connector of Spark 4.1 fails behind the commit: ``the return value of "scala.Option.get()" is null``.
        """
        if RELEASE == _FAILS_UNASKED:
            with reaching("MicroBatchStream.latestOffset()"):
                for pair in each(self._engine.availableOffsets()):
                    source, offset = pair.productElement(0), pair.productElement(1)
                    source.latestOffset(source.deserializeOffset(offset.json()), source.getDefaultReadLimit())

    def _initial(self) -> Offsets:
        """Return where the first batch of a query begins, from its plan: nothing is committed yet."""
        plan = self._engine.lastExecution().executedPlan()
        return merged(node.start() for node in nodes(plan) if kind_of(node) == "MicroBatchScanExec")

    def results(self, batch_watermark: int | None, next_watermark: int | None) -> "Results":
        """Say how far the results of this batch are complete.

        Args:
            batch_watermark: the watermark that is known to hold for this batch; ``None``: none.
            next_watermark: the watermark that will be set after it.
        """
        now, then = self._spark_watermark(batch_watermark), self._spark_watermark(next_watermark)
        if now is not None and self._told(now) != self.ran:
            now = min(now, self.ran) or None  # what Spark really runs with may be less, but never more counts
        with reaching("StateStoreWriter.produceOutputWatermark()"):
            flow = _flow(self._engine.lastExecution().executedPlan(), now, then, self._told(then))
        complete = flow.now if flow.stateful and flow.pending else flow.then
        if flow.then is None:  # Spark has left out every read, for a `limit(0)` above it: no row can come
            complete = then
        complete = None if complete is None else from_spark_watermark(complete, self._windows_close)
        return Results(complete, passes_late=flow.passes_late)


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a batch: no later one is stamped below ``complete``; ``None``: nothing is known."""

    complete: int | None
    passes_late: bool
    """Whether late input can reach the output: past no operator that drops it."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """What leaves an operator."""

    now: int | None
    """The watermark of its results in this batch; ``None``: none."""
    then: int | None
    """The same, with the watermark of the next batch."""
    told: int | None
    """The same, with what Spark is told of that."""
    stateful: bool = False
    pending: bool = False
    """Whether an operator so far wants another batch when the watermark moves on, though nothing new may come."""
    passes_late: bool = False


def _flow(node: Any, now: int | None, then: int | None, told: int | None) -> _Flow:  # noqa: ANN401  # a JVM plan
    """Follow the watermark up a physical plan, as Spark's own propagation does; ``told``: what Spark knows of it."""
    name = kind_of(node)
    if name == "EventTimeWatermarkExec":
        return _Flow(now, then, told, passes_late=True)
    inner = _INNER.get(name)
    below = [getattr(node, inner)()] if inner else each(node.children())
    flows = [_flow(child, now, then, told) for child in below]
    # What has no watermark does not hold one back: the fixed side of a stream-static join.
    least = _Flow(
        _least(flow.now for flow in flows),
        _least(flow.then for flow in flows),
        _least(flow.told for flow in flows),
        *(any(getattr(flow, field) for flow in flows) for field in ("stateful", "pending", "passes_late")),
    )
    return _through(node, name, least) if _is(node, _STATEFUL) else least


def _through(node: Any, name: str, flow: _Flow) -> _Flow:  # noqa: ANN401  # a JVM operator with state
    """Take the watermark through an operator with state."""
    pending = flow.pending or (flow.told is not None and bool(node.shouldRunAnotherBatch(flow.told)))
    passes_late = flow.passes_late and not _drops_late(node, name)
    now, then, told = (_produced(node, watermark) for watermark in (flow.now, flow.then, flow.told))
    return _Flow(now, then, told, stateful=True, pending=pending, passes_late=passes_late)


def _drops_late(node: Any, name: str) -> bool:  # noqa: ANN401  # a JVM operator with state
    if name.startswith("FlatMapGroups"):
        return str(node.timeoutConf().toString()) == "EventTimeTimeout"
    if name.startswith("TransformWithState"):
        return str(node.timeMode().toString()) == "EventTime"
    if not _is(node, "WatermarkSupport"):
        return name == "StreamingSymmetricHashJoinExec"
    # Not the predicates made of it: once they are there, no later action can send the plan to the executors.
    return bool(node.watermarkExpressionForLateEvents().isDefined())


def _produced(node: Any, watermark: int | None) -> int | None:  # noqa: ANN401  # a JVM operator with state
    if watermark is None or watermark == END_OF_TIME:
        return watermark  # a bound must not keep the end from coming
    produced = node.produceOutputWatermark(watermark)
    # applyInPandasWithState names none: its rows are the function's own, and are held against the watermark later.
    return int(produced.get()) if produced.isDefined() else watermark


def _least(watermarks: Iterator[int | None]) -> int | None:
    return min((watermark for watermark in watermarks if watermark is not None), default=None)


def _is(node: Any, interface: str) -> bool:  # noqa: ANN401  # a JVM operator
    kind = node.getClass()
    key = (str(kind.getName()), interface)
    if key not in _known:
        _known[key] = _has_interface(kind, interface)
    return _known[key]


def _has_interface(kind: Any, name: str) -> bool:  # noqa: ANN401  # a JVM class or interface
    """Tell whether a class has an interface, be it through its parents or through other interfaces."""
    if kind is None:
        return False
    faces = list(kind.getInterfaces())
    return any(face.getSimpleName() == name or _has_interface(face, name) for face in faces) or _has_interface(
        kind.getSuperclass(), name
    )
