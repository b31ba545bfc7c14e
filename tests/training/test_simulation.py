"""Steps composed of calls that take turns, against the simulation of every event."""

from __future__ import annotations

from dataclasses import replace

import pytest
import simpy
from hypothesis import given, settings, strategies as st

from simreduce.engine import IDEAL, Disturbance
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.plan import Plan
from simreduce.planners.strategy import parse_strategy
from simreduce.training import Profile, StepJob, method_for_strategy, simulate_step
from simreduce.training.calls import CallCost
from simreduce.training.executions import COLLECTIVE, COMPUTE, Execution, ExecutionNode
from simreduce.training.executor import run_nodes
from simreduce.training.path import run_path
from simreduce.training.sharded import Sharding
from simreduce.training.sharded.collectives import sharded_method
from simreduce.training.sharded.simulation import write_sharded_execution
from simreduce.training.simulation import compose_step, write_execution
from simreduce.workload import Gradient, Layer, Model
from tests.thorough import examples

TIMES = st.integers(0, 40).map(lambda n: n * 1e-4)


@st.composite
def jobs(draw: st.DrawFn) -> StepJob:
    """Up to six layers, some without gradients and some with two."""
    count = draw(st.integers(1, 6))
    layers = [
        Layer(f"l{i}", tuple(Gradient(f"g{i}.{j}", 250 * k) for j, k in enumerate(sizes)))
        for i, sizes in enumerate(
            draw(st.lists(st.lists(st.integers(1, 40), max_size=2), min_size=count, max_size=count))
        )
    ]
    if not any(layer.gradients for layer in layers):
        layers[0] = Layer("l0", (Gradient("g0", 1000),))
    times = [draw(st.lists(TIMES, min_size=count, max_size=count)) for _ in range(2)]
    profile = Profile(tuple(times[0]), tuple(times[1]), "drawn")
    update, passes = draw(st.sampled_from([0.0, 3e-4])), draw(st.integers(1, 2))
    return StepJob(Model("m", tuple(layers)), profile, 1, update=update, accumulate=passes)


@settings(max_examples=examples(60), deadline=None)
@given(
    jobs(),
    st.sampled_from([0.0, 1e-4, 1e-3, 2.5e-3]),
    st.sampled_from([0, 5000, 60_000, 10**9]),
    st.sampled_from([1.0, 1.3]),
)
def test_the_composed_step_is_the_simulated_one(job, cycle, threshold, slow):
    """Of buffers that take what they take alone."""
    setup = Setup("switch:3,bandwidth=50MB/s,latency=10us", IDEAL)
    setup = setup.but(disturbance=Disturbance(slow={"gpu1": slow}))
    strategy = parse_strategy(f"nccl+fusion={threshold}")
    method = method_for_strategy(strategy, job.model.workload, setup.layout, cycle=cycle)
    known: dict[tuple[int, ...], CallCost] = {}

    def cost(buffer: tuple[int, ...]) -> CallCost:
        if buffer not in known:
            (plan,) = [r.plan for r in method.fusion.reductions(buffer)]
            assert isinstance(plan, Plan)
            known[buffer] = CallCost(setup.simulate(plan).seconds, 0)
        return known[buffer]

    composed = replace(method, fusion=replace(method.fusion, planned=False))
    found = compose_step(job, composed, setup, cost).seconds

    assert job.reduces_once
    assert found == pytest.approx(simulate_step(job, method, setup).seconds, rel=1e-6)


def test_what_it_does_not_say():
    job = StepJob(Model("m", (Layer("l", (Gradient("g", 9),)),)), Profile((1.0,), (1.0,), "x"), 1)

    assert job.reduces_once
    assert not replace(job, barrier=False).reduces_once
    assert not replace(job, accumulate=2, no_sync=False).reduces_once


@settings(max_examples=examples(40), deadline=None)
@given(jobs(), st.sampled_from([1.0, 1.3]), st.sampled_from(["nccl", "nccl+ddp=1"]))
def test_what_every_rank_does_takes_as_long_as_the_step(job, slow, text):
    """The execution that programs read, with calls that take what they take alone."""
    setup = Setup("switch:3,bandwidth=50MB/s,latency=10us", IDEAL)
    setup = setup.but(disturbance=Disturbance(slow={"gpu1": slow}))
    method = method_for_strategy(parse_strategy(text), job.model.workload, setup.layout)
    execution, env = write_execution(job, method, setup), simpy.Environment()
    took = {
        sum(job.model.workload.gradients[i].nbytes for i in each.gradients): setup.find_seconds(
            each.moves
        )
        for each in method.reductions
    }
    ran = run_nodes(execution, env, lambda node, _: env.timeout(took[node.nbytes]))

    assert [0, 1, 2] == [*execution.nodes]
    assert max(each.end for each in ran) == pytest.approx(
        simulate_step(job, method, setup).seconds, rel=1e-6
    )


@pytest.mark.parametrize("method", ["zero1", "fsdp", "hsdp"])
def test_what_every_rank_of_a_sharded_step_does(method):
    """Collectives in groups of its own, with the bytes that it gives."""
    layers = tuple(Layer(f"h.{i}.mlp", (Gradient(f"g{i}", 4096),)) for i in range(3))
    job = StepJob(Model("m", layers), Profile((1e-3,) * 3, (2e-3,) * 3, "given"), 1)
    setup = Setup("dgx-a100", "nccl")
    sharding = Sharding(group=4) if method == "hsdp" else Sharding()
    how = sharded_method(method, parse_strategy("nccl"), job, setup.layout, sharding)
    execution = write_sharded_execution(job, how, setup)
    moved = [node for node in execution.nodes[5] if node.collective]

    assert [*range(8)] == [*execution.nodes]
    assert {4096 * 4 // how.group} == {n.nbytes for n in moved if n.collective == "all_gather"}
    groups = {node.collective: execution.members(node) for node in moved}
    if method == "hsdp":
        assert {"all_gather": (4, 5, 6, 7), "reduce_scatter": (4, 5, 6, 7),
                "all_reduce": (1, 5)} == groups  # fmt: skip
    else:
        assert {(*range(8),)} == {*groups.values()}


def test_steps_that_are_not_alike_are_no_execution():
    job = StepJob(Model("m", (Layer("l", (Gradient("g", 9),)),)), Profile((1.0,), (1.0,), "x"), 1)
    setup = Setup("switch:2", IDEAL)
    method = method_for_strategy(parse_strategy("nccl"), job.model.workload, setup.layout)

    for other in (replace(job, barrier=False), method), (job, replace(method, streams=2)):
        with pytest.raises(InputError, match="only steps that are alike"):
            write_execution(*other, setup)


def test_a_path_goes_through_calls_that_take_no_time():
    """Two of one group that end at once are told apart."""
    first = ExecutionNode("work", COMPUTE, (), "kernels", 1.0)
    sums = [
        ExecutionNode(f"sum {i}", COLLECTIVE, (i,), "nccl", collective="all_reduce", nbytes=1)
        for i in range(2)
    ]
    execution = Execution("test", dict.fromkeys(range(2), (first, *sums)), 2)
    env = simpy.Environment()
    ran = run_nodes(execution, env, lambda node, _: env.timeout(float(node.name == "sum 0")))

    assert [("forward", 1.0), ("transfer", 1.0)] == [
        (each.kind, each.seconds) for each in run_path(ran)
    ]
