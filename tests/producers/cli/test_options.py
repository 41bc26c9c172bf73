"""Where the settings of a command come from, and which of them wins; what its options take; the shell's completion."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import typer
from floodmark.producers.cli import main
from floodmark.producers.cli.command_line import BootstrapServers, ConfigFile, ended_by_signals
from floodmark.producers.cli.inject import injection_line, reached
from floodmark.producers.cli.settings import (
    FieldOptions,
    decoder_of,
    input_format,
    judged_values,
    kafka_settings,
    registry_of,
    settings_file,
)
from floodmark.producers.clients.secrets import resolved
from floodmark.producers.event_times.formats import JsonField
from floodmark.producers.event_times.option_values import CHANGEFEEDS, Action, Unit
from floodmark.producers.event_times.time_policy import TimePolicy
from floodmark.producers.readers.tail import _json
from floodmark.producers.testing import InMemoryLog, mark
from floodmark.schemas.errors import UsageError
from floodmark.schemas.tracker import Tracker
from typer.testing import CliRunner

COMMANDS = ["check", "inject", "tail"]
TYPED = (
    "--unit [s|ms|us|ns]",
    "--changefeed [cockroachdb|ticdc-canal|ticdc-open]",
    "--on-late [adjust|drop]",
    "--on-out-of-order [adjust|drop]",
)


def shown(*arguments):
    done = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(main.app, [*arguments, "--help"])
    assert done.exit_code == 0
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[\d;]*m|[│╭╮╰╯─]", " ", done.stdout))


@pytest.fixture
def settings(tmp_path):
    """Run a command that prints the settings which its options add up to."""
    app = typer.Typer()

    @app.command()
    def show(bootstrap_servers: BootstrapServers = None, config: ConfigFile = None):
        typer.echo(json.dumps(kafka_settings(bootstrap_servers, config)))

    def run(*arguments, **environment):
        done = CliRunner(env=environment).invoke(app, arguments, catch_exceptions=False)
        return json.loads(done.stdout)

    for name in ("one", "two"):
        tmp_path.joinpath(name).write_text(f"! ours\n# {name}\nbootstrap.servers={name}:1\nclient.id=me\n")
    return run


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(settings, tmp_path):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    address, file = "FLOODMARK_BOOTSTRAP_SERVERS", "FLOODMARK_CONFIG"
    found = {
        "flag": settings("--bootstrap-servers", "flag:1", "--config", one, **{address: "env:1", file: two}),
        "env": settings("--config", one, **{address: "env:1", file: two}),
        "one": settings("--config", one, **{file: two}),
        "two": settings(**{file: two}),
    }
    assert found == {name: {"bootstrap.servers": f"{name}:1", "client.id": "me"} for name in found}
    assert settings(**{address: "env:1"}) == {"bootstrap.servers": "env:1"}


def test_the_demo_takes_no_address_from_the_environment():
    """It makes topics of its own: nobody's cluster is to be found by accident."""
    done = subprocess.run(
        [sys.executable, "-m", "floodmark.producers.cli.main", "demo", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert "--bootstrap-servers" in done.stdout
    assert "FLOODMARK" not in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_names_the_environment_the_file_and_the_exit_status(command):
    text = shown(command)
    assert all(name in text for name in ("FLOODMARK_BOOTSTRAP_SERVERS", "FLOODMARK_CONFIG", "Exit status: 0"))
    assert "--bootstrap-servers, FLOODMARK_BOOTSTRAP_SERVERS, --config or FLOODMARK_CONFIG, in this order" in shown()


def test_the_help_shows_what_an_option_takes():
    text = shown("inject")
    assert [option for option in TYPED if option not in text] == []


def test_all_that_the_help_offers_is_taken():
    for unit in get_args(Unit):
        assert JsonField("at", unit)
    for action in get_args(Action):
        assert TimePolicy(on_late=action, on_out_of_order=action)
    for feed in CHANGEFEEDS:
        assert input_format(feed, FieldOptions(), log_time=False).promises


def test_a_registry_of_the_environment_may_be_for_other_commands(monkeypatch):
    registry = FieldOptions(registry="http://localhost:1")
    of_json = registry._replace(json_field="at")
    for judged in (
        lambda: input_format(None, of_json, log_time=False),
        lambda: judged_values(registry),
        lambda: decoder_of(Path("x.avsc"), registry.registry, None),
    ):
        with pytest.raises(UsageError, match="--registry"):
            judged()
    monkeypatch.setenv("FLOODMARK_REGISTRY", "http://localhost:1")
    assert input_format(None, of_json, log_time=False).about == JsonField("at", "ms").about
    assert judged_values(registry) is None


def test_an_address_that_is_refused_shows_no_password():
    with pytest.raises(UsageError, match=r"schema registry 'h': expected a URL"):
        registry_of("htp://me:hunter2@h", None)


@pytest.mark.parametrize("bad", ["no equals sign", "="])
def test_a_line_that_is_no_setting_is_named(tmp_path, bad):
    file = tmp_path / "kafka.properties"
    file.write_text(f"client.id=me\n{bad}\n")
    with pytest.raises(UsageError, match="line 2"):
        settings_file(file)


def test_a_place_without_a_secret_is_named(tmp_path):
    file = tmp_path / "kafka.properties"
    file.write_text("sasl.password=${env:NOT_SET_ANYWHERE}\n")
    with pytest.raises(UsageError, match=r"'sasl.password': nothing is found at \$\{env:NOT_SET_ANYWHERE\}"):
        settings_file(file)


@pytest.mark.parametrize("secret", ["${evn:PW}", "${PW}", "${env:PW", "a${vault:x}b"])
def test_a_misspelt_place_of_a_secret_is_not_the_secret_itself(tmp_path, secret):
    file = tmp_path / "kafka.properties"
    file.write_text(f"sasl.password={secret}\n")
    with pytest.raises(UsageError, match=r"'sasl.password': .* none of \$\{env:NAME\}, ") as refused:
        settings_file(file)
    assert secret not in str(refused.value)


def test_a_secret_of_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "password").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"'sasl.password': .*cannot be read: UnicodeDecodeError"):
        resolved({"sasl.password": f"${{directory:{tmp_path}:password}}"})


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("pa$$w$ord", "pa$$w$ord"),
        ("$ORD {} {ORD} $ {other:ORD} $", "$ORD {} {ORD} $ {other:ORD} $"),
        ("a${env:ORD}b${env:ORD}$", "a${x}$$b${x}$$$"),
    ],
)
def test_a_dollar_stays_but_before_a_name_in_braces(tmp_path, monkeypatch, written, meant):
    monkeypatch.setenv("ORD", "${x}$$")
    file = tmp_path / "kafka.properties"
    file.write_text(f"sasl.password = {written}\n")
    assert settings_file(file) == {"sasl.password": meant}


def test_tail_gives_times_in_human_form_beside_the_numbers():
    log, tracker = InMemoryLog("t"), Tracker({"t"})
    log.append(mark("a", 1_767_225_600_000))
    log.append(mark("a", None, epoch=2))
    first, second = (json.loads(_json(record, None, tracker.watermark)) for record in log.read(tracker))
    assert (first["watermark"], first["watermark_utc"]) == (1_767_225_600_000, "2026-01-01T00:00:00.000+00:00")
    assert (second["watermark"], second["watermark_utc"], second["topic_watermark_utc"]) == (None, None, None)


def test_an_injection_gives_its_watermark_in_human_form():
    assert reached(SimpleNamespace(watermarks={0: 1_767_225_600_000, 1: 1_767_225_600_001})) == (
        "2026-01-01T00:00:00+00:00"
    )
    assert reached(SimpleNamespace(watermarks={0: 5, 1: None})) is None


@pytest.mark.parametrize(
    ("read", "outcomes", "watermark", "said"),
    [
        (0, {}, ..., "0 records read; no partitions assigned"),
        (7, {}, ..., "7 records read; no partitions assigned"),
        (0, {}, None, "0 records read, none to read yet; watermark unknown"),
        (0, {}, 0, "0 records read, none to read yet; watermark 1970-01-01T00:00:00+00:00 by the clock"),
        (0, {"on_time": 5}, 0, "0 records read; since the first run 5 on time; watermark 1970-01-01T00:00:00+00:00"),
        (1_200, {}, None, "1,200 records read; watermark unknown"),
        (7, {"late_adjusted": 2, "timeless": 0}, None, "7 records read, 2 late adjusted; watermark unknown"),
    ],
)
def test_an_injection_says_in_a_line_how_far_it_is(read, outcomes, watermark, said):
    counts = Counter(records=read)
    watermarks = {} if watermark is ... else {0: watermark}
    injector = SimpleNamespace(counts=counts, outcomes=Counter(outcomes), watermarks=watermarks, first_trouble=None)
    assert injection_line(injector) == said


def test_the_shells_script_can_be_shown():
    script = (
        "import sys; sys.argv = ['floodmark', '--show-completion', 'bash']; from floodmark.producers.cli.main import"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{script} main; main()"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "_FLOODMARK_COMPLETE=complete_bash" in done.stdout
    assert "complete -o default -F" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_a_library_makes_of_a_signal_ends_the_command_as_the_signal_does(number):
    """confluent-kafka makes a TypeError of an interrupt that strikes while it takes in its settings."""

    def settings():
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise TypeError("expected configuration property name as type unicode string") from None

    before = signal.getsignal(number)
    with pytest.raises(typer.Exit) as ended, ended_by_signals(3):
        settings()
    assert ended.value.exit_code == 3
    assert signal.getsignal(number) == before


def into_head(program):
    """Run a program whose output is closed after a line; the last line is its exit status."""
    command = f'{sys.executable} -c "$0" | head -1; echo ${{PIPESTATUS[0]}}'
    return subprocess.run(["bash", "-c", command, program], capture_output=True, text=True, check=True)


def test_a_reader_that_has_read_enough_ends_the_command_as_a_signal_does():
    program = (
        "from floodmark.producers.cli.command_line import ended_by_signals, run_command\n"
        "def endless():\n"
        "    with ended_by_signals(3):\n"
        "        while True: print('x' * 10_000)\n"
        "run_command(endless)"
    )
    done = into_head(program)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("3", "")


@pytest.mark.parametrize("write", ["print(text)", "typer.echo(text)", "Console().print(text)", "show(text)"])
def test_a_command_whose_output_is_closed_exits_with_status_2(write):
    """Status 1 is for what a command finds."""
    program = (
        "import typer\n"
        "from rich.console import Console\n"
        "from floodmark.producers.cli.command_line import ended_by_signals, run_command\n"
        "def show(text):\n"
        "    with ended_by_signals(2): Console().print(text)\n"
        "def answer():\n"
        f"    for text in ['x' * 10_000] * 100: {write}\n"
        "run_command(answer)"
    )
    done = into_head(program)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("2", "")


def test_an_unexpected_error_exits_with_status_2_and_a_name_is_escaped():
    program = (
        "from floodmark.producers.cli.command_line import run_command\n"
        "def fail():\n"
        "    print('h\\xe4ufig')\n"
        "    raise ZeroDivisionError\n"
        "run_command(fail)"
    )
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, env=ascii_only)
    assert (done.returncode, done.stdout) == (2, b"h\\xe4ufig\n")
    assert done.stderr.splitlines()[-1] == b"ZeroDivisionError"


def test_a_closed_output_asks_a_command_to_stop_as_a_first_signal_does():
    program = (
        "import sys\n"
        "from floodmark.producers.cli.command_line import run_command, stop_on_signals\n"
        "def until_asked():\n"
        "    with stop_on_signals() as stop:\n"
        "        while not stop(): stop.echo('x' * 10_000)\n"
        "        print('its last work is done', file=sys.stderr)\n"
        "run_command(until_asked)"
    )
    done = into_head(program)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("0", "its last work is done\n")


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ("", "time.sleep(60)", 0),
        ("stop(); time.sleep(0.5)", "time.sleep(60)", 0),
        ("stop()", "time.sleep(60)", 0),
        ("stop()", "stop(); time.sleep(0.5)", 3),
    ],
    ids=["it has not begun", "it waits", "it begins to wait", "it works"],
)
def test_a_signal_ends_a_command_that_waits_and_lets_one_that_works_finish(before, after, status):
    """Such as one that waits for the end of another writer's transaction, for minutes."""
    program = (
        "import os, signal, sys, time\n"
        "from floodmark.producers.cli.command_line import run_command, stop_on_signals\n"
        "def wait():\n"
        "    with stop_on_signals(0.2) as stop:\n"
        f"        {before or 'pass'}\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        f"        {after}\n"
        "        sys.exit(3)\n"
        "run_command(wait)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    told = "" if status else "stopped while it waited: the next start continues\n"
    assert (done.returncode, done.stderr) == (status, told)


def test_errors_and_logs_do_not_control_the_terminal():
    program = (
        "import logging\n"
        "from floodmark.producers.cli.command_line import run_command\n"
        "from floodmark.schemas.errors import UsageError\n"
        "def fail():\n"
        "    logging.warning('of %s', 'a\\x1b[2J')\n"
        "    raise UsageError(reason='one\\x1b\\ntwo')\n"
        "run_command(fail)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "WARNING of a\\x1b[2J\nfloodmark: one\\x1b\ntwo\n")


def test_an_error_without_a_signal_stays_itself():
    with pytest.raises(TypeError), ended_by_signals(3):
        raise TypeError
