"""One call of `read`, as a value: what a job must know of a source of its rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from floodmark.producers.clients.secrets import resolved
from floodmark.spark_jobs.progress.lateness import Way
from floodmark.spark_jobs.queries.source_options import from_earliest, source_options
from floodmark.spark_jobs.reading.security import Client, settings_of, spark_options
from pyspark.sql import Column

Decoder = Callable[[Column], Column]
"""From a column of binary values to a column of structs; null where a value cannot be read."""


@dataclass(frozen=True, slots=True)
class Connection:
    """Topics, and how they are reached.  It holds what was given, so a secret only where that is one.

    Args:
        topics: what is read.
        bootstrap_servers: Kafka's address.
        client: see `read`.
        options: of Spark's Kafka source.
    """

    topics: tuple[str, ...]
    bootstrap_servers: str
    client: Client | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def config(self) -> dict[str, Any]:
        """Return the confluent-kafka settings, with the secrets that stand at the places they name.

        Raises:
            UsageError: where nothing is there.
        """
        return {"bootstrap.servers": self.bootstrap_servers, **resolved(settings_of(self.client))}

    def source_options(self) -> dict[str, str]:
        """Return all options of Spark's Kafka source, with the places of secrets."""
        given = spark_options(settings_of(self.client), self.options)
        return source_options(self.bootstrap_servers, self.topics, given)

    @property
    def from_earliest(self) -> bool:
        """Whether a new query begins with the first record that Kafka has."""
        return from_earliest(self.source_options())


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SourceSpec:
    """One call of `read`.

    Args:
        name: of its observation.
        connection: to its topics.
        event_time: over the fields of a value.
        decode: from bytes to values.
        percentile: which percentile drives the job, see `lateness.driving`.
        shift: how far event times may lie before those that the marks speak of, milliseconds.
        late: what becomes of late rows: ``drop``, ``adjust``, or the topic they go to; ``None``: Spark's operators
            decide.
        limited: whether a limit may end the tasks that read it before they have read all of a batch.
    """

    name: str
    connection: Connection
    event_time: Column
    decode: Decoder
    percentile: int | None = None
    shift: int = 0
    late: str | None = None
    limited: bool = False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read."""
        return self.connection.topics

    @property
    def way(self) -> Way:
        """How its marks count."""
        return Way(self.percentile, self.shift)

    @property
    def late_topic(self) -> str | None:
        """The topic that late rows go to."""
        return None if self.late in {None, "drop", "adjust"} else self.late
