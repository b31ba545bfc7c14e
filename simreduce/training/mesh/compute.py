"""Seconds of the kernels of a transformer, from their shapes.

A product takes the larger of its FLOPs, at the part of the GPU's rate that large products reach,
and its bytes. Its tiles are computed in waves, one on each unit; the last wave may be partly empty.
What is no product takes the bytes that it reads and writes: the tables below count them for each
element, 2 bytes each, and 1 for a mask. Each kernel takes a moment besides. The host launches them
one by one, so no part is faster than that.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from simreduce.training.gpus import Gpu

_TILE = 128
"""Rows and columns of a product's tile, as of CUTLASS's usual kernels."""

NORM = (4.0, 8.0)
"""Bytes of an element that a norm moves, forward and backward: input, output; two gradients too."""
RESIDUAL = (6.0, 4.0)
"""The sum with what went past a part."""
DROPOUT = (3.0, 5.0)
"""Besides the residual: a mask written; gradient, mask and result."""
PLAIN, GATED = (4.0, 6.0), (6.0, 10.0)
"""The nonlinearity, for each element of the inner width."""
SOFTMAX = (4.0, 6.0)
"""For each score of unfused attention, with scaling and mask in one kernel."""
SOFTMAX_APART = ((6.0, 6.0), (8.0, 8.0), (9.0, 9.0), (8.0, 12.0), (6.0, 6.0))
"""The same in kernels of their own: to float32, scaled, masked, softmax, to 16 bits."""
_SOFTMAX_ROWS = 4
"""Sequences times heads are a multiple of it where Megatron-LM has that one kernel
(`is_kernel_available` of `fused_softmax.py`).
"""
LOSS = (38.0, 14.0)
"""For each logit, as Megatron-LM's `cross_entropy.py` has it: to float32 (6), maximum (4),
difference (8), exponentials (8), sum (4), quotient (8); the gradient's factor (8), to 16 bits (6).
"""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a part: forward, backward for inputs, and backward for weights.

    `again` are those of attention by itself, which selective recomputation repeats; `kernels` is
    how many a forward pass has.
    """

    forward: float = 0.0
    inputs: float = 0.0
    weights: float = 0.0
    again: float = 0.0
    kernels: int = 0

    def __add__(self, other: Times) -> Times:
        return Times(
            self.forward + other.forward,
            self.inputs + other.inputs,
            self.weights + other.weights,
            self.again + other.again,
            self.kernels + other.kernels,
        )

    @property
    def seconds(self) -> float:
        """All passes."""
        return self.forward + self.inputs + self.weights


@dataclass(frozen=True)
class Kernels:
    """Kernels of a GPU; products have `bits` 16 or 8."""

    gpu: Gpu
    bits: int = 16
    _products: dict[tuple[int, int, int, int, int], float] = field(
        default_factory=dict, repr=False, compare=False
    )

    def product(self, rows: int, columns: int, inner: int, count: int = 1, bits: int = 0) -> float:
        """Seconds of `count` products of rows x inner and inner x columns in one kernel."""
        key = rows, columns, inner, count, bits or self.bits
        if key not in self._products:
            self._products[key] = self._product(*key)
        return self._products[key]

    def _product(self, rows: int, columns: int, inner: int, count: int, bits: int) -> float:
        gpu = self.gpu
        tiles = ceil(rows / _TILE) * ceil(columns / _TILE) * count
        full = ceil(tiles / gpu.units) * gpu.units * _TILE * _TILE
        rate = gpu.flops * gpu.products if bits == 16 else gpu.flops8 * gpu.products8
        width = bits / 8
        moved = (rows * inner + inner * columns) * width + 2.0 * rows * columns
        seconds = max(2.0 * full * inner / rate, self._bytes(count * moved))
        return seconds + gpu.kernel

    def _bytes(self, count: float) -> float:
        return count / (self.gpu.memory_bandwidth * self.gpu.memory)

    def moves(self, elements: float, table: tuple[float, float]) -> Times:
        """A kernel that is no product."""
        forward, backward = (self._bytes(elements * each) + self.gpu.kernel for each in table)
        return Times(forward, backward, kernels=1)

    def linear(self, rows: int, inner: int, columns: int, count: int = 1) -> Times:
        """A product with weights, forward and for both gradients; `count` of them in one kernel."""
        return Times(
            self.product(rows, columns, inner, count),
            self.product(rows, inner, columns, count),
            self.product(inner, columns, rows, count),
            kernels=1,
        )

    def fused_attention(self, tokens: float, keys: float, width: float, *, causal: bool) -> Times:
        """FlashAttention of all heads together; backward has five products to forward's two."""
        flops = 4.0 * tokens * keys * width * (0.5 if causal else 1.0)
        forward = flops / (self.gpu.flops * self.gpu.attention) + self.gpu.kernel
        return Times(forward, 2.5 * forward, kernels=1)

    def unfused_attention(
        self, queries: int, keys: int, head: int, count: int, *, dropout: bool
    ) -> Times:
        """Scores, softmax, dropout and values, each in a kernel, for `count` heads.

        Of heads narrower than a tile, products use that part of the GPU; so say published steps
        with heads of 64, 96 and 128.
        """
        narrow = max(_TILE / head, 1.0)
        scores = narrow * self.product(queries, keys, head, count, 16)
        values = narrow * self.product(queries, head, keys, count, 16)
        found = Times(scores + values, 2.0 * (scores + values), kernels=2)
        for table in SOFTMAX_APART if count % _SOFTMAX_ROWS else (SOFTMAX,):
            found += self.moves(float(count) * queries * keys, table)
        if dropout:
            found += self.moves(float(count) * queries * keys, (5.0, 5.0))
        return Times(
            found.forward, found.inputs, found.weights, found.forward, kernels=found.kernels
        )
