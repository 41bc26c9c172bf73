"""What watermarks cost a producer: throughput beside bare confluent-kafka, on an embedded Kafka.

    python tests/benchmarks/producer.py [--pairs 11] [--records 300000]

The same 100-byte records, keys and settings; runs alternate, so that all arms meet the same machine.  ``cpu`` is the
processor time of the process, with the client's threads, and without the broker.
"""

import argparse
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from floodmark.producers import EmbeddedKafka, WatermarkedProducer, ascending, create_topics

VALUE = b"x" * 100
KEYS = [b"key-%d" % number for number in range(100)]
BATCH = 1_000
BATCHES = {"list": list, "NumPy": np.array, "Arrow": pa.array}
MAIN = ("bare", "bare, on_delivery", "bare, produce_batch", "produce", "produce_many, list")


def bare(config, records, *, report=False):
    """Send with confluent-kafka; with ``report``, count what was delivered, as a program does that knows its losses."""
    delivered = 0

    def count(error, _message):
        nonlocal delivered
        delivered += error is None

    options = {"on_delivery": count} if report else {}
    producer = Producer({**config, "enable.idempotence": True})
    for number in range(records):
        while True:
            try:
                producer.produce("bare", value=VALUE, key=KEYS[number % 100], **options)
            except BufferError:
                producer.poll(0.05)
            else:
                break
        producer.poll(0)
    producer.flush()
    assert delivered in {0, records}


def bare_batch(config, records):
    """Send with confluent-kafka's ``produce_batch``, without reports."""
    producer = Producer({**config, "enable.idempotence": True})
    for first in range(0, records, BATCH):
        batch = [{"value": VALUE, "key": KEYS[number % 100]} for number in range(first, first + BATCH)]
        while batch:
            producer.produce_batch("bare", batch)
            batch = [message for message in batch if message.pop("_error", None)]
            producer.poll(0.05 if batch else 0)
    producer.flush()


def marked(config, records):
    """Send with a mark per second and partition."""
    with WatermarkedProducer(
        config, topic="marked", source="a", strategy=ascending(), interval=timedelta(seconds=1)
    ) as producer:
        for number in range(records):
            producer.produce(VALUE, key=KEYS[number % 100], event_time=number)


def marked_many(config, records, kind):
    """Send batches with a mark per second and partition; ``kind`` makes the event times."""
    with WatermarkedProducer(
        config, topic="marked", source="a", strategy=ascending(), interval=timedelta(seconds=1)
    ) as producer:
        for first in range(0, records, BATCH):
            times = kind(range(first, first + BATCH))
            producer.produce_many([VALUE] * BATCH, event_times=times, keys=KEYS * (BATCH // 100))


def main():
    """Measure and print: the medians of each arm, and its median ratios to both bare loops."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--records", type=int, default=300_000)
    options = parser.parse_args()
    arms = {
        "bare": bare,
        "bare, on_delivery": partial(bare, report=True),
        "bare, produce_batch": bare_batch,
        "produce": marked,
        **{f"produce_many, {name}": partial(marked_many, kind=kind) for name, kind in BATCHES.items()},
    }
    runs = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place)) as kafka:
        create_topics(kafka.config, {"bare": 4, "marked": 4})
        for _ in range(options.pairs):
            for name, arm in arms.items():
                wall, cpu = time.perf_counter(), time.process_time()
                arm({**kafka.config, "linger.ms": 20}, options.records)
                runs[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    sys.stdout.write(f"{'median of each':22} {'records/s':>10} {'cpu us':>7}   of bare (cpu)   of on_delivery (cpu)\n")
    for name, taken in runs.items():
        wall, cpu = (statistics.median(one) for one in zip(*taken, strict=True))
        sys.stdout.write(f"{name:22} {options.records / wall:10,.0f} {cpu / options.records * 1e6:7.2f}")
        for base in ("bare", "bare, on_delivery"):
            ratios = [
                [b / o for b, o in zip(before, own, strict=True)] for before, own in zip(runs[base], taken, strict=True)
            ]
            sys.stdout.write(
                "   {:.2f} ({:.2f})".format(*(statistics.median(one) for one in zip(*ratios, strict=True)))
            )
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
