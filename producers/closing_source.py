"""How a source stops: what it waits for, what it still promises, and what it lets go of."""

from contextlib import suppress
from typing import Self

from floodmark.producers.source import Source
from floodmark.schemas.errors import BrokerUnavailableError, EndedError, UnknownTopicError
from typing_extensions import override


class ClosingSource(Source):
    """A source that can be flushed, ended and closed."""

    def flush(self, timeout: float = 60) -> int:
        """Wait until all is acknowledged, then send marks that promise it, and wait for those.

        Looks for new partitions first.  After ``end`` it only waits.

        Args:
            timeout: of each wait, seconds.

        Returns:
            How many records are left, as confluent-kafka does: 0, since any that is left is an error here.

        Raises:
            DeliveryError: where Kafka did not accept a record or a mark; the watermark stays held below it.
            FencedError: a later run of this source marks the topic; this one has waited for its records.
        """
        with self._lock:
            self._outbox.wait(timeout)
            if not self._emitter.ended:
                with suppress(BrokerUnavailableError, UnknownTopicError):
                    self._watch.ask(timeout)
            self.emit()
            self._outbox.wait(timeout, marks=True)
            self._raise_kept()
        return 0

    def end(self, timeout: float = 60) -> None:
        """Flush, then mark in every partition that this source has ended.

        Args:
            timeout: of each wait, seconds.

        Raises:
            DeliveryError: where Kafka did not accept a record; then no partition is marked.  Where it did not accept
                such a mark: call it again.
            BrokerUnavailableError: where the topic's partitions cannot be learnt; no partition is marked.
            FencedError: a later run of this source marks the topic.
            EndedError: where all of them were marked before.
        """
        with self._lock:
            if not self._emitter.ended:
                self._outbox.wait(timeout)
                self._check_fenced()
                self._emitter.grow(self._watch.ask(timeout))
                self._emitter.end()
            elif self._outbox.settled:
                raise EndedError(source=self._emitter.identity.source, action="end again")
            self.emit()
            self._outbox.wait(timeout, marks=True)
            self._release()
            if self._background is not None:
                self._raise_kept()

    @override
    def close(self, timeout: float = 10) -> bool:
        """Wait for what is in flight, and close what only this source reads.

        No mark is sent; call `flush` or `end` before to promise what was acknowledged, or use ``with``, which flushes.
        With ``background`` marks that promise it are sent, as far as there is room for them, and waited for.

        Args:
            timeout: of each wait, seconds.

        Returns:
            Whether all was acknowledged or has failed, see `failed`.
        """
        running = self._background is not None and not self._background.stopped
        return self._close(timeout, promise=running and self._emitter.fenced_by is None)

    def _close(self, timeout: float, *, promise: bool) -> bool:
        with self._lock:
            try:
                self._producer.flush(timeout)
                if promise and not self._emitter.ended:
                    self._schedule.emit(wait=False)
                    self._producer.flush(timeout)
                closed = self._outbox.unacknowledged == 0
            finally:
                self._release()
            if promise:
                self._raise_kept()
            return closed

    def _release(self) -> None:
        """Close what only this source uses."""
        self._outbox.release()
        if self._background is not None:
            self._background.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush; after an error only what is in flight is waited for, and no promise is made.  In a fork: nothing."""
        if self.forked:
            return
        try:
            if kind is None:
                self.flush()
            else:
                self._close(10, promise=False)
        finally:
            with self._lock:
                self._release()
