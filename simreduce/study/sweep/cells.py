"""A cell of a sweep.

It is a question small enough to send anywhere, with digests of all that its answer depends on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, get_args

from simreduce.engine.calibrate import load_calibration
from simreduce.engine.calibrate.files import to_toml
from simreduce.errors import InputError
from simreduce.files.textfiles import is_file, read_bytes
from simreduce.planners.algorithms.plugins import GROUP
from simreduce.study.scenario import beside
from simreduce.topology.clusters import is_cluster
from simreduce.topology.files import is_path, read_document
from simreduce.topology.generators import split_inline
from simreduce.topology.load import find
from simreduce.version import __version__

Kind = Literal["bench", "run", "step", "replicas", "jobs"]
BENCH: Final = "bench"
RUN: Final = "run"
STEP: Final = "step"
REPLICAS: Final = "replicas"
JOBS: Final = "jobs"
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of questions: one collective of one tensor, a workload's reduction, a training step,
updates of synchronous replicas, jobs beside each other or how many copies of them fit.
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One question.

    `document` holds JSON types only: for `bench` the keys of `BENCH_DOCUMENT`, else the tables of a
    scenario and what changes them. Files are looked for in `folder` first.

    `contents` has digests of the files that it names. `digest` covers whatever changes the answer:
    the document, these contents, the calibration's constants, and the sources of simreduce.
    """

    kind: Kind
    document: Mapping[str, Any]
    folder: str = ""
    contents: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    digest: str = ""

    @property
    def machine(self) -> tuple[str, str]:
        """The machine as text, with overrides: cells with equal ones share what is built of it."""
        table = self.table
        changed = [table.get(key) for key in ("topology_overrides", "link_factors")]
        return str(table.get("topology")), digest_of(changed)

    @property
    def table(self) -> Mapping[str, Any]:
        """The keys that name files."""
        return self.document if self.kind == BENCH else self.document["scenario"]

    def to_json(self) -> dict[str, Any]:
        """The cell as JSON types; `Cell(**...)` reads them."""
        return {name: getattr(self, name) for name in self.__slots__}


def make_cell(kind: Kind, document: Mapping[str, Any], folder: str = "") -> Cell:
    """The cell of a document, with its digests."""
    table = document if kind == BENCH else document["scenario"]
    found, version = contents(table, folder), code()
    digest = digest_of([kind, document, found, version])
    return Cell(kind, document, folder, found, version, digest)


_SHOWN = ("app/", "files/tables.py", "report/", "study/accuracy/", "study/capacity/",
          "study/sweep/", "testing/")  # fmt: skip
"""Parts of the package that show answers and change none; `_OURS` are exceptions in `sweep`."""
_OURS = tuple(f"study/sweep/{name}.py" for name in ("evaluate", "columns", "question", "job_keys"))


def digest_of(value: object) -> str:
    """32 hexadecimal digits for any JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def code() -> str:
    """The identity of the code that makes answers.

    It has the version of simreduce, a digest of the sources that make answers, and the plug-ins
    that add algorithms.
    """
    package = Path(str(files("simreduce")))
    found = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        name = path.relative_to(package).as_posix()
        ours = name in _OURS or not name.startswith(_SHOWN)
        if path.suffix in (".csv", ".py", ".toml") and ours and not name.startswith("_data"):
            found.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    plugins = sorted(
        f"{entry.value} {entry.dist.version if entry.dist else ''}"
        for entry in entry_points(group=GROUP)
    )
    return " ".join([f"{__version__}+{found.hexdigest()[:10]}", *plugins])


def contents(table: Mapping[str, Any], folder: str) -> dict[str, str]:
    """Digests of the files that a scenario or a bench document names, by key.

    What cannot be read is left out: evaluating says why.
    """
    found: dict[str, str] = {}
    path = Path(folder, "it")
    text = table.get("topology")
    if isinstance(text, str):
        found["topology"] = _machine(beside(path, text))
    calibration = table.get("calibration", "nominal")
    if isinstance(calibration, str):
        found["calibration"] = calibration_digest(beside(path, calibration))
    owners = {"": table} | {f"job[{i}].": job for i, job in enumerate(table.get("job") or ())}
    for (at, owner), key in product(owners.items(), _FILES):
        if isinstance(name := _named(owner, *key.split(".")), str):
            found[at + key] = _file(beside(path, name))
    return {key: value for key, value in found.items() if value}


_FILES = ("workload", "step.profile", "step.compute", "step.pipeline.schedule", "nccl.tuner")


def _named(table: object, *path: str) -> object:
    """The value at a path of tables; None if there is none."""
    for key in path:
        table = table.get(key) if isinstance(table, dict) else None
    return table


@lru_cache(1 << 14)
def _machine(text: str) -> str:
    """A digest of the files behind a machine's text: its own, what it extends, and its machine."""
    inline = None if find(text) else split_inline(text, "x")
    place = find(inline.name if inline else text)
    if place is None:
        return ""
    try:
        tables = read_document(*place).tables
    except InputError:
        return ""
    if not is_cluster(tables) or not isinstance(tables.get("machine"), str):
        return digest_of(tables)[:12]
    name = tables["machine"]
    near = place[0].parent / (name if is_path(name) else f"{name}.toml")
    near_file = is_file(str(near)) and near.resolve() != place[0].resolve()
    return digest_of([tables, _machine(str(near) if near_file else name)])[:12]


@lru_cache(1 << 10)
def calibration_digest(text: str) -> str:
    """A digest of the constants of a calibration; "" if it cannot be read."""
    try:
        return digest_of(to_toml(load_calibration(text)))[:12]
    except InputError:
        return ""


@lru_cache(1 << 10)
def _file(name: str) -> str:
    try:
        return hashlib.sha256(read_bytes(Path(name))).hexdigest()[:12]
    except (OSError, ValueError):
        return ""
