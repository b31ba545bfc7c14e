"""Decoders of equal blocks, from GPT-2 to DeepSeek-V3, by name or by their figures.

Blocks have attention with keys and values for groups of heads or from a latent vector, then a
feed-forward part, plain or gated, or experts.

Of experts a token passes through some, and all have gradients. Parameters have the names of Hugging
Face's Llama (Grattafiori et al. 2024) and Mixtral (Jiang et al. 2024). A norm belongs to the part
that reads it. PyTorch registers a block's two norms last.

A decoder by its figures, as text: `transformer:layers=48,hidden=8192,heads=64,vocab=51200`.

The keys have the words of Megatron-LM and of configurations on Hugging Face.

Transformers have parameters in the order in which PyTorch registers them, and work by the length of
a sequence. Gradients are float32, as masters of mixed precision are.

Activations are counted by the rules of Korthikanti et al. 2022, Reducing Activation Recomputation
in Large Transformer Models (https://arxiv.org/abs/2205.05198), section 4, for 16 bits: backward
needs the inputs of products, norms and nonlinearities and what softmax gives, two bytes an element,
masks of dropout, one byte, and logits in float32. A block of GPT-2, BERT or ViT with s tokens, a
width of h and a heads keeps 34 s h + 5 a s^2 bytes of a sample, as published. The others follow
from the same rules: most decoders have no dropout, fewer heads of keys, and gated parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Generic, NamedTuple, TypeVar

from simreduce.errors import WorkloadError
from simreduce.files.formats import Field, Format, choice, whole
from simreduce.files.formats.syntax import Faults
from simreduce.workload import Gradient, Kept, Layer, Model
from simreduce.workload.autograd import Program

N = TypeVar("N", int, float)

Shapes = list[tuple[str, tuple[int, ...]]]
"""Parameters by name, in the order of their registration."""


def linear(path: str, inputs: int, outputs: int, *, bias: bool = True) -> Shapes:
    """A fully connected part."""
    weight = (f"{path}.weight", (inputs, outputs))
    return [weight, (f"{path}.bias", (outputs,))] if bias else [weight]


def norm(path: str, width: int) -> Shapes:
    """A norm with scale and shift."""
    return [(f"{path}.weight", (width,)), (f"{path}.bias", (width,))]


def scale(path: str, width: int) -> Shapes:
    """A norm with nothing but a scale."""
    return [(f"{path}.weight", (width,))]


def gradients(name: str, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[Gradient, ...]:
    """The gradients of the parameters of `name`."""
    return tuple(Gradient(f"{name}.{path}", prod(shape)) for path, shape in shapes)


def products(shapes: Sequence[tuple[str, tuple[int, ...]]], tokens: float) -> float:
    """FLOPs of the products of all two-dimensional shapes with so many vectors."""
    return sum(2.0 * prod(shape) * tokens for _, shape in shapes if len(shape) == 2)


def attention(queries: float, keys: float, width: float) -> float:
    """FLOPs of the two products of attention over vectors of that width, all heads together."""
    return 4.0 * queries * keys * width


def layer(
    name: str, shapes: Shapes, tokens: float, more: float = 0.0, kept: Kept | None = None
) -> Layer:
    """A layer of `shapes` over `tokens` vectors, with `more` FLOPs besides its matrix products."""
    forward = more + products(shapes, tokens)
    return Layer(name, gradients(name, shapes), forward, 2 * forward, kept=kept)


HEAD = 64
"""The width of a head of `block`, in all sizes of its models."""


def block(
    names: tuple[str, str], parts: tuple[Shapes, Shapes], tokens: int, width: int, kind: str
) -> list[Layer]:
    """Attention, and a feed-forward part four times as wide, with their parameters.

    They have dropout and keep 13 s h + 5 a s^2 and 21 s h, their norms included. PyTorch runs those
    of their `kind`.
    """
    core, scores = attention(tokens, tokens, width), 5 * (width // HEAD) * tokens**2
    heads: Program = (f"{kind}_attention", tokens, width, width // HEAD)
    kept = Kept(2 * tokens * width, 13 * tokens * width, scores, core, heads)
    mlp: Program = (f"{kind}_mlp", tokens, width, 4 * width)
    wide = Kept(2 * tokens * width, 21 * tokens * width, program=mlp)
    return [
        layer(names[0], parts[0], tokens, core, kept),
        layer(names[1], parts[1], tokens, kept=wide),
    ]


EMBEDDING: Program = ("nothing",)


def kept_by_head(tokens: float, width: int, words: int, *, rms: bool = False) -> Kept:
    """What the last norm, the output and the loss keep: 4 s h, and logits in float32, 4 s V."""
    program = ("head", round(tokens), width, words, int(rms))
    return Kept(2 * tokens * width, 4 * tokens * (width + words), program=program)


class Latent(NamedTuple):
    """Widths of multi-head latent attention (DeepSeek-V2, https://arxiv.org/abs/2405.04434).

    Queries and keys with values come from vectors of `query` and `key`; `rotary` values of each
    head's query, and as many of all keys together, carry the position.
    """

    query: int
    key: int
    rotary: int


class Divided(NamedTuple, Generic[N]):
    """Elements of a part's parameters, or bytes of its activations for each token in 16 bits: those
    that tensor parallel ranks share, and those that each has (activations unless sequences are
    split).
    """

    split: N
    whole: N


@dataclass(frozen=True)
class Decoder:
    """The figures of a decoder, as its configuration has them.

    `blocks` of `width`, with `heads` of width `head` and keys and values for `groups` of them. The
    feed-forward part has an `inner` width; with `experts`, all blocks after the first `dense` have
    as many of width `expert`, of which a token passes through `active`, and `shared` ones; if they
    are `limited`, those are in so many of so many groups. With learned `positions`, there are so
    many. A `tied` output is the embedding of the `words`.
    """

    blocks: int
    width: int
    heads: int
    groups: int
    head: int
    inner: int
    words: int
    sequence: int
    experts: int = 0
    active: int = 0
    expert: int = 0
    shared: int = 0
    dense: int = 0
    gated: bool = True
    bias: bool = False
    dropout: bool = False
    tied: bool = False
    positions: int = 0
    latent: Latent | None = None
    limited: tuple[int, int] = (1, 1)

    @property
    def queries(self) -> int:
        """The width of all heads together."""
        return self.heads * self.head

    @property
    def narrow(self) -> int:
        """The width of keys, and of values."""
        return self.groups * self.head

    def has_experts(self, block: int) -> bool:
        """Whether that block has experts."""
        return bool(self.experts) and block >= self.dense

    @cached_property
    def attention(self) -> Divided[int]:
        """Parameters of a block's attention, with its norm."""
        return self._held(self._attention(), ("o_proj.bias",))

    @cached_property
    def feed_forward(self) -> Divided[int]:
        """Parameters of a block's feed-forward part without experts, with its norm."""
        return self._held([*self._part("", self.inner), *self._norm("n")], ("down_proj.bias",))

    @cached_property
    def one_expert(self) -> int:
        """Parameters of one expert."""
        return _elements(self._part("", self.expert))

    @cached_property
    def around_experts(self) -> Divided[int]:
        """Parameters of a block with experts besides them and attention."""
        beside = [*self._shared(), *linear("gate", self.width, self.experts, bias=False)]
        return self._held([*beside, *self._norm("n")], ("down_proj.bias", "gate.weight"))

    @cached_property
    def embedding(self) -> Divided[int]:
        """Parameters of the embedding of words and positions."""
        return Divided(self.words * self.width, self.positions * self.width)

    @cached_property
    def output(self) -> Divided[int]:
        """Parameters of the last norm and the output, which has the embedding's if it is tied."""
        words = 0 if self.tied else self.words * self.width
        return Divided(words, _elements(self._norm("n")))

    @property
    def parameters(self) -> int:
        """All parameters."""
        plain = sum(not self.has_experts(i) for i in range(self.blocks))
        held = sum(self.attention) * self.blocks + sum(self.feed_forward) * plain
        if plain < self.blocks:
            with_experts = sum(self.around_experts) + self.experts * self.one_expert
            held += with_experts * (self.blocks - plain)
        return held + sum(self.embedding) + sum(self.output)

    @property
    def crossed(self) -> float:
        """The width over which attention by itself multiplies, the mean of its two products."""
        rotary = self.heads * self.latent.rotary if self.latent else 0
        return self.queries + rotary / 2

    @cached_property
    def kept_by_attention(self) -> Divided[float]:
        """What attention keeps, without its scores: the norm's and the product's input, queries,
        keys, values and what it gives; and latent vectors.
        """
        whole = 4.0 * self.width + self.width * self.dropout
        if self.latent:
            whole += 2.0 * sum(self.latent)
            return Divided(8.0 * self.queries + 4.0 * self.heads * self.latent.rotary, whole)
        return Divided(4.0 * self.queries + 4.0 * self.narrow, whole)

    def kept_by_feed_forward(self, inner: float, gated: float = 8.0) -> Divided[float]:
        """What a feed-forward part of that inner width keeps; a gated one so many bytes for each
        element of it.
        """
        mask = self.width * self.dropout
        return Divided((gated if self.gated else 4.0) * inner, 4.0 * self.width + mask)

    def scores(self, tokens: float) -> float:
        """Bytes of each token's scores with so many others: softmax, and what dropout leaves."""
        return (5.0 if self.dropout else 2.0) * self.heads * tokens

    def layers(self, tokens: int) -> list[Layer]:
        """The layers for sequences of `tokens` tokens."""
        h = self.width
        words = [("weight", (self.words, h))]
        found = [
            Layer("embed_tokens", gradients("embed_tokens", words), kept=Kept(program=EMBEDDING))
        ]
        if self.positions:
            learned = gradients("embed_positions", [("weight", (self.positions, h))])
            mask = Kept(0.0, float(tokens * h * self.dropout), program=EMBEDDING)
            found.append(Layer("embed_positions", learned, kept=mask))
        more, scores = attention(tokens, tokens, self.crossed), self.scores(tokens) * tokens
        kept = Kept(
            2.0 * tokens * h, tokens * sum(self.kept_by_attention), scores, more,
            self._attention_program(tokens),
        )  # fmt: skip
        for i in range(self.blocks):
            found += [
                layer(f"layers.{i}.self_attn", self._attention(), tokens, more, kept),
                self._feed_forward(i, tokens),
            ]
        head = [] if self.tied else linear("lm_head", h, self.words, bias=False)
        more = 2.0 * self.words * h * tokens * self.tied
        kept = kept_by_head(tokens, h, self.words, rms=not self.bias)
        return [*found, layer("head", [*self._norm("norm"), *head], tokens, more, kept)]

    def _attention_program(self, tokens: int) -> Program:
        h, heads = self.width, self.heads
        if self.positions and not self.gated and self.queries == self.narrow == h:
            return ("gpt2_attention", tokens, h, heads)
        wide = self.queries + (heads * self.latent.rotary if self.latent else 0)
        narrow = wide if self.latent else self.narrow
        return ("attention", tokens, h, wide, narrow, heads, int(not self.bias))

    def _attention(self) -> Shapes:
        h, wide = self.width, self.queries
        if self.latent:
            query, key, rotary = self.latent
            return [
                *linear("q_a_proj", h, query, bias=False),
                *scale("q_a_layernorm", query),
                *linear("q_b_proj", query, wide + self.heads * rotary, bias=False),
                *linear("kv_a_proj_with_mqa", h, key + rotary, bias=False),
                *scale("kv_a_layernorm", key),
                *linear("kv_b_proj", key, 2 * wide, bias=False),
                *linear("o_proj", wide, h, bias=False),
                *self._norm("input_layernorm"),
            ]
        return [
            *linear("q_proj", h, wide, bias=self.bias),
            *linear("k_proj", h, self.narrow, bias=self.bias),
            *linear("v_proj", h, self.narrow, bias=self.bias),
            *linear("o_proj", wide, h, bias=self.bias),
            *self._norm("input_layernorm"),
        ]

    def _feed_forward(self, block: int, tokens: int) -> Layer:
        name, after = f"layers.{block}.mlp", self._norm("post_attention_layernorm")
        input_ = 2.0 * tokens * self.width
        if not self.has_experts(block):
            plain: Program = (
                ("gpt2_mlp", tokens, self.width, self.inner)
                if self.positions and not self.gated
                else ("mlp", tokens, self.width, self.inner, int(self.gated), int(not self.bias))
            )
            kept = Kept(input_, tokens * sum(self.kept_by_feed_forward(self.inner)), program=plain)
            return layer(name, [*self._part("", self.inner), *after], tokens, kept=kept)
        gate, shared = linear("gate", self.width, self.experts, bias=False), self._shared()
        experts = [
            shape for j in range(self.experts) for shape in self._part(f"experts.{j}.", self.expert)
        ]
        passed = products(experts, tokens) * self.active / self.experts
        forward = products([*gate, *shared], tokens) + passed
        every = gradients(name, [*gate, *experts, *shared, *after])
        routed = 4.0 * self.active * self.width  # inputs and outputs of experts
        each = sum(self.kept_by_feed_forward((self.active + self.shared) * self.expert)) + routed
        passes = self.active + self.shared
        program = ("experts", tokens, self.width, self.expert, passes, self.experts + self.shared)
        kept = Kept(input_, tokens * each, program=program)
        return Layer(name, every, forward, 2 * forward, kept=kept)

    def _shared(self) -> Shapes:
        return self._part("shared_experts.", self.shared * self.expert) if self.shared else []

    def _part(self, path: str, inner: int) -> Shapes:
        gate = linear(f"{path}gate_proj", self.width, inner, bias=self.bias) if self.gated else []
        return [
            *gate,
            *linear(f"{path}up_proj", self.width, inner, bias=self.bias),
            *linear(f"{path}down_proj", inner, self.width, bias=self.bias),
        ]

    def _norm(self, path: str) -> Shapes:
        return norm(path, self.width) if self.bias else scale(path, self.width)

    def _held(self, shapes: Shapes, each: tuple[str, ...]) -> Divided[int]:
        """Norms, and biases and matrices whose names end like those of `each`, are on each rank."""
        vectors = ("norm.weight", "n.weight", "n.bias", "_a_proj.weight", "with_mqa.weight")
        whole = [pair for pair in shapes if pair[0].endswith((*vectors, "norm.bias", *each))]
        return Divided(_elements(shapes) - _elements(whole), _elements(whole))


def _elements(shapes: Shapes) -> int:
    return sum(prod(shape) for _, shape in shapes)


_PADDED = 51200
"""Words of GPT-2's vocabulary (50,257), padded as Megatron-LM's published runs have them."""


def _gpt(
    blocks: int, width: int, heads: int, words: int = _PADDED, sequence: int = 2048
) -> Decoder:
    """A model of GPT's kind: biases, dropout, a plain feed-forward part four times as wide."""
    return Decoder(
        blocks, width, heads, heads, width // heads, 4 * width, words, sequence,
        gated=False, bias=True, dropout=True, tied=True, positions=sequence,
    )  # fmt: skip


def _llama(blocks: int, width: int, heads: int, inner: int) -> Decoder:
    return Decoder(blocks, width, heads, 8, width // heads, inner, 128256, 8192)


def _llama2(blocks: int, width: int, heads: int, groups: int, inner: int) -> Decoder:
    return Decoder(blocks, width, heads, groups, width // heads, inner, 32000, 4096)


def _nemotron(blocks: int, width: int, heads: int) -> Decoder:
    """Squared ReLU, no dropout, no biases; an output of its own."""
    return Decoder(
        blocks, width, heads, 8, width // heads, 4 * width, 256000, 4096, gated=False
    )  # fmt: skip


def _qwen3(blocks: int, width: int, heads: int, expert: int) -> Decoder:
    return Decoder(
        blocks, width, heads, 4, 128, 0, 151936, 4096, experts=128, active=8, expert=expert
    )


DECODERS: Mapping[str, tuple[Decoder, int]] = {
    # Brown et al. 2020, https://arxiv.org/abs/2005.14165, table 2.1
    "gpt-3-175b": (_gpt(96, 12288, 96), 2048),
    # Narayanan et al. 2021, https://arxiv.org/abs/2104.04473, table 1
    "megatron-3.6b": (_gpt(30, 3072, 32), 2048),
    "megatron-39.1b": (_gpt(48, 8192, 64), 2048),
    # Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, table 3
    "megatron-22b": (_gpt(48, 6144, 64), 2048),
    "megatron-530b": (_gpt(105, 20480, 128), 2048),
    "megatron-1t": (_gpt(128, 25600, 160), 2048),
    # NVIDIA's NeMo-Framework-Launcher, launcher_scripts/conf/training/gpt3/5b.yaml
    "gpt-3-5b": (_gpt(24, 4096, 32, 50304), 2048),
    # Touvron et al. 2023, https://arxiv.org/abs/2307.09288, and the configurations on
    # https://huggingface.co/meta-llama
    "llama-2-7b": (_llama2(32, 4096, 32, 32, 11008), 4096),
    "llama-2-13b": (_llama2(40, 5120, 40, 40, 13824), 4096),
    "llama-2-70b": (_llama2(80, 8192, 64, 8, 28672), 4096),
    # Grattafiori et al. 2024, https://arxiv.org/abs/2407.21783, table 3; 131,072 tokens at most
    "llama-3-8b": (_llama(32, 4096, 32, 14336), 131072),
    "llama-3-70b": (_llama(80, 8192, 64, 28672), 131072),
    "llama-3.1-405b": (_llama(126, 16384, 128, 53248), 131072),
    # Parmar et al. 2024, https://arxiv.org/abs/2402.16819, table 1
    "nemotron-4-15b": (_nemotron(32, 6144, 48), 4096),
    # Nvidia 2024, https://arxiv.org/abs/2406.11704, table 1
    "nemotron-4-340b": (_nemotron(96, 18432, 96), 4096),
    # Jiang et al. 2024, https://arxiv.org/abs/2401.04088, table 1; trained on 32,768 tokens
    "mixtral-8x7b": (
        Decoder(32, 4096, 32, 8, 128, 0, 32000, 8192, experts=8, active=2, expert=14336),
        32768,
    ),
    # https://github.com/xai-org/grok-1, run.py: feed-forward parts of 2/3 of 8 times the width
    "grok-1": (
        Decoder(
            64, 6144, 48, 8, 128, 0, 131072, 8192, experts=8, active=2, expert=32768, tied=True,
        ),
        8192,
    ),
    # DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437, section 4.2
    "deepseek-v3": (
        Decoder(
            61, 7168, 128, 128, 128, 18432, 129280, 4096, experts=256, active=8, expert=2048,
            shared=1, dense=3, latent=Latent(1536, 512, 64), limited=(4, 8),
        ),
        131072,
    ),
    # Qwen Team 2025, https://arxiv.org/abs/2505.09388, table 2, and the configurations on
    # https://huggingface.co/Qwen: trained on 4,096 tokens first, 40,960 at most
    "qwen3-30b-a3b": (_qwen3(48, 2048, 32, 768), 40960),
    "qwen3-235b-a22b": (_qwen3(94, 4096, 64, 1536), 40960),
}  # fmt: skip


STATED = "transformer:"
EXAMPLE = "transformer:layers=48,hidden=8192,heads=64,vocab=51200"
_MOST = 10**6
_COUNT = whole(1, _MOST)
_FLAG = choice(("yes", "no"), "answer")

SHAPE = Format(
    "transformer",
    "A decoder of equal blocks, by its figures.",
    Field("layers", whole(1, 1 << 12), "Blocks.", required=True),
    Field("hidden", _COUNT, "The width of a block.", required=True),
    Field("heads", _COUNT, "Heads of attention.", required=True),
    Field("vocab", _COUNT, "Words, with padding.", required=True),
    Field("seq", whole(1, 10**7), "Tokens of a sequence.", 2048),
    Field("groups", _COUNT, "Groups of heads with keys and values of their own.",
          default_words="`heads`"),
    Field("head", _COUNT, "The width of a head.", default_words="`hidden` / `heads`"),
    Field("ffn", _COUNT, "The inner width of a feed-forward part.", default_words="4 `hidden`"),
    Field("gated", _FLAG, "Whether feed-forward parts are gated, as SwiGLU is; then there are no"
          " biases, no dropout and no learned positions unless stated.", "no"),
    Field("bias", _FLAG, "Whether products have biases.", default_words="`no` if gated"),
    Field("dropout", _FLAG, "Whether there is dropout.", default_words="`no` if gated"),
    Field("positions", _FLAG, "Whether positions are learned, not rotary.",
          default_words="`no` if gated"),
    Field("tied", _FLAG, "Whether the output is the embedding.", default_words="`no` if gated"),
    Field("experts", whole(0, _MOST), "Experts in place of a feed-forward part.", 0),
    Field("topk", _COUNT, "Experts that a token passes through.", default_words="2"),
    Field("expert_ffn", _COUNT, "The inner width of an expert.", default_words="`ffn`"),
    Field("shared", whole(0, _MOST), "Experts that every token passes through besides.", 0),
    Field("dense", whole(0, _MOST), "Blocks at the beginning without experts.", 0),
)  # fmt: skip


def read_shape(text: str) -> Decoder:
    """The figures that `text` states; WorkloadError lists every fault."""
    faults, pairs = Faults(text), dict[str, object]()
    for option in text.removeprefix(STATED).split(","):
        key, _, value = option.partition("=")
        faults.check(key not in pairs, key, "is given twice")
        pairs[key] = int(value) if value.isdecimal() and len(value) < 10 else value
    values = SHAPE.read(pairs, faults)
    faults.raise_any(WorkloadError)
    plain = values["gated"] == "no"

    def says(key: str) -> bool:
        return values[key] == "yes" or (values[key] is None and plain)

    hidden, heads, experts = values["hidden"], values["heads"], values["experts"]
    groups, ffn, active = values["groups"] or heads, values["ffn"] or 4 * hidden, values["topk"]
    faults.add_broken("", (
        ("heads", not values["head"] and hidden % heads,
         f"{heads} do not share {hidden} evenly; give head"),
        ("groups", heads % groups, f"{groups} do not share {heads} heads evenly"),
        ("topk", experts and (active or 2) > experts, f"{active or 2} of {experts} experts"),
        *((key, values[key] and not experts, "there are no experts")
          for key in ("topk", "expert_ffn", "shared", "dense")),
        ("dense", experts and values["dense"] >= values["layers"],
         f"leaves none of {values['layers']} layers for experts"),
    ))  # fmt: skip
    faults.raise_any(WorkloadError)
    return Decoder(
        values["layers"], hidden, heads, groups, values["head"] or hidden // heads, ffn,
        values["vocab"], values["seq"], experts, (active or 2) if experts else 0,
        values["expert_ffn"] or (ffn if experts else 0), values["shared"], values["dense"],
        gated=not plain, bias=says("bias"), dropout=says("dropout"), tied=says("tied"),
        positions=values["seq"] if says("positions") else 0,
    )  # fmt: skip


_GPT2_WORDS = 50257
GPT2_POSITIONS = 1024


def gpt2_layers(blocks: int, h: int, tokens: int) -> list[Layer]:
    """A GPT-2 model of `blocks` blocks and a width of `h`, for sequences of `tokens` tokens.

    Radford et al. 2019. Its output is tied to the word embedding, whose gradient is complete only
    when back-propagation is at the input again.
    """
    tables = (
        *gradients("wte", [("weight", (_GPT2_WORDS, h))]),
        *gradients("wpe", [("weight", (GPT2_POSITIONS, h))]),
    )
    # The mask of its dropout is kept.
    found = [Layer("embeddings", tables, kept=Kept(0.0, 1.0 * tokens * h, program=EMBEDDING))]
    for i in range(blocks):
        heads = [*norm("ln", h), *linear("c_attn", h, 3 * h), *linear("c_proj", h, h)]
        mlp = [*norm("ln", h), *linear("c_fc", h, 4 * h), *linear("c_proj", 4 * h, h)]
        found += block((f"h.{i}.attention", f"h.{i}.mlp"), (heads, mlp), tokens, h, "gpt2")
    head = 2.0 * _GPT2_WORDS * h * tokens
    last = gradients("ln_f", [("weight", (h,)), ("bias", (h,))])
    kept = kept_by_head(tokens, h, _GPT2_WORDS)
    return [*found, Layer("head", last, head, 2 * head, kept=kept)]


_BERT_WORDS = 30522
BERT_POSITIONS = 512


def _bert(blocks: int, h: int, tokens: int) -> list[Layer]:
    """A BERT model of `blocks` blocks and a width of `h`, for sequences of `tokens` tokens.

    Devlin et al. 2018: the encoder with its pooler, without the heads of pretraining.
    """
    tables = [
        ("word.weight", (_BERT_WORDS, h)),
        ("position.weight", (BERT_POSITIONS, h)),
        ("token_type.weight", (2, h)),
        *norm("LayerNorm", h),
    ]
    kept = Kept(0.0, 3.0 * tokens * h, program=EMBEDDING)  # its norm and its dropout
    found = [Layer("embeddings", gradients("embeddings", tables), kept=kept)]
    for i in range(blocks):
        projections = [
            p for name in ("query", "key", "value", "output") for p in linear(name, h, h)
        ]
        mlp = [*linear("intermediate", h, 4 * h), *linear("output", 4 * h, h)]
        parts = [*projections, *norm("LayerNorm", h)], [*mlp, *norm("LayerNorm", h)]
        found += block((f"layer.{i}.attention", f"layer.{i}.mlp"), parts, tokens, h, "bert")
    # PyTorch trains it with the head of masked language models.
    pooled = Kept(2.0 * tokens * h, 4.0 * h, program=("bert_head", tokens, h, _BERT_WORDS))
    return [*found, layer("pooler", linear("dense", h, h), 1, kept=pooled)]


_T5_WORDS = 32128
_T5_BUCKETS = 32
_T5_WRITTEN = 114 / 512


def _t5(blocks: int, h: int, projected: int, inner: int, heads: int, tokens: int) -> list[Layer]:
    """A T5 model of width `h` for inputs of `tokens` tokens.

    `projected` is the width of all heads together, `inner` the width of the feed-forward part.

    Raffel et al. 2020, the first version: encoder and decoder share one table of words with the
    output; the first block of either has the table of relative positions. A sample is what the
    encoder reads. The decoder writes 114 tokens for 512, as in pre-training with 15 % of the text
    masked in spans of three tokens, and in proportion for other lengths.
    """

    def attend(
        name: str, queries: float, keys: float, *, positions: bool = False, other: bool = False
    ) -> Layer:
        ends = [*linear("q", h, projected, bias=False), *linear("o", projected, h, bias=False)]
        of_keys = [part for each in "kv" for part in linear(each, h, projected, bias=False)]
        # Flat, because it is looked up and not multiplied.
        table = [("relative_attention_bias", (_T5_BUCKETS * heads,))] * positions
        core = attention(queries, keys, projected)
        forward = products(ends, queries) + products(of_keys, keys) + core
        shapes = [ends[0], *of_keys, ends[1], *table, *scale("layer_norm", h)]
        kept = Kept(
            2.0 * queries * h,
            queries * (5.0 * h + 4.0 * projected) + 4.0 * keys * projected,
            5.0 * heads * queries * keys,
            core,
            ("attention", round(queries), h, projected, projected, heads, 1, round(keys) * other),
        )
        return Layer(name, gradients(name, shapes), forward, 2 * forward, kept=kept)

    def feed_forward(name: str, tokens: float) -> Layer:
        parts = [*linear("wi", h, inner, bias=False), *linear("wo", inner, h, bias=False)]
        program = ("mlp", round(tokens), h, inner, 0, 1)
        kept = Kept(2.0 * tokens * h, 5.0 * tokens * (h + inner), program=program)
        return layer(name, [*parts, *scale("layer_norm", h)], tokens, kept=kept)

    written = tokens * _T5_WRITTEN
    table = gradients("shared", [("weight", (_T5_WORDS, h))])
    mask = Kept(0.0, (tokens + written) * h, program=EMBEDDING)
    found = [Layer("shared", table, kept=mask)]
    for i in range(blocks):
        found += [
            attend(f"encoder.block.{i}.self", tokens, tokens, positions=i == 0),
            feed_forward(f"encoder.block.{i}.mlp", tokens),
        ]
    # And what decoders read.
    ends = Kept(2.0 * tokens * h, 4.0 * tokens * h, program=("norm", tokens, h))
    found.append(layer("encoder.final", scale("layer_norm", h), tokens, kept=ends))
    for i in range(blocks):
        found += [
            attend(f"decoder.block.{i}.self", written, written, positions=i == 0),
            attend(f"decoder.block.{i}.cross", written, tokens, other=True),
            feed_forward(f"decoder.block.{i}.mlp", written),
        ]
    head = 2.0 * _T5_WORDS * h * written
    last, kept = scale("layer_norm", h), kept_by_head(written, h, _T5_WORDS, rms=True)
    return [*found, layer("decoder.final", last, written, head, kept)]


_VIT_CLASSES = 1000
_VIT_PATCHES = (224 // 16) ** 2
VIT_TOKENS = _VIT_PATCHES + 1


def _vit(blocks: int, h: int, tokens: int) -> list[Layer]:
    """A ViT model of `blocks` blocks and a width of `h`, for an image of `tokens` tokens.

    Dosovitskiy et al. 2020, as torchvision has them: images of 224 x 224 in patches of 16 x 16,
    1000 classes. A sample is an image: 196 patches and the token of the class.
    """
    patches = linear("conv_proj", 3 * 16 * 16, h)
    shapes = [("class_token", (h,)), *patches, ("encoder.pos_embedding", (tokens * h,))]
    # Nobody needs the gradient of an image, so that backward is no more than forward.
    once = products(patches, _VIT_PATCHES)
    # The image, and a mask.
    pixels: Program = ("first_read", _VIT_PATCHES * 3 * 16 * 16)
    kept = Kept(0.0, 2.0 * _VIT_PATCHES * 3 * 16 * 16 + tokens * h, program=pixels)
    found = [Layer("embeddings", gradients("embeddings", shapes), once, once, kept=kept)]
    for i in range(blocks):
        heads = [*norm("ln_1", h), *linear("in_proj", h, 3 * h), *linear("out_proj", h, h)]
        mlp = [*norm("ln_2", h), *linear("mlp.0", h, 4 * h), *linear("mlp.3", 4 * h, h)]
        names = f"encoder.{i}.self_attention", f"encoder.{i}.mlp"
        found += block(names, (heads, mlp), tokens, h, "vit")
    head = [*norm("ln", h), *linear("head", h, _VIT_CLASSES)]
    kept = Kept(2.0 * tokens * h, 2.0 * (tokens + 1) * h, program=("vit_head", tokens, h))
    return [*found, layer("heads", head, 1, kept=kept)]


class Architecture(NamedTuple):
    """`layers` for sequences of so many tokens; `usual` tokens in training, `longest` possible."""

    layers: Callable[[int], list[Layer]]
    usual: int
    longest: int
    shape: Decoder | None = None


def _gpt2(blocks: int, width: int) -> Architecture:
    shape = _gpt(blocks, width, width // HEAD, _GPT2_WORDS, GPT2_POSITIONS)
    layers = partial(gpt2_layers, blocks, width)
    return Architecture(layers, GPT2_POSITIONS, GPT2_POSITIONS, shape)


ARCHITECTURES: Mapping[str, Architecture] = {
    "bert-base": Architecture(partial(_bert, 12, 768), 128, BERT_POSITIONS),
    "bert-large": Architecture(partial(_bert, 24, 1024), 128, BERT_POSITIONS),
    "gpt2": _gpt2(12, 768),
    "gpt2-medium": _gpt2(24, 1024),
    "gpt2-large": _gpt2(36, 1280),
    "gpt2-xl": _gpt2(48, 1600),
    **{
        name: Architecture(shape.layers, shape.sequence, longest, shape)
        for name, (shape, longest) in DECODERS.items()
    },
    "t5-base": Architecture(partial(_t5, 12, 768, 768, 3072, 12), 512, 512),
    "t5-large": Architecture(partial(_t5, 24, 1024, 1024, 4096, 16), 512, 512),
    "t5-3b": Architecture(partial(_t5, 24, 1024, 4096, 16384, 32), 512, 512),
    "vit-b-16": Architecture(partial(_vit, 12, 768), VIT_TOKENS, VIT_TOKENS),
    "vit-l-16": Architecture(partial(_vit, 24, 1024), VIT_TOKENS, VIT_TOKENS),
}


def of_sequences(name: str) -> bool:
    """Whether the length of a sample can be chosen; the number of an image's patches cannot."""
    return not name.startswith("vit")


def transformer(name: str, sequence: int | None = None) -> Model:
    """The model of that name; a sample is a sequence of `sequence` tokens, or an image."""
    tokens = sequence or ARCHITECTURES[name].usual
    layers = tuple(ARCHITECTURES[name].layers(tokens))
    shown = name if sequence is None else f"{name},sequence={sequence}"
    return Model(shown, layers, tokens if of_sequences(name) else 0)


class Sequences(NamedTuple):
    """A decoder that reads sequences of so many tokens."""

    name: str
    shape: Decoder
    tokens: int

    @property
    def model(self) -> Model:
        """The model by layers."""
        return Model(self.name, tuple(self.shape.layers(self.tokens)), self.tokens)
