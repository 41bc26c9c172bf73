"""A thread that sends marks while the caller is quiet; it ends with its source or with the process."""

import atexit
import logging
import threading
from collections.abc import Callable
from typing import Final

_log = logging.getLogger(__name__)
_LONGEST_PERIOD: Final = 100  # milliseconds
_EXIT_TIMEOUT: Final = 10.0  # seconds


class Background:
    """Calls ``serve`` in a daemon thread every 0.1 seconds, or ``interval`` milliseconds if shorter, until `stop`.

    When the process ends, it calls ``finish`` with a timeout in seconds, which returns whether Kafka has acknowledged
    all records.  After SIGKILL or ``os._exit`` nothing is closed, and readers wait for the source as for any dead one.
    """

    def __init__(self, owner: str, serve: Callable[[], None], finish: Callable[[float], bool], interval: int) -> None:
        self._owner, self._serve, self._finish = owner, serve, finish
        self._period = min(interval, _LONGEST_PERIOD) / 1000
        self._failure: Exception | None = None
        self._stop = threading.Event()
        atexit.register(self._at_exit)
        threading.Thread(target=self._run, name=f"floodmark {owner}", daemon=True).start()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Stop the thread.  Hold the owner's lock, so that it sends nothing afterwards."""
        self._stop.set()
        atexit.unregister(self._at_exit)

    def _run(self) -> None:
        while not self._stop.wait(self._period):
            try:
                self._serve()
            except Exception as failure:  # noqa: BLE001  # any error must reach the caller
                self.keep_failure(failure)

    def keep_failure(self, failure: Exception) -> None:
        """Log an error, and keep the first one for the owner's next call; the thread continues."""
        if self._failure is None:
            self._failure = failure
            _log.error("%s: an error beside the caller: %r", self._owner, failure, exc_info=failure)

    def raise_failure(self) -> None:
        """Raise the kept error, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _at_exit(self) -> None:
        try:
            if not self._finish(_EXIT_TIMEOUT):
                _log.error("%s: the process ends, but Kafka has not acknowledged all records", self._owner)
        except Exception:  # noqa: BLE001  # nobody is left to catch it
            _log.exception("%s: the process ends after an error", self._owner)
