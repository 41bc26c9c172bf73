"""`floodmark tail` shows every record of a topic, and of the partitions that it gains."""

import json

import pytest
from confluent_kafka import Producer
from floodmark.producers import WatermarkedProducer, explicit
from floodmark.producers.readers.tail import tail_lines
from support.harness import grow
from support.injection import until_readable


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
    lines = [
        json.loads(line) for line in tail_lines(kafka.config, target, from_beginning=True, until_end=True, as_json=True)
    ]
    assert sorted(line["value"] for line in lines) == ["0", "1", "2"]
    assert list(tail_lines(kafka.config, target, until_end=True)) == []


@pytest.mark.kafka
@pytest.mark.timeout(90)
def test_it_follows_a_topic_that_grows(kafka, topic):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit()) as ours:
        ours.produce(b"old", event_time=1)
    lines = tail_lines(kafka.config, target, from_beginning=True, as_json=True)
    found = lambda: json.loads(next(lines)).get("value")  # noqa: E731
    while found() != "old":
        pass
    grow(kafka.config, target, 2)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=explicit()) as ours:
        ours.produce(b"new", event_time=6, partition=1)
    while found() != "new":
        pass
