"""Where a batch goes: a Kafka topic, exactly once or at least once, or any writer given as a function.

A sink works in two steps.  ``consume`` runs the batch, whole and once; ``commit`` makes it durable together with the
watermark records that follow it.  Between the two the handler of the batch stores its snapshot.
"""

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from confluent_kafka import KafkaException, Producer
from floodmark.producers.clients.admin import Config, answering, client_log, partition_count
from floodmark.producers.clients.delivery import send
from floodmark.producers.clients.partitioners import partitioner
from floodmark.producers.clients.transaction import Transaction
from floodmark.producers.readers.replay import last_matching
from floodmark.schemas.classify import Classified, Headers, mark_header, mark_record
from floodmark.schemas.errors import BrokerUnavailableError, DeliveryError, ReplacedCheckpointError
from floodmark.schemas.records import WatermarkRecord
from floodmark.spark_jobs.progress.lateness import LateRow
from floodmark.spark_jobs.progress.published import Published
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from typing_extensions import override

_log = client_log(__name__)
_TIMEOUT: Final = 30.0
_ATTEMPTS: Final = 5
BATCH_HEADER: Final = "floodmark-batch"
"""The header of a job's marks that names the checkpoint and the batch they end."""

BatchWriter = Callable[[DataFrame, int], None]
"""A user's writer: is given the batch and its id; it may run as many actions as it likes, or none."""

Marks = Sequence[tuple[int, WatermarkRecord]]
"""Watermark records and the partition each goes to."""


class Sink(ABC):
    """What the handler of a batch asks of a sink."""

    def open(self) -> None:  # noqa: B027  # not every sink has to
        """Get ready, on the first batch after a start; take over from any instance before."""

    @abstractmethod
    def consume(self, frame: DataFrame, batch_id: int) -> None:
        """Run the batch: each of its tasks, to its end, and in one action."""

    def is_there(self, batch_id: int) -> bool:  # noqa: ARG002  # of a sink that cannot know
        """Tell whether an earlier run has made this batch durable, rows and marks."""
        return False

    def rows(self) -> Mapping[int, int] | None:
        """Return how many rows ``commit`` will write to which output partition; ``None``: not known."""
        return None

    def partitions(self) -> int | None:
        """Return the partition count of the output topic; ``None``: the sink has no place for watermark records."""
        return None

    def commit(self, batch_id: int, marks: Marks, published: Published) -> None:  # noqa: B027  # a function has done all
        """Make the batch durable, and after it its marks, which say what is published with them."""

    def route(self, topic: str, rows: Sequence[LateRow]) -> None:  # noqa: B027
        """Take late rows that ``commit`` is to write to a topic of their own."""

    def release(self) -> None:  # noqa: B027
        """Let go of the batch, whatever became of it."""

    def close(self) -> None:  # noqa: B027
        """Let go of clients."""


class FunctionSink(Sink):
    """Hand the batch to a user's function; at least once, unless the function makes it more with the batch id.

    The batch is run once, whole, into Spark's cache, and the function is given what is there.  So its actions, however
    many or few rows they take, neither read Kafka again nor touch the counts, the marks and the state of operators.
    """

    def __init__(self, writer: BatchWriter) -> None:
        self._writer = writer
        self._frame: DataFrame | None = None

    @override
    def consume(self, frame: DataFrame, batch_id: int) -> None:
        self._frame = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._frame.write.format("noop").mode("append").save()

    @override
    def commit(self, batch_id: int, marks: Marks, published: Published) -> None:
        if self._frame is not None:
            self._writer(self._frame, batch_id)

    @override
    def release(self) -> None:
        if self._frame is not None:
            self._frame.unpersist()
            self._frame = None


class _KafkaSink(Sink):
    """What both Kafka sinks share: the topic, its partitions, and where late rows go."""

    _producer: Producer

    def __init__(self, config: Config, topic: str, job: str) -> None:
        self._config = config
        self._topic = topic
        self._job = job
        self._late: list[tuple[str, LateRow]] = []

    @override
    def route(self, topic: str, rows: Sequence[LateRow]) -> None:
        self._late += [(topic, row) for row in rows]

    @override
    def release(self) -> None:
        self._late = []

    def _late_records(self) -> Iterator[tuple[str, int, bytes | None, bytes | None, Headers]]:
        """Yield topic, partition, key, value and headers of the late rows."""
        for topic, row in self._late:
            count = partition_count(self._producer, topic, self._config.get("bootstrap.servers"))
            key, value = (None if part is None else bytes(part) for part in (row.key, row.value))
            yield topic, row.partition % count, key, value, list(row.headers())

    @override
    def partitions(self) -> int | None:
        return partition_count(self._producer, self._topic, self._config.get("bootstrap.servers"))

    @override
    def close(self) -> None:
        with suppress(KafkaException):  # of a client that has failed the batch before
            self._producer.flush(_TIMEOUT)


class AtLeastOnceSink(_KafkaSink):
    """Spark's own Kafka writer, from the executors: as fast as Spark writes, duplicates after a crash."""

    def __init__(self, config: Config, topic: str, job: str, options: Mapping[str, str]) -> None:
        super().__init__(config, topic, job)
        self._options = options

    @override
    def open(self) -> None:
        self._producer = Producer({**self._config, "enable.idempotence": True}, logger=_log)

    @override
    def consume(self, frame: DataFrame, batch_id: int) -> None:
        frame.select("key", "value").write.format("kafka").options(**self._options, topic=self._topic).save()

    @override
    def commit(self, batch_id: int, marks: Marks, published: Published) -> None:
        marked = (
            (self._topic, partition, *mark_record(mark, published.headers(partition))) for partition, mark in marks
        )
        for topic, partition, key, value, headers in (*self._late_records(), *marked):
            send(self._producer, topic, value, key, partition, headers=headers)
        left = self._producer.flush(_TIMEOUT)
        if left:
            reason = f"no acknowledgement within {_TIMEOUT} s"
            raise DeliveryError(source=self._job, topic=self._topic, failed=left, reason=reason, held_at=None)


class ExactlyOnceSink(_KafkaSink):
    """One Kafka transaction a batch: its rows, its marks and its number, all or none, through the driver.

    The number stands in a header of the batch's marks, so a batch that Spark runs again after a crash is seen to be
    there, and skipped.  It carries the id of the checkpoint: another checkpoint begins anew.  The transactional id is
    the job's: a second instance fences the first.
    """

    def __init__(self, config: Config, topic: str, job: str, checkpoint_id: str) -> None:
        super().__init__(config, topic, job)
        self._checkpoint_id = checkpoint_id
        self._place = partitioner(str(config.get("partitioner", "consistent_random")))
        self._last = -1
        self._rows: list[tuple[int, bytes | None, bytes]] = []

    @override
    def open(self) -> None:
        self._refuse_replaced()  # before a transaction, which would shut the other instance out
        self._out = Transaction({**self._config, "transaction.timeout.ms": 300_000}, self._job, self._topic)
        self._producer = self._out.producer
        try:
            self._last = self._newest(self._own)
        except KafkaException as error:
            self._out.fail(error)

    def _refuse_replaced(self) -> None:
        """Refuse to go on with a checkpoint, where the job has published from another one since."""
        with answering(self._config.get("bootstrap.servers"), about=f"topic {self._topic!r}"):
            newest = last_matching(self._config, self._topic, [0], self._batch).get(0)
            if newest is not None and newest[0] != self._checkpoint_id and (last := self._newest(self._own)) >= 0:
                raise ReplacedCheckpointError(job=self._job, topic=self._topic, batch_id=last)

    def _newest(self, read: Callable[[Classified], int | None]) -> int:
        return last_matching(self._config, self._topic, [0], read).get(0, -1)

    def _batch(self, record: Classified) -> tuple[str, int] | None:
        """Return the checkpoint and the number of the batch that a record of the job ends."""
        checkpoint_id, _, number = (mark_header(record, self._job, BATCH_HEADER) or b"").decode().partition("/")
        return (checkpoint_id, int(number)) if number else None

    def _own(self, record: Classified) -> int | None:
        """Return the number of the batch of this checkpoint that a record ends."""
        found = self._batch(record)
        return found[1] if found is not None and found[0] == self._checkpoint_id else None

    @override
    def consume(self, frame: DataFrame, batch_id: int) -> None:
        table = frame.select("key", "value").toArrow()
        partitions = self.partitions() or 1
        # By way of NumPy: Arrow's own lists make an object of each value first.
        keys, values = (table.column(name).to_numpy().tolist() for name in ("key", "value"))
        self._rows = [(self._place(key, partitions), key, value) for key, value in zip(keys, values, strict=True)]

    @override
    def rows(self) -> Mapping[int, int] | None:
        return Counter(partition for partition, _, _ in self._rows)

    @override
    def commit(self, batch_id: int, marks: Marks, published: Published) -> None:
        rows, self._rows = self._rows, []
        if self.is_there(batch_id):
            _log.info("job %s: batch %d is in %s already", self._job, batch_id, self._topic)
            return
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._transact(batch_id, rows, marks, published)
            except BrokerUnavailableError as error:
                if attempt == _ATTEMPTS:
                    raise
                _log.warning("job %s: batch %d is tried again after: %s", self._job, batch_id, error)
                time.sleep(attempt)
                # With a new client: it ends the old transaction, and learns whether that was committed after all.
                self.open()
                if self.is_there(batch_id):
                    return
            except BaseException:
                self._out.abort()  # or what comes next would be committed with what is left of this
                raise
            else:
                self._last = batch_id
                return

    @override
    def is_there(self, batch_id: int) -> bool:
        return batch_id <= self._last

    def _transact(
        self, batch_id: int, rows: list[tuple[int, bytes | None, bytes]], marks: Marks, published: Published
    ) -> None:
        out, number = self._out, f"{self._checkpoint_id}/{batch_id}".encode()
        out.begin()
        out.produce_rows(rows)
        for late in self._late_records():
            out.produce(*late)
        for partition, mark in marks:
            out.produce_mark(partition, mark, [(BATCH_HEADER, number), *published.headers(partition)])
        out.commit()
