"""A service that writes orders to Kafka, with watermarks.

Each line of its input is an order, as ``{"shop": "north", "amount": 5, "at": "2026-01-05T12:00:03Z"}``:

    python -m floodmark.producers.examples.order_service --bootstrap-servers localhost:9092 --source till-1 < orders

After SIGTERM it takes no more orders, and writes those that it has taken.
"""

import argparse
import json
import queue
import signal
import sys
import threading
from datetime import datetime, timedelta

from floodmark.producers import Membership, WatermarkedProducer, bounded_out_of_orderness, create_topics, with_idleness


def main() -> None:
    """Write orders until there are no more."""
    parser = argparse.ArgumentParser(description="Write orders, and watermarks between them.")
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--source", required=True, help="the name of this process, the same after a restart")
    parser.add_argument("--sources", type=int, default=1, help="how many such processes write to the topic")
    parser.add_argument("--version", type=int, default=1, help="version of --sources: a higher one when it changes")
    options = parser.parse_args()
    membership = Membership(version=options.version, size=options.sources)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())  # `sys.exit` would lose the orders in the queue
    config = {"bootstrap.servers": options.bootstrap_servers}  # and your security settings
    create_topics(config, {options.topic: 2})  # if it does not exist
    # An order is at most 5 s older than one before it.  After 30 s without orders, readers need not wait.
    strategy = with_idleness(bounded_out_of_orderness(timedelta(seconds=5)), timeout=timedelta(seconds=30))
    orders: queue.Queue[str] = queue.Queue(maxsize=10_000)  # your request handlers would fill it
    threading.Thread(target=take, args=(orders, stopping), daemon=True).start()
    with WatermarkedProducer(
        config, topic=options.topic, source=options.source, strategy=strategy, membership=membership
    ) as producer:
        while True:
            try:
                line = orders.get(timeout=0.2)
            except queue.Empty:
                if stopping.is_set():
                    return  # leaves the `with`, which waits for records in flight and sends the last marks
                producer.poll()  # sends marks while there are no orders
                continue
            if not line:
                producer.end()  # final: leave it out if the service starts again
                return
            order = json.loads(line)
            producer.produce(line.encode(), key=order["shop"], event_time=datetime.fromisoformat(order["at"]))


def take(orders: "queue.Queue[str]", stopping: threading.Event) -> None:
    """Put each order of the input into the queue, and an empty text after the last."""
    for line in filter(str.strip, sys.stdin):
        if stopping.is_set():
            return
        orders.put(line.strip())
    if not stopping.wait(timeout=1):  # SIGTERM to a whole pipeline ends the input, too
        orders.put("")


if __name__ == "__main__":
    main()
