"""A user's own step, measured on the CPU, and what a scenario makes of it."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner
from simreduce_validate.stepping import main

from simreduce.training.step import load_profile
from simreduce.workload.loader import load_model

MODULE = """
import torch
from torch import nn

class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(101, 16)
        self.ln = nn.LayerNorm(16)
        self.fc, self.proj = nn.Linear(16, 64), nn.Linear(64, 16)
        self.head = nn.Linear(16, 101, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, words):
        x = self.wte(words)
        return self.head(x + self.proj(nn.functional.gelu(self.fc(self.ln(x)))))

def tiny(batch, device):
    model = Tiny().to(device)
    words = torch.randint(101, (batch, 8), device=device)
    return model, lambda: nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())

class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.ParameterList([torch.zeros(16)])
        self.inner = nn.Module()
        self.inner.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.inner.attention(x, x, x, need_weights=False)[0]
        return self.head(x + self.bias[0])

def attending(batch, device):
    model = Attending().to(device)
    x = torch.randn(batch, 8, 16, device=device)
    return model, lambda: model(x).square().mean()

def too_large(batch, device):
    model = nn.Linear(4, 4)
    def loss():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TiB")
    return model, loss

def uncalled(batch, device):
    model = nn.Linear(4, 4)
    return model, lambda: model.weight.sum()

def nothing(batch, device):
    return None
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "mine_to_step.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield lambda *options: CliRunner().invoke(main, [*map(str, options)])
    sys.modules.pop("mine_to_step", None)


@pytest.mark.parametrize("precision", ["amp", "bf16", "fp32"])
def test_a_step_is_measured_by_layer(run, tmp_path, precision):
    """In the order of the forward pass; the embedding that the output shares is the first's."""
    found = run(
        "mine_to_step:tiny", "--batch", 4, "--out", "here", "--steps", 2,
        "--precision", precision, "--device", "cpu",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    model = load_model(str(tmp_path / "here" / "model.toml"))
    profile = load_profile(str(tmp_path / "here" / "profile.csv"), model)
    head, row = (tmp_path / "here" / "passes.csv").read_text("utf-8").splitlines()
    passes = dict(zip(head.split(","), row.split(","), strict=True))

    assert [layer.name for layer in model.layers] == ["wte", "ln", "fc", "proj", "head"]
    assert [gradient.name for gradient in model.layers[0].gradients] == ["wte.weight"]
    assert model.layers[-1].gradients == ()
    assert {gradient.dtype for gradient in model.workload.gradients} == {3 * (precision == "bf16")}
    assert sum(profile.forward) == pytest.approx(float(passes["forward_ms"]) * 1e-3, rel=1e-3)
    assert sum(profile.backward) == pytest.approx(float(passes["backward_ms"]) * 1e-3, rel=1e-3)
    assert (passes["workload"], passes["precision"]) == ("tiny", precision)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_no_gradient_is_lost(run, tmp_path, compiled):
    """Attention reads `out_proj` without a call; what no layer is around is the last's. Layers of a
    compiled model have times, too.
    """
    found = run(
        "mine_to_step:attending", "--batch", 2, "--out", "here", "--steps", 1, "--device", "cpu",
        *["--compiled"] * compiled,
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    model = load_model(str(tmp_path / "here" / "model.toml"))
    profile = load_profile(str(tmp_path / "here" / "profile.csv"), model)
    names = {layer.name: {each.name for each in layer.gradients} for layer in model.layers}

    assert [*names] == ["inner.attention", "head"]
    assert names["inner.attention"] == {
        f"inner.attention.{name}"
        for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
    }
    assert names["head"] == {"head.weight", "head.bias", "bias.0"}
    assert sum(each.elements for each in model.workload.gradients) == 4 * 272 + 170 + 16
    assert min(profile.forward) > 0.0


@pytest.mark.parametrize(
    ("name", "device", "words"),
    [
        ("tiny", "cuda:99", "'cuda:99' cannot be used"),
        ("tiny", "nowhere", "'nowhere' cannot be used"),
        ("too_large", "cpu", "cpu has too little memory for this; give a smaller --batch"),
        ("uncalled", "cpu", "calls no module with parameters"),
    ],
)
def test_what_a_device_cannot_do_is_told_in_one_line(run, name, device, words):
    found = run(f"mine_to_step:{name}", "--batch", 1, "--out", "here", "--device", device)

    assert found.exit_code == 2
    assert words in " ".join(found.output.replace("│", " ").split())
    assert "Traceback" not in found.output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine_to_step:tine", "has no attribute 'tine'"),
        ("nowhere_at_all:tiny", "No module named 'nowhere_at_all'"),
        ("mine_to_step", "write PACKAGE.MODULE:FUNCTION"),
        ("mine_to_step:nothing", "must return a model (torch.nn.Module) and a function"),
        ("mine_to_step:MODULES", "has no attribute"),
    ],
)
def test_what_cannot_be_measured_is_told(run, name, words):
    found = run(name, "--batch", 1, "--out", "here", "--device", "cpu")

    assert found.exit_code == 2
    assert words in " ".join(found.output.split())
