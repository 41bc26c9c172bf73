"""A join of streams that has lost its checkpoint writes all of its results again with `Start(published="repeat")`."""

from collections import Counter
from types import SimpleNamespace

import pytest
from floodmark.producers import Data, Mark, Observer
from floodmark.producers.clients.admin import end_offsets
from floodmark.schemas.errors import PublishedError
from floodmark.spark_jobs import Start
from floodmark.spark_jobs.batch import resume
from support import operators as ops
from support.counting import fails
from support.harness import until
from support.streams import Log, Put, Say, decode
from support.trial import frames, start

pytestmark = pytest.mark.spark
_STEP = 2_000
_ROWS = [
    [("a", 100_000, 1), ("b", 103_000, 2), ("a", 109_000, 3), ("c", 112_000, 4), ("b", 118_000, 5)],
    [("a", 101_000, 6), ("b", 109_000, 7), ("a", 111_000, 8), ("d", 112_000, 9), ("b", 118_500, 10)],
]


def log(rows):
    """Write the rows in order, with a mark behind every second that has none."""
    entries = [Say("s", rows[0][1])]
    for values in rows:
        entries += [Put("s", values), Say("s", values[1])]
    return Log(1, [*entries, Say("s", 140_000), Say("s", "end")])


@pytest.mark.parametrize("kind", ["full", "semi"])
def test_a_join_of_streams_writes_all_of_its_results_again(spark, kafka, topic, checkpoint, kind, monkeypatch):
    query = ops.Query(ops.joined(kind, 4_000), ())
    inputs, out = [topic(1), topic(1)], topic(1)
    for rows, name in zip(_ROWS, inputs, strict=True):
        log(rows).write(kafka.config, name)

    def job(place, **options):
        result = query.spark(frames(spark, kafka.bootstrap_servers, inputs, 3))
        return start(result, out, f"{checkpoint}-{place}", **options)

    batches = []
    first = job("first", on_batch=batches.append)
    until(lambda: fails(first) or len(batches) > 4, "some batches")
    first.stop()
    assert not first.ended
    with pytest.raises(PublishedError, match="repeat"):
        job("again")
    monkeypatch.setattr(resume, "time", SimpleNamespace(time_ns=lambda: 0))  # the clock of another machine
    again = job("again", start=Start(published="repeat"))
    again.awaitTermination(120)
    assert [again.counts[name] for name in ("late", "lost", "surplus")] == [0, 0, 0]

    runs = runs_of(kafka, out)
    whole = query.results(*_ROWS)
    assert runs[0]
    assert not runs[0] - whole
    assert runs[1] == whole


def runs_of(kafka, name):
    """Return the rows of each run: they stand before the marks of its epoch, and none behind a mark of its own run."""
    runs, read, epochs = [], Counter(), []
    with Observer(kafka.config, [name]) as observer:
        records = []
        end = end_offsets(kafka.config, name)[0]
        until(lambda: records.extend(observer.poll()) or observer.ends.get((name, 0), 0) >= end, "the end")
    promised = None
    for record in records:
        if isinstance(record, Data):
            read[decode(record.value)] += 1
        elif isinstance(record, Mark):
            if record.record.epoch not in epochs:
                epochs.append(record.record.epoch)
                runs.append(Counter())
                promised = None
            assert promised is None or all(time >= promised for _, time, _ in read)
            promised = record.record.watermark
            runs[-1] += read
            read.clear()
    assert epochs == sorted(epochs)
    assert not read
    return runs
