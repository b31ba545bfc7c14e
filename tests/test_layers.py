"""Who may import whom, read from the source: imports go down only.

Units are the folders and modules directly under `simreduce`. `simreduce/__init__.py` stands apart:
it names the public functions and imports nothing until one of them is used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "simreduce"

RUNGS = (
    ("__main__",),
    ("api", "cli", "testing"),
    ("answers", "serve"),
    ("pages", "schemas"),
    ("accuracy", "pictures", "report", "trace"),
    ("capacity",),
    ("sweep",),
    ("tune",),
    ("scenario",),
    ("export", "training"),
    ("setup",),
    ("calibrate", "cross_device", "variable_update"),
    ("engine", "strategy"),
    ("algorithms", "msccl", "nccl", "packing"),
    ("layouts",),
    ("executions", "plan", "published", "synthesis", "topology", "workload"),
    ("formats", "plots"),
    (
        "arrays",
        "compiling",
        "dtypes",
        "outputs",
        "shipped",
        "tables",
        "textfiles",
        "units",
        "workers",
    ),
    ("errors", "version"),
)
"""Top to bottom; the units of one rung know nothing of each other."""

NEVER = {
    "layouts": {"plan", "workload"},
    "algorithms": {"topology", "workload"},
    "packing": {"layouts", "topology"},
    "strategy": {"topology"},
    "engine": {"algorithms", "layouts", "packing", "workload"},
    "export": {"engine", "topology"},
    "calibrate": {"strategy"},
    "cross_device": {"engine", "topology"},
    "variable_update": {"engine", "topology"},
}
"""What a unit may not know although it lies lower: planners see a layout and never a machine, only
the engine and what is above it know plans and machines, and the engine takes plans from wherever
they come.
"""

SOURCES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def _tree(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text("utf-8"))


def _imports(module: str, node: ast.AST | None = None) -> Iterator[str]:
    """Every module that `module` imports, wherever the import stands: in functions, under
    TYPE_CHECKING.
    """
    for each in ast.walk(node or _tree(module)):
        if isinstance(each, ast.Import):
            yield from (alias.name for alias in each.names)
        elif isinstance(each, ast.ImportFrom):
            here = (
                module.split(".")
                if SOURCES[module].name == "__init__.py"
                else module.split(".")[:-1]
            )
            stem = here[: len(here) - each.level + 1] if each.level else []
            target = ".".join([*stem, *(each.module or "").split(".")]).strip(".")
            yield from (
                f"{target}.{alias.name}" if f"{target}.{alias.name}" in SOURCES else target
                for alias in each.names
            )


def _unit(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _edges() -> set[tuple[str, str]]:
    """(unit, unit that it imports), without those of and to the package's own list of names."""
    pairs = {
        (_unit(module), _unit(target))
        for module in SOURCES
        for target in _imports(module)
        if target.split(".")[0] == "simreduce"
    }
    return {(user, used) for user, used in pairs if user and used and user != used}


EDGES = _edges()
RUNG_OF = {unit: rung for rung, units in enumerate(RUNGS) for unit in units}


def test_every_unit_has_a_rung():
    """A new folder or module takes its place in the table above."""
    assert {_unit(module) for module in SOURCES} - {""} == set(RUNG_OF)


def test_imports_go_down_only():
    """No unit imports one of its own rung or of a rung above, not even for a type."""
    assert [] == [
        f"{user} imports {used}" for user, used in sorted(EDGES) if RUNG_OF[user] >= RUNG_OF[used]
    ]


def test_no_unit_knows_what_it_must_not_know():
    """The invariants that the order of the rungs does not give by itself."""
    assert [] == [
        f"{user} imports {used}" for user, used in sorted(EDGES) if used in NEVER.get(user, ())
    ]


def test_only_the_engine_and_what_is_above_it_know_both_plans_and_machines():
    """Of the rungs up to the engine's, the engine alone imports `plan` and `topology`."""
    both = {user for user, used in EDGES if used == "plan"} & {
        user for user, used in EDGES if used == "topology"
    }

    assert {"engine"} == {unit for unit in both if RUNG_OF[unit] >= RUNG_OF["engine"]}


@pytest.mark.parametrize(("upper", "lower"), list(pairwise(RUNGS)), ids="+".join)
def test_no_two_rungs_could_be_one(upper, lower):
    """The table is as short as its order allows: each rung uses the next."""
    assert any((user, used) in EDGES for user in upper for used in lower)


def test_the_package_itself_imports_none_of_its_parts():
    """Except for type checkers: names load their modules when they are first used."""
    tree = _tree("simreduce")
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]

    assert {"__future__", "importlib", "typing"} == set(_imports("simreduce", tree))


def _names(module: str) -> set[str]:
    """Names and dotted names that a module reads: `print`, `sys.exit`, `np.random.seed`."""
    tree = _tree(module)
    return {
        ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute))
    }


ENGINE = [module for module in SOURCES if _unit(module) == "engine"]
OUTSIDE = {
    "asyncio",
    "datetime",
    "getpass",
    "glob",
    "io",
    "locale",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "platform",
    "random",
    "secrets",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "tomllib",
    "urllib",
    "uuid",
    "warnings",
}


@pytest.mark.parametrize("module", ENGINE)
def test_the_engine_reads_no_file_no_environment_and_no_clock_and_never_prints(module):
    """None of its modules imports or calls anything that could."""
    calls = {
        "print",
        "open",
        "input",
        "exec",
        "eval",
        "__import__",
        "breakpoint",
        "np.load",
        "np.save",
        "np.random",
    }

    assert set() == {name.split(".")[0] for name in _imports(module)} & OUTSIDE
    assert set() == _names(module) & calls
    assert not any(name.startswith("np.random.") for name in _names(module))


@pytest.mark.parametrize("module", [m for m in SOURCES if _unit(m) not in ("__main__", "cli")])
def test_only_the_command_line_prints_and_exits(module):
    """Outside `cli` nothing prints, exits, reads the arguments or knows the library that does."""
    calls = {
        "print",
        "exit",
        "quit",
        "SystemExit",
        "sys.exit",
        "os._exit",
        "sys.argv",
        "sys.stdout",
        "sys.stderr",
    }

    assert set() == _names(module) & calls
    assert set() == {name.split(".")[0] for name in _imports(module)} & {
        "click",
        "rich",
        "logging",
        "argparse",
    }


@pytest.mark.parametrize("module", SOURCES)
def test_randomness_is_seeded(module):
    """No module draws from a generator that nobody seeded, or from the process's own."""
    calls = [node for node in ast.walk(_tree(module)) if isinstance(node, ast.Call)]

    drawn = {name.split(".")[0] for name in _imports(module)} & {"random", "secrets", "uuid"}
    assert drawn == ({"secrets"} if module == "simreduce.serve.server" else set())  # its token
    assert all(call.args for call in calls if ast.unparse(call.func).endswith("default_rng"))
    assert {"np.random.default_rng"} >= {
        name for name in _names(module) if re.fullmatch(r"np\.random\.\w+", name)
    }


def test_only_the_harness_may_import_tensorflow():
    """No file outside `validate` imports it, or anything that needs it."""
    files = [
        p
        for folder in ("simreduce", "tests", "benchmarks")
        for p in (REPOSITORY / folder).rglob("*.py")
    ]
    users = [
        str(path.relative_to(REPOSITORY))
        for path in files
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
        if name and name.split(".")[0] in ("tensorflow", "keras", "horovod", "torch", "jax")
    ]

    assert files
    assert [] == users


def test_every_family_and_planner_is_one_file_under_100_lines():
    """All of `algorithms` but its registry and what a family is."""
    shared = {"simreduce.algorithms", "simreduce.algorithms.family"}
    lines = {
        module: len(path.read_text("utf-8").splitlines())
        for module, path in SOURCES.items()
        if module.startswith("simreduce.algorithms") and module not in shared
    }

    assert {} == {module: count for module, count in lines.items() if count >= 100}
    assert len(lines) > 30
