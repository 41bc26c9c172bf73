"""Where the rows of a batch are written: a Kafka topic, exactly once or at least once, a user's function, or a store.

``consume`` runs the whole batch once.  The handler then stores its snapshot.  After that, ``commit`` makes the rows
durable, with the late rows and marks of the batch.
"""

import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Final

from confluent_kafka import KafkaError, Message, Producer
from floodmark.producers.clients.admin import Config, answering, await_transactions, partition_count
from floodmark.producers.clients.consumers import EXISTING_TOPICS, client_log
from floodmark.producers.clients.partitioners import partitioner
from floodmark.producers.clients.transaction import ANY_SIZE, Transaction, flush, send
from floodmark.producers.readers.replay import last_matching
from floodmark.producers.strategies.basic import Explicit
from floodmark.producers.strategies.numbering import Identity, MarkWriter
from floodmark.schemas.classify import Classified, Headers, mark_header, mark_record
from floodmark.schemas.errors import (
    BrokerUnavailableError,
    ContinueError,
    InvalidOutputError,
    ReplacedCheckpointError,
    UnknownTopicError,
)
from floodmark.schemas.records import READ_HEADER, Status, WatermarkRecord
from floodmark.schemas.timestamps import promisable
from floodmark.spark_jobs.batch.shards import ShardWriter
from floodmark.spark_jobs.progress.lateness import LateRow
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.published import Published, StoredPosition
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from typing_extensions import override

_log = client_log(__name__)
_TIMEOUT: Final = 30.0
_ATTEMPTS: Final = 5
_PATIENCE: Final = 60.0  # seconds that a job waits for Kafka
BATCH_HEADER: Final = "floodmark-batch"
"""The header of a job's marks with the id of the checkpoint and the number of the batch."""

STORE: Final = "its store"
EMPTY_STORE: Final = "an empty store"

BatchWriter = Callable[[DataFrame, int], None]
"""A user's function that gets a batch and its id; it may run any number of actions."""

_Record = tuple[str, int, bytes | None, bytes | None, Headers]
"""Topic, partition, key, value and headers."""

MayFollow = Callable[[tuple[str, int] | None], bool]
"""Tells whether a checkpoint's first batch may come after one of another: the id of that checkpoint and its number.

``None``: whether it may be the first batch of its store.
"""

LateRows = Sequence[tuple[str, LateRow]]
"""Late rows, each with its output topic."""


class Sink(ABC):
    """Writes the rows of a job: `open` once, then `consume` and `commit` for each batch."""

    failure: Exception | None = None
    """The error of the work that goes on between batches; it fails the job."""

    @property
    def waiting_shards(self) -> int | None:
        """The shards of the batch that are not committed yet; ``None``: it has no shards."""
        return None

    @property
    def target(self) -> tuple[Config, str] | None:
        """The settings and the name of the output topic; ``None``: the sink does not write to one."""
        return None

    def open(self) -> None:  # noqa: B027  # not every sink has to
        """Fence older instances of the job, if this has not been done."""

    @abstractmethod
    def consume(self, frame: DataFrame) -> None:
        """Run each task of the batch to its end, in one action; the batch may stay in Spark's cache."""

    @abstractmethod
    def commit(
        self, frame: DataFrame, batch_id: int, progress: Progress, published: Published, late: LateRows, rows: int
    ) -> None:
        """Make the ``rows`` (their number) of the batch durable, with its late rows, and after them the job's marks."""

    def check(self) -> None:
        """Raise the `failure`, if there is one."""
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:  # noqa: B027  # the same
        """Finish the work that goes on between batches, or keep its `failure`; the job has stopped."""


def run_into_cache(frame: DataFrame) -> None:
    """Run the whole batch once, into Spark's cache, for a user's function.

    So the actions of the function neither read Kafka again nor change the counts, the marks and the state of operators,
    however many rows they take.
    """
    frame.persist(StorageLevel.MEMORY_AND_DISK).write.format("noop").mode("append").save()


class FunctionSink(Sink):
    """Passes the batch to a user's function, which may get a batch again after a crash."""

    def __init__(self, writer: BatchWriter) -> None:
        self._writer = writer

    @override
    def consume(self, frame: DataFrame) -> None:
        run_into_cache(frame)

    @override
    def commit(
        self, frame: DataFrame, batch_id: int, progress: Progress, published: Published, late: LateRows, rows: int
    ) -> None:
        self._writer(frame, batch_id)


class _KafkaSink(Sink):
    """What both Kafka sinks share: the late rows, and the marks of the job.

    ``source``: the job as a source of the output topic, in any epoch.
    """

    _producer: Producer

    def __init__(self, config: Config, topic: str, source: Identity) -> None:
        self._config = config
        self._topic = topic
        self._source = source
        self._job = source.source
        self._promise = Explicit(self._job)
        self._marks: MarkWriter | None = None
        self._ended = False

    @property
    @override
    def target(self) -> tuple[Config, str]:
        return self._config, self._topic

    def _records_after_rows(
        self,
        progress: Progress,
        published: Published,
        late: LateRows,
        rows: Mapping[int, int] | None = None,
        headers: Headers = (),
    ) -> list[_Record]:
        """Return the late rows of a batch and the next marks of the job, with ``headers``.

        Call it once for each batch that is written.  ``rows``: the number of rows of each partition, if it is known.
        """
        partitions = {topic: self._partitions(topic) for topic in {topic for topic, _ in late}}
        return [
            *((topic, row.partition % partitions[topic], *row.record()) for topic, row in late),
            *(
                (self._topic, partition, *mark_record(mark, [*headers, *published.headers(partition)]))
                for partition, mark in self._next_marks(progress, rows)
            ),
        ]

    def _next_marks(self, progress: Progress, rows: Mapping[int, int] | None) -> Sequence[tuple[int, WatermarkRecord]]:
        """Return the next mark of each partition; none after the end of the job."""
        if self._ended:
            return []
        # Not all brokers learn of new partitions at once: those with rows are some.
        partitions = max(self._partitions(self._topic), 1 + max(rows or (), default=-1))
        if self._marks is None:
            self._marks = MarkWriter(replace(self._source, epoch=progress.epoch), partitions)
        self._marks.grow(partitions)
        for partition, count in (rows or {}).items():
            self._marks.count(partition, count)
        self._ended = progress.ended
        if not progress.ended and progress.output is not None:
            self._promise.advance(progress.output)
        watermark = self._promise.watermark()
        now, processing_time = time.time_ns() // 1_000_000, progress.processing_time
        marks = self._marks.marks(
            now,
            counted=rows is not None,
            watermark=None if watermark is None else promisable(watermark),
            status=Status.ENDED if progress.ended else Status.ACTIVE,
            processing_time_watermark=None if processing_time is None else min(processing_time, now),
            holder=next((hold.holder for hold in progress.holders()), None),
        )
        return list(marks)

    def _partitions(self, topic: str) -> int:
        return partition_count(self._producer, topic, self._config.get("bootstrap.servers"), _PATIENCE)


class AtLeastOnceSink(_KafkaSink):
    """Writes with Spark's own Kafka writer on the executors; a crash can write rows twice."""

    def __init__(self, config: Config, topic: str, source: Identity, options: Mapping[str, str]) -> None:
        super().__init__(config, topic, source)
        settings = {**ANY_SIZE, **config, **EXISTING_TOPICS, "enable.idempotence": True}
        self._producer = Producer(settings, logger=_log)
        self._options = options

    @override
    def consume(self, frame: DataFrame) -> None:
        frame.select("key", "value").write.format("kafka").options(**self._options, topic=self._topic).save()

    @override
    def commit(
        self, frame: DataFrame, batch_id: int, progress: Progress, published: Published, late: LateRows, rows: int
    ) -> None:
        refused: list[KafkaError] = []

        def delivered(error: KafkaError | None, _record: Message) -> None:
            if error is not None:
                refused.append(error)

        for topic, partition, key, value, headers in self._records_after_rows(progress, published, late):
            send(self._producer, topic, value, key, partition, headers=headers, on_delivery=delivered)
        left = flush(self._producer, _TIMEOUT)
        if refused:
            raise _refused(self._job, batch_id, refused[0].str(), len(refused))
        if left:
            reason, servers = f"{left} record(s) of job {self._job!r}", self._config.get("bootstrap.servers")
            raise BrokerUnavailableError(bootstrap_servers=servers, seconds=_TIMEOUT, reason=reason)


def _refused(job: str, batch_id: int, reason: str, count: int = 1) -> InvalidOutputError:
    """Return the error for rows, late rows or marks that Kafka has rejected."""
    advice = "check the settings of the topic, such as max.message.bytes, and start the job again"
    return InvalidOutputError(
        job=job, batch_id=batch_id, count=count, reason=f"been rejected by Kafka: {reason}", advice=advice
    )


class ExactlyOnceSink(_KafkaSink):
    """Writes each batch in one Kafka transaction through the driver: its rows, its marks and its number.

    The number is in a header of the batch's marks, so a batch that Spark runs again after a crash is skipped.  The
    header also has the id of the checkpoint, since another checkpoint counts from 0.  The transactional id is the name
    of the job, so a second instance fences the first.

    ``shards``: the executors write the rows, before the transaction, in so many parts; ``None``: the driver does.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        source: Identity,
        checkpoint_id: str,
        may_follow: MayFollow,
        *,
        shards: int | None = None,
    ) -> None:
        super().__init__(config, topic, source)
        for name in ("pandas", "concurrent.futures.thread"):  # Arrow imports them, which fails while the program ends
            import_module(name)
        self._checkpoint_id = checkpoint_id
        self._may_follow = may_follow
        self._shards = ShardWriter(config, source.source, topic, checkpoint_id, uuid.uuid4().hex, shards)
        self._from_executors = shards is not None
        self._partition_of = partitioner(str(config.get("partitioner", "consistent_random")))
        self._out: Transaction | None = None
        self._last = -1
        """The last batch of this checkpoint in the topic."""
        self._read: Published | None = None
        """What had been read for it, if it was there at the start."""
        self._rows: list[tuple[int, bytes | None, bytes]] = []

    @property
    @override
    def waiting_shards(self) -> int | None:
        return self._shards.waiting if self._from_executors else None

    @override
    def open(self) -> None:
        self._connected()
        newest = self._newest()
        self._shards.open(newest and newest[:2])

    def _connected(self) -> Transaction:
        """Return the client; a new one fences older instances, unless another checkpoint has replaced this one."""
        if self._out is not None:
            return self._out
        self._refuse_replaced(before := self._newest())
        config = {**self._config, "transaction.timeout.ms": 300_000}
        out = Transaction(
            config, self._job, self._topic, refused=lambda reason: _refused(self._job, self._last + 1, reason)
        )
        self._shards.fence(out.producer)
        await_transactions(self._config, self._topic, f"job {self._job!r}", [0])
        last = self._newest()
        if last != before:  # another instance has published meanwhile
            self._refuse_replaced(last)
        self._last, self._read = last[1:] if last is not None and last[0] == self._checkpoint_id else (-1, None)
        self._out, self._producer = out, out.producer
        return out

    def _refuse_replaced(self, newest: tuple[str, int, Published] | None) -> None:
        """Refuse to write after a batch of another checkpoint, unless this one is new and follows it."""
        if newest is None or newest[0] == self._checkpoint_id:
            return
        own = self._newest(own=True)
        if own is not None or not self._may_follow(newest[:2]):
            raise self._replaced(0 if own is None else own[1])

    def _replaced(self, batch_id: int) -> ReplacedCheckpointError:
        output, new_output = f"topic {self._topic!r}", "a new output topic"
        return ReplacedCheckpointError(job=self._job, output=output, batch_id=batch_id, new_output=new_output)

    def _newest(self, *, own: bool = False) -> tuple[str, int, Published] | None:
        """Return checkpoint id, number and input of the last batch in the topic; ``own``: of this checkpoint."""

        def read(record: Classified) -> tuple[str, int, Published] | None:
            found = batch_of(record, self._job)
            if found is None or (own and found[0] != self._checkpoint_id):
                return None
            return *found, Published.of(mark_header(record, self._job, READ_HEADER) or b"")

        with answering(self._config.get("bootstrap.servers"), about=f"topic {self._topic!r}"):
            return last_matching(self._config, self._topic, [0], read).get(0)

    def _is_written(self, batch_id: int, published: Published) -> bool:
        """Tell whether the topic has the batch; another one with its number is of a newer copy of the checkpoint."""
        if batch_id > self._last:
            return False
        if batch_id < self._last or self._read is None or not published.is_same_batch(self._read, self._job):
            raise self._replaced(batch_id - 1)
        _log.info("job %s: batch %d is in %s already", self._job, batch_id, self._topic)
        return True

    @override
    def consume(self, frame: DataFrame) -> None:
        if self._from_executors:
            run_into_cache(frame)
            return
        table = frame.select("key", "value").toArrow()
        partitions = self._partitions(self._topic)
        # NumPy is faster: Arrow's own lists make an Arrow object of each value first.
        keys, values = (table.column(name).to_numpy().tolist() for name in ("key", "value"))
        self._rows = [
            (self._partition_of(key, partitions), key, value) for key, value in zip(keys, values, strict=True)
        ]

    @override
    def commit(
        self, frame: DataFrame, batch_id: int, progress: Progress, published: Published, late: LateRows, rows: int
    ) -> None:
        records, self._rows = self._rows, []
        if self._is_written(batch_id, published):
            return
        header = BATCH_HEADER, f"{self._checkpoint_id}/{batch_id}".encode()
        counts = Counter(partition for partition, _, _ in records)
        if self._from_executors:
            counts = self._shards.write(frame, batch_id, self._partitions(self._topic))
        after_rows = self._records_after_rows(progress, published, late, counts, [header])
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._publish(batch_id, records, after_rows)
            except (BrokerUnavailableError, UnknownTopicError) as error:  # a new client asks for the topic again
                if attempt == _ATTEMPTS:
                    raise
                _log.warning("job %s: batch %d is retried after: %s", self._job, batch_id, error)
                time.sleep(attempt)
            else:
                return

    def _publish(
        self, batch_id: int, rows: Sequence[tuple[int, bytes | None, bytes]], after_rows: Sequence[_Record]
    ) -> None:
        """Write a batch in one transaction, unless the topic has it."""
        out = self._connected()
        if batch_id <= self._last:
            return
        self._last = batch_id - 1
        try:
            out.begin()
            out.produce_rows(rows)
            for record in after_rows:
                out.produce(*record)
            out.commit()
        except (BrokerUnavailableError, UnknownTopicError):
            self._out = None  # a new client aborts the open transaction, or finds that it was committed
            raise
        except BaseException:
            out.abort()  # or the next commit would include these records
            raise
        self._last = batch_id


def batch_of(record: Classified, job: str) -> tuple[str, int] | None:
    """Return checkpoint id and number of the batch that a mark of the job belongs to; ``None``: it does not tell."""
    checkpoint_id, _, number = (mark_header(record, job, BATCH_HEADER) or b"").decode().partition("/")
    return (checkpoint_id, int(number)) if number else None


class ExactlyOnceWriter(ABC):
    """Writes the rows of a job to a store, which keeps the job's position with them, in one transaction.

    The store then gets each row exactly once: after a crash the job does not write a batch that the store has, and
    with a new checkpoint, it can continue after the position: `Start` says how.  Both methods run on threads of the
    job.
    """

    @abstractmethod
    def write(self, rows: DataFrame, position: str) -> None:
        """Store the rows of a batch, and the position in place of the one before, in one transaction.

        Args:
            rows: in Spark's cache, so you may run any number of actions.
            position: JSON text that grows with the number of input partitions.
        """

    @abstractmethod
    def position(self) -> str | None:
        """Return the position that the store has; ``None``: none."""


def stored_position(writer: ExactlyOnceWriter) -> StoredPosition | None:
    """Return the position that a store has; ``None``: none."""
    text = writer.position()
    return None if text is None else StoredPosition.of(text)


class StoredBatches:
    """The batches of a job that a store has; tells which it still needs, and refuses those of a replaced checkpoint.

    ``read`` returns the position that the store has now.  ``committed`` returns the numbers of the batches with results
    that Spark has committed.  ``name`` and ``new`` are for errors.
    """

    def __init__(
        self,
        read: Callable[[], StoredPosition | None],
        job: str,
        checkpoint_id: str,
        committed: Callable[[], range],
        may_follow: MayFollow,
        *,
        name: str = STORE,
        new: str = EMPTY_STORE,
    ) -> None:
        self._read = read
        self.job = job
        self.checkpoint_id = checkpoint_id
        self._committed, self._may_follow, self._name, self._new = committed, may_follow, name, new
        self._first = 0
        """The first batch that may have results."""
        self.found: StoredPosition | None = None
        """The last position in the store that is known."""

    @property
    def own(self) -> StoredPosition | None:
        """The last batch of this checkpoint in the store."""
        found = self.found
        return found if found is not None and found.checkpoint_id == self.checkpoint_id else None

    @property
    def last(self) -> int:
        """Its number; -1: none."""
        return -1 if self.own is None else self.own.batch_id

    def open(self, staged: StoredPosition | None = None) -> None:
        """Read the position, and refuse a store that lacks committed batches; ``staged``: of what is written next."""
        self.found = self._read()
        if self.found is not None and self.checkpoint_id in self.found.earlier:
            raise self._replaced(self.found.earlier[self.checkpoint_id])
        committed = self._committed()
        self._first = committed.start
        if committed and (self.last if staged is None else staged.batch_id) < committed[-1]:
            raise self.gap(committed[-1])
        found = self.found
        if found is None and not self._may_follow(None):
            raise self._refused("it lacks the results after which this checkpoint starts", found)
        if found is not None and self.own is None and not self._may_follow((found.checkpoint_id, found.batch_id)):
            raise self._replaced(0)

    def next(self, first: int, position: StoredPosition) -> StoredPosition | None:
        """Return what to store with batches from ``first`` on, up to that of ``position``; ``None``: they are stored.

        It refuses a gap, since its rows would be missing without an error.
        """
        found = self._read()
        if self.found is not None and (found is None or found.checkpoint_id in self.found.earlier):
            lost = "it was deleted, emptied, created again or rolled back, or the job may no longer read it"
            raise self._refused(f"it lost them while the job ran: {lost}", found)
        is_own = found is not None and found.checkpoint_id == self.checkpoint_id
        if not is_own and found != self.found:
            raise self._replaced(first - 1)
        self.found = found
        if self.has(position, self.own):
            return None
        if first > (self.last + 1 if is_own else self._first):
            raise self.gap(first - 1)
        earlier = {} if found is None else dict(found.earlier)
        if found is not None and not is_own:
            earlier[found.checkpoint_id] = found.batch_id
        return replace(position, earlier=earlier)

    def has(self, position: StoredPosition, last: StoredPosition | None) -> bool:
        """Tell whether ``last``, of this checkpoint, is the batch of a position, or a later one.

        An older copy of the checkpoint plans other batches with the same numbers: it is refused.
        """
        if last is None or position.batch_id > last.batch_id:
            return False
        if position.batch_id < last.batch_id or not position.published.is_same_batch(last.published, self.job):
            raise self._replaced(position.batch_id - 1)
        return True

    def gap(self, batch_id: int) -> ContinueError:
        """Return the error for a batch that the store lacks."""
        reason = f"it lacks batch {batch_id} of this checkpoint. If another instance runs, keep only one"
        return self._refused(reason, self.found)

    def _refused(self, reason: str, found: StoredPosition | None) -> ContinueError:
        """Without a position, the store may still have rows, so a job that continued would write them twice."""
        follow = "and" if found is None else "with WriteOptions(start=Start(published='continue')), or with"
        new = f"{self._name} as it was, or a new checkpoint_location {follow} {self._new}"
        return ContinueError(job=self.job, output=self._name, reason=reason, new_output=new)

    def _replaced(self, batch_id: int) -> ReplacedCheckpointError:
        return ReplacedCheckpointError(job=self.job, output=self._name, batch_id=batch_id, new_output=self._new)


class StoreSink(Sink):
    """Passes each batch to a writer that keeps the position of the job; skips batches that its store has."""

    def __init__(
        self,
        writer: ExactlyOnceWriter,
        job: str,
        checkpoint_id: str,
        committed: Callable[[], range],
        may_follow: MayFollow,
    ) -> None:
        self._writer = writer
        self._stored = StoredBatches(lambda: stored_position(writer), job, checkpoint_id, committed, may_follow)

    @override
    def open(self) -> None:
        self._stored.open()

    @override
    def consume(self, frame: DataFrame) -> None:
        run_into_cache(frame)

    @override
    def commit(
        self, frame: DataFrame, batch_id: int, progress: Progress, published: Published, late: LateRows, rows: int
    ) -> None:
        position = StoredPosition(self._stored.checkpoint_id, batch_id, progress.output, published)
        stored = self._stored.next(batch_id, position)
        if stored is None:
            _log.info("job %s: batch %d is in the store already", self._stored.job, batch_id)
            return
        self._writer.write(frame, stored.text)
        self._stored.found = stored
