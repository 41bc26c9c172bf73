"""What few users of `read` and `write` need to set: one frozen value each, checked when it is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args

from floodmark.schemas.errors import UsageError
from floodmark.schemas.records import Membership, membership_of
from floodmark.schemas.timestamps import duration_of
from floodmark.spark_jobs.batch.report import Batch
from floodmark.spark_jobs.progress.spark_watermark import WindowsClose
from floodmark.spark_jobs.reading.security import Client
from floodmark.spark_jobs.start.start_options import Start

Delivery = Literal["exactly-once", "at-least-once"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadOptions:
    """The rarer settings of `read`.

    Args:
        client: confluent-kafka settings (security and so on), or a function that returns them.  Spark's own Kafka
            client gets what it needs of them; a secret is best named by its place, see `reading.security`.
        source_options: options of Spark's Kafka source, for example ``startingTimestamp`` or
            ``kafka.max.poll.records``; they overrule Floodmark's.
        max_offsets_per_trigger: the most records of one batch, 1 or more, so that a backfill cannot exhaust the driver;
            ``"auto"``: as many as suit the machine, see `fitting_batch`; ``None``: no limit.
        adjusted: the name of an extra column with the time that counts.  It becomes Spark's event-time column, and the
            field of the value stays what it was.
        substream: the name of an extra column with the watermark of the record's key (header
            ``floodmark-substream``), for `windows_per_key`; null where there is none.
        percentile: 1 to 100: these percentile watermarks drive the job, where the sources send them: earlier results,
            more late rows.  `Batch.promised` keeps what all events together allow.

    Raises:
        UsageError: where a value is out of its bounds.

    >>> ReadOptions(percentile=101)
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: percentile is 101, expected 1 to 100
    """

    client: Client | None = field(default=None, repr=False)  # may hold secrets, as the options
    source_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_offsets_per_trigger: int | Literal["auto"] | None = "auto"
    adjusted: str | None = None
    substream: str | None = None
    percentile: int | None = None

    def __post_init__(self) -> None:
        if self.percentile is not None and self.percentile not in range(1, 101):
            raise UsageError(reason=f"percentile is {self.percentile}, expected 1 to 100")
        most = self.max_offsets_per_trigger
        if not (most is None or most == "auto" or (isinstance(most, int) and most >= 1)):
            reason = f"max_offsets_per_trigger is {most!r}, expected 1 or more, 'auto', or None"
            raise UsageError(reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteOptions:
    """The rarer settings of `write`.

    Args:
        bootstrap_servers: the address of the Kafka that is written to; ``None``: that of the input.
        client: confluent-kafka settings for the output (security and so on), or a function that returns them; they
            overrule those of `read`, which hold for the output, too, where ``bootstrap_servers`` is ``None``.
        sink_options: options of Spark's Kafka sink, for ``at-least-once``.
        delivery: ``exactly-once``: a transaction a batch, through the driver; ``at-least-once``: Spark's own sink on
            the executors, with duplicates after a crash.
        membership: how many jobs or producers write to the output topic.
        watermark_hold: how much earlier than its completion a result may be stamped, 0 or more: 0 for the end of a
            window, the window's length for its start.  The output watermark stays this far behind.
        windows_close: ``after``: a window ends when the watermark is past its end, and no row at exactly the watermark
            is dropped; ``at``: when the watermark reaches its end, see `spark_watermark`.
        lookahead: how long a batch is kept open at most, 0 or more, for the marks that decide the next one, which then
            closes its own windows; 0: a window comes out one batch after its mark.
        rebuild: where a snapshot is lost or damaged, work it out again from the topics, as far as they reach back,
            instead of raising; ``None``: as ``spark.floodmark.rebuild`` of the session says, which
            ``spark-submit --conf spark.floodmark.rebuild=true`` sets without a change of the program.
        start: where it begins without a checkpoint, see `Start`.
        on_batch: called with the `Batch` after each batch, on the query's own thread; what it raises fails the job.

    Raises:
        UsageError: where a value is out of its bounds.

    >>> WriteOptions(delivery="at-most-once")
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: delivery is 'at-most-once', expected 'exactly-once' or 'at-least-once'
    """

    bootstrap_servers: str | None = None
    client: Client | None = field(default=None, repr=False)  # may hold secrets, as the options
    sink_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    delivery: Delivery = "exactly-once"
    membership: Membership | int = 1
    watermark_hold: timedelta = timedelta(0)
    windows_close: WindowsClose = "after"
    lookahead: timedelta = timedelta(seconds=1)
    rebuild: bool | None = None
    start: Start = Start()  # noqa: RUF009  # frozen
    on_batch: Callable[[Batch], None] | None = None

    def __post_init__(self) -> None:
        for name in ("watermark_hold", "lookahead"):
            duration_of(getattr(self, name), name)
        membership_of(self.membership, "WriteOptions")
        for name, allowed in (("delivery", get_args(Delivery)), ("windows_close", get_args(WindowsClose))):
            value = getattr(self, name)
            if value not in allowed:
                raise UsageError(reason=f"{name} is {value!r}, expected {' or '.join(map(repr, allowed))}")
