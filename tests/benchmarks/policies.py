"""What a time policy costs: decisions a second in one process, without and with substreams, and for strategies.

python tests/benchmarks/policies.py
"""

import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta

from floodmark.producers import TimePolicy, adaptive, ascending, bounded_out_of_orderness, percentile

COUNT = 300_000
SECOND = timedelta(seconds=1)


def rate(run: Callable[[], object]) -> float:
    """Return how many decisions a second, the median of five runs."""
    rates = []
    for _ in range(5):
        began = time.perf_counter()
        run()
        rates.append(COUNT / (time.perf_counter() - began))
    return statistics.median(rates)


def main() -> None:
    """Measure and print."""
    events = [(number * 10 - number * 7919 % 4_000, number * 10) for number in range(COUNT)]
    keys = [b"key-%d" % (number % 1_000) for number in range(COUNT)]

    def decide() -> None:
        state = TimePolicy(late=3 * SECOND, out_of_order=2 * SECOND).build()
        for event_time, arrival in events:
            state.decide(event_time, arrival)

    def decide_per_key() -> None:
        state = TimePolicy(late=3 * SECOND, out_of_order=2 * SECOND).build()
        for (event_time, arrival), key in zip(events, keys, strict=True):
            state.decide(event_time, arrival, key)

    sys.stdout.write(f"time policy: {rate(decide):,.0f} decisions a second\n")
    sys.stdout.write(f"time policy over 1,000 substreams: {rate(decide_per_key):,.0f} decisions a second\n")
    strategies = {
        "ascending": ascending(),
        "bounded out-of-orderness": bounded_out_of_orderness(SECOND),
        "percentile": percentile(SECOND),
        "adaptive": adaptive(),
    }
    for name, strategy in strategies.items():

        def learn(strategy=strategy) -> None:  # bound now
            generator = strategy.build()
            for event_time, _ in events:
                generator.on_event(event_time)
            generator.watermark()

        sys.stdout.write(f"strategy {name}: {rate(learn):,.0f} events a second\n")


if __name__ == "__main__":
    main()
