"""The execution of a query: its start, the metrics of its batch, how far its results are complete, and its watermark.

The watermark of the next batch is set by ``setWatermark`` of the query's watermark tracker.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any, Final

import pyspark
from floodmark.schemas.classify import Offsets
from floodmark.schemas.errors import PlainQueryError, UnsupportedSparkError
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs.internals.analysed import filters_sessions
from floodmark.spark_jobs.internals.checkpoint import merged
from floodmark.spark_jobs.internals.jvm import RELEASE, each, kind_of, nodes, reaching
from floodmark.spark_jobs.lookahead.rules import WindowEnds
from floodmark.spark_jobs.progress.watermarks import WindowsClose, from_spark_watermark, spark_watermark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

_STATEFUL: Final = "StateStoreWriter"  # the interface of all operators with state
_UNARY: Final = "UnaryExecNode"

_FAILS_UNASKED: Final = (4, 1)

_ADAPTIVE: Final = "spark.sql.adaptive.streaming.stateless.enabled"  # on by default since Spark 4.1
_EXCLUDED: Final = "spark.sql.optimizer.excludedRules"
_PUSHES: Final = [
    f"org.apache.spark.sql.catalyst.optimizer.{rule}"
    for rule in ("PushDownPredicates", "PushPredicateThroughNonJoin", "PushDownLeftSemiAntiJoin")
]
_starting: Final = threading.Lock()  # while a start changes settings of its session

_known: Final[dict[tuple[str, str], bool]] = {}  # whether a class of operators has an interface; a cache

_OURS: Final = "floodmark-"  # the prefix of the observations that are read: a user's own may have any types

# Spark has no hook that could refuse a query (what a listener raises is only logged).  So the two methods that start a
# query are wrapped, for DataFrames of `read` only: nothing would advance the watermark of a plain query.
_start: Final = DataStreamWriter.start


def start_query(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query whose watermark a batch handler drives, with settings of its own.

    Without adaptive execution, which would read the rows of a batch before it calls the handler, and hide the plan from
    it.  With a filter or join above sessions, each filter stays where the query has it: Spark would apply one on the
    bounds of a session to the rows, before they are merged to sessions, and lose those of long sessions.
    """
    frame = writer._df  # noqa: SLF001
    spark, keeps_filters = frame.sparkSession, filters_sessions(frame)
    with _starting:
        settings = {_ADAPTIVE: "false"}
        if keeps_filters:
            settings[_EXCLUDED] = ",".join([*filter(None, [spark.conf.get(_EXCLUDED, "")]), *_PUSHES])
        before = {name: spark.conf.get(name, None) for name in settings}
        for name, value in settings.items():
            spark.conf.set(name, value)  # the query copies the settings of the session
        try:
            return _start(writer)
        finally:
            for name, former in before.items():
                spark.conf.unset(name) if former is None else spark.conf.set(name, former)


def last_report(query: StreamingQuery) -> dict[str, Any] | None:
    """Return Spark's report of the last batch, as ``StreamingQueryProgress.json`` has it; ``None``: there is none.

    PySpark's ``lastProgress`` makes an object of it with hundreds of calls of the JVM, which take up to half a second.
    """
    with reaching("StreamingQuery.lastProgress()"):
        last = query._jsq.lastProgress()  # noqa: SLF001
        return None if last is None else json.loads(last.json())


def reports(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return Spark's reports of the batches that it remembers, each as `last_report` does."""
    with reaching("StreamingQuery.recentProgress()"):
        return [json.loads(report.json()) for report in query._jsq.recentProgress()]  # noqa: SLF001


@cache
def refuse_plain_queries(topics_of: Callable[[DataFrame], list[str]]) -> None:
    """Refuse plain queries over DataFrames of `read` from now on; a second call changes nothing."""
    for name in ("start", "toTable"):
        setattr(DataStreamWriter, name, _refusing(getattr(DataStreamWriter, name), topics_of))


def _refusing(plain: Callable[..., Any], topics_of: Callable[[DataFrame], list[str]]) -> Callable[..., Any]:
    @wraps(plain)
    def refusing(writer: DataStreamWriter, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # as Spark has it
        topics = topics_of(writer._df)  # noqa: SLF001
        if topics:
            raise PlainQueryError(topics=", ".join(topics))
        return plain(writer, *args, **options)

    return refusing


class InterruptedBatchError(Exception):
    """Ends a batch because its query is being stopped: Spark recognises its own interrupt by this text."""

    def __init__(self) -> None:
        cause = "An error occurred while calling stop: java.lang.InterruptedException"
        super().__init__(f"py4j.protocol.Py4JJavaError: {cause}")


# py4j logs what a batch raises; a stop is no error.
logging.getLogger("py4j.clientserver").addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], InterruptedBatchError))
)


class Engine:
    """The execution engine of one running query; use it on the query's own thread, inside ``foreachBatch``.

    Watermarks are epoch milliseconds, and Floodmark's unless a name or text says otherwise: see `spark_watermark`.
    ``ends``: the window ends, if windows are the query's only state.  Spark then gets only the watermarks at window
    ends, since it would run a useless batch for each watermark between them.
    """

    def __init__(self, query: StreamingQuery, windows_close: WindowsClose, ends: WindowEnds | None) -> None:
        self._windows_close: Final = windows_close
        self._ends: Final = ends
        with reaching("StreamExecution.watermarkTracker()"):
            self._engine = query._jsq.streamingQuery()  # noqa: SLF001
            self._tracker = self._engine.watermarkTracker()
            self._tracker.currentWatermark()

    def late_watermark(self, known: int | None) -> int | None:
        """Return the watermark by which operators judge late rows: that of the batch before, set to ``known``."""
        with reaching("IncrementalExecution.prevOffsetSeqMetadata()"):
            before = self._engine.lastExecution().prevOffsetSeqMetadata()
            watermark = int(before.get().batchWatermarkMs()) if before.isDefined() else 0
        if known is not None and self._for_spark(self._spark_watermark(known)) == watermark:
            return known
        return from_spark_watermark(watermark, self._windows_close)

    def set_watermark(self, watermark: int | None) -> None:
        """Set the watermark of the next batch; does nothing unless it is higher than that of this batch."""
        then = self._for_spark(self._spark_watermark(watermark))
        if then is not None and then > self.ran:
            self._tracker.setWatermark(then)

    def set_limits(self, spark: SparkSession, limits: Mapping[str, int]) -> None:
        """Set the most records of the next batches, by topic; topics of one source have the same limit."""
        if not limits:
            return
        with reaching("StreamExecution.uniqueSources()"):
            max_rows = spark._jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.maxRows  # type: ignore[union-attr]  # noqa: SLF001
            sources = self._engine.uniqueSources()
            for pair in each(self._engine.availableOffsets()):
                source, topics = pair.productElement(0), json.loads(pair.productElement(1).json())
                for limit in {limits[topic] for topic in topics if topic in limits}:
                    sources = sources.updated(source, max_rows(limit))
            getattr(self._engine, "uniqueSources_$eq")(sources)

    @property
    def ran(self) -> int:
        """The watermark of this batch as Spark counts it, until `set_watermark` is called; 0: none."""
        return int(self._tracker.currentWatermark())

    def _spark_watermark(self, watermark: int | None) -> int | None:
        return None if watermark is None else spark_watermark(watermark, self._windows_close)

    def _for_spark(self, watermark: int | None) -> int | None:
        """Return what Spark gets for a watermark as it counts it."""
        if watermark is None or watermark == END_OF_TIME or self._ends is None:
            return watermark
        return self._ends.floor(watermark)

    def observed(self) -> dict[str, dict[str, Any]]:
        """Return the metrics of this batch by the names of the observations; one without a row may be missing."""
        with reaching("IncrementalExecution.observedMetrics()"):
            metrics = self._engine.lastExecution().observedMetrics()
            names = [str(name) for name in each(metrics.keys()) if name.startswith(_OURS)]
            return {name: json.loads(metrics.apply(name).json()) for name in names}

    def offsets(self) -> tuple[Offsets, Offsets]:
        """Return the start and end offsets of this batch, over all sources; before a commit its plan has the start."""
        with reaching("StreamExecution.availableOffsets()"):
            begins, ends = self._engine.committedOffsets(), self._engine.availableOffsets()
            started = merged(pair.productElement(1).json() for pair in each(begins))
            if not started:
                scans = nodes(self._engine.lastExecution().executedPlan())
                started = merged(node.start().json() for node in scans if kind_of(node) == "MicroBatchScanExec")
            return started, merged(pair.productElement(1).json() for pair in each(ends))

    def ask_latest_offsets(self) -> None:
        """Let each source ask Kafka where its topics end; needed in the first batch of a start.

        Spark asks when it plans a batch.  If an earlier start has planned the batch, the connector of Spark 4.1 fails
        after the commit: ``the return value of "scala.Option.get()" is null``.
        """
        if RELEASE == _FAILS_UNASKED:
            with reaching("MicroBatchStream.latestOffset()"):
                for pair in each(self._engine.availableOffsets()):
                    source, offset = pair.productElement(0), pair.productElement(1)
                    source.latestOffset(source.deserializeOffset(offset.json()), source.getDefaultReadLimit())

    def results(self, batch_watermark: int | None, next_watermark: int | None) -> "Results":
        """Return how far the results of this batch are complete, by its watermark and that of the next batch."""
        now, then = self._spark_watermark(batch_watermark), self._spark_watermark(next_watermark)
        if now is not None and self._for_spark(now) != self.ran:
            now = min(now, self.ran) or None  # Spark may really have a lower one; a higher one does not count
        with reaching("StateStoreWriter.produceOutputWatermark()"):
            flow = _flow(self._engine.lastExecution().executedPlan(), now, then, self._for_spark(then))
        complete = flow.now if flow.stateful and flow.pending else flow.then
        if flow.then is None:  # no row can come: the optimizer has left out every read, for example under `limit(0)`
            complete = then
        complete = None if complete is None else from_spark_watermark(complete, self._windows_close)
        return Results(complete, passes_late=flow.passes_late)


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a batch."""

    complete: int | None  # a lower bound of the event times in later batches' results; ``None``: unknown
    passes_late: bool  # whether late input can reach the output, because no operator on its way drops it


@dataclass(frozen=True, slots=True)
class _Flow:
    """The watermarks of an operator's results."""

    now: int | None  # in this batch
    then: int | None  # in the next batch
    for_spark: int | None  # in the next batch, as Spark gets it
    stateful: bool = False
    pending: bool = False  # whether an operator wants another batch when the watermark advances, even without new rows
    passes_late: bool = False


def _flow(node: Any, now: int | None, then: int | None, for_spark: int | None) -> _Flow:  # noqa: ANN401  # a JVM plan
    """Follow the watermark up a physical plan, as Spark's own propagation does; each call of the JVM costs 0.1 ms."""
    name = str(node.productPrefix()) or kind_of(node)
    if name == "AdaptiveSparkPlanExec":  # what it has run is hidden, so that nothing would hold the watermark
        raise UnsupportedSparkError(version=pyspark.__version__, missing=_ADAPTIVE, reason="it does not turn it off")
    if name == "EventTimeWatermarkExec":
        return _Flow(now, then, for_spark, passes_late=True)
    is_unary = name == "ReusedExchangeExec" or _is(node, name, _UNARY)
    below = [node.child()] if is_unary else each(node.children())
    flows = [_flow(child, now, then, for_spark) for child in below]
    # An input without a watermark holds none back: the static side of a stream-static join.
    least = _Flow(
        _least(flow.now for flow in flows),
        _least(flow.then for flow in flows),
        _least(flow.for_spark for flow in flows),
        *(any(getattr(flow, field) for flow in flows) for field in ("stateful", "pending", "passes_late")),
    )
    return _through(node, name, least) if _is(node, name, _STATEFUL) else least


def _through(node: Any, name: str, flow: _Flow) -> _Flow:  # noqa: ANN401  # a JVM operator with state
    """Follow the watermark through an operator with state."""
    pending = flow.pending or (flow.for_spark is not None and bool(node.shouldRunAnotherBatch(flow.for_spark)))
    passes_late = flow.passes_late and not _drops_late(node, name)
    now, then, for_spark = (_produced(node, watermark) for watermark in (flow.now, flow.then, flow.for_spark))
    return _Flow(now, then, for_spark, stateful=True, pending=pending, passes_late=passes_late)


def _drops_late(node: Any, name: str) -> bool:  # noqa: ANN401  # a JVM operator with state
    if name.startswith("FlatMapGroups"):
        return str(node.timeoutConf().toString()) == "EventTimeTimeout"
    if name.startswith("TransformWithState"):
        return str(node.timeMode().toString()) == "EventTime"
    if not _is(node, name, "WatermarkSupport"):
        return name == "StreamingSymmetricHashJoinExec"
    # The predicates would tell it, too, but creating them keeps later actions from sending the plan to the executors.
    return bool(node.watermarkExpressionForLateEvents().isDefined())


def _produced(node: Any, watermark: int | None) -> int | None:  # noqa: ANN401  # a JVM operator with state
    if watermark is None or watermark == END_OF_TIME:
        return watermark  # no bound holds back the end of time
    produced = node.produceOutputWatermark(watermark)
    # applyInPandasWithState has none: the event times of its rows are checked later.
    return int(produced.get()) if produced.isDefined() else watermark


def _least(watermarks: Iterator[int | None]) -> int | None:
    return min((watermark for watermark in watermarks if watermark is not None), default=None)


def _is(node: Any, name: str, interface: str) -> bool:  # noqa: ANN401  # a JVM operator
    key = (name, interface)
    if key not in _known:
        _known[key] = _has_interface(node.getClass(), interface)
    return _known[key]


def _has_interface(kind: Any, name: str) -> bool:  # noqa: ANN401  # a JVM class or interface
    """Tell whether a class has an interface, also through its parents or other interfaces."""
    if kind is None:
        return False
    found = any(face.getSimpleName() == name or _has_interface(face, name) for face in kind.getInterfaces())
    return found or _has_interface(kind.getSuperclass(), name)
