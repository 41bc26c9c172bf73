"""The check of conformance passes who conforms, and shows others the first wrong answer; no program breaks it."""

import json
import shlex
import signal
import sys
from pathlib import Path

import pytest
from floodmark.schemas.conformance import __main__ as command
from floodmark.schemas.conformance import reader_cases

PROGRAM = Path(__file__).parents[1] / "support" / "conforming.py"


def run(kind, *words, more=()):
    do = {"reader": "read", "writer": "write"}[kind]
    return command.main([f"--{kind}", shlex.join([sys.executable, str(PROGRAM), do, *words]), *more])


@pytest.fixture(autouse=True)
def few_histories(monkeypatch):
    monkeypatch.setattr(reader_cases, "HISTORIES", 20)  # tests/java/test_reader.py runs all


@pytest.mark.parametrize(("kind", "count"), [("reader", 107), ("writer", 100)])
def test_the_code_of_floodmark_conforms(kind, count, capsys):
    assert run(kind) == 0
    assert capsys.readouterr().out == f"{count} of {count} cases passed.\n"


def test_a_reader_that_takes_the_maximum_sees_what_was_expected(capsys):
    assert run("reader", "maximum") == 1
    shown = capsys.readouterr().out
    assert shown.startswith(
        "failed: table: the minimum of three\n"
        "  step 4 of 9: t/0@3, WatermarkRecord(source='a', epoch=1, sequence=1, watermark=12, partitions=1, "
        "emitted_at=0, status=<Status.ACTIVE: 'ACTIVE'>, membership=Membership(version=1, size=3), records=None, "
        "processing_time_watermark=None, lease=None, percentiles=None, holder=None)\n"
        '  expected {"watermark": 0}\n'
        '  found    {"watermark": 12}\n'
    )
    assert "The first 5 failed cases are shown; --json prints all." in shown
    assert run("reader", "maximum", more=["--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    failed = {one["case"]: one for one in result["failed"]}
    assert result["passed"] + len(failed) == result["cases"] == 107
    assert failed["history 3"]["input"][0] == {"topics": ["t"]}
    assert "partition_is" in failed["history 3"]["fault"]


def test_a_writer_that_does_not_mark_before_its_first_record_is_told_so(capsys):
    assert run("writer", "unmarked") == 1
    assert "a data record before the mark of partition(s) 0" in capsys.readouterr().out


def test_a_writer_whose_answers_have_another_form_is_told_so(capsys):
    assert run("writer", "form") == 1
    assert "its answer has another form than SPEC.md says: KeyError: 'partition'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("dies", "closed its output (exit status 3) at step 8 of"),
        ("hangs", "printed nothing for 10 s at step 8 of"),
        ("nonsense", r"printed 'Hello\n' at step 8 of"),
    ],
)
def test_a_program_that_gives_no_answer_is_an_error_that_names_the_step(fault, message, capsys):
    assert run("writer", fault, more=["--timeout", "10"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("floodmark: program '")
    assert f"{message} 56 of 'script 0'. It has to print one JSON object for each step" in shown.err


@pytest.mark.parametrize("words", ["no-such-program", "", "'"])
def test_a_program_that_cannot_be_started_is_an_error(words, capsys):
    assert command.main(["--writer", words]) == 2
    assert "cannot be started (" in capsys.readouterr().err


def test_ctrl_c_ends_it_with_one_line(capsys):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process of pytest -n ignores it
    try:
        assert command.main(["--writer", "sh -c 'read line; kill -INT $PPID; exec sleep 60'"]) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == ("", "floodmark: interrupted before the last case\n")
