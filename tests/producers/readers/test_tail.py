"""`floodmark tail` shows every record of a topic, and of the partitions that it gains."""

import json

import pytest
from confluent_kafka import Producer
from floodmark.producers import WatermarkedProducer, explicit
from floodmark.producers.readers.tail import _json, _line, tail_lines
from floodmark.producers.testing import mark
from floodmark.schemas.classify import classify, mark_record
from floodmark.schemas.errors import RecreatedTopicError
from hypothesis import given
from hypothesis import strategies as st
from support.harness import grow, recreate
from support.injection import until_readable

HOSTILE = st.text(st.sampled_from("a\x1b[]0;\x07\n\r\x9b\u202e\u2028\x00é"), min_size=1, max_size=40)


@given(HOSTILE, HOSTILE, st.binary(max_size=5))
def test_no_record_controls_the_terminal(source, text, garbage):
    raw = text.encode()
    for record in (
        classify("t", 0, 0, 0, *mark_record(mark(source, 12))),
        classify("t", 0, 0, 0, b"__floodmark__/" + raw, garbage),
        classify("t", 0, 0, 0, raw, raw, [(text, raw)]),
    ):
        line = _line(record, None, None)
        assert line.isprintable()
        assert json.loads(_json(record, None, None))["offset"] == 0
    assert len(line) <= 100


def test_a_line_that_is_cut_says_so():
    texts = [_line(classify("t", 0, 0, 0, None, b"x" * size), None, None) for size in (5, 200)]
    assert [text.endswith("...") for text in texts] == [False, True]
    assert len(texts[1]) == 100


@pytest.mark.kafka
def test_a_topic_that_is_made_anew_is_told_with_advice_that_fits(kafka, topic):
    target = topic(1)
    writer = Producer(kafka.config)
    writer.produce(target, b"x")
    writer.flush(30)
    lines = tail_lines(kafka.config, target, offset=0)
    assert "x" in next(lines)
    recreate(kafka.config, target, 1)
    with pytest.raises(RecreatedTopicError, match=r": tail has used the topic .* Start it again\."):
        list(lines)


@pytest.mark.kafka
def test_it_stops_at_the_end_also_behind_a_transaction_and_in_empty_partitions(kafka, topic):
    target = topic(3)
    writer = Producer({**kafka.config, "transactional.id": target})
    writer.init_transactions(30)
    writer.begin_transaction()
    for number in range(3):
        writer.produce(target, value=b"%d" % number, partition=number % 2)
    writer.commit_transaction(30)
    until_readable(kafka, target)
    lines = [json.loads(line) for line in tail_lines(kafka.config, target, offset=0, until_end=True, as_json=True)]
    assert sorted(line["value"] for line in lines) == ["0", "1", "2"]
    told = []
    assert list(tail_lines(kafka.config, target, until_end=True, note=told.append)) == []
    assert list(tail_lines(kafka.config, target, offset=0, until_end=True, marks_only=True, note=told.append)) == []
    assert told[0].startswith(f"{target}: no records to show; its partitions end at these offsets: 0 at ")
    assert told[1:] == [f"{target}: no marks in 3 records"]
    assert list(tail_lines(kafka.config, target, offset=-1, until_end=True, marks_only=True, note=told.append)) == []
    assert told[2] == told[0], "the end of the transaction is no record"


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("offset", "shown"),
    [(0, "01234 ab"), (3, "34 "), (-2, "34 ab"), (-99, "01234 ab"), (99, " ")],
)
def test_it_starts_where_it_is_told(kafka, topic, offset, shown):
    target = topic(3)
    writer = Producer(kafka.config)
    for partition, values in enumerate(["01234", "ab"]):
        for value in values:
            writer.produce(target, value=value, partition=partition)
    writer.flush(30)
    until_readable(kafka, target)
    lines = [json.loads(line) for line in tail_lines(kafka.config, target, offset=offset, until_end=True, as_json=True)]
    found = ["".join(line["value"] for line in lines if line["partition"] == number) for number in range(3)]
    assert found == [*shown.split(" "), ""]


@pytest.mark.kafka
@pytest.mark.timeout(90)
def test_it_follows_a_topic_that_grows(kafka, topic):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit()) as ours:
        ours.produce(b"old", event_time=1)
    lines = tail_lines(kafka.config, target, offset=0, as_json=True)
    found = lambda: json.loads(next(lines)).get("value")  # noqa: E731
    while found() != "old":
        pass
    grow(kafka.config, target, 2)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit()) as ours:
        ours.produce(b"new", event_time=6, partition=1)
    while found() != "new":
        pass
