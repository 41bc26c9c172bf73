"""What a job has published: the offsets it had read, and Spark's watermark.  Pure.

It is in a header of the marks after each batch, in the same transaction, so that another checkpoint can continue from
the output topic alone.
"""

import json
from dataclasses import dataclass, field
from typing import Final

from floodmark.schemas.classify import Offsets
from floodmark.schemas.completeness.position import TopicIds
from floodmark.schemas.records import READ_HEADER
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.spark_jobs.progress.offsets import from_spark, to_spark

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Published:
    """The last batch in the output topic.

    >>> Published.of(Published({("clicks", 0): 7}, 12, TopicIds(clicks="Xq3")).to_bytes())
    Published(read={('clicks', 0): 7}, ran=12, ids={'clicks': 'Xq3'})
    """

    read: Offsets
    """Its end offsets."""
    ran: int
    """Its watermark as Spark counts it, epoch milliseconds; 0: none."""
    ids: TopicIds = field(default_factory=TopicIds)

    def headers(self, partition: int) -> list[tuple[str, bytes | None]]:
        """Return the headers for a mark in an output partition: only partition 0 has one."""
        return [(READ_HEADER, self.to_bytes())] if partition == 0 else []

    def to_bytes(self) -> bytes:
        """Return the value of the header, a JSON object."""
        fields = {
            "format": FORMAT,
            "input_offsets": to_spark(self.read),
            "batch_watermark": self.ran,
            "topic_ids": self.ids,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def of(cls, text: bytes) -> "Published":
        """Read the value of the header.

        Raises:
            CorruptSnapshotError: if it has another format or is damaged.
        """
        with restoring(f"in the header {READ_HEADER!r}", "use a new output topic"):
            found = json.loads(text)
            require_format(found, FORMAT)
            return cls(from_spark(found["input_offsets"]), found["batch_watermark"], TopicIds(found["topic_ids"]))
