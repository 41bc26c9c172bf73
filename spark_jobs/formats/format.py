"""The interface of all formats: decode a column of Kafka values to structs, and encode structs to values."""

from abc import ABC, abstractmethod

from pyspark.sql import Column


class Format(ABC):
    """How the values of a topic are written."""

    @abstractmethod
    def decode(self, value: Column) -> Column:
        """Turn binary values into structs; null where a value cannot be read."""

    @abstractmethod
    def encode(self, row: Column) -> Column:
        """Turn structs into binary values."""

    def for_topic(self, topic: str) -> "Format":  # noqa: ARG002  # most write the same everywhere
        """Return what writes to a topic; called once, before a job begins, it may refuse."""
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that `encode` takes from a row; empty: all of them."""
        return ()
