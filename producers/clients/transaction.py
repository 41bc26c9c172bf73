"""A transactional producer with clear errors.  A thin shell around confluent-kafka's Producer."""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer
from floodmark.producers.clients.admin import Config, answering
from floodmark.producers.clients.clock import Deadline
from floodmark.producers.clients.consumers import EXISTING_TOPICS, client_log
from floodmark.schemas.classify import Headers
from floodmark.schemas.errors import FencedError, FloodmarkError, UnknownTopicError

_TIMEOUT: Final = 30.0  # seconds
_CONNECTED: Final = {"enable.sparse.connections": False}
"""A client that connects only to the brokers that it needs, when it needs them, often waits for 500 ms at its start."""
_FENCED: Final = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001
"""Another instance uses the same transactional id."""
_FAILED_BEFORE: Final = {KafkaError._STATE, KafkaError._FATAL}  # noqa: SLF001
"""The transaction or the client had failed before this record."""
_REFUSED: Final = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}


def send(client: Producer, *record: Any, seconds: float = math.inf, **options: Any) -> None:  # noqa: ANN401
    """Produce a record; while the client's queue is full, serve delivery reports.  `BufferError` after ``seconds``."""
    deadline: Deadline | None = None
    while True:
        try:
            client.produce(*record, **options)
        except BufferError:
            deadline = deadline or Deadline(seconds)
            if deadline.passed:
                raise
            client.poll(0.05)
        else:
            return


ANY_SIZE: Final = {"message.max.bytes": 1_000_000_000}
"""The broker decides how large a record may be; the client's default is less than that of brokers."""


def flush(client: Producer, seconds: float) -> int:
    """Wait for all delivery reports; return how many lack.  A client that breaks meanwhile raises its own error."""
    try:
        return client.flush(seconds)
    except SystemError as error:  # which it raises because of the other
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise


class Transaction:
    """The transactions of one writer into one topic, one at a time; fences earlier instances with the same id.

    ``kind`` says in errors what ``name`` is.  ``shard``: of the topic's rows, if each has its own writer.  ``refused``
    makes the error for a record that Kafka rejects.  All methods raise FencedError or BrokerUnavailableError if Kafka
    does not accept a call; `produce` also UnknownTopicError.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        topic: str,
        *,
        kind: str = "job",
        shard: int | None = None,
        refused: Callable[[str], Exception] | None = None,
    ) -> None:
        self._servers, self._name, self._topic, self._kind = config.get("bootstrap.servers"), name, topic, kind
        self._refused = refused
        transactional_id = f"floodmark-{name}-{topic}" + ("" if shard is None else f"/{shard}")
        settings = {**_CONNECTED, **ANY_SIZE, **config, **EXISTING_TOPICS, "transactional.id": transactional_id}
        self.producer = Producer(settings, logger=client_log(__name__))
        self._open = False
        self._call(self.producer.init_transactions, _TIMEOUT)

    def begin(self) -> None:
        """Open a transaction, unless one is open."""
        if not self._open:
            self._call(self.producer.begin_transaction)
            self._open = True

    def produce(
        self,
        topic: str,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        timestamp: int = 0,
    ) -> None:
        """Produce a record; wait while the queue is full.  ``partition`` -1: the partitioner decides."""
        try:
            send(self.producer, topic, value, key, partition, timestamp=timestamp, headers=headers)
        except KafkaException as error:
            if error.args[0].code() in _FAILED_BEFORE:
                self._call(self.producer.commit_transaction, _TIMEOUT)  # raises the first failure
            if error.args[0].code() == KafkaError._UNKNOWN_TOPIC:  # noqa: SLF001
                raise UnknownTopicError(topic=topic, bootstrap_servers=self._servers) from error
            self.fail(error)

    def produce_rows(self, rows: Iterable[tuple[int, bytes | None, bytes]]) -> None:
        """Produce many records without headers: partition, key and value."""
        topic, produce = self._topic, self.producer.produce
        for partition, key, value in rows:
            try:
                produce(topic, value, key, partition)
            except (BufferError, KafkaException):  # `produce` waits, or raises the right error
                self.produce(topic, partition, key, value)

    def poll(self) -> None:
        """Serve the client's callbacks, and raise a failure."""
        self._call(self.producer.poll, 0)

    def commit(self, check: Callable[[], object] | None = None) -> None:
        """Commit the open transaction.

        ``check`` is called when Kafka has all records, and may raise: a topic that was created again only now has them.
        """
        left, before = len(self.producer), math.inf
        while 0 < left < before:  # on a slow link, the queue may take minutes
            self._call(flush, self.producer, _TIMEOUT)
            left, before = len(self.producer), left
        if check is not None:
            check()
        self._call(self.producer.commit_transaction, 1.0 if left else _TIMEOUT)
        self._open = False

    def abort(self) -> None:
        """Abort the open transaction; if Kafka cannot be reached, its timeout aborts it."""
        if self._open:
            self._open = False
            with suppress(FloodmarkError):
                self._call(self.producer.abort_transaction, _TIMEOUT)

    def _call(self, do: Callable[..., object], *arguments: object) -> None:
        try:
            do(*arguments)
        except KafkaException as error:
            self.fail(error)

    def fail(self, error: KafkaException) -> NoReturn:
        """Raise Floodmark's error for an error of confluent-kafka."""
        cause: Any = error.args[0]
        if cause.code() in _FENCED:
            reason = "another instance with the same name writes to it, or this one was paused for so long that Kafka"
            reason = f"{reason} has aborted its transaction"
            rename = " or give it another name (job=)" if self._kind == "job" else ""
            advice = f"if another one runs, stop it{rename}; else start again"
            raise FencedError(
                writer=f"{self._kind} {self._name!r}", topic=self._topic, reason=reason, advice=advice
            ) from error
        if self._refused is not None and cause.code() in _REFUSED:
            raise self._refused(cause.str()) from error
        with answering(self._servers, _TIMEOUT, about=f"transaction of {self._kind} {self._name!r}"):
            raise error
        raise error  # `answering` has raised its own
