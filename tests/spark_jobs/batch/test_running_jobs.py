"""What the end of a process stops."""

import subprocess
import sys

_PROGRAM = """
import os
from types import SimpleNamespace
from floodmark.spark_jobs.batch.handler import register_running

class Handler(SimpleNamespace):
    __hash__ = object.__hash__

identity = SimpleNamespace(job="j", checkpoint_id="c")
handler = Handler(identity=identity, is_running=True, stop=lambda _: print("stopped by", os.getpid(), flush=True))
register_running(handler)
if os.fork() == 0:
    raise SystemExit
os.wait()
print(os.getpid(), flush=True)
"""


def test_the_end_of_a_forked_process_stops_no_job_of_its_parent():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    parent, *stops = done.stdout.splitlines()
    assert stops == [f"stopped by {parent}"]
