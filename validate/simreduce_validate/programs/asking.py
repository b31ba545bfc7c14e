"""A program's environment, and its script there that reads exported files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simreduce.errors import InputError
from simreduce_validate.programs.cases import ExportCase

SCRIPTS = Path(__file__).parents[2] / "programs"
_TABLE = SCRIPTS / "programs.toml"
_SECONDS = 900
"""A program that takes longer has stopped."""


@dataclass(frozen=True, slots=True)
class AskedProgram:
    """A row of `programs.toml`.

    `requirements` are pip's, pinned; those `alone` are installed without what they require.
    `system` has Debian's package of each command that must be there, `source` a repository and the
    tag that is asked. `targets` say what of each is compared. Programs that are asked alike share a
    `script`. `python` is the oldest minor version that runs it, if that is not ours.
    """

    name: str
    title: str
    targets: Mapping[str, str]
    requirements: Sequence[str] = ()
    alone: Sequence[str] = ()
    system: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    script: str = ""
    python: str = ""


def read_programs() -> tuple[dict[str, AskedProgram], dict[str, str]]:
    """The programs that can be asked, by name, and why the others cannot, by target."""
    found = tomllib.loads(_TABLE.read_text("utf-8"))
    unasked = found.pop("unasked")
    return {name: AskedProgram(name, **row) for name, row in found.items()}, unasked


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        words = " ".join(map(str, command))
        raise InputError(f"{words}: status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def prepare(program: AskedProgram, folder: Path, *, newest: bool = False) -> Path:
    """Make or renew a program's environment; returns its folder."""
    _install_system(program.system)
    place = folder / f"{program.name}{'-newest' * newest}"
    wanted: dict[str, Any] = {
        "requirements": [_unpinned(each) if newest else each for each in program.requirements],
        "alone": [_unpinned(each) if newest else each for each in program.alone],
        "source": {**program.source},
    }
    if newest and program.source:
        wanted["source"]["tag"] = _newest_tag(**program.source)
    stamp, text = place / "installed.json", json.dumps(wanted)
    if stamp.exists() and stamp.read_text("utf-8") == text and not newest:
        return place
    shutil.rmtree(place, ignore_errors=True)
    python = f"python{program.python}" if program.python else sys.executable
    _run(python, "-m", "venv", place)
    pip = (place / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check")
    if wanted["requirements"]:
        _run(*pip, *wanted["requirements"])
    if wanted["alone"]:
        _run(*pip, "--no-deps", *wanted["alone"])
    if source := wanted["source"]:
        branch = ("--depth", "1", "--branch", source["tag"])
        _run("git", "clone", "--quiet", *branch, source["git"], place / "source")
    stamp.write_text(text, "utf-8")
    return place


def _unpinned(requirement: str) -> str:
    return requirement.partition("==")[0]


def _newest_tag(git: str, tag: str) -> str:
    """The newest of the tags that are like the pinned one but for numbers."""
    like = re.compile(r"\d+".join(map(re.escape, re.split(r"\d+", tag))))
    tags = re.findall(r"refs/tags/(\S+)$", _run("git", "ls-remote", "--tags", git), re.MULTILINE)
    alike = filter(like.fullmatch, tags)
    return max(alike, key=lambda each: [*map(int, re.findall(r"\d+", each))], default=tag)


def _install_system(system: Mapping[str, str]) -> None:
    """Install Debian's packages of commands that are missing, as root; else InputError."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    lacking = [name for command, name in system.items() if not shutil.which(command, path=path)]
    if lacking and os.geteuid():
        raise InputError(f"install {' '.join(lacking)}: only root can")
    if lacking:
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *lacking)


def ask(program: AskedProgram, place: Path, case: ExportCase) -> tuple[str, Mapping[str, Any]]:
    """Let a program read a case's files; returns its version and what it understood."""
    made = case.make()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in made.files.items():
            Path(folder, name).write_text(text, "utf-8")
        Path(folder, "ask.json").write_text(json.dumps(made.given), "utf-8")
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "XLA", "NCCL"))},
            "PATH": f"{place.resolve() / 'bin'}:{os.environ['PATH']}:/usr/sbin",
            "PYTHONSAFEPATH": "1",
            "SOURCE": str(place.resolve() / "source"),
        }
        script = SCRIPTS / (program.script or f"{program.name}.py")
        done = subprocess.run(  # noqa: S603 - our own script
            [place.resolve() / "bin" / "python", script, folder],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS,
            check=False,
        )  # fmt: skip
    if done.returncode:
        raise InputError(f"status {done.returncode}: {done.stderr.strip()[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["version"], found["understood"]
