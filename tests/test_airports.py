"""The trial with hundreds of airports itself, over a few rows: it is right, and it notices what is not."""

import json
from collections import Counter
from contextlib import nullcontext
from datetime import timedelta

import pytest
import typer
from benchmarks import airports as command
from benchmarks.airport_flights import HELD_BACK, deal
from benchmarks.airport_trial import a_pool, amiss, check, compare, expected, results
from floodmark.schemas.checker import Fault
from typer.testing import CliRunner

HOUR = 3_600_000


APP = typer.Typer()
APP.command()(command.main)


@pytest.fixture
def run(kafka, spark, monkeypatch):
    """Run the command on the broker and the Spark that all tests share."""
    monkeypatch.setattr(command, "EmbeddedKafka", lambda _place: nullcontext(kafka))
    monkeypatch.setattr(command, "local_session", lambda *_name, **_settings: spark)

    def invoke(*options):
        done = CliRunner().invoke(APP, [*options, "--json"])
        assert done.stdout, done.stderr or repr(done.exception)
        return done.exit_code, json.loads(done.stdout)

    return invoke


def test_the_data_is_the_same_each_time_and_each_airport_has_rows():
    flights, again, other = deal(20_000, 229, 1), deal(20_000, 229, 1), deal(20_000, 229, 2)
    assert flights.frame.equals(again.frame)
    assert not flights.frame.equals(other.frame)
    assert len(set(flights.airports)) == flights.frame["airport"].nunique() == 229
    assert {"EWR", "JFK", "LGA"} == set(flights.airports[:3])
    assert [json.loads(value)["departed"] for value in flights.json] == flights.frame["departed"].tolist()


def test_no_flight_is_reported_so_late_that_its_promise_is_broken():
    departed = deal(200_000, 50, 1).frame.groupby("airport")["departed"]
    behind = departed.cummax().max() - departed.min().min()
    assert (departed.cummax() - departed.obj).max() < HELD_BACK / timedelta(milliseconds=1) < behind


def test_more_rows_than_a_year_has_go_on_with_the_next():
    frame = deal(7_000_000, 3, 1).frame
    years = frame["departed"] // (364 * 24 * HOUR)
    assert len(frame) == 7_000_000
    assert years.nunique() == 2


def test_more_airports_than_there_are_is_a_usage_error():
    done = CliRunner().invoke(APP, ["--rows", "10", "--airports", "5000"])
    assert done.exit_code == 2
    assert "5000 airports, expected at most 1462" in " ".join(done.stderr.split())


def test_a_row_that_is_missing_doubled_or_other_is_named():
    due = Counter({("EWR", HOUR, 2, 7, 5): 1, ("JFK", HOUR, 1, 3, 3): 1})
    assert compare(due.copy(), due) == ({"results": 2, "missing": 0, "too_many": 0}, [])
    first = "the hour to 1970-01-01T01:00Z, 2 flights, 7 minutes late, at most 5"
    without = Counter({("JFK", HOUR, 1, 3, 3): 1})
    counts = {"results": 1, "missing": 1, "too_many": 0}
    assert compare(without, due) == (counts, [f"1 results missing, the first: EWR, {first}"])
    twice = due + Counter({("EWR", HOUR, 2, 7, 5): 1})
    counts = {"results": 3, "missing": 0, "too_many": 1}
    assert compare(twice, due) == (counts, [f"1 results too many, the first: EWR, {first}"])
    other = without + Counter({("EWR", HOUR, 2, 7, 6): 1})
    assert compare(other, due)[0] == {"results": 2, "missing": 1, "too_many": 1}


def test_late_lost_and_faulty_rows_are_named():
    counts = Counter({"records": 14, "marks": 4})
    assert amiss(counts, 10, 0) == []
    assert amiss(counts, 11, 0) == ["10 rows read of 11"]
    bad = counts + Counter({"late": 1, "lost": 2, "surplus": 3, "unreadable": 4})
    said = ["1 rows late", "4 rows unreadable", "2 rows lost", "3 rows surplus", "5 faults in the topic"]
    assert amiss(bad, 10, 5) == said


def test_a_bound_that_is_too_short_shows_as_late_rows(kafka, topic):
    name, flights = topic(2), deal(2_000, 3, 1)
    with a_pool(kafka.config, name, flights.airports, timedelta(minutes=1)) as writers:
        rows = zip(flights.frame["airport"], flights.frame["departed"], flights.json, strict=True)
        for number, (airport, departed, value) in enumerate(rows):
            if number % 500 == 0:
                writers.flush()
            writers.sources[airport].produce(value, key=flights.airports[airport], event_time=departed)
        writers.end()
    checker, found = check(kafka.config, name, lambda _done: None)
    assert {finding.fault for finding in found} == {Fault.LATE_ROW}
    assert 0 < len(found) < checker.out_of_order < checker.records["data"] == 2_000


@pytest.mark.spark
def test_the_results_of_229_sources_are_those_of_pandas(run):
    status, found = run("--rows", "20000", "--before", "2000")
    assert (status, found["wrong"], found["faults"]) == (0, [], [])
    assert found["results"] == expected(deal(20_000, 229, 2013)).total()
    assert {name: found[name] for name in ("missing", "too_many")} == {"missing": 0, "too_many": 0}
    assert found["job"]["late"] == 0
    assert 0.95 < found["out_of_order"]["in_their_partition"] < 1
    assert {way: one["rows"] for way, one in found["ways"].items()} == {
        "one source": 2_000,
        "a client each": 2_000,
        "a pool": 20_000,
    }
    for way in found["ways"].values():
        assert min(way["rate"], way["processor"], way["threads"]) > 0
    each, pool = (found["ways"][way]["threads"] for way in ("a client each", "a pool"))
    assert each - pool > 229, "the process has threads of other tests, too"


@pytest.mark.spark
def test_a_lost_result_is_a_failure(run, monkeypatch):
    def lossy(config, topic, advance):
        found = results(config, topic, advance)
        found.subtract([next(iter(found))])
        return found

    monkeypatch.setattr(command, "results", lossy)
    status, found = run("--rows", "300", "--airports", "3", "--before", "30")
    assert (status, found["missing"], found["too_many"]) == (1, 1, 0)
    assert "1 results missing, the first: " in found["wrong"][0]
