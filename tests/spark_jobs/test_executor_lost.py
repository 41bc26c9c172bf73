"""An executor that is lost within a batch changes neither results nor counts, though its tasks run again."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from support.counting import WIDTH
from support.harness import Stream

pytestmark = pytest.mark.spark
_SCRIPT = Path(__file__).parent / "losing_executor.py"


def test_tasks_that_run_again_are_counted_once(kafka, topic, tmp_path):
    given, marker = topic(4), tmp_path / "killed"
    stream = Stream.seeded(41, sources=2, steps=6)
    stream.produce(kafka.config, given)
    path = os.pathsep.join([str(_SCRIPT.parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(_SCRIPT), kafka.bootstrap_servers, given, str(tmp_path / "checkpoint"), str(marker)]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert marker.exists(), "no executor was lost"
    report = json.loads(done.stdout.splitlines()[-1])
    counts = report["counts"]
    assert counts["records"] - counts["marks"] == stream.size
    assert [counts[name] for name in ("late", "lost", "surplus")] == [0, 0, 0]
    assert "replayed" not in counts, "no mark was taken in twice"
    assert Counter({(user, ended): n for user, ended, n in report["found"]}) == stream.windows(WIDTH)
