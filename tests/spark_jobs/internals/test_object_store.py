"""Files of a checkpoint in an object store, which cannot rename: each is there, whole, while it is replaced."""

import json
import os
import sys
from pathlib import Path

import pytest
from support.harness import until
from support.object_store import ObjectStore, jars
from support.processes import Process

pytestmark = pytest.mark.spark
_PROGRAM = Path(__file__).parent / "replacing.py"
_NAME = "floodmark/7.json"
_WRITES = 10


def test_a_file_that_is_replaced_is_there_all_the_time(tmp_path):
    path = os.pathsep.join([str(_PROGRAM.parents[1]), os.environ.get("PYTHONPATH", "")])
    with ObjectStore() as store:
        command = [sys.executable, str(_PROGRAM), json.dumps(store.settings), ",".join(jars())]
        command += [store.place("checkpoint"), _NAME, str(_WRITES)]
        writer = Process("writer", command, tmp_path, {**os.environ, "PYTHONPATH": path})
        seen = []

        def done():
            seen.append(store.read(f"checkpoint/{_NAME}"))
            assert not writer.poll(), writer.log()[-3000:]
            return writer.poll() == 0

        try:
            until(done, "the last write", 150)
        finally:
            writer.kill()
        first = next(at for at, text in enumerate(seen) if text is not None)
        numbers = [int(text) for text in seen[first:]]  # each time there is one
        assert numbers == sorted(numbers)
        assert writer.lines() == [str(_WRITES - 1)]
        assert store.names("checkpoint/floodmark/") == [f"checkpoint/{_NAME}"], "no drafts are left"
