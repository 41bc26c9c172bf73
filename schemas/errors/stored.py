"""Errors of what is stored: records of a topic, and snapshots of progress, that cannot be used.  Pure."""

from floodmark.schemas.errors.base import FloodmarkError


class CorruptRecordError(FloodmarkError):
    """A record in a topic that cannot be read.  Shells count it and go on; the watermark does not move."""


class UnreadableMarkError(CorruptRecordError):
    """A record under a mark key whose value is not a readable watermark record."""

    template = "mark with key {key!r} cannot be read: {reason}"
    key: bytes
    reason: str


class UnreadableValueError(CorruptRecordError):
    """A data record whose value does not fit the expected schema."""

    template = "value of {size} bytes does not read as {schema}: {reason}"
    size: int
    schema: str
    reason: str


class UnreadableTopicError(CorruptRecordError):
    """An input has ended, and not one record of a topic had an event time: it was read with the wrong reader."""

    template = (
        "topic {topic!r}: none of its {count} data record(s) has a readable event time, so no result can come of it; "
        "expected is what event_time reads, the first is in partition {partition} at offset {offset}: {cause}; "
        "check the format of the values, the name of the field and its unit"
    )
    topic: str
    count: int
    partition: int
    offset: int
    cause: str


class SnapshotError(FloodmarkError):
    """Progress stored earlier that cannot be used."""


class CorruptSnapshotError(SnapshotError):
    """A snapshot that is there but cannot be read."""

    template = "snapshot {where} cannot be read: {reason}; {advice}"
    where: str
    reason: str
    advice: str


class MissingSnapshotError(SnapshotError):
    """Spark's checkpoint says a batch is done, but Floodmark's snapshot of it is not there."""

    template = "batch {batch_id} is committed in {checkpoint_location}, but its snapshot is missing; {advice}"
    batch_id: int
    checkpoint_location: str
    advice: str


class ForeignCheckpointError(SnapshotError):
    """A checkpoint location that belongs to another job."""

    template = (
        "checkpoint location {checkpoint_location} belongs to {found}, not to {expected}; "
        "give each job a checkpoint_location of its own"
    )
    checkpoint_location: str
    found: str
    expected: str


class ChangedQueryError(SnapshotError):
    """A checkpoint whose state another version of the query has left."""

    template = (
        "job {job!r}: the state in {checkpoint_location} is that of another query; it had {stored!r}, now it is "
        "{found!r}; {advice}; or, where both mean the same, start once with --conf {setting}=true"
    )
    job: str
    checkpoint_location: str
    stored: str
    found: str
    setting: str
    advice: str


class UnreadInputError(SnapshotError):
    """A job that has ended, and records that came after the end."""

    template = (
        "job {job!r} has ended, and handed the end on; since then {records} record(s) came that it will not read: "
        "{places}; use a new checkpoint_location and a new output topic to read the topics from their beginning"
    )
    job: str
    records: str
    places: str


class PublishedError(SnapshotError):
    """A new checkpoint of a job whose results are in its output topic already: they would be there twice."""

    template = (
        "job {job!r} has written results to topic {topic!r}, {extent}. {checkpoint_location} is new, so the job would "
        "write them again. {advice}"
    )
    job: str
    topic: str
    watermark: int | None
    extent: str
    checkpoint_location: str
    advice: str


class ReplacedCheckpointError(SnapshotError):
    """An old checkpoint of a job that has published from a newer one since: its results would be there twice."""

    template = (
        "job {job!r} has published to topic {topic!r} from another checkpoint_location since batch {batch_id} of this "
        "one, which would write those results again; start it with the newer checkpoint_location, or take a new "
        "checkpoint_location and a new output topic"
    )
    job: str
    topic: str
    batch_id: int


class ContinueError(SnapshotError):
    """A job that cannot go on behind what its output topic has from it."""

    template = "job {job!r} cannot go on behind its results in topic {topic!r}: {reason}; take a new output topic"
    job: str
    topic: str
    reason: str


class DeletedRecordsError(SnapshotError):
    """Records that Kafka deleted before they were read."""

    template = (
        "partition {partition} of topic {topic!r}: Kafka has deleted records before they were read; the next offset is "
        "{position}, and the partition has the offsets from {earliest} to {end}; keep the topic longer (retention.ms), "
        "and start again without a stored position"
    )
    topic: str
    partition: int
    position: int
    earliest: int
    end: int


class RecreatedTopicError(SnapshotError):
    """A topic that was deleted and created again while it was read, or since it was read last."""

    template = (
        "topic {topic!r} was deleted and created again: {reader} has read the topic with id {known}, now its id is "
        "{found}; the stored offsets mean nothing in the new topic: start without them (a consumer without a "
        "position, a job with a new checkpoint_location and output topic, an injector with a new target topic)"
    )
    reader: str
    topic: str
    known: str
    found: str


class RetentionError(SnapshotError):
    """Records that a start needs, and that Kafka has deleted."""

    template = (
        "job {job!r} needs the records of {place} {since}, and Kafka has deleted some: it has those from offset "
        "{first} on, so the first results would lack rows; {advice}"
    )
    job: str
    place: str
    since: str
    first: int
    advice: str
