"""Work a lost snapshot out again: read what the job had read, from the topics.

Bounded by retention: a mark that Kafka has deleted is missing, which only ever holds the watermark back until its
source speaks again.  Counts of the past are lost.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from floodmark.producers.kafka import TIMEOUT, Config
from floodmark.schemas.codec import decode_watermark
from floodmark.schemas.errors import UnreadableControlRecordError
from floodmark.schemas.ledger import Ledger
from floodmark.schemas.records import is_control_key
from floodmark.schemas.tracker import Tracker
from floodmark.spark_jobs.progress import Progress

_log = logging.getLogger(__name__)
_BATCH: Final = 10_000


def rebuild(config: Config, topics: set[str], offsets: Mapping[str, Mapping[str, int]]) -> Progress:
    """Return the progress that the records before some offsets give.

    Args:
        config: confluent-kafka consumer settings.
        topics: what the job reads.
        offsets: topic to partition (as text) to the offset that the job reads next.

    Raises:
        KafkaException: where the topics cannot be read.
    """
    tracker = Tracker(topics)
    ends = {(topic, int(part)): end for topic, parts in offsets.items() for part, end in parts.items() if end > 0}
    fixed = {"enable.auto.commit": False, "enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer({"group.id": "floodmark-rebuild", **config, **fixed}, logger=_log)
    try:
        consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for topic, part in ends])
        open_ = set(ends)
        while open_:
            for message in consumer.consume(_BATCH, TIMEOUT if len(open_) == len(ends) else 0.5):
                place = (str(message.topic()), int(message.partition() or 0))
                if not _is_before(message, ends[place]):
                    open_.discard(place)
                elif message.error() is None:
                    _apply(tracker, message)
    finally:
        consumer.close()
    tracker.advance()
    _log.warning("progress was rebuilt from the topics: watermark %s, %s", tracker.watermark, dict(tracker.counts))
    return Progress(tracker, applied=tracker.watermark, ledger=Ledger(ends))


def _is_before(message: Any, end: int) -> bool:  # noqa: ANN401  # a message, or the word that a partition is at its end
    error = message.error()
    if error is None:
        return int(message.offset()) < end
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # its public name
        return False
    if not error.retriable():
        raise KafkaException(error)
    return True


def _apply(tracker: Tracker, message: Any) -> None:  # noqa: ANN401
    if not is_control_key(message.key()):
        return
    try:
        record = decode_watermark(message.key(), message.value())
    except UnreadableControlRecordError as error:
        _log.warning("%s/%s@%s: %s", message.topic(), message.partition(), message.offset(), error)
        return
    log_time = max(0, message.timestamp()[1])
    tracker.apply(record, topic=message.topic(), partition=message.partition(), log_time=log_time)
