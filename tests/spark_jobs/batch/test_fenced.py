"""Of two instances of one job, the older one fails and stays out of the way of the newer one."""

import pyarrow as pa
import pytest
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.classify import Data
from floodmark.schemas.errors import FencedError, ReplacedCheckpointError
from floodmark.schemas.records import WatermarkRecord
from floodmark.spark_jobs.batch.sinks import ExactlyOnceSink
from floodmark.spark_jobs.progress.published import Published
from support.injection import until_readable

READ = Published({}, 0)


class Frame:
    """The rows of a batch, as the sink asks Spark for them."""

    def __init__(self, value, size):
        self._table = pa.table({"key": pa.nulls(size, pa.binary()), "value": [value] * size})

    def select(self, *_columns):
        return self

    def toArrow(self):  # noqa: N802  # Spark's own name
        return self._table


@pytest.mark.parametrize("size", [1, 100_000], ids=["few rows", "rows that are handed over while the fence is heard"])
def test_the_older_instance_does_not_fence_the_newer_one(kafka, topic, size):
    name = topic(1)
    older, newer = (ExactlyOnceSink(kafka.config, name, "job", "checkpoint") for _ in range(2))
    older.open()
    older.consume(Frame(b"older", 1), 0)
    older.commit(0, [], READ)
    newer.open()
    older.consume(Frame(b"older", size), 1)
    with pytest.raises(FencedError, match="job"):
        older.commit(1, [], READ)
    older.close()
    newer.consume(Frame(b"newer", 1), 1)
    newer.commit(1, [], READ)
    newer.close()
    until_readable(kafka, name)
    records = [record for record in read_until_end(kafka.config, {(name, 0): 0}) if isinstance(record, Data)]
    assert [record.value for record in records] == [b"older", b"newer"]


def test_an_old_checkpoint_is_refused_once_a_newer_one_has_published_and_shuts_nobody_out(kafka, topic):
    name = topic(1)
    old, new = (ExactlyOnceSink(kafka.config, name, "job", checkpoint) for checkpoint in ("old", "new"))
    for sink, batches in ((old, 2), (new, 1)):
        sink.open()
        for batch in range(batches):
            sink.consume(Frame(b"row", 1), batch)
            sink.commit(batch, [(0, mark())], READ)
    until_readable(kafka, name)
    with pytest.raises(ReplacedCheckpointError, match="since batch 1 of"):
        old.open()
    new.consume(Frame(b"row", 1), 1)
    new.commit(1, [(0, mark())], READ)
    new.close()


def mark():
    return WatermarkRecord(source="job", epoch=1, sequence=0, watermark=12, partitions=1, emitted_at=0)
