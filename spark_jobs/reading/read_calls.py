"""Which observation in a query is that of which call of `read`: how `write` finds what it must know.

A plan carries the names of its observations, nothing more.  So each spec is kept under its name, and lives as long as
the Python session that `read` was given.
"""

from typing import Final
from weakref import WeakValueDictionary

from floodmark.spark_jobs.internals.analysed import operators
from floodmark.spark_jobs.queries.plan import Operator
from floodmark.spark_jobs.reading.source_spec import SourceSpec
from pyspark.sql import DataFrame, SparkSession

_OWNED: Final = "_floodmark_specs"
"""The attribute of a session that keeps its specs alive."""

_specs: Final = WeakValueDictionary[str, SourceSpec]()


def register(spark: SparkSession, spec: SourceSpec) -> None:
    """Keep a spec for as long as its session lives."""
    vars(spark).setdefault(_OWNED, []).append(spec)
    _specs[spec.name] = spec


def plan_of(frame: DataFrame) -> Operator:
    """Return the operators of a query, down to the sources that `read` has made."""
    return operators(frame, _specs.__contains__)


def specs_of(plan: Operator) -> list[SourceSpec]:
    """Return what a query reads by `read`, each once: a DataFrame that is used twice, as in a self-join, is one."""
    names = dict.fromkeys(node.source for node in plan.walk() if node.source is not None)
    return [_specs[name] for name in names]


def topics_of(frame: DataFrame) -> list[str]:
    """Return the topics that a DataFrame reads by `read`; none for one that does not stream."""
    return [topic for spec in specs_of(plan_of(frame)) for topic in spec.topics] if frame.isStreaming else []
