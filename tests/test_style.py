"""The linters and the type checker, as tests: one command says whether the project is in order."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


USER = """
import floodmark
from floodmark import WatermarkedProducer, errors, read

version: str = floodmark.__version__
error: type[errors.FencedError] = floodmark.schemas.errors.FencedError
read()  # type: ignore[call-arg]
WatermarkedProducer()  # type: ignore[call-arg]
floodmark.nothing  # type: ignore[attr-defined]
"""
"""What users write against the one import root: each ignored line must be an error."""


def run(tmp_path, *command):
    environment = {**os.environ, "RUFF_CACHE_DIR": str(tmp_path), "MYPY_CACHE_DIR": str(tmp_path)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", [("check", "--output-format", "concise"), ("format", "--check")])
def test_ruff(tmp_path, command):
    done = run(tmp_path, str(Path(sysconfig.get_path("scripts"), "ruff")), *command, ".")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mypy_strict(tmp_path):
    """Checked as users see it: a package ``floodmark`` laid out from the folders."""
    package = tmp_path / "src" / "floodmark"
    package.mkdir(parents=True)
    for name in ("schemas/package/__init__.py", "schemas/package/__init__.pyi", "schemas", "producers", "spark_jobs"):
        (package / Path(name).name).symlink_to(ROOT / name)
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--namespace-packages", "--explicit-package-bases"]
    environment = {**os.environ, "MYPYPATH": str(tmp_path / "src"), "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "mypy", *options, "-p", "floodmark", "-m", "user"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
