"""A job that writes Iceberg and Delta tables; ``test_tables.py`` runs this file in a process of its own.

The connectors must be in the JVM of Spark from its start.
"""

from datetime import timedelta

import pytest
from floodmark.schemas import END_OF_TIME
from floodmark.spark_jobs import WriteOptions, delta, iceberg, write
from support.counting import WIDTH, read_events, windowed
from support.harness import Stream
from support.lake import CATALOG, counts_in, lake_session, marks_of, opened, rows_of

pytestmark = pytest.mark.spark
EACH = timedelta(0)
KINDS = pytest.mark.parametrize("kind", ["iceberg", "delta"])


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def spark(folder):
    session = lake_session(folder)
    yield session
    session.stop()


@pytest.fixture
def table(folder, request):
    """Name a new table, as ``table(kind, commit_every=...)``."""
    name = f"t{abs(hash(request.node.name))}"

    def new(kind, **settings):
        make, named = (iceberg, f"{CATALOG}.db.{name}") if kind == "iceberg" else (delta, str(folder / name))
        return make(named, **{"commit_every": EACH, **settings})

    new.open = lambda kind: opened(kind, folder, name)
    return new


@pytest.fixture
def start(kafka, spark, checkpoint):
    """Start the job."""

    def job(topic, table, query=windowed, place="", *, per_batch=60, output_mode="append", **options):
        rows = read_events(spark, kafka.bootstrap_servers, topic, max_offsets_per_trigger=per_batch)
        return write(
            query(rows),
            table=table,
            event_time="ended",
            job="totals",
            checkpoint_location=checkpoint + place,
            output_mode=output_mode,
            options=WriteOptions(lookahead=timedelta(0), **options),
        )

    return job


def assert_true_marks(marks, stream):
    """Each mark is below the rows that come after it: the last one has them all."""
    watermarks = [mark.watermark for mark in marks if mark.watermark is not None]
    assert watermarks == sorted(watermarks)
    assert watermarks[-1] == END_OF_TIME


@KINDS
def test_a_table_has_each_row_once_and_its_watermark(kafka, topic, table, start, kind):
    given, stream = topic(2), Stream.seeded(31, sources=2, steps=6)
    stream.produce(kafka.config, given)
    start(given, table(kind)).awaitTermination(120)
    found = table.open(kind)
    assert counts_in(found) == stream.windows(WIDTH)
    assert len(rows_of(found)) == len(stream.windows(WIDTH))
    marks = marks_of(found)
    assert len(marks) > 2
    assert_true_marks(marks, stream)
