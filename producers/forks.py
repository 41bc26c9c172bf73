"""What belongs to one process: in a fork of it the client's threads do not run, and two writers would be one source."""

import os
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, NoReturn, Protocol
from weakref import WeakSet

from floodmark.schemas.errors import ForkedError


class Lock(Protocol):
    """What a source holds while it decides and sends: a ``threading.RLock``."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002  # as RLock's
        """Wait for it."""
        ...

    def release(self) -> None:
        """Give it back."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class _Refusal:
    """Stands for the lock in a forked process, so that all that would take it is refused, at no cost elsewhere."""

    def __init__(self, owner: str, parent: int) -> None:
        self._owner = owner
        self._parent = parent

    def _refuse(self) -> NoReturn:
        raise ForkedError(owner=self._owner, parent=self._parent, child=os.getpid())

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: ARG002, FBT001, FBT002  # as RLock's
        self._refuse()

    def release(self) -> None:
        self._refuse()

    def __enter__(self) -> object:
        self._refuse()

    def __exit__(self, *_: object) -> None:
        """Nothing was taken."""


class Guarded(ABC):
    """What several threads may use, of one process alone.

    Args:
        lock: held by every public method; in a forked process it refuses with a `ForkedError`.
    """

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._process = os.getpid()
        _GUARDED.add(self)

    def refuse(self) -> None:
        """Refuse all use from now on, in a forked process."""
        self._lock = _Refusal(repr(self), self._process)

    @property
    def forked(self) -> bool:
        """Whether this process is forked from that of the owner."""
        return isinstance(self._lock, _Refusal)

    @abstractmethod
    def close(self, timeout: float = 10) -> bool:
        """Wait for what is in flight; returns whether all was acknowledged or has failed."""

    def finish(self, timeout: float) -> bool:
        """Close at the end of the process, unless another thread waits in a call for so long; in a fork do nothing."""
        if self.forked:
            return True
        if not self._lock.acquire(timeout=timeout):
            return False
        try:
            return self.close(timeout)
        finally:
            self._lock.release()


_GUARDED: Final[WeakSet[Guarded]] = WeakSet()


def _refuse_all() -> None:
    for one in list(_GUARDED):
        one.refuse()


os.register_at_fork(after_in_child=_refuse_all)
