"""A session without the Kafka connector is named, and so is what to start it with."""

import subprocess
import sys

import pytest

PLAIN = """
import sys
from floodmark.schemas.errors import UsageError
from floodmark.spark_jobs import json, read
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    read(spark, topics=sys.argv[1], value=json("at TIMESTAMP"), event_time="at", bootstrap_servers=sys.argv[2])
except UsageError as error:
    print(error)
spark.stop()
"""


@pytest.mark.spark
def test_a_session_without_the_connector_is_told_what_to_set(kafka, topic):
    command = [sys.executable, "-c", PLAIN, topic(1), kafka.bootstrap_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert 'config("spark.jars.packages", floodmark.spark_jobs.packages())' in done.stdout
    assert "Failed to find" in done.stdout
