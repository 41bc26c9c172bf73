"""The embedded broker: it comes back with its data, and what it lacks is named."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from confluent_kafka.admin import AdminClient
from floodmark.producers import EmbeddedKafka, WatermarkedProducer, ascending, create_topics
from floodmark.producers.embedded import broker, jars
from floodmark.producers.embedded.broker import free_port
from floodmark.producers.embedded.jars import java
from floodmark.schemas.errors import EmbeddedKafkaError, JarDownloadError, JavaError
from support.harness import drain, until
from support.processes import processes_of


@pytest.mark.kafka
def test_the_embedded_broker_comes_back_with_its_data(tmp_path, monkeypatch):
    """Also with a cluster id that begins with a dash, and in a folder with a comma and a letter beyond ASCII."""
    monkeypatch.setattr(broker.uuid, "uuid4", lambda: SimpleNamespace(bytes=b"\xfb" * 16))
    kept = EmbeddedKafka(tmp_path / "kept, Jörg's")
    with kept:
        create_topics(kept.config, {"t": 1})
        with WatermarkedProducer(kept.config, topic="t", source="a", strategy=ascending()) as ours:
            ours.produce(b"x", event_time=12)
            ours.end()
    assert [path.name for path in tmp_path.iterdir()] == ["kept, Jörg's"]
    monkeypatch.chdir(tmp_path)
    with EmbeddedKafka("kept, Jörg's") as again:
        assert again.bootstrap_servers == kept.bootstrap_servers
        assert drain(again.config, "t")[0] == [b"x"]


def test_missing_and_old_java_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="none at"):
        java()
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(JavaError, match=r"17 or newer is required, but this machine has openjdk version .11\.0\.2"):
        java()


def test_java_is_not_run_where_its_release_is_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    path = tmp_path / "bin" / "java"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\necho 'it was run' >&2\n")
    path.chmod(0o755)
    (tmp_path / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.15"\n')
    assert java() == str(path)
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(JavaError, match="it was run"):
        java()


def test_programs_that_start_together_download_one_after_the_other(tmp_path, monkeypatch, capsys):
    """And each module once: the second program finds what the first has fetched.  A line tells of the download."""
    fetched = []

    def retrieve(_what, target, _log, name):
        with (tmp_path / "download.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (target / "a.jar").touch()
        fetched.append(name)

    monkeypatch.setenv("FLOODMARK_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "retrieve", retrieve)
    with ThreadPoolExecutor(4) as programs:
        found = list(programs.map(lambda module: jars.fetch("org", module, "1"), ["a", "b", "a", "b"]))
    assert sorted(fetched) == ["org:a:1", "org:b:1"]
    assert [len(paths) for paths in found] == [1, 1, 1, 1]
    told = capsys.readouterr().err.splitlines()
    assert sorted(told) == [f"floodmark: downloading {module} 1 into {tmp_path}, once" for module in "ab"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            ":: org.apache.spark#spark-avro_2.13;4.2.1: not found",
            r"does not have this version\. .*pip install 'pyspark==",
        ),
        (
            "Server access error at url https://repo1\n:: org.apache.spark#spark-avro_2.13;4.2.1: not found",
            "the network",
        ),
        ("out of memory", r"see \S+spark-avro_2\.13-4\.2\.1\.log"),
    ],
)
def test_a_jar_that_cannot_be_downloaded_is_named_with_the_cause(tmp_path, monkeypatch, said, told):
    failed = SimpleNamespace(returncode=1, stdout=said, stderr="")
    monkeypatch.setenv("FLOODMARK_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "java", lambda: "java")
    monkeypatch.setattr(jars.subprocess, "run", lambda *_, **_options: failed)
    with pytest.raises(JarDownloadError, match=rf"^org\.apache\.spark:spark-avro_2\.13:4\.2\.1 could not .*{told}"):
        jars.fetch("org.apache.spark", "spark-avro_2.13", "4.2.1")


def test_a_download_that_takes_too_long_is_named(tmp_path, monkeypatch):
    def run(command, *, timeout, **_options):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(jars, "java", lambda: "java")
    monkeypatch.setattr(jars.subprocess, "run", run)
    with pytest.raises(JarDownloadError, match=r"it took over 900 s.*the network"):
        jars.retrieve([], tmp_path, tmp_path / "log", "org:a:1")


def test_ports_that_a_full_disk_has_cut_are_chosen_anew(tmp_path):
    (tmp_path / "ports").touch()
    port = int(EmbeddedKafka(tmp_path).bootstrap_servers.split(":")[1])
    assert 20_000 <= port < 32_000


@pytest.mark.kafka
def test_a_port_that_is_taken_is_a_clear_error(tmp_path, kafka):
    (tmp_path / "taken").mkdir()
    port = kafka.bootstrap_servers.split(":")[1]
    (tmp_path / "taken" / "ports").write_text(f"{port} {port}")
    with pytest.raises(EmbeddedKafkaError, match=rf"uses port {port}: .*kafka\.log"):
        EmbeddedKafka(tmp_path / "taken").start()


@pytest.mark.kafka
def test_a_broker_that_ends_says_so_at_once_and_its_log_says_why(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=x\n")
    with pytest.raises(EmbeddedKafkaError, match=r"it ended with status 1; see .*kafka\.log"):
        EmbeddedKafka(tmp_path).start()
    assert "Stored node id 7 doesn't match" in (tmp_path / "kafka.log").read_text()


@pytest.mark.kafka
def test_a_directory_in_use_is_refused_and_its_broker_goes_on(kafka):
    before = sorted(path.name for path in kafka.directory.iterdir())
    for _ in range(2):
        with pytest.raises(EmbeddedKafkaError, match=r"a broker \(process \d+\) uses the directory .*choose another"):
            EmbeddedKafka(kafka.directory).start()
    with pytest.raises(EmbeddedKafkaError, match="uses the directory"):
        kafka.start()
    assert kafka.running
    assert sorted(path.name for path in kafka.directory.iterdir()) == before
    create_topics(kafka.config, {"after-a-second-broker": 1})


LEFT = """\
import signal, sys
from pathlib import Path
from floodmark.producers import EmbeddedKafka
kafka = EmbeddedKafka(Path(sys.argv[1])).start()
print("started", flush=True)
if sys.argv[2] == "waits":
    signal.pause()
"""
"""A program that never stops its broker."""


@pytest.mark.kafka
@pytest.mark.parametrize("end", ["by itself", signal.SIGTERM, signal.SIGKILL], ids=str)
def test_a_broker_ends_with_its_program(tmp_path, end):
    directory = tmp_path / "left"
    manner = "ends" if end == "by itself" else "waits"
    with subprocess.Popen([sys.executable, "-c", LEFT, directory, manner], stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"started\n"
        if end != "by itself":
            program.send_signal(end)
    until(lambda: free(directory), "the end of the broker")
    with EmbeddedKafka(directory) as again:
        create_topics(again.config, {"t": 1})


@pytest.mark.kafka
def test_the_end_of_a_program_whose_broker_has_died_leaves_the_next_one_alone(tmp_path):
    with subprocess.Popen([sys.executable, "-c", LEFT, tmp_path, "waits"], stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"started\n"
        os.kill(int((tmp_path / "claim").read_text()), signal.SIGKILL)
        until(lambda: free(tmp_path), "the end of the broker")
        with EmbeddedKafka(tmp_path) as next_one:
            program.kill()
            program.wait()
            until(lambda: len(processes_of(tmp_path)) == 2, "the end of the first guard")
            assert next_one.running


FORKS = """import os, signal, sys
from floodmark.producers import EmbeddedKafka
with EmbeddedKafka(sys.argv[1]):
    child = os.fork()
    if not child:
        signal.pause()
os.kill(child, signal.SIGKILL)
"""
"""A program with a child that has its open files."""


@pytest.mark.kafka
def test_a_broker_stops_while_a_child_of_its_program_goes_on(tmp_path):
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS, tmp_path], check=True, timeout=90)


@pytest.mark.kafka
def test_a_killed_broker_comes_back_in_its_directory(tmp_path):
    with EmbeddedKafka(tmp_path / "killed") as kafka:
        create_topics(kafka.config, {"t": 1})
        kafka.kill()
        assert not kafka.running
        assert kafka.start().running
        assert "t" in AdminClient(kafka.config).list_topics(timeout=30).topics


@pytest.mark.kafka
def test_nothing_of_a_broker_is_left_where_it_died_by_itself(tmp_path):
    with EmbeddedKafka(tmp_path / "died") as kafka:
        os.kill(int((tmp_path / "died" / "claim").read_text()), signal.SIGKILL)
        until(lambda: not kafka.running, "its end")
        kafka.start()
    assert free(tmp_path / "died")
    assert processes_of(tmp_path) == []


def free(directory):
    """Tell whether the last thread of a broker has gone."""
    with (directory / "claim").open() as claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_producers_can_be_imported_where_there_are_no_file_locks():
    program = "import sys; sys.modules['fcntl'] = None; import floodmark.producers"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_port_is_one_that_nobody_gets_by_chance():
    found = {free_port() for _ in range(20)}
    assert len(found) > 10
    for port in found:
        assert 20_000 <= port < 32_000
        with socket.socket() as mine:
            mine.bind(("127.0.0.1", port))


def test_an_empty_setting_of_the_cache_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("FLOODMARK_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars.cache() == tmp_path / "floodmark"
