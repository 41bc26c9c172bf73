"""What a trigger fires: the interface of targets, and the retries of one that fails."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Final, Protocol

from floodmark.producers.clients.clock import Deadline
from floodmark.producers.trigger.plan.trigger_event import TriggerEvent
from floodmark.schemas.errors import TriggerError

_log = logging.getLogger(__name__)
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0
_WAIT: Final = 0.1
"""Seconds between two looks at ``stop`` in a pause."""
_LOG_INTERVAL: Final = 60.0


class RefusedError(Exception):
    """A target that did not take an event; the text says why."""


class Target(Protocol):
    """Where events go.  An event may come twice, with the same key."""

    @property
    def about(self) -> str:
        """The target in a few words, for messages, without secrets."""

    def fire(self, event: TriggerEvent) -> str:
        """Deliver an event, and return the answer in a few words; `RefusedError` or OSError if it is not taken."""


Told = Callable[[TriggerEvent, str], None]
"""Called with an event that was fired, and the target's answer."""


class Delivery:
    """Fires events at one target, and tries again with longer and longer pauses.

    Args:
        target: where events go.
        seconds: how long to try with one event.
        told: called with each event that was taken, and the answer.
    """

    def __init__(self, target: Target, seconds: float, told: Told) -> None:
        self._target, self._seconds, self._told = target, seconds, told
        self.failing = False
        """Whether the target did not take the last event."""
        self.counts: Counter[str] = Counter()
        """Events that were taken, by kind."""

    def fire(self, event: TriggerEvent, stop: Callable[[], bool], store: Callable[[], None]) -> bool:
        """Fire an event until the target takes it; return false if ``stop`` ended that.

        ``store`` is called before each attempt; it raises an error if another process has taken over.

        Raises:
            TriggerError: if the target has not taken it after the time.
        """
        deadline, logged, pause = Deadline(self._seconds), Deadline(0), _FIRST_PAUSE
        while True:
            store()
            try:
                answer = self._target.fire(event)
            except (RefusedError, OSError) as error:
                self.failing = True
                reason = f"{self._target.about} did not take {event.key}: {error}"
            else:
                self.failing = False
                self.counts[event.kind] += 1
                self._told(event, answer)
                return True
            if deadline.passed:
                advice = "the position has not moved: start the trigger again when the target works"
                raise TriggerError(trigger=event.trigger, reason=reason, advice=advice)
            if logged.passed:
                logged = Deadline(_LOG_INTERVAL)
                _log.warning("trigger %r: %s; it tries again for %.0f s", event.trigger, reason, deadline.left)
            paused, pause = Deadline(min(pause, deadline.left)), min(2 * pause, _LONGEST_PAUSE)
            while not paused.passed:
                if stop():
                    return False
                time.sleep(min(_WAIT, paused.left))
