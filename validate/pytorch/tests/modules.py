"""Modules written as PyTorch's users write them, to compare with the shipped models."""

from __future__ import annotations

import torch
from torch import nn


class _Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.proj, self.ln_2 = nn.Linear(width, width), nn.LayerNorm(width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.attn(self.ln_1(x)).view(batch, tokens, 3, -1, 64).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(heads.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.out(nn.functional.gelu(self.fc(self.ln_2(x))))


class _Gpt2(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50257, width), nn.Embedding(1024, width)
        self.h = nn.ModuleList(_Block(width) for _ in range(blocks))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, 50257, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, words):
        x = self.wte(words) + self.wpe(torch.arange(words.shape[1], device=words.device))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


class _Gated(nn.Module):
    def __init__(self, width, narrow, inner):
        super().__init__()
        self.q, self.k = (nn.Linear(width, n, bias=False) for n in (width, narrow))
        self.v, self.o = (nn.Linear(width, n, bias=False) for n in (narrow, width))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.before, self.after = nn.RMSNorm(width), nn.RMSNorm(width)

    def forward(self, x):
        batch, tokens, width = x.shape
        y = self.before(x)
        q, k, v = (
            p(y).view(batch, tokens, -1, 128).transpose(1, 2) for p in (self.q, self.k, self.v)
        )
        groups = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(groups, 1) for each in (k, v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o(heads.transpose(1, 2).reshape(batch, tokens, width))
        y = self.after(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class _Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(128256, 4096)
        self.layers = nn.ModuleList(_Gated(4096, 1024, 14336) for _ in range(32))
        self.norm, self.head = nn.RMSNorm(4096), nn.Linear(4096, 128256, bias=False)

    def forward(self, words):
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def gpt2():
    return _Gpt2(768, 12)


def gpt2_xl():
    return _Gpt2(1600, 48)


def llama():
    return _Llama()


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 32 * 32, 10),
    )


def faulty():
    raise ZeroDivisionError("of the user")


def no_module():
    return 3


def encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dtype=torch.bfloat16)
    return nn.TransformerEncoder(layer, 2)


def frozen():
    return nn.Linear(4, 4).requires_grad_(False)
