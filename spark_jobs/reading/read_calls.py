"""The calls of `read` in a query, which `write` finds by the names of the observations in its plan.

A plan has no more than these names.  So each spec is registered by its name, and lives as long as the session that
`read` was given.
"""

from typing import Final
from weakref import WeakValueDictionary

from floodmark.spark_jobs.internals.analysed import operators
from floodmark.spark_jobs.queries.plan import Operator
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from pyspark.sql import DataFrame, SparkSession

_OWNED: Final = "_floodmark_specs"
"""The attribute of a session that holds its specs."""

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
