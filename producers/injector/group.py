"""Several processes that copy one topic together: each has some of its partitions, and any may fail at any time.

Kafka's consumer group only assigns the partitions.  A member runs an `Injector` with its own transactions for each.  A
new owner starts the transactions of its partition, which fences the old owner and aborts its open transaction, and
resumes from the last mark.  All members write as one source, whose epoch is counted per partition, as readers do.
"""

import logging
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from floodmark.producers.clients.admin import Config
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.consumers import Closing, client_log
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.producers.injector.partitions import measured
from floodmark.producers.injector.topics import sizes_of
from floodmark.producers.metrics import Metrics, delay, state_of
from floodmark.producers.readers.alignment import Alignment, require_topic
from floodmark.schemas.errors import FencedError, FloodmarkError, UnknownTopicError, UsageError
from floodmark.schemas.partition_state import lowest
from floodmark.schemas.timestamps import milliseconds
from floodmark.schemas.tracker import Hold

_log = logging.getLogger(__name__)
_PATIENCE: Final = 0.1  # seconds that a step waits for records, over all its partitions
_FIXED: Final = {
    "enable.auto.commit": False,
    "auto.offset.reset": "latest",
    "partition.assignment.strategy": "cooperative-sticky",
}
_GROUP_SETTINGS: Final = {"group.instance.id", "heartbeat.interval.ms", "max.poll.interval.ms", "session.timeout.ms"}
"""Settings only for the client of the consumer group."""


class InjectorGroup(Closing):
    """One member of a group that copies a topic.  Not thread-safe.

    Args:
        injection: the same in all members; it cannot align partitions, because they belong to different members.
        config: confluent-kafka settings for both sides; all pass through.
        group: the name of the consumer group; default: from the source.
        alignment: as for `Injector`, for each partition.
        clock: for tests, a `ManualClock`.

    Raises what `Injector` raises if it cannot start, also if the target has another number of partitions than the
    input.
    """

    def __init__(
        self,
        injection: Injection,
        config: Config,
        *,
        group: str | None = None,
        alignment: Alignment | None = None,
        clock: Clock = Clock(),
    ) -> None:
        self.injection, self._clock = injection, clock
        self._alignment = None if alignment is None else require_topic(alignment, f"injector {injection.source!r}")
        self._config = {name: value for name, value in config.items() if name not in _GROUP_SETTINGS}
        self._injectors: dict[int, Injector] = {}
        self._wanted: set[int] = set()
        self._fenced: dict[int, int] = {}
        """By partition: when another member fenced us before the group revoked it; steady clock, milliseconds."""
        self._counts: Counter[str] = Counter()
        self._measured: Counter[str] = Counter({**measured(Counter()), "records": 0})
        """The counts of partitions that it no longer has, by the names of `Metrics`."""
        self._epoch = self._clock.wall()
        self._next_progress = self._clock.steady()
        self._trouble: str | None = None
        if injection.align is not None:
            raise UsageError(reason="a group of injectors cannot align partitions that different members have")
        sizes_of(self._config, injection, equal=True)
        name = group or f"floodmark-{injection.source}"
        self._members = Consumer({**config, **_FIXED, "group.id": name}, logger=client_log(__name__))
        revoked, lost = partial(self._revoked, commit=True), partial(self._revoked, commit=False)
        self._members.subscribe([injection.source_topic], on_assign=self._assigned, on_revoke=revoked, on_lost=lost)
        self._leave = weakref.finalize(self, self._members.close)
        """Without it, a program that exits would wait for ever for a rebalance."""

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        consumer.incremental_assign(places)
        consumer.pause(places)  # the injector of each partition reads it
        self._wanted |= {place.partition for place in places}

    def _revoked(self, _: Consumer, places: list[TopicPartition], *, commit: bool) -> None:
        for place in places:
            self._give_up(place.partition, commit=commit)

    def _give_up(self, number: int, *, commit: bool) -> None:
        """Close a partition; the next owner repeats what was not committed."""
        self._wanted.discard(number)
        self._fenced.pop(number, None)
        injector = self._injectors.pop(number, None)
        if injector is None:
            return
        try:
            if commit:
                injector.commit()
        except FencedError:
            pass  # another member has it
        except FloodmarkError as error:
            source, topic = self.injection.source, self.injection.source_topic
            _log.warning(
                "injector %r gave up partition %d of %r, and its last records were not committed. The next owner copies"
                " them again: %s",
                *(source, number, topic, error),
            )
        injector.close()
        self._counts += injector.counts
        self._measured.update(_own(injector.metrics()))
        self._trouble = self._trouble or injector.first_trouble

    @property
    def partitions(self) -> list[int]:
        """The input partitions of this member."""
        return sorted(self._injectors)

    @property
    def counts(self) -> Counter[str]:
        """The counts of this member, see `Injector.counts`."""
        return sum((injector.counts for injector in self._injectors.values()), self._counts.copy())

    @property
    def outcomes(self) -> Counter[str]:
        """The outcomes of its partitions since the injection began, also with earlier owners; without any, its own."""
        if not self._injectors:
            return Counter({name: count for name, count in self._measured.items() if name != "records"})
        return sum((injector.outcomes for injector in self._injectors.values()), Counter[str]())

    @property
    def watermarks(self) -> dict[int, int | None]:
        """The watermark of each of its partitions."""
        return {number: injector.watermarks[number] for number, injector in self._injectors.items()}

    @property
    def first_trouble(self) -> str | None:
        """See `Injector.first_trouble`."""
        found = (injector.first_trouble for injector in self._injectors.values())
        return self._trouble or next((trouble for trouble in found if trouble), None)

    def metrics(self) -> Metrics:
        """Return the counts of this member, and the progress of its partitions; without partitions it is idle."""
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
        """Return which of its partitions hold back its watermark."""
        holds = [hold for injector in self._injectors.values() for hold in injector.holders()]
        low = lowest([hold.watermark for hold in holds])
        return [hold for hold in holds if hold.watermark == low]

    def run(
        self, *, progress: Callable[["InjectorGroup"], None] | None = None, stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Copy records until ``stop``, called between the steps, returns true; then commit.

        ``progress`` is called after each transaction, when partitions come or go, and while there are none.  Raises
        what `Injector.run` raises, and FencedError if a writer outside the group writes to one of its partitions.
        """
        while not stop():
            self.step(progress)
        for injector in self._injectors.values():
            with suppress(FencedError):  # another member may have it now
                injector.commit()

    def step(self, progress: Callable[["InjectorGroup"], None] | None = None) -> None:
        """Poll the group, copy new records of each partition, and start the injector of a new one."""
        had, new = self.partitions, self._follow()
        told = None if progress is None else lambda _: progress(self)
        for number, injector in list(self._injectors.items()):
            try:
                injector.step(told, 0 if new is not None else _PATIENCE / len(self._injectors))
                if new is not None:  # its start may take longer than Kafka keeps a transaction open
                    injector.commit()
            except FencedError:
                # Another member has it now; the group will revoke it here.
                self._give_up(number, commit=False)
                self._wanted.add(number)
                self._fenced[number] = self._clock.steady()
                _log.warning(
                    "injector %r: another injector writes partition %d of %r. If it is no member of this group, stop "
                    "one of the two: this one ends in a minute",
                    *(self.injection.source, number, self.injection.target_topic),
                )
        if new is not None:  # one a step: the group gives away the partitions of a member that does not poll
            self._injectors[new] = Injector(
                self.injection, self._config, alignment=self._alignment, partition=new, clock=self._clock
            )
        # Within a minute, the group must revoke a partition that has fenced us.
        if any(self._clock.steady() > since + 60_000 for since in self._fenced.values()):
            source, topic = self.injection.source, self.injection.target_topic
            reason, advice = "an injector outside the group writes to its partitions", "stop one of the two"
            raise FencedError(writer=f"injector {source!r}", topic=topic, reason=reason, advice=advice)
        waiting = not self._injectors and self._clock.steady() >= self._next_progress
        if progress is not None and (waiting or self.partitions != had):
            self._next_progress = self._clock.steady() + milliseconds(self.injection.interval)
            progress(self)

    def _follow(self) -> int | None:
        """Poll the group; return a new partition, whose injector must be started."""
        message = self._members.poll(0 if self._injectors else _PATIENCE)
        error = None if message is None else message.error()
        if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            servers = self._config.get("bootstrap.servers")
            raise UnknownTopicError(topic=self.injection.source_topic, bootstrap_servers=servers)
        if error is not None and not (error.retriable() or error.code() == KafkaError._MAX_POLL_EXCEEDED):  # noqa: SLF001
            raise KafkaException(error)  # after a late poll, the next one joins the group again
        return min(self._wanted - self._injectors.keys() - self._fenced.keys(), default=None)

    def close(self) -> None:
        """Leave the group; another member repeats what is not committed."""
        for number in self.partitions:
            self._give_up(number, commit=False)
        self._leave()


def _own(metrics: Metrics) -> Counter[str]:
    """Return what this member has counted."""
    own = Counter(records=metrics.records)
    own.update({name: getattr(metrics, name) - before for name, before in metrics.before.items()})
    return own
