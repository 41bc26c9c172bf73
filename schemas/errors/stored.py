"""Errors of what is stored: records of a topic, and snapshots of progress, that cannot be used.  Pure."""

from floodmark.schemas.errors.base import FloodmarkError


class CorruptRecordError(FloodmarkError):
    """A record that cannot be read.  Readers count it and continue; the watermark does not advance."""


class UnreadableMarkError(CorruptRecordError):
    """A record under a mark key whose value is not a readable watermark record."""

    template = "mark with key {key!r} cannot be read: {reason}"
    key: bytes
    reason: str


class UnreadableTableMarkError(CorruptRecordError):
    """A commit of a table whose Floodmark properties cannot be read; readers use the commit before."""

    template = "property {name} of a commit is {value!r}, expected {expected}"
    name: str
    value: object
    expected: str


class UnreadableValueError(CorruptRecordError):
    """A data record whose value does not fit the expected schema."""

    template = "a value of {size} bytes cannot be read as {schema}: {reason}"
    size: int
    schema: str
    reason: str


class UnreadableTopicError(CorruptRecordError):
    """No record that was read has a readable event time: the format or the time field is wrong."""

    template = (
        "topic {topic!r}: none of its {count} data record(s) has a readable event time. The first one is in "
        "partition {partition} at offset {offset}: {cause}. Check the format of the values, the name of the time field "
        "and its unit."
    )
    topic: str
    count: int
    partition: int
    offset: int
    cause: str


class SnapshotError(FloodmarkError):
    """Stored progress that cannot be used."""


class CorruptSnapshotError(SnapshotError):
    """A snapshot that exists but cannot be read."""

    template = "snapshot {where} cannot be read: {reason}; {advice}"
    where: str
    reason: str
    advice: str


class MissingSnapshotError(SnapshotError):
    """Spark has committed a batch, but a file that Floodmark wrote before does not exist."""

    template = "batch {batch_id} is committed in {checkpoint_location}, but {name} is missing; {advice}"
    batch_id: int
    checkpoint_location: str
    name: str
    advice: str


class ForeignCheckpointError(SnapshotError):
    """A checkpoint location that belongs to another job."""

    template = (
        "checkpoint location {checkpoint_location} belongs to {found}, not to {expected}. Use a separate "
        "checkpoint_location for each job.{advice}"
    )
    checkpoint_location: str
    found: str
    expected: str
    advice: str


class ChangedEventTimeError(SnapshotError):
    """A consumer whose ``event_time`` does not give records the times that it gave them before the stored position."""

    template = (
        "event_time gives other times than when the position was stored: {place} {before} then, and {now} now. Rows "
        "would be missing, or come twice. Use the event_time that you had, or a consumer without position=, and an "
        "empty store."
    )
    place: str
    before: str
    now: str


class ChangedQueryError(SnapshotError):
    """A checkpoint with the state of another query."""

    template = (
        "job {job!r}: the state in {checkpoint_location} belongs to another query. Before: {stored}; now: "
        "{found}. To keep the state, change the query back; otherwise, {advice}. If both mean the same, start once "
        "with the setting {setting}=true."
    )
    job: str
    checkpoint_location: str
    stored: str
    found: str
    setting: str
    advice: str


class UnreadInputError(SnapshotError):
    """A job or consumer that has ended, and whose input has new records after the end."""

    template = (
        "the input of {reader} has ended, but then received {records} record(s) that will not be read: {places}. A "
        "source that will write again must not end. To read the topics from the beginning, {advice}."
    )
    reader: str
    records: str
    places: str
    advice: str


class PublishedError(SnapshotError):
    """A new checkpoint of a job that has written results from another one: the job would write them twice."""

    template = (
        "job {job!r} has {extent}. {checkpoint_location} is new, so the job would write its results again. {advice}"
    )
    job: str
    output: str
    watermark: int | None
    extent: str
    checkpoint_location: str
    advice: str


class ReplacedCheckpointError(SnapshotError):
    """An old checkpoint, or an old copy of one, of a job that has since written: it would double or lose results."""

    template = (
        "job {job!r} has written to {output} from another checkpoint_location, another instance, or a newer copy of "
        "this one, since batch {batch_id} of this one. Results would be written twice, or be missing. If another "
        "instance runs, keep only one. If a newer checkpoint is lost, use a new checkpoint_location and "
        'Start(published="continue"). Otherwise, start the job with the newer one, or use a new checkpoint_location '
        "and {new_output}."
    )
    job: str
    output: str
    batch_id: int
    new_output: str


class ContinueError(SnapshotError):
    """A job that cannot continue after its existing results."""

    template = "job {job!r} cannot continue after its results in {output}: {reason}. Use {new_output}."
    job: str
    output: str
    reason: str
    new_output: str


class DeletedRecordsError(SnapshotError):
    """Records that Kafka deleted before they were read."""

    template = (
        "partition {partition} of topic {topic!r}: Kafka deleted records before they were read. The next offset to "
        "read is {position}, and the partition has the offsets from {earliest} to {end}. Increase retention.ms of the "
        "topic, unless it was created again or emptied (inject --reset). Start a consumer without a position, a job "
        "with a new checkpoint_location and output, a trigger with a new name."
    )
    topic: str
    partition: int
    position: int
    earliest: int
    end: int


class RecreatedTopicError(SnapshotError):
    """A topic that was deleted and created again while it was read or written, or since then."""

    template = (
        "topic {topic!r} was deleted and created again: {reader} has used the topic with id {known}, and now its id is "
        "{found}. What it knows of the old topic does not apply to the new one. {advice}."
    )
    reader: str
    topic: str
    known: str
    found: str
    advice: str


class UnmarkedTableError(SnapshotError):
    """A table in whose history no commit of a Floodmark job is left."""

    template = "table {table} has no watermark: {reason}. {advice}."
    table: str
    reason: str
    advice: str


class ForeignTableError(SnapshotError):
    """A table that another job writes; with two jobs, no watermark of it would be true."""

    template = (
        "job {job!r} cannot write to table {table!r}: job {owner!r} writes it. Use a table of its own for each job."
    )
    job: str
    table: str
    owner: str


class RetentionError(SnapshotError):
    """Records that a job needs at its start, or that a period has, and that Kafka has deleted."""

    template = (
        "{reader} needs the records of {place} {since}, but Kafka has deleted some of them: the first offset is "
        "{first}. The first results would lack rows; {advice}"
    )
    reader: str
    place: str
    since: str
    first: int
    advice: str
