"""The shipped gradient lists, against the totals of tf_cnn_benchmarks' own models (1001 classes, master 8fb7907)."""

from __future__ import annotations

import pytest

from simreduce.workload import load_workload, shipped

MODELS = {
    "resnet50": (161, 25_559_081, 2_359_296),
    "resnet101": (314, 44_551_209, None),
    "resnet152": (467, 60_194_857, None),
    "vgg16": (32, 138_361_641, 102_760_448),
    "alexnet": (16, 61_842_345, None),
    "inception3": (190, 23_819_401, None),
    "googlenet": (116, 6_999_577, None),
    "trivial": (6, 4_263_877, None),
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
    """MB of the tensors with index i mod 8: what each of eight GPUs sums when tensor i is summed on GPU i mod 8."""
    gradients = load_workload(model).gradients

    for device, expected in enumerate(megabytes):
        found = sum(g.nbytes for g in gradients[device::8]) / 1e6
        assert expected == round(found, 3 if expected < 0.1 else 2)


def test_the_first_gradients_of_resnet50():
    """Variables in the order of their creation, with their shapes."""
    assert [("cg/conv0/conv2d/kernel", 7 * 7 * 3 * 64), ("cg/conv0/batchnorm0/gamma", 64)] == [
        (g.name, g.elements) for g in load_workload("resnet50").gradients[:2]
    ]
