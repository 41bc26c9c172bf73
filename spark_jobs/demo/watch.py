"""An observer of the running demo: it reads all three topics, and notes their watermarks by the clock."""

import time
from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import pandas as pd
from floodmark.producers.board.fold import Fold
from floodmark.producers.board.view import Board
from floodmark.producers.clients.clock import Clock
from floodmark.producers.readers.observer import Observer
from floodmark.schemas.classify import Data
from floodmark.schemas.codec import AvroCodec
from floodmark.schemas.timestamps import END_OF_TIME

Line = list[tuple[float, int]]
"""A watermark over processing time: seconds since the start, epoch milliseconds."""


class Watch:
    """Read topics from their beginning.

    Args:
        config: how to reach Kafka.
        codecs: the value codec of each topic.
        clock: the topic and the field whose newest time is the simulated present: ``("flights", "landed")``.
    """

    def __init__(self, config: Mapping[str, Any], codecs: Mapping[str, AvroCodec], clock: tuple[str, str]) -> None:
        self.observer = Observer(config, list(codecs))
        self.lines: dict[str, Line] = {topic: [] for topic in codecs}
        self.present: Line = []
        self.started = 0.0
        """When the sources came to their full pace, seconds since the start."""
        self._codecs = codecs
        self._clock = clock
        self._rows: dict[str, list[dict[str, Any]]] = {topic: [] for topic in codecs}
        self.now = 0
        """The simulated present, epoch milliseconds."""
        self._fold = Fold()
        for topic in codecs:
            self._fold.add(topic, whole=True)
        self._wall = Clock().wall
        self._began = time.monotonic()

    def poll(self) -> None:
        """Read the new records."""
        clock_topic, clock_field = self._clock
        wall = self._wall()
        for record in self.observer.poll():
            self._fold.take(record, wall)
            if isinstance(record, Data) and record.value is not None:
                row = self._codecs[record.topic].decode(record.value)
                self._rows[record.topic].append(row)
                if record.topic == clock_topic:
                    self.now = max(self.now, row[clock_field])
        seconds = time.monotonic() - self._began
        if self.now and (not self.present or self.now > self.present[-1][1]):
            self.present.append((seconds, self.now))
        for topic, tracker in self.observer.trackers.items():
            moved = tracker.advance()
            if moved is not None and moved != END_OF_TIME:
                self.lines[topic].append((seconds, moved))

    def note_start(self) -> None:
        """Note that the sources are about to come to their full pace."""
        self.started = time.monotonic() - self._began

    def rows(self, topic: str) -> pd.DataFrame:
        """Return the data of a topic, in the order it was read."""
        return pd.DataFrame(self._rows[topic])

    def newest(self, topic: str, field: str) -> dict[str, Any] | None:
        """Return the row of a topic with the highest value of a field, if any was read; partitions are read in turn."""
        return max(self._rows[topic], key=itemgetter(field), default=None)

    def board(self) -> Board:
        """Return the board of all topics."""
        return self._fold.board(self._wall())

    def count(self, topic: str) -> int:
        """Return how many data records were read from a topic."""
        return self.observer.counts[topic]["data"]

    def records(self, topic: str) -> int:
        """Return how many records of any kind were read from a topic."""
        return sum(self.observer.counts[topic].values())

    def ended(self, topic: str) -> bool:
        """Return whether all sources of a topic have ended."""
        return self.observer.trackers[topic].ended

    def close(self) -> None:
        """Close the consumer."""
        self.observer.close()
