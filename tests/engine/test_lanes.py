"""The lanes of many calls at once are those of one call after another."""

from __future__ import annotations

import numpy as np
import pytest
import simpy
from hypothesis import given, settings, strategies as st

from simreduce.computing import arrays
from simreduce.engine import bounds, lowering
from simreduce.engine.fabric import Fabric
from simreduce.engine.lowering import demands
from simreduce.engine.lowering.demands import number_lanes
from simreduce.engine.runtime import RUNTIMES
from simreduce.planners.layouts import layout
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.testing.strategies import ONE_WIRE, PIPED, ROUND, TWO_ENDED, scenes
from simreduce.topology import fold, load_topology
from simreduce.workload import Gradient, Workload
from tests.covering import covering
from tests.simulating import simulate
from tests.thorough import examples

BOTH = st.sampled_from([*RUNTIMES.values(), TWO_ENDED, PIPED, ONE_WIRE])


def both(plan, topology, runtime):
    """The rows of lanes, and their names, if calls are looked at one after another, and if all at
    once.
    """
    seen = []

    def keep(*given):
        made = number_lanes(*given)
        seen.append([each.tolist() for each in made] + [list(given[-1].items())])
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "number_lanes", keep)
        for few in (1 << 30, -1):
            patch.setattr(demands, "_FEW", few)
            simulate(plan, topology, runtime)
    return seen


@given(scenes(ROUND), BOTH)
@settings(max_examples=examples(60), deadline=None)
def test_random_plans(scene, runtime):
    """Under every runtime, those that look at names included."""
    each, alike = both(scene.plan, scene.topology, runtime)
    assert each == alike


@pytest.mark.parametrize(
    ("machine", "strategy", "runtime"),
    covering(
        ["dgx1v", "dgx-a100x2", "switch:5", "p3-16xlargex2"],
        ["psgpu", "nccl:tree", "ring", "direct", "xring#2"],
        [*RUNTIMES.values()],
    ),
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_machines(machine, strategy, runtime):
    """Of one and of several machines, folded ones too."""
    topology = load_topology(machine)
    workload = Workload("test", (Gradient("tensor", 5 * 1024),))
    folds = machine == "switch:5" and strategy in {"ring", "direct"}
    for graph in (topology, fold(topology)) if folds else (topology,):
        each, alike = both(compile_plan(strategy, workload, layout(graph)), graph, runtime)
        assert each == alike
        assert each[2] or runtime.name == "ideal"


@given(scenes(ROUND), st.integers(1, 7))
@settings(max_examples=examples(30), deadline=None)
def test_seconds_of_lanes_do_not_depend_on_blocks(scene, block):
    """Ops are added in order, however many at a time."""
    fabric = Fabric(simpy.Environment(), scene.topology, runtime=PIPED)
    lowered = fabric.lower(scene.plan)
    seconds = np.sqrt(np.arange(len(scene.plan)) + 2.0)
    whole = bounds.lane_seconds(lowered, seconds, 1 / seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "BLOCK", block)
        parts = bounds.lane_seconds(lowered, seconds, 1 / seconds)

    assert whole.tolist() == parts.tolist()
