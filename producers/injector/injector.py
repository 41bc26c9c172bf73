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
from collections import Counter
from collections.abc import Callable
from typing import Final

from floodmark.producers.clients.admin import (
    Config,
    begin_offsets,
    overwrites_timestamps,
    partition_count,
    timestamp_tolerances,
)
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.closing import Closing
from floodmark.producers.clients.consumers import BATCH, Record
from floodmark.producers.clients.metrics import Metrics
from floodmark.producers.clients.topic_watch import TopicWatch
from floodmark.producers.clients.transaction import Transaction
from floodmark.producers.event_times.formats import LogTime
from floodmark.producers.event_times.injection import STATE_HEADER, Injection
from floodmark.producers.event_times.input_partition import Routing
from floodmark.producers.event_times.policy_fit import PolicyFit
from floodmark.producers.injector.input_topic import InputTopic, sizes_of
from floodmark.producers.injector.partitions import Decisions, InjectedPartition, InjectedPartitions
from floodmark.producers.injector.preview import Preview, look_ahead, require_plausible
from floodmark.producers.injector.sanitizer import Sanitizer
from floodmark.producers.injector.target_topic import reset_target, states_of
from floodmark.producers.strategies.numbering import Identity, MarkWriter
from floodmark.schemas.errors import InjectorError
from floodmark.schemas.holds import Hold
from floodmark.schemas.records import Status, membership_of
from floodmark.schemas.timestamps import milliseconds

_log = logging.getLogger(__name__)
_LOOK_INTERVAL: Final = 10_000
_PATIENCE: Final = 0.1
_OUTPUT: Final = {
    "linger.ms": 20,
    "queue.buffering.max.messages": 1_000_000,
    "message.max.bytes": 1_000_000_000,  # the broker decides
}


class Injector(Closing):
    """One running injection.  Not thread-safe.

    Args:
        injection: what to do.
        config: confluent-kafka settings for both sides; all pass through.
        consumer_config: more of them for the reading side.
        producer_config: more of them for the writing side.
        decisions: repeat an earlier run instead of looking at the clock, see `target_topic.decisions_of`.
        reset: begin anew: delete all that the target holds, which must be this injector's alone.
        partition: pass on this partition of the input alone, which a member of an `InjectorGroup` has; its transactions
            are its own, so that the next member who has it shuts this one out.  Default: all.
        clock: where the time comes from.

    Raises:
        UnknownTopicError, BrokerUnavailableError, FencedError: if it cannot begin.
        InjectorError: if the target topic has fewer partitions than the input, replaces timestamps that are event
            times, or cannot be reset.
        CorruptSnapshotError: if the target holds a state that cannot be read.
        RecreatedTopicError: if the input was deleted and created again since it was read.
    """

    def __init__(  # two are what it is, the rest has defaults
        self,
        injection: Injection,
        config: Config,
        *,
        consumer_config: Config | None = None,
        producer_config: Config | None = None,
        decisions: Decisions | None = None,
        reset: bool = False,
        partition: int | None = None,
        clock: Clock = Clock(),  # noqa: B008  # frozen
    ) -> None:
        self.injection = injection
        self.counts: Counter[str] = Counter()
        """``records`` read, ``dropped``, ``marks``, ``transactions``, and of the records that were passed on:
        ``unreadable_headers``, ``headers_removed`` (floodmark's names, which are ours), ``timestamps_replaced``."""
        self._config = dict(config)
        self._clock = clock
        given, partitions = sizes_of(self._config, injection, equal=partition is not None)
        transactional = {**_OUTPUT, **config, **(producer_config or {})}
        writer = injection.source if partition is None else f"{injection.source}-{partition}"
        self._partition = partition
        self._out = Transaction(transactional, writer, injection.target_topic, kind="injector", refused=self._refusal)
        self._sanitizer = Sanitizer(injection, timestamp_tolerances(config, injection.target_topic), self.counts)
        if isinstance(injection.fmt, LogTime) and overwrites_timestamps(config, injection.target_topic):
            reason = f"{injection.target_topic!r} has message.timestamp.type=LogAppendTime, so it keeps no event times"
            raise InjectorError(source=injection.source, reason=reason, advice="set CreateTime there")
        deleted = reset_target(config, injection) if reset else 0
        found = begin_offsets(config, [injection.source_topic])
        states = states_of(config, injection.target_topic, injection.source, range(partitions))
        numbers = range(partitions) if partition is None else [partition]
        begins = {number: found.get((injection.source_topic, number), 0) for number in numbers}
        self._partitions = InjectedPartitions(injection, given, begins, states, clock, decisions)
        epoch = max(deleted + 1, self._partitions.epoch + 1, clock.wall())
        membership = membership_of(injection.membership, "injection")
        self._writer = MarkWriter(Identity(injection.source, epoch, membership), partitions)
        name = f"injector {injection.source!r}"
        self._watch = TopicWatch(self._config, [injection.source_topic], self._partitions.ids, name)
        nexts = {number: one.next for number, one in self._partitions.used.items()}
        self._input = InputTopic(injection, {**config, **(consumer_config or {})}, nexts)
        self._amid, self._taken = False, clock.wall()
        self._drained: int | None = None
        """When the client had nothing more, epoch milliseconds; ``None``: it always had."""
        self._worked_off: int | None = None
        """Up to when all that came to the input is committed, epoch milliseconds; ``None``: not known."""
        self._next_commit = clock.steady()
        self._next_look = clock.steady() + _LOOK_INTERVAL

    def _refusal(self, reason: str) -> InjectorError:
        """Say what to do where the target does not take a record."""
        advice = "give that topic the max.message.bytes and message.timestamp.* of the input, and start again"
        return InjectorError(source=self.injection.source, reason=reason, advice=advice)

    def _grow(self) -> None:
        """Take in partitions that were added to either topic."""
        given, partitions = sizes_of(self._config, self.injection, equal=self._partition is not None)
        self._writer.grow(partitions)
        # Asked by the producer itself, so that it learns of them, too.
        partition_count(self._out.producer, self.injection.target_topic, self._config.get("bootstrap.servers"))
        for number, offset in self._partitions.grow(given, partitions) if self._partition is None else ():
            self._input.add(number, offset)

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
            InjectorError: if it cannot go on; with ``until_end`` also where all was passed on and told no time.
        """
        ended = False
        while not (ended or stop()):
            self.step(progress)
            ended = until_end and all(one.at_end for one in self._partitions.used.values())
        if self.counts["transactions"]:
            self.commit()
        self._partitions.fit.judge()
        self._warn_of_misfit()
        if ended and not self.injection.allow_unreadable:
            self._partitions.require_time(self.first_trouble)

    def step(self, progress: Callable[["Injector"], None] | None = None, timeout: float = _PATIENCE) -> None:
        """Take in what has come, after ``timeout`` seconds at most, and commit when due.

        The first commit marks all partitions before any record.
        """
        ahead: list[Record] = []
        if not self.counts["transactions"]:
            ahead = self._look_ahead()
            self.commit()
        if self._clock.steady() >= self._next_look:
            self._next_look = self._clock.steady() + _LOOK_INTERVAL
            self._grow()
        wait = max(0.0, min(timeout, (self._next_commit - self._clock.steady()) / 1_000))
        self._take(ahead or self._input.take(wait))
        if self.injection.align is not None:
            for number, paused in self._partitions.align(self.injection.align):
                self._input.hold(number, paused=paused)
        if self._clock.steady() >= self._next_commit:
            self.commit()
            if progress is not None:
                progress(self)

    def _look_ahead(self) -> list[Record]:
        """Return the first records, up to a plausible time: a wrong option must not write a whole topic."""
        if self._partitions.format_confirmed or self.injection.allow_unreadable:
            return []
        fit = PolicyFit(self.injection.policy)
        used = {number: self.injection.input_partition(fit) for number in self._partitions.used}
        preview = Preview(self.injection, used, fit)
        found = look_ahead(self._input.consumer, preview, BATCH)
        preview.require_time()
        return found

    def _warn_of_misfit(self) -> None:
        advice = self._partitions.fit.pop_advice()
        if advice is not None:
            _log.warning("injector %s: %s", self.injection.source, advice)

    def _take(self, records: list[Record]) -> None:
        self._amid = True
        self._taken = self._clock.wall()
        if self._input.drained:
            self._drained = self._taken
        self._out.begin()
        seen, bounds = self._clock.steady(), self._sanitizer.bounds(self._taken)
        for record in records:
            error, partition = record.error(), self._partitions[record.partition()]
            if error is None:
                self._pass_on(record, partition, bounds, seen)
            elif self._input.is_at_end(error):
                partition.reach_end(self._clock.wall())
        if not self._partitions.format_confirmed:  # the first records may come long after the start
            require_plausible(self.injection, self._partitions.fit)
        self._warn_of_misfit()
        self._out.poll()
        self._amid = False

    def _pass_on(self, record: Record, partition: InjectedPartition, bounds: tuple[float, float], seen: int) -> None:
        """Pass a record on, drop it or skip it, as its partition decides; the target takes timestamps within bounds."""
        number, offset, sanitizer = record.partition(), record.offset(), self._sanitizer
        key, value, log_time = record.key(), record.value(), record.timestamp()[1]
        routing, headers = partition.take(key, value, offset, log_time, taken=self._taken, seen=seen)
        trouble = partition.input.pop_trouble()
        if trouble is not None:
            sanitizer.report(record, trouble)
        self.counts["records"] += 1
        if routing is Routing.SKIP:
            return
        own = sanitizer.headers(record)
        if not bounds[0] <= log_time <= bounds[1]:
            headers, log_time = sanitizer.without_timestamp(record, headers), 0
        if routing is Routing.FORWARD:
            target = self.injection.target_topic
            self._out.produce(target, number, key, value, [*sanitizer.without_ours(own), *headers], log_time)
            self._writer.count(number, 1)
        else:
            self.counts["dropped"] += 1
            if self.injection.dropped_to is not None:
                self._out.produce(self.injection.dropped_to, -1, key, value, own, log_time)

    def commit(self) -> None:
        """Mark what has moved, and commit it together with the records.

        Raises:
            InjectorError: if a step was interrupted: what it has half done may not be committed.
            RecreatedTopicError, UnknownTopicError: if the input is another topic now, or is missing.
            FencedError, BrokerUnavailableError: if Kafka does not take it.
        """
        if self._amid:
            reason, advice = "it was interrupted amid a batch", "close it and start again: nothing is lost"
            raise InjectorError(source=self.injection.source, reason=reason, advice=advice)
        self._watch.check()  # so all that is committed was read from the same topic
        self._out.begin()
        self._partitions.estimate()
        self._partitions.follow_slowest()
        worked_off = self._partitions.follow_time(self._drained)
        for number, partition in self._partitions.items():
            if partition.due:
                self._mark(number, partition)
        self._out.commit()
        self._worked_off = worked_off
        self.counts["transactions"] += 1
        self._next_commit = self._clock.steady() + milliseconds(self.injection.interval)

    def _mark(self, number: int, partition: InjectedPartition, status: Status = Status.ACTIVE) -> None:
        topic_id = self._partitions.ids.get(self.injection.source_topic)
        state = partition.state(self.injection, self._writer.identity.epoch, topic_id)
        watermark, worked_off = partition.input.watermark, self._partitions.processing_time(partition)
        mark = self._writer.mark(
            number, self._clock.wall(), watermark=watermark, status=status, processing_time_watermark=worked_off
        )
        self._out.produce_mark(number, mark, [(STATE_HEADER, state.pack(self.injection.source, number))])
        partition.note_marked()
        self.counts["marks"] += 1

    def end(self) -> None:
        """Say in every partition that nothing more will come, for an input that is complete."""
        self.commit()
        self._out.begin()
        for number, partition in self._partitions.items():
            self._mark(number, partition, Status.ENDED)
        self._out.commit()

    @property
    def first_trouble(self) -> str | None:
        """The place of the first record that could not be read or not be passed on as it was, and why."""
        return self._sanitizer.first_trouble

    @property
    def watermarks(self) -> dict[int, int | None]:
        """What each partition promises."""
        return self._partitions.watermarks

    @property
    def outcomes(self) -> Counter[str]:
        """What became of the records, over all partitions and since the injection began."""
        return self._partitions.outcomes

    def metrics(self) -> Metrics:
        """Return what is measured, since the injection began."""
        return self._partitions.metrics(self.counts["records"], self._worked_off, self._writer.identity.epoch)

    def holders(self) -> list[Hold]:
        """Return which partitions of the input hold the watermark."""
        return self._partitions.holders()

    def close(self) -> None:
        """Let go of the clients; what is not committed is given up, and done again by the next instance."""
        self._out.abort()
        self._input.close()
