"""Of two instances of one job, the older one fails and stays out of the way of the newer one.

The newer one finds all that the older one wrote.
"""

from threading import Timer
from unittest.mock import DEFAULT, Mock

import pyarrow as pa
import pytest
from floodmark.producers.clients import admin
from floodmark.producers.clients.transaction import Transaction
from floodmark.producers.readers.replay import read_until_end
from floodmark.producers.strategies.numbering import Identity
from floodmark.schemas.classify import Data
from floodmark.schemas.errors import BrokerUnavailableError, FencedError, ReplacedCheckpointError
from floodmark.schemas.tracker import Tracker
from floodmark.spark_jobs.batch import sinks
from floodmark.spark_jobs.batch.shards import Shards
from floodmark.spark_jobs.batch.sinks import ExactlyOnceSink
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.published import Published
from floodmark.spark_jobs.start.job_output import job_output
from support.injection import open_transaction, until_readable

PROGRESS = Progress(Tracker(["clicks"]), epoch=1)
READ = Published({}, 0)


class Frame:
    """The rows of a batch, as the sink asks Spark for them."""

    def __init__(self, value, size):
        self._table = pa.table({"key": pa.nulls(size, pa.binary()), "value": [value] * size})

    def select(self, *_columns):
        return self

    def toArrow(self):  # noqa: N802  # Spark's own name
        return self._table


def sink_of(kafka, name, checkpoint, may_follow=lambda _: True, shards=None):
    return ExactlyOnceSink(kafka.config, name, Identity("job", 1), checkpoint, may_follow, shards=shards)


def run(sink, frame, batch_id):
    sink.consume(frame)
    sink.commit(frame, batch_id, PROGRESS, READ, [], 1)


@pytest.mark.parametrize("size", [1, 100_000], ids=["few rows", "rows that are handed over while the fence is heard"])
def test_the_older_instance_does_not_fence_the_newer_one(kafka, topic, size):
    name = topic(1)
    older, newer = (sink_of(kafka, name, "checkpoint") for _ in range(2))
    older.open()
    run(older, Frame(b"older", 1), 0)
    newer.open()
    with pytest.raises(FencedError, match="job"):
        run(older, Frame(b"older", size), 1)
    run(newer, Frame(b"newer", 1), 1)
    until_readable(kafka, name)
    records = [record for record in read_until_end(kafka.config, {(name, 0): 0}) if isinstance(record, Data)]
    assert [record.value for record in records] == [b"older", b"newer"]


def test_an_old_checkpoint_is_refused_once_a_newer_one_has_published_and_shuts_nobody_out(kafka, topic):
    name = topic(1)
    old, new, again = (sink_of(kafka, name, checkpoint) for checkpoint in ("old", "new", "old"))
    for sink, batches in ((old, 2), (new, 1)):
        sink.open()
        for batch in range(batches):
            run(sink, Frame(b"row", 1), batch)
    until_readable(kafka, name)
    with pytest.raises(ReplacedCheckpointError, match="since batch 1 of"):
        again.open()
    run(new, Frame(b"row", 1), 1)


def test_a_checkpoint_without_a_batch_follows_only_the_batch_that_it_started_after_and_fences_no_other(kafka, topic):
    name = topic(1)
    old = sink_of(kafka, name, "old")
    old.open()
    run(old, Frame(b"row", 1), 0)
    run(old, Frame(b"row", 1), 1)
    until_readable(kafka, name)
    with pytest.raises(ReplacedCheckpointError, match="since batch 0 of this one"):
        sink_of(kafka, name, "new", lambda newest: newest == ("old", 0)).open()
    run(old, Frame(b"row", 1), 2)
    new = sink_of(kafka, name, "new", lambda newest: newest == ("old", 2))
    new.open()
    run(new, Frame(b"row", 1), 2)


@pytest.mark.parametrize("published", [0, 1])
def test_a_start_reads_what_another_writer_s_open_transaction_hides(kafka, topic, published):
    name = topic(1)
    older, newer = (sink_of(kafka, name, "checkpoint") for _ in range(2))
    older.open()
    for batch in range(published):
        run(older, Frame(b"row", 1), batch)
    other = open_transaction(kafka, name)
    run(older, Frame(b"row", 1), published)
    output = job_output(name, None, None, kafka.config, "job", None)
    assert published or output.last() is None
    Timer(1, other.abort).start()
    if not published:
        output.settle()
        assert output.last().batch == ("checkpoint", 0)
    newer.open()
    run(newer, Frame(b"row", 1), published)
    run(newer, Frame(b"last", 1), published + 1)
    until_readable(kafka, name)
    records = [record for record in read_until_end(kafka.config, {(name, 0): 0}) if isinstance(record, Data)]
    assert [record.value for record in records] == [b"row"] * (published + 1) + [b"last"]


def test_an_old_checkpoint_is_refused_also_if_an_open_transaction_hides_the_newer_one(kafka, topic):
    name = topic(1)
    old, new, again = (sink_of(kafka, name, checkpoint) for checkpoint in ("old", "new", "old"))
    old.open()
    run(old, Frame(b"row", 1), 0)
    new.open()
    other = open_transaction(kafka, name)
    run(new, Frame(b"row", 1), 0)
    Timer(1, other.abort).start()
    with pytest.raises(ReplacedCheckpointError, match="since batch 0 of"):
        again.open()


def test_a_start_does_not_wait_for_the_transactions_of_its_own_shards(kafka, topic, monkeypatch):
    name = topic(1)
    killed, again = (sink_of(kafka, name, "checkpoint", shards=2) for _ in range(2))
    killed.open()
    shard = Shards(kafka.config, "job", name).fence(1)
    shard.begin()
    shard.produce(name, 0, None, b"row")
    assert shard.producer.flush(30) == 0
    monkeypatch.setattr(admin, "LONGEST_TRANSACTION", 5)
    again.open()


def test_a_commit_is_retried_while_kafka_is_away_also_for_a_new_client(kafka, topic, monkeypatch):
    name = topic(1)
    away = BrokerUnavailableError(bootstrap_servers="b", reason="away", seconds=1)
    first = Transaction(kafka.config, "job", name)
    monkeypatch.setattr(first, "commit", Mock(side_effect=away))
    connect = Mock(wraps=Transaction, side_effect=[first, away, DEFAULT])
    monkeypatch.setattr(sinks, "Transaction", connect)
    sink = sink_of(kafka, name, "checkpoint")
    sink.open()
    run(sink, Frame(b"row", 1), 0)
    assert connect.call_count == 3
    until_readable(kafka, name)
    records = [record for record in read_until_end(kafka.config, {(name, 0): 0}) if isinstance(record, Data)]
    assert [record.value for record in records] == [b"row"]
