"""Fixtures: a source of JSON rows, and what reads them."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from floodmark.producers import WatermarkedProducer, explicit
from floodmark.spark_jobs import formats
from support.counting import read_events
from support.json_source import BASE, SCHEMA


class Source(WatermarkedProducer):
    """A source that promises what it is told to."""

    def send(self, *times, key="k"):
        for time in times:
            self.raw({"k": key, "at": datetime.fromtimestamp(time / 1000, UTC).isoformat()}, time)

    def raw(self, value, time=BASE):
        """Write any value, with the event time that the source takes it for."""
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.produce(text, event_time=time)

    def mark(self, watermark):
        self.advance(watermark)
        self.flush()


@pytest.fixture
def source(kafka, topic):
    return Source(kafka.config, topic=topic(1), source="a", strategy=explicit(), interval=timedelta(hours=1))


@pytest.fixture
def rows(spark, kafka, source):
    """Give a function that reads what the source writes: ``rows(late="drop")``."""
    given = partial(read_events, spark, kafka.bootstrap_servers, source.topic)
    return lambda **options: given(**{"value": formats.json(SCHEMA), **options})
