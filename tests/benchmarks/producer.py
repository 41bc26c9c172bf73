"""What watermarks cost a producer: throughput beside bare confluent-kafka, on an embedded Kafka.

    python tests/benchmarks/producer.py

The same 100-byte records, keys and settings; runs alternate, so that both meet the same machine.
"""

import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from confluent_kafka import Producer
from floodmark.producers import EmbeddedKafka, WatermarkedProducer, ascending, create_topics

RECORDS = 300_000
PAIRS = 7
VALUE = b"x" * 100
KEYS = [b"key-%d" % number for number in range(100)]


def bare(config: dict[str, object], topic: str) -> float:
    """Send all records with bare confluent-kafka."""
    producer = Producer({**config, "enable.idempotence": True})
    began = time.perf_counter()
    for number in range(RECORDS):
        while True:
            try:
                producer.produce(topic, value=VALUE, key=KEYS[number % 100])
            except BufferError:
                producer.poll(0.05)
            else:
                break
        producer.poll(0)
    producer.flush()
    return RECORDS / (time.perf_counter() - began)


def marked(config: dict[str, object], topic: str) -> float:
    """Send all records with a mark per second and partition."""
    producer = WatermarkedProducer(config, topic=topic, source="a", strategy=ascending(), interval=timedelta(seconds=1))
    began = time.perf_counter()
    for number in range(RECORDS):
        producer.produce(VALUE, key=KEYS[number % 100], event_time=number)
    producer.flush()
    return RECORDS / (time.perf_counter() - began)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place)) as kafka:
        create_topics(kafka.config, {"bare": 4, "marked": 4})
        config: dict[str, object] = {**kafka.config, "linger.ms": 20}
        pairs = [(bare(config, "bare"), marked(config, "marked")) for _ in range(PAIRS)]
    for one, other in pairs:
        sys.stdout.write(f"bare {one:9,.0f}/s   marked {other:9,.0f}/s   ratio {other / one:.2f}\n")
    sys.stdout.write(f"median ratio {statistics.median(other / one for one, other in pairs):.2f}\n")


if __name__ == "__main__":
    main()
