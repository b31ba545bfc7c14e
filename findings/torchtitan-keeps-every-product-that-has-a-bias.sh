#!/bin/sh
# torchtitan's selective activation checkpointing keeps every product of a layer with a bias.
#
# Seen with torchtitan 0.3.0, PyTorch 2.13.0 for CPUs, CPython 3.11. `SelectiveAC` says that it
# makes every second matrix product again, to balance memory and compute. It counts `aten.mm` (and
# `aten.linear` where a device keeps it whole). A linear layer with a bias is `aten.addmm`, which is
# on the list of what is kept and not counted, so none of them is made again: a model with biases
# keeps the results of all products and a model without keeps half. A block of six layers, each
# followed by a sine, makes all six sines again; its backward pass has twelve products of its own.
#
# Output seen:
#   without bias: 6 sines and 3 products are made again
#   with bias: 6 sines and 0 products are made again
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 torchtitan==0.3.0 2> "$folder/log.txt"
cd "$folder"
cat > ask.py <<'PYTHON'
from collections import Counter

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torchtitan.distributed.activation_checkpoint import SelectiveAC

LAYERS = 6


class Counted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=bias) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = torch.sin(layer(x))
        return x


aten = torch.ops.aten
for bias in (False, True):
    block = SelectiveAC(SelectiveAC.Config())._wrap_block(Block(bias))
    result = block(torch.randn(2, 8, 64, requires_grad=True))
    with Counted() as counted:
        result.sum().backward()
    calls = counted.calls
    products = calls[aten.mm.default] + calls[aten.addmm.default] - 2 * LAYERS
    print(
        f"{'with' if bias else 'without'} bias: {calls[aten.sin.default]} sines and "
        f"{products} products are made again"
    )
PYTHON
"$folder/env/bin/python" -W ignore ask.py 2> log.txt | tee seen.txt
cat > expected.txt <<'TEXT'
without bias: 6 sines and 3 products are made again
with bias: 6 sines and 0 products are made again
TEXT
cmp expected.txt seen.txt
