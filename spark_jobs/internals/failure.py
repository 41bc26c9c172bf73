"""What ended a query, from all that Spark and the JVM say of an error."""

from collections.abc import Iterator
from typing import Final

_SHOWN: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):"
_PLAN: Final = "=== Streaming Query ==="
"""Behind it Spark's message shows the plan of the query."""
_CAUSED_BY: Final = "Caused by: "
_INTERRUPTS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


def reason_of(error: BaseException) -> str:
    """Return the line that names the cause of an error of Spark."""
    return cause(str(error), "".join(_traces(error)))


def cause(text: str, trace: str = "") -> str:
    r"""Return, of all that Spark says of an error, the line that names its cause.

    >>> python = "Traceback (most recent call last):\n  File 'job.py', line 3, in f\nValueError: no such user\n"
    >>> cause("An error occurred: org.apache.spark.SparkException: aborted: " + python + "\n\tat org.apache.spark")
    'ValueError: no such user'
    >>> cause("org.apache.spark.SparkException: [SOME_CLASS] what it is\n\tat org.apache.spark")
    'org.apache.spark.SparkException: [SOME_CLASS] what it is'
    >>> cause("null\n=== Streaming Query ===\nIdentifier: j", "a.B\n\tat a.C\nCaused by: java.util.D: none\n\tat a.C")
    'java.util.D: none'
    """
    _, found, python = text.rpartition(_TRACEBACK)
    if found:
        last = [line for line in python.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
        if last:
            return last[0][:_SHOWN]
    message = text.partition(_PLAN)[0].strip()
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith("\t")]
    named = " ".join(line for line in lines if "Exception" in line)
    if not named and not message.startswith("["):  # it names neither a class nor one of Spark's conditions
        thrown = [line for line in trace.splitlines() if line.strip() and not line.startswith("\t")]
        innermost = [line.removeprefix(_CAUSED_BY) for line in thrown if line.startswith(_CAUSED_BY)] or thrown
        named = innermost[-1] if innermost else ""
    return (named or message)[:_SHOWN]


def was_interrupted(error: BaseException) -> bool:
    """Tell whether an error is an interrupt of the JVM, or is caused by one, however it is wrapped."""
    told = [text for link in _chain(error) for text in (str(link), *_traces(link))]
    return any(name in text for text in told for name in _INTERRUPTS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _traces(error: BaseException | None) -> Iterator[str]:
    """Yield the stack traces that PySpark has kept of the JVM's error and its causes."""
    while error is not None:
        yield f"{getattr(error, '_stackTrace', '')}\n"
        error = getattr(error, "_cause", None)
