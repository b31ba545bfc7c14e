"""DistributedDataParallel's buckets, by hand-worked examples and what must always hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from simreduce import dtypes
from simreduce.dtypes import NAMES
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.plan import Executor, Kind, verify, wrong_elements
from simreduce.plan.plan import IN_PLACE
from simreduce.planners.layouts import layout
from simreduce.planners.packing import DdpBuckets, ready_order
from simreduce.planners.strategy import parse_strategy, split_strategies
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload
from simreduce.workload.loader import load_workload
from tests.planners.packing.lists import gradients, of_dtypes

MIB = 2**20
QUARTER = MIB // 4  # elements of 1 MiB in float32


def groups(text, *mib):
    return DdpBuckets.parse(text).arrange(gradients(*[int(m * QUARTER) for m in mib])).groups


def test_unset_the_first_bucket_closes_at_1_mib_and_the_others_at_25():
    # Ready last to first: 0.5 + 0.5 reach 1; 10 + 10 + 10 reach 25; 3 is left.
    assert groups(None, 3, 10, 10, 10, 0.5, 0.5) == ((5, 4), (3, 2, 1), (0,))


def test_set_the_first_bucket_has_the_same_cap():
    assert groups("25", 3, 10, 10, 10, 0.5, 0.5) == ((5, 4, 3, 2, 1), (0,))


def test_a_bucket_closes_once_it_reaches_its_cap_so_it_overshoots():
    assert groups("4", 1, 100, 3.5) == ((2, 1), (0,))


def test_reaching_the_cap_exactly_closes():
    assert groups("4", 2, 2, 2, 2) == ((3, 2), (1, 0))


def test_fractions_of_a_mib_are_taken():
    assert groups("0.5", 0.5, 0.5, 0.5) == ((2,), (1,), (0,))


def test_every_dtype_has_its_own_buckets_and_its_own_first_cap():
    listed = of_dtypes(
        (QUARTER, "float32"),  # second float32 bucket, never full
        (2 * QUARTER, "float16"),  # closes the first float16 bucket
        (QUARTER, "float32"),  # closes the first float32 bucket
        (8, "float16"),
        (8, "float64"),  # never full
    )

    assert DdpBuckets().arrange(listed).groups == ((2,), (3, 1), (4,), (0,))


def test_vgg16_as_pytorchs_log_has_it():
    """A convolution's weight is ready before its bias, a linear layer's after (PyTorch 2.13)."""
    widths = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    listed = []
    for i, (inputs, width) in enumerate(zip([3, *widths], widths, strict=False)):
        listed += [
            Gradient(f"features.{i}.weight", inputs * width * 9),
            Gradient(f"features.{i}.bias", width),
        ]
    for i, (inputs, width) in enumerate([(25088, 4096), (4096, 4096), (4096, 1000)]):
        listed += [
            Gradient(f"classifier.{i}.weight", inputs * width),
            Gradient(f"classifier.{i}.bias", width),
        ]
    buckets = DdpBuckets().arrange(listed).groups

    assert [sum(listed[i].nbytes for i in bucket) for bucket in buckets] == [
        16388000, 67125248, 411058176, 28315648, 28320768, 2222336,
    ]  # fmt: skip
    assert buckets[:3] == ((31, 30), (29, 28), (27, 26))
    assert buckets[3] == (24, 25, 22, 23, 20)


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["conv1.weight", "conv1.bias"], [0, 1]),
        (["fc.weight", "fc.bias"], [1, 0]),
        (["cg/conv0/conv2d/kernel", "cg/conv0/biases"], [0, 1]),
        (["h.0.conv.weight", "h.1.conv.bias"], [1, 0]),
        (["features.0.weight", "features.1.weight"], [1, 0]),
        (["features.7.2.block.5.weight", "features.7.2.block.5.bias"], [1, 0]),  # ConvNeXt's
        (["patch_embed.proj.weight", "patch_embed.proj.bias"], [0, 1]),
    ],
)
def test_names_say_whose_bias_comes_last(names, order):
    sizes = [(2**10, 8)[i] for i in range(2)]
    assert ready_order([Gradient(*each) for each in zip(names, sizes, strict=True)]) == order


def test_a_norms_scale_comes_before_its_shift():
    assert ready_order([Gradient("a/gamma", 8), Gradient("a/beta", 8)]) == [0, 1]


def test_resnet50():
    """Two gradients make the small first bucket; the next buckets pass 25 MiB by less than a
    gradient.
    """
    listed = load_workload("resnet50").gradients
    buckets = DdpBuckets().arrange(listed).groups

    assert [len(b) for b in buckets] == [2, 15, 15, 54, 75]
    assert sum(listed[i].nbytes for i in buckets[0]) == 4 * (2048 * 1001 + 1001)


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(dtypes.NAMES)), min_size=1, max_size=200
    ),
    st.integers(1, 300),
    st.integers(1, 300),
)
def test_buckets_are_of_one_dtype_in_ready_order_and_full_but_the_last(pairs, cap, first_cap):
    listed = of_dtypes(*pairs)
    buckets = DdpBuckets(cap, first_cap).arrange(listed).groups

    assert sorted(range(len(listed))) == sorted(i for b in buckets for i in b)
    for dtype in range(len(dtypes.NAMES)):
        mine = [b for b in buckets if listed[b[0]].dtype == dtype]
        ready = [i for b in mine for i in b]
        assert ready == [i for i in reversed(range(len(listed))) if listed[i].dtype == dtype]
        for k, bucket in enumerate(mine):
            sizes = [listed[i].nbytes for i in bucket]
            limit = cap if k else first_cap
            assert sum(sizes[:-1]) < limit
            assert sum(sizes) >= limit or k == len(mine) - 1


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "25M", "", "1e400"])
def test_the_cap_is_a_number_of_mib(text):
    with pytest.raises(ValueError, match="for example ddp=25"):
        DdpBuckets.parse(text)


def test_the_first_bucket_may_have_a_cap_of_its_own():
    assert groups("4,1", 2, 2, 2, 0.5, 0.5) == ((4, 3), (2, 1), (0,))
    assert DdpBuckets.parse("25,1") == DdpBuckets()


def test_half_precision_travels_and_results_are_as_before():
    plan = compile_plan(
        "nccl+ddp=25,fp16", load_workload("resnet50"), layout(load_topology("dgx1v"))
    )
    moved = {NAMES[code] for code in plan.dtype[plan.kind == Kind.COPY].tolist()}

    assert moved == {"float16"}
    assert not wrong_elements(verify(plan))


def test_views_of_buckets_copy_nothing():
    copying = []
    for word in ("", ",view"):
        plan = compile_plan(
            f"nccl+ddp=25{word}", load_workload("resnet50"), layout(load_topology("dgx1v"))
        )
        copying.append(int(np.sum((plan.kind == Kind.CONCAT) & (plan.arg != IN_PLACE))))

    assert copying == [4 * 8, 0]  # buckets, and GPUs


@pytest.mark.parametrize("text", ["1", "1,fp16", "1,view"])
def test_every_gradient_is_copied_into_its_bucket_and_back_also_one_alone(text):
    """Of 3, 1/4 and 3/4 MiB, on two GPUs: a bucket of the last two, and one of the first."""
    listed = gradients(3 * QUARTER, QUARTER // 4, 3 * QUARTER // 4)
    plan = compile_plan(
        f"nccl+ddp={text}", Workload("w", listed), layout(load_topology("switch:2"))
    )

    copied = []
    for kind in (Kind.CONCAT, Kind.SLICE):
        ops = (plan.kind == kind) & (plan.executor == Executor.TF)
        copied.append(sorted(plan.sizes(np.flatnonzero(ops)).tolist()))
    into = [MIB, MIB, 3 * MIB, 3 * MIB]
    back = sorted(2 * [3 * MIB, MIB // 4, 3 * MIB // 4])
    assert copied == ([[], []] if "view" in text else [into, back])
    assert not wrong_elements(verify(plan))


def test_a_bucket_of_one_takes_the_time_of_two_copies_longer_than_its_view():
    """Each reads and writes every byte in the GPU's memory once."""
    setup = Setup("dgx1v", "nccl")
    work = Workload("w", gradients(16_000_000))
    copied, viewed = (
        setup.simulate(setup.compile(f"nccl+ddp=25{word}", work)).seconds for word in ("", ",view")
    )
    memory = setup.topology.nodes[setup.layout.ranks[0]].memory_bandwidth
    assert copied - viewed == pytest.approx(2 * 2 * 64e6 / memory, rel=0.05)


@pytest.mark.parametrize("text", ["25,1,2", "25,fp8", "fp16", "25,fp16,fp16", "25,view,fp16", ""])
def test_what_no_bucket_is_made_of_is_refused(text):
    with pytest.raises(StrategyError):
        DdpBuckets.parse(text)


def test_commas_in_buckets_part_no_strategies():
    texts = ["nccl+ddp=25,1,view", "nccl+fusion=1M,fp16", "ring+bucket=1M,fp16+mean", "ring"]

    assert split_strategies(",".join(texts)) == texts
    assert [parse_strategy(text).text for text in texts] == texts


def test_buckets_are_reduced_one_after_another():
    """On one stream, although their latencies could overlap."""
    setup = Setup("switch:4,bandwidth=1GB/s,latency=1ms", "ideal")
    once, twice = (
        setup.simulate(setup.compile("ring+ddp=1", Workload("w", given))).seconds
        for given in (gradients(QUARTER), gradients(QUARTER, QUARTER))
    )
    assert twice == pytest.approx(2 * once)
