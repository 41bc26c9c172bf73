"""The cause of a failed query, from the texts of Spark's and the JVM's errors."""

from collections.abc import Iterator
from typing import Final

_SHOWN: Final = 500
_TRACEBACK: Final = "Traceback (most recent call last):"
_PLAN: Final = "=== Streaming Query ==="
"""The plan of the query follows in Spark's message."""
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
    r"""Return the line of an error's text, or else of its trace, that names the cause.

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
    if not named and not message.startswith("["):  # neither a class nor an error condition of Spark
        thrown = [line for line in trace.splitlines() if line.strip() and not line.startswith("\t")]
        innermost = [line.removeprefix(_CAUSED_BY) for line in thrown if line.startswith(_CAUSED_BY)] or thrown
        named = innermost[-1] if innermost else ""
    return (named or message)[:_SHOWN]


def was_interrupted(error: BaseException) -> bool:
    """Tell whether an interrupt of the JVM has caused an error."""
    told = [text for link in _chain(error) for text in (str(link), *_traces(link))]
    return any(name in text for text in told for name in _INTERRUPTS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _traces(error: BaseException | None) -> Iterator[str]:
    """Yield the JVM's stack traces of an error and its causes."""
    while error is not None:
        yield f"{getattr(error, '_stackTrace', '')}\n"
        error = getattr(error, "_cause", None)
