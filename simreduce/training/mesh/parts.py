"""The parts of a model on one rank of a mesh: what each computes, and what its ranks exchange.

Tensor parallel ranks share heads and inner widths. After attention and after the feed-forward part
they sum what they have, forward and backward (Shoeybi et al. 2019, arXiv 1909.08053). With sequence
parallelism norms, residuals and dropout are shared too, and each sum is a reduce-scatter with an
all-gather before the next product; backward gathers inputs once more, as only shards are kept
(Korthikanti et al. 2022, arXiv 2205.05198). Context parallel ranks pass keys and values round a
ring while they attend (Liu et al. 2023, arXiv 2310.01889), forward once, backward with gradients.
Tokens go to their experts and back by all-to-all, to each expert by itself or, with DeepEP, once to
each machine and from there to each rank that has one of their experts
(https://github.com/deepseek-ai/DeepEP).

Experts on one rank: the tokens that come to them, and what they cost besides their products.

Kernels are those of Megatron Core's MoE layer with grouped products and fused permutations
(`megatron/core/transformer/moe`: `router.py`, `token_dispatcher.py`). Nsight counted 463,348 in a
step of 64 micro batches of 48 blocks, 50 a forward pass of a block with its attention (Megatron
Bridge, https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5094 and its
`skills/nemo-mbridge-perf-moe-comm-overlap/SKILL.md`). No expert's tokens leave before the host
knows how many there are, so it is never ahead by more than a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import ceil, comb, exp, lgamma, log, pi
from typing import NamedTuple

import numpy as np

from simreduce.training.gpus import DROPOUT, GATED, LOSS, NORM, PLAIN, RESIDUAL, Kernels, Times
from simreduce.training.memory import FULL, FUSED, OP, SELECTIVE
from simreduce.training.mesh import (
    ATTENTION,
    CP,
    DEEPEP,
    EP,
    ETP,
    EXPERTS,
    FSDP,
    NCCL,
    ROUTER,
    TP,
    TP_COMM,
    TP_GRAD,
    MeshJob,
)
from simreduce.training.stacks import STACKS, Stack
from simreduce.workload.decoder import Decoder

ROUTING, MOVING = 20, 18
"""About how many kernels of a forward pass choose experts and count their tokens (logits, their
softmax and largest, auxiliary loss, sums by expert and rank, copies to the host), and how many
permute tokens and probabilities and carry them, besides products and collectives.
"""
LOOPED = 9.4e-6
"""The host's seconds for each expert's product in a group of them, as a loop launches them: 1.2 ms
for two products of 64 experts (https://github.com/NVIDIA/TransformerEngine/issues/2897).
"""
SORTED, MERGED = (14.0, 14.0), (8.0, 8.0)
"""Bytes of each element of a token for an expert that permutations move, forward and backward. With
NCCL's all-to-all: copied for each expert, sorted by expert, back, and summed, the copies read and
written, the sum written once; DeepEP leaves one copy for each expert and one sum.
"""
CAST = (6.0, 6.0)
"""Bytes of an element that becomes 8 bits: read for its largest, read, written in both orders."""
DEFAULT_GINI = 0.15
"""Of five models' experts on real text, Gini coefficients were 0.105, 0.15 and 0.24 or more
(Ma et al. 2026, https://arxiv.org/abs/2605.20982).
"""
_EVEN = 1e-3
"""A Gini coefficient below which experts are equally popular."""


def own_tokens(job: MeshJob) -> float:
    """Tokens of a micro batch that a rank routes.

    With sequence parallelism each tensor parallel rank routes its own.
    """
    mesh = job.mesh
    splits = job.sequence_parallel or mesh.expert_tensor < mesh.tp
    return job.tokens / (mesh.tp if splits else 1)


def beside_products(job: MeshJob, kernels: Kernels, routed: float) -> Times:
    """What experts of `routed` tokens cost besides their products and the nonlinearity."""
    shape = job.shape
    merged = job.dispatch == DEEPEP
    found = kernels.linear(ceil(own_tokens(job)), shape.width, shape.experts)
    found += kernels.moves(routed * shape.width, MERGED if merged else SORTED)
    if job.bits == 8:
        inner = shape.expert / job.mesh.expert_tensor
        up = inner * (2 if shape.gated else 1)
        forward = kernels.moves(routed * (shape.width + inner), CAST)
        backward = kernels.moves(routed * (shape.width + up), CAST)
        found += replace(forward, inputs=backward.inputs)
    return found + Times(kernels=MOVING + (1 if ROUTER in job.graphs else ROUTING))


def reached(experts: int, active: int, places: int, groups: int = 1, chosen: int = 1) -> float:
    """Of so many places with equally many experts, those that have any of a token's; the mean.

    All choices of experts are equally likely within `chosen` of `groups` of them, which are, too.
    """
    among, here = experts // groups * chosen, experts // places
    whole = max(places, groups) // places  # groups of a place, or one of which it has a part
    missed = 0.0
    for taken in range(min(whole, chosen) + 1):
        likely = comb(whole, taken) * comb(groups - whole, chosen - taken) / comb(groups, chosen)
        missed += likely * comb(among - min(here, experts // groups) * taken, active)
    return places * (1.0 - missed / comb(among, active))


def busiest(job: MeshJob, seed: int | None, gini: float = DEFAULT_GINI) -> float:
    """The tokens of the busiest rank of experts over the mean that the router chose.

    Each rank's router sends an expert no more than its capacity, and drops others, as in GShard
    (https://arxiv.org/abs/2006.16668) and Megatron Core; with `pad`, as many. Tokens are drawn if
    there is a `seed`; the mean of all blocks counts.
    """
    if job.pad:
        return job.capacity
    if seed is None:
        return min(job.imbalance, job.capacity or job.imbalance)
    return _draw(job.shape, job.mesh.ep, ceil(own_tokens(job)), job.capacity, seed, gini)


@lru_cache(maxsize=256)
def _draw(
    shape: Decoder, ranks: int, tokens: int, capacity: float, seed: int, gini: float
) -> float:
    """The mean of all blocks with experts."""
    mean = tokens * shape.active / shape.experts
    most = min(ceil(mean * capacity) if capacity else tokens, tokens)
    found = list[float]()
    even = np.ones(shape.experts)
    parameters = even * _concentration(gini) if gini >= _EVEN else even
    for block in filter(shape.has_experts, range(shape.blocks)):
        random = np.random.default_rng([seed, block])
        popular = random.dirichlet(parameters) if gini >= _EVEN else even / shape.experts
        chosen = random.multinomial(tokens * shape.active, popular, size=ranks)
        kept = np.minimum(chosen, most).sum(axis=0).reshape(ranks, -1).sum(axis=1)
        found.append(float(kept.max()) / (tokens * shape.active))
    return float(np.mean(found))


def _concentration(gini: float) -> float:
    """The parameter of a symmetric Dirichlet distribution of many parts with a Gini coefficient.

    Parts are gamma variables over their sum, and those of shape a have the coefficient
    gamma(a + 1/2) / (sqrt(pi) gamma(a + 1)) (McDonald 1984, Econometrica 52, 647).
    """
    low, high = -7.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        a = exp(middle)
        found = lgamma(a + 0.5) - lgamma(a + 1.0) - log(pi) / 2
        low, high = (middle, high) if found > log(gini) else (low, middle)
    return exp(low)


ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
)  # fmt: skip
DISPATCH = "dispatch"
"""An all-to-all by DeepEP, or back."""
RING = "send_receive"
"""Each rank sends to the next of its group."""
WIDTH = 2
"""Bytes of an element of activations."""
_HIDDEN = 1 << 20
"""Pieces of a call that hides behind kernels from its first part on."""


class MeshCall(NamedTuple):
    """A collective of all groups of an axis; `nbytes` as a rank gives them. `times` in a row.

    Each hides behind up to `behind` seconds of products, but for its first part of `pieces`; of
    these seconds, `later` are gradients of weights, which a pass may leave for later. Copy engines
    slow down no kernels: `copied` are those of Transformer Engine's user buffers. Of a dispatch,
    `spread` has the experts and those of a token, their groups and those of a token; of a shared
    embedding's sum, the places of both its ranks. The strategy `by` carries it out.
    """

    axis: str
    collective: str
    nbytes: int
    times: int = 1
    behind: float = 0.0
    pieces: int = 1
    copied: bool = False
    spread: tuple[int, ...] = ()
    later: float = 0.0
    by: str = NCCL

    def exposed(self, seconds: float, slows: float, *, weights: bool = True) -> float:
        """How much longer the rank takes with it, if it takes `seconds` by itself.

        Beside it, kernels lose the part `slows` of their speed. `weights` says whether the pass has
        their gradients.
        """
        behind = self.behind - (0.0 if weights else self.later)
        if behind <= 0.0:
            return self.times * seconds
        first, lost = seconds / self.pieces, 0.0 if self.copied else slows
        rest, hidden = seconds - first, behind * (self.pieces - 1) / self.pieces
        return self.times * (first + max(rest - hidden, lost * rest))


@dataclass(frozen=True, slots=True)
class BlockPart:
    """A part of a block: its kernels, and the calls of its forward and backward pass.

    The `host` takes so many seconds for a forward pass besides those of its kernels.
    """

    name: str
    times: Times
    forward: tuple[MeshCall, ...] = ()
    backward: tuple[MeshCall, ...] = ()
    host: float = 0.0


@dataclass(frozen=True)
class Parts:
    """The parts of a job's model on a rank."""

    job: MeshJob

    @cached_property
    def _kernels(self) -> Kernels:
        return Kernels(self._stack.adapt(self.job.gpu), self.job.bits)

    @property
    def _stack(self) -> Stack:
        return STACKS[self.job.kernels]

    @property
    def _narrow(self) -> int:
        """The width of keys, and of values, of a rank: one head at least."""
        return max(self.job.shape.narrow // self.job.mesh.tp, self.job.shape.head)

    @property
    def _wide(self) -> float:
        """Elements of a hidden state that norms of a rank see."""
        t = self.job.mesh.tp if self.job.sequence_parallel else 1
        return float(self.job.tokens) * self.job.shape.width / t

    def _sums(
        self, behind: Times, first: Times
    ) -> tuple[tuple[MeshCall, ...], tuple[MeshCall, ...]]:
        """What tensor parallel ranks exchange round a part, whose products are `behind`.

        Backward, `tp_grad` gathers the inputs of the `first` product while it computes the gradient
        for them, and sums that while it computes the gradient for weights (Megatron-LM's
        `tensor_parallel/layers.py`).
        """
        t, nbytes = self.job.mesh.tp, self.job.tokens * self.job.shape.width * WIDTH
        if t == 1:
            return (), ()
        hide = TP_GRAD in self.job.overlap
        inputs, weights = (first.inputs, first.weights) if hide else (0.0, 0.0)
        if not self.job.sequence_parallel:
            once = MeshCall(TP, ALL_REDUCE, nbytes, by=self.job.tensor_all_reduce)
            return (once,), (once._replace(behind=weights, pieces=_HIDDEN, later=weights),)
        shard, beside = nbytes // t, tuple[MeshCall, ...]()
        if TP_COMM in self.job.overlap:

            def split(kind: str, nbytes: int, seconds: float) -> MeshCall:
                return MeshCall(TP, kind, nbytes, 1, seconds / 2, t, copied=True)

            forward, backward = behind.forward, behind.inputs
            gather = split(ALL_GATHER, shard, backward)
            beside = split(ALL_GATHER, shard, forward), split(REDUCE_SCATTER, nbytes, forward)
            if not self._stack.asynchronous:
                return beside, (gather, gather, split(REDUCE_SCATTER, nbytes, backward))
        gather, scatter = MeshCall(TP, ALL_GATHER, shard), MeshCall(TP, REDUCE_SCATTER, nbytes)
        return beside or (gather, scatter), (
            gather,
            gather._replace(behind=inputs, pieces=_HIDDEN),
            scatter._replace(behind=weights, pieces=_HIDDEN, later=weights),
        )

    def _around(self, *, residual: bool = True) -> Times:
        """The norm before a part, and what its result passes: dropout, bias and residual."""
        kernels, found = self._kernels, self._kernels.moves(self._wide, NORM)
        if residual:
            dropped = (RESIDUAL[0] + DROPOUT[0], RESIDUAL[1] + DROPOUT[1])
            found += kernels.moves(self._wide, dropped if self.job.shape.dropout else RESIDUAL)
        return found

    @cached_property
    def attention(self) -> BlockPart:
        """Attention of a block, with its norm and residual."""
        job, kernels = self.job, self._kernels
        shape, t, c, rows = job.shape, job.mesh.tp, job.mesh.cp, self.job.tokens
        wide = shape.queries // t
        if shape.latent:
            query, key, rotary = shape.latent
            down = kernels.linear(rows, shape.width, query + key + rotary)
            into = kernels.linear(rows, query, wide + shape.heads * rotary // t)
            into += kernels.linear(rows, key, 2 * wide)
        else:
            down, into = Times(), kernels.linear(rows, shape.width, wide + 2 * self._narrow)
        products = down + into + kernels.linear(rows, wide, shape.width)
        core, ring = self._core(shape.crossed / t * self._stack.uneven(c))
        forward, backward = self._sums(products, into)
        behind = core.forward / c, core.inputs / c
        around = self._around()
        times = products + core + around
        if job.recompute == OP:
            keys = kernels.product(rows, self._narrow, shape.width)
            again = keys + kernels.product(rows, shape.width, wide)
            times = replace(times, again=again + around.forward)
        if job.optimizer == FSDP and any(self._stack.copied):
            held = shape.parameters / shape.blocks / t
            times += kernels.moves(held, self._stack.copied)
        return BlockPart(
            "attention",
            replace(times, kernels=1) if ATTENTION in job.graphs else times,
            (*forward[:1], *self._ring(ring, behind[0]), *forward[1:]),
            (*backward[:2], *self._ring(2 * ring, behind[1]), *backward[2:]),
        )

    def _ring(self, nbytes: int, behind: float) -> tuple[MeshCall, ...]:
        hops = self.job.mesh.cp - 1
        return (MeshCall(CP, RING, nbytes, hops, behind, _HIDDEN),) if hops else ()

    def _core(self, wide: float) -> tuple[Times, int]:
        """Attention by itself, and the bytes of keys and values of a rank."""
        job, kernels, c = self.job, self._kernels, self.job.mesh.cp
        shape, t, keys = job.shape, job.mesh.tp, job.sequence
        held = 2 * self.job.tokens * self._narrow * WIDTH
        if job.attention == FUSED:
            return kernels.fused_attention(self.job.tokens, keys, wide, causal=True), held
        facts = keys // c, keys, shape.head, max(shape.heads // t, 1) * job.micro_batch
        return kernels.unfused_attention(*facts, dropout=shape.dropout), held

    def _inner(self, rows: float, inner: int, count: int = 1) -> tuple[Times, Times, Times]:
        """Both products and the nonlinearity of `count` feed-forward parts of `rows` tokens."""
        kernels, shape = self._kernels, self.job.shape
        each, up = ceil(rows), inner * (2 if shape.gated else 1)
        into = kernels.linear(each, shape.width, up, count)
        back = kernels.linear(each, inner, shape.width, count)
        return into, back, kernels.moves(rows * count * inner, GATED if shape.gated else PLAIN)

    @cached_property
    def feed_forward(self) -> BlockPart:
        """The feed-forward part of a block without experts."""
        into, back, others = self._inner(self.job.tokens, self.job.shape.inner // self.job.mesh.tp)
        found = into + back + others + (around := self._around())
        if self.job.recompute == OP:
            again = into.forward / 2 if self.job.shape.gated else back.forward
            found = replace(found, again=again + others.forward + around.forward)
        return BlockPart("feed_forward", found, *self._sums(into + back, into))

    @cached_property
    def experts(self) -> BlockPart:
        """The experts of a block, with the router and those that every token passes."""
        job, kernels = self.job, self._kernels
        shape, mesh = job.shape, job.mesh
        held = shape.experts // mesh.ep
        routed = own_tokens(job) * shape.active * job.imbalance
        shared_by = mesh.expert_tensor if job.sequence_parallel else 1
        found = sum(
            self._inner(routed * shared_by / held, shape.expert // mesh.expert_tensor, held),
            self._around(),
        )
        found += beside_products(job, kernels, routed)
        around: tuple[tuple[MeshCall, ...], tuple[MeshCall, ...]] = (), ()
        if shape.shared:
            into, back, others = self._inner(
                self.job.tokens, shape.shared * shape.expert // mesh.tp
            )
            found += into + back + others
            around = self._sums(into + back, into)
        nbytes = int(routed) * shape.width * WIDTH
        hide = EXPERTS in job.overlap
        forward, backward = (
            (*around[way], *self._routed(nbytes, *(behind if hide else (0.0, 0.0))))
            for way, behind in (
                (0, (found.forward, 0.0)),
                (1, (found.inputs + found.weights, found.weights)),
            )
        )
        launching = 2 * held * min(LOOPED, job.gpu.host)
        return BlockPart("experts", found, forward, backward, launching)

    def _routed(self, nbytes: int, behind: float, later: float) -> tuple[MeshCall, ...]:
        """Tokens go to their experts' ranks and back, and among those that share an expert."""
        mesh = self.job.mesh
        calls: tuple[MeshCall, ...] = ()
        if mesh.ep > 1:
            shape, hidden = self.job.shape, (2, behind / 2, _HIDDEN)
            call = MeshCall(EP, ALL_TO_ALL, nbytes, *hidden, later=later / 2)
            if self.job.dispatch == DEEPEP:
                chosen, groups = shape.limited
                spread = shape.experts, shape.active, groups, chosen
                call = call._replace(collective=DISPATCH, spread=spread)
            calls = (call,)
        if mesh.expert_tensor == 1:
            return calls
        if not self.job.sequence_parallel:
            return (*calls, MeshCall(ETP, ALL_REDUCE, nbytes))
        scattered = MeshCall(ETP, REDUCE_SCATTER, nbytes * mesh.expert_tensor)
        return (*calls, MeshCall(ETP, ALL_GATHER, nbytes), scattered)

    @cached_property
    def embedding(self) -> BlockPart:
        """The embedding: a look-up, and dropout; ranks that share words sum what they found."""
        found = self._kernels.moves(self._wide, (4.0, 8.0))
        forward, _ = self._sums(Times(), Times())
        return BlockPart("embedding", found, forward[-1:], forward[:1] * self.job.sequence_parallel)

    @cached_property
    def output(self) -> BlockPart:
        """The last norm, the output and the loss, with words shared by tensor parallel ranks."""
        job, kernels = self.job, self._kernels
        words = ceil(job.shape.words / job.mesh.tp)
        products = kernels.linear(self.job.tokens, job.shape.width, words)
        found = products + kernels.moves(float(self.job.tokens) * words, LOSS)
        found += self._around(residual=False)
        if job.mesh.tp == 1:
            return BlockPart("output", found)
        # The maximum, the target and the sum.
        sums = MeshCall(TP, ALL_REDUCE, self.job.tokens * 4, 3, by=job.tensor_all_reduce)
        forward, backward = self._sums(products, products)
        return BlockPart("output", found, (*forward[:-1], sums), backward[-2:])

    @property
    def sent(self) -> int:
        """Bytes that a rank sends to the next stage.

        Tensor parallel ranks send a part each (Narayanan et al. 2021, section 4.1); without
        sequence parallelism those that receive gather them.
        """
        return -(-self.job.tokens * self.job.shape.width * WIDTH // self.job.mesh.tp)

    def of_stage(self, stage: int) -> Sequence[BlockPart]:
        """All parts of a stage, in the order of the forward pass."""
        found = [self.embedding] if stage == 0 else []
        for block in self.job.blocks(stage):
            has_experts = self.job.shape.has_experts(block)
            found += [self.attention, self.experts if has_experts else self.feed_forward]
        return [*found, self.output] if stage == len(self.job.split) - 1 else found

    def arrivals(self, stage: int, *, backward: bool) -> tuple[MeshCall, ...]:
        """What tensor parallel ranks exchange before a pass of a stage, of what they received."""
        end = len(self.job.split) - 1 if backward else 0
        whole = self.job.mesh.tp == 1 or self.job.sequence_parallel or stage == end
        return () if whole else (MeshCall(TP, ALL_GATHER, self.sent),)

    def repeats(self, part: BlockPart) -> tuple[Times, tuple[MeshCall, ...]]:
        """What backward computes of a part again, and the calls that this takes.

        Op by op, that is all but attention by itself and every other product: of Llama's, keys, the
        one after attention, and one of the two up.
        """
        if self.job.recompute == FULL and part.name not in ("embedding", "output"):
            calls = part.forward
            if self._stack.asynchronous:
                calls = tuple(call._replace(behind=0.0) for call in calls)
            return Times(part.times.forward), calls
        if self.job.recompute == SELECTIVE:
            return Times(part.times.again), ()
        if self.job.recompute == OP and part.name in ("attention", "feed_forward"):
            kinds = ALL_GATHER, ALL_REDUCE  # what ranks scattered is kept
            again = tuple(call for call in part.forward if call.collective in kinds)
            return Times(part.times.again), again
        return Times(), ()
