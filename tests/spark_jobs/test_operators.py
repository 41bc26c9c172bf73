"""Every operator of Spark that works on event time, exact to the millisecond: two tables of cases, each on Kafka.

The first table runs with a look-ahead, as jobs do by default, the second one without.  Each case walks the watermark
through T - 1, T and T + 1 of a moment at which results are out, and to a later one.  Each batch is held
against the plain computation of the same rows: what is out, what is not yet, and what the marks say.
"""

import itertools
import random
from collections import Counter
from datetime import timedelta

import pytest
from floodmark.producers import Data, Observer
from floodmark.schemas import END_OF_TIME, Membership, Status
from floodmark.schemas.errors import PromiseBrokenError
from support import operators as ops
from support.harness import until
from support.streams import Log, Put, Say, batches_of, decode, total
from support.trial import Trial, differences, frames, run, start

pytestmark = pytest.mark.spark

_LIMIT = 240


def query(source: ops.Source, *steps: ops.Step) -> ops.Query:
    return ops.Query(source, steps)


AHEAD = [
    query(ops.one, ops.sliding(10_000, 5_000)),
    query(ops.one, ops.session(3_000)),
    query(ops.one, ops.deduplicated),
    query(ops.one, ops.deduplicated_within(1_000)),
    query(ops.one, ops.tumbling(5_000), ops.tumbling(20_000)),
    query(ops.one, ops.session(3_000), ops.tumbling(20_000)),
    query(ops.one, ops.deduplicated, ops.tumbling(10_000), ops.sliding(20_000, 10_000)),
    query(ops.joined("inner", 4_000)),
    query(ops.joined("left", 4_000)),
    query(ops.joined("right", 4_000)),
    query(ops.joined("full", 4_000)),
    query(ops.joined("semi", 4_000)),
    query(ops.joined("right", 4_000), ops.tumbling(10_000)),
    query(ops.joined_windows(10_000)),
    query(ops.union, ops.session(3_000)),
    query(ops.one, ops.floored(1_000), ops.tumbling(10_000)),
    query(ops.one, ops.tumbling(10_000, "earliest")),
]

TABLE = [
    query(ops.one, ops.tumbling(10_000)),
    query(ops.one, ops.session(3_000)),
    query(ops.one, ops.first_and_last(10_000)),
    query(ops.one, ops.past, ops.distinct),
    query(ops.one, ops.pandas_state(10_000)),
    query(ops.one, ops.timers(10_000)),
    query(ops.one, ops.seen_once),
    query(ops.one, ops.viewed(10_000)),
    query(ops.joined("full", 4_000)),
    query(ops.joined("inner", 4_000), ops.tumbling(10_000)),
    query(ops.joined("left", 4_000), ops.tumbling(10_000)),
    query(ops.one, ops.static_join("inner"), ops.tumbling(10_000)),
    query(ops.one, ops.static_join("left")),
    query(
        ops.one,
        ops.exploded,
        ops.udf,
        ops.filtered,
        ops.tumbling(10_000),
        ops.pandas_udf,
        ops.mapped_in_pandas,
    ),
    query(ops.one, ops.pandas_udf, ops.tumbling(10_000), ops.exploded, ops.udf, ops.renumbered),
    query(ops.one, ops.mapped_in_pandas, ops.again, ops.tumbling(10_000)),
    query(ops.one, ops.timers(5_000), ops.again, ops.tumbling(20_000)),
    query(ops.one, ops.tumbling(10_000, "start")),
    query(ops.one, ops.tumbling(10_000, "latest")),
    query(ops.one, ops.session(3_000, "latest")),
    query(ops.one, ops.session(3_000, longer=4_000)),
    query(ops.one, ops.tumbling(5_000), ops.session(3_000)),
]


def rows_of(seed: int, count: int) -> list[tuple[str, int, int]]:
    """Make rows up, some at exactly the ends of windows, some twice."""
    chance = random.Random(seed)  # noqa: S311  # a repeatable stream
    times = [
        chance.choice([chance.randrange(100_000, 130_000), chance.randrange(100, 130) * 1_000]) for _ in range(count)
    ]
    rows = [(chance.choice("abc"), time, chance.randrange(100)) for time in times]
    return [*rows, *chance.sample(rows, 3)]


_FIRST = 90_000
"""The first mark, before all rows."""


def walk(case: ops.Query, closes: int = 1) -> tuple[list[Log], int]:
    """Return logs that step through the moments at which results are out, and how many records each batch reads."""
    base = [rows_of(seed, 14) for seed in range(case.source.inputs)]
    moments = sorted({row.out for row in case.plain(base, closes) if row.out is not None} or {110_000, 120_000})
    chosen = [moments[len(moments) // 3], moments[2 * len(moments) // 3]]
    marks = sorted({chosen[0] + step + case.shift for step in (-1, 0, 1)} | {chosen[1] + case.shift})
    size = len(base[0]) + 2
    logs = []
    for number, rows in enumerate(base):
        entries = [Put("s", row) for row in rows]
        padded = [Say("s", _FIRST), *entries, *[Say("s", "again")] * (size - 1 - len(entries))]
        for before, mark in itertools.pairwise([None, *marks]):
            # A row at exactly the last mark is no late row.
            exact = [] if before is None else [Put("s", ("abc"[number], before, 50))]
            padded += [*exact, *[Say("s", "again")] * (size - 1 - len(exact)), Say("s", mark)]
        logs.append(Log(1, [*padded, Say("s", "end")]))
    return logs, size


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_exact_at_each_watermark(spark, kafka, topic, checkpoint, case):
    logs, size = walk(case)
    trial = Trial(case, logs, size)
    ran = run(spark, kafka.config, trial, topic, checkpoint)
    assert differences(trial, ran) == []
    marks = [entry.what for entry in logs[0].entries if isinstance(entry, Say) and isinstance(entry.what, int)]
    assert {batch.watermark for batch in ran.batches.values()} == {END_OF_TIME, *(mark - case.shift for mark in marks)}


@pytest.mark.parametrize("case", AHEAD, ids=lambda case: case.name)
def test_exact_at_each_watermark_with_a_look_ahead(spark, kafka, topic, checkpoint, case):
    logs, size = walk(case)
    trial = Trial(case, logs, size, live=True)
    ran = run(spark, kafka.config, trial, topic, checkpoint)
    assert differences(trial, ran) == []
    assert ran.looked_ahead > 0


@pytest.mark.parametrize("case", [query(ops.one, ops.timers(10_000)), query(ops.one, ops.filtered)])
def test_a_function_that_is_shown_the_watermark_or_a_job_without_state_never_looks_ahead(
    spark, kafka, topic, checkpoint, case
):
    logs, size = walk(case)
    trial = Trial(case, logs, size, live=True)
    ran = run(spark, kafka.config, trial, topic, checkpoint)
    assert differences(trial, ran) == []
    assert ran.looked_ahead == 0


@pytest.mark.parametrize("case", [query(ops.one, ops.sliding(10_000, 5_000)), query(ops.one, ops.viewed(10_000))])
def test_windows_that_close_at_their_end_are_out_a_mark_earlier(spark, kafka, topic, checkpoint, case):
    logs, size = walk(case, closes=0)
    trial = Trial(case, logs, size, write={"windows_close": "at"})
    assert differences(trial, run(spark, kafka.config, trial, topic, checkpoint)) == []


@pytest.mark.parametrize(
    ("case", "dropped"),
    [
        (query(ops.one, ops.tumbling(50_000)), []),  # its window is still open
        (query(ops.one, ops.tumbling(10_000)), [105_000]),  # that of the other one ends at 120,000
        (query(ops.one, ops.session(3_000)), [105_000]),  # the other one's own session would end later
        (query(ops.one, ops.deduplicated), [105_000, 119_999]),
        (query(ops.one, ops.pandas_state(10_000)), [105_000, 119_999]),
        (query(ops.one, ops.timers(10_000)), [105_000, 119_999]),
        (query(ops.joined("left", 4_000)), [105_000, 119_999]),
    ],
    ids=lambda value: value.name if isinstance(value, ops.Query) else f"{len(value)} dropped",
)
def test_what_an_operator_drops_of_late_rows(spark, kafka, topic, checkpoint, case, dropped):
    """Two rows come behind the mark 120,000, one at exactly that time; all three are a batch behind its effect."""
    again = Say("s", "again")
    late = [Put("s", ("a", 119_999, 4)), Put("s", ("a", 105_000, 8)), Put("s", ("a", 120_000, 16))]
    before = [again, Put("s", ("a", 100_000, 1)), Put("s", ("a", 130_000, 2)), Say("s", 120_000), *[again] * 4]
    log = Log(1, [*before, *late, again, Say("s", "end")])
    other = Log(1, [*[again] * 3, Say("s", 120_000), *[again] * 8, Say("s", "end")])
    logs = [log, other][: case.source.inputs]
    ran = run(spark, kafka.config, Trial(case, logs, 4), topic, checkpoint)
    kept = [row for row in log.rows if row[1] not in dropped]
    assert total(ran.written) == case.results(*[kept, []][: case.source.inputs])
    assert ran.counts["late"] == 2


def test_in_update_mode_the_last_revision_of_a_window_is_its_result(spark, kafka, topic, checkpoint):
    case = query(ops.one, ops.tumbling(10_000))
    logs, size = walk(case)
    trial = Trial(case, logs, size, write={"output_mode": "update"})
    ran = run(spark, kafka.config, trial, topic, checkpoint)
    revised = {}
    for batch in ran.written:
        revised |= {(k, ended): n for k, ended, n in batch.rows}
    results = case.results(*(log.rows for log in logs))
    assert revised == {(k, ended): n for k, ended, n in results}
    assert total(ran.written).total() > len(results), "some windows were revised"


def test_several_jobs_use_one_read(spark, kafka, topic, tmp_path):
    cases = [
        query(ops.one, ops.tumbling(10_000)),
        query(ops.one, ops.session(3_000)),
        query(ops.one, ops.filtered),
    ]
    log, size = walk(cases[0])[0][0], 20
    given, outs = topic(1), [topic(2) for _ in cases]
    log.write(kafka.config, given)
    rows = frames(spark, kafka.bootstrap_servers, [given], size)
    jobs = [start(case.spark(rows), out, str(tmp_path / out)) for case, out in zip(cases, outs, strict=True)]
    for job, case, out in zip(jobs, cases, outs, strict=True):
        job.awaitTermination(_LIMIT)
        assert total(batches_of(kafka.config, out)) == case.results(log.rows)
        assert (job.counts["late"], job.counts["records"] - job.counts["marks"]) == (0, len(log.rows))


def test_two_jobs_write_to_one_topic_and_the_slower_one_holds_it(spark, kafka, topic, tmp_path):
    case, membership, out = query(ops.one, ops.tumbling(10_000)), Membership(version=1, size=2), topic(1)
    logs = [Log(1, [*(Put("s", row) for row in rows_of(seed, 20)), Say("s", 120_000)]) for seed in (1, 2)]
    given = [topic(1) for _ in logs]
    for log, name in zip(logs, given, strict=True):
        log.write(kafka.config, name)
    read = frames(spark, kafka.bootstrap_servers, given, 100)
    first, second = (
        start(case.spark([rows]), out, str(tmp_path / name), job=name, membership=membership)
        for rows, name in zip(read, given, strict=True)
    )
    first.processAllAvailable(_LIMIT)
    second.processAllAvailable(_LIMIT)
    with Observer(kafka.config, [out]) as observer:
        tracker, found = observer.trackers[out], Counter()

        def take_in():
            for record in observer.poll():
                if isinstance(record, Data):
                    assert tracker.watermark is None or decode(record.value)[1] >= tracker.watermark
                    found.update([decode(record.value)])
            return tracker.advance()

        until(lambda: take_in() == 120_000, "the watermark of both")
        Log(1, [Say("s", "end")]).write(kafka.config, given[0], epoch=2)
        first.awaitTermination(_LIMIT)
        take_in()
        assert tracker.watermark == 120_000, "the second job has not ended"
        Log(1, [Say("s", "end")]).write(kafka.config, given[1], epoch=2)
        second.awaitTermination(_LIMIT)
        until(lambda: take_in() == END_OF_TIME, "the end of both")
    assert found == case.results(logs[0].rows) + case.results(logs[1].rows)


def test_a_hold_of_the_user_replaces_that_of_the_query(spark, kafka, topic, checkpoint):
    """Spark's time of a window is its end less a microsecond, so a session of them ends within a millisecond."""
    case = query(ops.one, ops.tumbling(5_000), ops.session(3_000))
    logs, size = walk(case)
    given = topic(1)
    logs[0].write(kafka.config, given)
    rows = frames(spark, kafka.bootstrap_servers, [given], size)
    with pytest.raises(PromiseBrokenError, match="hold="):
        start(case.spark(rows), topic(1), checkpoint, watermark_hold=timedelta(0)).awaitTermination(_LIMIT)


def test_early_stamps_of_sliding_windows_delay_the_next_stage(spark, kafka, topic, tmp_path):
    """When the next stage can close its window [10 s, 20 s): at 20 s, or a whole window later."""
    marks = [Say("s", mark) for mark in (20_000, 20_001, 25_001, 30_000, 30_001)]
    log = Log(1, [Say("s", 10_000), Put("s", ("a", 12_000, 1)), *marks, Say("s", "end")])
    closed, marked = {}, {}
    for stamp in ("end", "start"):
        case = query(ops.one, ops.sliding(10_000, 5_000, stamp))
        trial = Trial(case, [log], 1)
        ran = run(spark, kafka.config, trial, topic, str(tmp_path / stamp))
        assert differences(trial, ran) == []
        closed[stamp] = next(
            ran.batches[number].batch_watermark
            for number, batch in enumerate(ran.written)
            if (batch.marks[0].watermark or 0) > 20_000
        )
        watermarks = [mark.watermark for batch in ran.written for mark in batch.marks if mark.status is Status.ACTIVE]
        marked[stamp] = sorted(set(watermarks) - {None})
    assert closed == {"end": 20_001, "start": 30_001}
    assert marked["end"] == [10_000, 20_000, 20_001, 30_000, 30_001], "no window ends between 25,001 and 30,000"
    assert marked["start"] == [0, 10_000, 15_000, 20_000, 25_000], "the start of the earliest window that is open"


def test_a_chain_of_jobs_over_starts_of_windows_equals_one_computation(spark, kafka, topic, tmp_path):
    """Each job stamps with the start and gives no hold; the second one reads no late row, in batches of any size."""
    cases = [query(ops.one, ops.sliding(10_000, 5_000, "start")), query(ops.one, ops.tumbling(20_000, "earliest"))]
    (log,), size = walk(cases[0])
    topics = [topic(1) for _ in range(3)]
    log.write(kafka.config, topics[0])
    rows = Counter(log.rows)
    for case, given, out in zip(cases, topics, topics[1:], strict=False):
        result = case.spark(frames(spark, kafka.bootstrap_servers, [given], size))
        job = start(result, out, str(tmp_path / out))
        job.awaitTermination(_LIMIT)
        assert job.counts["late"] == 0
        rows = case.results(rows.elements())
        assert total(batches_of(kafka.config, out)) == rows
