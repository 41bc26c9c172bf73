"""One input partition of an injection: where each record goes, and the watermark.  Pure.

The invariant: *no record that is still to be copied is below the watermark*, as far as policy or changefeed say.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from hashlib import blake2b
from typing import Any, Final

from floodmark.producers.event_times.formats import InputFormat, Resolved, SubstreamKey
from floodmark.producers.event_times.policy_fit import PolicyFit
from floodmark.producers.event_times.time_policy import TimePolicy, TimePolicyState
from floodmark.schemas.classify import Headers
from floodmark.schemas.errors import InvalidEventTimeError, UnreadableValueError
from floodmark.schemas.records import SUBSTREAM_HEADER, TIME_HEADER, is_mark_key
from floodmark.schemas.stored_format import restoring
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, event_time_of, is_late

MISSING_EVENT_TIME: Final = "timeless"
"""The count of records without event time, as it is stored; metrics call it ``missing_event_time``."""

_NONE: Final[Headers] = ()
_LONG: Final = 32


class Routing(Enum):
    """Where a record goes."""

    FORWARD = "forward"
    """To the output, with the headers of `Routed` added."""
    DROP = "drop"
    """To the topic for dropped records, if there is one."""
    SKIP = "skip"
    """Nowhere: it is a progress message."""


Routed = tuple[Routing, Headers]


class InputPartition(ABC):
    """The state of one input partition."""

    def __init__(self, fmt: InputFormat) -> None:
        self.fmt = fmt
        self.read = fmt.read
        self.counts: Counter[str] = Counter()
        """``unreadable`` times, ``unreadable_arrival``, ``unreadable_key``, `MISSING_EVENT_TIME`, ``reserved`` keys,
        ``resolved`` messages, and ``late`` records, which are below the last of these."""
        self.has_event_time = False
        """Whether any record had an event time, or a watermark of its own."""
        self.trouble: str | None = None

    def take(self, key: bytes | None, value: bytes | None, log_time: int) -> Routed:
        """Route one record, in the order of the log."""
        if is_mark_key(key):
            self._count("reserved", "its key is that of a watermark record: passed on, it would be taken for one")
            return Routing.DROP, _NONE
        try:
            time = self.read(key, value, log_time)
        except (UnreadableValueError, InvalidEventTimeError) as error:
            self._count("unreadable", str(error))
            time = None
        else:
            if time is None and value is not None:
                self.counts[MISSING_EVENT_TIME] += 1
        if time is None:
            return Routing.FORWARD, _NONE  # no record is lost, and no watermark advances
        self.has_event_time = True
        return self._pass(time, key, value, log_time)

    def pop_trouble(self) -> str | None:
        """Return why the last record is counted as unreadable, once."""
        trouble, self.trouble = self.trouble, None
        return trouble

    def _count(self, what: str, why: str) -> None:
        self.counts[what] += 1
        self.trouble = why

    @abstractmethod
    def _pass(self, time: int | Resolved, key: bytes | None, value: bytes | None, log_time: int) -> Routed:
        """Route a record that has an event time or a watermark."""

    @property
    @abstractmethod
    def watermark(self) -> int | None:
        """The watermark of the partition."""

    @property
    def outcomes(self) -> Counter[str]:
        """The counts, with the decisions of a policy."""
        return self.counts

    def estimate(self, elapsed: int) -> None:  # noqa: B027  # only a policy guesses
        """Advance the watermark without a record, ``elapsed`` milliseconds after the last one."""

    def open(self, now: int) -> None:  # noqa: B027
        """Note that the partition is read to its end (wall clock, epoch milliseconds)."""

    @abstractmethod
    def follow(self, watermark: int) -> None:
        """Raise the watermark to at least this one."""

    @abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `snapshot`, or raise CorruptSnapshotError."""


class ByPolicy(InputPartition):
    """A partition without watermarks of its own: a time policy decides.

    >>> from datetime import timedelta
    >>> from floodmark.producers.event_times.formats import JsonField
    >>> partition = ByPolicy(JsonField("at"), TimePolicy(late=timedelta(milliseconds=50), out_of_order=timedelta(0)))
    >>> partition.take(None, b'{"at": 100}', 100)
    (<Routing.FORWARD: 'forward'>, ())
    >>> partition.take(None, b'{"at": 90}', 100)  # out of order, adjusted
    (<Routing.FORWARD: 'forward'>, [('floodmark-time', b'100')])
    """

    def __init__(
        self,
        fmt: InputFormat,
        policy: TimePolicy,
        substream_by: SubstreamKey | None = None,
        fit: PolicyFit | None = None,
    ) -> None:
        super().__init__(fmt)
        self.policy_state: TimePolicyState = policy.build()
        self._substream_by = substream_by
        self._fit = fit

    def _pass(self, time: int | Resolved, key: bytes | None, value: bytes | None, log_time: int) -> Routed:
        if isinstance(time, Resolved):
            self.counts["resolved"] += 1
            return Routing.SKIP, _NONE
        arrival: int | None = log_time
        if not EARLIEST <= log_time <= END_OF_TIME:
            self._count("unreadable_arrival", f"its timestamp {log_time} is outside the years 1 to 9999")
            arrival = None
        substream = None if self._substream_by is None else self._substream(self._substream_by, key, value)
        outcome, adjusted = self.policy_state.decide(time, arrival, substream)
        if self._fit is not None and arrival is not None:
            self._fit.add(outcome, time, arrival)
        if adjusted is None:
            return Routing.DROP, _NONE
        headers: list[tuple[str, bytes | None]] = [] if adjusted == time else [(TIME_HEADER, b"%d" % adjusted)]
        if substream is not None and (watermark := self.policy_state.watermark_of(substream)) is not None:
            headers.append((SUBSTREAM_HEADER, b"%d" % watermark))
        return Routing.FORWARD, headers or _NONE

    def _substream(self, substream_by: SubstreamKey, key: bytes | None, value: bytes | None) -> bytes:
        try:
            return _ident(substream_by(key, value))
        except Exception as error:  # noqa: BLE001  # a function of the user's, on hostile bytes
            self._count("unreadable_key", f"its substream cannot be read: {type(error).__name__}: {error}")
            return b""

    @property
    def watermark(self) -> int | None:
        """The watermark of the policy."""
        return self.policy_state.watermark

    @property
    def outcomes(self) -> Counter[str]:
        """The counts, with the decisions of the policy."""
        return self.counts + self.policy_state.counts

    def estimate(self, elapsed: int) -> None:
        """Advance by the estimated arrival."""
        self.policy_state.estimate(elapsed)

    def open(self, now: int) -> None:
        """Take the present for the arrival, if no record has arrived."""
        self.policy_state.expect(now)

    def follow(self, watermark: int) -> None:
        """Raise the watermark of the policy."""
        self.policy_state.advance(watermark)

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the policy."""
        return self.policy_state.snapshot()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state of the policy."""
        self.policy_state.restore(state)
        self.has_event_time = bool(self.policy_state.counts)


def _ident(substream: bytes) -> bytes:
    """Return a substream as the state keeps it: itself, or its digest if it is long."""
    return substream if len(substream) < _LONG else blake2b(substream, digest_size=_LONG).digest()


class ByResolved(InputPartition):
    """A partition with watermarks of its own: a changefeed.

    >>> from floodmark.producers.event_times.changefeeds import CockroachDb
    >>> partition = ByResolved(CockroachDb())
    >>> partition.take(None, b'{"resolved": "5000000.0000000000"}', 0)
    (<Routing.SKIP: 'skip'>, ())
    >>> partition.watermark
    5
    """

    def __init__(self, fmt: InputFormat, *, drop_late: bool = False) -> None:
        super().__init__(fmt)
        self._watermark: int | None = None
        self._drop_late = drop_late

    def _pass(self, time: int | Resolved, key: bytes | None, value: bytes | None, log_time: int) -> Routed:  # noqa: ARG002  # not asked
        if isinstance(time, Resolved):
            self.counts["resolved"] += 1
            # A lower one is a replay; 0 or less means that the feed has no watermark yet.
            if time.watermark > 0 and (self._watermark is None or time.watermark > self._watermark):
                self._watermark = time.watermark
            return Routing.SKIP, _NONE
        if is_late(time, self._watermark):
            self.counts["late"] += 1
            return (Routing.DROP if self._drop_late else Routing.FORWARD), _NONE
        return Routing.FORWARD, _NONE

    @property
    def watermark(self) -> int | None:
        """The highest watermark of the changefeed."""
        return self._watermark

    def follow(self, watermark: int) -> None:
        """Raise the watermark."""
        self._watermark = watermark if self._watermark is None else max(self._watermark, watermark)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"watermark": self._watermark, "timed": self.has_event_time}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `snapshot`, or raise CorruptSnapshotError."""
        with restoring("of a changefeed", "begin anew"):
            watermark = state["watermark"]
            self._watermark = None if watermark is None else event_time_of(watermark)
            self.has_event_time = bool(state["timed"])
