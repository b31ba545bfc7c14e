"""The most that PyTorch allocates in a step."""

from __future__ import annotations

import pytest

from simreduce.engine.setup import Setup
from simreduce.planners.nccl.buffers import held_bytes
from simreduce.planners.strategy import parse_strategy
from simreduce.study.accuracy.one_gpu import predict_passes, timed_steps
from simreduce.topology import Node, Topology, load_topology
from simreduce.training.gpus import memory_of
from simreduce.training.memory import ModelRun, buffers_of_calls, replicated_memory
from simreduce.training.sharded import DDP, Sharding
from simreduce.training.simulation import MemoryFit, least_fit
from simreduce.training.step import CONTEXT, GIVEN, LEFT, RESERVED, Activations
from simreduce.workload.loader import load_model
from tests.training.small import read_step

LLAMA = (
    "transformer:layers=16,hidden=2048,heads=32,groups=8,ffn=8192,vocab=128256,seq=4096,gated=yes"
)


def memory(name, batch, optimizer="adam", **run):
    model = load_model(name)
    held = ModelRun(**run).activations(model, batch)
    return replicated_memory(model.workload, Sharding(optimizer=optimizer)).plus(held)


def test_measured_peaks_are_predicted():
    """Of GPT-2 and BERT on an H200, by autocast, in bfloat16 and in TF32."""
    points = [*predict_passes(timed_steps())]

    counted = [point for point in points if point.of.peak]
    assert len(counted) == 7
    for point in counted:
        assert abs(point.peak_error) < 0.01


@pytest.mark.parametrize(
    ("name", "batch", "run", "optimizer", "megabytes"),
    [
        # PyTorch 2.13 on fake tensors of these sizes, models of torchvision 0.28 and Transformers 5
        ("resnet50", 256, {}, "momentum", 11_717),
        ("resnet50", 256, {"precision": "fp32"}, "momentum", 22_409),
        ("resnet152", 128, {}, "momentum", 12_193),
        ("vgg16", 128, {}, "momentum", 7_385),
        ("vit-b-16", 256, {}, "adam", 18_762),
        ("vit-b-16", 256, {"precision": "fp32"}, "adam", 31_765),
        (LLAMA, 2, {}, "adam", 50_160),
    ],
)  # fmt: skip
def test_peaks_of_other_models(name, batch, run, optimizer, megabytes):
    found = memory(name, batch, optimizer, **run)

    assert found.peak == pytest.approx(megabytes * 1e6, rel=0.03)


def test_when_it_is():
    """Logits of many words are the most; of classes, what the last layers make."""
    assert memory("gpt2", 16).most.at == "the backward pass of the loss"
    assert memory("vit-b-16", 64).most.at == "the backward pass of encoder.11.mlp"
    assert memory("vgg16", 1).most.at.startswith("the backward pass of cg/")


def test_the_parts_add_up():
    """Gradients are not there yet when the loss is differentiated."""
    found = memory("gpt2", 16)
    parts = found.activations.nbytes, found.most.casts, found.most.logits

    assert found.gradients == 0
    assert found.peak == found.parameters + found.optimizer + sum(parts)


def test_passes_before_the_last_leave_gradients_and_buckets_are_copies():
    model = load_model("gpt2")
    once, twice = (ModelRun().activations(model, 16, passes) for passes in (1, 2))
    states = replicated_memory(model.workload, Sharding())

    assert states.plus(twice).peak - states.plus(once).peak == states.gradients
    assert states.with_buckets().plus(once).peak - states.plus(once).peak == states.gradients


def test_gradients_that_are_views_are_as_much_as_buckets():
    """They live in the reducer's buckets, which stay when gradients are set to None."""
    states = replicated_memory(load_model("gpt2").workload, Sharding())
    for batch in (1, 16):
        held = ModelRun().activations(load_model("gpt2"), batch)
        views = states.plus(held.with_gradients())
        once = max(each.nbytes for each in held.moments)

        assert (views.gradients, views.buckets) == (states.gradients, 0)
        assert views.peak == states.peak + once
        assert states.plus(held).peak < views.peak <= states.with_buckets().plus(held).peak


def test_a_gpu_needs_more_than_pytorch_allocates():
    """What its allocator reserves, CUDA's context, and a part that is left."""
    states = replicated_memory(load_model("gpt2").workload, Sharding())
    given = states.plus(Activations(10**9, GIVEN))

    assert given.peak == states.peak + 10**9
    for found in (memory("gpt2", 16), memory("gpt2", 16, kernels="megatron"), given):
        assert found.needed == round((found.peak * (1 + RESERVED) + CONTEXT) / (1 - LEFT))


def test_blocks_that_are_computed_again_keep_their_input():
    """The loss is as large; with it the residual streams are all that is there."""
    model = load_model("gpt2")
    full = ModelRun(recompute="full").activations(model, 16)
    loss = max(full.moments, key=lambda each: each.logits)
    streams, head = 12 * 4 * 1024 * 768, 6 * 1024 * 768 + 8 * 1024

    assert loss.kept == 16 * (streams + head)


@pytest.mark.parametrize(
    ("model", "sold", "has"),
    [
        ("H100-SXM5-80GB", 80, 85.0),
        ("A100-SXM4-40GB", 40, 42.3),
        ("A100-SXM4-80GB", 80, 85.0),
        ("V100-SXM2-16GB", 16, 16.9),
        ("h200", 141, 150.1),
        ("GH200", 96, 101.5),
        ("L40S", 48, 47.6),  # checks of errors take some of what is sold
        ("MI300X", 192, 206.1),
        ("GB200", 186, 197.9),
        ("MI325X", 256, 274.9),
        ("MI350X", 288, 308.9),
        ("MI355X", 288, 309.2),
        # nobody says of these, so they have what they are sold with
        ("H100-SXM5-80GB", 21, 21.0),
        ("", 80, 80.0),
        ("H100", 0, 0.0),
    ],
)
def test_a_card_has_other_bytes_than_it_is_sold_with(model, sold, has):
    node = Node("gpu0", "gpu", model=model, memory=sold * 10**9)

    assert memory_of(node) / 1e9 == pytest.approx(has, abs=0.05)


def test_a_step_fits_by_the_bytes_that_a_card_has():
    """Of those sold with 80 GB, 50 samples of GPT-2 need 83.9; so do 42 of a file's own 72."""
    model, machine = load_model("gpt2"), load_topology("dgx-h100")
    stated = load_topology("dgx-h100", {"nodes.gpu.memory": "72 GB"})

    def fits(batch: int, at: Topology) -> bool | None:
        return least_fit(read_step({"batch": batch}, model, at), at, at.devices, DDP).fits

    assert [fits(batch, machine) for batch in (50, 51)] == [True, False]
    assert [fits(batch, stated) for batch in (42, 43)] == [True, False]


@pytest.mark.parametrize("nbytes", [64 << 10, 10 << 20, 100 << 20])
def test_buffers_of_replicas_are_those_of_a_communicator_of_their_gpus(nbytes):
    """Four GPUs, one of each machine, run by rings, where all 32 run by trees."""
    setup = Setup("dgx-h100x4", "nccl")
    replicas = setup.but(part=setup.layout.only(range(0, 32, 8)))
    calls, strategy = [("all_reduce", nbytes)], parse_strategy("nccl")

    held = buffers_of_calls(setup, strategy, calls, Sharding(), 8)

    assert held == held_bytes(replicas.communicator, {"ring"}).max()
    assert held == buffers_of_calls(replicas, strategy, calls, Sharding())
    assert setup.call(nbytes).algorithm in ("tree", "nvlstree")


def test_shards_run_by_the_algorithms_of_their_machine():
    """Gathers of all 32 GPUs run by rings, those of 8 by NVLS, which has buffers of its own."""
    setup = Setup("dgx-h100x4", "nccl")
    machine = setup.but(part=setup.layout.only(range(8)))
    calls, strategy = [("all_gather", 1 << 20)], parse_strategy("nccl")

    assert buffers_of_calls(setup, strategy, calls, Sharding(), 8) == (
        buffers_of_calls(machine, strategy, calls, Sharding())
    )


@pytest.mark.parametrize(
    ("needed", "fits", "chance", "words"),
    [
        (60e9, True, 1.0, "needs 60 GB, and a GPU has 80 GB"),
        (80e9, True, 0.77, "needs 80 GB, and a GPU has 80 GB (it fits with a chance of 77%)"),
        (84e9, False, 0.51,
         "needs 84 GB, and a GPU has 80 GB, 5% too much (it fits with a chance of 51%)"),
        (160e9, False, 0.0, "needs 160 GB, and a GPU has 80 GB, 100% too much"),
        (84e9, None, None, "needs 84 GB, and nobody says how much a GPU has"),
    ],
)  # fmt: skip
def test_what_fits_is_a_chance(needed, fits, chance, words):
    """A part is left where it fits: without it, the median of what is reserved is what is there."""
    found = MemoryFit(round(needed), 0 if fits is None else 80_000_000_000)

    assert (found.fits, found.words) == (fits, words)
    assert found.chance == (None if chance is None else pytest.approx(chance, abs=0.005))
