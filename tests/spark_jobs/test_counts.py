"""A running job tells which partition lacks rows or marks, or has too many, despite transactions and restarts."""

from dataclasses import replace

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from floodmark.producers import Data, WatermarkedProducer, ascending, create_topics
from floodmark.producers.metrics import PrometheusExporter
from floodmark.producers.readers.replay import read_until_end
from floodmark.producers.testing import mark
from floodmark.schemas import encode_watermark, mark_key
from floodmark.schemas.counts import Mismatch
from floodmark.spark_jobs import WriteOptions, write
from prometheus_client import CollectorRegistry, generate_latest
from support.counting import read_events, windowed
from support.harness import Stream, events, until
from support.injection import until_readable

pytestmark = pytest.mark.spark
COMPACTING = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "500",
}
"""Settings of a topic from which Kafka removes records within seconds."""


@pytest.fixture
def counting(spark, kafka, checkpoint):
    """Start a job that counts what it reads; keeps its batches."""
    batches = []

    def start(topic, **options):
        return write(
            read_events(spark, kafka.bootstrap_servers, topic, **options),
            writer=lambda frame, _: frame.write.format("noop").mode("append").save(),
            job="counting",
            checkpoint_location=checkpoint,
            options=WriteOptions(on_batch=batches.append),
        )

    start.batches = batches
    return start


def send(producer, topic, *log, partition=0):
    """Write rows (event times) and marks."""
    for entry in log:
        if isinstance(entry, int):
            producer.produce(topic, value=events.encode({"user": "u", "at": entry}), partition=partition)
        else:
            value = encode_watermark(entry)
            producer.produce(topic, key=mark_key(entry.source), value=value, partition=partition)


def counting_mark(sequence, records, **more):
    return replace(mark("a", 0, sequence, **more), records=records)


def discrepancies(batches):
    return [
        (one.kind, one.partition, one.after, one.before, one.source, one.records)
        for batch in batches
        for one in batch.discrepancies
    ]


def finish(job):
    try:
        job.processAllAvailable(90)
    finally:
        job.stop()


@pytest.mark.newest_spark
def test_lost_and_doubled_rows_and_missing_marks_are_told_with_their_place_across_a_restart(kafka, topic, counting):
    target = topic(2)
    producer = Producer(kafka.config)
    send(
        producer,
        target,
        counting_mark(0, 0, partitions=2),
        10,
        11,
        counting_mark(1, 3, partitions=2),
        12,
        counting_mark(2, 4, partitions=2),
    )
    send(producer, target, counting_mark(0, 0, partitions=2), 10, 10, counting_mark(1, 1, partitions=2), partition=1)
    producer.flush(30)
    job = counting(target, max_offsets_per_trigger=5)
    finish(job)
    first = discrepancies(counting.batches)
    assert sorted(first) == [(Mismatch.LOST, 0, 0, 3, "a", 1), (Mismatch.SURPLUS, 1, 0, 3, "a", 1)]
    assert (job.counts["lost"], job.counts["surplus"]) == (1, 1)

    send(producer, target, 13, counting_mark(3, 5, partitions=2), counting_mark(5, 5, partitions=2))
    send(producer, target, 14, counting_mark(2, 3, partitions=2), partition=1)
    producer.flush(30)
    job = counting(target)
    finish(job)
    assert discrepancies(counting.batches)[2:] == [
        (Mismatch.GAP, 0, 7, 8, "a", 1),
        (Mismatch.LOST, 1, 3, 5, "a", 1),
    ]
    assert (job.counts["lost"], job.counts["surplus"], job.counts["sequence_gaps"]) == (2, 1, 1)
    metrics = job.metrics()
    assert (metrics.kind, metrics.name, metrics.lost, metrics.surplus) == ("job", "counting", 2, 1)
    assert metrics.watermark_delay_seconds > 1_000_000, "its watermark is of 1970"
    assert metrics.processing_time_delay_seconds > 1_000_000, "its marks are of 1970"
    assert (metrics.state, metrics.watermark, metrics.topic) == ("active", job.watermark, None)
    assert (metrics.before["lost"], metrics.before["surplus"]) == (1, 1), "what the start before has counted"
    assert metrics.before["records"] < metrics.records
    exporter = PrometheusExporter(CollectorRegistry())
    exporter.update(metrics, job.holders())
    shown = generate_latest(exporter.registry).decode()
    assert 'floodmark_lost_rows_total{kind="job",name="counting",topic=""} 1.0' in shown
    assert f'input_topic="{target}",kind="job",name="counting",partition="0",source="a",state="active"' in shown


def test_holes_of_transactions_are_no_loss_and_hide_none(kafka, topic, counting):
    target = topic(1)
    producer = Producer({**kafka.config, "transactional.id": f"writer-of-{target}"})
    producer.init_transactions(60)

    def transact(*log, commit=True):
        producer.begin_transaction()
        send(producer, target, *log)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
        until_readable(kafka, target)

    transact(counting_mark(0, 0), 10, 11, counting_mark(1, 2))
    transact(98, 99, commit=False)
    transact(12, counting_mark(2, 3))
    transact(13, counting_mark(3, 4))
    job = counting(target)
    finish(job)
    assert discrepancies(counting.batches) == []
    transact(14, counting_mark(4, 6))
    job = counting(target)
    finish(job)
    assert [(discord, records) for discord, *_, records in discrepancies(counting.batches)] == [(Mismatch.LOST, 1)]


def test_a_chain_has_every_row(kafka, topic, counting):
    """Several sources over several partitions, read in many batches."""
    target = topic(3)
    Stream.seeded(3, sources=3).produce(kafka.config, target)
    job = counting(target, max_offsets_per_trigger=100)
    job.awaitTermination(90)
    assert discrepancies(counting.batches) == []
    assert len(counting.batches) > 3


def first_frame(rows):
    """Read one frame in Python, of more than fit into the buffers between Spark and Python."""
    rows.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    wide = rows.selectExpr("user", "repeat(user, 1 << 20)").coalesce(1)
    return wide.mapInPandas(lambda frames: [next(frames)[["user"]]], "user STRING")


LIMITS = {
    "within a partition": (lambda rows: rows.limit(2), 2),
    "up to the last row": (lambda rows: rows.limit(100), 20),
    "of some rows": (lambda rows: rows.where("user < 'u1'").limit(1), 1),
    "in one input of two": (lambda rows: rows.limit(2).union(rows.where("user = 'none'")), 2),
    "of no row": (lambda rows: rows.limit(0), 0),
    "of no row, before windows": (lambda rows: windowed(rows.limit(0)), 0),
    "of no row, in one input of two": (lambda rows: rows.limit(0).union(rows.where("user < 'u1'")), 6),
    "in a Python function": (first_frame, 1),
    "behind an operator with state": (lambda rows: rows.dropDuplicates(["user", "at"]).limit(3), 3),
}


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_that_is_full_ends_no_count_and_no_watermark(spark, kafka, topic, checkpoint, name, partitions):
    target, found, (query, size) = topic(partitions), [], LIMITS[name]
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=ascending()) as source:
        for time in range(1, 21):
            value = events.encode({"user": f"u{time % 3}", "at": time})
            source.produce(value, event_time=time, partition=time % partitions)
        source.end()
    rows = query(read_events(spark.newSession(), kafka.bootstrap_servers, target))
    job = write(rows, writer=lambda frame, _: found.extend(frame.collect()), job="j", checkpoint_location=checkpoint)
    job.awaitTermination(90)
    assert (len(found), job.counts["records"] - job.counts["marks"]) == (size, 20)
    assert [job.counts.get(name, 0) for name in ("lost", "surplus", "sequence_gaps")] == [0, 0, 0]


def test_a_compacted_topic_is_told_and_not_judged(kafka, counting, caplog):
    create_topics(kafka.config, {"compacted-input": 1}, {"cleanup.policy": "compact"})
    producer = Producer(kafka.config)
    send(producer, "compacted-input", counting_mark(0, 7))
    producer.flush(30)
    finish(counting("compacted-input"))
    assert discrepancies(counting.batches) == []
    assert caplog.text.count("topic 'compacted-input' is compacted: ") == 1


def settle(config, topic):
    """Let Kafka compact no more, so that a job reads what the test has read."""
    halt = [
        ConfigEntry(f"{least}.compaction.lag.ms", str(2**62), incremental_operation=AlterConfigOpType.SET)
        for least in ("max", "min")
    ]
    resource = ConfigResource("topic", topic, incremental_configs=halt)
    admin = AdminClient(config)
    admin.incremental_alter_configs([resource])[resource].result(30)
    found = []

    def is_settled():
        found.append(sum(1 for _ in read_until_end(config, {(topic, 0): 0})))
        return found[-1:] * 9 == found[-9:]  # a pass that has begun ends within that time

    until(is_settled, "the end of compaction")


def test_a_job_on_a_topic_that_kafka_has_compacted_counts_the_last_rows_and_ends(spark, kafka, checkpoint):
    """Rows, tombstones, marks and markers of transactions have gone from the middle of the log."""
    name, found = "compacted-rows", []
    create_topics(kafka.config, {name: 1}, COMPACTING)
    keys = 5
    with WatermarkedProducer(kafka.config, topic=name, source="a", strategy=ascending()) as source:
        written = 0

        def step():
            """Write on, so that segments roll, and return how many records Kafka still has."""
            nonlocal written
            for _ in range(10):
                written += 1
                key = written % keys
                value = None if key == 0 else events.encode({"user": f"u{key}", "at": written * 1_000})
                source.produce(value, key=str(key), event_time=written * 1_000)
            source.flush()
            return sum(1 for _ in read_until_end(kafka.config, {(name, 0): 0}))

        until(lambda: step() < written / 2, "compaction", 90)
        source.end()
    settle(kafka.config, name)
    kept = [record for record in read_until_end(kafka.config, {(name, 0): 0}) if isinstance(record, Data)]
    rows = [events.decode(record.value) for record in kept if record.value is not None]
    batches = []
    job = write(
        windowed(read_events(spark, kafka.bootstrap_servers, name, max_offsets_per_trigger=written // 3)),
        writer=lambda frame, _: found.extend(frame.collect()),
        job="compacted",
        checkpoint_location=checkpoint,
        options=WriteOptions(on_batch=batches.append),
    )
    job.awaitTermination(90)
    assert sum(row.n for row in found) == len(rows) < written
    assert job.counts["tombstones"] == len(kept) - len(rows)
    assert [job.counts.get(name, 0) for name in ("late", "lost", "surplus", "sequence_gaps")] == [0, 0, 0, 0]
    assert discrepancies(batches) == []


def test_a_topic_whose_beginning_is_gone_is_judged_from_there(kafka, topic, counting):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="a", strategy=ascending()) as source:
        for time in range(20):
            source.produce(events.encode({"user": "u", "at": time}), event_time=time)
        source.flush()
        admin = AdminClient(kafka.config)
        for future in admin.delete_records([TopicPartition(target, 0, 9)]).values():
            future.result(30)
        job = counting(target)
        job.processAllAvailable(90)
        source.produce(events.encode({"user": "u", "at": 30}), event_time=30)
        source.end()
        job.awaitTermination(90)
    assert discrepancies(counting.batches) == []
