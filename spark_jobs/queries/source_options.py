"""The options of Spark's Kafka source: defaults, overruled by the user's.  Spark ignores the case of names.  Pure."""

from collections.abc import Mapping
from typing import Final

_TUNED: Final = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": "8388608",
    # At the end of a transaction the client asks for what is behind it before Spark asks for its last offset.  The
    # broker keeps the first question for so long, by default half a second, and a client has one at a time.
    "kafka.fetch.max.wait.ms": "10",
}


def source_options(bootstrap_servers: str, topics: tuple[str, ...], options: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults with the user's options, which overrule them.

    >>> options = source_options("k:9092", ("a", "b"), {"startingoffsets": "latest", "kafka.max.poll.records": "7"})
    >>> options["subscribe"], options["startingoffsets"], "startingOffsets" in options
    ('a,b', 'latest', False)
    >>> options["kafka.max.poll.records"], options["kafka.fetch.max.wait.ms"]
    ('7', '10')
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


def fitting_batch(cores: int, heap: int) -> int:
    """Return how many records a batch may have: half a million a core, and one for each KiB of the driver's heap.

    So a batch of a job that catches up takes some seconds, and its marks and results fit into the driver; with results
    larger than some hundred bytes it has to be less.

    Args:
        cores: of all executors.
        heap: of the driver's JVM, bytes.

    >>> fitting_batch(2, 1 << 30), fitting_batch(16, 1 << 30)
    (1000000, 1048576)
    """
    return max(1, min(500_000 * cores, heap // 1024))


def batch_limit(options: Mapping[str, str]) -> int | None:
    """Return the most records of one batch; ``None``: there is no limit.

    >>> batch_limit({"maxoffsetspertrigger": "120"}), batch_limit({})
    (120, None)
    """
    lower = {name.lower(): value for name, value in options.items()}
    return int(lower["maxoffsetspertrigger"]) if "maxoffsetspertrigger" in lower else None
