"""What `simreduce model` is asked for; models themselves are in validate/tests."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from simreduce_validate.model import model, read_input

from simreduce.errors import InputError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("224x224x3", ((224, 224, 3), "")),
        ("128:int32", ((128,), "int32")),
        ("1x5:half", ((1, 5), "float16")),
        ("3x4:", ((3, 4), "")),
    ],
)
def test_a_sample_is_a_shape_and_perhaps_a_dtype(text, found):
    """Of tf_cnn_benchmarks' or nccl-tests' spelling."""
    assert found == read_input(text)


@pytest.mark.parametrize("text", ["", "x", "3x", "0", "3,4", "-1", ":int32", "9999999999"])
def test_a_shape_is_made_of_whole_numbers(text):
    with pytest.raises(InputError, match=r"write dimensions such as 224x224x3"):
        read_input(text)


def test_every_fault_is_told_at_once():
    """Before TensorFlow is asked for anything."""
    caught = (
        CliRunner().invoke(model, ["ResNet50", "--input", "3y", "--input", "4:flaot32"]).exception
    )

    assert isinstance(caught, InputError)
    assert 2 == len(caught.problems)
    assert caught.problems[1].startswith(
        "--input 4:flaot32: unknown dtype 'flaot32' (did you mean 'float32'?)"
    )
