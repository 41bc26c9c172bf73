"""The estimate of how long a job takes to catch up: its laws, and the command on a real Kafka."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from floodmark.producers.board.estimate import Estimate, TopicGap
from floodmark.producers.cli import firing
from floodmark.producers.cli.main import app
from floodmark.producers.event_times.formats import LogTime
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from floodmark.producers.testing import ManualClock, mark
from floodmark.schemas import FloodmarkError
from floodmark.schemas.classify import mark_record
from floodmark.schemas.records import Holder, Status
from floodmark.schemas.tracker import Hold
from hypothesis import given
from hypothesis import strategies as st
from pytest import approx  # noqa: PT013  # it reads as a word
from support.harness import delete_before
from typer.testing import CliRunner

gaps = st.lists(
    st.builds(
        TopicGap,
        st.just("t"),
        st.lists(st.integers(0, 10**9), min_size=1, max_size=4).map(tuple),
        st.floats(0, 10**5),
        *map(st.just, (0, 0, False, None)),  # else it makes them up
    ),
    min_size=1,
    max_size=3,
)


@given(gaps, st.floats(0.1, 10**6))
def test_what_is_read_until_then_is_what_stood_there_and_what_came_meanwhile(given_, rate):
    found = Estimate(0, given_, rate)
    if found.unread and rate <= found.arrival_rate:
        assert (found.seconds, found.records, found.exit_status) == (None, None, 1)
    else:
        assert found.exit_status == 0
        assert found.records == approx(found.seconds * rate, rel=1e-6, abs=1) or not found.unread
        assert found.unread <= found.records


@given(gaps, st.floats(1, 10**6))
def test_a_pace_for_a_time_takes_that_time(given_, seconds):
    unknown = Estimate(0, given_)
    if unknown.unread > seconds:  # else what is gained is lost in the digits
        assert Estimate(0, given_, unknown.rate_for(seconds)).seconds == approx(seconds, rel=1e-3)
    assert unknown.exit_status == (2 if unknown.unread else 0)


@given(gaps, st.floats(0.1, 10**6), st.floats(0, 10**6))
def test_a_quicker_job_is_not_later(given_, rate, more):
    slow, quick = Estimate(0, given_, rate).seconds, Estimate(0, given_, rate + more).seconds
    assert slow is None or quick <= slow


def estimate(kafka, *arguments):
    done = CliRunner().invoke(app, ["catch-up", *arguments, "--bootstrap-servers", kafka.bootstrap_servers])
    refused = isinstance(done.exception, FloodmarkError)
    return 2 if refused else done.exit_code, done.stdout, str(done.exception) if refused else ""


def ago(now, **duration):
    return int((now - timedelta(**duration)).timestamp() * 1_000)


@pytest.mark.kafka
def test_it_is_found_from_a_time_a_group_and_the_marks_of_a_job(kafka, topic, monkeypatch):
    """Two partitions: 600 records an hour ago, and 1,200 of the last minute and more, one each 50 ms."""
    given_, out = topic(2), topic(1)
    now = datetime.now(UTC)
    monkeypatch.setattr("floodmark.producers.clients.clock.Clock", lambda: ManualClock(wall=now))
    producer = Producer(kafka.config)
    for number in range(600):
        producer.produce(given_, b"old", partition=number % 2, timestamp=ago(now, hours=1))
    for number in range(1_200):
        producer.produce(given_, b"new", partition=0, timestamp=ago(now, seconds=55) + number * 45)
    for number, minutes in ((0, 60), (1, 30)):  # a batch that took ten seconds: half an hour of its input
        said = mark("counts", 0, number, emitted_at=ago(now, seconds=10 - 10 * number))
        fields = {"processing_time_watermark": ago(now, minutes=minutes + 1), "holder": Holder(given_)}
        key, value, headers = mark_record(type(said)(**{name: getattr(said, name) for name in _FIELDS} | fields))
        producer.produce(out, value, key, 0, headers=headers)
    assert producer.flush(30) == 0

    status, shown, _ = estimate(kafka, given_, "--rate", "100", "--json")
    found = json.loads(shown)
    assert (status, found["unread"], found["topics"][0]["partitions"]) == (0, 1_800, [1_500, 300])
    assert found["arrival_rate"] == approx(20, rel=0.1), "the last minute, and not the last ten"
    assert found["seconds"] == approx(1_800 / 80, rel=0.1)

    since = (now - timedelta(minutes=10)).isoformat()
    assert json.loads(estimate(kafka, given_, "--since", since, "--rate", "100", "--json")[1])["unread"] == 1_200
    status, shown, _ = estimate(kafka, given_, "--since", since, "--rate", "10")
    assert status == 1
    assert "never: it reads 10 a second, and the topics grow by 20" in shown
    assert "one partition holds 100% of the unread records" in shown

    consumer = Consumer({**kafka.config, "group.id": given_})
    consumer.commit(offsets=[TopicPartition(given_, 0, 1_000), TopicPartition(given_, 1, 300)], asynchronous=False)
    consumer.close()
    assert json.loads(estimate(kafka, given_, "--group", given_, "--rate", "100", "--json")[1])["unread"] == 500

    status, shown, _ = estimate(kafka, given_, "--output", out, "--json")
    found = json.loads(shown)
    assert (status, found["unread"], found["read_rate"]) == (0, 1_200, approx(60)), "600 records in ten seconds"

    status, shown, said = estimate(kafka, topic(1), "--output", out)
    assert (status, shown) == (2, ""), "the job of that output reads another topic"
    assert f"counts reads {given_}" in said

    status, shown, said = estimate(kafka, given_, "--output", given_, "--rate", "100")
    assert (status, shown) == (2, "")
    assert f"{given_!r} is the input" in said

    injected = topic(2)
    with Injector(Injection(given_, injected, LogTime(), source="copy"), kafka.config) as injector:
        injector.run(until_end=True)
    assert estimate(kafka, given_, "--output", injected, "--rate", "100")[0] == 0
    status, shown, said = estimate(kafka, topic(1), "--output", injected, "--rate", "100")
    assert (status, shown) == (2, ""), "the injector copies another topic"
    assert "copy reads another topic" in said

    status, shown, _ = estimate(kafka, given_)
    assert status == 2
    assert "1 min: " in shown
    assert estimate(kafka, given_, given_)[1] == shown, "a topic that is named twice is counted once"


@pytest.mark.kafka
def test_a_job_has_read_what_its_marks_say_though_a_source_holds_its_watermark(kafka, topic):
    """Records that Kafka has deleted before the job has read them are not caught up with."""
    given_, out = topic(2), topic(1)
    producer = Producer(kafka.config)
    for number in range(1_000):
        producer.produce(given_, b"row", partition=number % 2)
    held = {"processing_time_watermark": 1_000, "holder": Holder(given_, 0, "killed")}
    for number, offsets in enumerate(({"0": 10, "1": 10}, {"0": 500, "1": 470})):
        said = mark("counts", 0, number)
        key, value, headers = mark_record(type(said)(**{name: getattr(said, name) for name in _FIELDS} | held))
        read = "floodmark-read", json.dumps({"input_offsets": {given_: offsets}}).encode()
        producer.produce(out, value, key, 0, headers=[*headers, read])
    assert producer.flush(30) == 0

    status, shown, _ = estimate(kafka, given_, "--output", out, "--rate", "10000")
    assert (status, "30 unread" in shown, "read up to" in shown) == (0, True, False), shown

    delete_before(kafka.config, given_, 490)
    for more in (("--rate", "10000"), ()):
        status, shown, _ = estimate(kafka, given_, "--output", out, *more)
        assert status == 1
        assert f"Kafka has deleted 20 records of {given_} that the job has not read" in shown
        assert "never: the job fails, or skips these records" in shown


@pytest.mark.kafka
def test_a_job_that_has_read_another_topic_of_that_name_cannot_catch_up(kafka, topic):
    given_, out, producer = topic(1), topic(1), Producer(kafka.config)
    key, value, headers = mark_record(replace(mark("counts", 0, 0), holder=Holder(given_, 0, "web")))
    read = {"input_offsets": {given_: {"0": 10}}, "topic_ids": {given_: "of-an-earlier-one"}}
    producer.produce(out, value, key, 0, headers=[*headers, ("floodmark-read", json.dumps(read).encode())])
    for _ in range(500):
        producer.produce(given_, b"row", partition=0)
    assert producer.flush(30) == 0
    status, _, said = estimate(kafka, given_, "--output", out, "--rate", "1000")
    assert status == 2
    assert f"topic {given_!r} was deleted and created again: job 'counts' has used" in said


def test_a_name_of_a_mark_controls_no_terminal():
    evil = "a\x1b]0;owned\x07"
    hold = Hold(Holder("t", 0, evil), 5, "lowest watermark")
    source = SimpleNamespace(watermark=5, ended=False, holders=lambda: [hold])
    loop = SimpleNamespace(source=source, delivery=SimpleNamespace(counts={}, failing=False), schedule=None)
    missing = {"topic": "t", "partition": 0, "source": evil, "reason": "x", "watermark": None}
    event = SimpleNamespace(late_rows=0, start=0, end=3_600_000, kind="incomplete", missing=[missing])
    for text in (firing._state_line(loop), firing._line(event, "ok")):  # noqa: SLF001  # commands print it
        assert r"a\x1b]0;owned\x07" in text


@pytest.mark.kafka
def test_a_job_that_has_ended_reads_nothing_more(kafka, topic):
    """Its marks have no holder and no processing-time watermark: no source counts any more."""
    given_, out = topic(1), topic(1)
    producer = Producer(kafka.config)
    for number in range(30):
        producer.produce(given_, b"row")
        if number == 19:
            end = mark("counts", 0, 0, status=Status.ENDED)
            key, value, headers = mark_record(end)
            read = "floodmark-read", json.dumps({"input_offsets": {given_: {"0": 20}}}).encode()
            producer.produce(out, value, key, 0, headers=[*headers, read])
            assert producer.flush(30) == 0
            status, shown, said = estimate(kafka, given_, "--output", out)
            assert (status, said) == (0, "")
            assert shown.startswith("counts has ended: its output has the end mark")
            assert shown.endswith("nothing is unread\n")
    assert producer.flush(30) == 0
    for more in ((), ("--rate", "1000")):
        status, shown, _ = estimate(kafka, given_, "--output", out, *more)
        assert (status, f"{given_}: 10 unread in 1 partition" in shown) == (1, True), shown
        assert "never: start a job over with a new checkpoint_location" in shown
    found = json.loads(estimate(kafka, given_, "--output", out, "--json")[1])
    assert (found["ended"], found["unread"], found["seconds"]) == (True, 10, None)


@pytest.mark.kafka
def test_of_an_injected_topic_all_that_was_written_since_is_unread(kafka, topic):
    """The copies have timestamps of an hour ago; the rate of a job comes from its offsets, not from these times."""
    given_, injected, out = topic(1), topic(1), topic(1)
    now, producer = datetime.now(UTC), Producer(kafka.config)
    for _ in range(1_000):
        producer.produce(given_, b"old", timestamp=ago(now, hours=1))
    for number, offset in enumerate((100, 700)):
        said = mark("counts", 0, number, emitted_at=ago(now, seconds=10 - 10 * number))
        fields = {"processing_time_watermark": ago(now, hours=1), "holder": Holder(injected)}
        key, value, headers = mark_record(type(said)(**{name: getattr(said, name) for name in _FIELDS} | fields))
        read = "floodmark-read", json.dumps({"input_offsets": {injected: {"0": offset}}}).encode()
        producer.produce(out, value, key, 0, headers=[*headers, read])
    assert producer.flush(30) == 0
    with Injector(Injection(given_, injected, LogTime(), source="copy"), kafka.config) as injector:
        injector.run(until_end=True)
    since = (now - timedelta(minutes=10)).isoformat()
    _, shown, _ = estimate(kafka, injected, "--since", since, "--rate", "100000")
    assert "1 of them without a record from before: all of their records count as unread" in shown
    assert "count as unread" not in estimate(kafka, given_, "--since", since, "--rate", "100000")[1]
    later = (datetime.now(UTC)).isoformat()
    assert json.loads(estimate(kafka, injected, "--since", later, "--rate", "1", "--json")[1])["unread"] == 0
    assert json.loads(estimate(kafka, injected, "--output", out, "--json")[1])["read_rate"] == approx(60)
    producer.produce(given_, b"new", timestamp=ago(now, hours=2))
    assert producer.flush(30) == 0
    found = json.loads(estimate(kafka, given_, "--output", injected, "--rate", "1", "--json")[1])
    assert found["unread"] == 1, "an injector's state says how far it has read"


_FIELDS = ("source", "epoch", "sequence", "watermark", "partitions", "emitted_at", "status", "membership")


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--rate", "0"], "expected records a second"),
        (["--rate", "nan"], "expected records a second"),
        (["--since", "yesterday"], "expected a time with its zone"),
        (["--since", "2026-01-31T08:00:00"], "expected a time with its zone"),
        (["--since", "2999-01-31T08:00:00Z"], "which is in the future"),
        (["--since", "2026-01-31T08:00:00Z", "--group", "g"], "use one of them"),
        (["--group", "nobody-of-these"], "has committed nothing"),
        (["--output", "ANOTHER TOPIC"], "no mark near the end"),
        (["no-such-topic"], "no-such-topic"),
    ],
)
def test_what_cannot_be_told_is_one_line(kafka, topic, arguments, reason):
    given_ = topic(1)
    status, shown, said = estimate(kafka, given_, *[topic(1) if one == "ANOTHER TOPIC" else one for one in arguments])
    assert (status, shown) == (2, "")
    assert reason in said
    assert "\n" not in said


@pytest.mark.kafka
def test_whether_deleted_records_were_read_is_unknown_without_an_offset(kafka, topic):
    given_, now = topic(2), datetime.now(UTC)
    producer = Producer(kafka.config)
    for number in range(20):
        producer.produce(given_, b"row", partition=number % 2, timestamp=ago(now, minutes=10))
    assert producer.flush(30) == 0
    consumer = Consumer({**kafka.config, "group.id": given_})
    consumer.commit(offsets=[TopicPartition(given_, 1, 4)], asynchronous=False)
    consumer.close()
    before, after = ((now - timedelta(minutes=minutes)).isoformat() for minutes in (20, 5))

    def said(*options):
        status, shown, _ = estimate(kafka, given_, *options, "--rate", "100")
        return status, "Kafka has deleted" in shown, shown

    status, deleted, shown = said("--group", given_)
    assert (status, deleted) == (0, False), shown
    (found,) = json.loads(estimate(kafka, given_, "--group", given_, "--rate", "100", "--json")[1])["topics"]
    assert (found["assumed"], found["unsure"]) == (1, False)
    assert "16 unread in 2 partitions, the largest 10" in shown
    assert "1 of them without an offset of the group: all of their records count as unread" in shown
    delete_before(kafka.config, given_, 3)
    for options in (("--since", before), ("--group", given_)):
        status, deleted, shown = said(*options)
        assert (status, deleted) == (2, True), shown
        assert "check whether the job has read them" in shown
        found = json.loads(estimate(kafka, given_, *options, "--rate", "100", "--json")[1])
        assert found["topics"][0]["unsure"] is True
    assert said("--since", after)[:2] == (0, False), "the records before are there"
    assert said()[:2] == (0, False), "it begins with the first record"
