"""When the marks of a source are due: on an interval, at once for a punctuation, and soon where the topic grows."""

import logging
from typing import Final

from floodmark.producers.clients.clock import Clock
from floodmark.producers.outbox import Outbox
from floodmark.producers.partition_watch import PartitionWatch
from floodmark.producers.strategies.emitter import Emitter
from floodmark.producers.successors import Successors

_log = logging.getLogger(__name__)
_WATCH_INTERVAL: Final = 10_000
_RETRY_INTERVAL: Final = 100
_SILENCE: Final = 10_000


class Schedule:
    """Sends the marks that are due, whenever it is asked to.

    Args:
        emitter: what the source promises.
        outbox: where the marks go.
        watch: how many partitions the topic has.
        successors: which later runs write to the topic.
        clock: where the time comes from.
        interval: time between marks, milliseconds.
    """

    def __init__(
        self,
        emitter: Emitter,
        outbox: Outbox,
        watch: PartitionWatch,
        successors: Successors,
        clock: Clock,
        interval: int,
    ) -> None:
        self._emitter = emitter
        self._outbox = outbox
        self._watch = watch
        self._successors = successors
        self._clock = clock
        self._interval = interval
        self.polled = True
        """Whether the marks depend on the caller's calls alone; then a long silence is logged, once."""
        now = clock.steady()
        self._next_mark = now + interval
        self._next_watch = now + _WATCH_INTERVAL

    def serve(self, now: int) -> None:
        """Send the marks that are due, if there is room: a record that was accepted must not end in an error.

        Args:
            now: the steady clock, milliseconds.
        """
        if now >= self._next_watch:
            self._next_watch = now + _WATCH_INTERVAL
            self._watch.ask_beside(self.mark_soon)
            self._successors.look_beside(now)
        if now >= self._next_mark or self._emitter.due:
            self._tell_silence(now - self._next_mark)
            self._next_mark = now + _RETRY_INTERVAL
            if not self._outbox.crowded:
                self._send(wait=False)

    @property
    def due_at(self) -> int:
        """When `serve` has marks to send, by the steady clock, milliseconds; 0: it must be asked all the time."""
        return 0 if self._emitter.punctual else self._next_mark

    def mark_soon(self) -> None:
        """Let the next marks be due at once."""
        self._next_mark = 0

    def emit(self, *, wait: bool = True) -> None:
        """Send a mark to every partition now; nothing after the end.

        Args:
            wait: for room in a full queue; else what it has no room for is sent later.

        Raises:
            BufferError: the queue stayed full for a minute, with ``wait``.
        """
        self._send(wait=wait)

    def _send(self, *, wait: bool) -> None:
        now = self._clock.steady()
        self._next_mark = now + self._interval
        self._emitter.grow(self._watch.partitions)
        self._follow_successors()
        if not self._outbox.send_marks(wait=wait):
            self._next_mark = now + _RETRY_INTERVAL

    def _follow_successors(self) -> None:
        identity = self._emitter.identity
        if self._emitter.fence(self._successors.epochs.get(identity.source, 0)):
            _log.error(
                "source %r, epoch %d, was fenced: a later run with epoch %d marks its topic, and readers follow that",
                *(identity.source, identity.epoch, self._emitter.fenced_by),
            )

    def _tell_silence(self, late: int) -> None:
        """Warn, once, if readers had to wait because nothing called the source: it cannot tell before the next call."""
        if self.polled and late > max(_SILENCE, 3 * self._interval) and self._emitter.registered and self._next_mark:
            self.polled = False
            _log.warning(
                "source %r sent no marks for %d s, because nothing called it, and readers waited; call poll() at least "
                "once an interval, or pass background=True",
                *(self._emitter.identity.source, (late + self._interval) // 1000),
            )
