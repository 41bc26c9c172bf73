"""Bring a topic without watermarks into the system, exactly once.  A thin shell around `input_partition`.

Theory of operation
-------------------
Records go from each input partition to the output partition of the same number, untouched but for headers; behind them
goes a mark.  Both are one Kafka transaction, and so is what the injector knows: the mark carries, in a header, the next
input offset and its state.  A crash leaves all of it or nothing; a restart reads the last mark of each
partition and goes on there, so nothing is passed on twice and no watermark goes back.  The transactional id is the
source id: a second instance fences the first.  Consumer groups keep no state here.

No record ends an injection: what cannot be read is passed on as it is, counted, and the first place is logged.  Only
where nothing has been written yet, or the options have changed, and no record at all tells a time, it does not begin.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from floodmark.producers.clients.admin import (
    Config,
    begin_offsets,
    partition_count,
    require_topics,
    timestamp_tolerances,
)
from floodmark.producers.clients.closing import Closing
from floodmark.producers.clients.metrics import Metrics, delay
from floodmark.producers.clients.records import BATCH, Record, consume, is_end
from floodmark.producers.clients.transaction import Transaction
from floodmark.producers.event_times.injection import STATE_HEADER, Injection, InjectorState
from floodmark.producers.event_times.input_partition import ByPolicy, InputPartition, Routing
from floodmark.producers.event_times.time_policy import Outcome
from floodmark.producers.injector.copies import Copies
from floodmark.producers.injector.injected import states_of, take_back
from floodmark.producers.injector.preview import Preview, look_ahead
from floodmark.schemas.errors import InjectorError
from floodmark.schemas.records import Status, WatermarkRecord
from floodmark.schemas.timestamps import milliseconds

_log = logging.getLogger(__name__)
_LOOK_INTERVAL: Final = 10.0
_FORMAT: Final = "format"  # in the state of an input partition; older versions ignore it
_OVERTAKEN: Final = "records are lost to retention; inject into a new topic, or keep the input longer"


@dataclass(slots=True)
class _Track:
    """One partition under routing."""

    input: InputPartition
    next: int
    sequence: int = 0
    records: int = 0
    seen: float = field(default_factory=time.monotonic)
    """When the last record was seen, monotonic clock."""
    at_end: bool = False
    paused: bool = False
    marked: int | None = None
    used: bool = True
    """Whether the input has this partition; else nothing comes, and it follows the slowest of the others."""
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
        decisions: repeat an earlier run instead of looking at the clock, see `injected.decisions_of`.
        reset: begin anew: delete all that the target holds, which must be this injector's alone.

    Raises:
        UnknownTopicError, BrokerUnavailableError, FencedError: where it cannot begin.
        InjectorError: where the target topic has fewer partitions than the input, or cannot be begun anew.
        CorruptSnapshotError: where the target holds a state that cannot be read.
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
        reset: bool = False,
    ) -> None:
        self.injection = injection
        self.counts: Counter[str] = Counter()
        """``records`` read, ``dropped``, ``marks``, ``transactions``, and of the records that were passed on:
        ``unreadable_headers``, ``headers_removed`` (floodmark's names, which are ours), ``timestamps_replaced``."""
        self._config = dict(config)
        self._now = now
        self._decisions = {number: deque(steps) for number, steps in (decisions or {}).items()}
        self._replaying = decisions is not None
        given, self._partitions = self._sizes()
        transactional = {
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "message.max.bytes": 1_000_000_000,  # the broker decides
            **config,
            **(producer_config or {}),
        }
        self._out = Transaction(
            transactional, injection.source, injection.target_topic, kind="injector", refused=self._refusal
        )
        self._copies = Copies(injection, timestamp_tolerances(config, injection.target_topic), self.counts)
        self._epoch = take_back(config, injection) if reset else 0
        self._unproven = True
        """Whether no instance before has begun with this format."""
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
        self._amid = False
        self._next_commit = time.monotonic()
        self._next_look = time.monotonic() + _LOOK_INTERVAL

    def _refusal(self, reason: str) -> InjectorError:
        """Say what to do where the target does not take a record."""
        advice = "give that topic the max.message.bytes and message.timestamp.* of the input, and start again"
        return InjectorError(source=self.injection.source, reason=reason, advice=advice)

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
        states = states_of(self._config, injection.target_topic, injection.source, range(self._partitions))
        for number in range(self._partitions):
            begin = begins.get((injection.source_topic, number), 0)
            track = tracks[number] = _Track(injection.input_partition(), begin, used=number < given)
            state = states.get(number)
            if state is not None:
                track.next = state.next
                track.input.restore(state.lane)
                track.input.counts.update(state.counts)
                if state.lane.get(_FORMAT, injection.fmt.about) == injection.fmt.about:
                    self._unproven = False
                self._epoch = max(self._epoch, state.epoch)
                if track.next < begin:
                    reason = f"partition {number} was read up to {track.next}, and Kafka has it from {begin} on"
                    raise InjectorError(source=injection.source, reason=reason, advice=_OVERTAKEN)
        return tracks

    def _grow(self) -> None:
        """Take in partitions that were added to either topic."""
        given, self._partitions = self._sizes()
        # Asked by the producer itself, so that it learns of them, too.
        partition_count(self._out.producer, self.injection.target_topic, self._config.get("bootstrap.servers"))
        for number in range(self._partitions):
            track = self._tracks.get(number)
            if track is None:
                track = self._tracks[number] = _Track(self.injection.input_partition(), 0, used=False)
                self._follow()
            if number < given and not track.used:
                track.used = True
                self._consumer.incremental_assign([TopicPartition(self.injection.source_topic, number, track.next)])

    def _follow(self) -> None:
        """Let the unused partitions promise what the slowest of the used ones does."""
        used = [track.input.watermark for track in self._tracks.values() if track.used]
        known = [watermark for watermark in used if watermark is not None]
        if used and len(known) == len(used):
            for track in self._tracks.values():
                if not track.used:
                    track.input.follow(min(known))

    def run(
        self,
        *,
        until_end: bool = False,
        progress: Callable[["Injector"], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go on until asked to stop; what has been taken in is committed then.

        Args:
            until_end: stop when all that is in the input has been passed on.
            progress: is told after each transaction.
            stop: is asked between the steps.

        Raises:
            InjectorError: where it cannot go on; with ``until_end`` also where all was passed on and told no time.
        """
        ended = False
        while not (ended or stop()):
            self.step(progress)
            ended = until_end and all(track.at_end for track in self._tracks.values() if track.used)
        if self.counts["transactions"]:
            self.commit()
        if ended and not self.injection.allow_unreadable:
            self._require_time()

    def _require_time(self) -> None:
        told = any(track.input.timed for track in self._tracks.values())
        silent = self.outcomes["unreadable"] + self.outcomes["timeless"]
        if silent and not told:
            reason = (
                f"all {silent:,} record(s) were passed on, and none told a time, read as {self.injection.fmt.about}"
            )
            reason += f"; {self.first_trouble}" if self.first_trouble else ""
            advice = "correct the field, unit, schema or format and begin anew with --reset, or pass --allow-unreadable"
            raise InjectorError(source=self.injection.source, reason=reason, advice=advice)

    def step(self, progress: Callable[["Injector"], None] | None = None) -> None:
        """Take in what has come, and commit when due; the first commit marks all partitions before any record."""
        ahead: list[Record] = []
        if not self.counts["transactions"]:
            ahead = self._look_ahead()
            self.commit()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_INTERVAL
            self._grow()
        wait = max(0.0, min(0.1, self._next_commit - time.monotonic()))
        self._take(ahead or consume(self._consumer, wait))
        self._align()
        if time.monotonic() >= self._next_commit:
            self.commit()
            if progress is not None:
                progress(self)

    def _look_ahead(self) -> list[Record]:
        """Return the first records, once one of them has told a time: a wrong option must not write a whole topic."""
        if not self._unproven or self.injection.allow_unreadable:
            return []
        used = {number: self.injection.input_partition() for number, track in self._tracks.items() if track.used}
        preview = Preview(self.injection, used)
        found = look_ahead(self._consumer, preview, BATCH, lambda preview: preview.timed)
        preview.require_time()
        return found

    def _take(self, records: list[Record]) -> None:
        self._amid = True
        self._out.begin()
        seen, copies = time.monotonic(), self._copies
        lowest, highest = copies.taken(self._now())
        target = self.injection.target_topic
        for record in records:
            error, number = record.error(), record.partition()
            track = self._tracks[number]
            if error is not None:
                self._note(track, error)
                continue
            key, value, offset, log_time = record.key(), record.value(), record.offset(), record.timestamp()[1]
            if self._replaying:
                self._replay(number, track, offset)
            routing, headers = track.input.take(key, value, log_time)
            if track.input.trouble is not None:
                copies.name(record, track.input.trouble)
                track.input.trouble = None
            track.next, track.seen, track.at_end, track.dirty = offset + 1, seen, False, True
            if routing is Routing.SKIP:
                continue
            own = copies.headers(record)
            if not lowest <= log_time <= highest:
                headers, log_time = copies.without_timestamp(record, headers), 0
            if routing is Routing.FORWARD:
                self._out.produce(target, number, key, value, [*copies.foreign(own), *headers], log_time)
                track.records += 1
            else:
                self.counts["dropped"] += 1
                if self.injection.dropped_to is not None:
                    self._out.produce(self.injection.dropped_to, -1, key, value, own, log_time)
        self.counts["records"] += len(records)
        self._out.producer.poll(0)
        self._amid = False

    def _note(self, track: _Track, error: KafkaError) -> None:
        """Learn that a partition has come to its end; raise what is an error."""
        if is_end(error):
            track.at_end = True
            self.counts["records"] -= 1
            if not self._replaying:
                track.input.open(self._now())
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001  # its public name
            reason = f"Kafka no longer has what comes next: {error.str()}"
            raise InjectorError(source=self.injection.source, reason=reason, advice=_OVERTAKEN)
        elif not error.retriable():
            raise KafkaException(error)

    def _replay(self, number: int, track: _Track, offset: int) -> None:
        """Decide again what the run before has decided without an event."""
        steps = self._decisions.get(number, deque())
        while steps and steps[0][0] <= offset:
            _, watermark = steps.popleft()
            if isinstance(track.input, ByPolicy):
                track.input.policy_state.advance(watermark)

    def commit(self) -> None:
        """Mark what has moved, and commit it together with the records.

        Raises:
            InjectorError: where a step was interrupted: what it has half done may not be committed.
            FencedError, BrokerUnavailableError: where Kafka does not take it.
        """
        if self._amid:
            reason, advice = "it was interrupted amid a batch", "close it and start again: nothing is lost"
            raise InjectorError(source=self.injection.source, reason=reason, advice=advice)
        self._out.begin()
        for track in self._tracks.values():
            if track.used and track.at_end and not self._replaying:
                track.input.estimate(int((time.monotonic() - track.seen) * 1_000))
        self._follow()
        for number, track in self._tracks.items():
            if track.dirty or track.input.watermark != track.marked:
                self._mark(number, track)
        self._out.commit()
        self.counts["transactions"] += 1
        self._next_commit = time.monotonic() + self.injection.interval.total_seconds()

    def _mark(self, number: int, track: _Track, status: Status = Status.ACTIVE) -> None:
        memory = {**track.input.snapshot(), _FORMAT: self.injection.fmt.about}
        state = InjectorState(track.next, self._epoch, memory, dict(track.input.counts))
        packed = state.pack(self.injection.source, number)
        record = WatermarkRecord(
            source=self.injection.source,
            epoch=self._epoch,
            sequence=track.sequence,
            watermark=track.input.watermark,
            partitions=self._partitions,
            emitted_at=self._now(),
            status=status,
            membership=self.injection.membership,
            records=track.records,
        )
        self._out.produce_mark(number, record, [(STATE_HEADER, packed)])
        track.sequence += 1
        track.marked, track.dirty = track.input.watermark, False
        self.counts["marks"] += 1

    def _align(self) -> None:
        """Pause the partitions that are too far ahead of the slowest; it itself never is."""
        if self.injection.align is None:
            return
        known = {number: track.input.watermark for number, track in self._tracks.items() if track.used}
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
        self._out.begin()
        for number, track in self._tracks.items():
            self._mark(number, track, Status.ENDED)
        self._out.commit()

    @property
    def first_trouble(self) -> str | None:
        """The place of the first record that could not be read or not be passed on as it was, and why."""
        return self._copies.first_trouble

    @property
    def watermarks(self) -> dict[int, int | None]:
        """What each partition promises."""
        return {number: track.input.watermark for number, track in self._tracks.items()}

    @property
    def paused(self) -> set[int]:
        """The partitions that are held because they are ahead."""
        return {number for number, track in self._tracks.items() if track.paused}

    @property
    def outcomes(self) -> Counter[str]:
        """What became of the records, over all partitions and since the injection began."""
        total: Counter[str] = Counter()
        for track in self._tracks.values():
            total.update(track.input.outcomes)
        return total

    def metrics(self) -> Metrics:
        """Return what is measured, since the injection began."""
        outcomes, known = self.outcomes, list(self.watermarks.values())
        lowest = None if None in known else min((mark for mark in known if mark is not None), default=None)
        return Metrics(
            "injector",
            self.injection.source,
            records=self.counts["records"],
            late_events=outcomes[Outcome.LATE_ADJUSTED] + outcomes[Outcome.LATE_DROPPED] + outcomes["late"],
            early_events=outcomes[Outcome.EARLY_DROPPED],
            out_of_order_events=outcomes[Outcome.OUT_OF_ORDER_ADJUSTED] + outcomes[Outcome.OUT_OF_ORDER_DROPPED],
            unreadable=outcomes["unreadable"] + outcomes["reserved"],
            dropped=outcomes[Outcome.EARLY_DROPPED]
            + outcomes[Outcome.LATE_DROPPED]
            + outcomes[Outcome.OUT_OF_ORDER_DROPPED],
            watermark_delay_seconds=delay(self._now(), lowest),
        )

    def close(self) -> None:
        """Let go of the clients; what is not committed is given up, and done again by the next instance."""
        self._out.abort()
        self._consumer.close()
