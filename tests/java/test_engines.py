"""The recipes of schemas/README.md for Flink and Kafka Streams run, and hand on what is complete and no more."""

import json
import subprocess
from collections import Counter

import pytest
from confluent_kafka import OFFSET_BEGINNING
from floodmark.producers.embedded.jars import java
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.readers.check import checker_of, findings
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.classify import Mark
from floodmark.spark_jobs import formats, read, write
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from support.counting import read_events
from support.harness import Stream, drain, read_to_end, record, until
from support.processes import end_process

pytestmark = pytest.mark.kafka
WIDTH = 10_000
STREAM = Stream.seeded(1, steps=8, per_step=20)
LAST = min(script[-1][1] for script in STREAM.steps.values())  # the watermark at the end, where no source ends


def run_flink(classpath, *arguments):
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util")]
    command = [java(), "-Xmx512m", *opened, "-cp", classpath, "floodmark.FlinkMarks", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("end", [True, False])
def test_flink_closes_the_windows_that_are_complete(flink, kafka, topic, end):
    target = topic(3)
    STREAM.produce(kafka.config, target, end=end, encode=lambda event: record(event["at"]))
    lines = run_flink(flink, kafka.bootstrap_servers, target)
    complete = {window: n for window, n in STREAM.windows(WIDTH).items() if end or window[1] <= LAST}
    assert {(line["key"], line["end"]): line["n"] for line in lines} == complete
    assert len(lines) == len(complete)


@pytest.mark.parametrize("end", [True, False])
def test_kafka_streams_releases_the_rows_that_are_complete(streams, kafka, topic, tmp_path, end):
    target, out = topic(3), topic(3)
    STREAM.produce(kafka.config, target, end=end, encode=lambda event: record(event["at"]))
    places = dict.fromkeys([(out, number) for number in range(3)], OFFSET_BEGINNING)
    complete = sorted((time, f"u{time % 5}") for time in STREAM.times if end or time < LAST)
    log, found = tmp_path / "streams.log", []
    command = [
        java(),
        "-Xmx256m",
        "-cp",
        streams,
        "floodmark.StreamsMarks",
        kafka.bootstrap_servers,
        target,
        out,
        str(tmp_path),
    ]

    def released():
        found[:] = [(record.log_time, record.key.decode()) for record in read_until_end(kafka.config, places)]
        return process.poll() is not None or len(found) >= len(complete)

    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            until(released, f"the rows (see {log})", 120)
        finally:
            end_process(process)
    assert sorted(found) == complete, log.read_text()[-3000:]
    for key in {key for _, key in complete}:
        times = [time for time, of in found if of == key]
        assert times == sorted(times)
    assert b'"late"' not in log.read_bytes()


@pytest.mark.spark
def test_a_flink_job_between_two_spark_jobs(flink, spark, kafka, topic, tmp_path):
    """Spark drops a user, Flink counts each user in windows of 10 s, Spark adds up 20 s: as in a batch."""
    given, kept, counted, added = topic(3), topic(2), topic(2), topic(2)
    STREAM.produce(kafka.config, given)
    rows = read_events(spark, kafka.bootstrap_servers, given, max_offsets_per_trigger=60).filter("user != 'u0'")
    stored = {"event_time": "at", "key": "user", "value": formats.json("at TIMESTAMP", unit="ms")}
    write(rows, topic=kept, checkpoint_location=str(tmp_path / "first"), **stored).awaitTermination(120)
    assert run_flink(flink, kafka.bootstrap_servers, kept, counted) == []
    assert list(findings(kafka.config, counted, JsonField("end"), checker_of(kafka.config, counted))) == []
    marks = [mark.record for mark in read_to_end(kafka.config, counted)[0] if isinstance(mark, Mark)]
    assert len({mark.watermark for mark in marks}) > 2
    value = formats.json("key STRING, end TIMESTAMP, n LONG", unit="ms")
    rows = read(spark, topics=counted, value=value, event_time="end", bootstrap_servers=kafka.bootstrap_servers)
    grouped = rows.groupBy("key", F.window("end", "20 seconds")).agg(F.sum("n").alias("n"))
    result = grouped.select("key", F.col("window.end").alias("end"), "n")
    stored = {"event_time": "end", "key": "key", "value": value}
    write(result, topic=added, checkpoint_location=str(tmp_path / "second"), **stored).awaitTermination(120)
    values = [json.loads(value) for value in drain(kafka.config, added)[0]]
    expected = Counter()
    for (user, end), n in STREAM.windows(WIDTH).items():
        if user != "u0":
            expected[user, end // 20_000 * 20_000 + 20_000] += n
    assert {(value["key"], value["end"]): value["n"] for value in values} == expected
    assert len(values) == len(expected)
