"""A source of several logs, each ascending in its own partition: the job follows the slowest, over a restart."""

import json
from collections import Counter
from datetime import UTC, datetime

import pytest
from floodmark.producers import WatermarkedProducer, ascending, per_partition
from floodmark.spark_jobs import formats, read
from support.harness import until
from support.json_source import BASE, LIMIT, SCHEMA, keep, windows

pytestmark = pytest.mark.spark


def test_a_partition_that_runs_far_ahead_makes_no_row_of_the_others_late(spark, kafka, topic, checkpoint):
    name, sent = topic(2), Counter()

    def send(logs, partition, seconds):
        for second in seconds:
            time = BASE + second * 1_000
            row = {"k": "k", "at": datetime.fromtimestamp(time / 1000, UTC).isoformat()}
            logs.produce(json.dumps(row).encode(), event_time=time, partition=partition)
            sent[time // 10_000 * 10_000 + 10_000] += 1
        logs.flush()

    given = {"topic": name, "source": "logs", "strategy": per_partition(ascending())}
    rows = read(
        spark,
        topics=name,
        value=formats.json(SCHEMA),
        event_time="at",
        bootstrap_servers=kafka.bootstrap_servers,
    )
    with WatermarkedProducer(kafka.config, **given) as logs:
        send(logs, 0, range(3_600))
        assert logs.watermark is None, "the other partition has promised nothing"
        send(logs, 1, range(6))
        job, kept = keep(windows(rows), checkpoint)
        send(logs, 1, range(6, 36))
        until(lambda: len(kept) >= 3, "the windows of the slow partition")
        assert logs.watermark == BASE + 35_000
        assert max(end for end, _ in kept) <= BASE + 35_000
    with WatermarkedProducer(kafka.config, **given) as logs:
        send(logs, 1, range(36, 3_600))
        send(logs, 0, range(3_600, 3_700))
        assert logs.late == 0
        logs.end()
    job.awaitTermination(LIMIT)
    assert sorted(kept) == sorted(sent.items())
    assert not job.counts["late"]
    assert not job.counts["lost"]
