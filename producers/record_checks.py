"""What a source checks of a record before anything is sent: its times, its key and its headers."""

import logging
from collections.abc import Sequence
from datetime import datetime
from numbers import Integral

from floodmark.producers.clients.clock import Clock
from floodmark.producers.sender import Headers
from floodmark.schemas.errors import InvalidEventTimeError, ReservedKeyError, UsageError
from floodmark.schemas.records import HEADER, KEY_PREFIX, TIME_HEADER, is_mark_key, is_own_header
from floodmark.schemas.timestamps import are_seconds, event_time_of, to_datetime

_log = logging.getLogger(__name__)


class RecordChecks:
    """Checks and converts the arguments of ``produce``; ``early``: how far ahead a time may be, milliseconds."""

    def __init__(self, owner: str, clock: Clock, *, stamps: bool, early: int | None) -> None:
        self._owner, self._clock, self._stamps, self._early = owner, clock, stamps, early
        self._is_first = self._is_first_watermark = True
        self.plain_times = False  # whether `event_time_of` is the only check of a time: the first has others

    def event_time(self, value: float | datetime | None) -> int | None:
        """Return an event time in epoch milliseconds; ``None``: the strategy sets it."""
        if self._stamps:
            if value is None:
                return None
            reason = "the strategy is ingress(), so a record has no event time of its own"
            raise UsageError(reason=f"{self._owner}: {reason}")
        time = self.time(value)
        if self._early is not None:
            ahead = time - self._clock.wall()
            if ahead > self._early:
                reason = f"it is {ahead / 1000:,.0f} s ahead of the clock, expected at most {self._early / 1000:,}"
                raise InvalidEventTimeError(value=time, reason=reason)
        return time

    def event_times(self, times: Sequence[int | None]) -> None:
        """Check times that `event_time_of` has converted: the first one, and with ``early`` all."""
        for time in times[:1] if self._early is None else times:
            self.event_time(time)

    def time(self, value: object) -> int:
        """Convert the caller's time; warn if the first one looks like seconds, which is legal: tests have some."""
        time = event_time_of(value)
        if self._is_first:
            self._is_first = False
            self.plain_times = self._early is None and not self._stamps
            self._warn_of_seconds("event time", time)
        return time

    def watermark(self, value: object) -> int:
        """Convert the caller's watermark; warn as `time` does."""
        time = event_time_of(value)
        if self._is_first_watermark:
            self._is_first_watermark = False
            self._warn_of_seconds("watermark", time)
        return time

    def _warn_of_seconds(self, what: str, time: int) -> None:
        if are_seconds(time, self._clock.wall()):
            _log.warning(
                "%s: the first %s is %d, which is %s; times are epoch milliseconds: did you pass seconds? "
                "then it would be %s, so pass time * 1000, or an aware datetime",
                self._owner,
                what,
                time,
                to_datetime(time).isoformat(),
                to_datetime(time * 1000).isoformat(),
            )

    def timestamp(self, value: object) -> int | None:
        """Return Kafka's timestamp, epoch milliseconds."""
        if value is None:
            return None
        if self._stamps:
            reason = "the strategy is ingress(), whose event time is the timestamp; pass none"
            raise UsageError(reason=f"{self._owner}: {reason}")
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 0:
            reason = f"the timestamp is {value!r}, expected milliseconds since 1970, or 0 for now"
            raise UsageError(reason=f"{self._owner}: {reason}")
        return int(value)

    def headers(self, value: Headers | None, time: int | None) -> Headers | None:
        """Return headers as pairs; ``time``: the record's event time, which a header for readers must have."""
        if value is None:
            return None
        pairs = list(value.items() if isinstance(value, dict) else value)
        if any(name == HEADER for name, _ in pairs):
            reason = f"{self._owner}: the header {HEADER!r} is that of watermark records, and plain consumers skip it"
            raise UsageError(reason=f"{reason}; choose another name")
        for name, text in pairs:
            is_true = name == TIME_HEADER and text in (str(time), str(time).encode())
            if is_own_header(str(name)) and not is_true:
                reason = f"{self._owner}: readers use the header {name!r} in place of event_time"
                raise UsageError(reason=f"{reason}; leave it out when you forward the headers of a record")
        return pairs

    def key(self, value: bytes | str | None) -> bytes | None:
        """Return a key in bytes."""
        if type(value) is bytes and not value.startswith(KEY_PREFIX):  # `is_mark_key`, whose call takes time
            return value
        try:
            raw = value.encode() if isinstance(value, str) else value
            reserved = is_mark_key(raw)
        except (AttributeError, TypeError, UnicodeEncodeError) as error:  # rather than a test of each key: it is slower
            reason = f"the key is {value!r}, expected bytes, a text that UTF-8 can encode, or None"
            raise UsageError(reason=f"{self._owner}: {reason}") from error
        if reserved:
            raise ReservedKeyError(key=raw, prefix=KEY_PREFIX)
        return raw
