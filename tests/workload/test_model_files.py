"""Models by layer from TOML files: what is read, what is written back, and every fault with its
place.
"""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from simreduce_validate.model import model_text

from simreduce import dtypes
from simreduce.errors import WorkloadError
from simreduce.workload import Gradient, Layer, Model
from simreduce.workload.loader import load_model, load_workload

TWO = """
title = "two"
[[layers]]
name = "conv"
forward = "1.5 GFLOP"
backward = "1.5 GFLOP"
gradients = [
  { name = "conv/kernel", shape = [3, 3, 8, 16] },
  { name = "conv/bias", elements = 16, dtype = "half" },
]
[[layers]]
name = "attention"
forward = "20 kFLOP"
[[layers]]
name = "norm"
gradients = [{ elements = 4 }]
"""


def _refused(text: str) -> tuple[str, ...]:
    with pytest.raises(WorkloadError) as caught:
        load_model(text)
    return caught.value.problems


def test_a_file_gives_layers_with_their_gradients_and_work(write):
    """In FLOPs of one sample; backward is twice forward unless given; a layer may have no gradient,
    or no work.
    """
    model = load_model(write("model.toml", TWO))

    assert "two" == model.name
    assert (
        Layer("conv", (Gradient("conv/kernel", 1152), Gradient("conv/bias", 16, 1)), 1.5e9, 1.5e9),
        Layer("attention", (), 2e4, 4e4),
        Layer("norm", (Gradient("gradient2", 4),), counted=False),
    ) == model.layers


def test_its_gradients_are_a_workload_too(write):
    """Layer after layer."""
    workload = load_workload(write("model.toml", TWO))

    assert ["conv/kernel", "conv/bias", "gradient2"] == [g.name for g in workload.gradients]


def test_every_fault_is_told_at_once_with_its_place(write):
    """Of layers, their work, and the gradients in them; misspelt keys with the nearest."""
    path = write(
        "model.toml",
        """
        [[layers]]
        name = "a"
        forward = "3 MFLOPS"
        gradients = [
            { name = "w", elemnts = 3 }, { name = "v", shape = [2, -1], dtype = "flaot32" }
        ]
        [[layers]]
        name = "a"
        backward = "1 GFLOP"
        gradients = [1]
        [[layers]]
        forward = 5
        """,
    )

    assert (
        (
            "model.toml: layers[0].forward: '3 MFLOPS': unknown unit 'MFLOPS' for a number of "
            "floating-point operations; write for example '7.7 GFLOP'"
        ),
        "model.toml: layers[0].gradients[0].elemnts: unknown key (did you mean 'elements'?)",
        "model.toml: layers[0].gradients[0]: give elements or shape, one of the two",
        "model.toml: layers[0].gradients[1].shape[1]: must be a whole number from 0, got -1",
        (
            "model.toml: layers[0].gradients[1].dtype: unknown dtype 'flaot32' (did you mean "
            "'float32'?); one of float32, float16, float64, bfloat16, int32, int64, float, half, "
            "double"
        ),
        (
            "model.toml: layers[1].gradients: must be [[gradients]] tables with name, elements, "
            "shape, "
            "dtype, got [1]"
        ),
        "model.toml: layers[2].name: missing; must be text",
        (
            "model.toml: layers[2].forward: 5 has no unit; write a number of floating-point "
            "operations "
            "as text, for example '7.7 GFLOP'"
        ),
        "model.toml: layers[1].name: a second layer 'a'",
        "model.toml: layers[1].backward: needs forward beside it",
    ) == _refused(path)


def test_a_misspelt_key_hides_no_other_fault(write):
    path = write(
        "model.toml",
        """
        title = 3
        [[layers]]
        name = "a"
        forwrd = "1 MFLOP"
        gradients = [{ name = "w", elements = 4 }]
        [[layers]]
        name = "a"
        gradients = [{ name = "w", elements = 4 }]
        """,
    )

    assert (
        "model.toml: title: must be text, got 3",
        "model.toml: layers[0].forwrd: unknown key (did you mean 'forward'?)",
        "model.toml: layers[1].name: a second layer 'a'",
        "model.toml: layers[1].gradients[0].name: a second gradient 'w'",
    ) == _refused(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[layer]]\nname = 'a'", "layer: unknown key (did you mean 'layers'?)"),
        ("[[layers]]\nnam = 'a'", "layers[0].nam: unknown key (did you mean 'name'?)"),
        (
            "layers = []\ngradients = []",
            "give either layers, with their gradients in them, or gradients",
        ),
        (
            "layers = 3",
            "layers: must be [[layers]] tables with name, forward, backward, gradients, got 3",
        ),
        ("[[layers]]\nname = 'a'", "there is no gradient to reduce"),
        (
            "[[layers]]\nname = 'a'\nforward = '1e300 GFLOP'",
            "layers[0].forward: '1e300 GFLOP' is too large for the work on a sample",
        ),
        (
            "[[layers]]\nname = 'a'\ngradients = [{ elements = 1e9 }]",
            "layers[0].gradients[0].elements: must be a whole number from 0, got 1000000000.0",
        ),
    ],
)
def test_a_file_that_is_no_model(write, content, message):
    """One line says why."""
    assert f"model.toml: {message}" == _refused(write("model.toml", content))[0]


names = st.text(st.characters(exclude_categories=["C"]), max_size=12)
gradients = st.builds(Gradient, names, st.integers(0, 2**31), st.integers(0, len(dtypes.NAMES) - 1))
works = st.one_of(st.just(0.0), st.integers(1, 2**53).map(float), st.floats(1e-3, 1e17))
layer_lists = st.lists(
    st.builds(
        lambda name, own, work: Layer(
            name, tuple(own), *(work or (0.0, 0.0)), counted=work is not None
        ),
        names,
        st.lists(gradients, max_size=3),
        st.none() | st.tuples(works, works),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda layer: layer.name,
).filter(lambda layers: (found := _of(layers)) and len(found) == len(set(found)))


def _of(layers):
    return [gradient.name for layer in layers for gradient in layer.gradients]


@given(layer_lists)
def test_what_is_written_reads_back_as_the_same(tmp_path_factory, layers):
    """Names, elements, dtypes and work to the bit, whatever printable names hold."""
    path = tmp_path_factory.getbasetemp() / "written.toml"
    path.write_bytes(model_text(Model("a #b", tuple(layers)), ["from a test"]).encode())

    assert Model("a #b", tuple(layers)) == load_model(str(path))
