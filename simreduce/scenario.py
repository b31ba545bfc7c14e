"""A question worth asking, as a TOML file: which reductions of what, on which machine.

    title = "ResNet-50 on one DGX-1V: which reduction?"
    topology = "dgx1v"               # shipped name, file, or inline generator
    workload = "resnet50"            # shipped name, file, or "bytes:64MiB"
    runtime = "tensorflow"
    calibration = "nominal"
    strategies = ["all"]             # or strategy texts
    repeat = 1                       # chained all-reduces in one step
    gpu_indices = [0, 1, 2, 3]       # the order of GPUs that rings take inside every machine
    faithful = false                 # true: upstream's quirks instead of what a user intends
    [topology_overrides]
    "links.qpi.bandwidth" = "9.6 GB/s"
    [step]                           # for `simreduce step`: training/question.py says what is in it
    batch = 64

With `[replicas]` instead of `[step]` it asks about synchronous replicas (training/replicas/reader.py): that is another value,
`Replicas`, which needs no machine and no gradients, and whose gradients are sent to servers by no strategy.

Every fault in the file, and in what it names, is reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from simreduce.calibrate import load_calibration
from simreduce.engine import CALM, Calibration, Disturbance, Runtime, runtime_named
from simreduce.errors import InputError, ScenarioError, did_you_mean, shown
from simreduce.layouts import Layout, layout
from simreduce.packing import Fusion
from simreduce.shipped import data_dir
from simreduce.strategy import Strategy, parse_strategy
from simreduce.textfiles import dotted, exists, parse_toml, read_text
from simreduce.topology import Topology, load_topology
from simreduce.topology.load import find
from simreduce.training import Question, look_at_step, replicas
from simreduce.workload import Model, Workload, load_model, load_workload

_KEYS = (
    "title",
    "topology",
    "workload",
    "runtime",
    "calibration",
    "strategies",
    "repeat",
    "topology_overrides",
    "gpu_indices",
    "faithful",
    "step",
)
_REQUIRED = ("topology", "workload")
_OF_REPLICAS = (
    "title",
    "topology",
    "workload",
    "runtime",
    "calibration",
    "topology_overrides",
    "faithful",
    "replicas",
)
_UNUSED = {
    "step": "a step is asked about, and so are [replicas]; give one of the two",
    "strategies": "[replicas] sends gradients to their servers, by no strategy",
    "repeat": "replicas.repetitions says how often",
    "gpu_indices": "replicas.workers says which GPUs, in which order",
}
"""Keys of other scenarios, and why `[replicas]` does not take them."""
_OF_TOPOLOGIES = ("runtime", "calibration", "topology_overrides")
_MARKS = (*_REQUIRED, "replicas")
"""A file with one of these is a scenario."""
_OF_MACHINES = ("nodes", "links", "machine", "extends")
_FOR_MACHINES = "try `simreduce bench {0}`, or write a scenario with topology = '{0}'"
ALL = "all"
MOST_REPEATS = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What to rank. `strategies` is None for every strategy that the machine accepts."""

    name: str
    title: str
    topology: Topology
    workload: Workload
    runtime: Runtime
    calibration: Calibration
    strategies: tuple[Strategy, ...] | None
    repeat: int = 1
    gpu_indices: tuple[int, ...] = ()
    faithful: bool = False
    step: Question | None = None

    def layout(self) -> Layout:
        """What planners may know of the machine."""
        shape = layout(self.topology)
        return shape.ordered(self.gpu_indices) if self.gpu_indices else shape

    def __reduce__(self) -> tuple[Any, ...]:
        # A runtime is made of functions: it goes to another process by its name.
        return _named, (
            self.name, self.title, self.topology, self.workload, self.runtime.name, self.calibration,
            self.strategies, self.repeat, self.gpu_indices, self.faithful, self.step,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Replicas:
    """A question about synchronous replicas. Without a topology, transfers take what the table says."""

    name: str
    title: str
    topology: Topology | None
    workload: Workload | None
    runtime: Runtime
    calibration: Calibration
    disturbance: Disturbance
    faithful: bool
    question: replicas.Question


def _named(
    name: str, title: str, topology: Topology, workload: Workload, runtime: str, *rest: Any
) -> Scenario:
    return Scenario(name, title, topology, workload, runtime_named(runtime), *rest)


def load_scenario(text: str, batch: object = None, **overrides: object) -> Scenario:
    """The scenario in the file `text`, or the shipped one of that name.

    Keyword arguments that are not None stand in the place of the file's keys (`runtime="ideal"`), `batch` in that of
    `step.batch`, and what is measured of a step changes in proportion.
    """
    path, document = _document(text)
    if "replicas" in document:
        raise ScenarioError(
            f"{path}: [replicas] asks what synchronous replicas do; only `simreduce step` answers that"
        )
    return _build(path, document | _given(overrides), batch, fuses="strategies" in _given(overrides))


def load_replicas(text: str, disturbance: Disturbance = CALM, **overrides: object) -> Replicas:
    """As `load_scenario`, of a scenario with `[replicas]`. InputError names what of the disturbance its machine lacks, too."""
    path, document = _document(text)
    return _build_replicas(path, document | _given(overrides), disturbance)


def _given(overrides: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in overrides.items() if value is not None}


def _document(text: str) -> tuple[Path, dict[str, Any]]:
    """The file that is meant, and what is in it."""
    path = Path(text)
    if path.suffix != ".toml" and not exists(text):
        known = shipped()
        if text not in known and find(text) is not None:
            raise ScenarioError(f"{text} is a machine, not a scenario; {_FOR_MACHINES.format(text)}")
        if text not in known:
            near = did_you_mean(text, known) or f"; shipped: {', '.join(known)}"
            raise ScenarioError(f"no scenario {shown(text)}{near}; a file ends in .toml")
        path = data_dir("scenarios") / f"{text}.toml"
    document = parse_toml(str(path), read_text(path, ScenarioError), ScenarioError)
    if not any(key in document for key in _MARKS) and any(key in document for key in _OF_MACHINES):
        raise ScenarioError(f"{path}: is a machine file, not a scenario; {_FOR_MACHINES.format(path)}")
    return path, document


def is_scenario(text: str) -> bool:
    """Whether `text` means a scenario: the name of a shipped one, or a TOML file with the keys of one."""
    return any(key in keys_of(text) for key in _MARKS)


def keys_of(text: str) -> frozenset[str]:
    """The keys of the scenario that `text` means, before it is known whether they make sense; none if it cannot be read."""
    try:
        return frozenset(_document(text)[1])
    except ScenarioError:
        return frozenset()


def shipped() -> list[str]:
    """Names of the scenarios that come with simreduce."""
    return sorted(p.stem for p in data_dir("scenarios").glob("*.toml"))


class _Reader:
    """What scenarios of both kinds say alike; faults are collected."""

    def __init__(self, path: Path, document: Mapping[str, Any], keys: Collection[str]) -> None:
        self.path, self.document = path, document
        self.problems = [f"unknown key {k!r}{did_you_mean(k, keys)}" for k in document if k not in keys]

    def text(self, key: str, default: str = "") -> str:
        value = self.document.get(key, default)
        if not isinstance(value, str):
            self.problems.append(f"{key}: expected text, not {shown(value)}")
            return default
        return value

    def load(self, key: str, loader: Callable[[str], T], default: str = "") -> T | None:
        given = self.text(key, default)
        if not given and not isinstance(self.document.get(key), str):
            return None  # missing, or no text: told already
        try:
            return loader(_beside(self.path, given))
        except InputError as error:
            self.problems.extend(f"{key}: {p}" for p in error.problems)
            return None

    def topology(self) -> Topology | None:
        overrides = self.document.get("topology_overrides", {})
        if not isinstance(overrides, dict):
            self.problems.append("topology_overrides: expected a table")
            overrides = {}
        changed = dotted(overrides)
        return self.load("topology", lambda name: load_topology(name, changed or None))

    def runtime(self) -> Runtime | None:
        return self.load("runtime", runtime_named, "tensorflow")

    def calibration(self) -> Calibration | None:
        return self.load("calibration", load_calibration, "nominal")

    def faithful(self) -> bool:
        value = self.document.get("faithful", False)
        if not isinstance(value, bool):
            self.problems.append(f"faithful: expected true or false, not {shown(value)}")
        return value is True


def _build(path: Path, document: Mapping[str, Any], batch: object, *, fuses: bool) -> Scenario:
    """Strategies that are not the file's may do without a `cycle` (`fuses`)."""
    read = _Reader(path, document, _KEYS)
    problems = read.problems
    problems += [f"{k}: missing" for k in _REQUIRED if k not in document]
    topology = read.topology()
    model = read.load("workload", load_model)
    runtime, calibration = read.runtime(), read.calibration()
    strategies = _strategies(document.get("strategies", [ALL]), problems)
    repeat = document.get("repeat", 1)
    if not isinstance(repeat, int) or isinstance(repeat, bool) or not 1 <= repeat <= MOST_REPEATS:
        problems.append(f"repeat: expected a whole number from 1 to {MOST_REPEATS}, not {shown(repeat)}")
    faithful = read.faithful()
    gpu_indices = _gpu_indices(document.get("gpu_indices", []), topology, problems)
    title = read.text("title", path.stem)
    step = _step(path, document, model, topology, batch, problems)
    fuses = fuses or strategies is None or any(isinstance(s.packer, Fusion) for s in strategies)
    if step and not step.mode and not fuses and "cycle" in document["step"]:
        problems.append("step.cycle: is for Horovod's buffers, which no strategy has; add +fusion to one")
    if problems or topology is None or model is None or runtime is None or calibration is None:
        raise ScenarioError([f"{path}: {p}" for p in problems])
    return Scenario(
        path.stem, title, topology, model.workload, runtime, calibration, strategies, repeat, gpu_indices,
        faithful, step,
    )  # fmt: skip


def _build_replicas(path: Path, document: Mapping[str, Any], disturbance: Disturbance) -> Replicas:
    read = _Reader(path, {k: v for k, v in document.items() if k not in _UNUSED}, _OF_REPLICAS)
    problems = read.problems
    problems += [f"{key}: {why}" for key, why in _UNUSED.items() if key in document]
    topology = read.topology()
    workload = read.load("workload", load_workload)
    runtime, calibration = read.runtime(), read.calibration()
    faithful, title = read.faithful(), read.text("title", path.stem)
    lacking: Sequence[str] = ()
    if "topology" not in document:
        problems += [f"{key}: only a topology has use for it" for key in _OF_TOPOLOGIES if key in document]
        if disturbance.text:
            lacking = [f"{path} has no topology, so nothing is there to disturb: {disturbance.text}"]
    elif topology is not None:
        try:
            disturbance.check(topology)
        except InputError as error:
            lacking = error.problems
    # What a table means depends on the machine and the gradients, so with faults in these it is not read.
    known = ("topology" not in document or topology) and ("workload" not in document or workload)
    question = None
    if known and runtime and calibration:
        try:
            question = replicas.read_replicas(
                document.get("replicas"), topology, workload, runtime, calibration,
                CALM if lacking else disturbance, faithful=faithful,
            )  # fmt: skip
        except ScenarioError as error:
            problems += error.problems
    if problems or lacking or question is None or runtime is None or calibration is None:
        raise ScenarioError([*(f"{path}: {p}" for p in problems), *lacking])
    return Replicas(
        path.stem, title, topology, workload, runtime, calibration, disturbance, faithful, question
    )


def _step(
    path: Path,
    document: Mapping[str, Any],
    model: Model | None,
    topology: Topology | None,
    batch: object,
    problems: list[str],
) -> Question | None:
    """The table `step`, if there is one."""
    if "step" not in document:
        return None
    found, faults = look_at_step(document["step"], model, topology, lambda name: _beside(path, name), batch)
    problems += faults
    if found and found.mode and "strategies" in document:
        problems.append("strategies: step.variable_update says how to reduce; give one of the two")
    return found


def _gpu_indices(value: object, topology: Topology | None, problems: list[str]) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in value):
        problems.append(f"gpu_indices: expected a list of whole numbers, not {shown(value)}")
        return ()
    try:
        if value and topology is not None:
            layout(topology).ordered(value)
    except InputError as error:
        problems += error.problems
    return tuple(value)


def _beside(path: Path, name: str) -> str:
    """A file named in a scenario is looked for beside it first."""
    near = str(path.parent / name)
    # os.path, as Path.is_file raises for names that no file can have
    return near if Path(name).suffix in (".toml", ".csv") and os.path.isfile(near) else name  # noqa: PTH113


def _strategies(value: object, problems: list[str]) -> tuple[Strategy, ...] | None:
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        problems.append(f'strategies: expected a list of strategy texts such as ["all"], not {shown(value)}')
        return None
    if ALL in value:
        if len(value) > 1:
            problems.append('strategies: "all" stands alone')
        return None
    found = []
    for i, strategy in enumerate(value):
        try:
            found.append(parse_strategy(strategy))
        except InputError as error:
            problems += [f"strategies[{i}]: {p}" for p in error.problems]
    return tuple(found)
