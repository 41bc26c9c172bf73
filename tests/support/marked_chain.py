"""A chain of two jobs in one thread, without Spark: sources and jobs mark their topics as the real ones do."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from types import SimpleNamespace

from confluent_kafka import Producer
from floodmark.producers import Observer, WatermarkedProducer, explicit
from floodmark.producers.strategies.numbering import Identity, MarkWriter
from floodmark.schemas.classify import mark_record
from floodmark.schemas.records import Membership

STEP = 0.2  # seconds between two rounds of marks: ten of them are a pause after which a source is said to have stopped


def marking_job(config, name, source_topic, target_topic):
    """With each step, write what a job writes behind a batch: the watermark of its input, and who holds it."""
    output, writer = Producer(config), MarkWriter(Identity(name, time.time_ns() // 1_000_000, Membership()), 1)
    with Observer(config, [source_topic]) as observer:
        tracker = observer.trackers[source_topic]
        while True:
            list(observer.poll(0.01))
            tracker.advance()
            known = {"watermark": tracker.watermark, "processing_time_watermark": tracker.processing_time}
            holder = next((hold.holder for hold in tracker.holders()), None)
            for partition, mark in writer.marks(time.time_ns() // 1_000_000, counted=False, holder=holder, **known):
                key, value, headers = mark_record(mark)
                output.produce(target_topic, value, key, partition, headers=headers)
            output.flush(10)
            yield


@contextmanager
def marked_chain(config, first, second, third):
    """Let two sources write `first` (two partitions), job `counts` make `second` of it, job `means` make `third`.

    In the block, each source promises the present with each step, but for those in ``paused``, whose marks stand, and
    those in ``silent``, which send none; a job in ``silent`` does nothing.
    """
    chain, stop = SimpleNamespace(paused=set(), silent=set()), threading.Event()
    options = {"topic": first, "strategy": explicit(), "membership": 2, "interval": timedelta(hours=1)}
    topics = {"counts": (first, second), "means": (second, third)}
    jobs = {name: marking_job(config, name, *places) for name, places in topics.items()}
    sources = {name: WatermarkedProducer(config, source=name, **options) for name in ("web-1", "web-2")}

    def run():
        while not stop.wait(STEP):
            for name, source in sources.items():
                if name not in chain.paused | chain.silent:
                    source.advance(time.time_ns() // 1_000_000 - 500)
                if name not in chain.silent:
                    source.flush()
            for name, job in jobs.items():
                if name not in chain.silent:
                    next(job)

    with ExitStack() as stack:
        for each in (*sources.values(), *jobs.values()):
            stack.enter_context(closing(each))
        thread = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(thread.submit(run).result)  # raises what failed it
        stack.callback(stop.set)
        yield chain
