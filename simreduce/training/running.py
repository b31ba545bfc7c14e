"""What each layer of a model takes on one GPU, as people run it: its profile from its kernels.

Decoders and BERT are those of Hugging Face's Transformers, ViT and image models those of
torchvision, all without dropout. BERT predicts masked words, whose output is its embedding. The
loss is counted over all words in float32. Image models are in `channels_last`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt

from simreduce.errors import InputError
from simreduce.training.eager import (
    BF16,
    COMPILED,
    GATE,
    GELU,
    GELU_NEW,
    MEGATRON,
    RELU_SQUARED,
    Cost,
    Launched,
    Part,
    add_up,
)
from simreduce.training.gpus import Gpu
from simreduce.training.memory import FULL, FUSED, OP, SELECTIVE, ModelRun, policy_of
from simreduce.training.mesh.passes import decoder_of, kernels_profile
from simreduce.training.sharded import MASTER, OPTIMIZERS, Sharding
from simreduce.training.step import KERNELS_OF, Profile
from simreduce.workload import Model, in_dtype
from simreduce.workload.decoder import ARCHITECTURES, HEAD, VIT_TOKENS, Decoder
from simreduce.workload.loader import NAMES, load_model


@dataclass(frozen=True)
class Transformer:
    """Equal blocks, whose norms come before or after their parts.

    Queries, keys and values are `packed` in one product or not. Decoders are causal, and have a
    `cache`, into which they copy keys and values.
    """

    width: int
    heads: int
    groups: int
    head: int
    inner: int
    bias: bool = True
    gated: bool = False
    packed: bool = False
    cache: bool = False
    rotary: bool = False
    nonlinearity: tuple[str, str] = GELU

    def attention(
        self, k: Launched, samples: int, tokens: int, *, fused: bool
    ) -> tuple[Part, Part, Part]:
        """The attention of a block, of it what attention is by itself, and all but what is kept op
        by op: attention and, but for every second one, products without a bias.
        """
        rows, width, wide = samples * tokens, self.width, self.heads * self.head
        narrow = self.groups * self.head
        facts = samples, tokens, self.heads, self.head
        causal = self.cache
        core = k.attention(*facts, causal=causal) if fused else k.unfused_attention(*facts)
        outputs = [wide + 2 * narrow] if self.packed else [wide, narrow, narrow]
        given = [k.linear(rows, width, each, bias=self.bias) for each in outputs]
        back = k.linear(rows, wide, width, bias=self.bias, wide=False)
        again = [] if self.bias else [*given[1::2], back]
        found = list[Part]()
        # Gradients of the inputs of several products add up; those of one come apart.
        found += [k.between(rows * width, "", "ww>w")] * (len(outputs) - 1)
        if self.packed:
            copied = "" if self.cache else "p>p"
            found.append(k.between(rows * 3 * wide, copied, "p>p"))
        if self.rotary:
            found += [k.rotary(rows * each) for each in (wide, narrow)]
        found += [k.gathered(rows * narrow)] * (2 * self.cache)
        around = self._around(k, rows)
        whole = [*given, *found, core, back, *around]
        return add_up(whole), core, add_up([*found, *again, *around])

    def feed_forward(self, k: Launched, rows: int) -> tuple[Part, Part]:
        """The feed-forward part of a block, and all but what is kept op by op."""
        up = k.linear(rows, self.width, self.inner, bias=self.bias)
        chain = k.chain(rows * self.inner, self.nonlinearity, 1 + self.gated)
        wide = self.nonlinearity is GELU_NEW
        down = k.linear(rows, self.inner, self.width, bias=self.bias, wide=wide)
        gate = [up, k.between(rows * self.width, "", "ww>w")] * self.gated
        around = self._around(k, rows)
        second = [] if self.bias else [*gate] or [down]
        return add_up([up, *gate, chain, down, *around]), add_up([chain, *second, *around])

    def blocks(
        self, k: Launched, samples: int, tokens: int, count: int, *, fused: bool, policy: str
    ) -> list[Part]:
        """Both parts of so many blocks, with what `policy` computes again."""
        attention, core, most = self.attention(k, samples, tokens, fused=fused)
        whole, rest = self.feed_forward(k, samples * tokens)
        parts, none = (attention, whole), (Part(), Part())
        again = {FULL: parts, SELECTIVE: (core, Part()), OP: (most, rest)}
        return [
            add_up([each, Part(Cost(), more.forward)])
            for i in range(count)
            for each, more in zip(parts, again.get(policy_of(policy, i), none), strict=True)
        ]

    def _around(self, k: Launched, rows: int) -> list[Part]:
        """The norm and the residual sum of a part."""
        residual = k.between(rows * self.width, "pw>w", "w=p ww>w")
        return [k.norm(rows, self.width, bias=self.bias), residual]


def _decoder(shape: Decoder) -> Transformer:
    """GPT-2's kind has learned positions and packs queries, keys and values; others are Llama's."""
    like_gpt = bool(shape.positions)
    plain = GELU_NEW if like_gpt else RELU_SQUARED
    return Transformer(
        shape.width, shape.heads, shape.groups, shape.head, shape.inner, shape.bias, shape.gated,
        packed=like_gpt, cache=True, rotary=not like_gpt,
        nonlinearity=GATE if shape.gated else plain,
    )  # fmt: skip


def run_profile(
    model: Model, gpu: Gpu, batch: int, run: ModelRun, numerics: Sharding | None = None
) -> Profile:
    """The times of a model's layers for a batch on one GPU, and of the update of its parameters.

    `numerics` has the optimizer, and whether parameters and states are `pure`: else they have 4
    bytes. Without, it is Adam in the precision of `run`. InputError if the model's shapes are not
    known.
    """
    kept = numerics or Sharding(pure=run.precision == BF16)
    if run.kernels == MEGATRON:
        if _other(model):
            raise InputError(
                f"{model.name}: as Megatron-LM runs them, kernels are known of decoders alone, such"
                " as gpt2; give a time, a rate or a profile"
            )
        return kernels_profile(model, gpu, batch, run, kept)
    k = Launched(gpu, run.precision, run.kernels == COMPILED)
    fused, policy = run.attention == FUSED, run.recompute
    layers = list(_layers(model, k, batch, fused=fused, policy=policy))
    forward, backward = _paced(layers, gpu.host)
    # An update reads a parameter, its gradient and states; it writes the parameter and states.
    values = 3 + 2 * OPTIMIZERS[kept.optimizer] // MASTER
    lent = f" ({text})" if (text := gpu.lent(16 if k.tensor else 32)) else ""
    return Profile(
        forward, backward, f"{KERNELS_OF} {gpu.title}, {run.kernels}, {run.precision}{lent}",
        k.update(
            sum(gradient.elements for gradient in model.workload.gradients),
            MASTER // 2 if kept.pure else MASTER, values,
        ),
    )  # fmt: skip


def _paced(layers: Sequence[Part], host: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of layers, forward and backward, of a GPU that waits for its host where that is
    later: a layer's last kernel follows its launch.
    """
    launched = end = 0.0
    times = list[float]()
    for cost in (*(p.forward for p in layers), *(p.backward for p in reversed(layers))):
        begin, launched = end, launched + cost.launched * host
        end = max(end + cost.seconds, launched)
        times.append(end - begin)
    count = len(layers)
    return tuple(times[:count]), tuple(reversed(times[count:]))


def _layers(model: Model, k: Launched, batch: int, *, fused: bool, policy: str) -> Iterator[Part]:
    """The kernels of each layer."""
    if (other := _other(model)) == _IMAGES:
        return _image_layers(model, k, batch)
    layers = _encoder_layers if other else _decoder_layers
    return layers(model, k, batch, fused=fused, policy=policy)


PATCHES = (16, 16, 16)
"""The window and stride of a ViT's patches."""
_IMAGES, _ENCODER = "images", "encoder"


def _other(model: Model) -> str:
    """What a model is, if not a decoder, whatever the type of its gradients."""
    name, plain = model.name.partition(",")[0], in_dtype(model, 0)
    if name in NAMES and load_model(name) == plain:
        return _IMAGES
    return _ENCODER if name in _ENCODERS and load_model(model.name) == plain else ""


def _image_layers(model: Model, k: Launched, batch: int) -> Iterator[Part]:
    """Convolutions, with what follows each, and fully connected layers.

    Of an image's three channels, kernels of tensor cores read eight. A bottleneck block's last
    convolution has four times the channels of its input, and the sum with what went past the block.
    """
    for i, layer in enumerate(model.layers):
        weights, columns = layer.gradients[0].elements, layer.gradients[-1].elements
        inner, places = weights // columns, round(layer.forward / (2 * weights))
        if places == 1:
            yield k.linear(batch, inner, columns, wide=False)
            continue
        rows = batch * places
        found = k.convolution(
            batch, places, inner if i else inner * _channels(k), columns, first=not i,
            normed="/batchnorm" in layer.gradients[-1].name, window=layer.window or (1, 1, 1),
        )  # fmt: skip
        sums = model.name.startswith("resnet") and columns == 4 * inner
        yield add_up([found, k.between(rows * columns, "pp>p", "pp>p")]) if sums else found


def _channels(k: Launched) -> float:
    """How many times its channels kernels read of an image."""
    return 8 / 3 if k.tensor else 1.0


_ENCODERS = [name for name in ARCHITECTURES if name.startswith(("bert", "vit"))]


def _encoder_layers(
    model: Model, k: Launched, batch: int, *, fused: bool, policy: str
) -> Iterator[Part]:
    bert, vectors = bool(model.tokens), model.layers[1].gradients[0].elements
    h, tokens = (isqrt(vectors) if bert else vectors), model.tokens or VIT_TOKENS
    kind = Transformer(h, h // HEAD, h // HEAD, HEAD, 4 * h, packed=not bert)
    rows, blocks = batch * tokens, (len(model.layers) - 2) // 2
    norm = k.norm(rows, h)
    if bert:
        words = model.layers[0].gradients[0].elements // h
        yield add_up([k.embedding(rows, h, words, tied=True, tables=3), norm])
    else:
        patch = model.layers[0].gradients[1].elements // h
        found = k.convolution(
            batch, tokens - 1, patch * _channels(k), h, first=True, normed=False, window=PATCHES
        )
        yield add_up([found, k.moves(rows * h, "pw>w", "w> w=p")])
    yield from kind.blocks(k, batch, tokens, blocks, fused=fused, policy=policy)
    if bert:
        cast = k.between(rows * h, "p=w", "w=p")
        hidden = [k.linear(rows, h, h), k.chain(rows * h, GELU), cast, norm]
        yield add_up([*hidden, k.linear(rows, h, words), k.loss(rows, words)])
    else:
        classes = model.layers[-1].gradients[-1].elements
        yield add_up([norm, k.linear(batch, h, classes)])


def _decoder_layers(
    model: Model, k: Launched, batch: int, *, fused: bool, policy: str
) -> Iterator[Part]:
    decoder = decoder_of(model)
    shape, rows = decoder.shape, batch * decoder.tokens
    if shape.experts or shape.latent:
        raise InputError(
            f"{model.name}: kernels of experts and of latent attention are known as Megatron-LM"
            f' runs them; give kernels = "{MEGATRON}", a time, a rate or a profile'
        )
    kind = _decoder(shape)
    tables = 1 + bool(shape.positions)
    yield k.embedding(rows, shape.width, shape.words, tied=shape.tied, tables=tables)
    yield from [Part()] * (len(model.layers) - 2 * shape.blocks - 2)
    yield from kind.blocks(k, batch, decoder.tokens, shape.blocks, fused=fused, policy=policy)
    output = k.linear(rows, shape.width, shape.words, bias=False)
    yield add_up([k.norm(rows, shape.width, bias=shape.bias), output, k.loss(rows, shape.words)])
