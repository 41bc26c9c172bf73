"""A table that a job writes: its checks before the first row, and one commit for several batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import ClassVar, Final

from floodmark.producers.tables.table_mark import TableMark
from floodmark.schemas.errors import (
    ForeignTableError,
    TableColumnsError,
    TableError,
    UsageError,
)
from floodmark.schemas.timestamps import duration_of
from floodmark.spark_jobs.internals.connectors import Connector, require_connector, without_rows
from floodmark.spark_jobs.internals.jvm import FAILURES
from floodmark.spark_jobs.internals.texts import reason_of
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's own convention
from pyspark.sql.types import StructField, StructType

MINUTE: Final = timedelta(minutes=1)
_BATCH: Final = "__floodmark_batch"
_NEWEST: Final = "__floodmark_newest"
_COUNT: Final = "__floodmark_count"
_VIEW: Final = "__floodmark_rows"
TWICE: Final = "a batch has two rows with one key"
"""The beginning of the error of `newest_rows`."""


@dataclass(frozen=True, slots=True)
class Table(ABC):
    """A table as the output of `write`; `iceberg` and `delta` create it."""

    name: str
    key: Sequence[str]
    partition_by: Sequence[str | Column]
    commit_every: timedelta

    provider: ClassVar[Connector]
    """The word after SQL's ``USING``."""
    connector: ClassVar[str]
    """The class of its catalogs."""

    def __post_init__(self) -> None:
        duration_of(self.commit_every, "commit_every")

    @property
    @abstractmethod
    def sql(self) -> str:
        """The name in SQL."""

    @property
    @abstractmethod
    def catalog(self) -> str:
        """The catalog of the table."""

    @abstractmethod
    def exists(self, spark: SparkSession) -> bool:
        """Tell whether the table exists."""

    @abstractmethod
    def newest(self, spark: SparkSession) -> TableMark | None:
        """Return the mark of the newest commit of a job in the table's history; ``None``: none, or no table."""

    @abstractmethod
    def append(self, spark: SparkSession, rows: DataFrame, mark: TableMark) -> None:
        """Append rows, with the mark, in one commit, also if there is no row."""

    @abstractmethod
    def merge(self, spark: SparkSession, statement: str, mark: TableMark) -> None:
        """Run a MERGE statement, with the mark, in one commit."""

    def require(self, result: DataFrame, job: str, output_mode: str) -> None:
        """Refuse a table that cannot take the rows of a job, before any row is written."""
        if bool(self.key) != (output_mode == "update"):
            reason = f"table {self.name!r}: output_mode='update' and the key= of the table need each other"
            raise UsageError(reason=reason)
        partitions = [name.partition(".")[0] for name in self.partition_by if isinstance(name, str)]
        for option, names in (("key", list(self.key)), ("partition_by", partitions)):
            if not set(names) <= set(result.columns):
                reason = f"table {self.name!r}: {option}={names}, but the result has the columns {result.columns}"
                raise UsageError(reason=reason)
        spark = result.sparkSession
        require_connector(spark, self.provider, self.connector)
        setting = f"spark.sql.catalog.{self.catalog}"
        if spark.conf.get(setting, None) is None:
            reason = f"table {self.name!r}: the session has no setting {setting}, expected {self.connector} or its like"
            raise UsageError(reason=reason)
        with self.failing(job):
            schema = spark.table(self.sql).schema if self.exists(spark) else None
            mark = self.newest(spark)
        if schema is not None and (wrong := _differences(result.schema, schema)):
            raise TableColumnsError(job=job, table=self.name, reason=wrong[0])
        if mark is not None and mark.job != job:
            raise ForeignTableError(job=job, table=self.name, owner=mark.job)

    def create(self, result: DataFrame, job: str) -> None:
        """Create the table, if it does not exist."""
        spark = result.sparkSession
        with self.failing(job):
            if self.exists(spark):
                return
            columns = StructType([StructField(field.name, field.dataType) for field in result.schema])
            self.create_from(spark.createDataFrame([], columns))

    def create_from(self, rows: DataFrame) -> None:
        """Create the table from no rows."""
        new = rows.writeTo(self.sql).using(self.provider)
        (new.partitionedBy(*map(_column, self.partition_by)) if self.partition_by else new).create()

    def commit(self, spark: SparkSession, batches: Mapping[int, DataFrame], mark: TableMark) -> None:
        """Write the rows of batches, by their numbers, with the mark, in one commit."""
        if not batches:
            self.append(spark, without_rows(spark.table(self.sql)), mark)
        elif not self.key:
            self.append(spark, reduce(DataFrame.unionByName, batches.values()), mark)
        else:
            newest_rows(batches, self.key).createOrReplaceTempView(_VIEW)
            same = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in self.key)
            statement = (
                f"MERGE INTO {self.sql} AS t USING {_VIEW} AS s ON {same} "
                "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
            )
            self.merge(spark, statement, mark)

    @contextmanager
    def failing(self, job: str) -> Iterator[None]:
        """Raise `TableError` for what Spark raises."""
        try:
            yield
        except FAILURES as error:
            raise TableError(job=job, table=self.name, reason=reason_of(error)) from error


def newest_rows(batches: Mapping[int, DataFrame], key: Sequence[str]) -> DataFrame:
    """Return the row of the newest batch for each key; it fails if a batch has two rows of one key."""
    parts = (rows.withColumn(_BATCH, F.lit(number)) for number, rows in batches.items())
    rows = reduce(DataFrame.unionByName, parts)
    columns = [name for name in rows.columns if name != _BATCH]
    per_batch = rows.groupBy(*key, _BATCH).agg(
        F.first(F.struct(*columns)).alias(_NEWEST), F.count(F.lit(1)).alias(_COUNT)
    )
    newest = per_batch.groupBy(*key).agg(F.max_by(_NEWEST, _BATCH).alias(_NEWEST), F.max(_COUNT).alias(_COUNT))
    twice = F.raise_error(F.lit(f"{TWICE} {', '.join(key)}: add the columns that differ to the key= of the table"))
    return newest.where(F.when(F.col(_COUNT) == 1, F.lit(True)).otherwise(twice)).select(f"{_NEWEST}.*")  # noqa: FBT003


def _column(one: str | Column) -> Column:
    return F.col(one) if isinstance(one, str) else one


def _differences(result: StructType, table: StructType) -> list[str]:
    """Return how the columns of a result differ from those of a table."""
    found = {field.name: field.dataType.simpleString() for field in result}
    widened = {name: kind.replace("tinyint", "int").replace("smallint", "int") for name, kind in found.items()}
    expected = {field.name: field.dataType.simpleString() for field in table}
    required = {field.name for field in table if not field.nullable}
    nullable = {field.name for field in result if field.nullable}
    return [
        *(f"the table has no column {name!r}" for name in found if name not in expected),
        *(f"the result has no column {name!r}" for name in expected if name not in found),
        *(
            f"column {name!r} is {found[name]} in the result and {kind} in the table"
            for name, kind in expected.items()
            if kind not in {found.get(name, kind), widened.get(name)}  # Iceberg has no smaller integers than int
        ),
        *(
            f"column {name!r} is never null in the table, and may be null in the result"
            for name in expected
            if name in required & nullable
        ),
    ]
