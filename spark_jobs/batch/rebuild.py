"""Work a lost snapshot out again: read what the job had read, from the topics.

Bounded by retention: a mark that Kafka has deleted is missing, which only ever holds the watermark back until its
source speaks again.  Counts of the past are lost.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING
from floodmark.producers.clients.admin import Config
from floodmark.producers.readers.replay import read_to_end
from floodmark.schemas.codec import decode_watermark
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.errors import UnreadableMarkError
from floodmark.schemas.records import WatermarkRecord, is_mark_key, source_of
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
        for message in read_to_end(config, dict.fromkeys(ends, OFFSET_BEGINNING), ends):
            if is_mark_key(message.key()):
                _apply(tracker, message, promise)
            else:
                tally_row(counts, topic)  # whether it was of use is not known any more
        read.update(ends)
    tracker.advance()
    _log.warning("progress was rebuilt from the topics: watermark %s, %s", tracker.watermark, dict(tracker.counts))
    return Progress(tracker, next_watermark=tracker.watermark, counts=counts, record_counts=RecordCounts(read))


def _apply(tracker: Tracker, message: Any, promise: Promise) -> None:  # noqa: ANN401
    log_time = max(0, message.timestamp()[1])
    place: Any = {"topic": message.topic(), "partition": message.partition(), "log_time": log_time}
    try:
        record = decode_watermark(message.key(), message.value())
    except UnreadableMarkError as error:
        _log.warning("%s/%s@%s: %s", message.topic(), message.partition(), message.offset(), error)
        tracker.apply_unreadable(source_of(message.key()), offset=message.offset(), **place)
        return
    tracker.apply(promise(message.topic(), record), **place)
