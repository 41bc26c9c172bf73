"""What one source sends, and when: marks on an interval, at once for a punctuation, and soon after the topic grows."""

import logging
from typing import Final

from floodmark.producers.channel import Channel
from floodmark.producers.clients.clock import Clock
from floodmark.producers.outbox import Outbox
from floodmark.producers.strategies.emitter import Emitter
from floodmark.schemas.errors import FencedError

_log = logging.getLogger(__name__)
_RETRY_INTERVAL: Final = 100
_SILENCE: Final = 10_000


class Sender:
    """Sends the records and marks of one source; a producer has one, and a pool serves many.

    Args:
        channel: how they reach Kafka.
        topic: the topic.
        emitter: what the source promises.
        clock: where the time comes from.
        interval: time between marks, milliseconds.
    """

    def __init__(self, channel: Channel, topic: str, emitter: Emitter, clock: Clock, interval: int) -> None:
        self.emitter = emitter
        self.outbox = Outbox(channel.client, topic, emitter, clock)
        self.polled = True
        """Whether the marks depend on the caller's calls alone; then a long silence is logged, once."""
        self._channel = channel
        self._topic = topic
        self._clock = clock
        self._interval = interval
        self._next_mark = clock.steady() + interval
        self._partitions = emitter.partitions

    def serve(self, now: int) -> None:
        """Send the marks that are due, if there is room: a record that was accepted must not end in an error.

        Args:
            now: the steady clock, milliseconds.
        """
        channel, emitter = self._channel, self.emitter
        if now >= channel.next_look:
            channel.look_beside(now)
        if now >= self._next_mark or channel.partitions > self._partitions or (emitter.punctual and emitter.due):
            self._tell_silence(now - self._next_mark)
            self._next_mark = now + _RETRY_INTERVAL
            if not self.outbox.crowded:
                self.emit(wait=False)

    def attend(self) -> None:
        """Send the marks that are due, unless the thread of the channel was stopped."""
        with self._channel.lock:
            if not self._channel.stopped:
                self.serve(self._clock.steady())

    @property
    def due_at(self) -> int:
        """When `serve` has marks to send, by the steady clock, milliseconds; 0: it must be asked all the time."""
        soon = self.emitter.punctual or self._channel.partitions > self._partitions
        return 0 if soon else self._next_mark

    def emit(self, *, wait: bool = True) -> None:
        """Send a mark to every partition now; nothing after the end.

        Raises:
            BufferError: the queue stayed full for a minute, with ``wait``.
        """
        now = self._clock.steady()
        self._next_mark, self._partitions = now + self._interval, self._channel.partitions
        self.emitter.grow(self._partitions)
        self._follow_successors()
        if not self.outbox.send_marks(wait=wait):
            self._next_mark = now + _RETRY_INTERVAL

    def emit_end(self) -> None:
        """Send marks that say that the source has ended; those that were not delivered before are sent again.

        Raises:
            BufferError: the queue stayed full for a minute.
            FencedError: a later run of this source marks the topic.
        """
        if not self.emitter.ended:
            self.emitter.grow(self._channel.partitions)
            self._channel.ending = True
            self.emitter.end()
        self.check_fenced()
        self.emit()

    def check_fenced(self) -> None:
        """Refuse to go on where a later run has taken over.

        Raises:
            FencedError: a later run of this source marks the topic.
        """
        fenced_by, identity = self.emitter.fenced_by, self.emitter.identity
        if fenced_by is not None:
            reason = f"it has epoch {identity.epoch}, and readers follow its epoch {fenced_by} there"
            advice = "if two processes have its id, stop one, or rename it; if you pass epoch=, pass a higher one"
            raise FencedError(writer=identity.source, topic=self._topic, reason=reason, advice=advice)

    def raise_kept(self) -> None:
        """Raise what a delivery report or the thread has raised, or that a later run has taken over."""
        self.check_fenced()
        self.outbox.raise_callback_error()
        self._channel.raise_failure()

    def _follow_successors(self) -> None:
        identity = self.emitter.identity
        if self.emitter.fence(self._channel.successors.epochs.get(identity.source, 0)):
            _log.error(
                "source %r, epoch %d, was fenced: a later run with epoch %d marks its topic, and readers follow that",
                *(identity.source, identity.epoch, self.emitter.fenced_by),
            )

    def _tell_silence(self, late: int) -> None:
        """Warn, once, if readers had to wait because nothing called the source: it cannot tell before the next call."""
        if self.polled and late > max(_SILENCE, 3 * self._interval) and self.emitter.registered:
            self.polled = False
            _log.warning(
                "source %r sent no marks for %d s, because nothing called it, and readers waited; call poll() at least "
                "once an interval, or pass background=True",
                *(self.emitter.identity.source, (late + self._interval) // 1000),
            )
