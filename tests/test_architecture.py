"""The layout of the project, as a law: what stands where, what may import what, and what must stay pure."""

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import floodmark.producers
import floodmark.schemas
import floodmark.spark_jobs
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("schemas", "producers", "spark_jobs")
# What a module may use beside the standard library and Floodmark itself.  Pure modules use nothing else.
PURE = {
    "producers/delays.py": {"datasketches", "typing_extensions"},
    "schemas/__init__.py": set(),
    "schemas/codec.py": {"fastavro"},
    "schemas/errors.py": set(),
    "schemas/holds.py": set(),
    "schemas/leases.py": set(),
    "schemas/ledger.py": set(),
    "schemas/records.py": set(),
    "schemas/timestamps.py": set(),
    "schemas/topic_state.py": set(),
    "schemas/tracker.py": set(),
    "producers/adapters.py": {"typing_extensions"},
    "producers/checker.py": set(),
    "producers/injection.py": set(),
    "producers/lane.py": set(),
    "producers/metrics.py": {"prometheus_client"},
    "producers/closing.py": set(),
    "producers/completeness.py": set(),
    "producers/emitter.py": set(),
    "producers/messages.py": set(),
    "producers/partitioners.py": set(),
    "producers/position.py": set(),
    "producers/reader.py": set(),
    "producers/time_policy.py": set(),
    "producers/strategies.py": {"typing_extensions"},
    "spark_jobs/audit.py": set(),
    "spark_jobs/plan.py": set(),
    "spark_jobs/lateness.py": set(),
    "spark_jobs/progress.py": set(),
    "spark_jobs/source_options.py": set(),
    "spark_jobs/unusable.py": set(),
    "spark_jobs/refusals.py": set(),
}
IMPURE_STDLIB = {"os", "io", "socket", "subprocess", "threading", "time", "pathlib", "logging", "tempfile", "shutil"}
TOP_LEVEL = {"LICENSE", "README.md", "docker", "producers", "pyproject.toml", "schemas", "spark_jobs", "tests"}


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def test_the_top_level_holds_what_the_design_says():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {name.split("/")[0] for name in tracked if not name.startswith(".")} == TOP_LEVEL


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_run_one_way(package):
    allowed = PACKAGES[: PACKAGES.index(package) + 1]
    for path in sources(package):
        for name in imported(path):
            if name.startswith("floodmark"):
                assert name.split(".")[1] in allowed, f"{path} imports {name}"


@pytest.mark.parametrize("module", PURE)
def test_a_pure_module_does_no_io_and_reads_no_clock(module):
    path = ROOT / module
    for name in imported(path):
        first = name.split(".")[0]
        if first == "floodmark":
            continue
        assert first in sys.stdlib_module_names | PURE[module], f"{module} imports {name}"
        assert first not in IMPURE_STDLIB - ({"io"} if module == "schemas/codec.py" else set()), f"{module}: {name}"
    assert ".now(" not in path.read_text(encoding="utf-8"), f"{module} reads a clock"


def test_the_heart_imports_only_the_heart():
    for module in PURE:
        for name in imported(ROOT / module):
            if name.startswith("floodmark."):
                path = name.removeprefix("floodmark.").replace(".", "/")
                assert f"{path}.py" in PURE or f"{path}/__init__.py" in PURE, f"{module} imports {name}"


@pytest.mark.parametrize(
    ("library", "rooms"),
    [
        ("fastavro", {"schemas/codec.py"}),
        ("py4j", {"spark_jobs/engine.py"}),
    ],
)
def test_some_libraries_are_let_into_one_room(library, rooms):
    found = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sources(package)
        if any(name.split(".")[0] == library for name in imported(path))
    }
    assert found == rooms


def test_the_internals_of_spark_are_touched_in_one_module():
    for package in PACKAGES:
        for path in sources(package):
            text = path.read_text(encoding="utf-8")
            if path.name != "engine.py":
                assert not any(word in text for word in ("._jsq", "._jdf", "._jvm", "._jsc", "._gateway")), path


def test_modules_are_small():
    for package in PACKAGES:
        for path in sources(package):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            assert lines <= 480, f"{path} has {lines} lines"


@pytest.mark.parametrize("package", [floodmark.schemas, floodmark.producers, floodmark.spark_jobs])
def test_what_is_public_is_sorted_there_and_explained(package):
    for name in package.__all__:
        assert getattr(package, name).__doc__ or name.isupper(), f"{package.__name__}.{name} has no docstring"


def modules():
    packages = (floodmark.schemas, floodmark.producers, floodmark.spark_jobs)
    return [info.name for p in packages for info in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_the_docstrings_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_nothing_names_a_registry_or_a_machine():
    words = ["pypi" + ".org", "python" + "hosted", "repo1." + "maven", "deb." + "debian.org", " /ro" + "ot/"]
    pattern = "|".join(word.replace(".", r"\.") for word in words)
    found = subprocess.run(["git", "grep", "-nIE", pattern], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stdout == ""
