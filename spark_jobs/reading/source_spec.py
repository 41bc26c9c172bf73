"""One call of `read`, as a value: what a job must know of a source of its rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from floodmark.producers.clients.secrets import resolved
from floodmark.schemas.errors import UsageError
from floodmark.schemas.mark_policy import MarkPolicy
from floodmark.spark_jobs.queries.source_options import from_earliest, source_options
from floodmark.spark_jobs.reading.security import Client, settings_of, spark_options
from pyspark.sql import Column

Decoder = Callable[[Column], Column]
"""From a column of binary values to a column of structs; null where a value cannot be read."""


@dataclass(frozen=True, slots=True)
class Route:
    """The topic that late rows go to, see `route`."""

    topic: str


def route(topic: str) -> Route:
    """Send late rows to a topic: ``read(late=route("late-clicks"))``.

    Args:
        topic: its name; it must exist.
    """
    return Route(topic)


Late = Literal["drop", "adjust"] | Route
"""What becomes of late rows."""


def check_late(late: object) -> None:
    """Refuse what is not `Late`.

    Raises:
        UsageError: for any other value.

    >>> check_late("late-clicks")
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: late is 'late-clicks', expected 'drop', 'adjust' or route('a-topic')
    """
    is_route = isinstance(late, Route) and isinstance(late.topic, str)
    if late is not None and not is_route and late not in ("drop", "adjust"):
        raise UsageError(reason=f"late is {late!r}, expected 'drop', 'adjust' or route('a-topic')")


@dataclass(frozen=True, slots=True)
class Connection:
    """Topics, and how they are reached.  It holds what was given, so a secret only where that is one."""

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
        percentile: which percentile drives the job, see `mark_policy.driving`.
        shift: how far event times may lie before those that the marks speak of, milliseconds.
        late: what becomes of late rows; ``None``: Spark's operators decide.
        limited: whether a limit may end the tasks that read it before they have read all of a batch.
    """

    name: str
    connection: Connection
    event_time: Column
    decode: Decoder
    percentile: int | None = None
    shift: int = 0
    late: Late | None = None
    limited: bool = False

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are read."""
        return self.connection.topics

    @property
    def mark_policy(self) -> MarkPolicy:
        """How its marks count."""
        return MarkPolicy(self.percentile, self.shift)

    @property
    def late_topic(self) -> str | None:
        """The topic that late rows go to."""
        return self.late.topic if isinstance(self.late, Route) else None
