"""A store that keeps the job's position with the rows has each row once, whatever becomes of checkpoint and process."""

import signal
import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from floodmark.schemas.errors import ContinueError, CorruptSnapshotError, PublishedError, ReplacedCheckpointError
from floodmark.spark_jobs import Start, WriteOptions, write
from support.counting import WIDTH, fails, read_events, windowed
from support.crashing_job import run as run_crashing
from support.harness import Stream, until
from support.query_cases import lost_case
from support.row_store import count_store
from support.trial import differences, run

pytestmark = pytest.mark.spark
CONTINUE = Start(published="continue")


@pytest.fixture
def file(tmp_path):
    return str(tmp_path / "rows.db")


@pytest.fixture
def start(kafka, spark, checkpoint, file):
    """Start the job, with a checkpoint for each place."""

    def job(topic, place="first", query=windowed, **options):
        rows = read_events(spark, kafka.bootstrap_servers, topic, max_offsets_per_trigger=100)
        given = {"writer": count_store(file), "job": "totals", "checkpoint_location": f"{checkpoint}-{place}"}
        return write(query(rows), **given, options=WriteOptions(lookahead=timedelta(0), **options))

    return job


def edited(rows):
    return windowed(rows.where("user IS NOT NULL"))


def assert_exact(file, stream):
    found = count_store(file).rows
    assert len(found) == len(stream.windows(WIDTH)), "a row was lost or stored twice"
    assert Counter({(user, ended): n for user, ended, n in found}) == stream.windows(WIDTH)


def test_a_new_checkpoint_continues_after_the_stored_rows_and_an_old_one_stores_no_more(
    kafka, spark, topic, start, file
):
    given, stream = topic(2), Stream.seeded(31, sources=2, steps=8)
    stream.produce(kafka.config, given)
    seen, release = [], threading.Event()

    def hold(batch):
        seen.append(batch)
        if len(seen) == 3:
            release.wait(120)

    old = start(given, on_batch=hold)  # it still runs when others continue
    until(lambda: fails(old) or len(seen) == 3, "three batches")
    with pytest.raises(PublishedError, match=r"results to its store, complete .*published='continue'") as refused:
        start(given, "new")
    assert refused.value.watermark == seen[-1].output

    for place, query, batches in (("lost", edited, 2), ("lost again", windowed, 3)):
        ran = []
        job = start(given, place, query, start=CONTINUE, on_batch=ran.append)
        until(lambda job=job, ran=ran, batches=batches: fails(job) or len(ran) >= batches, f"{batches} batches")
        job.stop()
        assert not job.ended
    last = start(given, "last", start=CONTINUE)
    last.awaitTermination(60)
    assert [last.counts[name] for name in ("late", "lost", "surplus")] == [0, 0, 0]

    release.set()
    for refused_at in (lambda: old.awaitTermination(60), lambda: start(given)):
        with pytest.raises(
            ReplacedCheckpointError, match=r"its store from another checkpoint_location, .* since batch 2 of"
        ):
            refused_at()
    assert_exact(file, stream)
    with pytest.raises(ContinueError, match=r"results in its store: it has ended there. Use an empty store"):
        start(given, "after", start=CONTINUE)
    count_store(file).write(spark.createDataFrame([], "user STRING, ended TIMESTAMP, n INT"), "{")
    with pytest.raises(CorruptSnapshotError, match="in the store or table of the results"):
        start(given, "last")
    Path(file).unlink()
    with pytest.raises(ContinueError, match=r"its store: it lacks batch \d+ of this checkpoint"):
        start(given, "last")  # though it has ended, and no batch follows


def test_a_job_that_repeats_stores_all_of_its_results_after_those_before(kafka, topic, start, file):
    given, stream = topic(2), Stream.seeded(33, sources=2, steps=6)
    stream.produce(kafka.config, given)
    first = start(given)
    until(lambda: fails(first) or count_store(file).rows, "some stored rows")
    first.stop()
    before = count_store(file).rows
    again = start(given, "again", start=Start(published="repeat"))
    again.awaitTermination(60)
    assert [again.counts[name] for name in ("late", "lost", "surplus")] == [0, 0, 0]
    found = count_store(file).rows
    assert found[: len(before)] == before
    assert Counter({(user, ended): n for user, ended, n in found[len(before) :]}) == stream.windows(WIDTH)
    assert len(found) - len(before) == len(stream.windows(WIDTH)), "it stored a row twice"
    with pytest.raises(ReplacedCheckpointError, match="an empty store"):
        start(given)


def test_a_query_made_up_from_a_seed_continues_after_the_stored_rows(spark, kafka, topic, checkpoint):
    trial = replace(lost_case(112), stored=True)
    assert differences(trial, run(spark, kafka.config, trial, topic, checkpoint)) == [], trial.query.name


def test_killed_between_store_and_commit_it_stores_no_batch_twice(kafka, topic, checkpoint, start, file):
    given, stream = topic(2), Stream.seeded(22)
    stream.produce(kafka.config, given)
    place = kafka.bootstrap_servers, given, file, f"{checkpoint}-first"
    done = run_crashing(*place, "after the transaction, before the watermark is set", "4", delivery="writer")
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    stored = count_store(file).rows
    assert stored
    start(given).awaitTermination(60)
    assert count_store(file).rows[: len(stored)] == stored
    assert_exact(file, stream)
