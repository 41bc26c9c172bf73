"""Looks at the marks that the next batch will read, so that it can close its own windows.

Theory of operation
-------------------
At the end of batch n - 1, behind its commit and before Spark's own, the query's thread reads on with a client of its
own and waits, for as long as the settings say, for the marks that decide.  Spark asks Kafka where batch n ends only
after that, so batch n reads all that was seen here.  It must: the handler makes sure of it before anything of n is
durable.

It looks only from close by: while a job catches up, the watermark moves with each batch anyway, and reading on would
cost more than it brings.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from floodmark.producers.clients.consumers import Record, classified, consume, is_end
from floodmark.schemas.classify import Data, Offsets
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.spark_jobs.batch.handler_settings import Settings
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.progress.ahead import Ahead, Preview
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.spark_watermark import spark_watermark
from floodmark.spark_jobs.queries.source_options import most_ahead
from floodmark.spark_jobs.reading.source_spec import SourceSpec

_log = logging.getLogger(__name__)
_SLICE: Final = 0.02
"""Seconds between two looks at whether somebody is in a hurry."""
_SETTLE: Final = 0.01
"""Seconds in which the rest of what was written together arrives."""
_FIXED: Final = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "queued.max.messages.kbytes": 8_192,
}


class Lookahead:
    """The marks ahead of one job."""

    def __init__(self, job: str, specs: Sequence[SourceSpec], settings: Settings, stopping: Stopping) -> None:
        self._job = job
        self._specs = specs
        self._settings = settings
        self._stopping = stopping
        self._preview = Preview({topic: spec.way for spec in specs for topic in spec.topics})
        self._consumers: list[Consumer] = []
        self._assigned: set[tuple[str, int]] = set()
        self._hurried: Final = set[object]()
        most = [most_ahead(spec.connection.source_options()) for spec in specs]
        self._most = min(most) if settings.outlook.possible and settings.lookahead else 0

    @property
    def records(self) -> int:
        """At most so many records stand ahead, as far as they were seen."""
        return self._preview.records

    @contextmanager
    def hurrying(self) -> Iterator[None]:
        """Within the block somebody waits until all is worked off: what is not there yet is not waited for."""
        token = object()
        self._hurried.add(token)
        try:
            yield
        finally:
            self._hurried.remove(token)

    def look(self, progress: Progress, end: Offsets, records: int) -> Ahead | None:
        """Wait for the watermark that decides the next batch.

        Returns:
            A watermark above the job's own, and what it rests on; ``None``: none is known.
        """
        if not self._most or progress.watermark == END_OF_TIME:
            return None
        if records > self._most:
            self._look_away()
            return None
        try:
            self._attend(end)
            self._preview.begin(progress.tracked(), end)
            ahead = self._wait(progress.watermark)
            is_burst = ahead is not None and self._unread(end) > self._most
        except KafkaException as error:
            _log.warning("job %s: marks ahead cannot be read, the next batch runs without them: %s", self._job, error)
            self._look_away()
            return None
        if is_burst:  # the next batch may end before the marks
            self._look_away()
            return None
        return ahead

    def _wait(self, known: int | None) -> Ahead | None:
        now = time.monotonic()
        deadline = now + self._settings.lookahead.total_seconds()
        while True:
            hurried = bool(self._hurried) or self._stopping.is_requested
            for consumer in self._consumers:
                self._read(consumer, 0 if hurried else min(_SLICE, max(0.0, deadline - now)))
            if self._preview.records > self._most:
                self._look_away()
                return None
            now = time.monotonic()
            if hurried or now >= deadline or self._decides(known):
                return self._preview.ahead()

    def _unread(self, end: Offsets) -> int:
        """Return how many records Kafka has behind some offsets, as of the last answers of its brokers."""
        highs = {
            (topic, number): consumer.get_watermark_offsets(TopicPartition(topic, number), cached=True)[1]
            for spec, consumer in zip(self._specs, self._consumers, strict=True)
            for topic, number in self._assigned
            if topic in spec.topics
        }
        return sum(max(0, high - end.get(place, 0)) for place, high in highs.items())

    def _decides(self, known: int | None) -> bool:
        """Tell whether the next batch should begin."""
        outlook, then = self._settings.outlook, self._preview.watermark
        if then is not None and then != known:
            if known is None or outlook.ends is None or then == END_OF_TIME:
                return True
            close = self._settings.windows_close
            return outlook.ends.lie_between(spark_watermark(known, close), spark_watermark(then, close))
        return self._preview.records > 0 and not outlook.patient

    def _read(self, consumer: Consumer, seconds: float) -> None:
        """Take in what comes; waits for the first record, and a moment for those that were written with it."""
        first = consume(consumer, seconds, 1)
        for record in [*first, *consume(consumer, _SETTLE if seconds else 0)] if first else ():
            self._take(record)

    def _take(self, record: Record) -> None:
        error = record.error()
        if error is not None:
            if not (is_end(error) or error.retriable()):
                raise KafkaException(error)
            return
        found = classified(record)
        if isinstance(found, Data):
            self._preview.see((found.topic, found.partition), found.offset)
        else:
            self._preview.add(found)

    def _attend(self, end: Offsets) -> None:
        """Read on from where the last batch has ended, or go on reading."""
        if end.keys() == self._assigned:
            return
        if not self._consumers:
            for spec in self._specs:
                config = {"group.id": "floodmark-lookahead", **spec.connection.config(), **_FIXED}
                self._consumers.append(Consumer(config, logger=_log))
        for spec, consumer in zip(self._specs, self._consumers, strict=True):
            consumer.assign([TopicPartition(*place, at) for place, at in end.items() if place[0] in spec.topics])
        self._assigned = set(end)
        self._preview.clear()

    def _look_away(self) -> None:
        """Read nothing until the job is close by again."""
        if self._assigned:
            self._assigned = set()
            for consumer in self._consumers:
                consumer.unassign()

    def close(self) -> None:
        """Let go of the clients."""
        self._assigned = set()
        while self._consumers:
            with suppress(KafkaException):
                self._consumers.pop().close()
