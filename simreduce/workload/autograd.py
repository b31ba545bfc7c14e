"""The tensors that PyTorch's autograd keeps of a forward pass, op by op.

A `Tape` runs the forward pass of one sample on sizes alone. Each op returns what PyTorch returns,
in its dtype, and keeps what its backward needs; a tensor that two ops keep is kept once. The
programs below have the ops of the models that people train:

    GPT-2, BERT, Llama, T5    as Hugging Face's Transformers has them
    ViT, image models         as torchvision has them

without dropout. They are those of eager mode. Autocast converts what a product reads each time
(only conversions of parameters are cached), computes powers and norms in 32 bits, and leaves
residual sums in 32 bits because norms return them so.

`compiled` is `torch.compile`. Its backward computes elementwise ops again from what it keeps beside
them (the min-cut partitioner): it keeps what products read and give and what norms read, each once,
and logits in the dtype in which they were computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

Program = tuple[str | int, ...]
"""A name in `PROGRAMS` with its arguments, which are numbers of elements of one sample."""


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor of so many elements, each of `width` bytes."""

    elements: int
    width: int
    kept: bool = False
    converted: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.elements * self.width


class Saved(NamedTuple):
    """Bytes that the backward pass of a layer needs, for one sample.

    `kept` has all tensors, and of those `scores` are attention's. `casts` are conversions of
    parameters, once for a whole batch. Backward holds gradients of the `largest` tensor, and the
    loss holds `gradients` of all logits while everything else is there. Attention and products
    that are kept op by op have `given` so many bytes; `part` of the products' work is made again.
    """

    kept: int
    scores: int = 0
    input: int = 0
    casts: int = 0
    largest: int = 0
    logits: int = 0
    gradients: int = 0
    given: int = 0
    part: float = 0.0


class Tape:
    """The ops of a layer on one sample, with parameters of 16 bits (`half`) or of 32, which
    autocast (`amp`) converts for products. Checkpointing op by op makes `every_second` product
    again, of those without a bias.
    """

    every_second = False

    def __init__(
        self, *, amp: bool = False, half: bool = False, compiled: bool = False, fused: bool = True
    ) -> None:
        self.amp, self.half, self.compiled, self.fused = amp, half, compiled, fused
        self.kept = self.scores = self.casts = self.largest = self.logits = self.gradients = 0
        self.attended, self.products = 0, list[tuple[int, int]]()

    def stream(self, elements: int) -> Tensor:
        """The residual stream that a layer reads."""
        return Tensor(elements, 2 if self.half else 4)

    def keep(self, *values: Tensor) -> None:
        """Keep tensors for the backward pass."""
        for value in values:
            if not value.kept:
                value.kept = True
                self.kept += value.nbytes
                self.largest = max(self.largest, value.nbytes)

    def saved(self, stream: int) -> Saved:
        """What the ops kept, of a layer that reads a residual stream of so many elements."""
        read = self.stream(stream).nbytes
        again = self.products[1::2] if self.every_second else []
        work = sum(weights for _, weights in self.products)
        given = self.attended + sum(nbytes for nbytes, _ in self.products)
        return Saved(
            self.kept, self.scores, read, self.casts, self.largest, self.logits, self.gradients,
            given - sum(nbytes for nbytes, _ in again),
            sum(weights for _, weights in again) / work if work else 0.0,
        )  # fmt: skip

    def linear(self, x: Tensor, elements: int, weights: int) -> Tensor:
        """A product with parameters: it keeps its input, and the converted parameters."""
        if self.amp and x.width > 2:
            if x.converted is None or not self.compiled:
                x.converted = Tensor(x.elements, 2)
            x = x.converted
        self.keep(x)
        self.casts += 2 * weights * self.amp
        given = Tensor(elements, 2 if self.amp else x.width)
        self.products.append((given.nbytes, weights))
        return given

    def layer_norm(self, x: Tensor, rows: int) -> Tensor:
        """It keeps its input and two statistics of each row; autocast has it in 32 bits."""
        x = Tensor(x.elements, 4) if self.amp and x.width < 4 else x
        self.keep(x)
        self.kept += 8 * rows
        return Tensor(x.elements, x.width)

    def rms_norm(self, x: Tensor, rows: int) -> Tensor:
        """Transformers' norm of several ops, which converts what it reads to 32 bits and keeps
        that, the inverse of each row's length, and the product of both in its input's dtype.
        """
        wide = x if self.compiled or x.width == 4 else Tensor(x.elements, 4)
        self.keep(wide)
        self.kept += 4 * rows
        if not self.compiled:
            self.keep(Tensor(x.elements, x.width))
        return Tensor(x.elements, x.width)

    def activation(self, x: Tensor) -> Tensor:
        """An elementwise function that keeps its input: GELU, SiLU, a squared ReLU."""
        self.keep(x)
        return Tensor(x.elements, x.width)

    def gate(self, x: Tensor, y: Tensor) -> Tensor:
        """The product of an activation's result and `y` keeps both; compiled, it makes x again."""
        self.keep(*(y,) if self.compiled else (x, y))
        return Tensor(x.elements, x.width)

    def gelu_new(self, x: Tensor) -> Tensor:
        """GPT-2's GELU, of a power, a tanh and products; the power is in 32 bits by autocast."""
        if self.compiled:
            return self.activation(x)
        wide = Tensor(x.elements, 4) if self.amp else x
        tanh, one_more = (Tensor(x.elements, wide.width) for _ in range(2))
        half = Tensor(x.elements, x.width)
        self.keep(wide, tanh, one_more, half)
        return Tensor(x.elements, wide.width)

    def attention(
        self, kept: tuple[Tensor, ...], elements: int, heads: int, queries: int, keys: int
    ) -> Tensor:
        """It keeps queries, keys, values, what it returns, and a number for each row and head.

        Without a fused kernel it keeps softmax in 32 bits, and beside other dtypes a conversion.
        """
        width = 2 if self.amp or self.half else 4
        out = Tensor(elements, width)
        self.keep(*kept)
        if self.fused:
            self.keep(out)
            self.kept += 4 * heads * queries
            self.attended += out.nbytes + 4 * heads * queries
            return out
        scores = Tensor(heads * queries * keys, 4 if width == 4 else 4 + width)
        self.keep(scores)
        self.scores += scores.nbytes
        return out

    def loss(self, logits: Tensor, *, upcast: bool) -> None:
        """Cross entropy keeps the logarithm of softmax, in 32 bits where logits are converted.

        Its backward holds a gradient of that and one of the logits in the dtype that it read. If
        compiled, it keeps the logits and makes their gradient in place of all that.
        """
        if self.compiled:
            self.keep(logits)
            self.logits, self.gradients = logits.nbytes, logits.nbytes
            return
        wide = 4 if self.amp or upcast else logits.width
        self.logits = logits.elements * wide
        self.kept += self.logits
        self.gradients = self.logits + logits.elements * (wide if upcast else logits.width)


def gpt2_attention(t: Tape, tokens: int, h: int, heads: int) -> int:
    """Queries, keys and values are one tensor; the cache of a model in training copies two."""
    read = t.layer_norm(t.stream(tokens * h), tokens)
    qkv = t.linear(read, 3 * tokens * h, 3 * h * h)
    copies = (Tensor(tokens * h, qkv.width) for _ in range(2))
    out = t.attention((qkv, *copies), tokens * h, heads, tokens, tokens)
    t.linear(out, tokens * h, h * h)
    return tokens * h


def gpt2_mlp(t: Tape, tokens: int, h: int, inner: int) -> int:
    """GPT-2's feed-forward part."""
    read = t.layer_norm(t.stream(tokens * h), tokens)
    given = t.gelu_new(t.linear(read, tokens * inner, h * inner))
    t.linear(given, tokens * h, h * inner)
    return tokens * h


def head(t: Tape, tokens: int, h: int, words: int, rms: int) -> int:
    """A norm, the output, and Transformers' loss of causal models, which converts logits."""
    read = (t.rms_norm if rms else t.layer_norm)(t.stream(tokens * h), tokens)
    t.loss(t.linear(read, tokens * words, h * words), upcast=True)
    return tokens * h


def bert_attention(t: Tape, tokens: int, h: int, heads: int) -> int:
    """Three products read what a norm gave, and the norm comes last."""
    x = t.stream(tokens * h)
    qkv = tuple(t.linear(x, tokens * h, h * h) for _ in range(3))
    t.linear(t.attention(qkv, tokens * h, heads, tokens, tokens), tokens * h, h * h)
    t.layer_norm(t.stream(tokens * h), tokens)
    return tokens * h


def bert_mlp(t: Tape, tokens: int, h: int, inner: int) -> int:
    """BERT's feed-forward part."""
    given = t.activation(t.linear(t.stream(tokens * h), tokens * inner, h * inner))
    t.linear(given, tokens * h, h * inner)
    t.layer_norm(t.stream(tokens * h), tokens)
    return tokens * h


def bert_head(t: Tape, tokens: int, h: int, words: int) -> int:
    """The head of masked language models, whose loss reads logits as they are."""
    given = t.activation(t.linear(t.stream(tokens * h), tokens * h, h * h))
    read = t.layer_norm(given, tokens)
    t.loss(t.linear(read, tokens * words, h * words), upcast=False)
    return tokens * h


def attention(
    t: Tape, tokens: int, h: int, wide: int, narrow: int, heads: int, rms: int, keys: int = 0
) -> int:
    """Queries of a width, keys and values of another, of as many tokens or of an encoder's."""
    read = (t.rms_norm if rms else t.layer_norm)(t.stream(tokens * h), tokens)
    other, keys = (t.stream(keys * h), keys) if keys else (read, tokens)
    of_keys = (t.linear(other, keys * narrow, h * narrow) for _ in range(2))
    qkv = (t.linear(read, tokens * wide, h * wide), *of_keys)
    out = t.attention(qkv, tokens * wide, heads, tokens, keys)
    t.linear(out, tokens * h, wide * h)
    return tokens * h


def mlp(t: Tape, tokens: int, h: int, inner: int, gated: int, rms: int) -> int:
    """A decoder's feed-forward part, gated by SiLU or plain."""
    read = (t.rms_norm if rms else t.layer_norm)(t.stream(tokens * h), tokens)
    given = t.activation(t.linear(read, tokens * inner, h * inner))
    if gated:
        given = t.gate(given, t.linear(read, tokens * inner, h * inner))
    t.linear(given, tokens * h, inner * h)
    return tokens * h


def experts(t: Tape, tokens: int, h: int, inner: int, active: int, count: int) -> int:
    """Tokens are copied to their experts, each a gated part, and weighted."""
    read = t.rms_norm(t.stream(tokens * h), tokens)
    weights = h * inner * count // active
    routed = Tensor(tokens * active * h, 2 if t.amp or t.half else 4)
    given = t.activation(t.linear(routed, tokens * active * inner, weights))
    given = t.gate(given, t.linear(routed, tokens * active * inner, weights))
    out = t.linear(given, tokens * active * h, weights)
    t.linear(read, tokens * count, h * count)
    t.keep(out)
    return tokens * h


def vit_attention(t: Tape, tokens: int, h: int, heads: int) -> int:
    """torchvision's: products read a copy with tokens first, and give one packed tensor."""
    read = t.layer_norm(t.stream(tokens * h), tokens)
    qkv = t.linear(read, 3 * tokens * h, 3 * h * h)
    t.linear(t.attention((qkv,), tokens * h, heads, tokens, tokens), tokens * h, h * h)
    return tokens * h


def vit_mlp(t: Tape, tokens: int, h: int, inner: int) -> int:
    """ViT's feed-forward part."""
    read = t.layer_norm(t.stream(tokens * h), tokens)
    given = t.activation(t.linear(read, tokens * inner, h * inner))
    t.linear(given, tokens * h, h * inner)
    return tokens * h


def norm(t: Tape, tokens: int, h: int) -> int:
    """A norm by itself, at the end of an encoder."""
    t.rms_norm(t.stream(tokens * h), tokens)
    return tokens * h


def vit_head(t: Tape, tokens: int, h: int) -> int:
    """The last norm; classes are few."""
    t.layer_norm(t.stream(tokens * h), tokens)
    return tokens * h


def image(
    t: Tape, read: int, given: int, buffers: int, pooled: int, weights: int, first: int
) -> int:
    """A convolution or a product with what follows in place: batch norm and ReLU.

    It keeps its input unless that is kept already (`read`), one buffer or two of what it gives, and
    the places of maxima (64 bits, or 8 if compiled) where a pooling comes before it.
    """
    gave = t.linear(Tensor(read, 2 if t.half else 4), given, weights)
    t.keep(*(Tensor(given, gave.width) for _ in range(buffers)))
    t.kept += (1 if t.compiled else 8) * pooled
    if first and t.amp:  # images stay in 32 bits beside their conversion
        t.keep(Tensor(read, 4))
    return read


def first_read(t: Tape, pixels: int) -> int:
    """Images, which stay in 32 bits beside their conversion."""
    t.keep(*(Tensor(pixels, width) for width in ((4, 2) if t.amp else (2 if t.half else 4,))))
    return 0


def nothing(_: Tape) -> int:
    """An embedding keeps the indices."""
    return 0


PROGRAMS: Mapping[str, Callable[..., int]] = {
    each.__name__: each
    for each in (
        gpt2_attention, gpt2_mlp, head, bert_attention, bert_mlp, bert_head, attention, mlp,
        experts, norm, vit_attention, vit_mlp, vit_head, image, first_read, nothing,
    )
}  # fmt: skip
"""The forward passes of layers; each returns the elements of the residual stream that it reads."""


def saved_by(program: Program, tape: Tape) -> Saved:
    """What a program keeps on a fresh tape."""
    name, *arguments = program
    tape.every_second = name in ("attention", "mlp")
    return tape.saved(PROGRAMS[str(name)](tape, *arguments))
