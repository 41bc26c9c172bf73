"""Reaching Spark's own objects in the JVM: only classic sessions (not Connect) have them, and they may change."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyspark
from floodmark.schemas.errors import UnsupportedSparkError
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

RELEASE: Final = tuple(map(int, pyspark.__version__.split(".")[:2]))
"""The Spark that is installed, for example ``(4, 1)``: names of its own move from one to the next."""

_SHOWN: Final = 200


@contextmanager
def reaching(missing: str) -> Iterator[None]:
    """Name what this Spark lacks, where an object of the JVM cannot be reached.

    Args:
        missing: what is reached for.

    Raises:
        UnsupportedSparkError: names it, Spark's version and the reason.
    """
    try:
        yield
    except (AttributeError, TypeError, Py4JError) as error:
        reason = str(error).splitlines()[0][:_SHOWN]
        raise UnsupportedSparkError(version=pyspark.__version__, missing=missing, reason=reason) from error


def machine(spark: SparkSession) -> tuple[int, int]:
    """Return how many cores a session has, and how large its driver's heap may be, bytes.

    Raises:
        UnsupportedSparkError: where the driver's JVM cannot be reached.
    """
    with reaching("java.lang.Runtime"):
        runtime: Any = spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]  # noqa: SLF001
        return spark.sparkContext.defaultParallelism, int(runtime.maxMemory())


def each(collection: Any) -> Iterator[Any]:  # noqa: ANN401  # any of Scala's
    """Yield the elements of a Scala collection."""
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def kind_of(node: Any) -> str:  # noqa: ANN401  # any JVM object
    """Return the simple name of an object's class."""
    return str(node.getClass().getSimpleName())


def nodes(plan: Any) -> Iterator[Any]:  # noqa: ANN401  # a JVM plan
    """Yield a plan's operators from the top."""
    yield plan
    for child in each(plan.children()):
        yield from nodes(child)
