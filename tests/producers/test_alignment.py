"""A source that runs ahead is held until the slowest comes, is not called idle meanwhile, and nobody waits for ever."""

import threading
from datetime import timedelta

import pytest
from floodmark.producers import Mark, Observer, WatermarkedProducer, ascending, with_idleness
from floodmark.producers.alignment import Alignment, Peers
from floodmark.schemas import Membership, Status
from floodmark.schemas.errors import UsageError
from harness import mark, until


def test_only_active_peers_of_the_newest_membership_hold():
    peers = Peers("me", bound=10)
    assert not peers.is_ahead(10**9), "alone, nobody waits"
    peers.take(mark("me", 0))
    assert not peers.is_ahead(10**9), "nobody waits for itself"
    peers.take(mark("slow", 5))
    assert [peers.is_ahead(watermark) for watermark in (None, 15, 16)] == [False, False, True]
    peers.take(mark("slow", 6, 1, status=Status.IDLE))
    assert not peers.is_ahead(16)
    peers.take(mark("slow", 7, 2))
    peers.take(mark("slow", 1, 0))
    assert peers.slowest() == (7, "slow"), "a replay teaches nothing"
    peers.take(mark("new", 100, version=2))
    assert peers.slowest() == (100, "new"), "the old membership has retired"


def test_of_all_sources_the_slowest_never_waits():
    watermarks = {"a": 0, "b": 50, "c": 51}
    ahead = {}
    for name, watermark in watermarks.items():
        peers = Peers(name, bound=50)
        for other, other_watermark in watermarks.items():
            peers.take(mark(other, other_watermark))
        ahead[name] = peers.is_ahead(watermark)
    assert ahead == {"a": False, "b": False, "c": True}


def test_a_negative_bound_is_an_error():
    with pytest.raises(UsageError, match="alignment"):
        Alignment({}, topic="t", source="a", bound=timedelta(seconds=-1))


@pytest.mark.kafka
def test_a_fast_source_is_held_and_not_called_idle(kafka, topic):
    target = topic(2)

    def source(name, strategy):
        return WatermarkedProducer(
            kafka.config,
            topic=target,
            source=name,
            strategy=strategy,
            membership=Membership(1, 2),
            interval=timedelta(milliseconds=50),
            alignment=timedelta(seconds=1),
        )

    slow = source("slow", ascending())
    fast = source("fast", with_idleness(ascending(), timedelta(milliseconds=300)))
    sent = []

    def run():
        for second in range(10):
            fast.produce(b"", event_time=second * 1000)
            sent.append(second)
        fast.flush()

    slow.produce(b"", event_time=0)
    slow.flush()
    slow.produce(b"", event_time=1)
    slow.flush()
    # It reads marks from now on; the slow one goes on telling.
    until(
        lambda: slow.emit() or fast.ahead or fast._alignment.peers.slowest() is not None,  # noqa: SLF001
        "the peers' marks",
        20,
    )
    runner = threading.Thread(target=run)
    runner.start()
    with Observer(kafka.config, [target]) as observer:
        statuses, held = [], 0
        deadline = [0]

        def watched():
            nonlocal held
            slow.emit()
            marks = [record.record for record in observer.poll(0.05) if isinstance(record, Mark)]
            statuses.extend(one.status for one in marks if one.source == "fast")
            deadline[0] += 1
            held = len(sent)
            return deadline[0] > 20 and sent

        until(watched, "some rounds", 30)
        assert held <= 3, "the fast one waits a second ahead"
        assert set(statuses) == {Status.ACTIVE}
        assert len(statuses) > 10, "it goes on marking while it waits"
    for second in range(1, 12):
        slow.produce(b"", event_time=second * 1000)
        slow.poll(0.05)
        slow.emit()
    slow.end()
    runner.join(30)
    assert sent == list(range(10)), "with the slow one ended, nothing holds it"
    fast.end()
