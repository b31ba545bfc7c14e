"""Every strategy that the devices accept is proven for every gradient list; what they do not accept
is refused.
"""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings, strategies as st

from simreduce.errors import StrategyError
from simreduce.plan import verify
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.planners.layouts import Layout, Reducer
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.workload import Gradient, Workload
from tests.thorough import examples

sizes = st.one_of(
    st.just(0), st.integers(1, 9), st.integers(1, 200), st.sampled_from([255, 256, 257, 4096])
)
gradients = st.one_of(
    st.lists(sizes, min_size=1, max_size=1),
    st.lists(sizes, min_size=1, max_size=6),
    st.tuples(sizes, st.integers(7, 60)).map(lambda t: [t[0]] * t[1]),
)


def _machine(*gpus: int) -> Layout:
    """Boxes with so many GPUs each, all linked, and a CPU; a switch that links all can sum."""
    ranks = tuple(f"n{box}.gpu{i}" for box, count in enumerate(gpus) for i in range(count))
    first = [sum(gpus[:box]) for box in range(len(gpus))]
    tasks = tuple(tuple(range(at, at + count)) for at, count in zip(first, gpus, strict=True))
    links = tuple(tuple(int(i != j) for j in range(len(ranks))) for i in range(len(ranks)))
    hosts = tuple(f"n{box}.cpu0" for box in range(len(gpus)))
    switch = Reducer("switch0", tuple(range(len(ranks))), ())
    return Layout(ranks, tasks, hosts, links, reducers=(switch,))


machines = st.one_of(
    st.integers(1, 9).map(_machine),
    st.tuples(st.integers(1, 4), st.integers(1, 4))
    .map(lambda t: _machine(*[t[0]] * t[1]))
    .filter(lambda m: m.n <= 9),
    st.lists(st.integers(1, 4), min_size=2, max_size=3).map(lambda counts: _machine(*counts)),
)
shards = st.one_of(st.just(1), st.integers(1, 4), st.integers(-1, 10))
packs = st.sampled_from(["", "+packs=1", "+packs=2", "+packs=3", "+packs=8", "+packs=17"])
mean = st.sampled_from(["", "+mean"])


def _workload(elements: list[int], dtype: int = 0) -> Workload:
    return Workload("test", tuple(Gradient(f"g{i}", n, dtype) for i, n in enumerate(elements)))


def _proven_or_refused(strategy: str, workload: Workload, machine: Layout) -> bool:
    problems: tuple[str, ...] = ()
    try:
        plan = compile_plan(strategy, workload, machine)
    except StrategyError as error:
        problems = error.problems
    if problems:
        assert all(problem.startswith(strategy) for problem in problems)
        return False

    assert [] == [str(problem) for problem in verify(plan)]
    return True


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@settings(max_examples=examples(30, usual=10))
@given(
    elements=gradients,
    machine=machines,
    shards=shards,
    packs=packs,
    mean=mean,
    dtype=st.integers(0, 5),
)
@example(elements=[0], machine=_machine(1), shards=1, packs="", mean="", dtype=0)
@example(elements=[0], machine=_machine(2), shards=1, packs="+packs=8", mean="+mean", dtype=0)
@example(elements=[0, 0, 1, 0], machine=_machine(9), shards=9, packs="", mean="", dtype=0)
@example(elements=[3, 0, 5], machine=_machine(4, 4), shards=4, packs="+packs=17", mean="", dtype=1)
@example(elements=[1, 200, 0], machine=_machine(3), shards=1, packs="", mean="", dtype=0)
@example(elements=[257, 5], machine=_machine(5), shards=2, packs="", mean="+mean", dtype=0)
@example(elements=[9, 1, 9], machine=_machine(6), shards=3, packs="+packs=2", mean="", dtype=0)
@example(elements=[6, 100], machine=_machine(7), shards=1, packs="", mean="", dtype=0)
@example(elements=[8, 60, 1], machine=_machine(2, 3), shards=1, packs="", mean="", dtype=0)
@example(elements=[1, 12, 97], machine=_machine(3, 3), shards=2, packs="", mean="", dtype=0)
def test_a_strategy_is_proven_or_refused(algorithm, elements, machine, shards, packs, mean, dtype):
    """Gradients of no elements, fewer elements than devices, one gradient, many; one machine and
    several.
    """
    strategy = f"{algorithm}#{shards}{packs}{mean}"

    _proven_or_refused(strategy, _workload(elements, dtype), machine)


@settings(max_examples=examples(200))
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(sorted(ALGORITHMS)), st.integers(1, 3), st.integers(0, 300)),
        min_size=2,
        max_size=4,
    ),
    elements=gradients,
    machine=machines,
    packs=packs,
    mean=mean,
)
def test_ranges_of_sizes_are_proven_or_refused(parts, elements, machine, packs, mean):
    """Any algorithms, side by side in one plan."""
    spec = ":".join(f"{name}#{shards}:{limit}" for name, shards, limit in parts).rpartition(":")[0]

    _proven_or_refused(spec + packs + mean, _workload(elements), machine)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("packs", ["", "+packs=16"])
def test_hundreds_of_gradients_are_proven(algorithm, packs):
    """On a machine that every algorithm accepts, or on two for what sums between machines."""
    machine = _machine(4, 4) if algorithm == "nccl:collnet" else _machine(8)
    assert _proven_or_refused(
        algorithm + packs, _workload([n * n % 151 for n in range(200)]), machine
    )


@pytest.mark.parametrize(
    "machine", [_machine(2), _machine(8), _machine(4, 4)], ids=["2", "8", "4+4"]
)
@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
def test_every_shard_count_worth_trying_is_accepted(algorithm, machine):
    """What the search proposes for a machine is not refused there."""
    for shards in algorithm.choices(machine):
        assert _proven_or_refused(f"{algorithm.name}#{shards}", _workload([8, 0, 1000]), machine)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shards", [-1, 0, 99])
def test_a_shard_count_that_makes_no_sense_is_refused(algorithm, shards):
    """By every algorithm, whether or not it knows shards, but for those that upstream lets have
    any.
    """
    machine, ignored = (
        _machine(4),
        ALGORITHMS[algorithm].shards.startswith(("ignored", "1 only, with several")),
    )
    if shards == 99 and ignored and algorithm != "nccl/pscpu":
        assert _proven_or_refused(f"{algorithm}#{shards}", _workload([100]), machine)
        return

    assert not _proven_or_refused(f"{algorithm}#{shards}", _workload([100]), machine)


@pytest.mark.parametrize("algorithm", ["pscpu", "copy_to_cpu"])
def test_a_machine_without_a_cpu_is_refused_by_what_needs_one(algorithm):
    """It is told which GPU lacks its host."""
    machine = _machine(2, 2)
    lone = Layout(machine.ranks, machine.tasks, ("n0.cpu0", ""), machine.links)

    with pytest.raises(StrategyError, match=r"it needs a CPU beside 'n1\.gpu0', and there is none"):
        compile_plan(algorithm, _workload([100]), lone)
