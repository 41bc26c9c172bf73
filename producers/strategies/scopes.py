"""Which partitions of a source share a watermark: all, or, with `per_partition`, each has its own.  Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from floodmark.producers.strategies.in_flight import InFlights
from floodmark.producers.strategies.interface import Generator, Strategy, strategy_of
from floodmark.schemas.errors import UsageError
from floodmark.schemas.timestamps import EARLIEST, promisable
from typing_extensions import override


@dataclass(frozen=True, slots=True)
class PerPartition(Strategy):
    """A strategy that builds a generator for each partition."""

    inner: Strategy
    quiet: int | None = None  # a partition follows the others after this time without events, milliseconds

    @override
    def build(self) -> Generator:
        raise UsageError(reason="per_partition() has one generator for each partition: only with_idleness() wraps it")


def per_partition(strategy: Strategy) -> Strategy:
    """Each partition has its own watermark: the source writes several logs, each to a partition of its own.

    The topic's watermark is the lowest of all partitions, so it waits for a partition that has no record yet, or no new
    ones.  If this can last, use ``with_idleness(per_partition(ascending()), timeout)``: a partition that is quiet for
    the timeout follows the lowest of the others, so its next records may be late.

    Raises `UsageError` for `ingress`, whose watermark is the clock in every partition.

    >>> from floodmark.producers.strategies.basic import ascending
    >>> per_partition(ascending()).build()
    Traceback (most recent call last):
      ...
    floodmark.schemas.errors.UsageError: per_partition() has one generator for each partition: only with_idleness() \
wraps it
    """
    if strategy_of(strategy).build().stamps:
        raise UsageError(reason="per_partition(ingress()): its watermark is the clock in all partitions; use ingress()")
    return PerPartition(strategy)


def generators(strategy: Strategy) -> tuple[Callable[[], Generator], PerPartition | None]:
    """Return how to build a generator of a strategy, and the strategy if each partition has its own."""
    apart = strategy if isinstance(strategy, PerPartition) else None
    return (strategy if apart is None else apart.inner).build, apart


class Scope:
    """One watermark of a source, and the records in flight that hold it."""

    def __init__(self, generator: Generator, rounds: int = 0) -> None:
        self.generator = generator
        self.in_flight = InFlights()
        self.in_flight.close(rounds)
        self.promised: int | None = None  # the watermark of the last marks, epoch milliseconds
        self.last_event: int | None = None  # when the last record was sent; ``None``: at the next `listen`
        self.quiet = False  # whether it follows the others: it has had no record for long, and none is in flight

    @property
    def watermark(self) -> int | None:
        """The watermark that a mark would have now, epoch milliseconds; ``None``: unknown."""
        watermark = self.generator.watermark()
        if watermark is not None:
            hold = self.in_flight.earliest()
            watermark = promisable(watermark if hold is None else min(watermark, hold))
        if self.promised is not None and (watermark is None or watermark < self.promised):
            return self.promised
        return watermark

    @property
    def due(self) -> bool:
        """Whether the generator is ahead of the last marks, and no record in flight would hold them back."""
        watermark, hold = self.generator.watermark(), self.in_flight.earliest()
        return self.is_ahead(watermark) and (hold is None or watermark is None or watermark <= hold)

    def is_ahead(self, watermark: int | None) -> bool:
        """Tell whether a watermark is above the one of the last marks."""
        return watermark is not None and (self.promised is None or promisable(watermark) > self.promised)

    def listen(self, now: int, timeout: int | None) -> None:
        """Note whether the scope is quiet: ``timeout`` milliseconds without a record have passed."""
        if self.last_event is None:
            self.last_event = now
        silent = self.generator.idle or (timeout is not None and now - self.last_event > timeout)
        self.quiet = silent and self.in_flight.earliest() is None

    def promise(self, others: int | None) -> int | None:
        """Return the watermark of the next mark; a quiet scope follows the one of the ``others``."""
        watermark = self.watermark
        if self.quiet and others is not None and (watermark is None or watermark < others):
            watermark = others
        self.promised = watermark
        return watermark

    def percentiles(self) -> dict[int, int] | None:
        """Return the percentiles of the next mark, never below its watermark."""
        found = self.generator.percentiles()
        if not found:
            return None
        lowest = EARLIEST if self.promised is None else self.promised
        return {percent: max(promisable(time), lowest) for percent, time in found.items()}
