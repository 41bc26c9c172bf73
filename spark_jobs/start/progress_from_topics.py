"""The progress that the records before some offsets give, read by Spark's own tasks."""

from collections.abc import Iterator, Sequence
from typing import Final

from floodmark.producers.clients.admin import TopicWatch, offset_bounds
from floodmark.schemas.classify import AnyMark, Data, Offsets, classify
from floodmark.schemas.completeness.position import TopicIds, TopicUser
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.records import KEY_PREFIX
from floodmark.schemas.timestamps import END_OF_TIME
from floodmark.schemas.tracker import Tracker
from floodmark.spark_jobs.batch.observed_batch import is_to_end
from floodmark.spark_jobs.batch.reread import records_of
from floodmark.spark_jobs.batch.resume import begin_epoch
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from floodmark.spark_jobs.start.start_point import StartPoint
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention


class ProgressFromTopics:
    """The progress of a job that has read its topics up to some offsets, which only advance.

    It reads all marks that Kafka still has, not only the newest ones: also a source that has been silent for a long
    time holds the watermark.
    """

    def __init__(self, spark: SparkSession, job: str, specs: Sequence[SourceSpec], start_point: StartPoint) -> None:
        self._spark, self._specs = spark, specs
        ids = TopicIds(start_point.ids)
        for spec in specs:  # a start that resumes after a crash may have offsets of an earlier topic
            TopicWatch(spec.connection.config(), spec.topics, ids, TopicUser.job(job))
        bounds = {
            place: bound
            for spec in specs
            for topic in spec.topics
            for place, bound in offset_bounds(spec.connection.config(), topic).items()
        }
        self.has_records: Final = any(end > first for first, end in bounds.values())  # whether Kafka has a record
        self._read = {place: first for place, (first, _) in bounds.items()}
        replayed = start_point.replayed or start_point.begins  # rows of a replay are not counted
        self._has_read = start_point.continues
        self._tracker = Tracker([topic for spec in specs for topic in spec.topics])
        self.progress = Progress(
            self._tracker,
            output=start_point.output,
            epoch=start_point.epoch,
            record_counts=RecordCounts({place for place, offset in replayed.items() if offset > 0}),
        )
        self.progress.topic_ids.update(ids)
        begin_epoch(self.progress, specs, start_point.epoch)

    def read_to(self, end: Offsets, *, advance: bool = True) -> None:
        """Read the marks before some offsets into the progress.

        ``advance``: its watermark, too.  Between cuts that are not of one time, topics may be further apart than they
        ever were, and an idle one may be passed by.
        """
        policies = {topic: spec.mark_policy for spec in self._specs for topic in spec.topics}
        unread = [(spec, ends) for spec in self._specs if (ends := self._unread(spec, end))]
        marks = [mark for spec, ends in unread for mark in self._marks(spec, ends)]
        self.progress.apply(marks, policies, lambda: is_to_end(self._specs, end), advance=advance)
        self._tracker.counts.clear()  # those of the new checkpoint begin at 0
        for spec, _ in unread if self._has_read else ():
            self.progress.tally(spec.topics[0], 1, {}, END_OF_TIME)  # what they were is unknown: count a good one
        self._read |= end

    def _unread(self, spec: SourceSpec, end: Offsets) -> Offsets:
        return {place: at for place, at in end.items() if place[0] in spec.topics and at > self._read.get(place, 0)}

    def _marks(self, spec: SourceSpec, end: Offsets) -> Iterator[AnyMark]:
        records = records_of(self._spark, spec, self._read, end).where(F.startswith(F.col("key"), F.lit(KEY_PREFIX)))
        columns = ("topic", "partition", "offset", F.unix_millis("timestamp").alias("log_time"), "key", "value")
        found = records.select(*columns).toArrow().sort_by([(name, "ascending") for name in columns[:3]])
        for row in found.to_pylist():
            record = classify(**row)
            if not isinstance(record, Data):
                yield record
