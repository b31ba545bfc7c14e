"""Many questions that differ in a few keys: planned, computed anywhere, and kept in a database.

A cell of a sweep.

It is a question small enough to send anywhere, with digests of all that its answer depends on.

Each figure of a cell is declared once: its name, kind, unit and meaning. Columns of databases, keys
of documents, and headings of tables and plots follow from `COLUMNS`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from importlib.metadata import entry_points
from importlib.resources import files
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, get_args

from simreduce.engine.calibrate import load_calibration, to_toml
from simreduce.errors import InputError, cut
from simreduce.files import is_file, read_bytes
from simreduce.files.formats.documents import (
    BYTES,
    BYTES_PER_SECOND,
    COUNT,
    PER_SECOND,
    RATIO,
    SECONDS,
    TEXT,
    Key,
    KeyKind,
    Record,
    one_of,
)
from simreduce.files.tables import Column, percent
from simreduce.planners.algorithms.planner import GROUP
from simreduce.study.scenario_files import beside
from simreduce.topology.generators.inline import split_inline
from simreduce.topology.loader import find, is_cluster
from simreduce.topology.machine_files import is_path, read_document
from simreduce.units import format_duration
from simreduce.version import __version__

Kind = Literal["bench", "run", "step", "replicas", "jobs"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BENCH, RUN, STEP, REPLICAS, JOBS = KINDS
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


def make_cell(kind: Kind, document: Mapping[str, Any], folder: str = "") -> Cell:
    """The cell of a document, with its digests."""
    found, version = contents(document if kind == BENCH else document["scenario"], folder), code()
    return Cell(kind, document, folder, found, version, digest_of([kind, document, found, version]))


_SHOWN = ("app/", "files/tables.py", "report/", "study/accuracy/", "study/capacity/",
          "study/sweep/", "testing/")  # fmt: skip
"""Parts of the package that show answers and change none; `_OURS` are exceptions in `sweep`."""
_OURS = tuple(f"study/sweep/{name}.py" for name in ("__init__", "evaluate", "question"))


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
    path = Path(folder, "it")
    named: dict[str, tuple[Callable[[str], str], object]] = {
        "topology": (_machine, table.get("topology")),
        "calibration": (calibration_digest, table.get("calibration", "nominal")),
    }
    owners = {"": table} | {f"job[{i}].": job for i, job in enumerate(table.get("job") or ())}
    named |= {
        at + key: (_file, _named(owner, *key.split(".")))
        for (at, owner), key in product(owners.items(), _FILES)
    }
    found = {
        key: digest(beside(path, text))
        for key, (digest, text) in named.items()
        if isinstance(text, str)
    }
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


State = Literal["done", "refused", "too_large", "stuck", "killed", "failed"]
"""States of rows, which `evaluate` derives from outcomes."""
STATES: tuple[State, ...] = get_args(State)
DONE, REFUSED, TOO_LARGE, STUCK, KILLED, FAILED = STATES
MESH: Final = "mesh"
"""The method of a step on a mesh."""
FACTORS = ("slowdown", "by_failure", "worst")
"""Figures that say how many times as long something takes, shown as `1.36x`."""
WAITING = "waiting"
"""The state of a cell without a row."""


def objective(kind: str) -> str:
    """The figure by which answers of a kind of question are compared: the less, the better."""
    return "slowdown" if kind == JOBS else "seconds"


def format_figure(name: str, value: float) -> str:
    """A figure in words: a time, or how many times as long something takes."""
    return f"{value:.2f}x" if name in FACTORS else format_duration(value)


_SCALES = {"s": ("(ms)", 1e-3), "B/s": ("(GB/s)", 1e9), "B": ("(B)", 1.0)}
_OWN_SCALES = {"memory": ("(GB)", 1e9), "taken": ("(s)", 1.0), "size": ("(B)", 1.0)}


def column_of(name: str, unit: str = "", spare: int = 0) -> Column:
    """The column of values in SI units: times in ms, rates in GB/s, shares in percent."""
    heading, factor = _OWN_SCALES.get(name) or _SCALES.get(unit, ("", 1.0))

    def show(value: object) -> str:
        if isinstance(value, str):
            return cut(value)
        if name in FACTORS and isinstance(value, int | float):
            return format_figure(name, value)
        if (isinstance(value, int) and factor == 1.0) or not isinstance(value, int | float):
            return str(value)
        if unit == "1":
            return f"{value:.1%}"
        return f"{value / factor:.4g}" if heading else f"{value:.6g}"

    return Column(name, heading, spare=spare, show=show, missing="", on="text")


def _figure(
    name: str, kind: KeyKind, about: str, get: str = "", *, shown: int | None = None,
    page: Column | None = None, null_as: str = "",
) -> Key:  # fmt: skip
    """A figure of the answers that have the attribute at the path `get`, by default its name.

    Tables on terminals have those that are `shown`, which is how soon a narrow one does without;
    tables of pages those with a column for a `page`.
    """
    text = [] if shown is None else [column_of(name, kind.unit, shown)]
    columns = *text, *([replace(page, missing="", on="html")] if page else [])
    return Key(name, kind, about, get, optional=True, column=columns, null_as=null_as)


COLUMNS = Record(
    "row",
    "A cell: the values of its keys, its figures, and where they come from.",
    Key("state", one_of(*STATES, WAITING),
        "`done`; or why there is no answer."),
    Key("reason", TEXT, 'Why there is no answer; "" for one that is done or waits.'),
    _figure("seconds", SECONDS,
            "The reduction, the training step, the mean of synchronous replicas' updates, or a"
            " repetition of the `job`, the mean.",
            shown=0, page=Column("time", "(ms)", show=lambda seconds: f"{seconds * 1e3:.3f}")),
    _figure("low", SECONDS,
            "The lower end of its 80 % interval; of a step of a mesh, of its kernels, of other"
            " steps, of their exposed communication.",
            shown=1),
    _figure("high", SECONDS, "The upper end of that interval.", shown=1, null_as="low"),
    _figure("chosen", TEXT, "The strategy with its chunk size; or the fastest mesh that fits, with"
            " what goes with it.", shown=4),
    _figure("method", TEXT, f"The method of the training step; `{MESH}` of meshes.", shown=1),
    _figure("runtime", TEXT, "The system that runs it."),
    _figure("ranks", COUNT, "GPUs that take part."),
    _figure("nbytes", BYTES, "All gradients, or the tensor."),
    _figure("algbw", BYTES_PER_SECOND, "Size over time."),
    _figure("busbw", BYTES_PER_SECOND, "Algbw times nccl-tests' factor.",
            shown=0),
    _figure("floor", SECONDS, "No algorithm takes less here, by links alone.",
            "best.floor_seconds"),
    _figure("bound", TEXT, "The busiest link or lane, or what a step waits for.", shown=5,
            page=Column("busiest", left=True)),
    _figure("bound_share", RATIO, "The part of the time in which that is busy.",
            page=Column("busy", show=percent(0))),
    _figure("link", TEXT, "The link or memory that a step's transfers need for the longest; of"
            " jobs, the one that the `job` shares with others."),
    _figure("compute", SECONDS, "The compute of a step.", "best.step.compute"),
    _figure("exposed", SECONDS, "Communication that no compute hides.", "best.step.exposed",
            shown=2),
    _figure("communication", SECONDS, "When at least one transfer is in flight.",
            "best.step.communication"),
    _figure("tensor", SECONDS, "Of a mesh: sums of tensor parallel ranks that compute waits for."),
    _figure("context", SECONDS, "Of a mesh: keys and values of other ranks, likewise."),
    _figure("expert", SECONDS, "Of a mesh: experts' all-to-all and sums, likewise."),
    _figure("pipeline", SECONDS, "Of a mesh: waits for other stages, the bubble and sends.",
            shown=2),
    _figure("data", SECONDS, "Of a mesh: gradients and parameters of replicas that compute waits"
            " for."),
    _figure("interference", SECONDS, "What kernels lose beside collectives."),
    _figure("bubble", RATIO, "Of a mesh: the bubble of its schedule, if all passes took as long and"
            " sends no time."),
    _figure("update", SECONDS, "The update of the variables.", "best.step.update"),
    _figure("launch", SECONDS, "The cost of starting a step.", "best.step.launch"),
    _figure("efficiency", RATIO, "Its rate over that if nothing moved and none waited; at most 1.",
            "best.efficiency", shown=0),
    _figure("samples_per_second", PER_SECOND, "Samples of all GPUs.", shown=3),
    _figure("tokens_per_second", PER_SECOND, "Of a mesh: tokens of all replicas.", shown=2),
    _figure("mfu", RATIO, "Model FLOPs over those of the GPUs' data sheet.", shown=2),
    _figure("gradients_per_second", PER_SECOND,
            "Of synchronous replicas: gradients that enter updates.", shown=0),
    _figure("dropped", RATIO,
            "Of synchronous replicas: gradients that no update has, as a part of all.", shown=0),
    _figure("job", TEXT, "Of jobs: the one that loses most.", shown=1,
            page=Column("job", left=True, keep="known")),
    _figure("slowdown", RATIO, "Of jobs: a repetition of the `job` over one alone on the whole"
            " machine, the mean; after the failure, if a part fails.",
            shown=0,
            page=Column("slowdown", keep="known", show=partial(format_figure, "slowdown"))),
    _figure("by_failure", RATIO, "Of jobs: a repetition of the `job` after the failure over one"
            " before.", shown=1),
    _figure("worst", RATIO, "Of jobs: the longest repetition of any over one of it alone.",
            shown=2),
    _figure("alone", SECONDS, "Of jobs: a repetition of the `job` alone on the machine.", shown=3),
    _figure("fairness", RATIO, "Of jobs: Jain's index of their speeds beside alone: 1 if all lose"
            " the same part.", shown=4),
    _figure("fit", COUNT, "Of jobs: how many copies of them fit, none slower than promised.",
            shown=0),
    _figure("limit", TEXT, "Of jobs: why no more do.", shown=1),
    _figure("memory", BYTES, "The memory that a GPU needs.", "best.step.memory.needed"),
    _figure("activations", BYTES, "The activations in that memory; 0 if they are not counted.",
            "best.step.memory.activations.nbytes"),
    _figure("activations_source", TEXT,
            "Whether they were `given`, were `estimated`, or are `not_counted`.",
            "best.step.memory.activations.source"),
    _figure("transfers", COUNT, "Copies between devices.", "best.transfers"),
    _figure("wrong", COUNT, "Elements whose sum is wrong.", "best.wrong"),
    _figure("machines", COUNT,
            "Equal machines of which one was simulated for all; 1: none."),
    _figure("warning", TEXT, "What the library is slow at here and what to set, or"
            " what makes its times less sure."),
    _figure("nominal", TEXT, "Which times rest on no measurement.", shown=5),
    _figure("constants", TEXT, "Whose constants the kernels of a GPU have that nobody measured."),
    _figure("topology", TEXT, "The name of the machine.", "setup.machine.name"),
    _figure("topology_digest", TEXT, "Names the machine's content.", "setup.machine.digest"),
)  # fmt: skip
"""The columns of what `evaluate` finds: `best` is the answer of bench, run or step, the others are
said of their kinds.
"""
NAMES = tuple(key.name for key in COLUMNS.keys)
"""Columns of a row, in order."""
UNITS = {key.name: key.kind.unit for key in COLUMNS.keys if key.kind.unit}
"""Units of the columns that have one; `1` is a share."""
_TYPES = {"string": "TEXT", "integer": "INTEGER", "number": "REAL"}
TYPES = {key.name: _TYPES[key.kind.schema.get("type", "string")] for key in COLUMNS.keys}
"""Types of the columns in a database."""


class Figures(SimpleNamespace):
    """The answer of a cell: an attribute for each of `NAMES`.

    Figures are in SI units and JSON types, equal to the bit wherever they are computed; None where
    a figure does not apply.

    `state` is `done`; or why there is no answer, which `reason` says: the machine or the file
    `refused` it, it is `too_large` for the memory, its plan is `stuck` for ever, it `killed` every
    worker that tried it, or simreduce `failed`.
    """

    def __init__(self, *, state: State, reason: str = "", **values: Any) -> None:
        if unknown := values.keys() - TYPES.keys():
            raise TypeError(f"no such figures: {', '.join(sorted(unknown))}")
        super().__init__(**(dict.fromkeys(NAMES) | values | {"state": state, "reason": reason}))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.values), ()

    @property
    def values(self) -> dict[str, Any]:
        """Every value by name."""
        return dict(vars(self))
