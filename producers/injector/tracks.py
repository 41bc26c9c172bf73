"""The partitions under injection: how far each is, what they promise together, and which are too far ahead."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from floodmark.producers.clients.admin import Config, begin_offsets
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.metrics import Metrics, delay, state_of
from floodmark.producers.event_times.injection import Injection, InjectorState
from floodmark.producers.event_times.input_partition import ByPolicy, InputPartition
from floodmark.producers.event_times.policy_fit import PolicyFit
from floodmark.producers.event_times.time_policy import Outcome
from floodmark.producers.injector.target_topic import states_of
from floodmark.schemas.completeness.position import TopicIds
from floodmark.schemas.errors import InjectorError
from floodmark.schemas.holds import Hold
from floodmark.schemas.partition_state import lowest
from floodmark.schemas.records import Holder
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, milliseconds

OVERTAKEN: Final = "records are lost to retention; inject into a new topic, or keep the input longer"
"""What to do where Kafka has deleted records before they were read."""


@dataclass(slots=True)
class Track:
    """One partition under routing."""

    input: InputPartition
    next: int
    seen: int
    """When the last record was seen, steady clock, milliseconds."""
    at_end: bool = False
    empty: bool = False
    """Whether the client has seen the end of the partition, and goes on looking."""
    processing_time: int | None = None
    """Up to when all that came is taken in, epoch milliseconds, as far as log times say it; ``None``: not known."""
    paused: bool = False
    marked: int | None = None
    used: bool = True
    """Whether the input has this partition; else nothing comes, and it follows the slowest of the others."""
    dirty: bool = True
    """Whether there is something to say: a new epoch, new records, a new watermark."""

    def read(self, offset: int, log_time: int) -> None:
        """Note a record that is taken in: what comes next came later."""
        self.next, self.at_end, self.empty, self.dirty = offset + 1, False, False, True
        if EARLIEST < log_time <= END_OF_TIME:
            self.advance(log_time)

    def replay(self, steps: deque[tuple[int, int]], offset: int) -> None:
        """Decide again what an earlier run has decided without an event, before an offset."""
        while steps and steps[0][0] <= offset:
            _, watermark = steps.popleft()
            if isinstance(self.input, ByPolicy):
                self.input.policy_state.advance(watermark)

    def advance(self, time: int) -> None:
        """Note that all that came before a time is taken in."""
        self.processing_time = time if self.processing_time is None else max(time, self.processing_time)

    def state(self, injection: Injection, epoch: int, topic_id: str | None) -> InjectorState:
        """Return what the next mark must remember of this partition."""
        about, counts = injection.fmt.about, dict(self.input.counts)
        return InjectorState(self.next, epoch, about, self.input.snapshot(), counts, topic_id)


class Tracks(dict[int, Track]):
    """The partitions of one injection, by their number.

    Args:
        injection: what is done.
        used: how many partitions the input has.
        partitions: how many the target has.
        config: confluent-kafka settings, to read what an instance before has left.
        partition: the only one that is passed on; ``None``: all are.
        clock: where the time comes from.

    Raises:
        InjectorError: where retention has overtaken the last committed transaction.
        CorruptSnapshotError: where a state cannot be read.
    """

    def __init__(
        self, injection: Injection, used: int, partitions: int, config: Config, partition: int | None, clock: Clock
    ) -> None:
        self.epoch = 0
        """The highest epoch of the instances before."""
        self.drained: int | None = None
        """When the client had nothing more, epoch milliseconds; ``None``: it always had."""
        self.worked_off: int | None = None
        """Up to when all that came to the input is committed, see `follow_time`; ``None``: not known."""
        self.unproven = True
        """Whether no instance before has read a time by this format."""
        self.fit = PolicyFit(injection.policy)
        """How well the policy fits what this instance has read."""
        self.ids = TopicIds()
        """The id of the input."""
        self._injection, self._clock = injection, clock
        begins = begin_offsets(config, [injection.source_topic])
        states = states_of(config, injection.target_topic, injection.source, range(partitions))
        self.epoch = max((state.epoch for state in states.values()), default=0)
        for number in range(partitions) if partition is None else [partition]:
            begin = begins.get((injection.source_topic, number), 0)
            track = self.add(number, begin, used=number < used)
            if number in states:
                self._take_up(number, track, states[number], begin)
        self._before = self.outcomes

    def _take_up(self, number: int, track: Track, state: InjectorState, begin: int) -> None:
        """Go on where the last committed transaction ended."""
        if state.topic_id is not None:
            self.ids.compare({self._injection.source_topic: state.topic_id}, f"injector {self._injection.source!r}")
        track.next = state.next_offset
        track.input.restore(state.partition)
        track.input.counts.update(state.counts)
        self.unproven = self.unproven and not (track.input.timed and state.input_format == self._injection.fmt.about)
        if track.next < begin:
            reason = f"partition {number} was read up to {track.next}, and Kafka has it from {begin} on"
            raise InjectorError(source=self._injection.source, reason=reason, advice=OVERTAKEN)

    def add(self, number: int, begin: int, *, used: bool) -> Track:
        """Take in a partition, whose input begins at an offset."""
        track = self[number] = Track(self._injection.input_partition(self.fit), begin, self._clock.steady(), used=used)
        return track

    @property
    def used(self) -> dict[int, Track]:
        """The partitions that the input has."""
        return {number: track for number, track in self.items() if track.used}

    def follow_slowest(self) -> None:
        """Let the partitions that the input lacks promise what the slowest of the others does."""
        slowest = lowest([track.input.watermark for track in self.used.values()])
        if slowest is not None:
            for track in self.values():
                if not track.used:
                    track.input.follow(slowest)

    def estimate(self, now: int) -> None:
        """Let the partitions that are read to their end guess what has passed since their last record."""
        for track in self.used.values():
            if track.at_end:
                track.input.estimate(now - track.seen)

    def follow_time(self) -> int | None:
        """Return up to when all that came to the input is taken in, epoch milliseconds; ``None``: not known."""
        for track in self.used.values():
            if track.empty and self.drained is not None:
                track.advance(self.drained)
        return lowest([track.processing_time for track in self.used.values()])

    def processing_time(self, track: Track) -> int:
        """Return what a mark says of a partition; one that the input lacks is as far as the slowest of the others."""
        time = track.processing_time if track.used else lowest([one.processing_time for one in self.used.values()])
        return EARLIEST if time is None else time  # without one, readers would take the mark's own time

    def ahead(self, tolerance: timedelta) -> Iterable[tuple[int, bool]]:
        """Tell of each used partition whether it is too far ahead of the slowest; that one itself never is."""
        used = self.used
        behind = [track.input.watermark for track in used.values() if not track.at_end]
        slowest = lowest(behind)
        for number, track in used.items():
            watermark = track.input.watermark
            # A partition with a backlog and no watermark yet may turn out to be the slowest.
            is_ahead = watermark is not None and (slowest is None or watermark > slowest + milliseconds(tolerance))
            yield number, bool(behind) and is_ahead

    def require_time(self, first_trouble: str | None) -> None:
        """Refuse an injection of which no record had a readable time.

        Raises:
            InjectorError: where records were passed on, and none had one.
        """
        silent = self.outcomes["unreadable"] + self.outcomes["timeless"]
        if silent and not any(track.input.timed for track in self.values()):
            about = self._injection.fmt.about
            reason = f"all {silent:,} record(s) were passed on, and none told a time, read as {about}"
            reason += f"; {first_trouble}" if first_trouble else ""
            advice = "correct the field, unit, schema or format and begin anew with --reset, or pass --allow-unreadable"
            raise InjectorError(source=self._injection.source, reason=reason, advice=advice)

    @property
    def watermarks(self) -> dict[int, int | None]:
        """What each partition promises."""
        return {number: track.input.watermark for number, track in self.items()}

    def holders(self) -> list[Hold]:
        """Name the partitions of the input that hold the watermark: all that promise nothing, else the lowest."""
        watermarks = {number: track.input.watermark for number, track in self.used.items()}
        low = lowest(watermarks.values())
        reason = "has told no event time yet" if low is None else "lowest watermark"
        topic = self._injection.source_topic
        return [Hold(Holder(topic, number), low, reason) for number, at in watermarks.items() if at == low]

    @property
    def outcomes(self) -> Counter[str]:
        """What became of the records, over all partitions and since the injection began."""
        total: Counter[str] = Counter()
        for track in self.values():
            total.update(track.input.outcomes)
        return total

    def metrics(self, records: int, now: int, epoch: int) -> Metrics:
        """Return what is measured, since the injection began; ``records`` since this instance did.

        Args:
            records: how many this instance has read.
            now: wall clock, epoch milliseconds.
            epoch: of this instance.
        """
        watermark = lowest(self.watermarks.values())
        return Metrics(
            "injector",
            self._injection.source,
            records=records,
            **measured(self.outcomes),
            watermark_delay_seconds=delay(now, watermark),
            processing_time_delay_seconds=delay(now, self.worked_off),
            topic=self._injection.target_topic,
            watermark=watermark,
            state=state_of(watermark),
            epoch=epoch,
            before=measured(self._before),
        )


def measured(outcomes: Counter[str]) -> dict[str, int]:
    """Return the counters of `Metrics` that tell what became of the records."""
    return {
        "late_events": outcomes[Outcome.LATE_ADJUSTED] + outcomes[Outcome.LATE_DROPPED] + outcomes["late"],
        "early_events": outcomes[Outcome.EARLY_DROPPED],
        "out_of_order_events": outcomes[Outcome.OUT_OF_ORDER_ADJUSTED] + outcomes[Outcome.OUT_OF_ORDER_DROPPED],
        "unreadable": outcomes["unreadable"] + outcomes["reserved"],
        "missing_event_time": outcomes["timeless"],
        "dropped": outcomes[Outcome.EARLY_DROPPED]
        + outcomes[Outcome.LATE_DROPPED]
        + outcomes[Outcome.OUT_OF_ORDER_DROPPED],
    }
