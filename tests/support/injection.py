"""What the tests of the injector share: records into a topic, and what stands in it."""

import json
import time

from confluent_kafka import Producer
from floodmark.producers import Data, Mark, Observer


def send(kafka, topic, *rows, partition=0):
    """Write rows of (event time, arrival) or (event time, arrival, key)."""
    producer = Producer(kafka.config)
    for event_time, arrival, *key in rows:
        value = json.dumps({"at": event_time}).encode()
        producer.produce(topic, value, key[0] if key else None, partition, timestamp=arrival)
    assert producer.flush(30) == 0


def look(kafka, topic, partitions=1):
    """Return the data and the marks of a topic, and its observer, closed."""
    data, marks = [], []
    with Observer(kafka.config, [topic]) as observer:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            for record in observer.poll(0.1):
                (data if isinstance(record, Data) else marks).append(record)
                deadline = time.monotonic() + 0.5
        observer.trackers[topic].advance()
    return data, [mark for mark in marks if isinstance(mark, Mark)], observer.trackers[topic]


def times(data):
    """Give each row's own time and the one that counts."""
    return [
        (json.loads(row.value)["at"], int(dict(row.headers or []).get("floodmark-time", json.loads(row.value)["at"])))
        for row in data
    ]
