"""Spark's form of offsets, which Floodmark's own files and headers keep, too.  Pure."""

from collections.abc import Mapping

from floodmark.schemas.classify import Offsets, Partition

ByTopic = Mapping[str, Mapping[str, int] | None]  # topic to partition (as text) to offset, as JSON can carry it


def from_spark(by_topic: ByTopic) -> dict[Partition, int]:
    """Read offsets as Spark writes them.

    >>> from_spark({"clicks": {"0": 7, "1": 5}, "views": None})
    {('clicks', 0): 7, ('clicks', 1): 5}
    """
    return {(topic, int(part)): at for topic, parts in by_topic.items() for part, at in (parts or {}).items()}


def to_spark(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Write offsets as Spark reads them.

    >>> to_spark({("clicks", 0): 7, ("clicks", 1): 5})
    {'clicks': {'0': 7, '1': 5}}
    """
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return found
