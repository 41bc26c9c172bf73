"""A little of the fuzzing with every run of the tests; ``run.py`` is the long search."""

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from random import Random

import pytest
from floodmark.schemas import codec as product
from fuzz import spec_reader
from fuzz.mutate import mutated
from fuzz.targets import TARGETS

INPUTS = 20_000
RUN = Path(__file__).parent / "run.py"


def search(name, inputs):
    target = TARGETS[name]
    for data in mutated(target.seeds, inputs, target.longest, Random(name)):  # noqa: S311  # a repeatable search
        target.law(data)


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_bytes_break_no_law(name):
    search(name, round(INPUTS * TARGETS[name].share))


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_themselves_are_good_inputs(name):
    for seed in TARGETS[name].seeds:
        TARGETS[name].law(seed)


VECTORS = json.loads(files("floodmark.schemas").joinpath("vectors.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", VECTORS["accepted"], ids=lambda vector: vector["name"])
def test_a_second_reader_accepts_the_vectors(vector):
    fields = spec_reader.read(bytes.fromhex(vector["key"]), bytes.fromhex(vector["value"]))
    record = dict(vector["record"])
    membership = record.pop("membership")
    percentiles = record["percentiles"]
    record["percentiles"] = percentiles and {int(percent): time for percent, time in percentiles.items()}
    assert fields == {**record, "version": membership["version"], "size": membership["size"]}


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda vector: vector["name"])
def test_a_second_reader_refuses_the_vectors(vector):
    value = vector["value"]
    with pytest.raises(spec_reader.RefusedError):
        spec_reader.read(bytes.fromhex(vector["key"]), None if value is None else bytes.fromhex(value))


def test_the_search_finds_a_decoder_that_is_too_lenient(monkeypatch):
    """The judge is awake: a decoder without the check of the canonical form is found out."""
    monkeypatch.setattr(product._WATERMARK, "encode", lambda _fields: _Equal())  # noqa: SLF001  # sabotage
    with pytest.raises(AssertionError, match="accepted, but"):
        search("codec", INPUTS)


class _Equal(bytes):
    __hash__ = bytes.__hash__

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False


@pytest.mark.parametrize("engine", ["random", "atheris"])
def test_the_command_counts_its_inputs(engine):
    if engine == "atheris":
        pytest.importorskip("atheris")
    command = [sys.executable, str(RUN), "--inputs", "2000", "--engine", engine, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=RUN.parents[1])
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)["targets"]
    assert sum(result["inputs"] for result in results) == 2000
    assert [result["broken"] for result in results] == [None] * len(TARGETS)
