"""The less common settings of `read` and `write`, checked when they are created."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import NoneType
from typing import Final, Literal, get_args

from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Membership, membership_of
from floodmark.schemas.timestamps import duration_of
from floodmark.spark_jobs.batch.report import Batch
from floodmark.spark_jobs.progress.watermarks import WindowsClose
from floodmark.spark_jobs.queries.source_options import check_source_options
from floodmark.spark_jobs.reading.security import Client
from floodmark.spark_jobs.start.start_options import Start

_ARGUMENTS: Final = {
    "kafka.bootstrap.servers": "the address as WriteOptions(bootstrap_servers=)",
    "topic": "the topic as write(topic=)",
}
"""Options of Spark's Kafka sink that would move the rows, but not the marks."""

Delivery = Literal["exactly-once", "exactly-once-executors", "at-least-once"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """The less common settings of `read`.

    Args:
        client: confluent-kafka settings (security and others), or a function that returns them.  They are converted
            for Spark's Kafka client.  To keep secrets out of Spark's plans, name their places, see `reading.security`.
        source_options: options of Spark's Kafka source, for example ``startingTimestamp`` or
            ``kafka.max.poll.records``; they override Floodmark's, except for the topics and the isolation level.
        max_offsets_per_trigger: the most records in one batch, 1 or more; ``"auto"``: as many as suit the machine, see
            `fitting_batch`, and fewer in the first one or two batches of a start; ``None``: no limit, so a backfill can
            exhaust the driver's memory.
        adjusted: the name of an extra column with the adjusted time, which becomes Spark's event-time column.  The
            field of the value is not changed.
        substream: the name of an extra column with the watermark of the record's key (header
            ``floodmark-substream``) less ``shift``, for `windows_per_key`; null without that header.
        percentile: 1 to 100: use these percentile watermarks, if the sources emit them: earlier results, more late
            rows.  `Batch.promised` has the full watermark.

    Raises:
        UsageError: if a value is out of its bounds.

    >>> ReadOptions(percentile=101)
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: percentile is 101, expected 1 to 100
    """

    client: Client | None = field(default=None, repr=False)  # it may hold secrets, and so may the options
    source_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_offsets_per_trigger: int | Literal["auto"] | None = "auto"
    adjusted: str | None = None
    substream: str | None = None
    percentile: int | None = None

    def __post_init__(self) -> None:
        if self.percentile is not None and self.percentile not in range(1, 101):
            raise UsageError(reason=f"percentile is {self.percentile!r}, expected 1 to 100")
        most = self.max_offsets_per_trigger
        if not (most is None or most == "auto" or (isinstance(most, int) and most >= 1)):
            reason = f"max_offsets_per_trigger is {most!r}, expected 1 or more, 'auto', or None"
            raise UsageError(reason=reason)
        check_source_options(self.source_options)


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteOptions:
    """The less common settings of `write`.

    Args:
        bootstrap_servers: Kafka's address for the output; default: that of the input.
        client: confluent-kafka settings for the output (security and others), or a function that returns them.  They
            override those of `read`, which also apply to the output unless ``bootstrap_servers`` is set.
        sink_options: options of Spark's Kafka sink, for ``at-least-once``.
        delivery: ``exactly-once``: one transaction per batch, through the driver; ``exactly-once-executors``: a
            transaction for each shard of a batch, on the executors, for results of any size, only to a topic;
            ``at-least-once``: Spark's own sink on the executors, with duplicates after a crash.
        membership: the number of jobs and producers that write to the output topic.
        watermark_hold: how much earlier than its completion a result may be stamped, 0 or more.  The output watermark
            stays this far behind.  Default: as far as the column ``event_time`` of `write` needs, for example the
            window's length for its start; 0 if the query does not tell it.
        windows_close: ``after``: a window closes when the watermark is past its end, and no row at exactly the
            watermark is dropped; ``at``: when the watermark reaches its end, see `spark_watermark`.
        lookahead: the longest time to wait, after a batch, for the marks of the next one, which then closes its own
            windows, 0 or more.  With 0, a window comes out one batch after its mark.
        rebuild: whether to rebuild a lost or damaged snapshot from the topics, as far as Kafka still has their records,
            instead of an error; default: the session's ``spark.floodmark.rebuild``, which ``spark-submit --conf
            spark.floodmark.rebuild=true`` sets.
        start: where a job with a new checkpoint starts, see `Start`.
        on_batch: called with the `Batch` after each batch, on the query's own thread; an exception fails the job.

    Raises:
        UsageError: if a value is out of its bounds.

    >>> WriteOptions(windows_close="never")
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: windows_close is 'never', expected 'after' or 'at'
    """

    bootstrap_servers: str | None = None
    client: Client | None = field(default=None, repr=False)  # it may hold secrets, and so may the options
    sink_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    delivery: Delivery = "exactly-once"
    membership: Membership | int = 1
    watermark_hold: timedelta | None = None
    windows_close: WindowsClose = "after"
    lookahead: timedelta = timedelta(seconds=1)
    rebuild: bool | None = None
    start: Start = Start()  # noqa: RUF009  # frozen
    on_batch: Callable[[Batch], None] | None = None

    def __post_init__(self) -> None:
        for name in ("watermark_hold", "lookahead"):
            if getattr(self, name) is not None:
                duration_of(getattr(self, name), name)
        membership_of(self.membership, "WriteOptions")
        for name in self.sink_options:
            if (instead := _ARGUMENTS.get(name.lower())) is not None:
                reason = f"sink option {name}: pass {instead}, for rows and marks alike"
                raise UsageError(reason=reason)
        UsageError.unless_type("start", self.start, Start, "Start(...), such as Start(published='continue')")
        UsageError.unless_type("on_batch", self.on_batch, (Callable, NoneType), "a function")
        for name, allowed in (("delivery", get_args(Delivery)), ("windows_close", get_args(WindowsClose))):
            value = getattr(self, name)
            if value not in allowed:
                raise UsageError(
                    reason=f"{name} is {value!r}, expected {', '.join(map(repr, allowed[:-1]))} or {allowed[-1]!r}"
                )
