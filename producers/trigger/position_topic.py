"""Where a trigger stores what it has fired: the last record with its name in a compacted topic.

Each record is one transaction, and the transactional id is made from the name.  So a second process with the name
fences the first one, which can then store nothing, and fires nothing that it has not stored before.
"""

import base64
import json
import zlib
from typing import Any, Final

from floodmark.producers.clients.admin import (
    Config,
    await_transactions,
    cleanup_policy,
    create_topics,
    existing_topics,
    require_topics,
)
from floodmark.producers.clients.transaction import Transaction
from floodmark.producers.readers.replay import last_matching
from floodmark.schemas.classify import Classified, Data
from floodmark.schemas.errors import TriggerError, UsageError
from floodmark.schemas.stored_format import require_format, restoring

_FORMAT: Final = 1


def create_position_topic(config: Config, topic: str) -> bool:
    """Create the topic if it does not exist; return whether it was created.

    `UsageError` if the topic is not compacted, or Kafka also deletes its old records.
    """
    if topic not in existing_topics(config):
        create_topics(config, {topic: 1}, {"cleanup.policy": "compact"})
        return True
    if (policy := cleanup_policy(config, topic)) not in {None, "compact"}:
        reason = f"topic {topic!r} is not compacted alone ({policy}), so Kafka would delete the position of the trigger"
        raise UsageError(reason=f"{reason}; set its cleanup.policy to compact, or choose another --position-topic")
    return False


def read_position(config: Config, topic: str, name: str) -> dict[str, Any] | None:
    """Return what a trigger stored last; ``None``: nothing.  `CorruptSnapshotError` if it cannot be read."""

    def own(record: Classified) -> tuple[Data, bytes] | None:
        if not isinstance(record, Data) or record.key != name.encode() or record.value is None:
            return None
        return record, record.value

    found = last_matching(config, topic, range(require_topics(config, [topic])[topic]), own)
    states = [_state_of(record, value, name) for record, value in found.values()]  # an older one may be damaged
    return max(states, key=lambda state: int(state["revision"]), default=None)


def _state_of(record: Data, value: bytes, name: str) -> dict[str, Any]:
    with restoring(f"of trigger {name!r} at {record.place}", "choose another --name, or restore the record"):
        state: dict[str, Any] = json.loads(value)
        require_format(state, _FORMAT)
        state["input"] = json.loads(zlib.decompress(base64.b64decode(state["input"], validate=True)))
        state["revision"] = int(state["revision"])
    return state


class PositionTopic:
    """The position of one trigger; opening it fences an earlier process with the same name.

    Raises:
        FencedError: when storing, if another process with the name has started.
        BrokerUnavailableError: if Kafka does not accept a record.
        OpenTransactionError: see `await_transactions`.
        TriggerError: if the record is too large.
    """

    def __init__(self, config: Config, topic: str, name: str) -> None:
        self._name, self._topic = name, topic
        self._transaction = Transaction(config, name, topic, kind="trigger", refused=self._refused)
        await_transactions(config, topic, f"trigger {name!r}")
        self.state: Final = read_position(config, topic, name)
        """What was stored last, when this was opened; ``None``: nothing."""
        self._revision = 0 if self.state is None else self.state["revision"]

    def _refused(self, reason: str) -> TriggerError:
        advice = f"raise max.message.bytes of topic {self._topic!r}"
        return TriggerError(trigger=self._name, reason=f"Kafka refuses its position: {reason}", advice=advice)

    def store(self, state: dict[str, Any]) -> None:
        """Store a state, and return when Kafka has it."""
        self._revision += 1
        packed = base64.b64encode(zlib.compress(json.dumps(state["input"]).encode(), 1)).decode()
        value = json.dumps({"format": _FORMAT, "revision": self._revision, **state, "input": packed})
        self._transaction.begin()
        self._transaction.produce(self._topic, -1, self._name.encode(), value.encode())
        self._transaction.commit()
