"""What the tests of the injector share: records into a topic, and what stands in it."""

import json

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from floodmark.producers import Data, Mark, Observer
from floodmark.producers.clients.admin import end_offsets, require_topics
from floodmark.producers.clients.transaction import Transaction
from support.harness import until


def send(kafka, topic, *rows, partition=0):
    """Write rows of (event time, arrival) or (event time, arrival, key)."""
    producer = Producer(kafka.config)
    for event_time, arrival, *key in rows:
        value = json.dumps({"at": event_time}).encode()
        producer.produce(topic, value, key[0] if key else None, partition, timestamp=arrival)
    assert producer.flush(30) == 0


def open_transaction(kafka, topic):
    """Write as another writer: until it aborts or commits, nothing that is committed after this can be read."""
    other = Transaction(kafka.config, "other", topic)
    other.begin()
    other.produce(topic, 0, None, b"{}")
    assert other.producer.flush(30) == 0
    return other


def written_ends(kafka, topic):
    """Return where the partitions of a topic end: Kafka answers a commit before readers of it see its last records."""
    partitions, admin = range(require_topics(kafka.config, [topic])[topic]), AdminClient(kafka.config)
    found = admin.list_offsets({TopicPartition(topic, number): OffsetSpec.latest() for number in partitions})
    return {place.partition: end.result(15).offset for place, end in found.items()}


def until_readable(kafka, topic):
    until(lambda: end_offsets(kafka.config, topic) == written_ends(kafka, topic), f"the last commit to {topic}")


def look(kafka, topic):
    """Return the data and the marks of a topic, and its tracker."""
    records, ends = [], written_ends(kafka, topic)
    with Observer(kafka.config, [topic]) as observer:

        def is_read():
            records.extend(observer.poll(0.1))
            return all(observer.ends.get((topic, number), 0) >= end for number, end in ends.items())

        until(is_read, f"the end of {topic}")
        observer.trackers[topic].advance()
    data, marks = ([record for record in records if isinstance(record, kind)] for kind in (Data, Mark))
    return data, marks, observer.trackers[topic]


def times(data):
    """Give each row's own time and the one that counts."""
    own = [json.loads(row.value)["at"] for row in data]
    return [(at, int(dict(row.headers or []).get("floodmark-time", at))) for at, row in zip(own, data, strict=True)]
