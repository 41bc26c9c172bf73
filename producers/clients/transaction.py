"""A transactional producer that says clearly what went wrong.  A thin shell around confluent-kafka's Producer."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer
from floodmark.producers.clients.admin import Config, client_log
from floodmark.producers.clients.delivery import send
from floodmark.schemas.classify import Headers, mark_record
from floodmark.schemas.errors import BrokerUnavailableError, FencedError, FloodmarkError
from floodmark.schemas.records import WatermarkRecord

_log = client_log(__name__)
_TIMEOUT: Final = 30.0
_FENCED: Final = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}  # noqa: SLF001
"""Another instance has the same transactional id now."""
_FAILED_BEFORE: Final = {KafkaError._STATE, KafkaError._FATAL}  # noqa: SLF001
"""A record is not taken because of a failure before it: of the transaction, or of the client."""
_REFUSED: Final = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}


class Transaction:
    """One writer's transactions into one topic, one open at a time; fences any instance with the same id before.

    What a writer must know to go on stands in a header of its last mark: see `last_matching` and `mark_header`.

    Args:
        config: confluent-kafka settings; the transactional id comes from ``name`` and ``topic``.
        name: who writes: the source id, or the job.
        topic: where to.
        kind: what ``name`` is, for messages.
        refused: makes the error for a record that Kafka does not take, from the reason; default:
            `BrokerUnavailableError`, as for all else.

    Raises:
        FencedError, BrokerUnavailableError: if Kafka does not take it; so do all its methods.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        topic: str,
        *,
        kind: str = "job",
        refused: Callable[[str], FloodmarkError] | None = None,
    ) -> None:
        self._servers, self._name, self._topic, self._kind = config.get("bootstrap.servers"), name, topic, kind
        self._refused = refused
        self.producer = Producer({**config, "transactional.id": f"floodmark-{name}-{topic}"}, logger=_log)
        self._open = False
        self._call(self.producer.init_transactions, _TIMEOUT)

    def begin(self) -> None:
        """Open a transaction, where none is open."""
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
        """Hand over a record; waits where the queue is full.

        Args:
            topic: where to.
            partition: where to; -1: the partitioner decides.
            key: of the record.
            value: of the record.
            headers: of the record.
            timestamp: Kafka's, epoch milliseconds; 0: now.
        """
        try:
            send(self.producer, topic, value, key, partition, timestamp=timestamp, headers=headers)
        except KafkaException as error:
            if error.args[0].code() in _FAILED_BEFORE:
                self._call(self.producer.commit_transaction, _TIMEOUT)  # only the transaction knows the first failure
            self.fail(error)

    def produce_rows(self, rows: Iterable[tuple[int, bytes | None, bytes]]) -> None:
        """Hand over many records without headers, as partition, key and value."""
        topic, produce = self._topic, self.producer.produce
        for partition, key, value in rows:
            try:
                produce(topic, value, key, partition)
            except (BufferError, KafkaException):  # it was not taken
                self.produce(topic, partition, key, value)

    def produce_mark(self, partition: int, mark: WatermarkRecord, headers: Headers = ()) -> None:
        """Hand over a mark, with the writer's own headers."""
        self.produce(self._topic, partition, *mark_record(mark, headers))

    def poll(self) -> None:
        """Serve what the client has to say: of a failure, too."""
        self._call(self.producer.poll, 0)

    def commit(self) -> None:
        """Commit what is open."""
        self._call(self.producer.commit_transaction, _TIMEOUT)
        self._open = False

    def abort(self) -> None:
        """Give up what is open; Kafka ends it by itself where it cannot be reached."""
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
        """Raise what an error of confluent-kafka means for this writer."""
        cause: Any = error.args[0]
        if cause.code() in _FENCED:
            reason, advice = "another instance with the same name writes to it", "stop one of the two"
            raise FencedError(writer=self._name, topic=self._topic, reason=reason, advice=advice) from error
        if self._refused is not None and cause.code() in _REFUSED:
            raise self._refused(cause.str()) from error
        reason = f"transaction of {self._kind} {self._name!r}: {cause.str()}"
        raise BrokerUnavailableError(bootstrap_servers=self._servers, seconds=_TIMEOUT, reason=reason) from error
