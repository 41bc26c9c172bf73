"""The benchmark of the first output itself, over a small load: the window is whole, and the estimate is near."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.first_output import Load

TESTS = Path(__file__).parent


def test_a_window_has_the_rows_of_its_time():
    load = Load(kafka=None, first=1_003, width=60_000, rows=7_000)
    times = [load.time_of(number) for number in range(20_000)]
    for begin, end in ((1_003, 61_003), (40_000, 70_000), (33_333, 99_999)):
        assert load.count(begin, end) == sum(begin <= time < end for time in times)


@pytest.mark.spark
def test_the_first_output_comes_when_the_estimate_says():
    command = [sys.executable, str(TESTS / "benchmarks" / "first_output.py"), "--rows", "40000", "--batch", "10000"]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    command += ["--partitions", "2", "--factor", "5", "--json"]  # so few rows are read in no time: a start is noise
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert min(found[name] for name in ("rate", "start", "catch_up", "first_output")) > 0
