"""Receipts: what the executors of a job have written of a batch, in a topic with a partition for each shard."""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Final

from floodmark.producers.clients.admin import Config, admin_client, partition_count
from floodmark.producers.readers.replay import last_matching
from floodmark.schemas.classify import Classified, Data
from floodmark.schemas.errors import CorruptSnapshotError

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a shard has last written.

    >>> one = Receipt("run-1", "c", 7, shards=2, digest=5, rows={0: 3})
    >>> Receipt.of(one.text) == one
    True
    """

    owner: str
    """The run of the driver that may write the shard."""
    checkpoint_id: str = ""
    batch_id: int = -1
    shards: int = 0
    """The number of shards of this batch."""
    digest: int = 0
    """The sum of the hashes of the rows."""
    rows: Mapping[int, int] = field(default_factory=dict)
    """The number of rows by partition of the output topic."""

    @property
    def text(self) -> str:
        """The receipt as JSON."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def of(cls, text: str | bytes) -> "Receipt":
        """Return a receipt from its JSON, or raise `CorruptSnapshotError`."""
        try:
            fields = json.loads(text)
            reason = "it has another format" if fields.pop("format") != _FORMAT else ""
            rows = {int(partition): count for partition, count in fields.pop("rows").items()}
            if not reason:
                return cls(**fields, rows=rows)
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            reason = "it is no receipt"
        advice = "start the job with the version of Floodmark that wrote it"
        raise CorruptSnapshotError(where="a receipt", reason=reason, advice=advice)

    def has(self, checkpoint_id: str, batch_id: int) -> bool:
        """Tell whether it is of this batch."""
        return (self.checkpoint_id, self.batch_id) == (checkpoint_id, batch_id)

    def precedes(self, other: "Receipt") -> bool:
        """Tell whether the run of the other one may write its batch, or has written it."""
        is_earlier = self.checkpoint_id != other.checkpoint_id or self.batch_id <= other.batch_id
        return self.owner == other.owner and is_earlier

    def same_rows(self, other: "Receipt") -> bool:
        """Tell whether both have the same rows."""
        return (self.digest, sum(self.rows.values())) == (other.digest, sum(other.rows.values()))


def receipts_topic(job: str, topic: str) -> str:
    """Return the name of the topic of a job's receipts; ``topic``: its output topic."""
    return f"floodmark-receipts-{job}-{topic}"


def last_receipts(config: Config, receipts: str, shards: Collection[int]) -> dict[int, tuple[int, Receipt]]:
    """Return the last receipts of some shards, each with its log time."""

    def read(record: Classified) -> tuple[int, Receipt] | None:
        return (record.log_time, Receipt.of(record.value)) if isinstance(record, Data) and record.value else None

    return last_matching(config, receipts, shards, read)


def waiting_shards(config: Config, receipts: str) -> tuple[int, int]:
    """Return how many shards of the last batch are not written, and how many it has; (0, 0) before the first batch.

    A batch of which no shard is written does not count.  `UnknownTopicError` without the topic.
    """
    shards = partition_count(admin_client(config), receipts, config.get("bootstrap.servers"))
    found = last_receipts(config, receipts, range(shards)).values()
    newest = max(found, key=itemgetter(0), default=(0, Receipt("")))[1]
    own = [one for _, one in found if one.checkpoint_id == newest.checkpoint_id]  # others count their batches from 0
    last = max(own, key=lambda one: one.batch_id, default=newest)
    return last.shards - sum(one.has(last.checkpoint_id, last.batch_id) for one in own if one.shards), last.shards
