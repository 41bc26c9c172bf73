"""The main job as a user runs it, with both Spark jobs killed in the middle."""

import fcntl
import json
import signal
import subprocess
import sys

import pytest
from support.harness import until
from support.processes import processes_of

pytestmark = pytest.mark.spark


def demo(tmp_path, *options):
    command = [sys.executable, "-m", "floodmark.producers.cli.main", "demo", "--directory", str(tmp_path), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.minutes
@pytest.mark.timeout(1_000)
def test_the_demo_equals_its_batch_computation_although_both_jobs_are_killed(tmp_path):
    done = demo(tmp_path, "--days", "5", "--seconds", "10", "--crash", "--table", "--json")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["equal"] is True
    assert outcome["crashes"] == 2
    assert (outcome["differing_waves"], outcome["differing_windows"], outcome["late"]) == (0, 0, 0)
    assert sum(row["flights"] for row in outcome["results"]) == outcome["flights"] == 4_191
    table = {"rows": outcome["windows"], "differing": 0, "complete_until": "2013-01-06"}
    assert outcome["table"] == {"folder": f"{tmp_path}/lake/demo/daily_waves", **table}
    for guess in outcome["guesses"]:
        assert guess["days"] == 5
        assert 0 <= guess["wrong"] <= guess["waves"]
    short = outcome["guesses"][0]
    assert short["dropped"] > short["flights"] / 10, "batches of some hours, as a job in service has shorter ones"
    assert short["wrong"] > 0
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_the_demo_refuses_what_it_cannot_do(tmp_path):
    assert demo(tmp_path, "--days", "0").returncode == 2
    for _ in ("a new folder", "one that a demo has left"):
        done = demo(tmp_path, "--days", "1", "--bootstrap-servers", "127.0.0.1:1")
        assert done.returncode == 2
        assert "127.0.0.1:1" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_demo_deletes_no_files_but_those_of_a_demo(tmp_path):
    (tmp_path / "nginx.log").touch()
    done = demo(tmp_path, "--days", "1", "--bootstrap-servers", "127.0.0.1:1")
    assert done.returncode == 2
    assert f"{tmp_path} holds files that are not the demo's: name a new folder" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["nginx.log"]


def test_a_demo_leaves_alone_what_another_one_is_using(tmp_path):
    kept = tmp_path / "kafka" / "data"
    kept.mkdir(parents=True)
    with (tmp_path / "demo.claim").open("w") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        done = demo(tmp_path, "--days", "1")
    assert done.returncode == 2
    assert f"another demo uses the directory {tmp_path}" in done.stderr
    assert kept.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "a closed terminal"])
def test_a_demo_that_is_ended_leaves_no_process_behind(tmp_path, number):
    command = [sys.executable, "-m", "floodmark.producers.cli.main", "demo", "--days", "31", "--directory", tmp_path]
    before = signal.signal(number, signal.SIG_DFL)  # a child of tests under ``nohup`` would ignore a closed terminal
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(number, before)
    with running:
        until((tmp_path / "departure-waves.log").exists, "the first job")
        assert len(processes_of(tmp_path)) > 1
        running.send_signal(number)
        _, told = running.communicate(timeout=60)
    assert (running.returncode, "Traceback" in told) == (2, False), told
    until(lambda: not processes_of(tmp_path), "the end of all that was started", 20)


def test_help_states_what_the_demo_compares_and_its_options():
    command = [sys.executable, "-m", "floodmark.producers.cli.main", "demo", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "batch computation" in text
    assert "--crash" in text
