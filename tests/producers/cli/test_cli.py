"""The commands as people use them: inject, tail, their help and their errors."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from confluent_kafka import Producer
from floodmark.producers import WatermarkedProducer, ascending
from floodmark.producers.clients.admin import begin_offsets, end_offsets, existing_topics
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.injection import Injection
from floodmark.producers.injector.injector import Injector
from support.harness import EVENT, events
from support.injection import open_transaction

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "floodmark.producers.cli.main"]


def floodmark(*arguments, **environment):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )


@pytest.mark.kafka
def test_check_and_catch_up_tell_what_an_open_transaction_hides(kafka, topic):
    target, at = topic(1), ("--bootstrap-servers", kafka.bootstrap_servers)
    plain = Producer(kafka.config)
    plain.produce(target, b"{}", timestamp=5)  # no record that can be read is of the last minute
    plain.flush(30)
    hides = f"an open transaction hides the records from {target}/0@1 on"
    other = open_transaction(kafka, target)
    assert hides in floodmark("check", target, *at).stderr
    asked = floodmark("catch-up", target, "--rate", 9, *at)
    assert (asked.returncode, hides in asked.stdout) == (2, True), asked
    other.abort()
    assert "hides" not in floodmark("check", target, *at).stderr


@pytest.mark.parametrize(
    "command", [[], ["demo"], ["board"], ["catch-up"], ["check"], ["inject"], ["tail"], ["trigger"], ["why"]]
)
def test_help_states_usage_and_exit_status(command):
    done = floodmark(*command, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout
    assert "<bool>" not in done.stdout
    if command:
        assert "Exit status" in done.stdout


def test_the_package_declares_the_commands_that_join():
    declared = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    joined = {command.name: command.value for command in entry_points(group="floodmark.commands")}
    assert declared["floodmark.commands"] == joined
    assert all(callable(command.load()) for command in entry_points(group="floodmark.commands"))


HEAVY = {"confluent_kafka", "fastavro", "numpy", "pandas", "pyarrow", "pyspark"}
COMPLETION = {"_FLOODMARK_COMPLETE": "complete_bash", "COMP_WORDS": "floodmark inject --", "COMP_CWORD": "2"}


def imported(profile):
    """Return the modules that the import profile of a process names."""
    return {line.rpartition("|")[2].strip() for line in profile.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--version"], {}, "floodmark "),
        (["--help"], {}, "Usage"),
        *(
            ([name, "--help"], {}, "Usage")
            for name in ("board", "catch-up", "check", "demo", "inject", "tail", "trigger", "why")
        ),
        ([], COMPLETION, "--on-late"),
    ],
)
def test_what_only_tells_of_commands_imports_nothing_that_they_work_with(arguments, environment, said):
    """It takes no longer than the library that reads the command line."""
    run = "sys.argv[0] = 'floodmark'; from floodmark.producers.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import sys; {run}", *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, **environment},
    )
    assert said in done.stdout
    loaded = imported(done.stderr)
    assert "floodmark.producers.cli.main" in loaded
    assert {name for name in loaded if name.partition(".")[0] in HEAVY or name == "floodmark.schemas"} == set()


def test_a_command_imports_no_spark_unless_it_needs_it():
    done = floodmark("tail", "t", "--config", "no-such-file", PYTHONPROFILEIMPORTTIME="1")
    loaded = imported(done.stderr)
    assert "confluent_kafka" in loaded
    assert "pyspark" not in loaded


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [
        ("floodmark ", 1, {"board", "check", "demo", "inject", "tail", "why"}),
        ("floodmark inject --on-", 2, {"--on-late", "--on-out-of-order"}),
        ("floodmark tail --until", 2, {"--until-end"}),
        ("floodmark inject --on-late ", 3, {"adjust", "drop"}),
        ("floodmark inject --changefeed ticdc", 3, {"ticdc-canal", "ticdc-open"}),
    ],
)
def test_the_shell_completes_commands_and_options(words, position, expected):
    script = "import sys; sys.argv = ['floodmark']; from floodmark.producers.cli.main import main; main()"
    completing = {"_FLOODMARK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, **completing},
    )
    assert expected <= set(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "needs one of"),
        (
            ["--json-field", "at", "--log-time"],
            "--json-field and --log-time each say how to read event times",
        ),
        (["--schema", "x.avsc"], "needs one of"),
        (["--schema", "x.avsc", "--log-time"], "--schema does not go with --log-time"),
        (["--changefeed", "debezium"], "expected one of cockroachdb"),
        (["--log-time", "--unit", "s"], "--unit is the unit of a field"),
        (["--json-field", "at", "--registry", "http://localhost:1"], "--registry describes the values of --event-time"),
        (["--json-field", "at", "--unit", "h"], "expected one of s, ms"),
        (["--json-field", "at", "--late", "-3"], "the late tolerance is -3 s, expected 0 or more"),
        (["--json-field", "at", "--end"], "--end needs --until-end"),
        (["--json-field", "at", "--dry-run", "--json"], "--json cannot be used with --dry-run"),
        (["--json-field", "at", "--dry-run", "--decisions-from", "other"], "leave out --decisions-from"),
        (["--json-field", "at", "--create", "--group", "g", "--align", "5"], "--align cannot be used with --group"),
        (["--json-field", "at", "--on-late", "keep"], "expected adjust or drop"),
        (["--changefeed", "cockroachdb", "--substream-by", "key"], "promises of its own"),
        (["--json-field", "at"], "Kafka at 127.0.0.1:1 is not available"),
        (["--json-field", "at", "--late", "5m"], "Kafka at 127.0.0.1:1 is not available"),
        (["--json-field", "at", "--late", "5 years"], "'5 years' is no duration"),
        (["--json-field", "at", "--late", "nan"], "--late is nan, expected a number of seconds"),
        (["--json-field", "at", "--early", "1e300"], "--early is 1e+300"),
        (["--json-field", "at", "--align-topic", "daily"], "pass both"),
        (["--schema", "no-such.avsc", "--event-time", "at"], "no-such.avsc cannot be read: No such file"),
    ],
)
def test_inject_says_what_is_wrong(arguments, said):
    place = ["--from", "raw", "--to", "marked", "--bootstrap-servers", "127.0.0.1:1"]
    done = floodmark("inject", *place, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_come_from_a_file_and_no_secret_is_shown(tmp_path):
    settings = tmp_path / "kafka.properties"
    settings.write_text("# ours\nsasl.password=${env:HUSH}\nsecurity.protocol = plaintext\n")
    place = ["tail", "t", "--bootstrap-servers", "127.0.0.1:1", "--config", settings]
    done = floodmark(*place)
    assert done.returncode == 2
    assert f"{settings}: setting 'sasl.password': nothing is found at ${{env:HUSH}}: it is not set" in done.stderr
    done = floodmark(*place, HUSH="hunter2")
    assert done.returncode == 2
    assert "Kafka at 127.0.0.1:1 is not available" in done.stderr
    assert "hunter2" not in done.stderr + done.stdout
    settings.write_text("hunter2\n")
    done = floodmark(*place)
    assert "line 1: expected name=value" in done.stderr
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize("command", ["check", "inject", "tail"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file"),
        ("", "no Kafka address: pass --bootstrap-servers, or set FLOODMARK_BOOTSTRAP_SERVERS"),
        ("\ufeffbootstrap-servers=127.0.0.1:1", 'No such configuration property: "bootstrap-servers"'),
        ("bootstrap.servers=127.0.0.1:1\nsecurty.protocol=ssl", "kafka.properties: No such"),
        ("bootstrap.servers=127.0.0.1:1\nsecurty.protocol=ssl", 'No such configuration property: "securty.protocol"'),
        ("bootstrap.servers=127.0.0.1:1\nsecurity.protocol=hunter2", 'Invalid value "hunter2"'),
        (
            "bootstrap.servers=a:1\nsecurity.protocol=ssl\nssl.key.password=hunter2\nssl.ca.location=/hunter2",
            "ssl.ca.location",
        ),
    ],
)
def test_a_slip_in_the_settings_is_one_line(tmp_path, command, text, said):
    settings = tmp_path / "kafka.properties"
    if text is not None:
        settings.write_text(text)
    arguments = ["t"] if command != "inject" else ["--from", "a", "--to", "b", "--json-field", "at"]
    done = floodmark(command, *arguments, "--config", settings)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "hunter2" not in done.stderr or "ssl.key.password" not in (text or "")


@pytest.mark.kafka
def test_inject_then_tail(kafka, topic, tmp_path):
    raw, marked = topic(1), topic(1)
    producer = Producer(kafka.config)
    for time in (1_000, 3_000, 2_000, 9_000):
        producer.produce(raw, events.encode({"user": "u", "at": time}), timestamp=time)
    producer.flush(30)
    schema = tmp_path / "event.avsc"
    schema.write_text(json.dumps(EVENT))
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    avro = ["--schema", schema, "--event-time", "at"]
    near = ["--align-topic", raw, "--align-bound", 60]  # it has no marks to wait for
    more = ["--until-end", "--end", "--json", "--out-of-order", 0]
    done = floodmark("inject", "--from", raw, "--to", marked, *servers, *avro, *near, *more)
    assert done.returncode == 0, done.stderr
    assert "3 on time, 1 out of order adjusted" in done.stderr

    done = floodmark("tail", marked, *servers, "--schema", schema, "--from-beginning", "--until-end", "--json")
    assert done.returncode == 0, done.stderr
    shown = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["value"]["at"] for line in shown if line["kind"] == "data"] == [1_000, 3_000, 2_000, 9_000]
    marks = [line for line in shown if line["kind"] == "mark"]
    assert marks[-1]["status"] == "ENDED"
    assert marks[-1]["records"] == 4
    assert shown[0]["kind"] == "mark", "the first word is a mark"

    done = floodmark("tail", marked, *servers, "--from-beginning", "--until-end", "--marks")
    assert f"inject-{raw} 1970-01-01T00:00:09.000+00:00" in done.stdout
    assert "==> topic end of time" in done.stdout


@pytest.mark.kafka
def test_inject_shows_what_it_would_do_and_refuses_a_wrong_field(kafka, topic):
    raw, marked = topic(1), topic(1)
    producer = Producer(kafka.config)
    for value in (b'{"payload": {"at": 1000}}', b"garbage"):
        producer.produce(raw, value, timestamp=1_000)
    producer.flush(30)
    new = f"{raw}-new"
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    place = ["--from", raw, "--to", marked, *servers, "--until-end"]
    done = floodmark("inject", *place, "--json-field", "payload.at", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f'on time           1  for example {raw}/0@0 {{"payload": {{"at": 1000}}}}' in done.stdout
    assert "2 records read, nothing written" in done.stdout
    for more in ([], ["--dry-run"], ["--to", new, "--create"]):
        done = floodmark("inject", *place, "--json-field", "at", *more)
        assert done.returncode == 2
        assert "the fields are 'payload.at'; nothing was written. Correct the field" in done.stderr
        assert "Traceback" not in done.stderr
    place = ["--from", raw, "--to", new, "--create", *servers, "--until-end", "--json-field", "payload.at"]
    for name, other in (("--dropped-to", "none-such"), ("--decisions-from", "none-such"), ("--decisions-from", raw)):
        assert f"topic '{other}'" in floodmark("inject", *place, name, other).stderr
    assert new not in existing_topics(kafka.config), "a command that fails leaves no topic"
    done = floodmark("inject", *place, "--json")
    assert done.returncode == 0
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["records"], last["outcomes"]["on_time"], last["unreadable"]) == (2, 1, 1), (
        "of the last transaction, too"
    )
    assert new in existing_topics(kafka.config)
    written = end_offsets(kafka.config, new)
    producer.produce(raw, b'{"payload": {"at": 2000}}', timestamp=2_000)
    producer.flush(30)
    with Injector(Injection(raw, new, JsonField("payload.at")), kafka.config) as running:
        for more in ([], ["--reset"]):
            done = floodmark("inject", *place[:-1], "at", *more)
            assert "the fields are 'payload.at'; nothing was written. Correct the field" in done.stderr
        swapped = ["--from", marked, "--to", new, "--source", f"inject-{raw}", *servers, "--json-field", "at"]
        assert f"holds its records of '{raw}', and --from is '{marked}'" in floodmark("inject", *swapped).stderr
        running.run(until_end=True)  # a refused start does not stop it
    assert begin_offsets(kafka.config, [new]) == {(new, 0): 0}, "nor does it delete anything"
    assert end_offsets(kafka.config, new)[0] > written[0]
    assert "0 records read, nothing" in floodmark("inject", *place, "--dry-run").stdout
    assert "3 records read, nothing" in floodmark("inject", *place, "--dry-run", "--reset").stdout


@pytest.mark.kafka
@pytest.mark.parametrize(
    "command", [["board", "--once"], ["check", "--json"], ["tail", "-n", "9"], ["why"]], ids=" ".join
)
def test_an_output_that_takes_nothing_more_is_an_error_in_one_line(kafka, topic, command):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="web", strategy=ascending()) as web:
        web.produce(b"x", event_time=1)
    servers = ["--bootstrap-servers", kafka.bootstrap_servers]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        arguments = [*COMMAND, *command, target, *servers]
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, timeout=90, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "floodmark: [Errno 28] No space left on device"
    assert "Traceback" not in done.stderr


@pytest.mark.kafka
def test_tail_shows_what_cannot_be_read(kafka, topic):
    target = topic(1)
    with WatermarkedProducer(kafka.config, topic=target, source="web", strategy=ascending()) as ours:
        ours.produce(b"\xff\xfe", key="k", event_time=5)
    plain = Producer(kafka.config)
    plain.produce(target, b"garbage", key=b"__floodmark__/web")
    plain.flush(30)
    done = floodmark("tail", target, "--bootstrap-servers", kafka.bootstrap_servers, "--from-beginning", "--until-end")
    assert "k: fffe" in done.stdout
    assert "! unreadable mark" in done.stdout
    assert "# web 1970-01-01T00:00:00.005+00:00" in done.stdout
    place = ["tail", target, "--bootstrap-servers", kafka.bootstrap_servers]
    assert floodmark(*place, "-n", 1, "--until-end").stdout.count("\n") == 1
    refused = floodmark(*place, "-n", 1, "--offset", 0)
    assert (refused.returncode, "use one of them" in refused.stderr) == (2, True)


WITHOUT_SPARK = """
import importlib.util, runpy, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pyspark" else find(name, *rest)
sys.modules["pyspark"] = None  # whoever imports it fails
"""


@pytest.mark.parametrize("command", ["board", "check", "inject", "tail", "why"])
def test_commands_that_need_no_spark_run_without_it(command):
    run = (
        "sys.argv = ['floodmark', *sys.argv[1:]]\nrunpy.run_module('floodmark.producers.cli.main', run_name='__main__')"
    )
    line = [sys.executable, "-c", WITHOUT_SPARK + run, command, "--help"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_a_name_that_needs_spark_says_what_to_install():
    run = "from floodmark.spark_jobs import read"
    done = subprocess.run([sys.executable, "-c", WITHOUT_SPARK + run], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ImportError: floodmark.spark_jobs.read needs Spark: pip install '.[spark]' in the checkout"
    )
