"""Errors of the caller: something was asked for that cannot be right; change the call.  Pure."""

from floodmark.schemas.errors.base import FloodmarkError


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

    template = "source {source!r}: watermark went back from {last!t} to {received!t}; a promise cannot be taken back"
    source: str
    last: int | None
    received: int | None


class LateRecordError(UsageError):
    """A source sent a record behind its own watermark, with ``on_late="raise"``."""

    template = (
        "source {source!r}: record with event time {event_time!t} is behind the source's own watermark "
        "{watermark!t}; "
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


class ForkedError(UsageError):
    """A source or a pool used in a process forked from its own, where its Kafka client does not run."""

    template = (
        "{owner} belongs to process {parent}; in process {child}, forked from it, it has no Kafka client and must not "
        "speak for the same source: make a new one there, with a source id of its own"
    )
    owner: str
    parent: int
    child: int


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


class UnregisteredSchemaError(UsageError):
    """A schema to write by, which the registry does not have, and which is not to be registered."""

    template = "schema registry {url}, subject {subject!r}: {reason}"
    url: str
    subject: str
    reason: str


class IncompatibleSchemaError(UsageError):
    """A schema that does not go together with another one: of a subject, or of the records to read."""

    template = "schema of {schema} is not compatible: {reason}; change it, and start again: nothing is skipped"
    schema: str
    reason: str
