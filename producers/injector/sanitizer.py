"""Make records of the input acceptable to the target, and report the first problem of each partition."""

import logging
import math
from collections import Counter
from typing import Final

from floodmark.producers.clients.consumers import UNREADABLE_HEADERS, Record
from floodmark.producers.event_times.formats import NO_LOG_TIME, LogTime
from floodmark.producers.event_times.injection import Injection
from floodmark.schemas.classify import Headers, Place
from floodmark.schemas.errors.base import printable
from floodmark.schemas.records import TIME_HEADER, is_own_header
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME

_log = logging.getLogger(__name__)
_MARGIN: Final = 10_000  # milliseconds that the broker's clock may be off


class Sanitizer:
    """Change what the target would reject or readers would misread; count each change in ``counts``."""

    def __init__(self, injection: Injection, tolerances: tuple[int | None, int | None], counts: Counter[str]) -> None:
        self._injection, self._counts = injection, counts
        self._behind, self._ahead = tolerances
        self._named: set[tuple[int, bool]] = set()
        self.first_trouble: str | None = None  # the place of the first record with a problem, and why

    def report(self, record: Record, why: str, *, dropped: bool = False) -> None:
        """Keep the first problem, and log the first of each partition, and the first that drops a record."""
        number = record.partition()
        source, place = self._injection.source, Place(record.topic(), number, record.offset())
        told = f"{place}: {printable(why[:400])}"
        self.first_trouble = self.first_trouble or told
        if (number, dropped) not in self._named:
            self._named.add((number, dropped))
            more = "dropped records" if dropped else "problems"
            _log.warning("injector %s: %s. Further %s of this partition are only counted", source, told, more)

    def headers(self, record: Record) -> Headers:
        """Return a record's headers; none if a name is not UTF-8, which this client can neither read nor write."""
        try:
            return record.headers() or []
        except UNREADABLE_HEADERS as error:
            self._counts["unreadable_headers"] += 1
            self.report(record, f"its headers cannot be read, and are left out: {error.__cause__ or error}")
            return []

    def without_ours(self, headers: Headers) -> Headers:
        """Remove Floodmark's headers: they would state times of another topic, or hide the record."""
        if not headers:
            return headers
        kept = [header for header in headers if not is_own_header(header[0])]
        if len(kept) < len(headers):
            self._counts["headers_removed"] += len(headers) - len(kept)
        return kept

    def bounds(self, now: int) -> tuple[float, float]:
        """Return the lowest and highest timestamp that the target accepts now; epoch milliseconds."""
        lowest = -math.inf if self._behind is None else now - self._behind + _MARGIN
        return lowest, math.inf if self._ahead is None else now + self._ahead - _MARGIN

    def without_timestamp(self, record: Record, headers: Headers) -> Headers:
        """Return the headers of a record that gets the current time; one keeps a timestamp that is the event time."""
        log_time = record.timestamp()[1]
        self._counts["timestamps_replaced"] += 1
        target = self._injection.target_topic
        rejects = f"{target!r} rejects the timestamp {log_time} (message.timestamp.*.max.ms)"
        why = rejects if log_time else "its timestamp is 0, which Kafka's clients take for now"
        self.report(record, f"{why}; the record gets the current time")
        readable = EARLIEST <= log_time <= END_OF_TIME and log_time not in NO_LOG_TIME
        if readable and isinstance(self._injection.fmt, LogTime) and TIME_HEADER not in dict(headers):
            return [(TIME_HEADER, b"%d" % log_time), *headers]
        return headers
