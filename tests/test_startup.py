"""Start-up is a feature: asking for help, or importing the package, loads next to nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import simreduce
from simreduce.app.cli import _COMMANDS

HEAVY = ("numpy", "networkx", "simpy", "scipy", "numba", "rich", "tensorflow")

LOADED = """
import json, sys
{act}
found = sorted(m for m in sys.modules if "." not in m or m.startswith("simreduce"))
print("\\n" + json.dumps(found))
"""


def _modules_after(act: str) -> set[str]:
    """Top-level modules, and all of ours, that a fresh interpreter loads when it runs `act`."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(act=act)], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def _command(*arguments: str) -> str:
    return (
        f"sys.argv = ['simreduce', *{list(arguments)!r}]\n"
        "from simreduce.app.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code"
    )


@pytest.mark.parametrize(
    "act",
    [
        "import simreduce",
        "import simreduce.planners.layouts",
        _command("--help"),
        _command("--version"),
        _command("-h"),
    ],
    ids=["import", "import layouts", "--help", "--version", "-h"],
)
def test_start_up_loads_nothing_heavy(act):
    """Neither numpy nor networkx nor simpy nor anything else that takes long to load."""
    assert set() == _modules_after(act) & set(HEAVY)


def test_an_import_of_a_machine_loads_neither_searches_nor_reports(tmp_path):
    """A table of eight GPUs takes 0.8 s of CPU time, of which that would be as much again."""
    table = tmp_path / "topo.txt"
    names = [f"GPU{i}" for i in range(8)]
    rows = ("\t".join([a, *("X" if a == b else "NV18" for b in names)]) for a in names)
    table.write_text("\n".join(["\t".join(["", *names]), *rows]))
    loaded = _modules_after(_command("topo", "import", str(table), "--gpu", "H100"))

    assert not {"scipy", "simreduce.app.cli.run", "simreduce.report.schemas"} & loaded


def test_the_probe_sees_what_is_loaded():
    """The check above can fail: a command that simulates does load the heavy modules."""
    loaded = _modules_after(_command("bench", "switch:2", "-b", "1M"))

    assert {"numpy", "simpy", "simreduce.engine"} <= loaded
    assert set() == loaded & {"scipy", "rich", "tensorflow", "hypothesis", "pytest"}


def test_a_small_bench_loads_only_what_it_uses():
    """No graph is searched, nothing is compiled, trained or read from a scenario."""
    loaded = _modules_after(_command("bench", "switch:8", "--algo", "ring", "-b", "1M"))

    unused = {"networkx", "numba", "multiprocessing"}
    assert set() == loaded & (unused | {"simreduce.training", "simreduce.study.scenario"})


@pytest.mark.parametrize(
    ("command", "unused"),
    [
        (("topo", "list"), {"networkx", "scipy", "http"}),
        (("sweep", "switch:2", "--over", "size=1K,2K", "--dry-run"), {"networkx", "scipy", "http"}),
        (("run", "dgx-h100-gpt2-ddp", "--algo", "nccl", "--workers", "1"), {"scipy", "http"}),
        (("step", "step-dgx1p-resnet50", "--algo", "xring", "--workers", "1"), {"scipy"}),
    ],
    ids=["topo", "sweep", "run", "step"],
)
def test_a_command_loads_no_library_that_others_need(command, unused):
    """Fits, pictures and schemas are loaded by who fits, draws or lists them."""
    loaded = _modules_after(_command(*command))
    assert set() == loaded & (unused | {"simreduce.study.accuracy", "simreduce.report.schemas"})


def test_importing_the_package_loads_no_part_of_it():
    """Its names load their modules when they are first used."""
    assert {"simreduce"} == {
        m for m in _modules_after("import simreduce") if m.startswith("simreduce")
    }


@pytest.mark.parametrize("name", simreduce.__all__)
def test_every_public_name_resolves(name):
    """To a documented function, the same each time, listed with its home and for type checkers."""
    value = getattr(simreduce, name)

    assert callable(value)
    assert value.__doc__
    assert value is getattr(simreduce, name)
    assert name in simreduce._HOME


def test_the_public_names_are_those_that_have_a_home():
    """Sorted, each once."""
    assert sorted(simreduce._HOME.keys() - {"__version__"}) == simreduce.__all__


def test_an_unknown_name_is_an_attribute_error():
    """As in any module, so that `hasattr` and `from ... import` behave."""
    with pytest.raises(AttributeError, match="module 'simreduce' has no attribute 'simulat'"):
        _ = simreduce.simulat  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "command", [["-m", "simreduce"], ["-c", "from simreduce.app.cli import main; main()"]]
)
def test_the_version_is_printed(command):
    """`--version` names the program and the version of the package."""
    done = subprocess.run(
        [sys.executable, *command, "--version"], capture_output=True, text=True, check=True
    )

    assert f"simreduce, version {simreduce.__version__}\n" == done.stdout
    assert "" == done.stderr


def test_help_lists_every_command_without_loading_one():
    """The table of commands that `--help` shows is the table of commands that there are."""
    done = subprocess.run(
        [sys.executable, "-m", "simreduce", "--help"], capture_output=True, text=True, check=True
    )

    listed = [
        line.split()[0] for line in done.stdout.split("Commands:")[1].splitlines() if line.strip()
    ]
    assert list(_COMMANDS) == listed
