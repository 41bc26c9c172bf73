"""Spark's files in a checkpoint: which batches are planned and committed, with their offsets and watermarks."""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from floodmark.schemas.classify import Offsets, Partition
from floodmark.spark_jobs.internals.files import LocalFiles, corrupt, files
from floodmark.spark_jobs.internals.jvm import RELEASE, each, kind_of, reaching
from floodmark.spark_jobs.progress.offsets import from_spark, to_spark
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_PLANNED: Final = "offsets"
_COMMITTED: Final = "commits"
_STATE: Final = "state"
_SOURCES: Final = "sources"

_VERSION: Final = "v1"
_NONE: Final = "-"  # a source without an offset

_EARLIEST: Final = -2  # Spark's offset for the beginning of a partition

BATCHES_RETAINED: Final = 100  # how many batches Spark keeps by default (``spark.sql.streaming.minBatchesToRetain``)

_METADATA_OPT: Final = (4, 2)  # the Spark version in which ``OffsetSeq.metadata`` became ``metadataOpt``


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that a query has committed."""

    batch_id: int
    offsets: Offsets  # where it ended
    watermark: int  # the watermark it ran with, as Spark counts it, epoch milliseconds; 0: none


def committed(query: StreamingQuery) -> Committed | None:
    """Return the last batch that a query has committed, also in earlier runs."""
    with reaching("StreamExecution.commitLog()"):
        execution = query._jsq.streamingQuery()  # noqa: SLF001
        latest = execution.commitLog().getLatestBatchId()
        if not latest.isDefined():
            return None
        logged = execution.offsetLog().get(latest.get()).get()
        metadata = logged.metadataOpt() if RELEASE >= _METADATA_OPT else logged.metadata()
        by_name = kind_of(logged) == "OffsetMap"  # if the sources have names, since Spark 4.2
        offsets = each(logged.offsetsMap().values() if by_name else logged.offsets())
        ends = merged(offset.get().json() for offset in offsets if offset.isDefined())
        return Committed(int(latest.get()), ends, int(metadata.get().batchWatermarkMs()))


def merged(texts: Iterable[str]) -> dict[Partition, int]:
    """Merge the offsets of several Kafka sources, each as JSON."""
    return {place: at for text in texts for place, at in from_spark(json.loads(text)).items()}


def range_options(start: Offsets, end: Offsets) -> dict[str, str]:
    """Return the options of Spark's Kafka source for a read of the partitions in ``end``, up to these offsets.

    A partition that ``start`` lacks is read from its first record.
    """
    begins = to_spark({place: start.get(place, _EARLIEST) for place in end})
    # Not by topic: a topic may have got more partitions since.
    assigned = {topic: [int(part) for part in parts] for topic, parts in begins.items()}
    options = {"assign": assigned, "startingOffsets": begins, "endingOffsets": to_spark(end)}
    return {name: json.dumps(value) for name, value in options.items()}


class Checkpoint:
    """Spark's files in a checkpoint location; watermarks are as Spark counts them, epoch milliseconds; 0: none."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.files: Final = files(spark, location)
        self._location: Final = location

    @property
    def is_on_disk(self) -> bool:
        """Whether it is on a local disk."""
        return isinstance(self.files, LocalFiles)

    @property
    def is_used(self) -> bool:
        """Whether a query has started here."""
        return self.files.exists(_PLANNED)

    @property
    def is_planned(self) -> bool:
        """Whether a query has planned a batch here."""
        return bool(self.files.numbers(_PLANNED))

    @property
    def is_stateful(self) -> bool:
        """Whether Spark has stored state of operators here."""
        return self.files.exists(_STATE)

    @property
    def last_committed(self) -> int | None:
        """The last batch that a query has committed here; ``None``: none."""
        return max(self.files.numbers(_COMMITTED), default=None)

    def _logged(self, name: str) -> str | None:
        """Return a file of a log of Spark; ``None``: there is none."""
        text = self.files.read(name)
        try:
            if text is not None:
                version, metadata, *lines = text.split("\n")
                sources = (lines or [""]) if name.startswith(_PLANNED) and version == _VERSION else []
                for line in (metadata, *sources):
                    if line != _NONE:
                        json.loads(line)
        except ValueError as error:  # Spark does not write them through to the disk
            raise corrupt(f"{self._location}/{name}", f"it is not whole: {error}") from error
        return text

    def planned_end(self, batch_id: int) -> Offsets | None:
        """Return the end offsets of a planned batch; ``None``: it is not planned."""
        plan = self._logged(f"{_PLANNED}/{batch_id}")
        with reaching("the log of planned batches"):
            return None if plan is None else _ends(plan)

    def planned_watermark(self, batch_id: int) -> int:
        """Return the watermark of a planned batch."""
        plan = self._logged(f"{_PLANNED}/{batch_id}")
        with reaching("the log of planned batches"):
            return 0 if plan is None else int(_metadata(plan)["batchWatermarkMs"])

    def next_watermark(self, batch_id: int) -> int:
        """Return the watermark of the batch after a committed one."""
        commit = self._logged(f"{_COMMITTED}/{batch_id}")
        with reaching("the log of committed batches"):
            return 0 if commit is None else int(_metadata(commit)["nextBatchWatermarkMs"])

    def lower_watermark(self, batch_id: int, watermark: int) -> None:
        """Lower the watermark of the batch after a committed one to ``watermark``."""
        for name, field in (
            (f"{_PLANNED}/{batch_id + 1}", "batchWatermarkMs"),
            (f"{_COMMITTED}/{batch_id}", "nextBatchWatermarkMs"),
        ):
            text = self._logged(name)
            if text is not None and _metadata(text).get(field, watermark) > watermark:
                self.files.write(name, _with_metadata(text, {field: watermark}))

    def begin_at(self, begins: Offsets) -> None:
        """Replace the start offsets that the sources have written when Spark planned the first batch."""
        with reaching("the start offsets of Kafka's sources"):
            for number in self.files.numbers(_SOURCES):
                name = f"{_SOURCES}/{number}/0"
                head, _, line = str(self.files.read(name)).rpartition("\n")
                self.files.write(name, f"{head}\n{_moved(line, begins)}")

    def plan(self, batch_id: int, end: Offsets, watermark: int) -> None:
        """Plan a batch up to ``end``, by a copy of the first plan."""
        with reaching("the log of planned batches"):
            pattern = str(self._logged(f"{_PLANNED}/0"))
            _ends(pattern)
            version, metadata, *lines = pattern.split("\n")
            moved = "\n".join([version, metadata, *(line if line == _NONE else _moved(line, end) for line in lines)])
        self._store_plan(batch_id, moved, watermark)

    def _store_plan(self, batch_id: int, text: str, watermark: int) -> None:
        fields = {"batchWatermarkMs": watermark, "batchTimestampMs": time.time_ns() // 1_000_000}
        self.files.write(f"{_PLANNED}/{batch_id}", _with_metadata(text, fields))

    def raise_watermark(self, batch_id: int, watermark: int) -> None:
        """Raise the watermark of the batch after a committed one to ``watermark``."""
        name, field = f"{_COMMITTED}/{batch_id}", "nextBatchWatermarkMs"
        text = self._logged(name)
        if text is not None and _metadata(text)[field] < watermark:
            self.files.write(name, _with_metadata(text, {field: watermark}))

    def plan_empty_batch(self) -> None:
        """Plan the batch without rows that Spark owes, if any: the query was stopped before Spark could plan it.

        Spark closes windows in an empty batch after the one that has advanced the watermark.  But a restarted query
        plans no batch without new rows, so at the end of all input it would wait for ever.  This writes the plan that
        Spark would have written: the same offsets, with the watermark of the last commit.
        """
        last = self.last_committed
        if not self.is_stateful or last is None or max(self.files.numbers(_PLANNED), default=-1) != last:
            return  # no state, no batch, or the last batch will run again
        plan, watermark = self._logged(f"{_PLANNED}/{last}"), self.next_watermark(last)
        if plan is not None and watermark > _metadata(plan)["batchWatermarkMs"]:
            self._store_plan(last + 1, plan, watermark)


def _metadata(text: str) -> dict[str, Any]:
    """Return the second line of a log file of Spark."""
    fields: dict[str, Any] = json.loads(text.split("\n")[1])
    return fields


def _with_metadata(text: str, fields: Mapping[str, Any]) -> str:
    """Return a log file of Spark with some fields of its second line replaced."""
    version, metadata, *rest = text.split("\n")
    line = json.dumps({**json.loads(metadata), **fields}, separators=(",", ":"))
    return "\n".join([version, line, *rest])


def _moved(line: str, offsets: Offsets) -> str:
    """Return the line of a source with other offsets."""
    by_topic = to_spark(offsets)
    return json.dumps({topic: by_topic.get(topic, {}) for topic in json.loads(line)}, separators=(",", ":"))


def _ends(plan: str) -> dict[Partition, int]:
    """Return the end offsets of all Kafka sources in a plan, which has a line for each source."""
    version, _, *lines = plan.split("\n")
    if version != _VERSION:
        raise AttributeError(version)
    return merged(line for line in lines if line != _NONE)
