"""The latency benchmark itself, for some seconds: it measures each chain, and no chain with marks loses a window."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.job_chain import PER_USER, USERS, Results, quantile

TESTS = Path(__file__).parent
SETTING = {"spark.sql.streaming.minBatchesToRetain": "99"}


def test_what_is_missing_doubled_or_wrong_is_counted():
    results, ends = Results(), range(1_000, 3_001, 1_000)
    for end in ends:
        for user in range(USERS):
            results.seen[f"u{user}", end].append((end / 1000 + 0.5, PER_USER))
    expected = {"windows": 3 * USERS, "missing": 0, "doubled": 0, "wrong": 0}
    assert results.verdict(ends) == expected
    assert results.complete(ends)
    assert results.latencies(ends) == [0.5] * 3 * USERS
    del results.seen["u1", 2_000]
    results.seen["u2", 2_000].append((9.0, PER_USER))
    results.seen["u3", 3_000][0] = (3.5, PER_USER - 1)
    results.seen["u1", 4_000].append((4.5, 1))  # not asked for
    assert results.verdict(ends) == expected | {"missing": 1, "doubled": 1, "wrong": 1}
    assert not results.complete(ends)
    assert len(results.latencies(ends)) == 3 * USERS - 1


def test_quantiles():
    assert [quantile([4, 1, 3, 2], share) for share in (0, 0.25, 0.5, 0.51, 1)] == [1, 1, 2, 3, 4]
    assert math.isnan(quantile([], 0.5))


@pytest.mark.spark
def test_each_chain_has_its_figures_and_no_window_is_lost_or_seen_twice(tmp_path):
    command = [sys.executable, str(TESTS / "benchmarks" / "latency.py"), "--jobs", "1", "--runs", "1"]
    command += ["--warm-up", "0", "--seconds", "4", "--json", "--picture", str(tmp_path / "latency.svg")]
    command += [part for name, value in SETTING.items() for part in ("--set", f"{name}={value}")]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr
    marked, plain = map(json.loads, done.stdout.splitlines())
    assert (marked["chain"], plain["chain"]) == ("Floodmark", "plain")
    assert {name: marked[name] for name in ("windows", "missing", "doubled", "wrong")} == {
        "windows": 40,
        "missing": 0,
        "doubled": 0,
        "wrong": 0,
    }
    for row in (marked, plain):
        assert (row["jobs"], row["runs"], row["settings"]) == (1, 1, SETTING)
        assert 0 < row["p50"] <= row["p95"] <= row["p99"]
        assert row["batches"] > 0
        assert row["cpu_seconds_a_batch"]["jvm"] > 0
        assert row["cpu_seconds_a_batch"]["python"] > 0
        assert row["compiled_a_batch"] >= 0
        assert 0 < row["busy"] <= 1
        phases = {"triggerExecution", "latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets"}
        steps = {"consume", "snapshot", "commit", "rest", "around"} if row is marked else set()
        assert phases | steps <= set(row["batch_ms"])
        assert all(milliseconds > 0 for milliseconds in row["batch_ms"].values()), row
    assert marked["batch_ms"]["consume"] < marked["batch_ms"]["addBatch"] <= marked["batch_ms"]["triggerExecution"]
    assert (tmp_path / "latency.svg").stat().st_size > 0
    for line in (*done.stdout.splitlines(), done.stderr):
        assert "Traceback" not in line
