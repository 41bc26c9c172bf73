"""Errors of what runs: machine and cluster, the results of a query, a job that failed or took too long.  Pure."""

from typing import ClassVar

from floodmark.schemas.errors.base import FloodmarkError


class ResultError(FloodmarkError):
    """Rows of a query that contradict what its job has said of them."""


class EventTimeShiftError(ResultError):
    """A derived event time further before that of the input than ``event_time(shift=)`` allows."""

    template = (
        "job {job!r}: a derived event time {event_time!t} is behind the watermark {watermark!t}. event_time() allows "
        "for a shift of {shift}, so operators would drop the row. Use a larger shift= and a new checkpoint_location."
    )
    job: str
    event_time: int
    watermark: int | None
    shift: object


class EventTimeUnitError(ResultError):
    """An input whose event times are all in January 1970, and its watermark is not: they are read in a wrong unit."""

    template = (
        "job {job!r}: no event time in the rows of {topic} is after {latest!t}, but its watermark is {watermark!t}. "
        "Their unit is probably {factor:,} times as long: {advice}, or change the expression of event_time. The batch "
        "has written no mark."
    )
    job: str
    topic: str
    latest: int
    watermark: int
    factor: int
    advice: str


class SubstreamError(ResultError):
    """A row whose window `windows_per_key` has already returned, by the watermark of the row's key."""

    template = (
        "a row of key {key!r} at {event_time!t} is behind the watermark {watermark!t} of its key, and its window is "
        "already complete. All records of a key must be in one partition of the input topic and of the injected topic: "
        "partition both topics by this key."
    )
    key: str
    event_time: int
    watermark: int


class InfrastructureError(FloodmarkError):
    """The machine, the network or the cluster failed."""


class BrokerUnavailableError(InfrastructureError):
    """No Kafka broker answered, or none could do what it was asked."""

    template = "Kafka at {bootstrap_servers} is not available: {reason}"
    bootstrap_servers: object
    seconds: float
    reason: str


class MissingRightError(BrokerUnavailableError):
    """Kafka refused a request, because the user lacks a right."""

    advice: ClassVar[str] = 'Your user lacks a right: see "Rights" in OPERATING.md'
    template = f"Kafka at {{bootstrap_servers}} refused: {{reason}} {advice}"


class UnknownTopicError(InfrastructureError):
    """A topic that does not exist, or that you may not describe."""

    template = (
        "topic {topic!r} does not exist on {bootstrap_servers}, or you have no right to describe it. Check the name "
        "and your rights. If it is new, create it: with create_topics(), or a copy with inject --create. If it was "
        "deleted, start over what has used it."
    )
    topic: str
    bootstrap_servers: object


class RegistryError(InfrastructureError):
    """A schema registry that did not answer, or whose answer cannot be used."""

    template = (
        "schema registry {url} could not {action}: {reason}. No record was skipped. Restart when the registry answers."
    )
    url: str
    action: str
    reason: str


class DeliveryError(InfrastructureError):
    """Records that Kafka did not accept."""

    template = (
        "source {source!r}: {failed} record(s) for topic {topic!r} were not delivered. The first error: {reason}. The "
        "watermark stays at {held_at!t}, below these records. Send them again with WatermarkedProducer.resend(). If "
        "Kafka never accepts one of them, because it is too large, or has no key in a compacted topic, each batch "
        "with it fails: keep WatermarkedProducer.failed, restart the producer, whose new run does not wait for them, "
        "and send the others."
    )
    source: str
    failed: int
    topic: str
    reason: str
    held_at: int | None


class UnacknowledgedError(DeliveryError):
    """Records or marks that `resend` does not send again: they are in flight, or Kafka rejected a mark."""

    template = (
        "source {source!r}: Kafka has not acknowledged {failed} record(s) or mark(s) for topic {topic!r}: {reason}. "
        "Readers may wait for them. Call flush(), end() or mark_idle() again."
    )


class FencedError(InfrastructureError):
    """Another instance with the same identity has taken over."""

    template = "{writer} was fenced in {topic!r}: {reason}; {advice}"
    writer: str
    topic: str
    reason: str
    advice: str


class OpenTransactionError(InfrastructureError):
    """Another writer's transaction that stays open, and hides what was committed after it began."""

    template = (
        "{reader} cannot read what it wrote last: a transaction has been open for many minutes in partition "
        "{partition} of topic {topic!r}, and hides the records from offset {offset} on. Nothing is lost. Find and "
        "abort it with Kafka's kafka-transactions.sh (find-hanging, abort), and start again."
    )
    reader: str
    topic: str
    partition: int
    offset: int


class InjectorError(InfrastructureError):
    """An injector that cannot continue."""

    template = "injector {source!r}: {reason}; {advice}"
    source: str
    reason: str
    advice: str


class TriggerError(InfrastructureError):
    """A trigger whose event was not delivered, or whose position cannot be stored."""

    template = "trigger {trigger!r}: {reason}; {advice}"
    trigger: str
    reason: str
    advice: str


class JavaError(InfrastructureError):
    """No usable Java."""

    template = "Java {expected} is required, but this machine has {found}: {advice}"
    expected: str
    found: str
    advice: str


class JarDownloadError(InfrastructureError):
    """Jars of Kafka, Spark or a connector that could not be downloaded from Maven."""

    template = "{name} could not be downloaded: {reason}. {advice}."
    name: str
    reason: str
    advice: str


class EmbeddedKafkaError(InfrastructureError):
    """The embedded Kafka did not start."""

    template = "embedded Kafka: {reason}; see {log}"
    reason: str
    log: object


class UnsupportedSparkError(InfrastructureError):
    """A Spark version whose engine lacks a part that jobs need."""

    template = (
        "Spark {version} is not supported: {missing} is not reachable ({reason}). Use a classic session (not Spark "
        "Connect) of pyspark>=4.0,<4.4."
    )
    version: str
    missing: str
    reason: str


class MissingConnectorError(InfrastructureError):
    """A Spark without the connector of a table."""

    template = "Spark {version} has no connector of {tables} tables: {reason}. {advice}."
    version: str
    tables: str
    reason: str
    advice: str


class TableError(InfrastructureError):
    """A table that cannot be read or written: its catalog does not answer, a right is missing, or a commit failed."""

    template = (
        "job {job!r} cannot use table {table!r}: {reason}. No row is lost. Check the catalog and the rights, and start "
        "the job again."
    )
    job: str
    table: str
    reason: str


class UnreadableTableError(InfrastructureError):
    """A table whose commits or rows a reader cannot read: a file or a right is missing, or its catalog is away."""

    template = (
        "table {table} cannot be read: {reason}. Check that it exists, and your rights to read its metadata and data; "
        "then try again."
    )
    table: str
    reason: str


class CheckpointAccessError(InfrastructureError):
    """A checkpoint whose files the job cannot read or write."""

    template = (
        "{path} of the checkpoint cannot be {action}: {reason}. Nothing is lost. Check its file system, and the job's "
        "rights to read and write it, and start the job again."
    )
    path: str
    action: str
    reason: str


class CheckpointFilesError(InfrastructureError):
    """A file system on which Spark cannot replace a file of its checkpoint, so state could be that of a failed run."""

    template = (
        "Spark cannot replace files in {checkpoint_location}: its {file_manager} renames a new file, and {file_system} "
        "keeps the existing one without an error. A batch that runs again would keep the state of its first run. On a "
        "local disk, set spark.hadoop.fs.file.impl=org.apache.hadoop.fs.LocalFileSystem before this process starts its "
        "first session. Or use Spark's default: spark.conf.unset('spark.sql.streaming.checkpointFileManagerClass')"
    )
    checkpoint_location: str
    file_manager: str
    file_system: str


class LookaheadError(InfrastructureError):
    """A batch read other marks than those from which its watermark was computed, so it wrote no mark."""

    template = (
        "job {job!r}: a batch ran with the watermark {watermark!t}, which the look ahead had read, but the marks that "
        "the batch itself read give only {found!t}. A topic that was deleted and created again causes this. No mark of "
        "the batch was written: start the job again, and it resumes from the batch before. "
        "WriteOptions(lookahead=timedelta(0)) turns the look ahead off."
    )
    job: str
    watermark: int
    found: int | None


class JobFailedError(FloodmarkError):
    """A streaming query ended with an error."""

    template = "job {job!r} failed: {reason}"
    job: str
    reason: str


class DeadlineError(FloodmarkError):
    """A wait that reached its timeout."""

    template = "{what} within {seconds} s. Last seen: {last_seen}"
    what: str
    seconds: float | None
    last_seen: object


class IncompletePeriodError(FloodmarkError):
    """A period of a topic that is not complete yet."""

    template = (
        "topic {topic!r} is incomplete before {end!t}: its watermark is {watermark!t}. It waits for {missing}. Try "
        "again later; floodmark why {topic} shows the cause."
    )
    topic: str
    watermark: int | None
    end: int
    missing: str


class PromiseBrokenError(ResultError):
    """An output row behind the watermark that the job has already emitted."""

    template = (
        "job {job!r}: an output row has event time {event_time!t}, but the job has already written the watermark "
        "{watermark!t} to {topic!r}. Use the end of the window as event_time, or set "
        "WriteOptions(watermark_hold=) to the longest time between the event time of a result and the end of its "
        "window. After published='continue', narrower windows need a new output."
    )
    job: str
    event_time: int
    watermark: int | None
    topic: str | None


class InvalidOutputError(ResultError):
    """An output row that cannot be written."""

    template = "job {job!r}: {count} output row(s) of batch {batch_id} have {reason}; {advice}"
    job: str
    count: int
    batch_id: int
    reason: str
    advice: str


class NondeterministicBatchError(ResultError):
    """A batch that ran again, and computed other rows than those that are written."""

    template = (
        "job {job!r}: batch {batch_id} ran again and computed other rows than before: topic {topic!r} has {written} "
        "row(s) of a shard, {computed} are computed now. Take out of the query what changes between two runs (random "
        "values, the clock, another table, a sum of DOUBLE, which depends on the order of rows), and start it with a "
        "new checkpoint_location and a new output topic"
    )
    job: str
    batch_id: int
    written: int
    computed: int
    topic: str
