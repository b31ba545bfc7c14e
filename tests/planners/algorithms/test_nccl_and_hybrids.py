"""nccl, its hybrids across tasks, and pscpu/pscpu, against the worked examples of TensorFlow's
builders.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import StrategyError
from simreduce.plan import Contract, Executor, Kind, Plan, PlanBuilder, verify
from simreduce.planners.algorithms.nccl import run
from simreduce.planners.algorithms.nccl.paths import rings
from simreduce.planners.layouts import Decision, Layout, layout
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload
from tests.planners.algorithms.transfers import plan_for


def tasks_of(workers: int, gpus: int) -> Layout:
    """Workers w0, w1, ... with GPUs w0/g0, ... and a CPU w0/cpu each; no links."""
    n = workers * gpus
    return Layout(
        ranks=tuple(f"w{w}/g{g}" for w in range(workers) for g in range(gpus)),
        tasks=tuple(tuple(range(w * gpus, (w + 1) * gpus)) for w in range(workers)),
        hosts=tuple(f"w{w}/cpu" for w in range(workers)),
        links=tuple((0,) * n for _ in range(n)),
    )


def compiled(strategy: str, shape: Layout, *elements: int, faithful: bool = False) -> Plan:
    gradients = tuple(Gradient(f"g{i}", n) for i, n in enumerate(elements))
    return compile_plan(strategy, Workload("test", gradients), shape, faithful=faithful)


def moved(plan: Plan, executor: Executor) -> Counter[tuple[str, str, int]]:
    ids = [op for op in range(len(plan)) if plan.kind[op] == Kind.COPY]
    copies = plan.copies()
    return Counter(c for op, c in zip(ids, copies, strict=True) if plan.executor[op] == executor)


def arcs(order: list[int]) -> list[tuple[int, int]]:
    return list(zip(order, [*order[1:], order[0]], strict=True))


def test_a_dgx1v_has_six_rings_and_a_dgx1p_four():
    """Ring A (double links) twice, ring B once, both ways each: no lane is used twice."""
    for machine, count in (("dgx1v", 6), ("dgx1p", 4)):
        shape = layout(load_topology(machine))
        found = rings(shape, range(8))
        used = Counter(arc for order in found for arc in arcs(order))

        assert count == len(found)
        assert all(used[a, b] <= shape.links[a][b] for a, b in used)
        assert all(sorted(order) == list(range(8)) for order in found)


def test_gpus_without_links_get_one_ring_in_rank_order():
    assert rings(layout(load_topology("switch:4")), range(4)) == [(0, 1, 2, 3)]


def test_a_ring_moves_the_least_that_an_all_reduce_can():
    """Each of n GPUs sends and receives 2(n-1)/n of the tensor."""
    plan = plan_for("nccl", "dgx1v", 8 * 6 * 10)
    sent = Counter()
    for source, _, n in plan.copies():
        sent[source] += n

    assert {f"gpu{d}": 2 * 7 * 60 for d in range(8)} == sent
    assert all(Executor(int(e)) != Executor.TF for e in plan.executor[plan.kind == Kind.COPY])


@given(st.integers(1, 9), st.integers(0, 40), st.data())
def test_broadcast_reaches_every_gpu(n, elements, data):
    root = data.draw(st.integers(0, n - 1))
    b = PlanBuilder([f"gpu{i}" for i in range(n)])
    held = [b.input(root, 0, elements)._replace(device=rank) for rank in range(n)]
    for value in run(b, tasks_of(1, n), "broadcast", held, (), Decision(channels=2), root):
        b.output(value)
    promise = Contract.all_reduce(range(n), [(0, elements, 0)])
    plan = b.finish(
        Contract(
            "broadcast",
            promise.device,
            promise.lo,
            promise.hi,
            promise.dtype,
            promise.members,
            promise.divisor,
            (frozenset([root]),),
        )
    )

    assert verify(plan) == []
    assert elements * (n - 1) == sum(c[2] for c in plan.copies())


def test_nccl_xring_crosses_with_half_tensors():
    """2 workers x 2 GPUs, n = 10: pieces of 5; 10 elements between workers per direction."""
    plan = compiled("nccl/xring", tasks_of(2, 2), 10)

    assert Counter({("w0/g0", "w1/g0", 5): 2, ("w1/g0", "w0/g0", 5): 2}) == moved(plan, Executor.TF)
    assert verify(plan) == []


def test_nccl_pscpu_sums_one_half_on_each_cpu():
    plan = compiled("nccl/pscpu", tasks_of(2, 2), 10)
    expected = Counter()
    for w in (0, 1):
        for host in (0, 1):
            expected[f"w{w}/g0", f"w{host}/cpu", 5] += 1
            expected[f"w{host}/cpu", f"w{w}/g0", 5] += 1

    assert expected == moved(plan, Executor.TF)
    assert verify(plan) == []


def test_nccl_rechd_of_four_workers_and_eight_elements():
    """Hop 0 pairs (0,1) (2,3) exchange 4, hop 1 pairs (0,2) (1,3) exchange 2, and back; sums are
    (x0+x1)+(x2+x3).
    """
    plan = compiled("nccl/rechd", tasks_of(4, 1), 8)
    pairs = {4: [(0, 1), (2, 3)], 2: [(0, 2), (1, 3)]}
    expected = Counter()
    for size, both in pairs.items():
        for a, b in both:
            expected[f"w{a}/g0", f"w{b}/g0", size] += 2
            expected[f"w{b}/g0", f"w{a}/g0", size] += 2

    assert expected == moved(plan, Executor.TF)
    assert verify(plan) == []


@pytest.mark.parametrize(("workers", "elements"), [(3, 12), (6, 12), (4, 10), (4, 6)])
def test_nccl_rechd_refuses_other_numbers(workers, elements):
    with pytest.raises(StrategyError, match=r"power of two|divisible by"):
        compiled("nccl/rechd", tasks_of(workers, 2), elements)


def test_pscpu_pscpu_sums_on_the_first_cpu():
    """2 x 2, n = 10, one second-level device: w1/cpu sends 10 to w0/cpu and gets 10 back."""
    plan = compiled("pscpu/pscpu", tasks_of(2, 2), 10)
    crossing = {c: k for c, k in moved(plan, Executor.TF).items() if c[0][:2] != c[1][:2]}

    assert crossing == {("w1/cpu", "w0/cpu", 10): 1, ("w0/cpu", "w1/cpu", 10): 1}
    assert verify(plan) == []


def test_pscpu_pscpu_with_two_shards_sums_halves_on_both():
    plan = compiled("pscpu/pscpu#2", tasks_of(2, 2), 10)
    crossing = {c: k for c, k in moved(plan, Executor.TF).items() if c[0][:2] != c[1][:2]}

    assert crossing == {("w1/cpu", "w0/cpu", 5): 2, ("w0/cpu", "w1/cpu", 5): 2}


def test_faithful_pscpu_pscpu_ignores_its_shards():
    """tf_cnn_benchmarks always uses the first CPU alone."""
    assert (
        compiled("pscpu/pscpu", tasks_of(2, 2), 10, faithful=True).copies()
        == compiled("pscpu/pscpu#2", tasks_of(2, 2), 10, faithful=True).copies()
    )


@pytest.mark.parametrize("strategy", ["pscpu/pscpu#3", "nccl/pscpu#3", "pscpu#3"])
def test_more_shards_than_cpus_are_refused(strategy):
    with pytest.raises(StrategyError, match="2 here"):
        compiled(strategy, tasks_of(2, 2), 10)


def test_nccl_xring_takes_one_sub_chunk_across_tasks():
    with pytest.raises(StrategyError, match="1 sub-chunk only"):
        compiled("nccl/xring#2", tasks_of(2, 2), 10)
    assert verify(compiled("nccl/xring#2", tasks_of(1, 2), 10)) == []


@pytest.mark.parametrize("strategy", ["nccl/xring", "nccl/rechd", "nccl/pscpu", "pscpu/pscpu"])
def test_faithful_hybrids_fail_in_a_single_process(strategy):
    assert verify(compiled(strategy, tasks_of(1, 4), 10)) == []
    with pytest.raises(StrategyError, match="failed to parse device"):
        compiled(strategy, tasks_of(1, 4), 10, faithful=True)


# (algorithm, workers, gpus, shards) -> the devices that sum successive variables
GATHERERS = [
    ("pscpu", 2, 2, 1, [["w0/cpu"], ["w1/cpu"], ["w0/cpu"]]),
    ("pscpu", 2, 2, 2, [["w0/cpu", "w1/cpu"], ["w0/cpu", "w1/cpu"]]),
    ("pscpu", 3, 2, 2, [["w0/cpu", "w2/cpu"], ["w1/cpu", "w0/cpu"], ["w0/cpu", "w2/cpu"]]),
    ("psgpu", 2, 2, 1, [["w0/g0"], ["w1/g0"], ["w0/g1"], ["w1/g1"], ["w0/g0"]]),
    ("psgpu", 2, 2, 2, [["w0/g0", "w0/g1"], ["w1/g0", "w1/g1"], ["w0/g0", "w0/g1"]]),
    ("psgpu", 2, 2, 4, [["w0/g0", "w1/g0", "w0/g1", "w1/g1"]] * 2),
    (
        "psgpu",
        1,
        8,
        4,
        [["w0/g0", "w0/g2", "w0/g4", "w0/g6"], ["w0/g1", "w0/g3", "w0/g5", "w0/g7"]],
    ),
]


@pytest.mark.parametrize(("algorithm", "workers", "gpus", "shards", "expected"), GATHERERS)
def test_the_round_robin_of_gather_groups(algorithm, workers, gpus, shards, expected):
    plan = compiled(f"{algorithm}#{shards}", tasks_of(workers, gpus), *[8] * len(expected))
    found = [
        [plan.devices[plan.device[op]] for op in range(len(plan))
         if plan.kind[op] == Kind.ADD and 8 * i <= plan.lo[op] < 8 * (i + 1)]
        for i in range(len(expected))
    ]  # fmt: skip

    assert expected == found


@pytest.mark.parametrize(
    "strategy",
    [
        "nccl",
        "nccl/xring",
        "nccl/rechd",
        "nccl/pscpu",
        "pscpu/pscpu",
        "collective",
        "collective#2",
        "xring",
        "pscpu",
        "psgpu",
    ],
)
@pytest.mark.parametrize(("workers", "gpus"), [(2, 1), (2, 2), (2, 3), (4, 2)])
@pytest.mark.parametrize("options", ["", "+packs=2", "+mean"])
def test_every_algorithm_verifies_across_tasks(strategy, workers, gpus, options):
    assert verify(compiled(strategy + options, tasks_of(workers, gpus), 8, 0, 64)) == []
