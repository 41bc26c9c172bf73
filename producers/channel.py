"""What the sources of a topic share: a Kafka client, a lock, a background thread and what the topic says about them."""

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakSet

from confluent_kafka import KafkaError, KafkaException, Producer
from floodmark.producers.clients.admin import (
    TIMEOUT,
    Config,
    TopicWatch,
    answering,
    overwrites_timestamps,
    partition_count,
    require_settings,
    shared,
)
from floodmark.producers.clients.clock import Clock, Deadline
from floodmark.producers.clients.consumers import EXISTING_TOPICS, client_log
from floodmark.producers.other_runs import Predecessors, Successors, last_marks
from floodmark.producers.readers.alignment import AlignmentReader
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas.completeness.position import TopicIds, TopicUser
from floodmark.schemas.errors import FloodmarkError, ForkedError, RecreatedTopicError, UnknownTopicError, UsageError
from floodmark.schemas.records import Membership, WatermarkRecord, membership_of
from typing_extensions import override

_log = logging.getLogger(__name__)
_REFRESH_INTERVAL: Final = 10_000
_RESTART: Final = "Restart it: until then, readers report records of the old topic as lost"


class Background:
    """Calls ``serve`` in a daemon thread, every 0.1 seconds or ``interval`` milliseconds; ``finish`` at exit."""

    def __init__(self, owner: str, serve: Callable[[], None], finish: Callable[[float], object], interval: int) -> None:
        self._owner, self._serve, self._finish = owner, serve, finish
        self._period = min(interval, 100) / 1000
        self.failure: Exception | None = None  # the first error that was not raised yet
        self.stopped = False  # whether `stop` was called
        self._stop = threading.Event()
        atexit.register(self._at_exit)
        threading.Thread(target=self._run, name=f"floodmark {owner}", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread.  Hold the owner's lock, so that it sends nothing afterwards."""
        self.stopped = True
        self._stop.set()
        atexit.unregister(self._at_exit)
        self._serve, self._finish = (lambda: None), (lambda _timeout: None)  # frees the owner and its client

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            try:
                self._serve()
            except Exception as failure:  # noqa: BLE001  # any error must reach the caller
                self.keep_failure(failure)

    def keep_failure(self, failure: Exception) -> None:
        """Log an error, and keep the first one for the owner's next call; the thread continues."""
        if self.failure is None:
            self.failure = failure
            _log.error("%s: an error beside the caller: %r", self._owner, failure, exc_info=failure)

    def raise_failure(self) -> None:
        """Raise the kept error, once."""
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def _at_exit(self) -> None:
        try:
            self._finish(10.0)
        except Exception:  # noqa: BLE001  # no caller is left to catch it
            _log.exception("%s: the process ends after an error", self._owner)


class _ForkedLock:
    """Replaces the lock in a forked process: every use raises `ForkedError`."""

    def __init__(self, owner: str, parent: int) -> None:
        self._owner, self._parent = owner, parent

    def __enter__(self) -> None:
        raise ForkedError(owner=self._owner, parent=self._parent, child=os.getpid())

    def __exit__(self, *_: object) -> None:
        """Do nothing: `__enter__` always fails."""


class _Client(Producer):
    """Kafka's client; it keeps the error after which it writes nothing more, since its later errors do not say why."""

    fatal: KafkaError | None = None

    @override
    def poll(self, timeout: float = -1) -> int:
        try:
            return super().poll(timeout)
        except KafkaException as error:
            self._keep(error)
            return 0

    @override
    def flush(self, timeout: float = -1) -> int:
        try:
            return super().flush(timeout)
        except (KafkaException, SystemError) as error:  # it raises a SystemError because of the other
            self._keep(error)
            return len(self)

    def _keep(self, error: Exception) -> None:
        cause = error.__cause__ or error
        if not (isinstance(cause, KafkaException) and cause.args[0].fatal()):
            raise error
        self.fatal = cause.args[0]


def lacks_partition(error: BaseException) -> bool:
    """Tell whether the client has refused a record because its partition does not exist."""
    return isinstance(error, KafkaException) and error.args[0].code() == KafkaError._UNKNOWN_PARTITION  # noqa: SLF001  # public


class Channel:
    """Connects one source, or all sources of a pool (which passes ``on_source_ended``), to one topic.

    In a forked process the client's threads do not run, so taking the lock raises `ForkedError` there.
    """

    def __init__(
        self, config: Config, topic: str, clock: Clock, *, on_source_ended: Callable[[str], None] | None = None
    ) -> None:
        self.client = _Client({**config, **EXISTING_TOPICS, "enable.idempotence": True}, logger=client_log(__name__))
        self.lock: threading.RLock | _ForkedLock = threading.RLock()  # every public method of a source or pool holds it
        self.partitions = partition_count(self.client, topic, config.get("bootstrap.servers"))  # last known number
        self.successors = Successors(config, topic, clock)
        self.next_refresh = clock.steady() + _REFRESH_INTERVAL  # when `refresh_in_background` is due, by `steady`
        self.background: Background | None = None
        self.alignment: AlignmentReader | None = None  # what the sources must stay near; ``None``: nothing, or closed
        self.unsettled = False  # whether it was closed before Kafka had acknowledged all
        self.on_source_ended = on_source_ended
        self.last_marks: Mapping[str, WatermarkRecord] | None = None  # of each source in the topic, read once by a pool
        self.lowest_epoch = 0
        self.source_ended = False  # whether a source has ended since the pool last counted its sources
        self._followed = self.successors.marks
        self._advised = False  # whether advice about the membership was logged, and there always was some since
        self._told: set[str] = set()  # all advice that was logged
        self.owner = "a producer"  # the producer or pool that uses the channel, for errors
        self._config = config
        self.topic = topic
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._keeps_timestamps = False
        self._missing = False  # whether the topic was missing at the last look
        self.recreated: RecreatedTopicError | None = None  # once the topic lacks partitions that it had
        self._ids = TopicIds()
        self.require_same_topic()
        _CHANNELS.add(self)

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the owner's process."""
        return isinstance(self.lock, _ForkedLock)

    def refuse(self) -> None:
        """Refuse all use from now on, in a forked process."""
        self.lock = _ForkedLock(self.owner, self._process)

    def start_background(self, serve: Callable[[], None], close: Callable[[float], bool], interval: int) -> None:
        """Start the background thread of the owner, see `Background`."""
        self.background = Background(self.owner, serve, lambda timeout: self._finish(close, timeout), interval)

    def _finish(self, close: Callable[[float], bool], timeout: float) -> None:
        """Close the owner at the end of the process, unless another thread keeps the lock for ``timeout`` seconds."""
        lock = self.lock
        if isinstance(lock, _ForkedLock):
            return
        if not lock.acquire(timeout=timeout):
            self.unsettled = True
            return
        try:
            close(timeout)
        finally:
            lock.release()

    @property
    def stopped(self) -> bool:
        """Whether the background thread was stopped; false if there was none."""
        return self.background is not None and self.background.stopped

    def stop_background(self) -> None:
        """Stop the background thread and alignment.  Hold the lock, so that it sends nothing afterwards."""
        if self.background is not None:
            self.background.stop()
        alignment, self.alignment = self.alignment, None
        if alignment is not None:
            alignment.close()

    def settle(self, timeout: float, emit: Callable[[], object] | None, unacknowledged: Callable[[], int]) -> bool:
        """Wait until Kafka has acknowledged all, then ``emit`` marks and wait for them; return whether none is left."""
        deadline = Deadline(timeout)
        self.client.flush(timeout)
        if emit is not None:
            emit()
            self.client.flush(deadline.left)
        self.unsettled = unacknowledged() > 0
        return not self.unsettled

    def keep_failure(self, failure: Exception) -> None:
        """Log an error, and raise it in the next call of the owner."""
        if self.background is not None:
            self.background.keep_failure(failure)

    def raise_failure(self) -> None:
        """Raise the error of the background thread, once."""
        if self.background is not None:
            self.background.raise_failure()

    def explain(self, error: BaseException) -> None:
        """Raise the error behind ``error``: a missing topic or partition, or that the client writes nothing more."""
        code = error.args[0].code() if isinstance(error, KafkaException) else None
        if code == KafkaError._UNKNOWN_TOPIC:  # noqa: SLF001  # public
            raise UnknownTopicError(topic=self.topic, bootstrap_servers=self._config.get("bootstrap.servers"))
        if lacks_partition(error):
            try:
                self.require_same_topic()
            except RecreatedTopicError as recreated:
                self.recreated = recreated
                raise
        if code == KafkaError._FATAL:  # noqa: SLF001  # public
            self.client.poll(0.1)
            self.raise_fatal()

    def require_same_topic(self) -> None:
        """Raise `RecreatedTopicError` if the topic was deleted and created again since the first call."""
        TopicWatch(self._config, [self.topic], self._ids, TopicUser(self.owner, _RESTART))

    def raise_fatal(self) -> None:
        """Raise the error after which the client writes nothing more."""
        if self.recreated is not None:
            raise self.recreated.with_traceback(None)
        if self.client.fatal is not None:
            with answering(self._config.get("bootstrap.servers"), about=f"writing to topic {self.topic!r}"):
                raise KafkaException(self.client.fatal)

    def ask_partitions(self, timeout: float = TIMEOUT) -> int:
        """Ask Kafka for the topic's partition count and wait for the answer (``timeout``: seconds)."""
        found = partition_count(self.client, self.topic, self._config.get("bootstrap.servers"), timeout)
        self.partitions = max(self.partitions, found)
        return self.partitions

    def refresh_in_background(self, now: int) -> None:
        """Look for new partitions and later runs in a thread: the caller must neither wait nor fail."""
        self.next_refresh = now + _REFRESH_INTERVAL
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._refresh, args=(now,), daemon=True)
            self._thread.start()

    def _refresh(self, now: int) -> None:
        try:
            self.ask_partitions()
            self._missing = False
        except UnknownTopicError as error:
            if not self._missing:
                _log.error("%s: %s", self.owner, error)
            self._missing = True
        except (FloodmarkError, KafkaException) as error:
            _log.info("cannot check whether topic %r has more partitions: %s", self.topic, error)
        if (alignment := self.alignment) is not None:
            alignment.look_for_partitions(self.client)
        if self.successors.refresh(now):
            try:
                self.require_same_topic()
            except RecreatedTopicError as error:
                _log.error("%s: %s", self.owner, error)
            except FloodmarkError as error:
                _log.info("cannot check whether topic %r was created again: %s", self.topic, error)

    def predecessors(self, source: str, wall: int) -> Predecessors:
        """Return the last marks in the topic before a new source; ``wall``: wall clock, epoch milliseconds."""
        marks = last_marks(self._config, self.topic, wall) if self.last_marks is None else self.last_marks
        return Predecessors(source, marks, self.lowest_epoch)

    def follow(self, marks: Mapping[str, WatermarkRecord], identity: Identity, wall: int) -> None:
        """Tell if the membership does not count all sources that ``marks``, if they are new, are of."""
        if marks is not self._followed:
            self._followed = marks
            advice = Predecessors(identity.source, marks).advice(identity.membership, wall)
            self.tell(f"source {identity.source!r}", advice)

    def tell(self, source: str, advice: str | None) -> None:
        """Log advice about the membership; once, until there is none, and the same advice only once."""
        if advice is None:
            self._advised = False
        elif not self._advised and advice not in self._told:
            _log.warning("%s: %s", source, advice)
            self._advised = True
            self._told.add(advice)

    def require_timestamps(self, source: str) -> None:
        """Refuse a topic whose brokers replace the timestamps of records: with `ingress`, they are the event times."""
        if not self._keeps_timestamps and overwrites_timestamps(shared(self._config), self.topic):
            reason = "the topic has message.timestamp.type=LogAppendTime, so its brokers replace the times of ingress()"
            raise UsageError(reason=f"{source}: {reason}; set CreateTime, or pass event times with another strategy")
        self._keeps_timestamps = True


_CHANNELS: Final[WeakSet[Channel]] = WeakSet()


@atexit.register
def _warn_of_unsent() -> None:
    """Tell of records that a producer leaves in its queue."""
    for channel in list(_CHANNELS):
        if channel.background is None:
            reason = "call flush(), end() or close() before"
        elif channel.unsettled:
            reason = "Kafka did not acknowledge them before the timeout of close()"
        else:
            continue
        if channel.forked:
            continue
        channel.client.poll(0)  # not flush(0): it sends the rest, and may miss what it has not sent
        if left := len(channel.client):
            message = "%s: the process ends, but Kafka may lack %d records or marks: %s"
            _log.error(message, channel.owner, left, reason)


def _refuse_all() -> None:
    for channel in list(_CHANNELS):
        channel.refuse()


os.register_at_fork(after_in_child=_refuse_all)


def check_settings(config: Config, source: object, membership: object, on_late: object) -> Membership:
    """Check a source's settings before anything connects; return the membership.

    >>> check_settings({}, source="", membership=1, on_late="send")
    Traceback (most recent call last):
      ...
    floodmark.schemas.errors.UsageError: the source is '', expected a name, as source='web-1'
    """
    require_settings(config)
    if not isinstance(source, str) or not source:
        raise UsageError(reason=f"the source is {source!r}, expected a name, as source='web-1'")
    reason = ""
    if str(config.get("enable.idempotence", "true")).lower() != "true":
        reason = "enable.idempotence is off; without it a retry can be written behind a mark"
    elif str(config.get("delivery.report.only.error", "false")).lower() != "false":
        reason = "delivery.report.only.error is on; the watermark would wait for reports for ever"
    elif "transactional.id" in config:
        reason = "transactional.id is set, but a source writes without transactions: remove it"
    elif on_late not in {"send", "raise"}:
        reason = f"on_late is {on_late!r}, expected 'send' or 'raise'"
    if reason:
        raise UsageError(reason=f"source {source!r}: {reason}")
    return membership_of(membership, f"source {source!r}")
