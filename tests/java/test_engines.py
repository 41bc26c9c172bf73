"""The recipes of schemas/README.md for Flink and Kafka Streams run, and hand on what is complete and no more."""

import json
import subprocess

import pytest
from confluent_kafka import OFFSET_BEGINNING
from floodmark.producers.embedded.jars import java
from floodmark.producers.readers.replay import read_until_end
from support.harness import Stream, record, until
from support.processes import end_process

pytestmark = pytest.mark.kafka
WIDTH = 10_000
STREAM = Stream.seeded(1, steps=8, per_step=20)
LAST = min(script[-1][1] for script in STREAM.steps.values())  # the watermark at the end, where no source ends


@pytest.mark.parametrize("end", [True, False])
def test_flink_closes_the_windows_that_are_complete(flink, kafka, topic, end):
    target = topic(3)
    STREAM.produce(kafka.config, target, end=end, encode=lambda event: record(event["at"]))
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util")]
    command = [java(), "-Xmx512m", *opened, "-cp", flink, "floodmark.FlinkMarks", kafka.bootstrap_servers, target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
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
