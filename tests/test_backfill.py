"""The backfill benchmark itself, over a few rows: a way reads each record once, and none with marks loses any."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.full_topic import results

TESTS = Path(__file__).parent


def test_twelve_rows_make_a_result():
    assert [results(rows) for rows in (1, 1_000, 12_000, 12_001, 30_000)] == [1, 1_000, 1_000, 1_001, 3_000]


@pytest.mark.spark
def test_a_way_has_its_figures_and_counts_each_row_once():
    command = [sys.executable, str(TESTS / "benchmarks" / "backfill.py"), "--rows", "13000", "--batch", "3000"]
    command += ["--partitions", "2", "--rounds", "1", "--warm-up", "0", "--only", "Kafka,executors", "--json"]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["way"] for row in found] == ["plain, Kafka", "Floodmark, executors"]
    for row in found:
        assert row["wrong"] == []
        assert min(row[name] for name in ("wall", "cpu", "jvm", "python")) > 0
        assert row["cpu_to_plain"] == 1 or not row["way"].startswith("plain")
    assert "Traceback" not in done.stderr
