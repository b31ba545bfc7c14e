"""Who may import whom, read from the source: imports go down only.

Rooms are the folders and modules directly under `simreduce`, parts those directly in a room.
`simreduce/__init__.py` stands apart: it names the public functions and imports nothing until one of
them is used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import networkx as nx
import pytest

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "simreduce"

ROOMS = (
    ("__main__",),
    ("app", "testing"),
    ("report",),
    ("study",),
    ("export",),
    ("training",),
    ("engine",),
    ("planners",),
    ("plan", "topology", "workload"),
    ("computing", "files"),
    ("dtypes", "units"),
    ("errors", "version"),
)
"""Top to bottom; the rooms of one rung know nothing of each other."""

PARTS = {
    "app": (("cli",), ("api",), ("answers", "serve"), ("look",)),
    "report": (("pages", "schemas"), ("",), ("trace", "pictures", "plots"), ("drawing",)),
    "study": (
        ("accuracy", "capacity"),
        ("sweep",),
        ("tune",),
        ("frameworks", "job_files"),
        ("advice",),
        ("ranking", "scenario_files"),
        ("scenario",),
    ),
    "training": (("",), ("variable_update", "cross_device", "executions")),
    "engine": (("setup",), ("calibrate",), ("",)),
    "planners": (
        ("strategy",),
        ("algorithms", "msccl", "nccl", "packing"),
        ("layouts",),
        ("synthesis",),
    ),
}
"""The parts of a room, top to bottom; "" stands for all that is not named."""

NEVER = {
    "planners.layouts": {"plan", "workload"},
    "planners.algorithms": {"topology", "workload"},
    "planners.packing": {"planners.layouts", "topology"},
    "planners.strategy": {"topology"},
    "planners.synthesis": {"topology"},
    "engine": {"planners", "workload"},
    "engine.calibrate": {"planners"},
    "export": {"topology"},
    "training.cross_device": {"engine", "topology"},
    "training.variable_update": {"engine", "topology"},
    "training.executions": {"engine", "plan", "topology"},
}
"""What a part may not know although it lies lower: planners see a layout and never a machine, only
the engine and what is above it know plans and machines, and the engine takes plans from wherever
they come.
"""

SOURCES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def _tree(module: str) -> ast.Module:
    return _parse(SOURCES[module])


@cache
def _nodes(module: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_tree(module)))


def _imports(module: str, node: ast.AST | None = None) -> Iterator[str]:
    """Every module that `module` imports, wherever the import stands: in functions, under
    TYPE_CHECKING.
    """
    for each in ast.walk(node) if node else _nodes(module):
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


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _part(module: str) -> str:
    """`planners.nccl`, or the room alone for what is not named in `PARTS`."""
    room, _, rest = module.partition(".")[2].partition(".")
    part = rest.split(".")[0]
    named = any(part in rung for rung in PARTS.get(room, ()))
    return f"{room}.{part}" if part and named else room


@cache
def _own(module: str) -> frozenset[str]:
    """Modules of the package that a module imports."""
    return frozenset(name for name in _imports(module) if name.split(".")[0] == "simreduce")


@cache
def _edges(unit: Callable[[str], str]) -> set[tuple[str, str]]:
    """(unit, unit that it imports), without those of and to the package's own list of names."""
    pairs = {(unit(module), unit(target)) for module in SOURCES for target in _own(module)}
    return {(user, used) for user, used in pairs if user and used and user != used}


RUNG_OF = {room: rung for rung, rooms in enumerate(ROOMS) for room in rooms}


def test_every_room_has_a_rung():
    """A new folder or module takes its place in the table above."""
    assert {_room(module) for module in SOURCES} - {""} == set(RUNG_OF)


def test_imports_go_down_only():
    """No room imports one of its own rung or of a rung above, not even for a type."""
    assert [] == [
        f"{user} imports {used}"
        for user, used in sorted(_edges(_room))
        if RUNG_OF[user] >= RUNG_OF[used]
    ]


@pytest.mark.parametrize("room", PARTS)
def test_imports_inside_a_room_go_down_only(room):
    """No part imports one of its own rung or of a rung above."""
    rung_of = {
        f"{room}.{part}".rstrip("."): rung
        for rung, parts in enumerate(PARTS[room])
        for part in parts
    }
    inside = {(user, used) for user, used in _edges(_part) if {user, used} <= set(rung_of)}

    assert inside
    assert [] == [f"{a} imports {b}" for a, b in sorted(inside) if rung_of[a] >= rung_of[b]]


def test_no_modules_import_each_other_in_a_circle():
    """Not for a type either: of any two modules one can be read without the other."""
    circles = nx.strongly_connected_components(nx.DiGraph(_edges(str)))

    assert [] == [sorted(circle) for circle in circles if len(circle) > 1]


def test_no_package_has_a_name_that_one_of_its_modules_bears():
    """Once the module is imported, Python puts it in the place of the name."""
    modules = {(name.rpartition(".")[0], name.rpartition(".")[2]) for name in SOURCES}
    hidden = []
    for package in {package for package, _ in modules if package in SOURCES}:
        for node in _tree(package).body:
            if isinstance(node, ast.ImportFrom):
                hidden += [
                    f"{package}.{alias.asname or alias.name}"
                    for alias in node.names
                    if (package, alias.asname or alias.name) in modules
                    and f"{node.module}.{alias.name}" not in SOURCES
                ]
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                hidden += [f"{package}.{node.name}"] if (package, node.name) in modules else []

    assert [] == hidden


def _under(unit: str, place: str) -> bool:
    return unit == place or unit.startswith(f"{place}.")


def test_no_part_knows_what_it_must_not_know():
    """The invariants that the order of the rungs does not give by itself."""
    assert [] == [
        f"{user} imports {used}"
        for user, used in sorted(_edges(_part))
        if any(_under(used, place) for place in NEVER.get(user, ()))
    ]


def test_only_the_engine_and_what_is_above_it_know_both_plans_and_machines():
    """Of the parts up to the engine's, the engine alone imports `plan` and `topology`."""
    both = {user for user, used in _edges(_part) if used == "plan"} & {
        user for user, used in _edges(_part) if used == "topology"
    }

    assert {"engine", "engine.calibrate", "engine.setup"} == {
        unit for unit in both if RUNG_OF[unit.split(".")[0]] >= RUNG_OF["engine"]
    }


@pytest.mark.parametrize(("upper", "lower"), list(pairwise(ROOMS)), ids="+".join)
def test_no_two_rungs_could_be_one(upper, lower):
    """The table is as short as its order allows: each rung uses the next."""
    assert any((user, used) in _edges(_room) for user in upper for used in lower)


def test_the_package_itself_imports_none_of_its_parts():
    """Except for type checkers: names load their modules when they are first used."""
    tree = ast.parse(SOURCES["simreduce"].read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]

    assert {"__future__", "importlib", "typing"} == set(_imports("simreduce", tree))


@cache
def _names(module: str) -> frozenset[str]:
    """Names and dotted names that a module reads: `print`, `sys.exit`, `np.random.seed`."""
    return frozenset(filter(None, map(_dotted, _nodes(module))))


def _dotted(node: ast.AST) -> str:
    """`np.random.seed` of its node; "" where something else than names stands in front."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        front = _dotted(node.value)
        return front and f"{front}.{node.attr}"
    return ""


ENGINE = [module for module in SOURCES if _part(module) == "engine"]
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


def _libraries(module: str) -> set[str]:
    """The first names of what a module imports."""
    return {name.split(".")[0] for name in _imports(module)}


def _offenders(modules: Iterable[str], found: Callable[[str], set[str]]) -> dict[str, set[str]]:
    """What each module has that it must not have."""
    return {module: bad for module in modules if (bad := found(module))}


def test_the_engine_reads_no_file_no_environment_and_no_clock_and_never_prints():
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

    assert len(ENGINE) > 20
    assert {} == _offenders(ENGINE, lambda module: _libraries(module) & OUTSIDE)
    assert {} == _offenders(
        ENGINE,
        lambda module: {
            name for name in _names(module) if name in calls or name.startswith("np.random.")
        },
    )


def test_only_the_command_line_prints_and_exits():
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

    libraries = {"click", "rich", "logging", "argparse"}
    below = [m for m in SOURCES if _part(m) not in ("__main__", "app.cli")]

    assert {} == _offenders(below, lambda module: {*(_names(module) & calls)})
    assert {} == _offenders(below, lambda module: _libraries(module) & libraries)


def test_one_reader_takes_the_json_of_others():
    """The rest read what simreduce itself wrote: a shipped file, a pipe to its own process, a text
    that it made a moment before.
    """
    own = {
        "app.cli", "app.serve.worker", "app.serve.workers",
        "study.sweep.evaluate", "study.sweep.question",
    }  # fmt: skip
    found = _offenders(
        SOURCES,
        lambda module: {
            name for name in _names(module) if re.fullmatch(r"json\.(loads?|JSONDecoder)", name)
        },
    )

    assert {f"simreduce.{module}" for module in (*own, "files.formats.syntax")} == set(found)
    assert {} == _offenders(SOURCES, lambda module: {*_imports(module)} & {"json.decoder"})
    assert not any("from json import" in path.read_text("utf-8") for path in SOURCES.values())


def test_randomness_is_seeded():
    """No module draws from a generator that nobody seeded, or from the process's own."""

    def unseeded(module: str) -> set[str]:
        calls = (node for node in _nodes(module) if isinstance(node, ast.Call))
        return {
            f"line {call.lineno}"
            for call in calls
            if getattr(call.func, "attr", getattr(call.func, "id", "")) == "default_rng"
            and not call.args
        }

    def others(module: str) -> set[str]:
        drawn = {name for name in _names(module) if re.fullmatch(r"np\.random\.\w+", name)}
        return drawn - {"np.random.default_rng"}

    assert {"simreduce.app.serve": {"secrets"}} == _offenders(  # its token
        SOURCES, lambda module: _libraries(module) & {"random", "secrets", "uuid"}
    )
    assert {} == _offenders(SOURCES, unseeded)
    assert {} == _offenders(SOURCES, others)


def _classes(path: Path) -> Iterator[str]:
    """The public classes that a file defines on its top level."""
    for node in _parse(path).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def test_no_two_public_classes_share_a_name():
    """Neither in the package nor in the harness: a name says which class it is without its module.
    A class for one module alone may begin with an underscore instead.
    """
    homes: dict[str, list[str]] = {}
    for folder in (PACKAGE, REPOSITORY / "validate" / "simreduce_validate"):
        for path in sorted(folder.rglob("*.py")):
            for name in _classes(path):
                homes.setdefault(name, []).append(str(path.relative_to(REPOSITORY)))

    assert len(homes) > 300
    assert [] == [f"{name} in {', '.join(found)}" for name, found in homes.items() if found[1:]]


def test_only_the_harness_may_import_tensorflow():
    """No file outside `validate` imports it, or anything that needs it."""
    packages = ("tensorflow", "keras", "horovod", "torch", "jax")
    texts = {
        path: path.read_text("utf-8")
        for folder in ("simreduce", "tests", "benchmarks")
        for path in (REPOSITORY / folder).rglob("*.py")
    }
    users = [
        str(path.relative_to(REPOSITORY))
        for path, text in texts.items()
        if re.search(rf"(import.*\b|from\s+)({'|'.join(packages)})\b", text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
        if name and name.split(".")[0] in packages
    ]

    assert texts
    assert [] == users
