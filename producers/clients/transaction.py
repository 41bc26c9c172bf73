"""A transactional producer that says clearly what went wrong.  A thin shell around confluent-kafka's Producer."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer
from floodmark.producers.clients.admin import FENCED, Config
from floodmark.schemas.errors import BrokerUnavailableError, FencedError, FloodmarkError, InjectorError

_log = logging.getLogger(__name__)
_TIMEOUT: Final = 30.0
_REFUSED: Final = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_TIMESTAMP, KafkaError.INVALID_RECORD}


class Transaction:
    """One open transaction at a time; takes over from any instance with the same id before.

    Args:
        config: confluent-kafka settings, with ``transactional.id``.
        name: who writes, for messages.
        topic: where to, for messages.

    Raises:
        FencedError, BrokerUnavailableError: where Kafka does not take it.
    """

    def __init__(self, config: Config, name: str, topic: str) -> None:
        """Fence those before."""
        self._servers, self._name, self._topic = config.get("bootstrap.servers"), name, topic
        self.producer = Producer(dict(config), logger=_log)
        self._open = False
        self._call(self.producer.init_transactions, _TIMEOUT)

    def begin(self) -> None:
        """Open it, where it is not open."""
        if not self._open:
            self._call(self.producer.begin_transaction)
            self._open = True

    def produce(  # a Kafka record
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp: int,
        headers: Any,  # noqa: ANN401
    ) -> None:
        """Hand over a record; waits where the queue is full.

        Raises:
            InjectorError: where Kafka refuses the record, or one before it.
            FencedError, BrokerUnavailableError: where Kafka takes none.
        """
        while True:
            try:
                self.producer.produce(topic, value, key, partition, timestamp=timestamp, headers=headers)
            except BufferError:
                self.producer.poll(0.05)
            except KafkaException as error:
                self.refuse(error)
            else:
                return

    def commit(self) -> None:
        """Commit what is open.

        Raises:
            InjectorError: where Kafka refuses a record of it.
            FencedError, BrokerUnavailableError: where Kafka does not take it.
        """
        self._call(self.producer.commit_transaction, _TIMEOUT)
        self._open = False

    def abort(self) -> None:
        """Give up what is open; Kafka ends it by itself where it cannot be reached."""
        if self._open:
            self._open = False
            with suppress(FloodmarkError):
                self._call(self.producer.abort_transaction, _TIMEOUT)

    def refuse(self, error: KafkaException) -> NoReturn:
        """Raise what is behind an error of ``produce``: after the first failure only the transaction knows it."""
        if error.args[0].code() == KafkaError._STATE:  # noqa: SLF001  # its public name
            self._call(self.producer.commit_transaction, _TIMEOUT)
        self._translate(error)

    def _call(self, do: Callable[..., object], *arguments: object) -> None:
        try:
            do(*arguments)
        except KafkaException as error:
            self._translate(error)

    def _translate(self, error: KafkaException) -> NoReturn:
        cause: Any = error.args[0]
        if cause.code() in FENCED:
            raise FencedError(job=self._name, topic=self._topic) from error
        if cause.code() in _REFUSED:
            advice = "give that topic the max.message.bytes and message.timestamp.* of the input, and start again"
            raise InjectorError(source=self._name, reason=cause.str(), advice=advice) from error
        reason = f"transaction of injector {self._name!r}: {cause.str()}"
        raise BrokerUnavailableError(bootstrap_servers=self._servers, seconds=_TIMEOUT, reason=reason) from error
