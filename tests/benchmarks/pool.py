"""Many sources in one process: throughput and memory of a pool beside those of one source, on an embedded Kafka.

    python tests/benchmarks/pool.py

The same 100-byte records, keys and settings; each run is a process of its own, and runs alternate, so that both meet
the same machine.  Every source has a mark per second and partition.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from floodmark.producers import EmbeddedKafka, SourcePool, WatermarkedProducer, ascending, create_topics

RECORDS = 1_000_000
PAIRS = 5
SOURCES = 1_000
VALUE = b"x" * 100
KEYS = [b"key-%d" % number for number in range(100)]
SECOND = timedelta(seconds=1)


def run(config: dict[str, object], topic: str, count: int) -> dict[str, float]:
    """Send all records, from one source or from so many of a pool, in turns."""
    pool = None
    if count > 1:
        pool = SourcePool(config, topic=topic, interval=SECOND)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        sources: list[WatermarkedProducer] = list(
            pool.join(*(f"source-{number}" for number in range(count)), strategy=ascending())
        )
        joined = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        pool.flush()
    else:
        sources = [WatermarkedProducer(config, topic=topic, source="a", strategy=ascending(), interval=SECOND)]
        joined = 0
    began, worked = time.perf_counter(), time.process_time()
    for number in range(RECORDS):
        sources[number % count].produce(VALUE, key=KEYS[number % 100], event_time=number)
    (pool or sources[0]).flush()
    rate = RECORDS / (time.perf_counter() - began)
    processor = (time.process_time() - worked) * 1e6 / RECORDS
    (pool or sources[0]).end()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"rate": rate, "processor": processor, "joined_mib": joined / 1024, "most_mib": most / 1024}


def measure(config: dict[str, object], topic: str, count: int) -> dict[str, float]:
    """Run in a process of its own."""
    command = [sys.executable, __file__, json.dumps([config, topic, count])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _shown(found: dict[str, float]) -> str:
    return (
        f"{found['rate']:9,.0f}/s, {found['processor']:5.1f} us of processor time a record, "
        f"{found['most_mib']:4,.0f} MiB at most"
    )


def main() -> None:
    """Measure and print."""
    ratios = []
    with tempfile.TemporaryDirectory() as place, EmbeddedKafka(Path(place)) as kafka:
        config: dict[str, object] = {**kafka.config, "linger.ms": 20}
        for pair in range(PAIRS):
            create_topics(kafka.config, {f"one-{pair}": 4, f"pool-{pair}": 4})
            one, many = measure(config, f"one-{pair}", 1), measure(config, f"pool-{pair}", SOURCES)
            ratios.append(many["rate"] / one["rate"])
            sys.stdout.write(f"one source    {_shown(one)}\n{SOURCES:,} sources {_shown(many)}\n")
            sys.stdout.write(
                f"ratio {ratios[-1]:.2f}; memory of the sources as they join {many['joined_mib']:.1f} MiB\n"
            )
            sys.stdout.flush()
    sys.stdout.write(f"median ratio {statistics.median(ratios):.2f}\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(json.dumps(run(*json.loads(sys.argv[1]))))
    else:
        main()
