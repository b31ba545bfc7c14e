"""Finding the best chunk size."""

from __future__ import annotations

import pytest

from simreduce.engine import IDEAL, NOMINAL, TENSORFLOW, Calibration
from simreduce.engine.setup import Setup
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune import simulate as chunks
from simreduce.study.tune.simulate import WORTH, rung, with_best_chunk
from simreduce.workload import Gradient, Workload

GIB = 2**30
PORT, ALPHA = 25e9, 1e-6
TERMS = {
    ("chain", "broadcast"): 1, ("chain", "reduce"): 1, ("chain", "all_reduce"): 2,
    ("binary_tree", "broadcast"): 2, ("binary_tree", "reduce"): 2, ("binary_tree", "all_reduce"): 3,
    ("double_tree", "broadcast"): 1, ("double_tree", "reduce"): 1, ("double_tree", "all_reduce"): 2,
}  # fmt: skip
"""How often the busiest port carries the tensor."""
LONG = (("chain", "broadcast"), ("chain", "reduce"))
"""On 32 ranks these cannot come within 5 %."""


def tensors(*nbytes):
    return Workload("test", tuple(Gradient(f"g{i}", size // 4) for i, size in enumerate(nbytes)))


def found(text, collective, machine, workload, runtime=IDEAL, calibration=NOMINAL):
    """The strategy with its chunk, and a function that gives the result of a strategy."""
    setup = Setup(machine, runtime, calibration)

    def result(strategy):
        return setup.simulate(setup.compile(strategy, workload))

    return with_best_chunk(parse_strategy(text, collective), workload, setup), result


def count_ops(monkeypatch):
    """The ops of each plan that a search simulates from now on."""
    made = []

    def count(name):
        simulate = getattr(Setup, name)

        def counted(self, plan):
            made.append(len(plan))
            return simulate(self, plan)

        monkeypatch.setattr(Setup, name, counted)

    count("summarise")
    count("find_seconds")
    return made


def switch(n):
    return f"switch:{n},bandwidth=25GB/s,latency=1us"


@pytest.mark.slow
@pytest.mark.parametrize("n", [8, 16, 32])
@pytest.mark.parametrize(("name", "collective"), TERMS)
def test_large_tensors_are_within_5_percent_of_the_floor(name, collective, n):
    """1 GiB: the busiest port's bytes at full rate, plus the latency of the path in the tree."""
    text = name
    if (name, collective, n) == ("double_tree", "all_reduce", 32):
        text = (
            "double_tree+chunk=6MiB"  # the best takes a minute to simulate, and this is good enough
        )
    strategy, run = found(text, collective, switch(n), tensors(GIB))
    result = run(strategy)
    busy = TERMS[name, collective] * GIB / PORT
    ways = 2 if collective == "all_reduce" else 1
    latency = ways * ALPHA * (n - 1 if name == "chain" else n.bit_length() - 1)

    assert busy == pytest.approx(result.floors.resource, rel=1e-9)
    assert busy < result.seconds
    if n == 32 and (name, collective) in LONG:
        theory = ((30 * ALPHA) ** 0.5 + busy**0.5) ** 2
        assert 1.05 * (busy + latency) < theory <= result.seconds <= WORTH * theory
    else:
        assert result.seconds <= 1.05 * (busy + latency)
        assert result.seconds <= 1.05 * (result.floors.seconds + latency)


@pytest.mark.parametrize("nbytes", [2**12, 2**16, 2**20, 2**24])
@pytest.mark.parametrize(("name", "collective"), [*TERMS][::2])
def test_no_size_tried_is_much_better(name, collective, nbytes):
    """Against every chunk size on the ladder; where trees share ports, time is a little jagged."""
    strategy, run = found(name, collective, switch(6), tensors(nbytes))
    sizes = [rung(i) for i in range(2 * nbytes.bit_length()) if nbytes / 512 < rung(i) < nbytes]
    others = [run(parse_strategy(f"{name}+chunk={size}", collective)).seconds for size in sizes]

    assert run(strategy).seconds <= 1.01 * min(others)
    assert run(strategy).seconds <= run(parse_strategy(name, collective)).seconds


@pytest.mark.parametrize(
    ("collective", "runtime"), [("broadcast", IDEAL), ("all_reduce", TENSORFLOW)]
)
def test_a_plateau_is_no_summit(monkeypatch, collective, runtime):
    """Trees of two machines: sizes from 2 MiB take equally long, far smaller ones a fifth less and
    more.
    """
    made = count_ops(monkeypatch)
    strategy, run = found("trees", collective, "dgx1vx2", tensors(2**26), runtime)
    sizes = [rung(i) for i in range(34, 50, 2)]
    others = [run(parse_strategy(f"trees+chunk={size}", collective)).seconds for size in sizes]

    assert run(strategy).seconds <= 1.08 * min(others)
    assert len(made) <= 40


def test_a_long_pipeline_is_judged_by_short_ones(monkeypatch):
    """The same as by simulating the whole, with no plan anywhere near as large."""
    made = count_ops(monkeypatch)
    strategy, run = found("chain", "broadcast", switch(8), tensors(GIB))

    assert "chain+chunk=3MiB" == strategy.text
    assert max(made) < 1000
    assert 342 * 7 < len(run(strategy).kind)  # 342 chunks


def test_many_tensors_are_simulated_as_they_are_but_in_no_huge_plan(monkeypatch):
    made = count_ops(monkeypatch)
    monkeypatch.setattr(chunks, "MOST_SIMULATED", 2000)
    strategy, run = found("chain", "all_reduce", switch(8), tensors(*[2**20] * 20))

    assert strategy.chunk > 0
    assert max(made) <= 2000
    assert run(strategy).seconds < run(parse_strategy("chain")).seconds


def test_the_same_question_has_the_same_answer():
    one, other = (
        found("double_tree", "all_reduce", switch(5), tensors(2**22, 2**18))[0].text
        for _ in range(2)
    )

    assert one == other


@pytest.mark.parametrize(
    "text", ["ring", "binomial_tree", "chain+chunk=64K", "hierarchical_copy", "nccl"]
)
def test_what_sends_no_chunks_or_has_a_size_stays_as_it_is(text):
    assert text == found(text, "all_reduce", "dgx1v", tensors(2**24))[0].text


@pytest.mark.parametrize("sizes", [(0,), (4,), (64,), (8, 8)])
def test_tensors_too_small_for_chunks_get_none(sizes):
    assert "chain" == found("chain", "all_reduce", switch(4), tensors(*sizes))[0].text


@pytest.mark.parametrize("n", [1, 2])
def test_nothing_to_pipeline(n):
    """One rank sends nothing; on two, a chunk has nobody to be sent on to."""
    assert "chain" == found("chain", "broadcast", switch(n), tensors(2**24))[0].text


def test_without_latency_chunks_are_small():
    """The smallest that plans allow are the fastest; the largest of those tried that are as good as
    they is taken.
    """
    strategy, run = found(
        "chain", "broadcast", "switch:4,bandwidth=25GB/s,latency=0us", tensors(2**24)
    )
    smallest = run(parse_strategy("chain+chunk=512B", "broadcast"))

    assert chunks.LARGEST / 8 < len(smallest.kind) <= chunks.LARGEST
    assert 512 <= strategy.chunk
    assert run(strategy).seconds <= WORTH * smallest.seconds


def test_dispatch_costs_make_chunks_larger():
    slow = Calibration("slow", dispatch={"copy": 50e-6, "add": 10e-6})
    quick = found("chain", "all_reduce", "dgx1v", tensors(2**26), TENSORFLOW)[0]
    late, run = found("chain", "all_reduce", "dgx1v", tensors(2**26), TENSORFLOW, slow)
    plain = run(parse_strategy("chain"))

    assert 0 < quick.chunk < late.chunk
    assert run(late).seconds < plain.seconds


@pytest.mark.parametrize(
    "text", ["double_tree+packs=2", "double_tree+mean", "ring:64k:double_tree"]
)
def test_other_options_stay(text):
    """Packs, the mean and ranges of sizes; the chunk comes last."""
    strategy, run = found(text, "all_reduce", switch(6), tensors(2**22, 2**12, 2**23))

    assert strategy.text.startswith(f"{text}+chunk=")
    assert run(strategy).seconds < 0.8 * run(parse_strategy(text)).seconds


def test_the_ladder():
    assert [2, 3, 4, 6, 8, 12, 16, 24] == [rung(i) for i in range(8)]
