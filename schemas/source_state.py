"""The last mark of a source in one partition, and its state over all partitions of a topic.  Pure."""

from dataclasses import dataclass, field
from typing import Any

from floodmark.schemas.records import Status, Verdict, WatermarkRecord, processing_time_of
from floodmark.schemas.timestamps import promisable


@dataclass(slots=True, eq=False)
class Member:
    """One source over all partitions of a topic."""

    version: int = 0  # the newest membership version of its marks
    reach: int = 0  # the partition count in its marks: it writes to no other partitions
    active_partitions: int = 0  # in how many partitions it is ACTIVE, with a lease that has not run out
    unended_partitions: int = 0

    @property
    def activity(self) -> tuple[bool, bool]:
        """Whether it is active in any partition, and whether it has not ended in any."""
        return self.active_partitions > 0, self.unended_partitions > 0


@dataclass(slots=True, eq=False)
class Roster:
    """The sources of a topic, and its newest membership."""

    version: int = 0
    size: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    joined: int = 0  # how many sources have marks of the current version

    def absent(self, number: int, reported: int) -> dict[str, Member]:
        """Return the sources that do not know a partition, and are active nowhere."""
        if self.joined == reported:
            return {}
        return {
            name: member
            for name, member in self.members.items()
            if member.version == self.version and member.active_partitions == 0 and member.reach <= number
        }


@dataclass(slots=True, eq=False)
class SourceState:
    """The last accepted mark of one source in one partition."""

    member: Member
    epoch: int = -1
    sequence: int = -1
    watermark: int | None = None  # below `END_OF_TIME`, which only ENDED gives
    status: Status = Status.ENDED
    version: int = 0
    records: int | None = None
    lease: int | None = None
    log_time: int = 0
    since: int = 0
    active: bool = False  # whether it is ACTIVE here and its lease has not run out
    processing_time: int | None = None  # See `processing_time_of`.  It is not in snapshots: the next mark has it.

    def refuse(self, record: WatermarkRecord) -> Verdict | None:
        """Return why a record is ignored; ``None``: it is accepted."""
        if record.epoch < self.epoch:
            return Verdict.FENCED
        if record.epoch > self.epoch:
            return None
        if record.sequence <= self.sequence:
            return Verdict.REPLAYED
        return Verdict.AFTER_END if self.status is Status.ENDED else None

    def replace(self, record: WatermarkRecord, log_time: int) -> Verdict:
        """Take over the next mark, except ``version``, ``lease`` and ``active``.

        REGRESSED means that its watermark is lower in the same epoch, and is not taken over.
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
        """Return the state as JSON values."""
        mark = [self.epoch, self.sequence, self.watermark, self.status.value, self.version, self.records, self.lease]
        return [*mark, self.log_time, self.since]

    @classmethod
    def of(cls, state: list[Any], member: Member) -> "SourceState":
        """Restore the `state`."""
        epoch, sequence, watermark, status, version, records, lease, log_time, since = state
        status, watermark = Status(status), None if watermark is None else promisable(watermark)
        active = status is Status.ACTIVE
        return cls(member, epoch, sequence, watermark, status, version, records, lease, log_time, since, active)
