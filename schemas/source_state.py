"""The last statement of a source in one partition, and in all partitions of a topic together.  Pure."""

from enum import Enum
from typing import Any, Final

from floodmark.schemas.records import Status, WatermarkRecord
from floodmark.schemas.timestamps import END_OF_TIME

LAST: Final = END_OF_TIME - 1
"""The highest watermark that an ACTIVE source can have: the end of time is reached by the end alone."""


class Verdict(Enum):
    """What became of one watermark record."""

    ACCEPTED = "accepted"
    REPLAYED = "replayed"
    """Seen before: an equal or lower sequence.  Normal after a crash or a rewind."""
    REGRESSED = "regressed"
    """A new sequence with a lower watermark: the watermark stays, the rest of the statement counts."""
    FENCED = "fenced"
    """From a lower epoch of its source: a zombie."""
    RETIRED = "retired"
    """From a lower version of the membership."""
    AFTER_END = "after_end"
    """From a source that had ended in this epoch."""


class Member:
    """One source over all partitions of a topic."""

    __slots__ = ("active_partitions", "reach", "unended_partitions", "version")

    def __init__(self) -> None:
        self.version = 0
        """The newest version of the membership that it spoke under."""
        self.reach = 0
        """How many partitions it knows: it writes to no others."""
        self.active_partitions = 0
        """In how many partitions it is ACTIVE with its lease not run out."""
        self.unended_partitions = 0
        """In how many partitions it has not ENDED."""


class Roster:
    """Who is expected to write to a topic: its newest membership, and its sources."""

    __slots__ = ("joined", "members", "size", "version")

    def __init__(self) -> None:
        self.version = 0
        self.size = 0
        self.members: dict[str, Member] = {}
        self.joined = 0
        """How many sources have spoken under the current version."""

    def absent(self, number: int, reported: int) -> dict[str, Member]:
        """Return the sources that do not know of a partition and are active in none that they know.

        Args:
            number: the partition.
            reported: how many sources have spoken there under the current version.
        """
        if self.joined == reported:
            return {}
        return {
            name: member
            for name, member in self.members.items()
            if member.version == self.version and member.active_partitions == 0 and member.reach <= number
        }


class SourceState:
    """The last statement of one source in one partition."""

    __slots__ = (
        *("active", "epoch", "lease", "log_time", "member", "records", "sequence", "since", "status", "version"),
        "watermark",
    )

    def __init__(self, member: Member) -> None:
        self.member = member
        self.epoch = self.sequence = -1
        self.watermark: int | None = None
        self.status = Status.ENDED
        self.version = 0
        self.records: int | None = None
        self.lease: int | None = None
        self.log_time = self.since = 0
        self.active = False
        """Whether it is ACTIVE here and its lease has not run out."""

    def refuse(self, record: WatermarkRecord) -> Verdict | None:
        """Say why a record is not the next statement of this source; ``None``: it is."""
        if record.epoch < self.epoch:
            return Verdict.FENCED
        if record.epoch > self.epoch:
            return None
        if record.sequence <= self.sequence:
            return Verdict.REPLAYED
        return Verdict.AFTER_END if self.status is Status.ENDED else None

    def replace(self, record: WatermarkRecord, log_time: int) -> Verdict:
        """Replace the last statement by the next one, but for ``version``, ``lease`` and ``active``.

        Returns:
            ACCEPTED, or REGRESSED where the watermark is below the last one of this epoch, which stays.
        """
        if record.epoch != self.epoch:
            self.epoch, self.watermark = record.epoch, None
            self.log_time = self.since = log_time
        elif log_time > self.log_time:
            self.log_time = log_time
        self.sequence = record.sequence
        self.status = record.status
        self.records = record.records
        watermark = record.watermark
        if watermark is not None and watermark > LAST:
            watermark = LAST
        if watermark is not None and (self.watermark is None or watermark > self.watermark):
            self.watermark = watermark
            self.since = log_time
        elif watermark != self.watermark:
            return Verdict.REGRESSED
        return Verdict.ACCEPTED

    def state(self) -> list[object]:
        """Return it as a value that JSON can carry."""
        return [
            *(self.epoch, self.sequence, self.watermark, self.status.value, self.version, self.records, self.lease),
            *(self.log_time, self.since),
        ]

    @classmethod
    def of(cls, state: list[Any], member: Member) -> "SourceState":
        """Build it from what `state` returned."""
        source = cls(member)
        (source.epoch, source.sequence, watermark, status, source.version, source.records, source.lease) = state[:7]
        source.watermark, source.status = None if watermark is None else min(watermark, LAST), Status(status)
        source.log_time, source.since = state[7:]
        source.active = source.status is Status.ACTIVE
        return source
