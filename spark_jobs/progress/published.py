"""What a job has published: how far it had read, and with which watermark of Spark.  Pure.

A header of the marks behind each batch says it, in the same transaction, so that the output topic alone tells another
checkpoint where to go on.
"""

import json
from dataclasses import dataclass, field
from typing import Final

from floodmark.schemas.classify import Offsets
from floodmark.schemas.completeness.position import TopicIds
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.spark_jobs.progress.offsets import from_spark, to_spark

FORMAT: Final = 1
READ_HEADER: Final = "floodmark-read"
"""The header of a job's marks in partition 0 that holds it."""


@dataclass(frozen=True, slots=True)
class Published:
    """A batch whose rows are in the output topic, as are those of all batches before.

    Args:
        read: where it ended.
        ran: the watermark that it ran with, as Spark counts it, epoch milliseconds; 0: none was set.
        ids: of the topics that were read.

    >>> Published.of(Published({("clicks", 0): 7}, 12, TopicIds(clicks="Xq3")).to_bytes())
    Published(read={('clicks', 0): 7}, ran=12, ids={'clicks': 'Xq3'})
    """

    read: Offsets
    ran: int
    ids: TopicIds = field(default_factory=TopicIds)

    def headers(self, partition: int) -> list[tuple[str, bytes | None]]:
        """Return the header that a mark in an output partition has: one partition is enough."""
        return [(READ_HEADER, self.to_bytes())] if partition == 0 else []

    def to_bytes(self) -> bytes:
        """Return it as the header holds it: one JSON object."""
        fields = {
            "format": FORMAT,
            "input_offsets": to_spark(self.read),
            "batch_watermark": self.ran,
            "topic_ids": self.ids,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def of(cls, text: bytes) -> "Published":
        """Read what `to_bytes` returned.

        Raises:
            CorruptSnapshotError: where it is of another format or damaged.
        """
        with restoring(f"in the header {READ_HEADER!r}", "take a new output topic"):
            found = json.loads(text)
            require_format(found, FORMAT)
            return cls(from_spark(found["input_offsets"]), found["batch_watermark"], TopicIds(found["topic_ids"]))
