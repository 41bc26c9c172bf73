"""What a batch observed is trusted only where each task stands in it once."""

from floodmark.spark_jobs.reading.observation import Observation


def place(topic, partition, task, count):
    return ((topic << 20) + partition << 20) + task, count


def observed(points):
    """Write the bins as Spark casts them to a string."""
    bins = ", ".join(f"{{{at}, {count:.1f}}}" for at, count in points)
    return Observation.of({"bins": f"[{bins}]"}, ["a", "b"])


def test_the_records_of_each_partition_are_those_of_its_tasks():
    points = [place(0, 3, 0, 5), place(0, 3, 1, 2), place(1, 0, 2, 7)]
    seen = observed(points)
    assert seen.records == {("a", 3): 7, ("b", 0): 7}
    assert seen.total == 14
    assert seen.exact


def test_large_counts_are_read():
    text = "[{1048576, 1.2345678E7}]"  # a double, as Spark writes it
    assert Observation.of({"bins": text}, ["a"]).records == {("a", 1): 12_345_678}


def test_a_task_that_stands_there_twice_shows():
    assert not observed([place(0, 3, 0, 5), place(0, 3, 0, 5)]).exact


def test_more_tasks_than_bins_are_not_trusted():
    """Spark merges the nearest bins then."""
    full = [place(0, number, number, 1) for number in range(4096)]
    assert observed(full[1:]).exact
    assert not observed(full).exact


def test_nothing_observed_is_nothing_read():
    assert Observation.of({}, ["a"]).total == 0
