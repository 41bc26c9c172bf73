"""The calls of `read`, each as a value, which `write` finds by the names of the observations in its plan.

A plan has no more than these names.  So each spec is registered by its name, and lives as long as the session that
`read` was given.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from weakref import WeakValueDictionary

from floodmark.producers.clients.secrets import resolved
from floodmark.schemas.errors import UsageError
from floodmark.schemas.tracker import MarkPolicy
from floodmark.spark_jobs.internals.analysed import operators
from floodmark.spark_jobs.queries.plan import Operator
from floodmark.spark_jobs.queries.source_options import moved_start, source_options
from floodmark.spark_jobs.reading.security import Client, settings_of, spark_options
from pyspark.sql import Column, DataFrame, SparkSession

_OWNED: Final = "_floodmark_specs"  # the attribute of a session that holds its specs

Decoder = Callable[[Column], Column]
"""From a column of binary values to a column of structs; null if a value cannot be read."""


@dataclass(frozen=True, slots=True)
class Route:
    """The topic that late rows go to, see `route`."""

    topic: str


def route(topic: str) -> Route:
    """Send late rows to an existing topic: ``read(late=route("late-clicks"))``."""
    return Route(topic)


Late = Literal["drop", "adjust"] | Route  # what to do with late rows


def check_late(late: object) -> None:
    """Refuse what is not `Late`.

    >>> check_late("late-clicks")
    Traceback (most recent call last):
    floodmark.schemas.errors.UsageError: late is 'late-clicks', expected 'drop', 'adjust' or route('a-topic')
    """
    is_route = isinstance(late, Route) and isinstance(late.topic, str)
    if late is not None and not is_route and late not in ("drop", "adjust"):
        raise UsageError(reason=f"late is {late!r}, expected 'drop', 'adjust' or route('a-topic')")


@dataclass(frozen=True, slots=True)
class Connection:
    """Topics, and how to connect to them, as the user has given it: with secrets or with their places."""

    topics: tuple[str, ...]
    bootstrap_servers: str
    client: Client | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def config(self) -> dict[str, Any]:
        """Return the confluent-kafka settings with their secrets."""
        return {"bootstrap.servers": self.bootstrap_servers, **resolved(settings_of(self.client))}

    def source_options(self) -> dict[str, str]:
        """Return all options of Spark's Kafka source, with the places of secrets."""
        given = spark_options(settings_of(self.client), self.options)
        return source_options(self.bootstrap_servers, self.topics, given)

    @property
    def moved_start(self) -> str | None:
        """The option that moves the start of a new query; ``None``: it starts with the first record in Kafka."""
        return moved_start(self.source_options())


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SourceSpec:
    """One call of `read`."""

    name: str  # the name of its observation
    connection: Connection
    event_time: Column
    decode: Decoder
    percentile: int | None = None  # the percentile that drives the job, see `tracker.driving`
    shift: int = 0  # how far event times may be before the times that the marks promise, milliseconds
    late: Late | None = None  # ``None``: Spark's operators keep or drop late rows
    most: int | None = None  # the limit to which its batches grow; ``None``: a fixed limit, or none
    unit: str | None = None  # of times that are numbers, by the format; ``None``: it does not tell
    time: str = ""  # Spark's text of ``event_time``
    zone: str = "UTC"  # the time zone of the session, in which Spark reads text without one
    limited: int | None = None
    """Of larger batches, operators may read only a part; ``None``: they read all of each batch."""
    derived: int = 0  # the part of ``shift`` that `event_time` adds, after late rows are judged

    @property
    def topics(self) -> tuple[str, ...]:
        """Its topics."""
        return self.connection.topics

    @property
    def mark_policy(self) -> MarkPolicy:
        """How its marks count."""
        return MarkPolicy(self.percentile, self.shift)

    @property
    def late_topic(self) -> str | None:
        """The topic for late rows."""
        return self.late.topic if isinstance(self.late, Route) else None


_specs: Final = WeakValueDictionary[str, SourceSpec]()


def register(spark: SparkSession, spec: SourceSpec) -> None:
    """Register a spec while its session lives."""
    vars(spark).setdefault(_OWNED, []).append(spec)
    _specs[spec.name] = spec


def plan_of(frame: DataFrame) -> Operator:
    """Return the operators of a query, down to the sources of `read`."""
    return operators(frame, _specs.__contains__)


def specs_of(plan: Operator) -> list[SourceSpec]:
    """Return the sources of a query, each once: a self-join of a DataFrame has one source."""
    names = dict.fromkeys(node.source for node in plan.walk() if node.source is not None)
    return [_specs[name] for name in names]


def topics_of(frame: DataFrame) -> list[str]:
    """Return the topics that a streaming DataFrame reads by `read`."""
    return [topic for spec in specs_of(plan_of(frame)) for topic in spec.topics] if frame.isStreaming else []
