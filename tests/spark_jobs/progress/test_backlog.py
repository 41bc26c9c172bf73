from datetime import UTC, datetime, timedelta

from floodmark.spark_jobs.progress import backlog
from floodmark.spark_jobs.progress.backlog import Backlog

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def batch(number, end, latest, rows=1_000, seconds=2):
    """A batch as Spark tells of it, two seconds after the one before."""
    return {
        "timestamp": (BEGAN + timedelta(seconds=2 * number)).isoformat().replace("+00:00", "Z"),
        "numInputRows": rows,
        "durationMs": {"triggerExecution": seconds * 1000},
        "sources": [{"endOffset": {"in": {"0": end, "1": 10}}, "latestOffset": {"in": {"0": latest, "1": 10}}}],
    }


def backlog_of(batches):
    return backlog.backlog_of(batches, sum(batch["numInputRows"] for batch in batches))


def test_it_is_the_way_to_the_ends_at_the_pace_of_the_last_batches():
    found = backlog_of([batch(n, end=1_000 * (n + 1), latest=10_000 + 200 * n) for n in range(3)])
    assert found == Backlog(unread=7_400, read=3_000, read_rate=500, arrival_rate=100)
    assert found.seconds == 18.5


def test_a_job_that_is_slower_than_its_input_has_no_end():
    found = backlog_of([batch(n, end=1_000 * (n + 1), latest=10_000 + 2_000 * n) for n in range(3)])
    assert found.seconds is None
    assert "further behind" in str(found)


def test_the_first_batch_of_a_start_shows_no_pace():
    batches = [batch(0, 1_000, 5_000, seconds=60), batch(1, 2_000, 5_000)]
    first, second = backlog_of(batches[:1]), backlog_of(batches)
    assert first.seconds is None
    assert str(first).endswith("4,000 unread, the second batch will show the pace")
    assert second.read_rate == 500


def test_all_is_read():
    found = backlog_of([batch(0, end=1_000, latest=1_000)])
    assert (found.unread, found.seconds) == (0, 0)
    assert "] 100 %" in str(found)


def test_batches_without_rows_do_not_slow_it_down():
    batches = [batch(0, 1_000, 5_000), batch(1, 1_000, 5_000, rows=0, seconds=60), batch(2, 2_000, 5_000)]
    assert backlog_of(batches).read_rate == 500


def test_waiting_for_the_trigger_counts_while_records_are_unread():
    """Not without any: then the next batch waits for records."""
    behind = [batch(5 * n, end=1_000 * (n + 1), latest=10_000 + 2_000 * n) for n in range(4)]
    assert backlog_of(behind).read_rate == 100
    assert backlog_of(behind).seconds is None
    level = [batch(5 * n, end=1_000 * (n + 1), latest=1_000 * (n + 1)) for n in range(4)]
    assert backlog_of(level).read_rate == 500
    burst = [*level[:3], batch(15, end=103_000, latest=900_000, rows=100_000, seconds=10)]
    assert backlog_of(burst).read_rate == 102_000 / 14


def test_a_topic_that_is_made_anew_does_not_turn_time_back():
    found = backlog_of([batch(0, end=1_000, latest=5_000), batch(1, end=0, latest=10)])
    assert (found.unread, found.arrival_rate) == (10, 0)


def test_without_a_batch_it_is_unknown():
    assert backlog_of([]) is None
    assert backlog_of([{**batch(0, 1, 1), "sources": [{"endOffset": None, "latestOffset": None}]}]) is None


def test_a_batch_that_was_planned_before_a_restart_does_not_tell_how_far_the_topics_reach():
    planned = batch(0, 1_000, 5_000)
    planned["sources"][0]["latestOffset"] = None
    assert backlog_of([planned]) is None
    assert backlog_of([planned, batch(1, 2_000, 5_000)]).unread == 3_000
