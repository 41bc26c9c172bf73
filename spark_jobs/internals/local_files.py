"""Small text files on a local disk, as Hadoop's local file system writes them, and without its processes.

Where Hadoop's native library is absent, as beside PySpark from PyPI, its local file system starts ten processes
(``chmod``, ``readlink``) to write one file through `FileContext`, some 50 ms.  The form is the same: a checksum of each
512 bytes in a hidden file beside, so that Hadoop reads what this writes, and the other way round.
"""

import os
import struct
import zlib
from pathlib import Path
from typing import Final

from floodmark.schemas.errors import CorruptSnapshotError

_HEADER: Final = struct.Struct(">4si")
_MAGIC: Final = b"crc\0"
_CHUNK: Final = 512


class LocalFiles:
    """The files below one folder; it need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def exists(self, name: str) -> bool:
        """Tell whether there is such a file or folder."""
        return (self._folder / name).exists()

    def numbers(self, name: str) -> list[int]:
        """Return the numbers that are names of files in a folder."""
        folder = self._folder / name
        return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()] if folder.exists() else []

    def read(self, name: str) -> str | None:
        """Return a file's text, or ``None`` where it is not there.

        Raises:
            CorruptSnapshotError: where it cannot be read, or its checksum does not fit.
        """
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

    def write(self, name: str, text: str) -> None:
        """Write a file whole or not at all, even where the machine loses its power."""
        path, data = self._folder / name, text.encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.draft")
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # Between the two there is no checksum rather than one of another text.
        _checksums(path).unlink(missing_ok=True)
        draft.replace(path)
        draft.write_bytes(_HEADER.pack(_MAGIC, _CHUNK) + _sums(data))
        draft.replace(_checksums(path))

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
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
    """Compare; a file of checksums that was never finished says nothing."""
    if len(checksums) < _HEADER.size:
        return True
    magic, chunk = _HEADER.unpack_from(checksums)
    return magic != _MAGIC or chunk <= 0 or checksums[_HEADER.size :] == _sums(data, chunk)
