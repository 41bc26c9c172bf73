"""The last statement of a source in one partition, and in all partitions of a topic together.  Pure."""

from dataclasses import dataclass, field
from typing import Any

from floodmark.schemas.records import Status, Verdict, WatermarkRecord, processing_time_of
from floodmark.schemas.timestamps import promisable


@dataclass(slots=True, eq=False)
class Member:
    """One source over all partitions of a topic."""

    version: int = 0
    """The newest version of the membership that it spoke under."""
    reach: int = 0
    """How many partitions it knows: it writes to no others."""
    active_partitions: int = 0
    """In how many partitions it is ACTIVE with its lease not run out."""
    unended_partitions: int = 0
    """In how many partitions it has not ENDED."""

    @property
    def activity(self) -> tuple[bool, bool]:
        """Whether it is active anywhere, and whether it has yet to end anywhere."""
        return self.active_partitions > 0, self.unended_partitions > 0


@dataclass(slots=True, eq=False)
class Roster:
    """Who is expected to write to a topic: its newest membership, and its sources."""

    version: int = 0
    size: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    joined: int = 0
    """How many sources have spoken under the current version."""

    def absent(self, number: int, reported: int) -> dict[str, Member]:
        """Return the sources that do not know of a partition and are active in none that they know."""
        if self.joined == reported:
            return {}
        return {
            name: member
            for name, member in self.members.items()
            if member.version == self.version and member.active_partitions == 0 and member.reach <= number
        }


@dataclass(slots=True, eq=False)
class SourceState:
    """The last statement of one source in one partition."""

    member: Member
    epoch: int = -1
    sequence: int = -1
    watermark: int | None = None
    """Below the end of time, which is reached by the end alone."""
    status: Status = Status.ENDED
    version: int = 0
    records: int | None = None
    lease: int | None = None
    log_time: int = 0
    since: int = 0
    active: bool = False
    """Whether it is ACTIVE here and its lease has not run out."""
    processing_time: int | None = None
    """Up to when it has worked off what came to it, see `processing_time_of`; ``None``: not known.

    It is not kept in snapshots: the next record tells it."""

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
        self.processing_time = processing_time_of(record)
        watermark = None if record.watermark is None else promisable(record.watermark)
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
        epoch, sequence, watermark, status, version, records, lease, log_time, since = state
        status, watermark = Status(status), None if watermark is None else promisable(watermark)
        active = status is Status.ACTIVE
        return cls(member, epoch, sequence, watermark, status, version, records, lease, log_time, since, active)
