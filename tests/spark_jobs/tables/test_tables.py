"""Runs ``table_cases.py``: jobs that write Iceberg and Delta tables, in a process with their connectors."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from floodmark.schemas.errors import MissingConnectorError
from floodmark.spark_jobs import delta, iceberg
from support.lake import KINDS

_LIMIT = 1_500


@pytest.mark.parametrize("some", [pytest.param("iceberg", marks=pytest.mark.every_spark), "not iceberg"])
@pytest.mark.spark
@pytest.mark.skipif(not KINDS, reason="no connector for this Spark")
@pytest.mark.minutes
@pytest.mark.timeout(_LIMIT + 60)
def test_tables(some):
    cases = Path(__file__).with_name("table_cases.py")
    options = ["-q", "-p", "no:cacheprovider", "-n", "0", "--durations=0"]
    options += ["-k", some if pyspark.__version__ == "4.0.0" else f"{some} and each_commit"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    command = [sys.executable, "-m", "pytest", *options, str(cases)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT, check=False)
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]


@pytest.mark.spark
@pytest.mark.every_spark
@pytest.mark.parametrize("table", [delta("/lake/totals"), iceberg("lake.shops.totals")], ids=["delta", "iceberg"])
def test_a_session_without_the_connector_is_refused_with_what_works_on_this_spark(spark, table):
    works = rf"Use local_session\(tables=\['{table.provider}'\]\)" if table.provider in KINDS else "Use Spark 4.0"
    with pytest.raises(MissingConnectorError, match=works):
        table.require(spark.range(1), "totals", "append")


def test_the_relative_path_of_a_delta_table_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["lake/revenue", "/lake/revenue/", "s3a://lake/revenue", "shops.revenue"]
    assert [delta(name).name for name in given] == [f"{tmp_path}/lake/revenue", *given[1:]]
