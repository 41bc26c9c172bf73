"""Sources come, go, and are replaced while a Spark job runs: two, five, one; zombies are fenced and counted."""

from datetime import timedelta

import pytest
from floodmark.producers import WatermarkedProducer, explicit
from floodmark.producers.testing import ManualClock
from floodmark.schemas import Membership
from support.counting import counted, fails, read_events, windowed
from support.harness import Stream, drain, until, window_counts

pytestmark = pytest.mark.spark
WIDTH = 1_000


def test_two_then_five_then_one(spark, kafka, topic, checkpoint):  # one story, told in order
    given, out = topic(3), topic(2)
    sent: list[int] = []

    def source(name, version, size, **options):
        return WatermarkedProducer(
            kafka.config,
            topic=given,
            source=name,
            strategy=explicit(),
            membership=Membership(version=version, size=size),
            interval=timedelta(hours=1),
            **options,
            background=False,
        )

    def work(producers, begin, end):
        """Every source writes times of [begin, end), out of order, and promises the end."""
        for number, producer in enumerate(producers):
            times = [*range(begin + number, end, 37)][::-1]
            sent.extend(times)
            Stream.produce_step(producer, times)
            producer.advance(end)
            producer.flush()

    job = counted(windowed(read_events(spark, kafka.bootstrap_servers, given), WIDTH), out, checkpoint)

    def reaches(watermark):
        until(lambda: fails(job) or job.watermark == watermark, f"watermark {watermark}", 90)

    try:
        # The clock of the later zombie stands, so that it does not look for its successor.
        two = [source("a", 1, 2, epoch=1, clock=ManualClock(wall=1_000)), source("b", 1, 2)]
        work(two, 1_000, 5_000)
        reaches(5_000)

        five = [*two, *(source(name, 2, 5) for name in "cde")]
        five[0].change_membership(Membership(2, 5))
        work([five[0], *five[2:]], 5_000, 9_000)
        job.processAllAvailable(90)
        assert job.watermark == 5_000  # b has not reported in the new membership
        assert "1 of 5 sources" in job.holders()[0].reason
        five[1].change_membership(Membership(2, 5))
        work([five[1]], 5_000, 9_000)
        reaches(9_000)

        again = source("a", 2, 5, epoch=2)  # restarted; the old one is a zombie from now on
        again.advance(9_000)
        again.flush()
        work([again, *five[1:]], 9_000, 11_000)
        reaches(11_000)
        two[0].advance(50_000)
        two[0].flush()
        job.processAllAvailable(90)  # else its marks may be read behind the next membership, in some partitions

        one = source("z", 3, 1)  # all five are replaced by one of a new name
        work([one], 11_000, 15_000)
        reaches(15_000)
        five[3].advance(60_000)
        five[3].flush()
        job.processAllAvailable(90)
        assert job.watermark == 15_000
        one.end()
        job.awaitTermination(90)
    finally:
        job.stop()
    assert (job.counts["fenced"], job.counts["retired"], job.counts["late"]) == (3, 3, 0)
    stream = Stream({"all": [(sent, 15_000)]})
    assert window_counts(drain(kafka.config, out)[0]) == stream.windows(WIDTH)


def test_a_new_job_warns_of_another_one_that_its_membership_does_not_count(spark, kafka, topic, checkpoint, caplog):
    given, out = topic(1), topic(1)
    Stream.seeded(5, sources=1, steps=2).produce(kafka.config, given, end=False)
    for name in ("one", "two"):
        assert "one source writes to the topic" not in caplog.text
        job = counted(windowed(read_events(spark, kafka.bootstrap_servers, given)), out, checkpoint + name, job=name)
        job.processAllAvailable(90)
        job.stop()
    assert f"job two, topic {out!r}: the membership says that one source writes to the topic, but 'one'" in (
        caplog.text
    )
    assert "If one of them is this job under another name, each result is written again" in caplog.text
