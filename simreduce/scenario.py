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

Every fault in the file, and in what it names, is reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from simreduce.calibrate import load_calibration
from simreduce.engine import Calibration, Runtime, runtime_named
from simreduce.errors import InputError, ScenarioError, did_you_mean, shown
from simreduce.layouts import Layout, layout
from simreduce.shipped import data_dir
from simreduce.strategy import Strategy, parse_strategy
from simreduce.textfiles import dotted, exists, parse_toml, read_text
from simreduce.topology import Topology, load_topology
from simreduce.topology.load import find
from simreduce.training import Question, read_step
from simreduce.workload import Model, Workload, load_model

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


def _named(
    name: str, title: str, topology: Topology, workload: Workload, runtime: str, *rest: Any
) -> Scenario:
    return Scenario(name, title, topology, workload, runtime_named(runtime), *rest)


def load_scenario(text: str, batch: object = None, **overrides: object) -> Scenario:
    """The scenario in the file `text`, or the shipped one of that name.

    Keyword arguments that are not None stand in the place of the file's keys (`runtime="ideal"`), `batch` in that of
    `step.batch`.
    """
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
    if not any(key in document for key in _REQUIRED) and any(key in document for key in _OF_MACHINES):
        raise ScenarioError(f"{path}: is a machine file, not a scenario; {_FOR_MACHINES.format(path)}")
    document |= {key: value for key, value in overrides.items() if value is not None}
    if batch is not None and isinstance(document.get("step"), dict):
        document["step"] |= {"batch": batch}
    return _build(path, document)


def is_scenario(text: str) -> bool:
    """Whether `text` means a scenario: the name of a shipped one, or a TOML file with the keys of one."""
    if not exists(text):
        return text in shipped()
    try:
        document = parse_toml(text, read_text(Path(text), ScenarioError), ScenarioError)
    except ScenarioError:
        return False
    return any(key in document for key in _REQUIRED)


def shipped() -> list[str]:
    """Names of the scenarios that come with simreduce."""
    return sorted(p.stem for p in data_dir("scenarios").glob("*.toml"))


def _build(path: Path, document: Mapping[str, Any]) -> Scenario:
    problems = [f"unknown key {k!r}{did_you_mean(k, _KEYS)}" for k in document if k not in _KEYS]
    problems += [f"{k}: missing" for k in _REQUIRED if k not in document]

    def text(key: str, default: str = "") -> str:
        value = document.get(key, default)
        if not isinstance(value, str):
            problems.append(f"{key}: expected text, not {shown(value)}")
            return default
        return value

    def load(key: str, loader: Callable[[str], T], default: str = "") -> T | None:
        given = text(key, default)
        if not given and not isinstance(document.get(key), str):
            return None  # missing, or no text: told already
        try:
            return loader(_beside(path, given))
        except InputError as error:
            problems.extend(f"{key}: {p}" for p in error.problems)
            return None

    overrides = document.get("topology_overrides", {})
    if not isinstance(overrides, dict):
        problems.append("topology_overrides: expected a table")
        overrides = {}
    overrides = dotted(overrides)
    topology = load("topology", lambda name: load_topology(name, overrides or None))
    model = load("workload", load_model)
    runtime = load("runtime", runtime_named, "tensorflow")
    calibration = load("calibration", load_calibration, "nominal")
    strategies = _strategies(document.get("strategies", [ALL]), problems)
    repeat = document.get("repeat", 1)
    if not isinstance(repeat, int) or isinstance(repeat, bool) or not 1 <= repeat <= MOST_REPEATS:
        problems.append(f"repeat: expected a whole number from 1 to {MOST_REPEATS}, not {shown(repeat)}")
    faithful = document.get("faithful", False)
    if not isinstance(faithful, bool):
        problems.append(f"faithful: expected true or false, not {shown(faithful)}")
    gpu_indices = _gpu_indices(document.get("gpu_indices", []), topology, problems)
    title = text("title", path.stem)
    step = _step(path, document, model, topology, problems)
    if problems or topology is None or model is None or runtime is None or calibration is None:
        raise ScenarioError([f"{path}: {p}" for p in problems])
    return Scenario(
        path.stem, title, topology, model.workload, runtime, calibration, strategies, repeat, gpu_indices,
        faithful, step,
    )  # fmt: skip


def _step(
    path: Path,
    document: Mapping[str, Any],
    model: Model | None,
    topology: Topology | None,
    problems: list[str],
) -> Question | None:
    """The table `step`, if there is one and what it is about is known."""
    if "step" not in document or model is None or topology is None:
        return None
    try:
        found = read_step(document["step"], model, topology, lambda name: _beside(path, name))
    except InputError as error:
        problems += error.problems
        return None
    if found.mode and "strategies" in document:
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
