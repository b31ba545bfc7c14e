"""Decoders: their parameters against published counts, and those that a text states."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.errors import WorkloadError
from simreduce.workload.decoder import DECODERS, EXAMPLE, Decoder, read_shape
from simreduce.workload.loader import load_decoder, load_model, load_workload
from tests.thorough import examples


@pytest.mark.parametrize(
    ("model", "billions", "within"),
    [
        ("gpt-3-175b", 174.6, 1e-3),  # Brown et al. 2020, table D.1: 174,600 M
        ("megatron-3.6b", 3.6, 0.02),  # Narayanan et al. 2021, table 1
        ("megatron-39.1b", 39.1, 0.005),
        ("megatron-22b", 22, 0.005),  # Korthikanti et al. 2022, table 3
        ("megatron-530b", 530, 0.001),  # Smith et al. 2022, https://arxiv.org/abs/2201.11990
        ("megatron-1t", 1008, 1e-4),  # Narayanan et al. 2021, table 1
        ("llama-2-7b", 6.738, 1e-4),  # https://huggingface.co/meta-llama/Llama-2-7b
        ("llama-2-13b", 13.016, 1e-4),
        ("llama-2-70b", 68.977, 1e-4),
        ("gpt-3-5b", 5.0, 0.02),
        ("llama-3-8b", 8.03, 1e-3),  # https://huggingface.co/meta-llama/Meta-Llama-3-8B
        ("llama-3-70b", 70.6, 1e-3),  # https://huggingface.co/meta-llama/Meta-Llama-3-70B
        ("llama-3.1-405b", 405.85, 1e-4),  # https://huggingface.co/meta-llama/Llama-3.1-405B
        ("nemotron-4-15b", 15.6, 0.005),  # https://www.emergentmind.com/topics/nemotron-4-15b
        ("nemotron-4-340b", 341, 0.001),  # Nvidia 2024, table 1: 9.4 B and 331.6 B
        ("mixtral-8x7b", 46.7, 1e-3),  # https://huggingface.co/mistralai/Mixtral-8x7B-v0.1
        ("deepseek-v3", 671, 1e-3),  # DeepSeek-AI 2024, abstract
        ("qwen3-30b-a3b", 30.5, 0.002),  # Qwen Team 2025, table 2 and model cards
        ("qwen3-235b-a22b", 235, 0.001),
        ("grok-1", 314, 0.01),  # https://x.ai/blog/grok-os
    ],
)
def test_parameters_are_those_that_were_published(model, billions, within):
    """All of them, experts included."""
    assert DECODERS[model][0].parameters == pytest.approx(billions * 1e9, rel=within)


@pytest.mark.parametrize(
    ("model", "billions", "within"),
    [
        ("mixtral-8x7b", 12.9, 0.01),  # Jiang et al. 2024
        ("deepseek-v3", 37, 0.02),  # DeepSeek-AI 2024, abstract
        ("qwen3-30b-a3b", 3.3, 0.02),  # model cards
        ("qwen3-235b-a22b", 22, 0.01),
    ],
)
def test_a_token_passes_through_some_experts(model, billions, within):
    """A forward pass takes two operations for each active parameter; of an embedding none."""
    shape = DECODERS[model][0]
    embedding = 0 if shape.tied else shape.embedding.split
    attention = 4 * shape.blocks * shape.queries  # of one token with itself
    active = (load_model(f"{model},sequence=1").forward - attention) / 2 + embedding

    assert active == pytest.approx(billions * 1e9, rel=within)


@pytest.mark.parametrize("model", sorted(DECODERS))
def test_the_sum_of_the_gradients_is_the_number_of_parameters(model):
    """Two ways to count: tensor by tensor, and by parts that a mesh divides."""
    assert DECODERS[model][0].parameters == load_workload(model).elements


def _answer(of: bool) -> str:
    return "yes" if of else "no"


@settings(max_examples=examples(60), deadline=None)
@given(
    layers=st.integers(1, 4),
    heads=st.sampled_from([1, 2, 4, 8]),
    head=st.sampled_from([4, 6]),
    groups=st.sampled_from([1, 2, 4, 8]),
    ffn=st.integers(1, 60),
    experts=st.sampled_from([0, 2, 5]),
    shared=st.integers(0, 2),
    flags=st.tuples(*[st.booleans()] * 5),
)
def test_any_decoder_has_the_same_sum_by_layers_and_by_parts(
    layers, heads, head, groups, ffn, experts, shared, flags
):
    """With and without biases, gates, experts, learned positions, and an output of its own."""
    names = ("gated", "bias", "dropout", "positions", "tied")
    more = dict(zip(names, map(_answer, flags), strict=True))
    if experts:
        more |= {"experts": experts, "shared": shared, "dense": layers - 1, "expert_ffn": 7}
    figures = {
        "layers": layers, "hidden": 24, "heads": heads, "head": head, "vocab": 30,
        "groups": min(groups, heads), "ffn": ffn, "seq": 10, **more,
    }  # fmt: skip
    shape = read_shape("transformer:" + ",".join(f"{k}={v}" for k, v in figures.items()))

    layers_ = shape.layers(10)
    assert shape.parameters == sum(g.elements for layer in layers_ for g in layer.gradients)
    assert len({layer.name for layer in layers_}) == len(layers_)


def test_a_plain_decoder_by_hand():
    """As GPT: h x h four times, two products four times as wide, biases, norms, positions."""
    h, words, seq = 16, 50, 32
    shape = read_shape(f"transformer:layers=3,hidden={h},heads=4,vocab={words},seq={seq}")
    block = (4 * h * h + 4 * h) + (8 * h * h + 5 * h) + 4 * h

    assert Decoder(
        3, h, 4, 4, 4, 4 * h, words, seq, gated=False, bias=True, dropout=True, tied=True,
        positions=seq,
    ) == shape  # fmt: skip
    assert 3 * block + words * h + seq * h + 2 * h == shape.parameters


def test_a_gated_decoder_by_hand():
    """As Llama: no biases, positions or dropout, three products, an output of its own."""
    h, f = 16, 40
    shape = read_shape(
        f"transformer:layers=2,hidden={h},heads=4,vocab=50,groups=2,ffn={f},gated=yes"
    )
    block = 2 * h * h + 2 * h * (h // 2) + 3 * h * f + 2 * h

    assert (False, False, False, 0, 2048) == (
        shape.bias, shape.dropout, shape.tied, shape.positions, shape.sequence,
    )  # fmt: skip
    assert 2 * block + 2 * 50 * h + h == shape.parameters


def test_experts_by_hand():
    """All of them have gradients, with a router and shared ones; the first block has none."""
    h, f, e = 16, 40, 8
    text = f"transformer:layers=2,hidden={h},heads=4,vocab=50,ffn=64,gated=yes,experts=6,topk=3"
    shape = read_shape(f"{text},expert_ffn={e},shared=2,dense=1")
    attention = 4 * h * h + h
    routed = h * 6 + 6 * 3 * h * e + 3 * h * 2 * e + h

    assert 2 * attention + (3 * h * 64 + h) + routed + 2 * 50 * h + h == shape.parameters
    assert (6, 3, 8, 2, 1) == (
        shape.experts, shape.active, shape.expert, shape.shared, shape.dense,
    )  # fmt: skip
    assert 2 == read_shape(f"{text.replace(',topk=3', '')},expert_ffn={f}").active


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (
            "layrs=2,hidden=0,heads=4,heads=8,gated=maybe",
            [
                "heads: is given twice",
                "layrs: unknown key (did you mean 'layers'?)",
                "hidden: must be a whole number from 1 to 1000000, got 0",
                "gated: ",
                "layers: missing",
                "vocab: missing",
            ],
        ),
        ("layers=2,hidden=18,heads=4,vocab=9", ["heads: 4 do not share 18 evenly; give head"]),
        (
            "layers=2,hidden=16,heads=4,vocab=9,groups=3,topk=2,shared=1",
            [
                "groups: 3 do not share 4 heads evenly",
                "topk: there are no experts",
                "shared: there are no experts",
            ],
        ),
        (
            "layers=2,hidden=16,heads=4,vocab=9,experts=4,topk=5,dense=2",
            ["topk: 5 of 4 experts", "dense: leaves none of 2 layers for experts"],
        ),
    ],
)
def test_every_fault_at_once(text, problems):
    """With its key, and the nearest spelling."""
    with pytest.raises(WorkloadError) as caught:
        load_model(f"transformer:{text}")
    found = sorted(caught.value.problems)

    assert len(problems) == len(found)
    for expected in problems:
        assert any(expected in problem for problem in found), (expected, found)


def test_the_example_in_messages_is_right():
    """18 billion parameters and a half, of 48 x 12 x 8192 x 8192 and the embedding."""
    assert load_decoder(EXAMPLE).shape.parameters == pytest.approx(
        12 * 48 * 8192**2 + (51200 + 2048) * 8192, rel=1e-3
    )


def test_a_name_or_figures_give_a_decoder():
    """With the tokens of a sequence, which may be stated."""
    assert DECODERS["grok-1"][0] == load_decoder("grok-1").shape
    assert (8192, 4096) == (
        load_decoder("llama-3-8b").tokens, load_decoder("llama-3-8b,sequence=4096").tokens,
    )  # fmt: skip
    stated = load_decoder(EXAMPLE)
    assert (2048, EXAMPLE) == (stated.tokens, stated.name)
    assert stated.model == load_model(EXAMPLE)


def test_a_model_of_other_blocks_is_no_decoder():
    """With those that are."""
    with pytest.raises(WorkloadError, match=r"resnet50 is no decoder.*llama-3-70b.*transformer:"):
        load_decoder("resnet50")
