"""`simreduce model --framework pytorch`, and the shipped models against PyTorch's own counter."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from simreduce_validate.models.torch_tracing import read, traced

from simreduce.errors import InputError
from simreduce.workload.loader import load_model

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))


@pytest.mark.parametrize(
    ("function", "model", "tokens"),
    [("gpt2", "gpt2", 1024), ("gpt2_xl", "gpt2-xl", 512), ("llama", "llama-3-8b", 2048)],
)
def test_shipped_models_have_the_work_that_pytorch_counts(function, model, tokens):
    """FLOPs of both passes, and every parameter, to the last one. 8 billion parameters take no
    memory.
    """
    found, notes, _ = read(f"modules:{function}", [((tokens,), "int64")])
    shipped = load_model(f"{model},sequence={tokens}")

    assert (shipped.forward, shipped.flops) == (found.forward, found.flops)
    sizes = [sorted(g.elements for g in each.workload.gradients) for each in (shipped, found)]
    assert sizes[0] == sizes[1]
    assert (model == "llama-3-8b") == bool(notes)  # whose norms are registered last


def test_the_first_layer_derives_no_image():
    """A convolution, a norm without products, a product."""
    found, _, _ = read("modules:convolutions", [((3, 32, 32), "")])
    positions = 32 * 32

    assert [
        ("0", 2 * 27 * 8 * positions, 2 * 27 * 8 * positions, [216]),
        ("1", 0, 0, [8, 8]),
        ("4", 2 * 8 * positions * 10, 4 * 8 * positions * 10, [8 * positions * 10, 10]),
    ] == [(e.name, e.forward, e.backward, [g.elements for g in e.gradients]) for e in found.layers]


def test_backward_work_is_counted_once_whatever_the_branches():
    """ResNet-50's blocks have two inputs and change them in place; MobileNet's convolutions have
    groups. Each product takes as much again for each of its two derivatives, but for the image's.
    """
    models = importlib.import_module("torchvision_models").MODELS
    for name in ("resnet50", "mobilenet_v2"):
        found, _ = traced(
            models[name][0]().to("meta"), [torch.empty(1, 3, 224, 224, device="meta")], name
        )
        first, *others = [layer for layer in found.layers if layer.flops]
        assert first.backward == first.forward
        assert all(layer.backward == 2 * layer.forward for layer in others)


def test_parameters_of_a_module_that_is_never_called_are_its_callers():
    """As `out_proj` of nn.MultiheadAttention: a layer of its own attention, not of the root, whose
    gradients would be ready last. Its input has the dtype of its parameters.
    """
    found, _, _ = read("modules:encoder", [((16, 64), "")])
    attention = "layers.0.self_attn"

    assert attention == found.layers[0].name
    assert [f"{attention}.{name}" for name in (
        "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias",
    )] == [gradient.name for gradient in found.layers[0].gradients]  # fmt: skip


@pytest.mark.parametrize(
    ("function", "shapes", "fault"),
    [
        ("gpt2", [], "give --input SHAPE"),
        ("gpt3", [((4,), "int64")], "modules has no 'gpt3' .did you mean 'gpt2'"),
        ("faulty", [((4,), "int64")], r"modules.py:\d+, in faulty: ZeroDivisionError: of the user"),
        ("no_module", [], "gives 3, which is no torch.nn.Module"),
        ("frozen", [((4,), "")], "without parameters to train"),
        ("gpt2", [((4,), "")], "modules.py:\\d+, in forward: RuntimeError"),
    ],
)
def test_faults_of_users(function, shapes, fault):
    """One line that says where."""
    with pytest.raises(InputError, match=fault):
        read(f"modules:{function}", shapes)


def test_the_command_writes_a_workload(tmp_path):
    """Which `run` can read."""
    command = [sys.executable, "-m", "simreduce", "model", "modules:convolutions"]
    options = ["--framework", "pytorch", "--input", "3x32x32"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, cwd=HERE, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
    )  # fmt: skip
    (tmp_path / "mine.toml").write_text(done.stdout)

    assert load_model(str(tmp_path / "mine.toml")).workload.elements == 82_162
