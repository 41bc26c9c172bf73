"""One input partition of an injection: where each record goes, and the watermark.  Pure.

The invariant: *no record that is still to be copied is below the watermark*, as far as policy or changefeed say.
"""

from collections import Counter
from collections.abc import Mapping
from enum import Enum
from hashlib import blake2b
from typing import Any, Final

from floodmark.producers.event_times.formats import NO_LOG_TIME, NO_SUBSTREAM, InputFormat, Resolved, SubstreamKey
from floodmark.producers.event_times.policy_fit import PolicyFit
from floodmark.producers.event_times.time_policy import Outcome, TimePolicy
from floodmark.schemas.classify import Headers
from floodmark.schemas.errors import InvalidEventTimeError, UnreadableValueError
from floodmark.schemas.errors.base import iso
from floodmark.schemas.records import SUBSTREAM_HEADER, TIME_HEADER, is_mark_key
from floodmark.schemas.stored_format import restoring
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, event_time_of, is_late

MISSING_EVENT_TIME: Final = "timeless"  # a count as it is stored; metrics call it ``missing_event_time``

_LONG: Final = 32


class Routing(Enum):
    """Where a record goes."""

    FORWARD = "forward"  # to the output, with the headers of `Routed` added
    DROP = "drop"  # to the topic for dropped records, if there is one
    SKIP = "skip"  # nowhere: it is a progress message


Routed = tuple[Routing, Headers]


class InputPartition:
    """The state of one input partition: a time policy decides, or a changefeed, whose format has watermarks.

    >>> from datetime import timedelta
    >>> from floodmark.producers.event_times.formats import JsonField
    >>> policy = TimePolicy(late=timedelta(milliseconds=50), out_of_order=timedelta(0))
    >>> partition = InputPartition(JsonField("at"), policy)
    >>> partition.take(None, b'{"at": 100}', 100)
    (<Routing.FORWARD: 'forward'>, ())
    >>> partition.take(None, b'{"at": 90}', 100)  # out of order, adjusted
    (<Routing.FORWARD: 'forward'>, [('floodmark-time', b'100')])
    """

    def __init__(
        self,
        fmt: InputFormat,
        policy: TimePolicy = TimePolicy(),
        substream_by: SubstreamKey | None = None,
        fit: PolicyFit | None = None,
        *,
        drop_late: bool = False,
    ) -> None:
        self.fmt = fmt
        self.policy_state = policy.build()  # of a changefeed, only its watermark is used
        self.counts: Counter[str] = Counter()
        """``unreadable`` times, ``unreadable_arrival``, ``unreadable_key``, `MISSING_EVENT_TIME`, ``tombstones``,
        ``reserved`` keys, ``resolved`` messages, and ``late`` or ``late_dropped`` records, which are below the last of
        these, or others, which are ``on_time``."""
        self.has_event_time = False  # whether any record had an event time, or a watermark of its own
        self.trouble: str | None = None
        self.elapsed = 0  # milliseconds between the last record and the last estimate, also over restarts
        self._substream_by, self._fit, self._drop_late = substream_by, fit, drop_late
        self._largest: int | None = None  # the largest event time that a ``fit`` has seen, also over restarts

    def take(self, key: bytes | None, value: bytes | None, log_time: int) -> Routed:
        """Route one record, in the order of the log."""
        self.elapsed = 0
        if is_mark_key(key):
            self._count("reserved", "the input has marks already; this record is left out")
            return Routing.DROP, ()
        try:
            time = self.fmt.read(key, value, log_time)
        except (UnreadableValueError, InvalidEventTimeError) as error:
            self._count("unreadable", str(error))
            return Routing.FORWARD, ()  # no record is lost, and no watermark advances
        if time is None:
            self.counts["tombstones" if value is None else MISSING_EVENT_TIME] += 1
            return Routing.FORWARD, ()
        self.has_event_time = True
        if isinstance(time, Resolved):
            self.counts["resolved"] += 1
            # A lower watermark is a replay; 0 or less means that the feed has none yet.
            if self.fmt.promises and time.watermark > 0:
                self.policy_state.advance(time.watermark)
            return Routing.SKIP, ()
        if not self.fmt.promises:
            return self._decide(time, key, value, log_time)
        late = is_late(time, self.watermark)
        dropped = late and self._drop_late
        self.counts[Outcome.LATE_DROPPED if dropped else "late" if late else Outcome.ON_TIME] += 1
        return (Routing.DROP if dropped else Routing.FORWARD), ()

    def _decide(self, time: int, key: bytes | None, value: bytes | None, log_time: int) -> Routed:
        """Route a record by the time policy."""
        arrival: int | None = log_time
        if log_time in NO_LOG_TIME or not EARLIEST <= log_time <= END_OF_TIME:
            self._count("unreadable_arrival", f"its timestamp {log_time} is missing or outside the years 1 to 9999")
            arrival = None
        substream = None if self._substream_by is None else self._substream(self._substream_by, key, value)
        outcome, adjusted = self.policy_state.decide(time, arrival, substream)
        if self._fit is not None and arrival is not None:
            if substream is None and outcome is not Outcome.EARLY_DROPPED:
                self._largest = time if self._largest is None else max(self._largest, time)
            behind = 0 if self._largest is None else max(0, self._largest - time)
            per, keyless = self.fmt.per_millisecond, substream in NO_SUBSTREAM
            self._fit.add(outcome, time, arrival, behind=behind, per_millisecond=per, keyless=keyless)
        if adjusted is None:
            judged = outcome.removesuffix("_dropped").replace("_", " ")
            self.trouble = self.trouble or f"its time {iso(time)} is {judged}, so it is dropped"
            return Routing.DROP, ()
        headers: list[tuple[str, bytes | None]] = [] if adjusted == time else [(TIME_HEADER, b"%d" % adjusted)]
        if substream is not None and (watermark := self.policy_state.watermark_of(substream)) is not None:
            headers.append((SUBSTREAM_HEADER, b"%d" % watermark))
        return Routing.FORWARD, headers or ()

    def _substream(self, substream_by: SubstreamKey, key: bytes | None, value: bytes | None) -> bytes:
        """Return a record's substream, or its digest if it is long: the state keeps it."""
        try:
            substream = substream_by(key, value)
            return substream if len(substream) < _LONG else blake2b(substream, digest_size=_LONG).digest()
        except Exception as error:  # noqa: BLE001  # a function of the user's, on hostile bytes
            self._count("unreadable_key", f"its substream cannot be read: {type(error).__name__}: {error}")
            return b""

    def pop_trouble(self) -> str | None:
        """Return why the last record is counted as unreadable or dropped, once."""
        trouble, self.trouble = self.trouble, None
        return trouble

    def _count(self, what: str, why: str) -> None:
        self.counts[what] += 1
        self.trouble = why

    @property
    def watermark(self) -> int | None:
        """The watermark of the partition."""
        return self.policy_state.watermark

    @property
    def outcomes(self) -> Counter[str]:
        """The counts, with the decisions of the policy."""
        return self.counts + self.policy_state.counts

    def estimate(self, elapsed: int) -> None:
        """Advance the watermark without a record, ``elapsed`` milliseconds after the last one; not of a changefeed."""
        self.elapsed = elapsed
        self.policy_state.estimate(elapsed)

    def open(self, now: int) -> bool:
        """Note that the partition is read to its end (wall clock, epoch milliseconds); tell if it is the first time."""
        return not self.fmt.promises and self.policy_state.expect(now)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        if self.fmt.promises:
            return {"watermark": self.watermark, "timed": self.has_event_time}
        return {**self.policy_state.snapshot(), "elapsed": self.elapsed, "largest": self._largest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `snapshot` into an empty partition, or raise CorruptSnapshotError."""
        if not self.fmt.promises:
            self.policy_state.restore(state)
            self.has_event_time = bool(self.policy_state.counts)
            with restoring("of an input partition", "start over"):
                self.elapsed, largest = int(state["elapsed"]), state.get("largest")
                if largest is not None:  # an event may have been far ahead, and a restart does not take that back
                    self._largest = min(event_time_of(largest), event_time_of(state["arrival"]))
            return
        with restoring("of a changefeed", "start over"):
            if state["watermark"] is not None:
                self.policy_state.advance(event_time_of(state["watermark"]))
            self.has_event_time = bool(state["timed"])
