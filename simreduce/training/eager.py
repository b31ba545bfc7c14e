"""How a model runs on a GPU, and what its kernels take as PyTorch launches them.

A kernel that is no product moves bytes. The texts below spell its operands, the result last: `w` is
the type of parameters and of what passes blocks by, `p` that of products, `f` float32. `pw>w` reads
one of `p` and one of `w`, and writes one of `w`. `p=w` is a cast; there is none where both types
are one. Under autocast `p` has 16 bits and `w` 32.

Compiled, what lies between two products is one kernel, which reads and writes each value once.

Operations are those that PyTorch 2.13 dispatches of Hugging Face's Transformers 5. Constants are
those of its kernels on one H200, measured by simreduce's makers on 2026-11-28: see `simreduce
accuracy gpu`. On other GPUs they follow its rates and the number of its units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import NamedTuple

from simreduce.training.gpus import Gpu
from simreduce.training.interference import tiling_of

EAGER, COMPILED, MEGATRON = RUNS = ("eager", "compiled", "megatron")
"""PyTorch's own kernels one by one, those of `torch.compile`, or Megatron-LM's."""
BY_MEGATRON = f"as by Megatron-LM ({MEGATRON}), products have 16 bits"
"""The fault of float32 there."""
AMP, BF16, FP32, TF32 = PRECISIONS = ("amp", "bf16", "fp32", "tf32")
"""16 bits by autocast with parameters in float32, all in bfloat16, or all in float32, whose
products are those of TF32 or not.
"""
RENAMED = {"compute": "unknown key (did you mean 'gpu'?)"}
"""Keys of a step that have other names now."""

_TILE = 128
_START = 0.9492e-6
"""Seconds of such a tile's prologue and epilogue."""
_TILES = tuple(
    (_TILE >> high, _TILE >> wide)
    for high, wide in ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))
)
_SPLITS = tuple(1 << k for k in range(7))
"""The tiles, rows and columns, of convolutions and of products without tensor cores, and into how
many parts their inner width may be split, to fill the last wave: kernels of cuDNN and cuBLAS are
named by such tiles, and gradients of weights are split further.
"""
_WIDE = ((2 * _TILE, _TILE), (_TILE, 2 * _TILE))
"""Those of tensor cores besides, from Hopper on: beside a collective, a convolution of one H200
loses what rounds of these lose.
"""
_APART, _WEIGHTS = 0.75, 0.6
"""The part of the shorter of computing and moving that convolutions do not hide, and the part of
the rate that their weights' gradients reach in float32: kernels of DeepBench on one V100.
"""
_WINOGRAD = {(3, 3, 1): ((2, False), (4, True)), (5, 5, 1): ((4, True),)}
"""Edges of the results' tiles of Winograd's algorithm by windows, as cuDNN has it in float32, and
whether transformed images go through memory. Of an edge m, (m + r - 1)^2 products of channels
replace the r^2 m^2 of a window of r x r (Lavin and Gray 2015, https://arxiv.org/abs/1509.09308).
"""
_LONG = 1.08
"""Times the part `products` of a GPU that tiles of tensor cores reach without `_START`."""
_TILED = 10 / 9
"""Times that, what multiply-adds reach of tiles of products, with what these read and begin with
(`interference.tiling_of`).
"""
_LOADED = 0.106
"""The part of its rate that a product reaches for each byte to which its rows are aligned, below
the 16 of one load. Logits of GPT-2's 50,257 words in 16 bits are aligned to 2.
"""
_WIDER = 0.8
"""The part of half the 16-bit rate that products of TF32 reach; operands have twice the bytes."""
_STREAM = 1.075
"""Times the part `memory` of a GPU that kernels of one type reach."""
_CONVERTED = 2.55e9
"""Elements a second of a unit, at most, of a kernel with operands of several types, which converts
each element as it loads it. Casts from float32 to 16 bits have a kernel of their own.
"""
_GATHERED = 0.38e9
"""The same of `cat` of a strided operand, which divides to find each element."""
_NORMED = 3.7e9
"""The same of a layer norm, and of each kernel of a batch norm."""
_NORM_BACKWARD, _NORM_ROW = 0.6, 2.6e-7
"""Layer norm backward: the part of that rate of bytes, and the seconds of a row on a unit."""
_UPDATE, _UPDATED = 0.91, 1.46e9
"""Fused optimizers: the part of `memory` they reach, and elements a second of a unit at most."""
_FORWARD_SCORE, _BACKWARD_SCORE = (449.0, 2.6), (1128.0, 10.7)
"""FLOPs, at the data sheet's rate, of a score of FlashAttention-2: for its exponential and itself,
and for each element of a head.
"""
_FULL_SCORE = 3.5, 8.3
"""How many times as long scores of float32 take, which memory-efficient attention computes."""
_EFFICIENT_SCORE, _EFFICIENT_FULL = (176.0, 12.6), (16.0, 5.5)
"""FLOPs of a score of memory-efficient attention, in 16 bits and in float32, forward, at the rates
of the data sheet: GPUs before Ampere have no FlashAttention. Times of heads of 64 and 128 on one
V100: https://github.com/facebookresearch/xformers/pull/434 and 439.
"""
_EFFICIENT_BACKWARD = 2.6, 3.2
"""How many times as long its backward pass takes, on A100 (the same, pull requests 467 and 587)."""
_SORT = 130e-6
"""Seconds of sorting words for an embedding's gradient."""
_PYTHON, _MODULE, _NATIVE = 1.25, 0.45, 0.2
"""Parts of a GPU's `host` that an operation takes: one of a transformer's blocks in Python, a layer
by itself, and what autograd, autocast or a compiled model launches.
"""

GELU_NEW = (
    "p>p p=w w>w w>w pw>w w>w w>w w>w pw>w",
    "wp>w ww>w w=p ww>w w>w w=p w>w w>w w>w ww>w w=p pp>p p>p pp>p",
)
"""GPT-2's nonlinearity as `NewGELUActivation` has it; autocast has its power in float32."""
GELU = "p>p", "pp>p"
GATE = "p>p pp>p", "pp>p pp>p pp>p"
RELU_SQUARED = "p>p p>p", "p>p pp>p pp>p"
_RMS = "w=f f>f f> f>f f=w w>w", "w>w ww>w w> w=f ff>f f>f f> >f f>f f>f ff>f ff>f f=w"
"""The mean of squares and what follows, in float32 (`LlamaRMSNorm`)."""
_ROTARY = "p>w p>w ww>w w=p", "p=w w>w >p >p p>p pp>p w>p pp>p"
"""The rotation of positions, besides a `cat` of both halves (`apply_rotary_pos_emb`)."""
_SCORES = "p>p pp>p p=f f>f f=p", "p=f ff>f f=p p>p p>p"
"""Attention by its scores: scaled, masked, softmax in float32."""
_BATCH_NORM = "p> p>p", "pp> pp>p"
"""Statistics, and what they normalize."""


class Cost(NamedTuple):
    """Seconds of kernels, and the host's time to launch them, in parts of the GPU's `host`."""

    seconds: float = 0.0
    launched: float = 0.0


class Part(NamedTuple):
    """What a layer launches forward and backward."""

    forward: Cost = Cost()
    backward: Cost = Cost()


OF_RESULTS, OF_INPUTS, OF_WEIGHTS = "rci", "ric", "cir"
"""The passes of a convolution, by the rows, columns and inner width of its product: places (`r`),
columns of weights (`c`) and their rows (`i`)."""


class Convolution(NamedTuple):
    """Of so many images; each place of the result reads `inner` elements and gives `columns`, by a
    window of that height, width and stride.
    """

    images: int
    places: int
    inner: float
    columns: int
    window: tuple[int, int, int]


def add_up(parts: Iterable[Part]) -> Part:
    """Parts one after another."""
    both = tuple(zip(*parts, strict=True))
    return Part(*map(_sum, both)) if both else Part()


def _sum(costs: Iterable[Cost]) -> Cost:
    seconds, launched = zip(*costs, strict=True)
    return Cost(sum(seconds), sum(launched))


@dataclass(frozen=True)
class Launched:
    """Kernels of a GPU in a precision; `fused` if they are those of `torch.compile`."""

    gpu: Gpu
    precision: str
    fused: bool = False

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of the types of operands."""
        narrow, wide = {AMP: (2, 4), BF16: (2, 2)}.get(self.precision, (4, 4))
        return {"p": narrow, "w": wide, "f": 4}

    @cached_property
    def _stream(self) -> float:
        """Bytes a second."""
        return self.gpu.memory_bandwidth * self.gpu.memory * _STREAM

    @cached_property
    def tensor(self) -> bool:
        """Whether its products run on tensor cores."""
        return self.precision != FP32

    @cached_property
    def _rate(self) -> float:
        """FLOP/s of long products."""
        gpu = self.gpu
        if not self.tensor:
            return gpu.flops32 * gpu.products32
        whole = gpu.flops_tf32 * _WIDER if self.precision == TF32 else gpu.flops
        return whole * gpu.products * _LONG

    def _each(self, elements: float, rate: float) -> float:
        """Seconds of so many elements at a rate of each unit."""
        return elements / (rate * self.gpu.units)

    def _one(
        self, seconds: float, host: float = _PYTHON, kernels: int = 1, longer: float = 0.0
    ) -> Cost:
        """Beside a collective they take so many times as long, or as what moves bytes does."""
        seconds *= longer or self.gpu.slowed.moves
        return Cost(seconds + kernels * self.gpu.kernel, _NATIVE if self.fused else host)

    def _move(
        self, elements: float, operands: str, host: float = _NATIVE, most: float | None = None
    ) -> Cost:
        """Kernels of these operands, one after another, of at most so many elements of a unit."""
        found = [Cost()]
        for each in operands.split():
            types = [self.sizes[letter] for letter in each if letter in self.sizes]
            cast, mixed = "=" in each, len(set(types)) > 1
            if mixed or not cast:
                seconds = elements * sum(types) / self._stream
                converts = mixed and not (cast and types[0] > types[1])
                limit = _CONVERTED if converts else most
                seconds = max(seconds, self._each(elements, limit) if limit else 0.0)
                found.append(self._one(seconds, _NATIVE if cast else host))
        return _sum(found)

    def moves(self, elements: float, forward: str = "", backward: str = "") -> Part:
        """Kernels of these operands that no compiler fuses with others."""
        return Part(self._move(elements, forward, _PYTHON), self._move(elements, backward))

    def between(self, elements: float, forward: str, backward: str) -> Part:
        """The same that `torch.compile` fuses with those before or after."""
        return Part() if self.fused else self.moves(elements, forward, backward)

    def chain(self, elements: float, operands: tuple[str, str], inputs: int = 1) -> Part:
        """A nonlinearity of so many `inputs`, which is one kernel where it is fused."""
        if self.fused:
            reads = "p" * inputs
            operands = f"{reads}>p", f"p{reads}>{reads}"
        return self.moves(elements, *operands)

    def product(
        self, rows: float, columns: int, inner: float, count: int = 1, aligned: int = 16,
        host: float = _NATIVE,
    ) -> Cost:  # fmt: skip
        """`count` products of rows x inner and inner x columns, with rows aligned to so many bytes.

        The inner width may be split.
        """
        part = 1.0 if aligned >= 16 else _LOADED * aligned
        shape = ceil(rows), ceil(columns), inner, count
        if self.tensor:
            steps = tiling_of(*shape, self.gpu.units).steps * self.gpu.units
            computed = 2.0 * steps / (self._rate * _TILED * part)
            longer = self.gpu.slowed.product(*shape)
        else:
            computed, tiles = self.tiled(*shape)
            computed, longer = computed / part, self.gpu.slowed.unpaired(tiles)
        elements = count * (rows * inner + inner * columns + rows * columns)
        return self._one(max(computed, self._bytes(elements)), host, longer=longer)

    def tiled(self, rows: float, columns: float, inner: float, count: int = 1) -> tuple[float, int]:
        """Seconds of a kernel's tiles in waves, and how many there are: of those, and in as many
        parts, that take least.
        """
        units, wide = self.gpu.units, self.tensor and self.gpu.clusters
        options = (
            (ceil(rows / high) * ceil(columns / across) * count * n, high * across, inner / n)
            for high, across in (*_TILES, *_WIDE * wide)
            for n in _SPLITS
        )
        return min(
            (ceil(tiles / units) * (2.0 * area * each * units / self._rate + _START), tiles)
            for tiles, area, each in options
        )

    def _bytes(self, elements: float) -> float:
        """Seconds of reading and writing so many elements of the type of products."""
        return elements * self.sizes["p"] / self._stream

    def linear(
        self, rows: float, inner: int, columns: int, *, bias: bool = True, wide: bool = True
    ) -> Part:
        """A product with weights; its inputs are `wide`, or of the type of products."""
        size = self.sizes["p"]
        aligned = min(_aligned(columns * size), _aligned(inner * size))
        inputs = self.between(rows * inner, "w=p", "p=w") if wide else Part()
        found = Part(
            _sum((self.product(rows, columns, inner, 1, aligned, _PYTHON), inputs.forward)),
            _sum((
                self.product(rows, inner, columns, 1, aligned),
                self.product(inner, columns, rows, 1, aligned),
                inputs.backward,
            )),
        )  # fmt: skip
        biases = [self.moves(columns, "w=p", "p=w"), self.moves(rows * columns, "", "p>")]
        return add_up([found, self.moves(float(inner * columns), "w=p", "p=w"), *biases * bias])

    def convolution(
        self, images: int, places: int, inner: float, columns: int, *, first: bool, normed: bool,
        window: tuple[int, int, int] = (1, 1, 1),
    ) -> Part:  # fmt: skip
        """A convolution of so many images and places of each, with what follows.

        Each place reads `inner` elements, in a window of that height, width and stride. Images
        need no gradient. Without a batch norm it has biases.
        """
        shape = Convolution(images, places, inner, columns, window)
        forward = self.convolved(shape, host=_MODULE)
        back = [self.convolved(shape, order) for order in (OF_WEIGHTS, OF_INPUTS)[: 2 - first]]
        weights, relu = self.moves(inner * columns, "w=p", "p=w"), ("p>p", "pp>p")
        after = _BATCH_NORM if normed else ("", "") if self.fused else ("p>p", "p>")
        rate = _NORMED if normed and not self.fused else None
        kernels = [
            Part(*(self._move(images * places * columns, each, most=most) for each in ways))
            for ways, most in ((after, rate), (relu, None))
        ]
        return add_up([Part(forward, _sum(back)), weights, *kernels])

    def convolved(self, shape: Convolution, order: str = OF_RESULTS, host: float = _NATIVE) -> Cost:
        """One pass of a convolution: an implicit product, or Winograd's algorithm.

        Memory reads images and results once, whatever windows share.
        """
        images, places, inner, columns, (high, wide, stride) = shape
        channels, rows = inner / (high * wide), images * places
        moved = rows * (channels * stride**2 + columns) + inner * columns
        sizes = {"r": float(rows), "c": float(columns), "i": inner}
        product = (sizes[order[0]], sizes[order[1]], sizes[order[2]])
        part = _WEIGHTS if order == OF_WEIGHTS and not self.tensor else 1.0
        computed, tiles = self.tiled(*product)
        found = [(_overlapped(computed / part, self._bytes(moved)), tiles)]
        if not self.tensor:
            for edge, apart in _WINOGRAD.get(shape.window, ()):
                count, squares = (edge + high - 1) ** 2, images * ceil(places**0.5 / edge) ** 2
                of = sizes | {"r": float(squares), "i": channels}
                computed, tiles = self.tiled(of[order[0]], of[order[1]], of[order[2]], count)
                through = self._bytes(moved + 2.0 * count * squares * (channels + columns) * apart)
                whole = computed + through if apart else _overlapped(computed, through)
                found.append((whole, tiles))
        seconds, tiles = min(found)
        return self._one(seconds, host, longer=self.gpu.slowed.unpaired(tiles))

    def norm(self, rows: float, width: int, *, bias: bool = True) -> Part:
        """A layer norm, or without biases a root mean square norm."""
        elements, size = rows * width, self.sizes["w"]
        if self.fused:
            return self.moves(elements, "wp>wp", "wwp>w")
        if not bias:
            return self.moves(elements, *_RMS)
        forward = max(elements * 2 * size / self._stream, self._each(elements, _NORMED))
        backward = elements * 5 * size / (self._stream * _NORM_BACKWARD)
        backward += self._each(rows, 1.0 / _NORM_ROW)
        return Part(self._one(forward), self._one(backward, _NATIVE, 2))

    def rotary(self, elements: float) -> Part:
        """The rotation of queries or keys by their position."""
        whole = self.chain(elements, _ROTARY)
        return whole if self.fused else add_up([whole, self.gathered(elements)])

    def gathered(self, elements: float) -> Part:
        """A `cat` of a strided operand, as a cache of keys does it; a compiler leaves it out."""
        return Part() if self.fused else Part(self._one(self._each(elements, _GATHERED)))

    def attention(self, samples: int, tokens: int, heads: int, head: int, *, causal: bool) -> Part:
        """Fused attention of sequences of so many tokens, in tiles."""
        keys = _TILE * ceil(tokens / _TILE)
        part = min(1.0, 0.55 + _TILE / keys) if causal else 1.0
        scores = float(samples) * heads * keys * keys * part
        forward, backward = (scores * each for each in self._score(head))
        longer = self.gpu.slowed.attention(samples * tokens, heads)
        return Part(
            self._one(forward, longer=longer), self._one(backward, _NATIVE, 3, longer=longer)
        )

    def _score(self, head: int) -> tuple[float, float]:
        """Seconds of a score of fused attention, forward and backward."""
        gpu, wide = self.gpu, self.sizes["p"] == 4
        if not gpu.flash:
            rate = gpu.flops32 if wide else gpu.flops
            own, each = _EFFICIENT_FULL if wide else _EFFICIENT_SCORE
            forward = (own + each * head) / rate
            return forward, forward * _EFFICIENT_BACKWARD[wide]
        full = _FULL_SCORE if wide else (1.0, 1.0)
        forward, backward = (
            times * (own + each * head) / gpu.flops
            for times, (own, each) in zip(full, (_FORWARD_SCORE, _BACKWARD_SCORE), strict=True)
        )
        return forward, backward

    def unfused_attention(self, samples: int, tokens: int, heads: int, head: int) -> Part:
        """Scores, their softmax, and values."""
        count = samples * heads
        scores = self.product(tokens, tokens, head, count, host=_PYTHON)
        values = self.product(tokens, head, tokens, count, host=_PYTHON)
        twice = _sum([scores, values] * 2)
        softmax = self.chain(float(count) * tokens * tokens, _SCORES)
        return add_up([Part(_sum((scores, values)), twice), softmax])

    def loss(self, rows: float, words: int) -> Part:
        """Cross entropy of logits in float32."""
        operands = ("p> p>", "p>p") if self.fused else ("p=f f>f", ">f ff>f f=p")
        return self.moves(rows * words, *operands)

    def embedding(self, rows: float, width: int, words: int, *, tied: bool, tables: int) -> Part:
        """Looked up in `tables`, of which the first has so many words, and their gradients."""
        found = self.moves(rows * width, "w>w " * (2 * tables - 1), "w> " * tables)
        whole = self.moves(float(words * width), "", ">w ww>w" if tied else ">w")
        return add_up([found, whole, Part(Cost(), self._one(_SORT, _NATIVE, 4))])

    def update(self, parameters: float, width: int, values: int) -> float:
        """Seconds of a fused optimizer that moves so many values of each parameter, of that many
        bytes each.
        """
        stream = self.gpu.memory_bandwidth * self.gpu.memory * _UPDATE
        moved = parameters * values * width / stream
        return max(moved, self._each(parameters, _UPDATED))


def _overlapped(computed: float, moved: float) -> float:
    """Seconds of a convolution, whose tiles hide a part of the shorter behind the longer."""
    return max(computed, moved) + _APART * min(computed, moved)


def _aligned(nbytes: int) -> int:
    """The largest power of two that divides so many bytes."""
    return nbytes & -nbytes
