"""A batch that closes its own windows: what it must read, what a start takes back, who need not wait."""

import json
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from threading import Event, Lock, Thread
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from floodmark.producers.testing import mark
from floodmark.schemas import Tracker
from floodmark.schemas.classify import Mark
from floodmark.schemas.errors import JobFailedError, LookaheadError, RecreatedTopicError
from floodmark.spark_jobs.batch import lookahead
from floodmark.spark_jobs.batch.handler import BatchHandler
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.lookahead import Lookahead
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.lookahead.marks_ahead import Ahead, MarksAhead
from floodmark.spark_jobs.lookahead.rules import LookaheadRules
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.reading.source_spec import Connection, SourceSpec
from support import operators as ops
from support.counting import fails
from support.harness import until
from support.streams import Log, Put, Say, batches_of, total
from support.trial import frames, start

pytestmark = pytest.mark.spark
_LIMIT = 120
AGAIN = Say("s", "again")
ROWS = [Put("s", ("a", 100_000 + 1_000 * n, n)) for n in range(30)]


@pytest.fixture(scope="module")
def session(spark):
    return spark.newSession()


class Live:
    """A job that looks ahead, and a log that is written entry by entry."""

    def __init__(self, session, kafka, topic, checkpoint, steps, log):
        self.session, self.kafka, self.checkpoint = session, kafka, checkpoint
        self.query = ops.Query(ops.one, steps)
        self.given, self.out, self.log = topic(log.partitions), topic(1), log
        self.feed = log.writing(kafka.config, self.given, 1)
        self.batches = []
        self.job = None
        self.writing = Lock()

    def start(self, *, limit=None, seconds=60, percentile=None, **options):
        rows = frames(self.session, self.kafka.bootstrap_servers, [self.given], limit, percentile)
        given = {"lookahead": timedelta(seconds=seconds), "on_batch": self.batches.append, **options}
        self.job = start(self.query.spark(rows), self.out, self.checkpoint, **given)
        return self.job

    def write(self, entries):
        """Write so many entries, and wait until the job has seen them."""
        written = self.put(entries)
        until(lambda: fails(self.job) or self.seen >= written, "all to be seen", _LIMIT)

    def put(self, entries):
        """Write so many entries; tells how many records stand in the topic."""
        with self.writing:
            return [next(self.feed) for _ in range(entries)][-1]

    def begin(self):
        """Write the first mark, and wait until a batch has read it: nothing but the end of a window decides then."""
        self.write(1)
        until(lambda: fails(self.job) or self.read == 1, "the first mark to be read", _LIMIT)

    def write_rest(self):
        for _ in self.feed:
            pass

    @property
    def read(self):
        return sum(batch.records for batch in self.batches)

    @property
    def seen(self):
        return self.job._handler.lookahead.marks_ahead.records_ahead + self.read  # noqa: SLF001  # no user's business

    def expected(self):
        return self.query.results(self.log.rows)

    def results(self):
        return total(batches_of(self.kafka.config, self.out))


@pytest.fixture
def live(session, kafka, topic, checkpoint):
    made = []

    def make(steps, entries, partitions=1):
        made.append(Live(session, kafka, topic, checkpoint, steps, Log(partitions, entries)))
        return made[-1]

    yield make
    for each in made:
        each.job.stop()


WINDOWS = (ops.tumbling(10_000),)
ENTRIES = [
    Say("s", 100_000),
    *ROWS[:12],
    Say("s", 111_000),
    *ROWS[12:20],
    Say("s", 115_000),
    Say("s", 121_000),
    Say("s", "end"),
]


@pytest.mark.every_spark
def test_a_window_comes_out_with_the_batch_that_reads_its_mark(live):
    run = live(WINDOWS, ENTRIES)
    job = run.start()
    run.begin()
    run.write(13)
    until(lambda: fails(job) or run.read == 14, "the batch", _LIMIT)
    last = run.batches[-1]
    assert (last.batch_watermark, last.watermark, last.rows) == (111_000, 111_000, 1), "rows, mark and window in one"
    run.write(9)
    assert job.watermark == 111_000, "a mark between two ends of windows decides nothing"
    run.write_rest()
    job.awaitTermination(_LIMIT)
    assert run.results() == run.expected()
    assert job.counts["late"] == 0


def test_without_it_the_window_comes_out_a_batch_later(live):
    run = live(WINDOWS, ENTRIES)
    job = run.start(seconds=0)
    run.write_rest()
    job.awaitTermination(_LIMIT)
    known = [None, *(batch.watermark for batch in run.batches)]
    assert [batch.batch_watermark for batch in run.batches] == known[:-1]
    assert run.results() == run.expected()


def test_nobody_waits_for_it(live):
    """A stop and whoever waits until all is worked off break the wait; so does the end."""
    run = live(WINDOWS, ENTRIES)
    job = run.start(seconds=600)
    run.write(13)
    began = time.monotonic()
    job.processAllAvailable(_LIMIT)
    assert run.read == 13
    run.write(1)
    job.stop()
    job = run.start(seconds=600)
    run.write_rest()
    job.awaitTermination(_LIMIT)
    assert time.monotonic() - began < 500
    assert run.results() == run.expected()


LIMIT, WAVE = 40, 60
BURSTS = [
    Say("s", 100_000),
    *ROWS[:12],
    Say("s", 111_000),
    *(Put("s", ("b", 120_000 + n, n), 1) for n in range(WAVE)),
    *ROWS[12:20],
    Say("s", 121_000),
    *(Put("s", ("c", 130_000 + n, n), 1) for n in range(WAVE)),
    Say("s", "end"),
]
"""Marks that end windows, each with a burst behind it in the other partition."""


class Bursts:
    """Writes a burst whenever the job has looked ahead to some watermarks, and Spark has not yet planned the batch."""

    def __init__(self, run, monkeypatch):
        self.run, self.left, look = run, [121_000, 111_000], Lookahead.look
        self.looking = Event()

        def look_before_a_burst(ahead, *arguments):
            self.looking.set()
            found = look(ahead, *arguments)
            self.looking.clear()
            if found is not None and found.watermark in self.left:
                run.put(WAVE)
                self.left.remove(found.watermark)
            return found

        monkeypatch.setattr(lookahead, "most_ahead", lambda _options: 20)
        monkeypatch.setattr(Lookahead, "look", look_before_a_burst)

    def start(self, **options):
        return self.run.start(limit=LIMIT, **options)

    def provoke(self, entries):
        """Write entries whose last mark the job looks ahead to, and wait until the burst behind them is written."""
        number = len(self.left)
        self.run.write(1)
        until(lambda: fails(self.run.job) or self.looking.is_set(), "a look ahead at all but one entry", _LIMIT)
        self.run.put(entries - 1)
        until(lambda: fails(self.run.job) or len(self.left) < number, "the burst", _LIMIT)


@pytest.fixture
def bursts(live, monkeypatch):
    return Bursts(live(WINDOWS, BURSTS, partitions=2), monkeypatch)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_burst_behind_a_look_ahead_restarts_the_query_and_nobody_notices(bursts, delivery):
    """Two of them: each cuts the next batch before the marks that its watermark rests on."""
    run, queries, seen, done = bursts.run, [], set(), Event()
    job = bursts.start(delivery=delivery)
    before, consumers = job.metrics().before, set()

    def watch():
        while not done.wait(0.001):
            seen.add((job.isActive, job.exception()))

    watching = Thread(target=watch, daemon=True)
    watching.start()
    run.put(1)
    until(lambda: fails(job) or run.read == 2, "the first mark to be read", _LIMIT)
    for entries, records in ((13, 2 + 12 + 2 + WAVE), (9, 2 + 12 + 2 + WAVE + 8 + 2 + WAVE)):
        consumers.update(map(id, job._handler.lookahead._consumers))  # noqa: SLF001  # no user's business
        queries.append(job.query)
        bursts.provoke(entries)
        until(lambda records=records: fails(job) or run.read >= records, "all to be read", _LIMIT)
        assert job.runId != queries[-1].runId, "a restart"
        assert job.id == queries[-1].id
    job.processAllAvailable(_LIMIT)
    done.set()
    watching.join(_LIMIT)
    assert seen == {(True, None)}
    run.write_rest()
    job.awaitTermination(_LIMIT)
    assert run.results() == run.expected()
    assert [batch.batch_id for batch in run.batches] == list(range(len(run.batches)))
    cut = [
        (batch.batch_watermark, last.watermark) for last, batch in pairwise(run.batches) if batch.records > LIMIT // 2
    ]
    assert len(cut) >= 2
    assert all(ran == known for ran, known in cut)
    assert (job.counts["late"], job.metrics().before) == (0, before)
    assert [query.exception() for query in queries] == [None, None]
    assert len(consumers) == 1, "one client looks ahead, over all restarts"
    assert job._handler.lookahead._consumers == []  # noqa: SLF001  # no user's business


@pytest.mark.parametrize("method", ["restart", "_start_again"])
def test_a_stop_during_the_restart_stops_the_job(session, bursts, monkeypatch, method):
    """Before the query is stopped for the restart, and before it is started again."""
    run, begun, go_on = bursts.run, Event(), Event()
    owner = Stopping if method == "restart" else BatchHandler
    original = getattr(owner, method)

    def wait(*arguments):
        begun.set()
        assert go_on.wait(_LIMIT)
        original(*arguments)

    monkeypatch.setattr(owner, method, wait)
    job = bursts.start()
    run.put(1)
    until(lambda: fails(job) or run.read == 2, "the first mark to be read", _LIMIT)
    waiting = Thread(target=job.awaitTermination, args=(_LIMIT,), daemon=True)
    waiting.start()
    bursts.provoke(13)
    until(begun.is_set, "the restart", _LIMIT)
    assert (job.isActive, job._handler.is_running) == (True, True)  # noqa: SLF001  # what the end of a program asks
    stopping = Thread(target=job.stop, daemon=True)
    stopping.start()
    until(lambda: job._handler.stopping.is_requested, "the stop")  # noqa: SLF001  # no user's business
    go_on.set()
    for thread in (stopping, waiting):
        thread.join(_LIMIT)
        assert not thread.is_alive()
    assert (job.isActive, job.exception(), run.read) == (False, None, 2)
    assert job.id not in {query.id for query in session.streams.active}
    bursts.left.clear()
    job = bursts.start()
    run.write_rest()
    job.awaitTermination(_LIMIT)
    assert run.results() == run.expected()
    assert job.counts["late"] == 0


def test_a_restart_that_fails_fails_the_job(bursts, monkeypatch):
    def fail(_handler):
        raise ValueError("no session")

    monkeypatch.setattr(BatchHandler, "_start_again", fail)
    run = bursts.run
    job = bursts.start()
    run.put(1)
    until(lambda: fails(job) or run.read == 2, "the first mark to be read", _LIMIT)
    bursts.provoke(13)
    with pytest.raises(JobFailedError, match="ValueError: no session"):
        job.awaitTermination(_LIMIT)
    assert not job.isActive
    monkeypatch.undo()
    run.write_rest()
    run.start(limit=LIMIT).awaitTermination(_LIMIT)
    assert run.results() == run.expected()


def test_a_burst_into_a_topic_that_was_created_again_fails_the_job(bursts, monkeypatch):
    job = bursts.start()
    bursts.run.put(1)
    until(lambda: fails(job) or bursts.run.read == 2, "the first mark to be read", _LIMIT)
    new = {bursts.run.given: ("another", 2)}
    monkeypatch.setattr("floodmark.producers.clients.admin.described", lambda *_, **_more: new)
    bursts.provoke(13)
    with pytest.raises(RecreatedTopicError):
        job.awaitTermination(_LIMIT)


def test_marks_that_do_not_bear_out_what_was_foreseen_are_refused(live, monkeypatch):
    """As where a topic was made anew in between: other records stand at the same offsets."""
    ahead = MarksAhead.ahead
    run = live(WINDOWS, ENTRIES)
    job = run.start()
    run.begin()

    def too_much(marks_ahead):
        found = ahead(marks_ahead)
        return None if found is None or found.watermark < 111_000 else Ahead(130_000, found.positions)

    monkeypatch.setattr(MarksAhead, "ahead", too_much)
    for _ in range(13):
        next(run.feed)
    with pytest.raises(LookaheadError, match="the batch itself read give"):
        job.awaitTermination(_LIMIT)
    monkeypatch.undo()
    run.write_rest()
    run.start().awaitTermination(_LIMIT)
    assert run.results() == run.expected()
    assert run.job.counts["late"] == 0


@pytest.mark.parametrize(
    ("planned", "lost", "percentile"),
    [
        (False, False, None),
        (False, True, 50),
        (True, False, None),
        (True, True, 50),
    ],
)
def test_a_start_with_a_smaller_limit_takes_back_what_was_foreseen(
    live, monkeypatch, checkpoint, planned, lost, percentile
):
    """It stands in Spark's commit; the batch that would use it is not planned, or is planned and reads it all.

    Where the snapshot is lost, and with it what that rests on, the topics tell.
    """
    foreseen, look = Event(), Lookahead.look

    def then_stop(self, *arguments):
        found = look(self, *arguments)
        if found is not None and found.watermark == 111_000:
            self._stopping._requested.set()  # noqa: SLF001  # as if somebody stopped it this very moment
            foreseen.set()
        return found

    monkeypatch.setattr(Lookahead, "look", then_stop)
    run = live(WINDOWS, ENTRIES)
    job = run.start(percentile=percentile)
    run.begin()
    run.write(12)
    next(run.feed)
    until(lambda: fails(job) or foreseen.is_set(), "something foreseen", _LIMIT)
    waits = job._handler.stopping._between.is_set  # noqa: SLF001  # no user's business
    until(lambda: fails(job) or waits(), "the plan of the next batch, which does not begin")
    job.stop()
    monkeypatch.undo()
    place = Path(checkpoint)
    number = max(int(path.name) for path in (place / "commits").iterdir() if path.name.isdigit())
    assert json.loads((place / "commits" / str(number)).read_text().splitlines()[1])["nextBatchWatermarkMs"] == 110_000
    plan = place / "offsets" / str(number + 1)
    assert plan.exists()
    if not planned:  # as if it was killed before that
        plan.unlink()
        plan.with_name(f".{plan.name}.crc").unlink()
    for snapshot in (place / "floodmark").glob("[0-9]*.json") if lost else ():
        snapshot.unlink()
    before = len(run.batches)
    job = run.start(limit=3, rebuild=lost, percentile=percentile)
    run.write_rest()
    job.awaitTermination(_LIMIT)
    assert run.batches[before].batch_watermark == (111_000 if planned and not lost else 100_000)
    assert run.results() == run.expected()
    assert job.counts["late"] == 0


def test_late_rows_are_counted_by_the_watermark_that_spark_drops_them_by(live):
    late = [Put("s", ("b", 105_000 + n, n)) for n in range(4)]
    steps = [[Say("s", 100_000), *ROWS[:12], Say("s", 104_000)], [late[0], Say("s", 111_000)]]
    steps += [[*late[1:3], Say("s", 115_000)], [late[3], *ROWS[16:20], Say("s", "end")]]
    run = live((ops.deduplicated,), [entry for step in steps for entry in step])
    job = run.start()
    read = 0
    for step in steps:
        read += len(step)
        run.write(len(step))
        until(lambda read=read: fails(job) or run.read >= read, "the batch", _LIMIT)
    job.awaitTermination(_LIMIT)
    dropped = sum(
        int(operator["numRowsDroppedByWatermark"])
        for progress in job.query.recentProgress
        for operator in progress["stateOperators"]
    )
    assert (job.counts["late"], run.results().total()) == (dropped, len(run.log.rows) - dropped)
    assert dropped > 0


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        (Settings(lookahead=timedelta(seconds=9), rules=LookaheadRules(possible=False)), "1000000"),
        (Settings(lookahead=timedelta(0), rules=LookaheadRules(possible=True)), "1000000"),
        (Settings(lookahead=timedelta(seconds=9), rules=LookaheadRules(possible=True)), "120"),
    ],
)
def test_what_may_not_look_opens_no_client(settings, limit, monkeypatch):
    """An empty batch is no exception."""
    monkeypatch.setattr(lookahead, "Consumer", None)
    connection = Connection(("t",), "nowhere:1", options={"maxOffsetsPerTrigger": limit})
    spec = SourceSpec("read", connection, event_time=None, decode=None)
    ahead = Lookahead("job", [spec], settings, Stopping(lambda: None))
    assert ahead.look(Progress(Tracker({"t"})), {("t", 0): 0}, 0) is None


@pytest.mark.parametrize(("unread", "looks"), [(20_000, True), (20_001, False)])
def test_it_rests_on_no_mark_in_front_of_a_burst(monkeypatch, unread, looks):
    """It has read the mark, and not yet the records behind it: a batch may end before the mark."""
    client = SimpleNamespace(
        assign=lambda _places: None,
        unassign=lambda: None,
        get_watermark_offsets=lambda _place, cached: (0, 100 + unread) if cached else None,
    )
    monkeypatch.setattr(lookahead, "Consumer", lambda _config, logger: client if logger else None)
    connection = Connection(("t",), "nowhere:1", options={"maxOffsetsPerTrigger": "1000000"})
    spec = SourceSpec("read", connection, event_time=None, decode=None)
    settings = Settings(lookahead=timedelta(seconds=9), rules=LookaheadRules(possible=True))
    ahead = Lookahead("job", [spec], settings, Stopping(lambda: None))
    seen = Mark("t", 0, offset=101, log_time=0, record=mark("a", 90))
    monkeypatch.setattr(Lookahead, "_read", lambda self, *_: self.marks_ahead.add_mark(seen))
    found = ahead.look(Progress(Tracker({"t"})), {("t", 0): 100}, 0)
    assert found == (Ahead(90, {("t", 0): 102}) if looks else None)


def test_a_client_that_cannot_be_made_ends_one_look_and_no_batch(monkeypatch):
    made, client = [], SimpleNamespace(assign=lambda _places: None, unassign=lambda: None)

    def make(_config, logger):
        made.append(logger)
        if len(made) == 2:
            raise KafkaException("no certificate")
        return client

    monkeypatch.setattr(lookahead, "Consumer", make)
    monkeypatch.setattr(Lookahead, "_wait", lambda *_: None)
    connection = Connection(("t",), "nowhere:1", options={"maxOffsetsPerTrigger": "1000000"})
    specs = [SourceSpec(name, connection, event_time=None, decode=None) for name in ("read-0", "read-1")]
    settings = Settings(lookahead=timedelta(seconds=9), rules=LookaheadRules(possible=True))
    ahead = Lookahead("job", specs, settings, Stopping(lambda: None))
    for _ in range(2):
        assert ahead.look(Progress(Tracker({"t"})), {("t", 0): 0}, 0) is None
    assert len(made) == 4


def test_while_it_catches_up_it_does_not_look(live, monkeypatch):
    monkeypatch.setattr(lookahead, "most_ahead", lambda _options: 4)
    run = live(WINDOWS, ENTRIES)
    run.write_rest()
    job = run.start(seconds=600)
    job.awaitTermination(_LIMIT)
    assert [batch.batch_watermark for batch in run.batches][1:] == [batch.watermark for batch in run.batches][:-1]
    assert run.results() == run.expected()


def test_a_function_of_batches_that_raises_leaves_no_client_open(live):
    run, batches = live(WINDOWS, ENTRIES), []

    def fail_later(batch):
        batches.append(batch)
        if len(batches) > 1:
            raise ValueError("no room left")

    job = run.start(on_batch=fail_later, seconds=0.1)
    next(run.feed)
    until(lambda: fails(job) or batches, "a batch, behind which the job looks ahead", _LIMIT)
    run.write_rest()
    with pytest.raises(JobFailedError, match="no room left"):
        job.awaitTermination(_LIMIT)
    assert job._handler.lookahead._consumers == []  # noqa: SLF001  # no user's business


def test_a_broker_that_cannot_be_read_ahead_changes_nothing(live, monkeypatch):
    def fail(*_arguments):
        raise KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))  # noqa: SLF001  # its public name

    monkeypatch.setattr(Lookahead, "_read", fail)
    run = live(WINDOWS, ENTRIES)
    job = run.start()
    run.write_rest()
    job.awaitTermination(_LIMIT)
    assert run.results() == run.expected()


def test_spark_runs_no_batch_for_a_watermark_that_ends_no_window(live):
    run = live(
        WINDOWS,
        [Say("s", 100_000), *ROWS[:5], Say("s", 103_000), Say("s", 106_000), Say("s", 109_000), Say("s", "end")],
    )
    job = run.start(seconds=0)
    job.processAllAvailable(_LIMIT)
    for _ in range(9):
        next(run.feed)
        job.processAllAvailable(_LIMIT)
    assert (job.watermark, run.batches[-1].output) == (109_000, 109_000)
    assert [batch for batch in run.batches if not batch.records and (batch.watermark or 0) > 103_000] == []
    run.write_rest()
    job.awaitTermination(_LIMIT)
    assert run.results() == run.expected()
