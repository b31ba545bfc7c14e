"""The kernel's source, unchanged, under numba: it compiles, and every bit is that of the interpreted run."""

from __future__ import annotations

from math import inf
from types import FunctionType
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
import simpy
from hypothesis import given, settings

import simreduce as sr
from simreduce.engine import NOMINAL, TENSORFLOW, Calibration, Fabric, kernel
from simreduce.plan import Kind
from tests.strategies import ROUND, TWO_ENDED, Scene, scenes

_FLOATS = {
    "overhead", "latency", "amount", "cap", "weight", "due", "ready", "start", "finish", "left", "rate",
    "anchor", "capacity", "lane_freed", "clock",
}  # fmt: skip
_FLAGS = {"holds", "is_dirty", "lane_busy"}


class Machine(NamedTuple):
    """The two entry points of the kernel, interpreted or compiled."""

    advance: Any
    mark_dirty: Any


INTERPRETED = Machine(kernel.advance, kernel.mark_dirty)


@pytest.fixture(scope="module")
def compiled() -> Machine:
    """Every function of the kernel's module, callees first, with its globals bound to the compiled ones."""
    functions = {name: f for name, f in vars(kernel).items() if isinstance(f, FunctionType)}
    scope = dict(vars(kernel))
    done: list[str] = []

    def compile_with_callees(name: str) -> None:
        code = functions[name].__code__
        for callee in code.co_names:
            if callee in functions and callee not in done:
                compile_with_callees(callee)
        scope[name] = numba.njit(FunctionType(code, scope, name))
        done.append(name)

    for name in functions:
        if name not in done:
            compile_with_callees(name)
    assert "advance" in done
    return Machine(scope["advance"], scope["mark_dirty"])


def as_arrays(table: NamedTuple) -> NamedTuple:
    """The same columns as numpy arrays."""

    def column(name: str, values: list) -> np.ndarray:
        kind = np.float64 if name in _FLOATS else np.bool_ if name in _FLAGS else np.int64
        return np.array(values, dtype=kind)

    return type(table)(**{name: column(name, values) for name, values in table._asdict().items()})


def loaded(scene: Scene, times: int) -> tuple[NamedTuple, NamedTuple]:
    """The kernel's tables with `times` submissions of the scene's plan, before anything has happened."""
    fabric = Fabric(simpy.Environment(), scene.topology, scene.calibration, scene.runtime)
    for _ in range(times):
        fabric.submit(scene.plan, scene.ready)
    return fabric._ops, fabric._state


def drive(machine: Machine, ops: NamedTuple, state: NamedTuple, cut: float) -> list[tuple[bool, float]]:
    """Run to `cut` in steps, make link 0 half as wide, run to the end. Returns what every call returned."""
    answers = []
    for begin, horizon in ((0.0, cut / 3), (cut / 3, cut), (cut, inf)):
        now = begin
        if now == cut:
            state.capacity[0] /= 2
            machine.mark_dirty(0, state)
        completed = True
        while completed:
            completed, time = machine.advance(ops, state, now, horizon)
            now = max(now, time) if completed else now
            answers.append((completed, time))
    return answers


def check(compiled: Machine, scene: Scene, times: int = 2) -> None:
    """Both runs answer the same and leave the same in every column."""
    ops, state = loaded(scene, times)
    other_ops, other_state = as_arrays(ops), as_arrays(state)
    cut = 1e-5
    answers = drive(INTERPRETED, ops, state, cut)

    assert answers == drive(compiled, other_ops, other_state, cut)
    assert answers[-1] == (False, inf)
    for name, column in as_arrays(state)._asdict().items():
        assert (name, column.tobytes()) == (name, getattr(other_state, name).tobytes())
    assert np.isfinite(other_state.finish).all()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["xring#2", "hierarchical_copy+packs=4", "pscpu"])
def test_reductions_give_the_same_bits(compiled, spec):
    """Two at once on a DGX-1, with dispatch costs."""
    topology = sr.load_topology("dgx1v")
    plan = sr.compile(spec, sr.load_workload("bytes:3M"), sr.layout(topology))
    costs = Calibration("costs", dispatch={"copy": 5e-6, "add": 3e-6})
    ready = np.zeros(np.count_nonzero(plan.kind == Kind.INPUT))

    check(compiled, Scene(plan, topology, TENSORFLOW, costs, ready))


@pytest.mark.slow
def test_several_lanes_an_op_give_the_same_bits(compiled):
    """The queues with more than one lane per op."""
    topology = sr.load_topology("switch:5")
    plan = sr.compile("psgpu#2+packs=3", sr.load_workload("bytes:1M"), sr.layout(topology))
    ready = np.zeros(np.count_nonzero(plan.kind == Kind.INPUT))

    check(compiled, Scene(plan, topology, TWO_ENDED, NOMINAL, ready))


@pytest.mark.slow
@given(scene=scenes(ROUND))
@settings(max_examples=50)
def test_random_plans_give_the_same_bits(compiled, scene):
    """With ties, caps of memory, streams and times of readiness."""
    check(compiled, scene)
