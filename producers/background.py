"""A thread that sends the marks that are due while nobody calls; it ends with its source, or with the process."""

import atexit
import logging
import threading
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)
_LONGEST: Final = 100
_EXIT_TIMEOUT: Final = 10.0


class Background:
    """Serves a source, or a pool of them, until it is stopped.

    The thread is a daemon: it keeps no process alive.  When the process ends, its owner is closed; one that is
    killed, or ends by ``os._exit``, closes nothing, and readers wait for its source as for any dead one.

    Args:
        owner: what it serves, for the log and the name of the thread.
        serve: sends what is due.
        finish: closes the owner at the end of the process, within so many seconds; returns whether Kafka has
            acknowledged all.
        interval: time between marks, milliseconds.
    """

    def __init__(self, owner: str, serve: Callable[[], None], finish: Callable[[float], bool], interval: int) -> None:
        self._owner, self._serve, self._finish = owner, serve, finish
        self._period = min(interval, _LONGEST) / 1000
        self._failure: Exception | None = None
        self._stop = threading.Event()
        atexit.register(self._at_exit)
        threading.Thread(target=self._run, name=f"floodmark {owner}", daemon=True).start()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Serve no more.  Called with the lock held, so that nothing is sent after it."""
        self._stop.set()
        atexit.unregister(self._at_exit)

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            try:
                self._serve()
            except Exception as failure:  # noqa: BLE001  # whatever it is, the caller has to learn of it
                self.keep(failure)

    def keep(self, failure: Exception) -> None:
        """Keep an error for the owner's next call, and log it, for there may be none; serving goes on."""
        if self._failure is None:
            self._failure = failure
            _log.error("%s: an error beside the caller: %r", self._owner, failure, exc_info=failure)

    def raise_failure(self) -> None:
        """Raise what was kept, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _at_exit(self) -> None:
        try:
            if not self._finish(_EXIT_TIMEOUT):
                _log.error("%s: the process ends, but Kafka has not acknowledged all records", self._owner)
        except Exception:  # noqa: BLE001  # nobody is left to catch it
            _log.exception("%s: the process ends after an error", self._owner)
