"""What the tracker costs: records a second, and the size and time of its snapshot.

    python tests/benchmarks/tracker.py

100 partitions, 100 sources, 20 rounds: 200,000 records applied in the order of a log.
"""

import json
import statistics
import sys
import time

from floodmark.schemas import Membership, Tracker, WatermarkRecord

PARTITIONS = SOURCES = 100
ROUNDS = 20


def main() -> None:
    """Measure and print."""
    records = [
        (
            partition,
            WatermarkRecord(
                source=f"source-{source}",
                epoch=1,
                sequence=number,
                watermark=number * 1000 + source,
                partitions=PARTITIONS,
                emitted_at=0,
                membership=Membership(version=1, size=SOURCES),
            ),
        )
        for number in range(ROUNDS)
        for partition in range(PARTITIONS)
        for source in range(SOURCES)
    ]
    rates = []
    for _ in range(5):
        tracker = Tracker({"t"})
        began = time.perf_counter()
        for number, (partition, record) in enumerate(records):
            tracker.apply(record, topic="t", partition=partition, log_time=number)
            if number % 10_000 == 9_999:
                tracker.advance()
        rates.append(len(records) / (time.perf_counter() - began))
    began = time.perf_counter()
    text = json.dumps(tracker.snapshot(), separators=(",", ":"))
    stored = time.perf_counter() - began
    began = time.perf_counter()
    Tracker.restore(json.loads(text))
    restored = time.perf_counter() - began
    sys.stdout.write(
        f"apply     {statistics.median(rates):,.0f} records/s (median of 5; {min(rates):,.0f} to {max(rates):,.0f})\n"
        f"snapshot  {len(text) / 1e6:.2f} MB in {stored * 1000:.0f} ms; restored in {restored * 1000:.0f} ms\n"
    )


if __name__ == "__main__":
    main()
