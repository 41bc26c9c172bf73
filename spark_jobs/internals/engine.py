"""The internals of Spark that the drive needs: the one module that touches them, and checks that they are there.

They are plain JVM objects reached through py4j, so only classic sessions (not Connect) have them:

- the analysed plan: which operators stand in it, over which Floodmark reads;
- the last execution of a query: the metrics its batch observed, and how far its operators are complete;
- the logs of a query's checkpoint: which batch it has committed, where that ended and what it ran with;
- the watermark tracker of a query, whose ``setWatermark`` moves the watermark of the next batch.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyspark
from floodmark.schemas.errors import CorruptSnapshotError, UnsupportedSparkError
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs.queries.plan import Operator
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_STATEFUL: Final = "StateStoreWriter"
"""The interface of all operators that keep state from batch to batch."""

_INNER: Final = {
    "AdaptiveSparkPlanExec": "executedPlan",
    "ReusedExchangeExec": "child",
    "ShuffleQueryStageExec": "plan",
}
"""Operators that hide others, and the method that shows them."""

_ALL_FIELDS: Final = 2**31 - 1
_SOME_TIME: Final = 10**13
"""Any time: it must only be too large for a JVM's int."""

_known: Final[dict[tuple[str, str], bool]] = {}
"""Which class of operators has which interface: a class does not change."""

_STATEFUL_LOGICAL: Final = {
    "Aggregate",
    "Deduplicate",
    "DeduplicateWithinWatermark",
    "FlatMapGroupsInPandasWithState",
    "FlatMapGroupsWithState",
    "Join",
    "TransformWithState",
    "TransformWithStateInPandas",
    "TransformWithStateInPySpark",
}


def _unsupported(missing: str, error: object) -> UnsupportedSparkError:
    return UnsupportedSparkError(version=pyspark.__version__, missing=missing, reason=str(error).splitlines()[0][:200])


def _nodes(plan: Any) -> Iterator[Any]:  # noqa: ANN401  # a JVM plan
    yield plan
    for child in _each(plan.children()):
        yield from _nodes(child)


def observations(frame: DataFrame) -> list[str]:
    """Return the names of all observations in a frame's plan.

    Raises:
        UnsupportedSparkError: where the plan cannot be reached.
    """
    try:
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        return [node.name() for node in _nodes(plan) if node.getClass().getSimpleName() == "CollectMetrics"]
    except (AttributeError, TypeError, Py4JError) as error:
        raise _unsupported("DataFrame._jdf.queryExecution().analyzed()", error) from error


def operators(frame: DataFrame, is_reading: Callable[[str], bool]) -> Operator:
    """Return a frame's query as Spark has analysed it, down to its readings and its tables.

    Args:
        frame: the DataFrame.
        is_reading: whether the observation of that name is that of a reading.

    Raises:
        UnsupportedSparkError: where the plan cannot be reached.
    """
    try:
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        helper = frame.sparkSession._jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper  # type: ignore[union-attr]  # noqa: SLF001
        some = frame.sparkSession._jvm.scala.Some(_SOME_TIME)  # type: ignore[union-attr]  # noqa: SLF001
        return _operator(plan, is_reading, lambda join: _is_bounded(join, helper, some))
    except (AttributeError, TypeError, Py4JError) as error:
        raise _unsupported("DataFrame._jdf.queryExecution().analyzed()", error) from error


def observations_behind_state(frame: DataFrame) -> list[str]:
    """Return the names of those observations in a frame's plan that see what an operator with state has given out.

    Raises:
        UnsupportedSparkError: where the plan cannot be reached.
    """
    try:
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        watching = [node for node in _nodes(plan) if node.getClass().getSimpleName() == "CollectMetrics"]
        return [node.name() for node in watching if any(map(_keeps_state, _nodes(node)))]
    except (AttributeError, TypeError, Py4JError) as error:
        raise _unsupported("DataFrame._jdf.queryExecution().analyzed()", error) from error


def _keeps_state(node: Any) -> bool:  # noqa: ANN401  # a JVM plan
    """Tell whether a logical operator keeps state from batch to batch; a join does between two streams."""
    kind = str(node.getClass().getSimpleName())
    # Beside its stream an operator may have a table, such as the empty initial state of transformWithState.
    both = kind != "Join" or all(child.isStreaming() for child in _each(node.children()))
    return kind in _STATEFUL_LOGICAL and bool(node.isStreaming()) and both


def delays_of_deduplications(frame: DataFrame, metadata: str) -> list[int]:
    """Return the time within which each ``dropDuplicatesWithinWatermark`` of a frame's plan forgets, milliseconds.

    Args:
        frame: any.
        metadata: the name under which a column has that time.

    Raises:
        UnsupportedSparkError: where the plan cannot be reached.
    """
    try:
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        deduplications = [n for n in _nodes(plan) if n.getClass().getSimpleName() == "DeduplicateWithinWatermark"]
        columns = [column.metadata() for node in deduplications for column in _each(node.child().output())]
        return [int(found.getLong(metadata)) for found in columns if found.contains(metadata)]
    except (AttributeError, TypeError, Py4JError) as error:
        raise _unsupported("DataFrame._jdf.queryExecution().analyzed()", error) from error


def _operator(node: Any, is_reading: Callable[[str], bool], is_bounded: Callable[[Any], bool]) -> Operator:  # noqa: ANN401
    kind = str(node.getClass().getSimpleName())
    if not node.isStreaming():
        return Operator(kind, streaming=False, columns=str(node.schema().simpleString()))
    if kind == "CollectMetrics" and is_reading(str(node.name())):
        return Operator(kind, reading=str(node.name()))
    children = tuple(_operator(child, is_reading, is_bounded) for child in _each(node.children()))
    return Operator(
        kind,
        text=str(node.simpleString(_ALL_FIELDS)),
        children=children,
        columns=str(node.schema().simpleString()) if kind == "EventTimeWatermark" else "",
        bounded=kind != "Join" or not all(child.streaming for child in children) or is_bounded(node),
    )


def _is_bounded(join: Any, helper: Any, some: Any) -> bool:  # noqa: ANN401  # a JVM join, Spark's own judge, a time
    if helper.isWatermarkInJoinKeys(join):
        return True
    left, right, condition = join.left().outputSet(), join.right().outputSet(), join.condition()
    both = ((left, right), (right, left))
    return all(helper.getStateValueWatermark(one, other, condition, some).isDefined() for one, other in both)


def check(frame: DataFrame, output_mode: str) -> None:
    """Ask Spark whether it takes a streaming query, as it would at the start.

    Raises:
        AnalysisException: where it does not.
        UnsupportedSparkError: where it cannot be asked.
    """
    try:
        spark: Any = frame.sparkSession._jvm.org.apache.spark.sql  # type: ignore[union-attr]  # noqa: SLF001
        mode = getattr(spark.streaming.OutputMode, output_mode.capitalize())()
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        spark.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, mode)
    except (AttributeError, TypeError, Py4JError) as error:
        raise _unsupported("UnsupportedOperationChecker.checkForStreaming()", error) from error


class InterruptedBatchError(Exception):
    """Raised in a batch of a query that is being stopped: Spark takes it for its own interrupt, by the text."""

    def __init__(self) -> None:
        """Say what Spark looks for."""
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
        )


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that a query has committed."""

    batch_id: int
    offsets: dict[str, Any]
    """Where it ended: topic to partition (as text) to offset."""
    watermark: int
    """What Spark ran it with, epoch milliseconds; 0: none was set."""


def committed(query: StreamingQuery) -> Committed | None:
    """Return the last batch that a query has committed, from Spark's logs: before its first batch, too.

    Raises:
        UnsupportedSparkError: where the logs cannot be reached.
    """
    try:
        execution = query._jsq.streamingQuery()  # noqa: SLF001
        latest = execution.commitLog().getLatestBatchId()
        if not latest.isDefined():
            return None
        logged = execution.offsetLog().get(latest.get()).get()
        renamed = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
        metadata = logged.metadataOpt() if renamed else logged.metadata()
        by_name = logged.getClass().getSimpleName() == "OffsetMap"  # of sources with names, since Spark 4.2
        offsets = _each(logged.offsetsMap().values() if by_name else logged.offsets())
        ends = _merged(offset.get() for offset in offsets if offset.isDefined())
        return Committed(int(latest.get()), ends, int(metadata.get().batchWatermarkMs()))
    except (AttributeError, TypeError, Py4JError) as error:
        raise _unsupported("StreamExecution.commitLog()", error) from error


class Engine:
    """The execution engine of one running query; valid on the query's own thread, that is inside ``foreachBatch``.

    Raises:
        UnsupportedSparkError: where this Spark lacks what is needed; before any watermark has moved.
    """

    def __init__(self, query: StreamingQuery) -> None:
        """Reach through the Python wrapper, and look whether all is there."""
        try:
            self._engine = query._jsq.streamingQuery()  # noqa: SLF001
            self._tracker = self._engine.watermarkTracker()
            self._tracker.currentWatermark()
        except (AttributeError, TypeError, Py4JError) as error:
            raise _unsupported("StreamExecution.watermarkTracker()", error) from error

    @property
    def watermark(self) -> int:
        """The watermark that Spark runs this batch with, epoch milliseconds; 0 before any is set."""
        return int(self._tracker.currentWatermark())

    @property
    def late_watermark(self) -> int:
        """The watermark by which this batch's operators judge late rows: that of the batch before; 0: none was set."""
        try:
            before = self._engine.lastExecution().prevOffsetSeqMetadata()
            return int(before.get().batchWatermarkMs()) if before.isDefined() else 0
        except (AttributeError, TypeError, Py4JError) as error:
            raise _unsupported("IncrementalExecution.prevOffsetSeqMetadata()", error) from error

    def set_watermark(self, watermark: int) -> None:
        """Set the watermark that the next batch runs with, epoch milliseconds; a lower one than now is not taken."""
        if watermark > self.watermark:
            self._tracker.setWatermark(watermark)

    def observed(self) -> dict[str, dict[str, Any]]:
        """Return what the observations of this batch saw, by name; one without a row may be missing."""
        try:
            metrics = self._engine.lastExecution().observedMetrics()
            found = {}
            for name in _each(metrics.keys()):
                row = metrics.apply(name)
                fields = row.schema().fieldNames()
                found[str(name)] = {fields[index]: row.get(index) for index in range(len(fields))}
        except (AttributeError, TypeError, Py4JError) as error:
            raise _unsupported("IncrementalExecution.observedMetrics()", error) from error
        return found

    def offsets(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return where this batch begins and ends: topic to partition (as text) to offset, over all its sources."""
        try:
            begins, ends = self._engine.committedOffsets(), self._engine.availableOffsets()
            started = _merged(map(_offset, _each(begins)))
            return started or self._initial(), _merged(map(_offset, _each(ends)))
        except (AttributeError, TypeError, Py4JError) as error:
            raise _unsupported("StreamExecution.availableOffsets()", error) from error

    def _initial(self) -> dict[str, Any]:
        """Return where the first batch of a query begins, from its plan: nothing is committed yet."""
        nodes = _nodes(self._engine.lastExecution().executedPlan())
        return _merged(node.start() for node in nodes if node.getClass().getSimpleName() == "MicroBatchScanExec")

    def results(self, ran_with: int | None, next_: int | None) -> "Results":
        """Say how far the results of this batch are complete.

        Args:
            ran_with: the watermark that is known to hold for this batch, as Spark counts it; ``None``: none.
            next_: the watermark that will be set after it.
        """
        try:
            plan = self._engine.lastExecution().executedPlan()
            flow = _flow(plan, ran_with, next_)
        except (AttributeError, TypeError, Py4JError) as error:
            raise _unsupported("StateStoreWriter.produceOutputWatermark()", error) from error
        complete = flow.then if not flow.stateful else flow.now if flow.pending else flow.then
        return Results(complete, passes_late=flow.passes_late)


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a batch: no later one is stamped at or below ``complete``, epoch milliseconds as Spark counts."""

    complete: int | None
    passes_late: bool
    """Whether late input can reach the output: past no operator that drops it."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """What leaves an operator."""

    now: int | None
    """The watermark of its results, given what the batch ran with; ``None``: none."""
    then: int | None
    """The same, given what the next batch runs with."""
    stateful: bool = False
    pending: bool = False
    """Whether an operator so far wants another batch when the watermark moves on, though nothing new may come."""
    passes_late: bool = False


def _flow(node: Any, now: int | None, then: int | None) -> _Flow:  # noqa: ANN401  # a JVM plan
    """Follow the watermark up a physical plan, as Spark's own propagation does."""
    name = str(node.getClass().getSimpleName())
    if name == "EventTimeWatermarkExec":
        return _Flow(now, then, passes_late=True)
    inner = _INNER.get(name)
    below = [getattr(node, inner)()] if inner else _each(node.children())
    flows = [_flow(child, now, then) for child in below]
    # What has no watermark does not hold one back: the fixed side of a stream-static join.
    least = _Flow(
        _least(flow.now for flow in flows),
        _least(flow.then for flow in flows),
        *(any(getattr(flow, field) for flow in flows) for field in ("stateful", "pending", "passes_late")),
    )
    return _through(node, name, least) if _is(node, _STATEFUL) else least


def _through(node: Any, name: str, flow: _Flow) -> _Flow:  # noqa: ANN401  # a JVM operator with state
    """Take the watermark through an operator with state."""
    pending = flow.pending or (flow.then is not None and bool(node.shouldRunAnotherBatch(flow.then)))
    passes_late = flow.passes_late and not _drops_late(node, name)
    return _Flow(_produced(node, flow.now), _produced(node, flow.then), True, pending, passes_late)  # noqa: FBT003


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
    # applyInPandasWithState does not say: its rows are the function's own, and are held against the watermark later.
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


def _each(collection: Any) -> Iterator[Any]:  # noqa: ANN401  # any of Scala's
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _offset(progress: Any) -> Any:  # noqa: ANN401  # a JVM pair of source and offset
    return progress.productElement(1)


def _merged(offsets: Iterator[Any]) -> dict[str, Any]:
    """Bring the offsets of several Kafka sources together: topic to partition (as text) to offset."""
    merged: dict[str, Any] = {}
    for offset in offsets:
        merged.update(json.loads(offset.json()))
    return merged


class Files:
    """Small text files below one folder, on whatever file system Hadoop finds for its address."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        """Reach the file system."""
        try:
            jvm: Any = spark._jvm  # noqa: SLF001
            self._fs_package = jvm.org.apache.hadoop.fs
            self._folder = self._fs_package.Path(folder)
            configuration = spark._jsc.hadoopConfiguration()  # noqa: SLF001
            self._fs = self._folder.getFileSystem(configuration)
            self._context = self._fs_package.FileContext.getFileContext(self._fs.getUri(), configuration)
            self._io = jvm.org.apache.commons.io.IOUtils
            gateway: Any = spark.sparkContext._gateway  # noqa: SLF001
            self._overwrite = gateway.new_array(self._fs_package.Options.Rename, 1)
            self._overwrite[0] = self._fs_package.Options.Rename.OVERWRITE
        except (AttributeError, TypeError, Py4JError) as error:
            raise _unsupported("the Hadoop file system", error) from error

    def _path(self, name: str) -> Any:  # noqa: ANN401  # a JVM path
        return self._fs_package.Path(self._folder, name)

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file or folder."""
        return bool(self._fs.exists(self._path(name)))

    def numbers(self, name: str) -> list[int]:
        """Return the numbers that are names of files in a folder: the batches of one of Spark's logs."""
        path = self._path(name)
        names = [str(status.getPath().getName()) for status in self._fs.listStatus(path)] if self.exists(name) else []
        return [int(found) for found in names if found.isdecimal()]

    def read(self, name: str) -> str | None:
        """Return a file's text, or ``None`` where it is not there."""
        path = self._path(name)
        if not self._fs.exists(path):
            return None
        try:
            stream = self._fs.open(path)
            try:
                return str(self._io.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Py4JJavaError as error:  # a checksum that does not fit, for one
            reason = str(error.java_exception).splitlines()[0]
            raise CorruptSnapshotError(where=str(path), reason=reason, advice="restore an intact copy") from error

    def write(self, name: str, text: str) -> None:
        """Write a file whole or not at all."""
        path = self._path(name)
        draft = self._path(f"{name}.draft")
        stream = self._fs.create(draft, True)  # noqa: FBT003  # overwrite
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self._context.rename(draft, path, self._overwrite)

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        self._fs.delete(self._path(name), False)  # noqa: FBT003  # not recursive
