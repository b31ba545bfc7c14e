"""Activations by policy: the published formula, what is made again, and who wins over whom."""

from __future__ import annotations

from math import fsum

import pytest

from simreduce.errors import InputError
from simreduce.topology import load_topology
from simreduce.training import StepQuestion
from simreduce.training.memory import estimate_activations
from simreduce.training.step import Activations
from simreduce.workload import Model
from simreduce.workload.decoder import _GPT2_WORDS, ARCHITECTURES, gpt2_layers
from simreduce.workload.loader import load_model
from tests.training.small import read_step

GPT2, RESNET, MACHINE = load_model("gpt2"), load_model("resnet50"), load_topology("dgx1p")
GOOGLENET = load_model("googlenet")
"""Its modules have branches."""
BLOCKS, WIDTH, HEADS, TOKENS = 12, 768, 12, 1024
SBH = TOKENS * WIDTH
ENDS = SBH + 4 * TOKENS * (WIDTH + _GPT2_WORDS)
"""The mask of the embedding's dropout; the last norm, the output and the loss."""
SCORES = 5 * HEADS * TOKENS**2


def read(model: Model = GPT2, **table: object) -> StepQuestion:
    return read_step({"batch": 4, **table}, model, MACHINE)


@pytest.mark.parametrize(
    ("policy", "attention", "expected"),
    [
        ("none", "unfused", BLOCKS * (34 * SBH + SCORES) + ENDS),
        ("none", "fused", BLOCKS * 34 * SBH + ENDS),
        ("selective", "unfused", BLOCKS * 34 * SBH + ENDS),
        ("full", "fused", BLOCKS * 2 * SBH + ENDS),
    ],
)
def test_the_published_formula(policy, attention, expected):
    """Korthikanti et al. 2022: 34 s h + 5 a s^2 bytes of a block, 34 s h, and 2 s h."""
    assert estimate_activations(GPT2, policy, attention) == expected


def test_attention_to_an_encoder_keeps_keys_and_values_of_all_that_the_encoder_read():
    """Two numbers of 16 bits more for each token that the decoder does not write."""
    model, width, tokens = load_model("t5-base"), 768, 512
    kept = {layer.name: layer.kept for layer in model.layers}
    own, across = kept["decoder.block.1.self"], kept["decoder.block.1.cross"]

    assert across.others - own.others == pytest.approx(4 * width * (tokens - 114))
    assert across.scores == pytest.approx(own.scores * tokens / 114)
    assert across.input == own.input


def test_what_is_made_again_is_there_for_one_block_at_a_time():
    """Where the logits are smaller than that, which are gone by then."""
    tokens, blocks = 4096, 3
    long = Model("long", tuple(gpt2_layers(blocks, WIDTH, tokens)))
    again = 34 * tokens * WIDTH + 5 * HEADS * tokens**2
    inputs, mask = 2 * blocks * tokens * WIDTH, tokens * WIDTH

    assert again > 4 * tokens * (WIDTH + _GPT2_WORDS)
    full = estimate_activations(long, "full", "unfused")
    assert full == inputs + mask + again - 2 * tokens * WIDTH
    assert estimate_activations(long, "selective", "unfused") == (
        34 * blocks * tokens * WIDTH + mask + max(5 * HEADS * tokens**2, ENDS * 4 - mask)
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_policies_keep_less_and_less(name):
    """Of every transformer; a longer sequence of GPT-2 keeps more than in proportion."""
    model = load_model(name)
    found = [estimate_activations(model, policy, "unfused") for policy in
             ("none", "selective", "full")]  # fmt: skip

    assert found == sorted(found, reverse=True)
    assert found[0] > estimate_activations(model, "none", "fused") >= found[2] > 0


def test_heads_and_gates_of_llama():
    """Keys of an eighth of the heads, no dropout, three products of a gated part."""
    layer = load_model("llama-3-70b,sequence=1024").layers
    attention, mlp = layer[1].kept, layer[2].kept

    assert attention.others == 1024 * (2 + 2 + 2 + 2) * 8192 + 1024 * 2 * 2 * 1024
    assert attention.scores == 2 * 64 * 1024**2
    assert mlp.others == 1024 * (4 * 8192 + 8 * 28672)


def test_the_users_figure_wins():
    """Then the architecture's by batch; of other models nothing is counted."""
    of_one = estimate_activations(GPT2)
    whole = round(4 * of_one)

    assert read(time="1 s", activations="1 GB").activations == Activations(10**9, "given")
    fused = read(time="1 s", kernels="megatron")
    assert fused.activations == Activations(whole, "estimated")
    unfused = read(time="1 s", kernels="megatron", attention="unfused")
    assert unfused.activations.nbytes > whole
    assert read(GOOGLENET, time="1 s").activations == Activations(0, "not_counted")
    assert read(GOOGLENET, time="1 s").activations.words == "activations not counted"


def test_a_bottleneck_block_keeps_six_buffers():
    """Rota Bulo et al. 2018: what each batch norm reads, and what each ReLU gives; in float32."""
    block = [layer for layer in RESNET.layers if layer.name.startswith("cg/resnet_v11/")]
    given = 56 * 56 * (64 + 64 + 256)

    assert 3 == len(block)
    assert 4 * 2 * given == sum(layer.kept.others for layer in block)


def test_a_shortcut_keeps_what_its_batch_norm_reads():
    """No ReLU follows it; the pooling before it is what its block reads."""
    shortcut, *_ = (each for each in RESNET.layers if each.name.startswith("cg/resnet_v10/"))

    assert 4 * (56 * 56 * 64 + 56 * 56 * 256) == shortcut.kept.others


def test_vgg_keeps_the_image_and_what_each_layer_and_pooling_gives():
    """A ReLU without a batch norm before it keeps what it gives, which the next layer reads."""
    convolutions = sum(
        count * (224 >> stage) ** 2 * filters
        for stage, (count, filters) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)])
    )
    pooled = sum((112 >> stage) ** 2 * each for stage, each in enumerate([64, 128, 256, 512, 512]))
    whole = 224 * 224 * 3 + convolutions + pooled + 4096 + 4096 + 1001

    assert 4 * whole == estimate_activations(load_model("vgg16"))


@pytest.mark.parametrize("given", [{"time": "1 s"}, {"rate": "100 TFLOP/s"}])
def test_recomputation_takes_time(given):
    """Once more forward in all blocks, or attention by itself; embeddings and head as before."""
    plain, full = read(**given).job.profile, read(**given, recompute="full").job.profile
    selective = read(**given, recompute="selective").job.profile
    inside = fsum(t for t, layer in zip(plain.forward, GPT2.layers, strict=True)
                  if layer.name.startswith("h."))  # fmt: skip
    attention = 4 * TOKENS**2 * WIDTH * BLOCKS / GPT2.flops * plain.seconds

    assert full.forward == plain.forward
    assert full.backward[-1] == plain.backward[-1]
    assert full.seconds == pytest.approx(plain.seconds + inside)
    assert selective.seconds == pytest.approx(plain.seconds + attention)
    assert "full recomputation on top" in full.source


def test_what_cannot_be_recomputed_is_said():
    """With the key, and what is near."""
    for policy, why in (
        ("full", "its blocks are not known: no name of a layer has a number between dots"),
        ("selective", "nobody counted the work of attention by itself"),
    ):
        with pytest.raises(InputError, match=f"^step.recompute: resnet50: {why}"):
            read(RESNET, time="1 s", recompute=policy)
    with pytest.raises(InputError) as caught:
        read(time="1 s", recompute="ful", attention="fuse")
    assert [text[-23:] for text in caught.value.problems] == [
        " (did you mean 'full'?)",
        "(did you mean 'fused'?)",
    ]


LLAMA = load_model("llama-3-8b")
_Q, _KV, _INNER, _HEADS, _LONG, _LLAMA_BLOCKS = 4096, 1024, 14336, 32, 8192, 32


def test_op_by_op_keeps_attention_and_every_other_product():
    """torchtitan's rule: of q, k, v, o, w1, w3, w2 the first, third, fifth and seventh, and what
    attention gives with a number for each row and head. Beside them each block keeps its input, of
    4 bytes by autocast, as it does with full recomputation.
    """
    op, full = (read(LLAMA, time="1 s", recompute=each).activations for each in ("op", "full"))
    given = 2 * (_Q + _KV + _Q + _INNER + _Q) + 4 * _HEADS

    assert op.nbytes - full.nbytes == 4 * _LONG * given * _LLAMA_BLOCKS  # a batch of 4


def test_op_by_op_makes_every_other_product_again():
    """Of products, k, o and w3; of GPT-2's, which add a bias and are another op, none."""
    plain, op = (read(LLAMA, rate="1 TFLOP/s", recompute=p).job.profile for p in ("none", "op"))
    again = 2 * 4 * _LONG * _LLAMA_BLOCKS * (_Q * _KV + _Q * _Q + _Q * _INNER)
    biased = [read(time="1 s", recompute=p).job.profile.seconds for p in ("none", "op")]

    assert op.seconds - plain.seconds == pytest.approx(again / 1e12)
    assert biased[0] == biased[1]


def test_kernels_of_op_by_op_are_between_all_and_none():
    plain, op, full = (
        read_step({"batch": 1, "recompute": policy}, LLAMA, load_topology("dgx-h100")).job.profile
        for policy in ("none", "op", "full")
    )

    assert plain.forward == op.forward
    assert plain.seconds < op.seconds < full.seconds
    # Half of the products, and all between them, are made again.
    assert 0.35 < (op.seconds - plain.seconds) / (full.seconds - plain.seconds) < 0.65


def test_every_second_block_takes_half_of_what_all_take():
    plain, half, full = (
        read(LLAMA, rate="1 TFLOP/s", recompute=policy) for policy in ("none", "every 2", "full")
    )
    seconds = [each.job.profile.seconds for each in (plain, half, full)]
    again = [before - after for before, after in
             zip(half.job.profile.backward, plain.job.profile.backward, strict=True)]  # fmt: skip
    names = [layer.name for layer in LLAMA.layers]

    assert seconds[1] - seconds[0] == pytest.approx((seconds[2] - seconds[0]) / 2)
    assert [i for i, more in enumerate(again) if more] == [
        i for i, name in enumerate(names)
        if name.startswith("layers.") and int(name.split(".")[1]) % 2
    ]  # fmt: skip
    assert plain.activations.nbytes > half.activations.nbytes > full.activations.nbytes


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"recompute": "opp"}, "unknown policy 'opp' \\(did you mean 'op'\\?\\)"),
        ({"recompute": "every 0"}, "unknown policy 'every 0' \\(did you mean 'every 2'"),
        ({"recompute": "x"}, "unknown policy 'x'; known are none, selective, full, op, every 2"),
        ({"recompute": "op", "kernels": "megatron"}, "is of PyTorch's kernels"),
        ({"recompute": "op", "attention": "unfused"}, "keeps what fused attention gives"),
    ],
)
def test_policies_that_cannot_be(table, why):
    with pytest.raises(InputError, match=f"step.recompute: {why}|{why}"):
        read(LLAMA, time="1 s", **table)
