"""What a batch observed is trusted only where each task stands in it once."""

import json

from floodmark.spark_jobs.reading.observation import Observation


def place(topic, partition, task, count):
    return {"x": float(((topic << 20) + partition << 20) + task), "y": float(count)}


def test_the_records_of_each_partition_are_those_of_its_tasks():
    points = [place(0, 3, 0, 5), place(0, 3, 1, 2), place(1, 0, 2, 7)]
    seen = Observation.of({"places": json.dumps(points)}, ["a", "b"])
    assert seen.records == {("a", 3): 7, ("b", 0): 7}
    assert seen.total == 14
    assert seen.exact


def test_a_task_that_stands_there_twice_shows():
    assert not Observation.of({"places": json.dumps([place(0, 3, 0, 5), place(0, 3, 0, 5)])}, ["a"]).exact


def test_more_tasks_than_bins_are_not_trusted():
    """Spark merges the nearest bins then."""
    full = [place(0, number, number, 1) for number in range(4096)]
    assert Observation.of({"places": json.dumps(full[1:])}, ["a"]).exact
    assert not Observation.of({"places": json.dumps(full)}, ["a"]).exact


def test_nothing_observed_is_nothing_read():
    assert Observation.of({}, ["a"]).total == 0
