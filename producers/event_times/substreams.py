"""What has a watermark of its own within a partition: a Kafka key, or a field of the value.  Pure."""

import json
from collections.abc import Callable

from floodmark.producers.event_times.formats import find_field, json_object
from floodmark.schemas.errors import UnreadableValueError

SubstreamKey = Callable[[bytes | None, bytes | None], bytes]
"""From a record's key and value to its substream: what has a watermark of its own."""


def substream_key(key: bytes | None, value: bytes | None) -> bytes:  # noqa: ARG001  # the shape of `SubstreamKey`
    """Let every Kafka key be a substream; records without one are a substream together.

    >>> substream_key(b"N14228", None), substream_key(None, None)
    (b'N14228', b'')
    """
    return key or b""


def substream_json(field: str) -> SubstreamKey:
    """Let every value of a JSON field be a substream; records without it are a substream together.

    Args:
        field: its name; a dot leads into an object within.

    >>> substream_json("device")(None, b'{"device": "d1"}')
    b'"d1"'
    """
    path = field.split(".")

    def substream(_key: bytes | None, value: bytes | None) -> bytes:
        try:
            return json.dumps(find_field(json_object(value), field, path)).encode()
        except UnreadableValueError:
            return b""

    return substream
