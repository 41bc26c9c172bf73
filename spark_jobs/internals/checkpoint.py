"""The layout of Spark's checkpoints: which batch was planned and committed, where it ended, what it ran with."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from floodmark.schemas.classify import Offsets, Partition
from floodmark.spark_jobs.internals.hadoop import files
from floodmark.spark_jobs.internals.jvm import RELEASE, each, kind_of, reaching
from floodmark.spark_jobs.internals.local_files import LocalFiles
from floodmark.spark_jobs.progress.offsets import from_spark, to_spark
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_PLANNED: Final = "offsets"
_COMMITTED: Final = "commits"
_STATE: Final = "state"
_SOURCES: Final = "sources"

_VERSION: Final = "v1"
_NONE: Final = "-"
"""Stands for a source that has no offset yet."""

_EARLIEST: Final = -2
"""Spark's offset for the beginning of a partition."""

BATCHES_RETAINED: Final = 100
"""How many batches Spark keeps by default (``spark.sql.streaming.minBatchesToRetain``)."""

_METADATA_OPT: Final = (4, 2)
"""The Spark in which ``OffsetSeq.metadata`` became ``metadataOpt``."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that a query has committed."""

    batch_id: int
    offsets: Offsets
    """Where it ended."""
    watermark: int
    """What Spark ran it with, epoch milliseconds; 0: none was set."""


def committed(query: StreamingQuery) -> Committed | None:
    """Return the last batch that a query has committed, from Spark's logs: before its first batch, too.

    Raises:
        UnsupportedSparkError: where the logs cannot be reached.
    """
    with reaching("StreamExecution.commitLog()"):
        execution = query._jsq.streamingQuery()  # noqa: SLF001
        latest = execution.commitLog().getLatestBatchId()
        if not latest.isDefined():
            return None
        logged = execution.offsetLog().get(latest.get()).get()
        metadata = logged.metadataOpt() if RELEASE >= _METADATA_OPT else logged.metadata()
        by_name = kind_of(logged) == "OffsetMap"  # of sources with names, since Spark 4.2
        offsets = each(logged.offsetsMap().values() if by_name else logged.offsets())
        ends = merged(offset.get() for offset in offsets if offset.isDefined())
        return Committed(int(latest.get()), ends, int(metadata.get().batchWatermarkMs()))


def merged(offsets: Iterable[Any]) -> dict[Partition, int]:
    """Bring the offsets of several Kafka sources together."""
    return _together(offset.json() for offset in offsets)


def _together(texts: Iterable[str]) -> dict[Partition, int]:
    return {place: at for text in texts for place, at in from_spark(json.loads(text)).items()}


def range_options(start: Offsets, end: Offsets) -> dict[str, str]:
    """Return the options of Spark's Kafka source for a read of the partitions that have an end, and of no other.

    Args:
        start: where the read begins; partitions not named begin with their first record.
        end: where it ends.
    """
    begins = to_spark({place: start.get(place, _EARLIEST) for place in end})
    # The partitions by name: a topic that has grown since has some that have no end here.
    assigned = {topic: [int(part) for part in parts] for topic, parts in begins.items()}
    options = {"assign": assigned, "startingOffsets": begins, "endingOffsets": to_spark(end)}
    return {name: json.dumps(value) for name, value in options.items()}


class Checkpoint:
    """What Spark has written below one checkpoint location; ``files`` is the whole folder, for files beside Spark's."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.files: Final = files(spark, location)

    @property
    def is_on_disk(self) -> bool:
        """Whether it lies on a local disk."""
        return isinstance(self.files, LocalFiles)

    @property
    def is_used(self) -> bool:
        """Whether a query has been started here."""
        return self.files.exists(_PLANNED)

    @property
    def is_planned(self) -> bool:
        """Whether a query has planned a batch here that Spark still knows; its folders may be there without one."""
        return bool(self.files.numbers(_PLANNED))

    @property
    def is_committed(self) -> bool:
        """Whether a query has committed a batch here."""
        return bool(self.files.numbers(_COMMITTED))

    @property
    def is_stateful(self) -> bool:
        """Whether Spark has kept state of operators here."""
        return self.files.exists(_STATE)

    @property
    def last_committed(self) -> int | None:
        """The last batch that a query has committed here; ``None``: none."""
        return max(self.files.numbers(_COMMITTED), default=None)

    def planned_end(self, batch_id: int) -> Offsets | None:
        """Return where a batch was planned to end; ``None``: it was not planned.

        Raises:
            UnsupportedSparkError: where Spark has written the plan in a way that is not known.
        """
        plan = self.files.read(f"{_PLANNED}/{batch_id}")
        with reaching("the log of planned batches"):
            return None if plan is None else _ends(plan)

    def planned_watermark(self, batch_id: int) -> int:
        """Return the watermark that a planned batch runs with, as Spark counts it, epoch milliseconds; 0: none is set.

        Raises:
            UnsupportedSparkError: where Spark has written the plan in a way that is not known.
        """
        plan = self.files.read(f"{_PLANNED}/{batch_id}")
        with reaching("the log of planned batches"):
            return 0 if plan is None else int(_metadata(plan)["batchWatermarkMs"])

    def lower_watermark(self, batch_id: int, watermark: int) -> None:
        """Let the batch behind a committed one run with no more than some watermark.

        Args:
            batch_id: of the committed one.
            watermark: as Spark counts it, epoch milliseconds.
        """
        for name, field in (
            (f"{_PLANNED}/{batch_id + 1}", "batchWatermarkMs"),
            (f"{_COMMITTED}/{batch_id}", "nextBatchWatermarkMs"),
        ):
            text = self.files.read(name)
            if text is not None and _metadata(text).get(field, watermark) > watermark:
                self.files.write(name, _with_metadata(text, {field: watermark}))

    def begin_at(self, begins: Offsets) -> None:
        """Let a query begin at other offsets than those that its sources have noted when they planned the first batch.

        Raises:
            UnsupportedSparkError: where Spark has written the notes in a way that is not known.
        """
        with reaching("the notes of Kafka's sources"):
            for number in self.files.numbers(_SOURCES):
                name = f"{_SOURCES}/{number}/0"
                head, _, line = str(self.files.read(name)).rpartition("\n")
                self.files.write(name, f"{head}\n{_moved(line, begins)}")

    def plan(self, batch_id: int, end: Offsets, watermark: int) -> None:
        """Plan a batch, after the pattern of the first one.

        Args:
            batch_id: of the batch.
            end: where it ends.
            watermark: what it runs with, as Spark counts it, epoch milliseconds; 0: none.

        Raises:
            UnsupportedSparkError: where Spark has written the first plan in a way that is not known.
        """
        with reaching("the log of planned batches"):
            pattern = str(self.files.read(f"{_PLANNED}/0"))
            _ends(pattern)
            version, metadata, *lines = pattern.split("\n")
            moved = "\n".join([version, metadata, *(line if line == _NONE else _moved(line, end) for line in lines)])
        fields = {"batchWatermarkMs": watermark, "batchTimestampMs": time.time_ns() // 1_000_000}
        self.files.write(f"{_PLANNED}/{batch_id}", _with_metadata(moved, fields))

    def raise_watermark(self, batch_id: int, watermark: int) -> None:
        """Let the batch behind a committed one run with a higher watermark, as Spark counts it, epoch milliseconds."""
        name, field = f"{_COMMITTED}/{batch_id}", "nextBatchWatermarkMs"
        text = self.files.read(name)
        if text is not None and _metadata(text)[field] < watermark:
            self.files.write(name, _with_metadata(text, {field: watermark}))

    def plan_empty_batch(self) -> int | None:
        """Plan the batch without rows that a query owes which was stopped before Spark has planned it.

        Spark closes windows in an empty batch behind the one that has moved the watermark, but a query that starts
        again plans none before there are new rows: at the end of all input it would wait for ever.  This writes the
        plan that Spark would have written: the same offsets, with the watermark of the last commit.

        Returns:
            The number of the batch; ``None``: nothing is owed.
        """
        plans, commits = self.files.numbers(_PLANNED), self.files.numbers(_COMMITTED)
        if not self.is_stateful or not commits or max(plans, default=-1) != max(commits):
            return None  # no operator waits, nothing has run, or the last batch will run again
        last = max(commits)
        plan, commit = self.files.read(f"{_PLANNED}/{last}"), self.files.read(f"{_COMMITTED}/{last}")
        if plan is None or commit is None:
            return None
        watermark = int(_metadata(commit)["nextBatchWatermarkMs"])
        if watermark <= _metadata(plan)["batchWatermarkMs"]:
            return None
        fields = {"batchWatermarkMs": watermark, "batchTimestampMs": time.time_ns() // 1_000_000}
        self.files.write(f"{_PLANNED}/{last + 1}", _with_metadata(plan, fields))
        return last + 1


def _metadata(text: str) -> dict[str, Any]:
    """Read the second line of a file of Spark's logs."""
    fields: dict[str, Any] = json.loads(text.split("\n")[1])
    return fields


def _with_metadata(text: str, fields: Mapping[str, Any]) -> str:
    """Return a file of Spark's logs with some fields of its second line replaced."""
    version, metadata, *rest = text.split("\n")
    line = json.dumps({**json.loads(metadata), **fields}, separators=(",", ":"))
    return "\n".join([version, line, *rest])


def _moved(line: str, offsets: Offsets) -> str:
    """Return the line of a source with other offsets for its topics."""
    by_topic = to_spark(offsets)
    return json.dumps({topic: by_topic.get(topic, {}) for topic in json.loads(line)}, separators=(",", ":"))


def _ends(plan: str) -> dict[Partition, int]:
    """Bring together the offsets of all Kafka sources in a plan of Spark, which has a line for each."""
    version, _, *lines = plan.split("\n")
    if version != _VERSION:
        raise AttributeError(version)
    return _together(line for line in lines if line != _NONE)
