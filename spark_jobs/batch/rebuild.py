"""Work a lost snapshot out again: read what the job had read, from the topics.

Bounded by retention: a mark that Kafka has deleted is missing, which only ever holds the watermark back until its
source speaks again.  Counts of the past are lost.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from confluent_kafka import OFFSET_BEGINNING
from floodmark.producers.clients.admin import Config
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.classify import Data, Mark
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.records import WatermarkRecord
from floodmark.schemas.tracker import Tracker
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.progress.reconcile import Offsets
from floodmark.spark_jobs.progress.unusable import tally_row

_log = logging.getLogger(__name__)
Promise = Callable[[str, WatermarkRecord], WatermarkRecord]


def rebuild(inputs: Mapping[str, Config], offsets: Offsets, promise: Promise) -> Progress:
    """Return the progress that the records before some offsets give.

    Args:
        inputs: the topics that the job reads, and the confluent-kafka settings to read each with.
        offsets: topic to partition (as text) to the offset that the job reads next.
        promise: what a mark of a topic says of the job's event times.

    Raises:
        BrokerUnavailableError: where the topics cannot be read.
    """
    tracker, read, counts = Tracker(inputs), set[tuple[str, int]](), Counter[str]()
    for topic, config in inputs.items():
        ends = {(topic, int(part)): end for part, end in (offsets.get(topic) or {}).items() if end > 0}
        for record in read_until_end(config, dict.fromkeys(ends, OFFSET_BEGINNING), ends):
            partition, log_time = record.partition, record.log_time
            if isinstance(record, Data):
                tally_row(counts, topic)  # whether it was of use is not known any more
            elif isinstance(record, Mark):
                tracker.apply(promise(topic, record.record), topic=topic, partition=partition, log_time=log_time)
            else:
                _log.warning("%s: %s", record.place, record.reason)
                tracker.apply_unreadable(
                    record.source, topic=topic, partition=partition, offset=record.offset, log_time=log_time
                )
        read.update(ends)
    tracker.advance()
    _log.warning("progress was rebuilt from the topics: watermark %s, %s", tracker.watermark, dict(tracker.counts))
    return Progress(tracker, next_watermark=tracker.watermark, counts=counts, record_counts=RecordCounts(read))
