"""A writer in Java, written from SPEC.md alone, is one that Floodmark's readers trust."""

import json
import shlex

import pytest
from floodmark.producers import WatermarkedConsumer
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.readers.check import checker_of, findings
from floodmark.schemas.classify import Mark
from floodmark.schemas.conformance.__main__ import main
from support.harness import grow, records_by_partition, until

pytestmark = pytest.mark.kafka


def rows(partition, *times, **more):
    """Send a row at each of these times."""
    value = lambda time: json.dumps({"at": time})  # noqa: E731
    return [{"do": "send", "partition": partition, "time": time, "value": value(time), **more} for time in times]


def upto(time):
    return {"do": "watermark", "time": time}


def faults(kafka, topic):
    return [str(each) for each in findings(kafka.config, topic, JsonField("at"), checker_of(kafka.config, topic))]


def released(kafka, topic, count):
    """Return the times that a consumer without Spark hands on, in its order, up to the end."""
    found = []
    with WatermarkedConsumer(kafka.config, [topic], lambda record: json.loads(record.value)["at"]) as consumer:

        def ended():
            found.extend(time for time, _ in consumer.rows(0.1))
            return consumer.ended

        until(ended, "the end", 30)
        assert +consumer.counts == {"data": count}
    return found


def last_marks(kafka, topic):
    """Return each partition's last watermark."""
    kept = records_by_partition(kafka.config, topic).items()
    marks = {number: [each.record for each in found if isinstance(each, Mark)] for number, found in kept}
    return {number: found[-1].watermark for number, found in marks.items()}


def test_it_conforms(command, capsys):
    assert main(["--writer", shlex.join([*command, "floodmark.Writer"])]) == 0, capsys.readouterr().out
    assert "100 of 100 cases passed" in capsys.readouterr().out


def test_what_it_writes_is_sound_and_whole(plain, kafka, topic):
    """Two sources in turn, and what sources do: rows out of order, idleness, a restart, a larger membership."""
    target = topic(2)
    servers = kafka.bootstrap_servers
    first = [*rows(0, 12, 10), *rows(1, 11, key="k"), upto(10), {"do": "idle"}, *rows(0, 19, 17), upto(17)]
    plain("Writer", servers, target, "java-1", 1, 1, lines=first)
    join = {"do": "members", "version": 2, "size": 2}
    plain("Writer", servers, target, "java-1", 2, 1, lines=[join, *rows(1, 25), upto(20), *rows(0, 30), {"do": "end"}])
    # The second source adjusts the time of its rows: what they say themselves is 5, and what counts is in the header.
    later = [{**row, "value": '{"at": 5}'} for row in rows(1, 18, 40, header=True)]
    plain("Writer", servers, target, "java-2", 1, 2, lines=[join, upto(18), *later, upto(40), {"do": "end"}])
    assert faults(kafka, target) == []
    assert released(kafka, target, 9) == sorted([10, 11, 12, 17, 19, 25, 30, 18, 40])
    assert last_marks(kafka, target) == {0: 40, 1: 40}
    lines = plain("Reader", servers, target)
    assert lines[-1]["topic_is"] == "ended"


def test_an_aborted_transaction_promises_nothing(plain, kafka, topic):
    target = topic(2)
    begin, commit, abort = ({"do": what} for what in ("begin", "commit", "abort"))
    script = [
        *(begin, *rows(0, 5, 7), upto(5), commit),
        *(begin, *rows(1, 90), upto(90), abort),
        *(begin, *rows(1, 6), upto(8), commit),
        *(begin, *rows(0, 9), {"do": "end"}, commit),
    ]
    plain("Writer", kafka.bootstrap_servers, target, "java", 1, 1, "java", lines=script)
    assert faults(kafka, target) == []
    assert released(kafka, target, 4) == [5, 6, 7, 9]
    watermarks = [line["watermark"] for line in plain("Reader", kafka.bootstrap_servers, target)]
    assert 90 not in watermarks


def test_a_partition_that_is_added_is_marked_before_its_first_record(plain, kafka, topic):
    target = topic(1)
    plain("Writer", kafka.bootstrap_servers, target, "java", 1, 1, lines=[*rows(0, 3), upto(3)])
    grow(kafka.config, target, 2)
    plain("Writer", kafka.bootstrap_servers, target, "java", 2, 1, lines=[*rows(1, 4), upto(4), {"do": "end"}])
    assert faults(kafka, target) == []
    assert released(kafka, target, 2) == [3, 4]
