"""Several processes that pass on one topic together: each has some partitions of it, and any may die at any time.

Theory of operation
-------------------
Kafka's consumer group decides who has which partition; nothing is read through it, and it keeps no offset.  A member
runs an `Injector` for each partition that it has, with transactions of that partition's own.  Whoever gets a partition
begins its transactions, which shuts out the member that had it, ends what that has left open, and reads the last mark:
where to go on, and with which watermark.  So a partition is passed on by one member at a time whatever the members
believe, nothing is passed on twice, and no watermark goes back.

All members write as one source.  Its epoch is counted in each partition, as readers do.
"""

import logging
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from floodmark.producers.clients.admin import Config
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.closing import Closing
from floodmark.producers.clients.metrics import Metrics, delay, state_of
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.producers.injector.input_topic import sizes_of
from floodmark.producers.injector.partitions import measured
from floodmark.schemas.errors import FencedError, FloodmarkError, UnknownTopicError, UsageError
from floodmark.schemas.holds import Hold
from floodmark.schemas.partition_state import lowest
from floodmark.schemas.timestamps import milliseconds

_log = logging.getLogger(__name__)
_PATIENCE: Final = 0.1
"""Seconds that a step waits for records, over all partitions."""

_TOLERATED: Final = 60_000
"""Milliseconds in which the group must take a partition away that another member has."""

_FIXED: Final = {
    "enable.auto.commit": False,
    "auto.offset.reset": "latest",
    "partition.assignment.strategy": "cooperative-sticky",
}

_OF_THE_GROUP: Final = {"group.instance.id", "heartbeat.interval.ms", "max.poll.interval.ms", "session.timeout.ms"}
"""Settings that only the client which follows the group takes."""


class InjectorGroup(Closing):
    """One member of a group that passes on a topic.  Not thread-safe.

    Args:
        injection: what to do; the same in all members.
        config: confluent-kafka settings for both sides; all pass through.
        group: the name of the consumer group; default: that of the source.
        clock: where the time comes from.

    Raises:
        UnknownTopicError, BrokerUnavailableError: if it cannot begin.
        InjectorError: if the target has another number of partitions than the input.
        UsageError: if the injection aligns its partitions, which different members have.
    """

    def __init__(
        self,
        injection: Injection,
        config: Config,
        *,
        group: str | None = None,
        clock: Clock = Clock(),  # noqa: B008  # frozen
    ) -> None:
        self.injection, self._clock = injection, clock
        self._config = {name: value for name, value in config.items() if name not in _OF_THE_GROUP}
        self._injectors: dict[int, Injector] = {}
        self._wanted: set[int] = set()
        self._fenced: dict[int, int] = {}
        """When another member took a partition that the group says is ours, steady clock, milliseconds."""
        self._counts: Counter[str] = Counter()
        self._measured: Counter[str] = Counter({**measured(Counter()), "records": 0})
        """What was counted in partitions that it has no longer, by the names of `Metrics`."""
        self._epoch = self._clock.wall()
        self._next_word = self._clock.steady()
        self._trouble: str | None = None
        if injection.align is not None:
            raise UsageError(reason="a group of injectors cannot align partitions that different members have")
        sizes_of(self._config, injection, equal=True)
        name = group or f"floodmark-{injection.source}"
        self._members = Consumer({**config, **_FIXED, "group.id": name}, logger=_log)
        self._members.subscribe(
            [injection.source_topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        self._leave = weakref.finalize(self, self._members.close)
        """A program that ends without it would wait for ever for the answer to a rebalance."""

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.incremental_assign(places)
        consumer.pause(places)  # each partition has a client of its own, which knows where to go on
        self._wanted |= {place.partition for place in places}

    def _revoked(self, _: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self._give_up(place.partition, commit=True)

    def _lost(self, _: Consumer, places: list[TopicPartition]) -> None:
        for place in places:
            self._give_up(place.partition, commit=False)

    def _give_up(self, number: int, *, commit: bool) -> None:
        """Let go of a partition; what cannot be committed any more is done again by the member that has it next."""
        self._wanted.discard(number)
        self._fenced.pop(number, None)
        injector = self._injectors.pop(number, None)
        if injector is None:
            return
        with suppress(FloodmarkError):
            if commit:
                injector.commit()
        injector.close()
        self._counts += injector.counts
        self._measured.update(_own(injector.metrics()))
        self._trouble = self._trouble or injector.first_trouble

    @property
    def partitions(self) -> list[int]:
        """The partitions of the input that this member has."""
        return sorted(self._injectors)

    @property
    def counts(self) -> Counter[str]:
        """What this member has done, see `Injector.counts`."""
        return sum((injector.counts for injector in self._injectors.values()), self._counts.copy())

    @property
    def outcomes(self) -> Counter[str]:
        """What became of the records of its partitions, whoever had them, since the injection began."""
        return sum((injector.outcomes for injector in self._injectors.values()), Counter[str]())

    @property
    def watermarks(self) -> dict[int, int | None]:
        """What each of its partitions promises."""
        return {number: injector.watermarks[number] for number, injector in self._injectors.items()}

    @property
    def first_trouble(self) -> str | None:
        """See `Injector.first_trouble`."""
        found = (injector.first_trouble for injector in self._injectors.values())
        return self._trouble or next((trouble for trouble in found if trouble), None)

    def metrics(self) -> Metrics:
        """Return what this member has counted itself, and how far its partitions are; with none it is idle."""
        parts = [injector.metrics() for injector in self._injectors.values()]
        counted = self._measured.copy()
        for part in parts:
            counted.update(_own(part))
        watermark = lowest([part.watermark for part in parts])
        known = [behind for part in parts if (behind := part.processing_time_delay_seconds) is not None]
        return Metrics(
            "injector",
            self.injection.source,
            **counted,
            watermark_delay_seconds=delay(self._clock.wall(), watermark),
            processing_time_delay_seconds=max(known, default=0.0) if len(known) == len(parts) else None,
            topic=self.injection.target_topic,
            watermark=watermark,
            state=state_of(watermark, idle=not parts),
            epoch=self._epoch,
            before={},
        )

    def holders(self) -> list[Hold]:
        """Return which of its partitions hold its watermark."""
        holds = [hold for injector in self._injectors.values() for hold in injector.holders()]
        low = lowest([hold.watermark for hold in holds])
        return [hold for hold in holds if hold.watermark == low]

    def run(
        self, *, progress: Callable[["InjectorGroup"], None] | None = None, stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Go on until asked to stop; what has been taken in is committed then, and the partitions are given back.

        Args:
            progress: is told after each transaction, when partitions come or go, and while there are none.
            stop: is asked between the steps.

        Raises:
            InjectorError, BrokerUnavailableError: if a partition cannot continue, or one topic has grown alone.
            RecreatedTopicError, UnknownTopicError: if the input is another topic now, or is missing.
            FencedError: if somebody outside the group writes for a partition of ours.
        """
        while not stop():
            self.step(progress)
        for number in self.partitions:
            self._give_up(number, commit=True)

    def step(self, progress: Callable[["InjectorGroup"], None] | None = None) -> None:
        """Follow the group, and take in what has come to each partition that it gives us."""
        had = self.partitions
        self._follow()
        told = None if progress is None else lambda _: progress(self)
        for number, injector in list(self._injectors.items()):
            try:
                injector.step(told, _PATIENCE / len(self._injectors))
            except FencedError:
                # The group has given it to another member, and has not told us yet.
                self._give_up(number, commit=False)
                self._wanted.add(number)
                self._fenced[number] = self._clock.steady()
        if any(self._clock.steady() > since + _TOLERATED for since in self._fenced.values()):
            source, topic = self.injection.source, self.injection.target_topic
            reason, advice = "an injector outside the group writes to its partitions", "stop one of the two"
            raise FencedError(writer=source, topic=topic, reason=reason, advice=advice)
        waiting = not self._injectors and self._clock.steady() >= self._next_word
        if progress is not None and (waiting or self.partitions != had):
            self._next_word = self._clock.steady() + milliseconds(self.injection.interval)
            progress(self)

    def _follow(self) -> None:
        """Learn of the group which partitions are ours."""
        message = self._members.poll(0 if self._injectors else _PATIENCE)
        error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise UnknownTopicError(
                topic=self.injection.source_topic, bootstrap_servers=self._config.get("bootstrap.servers")
            )
        if error is not None and not (error.retriable() or error.code() == KafkaError._MAX_POLL_EXCEEDED):  # noqa: SLF001
            raise KafkaException(error)  # but not for having slept too long: the next poll joins the group again
        for number in sorted(self._wanted - self._injectors.keys() - self._fenced.keys()):
            self._injectors[number] = Injector(self.injection, self._config, partition=number, clock=self._clock)

    def close(self) -> None:
        """Leave the group; what is not committed is given up, and done again by another member."""
        for number in self.partitions:
            self._give_up(number, commit=False)
        self._leave()


def _own(metrics: Metrics) -> Counter[str]:
    """Return what an instance has counted itself."""
    own = Counter(records=metrics.records)
    own.update({name: getattr(metrics, name) - before for name, before in metrics.before.items()})
    return own
