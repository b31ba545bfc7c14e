"""What PyTorch itself keeps for the backward pass, beside what simreduce counts."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as PyTorch's documents name it

from simreduce.workload.autograd import Tape, saved_by

T, H, HEADS, INNER, WORDS = 64, 128, 4, 384, 1000


class RmsNorm(nn.Module):
    """As Transformers' `LlamaRMSNorm`."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(H))

    def forward(self, x):
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(x.dtype)


def heads(x):
    return x.view(1, T, -1, H // HEADS).transpose(1, 2)


def attend(q, k, v):
    found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return found.transpose(1, 2).reshape(1, T, H)


class Part(nn.Module):
    """A layer's modules by name."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def llama_attention():
    part = Part(
        norm=RmsNorm(), q=linear(H, H), k=linear(H, H), v=linear(H, H), project=linear(H, H)
    )

    def forward(x):
        y = part.norm(x)
        return x + part.project(attend(heads(part.q(y)), heads(part.k(y)), heads(part.v(y))))

    return part, forward


def llama_mlp():
    part = Part(norm=RmsNorm(), gate=linear(H, INNER), up=linear(H, INNER), down=linear(INNER, H))

    def forward(x):
        y = part.norm(x)
        return x + part.down(F.silu(part.gate(y)) * part.up(y))

    return part, forward


def bert_mlp():
    part = Part(wide=nn.Linear(H, INNER), narrow=nn.Linear(INNER, H), norm=nn.LayerNorm(H))
    return part, lambda x: part.norm(part.narrow(F.gelu(part.wide(x))) + x)


def bert_attention():
    part = Part(
        q=nn.Linear(H, H), k=nn.Linear(H, H), v=nn.Linear(H, H), project=nn.Linear(H, H),
        norm=nn.LayerNorm(H),
    )  # fmt: skip

    def forward(x):
        y = attend(heads(part.q(x)), heads(part.k(x)), heads(part.v(x)))
        return part.norm(part.project(y) + x)

    return part, forward


def gpt2_mlp():
    part = Part(norm=nn.LayerNorm(H), wide=nn.Linear(H, INNER), narrow=nn.Linear(INNER, H))

    def gelu(x):  # Transformers' `NewGELUActivation`
        return 0.5 * x * (1.0 + torch.tanh(0.8 * (x + 0.044715 * torch.pow(x, 3.0))))

    return part, lambda x: x + part.narrow(gelu(part.wide(part.norm(x))))


def vit_mlp():
    part = Part(norm=nn.LayerNorm(H), wide=nn.Linear(H, INNER), narrow=nn.Linear(INNER, H))
    return part, lambda x: x + part.narrow(F.gelu(part.wide(part.norm(x))))


def head():
    part = Part(norm=RmsNorm(), out=linear(H, WORDS))
    labels = torch.randint(WORDS, (T,))
    return part, lambda x: F.cross_entropy(part.out(part.norm(x)).float().view(T, WORDS), labels)


PARTS = [
    (llama_attention, ("attention", T, H, H, H, HEADS, 1)),
    (llama_mlp, ("mlp", T, H, INNER, 1, 1)),
    (bert_attention, ("bert_attention", T, H, HEADS)),
    (bert_mlp, ("bert_mlp", T, H, INNER)),
    (gpt2_mlp, ("gpt2_mlp", T, H, INNER)),
    (vit_mlp, ("vit_mlp", T, H, INNER)),
    (head, ("head", T, H, WORDS, 1)),
]


@pytest.mark.parametrize("precision", ["amp", "bf16", "fp32"])
@pytest.mark.parametrize(
    ("build", "program"), PARTS, ids=lambda each: getattr(each, "__name__", "")
)
def test_pytorch_keeps_what_is_counted(build, program, precision):
    """All that autograd saves but parameters, each storage once; autocast's conversions too.

    Autocast of a GPU has powers in 32 bits, that of a CPU has not: GPT-2's GELU is looked at in
    the other precisions. A few numbers of a kernel (seeds, a loss's weight) are not counted.
    """
    if (build, precision) == (gpt2_mlp, "amp"):
        pytest.skip("autocast of a CPU has no powers in 32 bits")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    part, forward = build()
    part.to(dtype)
    own = {p.untyped_storage().data_ptr() for p in part.parameters()}
    saved = {}

    def keep(tensor):
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    # Autocast keeps conversions of leaves in a cache.
    x = torch.randn(1, T, H, dtype=dtype, requires_grad=True).clone()
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp"),
    ):
        result = forward(x)
    kept = sum(t.untyped_storage().nbytes() for place, t in saved.items() if place not in own)
    found = saved_by(program, Tape(amp=precision == "amp", half=precision == "bf16"))

    rows = 2 * 8 * T  # statistics of norms have the dtype of their input on a CPU; and labels
    assert result.requires_grad
    assert abs(found.kept + found.casts - kept) <= rows
