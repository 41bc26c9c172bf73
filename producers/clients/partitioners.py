"""librdkafka's partitioners: Floodmark must know a record's partition before it is sent, to count it there.  Pure."""

import random
import zlib
from collections.abc import Callable
from typing import Final

from floodmark.schemas.errors import UnsupportedPartitionerError

Partitioner = Callable[[bytes | None, int], int]  # returns a partition for a key and a number of partitions


def murmur2(data: bytes) -> int:
    """Return Kafka's 32-bit MurmurHash2, as the Java client computes it."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def _murmur2(key: bytes | None, partitions: int) -> int:
    return (murmur2(key or b"") & 0x7FFFFFFF) % partitions


def _random(_key: bytes | None, partitions: int) -> int:
    return random.randrange(partitions)  # noqa: S311  # spreading load, no secret


_PARTITIONERS: Final[dict[str, Partitioner]] = {
    "consistent": lambda key, partitions: zlib.crc32(key or b"") % partitions,
    "consistent_random": lambda key, partitions: zlib.crc32(key) % partitions if key else _random(key, partitions),
    "murmur2": _murmur2,
    "murmur2_random": lambda key, partitions: (_random if key is None else _murmur2)(key, partitions),
    "random": _random,
}


def partitioner(name: str) -> Partitioner:
    """Return the partitioner of librdkafka's ``partitioner`` setting, or raise `UnsupportedPartitionerError`.

    >>> partitioner("consistent_random")(b"N14228", 4)
    2
    """
    found = _PARTITIONERS.get(name)
    if found is None:
        raise UnsupportedPartitionerError(partitioner=name, supported=", ".join(sorted(_PARTITIONERS)))
    return found
