"""The functions of `import simreduce`: every argument is an object or the name of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from os import PathLike
from typing import Any

import numpy as np

from simreduce import dtypes, plan as plans, topology, units
from simreduce.app import answers
from simreduce.engine import (
    CALM,
    NOMINAL,
    TENSORFLOW,
    Calibration,
    Disturbance,
    Recording,
    Runtime,
    calibrate,
)
from simreduce.engine.setup import (
    BY_STRATEGY,
    Machine,
    Ready,
    Setup,
    Text,
    read_machine,
    read_strategy,
    read_text,
    read_workload,
)
from simreduce.errors import InputError, StrategyError, expect, quote, whole
from simreduce.files.formats import Faults
from simreduce.files.published import ITERATIONS
from simreduce.plan import Plan, Problem
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy, check_collective, compile_collective
from simreduce.study import scenario as scenarios, scenario_files, sweep as sweeps
from simreduce.study.scenario import CALL_COST, Scenario
from simreduce.study.tune.rank import rank as rank_strategies
from simreduce.study.tune.sizes import DIVIDED, ROOTED, BenchCalls, bench as bench_rows
from simreduce.study.tune.steps import rank_steps
from simreduce.topology import Folded, Topology
from simreduce.topology.loader import Overrides
from simreduce.workload import MOST_BYTES, Workload, load_workload as load_gradients

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
    text = read_text(name, "the name of a scenario")
    if batch is not None:
        whole(batch, "batch", 1)
    return scenario_files.load_scenario(text, batch, **overrides)


def layout(machine: Machine) -> Layout:
    """The layout of a machine, which planners see: its tasks, direct links and rank orders."""
    return Setup(machine).layout


def fold(machine: Topology | Text, machines: int | None = None) -> Folded:
    """The equal machines of a topology as one; with `machines`, as many of them.

    TopologyError says why they cannot stand for each other.
    """
    unfolded = expect(read_machine(machine), Topology, "a Topology that is not folded")
    return topology.fold(unfolded, machines if machines is None else whole(machines, "machines", 2))


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
    _check_root(root, chosen.collective, shape.n)
    _check_flag(faithful, "faithful")
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
    return answers.as_answer(answers.Prediction, result)


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
    repeat: int | None = None,
    faithful: bool | None = None,
    workers: int = 1,
    simulate_all: bool = False,
) -> answers.Ranking:
    """Strategies for a workload on a machine, fastest first: all that it accepts unless given.

    Unless they are given or `simulate_all` is set, strategies with large plans that cannot be among
    the first ten are in `bounded`, with what they take at least.

    Without a workload, the first argument is a scenario, or the name of one; what is given besides
    replaces what the scenario says.
    """
    whole(workers, "workers", 1)
    listed = [] if strategies is None else _as_list(strategies, "strategies")
    given = {
        "repeat": None if repeat is None else whole(repeat, "repeat", 1),
        "faithful": None if faithful is None else _check_flag(faithful, "faithful"),
        "strategies": tuple(map(read_strategy, listed)) or None,
    }
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if workload is None:
        scenario = _scenario(machine)
    else:
        setup = Setup(machine, BY_STRATEGY, call_cost=CALL_COST)
        gradients = read_workload(workload)
        name = f"{gradients.name} on {setup.machine.name}"
        scenario = Scenario(name, name, setup, gradients, None)
    scenario = replace(scenario, **changes).but(
        runtime=runtime, calibration=calibration, disturbance=disturbance
    )
    return answers.as_answer(
        answers.Ranking, rank_strategies(scenario, workers, simulate_all=simulate_all)
    )


def step(
    scenario: Scenario | Text,
    batch: int | None = None,
    *,
    disturbance: Disturbance | None = None,
    workers: int = 1,
) -> answers.StepRanking:
    """The strategies of a scenario that has a `[step]`, by the training step around them."""
    whole(workers, "workers", 1)
    found = _scenario(scenario, batch).but(disturbance=disturbance)
    return answers.as_answer(answers.StepRanking, rank_steps(scenarios.with_step(found), workers))


def bench(
    machine: Machine,
    strategies: Sequence[Strategy | str] | Strategy | str = "ring",
    sizes: Sequence[int | str] | int | str = "32MiB",
    collective: str = "all_reduce",
    *,
    dtype: str = "float",
    root: int = 0,
    runtime: Runtime | str = BY_STRATEGY,
    calibration: Calibration | Text = NOMINAL,
    disturbance: Disturbance = CALM,
    faithful: bool = False,
    nthreads: int | None = None,
    iters: int = ITERATIONS,
) -> answers.Bench:
    """One collective of one tensor of each size, in bytes or as text, by each strategy, on its own
    runtime unless one is given.

    Of `iters` calls of NCCL in a row, by a process for each GPU, or by so many threads that share
    the GPUs of each machine equally.
    """
    setup = Setup(machine, runtime, calibration, disturbance)
    check_collective(collective)
    chosen = [read_strategy(each, collective) for each in _as_list(strategies, "strategies")]
    code = dtypes.code(expect(dtype, str, "the name of a dtype, such as 'float'"))
    least = dtypes.SIZES[code] * (setup.layout.n if collective in DIVIDED else 1)
    nbytes = [_read_size(each, least) for each in _as_list(sizes, "sizes")]
    _check_root(root, collective, setup.layout.n)
    _check_flag(faithful, "faithful")
    whole(iters, "iters", 1)
    calls = BenchCalls.by_threads(nthreads, setup.layout, iters, setup.nccl.release)
    rows = bench_rows(setup, chosen, nbytes, code, faithful=faithful, root=root, calls=calls)
    return answers.Bench(setup, tuple(rows), collective, calls=calls)


def run_sweep(
    question: Text,
    over: Mapping[str, object],
    fixed: Mapping[str, object] | None = None,
    *,
    zipped: Sequence[Sequence[str]] = (),
    sample: tuple[str, int, int] | None = None,
    kind: str | None = None,
    db: Text = sweeps.IN_MEMORY,
    workers: int = 1,
) -> answers.SweepRows:
    """The question, a scenario's or a machine's, for every combination of the values of the keys
    `over`: lists, or text as `--over` takes it. `fixed` holds keys that all cells have, `sample` a
    rule (random or sobol), how many cells, and a seed.

    Rows are kept in the database `db`, which is used again. `workers` processes share the work.
    """
    whole(workers, "workers", 1)
    text = read_text(question, "the name of a scenario or a machine")
    chosen = sweeps.Sample(*sample) if sample else None
    spec = sweeps.read_specification(text, over, fixed or {}, zipped, chosen, kind)
    plan = spec.plan()
    with sweeps.Store(read_text(db, "the name of a database"), write=True) as store:
        begun = store.begin(spec.title, spec.document, plan)
        with sweeps.CellRunner(store, workers=workers if workers > 1 else 0) as runner:
            for _ in runner.run(runner.missing(p.cell for p in plan if p.cell)):
                pass
        return answers.SweepRows(begun, str(db), tuple(store.table(begun.id)))


def open_sweep(db: Text, number: int | None = None) -> answers.SweepRows:
    """The sweep of that number in a database, the last unless given, as far as it is computed."""
    path = read_text(db, "the name of a database")
    with sweeps.Store(path) as store:
        found = store.sweep(number)
        return answers.SweepRows(found, path, tuple(store.table(found.id)))


def _scenario(scenario: Any, batch: int | None = None) -> Scenario:
    """The scenario itself, or the one of that name or in that file."""
    if isinstance(scenario, (str, PathLike)):
        return load_scenario(scenario, batch)
    found = expect(scenario, Scenario, "a Scenario or the name of one")
    if batch is not None:
        raise TypeError("batch is for a scenario that is named")
    return found


def _as_list(values: Any, name: str) -> list[Any]:
    """The values of the argument of that name, a list or a single one."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        return [values]
    found = list(values)
    if not found:
        raise InputError(f"{name}: name at least one")
    return found


def _read_size(size: Any, least: int) -> int:
    """Bytes of a number or of text as `-b` takes it, at least one element of every part."""
    if isinstance(size, str):
        faults = Faults()
        nbytes = faults.require(faults.attempt("sizes", units.cli_size, size))
    elif isinstance(size, bool) or not isinstance(size, Integral):
        words = "sizes: expected bytes as a whole number or text such as '1M'"
        raise TypeError(f"{words}, got {type(size).__name__} {quote(size)}")
    else:
        nbytes = int(size)
    if not least <= nbytes <= MOST_BYTES:
        raise InputError(
            f"sizes: must be between {least} bytes (one element per part) and 1 PiB, "
            f"got {quote(size)}"
        )
    return nbytes


def _check_root(root: int, collective: str, ranks: int) -> None:
    """InputError for a root that the collective does not have, or that is none of its ranks."""
    whole(root, "root", 0)
    if root and collective not in ROOTED:
        raise InputError(f"root: {collective} has no root, got {root}; {' and '.join(ROOTED)} have")
    if root >= ranks:
        raise StrategyError(f"root {root}: the ranks are 0 to {ranks - 1}")


def _check_flag(value: object, name: str) -> object:
    if isinstance(value, (bool, np.bool_)):
        return value
    raise TypeError(f"{name}: expected True or False, got {type(value).__name__} {quote(value)}")
