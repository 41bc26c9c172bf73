"""Errors of the caller: the call is wrong and has to change.  Pure."""

from typing import Any

from floodmark.schemas.errors.base import FloodmarkError


class UsageError(FloodmarkError):
    """A call with arguments that cannot be right, or at the wrong time."""

    template = "{reason}"

    def __init__(self, *, reason: str) -> None:
        self.reason = reason
        self.__post_init__()

    @staticmethod
    def unless_type(name: str, value: object, kinds: type | tuple[Any, ...], expected: str) -> None:
        """Raise the error if a value is of another type; the message does not show the value, which may be a secret.

        >>> UsageError.unless_type("wait", "5 seconds", (int, float), "a number of seconds")
        Traceback (most recent call last):
        floodmark.schemas.errors.UsageError: wait is a value of type str, expected a number of seconds
        >>> UsageError.unless_type("writer", dict, object, "a function")  # it can be called, and would do nothing else
        Traceback (most recent call last):
        floodmark.schemas.errors.UsageError: writer is the class dict, expected an instance: dict(...)
        """
        if isinstance(value, type):
            raise UsageError(
                reason=f"{name} is the class {value.__name__}, expected an instance: {value.__name__}(...)"
            )
        if not isinstance(value, kinds):
            raise UsageError(reason=f"{name} is a value of type {type(value).__name__}, expected {expected}")


class InvalidEventTimeError(UsageError):
    """An event time that is not a time."""

    template = "event time {value!r} cannot be used: {reason}"
    value: object
    reason: str


class InvalidRecordError(UsageError):
    """A watermark record with fields that contradict each other."""

    template = "watermark record of source {source!r}: {field} is {value!r}, expected {expected}"
    source: str
    field: str
    value: object
    expected: str


class ReservedKeyError(UsageError):
    """A data record whose key begins with the prefix of watermark records."""

    template = (
        "data key {key!r} begins with the reserved prefix {prefix!r}, so readers would take the record for a watermark "
        "record. Choose another key."
    )
    key: bytes | None
    prefix: bytes


class WatermarkRegressionError(UsageError):
    """A watermark lower than one that the source has already emitted."""

    template = (
        "source {source!r}: the watermark went back from {last!t} to {received!t}. A watermark must never decrease."
    )
    source: str
    last: int | None
    received: int | None


class LateRecordError(UsageError):
    """A source sent a record behind its own watermark, with ``on_late="raise"``."""

    template = (
        "source {source!r}: a record with event time {event_time!t} is behind the source's own watermark "
        "{watermark!t}. Use a strategy that allows more out-of-orderness, or on_late='send'."
    )
    source: str
    event_time: int
    watermark: int | None


class EndedError(UsageError):
    """A call to a source that has ended."""

    template = (
        "source {source!r} has ended and cannot {action}. To write again, create a new WatermarkedProducer, or let the "
        "pool join it again."
    )
    source: str
    action: str


class IdleError(UsageError):
    """A record of an idle source before the marks that say it is active again."""

    template = "source {source!r} is idle. Call mark_active(), and send its marks before the next record."
    source: str


class ForkedError(UsageError):
    """A source or pool used in a forked process, where its Kafka client does not run."""

    template = (
        "{owner} belongs to process {parent}. Process {child} was forked from it and has no Kafka client. Create a new "
        "one in the forked process, with another source id."
    )
    owner: str
    parent: int
    child: int


class UnsupportedPartitionerError(UsageError):
    """A partitioner whose choice Floodmark cannot compute; the record counts need it."""

    template = (
        "partitioner {partitioner!r} is not supported without an explicit partition. Use one of {supported}, or pass "
        "partition= with each record."
    )
    partitioner: object
    supported: str


class UnsupportedQueryError(UsageError):
    """A query for which no watermark gives correct results."""

    template = "{operator} is not supported: {reason}; {advice}"
    operator: str
    reason: str
    advice: str


class PlainQueryError(UsageError):
    """A DataFrame of ``read`` started with ``writeStream``, where its watermark never advances."""

    template = (
        "a query over floodmark's read() of {topics} was started with writeStream, not with write(). Its watermark "
        "would never advance and its windows never close. Pass the DataFrame to floodmark.spark_jobs.write()."
    )
    topics: str


class InvalidValueError(UsageError):
    """A value that does not fit the schema by which it is written."""

    template = "value {value} does not fit the Avro schema {schema}: {reason}. Give each field a value of its type."
    value: object
    schema: str
    reason: str


class SchemaError(UsageError):
    """An Avro schema that cannot be used."""

    template = "Avro schema {schema!r} cannot be used: {reason}"
    schema: str
    reason: str


class UnregisteredSchemaError(UsageError):
    """A schema that the registry does not have and that Floodmark may not register."""

    template = "schema registry {url}, subject {subject!r}: {reason}"
    url: str
    subject: str
    reason: str


class IncompatibleSchemaError(UsageError):
    """A schema that is not compatible with another one: of the subject, or of the records to read."""

    template = "schema of {schema} is not compatible: {reason}. Change the schema and restart; no record was skipped."
    schema: str
    reason: str


class TableColumnsError(UsageError):
    """A table whose columns are not those of the result."""

    template = (
        "job {job!r} cannot write to table {table!r}: {reason}. Select and cast the columns of the result, or alter "
        "the table."
    )
    job: str
    table: str
    reason: str
