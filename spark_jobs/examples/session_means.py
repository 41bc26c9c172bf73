"""The example of "Streaming Systems", chapter 3: sessions of mobile and console users, and their mean length.

Each input has a job that finds its sessions.  A third job reads both outputs: its watermark is the minimum of the two.

python -m floodmark.spark_jobs.examples.session_means --folder sessions
"""

import argparse
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from json import dumps, loads
from pathlib import Path
from typing import Any

from floodmark.producers import Data, EmbeddedKafka, WatermarkedConsumer, WatermarkedProducer, create_topics, explicit
from floodmark.spark_jobs import Job, json, local_session, read, write
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention

SCORE = "user STRING, at TIMESTAMP"
SESSION = "user STRING, at TIMESTAMP, seconds BIGINT"
MEAN = "at TIMESTAMP, sessions BIGINT, seconds DOUBLE"
TOPICS = {"mobile": 2, "console": 1, "mobile-sessions": 2, "console-sessions": 1, "means": 1}
NOON, END = datetime(2026, 1, 5, 12, tzinfo=UTC), 660

# User, and in seconds since noon: when the user scored, and when the score is sent.  Phones send late.
Scores = list[tuple[str, int, int]]
SCORES: dict[str, Scores] = {
    "mobile": [
        *[("Ann", 10, 12), ("Ann", 40, 75), ("Ann", 55, 160), ("Ann", 400, 402), ("Ann", 430, 520)],
        *[("Bob", 20, 105), ("Bob", 70, 72), ("Bob", 290, 380)],
    ],
    "console": [
        *[("Cid", 0, 0), ("Cid", 59, 61), ("Cid", 118, 123), ("Cid", 500, 501)],
        *[("Dot", 30, 32), ("Dot", 330, 335), ("Dot", 350, 350)],
    ],
}


def sessions(scores: DataFrame) -> DataFrame:
    """Return the sessions of each user: they end a minute after the last score."""
    found = scores.groupBy("user", F.session_window("at", "1 minute")).agg(F.min("at").alias("first"))
    seconds = "unix_seconds(session_window.end) - unix_seconds(first) - 60 AS seconds"
    return found.selectExpr("user", "session_window.end AS at", seconds)


def means(sessions: DataFrame) -> DataFrame:
    """Return the mean length of all sessions that end within two minutes."""
    mean = F.avg("seconds").alias("seconds")
    found = sessions.groupBy(F.window("at", "2 minutes")).agg(F.count("*").alias("sessions"), mean)
    return found.selectExpr("window.end AS at", "sessions", "seconds")


def start(spark: SparkSession, servers: str, folder: Path) -> list[Job]:
    """Start the three jobs; those that ran before resume from their checkpoints in the folder."""

    def job(query: Callable[[DataFrame], DataFrame], topics: list[str], row: str, topic: str, result: str) -> Job:
        return write(
            query(read(spark, topics=topics, value=json(row), event_time="at", bootstrap_servers=servers)),
            topic=topic,
            value=json(result),
            event_time="at",
            checkpoint_location=str(folder / topic),
        )

    return [
        job(sessions, ["mobile"], SCORE, "mobile-sessions", SESSION),
        job(sessions, ["console"], SCORE, "console-sessions", SESSION),
        job(means, ["mobile-sessions", "console-sessions"], SESSION, "means", MEAN),
    ]


def producers(config: dict[str, Any]) -> dict[str, WatermarkedProducer]:
    """Return the source of each input."""
    return {name: WatermarkedProducer(config, topic=name, source=name, strategy=explicit()) for name in SCORES}


def send(sources: dict[str, WatermarkedProducer], seconds: range) -> None:
    """Send the scores of this time; the watermark is the earliest score that is not sent yet."""
    for platform, source in sources.items():
        for user, scored, sent in SCORES[platform]:
            at = NOON + timedelta(seconds=scored)
            if sent in seconds:
                source.produce(dumps({"user": user, "at": at.isoformat()}).encode(), event_time=at, key=user)
        unsent = [scored for _, scored, sent in SCORES[platform] if sent >= seconds.stop]
        source.advance(NOON + timedelta(seconds=min([seconds.stop, *unsent])))
        source.flush()


def event_time(record: Data) -> int:
    """Return the end of a result, epoch milliseconds."""
    return round(datetime.fromisoformat(loads(record.value or b"")["at"]).timestamp() * 1000)


def results(config: dict[str, Any], topic: str) -> Iterator[dict[str, Any]]:
    """Return the results in a topic, by their time, until it has ended."""
    with WatermarkedConsumer(config, [topic], event_time) as consumer:
        while not consumer.ended:
            for _, record in consumer.rows():
                yield loads(record.value or b"")


def run(kafka: EmbeddedKafka, folder: Path) -> None:
    """Play the eleven minutes in one, and run the jobs until all input has ended."""
    create_topics(kafka.config, TOPICS)
    jobs = start(local_session("sessions"), kafka.bootstrap_servers, folder)
    sources = producers(kafka.config)
    for second in range(0, END, 5):
        send(sources, range(second, second + 5))
        time.sleep(0.5)
    for source in sources.values():
        source.end()
    for job in jobs:
        job.awaitTermination()


def main() -> None:
    """Run, and print the means."""
    parser = argparse.ArgumentParser(description="Find the sessions of users, and their mean length.")
    parser.add_argument("--folder", type=Path, required=True, help="a new folder for Kafka and the state of the jobs")
    folder = parser.parse_args().folder
    if (folder / "kafka").exists():
        parser.error(f"{folder} has a run already: pass a new folder")
    print("Playing eleven minutes in one. Then, for every two minutes: their end, the sessions, the mean length.")
    with EmbeddedKafka(folder / "kafka") as kafka:
        run(kafka, folder)
        for mean in results(kafka.config, "means"):
            print(f"{mean['at']}  sessions {mean['sessions']}, mean length {mean['seconds']:g} s")


if __name__ == "__main__":
    main()
