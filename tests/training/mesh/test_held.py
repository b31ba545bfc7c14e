"""What a rank holds, to the byte, by the formulas of Korthikanti et al. 2022 (arXiv 2205.05198)."""

from __future__ import annotations

from math import log

import pytest

from simreduce.files.published import published_steps
from simreduce.study.accuracy.mesh import job_of
from simreduce.training.gpus import GPUS
from simreduce.training.mesh import Mesh
from simreduce.training.mesh.held import (
    block_activations,
    held_by,
    rank_parameters,
    stage_activations,
)
from simreduce.training.mesh.pipeline import load_schedule
from simreduce.training.step import CONTEXT, LEFT
from tests.thorough import slow
from tests.training.mesh.jobs import EXPERTS, GPT, LLAMA, job

S, B, H, A, V, L = 32, 2, 64, 8, 512, 4
"""Tokens, sequences of a micro batch, width, heads, words and blocks of the small GPT."""
SBH, SCORES = S * B * H, 5 * A * S * S * B


def _held(work, rank=0):
    schedule = load_schedule(work.schedule, work.mesh.pp, work.virtual, work.micros)
    return held_by(work, schedule, rank)


def _kept(held):
    return held.parameters, held.gradients, held.optimizer


@pytest.mark.parametrize(
    ("tp", "more", "expected"),
    [
        (1, {}, 34 * SBH + SCORES),  # equation 1: s b h (34 + 5 a s / h)
        (2, {}, 10 * SBH + (24 * SBH + SCORES) // 2),  # equation 2
        (4, {}, 10 * SBH + (24 * SBH + SCORES) // 4),
        (2, {"sequence_parallel": True}, (34 * SBH + SCORES) // 2),  # equation 4
        (8, {"sequence_parallel": True}, (34 * SBH + SCORES) // 8),
        (1, {"recompute": "selective"}, 34 * SBH),  # equation 6
        (4, {"recompute": "selective", "sequence_parallel": True}, 34 * SBH // 4),
        (4, {"recompute": "selective"}, 16 * SBH),
        (4, {"attention": "fused"}, 16 * SBH),
        (1, {"recompute": "full"}, 2 * SBH),  # section 5
        (2, {"recompute": "full"}, 2 * SBH),
        (2, {"recompute": "full", "sequence_parallel": True}, SBH),
    ],
)
def test_activations_of_a_block(tp, more, expected):
    """Of one micro batch on a rank."""
    assert expected == block_activations(job(Mesh(tp=tp), **more), 0)


def test_context_parallel_ranks_share_tokens():
    """Queries of a half meet all keys: scores are halved once."""
    assert (34 * SBH + SCORES) / 2 == block_activations(job(Mesh(cp=2)), 0)


def test_activations_of_a_gated_block():
    """Norms and their readers' inputs 8 h, attention 4 h + 4 keys, and of a fused SwiGLU its two
    inputs and what it gives, 6 f; softmax alone of scores.
    """
    f, keys = 96, 32
    each = S * B * (8 * H + 4 * H + 4 * keys + 6 * f)

    assert each + 2 * A * S * S * B == block_activations(job(Mesh(), LLAMA), 0)
    assert each == block_activations(job(Mesh(), LLAMA, attention="fused"), 0)


def test_inputs_of_products_in_8_bits():
    """Transformer Engine keeps them in 8 bits, beside what attention gave in 16; torchao in 16.
    PyTorch's own SwiGLU keeps 8 f.
    """
    f, keys, eight = 96, 32, {"bits": 8, "attention": "fused"}
    each = S * B * (6 * H + 5 * H + 4 * keys + 5 * f)

    assert each == block_activations(job(Mesh(), LLAMA, **eight), 0)
    titan = job(Mesh(), LLAMA, kernels="torchtitan", **eight)
    assert S * B * (8 * H + 4 * H + 4 * keys + 8 * f) == block_activations(titan, 0)


@pytest.mark.parametrize(
    ("model", "gpus", "tp", "recompute", "micro_batch", "sequence", "gib"),
    [
        ("llama-3-8b", 8, 1, "selective", 2, 8192, 77.0),
        ("llama-3-8b", 8, 1, "selective", 2, 8192, 76.8),
        ("llama-3-8b", 8, 1, "selective", 2, 8192, 82.4),  # eager
        ("llama-3-8b", 8, 1, "full", 1, 32768, 83.9),
        ("llama-3-8b", 128, 1, "selective", 2, 8192, 62.0),
        ("llama-3-8b", 128, 1, "selective", 2, 8192, 61.8),
        ("llama-3-70b", 256, 8, "full", 16, 8192, 71.9),
        ("llama-3-70b", 256, 8, "full", 16, 8192, 67.6),  # AsyncTP
    ],
)
def test_memory_that_torchtitan_published(model, gpus, tp, recompute, micro_batch, sequence, gib):
    """What PyTorch reserved at most (benchmarks/llama3_h100_202412_torchtitan.md of
    pytorch/torchtitan); `SPREAD` is by these. Without what the logits' gradients take, each would
    be 20 % more than is predicted at least.
    """
    step = next(
        step
        for step in published_steps()
        if step.set == "torchtitan"
        and (step.model, step.gpus, step.recompute, step.micro_batch, step.sequence)
        == (model, gpus, recompute, micro_batch, sequence)
    )
    work = job_of(step, GPUS[step.source.gpu])
    assert tp == work.mesh.tp
    reserved = _held(work).needed * (1 - LEFT) - CONTEXT

    assert -0.02 < log(gib * (1 << 30) / reserved) < (0.06 if tp == 1 else 0.19)


def test_activations_of_experts():
    """Two of them and a shared one; inputs and outputs of those that a token passes through.
    A busy rank has more of these, and of what experts keep.
    """
    keys, inner, routed = 32, 48 * 3, 4 * 2 * H
    each = S * B * (8 * H + 4 * H + 4 * keys + 6 * inner + routed)
    work = job(Mesh(), EXPERTS, attention="fused")
    busy = job(Mesh(), EXPERTS, attention="fused", imbalance=1.5)

    assert each == block_activations(work, 3)
    assert S * B * (12 * H + 4 * keys + 6 * 96) == block_activations(work, 0)
    more = routed + 6 * 48 * 2  # inputs and outputs, and inner widths
    assert S * B * more / 2 == block_activations(busy, 3) - each


def test_both_ends_keep_more():
    """The mask of the embedding's dropout; inputs of norm and output, and float32 logits."""
    work = job(Mesh(tp=2, pp=2))
    block = block_activations(work, 0)

    assert 2 * block + SBH == stage_activations(work, 0)
    assert 2 * block + 4 * SBH + 4 * S * B * V // 2 == stage_activations(work, 1)


@pytest.mark.parametrize(("name", "flying"), [("1f1b", (4, 3, 2, 1)), ("gpipe", (6, 6, 6, 6))])
def test_micro_batches_in_flight(name, flying):
    """1F1B keeps as many as stages are left, GPipe all."""
    work = job(Mesh(pp=4), micros=6, schedule=name)
    found = [_held(work, rank) for rank in range(4)]

    assert flying == tuple(each.in_flight for each in found)
    block = 34 * SBH + SCORES
    assert flying[0] * (block + SBH) == found[0].activations.nbytes
    assert flying[1] * block == found[1].activations.nbytes


def test_interleaved_stages_keep_more():
    """(1 + (p - 1) / (p v)) times as much as 1F1B's (Korthikanti et al. 2022, section 4.2.3). The
    most when four micro batches are in the first stage, and one is in the third.
    """
    text = "transformer:layers=8,hidden=64,heads=8,vocab=512,seq=32"
    one = _held(job(Mesh(pp=2), text, micros=8))
    two = _held(job(Mesh(pp=2), text, micros=8, schedule="interleaved", virtual=2))
    p, v, block = 2, 2, 34 * SBH + SCORES

    assert 8 * block + 2 * SBH == one.activations.nbytes
    assert 8 * (1 + (p - 1) / (p * v)) * block + 4 * SBH == two.activations.nbytes
    assert (2, 5) == (one.in_flight, two.in_flight)


def test_full_recomputation_keeps_inputs_and_one_block():
    """The block that is computed again has all of its own."""
    work = job(Mesh(pp=4), recompute="full", micros=6)

    assert 3 * 2 * SBH + 34 * SBH + SCORES == _held(work, 1).activations.nbytes


def _block(t):
    """Matrices and what follows them are shared; biases after sums and norms are not."""
    attention = (4 * H * H + 3 * H) // t + H + 2 * H
    return attention + (8 * H * H + 4 * H) // t + H + 2 * H


@pytest.mark.parametrize("t", [1, 2, 8])
def test_parameters_gradients_and_states(t):
    """2, 4 and 12 bytes of each parameter; the embedding on the first stage, a copy on the last."""
    work = job(Mesh(tp=t, pp=2))
    first = 2 * _block(t) + V * H // t + S * H
    last = 2 * _block(t) + V * H // t + 2 * H

    assert (first, last) == tuple(rank_parameters(work, rank).all for rank in (0, 1))
    for rank, count in enumerate((first, last)):
        held = _held(work, rank)
        assert (2 * count, 4 * count, 12 * count) == _kept(held)
        assert sum(_kept(held)) + held.activations.nbytes == held.peak


def test_what_replicas_share():
    """States with the distributed optimizer, all with fsdp, over data and context parallel ranks;
    gradients of 2 bytes. With fsdp two units are gathered, and one has whole gradients.
    """
    count, unit = rank_parameters(job(Mesh()), 0).all, max(_block(1), V * H + S * H)
    for mesh, ways in ((Mesh(dp=3), 3), (Mesh(dp=2, cp=2), 4)):
        share = -(-count // ways)
        states = _held(job(mesh, optimizer="distributed"))
        everything = _held(job(mesh, optimizer="fsdp", reduced=2))

        assert (2 * count, 4 * count, 12 * share) == _kept(states)
        gathered, whole = 2 * 2 * unit, 2 * unit
        assert (2 * share + gathered, 2 * share + whole, 12 * share) == _kept(everything)


@pytest.mark.parametrize(
    ("tp", "more", "expected"),
    [
        # The input; q, v, what attention gives with a float a head; w1's and w2's results.
        (1, {}, 2 * (H + H + H // 2 + H + 96 + H) + 4 * A),
        # With ranks that share sequences also both sums that are scattered; w2's result is whole.
        (2, {"sequence_parallel": True},
         2 * (H // 2 + (H + H // 2 + H + 96) // 2 + H + 2 * H // 2) + 4 * A // 2),
    ],
)  # fmt: skip
def test_op_by_op_keeps_what_products_gave(tp, more, expected):
    """torchtitan's rule, of a gated block with half as many keys and values as queries."""
    work = job(Mesh(tp=tp), LLAMA, recompute="op", attention="fused", **more)

    assert S * B * expected == block_activations(work, 0)


def test_each_copy_of_hybrid_shards_holds_what_it_would_alone():
    hybrid = _held(job(Mesh(dp=8, copies=2), optimizer="fsdp"))

    assert hybrid == _held(job(Mesh(dp=4), optimizer="fsdp"))


def test_experts_are_on_their_ranks():
    """With ep=4 of 8 each rank has two, whose states a replica shares with one other."""
    work = job(Mesh(ep=4, dp=8), EXPERTS, optimizer="distributed")
    plain, experts = rank_parameters(work, 0)
    one = 3 * H * 48
    block = 2 * H * H + 2 * H * 32 + H

    assert 2 * 2 * one == experts
    around = H * 8 + one + H
    assert 4 * block + 2 * (3 * H * 96 + H) + 2 * around + 2 * V * H + H == plain
    assert 12 * -(-plain // 8) + 12 * experts // 2 == _held(work).optimizer


def test_experts_that_ranks_share():
    """Tensor parallel ranks have a part of each; with etp=1 whole ones, and fewer."""
    shared = rank_parameters(job(Mesh(tp=2, ep=2, dp=2), EXPERTS), 0).experts
    whole = rank_parameters(job(Mesh(tp=2, ep=4, dp=2, etp=1), EXPERTS), 0).experts

    assert 2 * 4 * (3 * H * 48 // 2) == shared
    assert 2 * 2 * 3 * H * 48 == whole


def test_both_ends_of_a_v_are_on_one_rank():
    """Where embedding and output share words, there is no copy of them."""
    work = job(Mesh(pp=2), schedule="zbv", virtual=2, micros=8)

    assert 2 * _block(1) + V * H + S * H + 2 * H == rank_parameters(work, 0).all
    assert 2 * _block(1) == rank_parameters(work, 1).all
    assert _held(work, 0) == max((_held(work, rank) for rank in (0, 1)), key=lambda each: each.peak)


def test_a_schedule_of_a_file_has_its_stages_where_it_says():
    """Here in a V that no name has: memory follows the stages."""
    work = job(Mesh(pp=2), virtual=2, schedule="mine.csv", placed=(1, 0, 0, 1))

    assert 2 * _block(1) == rank_parameters(work, 0).all
    assert 2 * _block(1) + V * H + S * H + 2 * H == rank_parameters(work, 1).all


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("schedule", "virtual"),
    [("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1), ("zbv", 2), ("dualpipe", 2),
     *slow([("interleaved", 5), ("zero_bubble", 3)])],
)  # fmt: skip
def test_most_is_in_flight_after_four_rounds(schedule, virtual, p):
    """Which searches count on: more micro batches keep no more activations."""
    blocks = p * virtual
    text = GPT.replace("layers=4", f"layers={blocks}")
    few, many = (
        job(Mesh(pp=p), text, schedule=schedule, virtual=virtual, micros=rounds * p)
        for rounds in (4, 13)
    )

    assert [_held(few, rank) for rank in range(p)] == [_held(many, rank) for rank in range(p)]
