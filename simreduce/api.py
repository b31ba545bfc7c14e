"""The functions of `import simreduce`: every argument is an object or the name of one."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import networkx as nx

from simreduce import (
    answers,
    calibrate,
    dtypes,
    plan as plans,
    scenario as scenarios,
    topology,
    tune,
    units,
)
from simreduce.engine import CALM, NOMINAL, TENSORFLOW, Calibration, Disturbance, Recording, Runtime
from simreduce.layouts import Layout
from simreduce.plan import Plan, Problem
from simreduce.scenario import Scenario
from simreduce.setup import (
    Machine,
    Ready,
    Setup,
    Text,
    expect,
    read_machine,
    read_strategy,
    read_text,
    read_workload,
)
from simreduce.strategy import Strategy, compile_collective
from simreduce.topology import Folded, Topology
from simreduce.topology.load import Overrides
from simreduce.tune.bench import bench as bench_rows
from simreduce.tune.steps import rank_steps
from simreduce.workload import Workload, load_workload as load_gradients

_MACHINES = (Topology, Folded, nx.Graph, str, PathLike)
_PLAN = "a Plan, as compile makes it"


def load_topology(name: Text, overrides: Overrides | None = None) -> Topology:
    """The machine of that name, in that file, or written inline (`switch:8,bandwidth=10GB/s`).

    `overrides` maps keys of its file to new values: `{"links.qpi.bandwidth": "9.6 GB/s"}`.
    """
    return topology.load_topology(read_text(name, "the name of a machine"), overrides)


def load_workload(name: Text) -> Workload:
    """The gradients of that model, in that file, or one of that size (`bytes:64MiB`)."""
    return load_gradients(read_text(name, "the name of a workload"))


def load_calibration(name: Text) -> Calibration:
    """The calibration of that name or in that file."""
    return calibrate.load_calibration(read_text(name, "the name of a calibration"))


def load_scenario(name: Text, batch: int | None = None, **overrides: object) -> Scenario:
    """The scenario of that name or in that file. Keyword arguments replace its keys, `batch` the
    samples of its step.
    """
    return scenarios.load_scenario(read_text(name, "the name of a scenario"), batch, **overrides)


def layout(machine: Machine) -> Layout:
    """What planners see of a machine: its tasks, direct links and rank orders."""
    return Setup(machine).layout


def fold(machine: Topology | Text, machines: int | None = None) -> Folded:
    """The equal machines of a topology as one; with `machines`, as many of them.

    TopologyError says why they cannot stand for each other.
    """
    whole = expect(read_machine(machine), Topology, "a Topology that is not folded")
    return topology.fold(whole, machines)


def compile(  # noqa: A001 - as re.compile
    strategy: Strategy | str,
    workload: Workload | Text,
    machine: Layout | Machine,
    collective: str = "all_reduce",
    *,
    root: int = 0,
    faithful: bool = False,
) -> Plan:
    """The plan of a strategy for the gradients of a workload on a machine, or on its layout.

    `faithful` reproduces upstream's quirks, wrong sums included. StrategyError if the machine does
    not accept the strategy.
    """
    shape = machine if isinstance(machine, Layout) else layout(machine)
    chosen, gradients = read_strategy(strategy, collective), read_workload(workload)
    return compile_collective(
        chosen.collective, chosen, gradients, shape, root=root, faithful=faithful
    )


def verify(plan: Plan) -> list[Problem]:
    """Every rule that the plan breaks; an empty list proves that it does what it promises."""
    return plans.verify(expect(plan, Plan, _PLAN))


def repeat(plan: Plan, times: int) -> Plan:
    """The plan `times` times in a row: on every device, one starts when the one before is done."""
    return plans.repeat(expect(plan, Plan, _PLAN), times)


def simulate(
    plan: Plan,
    machine: Machine,
    runtime: Runtime | str = TENSORFLOW,
    calibration: Calibration | Text = NOMINAL,
    ready: Ready = 0.0,
    disturbance: Disturbance = CALM,
) -> answers.Prediction:
    """How long a plan takes on a machine, and why; its inputs exist from `ready` on, in seconds.

    Deadlock if it can never finish, InputError if it needs devices or routes that are not there.
    """
    result = Setup(machine, runtime, calibration, disturbance).simulate(plan, ready)
    return answers.present(answers.Prediction, result)


def record(
    plan: Plan,
    machine: Machine,
    runtime: Runtime | str = TENSORFLOW,
    calibration: Calibration | Text = NOMINAL,
    ready: Ready = 0.0,
    disturbance: Disturbance = CALM,
) -> Recording:
    """As `simulate`, with the rate of every flow over time."""
    return Setup(machine, runtime, calibration, disturbance).record(plan, ready)


def rank(
    machine: Scenario | Machine,
    workload: Workload | Text | None = None,
    strategies: Sequence[Strategy | str] | str | None = None,
    *,
    runtime: Runtime | str | None = None,
    calibration: Calibration | Text | None = None,
    disturbance: Disturbance | None = None,
    repeat: int = 1,
    faithful: bool = False,
    workers: int = 1,
) -> answers.Ranking:
    """Strategies for a workload on a machine, fastest first: all that it accepts unless given.

    Without a workload, the first argument is a scenario, or the name of one.
    """
    if workload is None:
        scenario = _scenario(machine)
    else:
        chosen = None if strategies is None else tuple(map(read_strategy, _listed(strategies)))
        setup = Setup(expect(machine, _MACHINES, "a Topology or the name of one"))
        gradients = read_workload(workload)
        name = f"{gradients.name} on {setup.machine.name}"
        scenario = Scenario(name, name, setup, gradients, chosen, repeat, faithful)
    scenario = scenario.but(runtime=runtime, calibration=calibration, disturbance=disturbance)
    return answers.present(answers.Ranking, tune.rank(scenario, workers))


def step(
    scenario: Scenario | Text,
    batch: int | None = None,
    *,
    disturbance: Disturbance | None = None,
    workers: int = 1,
) -> answers.StepRanking:
    """The strategies of a scenario that has a `[step]`, by the training step around them."""
    found = _scenario(scenario, batch).but(disturbance=disturbance)
    return answers.present(answers.StepRanking, rank_steps(found, workers))


def bench(
    machine: Machine,
    strategies: Sequence[Strategy | str] | Strategy | str = "ring",
    sizes: Sequence[int | str] | int | str = "32MiB",
    collective: str = "all_reduce",
    *,
    dtype: str = "float",
    root: int = 0,
    runtime: Runtime | str = TENSORFLOW,
    calibration: Calibration | Text = NOMINAL,
    disturbance: Disturbance = CALM,
    faithful: bool = False,
) -> answers.Bench:
    """One collective of one tensor of each size, in bytes or as text, by each strategy."""
    setup = Setup(machine, runtime, calibration, disturbance)
    chosen = [read_strategy(each, collective) for each in _listed(strategies)]
    nbytes = [each if isinstance(each, int) else units.size(each) for each in _listed(sizes)]
    rows = bench_rows(setup, chosen, nbytes, dtypes.code(dtype), faithful=faithful, root=root)
    return answers.Bench(setup, collective, tuple(rows))


def _scenario(scenario: Any, batch: int | None = None) -> Scenario:
    """The scenario itself, or the one of that name or in that file."""
    if isinstance(scenario, (str, PathLike)):
        return load_scenario(scenario, batch)
    found = expect(scenario, Scenario, "a Scenario or the name of one")
    if batch is not None:
        raise TypeError("batch is for a scenario that is named")
    return found


def _listed(values: Any) -> list[Any]:
    """The values of a list, or the only one."""
    return (
        list(values) if isinstance(values, Sequence) and not isinstance(values, str) else [values]
    )
