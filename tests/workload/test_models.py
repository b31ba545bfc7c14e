"""The shipped models: gradient lists against the totals of tf_cnn_benchmarks' own models (1001
classes, master 8fb7907) and of transformers as
PyTorch and Hugging Face have them, work against published counts.
"""

from __future__ import annotations

import hashlib

import pytest

from simreduce.errors import WorkloadError
from simreduce.workload.loader import load_model, load_workload, shipped

MODELS = {
    "resnet50": (161, 25_559_081, 2_359_296),
    "resnet101": (314, 44_551_209, None),
    "resnet152": (467, 60_194_857, None),
    "vgg16": (32, 138_361_641, 102_760_448),
    "alexnet": (16, 61_842_345, None),
    "inception3": (190, 23_819_401, None),
    "googlenet": (116, 6_999_577, None),
    "trivial": (6, 4_263_877, None),
    "bert-base": (199, 109_482_240, 30522 * 768),
    "bert-large": (391, 335_141_888, 30522 * 1024),
    "gpt2": (148, 124_439_808, 50257 * 768),
    "gpt2-medium": (292, 354_823_168, 50257 * 1024),
    "gpt2-large": (436, 774_030_080, 50257 * 1280),
    "gpt2-xl": (580, 1_557_611_200, 50257 * 1600),
    "llama-2-7b": (291, 6_738_415_616, 32000 * 4096),
    "llama-2-13b": (363, 13_015_864_320, 32000 * 5120),
    "llama-2-70b": (723, 68_976_648_192, 32000 * 8192),
    "gpt-3-5b": (388, 5_047_558_144, 50304 * 4096),
    "llama-3-8b": (291, 8_030_261_248, 128256 * 4096),
    "llama-3-70b": (723, 70_553_706_496, 128256 * 8192),
    "mixtral-8x7b": (995, 46_702_792_704, 32000 * 4096),
    "gpt-3-175b": (1540, 174_615_846_912, 51200 * 12288),
    "megatron-3.6b": (484, 3_562_168_320, 51200 * 3072),
    "megatron-39.1b": (772, 39_096_041_472, 51200 * 8192),
    "megatron-22b": (772, 22_074_273_792, 51200 * 6144),
    "megatron-530b": (1684, 529_600_819_200, 4 * 20480 * 20480),
    "megatron-1t": (2052, 1_008_038_758_400, 4 * 25600 * 25600),
    "llama-3.1-405b": (1137, 405_853_388_800, 128256 * 16384),
    "nemotron-4-15b": (259, 15_628_376_064, 256000 * 6144),
    "nemotron-4-340b": (771, 341_025_638_400, 256000 * 18432),
    "grok-1": (1986, 315_684_034_560, 131072 * 6144),
    "deepseek-v3": (45337, 671_026_404_352, 129280 * 7168),
    "qwen3-30b-a3b": (18771, 30_532_110_336, 151936 * 2048),
    "qwen3-235b-a22b": (36757, 235_093_610_496, 151936 * 4096),
    "t5-base": (257, 222_903_552, 32128 * 768),
    "t5-large": (509, 737_668_096, 32128 * 1024),
    "t5-3b": (509, 2_851_598_336, 32128 * 1024),
    "vit-b-16": (152, 86_567_656, None),
    "vit-l-16": (296, 304_326_632, None),
}
DIGESTS = {
    "alexnet": "ca0076f534f9",
    "googlenet": "0aaff10dcbfc",
    "inception3": "a723bbdface7",
    "resnet101": "be7ce5f6a625",
    "resnet152": "7344316e8f64",
    "resnet50": "56256204e73c",
    "trivial": "79d6a838e6a6",
    "vgg16": "99201cd479c6",
}


def test_the_shipped_models_are_listed_by_name():
    """Sorted, each of which has its totals below."""
    assert sorted(MODELS) == shipped()


@pytest.mark.parametrize("model", MODELS)
def test_a_model_has_the_gradients_it_has_upstream(model):
    """Tensors, elements, and the largest tensor where it is published; fp32."""
    workload = load_workload(model)
    tensors, elements, largest = MODELS[model]

    assert (model, tensors, elements, 4 * elements) == (
        workload.name,
        len(workload.gradients),
        workload.elements,
        workload.nbytes,
    )
    assert largest in (None, max(g.elements for g in workload.gradients))
    assert {0} == {g.dtype for g in workload.gradients}
    assert tensors == len({g.name for g in workload.gradients})


@pytest.mark.parametrize(
    ("model", "megabytes"),
    [
        ("resnet50", [15.65, 22.51, 8.63, 8.64, 8.88, 6.92, 9.02, 21.98]),
        ("vgg16", [20.06, 0.005, 422.99, 0.020, 79.20, 0.020, 31.15, 0.009]),
    ],
)
def test_the_order_of_the_gradients_is_that_of_the_model(model, megabytes):
    """MB of the tensors with index i mod 8: what each of eight GPUs sums when tensor i is summed on
    GPU i mod 8.
    """
    gradients = load_workload(model).gradients

    for device, expected in enumerate(megabytes):
        found = sum(g.nbytes for g in gradients[device::8]) / 1e6
        assert expected == round(found, 3 if expected < 0.1 else 2)


def test_the_first_gradients_of_resnet50():
    """Variables in the order of their creation, with their shapes."""
    assert [("cg/conv0/conv2d/kernel", 7 * 7 * 3 * 64), ("cg/conv0/batchnorm0/gamma", 64)] == [
        (g.name, g.elements) for g in load_workload("resnet50").gradients[:2]
    ]


def test_the_lists_are_those_of_upstream_to_the_name():
    """Names and elements in order, hashed: what tf_cnn_benchmarks itself printed."""
    found = {}
    for model in DIGESTS:
        rows = [f"{g.name},{g.elements}" for g in load_workload(model).gradients]
        found[model] = hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]

    assert DIGESTS == found


@pytest.mark.parametrize(
    ("model", "multiply_adds", "within"),
    [
        ("resnet50", 3.8e9, 0.02),  # He et al. 2015, table 1
        ("resnet101", 7.6e9, 0.01),
        ("resnet152", 11.3e9, 0.01),
        ("vgg16", 15.3e9, 0.02),  # the same, section 3.3
        ("googlenet", 1.5e9, 0.06),  # Szegedy et al. 2014, abstract
        ("inception3", 5.72e9, 0.01),  # torchvision's 5.71 GFLOPS, without the auxiliary head
        # Sun et al. 2020 (MobileBERT), table 1: 128 tokens, in FLOPs
        ("bert-base", 22.5e9 / 2, 0.01),
        ("vit-b-16", 17.56e9, 0.01),  # torchvision's GFLOPS, which are multiply-adds
        ("vit-l-16", 61.55e9, 0.01),
        ("mixtral-8x7b,sequence=1", 12.9e9, 0.02),  # Jiang et al. 2024: active parameters
    ],
)
def test_work_is_that_of_the_literature(model, multiply_adds, within):
    """Of a forward pass; published figures are rounded, and differ in what they leave out."""
    assert load_model(model).forward / 2 == pytest.approx(multiply_adds, rel=within)


def test_work_of_alexnet_by_hand():
    """Output positions times filters times window, convolution by convolution, and the matrices of
    the end.
    """
    convolutions = (
        55 * 55 * 64 * 363 + 27 * 27 * 192 * 1600 + 13 * 13 * (384 * 1728 + 384 * 3456 + 256 * 3456)
    )
    matrices = 9216 * 4096 + 4096 * 4096 + 4096 * 1001

    assert 2 * (convolutions + matrices) == load_model("alexnet").forward


@pytest.mark.parametrize("model", ["alexnet", "inception3", "resnet152", "vgg16"])
def test_backward_is_twice_the_work_but_for_the_layer_that_reads_the_image(model):
    """Nobody needs the gradient of an image."""
    first, *rest = load_model(model).layers

    assert first.forward == first.backward
    assert all(2 * layer.forward == layer.backward for layer in rest)


def test_work_of_gpt2_grows_as_theory_says():
    """Kaplan et al. 2020, table 1: 2N + 4 L s h FLOPs a token forward, N with the output matrix,
    without embeddings.
    """
    few, many = (load_model(f"gpt2,sequence={s}").forward for s in (1, 512))
    weights = 12 * 12 * 768 * 768 + 50257 * 768

    assert 2 * weights + 4 * 12 * 768 == few
    assert 512 * (2 * weights + 4 * 12 * 512 * 768) == many


def test_work_of_a_llama_is_two_operations_per_weight_and_token():
    """Without the look-up of words, and four per pair of tokens and unit of width of a block."""
    few, many = (load_model(f"llama-3-8b,sequence={s}").forward for s in (1, 512))
    weights = 8_030_261_248 - 128256 * 4096 - 65 * 4096  # but the embedding and the 65 norms

    assert 2 * weights + 4 * 32 * 4096 == few
    assert 512 * (2 * weights + 4 * 32 * 512 * 4096) == many


def test_work_of_t5_by_hand():
    """512 tokens read, 114 written: projections, feed-forward parts, attention, words."""
    h, f, read, written = 768, 3072, 512, 114
    encoder = 2 * read * (4 * h * h + 2 * h * f) + 4 * read * read * h
    own = 2 * written * (4 * h * h + 2 * h * f) + 4 * written * written * h
    cross = 2 * written * 2 * h * h + 2 * read * 2 * h * h + 4 * written * read * h

    assert 12 * (encoder + own + cross) + 2 * 32128 * h * written == pytest.approx(
        load_model("t5-base").forward
    )


def test_a_model_of_images_has_no_sequence():
    """One line, which says why."""
    with pytest.raises(WorkloadError, match="vit-b-16 reads images, and takes no options"):
        load_model("vit-b-16,sequence=100")


def test_a_sequence_changes_the_work_and_not_the_gradients():
    """BERT at 512 tokens, and what is no length."""
    assert load_model("bert-base,sequence=512").forward > 4 * load_model("bert-base").forward
    assert load_workload("bert-base,sequence=512").gradients == load_workload("bert-base").gradients
    with pytest.raises(WorkloadError) as caught:
        load_model("bert-base,seqence=1,sequence=513")

    assert (
        "bert-base,seqence=1,sequence=513: seqence: unknown key (did you mean 'sequence'?)",
        (
            "bert-base,seqence=1,sequence=513: sequence: must be a whole number of tokens from 1 "
            "to "
            "512, got '513'"
        ),
    ) == caught.value.problems


@pytest.mark.parametrize("model", sorted(MODELS))
def test_layers_hold_the_gradient_list(model):
    """In its order, so that back-propagation makes them last first."""
    loaded = load_model(model)

    assert load_workload(model).gradients == tuple(
        g for layer in loaded.layers for g in layer.gradients
    )
    assert len({layer.name for layer in loaded.layers}) == len(loaded.layers)


def test_a_list_is_a_model_of_unknown_work():
    """Every gradient is a layer."""
    model = load_model("bytes:64K")

    assert [("gradient", 1)] == [(layer.name, len(layer.gradients)) for layer in model.layers]
    assert 0 == model.flops
