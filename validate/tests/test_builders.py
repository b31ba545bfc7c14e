"""Every transfer, sum and NCCL group of our plans against the graphs that TensorFlow's own builders
make.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import StrategyError
from validate.tests.upstream import differences, graph, machine, plan

SIZES = [1, 2, 3, 5, 7, 8, 16, 17, 64, 100, 257]
MACHINES = [(1, 2), (1, 3), (1, 4), (1, 5), (1, 8), (2, 1), (2, 2), (2, 3), (2, 4), (3, 1), (3, 2),
(4, 2),
            (8, 1)]  # fmt: skip
"""Tasks, and GPUs of each."""

ORDERS = {1: [(0,)], 2: [(1, 0)], 3: [(0, 2, 1)], 4: [(0, 1, 3, 2), (3, 1, 0, 2)],
5: [(4, 2, 0, 3, 1)],
          8: [(0, 1, 2, 3, 7, 6, 5, 4)]}  # fmt: skip


@pytest.mark.parametrize(("tasks", "gpus"), MACHINES)
def test_xring(tasks, gpus):
    """Sizes below, at and around multiples of the pieces, for every number of sub-chunks."""
    for shards in sorted({1, 2, 3, gpus // 2, gpus - 1, gpus} & set(range(1, gpus + 1))):
        pieces = tasks * gpus * shards
        sizes = sorted({1, 7, pieces - 1, pieces, pieces + 1, 2 * pieces + 3})
        assert {} == differences(
            "xring", machine(tasks, gpus), [n for n in sizes if n], shards=shards
        )


@pytest.mark.parametrize(("tasks", "gpus"), MACHINES)
def test_xring_in_the_order_of_gpu_indices(tasks, gpus):
    for order, shards in itertools.product(ORDERS[gpus], {1, min(2, gpus), gpus}):
        layout = machine(tasks, gpus).with_order(order)
        assert {} == differences("xring", layout, [3, 10, 97], shards=shards)


@pytest.mark.parametrize(("tasks", "gpus"), [(1, 1), *MACHINES])
def test_psgpu(tasks, gpus):
    for shards in range(1, tasks * gpus + 1):
        assert {} == differences("psgpu", machine(tasks, gpus), SIZES, shards=shards)


@pytest.mark.parametrize(("tasks", "gpus"), [(4, 1), (5, 2), *MACHINES])
def test_pscpu(tasks, gpus):
    for shards in range(1, tasks + 1):
        assert {} == differences("pscpu", machine(tasks, gpus), SIZES, shards=shards)


@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize(("tasks", "gpus"), [(2, 2), (2, 3), (3, 2), (4, 2), (5, 3), (2, 8)])
def test_pscpu_pscpu(tasks, gpus, faithful):
    """`faithful` is tf_cnn_benchmarks, which sums on the first CPU whatever the shards."""
    for shards in range(1, tasks + 1):
        options = {"shards": shards, "faithful": faithful}
        assert {} == differences("pscpu/pscpu", machine(tasks, gpus), SIZES, **options)


def test_pscpu_pscpu_in_one_task():
    for gpus in (2, 3, 8):
        assert {} == differences("pscpu/pscpu", machine(1, gpus), SIZES)


@pytest.mark.parametrize(("tasks", "gpus"), [(1, 1), (1, 16), *MACHINES])
def test_nccl(tasks, gpus):
    assert {} == differences("nccl", machine(tasks, gpus), SIZES)


@pytest.mark.parametrize(("tasks", "gpus"), [(1, 1), (5, 3), *MACHINES])
def test_nccl_xring(tasks, gpus):
    sizes = sorted({*SIZES, tasks - 1, tasks, tasks + 1, 3 * tasks + 1} - {0})
    assert {} == differences("nccl/xring", machine(tasks, gpus), sizes)


@pytest.mark.parametrize(
    ("tasks", "gpus"),
    [(1, 1), (1, 2), (1, 8), (2, 1), (2, 2), (2, 4), (4, 1), (4, 3), (8, 1), (8, 2), (16, 1)],
)
def test_nccl_rechd(tasks, gpus):
    """TensorFlow leaves the halving splits without a device; they are where their input is."""
    assert {} == differences("nccl/rechd", machine(tasks, gpus), [n * tasks for n in SIZES])


@pytest.mark.parametrize("tasks", [1, 2, 4, 8, 16])
def test_recursive_halving_doubling(tasks):
    """The upper level of nccl/rechd alone."""
    assert {} == differences("rechd", machine(tasks, 1), [n * tasks for n in SIZES])


@pytest.mark.parametrize(("tasks", "gpus"), [(4, 1), (5, 2), *(m for m in MACHINES if m[0] > 1)])
def test_nccl_pscpu(tasks, gpus):
    for shards in range(1, tasks + 1):
        assert {} == differences("nccl/pscpu", machine(tasks, gpus), SIZES, shards=shards)


@pytest.mark.parametrize("devices", [2, 4, 6, 8, 10, 16])
def test_hierarchical_copy(devices):
    """Every main device, twice."""
    sizes = [1 + 7 * i % 31 for i in range(2 * devices + 1)]
    assert {} == differences("hierarchical_copy", machine(1, devices), sizes)


@pytest.mark.parametrize("devices", [5, 7, 9, 11])
def test_hierarchical_copy_loses_the_last_of_an_odd_number(devices):
    """Here the tensors whose main device is in the first group."""
    assert {} == differences(
        "hierarchical_copy", machine(1, devices), SIZES[: devices // 2], faithful=True
    )


@pytest.mark.parametrize(("tasks", "gpus"), [(1, 1), *MACHINES])
def test_reduce_to_one(tasks, gpus):
    assert {} == differences("reduce_to_one", machine(tasks, gpus), SIZES)


ALGORITHMS = ["xring", "psgpu", "pscpu", "pscpu/pscpu", "nccl", "nccl/xring", "nccl/rechd",
"nccl/pscpu",
              "hierarchical_copy", "reduce_to_one"]  # fmt: skip


@st.composite
def cases(draw):
    """(algorithm, machine, sizes, options)."""
    algorithm = draw(st.sampled_from(ALGORITHMS))
    tasks, gpus = draw(
        st.sampled_from([(t, g) for t in range(1, 9) for g in range(1, 9) if t * g <= 8])
    )
    sizes = draw(st.lists(st.integers(1, 200), min_size=1, max_size=5))
    packs = draw(st.sampled_from([0, 0, 1, 2, 3, 8])) if algorithm != "reduce_to_one" else 0
    most = {
        "xring": gpus,
        "psgpu": tasks * gpus,
        "pscpu": tasks,
        "pscpu/pscpu": tasks,
        "nccl/pscpu": tasks,
    }
    shards = draw(st.integers(1, most.get(algorithm, 1)))
    layout = machine(tasks, gpus)
    if algorithm == "xring":
        layout = layout.with_order(draw(st.permutations(range(gpus))))
    if algorithm == "nccl/rechd":
        sizes = [n * tasks * max(packs, 1) for n in sizes]
    faithful = tasks > 1 and draw(st.booleans())
    return algorithm, layout, sizes, {"shards": shards, "packs": packs, "faithful": faithful}


def agrees(case):
    """Whether TensorFlow takes it, and no test below says that the plan differs."""
    algorithm, layout, sizes, options = case
    n, tasks, gpus = len(layout), len(layout.tasks), len(layout.tasks[0])
    refused = {"xring": n == 1, "hierarchical_copy": n % 2, "nccl/rechd": tasks & (tasks - 1)}
    sum_of_one = {"pscpu": n == 1, "nccl/pscpu": tasks == 1, "pscpu/pscpu": gpus == 1}
    empty = options["packs"] > sum(sizes)
    return not (refused.get(algorithm) or sum_of_one.get(algorithm) or empty)


@settings(max_examples=200)
@given(cases().filter(agrees))
def test_any(case):
    algorithm, layout, sizes, options = case
    assert {} == differences(algorithm, layout, sizes, **options)


@pytest.mark.parametrize(
    ("algorithm", "tasks", "gpus", "faithful"),
    [("pscpu", 1, 1, False), ("nccl/pscpu", 1, 1, False), ("nccl/pscpu", 1, 4, False),
     ("pscpu/pscpu", 1, 1, False), ("pscpu/pscpu", 2, 1, False), ("pscpu/pscpu", 4, 1, True),
     ("hierarchical_copy", 1, 3, True)],
)  # fmt: skip
def test_a_sum_of_one_is_no_sum(algorithm, tasks, gpus, faithful):
    assert {} == differences(algorithm, machine(tasks, gpus), [10, 10, 10], faithful=faithful)


@pytest.mark.parametrize(
    ("algorithm", "gpus", "shards"), [("xring", 2, 2), ("xring", 8, 3), ("psgpu", 4, 3)]
)
def test_an_empty_tensor_is_cut_in_as_many_pieces_as_any(algorithm, gpus, shards):
    assert {} == differences(algorithm, machine(1, gpus), [0], shards=shards)


@pytest.mark.parametrize("devices", [5, 7, 9])
def test_hierarchical_copy_copies_twice_to_a_secondary_on_the_mains_side(devices):
    assert {} == differences("hierarchical_copy", machine(1, devices), [8] * devices, faithful=True)


@pytest.mark.parametrize(
    ("algorithm", "tasks", "gpus", "size", "shards"),
    [("xring", 1, 1, 8, 1), ("xring", 1, 4, 8, 5), ("xring", 2, 2, 8, 3), ("xring", 1, 4, 8, 0),
     ("nccl/xring", 2, 4, 8, 2), ("nccl/xring", 3, 1, 9, 2),
     ("nccl/rechd", 3, 2, 9, 1), ("nccl/rechd", 6, 1, 12, 1), ("nccl/rechd", 2, 1, 7, 1),
     ("nccl/rechd", 4, 2, 10, 1),
     ("pscpu", 2, 2, 8, 3), ("psgpu", 1, 4, 8, 5), ("pscpu/pscpu", 2, 2, 8, 3),
     ("nccl/pscpu", 2, 2, 8, 3)],
)  # fmt: skip
def test_what_tensorflow_refuses_is_refused(algorithm, tasks, gpus, size, shards):
    with pytest.raises((ValueError, ZeroDivisionError)):
        graph(algorithm, machine(tasks, gpus), [size], shards=shards)
    with pytest.raises(StrategyError):
        plan(algorithm, machine(tasks, gpus), [size], shards=shards)


@pytest.mark.parametrize("algorithm", ["nccl/xring", "nccl/rechd", "nccl/pscpu", "pscpu/pscpu"])
def test_devices_without_a_task_in_their_names_cannot_be_grouped(algorithm):
    layout = machine(1, 4, job="/job:localhost")
    with pytest.raises(AssertionError, match="failed to parse device"):
        graph(algorithm, layout, [8])
    with pytest.raises(StrategyError, match="failed to parse device"):
        plan(algorithm, layout, [8], faithful=True)
