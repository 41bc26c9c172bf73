"""How fast an existing topic is brought in: records a second through the injector, on an embedded Kafka.

    python tests/benchmarks/injector.py [RECORDS]

RECORDS (default 1,000,000) of about 100 bytes of JSON in four partitions, exactly once, a transaction a second; beside
it a bare consume-and-produce loop on the same topic without transactions, policies and marks, alternating.
"""

import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from floodmark.producers import EmbeddedKafka, TimePolicy, create_topics
from floodmark.producers.event_times.formats import JsonField, LogTime
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector

PARTITIONS = 4
ROUNDS = 3


def fill(config: dict[str, str], records: int) -> None:
    """Write the topic to bring in."""
    producer = Producer({**config, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    begin = time.time_ns() // 1_000_000 - records
    for number in range(records):
        value = b'{"at": %d, "user": "user-%06d", "text": "%s"}' % (begin + number, number % 10_000, b"x" * 50)
        while True:
            try:
                producer.produce("raw", value, partition=number % PARTITIONS, timestamp=begin + number)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def bare(config: dict[str, str], records: int, target: str) -> float:
    """Copy the topic with bare clients."""
    consumer = Consumer({**config, "group.id": "bare", "enable.auto.commit": False})
    consumer.assign([TopicPartition("raw", number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    producer = Producer({**config, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    began, copied = time.perf_counter(), 0
    while copied < records:
        for message in consumer.consume(10_000, 0.1):
            while True:
                try:
                    producer.produce(
                        target, message.value(), message.key(), message.partition(), timestamp=message.timestamp()[1]
                    )
                    break
                except BufferError:
                    producer.poll(0.05)
            copied += 1
        producer.poll(0)
    producer.flush()
    consumer.close()
    return records / (time.perf_counter() - began)


def injected(config: dict[str, str], records: int, target: str, *, by_json: bool) -> float:
    """Bring the topic in."""
    fmt = JsonField("at") if by_json else LogTime()
    policy = TimePolicy(late=timedelta(minutes=5), out_of_order=timedelta(seconds=2))
    began = time.perf_counter()
    with Injector(Injection("raw", target, fmt, policy), config) as injector:
        injector.run(until_end=True)
        if injector.counts["records"] != records:
            raise SystemExit(f"{injector.counts['records']} records, expected {records}")
    return records / (time.perf_counter() - began)


def main(records: int = 1_000_000) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place)) as kafka:
        create_topics(kafka.config, {"raw": PARTITIONS})
        fill(kafka.config, records)
        rates: dict[str, list[float]] = {"bare copy": [], "injector, time of Kafka": [], "injector, JSON field": []}
        for number in range(ROUNDS):
            for kind, measured in rates.items():
                target = f"{kind.replace(', ', '-').replace(' ', '-')}-{number}"
                create_topics(kafka.config, {target: PARTITIONS})
                if kind == "bare copy":
                    measured.append(bare(kafka.config, records, target))
                else:
                    by_json = kind.endswith("field")
                    measured.append(injected(kafka.config, records, target, by_json=by_json))
        for kind, measured in rates.items():
            ratios = [one / other for one, other in zip(measured, rates["bare copy"], strict=True)]
            sys.stdout.write(
                f"{kind}: {statistics.median(measured):,.0f} records a second ({min(measured):,.0f} to "
                f"{max(measured):,.0f}), {statistics.median(ratios):.2f} of the bare copy\n"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
