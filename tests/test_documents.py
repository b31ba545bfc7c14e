"""README.md and the pages of docs: every console block, Python block, picture and link is real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from simreduce.topology import load_topology
from simreduce.training.step import load_profile
from simreduce.workload import Layer, Model
from simreduce.workload.loader import load_workload
from tests.reference import COMMANDS, GENERATED

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
UPDATE = "SIMREDUCE_UPDATE_GOLDENS"


def _found(pattern: str) -> list[tuple[Path, tuple[str, ...]]]:
    """(page, groups) of every match in the pages."""
    return [
        (page, match.groups())
        for page in PAGES
        for match in re.finditer(pattern, page.read_text("utf-8"), re.DOTALL)
    ]


CONSOLE = _found(r"```console\n\$ ([^\n]*)\n(.*?)```")
PYTHON = [found for found in _found(r"```python\n(.*?)```") if found[0].name != "CONTRIBUTING.md"]
"""CONTRIBUTING.md shows parts of files; tests/planners/algorithms/test_contributing_example.py runs
them.
"""
LINKS = _found(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def _ids(found: list[tuple[Path, tuple[str, ...]]]) -> list[str]:
    return [f"{page.relative_to(ROOT)}: {groups[0][:80]}" for page, groups in found]


@cache
def _printed(command: str) -> str:
    """What a command of ours prints; several pipes may show parts of it."""
    real = command.replace("simreduce ", f"{sys.executable} -m simreduce ", 1)
    real = real.replace(
        "python -m simreduce_validate", f"{sys.executable} -m simreduce_validate", 1
    )
    return _shell(real)


def _shell(command: str, given: str = "") -> str:
    done = subprocess.run(  # noqa: S602 - the documents' own commands
        command,
        shell=True,
        cwd=ROOT,
        input=given,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


LONG = tuple(f"simreduce accuracy {chapter}" for chapter in ("congestion", "mesh", "throughput"))
"""Commands that fit or simulate many published times."""


def _marks(page: Path, command: str) -> list[pytest.MarkDecorator]:
    if page.name == "README.md":
        return []
    return [pytest.mark.thorough if command.startswith(LONG) else pytest.mark.slow]


@pytest.mark.parametrize(
    ("page", "block"),
    [pytest.param(page, block, marks=_marks(page, block[0])) for page, block in CONSOLE],
    ids=_ids(CONSOLE),
)
def test_console_blocks_show_real_output(page, block):
    """`SIMREDUCE_UPDATE_GOLDENS=1 pytest tests/test_documents.py` rewrites what is shown."""
    command, expected = block
    ours, pipe, rest = command.partition(" | ")
    shown = _printed(ours)
    if pipe:
        shown = _shell(rest, shown)
    if os.environ.get(UPDATE):
        text = page.read_text("utf-8")
        page.write_text(text.replace(f"$ {command}\n{expected}```", f"$ {command}\n{shown}```"))

    assert expected == shown


PARTS = _found(r"(?<=<!-- generated: )([^\n>]*) -->\n(.*?)<!-- end -->")


@pytest.mark.parametrize(("page", "part"), PARTS, ids=_ids(PARTS))
def test_generated_parts_are_what_the_code_says(page, part):
    """`SIMREDUCE_UPDATE_GOLDENS=1` rewrites them. So they are read where no site is built."""
    words, shown = part
    name, *more = words.split()
    expected = f"\n{GENERATED[name](*more)}\n\n"
    if os.environ.get(UPDATE):
        text, head = page.read_text("utf-8"), f"<!-- generated: {words} -->\n"
        page.write_text(text.replace(f"{head}{shown}<!-- end -->", f"{head}{expected}<!-- end -->"))

    assert expected == shown


def test_every_command_is_in_the_reference():
    page = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    missing = [name for name in COMMANDS if f"<!-- generated: command {name} -->" not in page]

    assert len(COMMANDS) > 30
    assert [] == missing


@pytest.mark.parametrize("code", [block[0] for _, block in PYTHON], ids=_ids(PYTHON))
def test_python_blocks_run(code, tmp_path, monkeypatch):
    """They run as they stand, and their assertions hold."""
    monkeypatch.chdir(tmp_path)
    ready = compile(code, "block", "exec", dont_inherit=True)
    exec(ready, {"__name__": "__main__"})  # noqa: S102 - the documents' own


def test_the_picture_of_the_readme_is_drawn_by_topo_show(tmp_path):
    """`SIMREDUCE_UPDATE_GOLDENS=1` draws it anew."""
    place = ROOT / "docs" / "dgx1v.svg"
    file = place if os.environ.get(UPDATE) else tmp_path / "picture.svg"
    subprocess.run(
        [sys.executable, "-m", "simreduce", "topo", "show", "dgx1v", "--svg", file],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )

    assert file.read_text("utf-8") == place.read_text("utf-8")


def test_links_between_pages_lead_to_files():
    """Every relative link names a file of the repository."""
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page, (target,) in LINKS
        if "://" not in target and not (page.parent / target).exists()
    ]

    assert LINKS
    assert [] == missing


@pytest.mark.parametrize(("page", "most"), [("README.md", 200), ("ARCHITECTURE.md", 150)])
def test_pages_stay_short(page, most):
    """A stranger reads them in one go; lines of prose end at 100 columns."""
    text = (ROOT / page).read_text("utf-8")
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)

    assert len(text.splitlines()) <= most
    assert [] == [line for line in prose.splitlines() if len(line) > 100 and line[0] != "|"]


MACHINES = _found(
    r"```toml\n(?![^`]*(?:\[\[job|workload))((?:[^`]*\n)?(?:extends|\[nodes|nodes) ?[^`]*)```"
)


@pytest.mark.parametrize("text", [block[0] for _, block in MACHINES], ids=_ids(MACHINES))
def test_machine_files_of_the_pages_load(text, tmp_path):
    """Every machine and cluster that a page shows is a file that loads."""
    file = tmp_path / "shown.toml"
    file.write_text(text, "utf-8")

    assert load_topology(str(file)).devices


TABLES = _found(r"```csv\n(.*?)```")


@pytest.mark.parametrize("text", [block[0] for _, block in TABLES], ids=_ids(TABLES))
def test_csv_files_of_the_pages_load(text, tmp_path):
    """A gradient list, or a profile of the layers that it names."""
    file = tmp_path / "shown.csv"
    file.write_text(text, "utf-8")
    head, *rows = [line.split(",") for line in text.splitlines()]
    if head[0] == "layer":
        model = Model("m", tuple(Layer(name, ()) for name, *_ in rows))
        assert min(load_profile(str(file), model).forward) > 0
    else:
        names = [gradient.name for gradient in load_workload(str(file)).gradients]
        assert names == [name for name, *_ in rows]


def test_contents_are_links_too():
    """Of pages that are read as files, a toctree is no list."""
    lists = [
        (page, line)
        for page, (body,) in _found(r"```{toctree}\n(.*?)```")
        for line in body.splitlines()
        if line and line[0] != ":"
    ]

    assert len(lists) > 20
    assert [] == [line for page, line in lists if f"]({line}.md)" not in page.read_text("utf-8")]
    assert [] == _found(r"({doc}|{literalinclude})")
