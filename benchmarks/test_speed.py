"""How long the parts take, and the engine against the naive model of the tests, in one run.

make bench
"""

from __future__ import annotations

import pytest

import simreduce as sr
from simreduce.engine import IDEAL, NOMINAL
from simreduce.plan import Kind
from tests.engine.oracle import Oracle, Submission

MACHINES = {"ring, 64 ranks": ("ring", "switch:64", "bytes:64M"),
            "xring, ResNet-50, 8 GPUs": ("xring", "dgx1v", "resnet50")}  # fmt: skip


@pytest.fixture(params=MACHINES, ids=list(MACHINES))
def case(request):
    strategy, topology, workload = MACHINES[request.param]
    machine = sr.load_topology(topology)
    return strategy, machine, sr.load_workload(workload), sr.layout(machine)


@pytest.mark.benchmark(group="compile")
def test_compile(benchmark, case):
    strategy, _, workload, layout = case
    benchmark(sr.compile, strategy, workload, layout)


@pytest.mark.benchmark(group="verify")
def test_verify(benchmark, case):
    strategy, _, workload, layout = case
    benchmark(sr.verify, sr.compile(strategy, workload, layout))


@pytest.mark.benchmark(group="simulate")
def test_simulate(benchmark, case):
    strategy, machine, workload, layout = case
    plan = sr.compile(strategy, workload, layout)
    result = benchmark(sr.simulate, plan, machine)
    benchmark.extra_info["ops"] = len(plan)
    benchmark.extra_info["ops_per_second"] = len(plan) / benchmark.stats["min"]
    assert result.seconds > 0


@pytest.mark.benchmark(group="engine against the naive model, ring of 16")
@pytest.mark.parametrize("model", ["engine", "naive"])
def test_against_the_naive_model(benchmark, model):
    machine = sr.load_topology("switch:16")
    plan = sr.compile("ring", sr.load_workload("bytes:16M"), sr.layout(machine))
    if model == "engine":
        benchmark(sr.simulate, plan, machine, "ideal")
    else:
        ready = [0.0] * int((plan.kind == Kind.INPUT).sum())
        benchmark.pedantic(
            lambda: Oracle(machine, IDEAL, NOMINAL).run([Submission(plan, ready)]), rounds=3
        )
