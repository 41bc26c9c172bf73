"""What a job has published: the offsets it had read, and Spark's watermark.  Pure.

It is stored with the rows of each batch, in the same transaction, so that another checkpoint can continue from the
output alone: in a header of the marks in the output topic, or as the position that a user's store keeps.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from floodmark.schemas.classify import Offsets
from floodmark.schemas.completeness.position import TopicIds, TopicUser
from floodmark.schemas.records import READ_HEADER
from floodmark.schemas.stored_format import require_format, restoring
from floodmark.spark_jobs.progress.offsets import from_spark, to_spark

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Published:
    """The last batch in the output.

    >>> Published.of(Published({("clicks", 0): 7}, 12, TopicIds(clicks="Xq3")).to_bytes())
    Published(read={('clicks', 0): 7}, ran=12, ids={'clicks': 'Xq3'})
    """

    read: Offsets  # its end offsets
    ran: int  # its watermark as Spark counts it, epoch milliseconds; 0: none
    ids: TopicIds = field(default_factory=TopicIds)

    def is_same_batch(self, stored: "Published", job: str) -> bool:
        """Tell whether a stored batch of the same number was planned alike: the ids of topics may become known later.

        It raises `RecreatedTopicError` if the stored one has read another topic of the same name.
        """
        TopicIds(stored.ids).compare(self.ids, TopicUser.job(job))
        return (self.read, self.ran) == (stored.read, stored.ran)

    def headers(self, partition: int) -> list[tuple[str, bytes | None]]:
        """Return the headers for a mark in an output partition: only partition 0 has one."""
        return [(READ_HEADER, self.to_bytes())] if partition == 0 else []

    def to_bytes(self) -> bytes:
        """Return the value of the header, a JSON object."""
        return _json(self.fields()).encode()

    def fields(self) -> dict[str, Any]:
        """Return a value for JSON."""
        return {
            "format": FORMAT,
            "input_offsets": to_spark(self.read),
            "batch_watermark": self.ran,
            "topic_ids": self.ids,
        }

    @classmethod
    def of(cls, text: bytes) -> "Published":
        """Read the value of the header, or raise `CorruptSnapshotError`."""
        with restoring(f"in the header {READ_HEADER!r}", "use a new output topic"):
            return cls.restore(json.loads(text))

    @classmethod
    def restore(cls, fields: Mapping[str, Any]) -> "Published":
        """Return the value of `fields`; call it inside `restoring`."""
        require_format(fields, FORMAT)
        return cls(from_spark(fields["input_offsets"]), fields["batch_watermark"], TopicIds(fields["topic_ids"]))


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The last batch in a user's store, which keeps this with the rows, as text.

    >>> position = StoredPosition("id-2", 4, 30, Published({("clicks", 0): 7}, 12), {"id-1": 9})
    >>> StoredPosition.of(position.text) == position
    True
    """

    checkpoint_id: str
    batch_id: int
    output: int | None  # the output watermark, epoch milliseconds; ``None``: none yet
    published: Published
    earlier: Mapping[str, int] = field(default_factory=dict)
    """Earlier checkpoints, each with its last batch in the store."""

    @property
    def text(self) -> str:
        """The position as JSON text."""
        fields = {
            "checkpoint_id": self.checkpoint_id,
            "batch_id": self.batch_id,
            "output_watermark": self.output,
            "earlier_checkpoints": dict(self.earlier),
        }
        return _json({**fields, **self.published.fields()})

    @classmethod
    def of(cls, text: str) -> "StoredPosition":
        """Read the text."""
        with restoring("in the store or table of the results", "restore the position that it had, or use a new one"):
            found = json.loads(text)
            published, earlier = Published.restore(found), found["earlier_checkpoints"]
            return cls(found["checkpoint_id"], found["batch_id"], found["output_watermark"], published, earlier)


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
