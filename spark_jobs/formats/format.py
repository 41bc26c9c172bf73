"""The interface of all formats: decode a column of Kafka values to structs, and encode structs to values."""

from abc import ABC, abstractmethod

from pyspark.sql import Column
from pyspark.sql.types import StructType


class Format(ABC):
    """How the values of a topic are encoded."""

    unit: str | None = None
    """The unit of times that are numbers; ``None``: the values say it."""

    @abstractmethod
    def decode(self, value: Column) -> Column:
        """Return binary values as structs; null for a value that cannot be read."""

    @abstractmethod
    def encode(self, row: Column) -> Column:
        """Return structs as binary values."""

    def for_topic(self, topic: str) -> "Format":  # noqa: ARG002  # most formats are the same for all topics
        """Return the format for writes to a topic; called once, before a job starts; it may raise."""
        return self

    def require(self, row: StructType) -> None:  # noqa: B027  # Spark's own writers refuse such a row
        """Raise `UsageError` for a column whose type `decode` could not read back; called once, before a job starts."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The columns that `encode` takes from a row; empty: all."""
        return ()
