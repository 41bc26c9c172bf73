"""What an injector is to do, and what it must not forget: both are values.  Pure."""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from floodmark.producers.event_times.formats import InputFormat, SubstreamKey
from floodmark.producers.event_times.input_partition import ByPolicy, ByResolved, InputPartition
from floodmark.producers.event_times.policy_fit import PolicyFit
from floodmark.producers.event_times.time_policy import TimePolicy
from floodmark.schemas.errors import InjectorError, UsageError
from floodmark.schemas.records import Membership, membership_of
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.schemas.timestamps import duration_of

FORMAT: Final = 1
STATE_HEADER: Final = "floodmark-injector"
"""The header of an injector's marks with the next input offset and the state of the input partition."""

_MAX_STATE: Final = 900_000
_MAX_SOURCE_BYTES: Final = 200
_LARGEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Injection:
    """What an injector is to do.

    Args:
        source_topic: the topic without watermarks.
        target_topic: the topic that gets them; it must have at least as many partitions.
        fmt: what the records say of time.
        policy: how far to trust that; not for formats that bring promises of their own.
        substream_by: what has a watermark of its own, for example `substream_key`; default: the partition.
        drop_late: with a format that brings promises: leave out what it repeats behind them.
        dropped_to: a topic for what is dropped; default: it is only counted.
        source: the id of the injector as a source of the target topic.
        membership: how many sources write to the target topic: a number, or a `Membership` once it has changed.
        interval: time between transactions, and so between marks.
        align: how far a partition may run ahead of the slowest; default: any distance.
        allow_unreadable: start although no record tells a readable time, or all times look like seconds.
    """

    source_topic: str
    target_topic: str
    fmt: InputFormat
    policy: TimePolicy = TimePolicy()  # noqa: RUF009  # frozen
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
        duration_of(self.interval, "injection: the interval", 1)
        if self.align is not None:
            duration_of(self.align, "injection: align")
        membership_of(self.membership, "injection")
        if self.substream_by is not None and self.fmt.promises:
            raise UsageError(reason="substreams need a time policy; this format brings promises of its own")
        if not self.source:
            object.__setattr__(self, "source", f"inject-{self.source_topic}")
        if len(self.source.encode(errors="surrogatepass")) > _MAX_SOURCE_BYTES:
            reason = f"source id {self.source!r} is longer than {_MAX_SOURCE_BYTES} bytes; give a shorter one"
            raise UsageError(reason=reason)

    def input_partition(self, fit: PolicyFit | None = None) -> InputPartition:
        """Return the state of an input partition of which nothing has been read; fit: is told what a policy decides."""
        if self.fmt.promises:
            return ByResolved(self.fmt, drop_late=self.drop_late)
        return ByPolicy(self.fmt, self.policy, self.substream_by, fit)


@dataclass(frozen=True, slots=True)
class InjectorState:
    """What a mark of the injector carries in its header: where to go on in the input, and with what.

    >>> state = InjectorState(12, epoch=3, input_format="arrival", partition={"watermark": 7}, counts={})
    >>> InjectorState.unpack(state.pack("inject-raw", 0)) == state
    True
    """

    next_offset: int
    """Of the input: where to go on."""
    epoch: int
    input_format: str
    """What the times were read as, see `InputFormat.about`."""
    partition: Mapping[str, Any]
    """The state of the input partition."""
    counts: Mapping[str, int]
    topic_id: str | None = None
    """Of the input, which the offset is of; ``None``: not known."""

    def pack(self, source: str, partition: int) -> bytes:
        """Return it as a header's value.

        Raises:
            InjectorError: if it would be larger than Kafka takes.
        """
        packed = base64.b64encode(zlib.compress(json.dumps({"format": FORMAT, **asdict(self)}).encode(), 1))
        if len(packed) > _MAX_STATE:
            reason = f"the state of partition {partition} takes {len(packed)} bytes, expected at most {_MAX_STATE}"
            advice = "keep fewer substreams: a smaller max_keys, or a shorter late tolerance"
            raise InjectorError(source=source, reason=reason, advice=advice)
        return packed

    @classmethod
    def unpack(cls, value: bytes) -> "InjectorState":
        """Take up what `pack` returned.

        Raises:
            CorruptSnapshotError: if it is something else.
        """
        with restoring("of an injector", "another writer uses this source id; stop it, and inject with a new one"):
            found = json.loads(zlib.decompress(base64.b64decode(value, validate=True)))
            require_format(found, FORMAT)
            state = cls(
                int(found["next_offset"]),
                int(found["epoch"]),
                str(found["input_format"]),
                dict(found["partition"]),
                dict(found["counts"]),
                found["topic_id"],
            )
            if not (0 <= state.next_offset <= _LARGEST and 0 <= state.epoch < _LARGEST):
                raise ValueError(f"offset {state.next_offset}, epoch {state.epoch}")
        return state
