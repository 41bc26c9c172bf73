"""Work a lost snapshot out again: read what the job had read, from the topics.

Bounded by retention: a mark that Kafka has deleted is missing, which only ever holds the watermark back until its
source speaks again.  Counts of the past are lost.
"""

import logging
from collections.abc import Mapping

from confluent_kafka import OFFSET_BEGINNING
from floodmark.producers.clients.admin import Config
from floodmark.producers.readers.replay import read_until_end
from floodmark.schemas.classify import Data, Offsets, Unreadable
from floodmark.schemas.counts import RecordCounts
from floodmark.schemas.tracker import Tracker
from floodmark.spark_jobs.progress.lateness import AS_IT_IS, Way, apply_mark
from floodmark.spark_jobs.progress.progress import Progress

_log = logging.getLogger(__name__)


def rebuild(inputs: Mapping[str, Config], offsets: Offsets, ways: Mapping[str, Way]) -> Progress:
    """Return the progress that the records before some offsets give.

    Args:
        inputs: the topics that the job reads, and the confluent-kafka settings to read each with.
        offsets: what the job reads next.
        ways: topic to how its marks count; not named: as they are.

    Raises:
        BrokerUnavailableError: where the topics cannot be read.
    """
    read, used = set[tuple[str, int]](), set[str]()
    tracker, promised = Tracker(inputs), Tracker(inputs)
    for topic, config in inputs.items():
        ends = {place: end for place, end in offsets.items() if place[0] == topic and end > 0}
        for record in read_until_end(config, dict.fromkeys(ends, OFFSET_BEGINNING), ends):
            if isinstance(record, Data):
                used.add(topic)  # whether it was of use is not known any more
                continue
            if isinstance(record, Unreadable):
                _log.warning("%s: %s", record.place, record.reason)
            way = ways.get(topic, AS_IT_IS)
            apply_mark(tracker, record, *way)
            apply_mark(promised, record, shift=way.shift)
        read.update(ends)
    tracker.advance()
    promised.advance()
    _log.warning("progress was rebuilt from the topics: watermark %s, %s", tracker.watermark, dict(tracker.counts))
    progress = Progress(
        tracker,
        next_watermark=tracker.watermark,
        record_counts=RecordCounts(read),
        promised=promised if any(way.percentile is not None for way in ways.values()) else None,
    )
    for topic in used:
        progress.tally(topic, 1, {})
    return progress
