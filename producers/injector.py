"""Bring a topic without watermarks into the system, exactly once.  A thin shell around `lane`.

Theory of operation
-------------------
Records go from each input partition to the output partition of the same number, untouched but for headers; behind them
goes a mark.  Both are one Kafka transaction, and so is what the injector knows: the mark carries, in a header, the next
input offset and the state of its lane.  A crash leaves all of it or nothing; a restart reads the last mark of each
partition and goes on there, so nothing is passed on twice and no watermark goes back.  The transactional id is the
source id: a second instance fences the first.  Consumer groups keep no state here.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from floodmark.producers.backlog import newest, read_to_end
from floodmark.producers.closing import Closing
from floodmark.producers.injection import STATE_HEADER, Injection, LaneState
from floodmark.producers.kafka import FENCED, Config, begin_offsets, partition_count, require_topics
from floodmark.producers.lane import Lane, PolicyLane, Way
from floodmark.producers.metrics import Metrics, delay
from floodmark.producers.time_policy import Fate
from floodmark.schemas.codec import encode_watermark
from floodmark.schemas.errors import BrokerUnavailableError, FencedError, FloodmarkError, InjectorError
from floodmark.schemas.records import FORMAT_VERSION, HEADER, Status, WatermarkRecord, control_key
from floodmark.schemas.timestamps import milliseconds

_log = logging.getLogger(__name__)
_BATCH: Final = 10_000
_TIMEOUT: Final = 30.0
_LOOK_INTERVAL: Final = 10.0
_OVERTAKEN: Final = "records are lost to retention; inject into a new topic, or keep the input longer"


@dataclass(slots=True)
class _Track:
    """One partition under way."""

    lane: Lane
    next: int
    sequence: int = 0
    records: int = 0
    seen: float = field(default_factory=time.monotonic)
    """When the last record was seen, monotonic clock."""
    at_end: bool = False
    paused: bool = False
    marked: int | None = None
    used: bool = True
    """Whether the input has this partition; else nothing comes, and the lane follows the slowest of the others."""
    dirty: bool = True
    """Whether there is something to say: a new epoch, new records, a new watermark."""


class Injector(Closing):
    """One running injection.  Not thread-safe.

    Args:
        injection: what to do.
        config: confluent-kafka settings for both sides; all pass through.
        consumer_config: more of them for the reading side.
        producer_config: more of them for the writing side.
        now: the wall clock, epoch milliseconds.
        decisions: repeat an earlier run instead of looking at the clock, see `decisions_of`.

    Raises:
        UnknownTopicError, BrokerUnavailableError, FencedError: where it cannot begin.
        InjectorError: where the target topic has fewer partitions than the input.
    """

    def __init__(  # two are what it is, the rest has defaults
        self,
        injection: Injection,
        config: Config,
        *,
        consumer_config: Config | None = None,
        producer_config: Config | None = None,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        decisions: Mapping[int, list[tuple[int, int]]] | None = None,
    ) -> None:
        """Take over from any instance before, and find where it stood."""
        self.injection = injection
        self.counts: Counter[str] = Counter()
        """``records`` read, ``dropped``, ``marks``, ``transactions``."""
        self._config = dict(config)
        self._now = now
        self._decisions = {number: list(steps) for number, steps in (decisions or {}).items()}
        self._replaying = decisions is not None
        self._key = control_key(injection.source)
        given, self._partitions = self._sizes()
        transactional = {
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            **config,
            **(producer_config or {}),
            "transactional.id": f"floodmark-{injection.source}-{injection.target_topic}",
        }
        self._producer = Producer(transactional, logger=_log)
        self._call(self._producer.init_transactions, _TIMEOUT)
        self._epoch = 0
        self._tracks = self._resume(given)
        self._epoch = max(self._epoch + 1, now())
        reading = {"group.id": f"floodmark-{injection.source}", "isolation.level": "read_committed"}
        fixed = {"enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "error"}
        self._consumer = Consumer({**reading, **config, **(consumer_config or {}), **fixed}, logger=_log)
        self._consumer.assign(
            [
                TopicPartition(injection.source_topic, number, track.next)
                for number, track in self._tracks.items()
                if track.used
            ]
        )
        self._open = False
        self._next_commit = time.monotonic()
        self._next_look = time.monotonic() + _LOOK_INTERVAL

    def _sizes(self) -> tuple[int, int]:
        """Return how many partitions the input and the target have."""
        injection = self.injection
        topics = [injection.source_topic, injection.target_topic]
        sizes = require_topics(self._config, topics + ([injection.dropped_to] if injection.dropped_to else []))
        given, target = (sizes[topic] for topic in topics)
        if target < given:
            reason = f"{injection.target_topic!r} has {target} partitions and {injection.source_topic!r} has {given}"
            raise InjectorError(source=injection.source, reason=reason, advice="give it as many partitions, or more")
        return given, target

    def _resume(self, given: int) -> dict[int, _Track]:
        """Begin where the last committed transaction ended."""
        injection, tracks = self.injection, {}
        begins = begin_offsets(self._config, [injection.source_topic])
        states = newest(self._config, injection.target_topic, range(self._partitions), self._state_of)
        for number in range(self._partitions):
            begin = begins.get((injection.source_topic, number), 0)
            track = tracks[number] = _Track(injection.lane(), begin, used=number < given)
            state = states.get(number)
            if state is not None:
                track.next = state.next
                track.lane.restore(state.lane)
                track.lane.counts.update(state.counts)
                self._epoch = max(self._epoch, state.epoch)
                if track.next < begin:
                    reason = f"partition {number} was read up to {track.next}, and Kafka has it from {begin} on"
                    raise InjectorError(source=injection.source, reason=reason, advice=_OVERTAKEN)
        return tracks

    def _grow(self) -> None:
        """Take in partitions that were added to either topic."""
        given, self._partitions = self._sizes()
        # Asked by the producer itself, so that it learns of them, too.
        partition_count(self._producer, self.injection.target_topic, self._config.get("bootstrap.servers"))
        for number in range(self._partitions):
            track = self._tracks.get(number)
            if track is None:
                track = self._tracks[number] = _Track(self.injection.lane(), 0, used=False)
                self._follow()
            if number < given and not track.used:
                track.used = True
                self._consumer.incremental_assign([TopicPartition(self.injection.source_topic, number, track.next)])

    def _follow(self) -> None:
        """Let the unused partitions promise what the slowest of the used ones does."""
        used = [track.lane.watermark for track in self._tracks.values() if track.used]
        known = [watermark for watermark in used if watermark is not None]
        if used and len(known) == len(used):
            for track in self._tracks.values():
                if not track.used:
                    track.lane.follow(min(known))

    def _state_of(self, message: Message) -> LaneState | None:
        headers: Any = message.headers()
        if message.key() != self._key:
            return None
        value = dict(headers or []).get(STATE_HEADER)
        return None if value is None else LaneState.unpack(value)

    def run(self, *, until_end: bool = False, progress: Callable[["Injector"], None] | None = None) -> None:
        """Go on until interrupted.

        Args:
            until_end: stop when all that is in the input has been passed on.
            progress: is told after each transaction.
        """
        while True:
            self.step(progress)
            if until_end and all(track.at_end for track in self._tracks.values() if track.used):
                self.commit()
                return

    def step(self, progress: Callable[["Injector"], None] | None = None) -> None:
        """Take in what has come, and commit when due; the first commit marks all partitions before any record."""
        if not self.counts["transactions"]:
            self.commit()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_INTERVAL
            self._grow()
        wait = max(0.0, min(0.1, self._next_commit - time.monotonic()))
        self._take(self._consumer.consume(_BATCH, wait))
        self._align()
        if time.monotonic() >= self._next_commit:
            self.commit()
            if progress is not None:
                progress(self)

    def _take(self, messages: list[Message]) -> None:
        self._call(self._begin)
        seen = time.monotonic()
        tracks, produce, target = self._tracks, self._producer.produce, self.injection.target_topic
        for message in messages:
            error = message.error()
            number: Any = message.partition()
            track = tracks[number]
            if error is not None:
                self._note(track, error)
                continue
            key: Any = message.key()
            value: Any = message.value()
            offset: Any = message.offset()
            log_time = message.timestamp()[1]
            if self._replaying:
                self._replay(number, track, offset)
            way, headers = track.lane.take(key, value, log_time)
            track.next, track.seen, track.at_end, track.dirty = offset + 1, seen, False, True
            if way is Way.ON:
                given: Any = message.headers()
                both = [*given, *headers] if given else list(headers)
                try:
                    produce(target, value, key, number, timestamp=log_time, headers=both)
                except BufferError:
                    self._produce(target, value, key, number, log_time, both)
                track.records += 1
            elif way is Way.OUT:
                self._drop(message, log_time)
        self.counts["records"] += len(messages)
        self._producer.poll(0)

    def _note(self, track: _Track, error: KafkaError) -> None:
        """Learn that a partition has come to its end; raise what is an error."""
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
            track.at_end = True
            self.counts["records"] -= 1
            if not self._replaying:
                track.lane.open(self._now())
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # its public name
            reason = f"Kafka no longer has what comes next: {error.str()}"
            raise InjectorError(source=self.injection.source, reason=reason, advice=_OVERTAKEN)
        elif not error.retriable():
            raise KafkaException(error)

    def _replay(self, number: int, track: _Track, offset: int) -> None:
        """Decide again what the run before has decided without an event."""
        steps = self._decisions.get(number, [])
        while steps and steps[0][0] <= offset:
            _, watermark = steps.pop(0)
            if isinstance(track.lane, PolicyLane):
                track.lane.keeper.advance(watermark)

    def _drop(self, message: Message, log_time: int) -> None:
        self.counts["dropped"] += 1
        topic = self.injection.dropped_to
        if topic is not None:
            key: Any = message.key()
            value: Any = message.value()
            self._produce(topic, value, key, -1, log_time, message.headers())

    def commit(self) -> None:
        """Mark what has moved, and commit it together with the records."""
        if not self._open:
            self._call(self._begin)
        for track in self._tracks.values():
            if track.used and track.at_end and not self._replaying:
                track.lane.estimate(int((time.monotonic() - track.seen) * 1_000))
        self._follow()
        for number, track in self._tracks.items():
            if track.dirty or track.lane.watermark != track.marked:
                self._mark(number, track)
        self._call(self._producer.commit_transaction, _TIMEOUT)
        self._open = False
        self.counts["transactions"] += 1
        self._next_commit = time.monotonic() + self.injection.interval.total_seconds()

    def _mark(self, number: int, track: _Track, status: Status = Status.ACTIVE) -> None:
        state = LaneState(track.next, self._epoch, track.lane.snapshot(), dict(track.lane.counts))
        packed = state.pack(self.injection.source, number)
        self._send_mark(number, track, status, [(STATE_HEADER, packed)])
        track.marked, track.dirty = track.lane.watermark, False

    def _send_mark(self, number: int, track: _Track, status: Status, headers: list[tuple[str, bytes]]) -> None:
        record = WatermarkRecord(
            source=self.injection.source,
            epoch=self._epoch,
            sequence=track.sequence,
            watermark=track.lane.watermark,
            partitions=self._partitions,
            emitted_at=self._now(),
            status=status,
            membership=self.injection.membership,
            records=track.records,
        )
        track.sequence += 1
        self.counts["marks"] += 1
        both = [(HEADER, FORMAT_VERSION), *headers]
        self._produce(self.injection.target_topic, encode_watermark(record), self._key, number, 0, both)

    def _align(self) -> None:
        """Pause the partitions that are too far ahead of the slowest; it itself never is."""
        if self.injection.align is None:
            return
        known = {number: track.lane.watermark for number, track in self._tracks.items() if track.used}
        behind = [watermark for number, watermark in known.items() if not self._tracks[number].at_end]
        lowest = min((watermark for watermark in behind if watermark is not None), default=None)
        for number, watermark in known.items():
            track = self._tracks[number]
            # One that has a backlog and has said nothing yet may turn out to be the slowest.
            ahead = watermark is not None and (
                None in behind or (lowest is not None and watermark > lowest + milliseconds(self.injection.align))
            )
            if ahead != track.paused:
                place = [TopicPartition(self.injection.source_topic, number)]
                (self._consumer.pause if ahead else self._consumer.resume)(place)
                track.paused = ahead

    def end(self) -> None:
        """Say in every partition that nothing more will come, for an input that is complete."""
        self.commit()
        self._call(self._begin)
        for number, track in self._tracks.items():
            self._mark(number, track, Status.ENDED)
        self._call(self._producer.commit_transaction, _TIMEOUT)
        self._open = False

    @property
    def watermarks(self) -> dict[int, int | None]:
        """What each partition promises."""
        return {number: track.lane.watermark for number, track in self._tracks.items()}

    @property
    def paused(self) -> set[int]:
        """The partitions that are held because they are ahead."""
        return {number for number, track in self._tracks.items() if track.paused}

    @property
    def fates(self) -> Counter[str]:
        """What became of the records, over all partitions and since the injection began."""
        total: Counter[str] = Counter()
        for track in self._tracks.values():
            total.update(track.lane.counts)
            if isinstance(track.lane, PolicyLane):
                total.update(track.lane.keeper.counts)
        return total

    def metrics(self) -> Metrics:
        """Return what is measured, since the injection began."""
        fates, known = self.fates, list(self.watermarks.values())
        lowest = None if None in known else min((mark for mark in known if mark is not None), default=None)
        return Metrics(
            "injector",
            self.injection.source,
            records=self.counts["records"],
            late_events=fates[Fate.LATE_ADJUSTED] + fates[Fate.LATE_DROPPED] + fates["late"],
            early_events=fates[Fate.EARLY_DROPPED],
            out_of_order_events=fates[Fate.OUT_OF_ORDER_ADJUSTED] + fates[Fate.OUT_OF_ORDER_DROPPED],
            unreadable=fates["unreadable"] + fates["reserved"],
            dropped=fates[Fate.EARLY_DROPPED] + fates[Fate.LATE_DROPPED] + fates[Fate.OUT_OF_ORDER_DROPPED],
            watermark_delay_seconds=delay(self._now(), lowest),
        )

    def close(self) -> None:
        """Let go of the clients; what is not committed is given up, and done again by the next instance."""
        if self._open:
            self._open = False
            with suppress(FloodmarkError):  # Kafka ends it by itself where it cannot be reached
                self._call(self._producer.abort_transaction, _TIMEOUT)
        self._consumer.close()

    def _begin(self) -> None:
        if not self._open:
            self._producer.begin_transaction()
            self._open = True

    def _produce(  # a Kafka record
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        timestamp: int,
        headers: Any,  # noqa: ANN401
    ) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, timestamp=timestamp, headers=headers)
            except BufferError:
                self._producer.poll(0.05)
            else:
                return

    def _call(self, do: Callable[..., object], *arguments: object) -> None:
        """Do something with the transaction; say clearly what went wrong."""
        try:
            do(*arguments)
        except KafkaException as error:
            cause: Any = error.args[0]
            if cause.code() in FENCED:
                raise FencedError(job=self.injection.source, topic=self.injection.target_topic) from error
            servers = self._config.get("bootstrap.servers")
            reason = f"transaction of injector {self.injection.source!r}: {cause.str()}"
            raise BrokerUnavailableError(bootstrap_servers=servers, seconds=_TIMEOUT, reason=reason) from error


def decisions_of(config: Config, topic: str, source: str) -> dict[int, list[tuple[int, int]]]:
    """Read what an earlier injection decided: per partition, before which input offset which watermark was in force.

    Args:
        config: confluent-kafka consumer settings.
        topic: the target topic of that injection.
        source: its source id.

    Raises:
        UnknownTopicError, BrokerUnavailableError: where it cannot be read.
    """
    key, found = control_key(source), dict[int, list[tuple[int, int]]]()
    for message in read_to_end(config, begin_offsets(config, [topic])):
        headers: Any = message.headers()
        value = dict(headers or []).get(STATE_HEADER) if message.key() == key else None
        if value is not None:
            state = LaneState.unpack(value)
            if state.lane["watermark"] is not None:
                step = (state.next, int(state.lane["watermark"]))
                found.setdefault(int(message.partition() or 0), []).append(step)
    return found
