"""Values that name their schema in a registry: a byte 0, the schema's id in four bytes (big-endian), then the body.

Confluent's wire format.  In Protobuf the body begins with the path of the message's type in its file.  Pure.
"""

from typing import Final

from floodmark.schemas.errors import UnreadableValueError

FRAME_SIZE: Final = 5
_MAX_PATH: Final = 100
_MORE: Final = 0x80  # more bytes of the number follow


def frame(schema_id: int) -> bytes:
    """Return what stands before each body of a schema.

    >>> frame(258).hex()
    '0000000102'
    """
    return b"\x00" + schema_id.to_bytes(4, "big")


def unframed(value: bytes) -> tuple[int, bytes]:
    r"""Return the id of a value's schema, and its body.

    Raises:
        UnreadableValueError: where it has no frame.

    >>> unframed(b"\x00\x00\x00\x01\x02{}")
    (258, b'{}')
    """
    if len(value) < FRAME_SIZE or value[0] != 0:
        reason = f"it begins with {value[:FRAME_SIZE].hex() or 'nothing'}, expected 00 and four bytes of a schema id"
        raise UnreadableValueError(size=len(value), schema="a framed value", reason=reason)
    return int.from_bytes(value[1:FRAME_SIZE], "big"), value[FRAME_SIZE:]


def message_path(body: bytes) -> tuple[tuple[int, ...], bytes]:
    r"""Split the body of a Protobuf value: where its message's type stands in the file, and the message.

    The path is a count and so many numbers, zigzag varints all; the single byte 0 is short for the first type.

    Raises:
        UnreadableValueError: where there is no such path.

    >>> message_path(b"\x00xyz"), message_path(b"\x04\x02\x00xyz")
    (((0,), b'xyz'), ((1, 0), b'xyz'))
    """
    count, at = _varint(body, 0)
    if not 0 <= count <= _MAX_PATH:
        raise _no_path(body)
    path = []
    for _ in range(count):
        number, at = _varint(body, at)
        path.append(number)
    return tuple(path) or (0,), body[at:]


def path_bytes(path: tuple[int, ...]) -> bytes:
    r"""Return the bytes that `message_path` reads.

    >>> path_bytes((0,)), path_bytes((1, 0))
    (b'\x00', b'\x04\x02\x00')
    """
    return b"\x00" if path == (0,) else b"".join(map(_zigzag, (len(path), *path)))


def _zigzag(number: int) -> bytes:
    left, out = number << 1, bytearray()
    while left >= _MORE:
        out.append(left & 0x7F | _MORE)
        left >>= 7
    return bytes([*out, left])


def _varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    for place in range(at, min(at + 5, len(body))):
        number |= (body[place] & 0x7F) << shift
        shift += 7
        if body[place] < _MORE:
            return (number >> 1) ^ -(number & 1), place + 1
    raise _no_path(body)


def _no_path(body: bytes) -> UnreadableValueError:
    return UnreadableValueError(size=len(body), schema="framed Protobuf", reason="it names no type of message")
