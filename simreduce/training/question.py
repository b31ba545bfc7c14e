"""The table `[step]` of a scenario: what a training step computes, and how its gradients are
reduced.

[step]
batch = 64                          # samples per GPU; with --batch, a time or a profile of this one changes in proportion
time = "292 ms"                     # forward and backward of that on one GPU, spread over the layers by FLOPs; or
rate = "6.5 TFLOP/s"                # what a GPU achieves; or by GPU or its model, rate.gpu0 = "5 TFLOP/s"; or
profile = "layers.csv"              # measured, by layer
update = "2 ms"                     # of the variables, once a step
consistency = "strong"              # relaxed: reduce the step before; staged: compute with variables read a step ago
barrier = true                      # false: a layer's next forward pass waits for its own variables only
streams = 1                         # reductions at once, 0 for all that are ready; unless given, as the library has it
cycle = "1 ms"                      # of Horovod (+fusion)
variable_update = "replicated"      # a mode of tf_cnn_benchmarks instead of strategies, with those of these flags that it reads:
local_parameter_device = "cpu"
all_reduce_spec = "nccl"
hierarchical_copy = false
network_topology = "dgx1"
packing = "packs=8"
ps_tasks = [0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simreduce import units
from simreduce.errors import InputError, did_you_mean, shown
from simreduce.layouts import Layout
from simreduce.strategy import Strategy
from simreduce.topology import Topology
from simreduce.training.profile import (
    Profile,
    load_profile,
    profile_from_rate,
    profile_from_seconds,
)
from simreduce.training.reductions import CYCLE, Method, method_for_mode, method_for_strategy
from simreduce.training.step import CONSISTENCIES, RELAXED, STAGED, STRONG, StepJob
from simreduce.training.table import Table
from simreduce.variable_update import MODES, Flags, check_mode
from simreduce.workload import Model

_FLAGS: Mapping[str, type] = {
    "local_parameter_device": str,
    "all_reduce_spec": str,
    "hierarchical_copy": bool,
    "network_topology": str,
    "packing": str,
    "ps_tasks": list,
}
_TIMES = ("time", "rate", "profile")
_KEYS = (
    "batch",
    *_TIMES,
    "update",
    "consistency",
    "barrier",
    "streams",
    "cycle",
    "variable_update",
    *_FLAGS,
)
_PLACES = ("cpu", "gpu")
"""Of `local_parameter_device`."""
_TASKS = "a list of task numbers"
MOST_SAMPLES = 10**9
MOST_STREAMS = 10**6
SHORTEST, LONGEST = 1e-9, 3.6e6
"""Seconds of a cycle, and of a step: what is beyond is a slip."""


@dataclass(frozen=True, slots=True)
class StepQuestion:
    """What `[step]` says. Without a `mode`, strategies say how gradients are reduced."""

    job: StepJob
    mode: str = ""
    flags: Flags = field(default_factory=Flags)
    streams: int | None = None
    cycle: float = CYCLE

    def method(
        self, strategy: Strategy | None, layout: Layout, *, faithful: bool = False
    ) -> Method:
        """The reductions of `strategy`, or without one those of the mode; StrategyError for what is
        not accepted.
        """
        workload = self.job.model.workload
        if strategy is None:
            return method_for_mode(
                self.mode, workload, layout, self.flags, streams=self.streams, cycle=self.cycle
            )
        return method_for_strategy(
            strategy, workload, layout, faithful=faithful, streams=self.streams, cycle=self.cycle
        )


def read_step(
    table: object,
    model: Model,
    topology: Topology,
    beside: Callable[[str], str] = str,
    batch: object = None,
) -> StepQuestion:
    """The question that a `[step]` table is; InputError tells all that is wrong with it. `beside`
    finds files. A `batch` stands in the place of the table's, for which a time or a profile was
    measured: these change in proportion.
    """
    question, problems = look_at_step(table, model, topology, beside, batch)
    if problems or question is None:
        raise InputError(problems)
    return question


def look_at_step(
    table: object,
    model: Model | None,
    topology: Topology | None,
    beside: Callable[[str], str] = str,
    given: object = None,
) -> tuple[StepQuestion | None, list[str]]:
    """The question, if there is no fault, and its faults: those that can be told although there is
    no model, or no machine, as it has faults itself.
    """
    if not isinstance(table, dict):
        return None, [f"step: expected a table, not {shown(table)}"]
    reader = _Reader("step", table)
    reader.only(_KEYS)
    measured = reader.whole("batch", None, 1, MOST_SAMPLES)
    if "batch" not in table and given is None:
        reader.fault("batch", "missing: samples per GPU")
    batch = measured if given is None else reader.number("batch", given, 1, MOST_SAMPLES)
    profile, slow = reader.compute(model, batch or 1, topology, beside)
    if profile and batch and measured and batch != measured and "rate" not in table:
        profile = profile.rescaled(measured, batch)
    update = reader.quantity("update", units.duration) or 0.0
    cycle = reader.quantity("cycle", units.duration)
    streams = reader.whole("streams", None, 0, MOST_STREAMS)
    if cycle and not SHORTEST <= cycle <= LONGEST:
        reader.fault("cycle", "from 1 ns to 1000 h, or 0 s for none")
    for key, seconds in (
        ("update", update),
        ("time, rate or profile", profile.seconds if profile else 0.0),
    ):
        if not seconds <= LONGEST:
            reader.fault(key, "more than 1000 h")
    barrier = reader.typed("barrier", bool)
    if barrier is False and update:
        reader.fault("update", "needs a barrier, a time at which all variables are updated")
    consistency = reader.typed("consistency", str) or STRONG
    mode = reader.mode(consistency)
    flags = reader.flags(mode, topology)
    if reader.problems or profile is None or model is None:
        return None, reader.problems
    job = StepJob(
        model,
        profile,
        batch or 1,
        update,
        consistency,
        barrier if barrier is not None else True,
        slow,
    )
    return StepQuestion(job, mode, flags, streams, CYCLE if cycle is None else cycle), []


def _used(mode: str, flags: Mapping[str, Any], topology: Topology | None) -> tuple[set[str], str]:
    """The keys that a mode reads, of its flags, `cycle` and `streams`; and what it depends on that
    it reads no others.
    """
    reduction = {"packing", "streams"}
    if mode == "independent":
        return set(), ""
    if mode == "parameter_server":
        alone = (
            topology is not None and len({topology.nodes[n].machine for n in topology.devices}) == 1
        )
        used = {"local_parameter_device", "streams"}
        return (used, " on one machine") if alone else (used | {"ps_tasks"}, "")
    if mode == "distributed_replicated":
        return {"local_parameter_device", "ps_tasks", "streams"}, ""
    if mode == "horovod":
        packing = flags.get("packing") or "fusion"
        fuses = isinstance(packing, str) and packing.startswith("fusion")
        return (reduction | {"cycle"}, "") if fuses else (reduction, " without fusion")
    if mode == "replicated" and not flags.get("all_reduce_spec"):
        if flags.get("hierarchical_copy"):
            return reduction | {"hierarchical_copy", "network_topology"}, " with hierarchical_copy"
        return reduction | {
            "hierarchical_copy",
            "local_parameter_device",
        }, " without hierarchical_copy"
    return reduction | {"all_reduce_spec"}, " with all_reduce_spec" if mode == "replicated" else ""


class _Reader(Table):
    """The table, and what of it needs more than one key."""

    def compute(
        self,
        model: Model | None,
        batch: int,
        topology: Topology | None,
        beside: Callable[[str], str],
    ) -> tuple[Profile | None, Mapping[str, float]]:
        """The profile, and how many times as long a device takes."""
        given = [key for key in _TIMES if key in self.given]
        if len(given) != 1:
            have = f"has {' and '.join(given)}" if given else "has none"
            self.problems.append(f"step: give one of {', '.join(_TIMES)}; it {have}")
        found: tuple[Profile | None, Mapping[str, float]] = None, {}
        for key in given:
            try:
                found = self._computed(key, model, batch, topology, beside)
            except InputError as error:
                for problem in error.problems:
                    self.fault(key, problem)
        return found

    def _computed(
        self,
        key: str,
        model: Model | None,
        batch: int,
        topology: Topology | None,
        beside: Callable[[str], str],
    ) -> tuple[Profile | None, Mapping[str, float]]:
        """What one of the keys says of it."""
        if key == "time":
            seconds = self.quantity(key, units.duration)
            return None if seconds is None or model is None else profile_from_seconds(
                model, seconds
            ), {}
        if key == "profile":
            text = self.typed(key, str)
            return None if text is None else load_profile(beside(text), model), {}
        rates = self._rates(topology)
        best = max(rates.values(), default=0.0)
        if not best or model is None:
            return None, {}
        return profile_from_rate(model, batch, best), {
            name: best / rate for name, rate in rates.items()
        }

    def _rates(self, topology: Topology | None) -> dict[str, float]:
        """FLOPs a second of every GPU."""
        value = self.given["rate"]
        given = value if isinstance(value, dict) else {"": value}
        model = {name: topology.nodes[name].model for name in topology.devices} if topology else {}
        known = {*model, *model.values()}
        rates: dict[str, float] = {}
        for name, text in given.items():
            key = f"rate.{name}" if name else "rate"
            rate = self.read(key, text, units.flops)
            if name and topology and name not in known:
                self.fault(
                    key, f"no GPU and no model of one is called so{did_you_mean(name, known)}"
                )
            elif rate is not None and rate <= 0.0:
                self.fault(key, "needs a rate above 0")
            elif rate is not None:
                rates[name] = rate
        if len(rates) < len(given):
            return {}
        found = {
            name: rates.get(name, rates.get(kind, rates.get("", 0.0)))
            for name, kind in model.items()
        }
        without = [name for name, rate in found.items() if not rate]
        if without:
            self.fault("rate", f"there is none for {', '.join(without[:5])}")
            return {}
        return found

    def mode(self, consistency: str) -> str:
        """The mode, "" for none, and whether it knows the consistency that is asked for."""
        mode = self.typed("variable_update", str) or ""
        if mode:
            try:
                check_mode(mode)
            except InputError as error:
                self.problems += [f"step.variable_update: {problem}" for problem in error.problems]
        if consistency not in CONSISTENCIES:
            near = did_you_mean(consistency, CONSISTENCIES)
            self.fault(
                "consistency", f"unknown {consistency!r}{near}; one of {', '.join(CONSISTENCIES)}"
            )
        if consistency == STAGED and mode != "parameter_server":
            self.fault(
                "consistency",
                '"staged" is about reading variables, which only variable_update = "parameter_server" does',
            )
        if consistency == RELAXED and mode in (
            "parameter_server",
            "distributed_replicated",
            "independent",
        ):
            other = (
                "reduces nothing" if mode == "independent" else "sends gradients to their servers"
            )
            self.fault("consistency", f'"relaxed" is about all-reduces; {mode} {other}')
        return mode

    def flags(self, mode: str, topology: Topology | None) -> Flags:
        """What the mode is told, all of which it must use."""
        flags: dict[str, Any] = {
            key: value
            for key, kind in _FLAGS.items()
            if (value := self.typed(key, kind, _TASKS if kind is list else "")) is not None
        }
        if flags and not mode:
            for key in flags:
                self.fault(key, "is for variable_update; strategies say how to reduce")
        elif mode in MODES:
            used, when = _used(mode, flags, topology)
            for key in (*flags, *(key for key in ("cycle", "streams") if key in self.given)):
                if key not in used:
                    self.fault(key, f"{mode}{when} does not use it")
        place = flags.get("local_parameter_device", "cpu")
        if place not in _PLACES:
            near = did_you_mean(place, _PLACES)
            self.fault(
                "local_parameter_device", f"{' or '.join(_PLACES)}, not {shown(place)}{near}"
            )
        tasks = flags.get("ps_tasks", [])
        if isinstance(tasks, list) and not all(
            isinstance(t, int) and not isinstance(t, bool) for t in tasks
        ):
            self.fault("ps_tasks", f"expected {_TASKS}, not {shown(tasks)}")
        return Flags(**flags)
