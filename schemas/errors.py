"""Every error Floodmark raises: a class with fields, whose message says who, what was expected, what came, what to do.

The blame is in the type: `UsageError` is the caller's, `CorruptRecordError` the topic's, `InfrastructureError` the
machine's, `PromiseBrokenError` a job's that would hand on a watermark its own rows contradict.
"""

from typing import ClassVar


class FloodmarkError(Exception):
    """The base of all errors of Floodmark.  Its fields are attributes of the same names."""

    template: ClassVar[str] = "{reason}"

    def __init__(self, **fields: object) -> None:
        """Keep the fields and write the message from them."""
        self.fields = fields
        self.__dict__.update(fields)
        super().__init__(self.template.format(**fields))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by fields, so that an error crosses processes whole."""
        return _rebuild, (type(self), self.fields)


def _rebuild(kind: type[FloodmarkError], fields: dict[str, object]) -> FloodmarkError:
    return kind(**fields)


class UsageError(FloodmarkError):
    """The caller asked for something that cannot be right."""


class InvalidEventTimeError(UsageError):
    """An event time that is no time."""

    template = "event time {value!r} cannot be used: {reason}"


class InvalidRecordError(UsageError):
    """A watermark record that contradicts itself; it cannot be built."""

    template = "watermark record of source {source!r}: {field} is {value!r}, expected {expected}"


class ReservedKeyError(UsageError):
    """A data record whose key begins with the prefix of watermark records."""

    template = (
        "data key {key!r} begins with the reserved prefix {prefix!r}: readers would take it for a watermark record; "
        "choose another key"
    )


class WatermarkRegressionError(UsageError):
    """A source took back a promise."""

    template = "source {source!r}: watermark went back from {last} to {received}; a promise cannot be taken back"


class LateRecordError(UsageError):
    """A source sent a record behind its own watermark, with ``on_late="raise"``."""

    template = (
        "source {source!r}: record with event time {event_time} is behind the source's own watermark {watermark}; "
        "use a strategy with more room for out-of-order records, or on_late='send'"
    )


class EndedError(UsageError):
    """A source was used after it said that it had ended."""

    template = "source {source!r} has ended: it cannot {action}; start a new epoch to write again"


class IdleError(UsageError):
    """A record of a source that readers take for idle, without the marks that say it is back."""

    template = "source {source!r} is idle: mark_active() and the marks that say so come before its next record"


class UnsupportedPartitionerError(UsageError):
    """A partitioner whose choice cannot be foretold, which the record counts need."""

    template = (
        "partitioner {partitioner!r} is not supported without an explicit partition; expected one of {supported}, "
        "or pass partition= with each record"
    )


class UnsupportedQueryError(UsageError):
    """A query that no watermark can drive to right results."""

    template = "{operator} is not supported: {reason}; {advice}"


class PlainQueryError(UsageError):
    """A DataFrame of ``read`` started with Spark's own ``writeStream``, where no watermark would ever move it."""

    template = (
        "a query over floodmark's read() of {topics} was started with writeStream, not with write(): its watermark "
        "would never move and its windows never close; give the DataFrame to floodmark.spark_jobs.write()"
    )


class CorruptRecordError(FloodmarkError):
    """A record in a topic that cannot be read.  Shells count it and go on; the watermark does not move."""


class UnreadableMarkError(CorruptRecordError):
    """A record under a mark key whose value is not a readable watermark record."""

    template = "mark with key {key!r} cannot be read: {reason}"


class UnreadableValueError(CorruptRecordError):
    """A data record whose value does not fit the expected schema."""

    template = "value of {size} bytes does not read as {schema}: {reason}"


class UnreadableTopicError(CorruptRecordError):
    """An input has ended, and not one record of a topic had an event time: it was read with the wrong reader."""

    template = (
        "topic {topic!r}: none of its {count} data record(s) has a readable event time, so no result can come of it; "
        "expected is what event_time reads, the first is in partition {partition} at offset {offset}: {cause}; "
        "check the format of the values, the name of the field and its unit"
    )


class SchemaError(UsageError):
    """An Avro schema that cannot be used."""

    template = "Avro schema {schema!r} cannot be used: {reason}"


class SnapshotError(FloodmarkError):
    """Progress stored earlier that cannot be used."""


class CorruptSnapshotError(SnapshotError):
    """A snapshot that is there but cannot be read."""

    template = "snapshot {where} cannot be read: {reason}; {advice}"


class MissingSnapshotError(SnapshotError):
    """Spark's checkpoint says a batch is done, but Floodmark's snapshot of it is not there."""

    template = "batch {batch_id} is committed in {checkpoint_location}, but its snapshot is missing; {advice}"


class ForeignCheckpointError(SnapshotError):
    """A checkpoint location that belongs to another job."""

    template = (
        "checkpoint location {checkpoint_location} belongs to {found}, not to {expected}; "
        "give each job a checkpoint_location of its own"
    )


class EventTimeShiftError(FloodmarkError):
    """A derived event time further before that of the input than `event_time` was told."""

    template = (
        "job {job!r}: a derived event time {event_time} is behind the watermark {watermark}, though event_time() "
        "allows for {shift}: operators would drop the row; give a larger shift= and a new checkpoint_location"
    )


class ChangedQueryError(SnapshotError):
    """A checkpoint whose state another version of the query has left."""

    template = (
        "job {job!r}: the state in {checkpoint_location} is that of another query; it had {stored!r}, now it is "
        "{found!r}; use a new checkpoint_location and a new output topic, or, where both mean the same, start once "
        "with --conf {setting}=true"
    )


class UnreadInputError(SnapshotError):
    """A job that has ended, and records that came after the end."""

    template = (
        "job {job!r} has ended, and handed the end on; since then {records} record(s) came that it will not read: "
        "{places}; use a new checkpoint_location and a new output topic to read the topics from their beginning"
    )


class InfrastructureError(FloodmarkError):
    """Something on the machine or the network is not as it must be."""


class BrokerUnavailableError(InfrastructureError):
    """No Kafka broker answered."""

    template = "no Kafka broker answered at {bootstrap_servers} within {seconds} s: {reason}"


class UnknownTopicError(InfrastructureError):
    """A topic that is not there."""

    template = "topic {topic!r} does not exist on {bootstrap_servers}; create it, or check the name"


class DeliveryError(InfrastructureError):
    """Records that Kafka did not take."""

    template = (
        "source {source!r}: {failed} record(s) for topic {topic!r} were not delivered, the first because of: {reason}; "
        "the watermark is held at {held_at} below them; send them again (WatermarkedProducer.resend) or start a new "
        "epoch"
    )


class FencedError(InfrastructureError):
    """Another instance with the same identity has taken over."""

    template = "job {job!r} was fenced: another instance with the same name is writing to {topic!r}; stop one of them"


class InjectorError(InfrastructureError):
    """An injection that cannot go on."""

    template = "injector {source!r}: {reason}; {advice}"


class JavaError(InfrastructureError):
    """No usable Java."""

    template = "Java {expected} is needed, found {found}: {advice}"


class EmbeddedKafkaError(InfrastructureError):
    """The embedded Kafka did not come up, or its jars could not be fetched."""

    template = "embedded Kafka: {reason}; see {log}"


class UnsupportedSparkError(InfrastructureError):
    """A Spark whose engine lacks what the drive needs."""

    template = (
        "Spark {version} cannot be driven: {missing} is not reachable ({reason}); supported are classic sessions "
        "(not Connect) of pyspark>=4.0,<5"
    )


class JobFailedError(FloodmarkError):
    """A streaming query ended with an error."""

    template = "job {job!r} failed: {reason}"


class DeadlineError(FloodmarkError):
    """Something awaited did not happen in time."""

    template = "{what} did not happen within {seconds} s; last seen: {last_seen}"


class PromiseBrokenError(FloodmarkError):
    """A job's output row lies behind the watermark that the job has already handed on."""

    template = (
        "job {job!r}: output row with event time {event_time} is behind the output watermark {watermark}, already "
        "written to {topic!r}; stamp results with the end of their window, or pass hold= (the longest time by which a "
        "result is stamped before its window closes)"
    )


class InvalidOutputError(FloodmarkError):
    """A job's output row that cannot be written."""

    template = "job {job!r}: {count} output row(s) of batch {batch_id} have {reason}; {advice}"
