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

With `[replicas]` instead of `[step]` it asks about synchronous replicas
(training/replicas/reader.py): that is another value, `Replicas`, which needs no machine and no
gradients, and whose gradients are sent to servers by no strategy.

Every fault in the file, and in what it names, is reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from simreduce.calibrate import load_calibration
from simreduce.engine import (
    CALM,
    NOMINAL,
    TENSORFLOW,
    Calibration,
    Disturbance,
    Runtime,
    runtime_named,
)
from simreduce.errors import InputError, ScenarioError, did_you_mean, shown
from simreduce.formats import Faults
from simreduce.layouts import layout
from simreduce.packing import Fusion
from simreduce.setup import Setup
from simreduce.shipped import data_dir
from simreduce.strategy import ALL, Strategy, misplaced, parse_strategy
from simreduce.textfiles import dotted, exists, parse_toml, read_text
from simreduce.topology import Topology, load_topology
from simreduce.topology.load import find
from simreduce.training import StepQuestion, parse_step, replicas
from simreduce.training.question import MOST_SAMPLES
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
_OPTIONS = {
    "runtime": "--runtime",
    "calibration": "--calibration",
    "strategies": "--algo",
    "gpu_indices": "--gpu-indices",
}
"""What a user typed to have a key's place taken: faults are its own, not the file's."""
_MARKS = (*_REQUIRED, "replicas")
"""A file with one of these is a scenario."""
_OF_MACHINES = ("nodes", "links", "machine", "extends")
_FOR_MACHINES = "try `simreduce bench {0}`, or write a scenario with topology = '{0}'"
MOST_REPEATS = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What to rank. `strategies` is None for every strategy that the machine accepts."""

    name: str
    title: str
    setup: Setup
    workload: Workload
    strategies: tuple[Strategy, ...] | None
    repeat: int = 1
    faithful: bool = False
    step: StepQuestion | None = None

    def but(self, **changes: Any) -> Scenario:
        """The same scenario with another `disturbance`, or whatever else `Setup.but` takes."""
        return replace(self, setup=self.setup.but(**changes))


@dataclass(frozen=True, slots=True)
class Replicas:
    """A question about synchronous replicas. Without a setup, transfers take what the table says."""

    name: str
    title: str
    setup: Setup | None
    workload: Workload | None
    faithful: bool
    question: replicas.ReplicasQuestion


def load_scenario(text: str, batch: object = None, **overrides: object) -> Scenario:
    """The scenario in the file `text`, or the shipped one of that name.

    Keyword arguments that are not None stand in the place of the file's keys (`runtime="ideal"`),
    `batch` in that of `step.batch`, and what is measured of a step changes in proportion. Their
    faults are told by the options of the command line that give them.
    """
    found, _, problems = look_at_scenario(text, batch, **overrides)
    if problems or found is None:
        raise ScenarioError(problems)
    return found


def look_at_scenario(
    text: str, batch: object = None, **overrides: object
) -> tuple[Scenario | None, Topology | None, list[str]]:
    """As `load_scenario`: the scenario, if there is no fault; its machine, if that has none; all
    faults.
    """
    try:
        path, document = _document(text)
    except ScenarioError as error:
        return None, None, [*error.problems]
    if "replicas" in document:
        why = "[replicas] asks what synchronous replicas do; only `simreduce step` answers that"
        return None, None, [f"{path}: {why}"]
    return _build(_Reader(path, document, _given(overrides), _KEYS), batch)


def load_replicas(text: str, disturbance: Disturbance = CALM, **overrides: object) -> Replicas:
    """As `load_scenario`, of a scenario with `[replicas]`. InputError names what of the disturbance
    its machine lacks, too.
    """
    path, document = _document(text)
    return _build_replicas(path, document, _given(overrides), disturbance)


def _given(overrides: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in overrides.items() if value is not None}


def _document(text: str) -> tuple[Path, dict[str, Any]]:
    """The file that is meant, and what is in it."""
    path = Path(text)
    if path.suffix != ".toml" and not exists(text):
        known = shipped()
        if text not in known and find(text) is not None:
            raise ScenarioError(
                f"{text} is a machine, not a scenario; {_FOR_MACHINES.format(text)}"
            )
        if text not in known:
            near = did_you_mean(text, known) or f"; shipped: {', '.join(known)}"
            raise ScenarioError(f"no scenario {shown(text)}{near}; a file ends in .toml")
        path = data_dir("scenarios") / f"{text}.toml"
    document = parse_toml(str(path), read_text(path, ScenarioError), ScenarioError)
    if not any(key in document for key in _MARKS) and any(key in document for key in _OF_MACHINES):
        raise ScenarioError(
            f"{path}: is a machine file, not a scenario; {_FOR_MACHINES.format(path)}"
        )
    return path, document


def is_scenario(text: str) -> bool:
    """Whether `text` means a scenario: the name of a shipped one, or a TOML file with the keys of
    one.
    """
    return any(key in keys_of(text) for key in _MARKS)


def keys_of(text: str) -> frozenset[str]:
    """The keys of the scenario that `text` means, before it is known whether they make sense; none
    if it cannot be read.
    """
    try:
        return frozenset(_document(text)[1])
    except ScenarioError:
        return frozenset()


def shipped() -> list[str]:
    """Names of the scenarios that come with simreduce."""
    return sorted(p.stem for p in data_dir("scenarios").glob("*.toml"))


class _Reader:
    """What scenarios of both kinds say alike; faults are collected, each with the file and its key,
    or with the option that stands in the place of the key.
    """

    def __init__(
        self,
        path: Path,
        document: Mapping[str, Any],
        given: Mapping[str, Any],
        keys: Collection[str],
    ) -> None:
        self.path, self.given = path, given
        self.document = {**document, **given}
        self.problems = [
            f"{path}: unknown key {k!r}{did_you_mean(k, keys)}" for k in document if k not in keys
        ]

    def fault(self, key: str, text: object, within: str = "") -> None:
        """Something is wrong with a key, `within` says where in its value."""
        place = (
            _OPTIONS[key]
            if key in self.given and key in _OPTIONS
            else f"{self.path}: {key}{within}"
        )
        self.problems.append(f"{place}: {text}")

    def text(self, key: str, default: str = "") -> str:
        value = self.document.get(key, default)
        if not isinstance(value, str):
            self.fault(key, f"expected text, not {shown(value)}")
            return default
        return value

    def load(self, key: str, loader: Callable[[str], T], default: str = "") -> T | None:
        given = self.text(key, default)
        if not given and not isinstance(self.document.get(key), str):
            return None  # missing, or no text: told already
        try:
            return loader(_beside(self.path, given))
        except InputError as error:
            for problem in error.problems:
                self.fault(key, problem)
            return None

    def topology(self) -> Topology | None:
        overrides = self.document.get("topology_overrides", {})
        if not isinstance(overrides, dict):
            self.fault("topology_overrides", f"expected a table, not {shown(overrides)}")
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
            self.fault("faithful", f"expected true or false, not {shown(value)}")
        return value is True


def _build(read: _Reader, batch: object) -> tuple[Scenario | None, Topology | None, list[str]]:
    """What `look_at_scenario` gives. Strategies that are not the file's may do without a `cycle`."""
    document, problems = read.document, read.problems
    for key in _REQUIRED:
        if key not in document:
            read.fault(key, "missing")
    topology = read.topology()
    model = read.load("workload", load_model)
    runtime, calibration = read.runtime(), read.calibration()
    before = len(problems)
    strategies = _strategies(read)
    known = len(problems) == before
    repeat = document.get("repeat", 1)
    if not isinstance(repeat, int) or isinstance(repeat, bool) or not 1 <= repeat <= MOST_REPEATS:
        read.fault(
            "repeat", f"expected a whole number from 1 to {MOST_REPEATS}, not {shown(repeat)}"
        )
    faithful = read.faithful()
    gpu_indices = _gpu_indices(read, topology)
    title = read.text("title", read.path.stem)
    step = _step(read, model, topology, batch)
    fuses = strategies is None or any(isinstance(s.packer, Fusion) for s in strategies)
    if (
        step
        and not step.mode
        and known
        and not (fuses or "strategies" in read.given)
        and "cycle" in document["step"]
    ):
        read.fault(
            "step.cycle", "is for Horovod's buffers, which no strategy has; add +fusion to one"
        )
    if problems or topology is None or model is None or runtime is None or calibration is None:
        return None, topology, problems
    part = layout(topology).ordered(gpu_indices) if gpu_indices else None
    setup = Setup(topology, runtime, calibration, part=part)
    scenario = Scenario(
        read.path.stem, title, setup, model.workload, strategies, repeat, faithful, step
    )
    return scenario, topology, []


def _build_replicas(
    path: Path, document: Mapping[str, Any], given: Mapping[str, Any], disturbance: Disturbance
) -> Replicas:
    unused = dict(_UNUSED)
    if "topology" not in document:
        unused |= dict.fromkeys(_OF_TOPOLOGIES, "only a topology has use for it")
    used = [{k: v for k, v in each.items() if k not in unused} for each in (document, given)]
    read = _Reader(path, used[0], used[1], _OF_REPLICAS)
    problems = read.problems
    problems += [
        f"{path}: {key}: {why}"
        for key, why in unused.items()
        if key in document and key not in given
    ]
    problems += [f"{_OPTIONS[key]}: {why}" for key, why in unused.items() if key in given]
    topology = read.topology()
    workload = read.load("workload", load_workload)
    runtime, calibration = read.runtime(), read.calibration()
    faithful, title = read.faithful(), read.text("title", path.stem)
    lacking: Sequence[str] = ()
    if "topology" not in document:
        if disturbance.text:
            lacking = [
                f"{path} has no topology, so nothing is there to disturb: {disturbance.text}"
            ]
    elif topology is not None:
        try:
            disturbance.check(topology)
        except InputError as error:
            lacking = error.problems
    faulty = {
        key
        for key, value in (("topology", topology), ("workload", workload))
        if key in document and not value
    }
    faulty |= {"disturbance"} if lacking else set()
    setup = None
    if topology is not None:
        setup = Setup(topology, runtime or TENSORFLOW, calibration or NOMINAL, disturbance)
    faults = Faults(str(path))
    question = replicas.parse_replicas(
        document.get("replicas"), faults, setup, workload, faithful=faithful, faulty=faulty
    )
    problems += faults.problems
    if problems or lacking or question is None or runtime is None or calibration is None:
        raise ScenarioError([*problems, *lacking])
    return Replicas(path.stem, title, setup, workload, faithful, question)


def _step(
    read: _Reader, model: Model | None, topology: Topology | None, batch: object
) -> StepQuestion | None:
    """The table `step`, if there is one."""
    if "step" not in read.document:
        return None
    if batch is not None and (not isinstance(batch, int) or not 1 <= batch <= MOST_SAMPLES):
        read.problems.append(
            f"--batch: expected a whole number from 1 to {MOST_SAMPLES}, not {shown(batch)}"
        )
        batch = 1
    table = read.document["step"]
    faults = Faults(str(read.path))
    found = parse_step(table, model, topology, faults, lambda name: _beside(read.path, name), batch)
    read.problems += faults.problems
    if isinstance(table, dict) and "variable_update" in table and "strategies" in read.document:
        read.fault("strategies", "step.variable_update says how to reduce; give one of the two")
    return found


def _gpu_indices(read: _Reader, topology: Topology | None) -> tuple[int, ...]:
    value = read.document.get("gpu_indices", [])
    if not isinstance(value, list) or not all(
        isinstance(i, int) and not isinstance(i, bool) for i in value
    ):
        read.fault("gpu_indices", f"expected a list of whole numbers, not {shown(value)}")
        return ()
    try:
        if value and topology is not None:
            layout(topology).ordered(value)
    except InputError as error:
        for problem in error.problems:
            read.fault("gpu_indices", problem.removeprefix("gpu_indices "))
    return tuple(value)


def _beside(path: Path, name: str) -> str:
    """A file named in a scenario is looked for beside it first."""
    near = str(path.parent / name)
    # os.path, as Path.is_file raises for names that no file can have
    return near if Path(name).suffix in (".toml", ".csv") and os.path.isfile(near) else name  # noqa: PTH113


def _strategies(read: _Reader) -> tuple[Strategy, ...] | None:
    value = read.document.get("strategies", [ALL])
    if not isinstance(value, list) or not value:
        read.fault(
            "strategies", f'expected a list of strategy texts such as ["all"], not {shown(value)}'
        )
        return None
    for problem in misplaced(text for text in value if isinstance(text, str) and text.strip()):
        read.fault("strategies", problem)
    found = []
    for i, strategy in enumerate(value):
        if not isinstance(strategy, str):
            read.fault("strategies", f"expected text, not {shown(strategy)}", f"[{i}]")
        elif strategy != ALL:
            try:
                found.append(parse_strategy(strategy))
            except InputError as error:
                for problem in error.problems:
                    read.fault("strategies", problem, f"[{i}]")
    return None if ALL in value else tuple(found)
