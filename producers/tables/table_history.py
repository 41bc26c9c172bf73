"""The commits that led to the current state of a table, as pyiceberg, deltalake or Spark tell them.

The history follows parents, not times: commits that a rollback has undone, and those of other branches, are not in it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final, NamedTuple

from floodmark.producers.tables.table_mark import properties_in
from floodmark.schemas.errors import FloodmarkError, UnreadableTableError, UsageError

_ICEBERG_REMOVES: Final = {"delete", "overwrite"}
_DELTA_REMOVES: Final = {"DELETE", "UPDATE", "MERGE", "TRUNCATE"}

_EXPIRED: Final = -1
_NAMES: Final = {
    "delta": "the path of a Delta table",
    "iceberg": "CATALOG.DATABASE.TABLE, a catalog of ~/.pyiceberg.yaml",
}
"""The id of no snapshot."""
_COLOUR: Final = re.compile(r"\x1b\[\d*m")
_TRACE: Final = "\n\tat "  # of Java
_SHOWN: Final = 300
_RELATIVE: Final = re.compile(r"delta\.`(?!/|\w+:)", re.IGNORECASE)


class Commit(NamedTuple):
    """An Iceberg snapshot, or a version of a Delta table."""

    number: int
    """The snapshot's id, or the version."""
    time: int
    """When it was committed, epoch milliseconds."""
    properties: Mapping[str, Any]
    removes: bool
    """Whether it deletes or replaces rows; compaction does not."""
    parent: int | None
    """``None``: it is the first one."""


@dataclass(frozen=True, slots=True)
class History:
    """The commits of a table, the oldest first."""

    table: str
    commits: Sequence[Commit]
    expired: bool
    """Whether older commits are no longer in the table's metadata."""


@contextmanager
def reading(table: Any) -> Iterator[None]:  # noqa: ANN401  # of optional libraries
    """Raise UnreadableTableError for what a library, a catalog or a file system raises."""
    try:
        yield
    except FloodmarkError:
        raise
    except Exception as error:  # each has its own
        raise UnreadableTableError(table=_name_of(table), reason=_told(error)) from error


def _told(error: Exception) -> str:
    r"""Return the class and the text of an error, in one line.

    >>> _told(OSError("Disk error\n \x1b[31m-\x1b[0m gone")), _told(KeyError("c: none\n\tat a.B"))
    ('OSError: Disk error - gone', "KeyError: 'c: none\\n\\tat a.B'")
    """
    text = _COLOUR.sub("", str(error)).partition(_TRACE)[0]
    line = " ".join(text.split())
    return f"{type(error).__name__}: {line if len(line) <= _SHOWN else f'{line[:_SHOWN]} ...'}"


def _name_of(table: Any) -> str:  # noqa: ANN401
    if isinstance(table, str):
        return table
    return ".".join(table.name()) if hasattr(table, "current_snapshot") else str(table.table_uri)


def history_of(table: Any, spark: Any = None) -> History:  # noqa: ANN401  # of libraries that may not be installed
    """Return the history of a pyiceberg ``Table``, a ``DeltaTable``, or with ``spark`` of a table by its name."""
    if isinstance(table, str) and spark is None:
        reason = (
            f"table {table!r} is a name: pass spark= too, or a table that pyiceberg's load_table() or deltalake's "
            "DeltaTable() has opened"
        )
        raise UsageError(reason=reason)
    if not (isinstance(table, str) or hasattr(table, "current_snapshot") or hasattr(table, "table_uri")):
        reason = f"the table is {table!r}, expected pyiceberg's Table, deltalake's DeltaTable, or a name with spark="
        raise UsageError(reason=reason)
    if isinstance(table, str) and "/" in table and "`" not in table:
        reason = f"table {table!r} is a path: pass deltalake's DeltaTable, or with spark= delta.`/absolute/path`"
        raise UsageError(reason=reason)
    if isinstance(table, str) and _RELATIVE.match(table):
        reason = f"table {table!r} has a relative path, which Spark looks for elsewhere: pass delta.`/absolute/path`"
        raise UsageError(reason=reason)
    with reading(table):
        if isinstance(table, str):
            spark.sql(f"REFRESH TABLE {table}")
            found = _iceberg_in_spark if _provider(table, spark) == "iceberg" else delta_in_spark
            return found(table, spark)
        if hasattr(table, "current_snapshot"):
            return _iceberg(table)
        return _delta(table.table_uri, table.history(), table.version())


def open_table(name: str, before: Any = None) -> Any:  # noqa: ANN401  # of libraries that may not be installed
    """Open a table by the name that commands take; ``before``: as it was opened before, to use its catalog again.

    A refresh of that table would not see that it was deleted and created again.  The name is
    ``CATALOG.DATABASE.TABLE`` of pyiceberg, or the path of a Delta table, with a slash or no dot.  UsageError if it
    does not open.
    """
    is_path, (catalog, _, table) = "/" in name or "." not in name, name.partition(".")
    try:
        if is_path:
            return import_module("deltalake").DeltaTable(name)
        found = import_module("pyiceberg.catalog").load_catalog(catalog) if before is None else before.catalog
        return found.load_table(table)
    except Exception as error:  # whatever a catalog or a store raises
        kinds = ["delta"] * is_path + ["iceberg"] * ("/" not in name)
        expected = ", or ".join(_NAMES[kind] for kind in kinds)
        needs = " or ".join(f"floodmark[{kind}]" for kind in kinds)
        reason = f"table {name!r} cannot be opened: {_told(error)}. Expected {expected}, and {needs}"
        raise UsageError(reason=reason) from error


def _walk(table: str, last: int | None, find: Callable[[int], Commit | None]) -> History:
    """Follow the parents of the last commit."""
    commits: list[Commit] = []
    while last is not None:
        commit = find(last)
        if commit is None:
            break
        commits.append(commit)
        last = commit.parent
    return History(table, commits[::-1], expired=last is not None)


def _iceberg(table: Any) -> History:  # noqa: ANN401
    def find(number: int) -> Commit | None:
        found = table.snapshot_by_id(number)
        if found is None:
            return None
        said = found.summary
        properties = {} if said is None else said.additional_properties
        removes = said is not None and said.operation.value in _ICEBERG_REMOVES
        parent = found.parent_snapshot_id
        if parent is None and (found.sequence_number or 0) > 1:
            parent = _EXPIRED  # pyiceberg's expiry makes children orphans
        return Commit(number, found.timestamp_ms, properties, removes, parent)

    now = table.current_snapshot()
    return _walk(".".join(table.name()), None if now is None else now.snapshot_id, find)


def _provider(table: str, spark: Any) -> str | None:  # noqa: ANN401
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {table}").where("col_name = 'Provider'").collect()
    return str(rows[-1]["data_type"]).lower() if rows else None  # columns, which may have this name, come first


def _iceberg_in_spark(table: str, spark: Any) -> History:  # noqa: ANN401
    refs = spark.sql(f"SELECT snapshot_id FROM {table}.refs WHERE name = 'main'").collect()  # noqa: S608  # its user's
    columns = "snapshot_id, unix_millis(committed_at), summary, operation, parent_id"
    rows = spark.sql(f"SELECT {columns} FROM {table}.snapshots").collect()  # noqa: S608  # the same
    found = {
        number: Commit(number, time, properties or {}, operation in _ICEBERG_REMOVES, parent)
        for number, time, properties, operation, parent in rows
    }
    return _walk(table, refs[0][0] if refs else None, found.get)


def delta_in_spark(table: str, spark: Any, limit: int | None = None) -> History:  # noqa: ANN401
    """Return the history of a Delta table by its name in SQL; ``limit``: by so many of its last versions."""
    rows = spark.sql(f"DESCRIBE HISTORY {table}" + ("" if limit is None else f" LIMIT {limit}"))
    columns = ("version", "unix_millis(timestamp) AS timestamp", "operation", "operationParameters", "userMetadata")
    entries = [row.asDict() for row in rows.selectExpr(*columns).collect()]
    return _delta(table, entries, max(entry["version"] for entry in entries))


def _delta(table: str, entries: Sequence[Mapping[str, Any]], version: int) -> History:
    """Return the history of a Delta table by its entries; a `RESTORE` leads to the version that it restored."""
    by_version = {entry["version"]: entry for entry in entries}

    def find(number: int) -> Commit | None:
        entry = by_version.get(number)
        if entry is None:
            return None
        operation, options = entry.get("operation") or "", entry.get("operationParameters") or {}
        parent = number - 1 if number else None
        if operation == "RESTORE":
            restored = str(options.get("version"))
            parent = int(restored) if restored.isdecimal() else None  # to a time: unknown, so nothing before counts
        elif operation == "CLONE" or "REPLACE TABLE" in operation:
            parent = None
        removes = operation in _DELTA_REMOVES or options.get("mode") == "Overwrite"
        return Commit(number, entry["timestamp"], properties_in(entry.get("userMetadata")), removes, parent)

    return _walk(table, version, find)
