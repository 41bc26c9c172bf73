"""Reading of stored state: one check of its format, and one error for any damage.  Pure."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from floodmark.schemas.errors import CorruptSnapshotError


class _OtherFormatError(Exception):
    """A snapshot of a format that this version does not read."""


@contextmanager
def restoring(where: str, advice: str = "restore an intact copy") -> Iterator[None]:
    """Turn any error of the block, which reads a snapshot, into one `CorruptSnapshotError`.

    >>> try:
    ...     with restoring("of a job"):
    ...         require_format({"format": 9}, 1)
    ... except CorruptSnapshotError as error:
    ...     print(error)
    snapshot of a job cannot be read: its format is 9, expected 1; use the Floodmark version that wrote it
    """
    try:
        yield
    except CorruptSnapshotError:
        raise  # of a part, with its own name
    except _OtherFormatError as error:
        advice = "use the Floodmark version that wrote it"
        raise CorruptSnapshotError(where=where, reason=str(error), advice=advice) from error
    except Exception as error:  # damaged state can raise anything
        reason = f"{type(error).__name__}: {error}"
        raise CorruptSnapshotError(where=where, reason=reason, advice=advice) from error


def require_format(snapshot: Mapping[str, Any], expected: int) -> None:
    """Refuse a snapshot of another ``format``; call it inside `restoring`."""
    if snapshot["format"] != expected:
        raise _OtherFormatError(f"its format is {snapshot['format']}, expected {expected}")
