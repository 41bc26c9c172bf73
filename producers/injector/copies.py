"""Records of an injector's input as its output can take them, and the first places of what is not as it should be."""

import logging
import math
from collections import Counter
from typing import Any, Final

from confluent_kafka import Message
from floodmark.producers.event_times.formats import LogTime
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.event_times.input_partition import Headers
from floodmark.schemas.records import HEADER, TIME_HEADER
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME

_log = logging.getLogger(__name__)
_SHOWN: Final = 400
_MARGIN: Final = 10_000  # milliseconds that the broker's clock may be off
_OURS: Final = f"{HEADER}-"


class Copies:
    """What must be changed of records, so that none of them ends or misleads; each change is counted.

    Args:
        injection: whose input.
        tolerances: how many milliseconds a timestamp may be behind and ahead of the clock for the target to take it.
        counts: gets ``unreadable_headers``, ``headers_removed`` and ``timestamps_replaced``.
    """

    def __init__(self, injection: Injection, tolerances: tuple[int | None, int | None], counts: Counter[str]) -> None:
        """Begin with nothing seen."""
        self._injection, self._counts = injection, counts
        self._behind, self._ahead = tolerances
        self._named: set[int] = set()
        self.first_trouble: str | None = None
        """The place of the first record that is not as it should be, and why."""

    def name(self, message: Message, why: str) -> None:
        """Keep the first place, and log the first of each partition."""
        number: Any = message.partition()
        place = f"{message.topic()}/{number}@{message.offset()}: {why[:_SHOWN]}"
        self.first_trouble = self.first_trouble or place
        if number not in self._named:
            self._named.add(number)
            _log.warning("injector %s: %s; later ones of this partition are counted", self._injection.source, place)

    def headers(self, message: Message) -> list[tuple[str, Any]]:
        """Return a record's headers; names that are no UTF-8 this client can neither read nor pass on."""
        try:
            given: Any = message.headers()
        except (SystemError, UnicodeDecodeError) as error:
            self._counts["unreadable_headers"] += 1
            self.name(message, f"its headers cannot be read, and are left out: {error.__cause__ or error}")
            return []
        return given or []

    def foreign(self, given: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Leave out the headers that are Floodmark's: they would speak of another topic's time, or hide a record."""
        kept = [header for header in given if header[0] != HEADER and not header[0].startswith(_OURS)]
        if len(kept) < len(given):
            self._counts["headers_removed"] += 1
        return kept

    def taken(self, now: int) -> tuple[float, float]:
        """Return the lowest and highest timestamp that the target takes now; epoch milliseconds."""
        lowest = -math.inf if self._behind is None else now - self._behind + _MARGIN
        return lowest, math.inf if self._ahead is None else now + self._ahead - _MARGIN

    def without_timestamp(self, message: Message, headers: Headers) -> Headers:
        """Return the headers of a record whose timestamp the target would refuse, and the whole transaction with it.

        It is written with the present; where the timestamp is the event time, that stays in a header.
        """
        log_time = message.timestamp()[1]
        self._counts["timestamps_replaced"] += 1
        target = self._injection.target_topic
        why = f"{target!r} takes no timestamp {log_time} (message.timestamp.*.max.ms); it gets the present one"
        self.name(message, why)
        readable = isinstance(self._injection.fmt, LogTime) and EARLIEST <= log_time <= END_OF_TIME
        if readable and TIME_HEADER not in dict(headers):
            return [(TIME_HEADER, b"%d" % log_time), *headers]
        return headers
