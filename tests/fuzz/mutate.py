"""Change seeds at random: the engine that needs nothing installed, and repeats exactly from its seed."""

from collections.abc import Iterator, Sequence
from random import Random

_TOKENS = (
    *(b"__floodmark__/", b"\xc3\x01", b"\x80" * 10, b"\xff" * 9 + b"\x01", b"\x00", b"\x01", b"\x02", b"\xff"),
    *(b"1e999", b"NaN", b"-1", b"9" * 30, b"[" * 3000, b'{"at":', b'{"resolved": "', b"null", b"253402300799999"),
    *(b"\x7f" * 8, b"\xff\xfe\xfd", "\u0665".encode(), b"253402300800000", b"-62135596800001", b"1.5", b'"'),
)


def mutated(seeds: Sequence[bytes], count: int, longest: int, chance: Random) -> Iterator[bytes]:
    """Yield ``count`` inputs: each a seed with one to six changes, or some of two seeds."""
    for _ in range(count):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 6)):
            _change(data, seeds, chance)
        yield bytes(data[:longest])


def _change(data: bytearray, seeds: Sequence[bytes], chance: Random) -> None:
    at = chance.randrange(len(data) + 1)
    kind = chance.randrange(7)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 1 and at < len(data):
        data[at] = chance.randrange(256)
    elif kind == 2:
        data[at : at + chance.randrange(1, 9)] = b""
    elif kind == 3:
        data[at:at] = chance.choice(_TOKENS)
    elif kind == 4:
        data[at:at] = data[at : at + chance.randrange(1, 20)]
    elif kind == 5:
        other = chance.choice(seeds)
        data[at:] = other[chance.randrange(len(other) + 1) :]
    elif at < len(data):
        data[at] = (data[at] + chance.choice((1, -1, 2, -2))) % 256
