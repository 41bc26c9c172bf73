"""The example of "Streaming Systems", chapter 3: a session job for each input, and the job of the mean length."""

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from floodmark.producers import create_topics
from floodmark.spark_jobs.examples import session_means as book

pytestmark = pytest.mark.spark

_LIMIT = 240

# By hand: seconds since noon at which two minutes end, the sessions that ended in them, and their mean length.
_MEANS = [(120, 2, 22.5), (240, 2, 84.0), (360, 1, 0.0), (480, 1, 20.0), (600, 2, 15.0)]


def test_sessions_of_two_inputs_and_their_mean_over_restarts_of_each_job(spark, kafka, tmp_path):
    create_topics(kafka.config, book.TOPICS)
    sources = book.producers(kafka.config)
    for since, until in pairwise([0, 240, book.END]):
        book.send(sources, range(since, until))
        *inputs, mean = jobs = book.start(spark, kafka.bootstrap_servers, tmp_path)
        for job in jobs if until < book.END else ():
            job.processAllAvailable(_LIMIT)
            job.stop()
        assert until == book.END or mean.watermark == min(job.lastProgress.output for job in inputs)
    for source in sources.values():
        source.end()
    for job in jobs:
        job.awaitTermination(_LIMIT)
    for platform, scores in book.SCORES.items():
        rows = [(user, book.NOON + timedelta(seconds=scored)) for user, scored, _ in scores]
        batch = book.sessions(spark.createDataFrame(rows, book.SCORE))
        expected = [tuple(row) for row in batch.selectExpr("user", "unix_seconds(at)", "seconds").collect()]
        written = [
            (row["user"], seconds(row), row["seconds"]) for row in book.results(kafka.config, f"{platform}-sessions")
        ]
        assert sorted(written) == sorted(expected)
    found = [
        (seconds(row) - book.NOON.timestamp(), row["sessions"], row["seconds"])
        for row in book.results(kafka.config, "means")
    ]
    assert found == _MEANS
    assert [job.counts["late"] for job in jobs] == [0, 0, 0]


def seconds(row):
    return round(datetime.fromisoformat(row["at"]).timestamp())
