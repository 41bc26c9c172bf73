"""Marks through MirrorMaker 2, from one Kafka to another: what stays, and what does not."""

from dataclasses import replace

import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer
from confluent_kafka.admin import AdminClient
from floodmark.producers import EmbeddedKafka
from floodmark.producers.embedded.broker import free_port
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.readers.check import checker_of, findings
from floodmark.producers.readers.replay import read_until_end
from floodmark.producers.testing import mark
from floodmark.schemas import Holder, encode_watermark, mark_key
from floodmark.schemas.classify import mark_record
from integration.kafka_programs import running
from support.harness import Stream, drain, record, until

pytestmark = pytest.mark.kafka


def settings(here, there, *topics):
    """Write what schemas/README.md advises, and what one broker needs."""
    port = free_port()
    return f"""\
clusters = here, there
here.bootstrap.servers = {here.bootstrap_servers}
there.bootstrap.servers = {there.bootstrap_servers}
here->there.enabled = true
here->there.topics = {",".join(topics)}
here.consumer.isolation.level = read_committed
there.exactly.once.source.support = enabled
dedicated.mode.enable.internal.rest = true
listeners = http://127.0.0.1:{port}
emit.heartbeats.enabled = false
emit.checkpoints.enabled = false
sync.topic.acls.enabled = false
replication.factor = 1
offset-syncs.topic.replication.factor = 1
offset.storage.replication.factor = 1
offset.storage.partitions = 1
status.storage.replication.factor = 1
status.storage.partitions = 1
config.storage.replication.factor = 1
"""


def stored(kafka, topic, partitions):
    """Read each partition's records in the order of the log."""
    found = {number: [] for number in range(partitions)}
    for found_record in read_until_end(kafka.config, dict.fromkeys([(topic, n) for n in found], OFFSET_BEGINNING)):
        found[found_record.partition].append(found_record)
    return found


def without_places(records):
    return {number: [replace(each, topic="", offset=0) for each in found] for number, found in records.items()}


def test_what_holds_behind_the_mirror(kafka, topic, tmp_path):
    given, jobs = topic(3), topic(1)
    aborted = Producer({**kafka.config, "transactional.id": "aborted"})
    aborted.init_transactions(30)
    aborted.begin_transaction()
    never = mark("source-0", 9**12, epoch=9**13)
    aborted.produce(given, key=mark_key("source-0"), value=encode_watermark(never), partition=0)
    aborted.flush(30)
    aborted.abort_transaction(30)
    Stream.seeded(1, steps=8, per_step=20).produce(kafka.config, given, encode=lambda event: record(event["at"]))
    held = replace(mark("job", 5), holder=Holder(topic=given, partition=1, source="a"))
    key, value, headers = mark_record(held)
    producer = Producer(kafka.config)
    producer.produce(jobs, key=key, value=value, headers=headers)
    assert producer.flush(30) == 0

    properties, log = tmp_path / "mirror.properties", tmp_path / "mirror.log"
    main, modules = "org.apache.kafka.connect.mirror.MirrorMaker", ["connect-mirror"]
    with EmbeddedKafka(tmp_path / "there", heap="256m") as there:
        properties.write_text(settings(kafka, there, given, jobs))
        admin = AdminClient(there.config)
        with running(main, properties, log=log, modules=modules) as process:
            names = {f"here.{given}", f"here.{jobs}"}
            until(
                lambda: process.poll() is not None or names <= set(admin.list_topics(timeout=10).topics),
                f"the mirrored topics (see {log})",
                120,
            )
            drain(there.config, f"here.{given}")
            until(lambda: stored(there, f"here.{jobs}", 1)[0], "the mark of the job")
        before, behind = stored(kafka, given, 3), stored(there, f"here.{given}", 3)
        assert without_places(behind) == without_places(before)
        assert [[each.offset for each in found] for found in behind.values()] != [
            [each.offset for each in found] for found in before.values()
        ]
        values, mirrored = JsonField("at"), f"here.{given}"
        assert list(findings(there.config, mirrored, values, checker_of(there.config, mirrored))) == []
        (job,) = stored(there, f"here.{jobs}", 1)[0]
        assert job.record.holder.topic == given, "a mark names topics as they are called where it was written"
