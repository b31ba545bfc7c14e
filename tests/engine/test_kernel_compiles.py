"""The kernel's source, unchanged, under numba: it compiles, and every bit is that of the interpreted run."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

import numpy as np
import pytest
import simpy
from hypothesis import given, settings

import simreduce as sr
from simreduce.engine import NOMINAL, TENSORFLOW, Calibration, Fabric, compiled, kernel, sharing
from simreduce.engine.calendar import Heap
from simreduce.engine.store import as_arrays
from simreduce.plan import Kind
from tests.strategies import ROUND, TWO_ENDED, Scene, scenes

Advance = Callable[..., tuple[bool, float]]


def columns(table: NamedTuple) -> dict[str, bytes]:
    """Every column, as the compiled kernel sees it."""
    flat = {}
    for name, column in as_arrays(table)._asdict().items():
        if isinstance(column, Heap):
            flat |= {f"{name}.{each}": value for each, value in columns(column).items()}
        else:
            flat[name] = column.tobytes()
    return flat


def loaded(scene: Scene, times: int) -> tuple[NamedTuple, NamedTuple]:
    """The kernel's tables with `times` submissions of the scene's plan, before anything has happened."""
    fabric = Fabric(simpy.Environment(), scene.topology, scene.calibration, scene.runtime)
    for _ in range(times):
        fabric.submit(scene.plan, scene.ready)
    return fabric._store.ops, fabric._store.state


def drive(advance: Advance, ops: NamedTuple, state: NamedTuple, cut: float) -> list[tuple[bool, float]]:
    """Run to `cut` in steps, make link 0 half as wide, run to the end. Returns what every call returned."""
    answers = []
    for begin, horizon in ((0.0, cut / 3), (cut / 3, cut), (cut, inf)):
        now = begin
        if now == cut:
            state.capacity[0] /= 2
            sharing.mark_dirty(0, state)
        completed = True
        while completed:
            completed, time = advance(ops, state, now, horizon)
            now = max(now, time) if completed else now
            answers.append((completed, time))
    return answers


def check(scene: Scene, times: int = 2) -> None:
    """Both runs answer the same and leave the same in every column."""
    ops, state = loaded(scene, times)
    other_ops, other_state = as_arrays(ops), as_arrays(state)
    cut = 1e-5
    answers = drive(kernel.advance, ops, state, cut)

    assert answers == drive(compiled.advance(), other_ops, other_state, cut)
    assert answers[-1] == (False, inf)
    assert columns(state) == columns(other_state)
    assert np.isfinite(other_state.finish).all()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["xring#2", "hierarchical_copy+packs=4", "pscpu"])
def test_reductions_give_the_same_bits(spec):
    """Two at once on a DGX-1, with dispatch costs."""
    topology = sr.load_topology("dgx1v")
    plan = sr.compile(spec, sr.load_workload("bytes:3M"), sr.layout(topology))
    costs = Calibration("costs", dispatch={"copy": 5e-6, "add": 3e-6})
    ready = np.zeros(np.count_nonzero(plan.kind == Kind.INPUT))

    check(Scene(plan, topology, TENSORFLOW, costs, ready))


@pytest.mark.slow
def test_several_lanes_an_op_give_the_same_bits():
    """The queues with more than one lane per op."""
    topology = sr.load_topology("switch:5")
    plan = sr.compile("psgpu#2+packs=3", sr.load_workload("bytes:1M"), sr.layout(topology))
    ready = np.zeros(np.count_nonzero(plan.kind == Kind.INPUT))

    check(Scene(plan, topology, TWO_ENDED, NOMINAL, ready))


@pytest.mark.slow
@given(scene=scenes(ROUND))
@settings(max_examples=50)
def test_random_plans_give_the_same_bits(scene):
    """With ties, caps of memory, streams and times of readiness."""
    check(scene)
