"""The demo's Iceberg table of the daily results: a Spark job writes it, pyiceberg reads it."""

from datetime import datetime
from pathlib import Path
from typing import Final

import pandas as pd
from floodmark.producers.tables.table_rows import read_complete
from floodmark.producers.tables.table_watermark import complete_until
from floodmark.schemas.timestamps import END_OF_TIME, event_time_of, to_datetime
from floodmark.spark_jobs.demo.outcome import DaysTable, differences
from floodmark.spark_jobs.tables.iceberg import iceberg
from floodmark.spark_jobs.writer import write
from pyspark.sql import DataFrame

_CATALOG: Final = "spark.sql.catalog.lake"


def lake_settings(lake: Path) -> dict[str, str]:
    """Return the settings of Spark for a catalog in a folder."""
    place = {f"{_CATALOG}.type": "hadoop", f"{_CATALOG}.warehouse": str(lake.absolute())}
    return {_CATALOG: "org.apache.iceberg.spark.SparkCatalog", **place}


def write_days(days: DataFrame, checkpoint: Path) -> None:
    """Write the daily results into the table, to the end of the input."""
    table = iceberg("lake.demo.daily_waves")
    write(days, table=table, event_time="window_end", checkpoint_location=str(checkpoint)).awaitTermination()


def read_days(lake: Path, daily: pd.DataFrame) -> DaysTable:
    """Compare the complete rows of the table with the batch computation."""
    from pyiceberg.table import StaticTable  # noqa: PLC0415  # an extra

    folder = lake / "demo" / "daily_waves"
    table = StaticTable.from_metadata(str(folder.absolute()))
    found = read_complete(table, "window_end").to_pylist()
    rows = [
        {name: event_time_of(value) if isinstance(value, datetime) else value for name, value in row.items()}
        for row in found
    ]
    until = complete_until(table).watermark
    if until is None or until == END_OF_TIME:
        until = max((row["window_start"] for row in rows), default=0)
    differing = differences(pd.DataFrame(rows, columns=daily.columns), daily)
    return DaysTable(str(folder), len(rows), differing, f"{to_datetime(until):%Y-%m-%d}")
