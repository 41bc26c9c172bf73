"""A chain of two jobs says what holds it: late data, which only waits, or a job that is stuck; and where it begins."""

import threading
import time
from datetime import timedelta

import pytest
from floodmark.producers import WatermarkedProducer, explicit
from floodmark.producers.readers.chain import ChainReader
from floodmark.spark_jobs import avro
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import counted, fails, read_events, windowed
from support.harness import COUNT, Stream, drain, until, window_counts

LIMIT = 150
HOLD = 2_000


class Web:
    """A source with an event each 0.2 seconds; its watermark advances while it may."""

    def __init__(self, kafka, topic):
        self.sent, self.watermark, self._next = 0, None, 0.0
        self.producer = WatermarkedProducer(
            kafka.config, topic=topic, source="web", strategy=explicit(), interval=timedelta(hours=1)
        )

    def tick(self, *, advance):
        if time.monotonic() < self._next:
            return
        self._next, now = time.monotonic() + 0.2, time.time_ns() // 1_000_000
        Stream.produce_step(self.producer, [now])
        self.sent += 1
        if advance:
            self.watermark = now - 500
            self.producer.advance(self.watermark)
        self.producer.flush()


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_late_data_is_told_from_a_job_that_is_stuck_and_the_start_of_the_chain_is_named(spark, kafka, topic, tmp_path):
    clicks, counts, totals = topic(2), topic(1), topic(1)
    free, web = threading.Event(), Web(kafka, clicks)
    free.set()
    servers = kafka.bootstrap_servers
    first = counted(
        windowed(read_events(spark, servers, clicks), 1_000),
        counts,
        str(tmp_path / "first"),
        job="first",
        on_batch=lambda _: free.wait(LIMIT),
    )
    ended = read_events(spark, servers, counts, value=avro(COUNT), event_time="ended")
    sums = ended.groupBy("user", F.window("ended", "2 seconds")).agg(F.sum("n").alias("n"))
    second = counted(
        sums.select("user", F.col("window.end").alias("ended"), "n"),
        totals,
        str(tmp_path / "second"),
        job="second",
        watermark_hold=timedelta(milliseconds=HOLD),
    )

    def wait(condition, what, *, advance):
        def holds():
            web.tick(advance=advance)
            return not fails(first) and not fails(second) and condition()

        until(holds, what, LIMIT)

    def board():
        with ChainReader(kafka.config, [totals]) as reader:
            return reader.board()

    def root():
        return {(hold.holder.topic, hold.holder.source) for hold in second.holders(root=True)}

    try:
        wait(lambda: (second.metrics().watermark_delay_seconds or 99) < 10, "a chain that keeps up", advance=True)
        stood = web.watermark
        wait(lambda: second.metrics().watermark == stood, "the last watermark", advance=False)

        def only_waits(job):
            shown = job.metrics()
            return shown.watermark_delay_seconds > 12 and shown.processing_time_delay_seconds < 10

        wait(lambda: only_waits(first) and only_waits(second), "late data, and jobs that keep up", advance=False)
        assert (first.metrics().local_lag_seconds, second.metrics().local_lag_seconds) == (0, HOLD / 1_000)
        seen = {view.topic: (view.input_watermark, view.batch_watermark, view.watermark) for view in board().topics()}
        assert seen[clicks] == (None, None, stood)
        for name, width, output in ((counts, 1_000, stood), (totals, 2_000, stood - HOLD)):
            given, ran, shown = seen[name]
            assert (given, shown) == (stood, output)
            assert stood - width <= ran <= stood, "Spark is told of watermarks that end a window"
        assert {(hold.holder.topic, hold.holder.source) for hold in second.holders()} == {(counts, "first")}
        assert root() == {(clicks, "web")}

        free.clear()
        stuck = lambda: first.metrics().processing_time_delay_seconds > 12  # noqa: E731
        wait(stuck, "a job that is stuck", advance=True)
        assert board().topic(counts).lags.processing > 12_000
        assert board().topic(clicks).lags.processing < 10_000
        wait(lambda: root() == {(counts, "first")}, "the job that is stuck as the root", advance=True)
        free.set()
        wait(lambda: second.metrics().processing_time_delay_seconds < 10, "a chain that keeps up again", advance=True)
        web.producer.end()
        assert first.awaitTermination(LIMIT)
        assert second.awaitTermination(LIMIT)
        assert second.metrics().local_lag_seconds is None, "all has ended"
    finally:
        free.set()
        first.stop()
        second.stop()
    assert sum(window_counts(drain(kafka.config, totals)[0]).values()) == web.sent
    assert (first.counts["late"], second.counts["late"]) == (0, 0)
