"""The example of "Streaming Systems", chapter 3: sessions of mobile and console users, then their mean length.

The two functions are those of the page: the test runs what it shows.
"""

import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from floodmark.producers import WatermarkedProducer, explicit
from floodmark.spark_jobs import ReadOptions, formats, read, write
from support.harness import drain
from support.trial import quick

pytestmark = pytest.mark.spark

_PAGE = Path(__file__).parents[2] / "spark_jobs" / "OPERATORS.md"
_LIMIT = 240
_SCORE = "platform STRING, user STRING, at TIMESTAMP"
_SESSION = "platform STRING, user STRING, ended TIMESTAMP, length LONG"
_MEAN = "ended TIMESTAMP, sessions LONG, mean DOUBLE"

# Seconds since noon at which a user scores; mobile phones tell late, in an order of their own.
_MOBILE = {"Ann": [10, 40, 55, 400, 430], "Bob": [20, 70, 290]}
_CONSOLE = {"Cid": [0, 59, 118, 500], "Dot": [30, 330, 350]}
_NOON = 1_600_000_000_000 // 120_000 * 120_000

# By hand: a session ends a minute after its last score; what follows at exactly its end still belongs to it.
_SESSIONS = {
    ("mobile", "Ann", 115, 45),
    ("mobile", "Ann", 490, 30),
    ("mobile", "Bob", 130, 50),
    ("mobile", "Bob", 350, 0),
    ("console", "Cid", 178, 118),
    ("console", "Cid", 560, 0),
    ("console", "Dot", 90, 0),
    ("console", "Dot", 410, 20),
}
_MEANS = {120: (2, 22.5), 240: (2, 84.0), 360: (1, 0.0), 480: (1, 20.0), 600: (2, 15.0)}


def functions():
    code = re.search(r"```python\n(from pyspark.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL).group(1)
    found = {}
    exec(code, found)  # noqa: S102  # our own page
    return found["sessions"], found["means"]


def test_sessions_of_two_platforms_and_their_mean_length(spark, kafka, topic, tmp_path):
    sessions, means = functions()
    session = quick(spark)
    mobile, console, ended, results = topic(2), topic(1), topic(2), topic(1)

    def given(topics, fields, event_time):
        return read(
            session,
            topics=topics,
            value=formats.json(fields),
            event_time=event_time,
            bootstrap_servers=kafka.bootstrap_servers,
            options=ReadOptions(max_offsets_per_trigger=9),
        )

    def first():
        scores = given([mobile, console], _SCORE, "at")
        return write(
            sessions(scores),
            topic=ended,
            value=formats.json(_SESSION),
            event_time="ended",
            checkpoint_location=str(tmp_path / "first"),
        )

    def second():
        return write(
            means(given(ended, _SESSION, "ended")),
            topic=results,
            value=formats.json(_MEAN),
            event_time="ended",
            checkpoint_location=str(tmp_path / "second"),
        )

    phones, consoles = (
        WatermarkedProducer(kafka.config, topic=name, source=name, strategy=explicit()) for name in (mobile, console)
    )
    play(phones, "mobile", _MOBILE, skew=180, until=240)
    play(consoles, "console", _CONSOLE, skew=5, until=600)
    for job in (first(), second()):  # in the middle: phones are far behind
        job.processAllAvailable(_LIMIT)
        job.stop()
    play(phones, "mobile", _MOBILE, skew=180, since=240, until=900)
    phones.end()
    consoles.end()
    jobs = [first(), second()]
    for job in jobs:
        job.awaitTermination(_LIMIT)
    rows = [json.loads(value) for value in drain(kafka.config, ended)[0]]
    written = Counter((row["platform"], row["user"], seconds(row["ended"]), row["length"] // 1000) for row in rows)
    assert written == Counter(_SESSIONS)
    rows = [json.loads(value) for value in drain(kafka.config, results)[0]]
    assert len(rows) == len(_MEANS)
    assert {seconds(row["ended"]): (row["sessions"], row["mean"] / 1000) for row in rows} == _MEANS
    assert [job.counts["late"] for job in jobs] == [0, 0]


def play(producer, platform, users, *, skew, until, since=0):
    """Send what is due between two moments, in seconds; each score is sent up to ``skew`` after it was made."""
    scores = [(at, user) for user, times in users.items() for at in times]
    due = {score: score[0] + skew * (number % 3) / 2 for number, score in enumerate(scores)}
    now = sorted((score for score in scores if since <= due[score] < until), key=lambda score: due[score])
    later = [at for at, user in scores if due[at, user] >= until]
    for at, user in now:
        time = _NOON + at * 1000
        value = {"platform": platform, "user": user, "at": datetime.fromtimestamp(time / 1000, UTC).isoformat()}
        producer.produce(json.dumps(value).encode(), event_time=time, key=user)
    producer.advance(_NOON + min(later, default=until) * 1000)
    producer.flush()


def seconds(ended):
    return round(datetime.fromisoformat(ended).timestamp() * 1000 - _NOON) // 1000
