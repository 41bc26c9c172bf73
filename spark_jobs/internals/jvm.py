"""Access to Spark's own objects in the JVM, which only classic sessions (not Connect) have."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyspark
from floodmark.schemas.errors import UnsupportedSparkError, UsageError
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, utils
from pyspark.sql import SparkSession

RELEASE: Final = tuple(map(int, pyspark.__version__.split(".")[:2]))
"""The installed version of Spark, for example ``(4, 1)``."""

FAILURES: Final = (Py4JError, PySparkException)  # what Spark and its connectors raise

_LACKS: Final = re.compile(
    r"py4j\.Py4JException|Py4JSecurity|does not exist in the JVM|"
    r"NoSuch(Method|Field)E|ClassNotFoundE|NoClassDef|AbstractMethodE"
)
"""In the message of py4j: the JVM has no such class or method, or does not allow the call."""
_SHOWN: Final = 200
_SELECTED: Final = 1_024  # ``select`` accepts only files with a lower number


_lines = threading.local()
_looked_up: Final = utils.is_debugging_enabled
utils.is_debugging_enabled = lambda: not getattr(_lines, "hidden", False) and _looked_up()


@contextmanager
def without_lines() -> Iterator[None]:
    """Let PySpark make columns without looking up the line of Python of each, in this thread.

    It takes some ten calls of the JVM for each column, three quarters of the time of `read`.  The lines are Floodmark's
    own, of no use in an error.
    """
    before, _lines.hidden = getattr(_lines, "hidden", False), True
    try:
        yield
    finally:
        _lines.hidden = before


@contextmanager
def reaching(missing: str) -> Iterator[None]:
    """Raise `UnsupportedSparkError`, which names ``missing``, if the JVM lacks a class or method."""
    try:
        yield
    except (AttributeError, TypeError, Py4JError) as error:
        if isinstance(error, Py4JError) and not _LACKS.search(str(error).partition("\n\tat ")[0]):
            raise
        reason = str(error).splitlines()[0][:_SHOWN]
        raise UnsupportedSparkError(version=pyspark.__version__, missing=missing, reason=reason) from error


def machine(spark: SparkSession) -> tuple[int, int]:
    """Return the cores of a session, and the maximum heap of its driver in bytes."""
    with reaching("java.lang.Runtime"):
        runtime: Any = spark._jvm.java.lang.Runtime.getRuntime()  # type: ignore[union-attr]  # noqa: SLF001
        return spark.sparkContext.defaultParallelism, int(runtime.maxMemory())


def require_callbacks(spark: SparkSession) -> None:
    """Make sure that Spark can call this process, which it does for each batch.

    py4j waits for Spark's calls with ``select``, which fails if many files are open; the job would then never run a
    batch, without an error.  A process that listens since an earlier job may open any number of files.
    """
    with reaching("the gateway to the JVM"):
        if vars(spark.sparkContext._gateway).get("_callback_server") is not None:  # noqa: SLF001
            return
    number = os.open(os.devnull, os.O_RDONLY)  # the lowest free number, which py4j's socket would get
    os.close(number)
    if number >= _SELECTED:
        reason = (
            f"this process has {number:,} open files; with {_SELECTED:,} or more PySpark cannot listen for Spark's "
            "calls: start the first job before they are opened, or in a process of its own; many producers in one "
            "process need fewer as a SourcePool"
        )
        raise UsageError(reason=reason)


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
