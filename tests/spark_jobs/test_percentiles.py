"""A job driven by a percentile: earlier results, more late rows, and both are told.

The events are the nine scores of "Streaming Systems" (ch. 2), whose sums in two-minute windows are 14, 18, 4 and 12;
the 9 comes so late that a watermark that does not wait for it emits a first window of 5.
"""

import json as json_
from datetime import timedelta

import pytest
from floodmark.producers import Mark, WatermarkedProducer, percentile
from floodmark.schemas.errors import UsageError
from floodmark.spark_jobs import ReadOptions, WriteOptions, json, read, write
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.harness import records_by_partition

pytestmark = pytest.mark.spark
# (score, minute and second after noon), in the order in which they are seen.
SCORES = [(5, 0, 26), (7, 2, 26), (3, 3, 39), (4, 4, 19), (8, 3, 6), (3, 6, 39), (1, 7, 46), (9, 1, 26), (8, 7, 26)]
MINUTE = 60_000


def run(spark, kafka, topic, checkpoint, percent):
    """Stream the scores one by one; gives sums per window, when each came (after which score), and the batches."""
    target, sums, batches, sent = topic(1), {}, [], [0]

    def keep(frame, _):
        for row in frame.collect():
            sums[row["end"] // MINUTE - 2] = (row["total"], sent[0])

    producer = WatermarkedProducer(
        kafka.config,
        topic=target,
        source="scores",
        strategy=percentile(timedelta(seconds=380), (33, 66, 100)),
        interval=timedelta(hours=1),
        background=False,
    )
    rows = read(
        spark,
        topics=target,
        value=json("score INT, at TIMESTAMP"),
        event_time="at",
        bootstrap_servers=kafka.bootstrap_servers,
        options=ReadOptions(percentile=percent),
    )
    windows = rows.groupBy(F.window("at", "2 minutes")).agg(F.sum("score").alias("total"))
    result = windows.select(F.unix_millis("window.end").alias("end"), "total")
    options = WriteOptions(on_batch=batches.append)
    job = write(result, writer=keep, job="scores", checkpoint_location=checkpoint, options=options)
    try:
        for score, minute, second in SCORES:
            time = minute * 60 + second
            sent[0] += 1
            producer.produce(b'{"score": %d, "at": %d}' % (score, time), event_time=time * 1000)
            producer.flush()
            job.processAllAvailable(60)
        producer.end()
        job.awaitTermination(60)
    finally:
        job.stop()
    return sums, batches, job


def test_all_events_together_give_the_books_sums_and_no_late_row(spark, kafka, topic, checkpoint):
    sums, batches, job = run(spark, kafka, topic, checkpoint, 100)
    assert {start: total for start, (total, _) in sums.items()} == {0: 14, 2: 18, 4: 4, 6: 12}
    assert (job.counts["late"], job.counts["surplus"]) == (0, 0)
    assert all(batch.watermark == batch.promised for batch in batches)


def test_a_third_of_them_gives_results_earlier_and_counts_what_came_too_late(spark, kafka, topic, checkpoint):
    sums, batches, job = run(spark, kafka, topic, checkpoint, 33)
    assert {start: total for start, (total, _) in sums.items()} == {0: 5, 2: 10, 4: 4, 6: 12}
    assert {start: after for start, (_, after) in sums.items()} == {0: 2, 2: 4, 4: 6, 6: 9}, "long before the 9"
    assert job.counts["late"] == 3
    assert job.counts["late"] / len(SCORES) == pytest.approx(1 / 3)
    ahead = [batch.watermark - batch.promised for batch in batches if batch.promised and not batch.ended]
    assert max(ahead) == 380_000, "how much earlier stands beside it"


def test_each_percentile_keeps_its_share_of_the_events(spark, kafka, topic, tmp_path):
    """Of ten events five are in order, three 10 seconds behind, two 100."""
    target, written = topic(1), []
    strategy = percentile(timedelta(seconds=200), (33, 66, 100))
    with WatermarkedProducer(
        kafka.config, topic=target, source="a", strategy=strategy, interval=timedelta(hours=1)
    ) as producer:
        for second in range(1_000, 1_060):
            for behind in (0, 0, 0, 0, 0, 10, 10, 10, 100, 100):
                written.append(second - behind)
                producer.produce(b'{"score": 1, "at": %d}' % written[-1], event_time=written[-1] * 1_000)
                producer.flush()
        producer.end()
    promised, late = {}, {33: [], 66: [], 100: []}
    for record in records_by_partition(kafka.config, target)[0]:
        if isinstance(record, Mark):
            promised = record.record.percentiles or promised
        else:
            for percent, judged in late.items():
                judged.append(json_.loads(record.value)["at"] * 1_000 < promised.get(percent, 0))
    assert {percent: sum(judged[120:]) for percent, judged in late.items()} == {33: 240, 66: 96, 100: 0}, (
        "of the 480 events after the first twelve seconds, in which no delay was known"
    )
    for percent, judged in late.items():
        expected = sum(judged)
        kept = []
        rows = read(
            spark,
            topics=target,
            value=json("score INT, at TIMESTAMP"),
            event_time="at",
            late="drop",
            bootstrap_servers=kafka.bootstrap_servers,
            options=ReadOptions(percentile=percent),
        )
        job = write(
            rows.select(F.unix_millis("at")),
            writer=lambda frame, _, kept=kept: kept.extend(row[0] for row in frame.collect()),
            job=f"p{percent}",
            checkpoint_location=str(tmp_path / str(percent)),
        )
        job.awaitTermination(60)
        assert (job.counts["late"], len(kept)) == (expected, len(written) - expected)


def test_a_percentile_that_is_none_is_an_error():
    with pytest.raises(UsageError, match="1 to 100"):
        ReadOptions(percentile=0)
