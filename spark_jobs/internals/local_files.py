"""Small text files below one folder: their interface, and its implementation for a local disk without Hadoop.

Without Hadoop's native library, as beside PySpark from PyPI, Hadoop's local file system starts ten processes
(``chmod``, ``readlink``) to write one file through `FileContext`, which takes about 50 ms.  The format is the same, a
checksum of each 512 bytes in a hidden file, so that Hadoop reads these files and the other way round.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final, Protocol

from floodmark.schemas.errors import CorruptSnapshotError
from typing_extensions import override

_HEADER: Final = struct.Struct(">4si")
_MAGIC: Final = b"crc\0"
_CHUNK: Final = 512


class Files(Protocol):
    """The text files below one folder."""

    def exists(self, name: str) -> bool:
        """Tell whether a file or folder exists."""

    def numbers(self, name: str) -> list[int]:
        """Return the names of files in a folder that are numbers."""

    def read(self, name: str) -> str | None:
        """Return a file's text; ``None``: it does not exist.

        Raises:
            CorruptSnapshotError: if it cannot be read, or its checksum does not fit.
        """

    def write(self, name: str, text: str) -> None:
        """Write a whole file or none, even if the machine loses its power."""

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""


class LocalFiles(Files):
    """The text files below a folder of a local disk; the folder need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @override
    def exists(self, name: str) -> bool:
        return (self._folder / name).exists()

    @override
    def numbers(self, name: str) -> list[int]:
        folder = self._folder / name
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.exists() else []

    @override
    def read(self, name: str) -> str | None:
        path = self._folder / name
        try:
            data = path.read_bytes()
            if _checksums(path).exists() and not _fits(data, _checksums(path).read_bytes()):
                raise _corrupt(path, "its checksum does not fit")
            return data.decode()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise _corrupt(path, str(error)) from error

    @override
    def write(self, name: str, text: str) -> None:
        path, data = self._folder / name, text.encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.draft")
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # Until the new checksum is written, there is none rather than a wrong one.
        _checksums(path).unlink(missing_ok=True)
        draft.replace(path)
        draft.write_bytes(_HEADER.pack(_MAGIC, _CHUNK) + _sums(data))
        draft.replace(_checksums(path))

    @override
    def delete(self, name: str) -> None:
        path = self._folder / name
        path.unlink(missing_ok=True)
        _checksums(path).unlink(missing_ok=True)


def _corrupt(path: Path, reason: str) -> CorruptSnapshotError:
    return CorruptSnapshotError(where=str(path), reason=reason, advice="restore an intact copy")


def _checksums(path: Path) -> Path:
    return path.with_name(f".{path.name}.crc")


def _sums(data: bytes, chunk: int = _CHUNK) -> bytes:
    return b"".join(struct.pack(">I", zlib.crc32(data[at : at + chunk])) for at in range(0, len(data), chunk))


def _fits(data: bytes, checksums: bytes) -> bool:
    """Tell whether data has these checksums; an incomplete checksum file fits any data."""
    if len(checksums) < _HEADER.size:
        return True
    magic, chunk = _HEADER.unpack_from(checksums)
    return magic != _MAGIC or chunk <= 0 or checksums[_HEADER.size :] == _sums(data, chunk)
