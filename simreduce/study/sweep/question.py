"""The question of a sweep: a scenario, or one collective on a machine, with keys set one by one.

The text of a machine with other settings: more nodes, another fabric, another NIC.

Keys of one job or traffic by its name: `job.NAME.KEY` and `traffic.NAME.KEY`.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from simreduce import dtypes, units
from simreduce.computing import once
from simreduce.engine import RUNTIMES
from simreduce.engine.calibrate import load_calibration
from simreduce.engine.setup import BY_STRATEGY
from simreduce.errors import InputError, did_you_mean, near_or_all, quote
from simreduce.export import check_mesh_target
from simreduce.files.formats import (
    ANYTHING,
    FLAG,
    LINE,
    PLACES,
    Field,
    Format,
    ListOf,
    MapOf,
    TableOf,
    ValueKind,
    choice,
    field_at,
    text_of,
    whole,
)
from simreduce.files.formats.syntax import Faults
from simreduce.files.published import ITERATIONS
from simreduce.planners.algorithms import NAMES
from simreduce.planners.nccl import SETTINGS
from simreduce.planners.strategy import ALL, parse_strategy
from simreduce.study.job_files import JOB, JOBS as JOBS_FILE, TRAFFIC
from simreduce.study.scenario import SCENARIO
from simreduce.study.scenario_files import beside, has_mesh, is_scenario, read_scenario_file
from simreduce.study.sweep import BENCH, JOBS, REPLICAS, RUN, STEP, Cell, Kind, make_cell
from simreduce.topology import load_machine, load_topology
from simreduce.topology.elements import networks
from simreduce.topology.generators import (
    FABRIC_KEYS,
    FABRICS,
    GENERATORS,
    SETTINGS as CLUSTER_SETTINGS,
)
from simreduce.topology.generators.inline import split_inline
from simreduce.topology.loader import CLASSES, NONE, find, is_cluster
from simreduce.topology.machine_files import override_keys, read_document
from simreduce.training import STEP as STEP_TABLE, load_model
from simreduce.training.mesh import read_mesh
from simreduce.training.mesh.mesh_table import (
    AUTO,
    MESH,
    MESH as MESH_TABLE,
    PIPELINE as PIPELINE_TABLE,
)
from simreduce.training.replicas import REPLICAS as REPLICAS_TABLE
from simreduce.workload import MOST_BYTES

NETWORK = tuple(key for key in (*CLUSTER_SETTINGS, *FABRIC_KEYS) if key != "seed")
"""Settings of the network between machines. `seed` is also one of them, and is written
`topology.seed`: by itself it is that of the jitter.
"""
OF_SHAPES = ("bandwidth", "latency")
"""Settings of shapes such as `switch:8`."""
SHORT = ("machine", "nodes", *NETWORK, *OF_SHAPES)
"""Keys that need no `topology.` before them."""


def set_machine(text: str, settings: Mapping[str, str | int]) -> tuple[str, dict[str, str | int]]:
    """The text of a machine with these settings, and keys of its file that are overridden.

    One node has no network and none of its settings. InputError if the text cannot have the
    settings.
    """
    rest = {key: value for key, value in settings.items() if key not in ("machine", "nodes")}
    name, separator, nodes, own = _parts(text)
    if separator == "file":
        return text, dict(settings)
    if "machine" in settings:
        if separator == ":":
            raise InputError(f"machine: {quote(text)} is a shape without machines")
        name = str(settings["machine"])
        other = _parts(name)
        if other[1] not in ("", "file") or other[3]:
            raise InputError(f"machine: must name one machine, got {quote(name)}")
    if "nodes" in settings:
        nodes = str(settings["nodes"])
        if not nodes.isdecimal() or not int(nodes):
            raise InputError(f"nodes: must be a whole number of at least 1, got {quote(nodes)}")
    if separator == ":":
        own |= {key: str(value) for key, value in rest.items()}
        return _text(f"{name}:{nodes}", own), {}
    network = (*NETWORK, "seed")
    own |= {key: str(value) for key, value in rest.items() if key in network}
    if "fabric" in rest:  # the settings of another fabric do not suit it
        own = {k: v for k, v in own.items() if k not in FABRIC_KEYS or k in rest}
    overrides = {key: value for key, value in rest.items() if key not in network}
    if nodes == "" or ("nodes" in settings and nodes == "1"):
        return name, overrides
    return _text(f"{name}x{nodes}", own), overrides


def is_single(text: str) -> bool:
    """Whether a text names one machine, which a network may join with others of its kind."""
    return _parts(text)[1] == ""


def _parts(text: str) -> tuple[str, str, str, dict[str, str]]:
    """Return name, separator, number and settings.

    `dgx1v` has no separator, and the file of a cluster has "file".
    """
    if (place := find(text)) is not None:
        return text, "file" if is_cluster(read_document(*place).tables) else "", "", {}
    for separator in ":x":
        inline = split_inline(text, separator)
        if inline is not None and (separator == "x" or inline.name in GENERATORS):
            return inline.name, separator, inline.size, dict(inline.settings)
    return text, "", "", {}


def _text(head: str, settings: Mapping[str, str]) -> str:
    return ",".join([head, *(f"{key}={value}" for key, value in settings.items())])


FORMATS = {"job": JOB, "traffic": TRAFFIC}


def key_of_job(document: Mapping[str, Any], section: str, text: str) -> str:
    """`job[0].count` of the text `a.count` behind `job.`, if the first job is named `a`.

    Names stand as they are, blanks and dots included; of several that fit, the longest is meant.
    InputError for a name or a key that there is not.
    """
    names = [each["name"] for each in document.get(section, ())]
    if not (fitting := [name for name in names if f"{text}.".startswith(f"{name}.")]):
        name = text.partition(".")[0]
        near = did_you_mean(name, names) or f"; there are {', '.join(map(quote, names)) or 'none'}"
        raise InputError(f"no {section} is named {quote(name)}{near}")
    name = max(fitting, key=len)
    path = text[len(name) + 1 :]
    field_of_job(section, path)
    return f"{section}[{names.index(name)}].{path}"


def field_of_job(section: str, path: str) -> Field:
    """The field at a path of a job or traffic. InputError if there is none."""
    table, dot, rest = path.partition(".")
    if (section, table, dot) == ("job", "step", "."):
        return field_at(rest, STEP_TABLE, MESH)
    return field_at(path, FORMATS[section])


def split_key(key: str) -> tuple[str, int, str] | None:
    """The section, the place there and the path of such a key; None for others."""
    section, bracket, rest = key.partition("[")
    place, _, path = rest.partition("].")
    return (section, int(place), path) if bracket and section in FORMATS else None


DISTURB = Format(
    "disturb",
    "What goes wrong on the machine.",
    Field("slow", ListOf(LINE), "Devices and how many times as slow they are: `gpu3=1.5`."),
    Field("fault", ListOf(LINE), "Links, and what they carry from a time on: `gpu0>gpu3@1ms=0`."),
    Field("jitter", LINE, "Scatter of latencies and fixed costs, such as `0.1`."),
    Field("seed", whole(0), "The seed of the jitter."),
    Field("tolerance", LINE, "The part by which a time may be off, as `0.1%`."),
)
BENCH_DOCUMENT = Format(
    "bench",
    "One collective of one tensor on a machine.",
    Field("topology", LINE, "The machine.", required=True),
    Field("topology_overrides", MapOf(ANYTHING), "Keys of its file."),
    Field("strategy", LINE, "The strategy.", "nccl"),
    Field("collective", choice(NAMES, "collective"), "The collective.", "all_reduce"),
    Field("size", whole(1, MOST_BYTES), "Bytes of the tensor.", 32 << 20),
    Field("dtype", text_of(dtypes.code, "a type"), "The type of its elements.", 0),
    Field("root", whole(0), "The root of a broadcast or reduce.", 0),
    Field("runtime", choice((*RUNTIMES, BY_STRATEGY.name), "runtime"), "The runtime.",
          BY_STRATEGY.name),
    Field("calibration", LINE, "The calibration.", "nominal"),
    Field("faithful", FLAG, "Upstream's quirks.", default=False),
    Field("nccl", TableOf(SETTINGS), "NCCL's settings."),
    Field("gpus", PLACES, "So many of the GPUs, or a list of them."),
    Field("gpu_indices", ListOf(whole(0)), "The order of each machine's GPUs in rings."),
    Field("nthreads", whole(1), "Threads that share the GPUs of each machine.",
          default_words="a process for each GPU"),
    Field("iters", whole(1), "Calls of NCCL in a row.", ITERATIONS),
    Field("fails", LINE, "A part that has failed.", NONE),
    Field("disturb", TableOf(DISTURB), "What goes wrong."),
)  # fmt: skip
_CASE = (
    "workload", "runtime", "calibration", "repeat", "faithful", "gpu_indices", "call_cost", "fails",
)  # fmt: skip
"""Keys of a scenario that may be set; `strategy` sets its `strategies`."""
_STEP = tuple(field.key for field in STEP_TABLE.fields if field.key not in ("batch", "sharding"))
"""Keys of `[step]`, which need no `step.` before them."""
_MESH = tuple(field.key for field in MESH_TABLE.fields if field.key != "pipeline")
"""Keys of a `[step]` with a `mesh`, which need no `step.` before them."""
_PIPELINE = ("schedule", "virtual")
"""Keys of its `[step.pipeline]`, likewise."""
_OF_MESHES = ("workload", "runtime", "calibration", "gpu_indices", "framework")
_ALIASES = {"model": "workload", "bytes": "size", "algo": "strategy"}
_OF_REPLICAS = tuple(f.key for f in REPLICAS_TABLE.fields if f.key not in ("slow", "seed"))
"""Keys of `[replicas]`, which need no `replicas.` before them; by themselves, `slow` and `seed` are
of devices and of the jitter.
"""


@dataclass(frozen=True, slots=True)
class SweepQuestion:
    """A question with every key at its first value; `cell` gives it with others.

    `name` is that of reports, `folder` where files are looked for first.
    """

    kind: Kind
    document: Mapping[str, Any]
    name: str
    folder: str = ""
    known: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)
    """What many cells have in common: keys by name, and machines by text and settings."""

    @property
    def meshed(self) -> bool:
        """Whether it is about meshes."""
        return self.kind == STEP and has_mesh(self.document["scenario"])

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys that may be set, besides dotted ones."""
        of_kind, more = {
            BENCH: ([f.key for f in BENCH_DOCUMENT.fields], ()),
            REPLICAS: ([*_OF_REPLICAS, "workload", "runtime", "calibration", "faithful"], ()),
            JOBS: (["runtime", "calibration", "call_cost", "fails", "copies"], ()),
        }.get(self.kind, ([*_CASE, "size"], ("strategy", "gpus", "batch", *_STEP)))
        disturb = () if self.meshed or self.kind == JOBS else DISTURB.keys
        if self.meshed:
            of_kind, more = [*_OF_MESHES, *_MESH], _PIPELINE
        named = dict.fromkeys([*of_kind, *more, *SHORT, *disturb, "topology"])
        named |= dict.fromkeys(alias for alias, key in _ALIASES.items() if key in named)
        return tuple(key for key in named if key not in ("topology_overrides", "disturb", "nccl"))

    @property
    def sections(self) -> tuple[str, ...]:
        """Tables whose keys may be set, as `nccl.KEY`."""
        of_kind = {
            BENCH: ("nccl",),
            REPLICAS: ("replicas",),
            JOBS: ("nccl", "link_factors", *(f"{section}.NAME" for section in FORMATS)),
        }
        return "topology", *of_kind.get(self.kind, ("nccl", "step", "link_factors"))

    def cell(self, settings: Mapping[str, Any]) -> Cell:
        """The question with these keys set.

        InputError lists every key and value that cannot be; what only the machine can refuse, the
        cell's row says.
        """
        faults = Faults()
        document = copy.deepcopy(dict(self.document))
        table = document if self.kind == BENCH else document["scenario"]
        machine: dict[str, str | int] = {}
        for name, value in settings.items():
            key = faults.attempt(name, self._key_of, name)
            if key and (key in SHORT or key.startswith("topology.")):
                machine[key.removeprefix("topology.")] = value
            elif key:
                self._set(document, table, key, faults.attempt(name, _read, key, value), faults)
        if machine:
            faults.attempt("", self._set_machine, table, machine)
        faults.raise_any()
        return make_cell(self.kind, document, self.folder)

    def _key_of(self, name: str) -> str:
        return once(self.known, name, partial(self.key_of, name))

    def _set_machine(self, table: dict[str, Any], settings: Mapping[str, str | int]) -> None:
        """Set the machine's keys. InputError if it cannot have them."""
        text = table.get("topology", settings.get("machine"))
        if not isinstance(text, str):
            raise InputError("topology: is missing, and no machine is set")
        asked = repr((text, settings))
        text, overrides = once(self.known, asked, partial(set_machine, text, settings))
        table["topology"] = text
        if overrides:
            table["topology_overrides"] = {**(table.get("topology_overrides") or {}), **overrides}

    def check(self, key: str, value: Any, collectives: Sequence[str] = ()) -> None:
        """Raise InputError or ValueError if no cell could have this value of a known key.

        A name of something that is not there is such a value too. `collectives` are the sweep's.
        """
        value = _read(key, value)
        if self.meshed:
            _check_mesh(key, value)
        if place := split_key(key):
            section, _, key = place
            field_of_job(section, key).kind.take(value, faults := Faults(), "")
            faults.raise_any()
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                self._load(key, each, collectives or ("all_reduce",))

    def key_of(self, name: str) -> str:
        """The key of a name, which may be another word for it. InputError if there is none."""
        key = _ALIASES.get(name, name)
        section, _, rest = key.partition(".")
        step = (*_MESH, *_PIPELINE) if self.meshed else _STEP
        rest = rest.removeprefix("pipeline.") if self.meshed else rest
        if section == "step" and rest in step and self.kind in (RUN, STEP):
            return rest
        if self.kind == JOBS and section in FORMATS:
            return key_of_job(self.document["scenario"], section, rest)
        if self.kind == REPLICAS and key in _OF_REPLICAS:
            return f"replicas.{key}"
        if key in self.keys or (rest and section in self.sections):
            return key
        known = [*self.keys, *(f"{section}.KEY" for section in self.sections)]
        if of_machine := self._of_machine(name):
            raise InputError(f"unknown key; of this machine there are {', '.join(of_machine)}")
        raise InputError(f"unknown key{near_or_all(key, known, '; known: ')}")

    def _of_machine(self, name: str) -> list[str]:
        """Keys of the machine's file that end as a name does, and the one that scales its links."""
        table = self.document if self.kind == BENCH else self.document["scenario"]
        text, *_, last = str(table.get("topology", "")), *re.split("[._]", name)
        place = find(_parts(text)[0])
        known = override_keys(read_document(*place)) if place else ()
        found = [f"topology.{key}" for key in known if key.endswith(f".{last}")]
        scales = "link_factors" in self.sections and ("link" in name or last == "bandwidth")
        return found + ["link_factors.LINKS"] * scales

    def _load(self, key: str, value: str, collectives: Sequence[str]) -> None:
        """Read what a value names. InputError or ValueError if it cannot be."""
        if key == "strategy":
            if self.kind in (BENCH, JOBS) or value != ALL:
                _parse_for_any(value, collectives)
        elif key in ("calibration", "workload"):
            load = load_calibration if key == "calibration" else load_model
            load(beside(Path(self.folder, "it"), value))
        elif key == "machine":
            load_topology(value)
        elif key == "fails" and value.isalpha():  # a class, and no part by its name
            choice((NONE, *CLASSES), "part that fails").read(value)
        elif key in ("fabric", "nic"):
            choice(
                tuple(FABRICS) if key == "fabric" else networks(),
                "class of network link" if key == "nic" else key,
            ).read(value)

    def _set(
        self, document: dict[str, Any], table: dict[str, Any], key: str, value: Any, faults: Faults
    ) -> None:
        """Set a key that is none of the machine's in the document or its `table`."""
        if value is None:  # which has a fault
            return
        if key in DISTURB.keys:
            texts = value if isinstance(value, list) else [value]
            found = [text for text in texts if text != NONE] if key in ("slow", "fault") else value
            disturb = {**document.pop("disturb", {}), key: found}
            if kept := {k: v for k, v in disturb.items() if v != []}:  # calm as if never said
                document["disturb"] = kept
        elif key == "fails" and value == NONE:  # as if never said
            table.pop(key, None)
        elif key.startswith("link_factors."):  # names of links have dots
            table.setdefault("link_factors", {})[key.partition(".")[2]] = value
        elif place := split_key(key):
            found, i, path = place
            faults.attempt(key, _set_inside, table[found][i], path.split("."), value)
        elif "." in key:
            faults.attempt(key, _set_inside, table, key.split("."), value)
        elif self.meshed and key in (*_MESH, *_PIPELINE):
            inside = ["step", "pipeline", key] if key in _PIPELINE else ["step", key]
            _set_inside(table, inside, value)
        elif self.kind != BENCH and key in ("batch", "gpus", "copies"):
            document[key] = value
        elif self.kind != BENCH and key in _STEP:
            if faults.check(isinstance(table.get("step"), dict), key, "the scenario has no [step]"):
                _set_inside(table, ["step", key], value)
        elif self.kind != BENCH and key == "strategy":
            table["strategies"] = value if isinstance(value, list) else [value]
        elif self.kind != BENCH and key == "size":
            table["workload"] = f"bytes:{value}B"
        else:
            table[key] = value


def _check_mesh(key: str, value: Any) -> None:
    """InputError if no mesh could have this value of a key."""
    if key == "framework":
        check_mesh_target(str(value))
    table = MESH_TABLE if key in _MESH else PIPELINE_TABLE if key in _PIPELINE else None
    if table is None:
        return
    faults = Faults()
    found = table[key].kind.take(value, faults, "")
    for each in (found or ()) if key == "mesh" else ():
        if each != AUTO:
            faults.attempt("", read_mesh, each)
    faults.raise_any()


_ONE_OF = ({"time", "rate", "profile"}, {"rate", "every"})
"""Keys of which `[step]`, and then `[[traffic]]`, takes only one."""


def clashes(names: Mapping[str, str]) -> list[str]:
    """Pairs of names that say the same thing in two ways, as faults.

    `names` has the key of each name.
    """
    items = [*names.items()]
    pairs = [(one, other) for i, one in enumerate(items) for other in items[:i]]
    return [
        f"{one} and {other} are one key; give one of them"
        for (one, key), (other, before) in pairs
        if key == before
    ] + [
        f"{one} and {other} exclude each other; give one of them"
        for (one, key), (other, before) in pairs
        if key != before and _exclude(key, before)
    ]


def _exclude(one: str, other: str) -> bool:
    """Whether two keys of a table exclude each other."""
    (table, _, key), (same, _, before) = one.rpartition("."), other.rpartition(".")
    groups = *_ONE_OF, {"size", "workload"}
    return table == same and any({key, before} <= group for group in groups)


def _parse_for_any(text: str, collectives: Sequence[str]) -> None:
    """StrategyError if no collective has this strategy."""
    for collective in collectives[:-1]:
        with contextlib.suppress(InputError):
            parse_strategy(text, collective)
            return
    parse_strategy(text, collectives[-1])


def _set_inside(table: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a key in tables of a table, instead of those that exclude it. InputError if there is no
    table.
    """
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"{part} is no table")
    for key in {key for group in _ONE_OF if path[-1] in group for key in group}:
        table.pop(key, None)
    table[path[-1]] = value


def _read(key: str, value: Any) -> Any:
    """The value as documents have it. InputError or ValueError for one that is none."""
    if key in ("slow", "fault", "strategy"):
        for each in value if isinstance(value, list) else [value]:
            LINE.read(each)
    elif key in ("jitter", "tolerance"):
        return str(value)
    elif key == "size" or key.endswith(".size"):
        nbytes = whole(1, MOST_BYTES, "bytes").read(
            value if isinstance(value, int) else units.cli_size(str(value))
        )
        return nbytes if key == "size" else f"{nbytes} B"
    elif key in _KINDS:
        _KINDS[key].take(value, faults := Faults(), "")
        faults.raise_any()
    return value


_KINDS: Mapping[str, ValueKind[Any]] = {
    "copies": whole(1, 10_000, "copies"),
    "batch": STEP_TABLE["batch"].kind,
    "repeat": SCENARIO["repeat"].kind,
    "seed": DISTURB["seed"].kind,
    **{key: BENCH_DOCUMENT[key].kind
       for key in ("runtime", "collective", "dtype", "root", "faithful")},
}  # fmt: skip
"""Kinds of values of which every cell has to have one."""


def read_question(text: str, kind: str | None = None) -> SweepQuestion:
    """The question that `text` means: a scenario, or a machine for `bench`.

    Unless `kind` is given, it is `step` for scenarios with `[step]`, `replicas` for those with
    `[replicas]`, and `jobs` for those with `[[job]]`. Raises InputError for a name of neither.
    """
    if not is_scenario(text):
        if kind not in (None, BENCH):
            raise InputError(f"{text}: is a machine; only a scenario can be asked for a {kind}")
        load_machine(text)  # what is misspelt is said before anything starts
        return SweepQuestion(BENCH, {"topology": text}, text)
    path, table = read_scenario_file(text)
    own: dict[Kind, str] = {JOBS: "job", REPLICAS: "replicas", STEP: "step"}
    checks = {
        "is a scenario; a machine can be asked for a bench": kind == BENCH,
        f"has no {'[[job]]' if kind == JOBS else f'[{kind}]'}":
            kind in own and own[kind] not in table,
        f"has [[job]]s beside each other; ask for its {JOBS}":
            "job" in table and kind not in (None, JOBS),
        "has a step.mesh, whose collectives NCCL runs; ask for its step":
            kind == RUN and has_mesh(table),
        "has [replicas], which have no strategies to rank": kind == RUN and "replicas" in table,
    }  # fmt: skip
    if wrong := [words for words, is_wrong in checks.items() if is_wrong]:
        raise InputError(f"{path}: {wrong[0]}")
    if "job" in table:
        JOBS_FILE.read(table, faults := Faults(str(path)))
        faults.raise_any()
    document = {"scenario": json.loads(json.dumps(table, default=str))}
    found: Kind = next((each for each, key in own.items() if key in table and kind != RUN), RUN)
    return SweepQuestion(found, document, path.stem, str(path.parent))
