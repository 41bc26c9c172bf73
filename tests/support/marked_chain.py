"""A chain of two jobs in one thread, without Spark: sources and jobs mark their topics as the real ones do."""

import threading
import time
from datetime import timedelta

from confluent_kafka import Producer
from floodmark.producers import Observer, WatermarkedProducer, explicit
from floodmark.producers.strategies.numbering import Identity, MarkWriter
from floodmark.schemas.classify import mark_record
from floodmark.schemas.records import Membership

STEP = 0.2  # seconds between two rounds of marks: ten of them are a pause after which a source is said to have stopped


class MarkingJob:
    """What a job writes behind its batches: the watermark of its input, and who holds it."""

    def __init__(self, config, name, source_topic, target_topic):
        self._input = Observer(config, [source_topic])
        self._tracker = self._input.trackers[source_topic]
        self._output = Producer(config)
        self._topic = target_topic
        self._writer = MarkWriter(Identity(name, time.time_ns() // 1_000_000, Membership()), 1)

    def step(self):
        for _ in self._input.poll(0.01):
            pass
        tracker, now = self._tracker, time.time_ns() // 1_000_000
        tracker.advance()
        known = {"watermark": tracker.watermark, "processing_time_watermark": tracker.processing_time}
        holder = next((hold.holder for hold in tracker.holders()), None)
        for partition, mark in self._writer.marks(now, counted=False, holder=holder, **known):
            key, value, headers = mark_record(mark)
            self._output.produce(self._topic, value, key, partition, headers=headers)
        self._output.flush(10)

    def close(self):
        self._input.close()


class MarkedChain:
    """Two sources write `first` (two partitions), job `counts` makes `second` of it, job `means` makes `third`.

    While it runs, each source promises the present with each step, but for those in ``paused``, whose marks stand, and
    those in ``silent``, which send none; a job in ``silent`` does nothing.
    """

    def __init__(self, config, first, second, third):
        self.paused, self.silent = set(), set()
        options = {"topic": first, "strategy": explicit(), "membership": 2, "interval": timedelta(hours=1)}
        self._sources = {name: WatermarkedProducer(config, source=name, **options) for name in ("web-1", "web-2")}
        self._jobs = {
            "counts": MarkingJob(config, "counts", first, second),
            "means": MarkingJob(config, "means", second, third),
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.failed = None

    def _run(self):
        try:
            while not self._stop.is_set():
                self.step()
                self._stop.wait(STEP)
        except Exception as error:  # noqa: BLE001  # the test's own thread shows it
            self.failed = error

    def step(self):
        for name, source in self._sources.items():
            if name not in self.paused | self.silent:
                source.advance(time.time_ns() // 1_000_000 - 500)
            if name not in self.silent:
                source.flush()
        for name, job in self._jobs.items():
            if name not in self.silent:
                job.step()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(60)
        for job in self._jobs.values():
            job.close()
        for source in self._sources.values():
            source.close()
        assert self.failed is None, self.failed
