"""Every error Floodmark raises: a class with typed fields; its message says who, what was expected, what to do.

The blame is in the type.  These families are caught, never raised themselves (but `UsageError`):

- `UsageError`: the caller asked for what cannot be right; change the call.
- `CorruptRecordError`: a topic holds what cannot be read; look at the place it names.
- `SnapshotError`: stored progress does not fit; restore it, rebuild it, or begin with a new place.
- `InfrastructureError`: the machine, the network or the cluster; mend it and start again.
- `ResultError`: the query gives rows that contradict what the job has said of them; change the query.

`JobFailedError` and `DeadlineError` blame nobody: their reason says what was seen.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, dataclass_transform


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclass(kw_only=True, eq=False, repr=False)
class FloodmarkError(Exception):
    """The base of all errors of Floodmark: a kind declares its fields and the template of its message.

    Fields are keyword arguments and attributes.  A field that is missing or misspelt is a `TypeError`, and so is an
    attempt to raise a family of errors.

    >>> UnknownTopicError(topic="clicks", bootstrap_servers="localhost:9092").topic
    'clicks'
    """

    template: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        """Give each kind the keyword arguments that its fields say."""
        super().__init_subclass__()
        cls.template = cls.__dict__.get("template", "")
        dataclass(kw_only=True, eq=False, repr=False)(cls)

    def __post_init__(self) -> None:
        if not self.template:
            raise TypeError(f"{type(self).__name__} is a family of errors: raise one of its kinds")
        super().__init__(self.template.format(**self._fields()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by fields, so that an error crosses processes whole."""
        return _rebuild, (type(self), self._fields())

    def _fields(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("__")}


def _rebuild(kind: type[FloodmarkError], fields: dict[str, Any]) -> FloodmarkError:
    return kind(**fields)


class UsageError(FloodmarkError):
    """The caller asked for something that cannot be right."""

    template = "{reason}"

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        self.__post_init__()


class InvalidEventTimeError(UsageError):
    """An event time that is no time."""

    template = "event time {value!r} cannot be used: {reason}"
    value: object
    reason: str


class InvalidRecordError(UsageError):
    """A watermark record that contradicts itself; it cannot be built."""

    template = "watermark record of source {source!r}: {field} is {value!r}, expected {expected}"
    source: str
    field: str
    value: object
    expected: str


class ReservedKeyError(UsageError):
    """A data record whose key begins with the prefix of watermark records."""

    template = (
        "data key {key!r} begins with the reserved prefix {prefix!r}: readers would take it for a watermark record; "
        "choose another key"
    )
    key: bytes | None
    prefix: bytes


class WatermarkRegressionError(UsageError):
    """A source took back a promise."""

    template = "source {source!r}: watermark went back from {last} to {received}; a promise cannot be taken back"
    source: str
    last: int | None
    received: int | None


class LateRecordError(UsageError):
    """A source sent a record behind its own watermark, with ``on_late="raise"``."""

    template = (
        "source {source!r}: record with event time {event_time} is behind the source's own watermark {watermark}; "
        "use a strategy with more room for out-of-order records, or on_late='send'"
    )
    source: str
    event_time: int
    watermark: int | None


class EndedError(UsageError):
    """A source was used after it had ended."""

    template = "source {source!r} has ended: it cannot {action}; start a new epoch to write again"
    source: str
    action: str


class IdleError(UsageError):
    """A record of a source that readers take for idle, without the marks that say it is back."""

    template = "source {source!r} is idle: mark_active() and the marks that say so come before its next record"
    source: str


class UnsupportedPartitionerError(UsageError):
    """A partitioner whose choice cannot be foretold, which the record counts need."""

    template = (
        "partitioner {partitioner!r} is not supported without an explicit partition; expected one of {supported}, "
        "or pass partition= with each record"
    )
    partitioner: object
    supported: str


class UnsupportedQueryError(UsageError):
    """A query that no watermark can drive to right results."""

    template = "{operator} is not supported: {reason}; {advice}"
    operator: str
    reason: str
    advice: str


class PlainQueryError(UsageError):
    """A DataFrame of ``read`` started with Spark's own ``writeStream``, where no watermark would ever move it."""

    template = (
        "a query over floodmark's read() of {topics} was started with writeStream, not with write(): its watermark "
        "would never move and its windows never close; give the DataFrame to floodmark.spark_jobs.write()"
    )
    topics: str


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


class InvalidValueError(UsageError):
    """A value that cannot be written, because it does not fit the schema."""

    template = "value {value} does not fit the Avro schema {schema}: {reason}; give every field a value of its type"
    value: object
    schema: str
    reason: str


class SchemaError(UsageError):
    """An Avro schema that cannot be used."""

    template = "Avro schema {schema!r} cannot be used: {reason}"
    schema: str
    reason: str


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


class ResultError(FloodmarkError):
    """Rows of a query that contradict what its job has said of them."""


class EventTimeShiftError(ResultError):
    """A derived event time further before that of the input than ``event_time(shift=)`` allows."""

    template = (
        "job {job!r}: a derived event time {event_time} is behind the watermark {watermark}, though event_time() "
        "allows for {shift}: operators would drop the row; give a larger shift= and a new checkpoint_location"
    )
    job: str
    event_time: int
    watermark: int | None
    shift: object


class ChangedQueryError(SnapshotError):
    """A checkpoint whose state another version of the query has left."""

    template = (
        "job {job!r}: the state in {checkpoint_location} is that of another query; it had {stored!r}, now it is "
        "{found!r}; use a new checkpoint_location and a new output topic, or, where both mean the same, start once "
        "with --conf {setting}=true"
    )
    job: str
    checkpoint_location: str
    stored: str
    found: str
    setting: str


class UnreadInputError(SnapshotError):
    """A job that has ended, and records that came after the end."""

    template = (
        "job {job!r} has ended, and handed the end on; since then {records} record(s) came that it will not read: "
        "{places}; use a new checkpoint_location and a new output topic to read the topics from their beginning"
    )
    job: str
    records: str
    places: str


class InfrastructureError(FloodmarkError):
    """Something on the machine or the network is not as it must be."""


class BrokerUnavailableError(InfrastructureError):
    """No Kafka broker answered."""

    template = "no Kafka broker answered at {bootstrap_servers} within {seconds} s: {reason}"
    bootstrap_servers: object
    seconds: float
    reason: str


class UnknownTopicError(InfrastructureError):
    """A topic that is not there."""

    template = "topic {topic!r} does not exist on {bootstrap_servers}; create it, or check the name"
    topic: str
    bootstrap_servers: object


class DeliveryError(InfrastructureError):
    """Records that Kafka did not take."""

    template = (
        "source {source!r}: {failed} record(s) for topic {topic!r} were not delivered, the first because of: {reason}; "
        "the watermark is held at {held_at} below them; send them again (WatermarkedProducer.resend) or start a new "
        "epoch"
    )
    source: str
    failed: int
    topic: str
    reason: str
    held_at: int | None


class FencedError(InfrastructureError):
    """Another instance with the same identity has taken over."""

    template = "job {job!r} was fenced: another instance with the same name is writing to {topic!r}; stop one of them"
    job: str
    topic: str


class InjectorError(InfrastructureError):
    """An injection that cannot go on."""

    template = "injector {source!r}: {reason}; {advice}"
    source: str
    reason: str
    advice: str


class JavaError(InfrastructureError):
    """No usable Java."""

    template = "Java {expected} is needed, found {found}: {advice}"
    expected: str
    found: str
    advice: str


class EmbeddedKafkaError(InfrastructureError):
    """The embedded Kafka did not come up, or its jars could not be fetched."""

    template = "embedded Kafka: {reason}; see {log}"
    reason: str
    log: object


class UnsupportedSparkError(InfrastructureError):
    """A Spark whose engine lacks what the drive needs."""

    template = (
        "Spark {version} cannot be driven: {missing} is not reachable ({reason}); supported are classic sessions "
        "(not Connect) of pyspark>=4.0,<5"
    )
    version: str
    missing: str
    reason: str


class JobFailedError(FloodmarkError):
    """A streaming query ended with an error."""

    template = "job {job!r} failed: {reason}"
    job: str
    reason: str


class DeadlineError(FloodmarkError):
    """Something awaited did not happen in time."""

    template = "{what} did not happen within {seconds} s; last seen: {last_seen}"
    what: str
    seconds: float | None
    last_seen: object


class PromiseBrokenError(ResultError):
    """A job's output row lies behind the watermark that the job has already handed on."""

    template = (
        "job {job!r}: output row with event time {event_time} is behind the output watermark {watermark}, already "
        "written to {topic!r}; stamp results with the end of their window, or set "
        "WriteOptions(watermark_hold=), the longest time by which a result is stamped before its window closes"
    )
    job: str
    event_time: int
    watermark: int | None
    topic: str | None


class InvalidOutputError(ResultError):
    """A job's output row that cannot be written."""

    template = "job {job!r}: {count} output row(s) of batch {batch_id} have {reason}; {advice}"
    job: str
    count: int
    batch_id: int
    reason: str
    advice: str
