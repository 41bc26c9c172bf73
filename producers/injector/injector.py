"""Copy a topic without watermarks to one with marks, exactly once.  A thin shell around `input_partition`.

Records go from each input partition to the output partition with the same number, unchanged except for headers.  A mark
follows them in the same Kafka transaction; its header stores the next input offset and the injector's state, so a
restart resumes from the last mark of each partition.  The transactional id is the source id, so a second instance
fences the first.  There is no consumer group.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from floodmark.producers.clients import admin
from floodmark.producers.clients.clock import Clock
from floodmark.producers.clients.consumers import BATCH, Closing, Record
from floodmark.producers.clients.transaction import Transaction
from floodmark.producers.event_times.injection import STATE_HEADER, Injection, InjectorState
from floodmark.producers.event_times.input_partition import Routing
from floodmark.producers.injector.partitions import Decisions, InjectedPartition, InjectedPartitions, measured
from floodmark.producers.injector.preview import Preview, look_ahead, require_input
from floodmark.producers.injector.sanitizer import Sanitizer
from floodmark.producers.injector.topics import (
    LATELY,
    InputTopic,
    has_ended,
    require_marked,
    require_states,
    require_timestamps,
    require_unmarked_drops,
    require_unmarked_input,
    reset_target,
    sizes_of,
    states_of,
    watch_topics,
)
from floodmark.producers.metrics import Metrics, age, delay, state_of
from floodmark.producers.other_runs import Predecessors, last_marks
from floodmark.producers.readers.alignment import Alignment, AlignmentReader, require_topic
from floodmark.producers.strategies.numbering import Identity, MarkWriter
from floodmark.schemas.classify import Place, mark_record
from floodmark.schemas.errors import BrokerUnavailableError, InjectorError, MissingRightError, UnknownTopicError
from floodmark.schemas.partition_state import lowest
from floodmark.schemas.records import FIRST_HEADER, Membership, Status, is_mark_key, membership_of
from floodmark.schemas.timestamps import milliseconds
from floodmark.schemas.tracker import Hold

_log = logging.getLogger(__name__)
_LOOK_INTERVAL: Final = 10_000
_LOOKS: Final = 2  # after which an open transaction is told: others are soon over
_HIDDEN: Final = "injector %s: an open transaction hides the records from %s on: they are not copied until it has ended"
_OUTPUT: Final = {
    "linger.ms": 20,
    "queue.buffering.max.messages": 1_000_000,
}


class Injector(Closing):
    """One running injection.  Not thread-safe.

    Args:
        injection: what to do.
        config: confluent-kafka settings for both sides; all pass through.
        decisions: those of an earlier run, to repeat it without the clock; see `decisions_of`.
        reset: start over: delete all records of the target, which must all be this injector's.
        alignment: how far each partition may be ahead of another topic, before the injector stops reading it.
        partition: copy only this partition, in its own transactions, as a member of an `InjectorGroup`.  Default: all.
        clock: for tests, a `ManualClock`.

    Raises:
        UnknownTopicError, BrokerUnavailableError, FencedError, OpenTransactionError: if it cannot start.
        InjectorError: if the target topic has fewer partitions than the input, replaces timestamps that are event
            times, has lost the injector's state, cannot be reset, has marks of sources that do not count this one, or
            records without any mark; if the input has marks, or the topic for dropped records.
        CorruptSnapshotError: if the target has a state that cannot be read.
        RecreatedTopicError: if the input or the target was deleted and created again since it was used.
    """

    def __init__(  # each is a decision of the user, most have defaults
        self,
        injection: Injection,
        config: admin.Config,
        *,
        decisions: Decisions | None = None,
        reset: bool = False,
        alignment: Alignment | None = None,
        partition: int | None = None,
        clock: Clock = Clock(),
    ) -> None:
        self.injection = injection
        self.counts: Counter[str] = Counter()
        """``records`` read, ``dropped``, ``marks``, ``transactions``, and changes of copied records:
        ``unreadable_headers``, ``headers_removed`` (Floodmark's own), ``timestamps_replaced``."""
        name = f"injector {injection.source!r}"
        if alignment is not None:
            require_topic(alignment, name)
        self._config, self._clock = dict(config), clock
        given, partitions = sizes_of(self._config, injection, equal=partition is not None)
        require_unmarked_drops(self._config, injection)
        self._partition = partition
        self._out = self._fencing(partitions)
        admin.await_transactions(config, injection.target_topic, name, None if partition is None else [partition])
        self._sanitizer = Sanitizer(injection, admin.timestamp_tolerances(config, injection.target_topic), self.counts)
        require_timestamps(config, injection)
        deleted = reset_target(config, injection) if reset else 0
        found = admin.begin_offsets(config, [injection.source_topic])
        self._replaced = {n for n in range(partitions) if reset and not found.get((injection.source_topic, n))}
        """The partitions of the target that get again all that they had: the input still begins at offset 0."""
        states = states_of(config, injection.target_topic, injection.source, range(partitions))
        membership = membership_of(injection.membership, "injection")
        self._resumes = any(
            state.next_offset > found.get((injection.source_topic, n), 0) for n, state in states.items()
        )
        """Whether it has copied records before."""
        self._check_marks(membership, name)
        if partition in (None, 0):
            admin.warn_of_compaction(config, [injection.source_topic])
        numbers = range(partitions) if partition is None else [partition]
        begins = {number: found.get((injection.source_topic, number), 0) for number in numbers}
        if not reset:
            require_states(config, injection, states, numbers)
        self._partitions = InjectedPartitions(injection, given, begins, states, clock, decisions)
        cut = [(n, begin) for n, begin in begins.items() if begin and n not in states]
        if cut:
            places = ", ".join(
                f"{begin:,} records before {Place(injection.source_topic, n, begin)}" for n, begin in cut
            )
            _log.warning("%s: Kafka has deleted up to %s: the output begins behind them", name, places)
        epoch = max(deleted + 1, self._partitions.epoch + 1, clock.wall())
        self._writer = MarkWriter(Identity(injection.source, epoch, membership), partitions)
        self._watch = watch_topics(
            config, injection, [injection.source_topic, injection.target_topic], self._partitions.ids
        )
        nexts = {number: one.next for number, one in self._partitions.used.items()}
        self._input = InputTopic(injection, config, nexts, self._watch)
        self._alignment: AlignmentReader | None = None
        if alignment is not None:
            self._alignment = AlignmentReader(config, alignment, topic=injection.target_topic)
        self._batch_unfinished, self._taken = False, clock.wall()
        self._largest: tuple[int, Place | None] = 0, None
        """The bytes of the largest value of this transaction, and where it is in the input."""
        self._committed_until: int | None = None
        """All input before this time is committed, epoch milliseconds; ``None``: not known."""
        self._hidden_looks: Counter[Place] = Counter()  # in a row that have found an open transaction in the input
        self._next_commit, self._next_look = clock.steady(), clock.steady() + _LOOK_INTERVAL
        self._preview = self._unjudged()

    def _fencing(self, partitions: int) -> Transaction:
        """Return the writer, after which no earlier injector of this source can commit, of all partitions or of one."""
        source, target = self.injection.source, self.injection.target_topic

        def writer(partition: int | None) -> Transaction:
            longest = max(60_000, 30_000 + milliseconds(self.injection.interval))  # or Kafka aborts it too early
            settings = {**_OUTPUT, "transaction.timeout.ms": longest, **self._config}
            return Transaction(settings, source, target, kind="injector", shard=partition, refused=self._refusal)

        own = writer(self._partition)
        for other in range(partitions) if self._partition is None else [None]:
            with suppress(MissingRightError):  # then this user has no other injector
                writer(other)
        return own

    def _unjudged(self) -> Preview | None:
        """Return an empty preview for the first records of this run; ``None``: they need not be judged."""
        if self._partitions.format_confirmed or self.injection.allow_unreadable:
            return None
        fit = self.injection.policy_fit()
        return Preview(self.injection, {n: self.injection.input_partition(fit) for n in self._partitions.used}, fit)

    def _check_marks(self, membership: Membership, name: str) -> None:
        """Raise InjectorError at the first start if the input has marks, or the target has others' records.

        Also after its end, since others may have taken its place.  Otherwise, warn of others, and if all have ended.
        """
        warns = self._partition in (None, 0)  # once in a group
        if self._resumes and not warns:
            return
        before = self._others()
        if not self._resumes:
            require_unmarked_input(self._config, self.injection)
            require_marked(self._config, self.injection)
        others = self._uncounted(before, membership)
        if others is not None and self._resumes and not has_ended(self._config, self.injection):
            _log.warning("%s: %s, so its records may be late. To see it, run floodmark why", name, others)
        else:
            self._require_counted(before, membership, "nothing was written")
        if warns and before.end_advice is not None:
            _log.warning("%s: %s", name, before.end_advice)

    def _others(self) -> Predecessors:
        marks = last_marks(self._config, self.injection.target_topic, self._clock.wall(), most=LATELY)
        return Predecessors(self.injection.source, marks)

    def _uncounted(self, before: Predecessors, membership: Membership) -> str | None:
        """Return that the target has marks of sources that do not count this one, of any age; ``None``: it has none."""
        advice = before.advice(membership, wall=0)
        if advice in {None, before.end_advice}:
            return None
        topic, others = self.injection.target_topic, ", ".join(map(repr, before.others))
        if not others:  # the membership is another than at its last start
            return f"topic {topic!r}: {advice}"
        return f"topic {topic!r} has marks of {others}, whose membership does not count it"

    def _require_counted(self, before: Predecessors, membership: Membership, written: str) -> None:
        if (reason := self._uncounted(before, membership)) is None:
            return
        advice = (
            f"{written}. Use another target topic (--to). To continue an earlier injection, pass its "
            "--source. Only in Python, several sources can write to one topic: give each "
            f"membership=Membership(version={before.membership.version + 1}, size=...)"
        )
        raise InjectorError(source=self.injection.source, reason=reason, advice=advice)

    def _begin(self) -> None:
        """Mark all partitions; at the first start, end if another source has begun at the same time."""
        self._commit()
        if self._resumes:
            return
        try:
            self._require_counted(self._others(), self._writer.identity.membership, "no record was copied")
        except InjectorError:
            self._end()  # or readers would wait for it
            raise

    def _refusal(self, reason: str) -> InjectorError:
        """Return the error for a record that the target rejects."""
        size, place = self._largest
        settings = "max.message.bytes, message.timestamp.*.max.ms and cleanup.policy"
        advice = f"give that topic the {settings} of the input, and start again"
        reason += f" (the largest record of this transaction is {place}, with {size:,} bytes)" if place else ""
        return InjectorError(source=self.injection.source, reason=reason, advice=advice)

    def _grow(self) -> None:
        """Add new partitions of either topic."""
        given, partitions = sizes_of(self._config, self.injection, equal=self._partition is not None)
        self._writer.grow(partitions)
        # The producer itself asks Kafka, so that it knows the new partitions.
        admin.partition_count(self._out.producer, self.injection.target_topic, self._config.get("bootstrap.servers"))
        for number, offset in self._partitions.grow(given, partitions) if self._partition is None else ():
            self._input.add(number, offset)
            if self._preview is not None:
                self._preview.partitions[number] = self.injection.input_partition(self._preview.fit)
        if self._alignment is not None:
            self._alignment.look_for_partitions(self._out.producer)

    def run(
        self,
        *,
        until_end: bool = False,
        progress: Callable[["Injector"], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Copy records until ``stop``, called between the steps, returns true; then commit.

        With ``until_end``, it stops at the end that the input has now, and warns of an open transaction before it.
        ``progress`` is called after each transaction.

        Raises:
            InjectorError: if it cannot continue; with ``until_end`` also if no record of the input has an event time.
            RecreatedTopicError, UnknownTopicError: if the input or the target was created again, or is missing.
            FencedError, BrokerUnavailableError: if Kafka does not commit.
        """
        ends = admin.end_offsets(self._config, self.injection.source_topic) if until_end else {}
        unread = {number: ends.get(number, 0) for number in self._partitions.used}
        while unread and not stop():
            self.step(progress)
            if until_end:
                unread = {number: end for number, end in unread.items() if not self._partitions[number].has_passed(end)}
        if self.counts["transactions"]:
            self.commit()
        self._partitions.fit.judge()
        self._warn_of_misfit()
        if not (unread or self.injection.allow_unreadable):
            self._partitions.require_time(self.first_trouble)
        if ends and (hidden := self._hidden()) is not None:
            _log.warning(_HIDDEN, self.injection.source, hidden)

    def _hidden(self) -> Place | None:
        """Return the begin of an open transaction in the input; ``None``: there is none."""
        topic = self.injection.source_topic
        behind = admin.open_transactions(self._config, topic, self._partitions.used)
        return next((Place(topic, *at) for at in behind.items()), None)

    def step(self, progress: Callable[["Injector"], None] | None = None, timeout: float = 0.1) -> None:
        """Copy new records, after at most ``timeout`` seconds, and commit when due.

        The first commit marks all partitions before any record.
        """
        self._require_whole()
        records: list[Record] = []
        if not self.counts["transactions"]:
            if self._preview is not None:
                self._batch_unfinished = True
                records = look_ahead(self._input.consumer, self._preview, BATCH)
                self._judge(self._preview)
                self._batch_unfinished = bool(records)
            self._begin()
        if self._clock.steady() >= self._next_look:
            self._next_look = self._clock.steady() + _LOOK_INTERVAL
            self._grow()
            self._warn_of_hidden()
        wait = max(0.0, min(timeout, (self._next_commit - self._clock.steady()) / 1_000))
        if not records:
            self._batch_unfinished = True
            records = self._input.take(wait)
            if self._preview is not None:  # the input was empty until now, or had nothing to judge
                self._preview.add_all(records)
                self._judge(self._preview)
        self._take(records)
        if self._clock.steady() >= self._next_commit:
            self._commit()
            if progress is not None:
                progress(self)

    def _require_whole(self) -> None:
        """Refuse to go on after an exception amid a batch: the rest of its records would be missing."""
        if self._batch_unfinished:
            reason, advice = "it was interrupted amid a batch", "close it and start again: nothing is lost"
            raise InjectorError(source=self.injection.source, reason=reason, advice=advice)

    def _aligned(self, records: list[Record]) -> Iterator[Record]:
        """Yield the records of each partition until it is too far ahead; then pause it, and keep its others.

        So only paused partitions have waiting records, each at most those of one batch.
        """
        for record in records:
            self._partitions[record.partition()].waiting.append(record)
        if self._alignment is not None:
            self._alignment.poll(self._clock.steady())
        yield from self._partitions.release(self._alignment)
        for number, paused in self._partitions.pause():
            self._input.hold(number, paused=paused)
            if paused and self._alignment is not None:
                self._next_commit = self._clock.steady()  # the other topic may wait for these marks

    def _judge(self, preview: Preview) -> None:
        """Refuse first records without a plausible time: a wrong option must not copy a whole topic."""
        self._require(preview.require_time)
        if preview.has_plausible_time or self._partitions.format_confirmed:
            self._preview = None

    def _require(self, check: Callable[[], None]) -> None:
        """Raise the error of a check, unless records of a group's other members show the options to be right."""
        try:
            check()
        except InjectorError:
            if self._partition is None or not require_input(self.injection, self._config):
                raise
            self._partitions.read_format = self.injection.fmt.about

    def _warn_of_hidden(self) -> None:
        """Warn once of each transaction that stops a partition of the input."""
        topic, found = self.injection.source_topic, dict[int, Place]()
        with suppress(BrokerUnavailableError, UnknownTopicError):  # the next look tells
            since = dict.fromkeys(self._partitions.used, self._clock.wall() - _LOOK_INTERVAL)
            found = admin.hidden_records(self._watch.client, self._config, topic, since)
        self._hidden_looks = Counter({place: self._hidden_looks[place] + 1 for place in found.values()})
        for place, looks in self._hidden_looks.items():
            if looks == _LOOKS:
                _log.warning(_HIDDEN, self.injection.source, place)

    def _warn_of_misfit(self) -> None:
        advice = self._partitions.fit.pop_advice()
        if advice is not None:
            _log.warning("injector %s: %s", self.injection.source, advice)

    def _take(self, records: list[Record]) -> None:
        self._batch_unfinished = True
        self._taken = self._clock.wall()
        self._out.begin()
        seen, bounds = self._clock.steady(), self._sanitizer.bounds(self._taken)
        for record in records if self._alignment is None and self.injection.align is None else self._aligned(records):
            error, partition = record.error(), self._partitions[record.partition()]
            if error is None:
                self._pass_on(record, partition, bounds, seen)
            elif self._input.is_at_end(error):
                partition.reach_end(record.offset())
        self._warn_of_misfit()
        self._out.poll()
        self._batch_unfinished = False

    def _pass_on(self, record: Record, partition: InjectedPartition, bounds: tuple[float, float], seen: int) -> None:
        """Copy, drop or skip a record, as its partition decides; ``bounds``: the timestamps that the target accepts."""
        number, offset, sanitizer = record.partition(), record.offset(), self._sanitizer
        key, value, log_time = record.key(), record.value(), record.timestamp()[1]
        routing, headers = partition.take(key, value, offset, log_time, taken=self._taken, seen=seen)
        trouble = partition.input.pop_trouble()
        if trouble is not None:
            sanitizer.report(record, trouble, dropped=routing is Routing.DROP)
        self.counts["records"] += 1
        if routing is Routing.SKIP:
            return
        target = self.injection.target_topic if routing is Routing.FORWARD else self.injection.dropped_to
        self.counts["dropped"] += routing is Routing.DROP
        if target is None or (routing is Routing.DROP and is_mark_key(key)):  # a mark is true of the input alone
            return
        own = sanitizer.headers(record)
        if not bounds[0] <= log_time <= bounds[1] or log_time == 0:
            headers, log_time = sanitizer.without_timestamp(record, headers), 0
        if value is not None and len(value) > self._largest[0]:
            self._largest = len(value), Place(self.injection.source_topic, number, offset)
        if routing is Routing.FORWARD:
            self._out.produce(target, number, key, value, [*sanitizer.without_ours(own), *headers], log_time)
            self._writer.count(number, 1)
        else:
            self._out.produce(target, -1, key, value, own, log_time)

    def commit(self) -> None:
        """Mark the partitions that have changed, and commit.

        `InjectorError`, also at the next step, if an exception interrupted one: half of it must not be committed.
        """
        self._require_whole()
        self._commit()

    def _commit(self) -> None:
        self._out.begin()
        self._partitions.estimate(self._input.ends)
        self._partitions.follow_slowest()
        read_until = self._partitions.follow_time()
        for number, partition in self._partitions.items():
            if partition.due:
                self._mark(number, partition)
        try:
            self._out.commit(self._watch.check)  # all of it comes from the same topic, and is in the same
        except BrokerUnavailableError:
            self._watch.require_same()  # the target may be missing
            raise
        self._committed_until, self._largest = read_until, (0, None)
        self.counts["transactions"] += 1
        self._next_commit = self._clock.steady() + milliseconds(self.injection.interval)

    def _mark(self, number: int, partition: InjectedPartition, status: Status = Status.ACTIVE) -> None:
        read, ids, epoch = partition.input, self._partitions.ids, self._writer.identity.epoch
        about, began_with = self._partitions.input_format, self._partitions.began_with
        known = ids.get(self.injection.source_topic), ids.get(self.injection.target_topic)
        state = InjectorState(partition.next, epoch, about, read.snapshot(), dict(read.counts), began_with, *known)
        now, time = self._clock.wall(), partition.time_of_mark
        mark = self._writer.mark(number, now, watermark=read.watermark, status=status, processing_time_watermark=time)
        headers: list[tuple[str, bytes | None]] = [(STATE_HEADER, state.pack(self.injection.source, number))]
        headers += [] if partition.held is None else partition.held.headers()
        headers += [(FIRST_HEADER, b"1")] if number in self._replaced and not self.counts["transactions"] else []
        self._out.produce(self.injection.target_topic, number, *mark_record(mark, headers))
        partition.note_marked()
        self.counts["marks"] += 1

    def end(self) -> None:
        """Mark every partition as ended, for an input that is complete; InjectorError: a transaction is open there."""
        self.commit()
        if (hidden := self._hidden()) is not None:
            advice = "the source was not ended. Start again when the transaction has ended"
            reason = f"an open transaction hides the records from {hidden} on"
            raise InjectorError(source=self.injection.source, reason=reason, advice=advice)
        self._end()

    def _end(self) -> None:
        self._out.begin()
        for number, partition in self._partitions.items():
            self._mark(number, partition, Status.ENDED)
        self._out.commit(self._watch.check)

    @property
    def first_trouble(self) -> str | None:
        """The place of the first record that was unreadable or had to be changed, and why."""
        return self._sanitizer.first_trouble

    @property
    def watermarks(self) -> dict[int, int | None]:
        """The watermark of each partition."""
        return self._partitions.watermarks

    @property
    def outcomes(self) -> Counter[str]:
        """The counts of all partitions, since the injection began."""
        return self._partitions.outcomes

    def metrics(self) -> Metrics:
        """Return the metrics since the injection began."""
        now, watermark = self._clock.wall(), lowest(self.watermarks.values())
        return Metrics(
            "injector",
            self.injection.source,
            records=self.counts["records"],
            **measured(self.outcomes),
            watermark_delay_seconds=delay(now, watermark),
            processing_time_delay_seconds=age(now, self._committed_until),
            topic=self.injection.target_topic,
            watermark=watermark,
            state=state_of(watermark),
            epoch=self._writer.identity.epoch,
            before=self._partitions.before,
        )

    def holders(self) -> list[Hold]:
        """Return which input partitions hold back the watermark."""
        return self._partitions.holders()

    def close(self) -> None:
        """Close the clients; the next instance repeats what is not committed."""
        self._out.abort()
        self._input.close()
        if self._alignment is not None:
            self._alignment.close()
