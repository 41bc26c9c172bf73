"""Plain queries over `read`: refused where they start, for nothing would move their watermark.

Spark offers no hook before the start of a query that could refuse it (a listener only hears of it, and what it raises
is logged), so the two methods that start one are wrapped, for DataFrames of `read` alone.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, Final

from floodmark.schemas.errors import PlainQueryError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

_start: Final = DataStreamWriter.start
_METHODS: Final = ("start", "toTable")


def start(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query that a handler of batches drives."""
    return _start(writer)


@cache
def refuse_plain_queries(topics_of: Callable[[DataFrame], list[str]]) -> None:
    """Refuse, from now on, plain queries over DataFrames of `read`; a second call changes nothing."""
    for name in _METHODS:
        setattr(DataStreamWriter, name, _refusing(getattr(DataStreamWriter, name), topics_of))


def _refusing(plain: Callable[..., Any], topics_of: Callable[[DataFrame], list[str]]) -> Callable[..., Any]:
    @wraps(plain)
    def refusing(writer: DataStreamWriter, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # as Spark has it
        topics = topics_of(writer._df)  # noqa: SLF001
        if topics:
            raise PlainQueryError(topics=", ".join(topics))
        return plain(writer, *args, **options)

    return refusing
