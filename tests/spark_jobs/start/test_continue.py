"""A job without its checkpoint goes on behind what its output topic has from it: nothing twice, nothing missing."""

import itertools
import shutil
import time
from datetime import timedelta
from pathlib import Path
from threading import Timer

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]  # public
from floodmark.producers import WatermarkedProducer, explicit
from floodmark.producers.clients.admin import await_transactions, end_offsets
from floodmark.schemas import Membership
from floodmark.schemas.errors import (
    ChangedQueryError,
    ContinueError,
    CorruptSnapshotError,
    ForeignCheckpointError,
    JobFailedError,
    MissingSnapshotError,
    PublishedError,
    RecreatedTopicError,
    ReplacedCheckpointError,
    RetentionError,
    UnsupportedQueryError,
    UsageError,
)
from floodmark.schemas.timestamps import to_datetime
from floodmark.spark_jobs import Start, avro, write
from floodmark.spark_jobs.batch.sinks import ExactlyOnceSink
from floodmark.spark_jobs.internals.checkpoint import Checkpoint
from floodmark.spark_jobs.start import job_output, prepare_checkpoint
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import WIDTH, counted, read_events, windowed
from support.harness import COUNT, Stream, delete_before, drain, records_by_partition, recreate, until, window_counts
from support.injection import open_transaction, until_readable
from support.query_cases import lost_case
from support.trial import differences, run

pytestmark = pytest.mark.spark
AGAIN = Start(published="continue")


@pytest.fixture
def source(kafka, spark):
    """Read a topic of events."""
    return lambda *topics, **options: read_events(spark, kafka.bootstrap_servers, *topics, **options)


@pytest.fixture
def published(kafka, topic, source, checkpoint):
    """Give a stream of which a job has published the first half, that job, and where it reads from and writes to."""
    whole = Stream.seeded(31, sources=2, steps=12)
    halves = [Stream({name: script[part] for name, script in whole.steps.items()}) for part in (slice(6), slice(6, 12))]
    given, out = topic(2), topic(2)
    halves[0].produce(kafka.config, given, end=False)
    job = counted(windowed(source(given)), out, checkpoint)
    job.processAllAvailable()
    job.stop()
    halves[1].produce(kafka.config, given)
    return whole, job, given, out


def assert_exact(kafka, out, whole):
    values = drain(kafka.config, out)[0]
    assert window_counts(values) == whole.windows(WIDTH)
    assert len(values) == len(whole.windows(WIDTH)), "a row was lost or written twice"


def test_it_goes_on_behind_what_is_published_whatever_became_of_the_start(
    kafka, source, checkpoint, published, monkeypatch
):
    whole, job, given, out = published
    place = f"{checkpoint}-new"

    def start():
        rows = source(given, max_offsets_per_trigger=200)
        return counted(windowed(rows), out, place, start=AGAIN)

    with pytest.raises(PublishedError, match="published='continue'") as refused:
        counted(windowed(source(given)), out, place)
    assert refused.value.watermark == job.lastProgress.output

    for owner, name, calls in (
        (prepare_checkpoint, "store", 1),  # it has happened, and nothing after it
        (prepare_checkpoint, "_plan_first", 1),
        (Checkpoint, "begin_at", 1),
        (Checkpoint, "plan", 1),
        (prepare_checkpoint, "_run", 2),
        (Checkpoint, "raise_watermark", 1),
        (prepare_checkpoint, "store", 1),
    ):
        with monkeypatch.context() as patch:
            failing(patch, owner, name, calls)
            with pytest.raises(InterruptedError):
                start()
        Path(place, "offsets").mkdir(exist_ok=True)  # Spark makes the folder before it plans anything
    again = start()
    again.awaitTermination(60)
    assert [again.counts.get(name, 0) for name in ("late", "lost", "surplus", "sequence_gaps")] == [0, 0, 0, 0]
    assert again.counts["accepted"] <= again.counts["marks"]
    with pytest.raises(ReplacedCheckpointError, match="since batch"):
        counted(windowed(source(given)), out, checkpoint)
    assert again.counts["records"] < sum(map(len, records_by_partition(kafka.config, given).values()))
    assert_exact(kafka, out, whole)


@pytest.mark.parametrize("how", [AGAIN, Start(output_at=to_datetime(100_000), published="repeat")])
def test_a_start_that_was_killed_refuses_a_topic_that_was_made_anew_meanwhile(
    kafka, source, checkpoint, published, topic, monkeypatch, how
):
    whole, _, given, out = published
    target, place = (out if how is AGAIN else topic(1)), f"{checkpoint}-new"
    with monkeypatch.context() as patch:
        failing(patch, prepare_checkpoint, "_plan_first", 1)
        with pytest.raises(InterruptedError):
            counted(windowed(source(given)), target, place, start=how)
    recreate(kafka.config, given, 2)
    whole.produce(kafka.config, given)
    with pytest.raises(RecreatedTopicError):
        counted(windowed(source(given)), target, place, start=how)


def test_a_start_that_failed_before_its_first_write_does_not_continue_after_others_have_written(
    kafka, source, checkpoint, published, topic, monkeypatch
):
    """Neither one that has a start point, nor one that was to write all results."""
    whole, _, given, out = published
    other = topic(2)

    def prepared():
        return counted(windowed(source(given)), out, f"{checkpoint}-prepared", start=AGAIN)

    def planned():
        return counted(windowed(source(given)), other, f"{checkpoint}-planned")

    with monkeypatch.context() as patch:
        failing(patch, prepare_checkpoint, "store", 1)
        with pytest.raises(InterruptedError):
            prepared()
    with monkeypatch.context() as patch:
        failing(patch, ExactlyOnceSink, "consume", 1)
        with pytest.raises(JobFailedError):
            planned().awaitTermination(60)
    counted(windowed(source(given)), out, checkpoint).awaitTermination(60)
    counted(windowed(source(given)), other, f"{checkpoint}-other").awaitTermination(60)
    for start, name in ((prepared, out), (planned, other)):
        with pytest.raises(ReplacedCheckpointError, match="since batch 0 of this one"):
            start()
        assert_exact(kafka, name, whole)


@pytest.mark.parametrize("delivery", ["exactly-once", "exactly-once-executors"])
def test_an_older_copy_of_the_checkpoint_is_refused_and_loses_nothing(kafka, source, checkpoint, published, delivery):
    """It would skip its next batches: other batches with these numbers are in the topic."""
    whole, _, given, out = published
    copy, batches = f"{checkpoint}-copy", []

    def start(place, **options):
        return counted(windowed(source(given, max_offsets_per_trigger=200)), out, place, delivery=delivery, **options)

    shutil.copytree(checkpoint, copy)
    newer = start(checkpoint, on_batch=batches.append)
    until(lambda: len(batches) >= 2, "two batches")
    newer.stop()
    with pytest.raises(ReplacedCheckpointError, match="a newer copy of this one, since batch"):
        counted(windowed(source(given)), out, copy, delivery=delivery).awaitTermination(60)
    start(f"{checkpoint}-new", start=AGAIN).awaitTermination(60)
    assert_exact(kafka, out, whole)


def test_a_job_without_state_reads_nothing_again(kafka, topic, source, checkpoint):
    """Neither from its checkpoint nor without it."""
    stream = Stream.seeded(32, sources=1, steps=6)
    thirds = [Stream({name: script[part : part + 2] for name, script in stream.steps.items()}) for part in (0, 2, 4)]
    given, out, read = topic(2), topic(1), []
    for third, place, ends in zip(
        thirds, (checkpoint, checkpoint, f"{checkpoint}-new"), (False, False, True), strict=True
    ):
        third.produce(kafka.config, given, end=ends)
        rows = source(given).selectExpr("user", "at AS ended", "1L AS n")
        job = counted(rows, out, place, start=AGAIN, on_batch=lambda batch: read.append(batch.records))
        job.processAllAvailable(60)
        job.stop()
    records = records_by_partition(kafka.config, given).values()
    assert sum(read) == sum(map(len, records))
    assert len(drain(kafka.config, out)[0]) == stream.size


def test_it_continues_after_what_another_writer_s_open_transaction_hides(
    kafka, source, checkpoint, published, monkeypatch
):
    whole, _, given, out = published
    other, batches = open_transaction(kafka, out), []

    def start(place, **options):
        rows = source(given, max_offsets_per_trigger=200)
        return counted(windowed(rows), out, place, delivery="at-least-once", **options)

    def waits(*arguments):
        Timer(0.2, other.abort).start()
        await_transactions(*arguments)

    first = start(checkpoint, on_batch=batches.append)
    until(lambda: sum(batch.rows for batch in batches), "rows")
    first.stop()
    monkeypatch.setattr(job_output, "await_transactions", waits)
    start(f"{checkpoint}-new", start=AGAIN).awaitTermination(60)
    until_readable(kafka, out)
    assert_exact(kafka, out, whole)


def failing(patch, owner, name, calls):
    """Let a function fail behind its work, in the call of that number."""
    real, left = getattr(owner, name), [calls]

    def fails(*args, **options):
        real(*args, **options)
        left[0] -= 1
        if not left[0]:
            raise InterruptedError(name)

    patch.setattr(owner, name, fails)


def test_a_query_made_up_from_a_seed_goes_on_without_its_checkpoint(spark, kafka, topic, checkpoint):
    trial = lost_case(108)
    assert differences(trial, run(spark, kafka.config, trial, topic, checkpoint)) == [], trial.query.name


def test_an_edited_query_behind_another_job_doubles_nothing(kafka, topic, source, checkpoint, published):
    """The second stage has read what the first has published, and sees no row of it again."""
    whole, _, given, out = published
    last = topic(1)
    second = counted(windowed(read_counts(source, out), 4 * WIDTH), last, f"{checkpoint}-second")
    second.processAllAvailable()
    edited = windowed(source(given).where("user IS NOT NULL"))
    counted(edited, out, f"{checkpoint}-edited", start=AGAIN).awaitTermination(60)
    second.awaitTermination(60)
    assert second.counts["late"] == 0
    expected = {}
    for user, ended in whole.windows(WIDTH):
        key = (user, ended // (4 * WIDTH) * 4 * WIDTH + 4 * WIDTH)
        expected[key] = expected.get(key, 0) + 1
    assert window_counts(drain(kafka.config, last)[0]) == expected


def read_counts(source, topic):
    return source(topic, value=avro(COUNT), event_time="ended").withColumnRenamed("ended", "at")


def test_partitions_that_came_since_are_read_from_their_first_record(kafka, source, checkpoint, published, topic):
    whole, _, given, out = published
    admin = AdminClient(kafka.config)
    admin.create_partitions([NewPartitions(given, 3)])[given].result(15)
    more = Stream({"source-0": [([900_000, 901_000], 950_000)], "source-1": [([900_500], 950_000)]})
    more.produce(kafka.config, given)
    again = counted(windowed(source(given)), out, f"{checkpoint}-new", start=AGAIN)
    again.awaitTermination(60)
    values = drain(kafka.config, out)[0]
    assert window_counts(values) == whole.windows(WIDTH) + more.windows(WIDTH)
    assert len(values) == len(window_counts(values))


def test_what_cannot_be_brought_back_is_refused_before_any_output(kafka, source, checkpoint, published, topic):
    _, _, given, out = published
    before = end_offsets(kafka.config, out)
    place = f"{checkpoint}-new"
    for_ever = source(given).dropDuplicates(["user"]).selectExpr("user", "at AS ended", "1L AS n")
    with pytest.raises(UnsupportedQueryError, match="keeps its state for ever"):
        counted(for_ever, out, place, start=AGAIN)
    narrow = Start(published="continue", largest_window=timedelta(seconds=1))
    with pytest.raises(UsageError, match=r"largest_window is 0:00:01, and the windows .* need 0:00:10"):
        counted(windowed(source(given)), out, place, start=narrow)
    rows = source(given)
    sessions = (
        rows.groupBy("user", F.session_window("at", "5 seconds"))
        .count()
        .selectExpr("user", "session_window.end AS ended", "count AS n")
    )
    with pytest.raises(UsageError, match="give Start\\(largest_window=\\)"):
        counted(sessions, out, place, start=AGAIN)
    delete_before(kafka.config, given, 5)
    with pytest.raises(RetentionError, match="the first offset is 5"):
        counted(windowed(source(given)), out, f"{checkpoint}-other", start=AGAIN)
    assert end_offsets(kafka.config, out) == before


def test_a_job_that_has_ended_cannot_go_on(kafka, topic, source, checkpoint):
    given, out = topic(1), topic(1)
    Stream.seeded(5, sources=1).produce(kafka.config, given)
    counted(windowed(source(given)), out, checkpoint).awaitTermination(60)
    with pytest.raises(ContinueError, match="it has ended there"):
        counted(windowed(source(given)), out, f"{checkpoint}-new", start=AGAIN)
    with pytest.raises(PublishedError, match="and has ended there") as refused:
        counted(windowed(source(given)), out, f"{checkpoint}-new")
    assert str(refused.value).endswith("Use a new output topic")


def test_what_an_error_advises_is_not_refused(kafka, source, checkpoint, topic):
    """Each way out of each error is taken, with the checkpoint_location of the start that was refused."""
    given, out, stream = topic(2), topic(2), Stream.seeded(31, sources=2, steps=6)
    stream.produce(kafka.config, given, end=False)
    places = (f"{checkpoint}-{number}" for number in itertools.count())
    query, repeat = windowed(source(given)), Start(published="repeat")
    moved = windowed(source(given, source_options={"startingOffsets": "latest"}))
    for_ever = source(given).dropDuplicates(["user"]).selectExpr("user", "at AS ended", "1L AS n")

    def refused(kind, *ways, start=Start(), frame=query, target=out, place=None):  # noqa: B008  # frozen
        """Be refused, and take each way: a word of the advice, and a function of the place that it leads to."""
        for word, way in ways:
            at = next(places) if place is None else place
            with pytest.raises(kind) as error:
                counted(frame, target, at, start=start)
            known = "continue", "repeat", "new output topic", "later output_at", "output_at out", "source options"
            advice = str(error.value).replace("published='continue' with", "").replace("cannot continue", "")
            assert [one for one in known if one in advice] == [one for one, _ in ways], error.value
            assert word in advice
            way(at)

    def to(start=Start(), frame=query, target=None):  # noqa: B008  # frozen
        def way(place):
            job = counted(frame, target or topic(1), place, start=start)
            job.processAllAvailable(60)  # or a job that writes again stops before it has a watermark
            job.stop()

        return way

    first = counted(query, out, checkpoint)
    first.processAllAvailable(60)
    first.stop()
    new, again, behind = (
        ("new output topic", to()),
        ("repeat", to(repeat, target=out)),
        ("continue", to(AGAIN, target=out)),
    )
    refused(PublishedError, behind, again, new)
    refused(
        PublishedError, ("repeat", to(repeat, for_ever, out)), ("new output topic", to(frame=for_ever)), frame=for_ever
    )
    refused(UnsupportedQueryError, ("new output topic", to(frame=for_ever)), frame=for_ever, start=AGAIN)
    refused(PublishedError, again, new, frame=moved)
    refused(UsageError, ("source options", to(AGAIN, target=out)), frame=moved, start=AGAIN)
    at = to_datetime(60_000)
    behind_at = to(Start(published="continue", output_at=at), target=out)
    refused(
        UsageError,
        ("continue", lambda _: behind_at(next(places))),
        ("new output topic", lambda _: to(Start(output_at=at))(next(places))),
        start=Start(output_at=at),
        place=checkpoint,
    )
    all_records = "output_at out", to(frame=for_ever, target=(empty := topic(1)))
    refused(UnsupportedQueryError, all_records, frame=for_ever, start=Start(output_at=at), target=empty)

    delete_before(kafka.config, given, 5)
    refused(PublishedError, again, new)
    refused(RetentionError, new, start=AGAIN)
    # So much later that all of the input came before the first window, and before `early`.
    later = to(Start(output_at=to_datetime(time.time_ns() // 1_000_000 + 600_000)), target=(fresh := topic(1)))
    refused(RetentionError, ("later output_at", later), start=Start(output_at=at), target=fresh)

    members = Membership(version=1, size=len(stream.steps))
    for name in stream.steps:
        WatermarkedProducer(kafka.config, topic=given, source=name, strategy=explicit(), membership=members).end()
    counted(query, out, next(places), start=repeat).awaitTermination(60)
    refused(PublishedError, new)
    refused(ContinueError, new, start=AGAIN)


def edited(source, given):
    """Count other rows than the first job."""
    return windowed(source(given).where("user IS NOT NULL"))


def refused_advice(kind, start):
    """Return what an error advises."""
    with pytest.raises(kind) as error:
        start()
    return str(error.value)


def test_another_query_is_told_the_ways_that_are_then_open(kafka, source, checkpoint, published, topic):
    _, _, given, out = published
    query = edited(source, given)
    assert (
        "otherwise, use a new checkpoint_location, with WriteOptions(start=Start(published='continue')) "
        "(not for narrower windows) or" in refused_advice(ChangedQueryError, lambda: counted(query, out, checkpoint))
    )
    counted(query, out, f"{checkpoint}-behind", start=AGAIN).stop()
    counted(query, topic(1), f"{checkpoint}-new").stop()
    for_ever = source(given).dropDuplicates(["user"]).selectExpr("user", "at AS ended", "1L AS n")

    def assert_continues_not(frame, place):
        advice = refused_advice(ChangedQueryError, lambda: counted(frame, out, checkpoint))
        assert "; otherwise, use a new checkpoint_location and a new output topic. If both" in advice
        assert "continue" not in advice
        counted(frame, topic(1), place).stop()

    assert_continues_not(for_ever, f"{checkpoint}-for-ever")
    delete_before(kafka.config, given, 5)
    assert_continues_not(query, f"{checkpoint}-shorter")


def test_where_a_job_may_have_written_nothing_both_errors_advise_to_repeat(kafka, source, checkpoint, topic):
    """One of two sources has not reported, so the first run had no watermark and no result."""
    given, out = topic(1), topic(1)
    missing = Membership(version=1, size=2)
    with WatermarkedProducer(kafka.config, topic=given, source="a", strategy=explicit(), membership=missing) as one:
        one.produce(b'{"user": "u", "at": 60000}', event_time=60_000)
        one.advance(60_000)
    first = counted(windowed(source(given)), out, checkpoint)
    first.processAllAvailable(60)
    first.stop()
    new, repeat = f"{checkpoint}-new", Start(published="repeat")
    advice = refused_advice(PublishedError, lambda: counted(edited(source, given), out, new))
    assert "may have written results or none" in advice
    assert "If it has none, use WriteOptions(start=Start(published='repeat'))" in advice
    advice = refused_advice(ChangedQueryError, lambda: counted(edited(source, given), out, checkpoint))
    assert f"otherwise, use a new checkpoint_location. If topic '{out}' has no results, add WriteOptions(s" in advice
    assert "repeat')); if it has, use a new output topic. If both" in advice
    counted(edited(source, given), out, new, start=repeat).stop()


def test_another_query_with_a_writer_is_told_to_take_a_new_checkpoint_location(kafka, source, checkpoint, topic):
    given = topic(1)
    Stream.seeded(5, sources=1, steps=2).produce(kafka.config, given, end=False)

    def start(frame, place=checkpoint):
        return write(frame, writer=lambda rows, _: rows.count(), job="cell", checkpoint_location=place)

    first = start(windowed(source(given)))
    first.processAllAvailable(60)
    first.stop()
    advice = refused_advice(ChangedQueryError, lambda: start(edited(source, given)))
    assert "change the query back; otherwise, use a new checkpoint_location. If both mean the same" in advice
    start(edited(source, given), f"{checkpoint}-new").stop()
    for snapshot in Path(checkpoint, "floodmark").glob("[0-9]*.json"):
        snapshot.unlink()
        Path(snapshot.parent, f".{snapshot.name}.crc").unlink(missing_ok=True)
    advice = refused_advice(MissingSnapshotError, lambda: start(windowed(source(given))).processAllAvailable(60))
    assert advice.endswith("from the topics; or use a new checkpoint_location")


@pytest.mark.parametrize("damaged", ["query.json", "job.json", "[!.]*"])
def test_lost_and_damaged_files_are_rebuilt_and_no_row_is_written_twice(kafka, source, checkpoint, published, damaged):
    """Also of a batch that the output has, and that Spark has not committed."""
    whole, _, given, out = published
    place = Path(checkpoint)
    _remove(max((place / "commits").glob("[0-9]*"), key=lambda path: int(path.name)))
    for file in (place / "floodmark").glob(damaged):
        _remove(file, "{")
    advice = refused_advice(CorruptSnapshotError, lambda: counted(windowed(source(given)), out, checkpoint))
    assert "; or start with --conf spark.floodmark.rebuild=true" in advice
    for file in (place / "floodmark").glob(damaged):
        _remove(file)
    expected = ForeignCheckpointError if damaged != "query.json" else MissingSnapshotError
    advice = refused_advice(expected, lambda: counted(windowed(source(given)), out, checkpoint))
    assert "start with --conf spark.floodmark.rebuild=true, or WriteOptions(rebuild=True), to rebuild it" in advice
    counted(windowed(source(given)), out, checkpoint, rebuild=True).awaitTermination(60)
    assert_exact(kafka, out, whole)


def _remove(file, text=None):
    """Delete a file, or replace its text."""
    file.unlink()
    Path(file.parent, f".{file.name}.crc").unlink(missing_ok=True)
    if text is not None:
        file.write_text(text)


def test_a_checkpoint_that_lost_its_id_takes_it_from_its_own_batches_alone(source, checkpoint, published):
    _, _, given, out = published
    counted(windowed(source(given)), out, f"{checkpoint}-newer", start=AGAIN).awaitTermination(60)
    _remove(Path(checkpoint, "floodmark", "job.json"))
    with pytest.raises(ContinueError, match=f"is not one of {checkpoint}.*new checkpoint_location and a new output"):
        counted(windowed(source(given)), out, checkpoint, rebuild=True)


def test_a_replaced_checkpoint_is_told_what_works_after_the_newer_run_has_ended(source, checkpoint, published, topic):
    _, _, given, out = published
    newer = f"{checkpoint}-newer"
    counted(windowed(source(given)), out, newer, start=AGAIN).awaitTermination(60)
    advice = refused_advice(ReplacedCheckpointError, lambda: counted(windowed(source(given)), out, checkpoint))
    assert advice.endswith("start the job with the newer one, or use a new checkpoint_location and a new output topic.")
    counted(windowed(source(given)), out, newer).awaitTermination(60)
    counted(windowed(source(given)), topic(1), f"{checkpoint}-new").stop()
