"""What nobody wants to meet, on a real Kafka: poison records, wrong options, foreign headers, signals."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from unittest.mock import Mock

import pytest
from confluent_kafka import OFFSET_END, Producer
from floodmark.producers import SourcePool, TimePolicy, WatermarkedProducer, ascending, create_topics
from floodmark.producers.clients.admin import TopicWatch, end_offsets
from floodmark.producers.clients.transaction import Transaction
from floodmark.producers.event_times.changefeeds import CockroachDb, TiCdcCanal
from floodmark.producers.event_times.formats import AvroField, JsonField, LogTime
from floodmark.producers.event_times.injection import STATE_HEADER, Injection
from floodmark.producers.injector.group import InjectorGroup
from floodmark.producers.injector.injector import Injector
from floodmark.producers.injector.preview import preview_injection
from floodmark.producers.injector.sanitizer import Sanitizer
from floodmark.producers.readers.period import complete
from floodmark.schemas import AvroCodec, WatermarkRecord, encode_watermark
from floodmark.schemas.errors import (
    BrokerUnavailableError,
    CorruptSnapshotError,
    InjectorError,
    RecreatedTopicError,
    RetentionError,
    UnknownTopicError,
    UsageError,
)
from floodmark.schemas.records import Membership, Status, mark_key
from support.harness import delete_before, delete_topic, record_schema, recreate, until
from support.injection import look, send, times, until_readable

pytestmark = pytest.mark.kafka
FAST = timedelta(milliseconds=100)
STRICT = TimePolicy(late=timedelta(hours=1), out_of_order=timedelta(0))
NOW = 1_763_712_000_000
POISON = [
    (JsonField("at"), b'{"at": %d}' % NOW, b'{"at": 1e999}'),
    (JsonField("at"), b'{"at": %d}' % NOW, b"[" * 100_000),
    (JsonField("at", "s"), b'{"at": 1}', b'{"at": 1e308}'),
    (CockroachDb(), b'{"resolved": "5000000000.0"}', b'{"resolved": "99999999999999999999999.0"}'),
    (TiCdcCanal(), b'{"type": "I", "_tidb": {"commitTs": 9}}', b'{"type": "I", "_tidb": {"commitTs": 1e999}}'),
]


def run(kafka, injection, **more):
    with Injector(injection, kafka.config, **more) as injector:
        injector.run(until_end=True)
    return injector


def write(kafka, topic, *records, **more):
    producer = Producer(kafka.config)
    for value in records:
        producer.produce(topic, value, partition=0, timestamp=NOW, **more)
    assert producer.flush(30) == 0


@pytest.mark.parametrize(("fmt", "good", "poison"), POISON, ids=["1e999", "deep", "1e308", "resolved", "canal"])
def test_a_poison_record_is_passed_on_counted_and_named(kafka, topic, caplog, fmt, good, poison):
    raw, marked = topic(1), topic(1)
    write(kafka, raw, good, poison, poison, good)
    injection = Injection(raw, marked, fmt)
    first = run(kafka, injection)
    assert (first.outcomes["unreadable"], first.counts["records"]) == (2, 4)
    assert first.first_trouble.startswith(f"{raw}/0@1: ")
    assert caplog.text.count(f"{raw}/0@1: ") == 1
    assert f"{raw}/0@2: " not in caplog.text, "the first place of a partition is logged, later ones are counted"
    write(kafka, raw, poison)
    again = run(kafka, injection)
    assert (again.outcomes["unreadable"], again.counts["records"]) == (3, 1), "it goes on, also with nothing but poison"
    data, marks, _ = look(kafka, marked)
    assert [row.value for row in data if row.value == poison] == [poison] * 3
    assert marks[-1].record.watermark is None or marks[-1].record.watermark <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("fmt", [JsonField("at"), LogTime()], ids=["json", "log time"])
def test_a_timestamp_that_the_target_refuses_ends_nothing(kafka, topic, fmt):
    raw, marked = topic(1) + "-any", topic(1)
    create_topics(kafka.config, {raw: 1}, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    now = time.time_ns() // 1_000_000
    ahead = now + 40 * 24 * 3_600_000
    send(kafka, raw, (now, now), (now, now * 1_000), (now, -5_000_000_000_000), (now, 2**62), (now, ahead), (now, now))
    injector = run(kafka, Injection(raw, marked, fmt, TimePolicy(early=None)))
    assert injector.counts["timestamps_replaced"] == 3
    data, _, tracker = look(kafka, marked)
    assert len(data) == 6, "everything is passed on"
    assert tracker.watermark == min(injector.watermarks.values())
    if isinstance(fmt, LogTime):
        assert dict(data[4].headers)["floodmark-time"] == b"%d" % ahead, "its time still counts"
        assert injector.outcomes["unreadable"] == 2
    else:
        assert injector.outcomes["unreadable_arrival"] == 2
        assert tracker.watermark <= now + 60_000 or tracker.watermark <= ahead


@pytest.mark.parametrize(
    ("fmt", "count"), [(JsonField("at"), "unreadable_arrival"), (LogTime(), "unreadable")], ids=["json", "log time"]
)
def test_a_record_without_a_timestamp_is_copied_and_not_judged_by_it(kafka, topic, fmt, count):
    raw, marked = topic(1), topic(1)
    send(kafka, raw, (NOW, -1), (NOW, NOW))
    injection = Injection(raw, marked, fmt)
    shown, injector = preview_injection(injection, kafka.config), run(kafka, injection)
    data, _, tracker = look(kafka, marked)
    assert len(data) == 2
    assert tracker.watermark >= NOW - 5_000
    for outcomes in (shown.outcomes, injector.outcomes):
        assert outcomes == {count: 1, "on_time": 2 if count == "unreadable_arrival" else 1}


def test_large_records_are_passed_on_as_far_as_the_target_takes_them(kafka, topic):
    raw, marked, small = topic(1), topic(1), topic(1) + "-small"
    create_topics(kafka.config, {small: 1}, {"max.message.bytes": "20000"})
    producer = Producer({**kafka.config, "message.max.bytes": 2_000_000})
    value = os.urandom(1_020_000)
    producer.produce(raw, value, timestamp=NOW)
    assert producer.flush(30) == 0
    run(kafka, Injection(raw, marked, LogTime()))
    assert look(kafka, marked)[0][0].value == value
    with pytest.raises(InjectorError, match=r"Message size too large.*max\.message\.bytes") as caught:
        run(kafka, Injection(raw, small, LogTime()))
    assert f"the largest record of this transaction is {raw}/0@0, with 1,020,000 bytes" in str(caught.value)


def test_headers_of_ours_in_the_input_neither_hide_nor_misplace_a_record(kafka, topic):
    raw, marked = topic(1), topic(1)
    foreign = [
        ("trace", b"1"),
        ("floodmark", b"1"),
        ("floodmark-time", b"7"),
        ("floodmark-time", b"x"),
        ("trace", b"2"),
    ]
    write(kafka, raw, b'{"at": %d}' % NOW, b'{"at": %d}' % (NOW - 5), b"garbage", headers=foreign)
    injector = run(kafka, Injection(raw, marked, JsonField("at"), STRICT))
    rows = [row.headers for row in look(kafka, marked)[0]]
    plain = [("trace", b"1"), ("trace", b"2")]
    assert rows == [plain, [*plain, ("floodmark-time", b"%d" % NOW)], plain], "one time at most, and it is ours"
    assert injector.counts["headers_removed"] == 9


def test_headers_that_the_client_cannot_read_are_left_out(topic, kafka):
    class Unreadable:
        """What confluent-kafka does with a header whose name is no UTF-8."""

        def headers(self):
            raise SystemError("returned a result with an exception set")

        topic, partition, offset = lambda _: "raw", lambda _: 0, lambda _: 7

    injector = run(kafka, Injection(topic(1), topic(1), LogTime()))
    sanitizer = Sanitizer(injector.injection, (None, None), injector.counts)
    assert sanitizer.headers(Unreadable()) == []
    assert injector.counts["unreadable_headers"] == 1
    assert sanitizer.first_trouble.startswith("raw/0@7: its headers cannot be read")


def test_a_topic_that_has_marks_is_brought_in_without_them(kafka, topic):
    raw, marked = topic(1), topic(1)
    with WatermarkedProducer(kafka.config, topic=raw, source="web", strategy=ascending()) as web:
        web.produce(b'{"at": %d}' % NOW, event_time=NOW)
        web.end()
    with pytest.raises(InjectorError, match=r"has marks already, of 'web'; nothing was written.* --allow-unreadable"):
        run(kafka, Injection(raw, marked, JsonField("at")))
    assert set(end_offsets(kafka.config, marked).values()) == {0}
    dropped = topic(1)
    allowed = Injection(raw, marked, JsonField("at"), allow_unreadable=True, dropped_to=dropped)
    injector = run(kafka, allowed)
    run(kafka, allowed)
    assert set(end_offsets(kafka.config, dropped).values()) == {0}, "nor are they among the dropped records"
    data, marks, _ = look(kafka, marked)
    assert len(data) == 1
    assert {mark.record.source for mark in marks} == {f"inject-{raw}"}
    assert injector.outcomes["reserved"] >= 2
    assert "the input has marks already; this record is left out" in injector.first_trouble


def test_a_wrong_option_does_not_begin(kafka, topic):
    raw, marked = topic(2), topic(2)
    for partition in (0, 1):
        send(kafka, raw, *((NOW + n, NOW) for n in range(20)), partition=partition)
    for fmt in (JsonField("att"), JsonField("at", "s"), JsonField("at.ms")):
        with pytest.raises(InjectorError, match=r"none of the first 40 record.*the fields are 'at'|outside the years"):
            run(kafka, Injection(raw, marked, fmt))
        assert set(end_offsets(kafka.config, marked).values()) == {0}, "nothing was written"
    run(kafka, Injection(raw, marked, JsonField("at")))
    until_readable(kafka, marked)
    before = end_offsets(kafka.config, marked)
    send(kafka, raw, (NOW + 50, NOW))
    with pytest.raises(InjectorError, match=r"the fields are 'at'"):
        run(kafka, Injection(raw, marked, JsonField("att")))
    assert end_offsets(kafka.config, marked) == before, "nor does a wrong option go on"
    other = topic(2)
    assert run(kafka, Injection(raw, other, JsonField("att"), allow_unreadable=True)).outcomes["unreadable"] == 41


def test_seconds_are_not_taken_for_milliseconds(kafka, topic, caplog):
    raw, marked = topic(2), topic(2)
    send(kafka, raw, *((NOW // 1000 + n, NOW) for n in range(20)))
    injection = Injection(raw, marked, JsonField("at"))
    told = r"read as JSON with a time in 'at' \(ms\): the first is 1970-01-21T.*1,000 times that is 2025-11-21T.*--unit"
    with pytest.raises(InjectorError, match=told):
        run(kafka, injection)
    with pytest.raises(InjectorError, match=told):
        preview_injection(injection, kafka.config).require_time()
    assert set(end_offsets(kafka.config, marked).values()) == {0}, "nothing was written"
    assert run(kafka, Injection(raw, marked, JsonField("at", "s"))).outcomes == {"on_time": 20}
    send(kafka, raw, (NOW // 1000 // 1000, NOW))
    injector = run(kafka, Injection(raw, marked, JsonField("at", "s")))
    assert injector.outcomes == {"on_time": 20, "out_of_order_adjusted": 1}, "one such record ends nothing later"
    forced = run(kafka, Injection(raw, topic(2), JsonField("at"), allow_unreadable=True))
    assert forced.outcomes["late_adjusted"] == 21
    assert "21 of 21 events were not on time" in caplog.text
    assert "then --unit" in caplog.text


def test_of_two_injectors_that_start_at_once_the_second_copies_nothing(kafka, topic):
    one, other, marked = topic(1), topic(1), topic(1)
    for raw in (one, other):
        write(kafka, raw, *[b'{"at": %d}' % NOW] * 3)
    with (
        Injector(Injection(one, marked, JsonField("at")), kafka.config) as first,
        Injector(Injection(other, marked, JsonField("at")), kafka.config) as second,
    ):
        first.step()
        with pytest.raises(InjectorError, match=f"has marks of 'inject-{one}', .*; no record was copied"):
            second.run(until_end=True)
        first.run(until_end=True)
    with pytest.raises(InjectorError, match="nothing was written"):
        run(kafka, Injection(other, marked, JsonField("at")))
    data, marks, tracker = look(kafka, marked)
    assert len(data) == 3
    assert {mark.record.status for mark in marks if mark.source == f"inject-{other}"} == {Status.ACTIVE, Status.ENDED}
    assert tracker.watermark is not None, "readers do not wait for it"


def test_an_input_that_is_dropped_whole_is_an_error(kafka, topic, caplog):
    """The local time of Kolkata, read as UTC: an empty copy is no success."""
    raw, marked = topic(1), topic(1)
    send(kafka, raw, *((NOW + 5 * 3_600_000 + n, NOW) for n in range(20)))
    with pytest.raises(InjectorError, match=r"each of its 20 records was dropped \(20 early dropped\)"):
        run(kafka, Injection(raw, marked, JsonField("at")))
    assert "Text without a zone is read as UTC: is it local time?" in caplog.text
    assert run(kafka, Injection(raw, marked, JsonField("at"), allow_unreadable=True)).outcomes["early_dropped"] == 20
    send(kafka, raw, (NOW, NOW))
    assert run(kafka, Injection(raw, marked, JsonField("at"))).outcomes["on_time"] == 1


def test_seconds_that_come_after_the_start_are_refused_too(kafka, topic):
    raw, marked = topic(1), topic(1)
    injection = Injection(raw, marked, JsonField("at"), interval=FAST)
    with Injector(injection, kafka.config) as injector:
        injector.step()
        send(kafka, raw, (NOW // 1000, NOW))
        with pytest.raises(InjectorError, match="none of these records was written"):
            until(injector.step, "the record", 30)
        with pytest.raises(InjectorError, match="interrupted amid a batch"):
            injector.commit()
    with pytest.raises(InjectorError, match="none of these records was written"):
        run(kafka, injection)
    assert look(kafka, marked)[0] == []


def test_a_pool_or_an_injector_that_starts_after_the_end_warns_of_it(kafka, topic, caplog):
    raw, marked, ended = topic(1), topic(2), "all sources of the topic have ended"
    send(kafka, raw, (NOW, NOW))
    with Injector(Injection(raw, marked, JsonField("at")), kafka.config) as injector:
        injector.run(until_end=True)
        injector.end()
    assert ended not in caplog.text
    SourcePool(kafka.config, topic=marked).close()
    assert caplog.text.count(ended) == 1
    run(kafka, Injection(raw, marked, JsonField("at")))
    run(kafka, Injection(raw, marked, JsonField("at")))
    assert caplog.text.count(f"injector 'inject-{raw}': {ended}") == 1, "the second run finds one that has not ended"


def test_an_injector_whose_place_another_has_taken_starts_no_more(kafka, topic, caplog, monkeypatch):
    monkeypatch.setattr("floodmark.producers.injector.injector.LATELY", 5)
    raw, other, marked = topic(1), topic(1), topic(1)
    send(kafka, raw, (NOW, NOW))
    send(kafka, other, *((NOW + n, NOW) for n in range(20)))  # more than it searches for marks of others
    first, second = (Injection(name, marked, JsonField("at")) for name in (raw, other))
    with Injector(first, kafka.config) as injector:
        injector.run(until_end=True)
        injector.end()
    run(kafka, second)
    send(kafka, raw, (NOW + 1, NOW))
    with pytest.raises(InjectorError, match=rf"has marks of 'inject-{other}', whose membership does not count it"):
        run(kafka, first)
    assert len(look(kafka, marked)[0]) == 21
    assert "run floodmark why" not in caplog.text
    with WatermarkedProducer(kafka.config, topic=marked, source="web", strategy=ascending()) as producer:
        producer.produce(b"x", event_time=NOW)
        producer.flush()
    run(kafka, second)
    assert "has marks of 'web', whose membership does not count it, so its records may be late" in caplog.text


def test_an_injector_with_an_older_membership_than_before_is_told_that_readers_ignore_it(kafka, topic, caplog):
    raw, marked = topic(1), topic(1)
    send(kafka, raw, (NOW, NOW))
    run(kafka, Injection(raw, marked, JsonField("at"), membership=Membership(2, 2)))
    run(kafka, Injection(raw, marked, JsonField("at")))
    assert f"topic {marked!r}: the topic has marks of membership version 2, so readers ignore the marks" in caplog.text


def test_a_policy_that_takes_most_times_away_is_told_once_and_what_would_fit(kafka, topic, caplog):
    raw, marked = topic(1), topic(1)
    send(kafka, raw, *((NOW + n - n * 7_919 % 20_000, NOW + n) for n in range(3_000)))
    shown = preview_injection(Injection(raw, marked, JsonField("at")), kafka.config)
    advice = r"\d+ of 1,000 events were not on time \(\d+ late adjusted.*\)\. .* --late 20 keeps the times of 99 %"
    assert re.search(advice, shown.lines()[-1])
    with caplog.at_level("WARNING"):
        run(kafka, Injection(raw, marked, JsonField("at")))
    assert len([line for line in caplog.messages if re.search(advice, line)]) == 1
    caplog.clear()
    fits = run(kafka, Injection(raw, topic(1), JsonField("at"), TimePolicy(late=timedelta(seconds=20))))
    assert fits.outcomes == {"on_time": 3_000}
    assert caplog.messages == []


def test_a_dry_run_advises_where_a_few_percent_of_a_thousand_events_are_late_and_the_log_does_not(kafka, topic, caplog):
    raw, marked = topic(1), topic(1)
    send(kafka, raw, *((NOW + n - 40_000 * (n % 30 == 9), NOW + n) for n in range(1_000)))
    injection = Injection(raw, marked, JsonField("at"))
    advice = preview_injection(injection, kafka.config).lines()[-1]
    assert advice.startswith("34 of 1,000 events were not on time (34 late adjusted)")
    late = timedelta(seconds=int(re.search(r" --late (\d+) keeps", advice)[1]))
    with caplog.at_level("WARNING"):
        assert run(kafka, injection).outcomes["on_time"] == 966
    assert caplog.messages == []
    advised = preview_injection(replace(injection, target_topic="none", policy=TimePolicy(late=late)), kafka.config)
    assert advised.outcomes == {"on_time": 1_000}
    assert "keeps the times" not in advised.lines()[-1]


def test_a_dry_run_takes_its_sample_of_all_partitions(kafka, topic):
    raw = topic(3)
    for number, count in enumerate((5_000, 5, 2_000)):
        send(kafka, raw, *((NOW + n, NOW + n) for n in range(count)), partition=number)
    shown = preview_injection(Injection(raw, "none", JsonField("at")), kafka.config)
    assert shown.outcomes == {"on_time": 333 + 5 + 333}
    assert not any("unknown" in line for line in shown.lines())


def test_a_topic_without_any_time_ends_as_an_error(kafka, topic):
    raw, marked = topic(1), topic(1)
    write(kafka, raw, b'{"after": {}}')
    with pytest.raises(InjectorError, match=r"none of 1 record.* readable time, read as CockroachDB changefeed"):
        run(kafka, Injection(raw, marked, CockroachDb()))
    tombstones, quiet = topic(1), topic(1)
    write(kafka, tombstones, None)
    run(kafka, Injection(tombstones, quiet, JsonField("at")))
    run(kafka, Injection(topic(1), topic(1), JsonField("at")))


@pytest.mark.parametrize("field", ["at", "tme"])
def test_a_wrong_field_is_refused_also_if_the_input_is_empty_at_the_start(kafka, topic, field):
    raw, marked = topic(1), topic(1)
    injection = Injection(raw, marked, JsonField(field), interval=FAST)
    with Injector(injection, kafka.config) as injector:
        until(lambda: injector.step() or injector.counts["transactions"] > 1, "marks of the empty input")
        write(kafka, raw, None)  # a tombstone says nothing
        until(lambda: injector.step() or injector.counts["records"] == 1, "the tombstone")
        write(kafka, raw, b'{"at": %d}' % NOW)
        with nullcontext() if field == "at" else pytest.raises(InjectorError, match=r"none of .* has a readable time"):
            until(lambda: injector.step() or injector.counts["records"] == 2, "the record", 30)
        if field == "at":
            write(kafka, raw, b"garbage")
            until(lambda: injector.step() or injector.outcomes["unreadable"] == 1, "one that cannot be read", 30)


def test_a_target_with_records_and_no_marks_is_refused(kafka, topic):
    """Swapped topics, or a typo, would mix the records of two topics for ever."""
    raw, plain = topic(1), topic(2)
    for name in (raw, plain):
        write(kafka, name, b'{"at": %d}' % NOW)
    before = end_offsets(kafka.config, plain)
    with pytest.raises(InjectorError, match=f"target '{plain}' has records already, such as {plain}/.@0, and no marks"):
        run(kafka, Injection(raw, plain, JsonField("at")))
    assert end_offsets(kafka.config, plain) == before
    with WatermarkedProducer(kafka.config, topic=plain, source="b", strategy=ascending(), membership=2) as other:
        other.produce(b"1", event_time=NOW)
    write(kafka, plain, *[b"1"] * 300)
    run(kafka, Injection(raw, plain, JsonField("at"), membership=2))


def test_a_second_source_that_the_target_does_not_count_writes_nothing(kafka, topic):
    raw, other, marked = topic(1), topic(1), topic(1)
    for name in (raw, other):
        write(kafka, name, b'{"at": %d}' % NOW)
    for _ in range(2):
        run(kafka, Injection(raw, marked, JsonField("at"), source="first"))
    before = end_offsets(kafka.config, marked)
    told = r"has marks of 'first', .*; nothing was written\. Use another target topic \(--to\).* its --source"
    with pytest.raises(InjectorError, match=told):
        run(kafka, Injection(other, marked, JsonField("at")))
    with pytest.raises(InjectorError, match=f"holds its records of '{raw}', and --from is '{other}'"):
        run(kafka, Injection(other, marked, JsonField("at"), source="first"))
    assert end_offsets(kafka.config, marked) == before
    membership = Membership(version=2, size=2)
    run(kafka, Injection(other, marked, JsonField("at"), membership=membership))
    run(kafka, Injection(raw, marked, JsonField("at"), source="first", membership=membership))


def test_dropped_records_do_not_go_to_a_topic_with_marks(kafka, topic):
    raw, marked, other = topic(1), topic(1), topic(1)
    write(kafka, raw, b'{"at": 1}', b'{"at": %d}' % NOW)
    injection = Injection(raw, marked, JsonField("at"), TimePolicy(on_late="drop"))
    with WatermarkedProducer(kafka.config, topic=other, source="shop", strategy=ascending()) as shop:
        shop.produce(b"1", event_time=NOW)
    before = end_offsets(kafka.config, other)
    with Injector(injection, kafka.config) as running:
        with pytest.raises(InjectorError, match=f"'{other}' for dropped records has marks, of 'shop'"):
            run(kafka, replace(injection, dropped_to=other))
        running.run(until_end=True)  # a refused start does not stop it
    assert running.outcomes["late_dropped"] == 1
    assert end_offsets(kafka.config, other) == before


def test_a_dry_run_writes_nothing_and_disturbs_nobody(kafka, topic):
    raw, marked = topic(1), topic(1)
    send(kafka, raw, (NOW, NOW), (NOW - 7_200_000, NOW), (NOW + 10_000_000, NOW))
    write(kafka, raw, b"garbage")
    injection = Injection(raw, marked, JsonField("at"), STRICT, interval=FAST)
    shown = preview_injection(injection, kafka.config)
    assert shown.outcomes == {"on_time": 1, "out_of_order_adjusted": 1, "early_dropped": 1, "unreadable": 1}
    assert "counts at 2025-11-21T08:00:00+00:00" in shown.examples["out_of_order_adjusted"]
    assert shown.examples["unreadable"].startswith(f"{raw}/0@3 garbage: ")
    assert set(end_offsets(kafka.config, marked).values()) == {0}
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
        until_readable(kafka, marked)
        before = end_offsets(kafka.config, marked)
        send(kafka, raw, (NOW + 5, NOW))
        assert preview_injection(injection, kafka.config).outcomes == {"on_time": 1}, (
            "it begins where the injector stands"
        )
        assert end_offsets(kafka.config, marked) == before
        until(lambda: injector.step() or injector.counts["records"] == 5, "the injector goes on", 30)
    unborn = Injection(raw, "no-such-topic-yet", JsonField("at"))
    assert preview_injection(unborn, kafka.config).records == 5


def test_reset_begins_anew_where_nothing_else_is_lost(kafka, topic, caplog):
    raw, marked = topic(1), topic(1)
    send(kafka, raw, (NOW + 5, NOW), (NOW, NOW))
    run(kafka, Injection(raw, marked, JsonField("at"), STRICT))
    run(kafka, Injection(raw, marked, JsonField("at"), STRICT))
    loose = Injection(raw, marked, JsonField("at"), TimePolicy(late=timedelta(hours=1)))
    assert "--reset" not in caplog.text
    run(kafka, loose, reset=True)
    assert f"--reset deleted 2 records of {marked!r}, and copies its input again. Jobs" in caplog.text
    assert "consumers without a position (others with a new group), triggers with a new --name" in caplog.text
    data, marks, _ = look(kafka, marked)
    assert times(data) == [(NOW + 5, NOW + 5), (NOW, NOW)], "once, and as the new policy has it"
    assert len({mark.record.epoch for mark in marks}) == 1
    day = complete(
        kafka.config, marked, NOW - 86_400_000, NOW - 7_200_000, lambda record: json.loads(record.value)["at"]
    )
    assert day.num_rows == 0, "what was deleted was replaced"
    write(kafka, marked, b'{"at": 1}')
    before = end_offsets(kafka.config, marked)
    with pytest.raises(InjectorError, match="holds 3 records, and it wrote 2"):
        run(kafka, loose, reset=True)
    # The count of a mark includes what Kafka has deleted.
    delete_before(kafka.config, marked, data[0].offset + 1, partitions=1)
    with pytest.raises(InjectorError, match="holds 2 records, and it wrote 1"):
        run(kafka, loose, reset=True)
    with WatermarkedProducer(kafka.config, topic=marked, source="web", strategy=ascending()):
        pass
    foreign = topic(1)
    with WatermarkedProducer(kafka.config, topic=foreign, source="web", strategy=ascending()) as web:
        web.produce(b"1", event_time=1)
    with pytest.raises(InjectorError, match="is a mark of"):
        run(kafka, Injection(raw, foreign, JsonField("at")), reset=True)
    assert end_offsets(kafka.config, marked)[0] >= before[0]
    short = topic(1)
    delete_before(kafka.config, raw, 1, partitions=1)
    for _ in range(2):
        run(kafka, Injection(raw, short, JsonField("at")), reset=True)
    with pytest.raises(RetentionError):  # the input no longer has all that was deleted
        complete(kafka.config, short, NOW - 86_400_000, NOW - 7_200_000, lambda record: json.loads(record.value)["at"])


@pytest.mark.parametrize("partitions", [1, 2], ids=["one of two", "both"])
def test_an_output_that_has_lost_its_position_is_not_filled_again_unless_told(kafka, topic, partitions):
    raw, marked = topic(2), topic(2)
    for number in range(2):
        send(kafka, raw, (NOW, NOW), partition=number)
    injection = Injection(raw, marked, JsonField("at"), STRICT)
    run(kafka, injection)
    delete_before(kafka.config, marked, OFFSET_END, partitions)
    until_readable(kafka, marked)
    before, lost = end_offsets(kafka.config, marked), ", ".join(f"{marked}/{number}" for number in range(partitions))
    for more, shown in (({}, lost), ({"partition": 0}, f"{marked}/0")):
        with pytest.raises(InjectorError, match=f"Kafka has deleted all records of {shown}, also .*add --reset"):
            run(kafka, injection, **more)
    with InjectorGroup(injection, kafka.config) as member, pytest.raises(InjectorError, match="add --reset"):
        until(member.step, "the refusal", 30)
    assert end_offsets(kafka.config, marked) == before
    run(kafka, injection, reset=True)
    run(kafka, injection)
    assert len(look(kafka, marked)[0]) == 2
    recreate(kafka.config, marked, 2)
    run(kafka, injection)
    assert len(look(kafka, marked)[0]) == 2


def test_an_injector_says_that_its_position_may_be_lost_among_the_records_of_others(kafka, topic, caplog):
    raw, marked = topic(1), topic(1)
    write(kafka, raw, b'{"at": %d}' % NOW)
    with WatermarkedProducer(kafka.config, topic=marked, source="b", strategy=ascending(), membership=2) as other:
        other.produce(b"1", event_time=NOW)
    delete_before(kafka.config, marked, 1, 1)
    told = f"injector 'inject-{raw}': Kafka has deleted records of {marked}/0. If "
    for _ in range(2):
        run(kafka, Injection(raw, marked, JsonField("at"), membership=2))
        assert caplog.text.count(told) == 1


def test_the_summary_accounts_for_each_record(kafka, topic):
    rows = [b'{"updated": "7000000000.0", "after": {}}', b'{"after": {}}', b'{"resolved": "8000000000.0"}']
    for fmt, values, outcomes in (
        (JsonField("at"), [b'{"at": %d}' % NOW, None, None], {"on_time": 1, "tombstones": 2}),
        (LogTime(), [b"1", None], {"on_time": 2}),
        (
            CockroachDb(),
            [*rows, rows[0], None],
            {"on_time": 1, "timeless": 1, "resolved": 1, "late": 1, "tombstones": 1},
        ),
    ):
        raw, marked = topic(1), topic(1)
        write(kafka, raw, *values)
        injection = Injection(raw, marked, fmt)
        assert preview_injection(injection, kafka.config).outcomes == outcomes
        assert run(kafka, injection).outcomes == outcomes
        again = run(kafka, injection)
        assert (again.outcomes, again.counts["records"]) == (outcomes, 0)
        skipped = outcomes.get("resolved", 0)
        assert len(look(kafka, marked)[0]) == len(values) - skipped, "a record without a value is copied"


def state(kafka, injection, header):
    """Write a mark of an injector with some state."""
    record = WatermarkRecord(source=injection.source, epoch=5, sequence=0, watermark=NOW, partitions=1, emitted_at=NOW)
    write(
        kafka,
        injection.target_topic,
        encode_watermark(record),
        key=mark_key(injection.source),
        headers=[("floodmark", b"1"), (STATE_HEADER, header)],
    )


@pytest.mark.parametrize("garbage", [b"", b"x", base64.b64encode(zlib.compress(b'{"format": 2}'))])
def test_a_state_that_cannot_be_read_is_named(kafka, topic, garbage):
    injection = Injection(topic(1), topic(1), JsonField("at"))
    state(kafka, injection, garbage)
    with pytest.raises(CorruptSnapshotError, match=f"of an injector at {injection.target_topic}/0@0"):
        Injector(injection, kafka.config)


def test_what_was_interrupted_amid_a_batch_is_not_committed(kafka, topic, monkeypatch):
    """Ctrl-C between a record's decision and its copy once committed its offset without it."""
    raw, marked = topic(1), topic(1)
    send(kafka, raw, *((NOW + n, NOW) for n in range(10)))
    injection = Injection(raw, marked, JsonField("at"), interval=FAST)
    with Injector(injection, kafka.config) as injector:
        injector.run(stop=lambda: injector.counts["transactions"] > 0)
        partition, calls = injector._partitions[0].input, []  # noqa: SLF001
        take = partition.take

        def interrupted(*record):
            calls.append(record)
            if len(calls) == 5:
                raise KeyboardInterrupt
            return take(*record)

        monkeypatch.setattr(partition, "take", interrupted)
        injector.counts["transactions"] += 1  # the first step has looked at the records already
        send(kafka, raw, *((NOW + n, NOW) for n in range(10, 20)))
        with pytest.raises(KeyboardInterrupt):
            until(lambda: injector.step(), "the interruption", 30)  # noqa: PLW0108  # it returns nothing
        for goes_on in (injector.step, injector.commit, injector.run):
            with pytest.raises(InjectorError, match="amid a batch"):
                goes_on()
    run(kafka, injection)
    assert [at for at, _ in times(look(kafka, marked)[0])] == [NOW + n for n in range(20)]


def test_records_that_the_first_step_has_looked_at_are_not_passed_over_if_its_commit_fails(kafka, topic, monkeypatch):
    raw, marked = topic(1), topic(1)
    send(kafka, raw, *((NOW + n, NOW) for n in range(10)))
    injection = Injection(raw, marked, JsonField("at"), interval=FAST)

    def fails(_check):
        raise BrokerUnavailableError(bootstrap_servers="b", seconds=1, reason="away")

    with Injector(injection, kafka.config) as injector:
        with monkeypatch.context() as patch:
            patch.setattr(injector._out, "commit", fails)  # noqa: SLF001
            with pytest.raises(BrokerUnavailableError):
                injector.run(until_end=True)
        with pytest.raises(InjectorError, match="amid a batch"):
            injector.run(until_end=True)
    run(kafka, injection)
    assert [at for at, _ in times(look(kafka, marked)[0])] == [NOW + n for n in range(10)]


def test_a_second_run_until_the_end_reads_to_the_end_that_the_input_has_then(kafka, topic):
    raw, marked = topic(1), topic(1)
    with Injector(Injection(raw, marked, JsonField("at"), interval=FAST), kafka.config) as injector:
        for count in (10, 20, 30):
            send(kafka, raw, *((NOW + n, NOW) for n in range(count - 10, count)))
            injector.run(until_end=True)
            assert injector.counts["records"] == count


def test_an_id_that_no_mark_can_carry_is_refused(topic):
    with pytest.raises(UsageError, match="longer than 200 bytes"):
        Injection("a" * 200, "b", LogTime())


def test_a_target_that_replaces_timestamps_takes_no_event_times_by_them(kafka):
    create_topics(kafka.config, {"stamped": 1, "restamped": 1}, {"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(InjectorError, match="set CreateTime there"):
        Injector(Injection("stamped", "restamped", LogTime()), kafka.config)
    send(kafka, "stamped", (NOW, NOW))
    assert run(kafka, Injection("stamped", "restamped", JsonField("at"))).counts["records"] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_a_commit_and_a_report(kafka, topic, number):
    raw, marked = topic(1), topic(1)
    send(kafka, raw, *((NOW + n, NOW) for n in range(100)))
    command = [
        *(sys.executable, "-m", "floodmark.producers.cli.main", "inject", "--from", raw, "--to", marked, "--json"),
        *("--bootstrap-servers", kafka.bootstrap_servers, "--json-field", "at", "--interval", "0.1"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: json.loads(process.stdout.readline() or '{"records": -1}').get("records") == 100, "the rows", 60)
        process.send_signal(number)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, told
    assert "100 records read" in told
    assert "Traceback" not in told
    assert len(look(kafka, marked)[0]) == 100


@pytest.mark.parametrize("how", ["stopped", "running"])
@pytest.mark.parametrize("length", [3, 30])
def test_an_input_that_was_created_again_is_not_the_one_that_was_read(kafka, topic, how, length):
    """Nothing of it is passed on: records below the old offset would be missing."""
    raw, marked = topic(1), topic(1)
    write(kafka, raw, *[b'{"at": %d}' % NOW] * 10)
    injection = Injection(raw, marked, JsonField("at"), interval=FAST)

    def read_again():
        recreate(kafka.config, raw, 1)
        write(kafka, raw, *[b'{"at": %d}' % NOW] * length)

    if how == "stopped":
        run(kafka, injection)
        read_again()
        for start in (run, lambda kafka, injection: preview_injection(injection, kafka.config)):
            with pytest.raises(RecreatedTopicError):
                start(kafka, injection)
    else:
        with Injector(injection, kafka.config) as injector:
            injector.run(until_end=True)
            read_again()
            with pytest.raises(RecreatedTopicError):
                injector.run()
    assert len(look(kafka, marked)[0]) == 10
    run(kafka, injection, reset=True)
    assert len(look(kafka, marked)[0]) == length


@pytest.mark.parametrize("which", ["input", "target"])
def test_an_injector_of_a_deleted_topic_fails(kafka, topic, which):
    raw, marked = topic(1), topic(1)
    write(kafka, raw, b'{"at": %d}' % NOW)
    with Injector(Injection(raw, marked, JsonField("at"), interval=FAST), kafka.config) as injector:
        injector.run(until_end=True)
        delete_topic(kafka.config, raw if which == "input" else marked)
        with pytest.raises(UnknownTopicError, match=raw if which == "input" else marked):
            injector.run()


def test_an_injector_whose_target_is_made_anew_fails_and_then_copies_all(kafka, topic):
    """Its position is not that of the new topic, so what it has copied before would be missing there."""
    raw, marked = topic(1), topic(1)
    write(kafka, raw, *[b'{"at": %d}' % NOW] * 5)
    injection = Injection(raw, marked, JsonField("at"), interval=FAST)
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
        recreate(kafka.config, marked, 1)
        write(kafka, raw, *[b'{"at": %d}' % NOW] * 2)
        with pytest.raises(RecreatedTopicError, match=f"{marked}.* new one. Start the injector again: it copies"):
            injector.run()
    assert look(kafka, marked)[0] == []
    run(kafka, injection)
    assert len(look(kafka, marked)[0]) == 7


def test_what_was_written_into_a_target_that_was_made_anew_is_no_position(kafka, topic, monkeypatch):
    """A transaction may begin before the topic is deleted, and its marks be written after it was created."""
    raw, marked = topic(2), topic(2)
    injection = Injection(raw, marked, JsonField("at"), interval=FAST)
    write(kafka, raw, *[b'{"at": %d}' % NOW] * 5)
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
        commit = Transaction.commit

        def late(self, check=None):
            recreate(kafka.config, marked, 2)
            commit(self, check)

        monkeypatch.setattr(Transaction, "commit", late)
        write(kafka, raw, b'{"at": %d}' % NOW)
        with pytest.raises(RecreatedTopicError, match=marked):
            injector.run()
        monkeypatch.undo()
    assert look(kafka, marked)[:2] == ([], [])
    with Injector(injection, kafka.config) as injector:
        injector.run(until_end=True)
        monkeypatch.setattr(TopicWatch, "check", lambda _watch: {})  # Kafka answers too late
        recreate(kafka.config, marked, 2)
        write(kafka, raw, b'{"at": %d}' % NOW)
        until(lambda: injector.step() or look(kafka, marked)[1], "marks in the new topic")
        monkeypatch.undo()
    for more in ({}, {"partition": 0}, {"partition": 1}):
        with pytest.raises(RecreatedTopicError, match=f"{marked}.*--reset"):
            run(kafka, injection, **more)
    with pytest.raises(RecreatedTopicError, match=marked):
        preview_injection(injection, kafka.config)
    run(kafka, injection, reset=True)
    assert len(look(kafka, marked)[0]) == 7


@pytest.mark.parametrize("wrong", [JsonField("at"), JsonField("att", "s")])
def test_an_option_that_was_changed_is_checked_until_it_has_read_a_time(kafka, topic, wrong):
    raw, marked = topic(1), topic(1)
    write(kafka, raw, b'{"at": %d}' % (NOW // 1_000))
    run(kafka, Injection(raw, marked, JsonField("at", "s")))
    run(kafka, Injection(raw, marked, wrong))  # no record tells
    write(kafka, raw, b'{"at": %d}' % (NOW // 1_000))
    for _ in range(2):
        with pytest.raises(InjectorError, match=f"read as {re.escape(wrong.about)}"):
            run(kafka, Injection(raw, marked, wrong))
    run(kafka, Injection(raw, marked, JsonField("at", "s")))
    assert len(look(kafka, marked)[0]) == 2


def test_another_schema_of_the_same_name_is_a_change(kafka, topic):
    raw, marked = topic(1), topic(1)
    schemas = record_schema("Order", at="long"), record_schema("Order", at="long", note="string")
    right, wrong = (AvroField(json.dumps(schema), "at") for schema in schemas)
    value = AvroCodec(schemas[0]).encode({"at": NOW})
    write(kafka, raw, value)
    run(kafka, Injection(raw, marked, right))
    write(kafka, raw, value)
    with pytest.raises(InjectorError, match=r"read as Avro Order [0-9a-f]{16} with a time in 'at'"):
        run(kafka, Injection(raw, marked, wrong))
    run(kafka, Injection(raw, marked, right))
    assert len(look(kafka, marked)[0]) == 2


def test_kafka_keeps_a_transaction_open_for_an_interval(kafka, topic, monkeypatch):
    given = Mock(wraps=Transaction)
    monkeypatch.setattr("floodmark.producers.injector.injector.Transaction", given)
    run(kafka, Injection(topic(1), topic(1), JsonField("at"), interval=timedelta(minutes=5)))
    assert {call.args[0]["transaction.timeout.ms"] for call in given.call_args_list} == {330_000}
