"""The rows of a batch, written by Spark's executors: a Kafka transaction, with a receipt, for each shard.

A shard has the rows whose keys have the same hash.  The marks are in a transaction of the driver, after those of all
shards, so that no mark is ahead of a row.  A receipt names the batch, and has the number and a hash of its rows:

- A task that runs again (a retry, a lost executor, speculation, a restart) fences the attempt before, by its
  transactional id of job and shard.  If it then finds the receipt of its batch, it writes nothing.
- A driver that starts fences all shards, and becomes the owner of their receipts.  A task of an older driver finds
  another owner, and fails.  So does a task that finds a later batch, such as on an executor that Spark had given up.
- A task that is fenced itself, such as by its speculative copy, runs again.
- After a restart, the rows of the batch are compared with the receipts before any row is written.  If Spark loses rows
  between two shards, and computes them again, they are compared once all shards are written.

Receipts are in a compacted topic, with a partition for each shard: a reader of committed records waits for older
transactions in its partition.  The idea is that of Beam's Kafka sink.
"""

import logging
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from floodmark.producers.clients.admin import Config, create_topics, existing_topics, partition_count
from floodmark.producers.clients.partitioners import partitioner
from floodmark.producers.clients.transaction import Transaction
from floodmark.producers.readers.receipts import Receipt, last_receipts, receipts_topic
from floodmark.schemas.errors import (
    BrokerUnavailableError,
    ContinueError,
    FencedError,
    InvalidOutputError,
    NondeterministicBatchError,
    UsageError,
)
from floodmark.spark_jobs.internals.texts import reason_of
from pyspark import Accumulator, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)
_ATTEMPTS: Final = 5
_AT_ONCE: Final = 8
_LETTERS: Final = {*string.ascii_letters, *string.digits, *"._-"}
_LONGEST: Final = 249  # of the name of a topic
_LONGEST_TRANSACTION: Final = 900_000  # milliseconds that a broker allows by default
_OUTCOME: Final = "shard INT, stage INT, computed STRING, written STRING, refused STRING"
_RECEIPT_SETTINGS: Final = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class Shards:
    """The shards of a job's output topic, in Kafka; used by the driver and its tasks."""

    config: Config
    job: str
    topic: str

    @property
    def receipts(self) -> str:
        """The topic of the receipts."""
        return receipts_topic(self.job, self.topic)

    def fence(self, shard: int, refused: Any = None) -> Transaction:  # noqa: ANN401  # as Transaction has it
        """Fence the earlier writers of a shard."""
        config = {"transaction.timeout.ms": _LONGEST_TRANSACTION, **self.config}
        return Transaction(config, self.job, self.topic, shard=shard, refused=refused)

    def last(self, shard: int) -> Receipt | None:
        """Return the last receipt of a shard; call it after `fence`."""
        found = last_receipts(self.config, self.receipts, [shard]).get(shard)
        return None if found is None else found[1]

    def store(self, out: Transaction, shard: int, receipt: Receipt) -> None:
        """Add a receipt to the open transaction."""
        out.produce(self.receipts, shard, b"%d" % shard, receipt.text.encode())

    def fenced(self) -> FencedError:
        """Return the error of a job whose shards have another owner."""
        reason = "another instance with the same name writes to it"
        advice = "if it still runs, stop it; else start again"
        return FencedError(writer=f"job {self.job!r}", topic=self.topic, reason=reason, advice=advice)


class _RefusedRowError(Exception):
    """Kafka rejects a row."""


class _ReplacedError(Exception):
    """Another driver, or a later batch, has written to the shard."""


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Writes the rows of one shard; runs in a task."""

    shards: Shards
    receipt: Receipt
    """Of the batch, without rows."""
    partitions: int
    """Of the output topic."""
    compares: bool
    """Whether it writes nothing."""
    finished: Accumulator[int]
    """Counts the tasks that Spark has finished, in the driver."""

    def __call__(self, batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """Write the rows of the shard, unless they are written; yield the outcome."""
        import pyarrow as pa  # noqa: PLC0415  # slow to import

        context = TaskContext.get()
        shard, stage = (0, 0) if context is None else (context.partitionId(), context.stageId())
        written = refused = None
        out = None if self.compares else self.shards.fence(shard, _RefusedRowError)
        if out is not None:
            written = self.shards.last(shard)
            if written is None or not written.precedes(self.receipt):
                raise _ReplacedError
            if written.has(self.receipt.checkpoint_id, self.receipt.batch_id):
                out = None
            else:
                written = None
        computed = self.receipt
        try:
            computed = self._write(out, batches)
            if out is not None:
                self.shards.store(out, shard, computed)
                out.commit()
        except _RefusedRowError as error:
            refused = str(error)
        finally:
            if out is not None:
                out.abort()  # does nothing after a commit
        self.finished.add(1)
        outcome = [shard, stage, computed.text, None if written is None else written.text, refused]
        names = ["shard", "stage", "computed", "written", "refused"]
        types = [pa.int32(), pa.int32(), pa.string(), pa.string(), pa.string()]
        yield pa.RecordBatch.from_arrays(
            [pa.array([one], kind) for one, kind in zip(outcome, types, strict=True)], names
        )

    def _write(self, out: Transaction | None, batches: "Iterable[pa.RecordBatch]") -> Receipt:
        """Write the rows to an open transaction, or only count them; return their receipt."""
        partition_of = partitioner(str(self.shards.config.get("partitioner", "consistent_random")))
        digest, rows = 0, Counter[int]()
        if out is not None:
            out.begin()
        for batch in batches:
            # NumPy is faster: Arrow's own lists make an Arrow object of each value first.
            keys, values, hashes = (
                batch.column(name).to_numpy(zero_copy_only=False) for name in ("key", "value", "digest")
            )
            digest += int(hashes.view("uint64").sum())
            if out is None:
                rows[0] += len(keys)
                continue
            partitions = [partition_of(key, self.partitions) for key in keys.tolist()]
            rows.update(partitions)
            out.produce_rows(zip(partitions, keys.tolist(), values.tolist(), strict=True))
        return replace(self.receipt, digest=digest % 2**64, rows=dict(rows))


class ShardWriter:
    """Writes the rows of each batch from the executors; `fence` and `open`, then `write` for each batch.

    Args:
        config: confluent-kafka settings, which the executors need, too.
        job: name of the job.
        topic: the output topic.
        checkpoint_id: of the job.
        run: an id of this start.
        shards: the number of shards, if the topic of the receipts does not exist; else it is the number of its
            partitions.  ``None``: this job writes through the driver, maybe after a run that did not.

    Raises:
        UsageError: if the name of the job cannot be part of a topic's name.
    """

    def __init__(self, config: Config, job: str, topic: str, checkpoint_id: str, run: str, shards: int | None) -> None:
        self._shards = Shards(config, job, topic)
        self._writes = shards is not None
        self._count = shards or 0
        name = self._shards.receipts
        if self._writes and (len(name) > _LONGEST or not _LETTERS.issuperset(name)):
            reason = f"{name!r} would be the topic of the receipts, which is no name of a topic"
            raise UsageError(reason=f"{reason}; expected another job= with letters, digits, '.', '_' and '-'")
        self._receipt = Receipt(run, checkpoint_id)
        self._found: dict[int, Receipt] = {}
        """The last receipts when this driver became their owner."""
        self._started = 0
        """The number of tasks that run now, of which some have finished."""
        self._finished: Accumulator[int] | None = None

    @property
    def waiting(self) -> int:
        """The shards of the batch that are not committed yet."""
        return 0 if self._finished is None else max(0, self._started - self._finished.value)  # a copy counts, too

    def fence(self, producer: Any) -> None:  # noqa: ANN401  # any client of Kafka
        """Fence the earlier writers of all shards, which aborts their transactions."""
        shards, config = self._shards, self._shards.config
        if shards.receipts not in existing_topics(config):
            if not self._writes:
                return
            create_topics(config, {shards.receipts: self._count}, _RECEIPT_SETTINGS)
        self._count = partition_count(producer, shards.receipts, config.get("bootstrap.servers"))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(shards.fence, range(self._count)):  # none is kept
                pass

    def open(self, last: tuple[str, int] | None) -> None:
        """Become the owner of all shards; ``last``: checkpoint id and batch of the last marks in the topic.

        Raises:
            ContinueError: if a run has left a batch of which only some shards are written, and not for this job.
        """
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = list(pool.map(self._take, range(self._count), repeat(last)))
        self._found = {shard: one for shard, one in enumerate(found) if one is not None}

    def _take(self, shard: int, last: tuple[str, int] | None) -> Receipt | None:
        """Become the owner of a shard; return its last receipt."""
        out = self._shards.fence(shard)
        found = self._shards.last(shard)
        if found is not None:
            self._require_whole(found, last)
        receipt = self._receipt  # of no batch: later starts need not judge a whole one of another checkpoint again
        if found is not None and found.checkpoint_id == receipt.checkpoint_id:
            receipt = replace(found, owner=receipt.owner)
        out.begin()
        self._shards.store(out, shard, receipt)
        out.commit()
        return found

    def _require_whole(self, found: Receipt, last: tuple[str, int] | None) -> None:
        """Refuse to write behind a batch that lacks shards, or only its marks, unless this job finishes it."""
        is_own = found.checkpoint_id == self._receipt.checkpoint_id
        if found.batch_id < 0 or (is_own and self._writes):
            return
        if last is None or last[0] != found.checkpoint_id or last[1] < found.batch_id:
            whose = "this" if is_own else "its former"
            reason = f"the executors have written batch {found.batch_id} of {whose} checkpoint_location in part"
            new = "the former checkpoint_location, or a new one and a new output topic"
            output, use = f"topic {self._shards.topic!r}", 'delivery="exactly-once-executors"' if is_own else new
            raise ContinueError(job=self._shards.job, output=output, reason=reason, new_output=use)

    def write(self, frame: DataFrame, batch_id: int, partitions: int) -> Counter[int]:
        """Write the rows of a batch that are not written yet; return the number of its rows by partition.

        Raises:
            NondeterministicBatchError: if the batch has other rows than when it ran before.
            InvalidOutputError: if Kafka rejects a row.
            FencedError, BrokerUnavailableError: nothing of the batch is lost.
        """
        receipt = replace(self._receipt, batch_id=batch_id)
        found = {shard: one for shard, one in self._found.items() if one.has(receipt.checkpoint_id, batch_id)}
        receipt = replace(receipt, shards=next((one.shards for one in found.values()), self._count))
        digest = F.xxhash64("key", F.isnull("key"), "value").alias("digest")
        rows = frame.select("key", "value", digest).repartition(receipt.shards, F.coalesce("key", "value"))
        if self._finished is None:
            self._finished = frame.sparkSession.sparkContext.accumulator(0)  # pyspark keeps it: one for all batches
        task = ShardTask(self._shards, receipt, partitions, compares=True, finished=self._finished)
        if found:
            self._compare(batch_id, self._run(rows, task), found)
        counts = Counter[int]()
        outcomes = self._run(rows, replace(task, compares=False))
        for outcome in outcomes:
            if outcome["refused"] is not None:
                raise InvalidOutputError(
                    job=self._shards.job,
                    batch_id=batch_id,
                    count=1,
                    reason=f"been rejected by Kafka: {outcome['refused']}",
                    advice="check the settings of the topic, such as max.message.bytes, and start the job again",
                )
        written = {one["shard"]: Receipt.of(one["written"]) for one in outcomes if one["written"] is not None}
        self._compare(batch_id, outcomes, written)
        receipts = {one["shard"]: written.get(one["shard"], Receipt.of(one["computed"])) for one in outcomes}
        if any(_ran_again(frame.sparkSession, stage) for stage in {one["stage"] for one in outcomes}):
            self._compare(batch_id, self._run(rows, task), receipts)
        for one in receipts.values():
            counts.update(one.rows)
        return counts

    def _compare(self, batch_id: int, outcomes: Iterable[Any], written: Mapping[int, Receipt]) -> None:
        computed = {outcome["shard"]: Receipt.of(outcome["computed"]) for outcome in outcomes}
        for shard, before in written.items():
            now = computed.get(shard, self._receipt)  # Spark runs no task if the whole batch is empty
            if not before.same_rows(now):
                raise NondeterministicBatchError(
                    job=self._shards.job,
                    batch_id=batch_id,
                    written=sum(before.rows.values()),
                    computed=sum(now.rows.values()),
                    topic=self._shards.topic,
                )

    def _run(self, rows: DataFrame, task: ShardTask) -> list[Any]:
        """Run a task for each shard; receipts let it run again if Kafka was away, or another attempt fenced it."""
        for attempt in range(1, _ATTEMPTS + 1):
            self._started, task.finished.value = task.receipt.shards, 0
            try:
                outcomes = rows.mapInArrow(task, _OUTCOME).collect()
            except PySparkException as error:
                reason = reason_of(error)
                fenced = FencedError.__name__ in reason
                if _ReplacedError.__name__ in reason or (fenced and attempt == _ATTEMPTS):
                    raise self._shards.fenced() from error
                if attempt == _ATTEMPTS or not (fenced or BrokerUnavailableError.__name__ in reason):
                    raise
                _log.warning("job %r: the shards of the batch run again: %s", self._shards.job, reason)
            else:
                return outcomes
            finally:
                self._started = 0
        raise AssertionError


def _ran_again(spark: SparkSession, stage: int) -> bool:
    """Tell whether a stage may have run again, with input that Spark had lost, when some of its tasks were finished."""
    status = spark.sparkContext.statusTracker().getStageInfo(stage)
    return status is None or status.currentAttemptId > 0 or status.numCompletedTasks < status.numTasks
