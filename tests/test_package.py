"""What users install: the wheel that is built from the sdist, used outside the checkout."""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import floodmark
import pytest

ROOT = Path(__file__).parent.parent
ADDRESS = "https://example.org/floodmark"
SHIPPED = (".ci", "LICENSE", "README.md", "pyproject.toml", "producers", "schemas", "spark_jobs")
FOLDERS = ("producers", "schemas", "spark_jobs")
ROOT_FILES = {"__init__.py", "__init__.pyi", "py.typed"}  # of schemas/package, which is the package floodmark itself
SUFFIXES = {".avsc", ".css", ".html", ".java", ".js", ".json", ".md", ".py", ".pyi", ".toml", ".typed", ".xml"}
WIRE_FORMAT = """
import json
from importlib.resources import files
from floodmark.schemas import decode_watermark, encode_watermark

place = files("floodmark.schemas")
for vector in json.loads(place.joinpath("vectors.json").read_text())["accepted"]:
    value = bytes.fromhex(vector["value"])
    assert encode_watermark(decode_watermark(bytes.fromhex(vector["key"]), value)) == value
print(place)
"""
ONE_ROOT = """
import sys

import floodmark

assert not any(name.startswith("floodmark.") for name in sys.modules), "they are imported when they are asked for"
sys.modules["pyspark"] = None  # as where Spark is not installed

assert floodmark.schemas.FloodmarkError is floodmark.FloodmarkError
from floodmark import FloodmarkError, WatermarkedProducer, errors
from floodmark import producers, schemas, spark_jobs

try:
    floodmark.read
except ImportError as error:
    assert "pip install '.[spark]' in the checkout" in str(error)
else:
    raise AssertionError("read needs Spark")
found = {}
exec("from floodmark import *", found)
assert "WatermarkedProducer" in found and "read" not in found
assert "WatermarkedProducer" in dir(floodmark)
del sys.modules["pyspark"]
for package in (producers, schemas, spark_jobs):
    for name in package.__all__:
        assert getattr(floodmark, name) is getattr(package, name), "no name hides one of another package"
        assert name in dir(floodmark)
assert not hasattr(floodmark, "no_such_name")
found = {}
exec("from floodmark import *", found)
assert {"read", "WatermarkedProducer"} < found.keys()
print(floodmark.__version__)
"""
EVERY_MODULE = """
import importlib, pkgutil
from floodmark import producers, schemas, spark_jobs

for package in (producers, schemas, spark_jobs):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)
"""


def run(*command, cwd):
    """Run a command that finds no package by way of the environment's variables."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=plain, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the sdist from a copy, as a release does, and the wheel from the sdist alone; give the folder of both."""
    place = tmp_path_factory.mktemp("package")
    copy = place / "copy"
    copy.mkdir()
    for name in SHIPPED:
        whole = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        whole(ROOT / name, copy / name)
    run(str(copy / ".ci" / "address"), ADDRESS, "v1", cwd=place)
    run(sys.executable, "-m", "build", "--outdir", str(place / "dist"), str(copy), cwd=place)
    return place / "dist"


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """Install the wheel in an environment of its own, where the dependencies are those of this one."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place / "venv")
    python = place / "venv" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--quiet", str(wheel), cwd=place)
    (packages,) = place.glob("venv/lib/python*/site-packages")
    packages.joinpath("dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    return python


def test_wheel_and_sdist_hold_every_file_of_the_library(built):
    here = {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts
    }
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    in_wheel = {name.removeprefix("floodmark/") for name in zipfile.ZipFile(wheel).namelist()}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    roots = {f"schemas/package/{name}" for name in ROOT_FILES}
    assert (here - roots) | ROOT_FILES <= in_wheel
    assert here | roots <= in_sdist


def test_the_wheel_from_the_sdist_holds_what_the_tests_import(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            first, *folders = name.split("/")
            if first == "floodmark":
                package = getattr(floodmark, folders[0]) if folders[0] in FOLDERS else floodmark
                place = Path(package.__file__).parent.joinpath(*folders[folders[0] in FOLDERS :])
                assert archive.read(name) == place.read_bytes(), name


def test_a_package_index_can_show_it_and_all_links_lead_to_the_project(built):
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir()), cwd=built)
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    page = metadata.get_payload()
    links = re.findall(rf"\]\({ADDRESS}/(blob|raw)/v1/([^)#]+)", page)
    assert len(links) == page.count("](")
    assert {"blob", "raw"} == {kind for kind, _ in links}
    assert all((ROOT / path).is_file() for _, path in links)
    assert f"Homepage, {ADDRESS}" in metadata.get_all("Project-URL")


@pytest.mark.parametrize(
    ("schema", "files"), [("workflows", "workflows/*.yml"), ("issue-forms", "ISSUE_TEMPLATE/*.yml")]
)
def test_workflows_and_issue_forms_keep_their_schemas(schema, files, tmp_path):
    """Schemas alone: no actionlint can be installed here, and no workflow runs here."""
    found = [str(path) for path in ROOT.joinpath(".github").glob(files)]
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.github-{schema}", *found, cwd=tmp_path)


def test_the_wheel_holds_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    found = {"/".join(Path(name).parts[:2]) for name in zipfile.ZipFile(wheel).namelist()}
    expected = {f"floodmark/{name}" for name in (*FOLDERS, *ROOT_FILES)}
    assert {name for name in found if ".dist-info" not in name} == expected


def test_it_reads_and_writes_the_wire_format(installed, tmp_path):
    place = run(str(installed), "-c", WIRE_FORMAT, cwd=tmp_path)
    assert Path(place.strip()).is_relative_to(installed.parent.parent), "the installed one was used"


def test_each_of_its_modules_can_be_imported(installed, tmp_path):
    run(str(installed), "-W", "error", "-c", EVERY_MODULE, cwd=tmp_path)


def test_its_root_shows_the_names_of_all_packages_when_they_are_asked_for(installed, tmp_path):
    shown = run(str(installed), "-W", "error", "-c", ONE_ROOT, cwd=tmp_path)
    (wheel,) = installed.parent.parent.glob("lib/python*/site-packages/floodmark-*.dist-info")
    assert wheel.name == f"floodmark-{shown.strip()}.dist-info"


def test_zipped_with_its_folders_it_is_what_spark_ships(installed, tmp_path):
    """As the page on clusters says; a wheel has no entries for folders, which Python 3.11 looks for."""
    (package,) = installed.parent.parent.glob("lib/python*/site-packages/floodmark")
    run(sys.executable, "-m", "zipfile", "-c", "floodmark.zip", str(package), cwd=tmp_path)
    code = f"import sys; sys.path.insert(0, sys.argv[1])\n{EVERY_MODULE}\nprint(schemas.__file__)"
    place = run(sys.executable, "-c", code, str(tmp_path / "floodmark.zip"), cwd=tmp_path).strip()
    assert place.startswith(str(tmp_path / "floodmark.zip"))


def test_its_command_runs_and_knows_the_demo(installed, tmp_path):
    shown = run(str(installed.parent / "floodmark"), "--help", cwd=tmp_path)
    assert "inject" in shown
    assert "demo" in shown
