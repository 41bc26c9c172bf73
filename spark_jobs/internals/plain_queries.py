"""Refuse plain queries over `read` at their start, since nothing would advance their watermark.

Spark has no hook that could refuse a query (what a listener raises is only logged).  So the two methods that start a
query are wrapped, for DataFrames of `read` only.
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


def start_query(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query whose watermark a batch handler drives."""
    return _start(writer)


@cache
def refuse_plain_queries(topics_of: Callable[[DataFrame], list[str]]) -> None:
    """Refuse plain queries over DataFrames of `read` from now on; a second call changes nothing."""
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
