"""The README is true: its example prints what it shows, its commands exist, its tables name what is there."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from floodmark import producers, schemas, spark_jobs
from floodmark.schemas import FloodmarkError, Verdict, errors
from floodmark.spark_jobs import ReadOptions, WriteOptions, read, write
from floodmark.spark_jobs.batch.report import Batch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("*/*.md"))]
PUBLIC = {name: getattr(package, name) for package in (schemas, producers, spark_jobs) for name in package.__all__}
JOBS = "\n## \n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "spark_jobs").glob("*.md")))


def blocks(language, page=README):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


@pytest.mark.spark
@pytest.mark.parametrize("name", ["README.md", "producers/README.md"])
def test_the_example_prints_what_the_readme_shows(name, tmp_path):
    page = ROOT.joinpath(name).read_text(encoding="utf-8")
    command = [sys.executable, "-c", blocks("python", page)[0]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == blocks("text", page)[0], done.stderr


def test_the_two_commands_are_there_and_ci_runs_the_second():
    demo, test = (block.strip() for block in blocks("sh"))
    assert demo.startswith("python3 -m venv .venv && ")
    assert demo.endswith("floodmark demo")
    assert test.startswith("python3 -m venv .venv && ")
    assert test.endswith("pytest")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    pattern = re.search(r"grep -m1 '(.*?)' README\.md", ci).group(1)
    assert re.search(pattern, README, re.MULTILINE).group(0) == test
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_every_error_a_user_can_meet_is_in_the_table():
    table = JOBS.split("\n## When something is wrong")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+Error)`", table))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FloodmarkError)]
    assert {kind.__name__ for kind in kinds if not kind.__subclasses__()} <= named <= {kind.__name__ for kind in kinds}


def test_every_count_is_explained():
    table = JOBS.split("\n## What is counted")[1].split("\n## ")[0]
    explained = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    counted = {
        "records",
        "marks",
        "late",
        "unreadable",
        "missing_event_time",
        "out_of_range",
        "tombstones",
        "unreadable_marks",
        "lost",
        "surplus",
    }
    assert counted <= set(Batch.__dataclass_fields__)
    verdicts = {verdict.value for verdict in Verdict}
    assert explained == counted | verdicts | {"sequence_gaps", "membership_conflicts"}


def first_cells(table):
    """Return the names in the first column of a table, which begins with a name itself."""
    rows = re.search(rf"^\| `{table}` \|.*?\n\n", JOBS, re.MULTILINE | re.DOTALL).group(0).splitlines()[2:]
    return {name for row in rows if row for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}


def test_the_tables_of_settings_name_all_of_them():
    own = {"spark", "result"}
    assert first_cells("read") == set(inspect.signature(read).parameters) - own
    assert first_cells("write") | {"writer"} == set(inspect.signature(write).parameters) - own
    assert first_cells("ReadOptions") == {field.name for field in fields(ReadOptions)}
    assert first_cells("WriteOptions") == {field.name for field in fields(WriteOptions)}


def test_every_public_name_of_spark_jobs_is_explained():
    for name in spark_jobs.__all__:
        assert re.search(rf"\b{name}\b", JOBS + README), name


def anchors(page):
    """Return what a heading is called in a link."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_with_more_than_three_sections_begins_with_its_contents(page):
    text = page.read_text(encoding="utf-8")
    listed = re.findall(r"^ *- \[.*?\]\(#(.*?)\)$", text, re.MULTILINE)
    assert set(listed) <= anchors(page)
    titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
    for title in titles if len(titles) > 3 else []:  # a shorter page fits a screen or two
        assert f"- [{title}](#" in text, f"{title} is not in the table of contents"


def snippets():
    for page in PAGES:
        found = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        for number, code in enumerate(found, 1):
            yield pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")


@pytest.mark.parametrize("code", list(snippets()))
def test_a_snippet_is_python_and_names_what_there_is(code):
    """Those that are whole are run, by the tests of what they show; this holds for fragments, too."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PUBLIC:
            known = inspect.signature(PUBLIC[node.func.id]).parameters
            assert {keyword.arg for keyword in node.keywords} <= set(known), ast.unparse(node)


def imports(code):
    """Return the names that a snippet imports, each with its module."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.name, node.module if isinstance(node, ast.ImportFrom) else alias.name


@pytest.mark.parametrize("code", [code for code in snippets() if dict(imports(code.values[0]))])
def test_a_snippet_with_imports_imports_all_that_it_uses_of_the_standard_library(code):
    found = {pair for other in snippets() for pair in imports(other.values[0])}
    standard = {name for name, module in found if module.split(".")[0] in sys.stdlib_module_names}
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    used = {node.id for node in names} - {node.id for node in names if isinstance(node.ctx, ast.Store)}
    assert used & standard <= dict(imports(code)).keys()


def test_the_requirements_name_tests_that_exist():
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8").split("\n## Requirements\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in re.findall(r"^\| [A-F]\d+ \|.*$", text, re.MULTILINE)]
    ids = [row[0] for row in rows] + re.findall(r"\(([A-F]\d+)\)", text.split("Not built:")[1])
    sizes = {"A": 10, "B": 11, "C": 13, "D": 5, "E": 8, "F": 7}
    assert sorted(ids) == sorted(f"{part}{n}" for part, size in sizes.items() for n in range(1, size + 1))
    for name, what, tests in rows:
        assert len(what.split()) <= 8, name
        for path, _, test in (found.partition("::") for found in re.findall(r"`(.*?)`", tests)):
            code = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert f"\ndef {test or 'test_'}" in code, (name, path, test)


def test_the_readme_is_a_shop_window():
    assert len(README.splitlines()) <= 150
