"""A job behind sources that guess: `adaptive`, which follows the delays, and a folder of files that grow."""

import random
from collections import Counter
from datetime import timedelta

import pytest
from floodmark.producers import LogFolder, Mark, WatermarkedProducer, adaptive, explicit
from floodmark.schemas import Status
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs import write
from support.counting import WIDTH, read_events, windowed
from support.harness import events, records_by_partition

SECOND = timedelta(seconds=1)
LIMIT = 120


def kept(records):
    """Yield the event times of a partition that are not behind the lower promise of its two sources."""
    promised = {}
    for record in records:
        if isinstance(record, Mark):
            said = record.record
            promised[said.source] = END_OF_TIME if said.status is Status.ENDED else said.watermark
        else:
            time = events.decode(record.value)["at"]
            if len(promised) < 2 or None in promised.values() or time >= min(promised.values()):
                yield time


@pytest.mark.spark
def test_the_slower_of_both_guesses_drives_the_job_and_every_row_is_in_a_window_or_counted(
    spark, kafka, topic, checkpoint, tmp_path
):
    target, chance, sent, found = topic(2), random.Random(7), 0, []  # noqa: S311  # repeatable
    given = {"topic": target, "membership": 2, "on_late": "send", "interval": timedelta(hours=1)}
    web = WatermarkedProducer(kafka.config, source="web", strategy=adaptive(0.9, margin=1, least=SECOND), **given)
    logs = WatermarkedProducer(kafka.config, source="logs", strategy=explicit(), **given)
    folder = LogFolder(tmp_path, lambda line: int(line.split()[0]), quiet=5 * SECOND)
    job = write(
        windowed(read_events(spark, kafka.bootstrap_servers, target, late="drop")),
        writer=lambda frame, _: found.extend(frame.collect()),
        job="guesses",
        checkpoint_location=checkpoint,
    )

    def produce(producer, time):
        user = f"u{time % 5}"
        producer.produce(events.encode({"user": user, "at": time}), event_time=time, key=user)

    guesses = []
    try:
        for number in range(90):
            now = 100_000 + 500 * number
            for _ in range(5):
                produce(web, now - int(chance.expovariate(1 / 1_500)))
            for name in ("a.log", "b.log"):
                with tmp_path.joinpath(name).open("a") as file:
                    file.write(f"{now - chance.randrange(400) - 2_000} {name}\n")
            lines = folder.poll()
            for line in lines:
                produce(logs, line.event_time)
            logs.advance(folder.watermark())
            web.flush()
            logs.flush()
            sent += 5 + len(lines)
            if number % 30 == 29:
                job.processAllAvailable(LIMIT)
                assert job.watermark == min(web.watermark, logs.watermark)
                guesses.append((web.watermark, logs.watermark))
        web.end()
        logs.end()
        job.awaitTermination(LIMIT)
    finally:
        job.stop()
    times = [time for records in records_by_partition(kafka.config, target).values() for time in kept(records)]
    windows = Counter((f"u{time % 5}", time // WIDTH * WIDTH + WIDTH) for time in times)
    assert {(row["user"], round(row["ended"].timestamp() * 1_000)): row["n"] for row in found} == windows
    assert len(found) == len(windows)
    assert 0 < job.counts["late"] == sent - len(times) < sent / 5
    assert all(one != other for one, other in guesses)
