"""What the producer promises at its edges: first records, clocks, failures, the end, a broker away."""

import os
import threading
import time
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest
from confluent_kafka import KafkaError
from floodmark.producers import (
    Data,
    EmbeddedKafka,
    Mark,
    Observer,
    SourcePool,
    WatermarkedConsumer,
    WatermarkedProducer,
    ascending,
    create_topics,
    explicit,
    ingress,
    punctuated,
    with_idleness,
)
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.readers.check import checker_of, findings
from floodmark.producers.sender import Outbox
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.strategies.numbering import Identity
from floodmark.producers.testing import ManualClock
from floodmark.schemas import Membership, Status, decode_watermark
from floodmark.schemas.errors import (
    DeliveryError,
    EndedError,
    FencedError,
    LateRecordError,
    UnacknowledgedError,
    UsageError,
)
from support.harness import StumblingStrategy, drain, read_to_end, until

DAY = timedelta(days=1)


def manual_clock():
    return ManualClock(wall=datetime.now(UTC))


def producer(kafka, target, **options):
    return WatermarkedProducer(
        kafka.config, **{"topic": target, "source": "a", "strategy": ascending(), "background": False, **options}
    )


def faults(kafka, target):
    return list(map(str, findings(kafka.config, target, None, checker_of(kafka.config, target))))


def statuses(kafka, target):
    with Observer(kafka.config, [target]) as observer:
        found = []
        until(
            lambda: (
                found.extend(observer.poll()) or observer.trackers[target].advance() or observer.trackers[target].ended
            ),
            "the end",
        )
    return [record.record.status if isinstance(record, Mark) else record.value for record in found]


@pytest.mark.kafka
def test_a_punctuation_goes_out_when_its_own_record_has_landed_and_not_before(kafka, topic):
    target = topic(1)
    ours = producer(kafka, target, strategy=punctuated(lambda value: 50 if value == b"p" else None), interval=DAY)
    ours.produce(b"p", event_time=49)
    with Observer(kafka.config, [target]) as observer:
        found = []

        def promised():
            ours.poll(0.02)
            found.extend(mark.record.watermark for mark in observer.poll(0.02) if isinstance(mark, Mark))
            return 50 in found

        until(promised, "the promise")
    assert found == [None, 50], "no round of marks is spent on less"


@pytest.mark.kafka
def test_a_first_record_behind_the_marks_before_it_is_late(kafka, topic):
    ours = producer(kafka, topic(1), strategy=explicit(), on_late="raise")
    ours.advance(100)
    for _ in range(2):
        with pytest.raises(LateRecordError):
            ours.produce(b"x", event_time=99)
    ours.produce(b"x", event_time=100)
    ours.advance(200)
    ours.mark_idle()
    with pytest.raises(LateRecordError):
        ours.produce(b"x", event_time=199)
    assert ours._emitter.status is Status.IDLE, "what was refused wakes nobody"  # noqa: SLF001
    ours.produce(b"x", event_time=200)
    assert (ours.late, ours.metrics().records) == (0, 2)
    ours.end()


@pytest.mark.kafka
def test_nothing_comes_after_the_end(kafka, topic):
    target, clock = topic(2), manual_clock()
    ours = producer(kafka, target, clock=clock)
    ours.produce(b"x", event_time=1)
    ours.end()
    for _ in range(3):
        clock.advance(timedelta(minutes=1))
        ours.poll()
        ours.flush()
        ours.emit()
    for action in (lambda: ours.produce(b"x", event_time=2), ours.end, ours.mark_idle):
        with pytest.raises(EndedError):
            action()
    assert faults(kafka, target) == []


@pytest.mark.kafka
def test_an_end_that_failed_before_its_marks_is_repeated(kafka, topic):
    target = topic(2)
    ours = producer(kafka, target, strategy=StumblingStrategy())
    ours._generator.stumbles = 1  # noqa: SLF001  # at its end, and no sooner
    with pytest.raises(ZeroDivisionError):
        ours.end()
    ours.end()
    read_to_end(kafka.config, target)
    with pytest.raises(EndedError):
        ours.end()


@pytest.mark.kafka
def test_an_end_whose_mark_was_rejected_and_sent_again_meanwhile_returns_at_the_next_call(kafka, topic, monkeypatch):
    ours = producer(kafka, topic(1))
    wait = ours._sender.wait  # noqa: SLF001  # Kafka rejects no mark when a test asks for it

    def rejected(timeout, *, marks=False):
        wait(timeout, marks=marks)
        if marks:
            raise DeliveryError(source="web", topic="t", failed=1, reason="rejected", held_at=None)

    with monkeypatch.context() as patch:
        patch.setattr(ours._sender, "wait", rejected)  # noqa: SLF001  # as above
        with pytest.raises(DeliveryError):
            ours.end()
    ours.end()
    with pytest.raises(EndedError):
        ours.end()


@pytest.mark.kafka
def test_a_clock_set_back_fences_nobody_and_makes_no_stamp_late(kafka, topic):
    target, clock = topic(1), manual_clock()
    clock.advance(timedelta(hours=1))
    with producer(kafka, target, strategy=ingress(), clock=clock) as first:
        first.produce(b"1")
        clock.advance(timedelta(seconds=5))
        clock.set(clock.wall() - 3_600_000)  # within a run ...
        first.produce(b"2")
    with producer(kafka, target, strategy=ingress(), clock=clock) as second:  # ... and for the next
        second.produce(b"3")
        second.end()
    with WatermarkedConsumer(kafka.config, [target], event_time=lambda record: record.log_time) as rows:
        until(lambda: [*rows.poll()] == [] and rows.ended, "the end of the second run")
        assert (rows.counts["late"], rows.counts.get("fenced", 0)) == (0, 0)
    assert second._emitter.identity.epoch > first._emitter.identity.epoch  # noqa: SLF001


@pytest.mark.kafka
def test_a_busy_source_stays_active_when_the_clock_is_set(kafka, topic):
    target, clock = topic(1), manual_clock()
    strategy = with_idleness(ascending(), timedelta(minutes=1))
    with producer(kafka, target, strategy=strategy, clock=clock) as ours:
        for event_time in range(5):
            ours.produce(b"x", event_time=event_time)
            clock.advance(timedelta(seconds=1))
            clock.set(clock.wall() + 3_600_000)
            ours.flush()
        ours.end()
    assert Status.IDLE not in statuses(kafka, target)


@pytest.mark.kafka
def test_a_restart_gives_up_a_record_that_kafka_never_accepts(kafka):
    target = "small-records"
    create_topics(kafka.config, {target: 1}, {"max.message.bytes": "1000"})
    ours = producer(kafka, target)
    ours.produce(os.urandom(5_000), event_time=12)
    for _ in range(2):
        with pytest.raises(DeliveryError, match=r"keep WatermarkedProducer\.failed, restart the producer"):
            ours.end()
        assert ours.resend() == 1
    ours.close()
    assert (ours.watermark, len(ours.failed)) == (12, 1)
    ours = producer(kafka, target)
    ours.produce(b"50", event_time=50)
    ours.end()
    assert ours.watermark == 50
    assert faults(kafka, target) == []


@pytest.mark.kafka
def test_a_failed_record_is_named_and_holds_until_resend_has_brought_it(kafka, topic):
    target = topic(1)
    ours = producer(kafka, target, interval=DAY, epoch=1)
    ours.produce(b"0", event_time=0)
    ours.flush()
    config = {**kafka.config, "linger.ms": 60_000}
    ours = WatermarkedProducer(
        config, topic=target, source="a", strategy=ascending(), interval=DAY, epoch=2, background=False
    )
    ours.emit()
    ours.produce(b"12", event_time=12, key="k", headers=[("h", b"v")])
    ours._channel.client.purge(in_queue=True, in_flight=False)  # noqa: SLF001  # as when its time has run out
    until(lambda: ours.poll(0.01) == 0 and ours.failed and not len(ours._channel.client), "the reports")  # noqa: SLF001
    ours.produce(b"50", event_time=50)
    for wait in (ours.flush, ours.end, ours.mark_idle):
        with pytest.raises(DeliveryError, match="resend") as caught:
            wait()
        assert (caught.value.failed, caught.value.held_at) == (1, 12)
    assert (ours.watermark, ours.metrics().failed, [record.value for record in ours.failed]) == (12, 1, [b"12"])
    assert ours.resend() == 1
    assert ours.watermark == 12, "it is under way"
    ours.end()
    assert (ours.watermark, ours.metrics().failed, ours.failed) == (50, 0, [])
    with Observer(kafka.config, [target]) as observer:
        found = []
        until(
            lambda: (
                found.extend(observer.poll()) or observer.trackers[target].advance() or observer.trackers[target].ended
            ),
            "the end",
        )
    rows = [(row.value, row.key, row.headers) for row in found if isinstance(row, Data)]
    assert rows == [(b"0", None, None), (b"50", None, None), (b"12", b"k", [("h", b"v")])]
    before = found[next(at for at, row in enumerate(found) if isinstance(row, Data) and row.value == b"50") - 1]
    assert before.record.epoch == 2, "the mark before the first record failed, so there is another one"


@pytest.mark.kafka
def test_minus_one_lets_the_key_decide_and_other_partitions_must_exist(kafka, topic):
    target = topic(3)
    ours = producer(kafka, target)
    ours.produce(b"x", event_time=1, key="k", partition=-1)
    ours.produce(b"x", event_time=1, key="k")
    for wrong in (-2, 3):
        with pytest.raises(UsageError, match="partitions 0 to 2"):
            ours.produce(b"x", event_time=1, partition=wrong)
    ours.end()
    assert faults(kafka, target) == []


@pytest.mark.kafka
def test_a_second_source_that_no_membership_counts_is_named(kafka, topic, caplog):
    target = topic(1)
    with producer(kafka, target, source="web-1") as first:
        first.produce(b"x", event_time=1)
        first.flush()
        producer(kafka, target, source="web-2")
        assert "writes to the topic, but 'web-1' wrote to it, too" in caplog.text
        assert "Membership(version=2, size=2)" in caplog.text
        caplog.clear()
        producer(kafka, target, source="web-2", membership=Membership(2, 2))
        assert target not in caplog.text
        first.end()
        producer(kafka, target, source="web-2")
        assert "wrote to it, too" not in caplog.text
        assert "all sources of the topic have ended" in caplog.text


@pytest.mark.kafka
def test_all_sources_have_ended_only_if_none_is_active_further_back(kafka, topic, caplog):
    target, two = topic(1), Membership(1, 2)
    last, old, new = (producer(kafka, target, source=name, membership=two) for name in ("last", "old", "new"))
    old.produce(b"x", event_time=1)
    old.close()
    for number in range(150):
        last.produce(b"x", event_time=number)
    for one in (last, new):
        one.end()
    caplog.clear()
    producer(kafka, target, source="old", membership=two)
    assert "all sources of the topic have ended" not in caplog.text


@pytest.mark.kafka
def test_a_source_under_another_name_is_told_of_those_that_its_membership_counts(kafka, topic, caplog):
    target = topic(1)
    two = [producer(kafka, target, source=name, membership=2) for name in ("a", "b")]
    for one in two:
        one.produce(b"x", event_time=1)
        one.flush()
    assert target not in caplog.text
    producer(kafka, target, source="bb", membership=2)
    assert "that 2 sources write to the topic, but 'a', 'b' wrote to it, too" in caplog.text
    assert "or give this source the name that it had before" in caplog.text
    caplog.clear()
    two[0].end()
    producer(kafka, target, source="cc", membership=2)
    assert "but 'a', 'b' wrote to it, too" in caplog.text
    assert "Membership(version=2, size=2)" in caplog.text


@pytest.mark.kafka
def test_a_running_source_is_told_once_that_a_pool_which_does_not_count_it_has_retired_it(kafka, topic, caplog):
    target, clock = topic(1), manual_clock()
    ours = producer(kafka, target, source="web", clock=clock)
    ours.produce(b"x", event_time=1)
    ours.flush()
    with SourcePool(kafka.config, topic=target) as pool:
        pool.join("JFK", strategy=explicit())[0].emit()
        pool.flush()

        def has_looked():
            clock.advance(timedelta(seconds=10))
            ours.poll()
            ours.emit()
            return len(ours._channel.successors.marks) == 2  # noqa: SLF001

        until(has_looked, "a look")
        for _ in range(10):
            has_looked()
    assert caplog.text.count("source 'web': the topic has marks of membership version") == 1, caplog.text
    ours.close()


@pytest.mark.kafka
@pytest.mark.parametrize("background", [False, True])
def test_the_older_of_two_processes_with_one_source_id_stops(kafka, topic, caplog, background):
    target, clock = topic(2), manual_clock()
    older = producer(kafka, target, strategy=explicit(), clock=clock, background=background)
    older.produce(b"x", event_time=1)
    older.flush()
    newer = producer(kafka, target)
    newer.produce(b"x", event_time=1)
    newer.flush()

    def is_fenced():
        clock.advance(timedelta(seconds=10))
        with suppress(FencedError):
            older.poll()
            return False
        return True

    until(is_fenced, "the look at later runs")
    epochs = [str(one._emitter.identity.epoch) for one in (older, newer)]  # noqa: SLF001
    assert all(epoch in caplog.text for epoch in epochs)
    before = end_offsets(kafka.config, target)
    for use in (
        lambda: older.produce(b"x", event_time=2),
        *(older.poll, older.emit, older.flush, older.mark_idle, older.end),
    ):
        with pytest.raises(FencedError, match=f"'a' was fenced.*{target}.*{epochs[0]}.*{epochs[1]}"):
            use()
    assert older.close()
    assert end_offsets(kafka.config, target) == before
    newer.end()
    drain(kafka.config, target)


@pytest.mark.kafka
def test_the_older_of_two_processes_cannot_end_its_source(kafka, topic):
    """However short it runs: readers ignore its end."""
    target = topic(2)
    older, newer = (producer(kafka, target) for _ in range(2))
    for each in (older, newer):
        each.produce(b"x", event_time=1)
        each.flush()
    before = end_offsets(kafka.config, target)
    for _ in range(2):
        with pytest.raises(FencedError, match="'a' was fenced"):
            older.end()
    assert not older.ended
    assert end_offsets(kafka.config, target) == before
    newer.end()
    drain(kafka.config, target)


@pytest.mark.kafka
def test_a_source_that_is_alone_is_not_fenced_by_what_its_earlier_runs_wrote(kafka, topic):
    target, clock = topic(1), manual_clock()
    for _ in range(2):
        with producer(kafka, target, clock=clock) as ours:
            ours.produce(b"x", event_time=1)
            ours.flush()

            def has_looked(ours=ours):
                clock.advance(timedelta(seconds=10))
                ours.poll()
                seen = ours._channel.successors.marks.get("a")  # noqa: SLF001
                return seen is not None and seen.epoch == ours.epoch

            until(has_looked, "a look")
            ours.produce(b"x", event_time=1)
    assert faults(kafka, target) == []


@pytest.mark.kafka
@pytest.mark.parametrize(("calls", "told"), [("none", 1), ("poll", 0), ("idle", 0), ("background", 0)])
def test_a_source_that_nothing_called_for_long_says_so_once(kafka, topic, caplog, calls, told):
    clock = manual_clock()
    ours = producer(kafka, topic(1), clock=clock, background=calls == "background")
    for _ in range(3):
        ours.produce(b"x", event_time=1)
        if calls == "idle":
            ours.mark_idle()
        for _ in range(20):
            clock.advance(timedelta(seconds=1))
            if calls == "poll":
                ours.poll()
    ours.close()
    assert caplog.text.count("sent no marks for 20 s, because nothing called it") == told


@pytest.mark.kafka
@pytest.mark.parametrize("epoch", [100, 99, 0])
def test_an_epoch_that_is_not_above_the_last_one_is_refused(kafka, topic, caplog, epoch):
    target = topic(1)
    with producer(kafka, target, epoch=100) as first:
        first.produce(b"x", event_time=1)
    low = producer(kafka, target, epoch=epoch)
    assert "the topic has marks of its epoch 100" in caplog.text
    for use in (lambda: low.produce(b"x", event_time=2), low.flush, low.end):
        with pytest.raises(
            FencedError, match=f"it has epoch {epoch}, and readers follow another run there, with epoch 100"
        ):
            use()
    low.close()
    with producer(kafka, target, epoch=101) as second:
        second.produce(b"x", event_time=1)
        second.end()
    assert faults(kafka, target) == []


@pytest.mark.kafka
def test_an_epoch_that_is_used_again_is_refused_although_the_start_did_not_find_it(kafka, topic):
    target = topic(1)
    with producer(kafka, target, epoch=7) as first:
        for _ in range(50):
            first.emit()
    with producer(kafka, target, source="b") as other:
        for number in range(200):
            other.produce(b"x", event_time=number)
    clock = manual_clock()
    again = producer(kafka, target, epoch=7, clock=clock)
    again.produce(b"x", event_time=1)

    def is_fenced():
        clock.advance(timedelta(seconds=10))
        with suppress(FencedError):
            again.poll()
            return False
        return True

    until(is_fenced, "the look at other runs")
    with pytest.raises(FencedError, match="it has epoch 7, and readers follow another run there, with epoch 7"):
        again.flush()
    again.close()


@pytest.mark.kafka
def test_a_source_is_warned_of_a_membership_older_than_that_of_the_topic(kafka, topic, caplog):
    target = topic(1)
    with producer(kafka, target, source="b", membership=Membership(7, 2)) as first:
        first.produce(b"x", event_time=1)
        first.flush()
        producer(kafka, target, membership=Membership(7, 2))
        assert target not in caplog.text
        producer(kafka, target, membership=Membership(6, 2))
        assert "membership version 7" in caplog.text
        assert (
            "if Membership(version=7, size=2) counts this source, give it that; otherwise, give all sources "
            "membership=Membership(version=8, size=...) with the number that write now"
        ) in caplog.text


@pytest.mark.kafka
def test_a_plain_number_of_sources_is_version_1_and_a_change_says_what_to_write(kafka, topic, caplog):
    target = topic(1)
    with producer(kafka, target, membership=2) as one, producer(kafka, target, source="b", membership=2) as two:
        for source in (one, two):
            source.produce(b"x", event_time=1)
            source.flush()
        assert target not in caplog.text
        producer(kafka, target, source="c", membership=3)
        assert "it counts 3 sources, and the topic has marks of the same membership version that count 2" in caplog.text
        assert "readers wait for the larger number: give all sources membership=Membership(version=2, size=...)" in (
            caplog.text
        )
        with pytest.raises(UsageError, match=r"expected a higher version, as Membership\(version=2, size=3\)"):
            one.change_membership(3)
    with Observer(kafka.config, [target]) as observer:
        found = []
        until(lambda: found.extend(observer.poll()) or observer.trackers[target].advance() == 1, "both sources")
    assert {one.record.membership for one in found if isinstance(one, Mark)} == {Membership(version=1, size=2)}


@pytest.mark.parametrize(
    ("slip", "hint"),
    [
        ({"strategy": ascending}, r"ascending\(\)"),
        ({"membership": "3"}, r"Membership\(version=1, size=3\)"),
        ({"source": ""}, "source='web-1'"),
        ({"source": None}, "source='web-1'"),
        ({"interval": 1}, r"timedelta\(seconds"),
        ({"lease": 60}, r"timedelta\(seconds"),
        ({"lease": timedelta(seconds=1.9)}, r"the lease \(twice the interval or more\) is 1.9 s, expected 2 s or more"),
        ({"interval": timedelta(seconds=-3)}, "is -3 s, expected 0.001 s or more"),
        ({"early": 60}, r"timedelta\(seconds"),
        ({"on_late": "drop"}, "'send' or 'raise'"),
        ({"config": {"delivery.report.only.error": True}}, "for ever"),
        ({"config": {"transactional.id": "ours"}}, "transactional.id is set.* remove it"),
    ],
)
def test_a_slip_is_told_what_to_write_before_anything_is_connected(slip, hint):
    given = {"config": {}, "topic": "t", "source": "a", "strategy": ascending(), **slip}
    with pytest.raises(UsageError, match=hint):
        WatermarkedProducer(given.pop("config"), **given, background=False)


class FullClient:
    """A client whose queue has room for so many records."""

    def __init__(self, room):
        self.room = room
        self.queued, self.reports = [], []

    def produce(self, _topic, value, _key, partition, on_delivery, *_):
        if not self.room:
            raise BufferError
        self.room -= 1
        self.queued.append((partition, value))
        self.report = on_delivery
        self.reports.append(on_delivery)

    def poll(self, _timeout):
        return 0

    def __len__(self):  # as the client's
        return len(self.queued)


@pytest.mark.parametrize("room", range(4))
def test_marks_that_a_full_queue_has_no_room_for_are_sent_later_without_a_gap(room):
    emitter = Emitter(Identity("a", 1), ascending().build(), partitions=3)
    client = FullClient(room)
    outbox = Outbox(client, "t", emitter)
    assert outbox.send_marks(ManualClock(), wait=False) == emitter.registered == (room == 3)
    client.room = 100
    assert outbox.send_marks(ManualClock(), wait=False)
    assert emitter.registered
    outbox.send(b"x", None, 0, event_time=5, now=0)
    sequences = {}
    for partition, value in client.queued[:-1]:
        sequences.setdefault(partition, []).append(decode_watermark(b"__floodmark__/a", value).sequence)
    assert all(found == list(range(len(found))) for found in sequences.values())


def test_marks_that_nobody_acknowledges_do_not_fill_the_queue():
    outbox = Outbox(FullClient(10**6), "t", Emitter(Identity("a", 1), ascending().build(), partitions=3))
    rounds = 0
    while not outbox.has_mark_backlog:
        outbox.send_marks(ManualClock(), wait=False)
        rounds += 1
    assert rounds == 9


class InterruptedClient(FullClient):
    """A client of which Ctrl-C strikes when it has taken the second record."""

    def produce(self, *arguments):
        super().produce(*arguments)
        if len(self) == 2:
            raise KeyboardInterrupt


def one_by_one(outbox):
    for at in (10, 5):
        outbox.send(b"x", None, 0, event_time=at, now=0)


def together(outbox):
    outbox.send_many([b"1", b"2", b"3"], [None] * 3, [0] * 3, [10, 5, 4], 0)


@pytest.mark.parametrize("send", [one_by_one, together])
def test_a_record_that_the_client_took_before_an_interrupt_holds_the_watermark(send):
    emitter, client = Emitter(Identity("a", 1), ascending().build(), partitions=1), InterruptedClient(100)
    outbox = Outbox(client, "t", emitter)
    with pytest.raises(KeyboardInterrupt):
        send(outbox)
    assert (outbox.unacknowledged, len(client)) == (2, 2)
    assert emitter.watermark_hold <= 5
    client.report(None, None)
    client.report(None, None)
    assert outbox.unacknowledged == 0


@pytest.mark.parametrize("taken", range(4))
def test_records_that_the_client_did_not_take_are_not_late_when_they_are_sent_again(monkeypatch, taken):
    monkeypatch.setattr("floodmark.producers.sender._QUEUE_TIMEOUT", 0)
    emitter, client = Emitter(Identity("a", 1), ascending().build(), partitions=1), FullClient(taken)
    outbox = Outbox(client, "t", emitter)
    times, values = [10, 20, 30, 40], [b"x"] * 4
    with pytest.raises(BufferError):
        outbox.send_many(values, [None] * 4, [0] * 4, times, 0)
    for _ in range(taken):
        client.report(None, None)
    assert emitter.marks(now=1)[0][1].watermark == (times[taken - 1] if taken else None)
    client.room = 4
    outbox.send_many(values[taken:], [None] * (4 - taken), [0] * (4 - taken), times[taken:], 2)
    assert (emitter.late, emitter.records) == (0, 4)


def test_a_watermark_in_a_record_that_the_client_did_not_take_is_not_announced(monkeypatch):
    monkeypatch.setattr("floodmark.producers.sender._QUEUE_TIMEOUT", 0)
    emitter, client = Emitter(Identity("a", 1), punctuated(int).build(), partitions=1), FullClient(0)
    outbox = Outbox(client, "t", emitter)
    for room in (0, 1):
        client.room = room
        with nullcontext() if room else pytest.raises(BufferError):
            outbox.send(b"50", None, 0, event_time=49, now=0)
        assert emitter.reached == (50 if room else None)


def test_the_mark_of_the_end_is_sent_again_unchanged_where_it_failed():
    emitter, client = Emitter(Identity("a", 1), ascending().build(), partitions=2), FullClient(100)
    outbox = Outbox(client, "t", emitter)
    outbox.send_marks(ManualClock(), wait=True)
    emitter.end()
    outbox.send_marks(ManualClock(), wait=True)
    last = client.queued[-1]

    client.report(KafkaError(KafkaError._MSG_TIMED_OUT), None)  # noqa: SLF001  # so is it called there
    assert not outbox.settled
    with pytest.raises(UnacknowledgedError, match=r"Call flush\(\), end\(\) or mark_idle\(\) again"):
        outbox.check(1, marks=True)
    outbox.send_marks(ManualClock(), wait=True)
    assert client.queued[4:] == [last]


def test_while_kafka_is_away_the_first_failed_mark_is_logged_as_an_error_and_no_other(caplog):
    emitter, client = Emitter(Identity("a", 1), ascending().build(), partitions=2), FullClient(100)
    outbox, away = Outbox(client, "t", emitter), KafkaError(KafkaError._MSG_TIMED_OUT)  # noqa: SLF001  # as above
    for outage in (1, 2):
        for _ in range(3):
            outbox.send_marks(ManualClock(), wait=True)
            client.reports.pop(0)(away, None)
            client.reports.pop(0)(away, None)
        assert len([one for one in caplog.records if one.levelname == "ERROR"]) == outage
        outbox.send_marks(ManualClock(), wait=True)
        client.reports.pop(0)(None, None)
        client.reports.pop(0)(away, None)
        assert not outbox.settled, "the other partition is still away"
        outbox.send_marks(ManualClock(), wait=True)
        client.reports.pop(0)(None, None)
        client.reports.pop(0)(None, None)
        assert outbox.settled


@pytest.mark.kafka
def test_a_broker_that_restarts_delays_no_record_and_doubles_none(tmp_path):
    with EmbeddedKafka(tmp_path / "restarted") as broker:
        create_topics(broker.config, {"t": 1})
        clock = manual_clock()
        ours = producer(broker, "t", interval=timedelta(milliseconds=100), clock=clock)
        ours.produce(b"0", event_time=0)
        ours.flush()
        broker.kill()
        longest = 0.0
        for number in range(1, 51):  # looks for partitions and marks are due all the time
            clock.advance(timedelta(seconds=11))
            began = time.monotonic()
            ours.produce(b"%d" % number, event_time=number)
            longest = max(longest, time.monotonic() - began)
        assert longest < 10, "seconds, on a machine however busy; to ask for partitions would take 15"
        assert ours.watermark == 1, "held at the first that is not acknowledged"
        back = threading.Thread(target=broker.start)
        back.start()
        back.join()
        ours.end(timeout=120)
        values, _ = drain(broker.config, "t")
        assert [int(value) for value in values] == list(range(51))
        assert faults(broker, "t") == []


def test_a_first_event_time_in_seconds_is_warned_of_once(kafka, topic, caplog):
    """No error: times made up for a test may lie in January 1970, and a watermark so low holds up nothing later."""
    with producer(kafka, topic()) as ours:
        ours.produce(b"x", event_time=1_700_000_000)
        ours.produce(b"x", event_time=1_700_000_001)
    assert caplog.text.count("did you pass seconds?") == 1
    assert "1970-01-20T16:13:20+00:00" in caplog.text
    assert "2023-11-14T22:13:20+00:00" in caplog.text
    caplog.clear()
    for first in (12, 86_400_000, 1_700_000_000_000):
        with producer(kafka, topic(), clock=ManualClock(wall=1_770_000_000_000)) as ours:
            ours.produce(b"x", event_time=first)
            ours.produce(b"x", event_time=max(first, 1_800_000_000))
    assert "seconds" not in caplog.text, "made-up times that only pass through January 1970 are legal"
    with producer(kafka, topic(), strategy=explicit()) as ours:
        ours.advance(1_700_000_000)
    assert caplog.text.count("did you pass seconds?") == 1


def test_times_of_numpy_and_pandas_are_sent_as_they_are_meant(kafka, topic):
    target = topic()
    moment = pd.Timestamp("2026-01-01T00:00:00.5", tz="Europe/Paris")
    with producer(kafka, target, strategy=explicit()) as ours:
        ours.produce(b"x", event_time=np.int64(1_767_222_000_400), timestamp=np.int64(1_767_222_000_400))
        ours.produce(b"y", event_time=moment)
        ours.advance(moment)
        ours.flush()
        assert ours.watermark == 1_767_222_000_500
    with WatermarkedConsumer(kafka.config, [target], event_time=lambda _: np.int64(1_767_222_000_400)) as reader:
        found = []
        until(lambda: found.extend(reader.rows()) or len(found) == 2, "both rows")
    assert [(time, type(time)) for time, _ in found] == [(1_767_222_000_400, int)] * 2
    first = next(record for _, record in found if record.value == b"x")  # the two may lie in different partitions
    assert first.log_time == 1_767_222_000_400
