"""All-to-alls over other GPUs: proved, and at the rate of the best flow."""

from __future__ import annotations

import pytest

from simreduce.engine import IDEAL
from simreduce.engine.setup import Setup
from simreduce.plan import verify
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_collective
from simreduce.planners.synthesis.rings import all_to_all
from simreduce.study.tune.simulate import with_best_chunk
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload
from tests.simulating import simulate

GIB = 1 << 30


@pytest.mark.parametrize("machine", ["dgx1v", "switch:1", "switch:3", "ring:5", "dgx1vx2"])
@pytest.mark.parametrize("strategy", ["relay", "relay+chunk=64"])
@pytest.mark.parametrize("elements", [1, 7, 1000])
def test_every_plan_is_proved(machine, strategy, elements):
    shape = layout(load_topology(machine))
    gradients = Workload("two", (Gradient("a", elements), Gradient("b", 12)))

    assert [] == verify(compile_collective("all_to_all", strategy, gradients, shape))


def seconds(name: str, strategy: str) -> float:
    """Of 1 GiB, with the chunks that `bench` chooses."""
    machine = load_topology(name)
    shape, gradients = layout(machine), Workload("one", (Gradient("a", GIB // 4),))
    parsed = parse_strategy(strategy, "all_to_all")
    chosen = with_best_chunk(parsed, gradients, Setup(machine, IDEAL, part=shape))
    plan = compile_collective("all_to_all", chosen, gradients, shape)
    return simulate(plan, machine, runtime="ideal").seconds


def test_a_dgx1v_takes_8_thirds_of_a_part_over_one_link():
    """Part GIB/8 over a link of 24 GB/s; without relays 28 of 56 pairs go through the hosts."""
    best = 8 / 3 * GIB / 8 / 24e9

    assert best < seconds("dgx1v", "relay") < 1.005 * best
    assert seconds("dgx1v", "direct") > 6 * best


@pytest.mark.parametrize("machine", ["dgx1p", "v100-mesh-4", "ring:6", "full:6"])
def test_the_best_flow_is_reached(machine):
    best = GIB / all_to_all(layout(load_topology(machine)).network()).rate

    assert best * (1 - 1e-9) < seconds(machine, "relay") < 1.02 * best
