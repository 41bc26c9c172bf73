"""When a source sends marks: on an interval, at once for a punctuation, and when its topic grows."""

import logging
from typing import Final

from floodmark.producers.channel import Channel
from floodmark.producers.clients.clock import Clock
from floodmark.producers.outbox import Outbox
from floodmark.producers.strategies.emitter import Emitter
from floodmark.schemas.errors import FencedError

_log = logging.getLogger(__name__)
_RETRY_INTERVAL: Final = 100  # milliseconds
_SILENCE: Final = 10_000  # milliseconds


class Sender:
    """Sends the records and marks of one source, a round of marks every ``interval`` milliseconds."""

    def __init__(self, channel: Channel, topic: str, emitter: Emitter, clock: Clock, interval: int) -> None:
        self.emitter = emitter
        self.outbox = Outbox(channel.client, topic, emitter, clock)
        self.polled = True
        """Whether marks are sent only when the caller calls; then a long silence is logged, once."""
        self._channel = channel
        self._topic = topic
        self._clock = clock
        self._interval = interval
        self._next_mark = clock.steady() + interval
        self._partitions = emitter.partitions

    def send_due_marks(self, now: int) -> None:
        """Send the marks that are due, if the client's queue has room: ``produce`` must not fail because of a mark.

        ``now``: steady clock, milliseconds.
        """
        channel, emitter = self._channel, self.emitter
        if now >= channel.next_refresh:
            channel.refresh_in_background(now)
        if now >= self._next_mark or channel.partitions > self._partitions or (emitter.punctual and emitter.due):
            self._warn_of_silence(now - self._next_mark)
            self._next_mark = now + _RETRY_INTERVAL
            if not self.outbox.has_mark_backlog:
                self.emit(wait=False)

    def send_due_marks_in_background(self) -> None:
        """Take the lock and send the marks that are due, unless the background thread was stopped."""
        with self._channel.lock:
            if not self._channel.stopped:
                self.send_due_marks(self._clock.steady())

    @property
    def due_at(self) -> int:
        """When marks are due, by the steady clock, milliseconds; 0: ask again each time."""
        soon = self.emitter.punctual or self._channel.partitions > self._partitions
        return 0 if soon else self._next_mark

    def emit(self, *, wait: bool = True) -> None:
        """Send a mark to every partition now; nothing after the end.  ``wait``: for room in the queue."""
        now = self._clock.steady()
        self._next_mark, self._partitions = now + self._interval, self._channel.partitions
        self.emitter.grow(self._partitions)
        self._check_successors()
        if not self.outbox.send_marks(wait=wait):
            self._next_mark = now + _RETRY_INTERVAL

    def emit_end(self) -> None:
        """End the source and send the marks that say so; a second call sends rejected ones again."""
        if not self.emitter.ended:
            self.emitter.grow(self._channel.partitions)
            self._channel.source_ended = True
            self.emitter.end()
        self.check_fenced()
        self.emit()

    def check_fenced(self) -> None:
        """Raise `FencedError` if a later run of this source marks the topic."""
        fenced_by, identity = self.emitter.fenced_by, self.emitter.identity
        if fenced_by is not None:
            reason = f"it has epoch {identity.epoch}, and readers follow its epoch {fenced_by} there"
            advice = "if two processes have its id, stop one, or rename it; if you pass epoch=, pass a higher one"
            raise FencedError(writer=identity.source, topic=self._topic, reason=reason, advice=advice)

    def raise_failures(self) -> None:
        """Raise `FencedError`, or an error of an ``on_delivery`` or of the background thread."""
        self.check_fenced()
        self.outbox.raise_callback_error()
        self._channel.raise_failure()

    def _check_successors(self) -> None:
        identity = self.emitter.identity
        if self.emitter.fence(self._channel.successors.epochs.get(identity.source, 0)):
            _log.error(
                "source %r, epoch %d, was fenced: a later run with epoch %d marks its topic, and readers follow that",
                *(identity.source, identity.epoch, self.emitter.fenced_by),
            )

    def _warn_of_silence(self, overdue_ms: int) -> None:
        """Warn, once, that readers had to wait because nobody called the source."""
        if self.polled and overdue_ms > max(_SILENCE, 3 * self._interval) and self.emitter.registered:
            self.polled = False
            _log.warning(
                "source %r sent no marks for %d s, because nothing called it, and readers waited; call poll() at least "
                "once an interval, or pass background=True",
                *(self.emitter.identity.source, (overdue_ms + self._interval) // 1000),
            )
