"""What autograd keeps of each op, by hand; real PyTorch agrees (validate/pytorch)."""

from __future__ import annotations

import pytest

from simreduce.workload.autograd import PROGRAMS, Tape, Tensor, saved_by
from simreduce.workload.loader import load_model

AMP, BF16, FP32 = {"amp": True}, {"half": True}, {}
T, H = 1024, 768


@pytest.mark.parametrize(("way", "each", "casts"), [(AMP, 88, 2), (BF16, 60, 0), (FP32, 120, 0)])
def test_a_block_of_gpt2(way, each, casts):
    """Bytes of each element of a token's vector, besides statistics of norms and attention.

    By autocast: two residual sums, 2 x 4; the inputs of four products, 7 x 2; queries, keys and
    values with the cache's copies of two, 5 x 2; what GELU's power reads, tanh and 1 + tanh,
    3 x 4 x 4, and half of its input, 4 x 2.
    """
    found = [
        saved_by((name, T, H, size), Tape(**way))
        for name, size in (("gpt2_attention", 12), ("gpt2_mlp", 4 * H))
    ]

    rows = 2 * 8 * T + 4 * 12 * T
    assert sum(saved.kept for saved in found) == each * T * H + rows
    assert sum(saved.casts for saved in found) == casts * 12 * H * H


def test_a_tensor_that_two_ops_keep_is_kept_once():
    """In bfloat16 three products read one norm's result; autocast converts it for each."""
    program = ("attention", T, H, H, H, 12, 0)
    converted, one = (saved_by(program, Tape(**way)).kept for way in (AMP, BF16))

    assert converted - one == 2 * T * H + 2 * 2 * T * H  # the residual, and two conversions more


def test_unfused_attention_keeps_softmax_in_32_bits_and_its_conversion():
    """In place of what it returns and its statistics."""
    program = ("bert_attention", 512, 1024, 16)
    unfused, fused = (saved_by(program, Tape(amp=True, fused=each)) for each in (False, True))

    assert unfused.scores == 16 * 512 * 512 * (4 + 2)
    assert unfused.kept - fused.kept == unfused.scores - 4 * 16 * 512


@pytest.mark.parametrize(("upcast", "gradients"), [(True, 4 + 4), (False, 4 + 2)])
def test_the_loss_holds_logits_in_32_bits(upcast, gradients):
    """The logarithm of softmax, its gradient, and that of the logits in the dtype it reads."""
    tape = Tape(amp=True)
    tape.loss(Tensor(1000, 2), upcast=upcast)

    assert (tape.kept, tape.logits, tape.gradients) == (4000, 4000, 1000 * gradients)


@pytest.mark.parametrize("name", ["gpt2", "bert-large", "llama-3-8b", "t5-base", "mixtral-8x7b"])
def test_compiled_models_keep_less(name):
    """And models in bfloat16 less than those that autocast converts; nobody more than float32."""

    def kept(**way):
        layers = [layer.kept.program for layer in load_model(name).layers]
        return sum(saved_by(program, Tape(**way)).kept for program in layers)

    assert kept(amp=True, compiled=True) < kept(amp=True) < kept()
    assert kept(half=True, compiled=True) <= kept(half=True) < kept(amp=True)


def test_every_program_belongs_to_a_model():
    """Of those that are shipped, or may be described."""
    named = ("gpt2", "bert-base", "t5-base", "vit-b-16", "vgg16", "llama-3-8b", "qwen3-30b-a3b")
    used = {layer.kept.program[0] for name in named for layer in load_model(name).layers}

    assert used == set(PROGRAMS)
