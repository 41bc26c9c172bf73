"""The task of an injector, and its stored state: both are values.  Pure."""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from floodmark.producers.event_times.formats import InputFormat, SubstreamKey
from floodmark.producers.event_times.input_partition import InputPartition
from floodmark.producers.event_times.policy_fit import PolicyFit
from floodmark.producers.event_times.time_policy import TimePolicy
from floodmark.schemas.errors import InjectorError, UsageError
from floodmark.schemas.records import Membership, membership_of
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.timestamps import duration_of

FORMAT: Final = 1
STATE_HEADER: Final = "floodmark-injector"  # of an injector's marks: next offset and state of the input partition

_MAX_STATE: Final = 900_000
_MAX_SOURCE_BYTES: Final = 200
_LARGEST: Final = 2**63 - 1
_LONGEST_INTERVAL: Final = 600_000  # milliseconds; brokers allow transactions of 15 minutes by default


@dataclass(frozen=True, slots=True)
class Injection:
    """The task of an injector.

    Args:
        source_topic: the topic without watermarks.
        target_topic: the topic with marks; it needs at least as many partitions.
        fmt: how to read event times.
        policy: the time policy; not for formats with watermarks of their own.
        substream_by: which events have a watermark of their own, for example `substream_key`; default: each partition.
        drop_late: with a format that has watermarks: drop records below them, which are repeated ones.
        dropped_to: an existing topic without marks to copy dropped records to; default: they are only counted.
        source: the injector's id as a source of the target topic; default: from the name of ``source_topic``.
        membership: how many sources write to the target topic: a number, or a `Membership` after a change.
        interval: time between transactions, and so between marks; at most 10 minutes.
        align: how far a partition may be ahead of the slowest; default: any distance.
        allow_unreadable: start although no record has a readable event time, all times look like seconds, or the input
            has marks.
    """

    source_topic: str
    target_topic: str
    fmt: InputFormat
    policy: TimePolicy = TimePolicy()
    substream_by: SubstreamKey | None = None
    drop_late: bool = False
    dropped_to: str | None = None
    source: str = ""
    membership: Membership | int = 1
    interval: timedelta = timedelta(seconds=1)
    align: timedelta | None = None
    allow_unreadable: bool = False

    def __post_init__(self) -> None:
        if self.source_topic == self.target_topic:
            raise UsageError(reason=f"topic {self.source_topic!r} is both input and output of the injection")
        if self.dropped_to in {self.source_topic, self.target_topic}:
            reason = f"dropped_to is {self.dropped_to!r}, the input or the output of the injection"
            raise UsageError(reason=f"{reason}; use a topic of its own")
        if duration_of(self.interval, "injection: the interval", 1) > _LONGEST_INTERVAL:
            reason = f"injection: the interval is {self.interval}, and Kafka aborts transactions of 15 minutes"
            raise UsageError(reason=f"{reason}; expected at most 10 minutes")
        if self.align is not None:
            duration_of(self.align, "injection: align")
        membership_of(self.membership, "injection")
        if self.fmt.promises and (self.substream_by is not None or self.policy != TimePolicy()):
            reason = "this format brings promises of its own: leave out the time policy (late, early, out of order) and"
            raise UsageError(reason=f"{reason} substreams; to drop repeated records, use drop_late")
        if self.drop_late and not self.fmt.promises:
            reason = "drop_late needs a format with promises of its own, a changefeed; for a time policy, use on_late"
            raise UsageError(reason=reason)
        if not self.source:
            object.__setattr__(self, "source", f"inject-{self.source_topic}")
        if len(self.source.encode(errors="surrogatepass")) > _MAX_SOURCE_BYTES:
            reason = f"source id {self.source!r} is longer than {_MAX_SOURCE_BYTES} bytes; give a shorter one"
            raise UsageError(reason=reason)

    def policy_fit(self, share: float = 0.5) -> PolicyFit:
        """Return empty statistics of the decisions of its policy; ``share``: see `PolicyFit`."""
        return PolicyFit(self.policy, substreams=self.substream_by is not None, share=share)

    def input_partition(self, fit: PolicyFit | None = None) -> InputPartition:
        """Return the state of an empty input partition; ``fit`` gets the decisions of its policy."""
        return InputPartition(self.fmt, self.policy, self.substream_by, fit, drop_late=self.drop_late)


@dataclass(frozen=True, slots=True)
class InjectorState:
    """The state of an injector, which a header of its marks stores."""

    next_offset: int  # the input offset to resume from
    epoch: int
    input_format: str  # see `InputFormat.about`
    partition: Mapping[str, Any]
    counts: Mapping[str, int]
    began_with: int  # how many partitions the input had when the injection began
    topic_id: str | None = None  # the id of the input topic; ``None``: not known
    target_id: str | None = None  # that of the target which the injector knew: it may have written into a new one

    def ids(self, injection: Injection) -> dict[str, str]:
        """Return the known ids of the topics."""
        ids = {injection.source_topic: self.topic_id, injection.target_topic: self.target_id}
        return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}

    def pack(self, source: str, partition: int) -> bytes:
        """Return the value of the header, or raise InjectorError if it is too large for Kafka."""
        packed = base64.b64encode(zlib.compress(json.dumps({"format": FORMAT, **asdict(self)}).encode(), 1))
        if len(packed) > _MAX_STATE:
            reason = f"the state of partition {partition} takes {len(packed)} bytes, expected at most {_MAX_STATE}"
            advice = "keep fewer substreams: a smaller max_keys, or a shorter late tolerance"
            raise InjectorError(source=source, reason=reason, advice=advice)
        return packed

    @classmethod
    def unpack(cls, value: bytes) -> "InjectorState":
        """Restore what `pack` returned, or raise CorruptSnapshotError."""
        with restoring("of an injector", "another writer uses this source id; stop it, and inject with a new one"):
            found = json.loads(zlib.decompress(base64.b64decode(value, validate=True)))
            require_format(found, FORMAT)
            state = cls(
                int(found["next_offset"]),
                int(found["epoch"]),
                str(found["input_format"]),
                dict(found["partition"]),
                dict(found["counts"]),
                int(found["began_with"]),
                found["topic_id"],
                found.get("target_id"),
            )
            if not (0 <= state.next_offset <= _LARGEST and 0 <= state.epoch < _LARGEST):
                raise ValueError(f"offset {state.next_offset}, epoch {state.epoch}")
        return state
