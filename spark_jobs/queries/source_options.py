"""The options of Spark's Kafka source: defaults, and the user's.  Spark ignores the case of names.  Pure."""

from collections.abc import Mapping
from typing import Final

from floodmark.schemas.errors import UsageError

_TUNED: Final = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": "8388608",
    # After the end of a transaction the client fetches the next records, before Spark asks for the last offset.  The
    # broker delays an empty fetch by this time, half a second by default, and a client has one request at a time.
    "kafka.fetch.max.wait.ms": "10",
}
_TOPICS: Final = {"subscribe", "subscribepattern", "assign"}
_ISOLATION: Final = "kafka.isolation.level"
_STARTS: Final = ("startingtimestamp", "startingoffsetsbytimestamp", "startingoffsets")
_KNOWN: Final = {
    *_STARTS,
    "startingoffsetsbytimestampstrategy",
    "failondataloss",
    "fetchoffset.numretries",
    "fetchoffset.retryintervalms",
    "groupidprefix",
    "includeheaders",
    "kafkaconsumer.polltimeoutms",
    "maxoffsetspertrigger",
    "maxrecordsperpartition",
    "maxtriggerdelay",
    "minoffsetspertrigger",
    "minpartitions",
}
"""The options of a stream in Spark 4.0 to 4.2, without the topics and the settings of the Kafka client."""
_MOST: Final = "maxOffsetsPerTrigger"
_FIRST_BATCH: Final = 25_000
"""More than a look ahead reads, so that no job with a backlog looks ahead after its first batch."""
_SECOND_BATCH: Final = 250_000


def check_source_options(options: Mapping[str, str]) -> None:
    """Refuse options with which a job would read other records than its watermarks describe, and unknown ones.

    >>> check_source_options({"Subscribe": "clicks"})
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: source option Subscribe: name the topics in read(topics=) instead
    """
    for name, value in options.items():
        if name.lower() in _TOPICS:
            raise UsageError(reason=f"source option {name}: name the topics in read(topics=) instead")
        if name.lower() == _ISOLATION and value != "read_committed":
            reason = f"source option {name} is {value!r}, expected 'read_committed'"
            raise UsageError(reason=f"{reason}: the marks and rows of aborted transactions do not count")
        if name.lower() == "includeheaders" and value.lower() != "true":
            raise UsageError(reason=f"source option {name} is {value!r}: rows have times in their headers, omit it")
        if name.lower() == "kafka.bootstrap.servers":
            reason = f"source option {name}: pass the address as read(bootstrap_servers=), for all clients of the job"
            raise UsageError(reason=reason)
        if name.lower() not in _KNOWN and not name.lower().startswith("kafka."):
            reason = f"source option {name}: Spark's Kafka source has no such option for streams"
            raise UsageError(reason=f"{reason}. Correct the name; settings of the Kafka client begin with 'kafka.'")


def source_options(bootstrap_servers: str, topics: tuple[str, ...], options: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults, overridden by the user's options.

    >>> options = source_options("k:9092", ("a", "b"), {"startingoffsets": "latest", "kafka.max.poll.records": "7"})
    >>> options["subscribe"], options["startingoffsets"], "startingOffsets" in options
    ('a,b', 'latest', False)
    >>> options["kafka.max.poll.records"], options["kafka.fetch.max.wait.ms"]
    ('7', '10')
    """
    defaults = {
        **_TUNED,
        "kafka.bootstrap.servers": bootstrap_servers,
        _ISOLATION: "read_committed",
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    named = {name.lower() for name in options}
    return {**{name: value for name, value in defaults.items() if name.lower() not in named}, **options}


def moved_start(options: Mapping[str, str]) -> str | None:
    """Return which of all options moves the start of a new query; ``None``: it starts with the first record in Kafka.

    Spark prefers ``startingTimestamp`` to ``startingOffsetsByTimestamp``, and that to ``startingOffsets``.

    >>> moved_start({"startingOffsets": "earliest"})
    >>> moved_start({"startingOffsets": "latest"})
    'startingOffsets'
    >>> moved_start({"startingOffsets": "earliest", "startingtimestamp": "5"})
    'startingtimestamp'
    """
    given = {name.lower(): name for name in options}
    name = next(given[name] for name in _STARTS if name in given)
    return None if options[name] == "earliest" else name


def fitting_batch(cores: int, heap: int) -> int:
    """Return the limit of a batch: 500,000 records per core, or one per KiB of the driver's heap if that is lower.

    With this limit a batch of a job that catches up takes some seconds, and its marks and results fit into the driver,
    if results have no more than some hundred bytes.  ``heap`` is in bytes, ``cores`` are those of all executors.

    >>> fitting_batch(2, 1 << 30), fitting_batch(16, 1 << 30)
    (1000000, 1048576)
    """
    return max(1, min(500_000 * cores, heap // 1024))


def starting_small(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options with a small limit for the first batch, so that a long backlog soon shows results.

    >>> starting_small({"maxOffsetsPerTrigger": "1000000"}), starting_small({"maxOffsetsPerTrigger": "120"})
    ({'maxOffsetsPerTrigger': '25000'}, {'maxOffsetsPerTrigger': '120'})
    """
    return {**options, _MOST: str(min(_FIRST_BATCH, int(options[_MOST])))}


def next_limits(most: Mapping[str, int], *, at_once: bool) -> list[dict[str, int]]:
    """Return the limits, by topic, of the batches after a small first one; the last of them remains.

    ``at_once``: already the second batch has the highest limit, since it may run long after the first one.

    >>> next_limits({"clicks": 1_000_000}, at_once=False)
    [{'clicks': 250000}, {'clicks': 1000000}]
    """
    second = {topic: min(_SECOND_BATCH, limit) for topic, limit in most.items()}
    return [dict(most)] if at_once else [second, dict(most)]


def batch_limit(options: Mapping[str, str]) -> int | None:
    """Return the most records of one batch; ``None``: no limit.

    >>> batch_limit({"maxoffsetspertrigger": "120"}), batch_limit({})
    (120, None)
    """
    lower = {name.lower(): value for name, value in options.items()}
    return int(lower["maxoffsetspertrigger"]) if "maxoffsetspertrigger" in lower else None
