"""What a job says of a table with each of its commits, as properties of the commit.  Pure.

In Iceberg they are properties of the snapshot's summary; in Delta they are one JSON object, the commit's
``userMetadata``.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from floodmark.schemas.errors import UnreadableTableMarkError
from floodmark.schemas.records import Holder
from floodmark.schemas.timestamps import EARLIEST, END_OF_TIME, to_datetime

PREFIX: Final = "floodmark."
"""The prefix of all properties."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMark:
    """The watermark of a table: after this commit, the job adds no row with an event time below it.

    >>> mark = TableMark(job="daily", epoch=7, batch=3, watermark=12, holder=Holder("clicks", 0, "web-1"))
    >>> for name, value in mark.properties().items():
    ...     print(name, value)
    floodmark.job daily
    floodmark.epoch 7
    floodmark.batch 3
    floodmark.watermark 12
    floodmark.watermark-iso 1970-01-01T00:00:00.012+00:00
    floodmark.holder {"topic": "clicks", "partition": 0, "source": "web-1"}
    >>> TableMark.of(mark.properties()) == mark
    True
    """

    job: str
    epoch: int
    """The number of this start of the job; a restart has a higher one."""
    batch: int
    watermark: int | None
    """Of the results, epoch milliseconds; ``None``: unknown yet."""
    holder: Holder | None = None
    """The source that holds back the watermark; ``None``: no source does."""
    position: str | None = None
    """How far the job had read, for the job alone."""

    def properties(self) -> dict[str, str]:
        """Return the properties of the commit."""
        found: dict[str, object] = {"job": self.job, "epoch": self.epoch, "batch": self.batch}
        if self.watermark is not None:
            found["watermark"] = self.watermark
            found["watermark-iso"] = to_datetime(self.watermark).isoformat(timespec="milliseconds")
        if self.holder is not None:
            found["holder"] = json.dumps({name: one for name, one in asdict(self.holder).items() if one is not None})
        if self.position is not None:
            found["position"] = self.position
        return {PREFIX + name: str(value) for name, value in found.items()}

    @classmethod
    def of(cls, properties: Mapping[str, Any]) -> "TableMark | None":
        """Return what a commit says; ``None``: it is not a commit of a job, but of maintenance or another program.

        Properties that this version does not know are ignored.

        Raises:
            UnreadableTableMarkError: if a property is missing, or has no valid value.

        >>> TableMark.of({"spark.app.id": "local-1"})
        >>> TableMark.of({"floodmark.job": "daily", "floodmark.epoch": "7", "floodmark.batch": "three"})
        Traceback (most recent call last):
        floodmark.schemas.errors.UnreadableTableMarkError: property floodmark.batch of a commit is 'three', expected \
an integer
        """
        found = {name.removeprefix(PREFIX): one for name, one in properties.items() if name.startswith(PREFIX)}
        if not found:
            return None
        job, position = found.get("job"), found.get("position")
        if not (isinstance(job, str) and job):
            raise _unreadable("job", job, "the name of a job")
        if not (position is None or isinstance(position, str)):
            raise _unreadable("position", position, "text")
        watermark = _integer(found, "watermark") if "watermark" in found else None
        if not (watermark is None or EARLIEST <= watermark <= END_OF_TIME):
            raise _unreadable("watermark", found["watermark"], "epoch milliseconds in the years 1 to 9999")
        return cls(
            job=job,
            epoch=_integer(found, "epoch"),
            batch=_integer(found, "batch"),
            watermark=watermark,
            holder=_holder(found["holder"]) if "holder" in found else None,
            position=position,
        )

    def as_json(self) -> str:
        """Return the properties as Delta's ``userMetadata``."""
        return json.dumps(self.properties())


def properties_in(user_metadata: object) -> Mapping[str, Any]:
    """Return the properties in Delta's ``userMetadata``; none if it is not a JSON object.

    >>> mark = TableMark(job="daily", epoch=7, batch=3, watermark=None)
    >>> TableMark.of(properties_in(mark.as_json())) == mark, properties_in("nightly load"), properties_in(None)
    (True, {}, {})
    """
    try:
        found = json.loads(user_metadata) if isinstance(user_metadata, str) else None
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _integer(found: Mapping[str, Any], name: str) -> int:
    value = found.get(name)
    if not (isinstance(value, str) and _INTEGER.fullmatch(value)):
        raise _unreadable(name, value, "an integer")
    return int(value)


def _holder(value: object) -> Holder:
    try:
        holder = Holder(**json.loads(value)) if isinstance(value, str) else None
    except (ValueError, TypeError, RecursionError):
        holder = None
    named = holder is not None and all(isinstance(one, str) for one in (holder.topic, holder.source or ""))
    if holder is None or not named or not (holder.partition is None or type(holder.partition) is int):
        raise _unreadable("holder", value, "a JSON object with topic, partition and source")
    return holder


def _unreadable(name: str, value: object, expected: str) -> UnreadableTableMarkError:
    return UnreadableTableMarkError(name=PREFIX + name, value=value, expected=expected)
