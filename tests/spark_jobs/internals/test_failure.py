"""Whether an error is an interrupt, and its reason, on errors that the JVM has made."""

from types import SimpleNamespace

import pytest
from floodmark.schemas.errors import JobFailedError, UnsupportedSparkError
from floodmark.spark_jobs.batch.stopping import Stopping
from floodmark.spark_jobs.internals.jvm import reaching
from floodmark.spark_jobs.internals.texts import reason_of
from floodmark.spark_jobs.job import Job
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.every_spark]


class Query(StreamingQuery):
    """A query that ended with an exception of the JVM, or with none."""

    def __init__(self, thrown, *, active=False):
        found = SimpleNamespace(isDefined=lambda: thrown is not None, get=lambda: Ended(thrown))
        super().__init__(SimpleNamespace(exception=lambda: found, isActive=lambda: active))
        self.active = active

    def stop(self):
        self.active = False


class Ended:
    """Spark's `StreamingQueryException`."""

    def __init__(self, thrown):
        self.getCause = lambda: thrown
        self.getStackTrace = list

    def toString(self):  # noqa: N802  # Spark's own name
        return f"org.apache.spark.Ended: {self.getCause().getMessage()}\n=== Streaming Query ===\nIdentifier: j\nPlan"


def throw(error):
    raise error


def job_of(query, failure=None):
    identity = SimpleNamespace(job="j")
    stopping = Stopping(lambda: query)
    return Job(query, SimpleNamespace(failure=failure, identity=identity, progress=None, stopping=stopping))


@pytest.fixture
def java(spark):
    """Give the JVM's packages."""
    return spark._jvm.java  # noqa: SLF001


def interrupts(java):
    """Yield interrupts as Spark, its parts and py4j wrap them."""
    plain = java.lang.InterruptedException()
    yield plain
    yield java.lang.reflect.InvocationTargetException(plain)
    yield java.lang.RuntimeException(java.util.concurrent.ExecutionException(plain))
    yield java.io.UncheckedIOException(java.io.InterruptedIOException("while it read"))
    yield java.lang.IllegalStateException(java.nio.channels.ClosedByInterruptException())
    yield java.lang.RuntimeException("py4j.protocol.Py4JJavaError: An error occurred: java.lang.InterruptedException")


def failures(java):
    """Yield other errors, and the reason that a user sees."""
    yield java.lang.reflect.InvocationTargetException(java.util.NoSuchElementException("None.get")), "None.get"
    yield java.lang.NullPointerException(), "java.lang.NullPointerException"
    yield java.lang.RuntimeException(java.lang.NullPointerException()), "java.lang.NullPointerException"
    yield java.lang.IllegalStateException("[SOME_CONDITION] what it is"), "[SOME_CONDITION] what it is"


def test_an_interrupt_by_a_stop_is_no_failure_however_it_is_wrapped(java):
    for thrown in interrupts(java):
        job = job_of(Query(thrown, active=True))
        job._handler.stopping.request_stop()  # noqa: SLF001
        assert job.exception() is None, thrown.toString()
        assert isinstance(job_of(Query(thrown)).exception(), JobFailedError), "without a stop it is one"


def test_an_interrupt_of_a_batch_by_a_stop_is_no_failure(java):
    for thrown in interrupts(java):
        failure = Py4JJavaError("An error occurred while calling o1.count.\n", thrown)
        with pytest.raises(Py4JJavaError), reaching("count()"):
            raise failure
        job = job_of(Query(None, active=True), failure)
        assert job.exception() is not None
        job._handler.stopping.request_stop()  # noqa: SLF001
        assert job.exception() is None
        assert job_of(Query(None), failure).exception() is None, "Spark took it for a stop, so another has stopped it"


def test_only_a_missing_class_or_method_means_that_spark_is_not_supported(spark, java):
    lacks = Py4JJavaError("An error occurred while calling o1.count.\n", java.lang.NoSuchMethodError("count()"))
    for missing in (spark._jsparkSession.noSuchMethod, spark._jvm.no.Such, lambda: throw(lacks)):  # noqa: SLF001
        with pytest.raises(UnsupportedSparkError, match=r"a part is not reachable"), reaching("a part"):
            missing()
    for other in (Py4JError("An error occurred while calling o1105.execute"), Py4JNetworkError("Answer is empty")):
        with pytest.raises(type(other)) as kept, reaching("a part"):
            throw(other)
        assert kept.value is other


def test_an_error_stays_a_failure_behind_a_stop_and_its_reason_is_said(java):
    for thrown, reason in failures(java):
        job = job_of(Query(thrown, active=True))
        job._handler.stopping.request_stop()  # noqa: SLF001
        found = str(job.exception())
        assert found.endswith(reason), found
        assert "null" not in found.replace("NullPointer", "")
        assert "Plan" not in found


def test_a_failure_before_the_stop_stays_one(java):
    job = job_of(Query(java.lang.InterruptedException()))
    job._handler.stopping.request_stop()  # noqa: SLF001
    assert isinstance(job.exception(), JobFailedError)


def test_an_error_of_python_is_its_own_reason():
    assert reason_of(ValueError("no such table")) == "no such table"
