"""What a source writes through: a Kafka client, the lock around it, and what the topic says beside the data."""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, NoReturn, Protocol
from weakref import WeakSet

from confluent_kafka import KafkaException, Producer
from floodmark.producers.background import Background
from floodmark.producers.clients.admin import Config, client_log, overwrites_timestamps, partition_count, shared
from floodmark.producers.clients.clock import Clock
from floodmark.producers.predecessors import Predecessors, last_marks
from floodmark.producers.successors import Successors
from floodmark.schemas.errors import FloodmarkError, ForkedError, UsageError
from floodmark.schemas.records import Membership, WatermarkRecord, membership_of

_client_log = client_log(__name__)
_log = logging.getLogger(__name__)
_LOOK_INTERVAL: Final = 10_000


class Lock(Protocol):
    """What a source holds while it decides and sends: a ``threading.RLock``."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...  # noqa: FBT001, FBT002, D102  # RLock's
    def release(self) -> None: ...  # noqa: D102
    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class _Refusal:
    """Replaces the lock in a forked process: whatever takes it is refused, at no cost in the parent."""

    def __init__(self, owner: str, parent: int) -> None:
        self._owner = owner
        self._parent = parent

    def _refuse(self) -> NoReturn:
        raise ForkedError(owner=self._owner, parent=self._parent, child=os.getpid())

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: ARG002, FBT001, FBT002  # as RLock's
        self._refuse()

    def release(self) -> None:
        self._refuse()

    def __enter__(self) -> object:
        self._refuse()

    def __exit__(self, *_: object) -> None:
        """Nothing was taken."""


class Channel:
    """The way of one source, or of all sources of a pool, to one topic.

    In a fork of the process the client's threads do not run, and two writers would be one source: there the lock
    refuses all use.

    Args:
        config: confluent-kafka settings; idempotence is switched on.
        topic: the topic.
        clock: where the time comes from.
        leave: where a pool shares it between sources: called with the id of a source that has ended.

    Raises:
        UnknownTopicError, BrokerUnavailableError: where the topic cannot be reached.
    """

    def __init__(self, config: Config, topic: str, clock: Clock, *, leave: Callable[[str], None] | None = None) -> None:
        self.client = Producer({**config, "enable.idempotence": True}, logger=_client_log)
        self.lock: Lock = threading.RLock()
        """Held by every public method of a source or a pool."""
        self.partitions = partition_count(self.client, topic, config.get("bootstrap.servers"))
        """The last known number of partitions of the topic."""
        self.successors = Successors(config, topic, clock)
        self.next_look = clock.steady() + _LOOK_INTERVAL
        """When `look_beside` is due, by the steady clock, milliseconds."""
        self.background: Background | None = None
        """The thread that serves the sources while no method is called."""
        self.leave = leave
        self.marks: Mapping[str, WatermarkRecord] | None = None
        """The last marks in the topic by source, where a pool has read them for all its sources."""
        self.floor = 0
        """The lowest epoch that the next source may have."""
        self.ending = False
        """Whether a source has ended since the pool last counted its sources."""
        self.owner = "a producer"
        """What uses it, for errors."""
        self._config = config
        self._topic = topic
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._keeps_timestamps = False
        _CHANNELS.add(self)

    @property
    def forked(self) -> bool:
        """Whether this process is forked from that of the owner."""
        return isinstance(self.lock, _Refusal)

    def refuse(self) -> None:
        """Refuse all use from now on, in a forked process."""
        self.lock = _Refusal(self.owner, self._process)

    def start(self, serve: Callable[[], None], close: Callable[[float], bool], interval: int) -> None:
        """Serve in a thread from now on, until it is stopped or the process ends, which closes the owner.

        Args:
            serve: sends what is due.
            close: closes the owner, within so many seconds; returns whether Kafka has acknowledged all.
            interval: time between marks, milliseconds.
        """
        self.background = Background(self.owner, serve, lambda timeout: self._finish(close, timeout), interval)

    def _finish(self, close: Callable[[float], bool], timeout: float) -> bool:
        """Close at the end of the process, unless another thread waits in a call for so long; in a fork do nothing."""
        if self.forked:
            return True
        if not self.lock.acquire(timeout=timeout):
            return False
        try:
            return close(timeout)
        finally:
            self.lock.release()

    @property
    def stopped(self) -> bool:
        """Whether there was a thread, and it was stopped."""
        return self.background is not None and self.background.stopped

    def stop(self) -> None:
        """End the thread.  Called with the lock held, so that nothing is sent after it."""
        if self.background is not None:
            self.background.stop()

    def keep(self, failure: Exception) -> None:
        """Keep an error for the next call of the owner, and log it."""
        if self.background is not None:
            self.background.keep(failure)

    def raise_failure(self) -> None:
        """Raise what has failed in the thread, once."""
        if self.background is not None:
            self.background.raise_failure()

    def ask_partitions(self, timeout: float | None = None) -> int:
        """Return how many partitions the topic has now; waits for the answer.

        Raises:
            UnknownTopicError, BrokerUnavailableError: where there is none.
        """
        found = partition_count(self.client, self._topic, self._config.get("bootstrap.servers"), timeout)
        self.partitions = max(self.partitions, found)
        return self.partitions

    def look_beside(self, now: int) -> None:
        """Look for new partitions and later runs in threads: who produces must neither wait for the answer nor fail.

        Args:
            now: the steady clock, milliseconds.
        """
        self.next_look = now + _LOOK_INTERVAL
        self.successors.look_beside(now)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._ask_quietly, daemon=True)
            self._thread.start()

    def _ask_quietly(self) -> None:
        try:
            self.ask_partitions()
        except (FloodmarkError, KafkaException) as error:
            _log.info("cannot check whether topic %r has more partitions: %s", self._topic, error)

    def predecessors(self, source: str, wall: int) -> Predecessors:
        """Return what the topic says of the sources before a new one.

        Args:
            source: the new one.
            wall: wall clock, epoch milliseconds.
        """
        marks = last_marks(self._config, self._topic, wall) if self.marks is None else self.marks
        return Predecessors(source, marks, self.floor)

    def require_timestamps(self, source: str) -> None:
        """Refuse a topic whose brokers put their clocks' times in place of the stamps that the marks speak of.

        Raises:
            UsageError: the topic has ``message.timestamp.type=LogAppendTime``.
        """
        if not self._keeps_timestamps and overwrites_timestamps(shared(self._config), self._topic):
            reason = "the topic has message.timestamp.type=LogAppendTime, so its brokers replace the times of ingress()"
            raise UsageError(reason=f"{source}: {reason}; set CreateTime, or pass event times with another strategy")
        self._keeps_timestamps = True


_CHANNELS: Final[WeakSet[Channel]] = WeakSet()


def _refuse_all() -> None:
    for channel in list(_CHANNELS):
        channel.refuse()


os.register_at_fork(after_in_child=_refuse_all)


def check_settings(config: Config, source: object, membership: object, on_late: object) -> Membership:
    """Refuse settings that cannot be right, before anything is connected; return the membership.

    Raises:
        UsageError: which one, and what to write.

    >>> check_settings({}, source="", membership=1, on_late="send")
    Traceback (most recent call last):
      ...
    floodmark.schemas.errors.UsageError: the source is '', expected a name, as source='web-1'
    """
    if not isinstance(source, str) or not source:
        raise UsageError(reason=f"the source is {source!r}, expected a name, as source='web-1'")
    if str(config.get("enable.idempotence", "true")).lower() != "true":
        raise UsageError(
            reason=f"source {source!r}: enable.idempotence is off; without it a retry can be written behind a mark"
        )
    if str(config.get("delivery.report.only.error", "false")).lower() != "false":
        raise UsageError(
            reason=f"source {source!r}: delivery.report.only.error is on; the watermark would wait for reports for ever"
        )
    if on_late not in {"send", "raise"}:
        raise UsageError(reason=f"source {source!r}: on_late is {on_late!r}, expected 'send' or 'raise'")
    return membership_of(membership, f"source {source!r}")
