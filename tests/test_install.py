"""What users install works where they are: from a wheel, and from a source tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.thorough import some

pytestmark = pytest.mark.thorough

REPOSITORY = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation")


def _run(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def _required(names: Iterable[str]) -> set[str]:
    """Distributions that these requirements need, themselves included."""
    found: dict[str, Distribution] = {}
    waiting = [Requirement(name) for name in names]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if name in found or (wanted.marker and not wanted.marker.evaluate({"extra": ""})):
            continue
        found[name] = distribution(name)
        waiting += map(Requirement, found[name].requires or [])
    return {entry.parts[0] for each in found.values() for entry in each.files or []}


def _dependencies(folder: Path, *more: str) -> Path:
    """A folder with what simreduce says that it needs, without extras, and nothing but `more`."""
    folder.mkdir(parents=True)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    for name in _required([*project["dependencies"], *more]) - {"..", "__pycache__"}:
        for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
            if (entry := Path(place) / name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(entry)
    return folder


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """A copy of the source tree, without what git ignores."""
    copy = tmp_path_factory.mktemp("source") / "tree"
    ignored = [line.strip("/") for line in (REPOSITORY / ".gitignore").read_text("utf-8").split()]
    shutil.copytree(REPOSITORY, copy, ignore=shutil.ignore_patterns(".git", *ignored))
    return copy


def _environment(folder: Path, dependencies: Path) -> Path:
    """The interpreter of a new environment that sees the dependencies."""
    _run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    site = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    (Path(site.strip()) / "dependencies.pth").write_text(f"{dependencies}\n", "utf-8")
    return python


@pytest.fixture(scope="session")
def wheel(source, tmp_path_factory):
    """The wheel, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(*PIP, "wheel", *OFFLINE, "--wheel-dir", folder, source, cwd=folder)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="session", params=["wheel", "editable"])
def installed(request, source, tmp_path_factory):
    """(interpreter that has simreduce, folder that its code must come from)."""
    folder = tmp_path_factory.mktemp(request.param) / "environment"
    builder = ("hatchling",) if request.param == "editable" else ()
    python = _environment(folder, _dependencies(folder.with_name("dependencies"), *builder))
    what = (
        (request.getfixturevalue("wheel"),) if request.param == "wheel" else ("--editable", source)
    )
    _run(*PIP, "--python", python, "install", *OFFLINE, *what, cwd=folder)
    return python, folder if request.param == "wheel" else source


@pytest.fixture
def elsewhere(tmp_path):
    """A folder that has nothing to do with simreduce."""
    return tmp_path


def test_the_code_that_runs_is_the_installed_one(installed, elsewhere):
    """Both packages come from the environment, or from the source tree, and nowhere else."""
    python, home = installed

    script = (
        "import simreduce, simreduce_validate as v; "
        "print(simreduce.__file__, v.__file__, sep='\\n')"
    )
    for file in _run(python, "-c", script, cwd=elsewhere).splitlines():
        assert Path(file).is_relative_to(home)


def test_shipped_machines_and_scenarios_are_found(installed, elsewhere):
    """Those of the source tree, which can be shown from any folder."""
    command = installed[0].parent / "simreduce"

    listed = json.loads(_run(command, "topo", "list", "--json", cwd=elsewhere))["topologies"]
    assert sorted(p.stem for p in (REPOSITORY / "topologies").glob("*.toml")) == [
        m["name"] for m in listed
    ]
    for machine in some(listed, 8):
        assert machine["title"] in _run(command, "topo", "show", machine["name"], cwd=elsewhere)

    script = (
        "from simreduce.files import data_dir; "
        "print(*sorted(p.stem for p in data_dir('scenarios').glob('*.toml')))"
    )
    scenarios = _run(installed[0], "-c", script, cwd=elsewhere).split()
    assert sorted(p.stem for p in (REPOSITORY / "scenarios").glob("*.toml")) == scenarios


def test_a_shipped_scenario_runs(installed, elsewhere):
    """The installed command ranks it, with the shipped machine, workload and calibration."""
    command = installed[0].parent / "simreduce"

    document = json.loads(_run(command, "run", "dgx1p-step-of-five", "--json", cwd=elsewhere))

    assert "hierarchical_copy+packs=8" == document["recommended"]
    assert ("dgx1p", "resnet50", "dgx1p-tf2018") == (
        document["topology"],
        document["workload"],
        document["calibration"],
    )
    assert [0, 0, 0, 0] == [candidate["wrong"] for candidate in document["candidates"]]


SCENARIOS = sorted((REPOSITORY / "scenarios").glob("*.toml"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda file: file.stem)
@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_the_wheel_alone_answers_every_shipped_scenario(installed, elsewhere, scenario):
    """As the source tree does, to the letter."""
    keys = tomllib.loads(scenario.read_text("utf-8"))
    command = "step" if keys.keys() & {"step", "replicas"} else "run"
    shown = _run(installed[0].parent / "simreduce", command, scenario.stem, cwd=elsewhere)

    assert scenario.with_suffix(".out").read_text("utf-8") == shown


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("report", "report dgx1v-resnet50 -o a.html"),
        ("png", "topo show full:2 --png a.png"),
        ("parquet", "table a.db --parquet a.parquet"),
        ("cluster", "sweep full:2 --over size=1M --db a.db --cluster slurm"),
        ("chakra", "replay job.0.et --topology full:2"),
        ("serve", "serve"),
        ("tensorflow", "validate full:2"),
        ("pytorch", "model torch --framework pytorch"),
    ],
)
@pytest.mark.parametrize("installed", ["wheel"], indirect=True)
def test_what_an_extra_would_do_names_it_in_one_sentence(installed, elsewhere, extra, words):
    """And how it is installed, with exit status 2."""
    command = installed[0].parent / "simreduce"
    (elsewhere / "job.0.et").write_bytes(b"\x02\x0a\x00")
    _run(
        command,
        *["sweep", "full:2", "--over", "size=1M", "--db", "a.db", "--workers", "1"],
        cwd=elsewhere,
    )
    done = subprocess.run(
        [command, *words.split()], cwd=elsewhere, capture_output=True, text=True, check=False
    )
    (line,) = done.stderr.splitlines()

    assert 2 == done.returncode
    assert line.startswith("simreduce: ")
    assert f"pip install 'simreduce[{extra}]'" in line


def test_type_checkers_are_told_that_there_are_types(installed, elsewhere):
    """`py.typed` is beside both packages."""
    script = (
        "from importlib.resources import files\n"
        "for name in ('simreduce', 'simreduce_validate'):\n"
        "    print(files(name).joinpath('py.typed').is_file())"
    )

    assert "True\nTrue\n" == _run(installed[0], "-c", script, cwd=elsewhere)


def test_the_installation_says_what_it_is(installed, elsewhere):
    """`simreduce --version` is the version of the distribution."""
    script = "import importlib.metadata as m; print('simreduce, version', m.version('simreduce'))"

    assert _run(installed[0], "-c", script, cwd=elsewhere) == _run(
        installed[0].parent / "simreduce", "--version", cwd=elsewhere
    )


def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(wheel):
    """Every file of the package, both kinds of data, the harness and the metadata; no test, no
    cache.
    """
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "simreduce").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    data = {
        f"simreduce/_data/{path.relative_to(REPOSITORY)}"
        for kind in ("topologies", "scenarios")
        for path in (REPOSITORY / kind).iterdir()
    }
    rest = {name.split("/")[0].split("-")[0] for name in names - package - data}

    assert package | data <= names
    assert {"simreduce", "simreduce_validate"} == rest
    assert not [name for name in names - package - data if name.startswith("simreduce/")]
