"""What the end of a process stops."""

import subprocess
import sys

import pytest

_PROGRAM = """
import os
import sys
from types import SimpleNamespace
from floodmark.spark_jobs.batch.handler import register_running

class Handler(SimpleNamespace):
    __hash__ = object.__hash__

identity = SimpleNamespace(job="j", checkpoint_id="c")
stop = lambda _: print("stopped by", os.getpid(), flush=True)
failure = ValueError() if sys.argv[1] == "failed" else None
handler = Handler(identity=identity, is_running=True, stop=stop, failure=failure, ended=sys.argv[1] == "ended")
handler.progress, handler.stopping = SimpleNamespace(watermark=None), SimpleNamespace(is_requested=False)
register_running(handler)
if os.fork() == 0:
    raise SystemExit
os.wait()
print(os.getpid(), flush=True)
"""


@pytest.mark.parametrize("state", ["well", "failed", "ended"])
def test_the_end_of_a_forked_process_stops_no_job_of_its_parent(state):
    command = [sys.executable, "-c", _PROGRAM, state]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    parent, *stops = done.stdout.splitlines()
    assert stops == [f"stopped by {parent}"]
    assert ("job j is stopped, because the program ends" in done.stderr) is (state == "well")
