"""The options of Spark's Kafka source: defaults, overruled by the user's.  Spark ignores the case of names.  Pure."""

from collections.abc import Mapping
from typing import Final

_TUNED: Final = {"kafka.max.poll.records": "20000", "kafka.max.partition.fetch.bytes": "8388608"}


def source_options(bootstrap_servers: str, topics: tuple[str, ...], options: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults with the user's options, which overrule them.

    >>> options = source_options("k:9092", ("a", "b"), {"startingoffsets": "latest", "kafka.max.poll.records": "7"})
    >>> options["subscribe"], options["startingoffsets"], "startingOffsets" in options
    ('a,b', 'latest', False)
    >>> options["kafka.max.poll.records"]
    '7'
    """
    defaults = {
        **_TUNED,
        "kafka.bootstrap.servers": bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    named = {name.lower() for name in options}
    return {**{name: value for name, value in defaults.items() if name.lower() not in named}, **options}


def from_earliest(options: Mapping[str, str]) -> bool:
    """Tell whether a new query begins with the first record that Kafka has.

    Spark prefers ``startingTimestamp`` to ``startingOffsetsByTimestamp``, and that to ``startingOffsets``.

    >>> from_earliest({"startingOffsets": "earliest"})
    True
    >>> from_earliest({"startingOffsets": "earliest", "startingTimestamp": "5"}), from_earliest({})
    (False, False)
    """
    lower = {name.lower(): value for name, value in options.items()}
    later = {"startingtimestamp", "startingoffsetsbytimestamp"} & lower.keys()
    return not later and lower.get("startingoffsets") == "earliest"
