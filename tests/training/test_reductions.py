"""What a strategy or a mode is taken apart into: which gradients travel together, who gives them,
in which order.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from simreduce.errors import StrategyError
from simreduce.plan import Kind, verify
from simreduce.planners.layouts import layout
from simreduce.planners.packing import DdpBuckets, Fusion
from simreduce.planners.strategy import parse_strategy
from simreduce.topology import load_topology
from simreduce.training import Method, method_for_mode, method_for_strategy
from simreduce.training.variable_update import MODES, Flags
from simreduce.workload import Gradient, Workload
from simreduce.workload.loader import load_workload
from tests.planners.algorithms.test_nccl_and_hybrids import tasks_of

FOUR = layout(load_topology("full:4"))


def gradients(*elements: int) -> Workload:
    return Workload("test", tuple(Gradient(f"g{i}", n) for i, n in enumerate(elements)))


def made(strategy: str, *elements: int, **more: object) -> Method:
    method = method_for_strategy(parse_strategy(strategy), gradients(*elements), FOUR, **more)
    assert not verify(method.plan)
    return method


def groups(method: Method) -> list[tuple[int, ...]]:
    return [r.gradients for r in method.reductions]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("ring", [(3,), (2,), (1,), (0,)]),  # the last gradient is ready first
        ("ring+packs=1", [(0, 1, 2, 3)]),
        (
            "nccl+packs=3",
            [(0, 1, 2, 3)],
        ),  # one vector, cut in three: nothing starts before everything is there
        ("xring+small=64,2", [(3,), (2,), (0, 1)]),
        ("copy_to_gpus:16:ring+packs=1", [(3,), (0, 1, 2)]),  # two ranges, packed each for itself
        ("ring+bucket=100", [(3,), (1, 2), (0,)]),  # filled from the end, and closed when full
        ("collective+merge=2", [(2, 3), (0, 1)]),
    ],
)
def test_what_travels_together(strategy, expected):
    """Packs of a packer, in the order in which back-propagation completes them."""
    assert expected == groups(made(strategy, 16, 16, 16, 100))


def test_each_rank_gives_its_gradients():
    """All of them, to every reduction of an all-reduce."""
    assert {(0, 1, 2, 3)} == {r.ranks for r in made("copy_to_gpus", 8, 8).reductions}


def test_gradients_of_nothing_have_their_place():
    """Empty gradients are reduced, too, each in one reduction."""
    assert [(3,), (2,), (1,), (0,)] == groups(made("ring", 0, 5, 0, 7))
    assert [(0, 1, 2)] == groups(made("ring+packs=1", 0, 8, 0))


@pytest.mark.parametrize(
    ("strategy", "streams", "in_order", "fused"),
    [
        ("nccl", 1, False, False),  # one communicator
        ("nccl+packs=2", 1, False, False),
        ("xring", 0, False, False),
        ("ring+ddp", 1, True, False),
        ("ring+fusion", 1, False, True),
        ("copy_to_gpus", 0, False, False),
    ],
)
def test_how_libraries_queue(strategy, streams, in_order, fused):
    """NCCL, DDP and Horovod one by one; TensorFlow's own transfers as its streams have it."""
    method = made(strategy, 40, 40)

    assert (streams, in_order, fused) == (
        method.streams,
        method.in_order,
        method.fusion is not None,
    )
    assert 7 == made(strategy, 40, 40, streams=7).streams


RESNET18 = (
    [("conv1", 9408), ("bn1.weight", 64), ("bn1.bias", 64)]
    + [
        (f"layer{stage}.{block}.{name}", elements)
        for stage, width in enumerate((64, 128, 256, 512), 1)
        for block in (0, 1)
        for name, elements in (
            ("conv1", 9 * width * (width // 2 if stage > 1 and not block else width)),
            ("bn1.weight", width),
            ("bn1.bias", width),
            ("conv2", 9 * width * width),
            ("bn2.weight", width),
            ("bn2.bias", width),
            *(
                (
                    ("downsample.0", width * width // 2),
                    ("downsample.1.weight", width),
                    ("downsample.1.bias", width),
                )
                if stage > 1 and not block
                else ()
            ),
        )
    ]
    + [("fc.weight", 512_000), ("fc.bias", 1000)]
)
"""torchvision's, in the order in which its parameters are registered."""


@pytest.mark.parametrize(
    ("mib", "observed"),
    [(25, [2_052_000, 28_852_224, 15_853_824]), (35, [2_052_000, 38_297_600, 6_408_448])],
)
def test_the_buckets_of_ddp_are_those_that_were_observed(mib, observed):
    """pytorch/pytorch issue 48880 (December 2020): bytes of the all-reduces that NCCL was seen to
    make for ResNet-18, with the default cap and with bucket_cap_mb=35. The first bucket had a cap
    of 1 MiB then whatever was set.
    """
    work = Workload("resnet18", tuple(Gradient(*row) for row in RESNET18))
    strategy = replace(parse_strategy("nccl+ddp"), packer=DdpBuckets(mib * 2**20, 2**20))
    method = method_for_strategy(strategy, work, FOUR)

    assert 11_689_512 == work.elements
    assert observed == [
        sum(work.gradients[i].nbytes for i in r.gradients) for r in method.reductions
    ]


def test_the_buckets_of_ddp_are_those_of_pytorchs_own_test():
    """`test_multi_limit_multi_dtype` of test_c10d_common.py: limits of 200 and 400 bytes for each
    dtype.
    """
    listed = [Gradient(f"g{i}", *((25, 2) if i % 2 else (50, 0))) for i in range(6)]
    ready_last_first = listed[::-1]
    groups = DdpBuckets(400, 200).arrange(ready_last_first).groups

    assert [[0], [1], [2, 4], [3, 5]] == [[5 - i for i in group] for group in groups]


def test_the_buffers_of_horovod_are_of_what_is_ready():
    """By readiness, to the threshold; a dtype for each, looking ahead over the other."""
    method = made("ring+fusion=40", 5, 5, 5, 5, 5)

    assert method.fusion is not None
    assert [(4, 3), (2, 1), (0,)] == method.fusion.buffers([4, 3, 2, 1, 0])
    assert [(3,)] == method.fusion.buffers([3])
    assert [(2, 4)] == method.fusion.buffers([2, 4])
    mixed = Workload("mixed", (Gradient("a", 2), Gradient("b", 4, 1), Gradient("c", 2)))
    rule = method_for_strategy(parse_strategy("ring+fusion=40"), mixed, FOUR).fusion
    assert [(2, 0), (1,)] == rule.buffers([2, 1, 0])


@given(st.permutations(range(6)), st.integers(1, 6))
def test_a_buffer_of_horovod_is_reduced_as_one(order, count):
    """Whatever order gradients become ready in, a buffer has one plan, of all of it, which is
    right.
    """
    rule = made("ring+fusion", 8, 4, 12, 8, 4, 16).fusion
    (buffer,) = rule.buffers(order[:count])
    (reduction,) = rule.reductions(buffer)
    moved = reduction.plan.kind == Kind.INPUT

    assert tuple(order[:count]) == buffer
    assert tuple(sorted(buffer)) == reduction.gradients
    assert 4 * sum(rule.workload.gradients[i].elements for i in buffer) == int(
        (reduction.plan.hi - reduction.plan.lo)[moved].sum()
    )


def test_horovod_sends_buffers_of_its_own_size_unless_it_is_told():
    """128 MiB and a cycle of 1 ms, as since 0.21."""
    work = gradients(8, 8)
    method = method_for_mode("horovod", work, tasks_of(2, 2), Flags())

    assert Fusion(128 * 2**20) == method.fusion.fusion
    assert 1e-3 == method.fusion.cycle
    assert method_for_mode("horovod", work, tasks_of(2, 2), Flags(packing="packs=1")).fusion is None


def test_a_parameter_server_is_pushed_to_by_every_worker_and_read_by_every_gpu():
    """Two workers of two GPUs, two variables: a mean of each worker for each, and a cached copy for
    its GPUs.
    """
    flags = Flags(local_parameter_device="cpu")
    method = method_for_mode("parameter_server", gradients(10, 20), tasks_of(2, 2), flags)

    assert [((1,), (0, 1)), ((1,), (2, 3)), ((0,), (0, 1)), ((0,), (2, 3))] == [
        (r.gradients, r.ranks) for r in method.reductions
    ]
    # The server of a variable is one of the workers' CPUs: its GPUs copy from it each for itself.
    reads = {(r.gradients, r.ranks) for r in method.reads}
    assert {
        ((0,), (0,)),
        ((0,), (1,)),
        ((0,), (2, 3)),
        ((1,), (2,)),
        ((1,), (3,)),
        ((1,), (0, 1)),
    } == reads


def test_a_distributed_replica_is_one_plan_by_variable():
    """Its barrier joins the workers, and its reads follow it."""
    method = method_for_mode("distributed_replicated", gradients(10, 20), tasks_of(2, 2), Flags())

    assert ([((1,), (0, 1, 2, 3)), ((0,), (0, 1, 2, 3))], ()) == (
        [(r.gradients, r.ranks) for r in method.reductions],
        method.reads,
    )


def test_modes_that_are_an_all_reduce_are_strategies():
    """Their names tell both."""
    flags = Flags(all_reduce_spec="nccl", packing="packs=2")
    method = method_for_mode("replicated", gradients(8, 8), FOUR, flags)

    assert "replicated, nccl+packs=2" == method.name
    assert [(0, 1)] == groups(method)


@given(
    st.sampled_from(sorted(MODES)),
    st.integers(1, 2),
    st.integers(1, 3),
    st.lists(st.integers(1, 70_000), min_size=1, max_size=5),
    st.sampled_from(["cpu", "gpu"]),
)
def test_every_mode_moves_every_gradient_or_none(mode, workers, gpus, sizes, device):
    """Each once, or once for each worker; and reads every variable on every GPU, if it reads."""
    spec = {"distributed_all_reduce": "psgpu", "collective_all_reduce": "collective"}.get(mode, "")
    flags = Flags(local_parameter_device=device, all_reduce_spec=spec)
    try:
        method = method_for_mode(mode, gradients(*sizes), tasks_of(workers, gpus), flags)
    except StrategyError:
        return
    times = {"parameter_server": workers, "independent": 0}.get(mode, 1)
    moved = sorted(i for r in method.reductions for i in r.gradients)
    read = sorted((i, rank) for r in method.reads for i in r.gradients for rank in r.ranks)
    everyone = [(i, rank) for i in range(len(sizes)) for rank in range(workers * gpus)]

    assert sorted(list(range(len(sizes))) * times) == moved
    assert (everyone if mode == "parameter_server" else []) == read


def test_resnet50_on_a_parameter_server():
    """161 means to the CPU, and each variable to each GPU."""
    shape = layout(load_topology("dgx1p"))
    method = method_for_mode(
        "parameter_server", load_workload("resnet50"), shape, Flags(local_parameter_device="cpu")
    )

    assert [161, 161 * 8] == [len(method.reductions), len(method.reads)]
