"""Rebuild a lost snapshot: read from the topics what the job had read.

Marks that Kafka has deleted are missing, which only holds the watermark back until their sources emit new ones.  The
counts of earlier batches are lost.
"""

import logging
from collections.abc import Sequence

from confluent_kafka import OFFSET_BEGINNING
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.classify import Data, Offsets, Unreadable
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.tracker import Tracker, apply_mark
from floodmark.spark_jobs.progress.progress import Progress
from floodmark.spark_jobs.reading.source_spec import SourceSpec

_log = logging.getLogger(__name__)


def rebuild(specs: Sequence[SourceSpec], offsets: Offsets) -> Progress:
    """Return the progress that the records before ``offsets`` give.

    Raises:
        BrokerUnavailableError: if the topics cannot be read.
    """
    read, used = set[tuple[str, int]](), set[str]()
    topics = [topic for spec in specs for topic in spec.topics]
    tracker, full = Tracker(topics), Tracker(topics)
    for spec in specs:
        ends = {place: end for place, end in offsets.items() if place[0] in spec.topics and end > 0}
        for record in read_until_end(spec.connection.config(), dict.fromkeys(ends, OFFSET_BEGINNING), ends):
            if isinstance(record, Data):
                used.add(record.topic)  # unknown whether any record was usable: count one that was
                continue
            if isinstance(record, Unreadable):
                _log.warning("%s: %s", record.place, record.reason)
            apply_mark(tracker, record, *spec.mark_policy)
            apply_mark(full, record, shift=spec.shift)
        read.update(ends)
    tracker.advance()
    full.advance()
    _log.warning("progress was rebuilt from the topics: watermark %s, %s", tracker.watermark, dict(tracker.counts))
    progress = Progress(
        tracker,
        next_watermark=tracker.watermark,
        record_counts=RecordCounts(read),
        full_tracker=full if any(spec.percentile is not None for spec in specs) else None,
    )
    for topic in used:
        progress.tally(topic, 1, {})
    return progress
