"""Two stages on a standalone cluster of Spark, with the package shipped and checkpoints in an object store.

Executors, a worker and the driver are killed; the driver starts elsewhere.  Tasks that write have speculative copies.
"""

import json
import subprocess
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from integration.cluster_job import STEPS, WIDTH
from integration.standalone import Standalone, environment
from support.harness import Stream, drain, until, window_counts
from support.object_store import ObjectStore, jars

pytestmark = [pytest.mark.spark, pytest.mark.minutes, pytest.mark.timeout(1_800)]
_PROGRAM = Path(__file__).parent / "cluster_job.py"
_STAGES = ("first", "second")
_LIMIT = 480
_PACE = 0.5
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.quantile": "0.1",
}


class Feed:
    """Writes a stream slowly, so that what happens meanwhile happens in the middle of it, until it is told to end."""

    def __init__(self, config, topic):
        self._config, self._topic = config, topic
        self._stream = Stream.seeded(51, sources=2, steps=5_000, per_step=3)
        self._steps = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        producers = self._stream.producers(self._config, self._topic, timedelta(milliseconds=200))
        while not self._end.wait(_PACE):
            for name, script in self._stream.steps.items():
                times, watermark = script[self._steps]
                self._stream.produce_step(producers[name], times)
                producers[name].advance(watermark)
                producers[name].poll()
            self._steps += 1
        for producer in producers.values():
            producer.end()

    def end(self):
        """End it; returns what was written."""
        assert self._thread.is_alive(), "it has failed, or it was too short"
        self._end.set()
        self._thread.join(_LIMIT)
        return Stream({name: script[: self._steps] for name, script in self._stream.steps.items()})


class Pipeline:
    """The driver of both stages, which can be killed and started elsewhere."""

    def __init__(self, cluster, store, options):
        self._cluster, self._store, self._options = cluster, store, options
        self._starts = 0
        self.start_elsewhere()

    def start_elsewhere(self):
        """Start it in another folder, with other local disks, on the same checkpoints."""
        self._starts += 1
        name = f"driver-{self._starts}"
        self.driver = self._cluster.submit(name, _PROGRAM, self._options, jars(), self._store.settings | _SPECULATION)

    def said(self):
        """What it has printed since its start."""
        assert not self.driver.poll(), self.driver.log()[-4000:]
        return [json.loads(line) for line in self.driver.lines() if line.startswith("{")]  # Spark prints errors there

    def go_on(self):
        """Wait until each stage has written rows once more: what was running has recovered."""
        before = self._written()
        until(lambda: all(self._written()[stage] > before[stage] for stage in _STAGES), "batches", _LIMIT)

    def _written(self):
        return Counter(line["stage"] for line in self.said() if line.get("rows"))

    def end(self):
        """Wait for its end; returns what the jobs have counted."""
        until(lambda: self.said() and self.driver.poll() == 0, "the end", _LIMIT)
        return self.said()[-1]["counts"]


def test_executors_a_worker_and_the_driver_may_die_on_a_cluster(kafka, topic, tmp_path):
    given, windows, totals, done = topic(3), topic(2), topic(2), tmp_path / "done"
    done.mkdir()
    with ObjectStore() as store, Standalone(tmp_path / "cluster") as cluster:
        command = [str(cluster.python), "-c", "import floodmark.spark_jobs"]
        absent = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        assert "No module named 'floodmark'" in absent.stderr
        options = {"given": given, "windows": windows, "totals": totals}
        options |= {"servers": kafka.bootstrap_servers, "checkpoint": store.place("checkpoints"), "done": done}
        pipeline = Pipeline(cluster, store, options)
        feed = Feed(kafka.config, given)
        pipeline.go_on()
        for place in pipeline.said()[0]["places"]:
            assert "/work/app-" in place, "what was shipped to the worker's folder"
            assert "/floodmark.zip/floodmark/" in place

        until(lambda: all((done / step).exists() for step in STEPS), "executors killed, tasks copied", _LIMIT)
        pipeline.go_on()
        cluster.workers[1].kill()
        pipeline.go_on()
        cluster.add_worker()
        pipeline.driver.kill()
        pipeline.start_elsewhere()
        pipeline.go_on()

        stream = feed.end()
        for counts in pipeline.end():
            assert not any(counts.values()), counts
        for stage in _STAGES:
            assert store.names(f"checkpoints/{stage}/floodmark/job.json")
    truth = stream.windows(WIDTH)
    for name in (windows, totals):
        rows = drain(kafka.config, name)[0]
        assert window_counts(rows) == truth
        assert len(rows) == len(truth), "nothing twice"
