"""One input partition on its way into the system: what becomes of each record, and what may be promised.  Pure.

The invariant: *what a partition promises holds for the records it has passed on and for all that may still come*, by
its time policy, or by the promises that the topic brings itself.
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

_NONE: Final[Headers] = ()
_LONG: Final = 32


class Routing(Enum):
    """Where a record goes."""

    FORWARD = "forward"
    """To the output, with these headers added."""
    DROP = "drop"
    """Dropped, or to the topic for what is dropped."""
    SKIP = "skip"
    """Nowhere: it was a progress message."""


Routed = tuple[Routing, Headers]


class InputPartition(ABC):
    """The state of one input partition."""

    def __init__(self, fmt: InputFormat) -> None:
        self.fmt = fmt
        self.read = fmt.read
        self.counts: Counter[str] = Counter()
        """``unreadable`` times, ``unreadable_arrival``, ``unreadable_key``, ``timeless`` records, ``reserved`` keys,
        ``resolved`` messages, and ``late`` records behind them."""
        self.timed = False
        """Whether any record has told a time, or promised one."""
        self.trouble: str | None = None
        """Why the last record is counted as one that cannot be read; see `pop_trouble`."""

    def take(self, key: bytes | None, value: bytes | None, log_time: int) -> Routed:
        """Decide what becomes of one record, in the order of the log."""
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
                self.counts["timeless"] += 1
        if time is None:
            return Routing.FORWARD, _NONE  # nothing is lost, and no watermark moves
        self.timed = True
        return self._pass(time, key, value, log_time)

    def pop_trouble(self) -> str | None:
        """Return why the last record is counted as one that cannot be read, once."""
        trouble, self.trouble = self.trouble, None
        return trouble

    def _count(self, what: str, why: str) -> None:
        self.counts[what] += 1
        self.trouble = why

    @abstractmethod
    def _pass(self, time: int | Resolved, key: bytes | None, value: bytes | None, log_time: int) -> Routed:
        """Decide on a record that tells a time."""

    @property
    @abstractmethod
    def watermark(self) -> int | None:
        """What the partition promises."""

    @property
    def outcomes(self) -> Counter[str]:
        """What became of the records, and what could not be read."""
        return self.counts

    def estimate(self, elapsed: int) -> None:  # noqa: B027  # only a policy guesses
        """Advance with no event; elapsed: milliseconds since the last one was seen."""

    def open(self, now: int) -> None:  # noqa: B027
        """Learn that the partition is empty, at a time of the wall clock."""

    @abstractmethod
    def follow(self, watermark: int) -> None:
        """Promise at least so much: what others have promised, where nothing has come here yet."""

    @abstractmethod
    def snapshot(self) -> dict[str, Any]:
        """Return the state as a value that JSON can carry."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the state that `snapshot` returned.

        Raises:
            CorruptSnapshotError: if it is something else.
        """


class ByPolicy(InputPartition):
    """A partition whose writers promise nothing: a time policy decides.

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
        """Begin with nothing read; substream_by: what has a watermark of its own; fit: is told each decision."""
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
        """What the policy promises."""
        return self.policy_state.watermark

    @property
    def outcomes(self) -> Counter[str]:
        """The same, with what the policy decided."""
        return self.counts + self.policy_state.counts

    def estimate(self, elapsed: int) -> None:
        """Advance by the estimated arrival."""
        self.policy_state.estimate(elapsed)

    def open(self, now: int) -> None:
        """Take the present for the arrival, where nothing has ever arrived: whatever comes arrives later."""
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
        self.timed = bool(self.policy_state.counts)


def _ident(substream: bytes) -> bytes:
    """Return what a substream is known by: itself, or its digest, so that long keys do not fill the state.

    >>> _ident(b"N14228"), len(_ident(b"x" * 1_000_000))
    (b'N14228', 32)
    """
    return substream if len(substream) < _LONG else blake2b(substream, digest_size=_LONG).digest()


class ByResolved(InputPartition):
    """A partition that brings promises of its own.

    >>> from floodmark.producers.event_times.changefeeds import CockroachDb
    >>> partition = ByResolved(CockroachDb())
    >>> partition.take(None, b'{"resolved": "5000000.0000000000"}', 0)
    (<Routing.SKIP: 'skip'>, ())
    >>> partition.watermark
    5
    """

    def __init__(self, fmt: InputFormat, *, drop_late: bool = False) -> None:
        """Begin with nothing promised; drop_late: what comes behind a promise was sent before, leave it out."""
        super().__init__(fmt)
        self._watermark: int | None = None
        self._drop_late = drop_late

    def _pass(self, time: int | Resolved, key: bytes | None, value: bytes | None, log_time: int) -> Routed:  # noqa: ARG002  # not asked
        if isinstance(time, Resolved):
            self.counts["resolved"] += 1
            # A lower one is a replay; one at the beginning of time is sent before a feed knows anything.
            if time.watermark > 0 and (self._watermark is None or time.watermark > self._watermark):
                self._watermark = time.watermark
            return Routing.SKIP, _NONE
        if is_late(time, self._watermark):
            self.counts["late"] += 1
            return (Routing.DROP if self._drop_late else Routing.FORWARD), _NONE
        return Routing.FORWARD, _NONE

    @property
    def watermark(self) -> int | None:
        """The highest promise."""
        return self._watermark

    def follow(self, watermark: int) -> None:
        """Raise the promise."""
        self._watermark = watermark if self._watermark is None else max(self._watermark, watermark)

    def snapshot(self) -> dict[str, Any]:
        """Return the promise."""
        return {"watermark": self._watermark, "timed": self.timed}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up the promise.

        Raises:
            CorruptSnapshotError: if there is none.
        """
        with restoring("of a changefeed", "begin anew"):
            watermark = state["watermark"]
            self._watermark = None if watermark is None else event_time_of(watermark)
            self.timed = bool(state["timed"])
