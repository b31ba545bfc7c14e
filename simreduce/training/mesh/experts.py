"""Experts on one rank: the tokens that come to them, and what they cost besides their products.

Kernels are those of Megatron Core's MoE layer with grouped products and fused permutations
(`megatron/core/transformer/moe`: `router.py`, `token_dispatcher.py`). Nsight counted 463,348 in a
step of 64 micro batches of 48 blocks, 50 a forward pass of a block with its attention (Megatron
Bridge, https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5094 and its
`skills/nemo-mbridge-perf-moe-comm-overlap/SKILL.md`). No expert's tokens leave before the host
knows how many there are, so it is never ahead by more than a block.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, comb, exp, lgamma, log, pi

import numpy as np

from simreduce.training.mesh.compute import Kernels, Times
from simreduce.training.mesh.job import DEEPEP, ROUTER, MeshJob
from simreduce.workload.architectures.decoder import Decoder

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
        cast = kernels.moves(1.0, CAST)
        nbytes = routed * (shape.width + inner), routed * (shape.width + up)
        each = kernels.moves(nbytes[0], CAST).forward, kernels.moves(nbytes[1], CAST).inputs
        found += Times(*each, kernels=cast.kernels)
    more = MOVING + (1 if ROUTER in job.graphs else ROUTING)
    return found + Times(kernels=more)


def looped(job: MeshJob) -> float:
    """The host's seconds to launch a forward pass of a rank's experts, beyond its kernels."""
    held = job.shape.experts // job.mesh.ep
    return 2 * held * min(LOOPED, job.gpu.host)


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
