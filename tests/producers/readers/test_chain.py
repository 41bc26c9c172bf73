"""The marks of a chain are read from near the ends of its topics, and followed from there."""

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from floodmark.producers import WatermarkedProducer, create_topics, explicit
from floodmark.producers.board.causes import Cause, reason_of
from floodmark.producers.board.source_history import Health
from floodmark.producers.board.why import trace
from floodmark.producers.clients.admin import end_offsets
from floodmark.producers.clients.clock import Clock
from floodmark.producers.readers import chain, replay
from floodmark.producers.readers.chain import ChainReader, root_holders
from floodmark.producers.readers.receipts import Receipt, receipts_topic
from floodmark.producers.testing import ManualClock, mark
from floodmark.schemas.classify import mark_record
from floodmark.schemas.errors import BrokerUnavailableError
from floodmark.schemas.records import Holder
from floodmark.schemas.tracker import UNMARKED
from support.harness import delete_before, recreate, until
from support.injection import open_transaction


def marking(kafka, topic, source="web", **options):
    return WatermarkedProducer(
        kafka.config, topic=topic, source=source, strategy=explicit(), interval=timedelta(hours=1), **options
    )


def twelve_marks(kafka, topic):
    source = marking(kafka, topic)
    for number in range(12):
        source.advance(number)
        source.flush()


def plain_records(kafka, topic, count):
    plain = Producer(kafka.config)
    for number in range(count):
        plain.produce(topic, b"%d" % number, partition=0)
        plain.poll(0)
    plain.flush(60)


def job_marks(kafka, topic, holder, watermarks):
    plain = Producer(kafka.config)
    for number, watermark in enumerate(watermarks):
        key, value, headers = mark_record(replace(mark("job", watermark, number), holder=holder))
        plain.produce(topic, value, key, 0, headers=headers)
    plain.flush(30)


@pytest.mark.kafka
def test_a_chain_that_begins_with_a_topic_without_marks_is_held_there(kafka, topic):
    name = topic(1)
    assert [(hold.holder, hold.reason) for hold in root_holders(kafka.config, [name])] == [(Holder(name), UNMARKED)]


@pytest.mark.kafka
def test_marks_that_retention_deletes_before_they_are_read_leave_the_newest_on_the_board(kafka, topic):
    target = topic(1)
    small = {"queued.min.messages": 1, "queued.max.messages.kbytes": 1, "max.partition.fetch.bytes": 1_000}
    with ChainReader({**kafka.config, **small}, [target]) as reader:
        marks = lambda numbers: [source.advance(number) or source.flush() for number in numbers]  # noqa: E731
        with marking(kafka, target) as source:
            marks(range(10))
            until(lambda: reader.poll(0.1) or reader.board().topic(target).watermark == 9, "the first marks")
            marks(range(10, 300))
            delete_before(kafka.config, target, end_offsets(kafka.config, target)[0] - 5, 1)
            until(lambda: reader.poll(0.1) or reader.board().topic(target).watermark == 299, "the last mark")
            marks([300])
        until(lambda: reader.poll(0.1) or reader.board().topic(target).watermark == 300, "the next mark")


@pytest.mark.kafka
def test_a_topic_that_was_created_again_is_read_again(kafka, topic, monkeypatch):
    monkeypatch.setattr("floodmark.producers.readers.observer._REFRESH", 0.2)
    target = topic(1)
    twelve_marks(kafka, target)
    with ChainReader(kafka.config, [target]) as reader:
        reader.poll(0.1)
        recreate(kafka.config, target, 1)
        with marking(kafka, target) as source:
            source.advance(5)
        until(lambda: reader.poll(0.1) or reader.board().topic(target).watermark == 5, "the mark of the new topic")


@pytest.mark.kafka
@pytest.mark.parametrize(("kept", "most"), [(timedelta(0), 200), (timedelta(days=1), 20_000)], ids=["old", "new"])
def test_a_large_topic_is_not_read_from_its_beginning(kafka, topic, monkeypatch, kept, most):
    target = topic(1)
    monkeypatch.setattr(chain, "KEPT", kept)
    plain_records(kafka, target, 30_000)
    read = []

    def counted(*arguments):
        for record in real(*arguments):
            read.append(record.offset)
            yield record

    real = replay.read_until_end
    monkeypatch.setattr(replay, "read_until_end", counted)
    twelve_marks(kafka, target)
    with ChainReader(kafka.config, [target]) as reader:
        found = reader.board().topic(target)
    assert found.watermark == 11
    assert not found.whole
    assert len(read) <= most + 200, "before the end, and before the start of the source"
    assert min(read) > 29_900 - most


@pytest.mark.kafka
def test_a_topic_that_is_created_later_comes_on_the_board(kafka):
    with ChainReader(kafka.config, ["created-later"]) as reader:
        reader.poll(0.1)
        assert [name for name, _ in reader.board().unread] == ["created-later"]
        create_topics(kafka.config, {"created-later": 1})
        with marking(kafka, "created-later") as source:
            source.advance(7)
        until(lambda: reader.poll(0.1) or reader.board().topic("created-later"), "the topic")
        assert reader.board().topic("created-later").watermark == 7
        assert not reader.board().unread


@pytest.mark.kafka
def test_the_old_name_of_a_source_that_started_again_under_another_is_found(kafka, topic, monkeypatch):
    monkeypatch.setattr(chain, "KEPT", timedelta(0))
    target = topic(1)
    old, leased = marking(kafka, target, "till-2"), marking(kafka, target, "till-3", lease=timedelta(hours=2))
    for number, source in enumerate((leased, old), 6):
        source.advance(number)
        source.flush()
    with marking(kafka, target, "til-2") as source:
        for number in range(300):
            source.advance(8 + number)
            source.flush()
        with ChainReader(kafka.config, [target]) as reader:
            found = reader.board().topic(target)
    assert [row.source for row in found.held_by] == ["till-2"]
    assert found.watermark == 7


@pytest.mark.kafka
@pytest.mark.parametrize("ends", [False, True])
def test_a_source_that_no_membership_counts_and_that_stopped_a_while_ago_is_found(kafka, topic, ends):
    """Readers of the topic wait for it."""
    target = topic(1)
    with marking(kafka, target) as source:
        with marking(kafka, target, "forgot membership=") as other:
            for number in (1, 2):
                source.advance(number)
                other.advance(number)
                source.flush()
        for number in range(3, 303):
            source.advance(number)
            source.flush()
        if ends:
            source.end()
        with ChainReader(kafka.config, [target]) as reader:
            found = reader.board().topic(target)
    assert [row.source for row in found.held_by] == ["forgot membership="]
    assert found.watermark == 2


@pytest.mark.kafka
def test_a_source_that_a_job_waits_for_is_looked_for_further_back(kafka, topic):
    target, output = topic(1), topic(1)
    web, gone = marking(kafka, target), marking(kafka, target, "gone")
    for source, numbers in ((web, range(300)), (gone, range(3)), (web, range(300, 600))):
        for number in numbers:
            source.advance(number)
            source.flush()
    later = ManualClock(wall=datetime.now(UTC) + timedelta(hours=1))
    with ChainReader(kafka.config, [output, target], clock=later) as follower:
        follower.poll(0.1)
        job_marks(kafka, output, Holder(target, 0, "gone"), [2, 2, 2])
        until(lambda: follower.poll(0.1) or follower.board().topic(target).watermark == 2, "the mark of the source")
        boards = [follower.board()]
    for topics in ([output], [output, target]):
        with ChainReader(kafka.config, topics, clock=later) as reader:
            boards.append(reader.board())
    for board in boards:
        why = trace(board, output)
        assert (why.cause.topic, why.cause.source, why.cause.verdict) == (target, "gone", Health.STOP)
        assert (why.exit_status, board.exit_status, board.topic(target).watermark) == (1, 1, 2)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("until_then", "restarts", "verdict"),
    [(-5_000, False, Health.TIME), (-5_000, True, Health.TIME), (3_600_000, True, Health.OK)],
)
def test_a_source_ahead_of_the_clock_is_followed_back(kafka, topic, until_then, restarts, verdict, monkeypatch):
    """It has marked ten times a second; its event times are an hour ahead since the eleventh second."""
    monkeypatch.setattr(chain, "KEPT", timedelta(0))
    target, plain = topic(1), Producer(kafka.config)
    began = Clock().wall() - 300_000
    for number in range(3_000):
        at, later = began + 100 * number, number >= 100
        again = 100 * (later and restarts)
        sequence = number - again
        watermark = None if not sequence else at + (3_600_000 if later else until_then)
        said = mark("web", watermark, sequence, epoch=began + 100 * again, records=sequence, emitted_at=at)
        key, value, headers = mark_record(said)
        plain.produce(target, value, key, 0, headers=headers, timestamp=at)
        plain.produce(target, b"data", None, 0, timestamp=at)
    plain.flush(60)
    with ChainReader(kafka.config, [target]) as reader:
        (row,) = reader.board().topic(target).sources()
    assert row.verdict is verdict


@pytest.mark.kafka
def test_it_looks_further_back_for_a_source_that_is_not_near_the_end(kafka, topic):
    target = topic(1)
    source = marking(kafka, target)
    source.advance(7)
    source.end()
    plain_records(kafka, target, 5_000)
    with ChainReader(kafka.config, [target]) as reader:
        board = reader.board()
    assert board.topic(target).state == "ended"
    assert board.topic(target).whole
    assert board.exit_status == 0


@pytest.mark.kafka
def test_a_topic_that_a_mark_names_and_that_cannot_be_read_is_on_the_board(kafka, topic):
    target, clock = topic(1), ManualClock(wall=datetime.now(UTC))
    job_marks(kafka, target, Holder("no-such-topic", 0, "web"), range(3))
    with ChainReader(kafka.config, [target], clock=clock) as reader:
        board = reader.board()
    assert [name for name, _ in board.unread] == ["no-such-topic"]
    assert board.topic(target).watermark == 2
    assert board.exit_status == 2


@pytest.mark.kafka
def test_a_topic_whose_name_no_broker_takes_is_on_the_board_too(kafka, topic):
    target = topic(1)
    job_marks(kafka, target, Holder("no such topic", 0, "web"), range(3))
    with ChainReader(kafka.config, [target]) as reader:
        board = reader.board()
    assert [name for name, _ in board.unread] == ["no such topic"]
    assert board.topic(target).watermark == 2


@pytest.mark.kafka
def test_a_topic_with_a_partition_that_does_not_answer_is_on_the_board_while_others_do(kafka, topic, monkeypatch):
    target, upstream = topic(1), topic(1)
    job_marks(kafka, target, Holder(upstream, 0, "web"), range(3))
    bounds = chain.offset_bounds

    def lacking(config, name):
        if name == upstream:
            raise BrokerUnavailableError(bootstrap_servers="k:1", seconds=15, reason="Broker: Leader not available")
        return bounds(config, name)

    monkeypatch.setattr(chain, "offset_bounds", lacking)
    with ChainReader(kafka.config, [target]) as reader:
        board = reader.board()
        assert board.answered
    assert [(name, "Leader not available" in reason) for name, reason in board.unread] == [(upstream, True)]
    assert board.topic(target).watermark == 2


@pytest.mark.kafka
def test_an_open_transaction_that_hides_the_marks_of_a_source_is_told(kafka, topic):
    target, later = topic(2), ManualClock(wall=datetime.now(UTC) + timedelta(hours=1))
    twelve_marks(kafka, target)
    stray = Producer({**kafka.config, "transactional.id": target})
    stray.init_transactions(30)
    plain = Producer(kafka.config)
    plain.produce(target, b"of a source whose next mark is hidden", partition=1)
    plain.flush(30)
    stray.begin_transaction()
    stray.produce(target, b"hangs", partition=1)
    stray.flush(30)
    twelve_marks(kafka, target)
    assert end_offsets(kafka.config, target) == {0: 24, 1: 13}, "the last twelve marks are hidden"

    def found(reader):
        return [(row.cause, row.reason) for row in reader.board().topic(target).sources()]

    with ChainReader(kafka.config, [target], clock=later) as follower, ChainReader(kafka.config, [target]) as now:
        silent = (Cause.SILENT, reason_of(Cause.SILENT))
        hidden = (Cause.HIDDEN, "an open transaction hides its marks from offset 13 on")
        assert found(follower) == [silent, hidden]
        assert hidden not in found(now), "it may end soon"
        stray.commit_transaction(30)
        until(lambda: found(follower) == [silent, silent], "the end of the transaction, which Kafka shows later")


@pytest.mark.kafka
def test_the_shards_of_a_silent_job_that_are_not_written_are_counted(kafka, topic):
    target, output, plain = topic(1), topic(1), Producer(kafka.config)
    twelve_marks(kafka, target)
    job_marks(kafka, output, Holder(target, 0, "web"), range(3))
    later = ManualClock(wall=datetime.now(UTC) + timedelta(hours=1))

    follower = ChainReader(kafka.config, [output], clock=later)

    def cause():
        with ChainReader(kafka.config, [output], clock=later) as reader:
            (row,), (followed,) = (one.board().topic(output).sources() for one in (reader, follower))
        assert (row.cause, row.reason) == (followed.cause, followed.reason), "a board that was read before"
        return row.cause, row.reason

    def write(shard, batch_id, checkpoint_id="c", shards=4):
        text = Receipt("run", checkpoint_id, batch_id, shards).text
        plain.produce(receipts_topic("job", output), text, partition=shard)
        plain.flush(30)

    assert cause()[0] is Cause.SILENT, "it has no receipts"
    create_topics(kafka.config, {receipts_topic("job", output): 4})
    for shard in range(4):
        write(shard, -1, shards=0)
    assert cause()[0] is Cause.SILENT, "no batch was written"
    for shard, batch_id in enumerate((17, 17, 16)):
        write(shard, batch_id)
    assert cause() == (Cause.SHARDS, reason_of(Cause.SHARDS, 2, 4))
    stray = open_transaction(kafka, output)
    assert cause() == (Cause.SHARDS, reason_of(Cause.SHARDS, 2, 4)), "it may be of an executor"
    stray.abort()
    for shard in (2, 3):
        write(shard, 17)
    assert cause()[0] is Cause.SILENT, "all are written"
    write(1, 0, "another")
    assert cause() == (Cause.SHARDS, reason_of(Cause.SHARDS, 3, 4)), "a new checkpoint counts from 0"
    plain.produce(receipts_topic("job", output), "{}", partition=2)
    plain.flush(30)
    assert cause()[0] is Cause.SILENT, "a receipt cannot be read"


@pytest.mark.kafka
def test_it_follows_what_comes(kafka, topic):
    target = topic(2)
    source = marking(kafka, target)
    source.advance(5)
    source.flush()
    with ChainReader(kafka.config, [target]) as reader:
        assert reader.board().topic(target).watermark == 5
        source.advance(9)
        source.flush()

        def is_seen():
            reader.poll(0.1)
            return reader.board().topic(target).watermark == 9

        until(is_seen, "the next mark", 30)


@pytest.mark.kafka
def test_silence_is_no_news_while_kafka_is_away(kafka, topic, monkeypatch):
    target = topic(1)
    clock = ManualClock(wall=datetime.now(UTC))
    twelve_marks(kafka, target)
    away_client = AdminClient({"bootstrap.servers": "localhost:1"}, logger=logging.getLogger("away"))
    with ChainReader(kafka.config, [target], clock=clock) as reader:
        clock.advance(timedelta(hours=1))
        with monkeypatch.context() as away:
            away.setattr(reader, "_admin", away_client)
            for _ in range(3):
                reader.poll(0.2)
            board = reader.board()
            assert board.topic(target).verdict not in {Health.STOP, Health.OK}
            assert board.exit_status == 2
            assert "no Kafka broker answers" in board.notes[0]

        def is_stopped():
            reader.poll(0.2)
            return reader.board().topic(target).verdict is Health.STOP

        until(is_stopped, "the stop, now that Kafka answers", 30)
        assert reader.board().notes == ()


@pytest.mark.kafka
def test_a_board_that_waits_for_a_topic_stays_while_the_broker_is_away(kafka, monkeypatch):
    name, away = "not-yet", BrokerUnavailableError(bootstrap_servers="b", reason="away", seconds=1)

    def refuse(*_):
        raise away

    with ChainReader(kafka.config, [name]) as reader:
        with monkeypatch.context() as patch:
            patch.setattr(reader, "_read_topic", refuse)
            reader.poll(0.1)
        create_topics(kafka.config, {name: 1})
        twelve_marks(kafka, name)
        until(lambda: reader.poll(0.1) or reader.board().topic(name).watermark == 11, "its watermark")


@pytest.mark.kafka
def test_topics_that_are_read_again_are_followed_anew_also_if_the_broker_is_away_then(kafka, topic, monkeypatch):
    first, second, third = sorted(topic(1) for _ in range(3))
    for name in (first, second, third):
        twelve_marks(kafka, name)
    away = BrokerUnavailableError(bootstrap_servers="b", reason="away", seconds=1)
    with ChainReader(kafka.config, [first, second, third]) as reader:
        reader.poll(0.1)
        read_topic, asked = reader._read_topic, []  # noqa: SLF001  # a broker that goes at this moment

        def again(_awaited):
            if asked:
                return set()
            asked.append(True)
            for name in (second, third):
                reader._fold.refuse(name, "it is read again")  # noqa: SLF001
            return {second, third}

        def refuse(_topic):
            raise away

        monkeypatch.setattr(reader._fold, "again", again)  # noqa: SLF001
        with monkeypatch.context() as patch:
            patch.setattr(reader, "_read_topic", refuse)
            reader.poll(0.1)
        monkeypatch.setattr(reader, "_read_topic", read_topic)
        until(
            lambda: reader.poll(0.1) or all(reader.board().topic(name) for name in (first, second, third)),
            "all topics",
        )
        assert [reader.board().topic(name).watermark for name in (first, second, third)] == [11] * 3
