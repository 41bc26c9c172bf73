"""The layout of the project, as a law: what stands where, what may import what, and what must stay pure."""

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
import tomllib
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import floodmark.producers
import floodmark.schemas
import floodmark.spark_jobs
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("schemas", "producers", "spark_jobs")
# What stands in one of these folders, or below, is pure: no file, no network, no clock, no library but those named.
PURE = {
    "schemas": {"fastavro"},
    "producers/board": set(),
    "producers/strategies": {"typing_extensions"},
    "producers/event_times": {"typing_extensions"},
    "producers/trigger/plan": set(),
    "spark_jobs/lookahead": set(),
    "spark_jobs/progress": set(),
    "spark_jobs/queries": set(),
}
IMPURE_STDLIB = {"os", "io", "socket", "subprocess", "threading", "time", "pathlib", "logging", "tempfile", "shutil"}
IN_MEMORY = {("io", "codec.py"), ("io", "registered_values.py")}
RUNS_A_PROGRAM = {("subprocess", "program.py"), ("threading", "program.py")}  # in a check of its conformance
# Files with less than 40 lines of code, and why each stands alone.
SMALL = {
    "producers/clients/clock.py": "the one place that reads the clocks of the machine",
    "producers/clients/partitioners.py": "arithmetic of librdkafka, apart from all clients",
    "producers/embedded/guard.py": "the program of a process of its own, which must start quickly",
    "producers/event_times/option_values.py": "imported by the help of commands, which must be quick",
    "producers/examples/totals_consumer.py": "an example to run",
    "producers/lazy.py": "the public names of both packages above the contract",
    "schemas/stored_format.py": "the one check that all stored values pass",
    "spark_jobs/batch/handler_settings.py": "what the steps of a batch are told",
    "spark_jobs/start/start_options.py": "public values of `write`, apart from the code that uses them",
    "spark_jobs/demo/days_table.py": "all of the demo that knows Iceberg",
    "spark_jobs/formats/format.py": "the interface of all formats, which is public",
    "spark_jobs/internals/worker_daemon.py": "the program of Spark's workers, which must start quickly",
    "spark_jobs/progress/offsets.py": "Spark's form of offsets, in which they are stored",
}
# Classes with over 18 methods or 10 attributes, and why each is one.
LARGE = {
    "BatchHandler": "the steps of a batch: it hands each its collaborators",
    "Channel": "all that the sources of one client share",
    "Emitter": "the state of one source, from its first mark to its end",
    "History": "the last marks of one source, and what each says of its health",
    "Injector": "the loop of reading, deciding and committing: it hands each its collaborators",
    "InjectorGroup": "the same for partitions that come and go",
    "Job": "the methods of Spark's StreamingQuery, most of one line",
    "Observer": "counts and positions of topics, which its users read",
    "Progress": "the state of a job, which a snapshot stores as one",
    "Reader": "the state of a consumer, which a position stores as one",
    "SourcePool": "the calls of its users, most of one line",
    "TableSink": "what is staged, and when it is committed, under one lock",
    "WatermarkedProducer": "the calls of its users, as of confluent-kafka's Producer",
}
TOP_LEVEL = {
    "LICENSE",
    "README.md",
    "docker",
    "producers",
    "pyproject.toml",
    "schemas",
    "spark_jobs",
    "tests",
}


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


@pytest.mark.parametrize("folder", PURE)
def test_a_pure_folder_does_no_io_and_reads_no_clock(folder):
    for path in sources(folder):
        for name in imported(path):
            first = name.split(".")[0]
            if first != "floodmark":
                assert first in sys.stdlib_module_names | PURE[folder], f"{path} imports {name}"
                assert first not in IMPURE_STDLIB or (first, path.name) in IN_MEMORY | RUNS_A_PROGRAM, (
                    f"{path} imports {name}"
                )
        assert ".now(" not in path.read_text(encoding="utf-8"), f"{path} reads a clock"


@pytest.mark.parametrize("folder", PURE)
def test_a_pure_folder_imports_pure_folders_alone(folder):
    for path in sources(folder):
        for name in imported(path):
            if name.startswith("floodmark."):
                place = name.removeprefix("floodmark.").replace(".", "/")
                assert any(f"{place}/".startswith(f"{pure}/") for pure in PURE), f"{path} imports {name}"


def room(module):
    """Return the folder of a module, as imports name it: ``producers.readers`` of its module ``tail``."""
    parts = module.split(".")[1:]
    return ".".join(parts if (ROOT / Path(*parts)).is_dir() else parts[:-1])


@pytest.mark.parametrize("of", [room, str], ids=["rooms", "files"])
def test_imports_make_no_circles(of):
    """The house has floors: neither a room nor a file reaches itself over others.  An ``__init__`` only shows names."""
    graph = {}
    for path in (path for package in PACKAGES for path in sources(package) if path.name != "__init__.py"):
        own = of(".".join(("floodmark", *path.relative_to(ROOT).with_suffix("").parts)))
        names = {of(name) for name in imported(path) if name.startswith("floodmark.")}
        graph.setdefault(own, set()).update(names - {own})
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_every_room_is_packaged_and_explained():
    found = {".".join(("floodmark", *path.relative_to(ROOT).parent.parts)) for p in PACKAGES for path in sources(p)}
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    assert found == {*listed, "floodmark.schemas.package"} - {"floodmark"}, "schemas/package is floodmark itself"
    assert all(importlib.import_module(name).__doc__ for name in listed)


@pytest.mark.parametrize(
    ("library", "rooms"),
    [
        ("fastavro", {"schemas/codec.py", "schemas/registered_values.py"}),
        ("py4j", {"spark_jobs/internals/files.py", "spark_jobs/internals/jvm.py"}),
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


@pytest.mark.parametrize("package", ["schemas", "producers"])
def test_clocks_are_read_in_one_place(package):
    """A test moves a `Clock` by hand, and patches nothing; other modules may sleep."""
    for path in sources(package):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if "time" in imported(path) else ():
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "time":
                assert node.attr == "sleep" or path.name == "clock.py", f"{path} reads time.{node.attr}"


def test_the_edge_to_the_wire_knows_no_tracker():
    """What a record is does not depend on what a reader makes of it."""
    below = {"codec", "errors", "records"}
    rooms = {name.split(".")[2] for name in imported(ROOT / "schemas" / "classify.py") if name.startswith("floodmark.")}
    assert rooms <= below


@pytest.mark.parametrize("library", ["rich", "typer"])
def test_libraries_for_commands_are_let_into_commands_alone(library):
    commands = {Path("producers/cli"), Path("spark_jobs/demo")}
    found = {
        path.relative_to(ROOT).parent
        for package in PACKAGES
        for path in sources(package)
        if any(name.split(".")[0] == library for name in imported(path))
    }
    assert found <= commands


def test_the_internals_of_spark_are_touched_in_one_room():
    """Its objects in the JVM, the folders of its checkpoints, and what it keeps or says in its own way."""
    words = ("._jsq", "._jdf", "._jvm", "._jsc", "._gateway", '"offsets"', '"commits"', '"state"')
    words += ("watermarkDelayMs", "histogram_numeric", "setattr(DataStreamWriter")
    for path in sources("spark_jobs"):
        if path.parent.name != "internals":
            text = path.read_text(encoding="utf-8")
            assert not any(word in text for word in words), path


def test_the_product_builds_a_mark_in_one_place():
    """Beside the codec, which reads marks: a second builder would have rules of its own for numbers and counts."""
    found = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sources(package)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "WatermarkRecord"
    ]
    assert sorted(found) == ["producers/strategies/numbering.py", "schemas/codec.py"]


def test_texts_of_spark_are_read_in_one_room():
    """Other files on the side of Spark need no regular expression, but for texts of records and of settings."""
    others = {"spark_jobs/reading/rows.py", "spark_jobs/reading/security.py"}
    found = {str(path.relative_to(ROOT)) for path in sources("spark_jobs") if "re" in imported(path)}
    assert {name for name in found if not name.startswith("spark_jobs/internals/")} == others


def test_modules_hold_one_noun():
    """A module may be as long as its noun needs, up to 600 lines: a shorter limit splits a noun over several files."""
    for package in PACKAGES:
        for path in sources(package):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            assert lines <= 600, f"{path} has {lines} lines"


def test_no_file_name_occurs_twice():
    """A name says what its file holds, so that "where is X" has one answer."""
    names = Counter(path.name for package in PACKAGES for path in sources(package) if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def code_lines(path):
    """Count the lines of a file that are neither empty, nor comments, nor docstrings."""
    text = path.read_text(encoding="utf-8")
    documented = {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for number in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip(" #") and number not in documented and line.strip()[0] != "#")


def size(node):
    """Count the methods of a class, and the attributes that its methods set."""
    methods = sum(isinstance(one, ast.FunctionDef) for one in node.body)
    kept = {
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) and ast.unparse(one.value) == "self"
    }
    return methods, len(kept)


def test_a_class_with_over_18_methods_or_10_attributes_has_a_reason():
    """A larger class does more than one thing: it should have collaborators."""
    large = {
        node.name
        for package in PACKAGES
        for path in sources(package)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and (size(node)[0] > 18 or size(node)[1] > 10)
    }
    assert large == LARGE.keys()


def test_a_file_under_40_lines_of_code_has_a_reason():
    """A splinter costs its readers a jump: it belongs into the file of its noun."""
    small = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in sources(package)
        if path.name != "__init__.py" and code_lines(path) < 40
    }
    assert small == SMALL.keys()


@pytest.mark.parametrize("package", [floodmark.schemas, floodmark.producers, floodmark.spark_jobs])
def test_what_is_public_is_sorted_there_and_explained(package):
    for name in package.__all__:
        assert getattr(package, name).__doc__ or name.isupper(), f"{package.__name__}.{name} has no docstring"


@pytest.mark.parametrize("package", [floodmark.producers, floodmark.spark_jobs])
def test_public_names_are_imported_when_they_are_asked_for(package):
    """Each line of the stub, which type checkers read, names one; and no module hides a name."""
    stub = ast.parse(Path(package.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    shown = {alias.name: node.module for node in stub.body for alias in node.names}
    assert vars(package)["_PLACES"] == shown
    assert all(getattr(package, name) is getattr(importlib.import_module(place), name) for name, place in shown.items())
    assert package.__all__ == sorted(shown)
    assert set(shown) <= set(dir(package))
    assert {info.name for info in pkgutil.iter_modules(package.__path__)} & set(shown) == set()
    assert not hasattr(package, "no_such_name")


def modules():
    packages = (floodmark.schemas, floodmark.producers, floodmark.spark_jobs)
    return [info.name for p in packages for info in pkgutil.walk_packages(p.__path__, f"{p.__name__}.")]


SHARED_HALVES = {"_Confluent", "_Field", "_KafkaSink", "_Learning"}
"""Private bases that implement half of an interface, each for the classes of its own file."""


def test_no_class_outside_errors_is_built_in_floors():
    """Behaviour comes from what a class has; at most one class of the product, most often an interface, is above it."""
    for name in modules():
        module = importlib.import_module(name)
        for one in vars(module).values():
            if isinstance(one, type) and one.__module__ == name and not issubclass(one, BaseException):
                above = {base for base in one.__mro__[1:] if base.__module__.startswith("floodmark.")}
                shared = {base for base in above if base.__name__ in SHARED_HALVES and base.__module__ == name}
                assert len(above - shared) <= 1, f"{name}.{one.__name__} has {above}"


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_the_docstrings_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_nothing_names_a_registry_or_a_machine():
    words = ["pypi" + ".org", "python" + "hosted", "repo1." + "maven", "deb." + "debian.org", " /ro" + "ot/"]
    pattern = "|".join(word.replace(".", r"\.") for word in words)
    found = subprocess.run(["git", "grep", "-nIE", pattern], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stdout == ""
