"""What the tests of the injector share: records into a topic, and what stands in it."""

import json
from contextlib import closing

from confluent_kafka import Consumer, Producer, TopicPartition
from floodmark.producers import Data, Mark, Observer
from floodmark.producers.clients.admin import end_offsets, require_topics
from support.harness import until


def send(kafka, topic, *rows, partition=0):
    """Write rows of (event time, arrival) or (event time, arrival, key)."""
    producer = Producer(kafka.config)
    for event_time, arrival, *key in rows:
        value = json.dumps({"at": event_time}).encode()
        producer.produce(topic, value, key[0] if key else None, partition, timestamp=arrival)
    assert producer.flush(30) == 0


def written_ends(kafka, topic):
    """Return where the partitions of a topic end: Kafka answers a commit before readers of it see its last records."""
    settings = {**kafka.config, "group.id": "written", "isolation.level": "read_uncommitted"}
    with closing(Consumer(settings)) as consumer:
        places = [TopicPartition(topic, number) for number in range(require_topics(kafka.config, [topic])[topic])]
        return {place.partition: consumer.get_watermark_offsets(place, timeout=15)[1] for place in places}


def until_readable(kafka, topic):
    """Wait until what has been committed can be read."""
    until(lambda: end_offsets(kafka.config, topic) == written_ends(kafka, topic), f"the last commit to {topic}")


def look(kafka, topic):
    """Return the data and the marks of a topic, and its observer, closed."""
    data, marks = [], []
    ends = written_ends(kafka, topic)
    with Observer(kafka.config, [topic]) as observer:

        def is_read():
            for record in observer.poll(0.1):
                (data if isinstance(record, Data) else marks).append(record)
            return all(observer.ends.get((topic, number), 0) >= end for number, end in ends.items())

        until(is_read, f"the end of {topic}")
        observer.trackers[topic].advance()
    return data, [mark for mark in marks if isinstance(mark, Mark)], observer.trackers[topic]


def times(data):
    """Give each row's own time and the one that counts."""
    return [
        (json.loads(row.value)["at"], int(dict(row.headers or []).get("floodmark-time", json.loads(row.value)["at"])))
        for row in data
    ]
