"""How state becomes a value that JSON can carry, and comes back: one check of the format, one error.  Pure.

A snapshot is a dict with its ``format``, a whole number.  A version of Floodmark reads its own format and older ones.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from floodmark.schemas.errors import CorruptSnapshotError


@contextmanager
def versioned(
    snapshot: Mapping[str, Any], where: str, *formats: int, advice: str = "restore an intact copy"
) -> Iterator[Mapping[str, Any]]:
    """Read a snapshot inside: whatever is wrong with it becomes one error.

    Args:
        snapshot: what was stored.
        where: whose it is, for the error.
        formats: those that can be read.
        advice: what to do about a damaged one.

    Raises:
        CorruptSnapshotError: where it is of another format, or the block meets a missing or wrong value.

    >>> with versioned({"format": 1, "epoch": 7}, "of a job", 1) as snapshot:
    ...     snapshot["epoch"]
    7
    >>> with versioned({"format": 9}, "of a job", 1, 2):
    ...     pass
    Traceback (most recent call last):
        ...
    floodmark.schemas.errors.CorruptSnapshotError: snapshot of a job cannot be read: its format is 9, expected 1 or 2; \
use the Floodmark version that wrote it
    """
    try:
        found = snapshot["format"]
        if found not in formats:
            expected = " or ".join(map(str, formats))
            reason, advice = f"its format is {found}, expected {expected}", "use the Floodmark version that wrote it"
            raise CorruptSnapshotError(where=where, reason=reason, advice=advice)
        yield snapshot
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CorruptSnapshotError(where=where, reason=reason, advice=advice) from error
