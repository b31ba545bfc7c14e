"""Experts: the tokens of the busiest rank, where copies go, and what a block costs the host."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import comb

import numpy as np
import pytest

from simreduce.training.gpus import Times
from simreduce.training.mesh import Mesh
from simreduce.training.mesh.parts import (
    CAST,
    LOOPED,
    MERGED,
    SORTED,
    Parts,
    _concentration,
    busiest,
    reached,
)
from simreduce.training.mesh.passes import HOST, MeshPasses
from simreduce.training.mesh.pipeline import BACKWARD, FORWARD
from simreduce.workload.loader import load_decoder
from tests.training.mesh.jobs import EXPERTS, GPU, Free, job

MANY = "transformer:layers=4,hidden=64,heads=8,vocab=512,seq=4096,experts=64,topk=4,expert_ffn=64"
MESH = Mesh(ep=8, dp=8)


def test_places_that_have_an_expert_of_a_token():
    """All choices of experts are equally likely: those that miss a place, counted."""
    assert reached(4, 2, 2) == pytest.approx(2 * (1 - 1 / 6))
    assert reached(256, 8, 4) == pytest.approx(4 * (1 - comb(192, 8) / comb(256, 8)))
    assert [reached(8, 8, 4), reached(8, 1, 4), reached(8, 3, 1)] == [4, 1, 1]


@pytest.mark.parametrize("places", [2, 4, 8, 16])
def test_groups_limit_the_places(places):
    """Against all choices of 2 of 4 groups and 3 experts in them, of 16."""
    experts, active, groups, chosen = 16, 3, 4, 2
    each, counts = experts // groups, []
    for picked in combinations(range(groups), chosen):
        among = [e for e in range(experts) if e // each in picked]
        counts += [len({e * places // experts for e in c}) for c in combinations(among, active)]

    assert reached(experts, active, places, groups, chosen) == pytest.approx(np.mean(counts))


def test_tokens_of_deepseek_go_to_four_machines_at_most():
    """Each has experts in four of eight groups (https://arxiv.org/abs/2412.19437)."""
    chosen, groups = load_decoder("deepseek-v3").shape.limited

    assert reached(256, 8, 8, groups, chosen) < 4 < reached(256, 8, 8)


def test_a_stated_imbalance_stays_unless_a_capacity_cuts_it():
    work = job(MESH, MANY, imbalance=1.5)

    assert busiest(work, None) == 1.5
    assert busiest(replace(work, capacity=1.2), None) == 1.2
    assert busiest(replace(work, capacity=2.0), None) == 1.5
    assert busiest(replace(work, capacity=2.0, pad=True), None) == 2.0


def test_a_seed_draws_the_same_tokens_each_time():
    work = job(MESH, MANY)

    assert busiest(work, 7) == busiest(work, 7) != busiest(work, 8)
    assert 1.0 < busiest(work, 7, 0.0) < busiest(work, 7, 0.1) < busiest(work, 7, 0.4)
    assert busiest(work, 7, 0.0) < 1.02


def test_equally_popular_experts_differ_by_chance_only():
    """The largest of 8 sums of 8 x 32768 / 8 tokens: by about 1.4 standard deviations."""
    work = job(MESH, MANY)
    deviation = (1 / (8 * 2 * 4096 * 4 / 8)) ** 0.5

    assert busiest(work, 3, 0.0) == pytest.approx(1 + 1.42 * deviation, abs=deviation)


def test_a_capacity_drops_what_popular_experts_cannot_take():
    """No rank gets more than the capacity; one that nobody reaches changes nothing."""
    work = job(MESH, MANY)
    free, tight = busiest(work, 7, 0.4), busiest(replace(work, capacity=1.0), 7, 0.4)

    assert 0.5 < tight <= 1.0 < free
    assert busiest(replace(work, capacity=64.0), 7, 0.4) == free


def test_popularities_have_the_gini_coefficient():
    """Of many parts of a Dirichlet distribution; even parts have 0."""
    for gini in (0.05, 0.15, 0.4):
        parts = np.sort(np.random.default_rng(1).dirichlet(np.full(4000, _concentration(gini))))
        found = 2 * np.sum(np.arange(1, 4001) * parts) / 4000 - 4001 / 4000

        assert found == pytest.approx(gini, rel=0.03)


def test_eight_bits_and_sorted_copies_move_more_bytes():
    """By the tables' bytes, at the memory's rate; a product in 8 bits takes no more."""
    plain, merged = (
        Parts(job(MESH, MANY, dispatch=how)).experts.times for how in ("alltoall", "deepep")
    )
    elements = 2 * 4096 * 4 * 64
    rate = GPU.memory_bandwidth * GPU.memory

    assert plain.forward - merged.forward == pytest.approx(
        elements * (SORTED[0] - MERGED[0]) / rate
    )
    kernels = Parts(job(MESH, MANY))._kernels
    casts = [kernels.moves(2 * 4096 * 4 * each, CAST) for each in (64 + 64, 64 + 64)]
    bits = Parts(job(MESH, MANY, bits=8)).experts.times
    products = [
        sum(Parts(job(MESH, MANY, bits=b))._inner(2 * 4096 * 4 / 8, 64, 8)[:2], Times())
        for b in (16, 8)
    ]
    gate = [Parts(job(MESH, MANY, bits=b))._kernels.linear(8192, 64, 64) for b in (16, 8)]
    faster = sum(p[0].forward - p[1].forward for p in (products, gate))

    assert bits.forward - plain.forward == pytest.approx(casts[0].forward - faster)


def test_a_block_with_experts_keeps_the_host_busy():
    """Forward its kernels, backward twice as many, and each expert's products in a loop."""
    slow = replace(GPU, host=1e-3)
    work = job(MESH, MANY, gpu=slow)
    passes = MeshPasses(work, Free(work.mesh))
    part = passes.parts.experts
    calls = 1  # to experts and back

    def host(work, kind):
        passes = MeshPasses(work, Free(work.mesh))
        return passes._part(passes.parts.experts, kind, 0)

    forward, backward = host(work, FORWARD), host(work, BACKWARD)
    loop = 2 * 8 * LOOPED
    assert forward.seconds == pytest.approx((part.times.kernels + 2 * calls) * 1e-3 + loop)
    assert backward.seconds == pytest.approx((2 * part.times.kernels + 2) * 1e-3 + 2 * loop)
    assert forward.by[HOST] > 0
    graphs = replace(work, graphs=frozenset(("router",)))
    assert host(graphs, FORWARD).seconds < forward.seconds
    none = replace(work, gpu=GPU)
    assert HOST not in host(none, FORWARD).by


def test_graphs_of_attention_are_one_launch():
    work = job(MESH, MANY)

    assert Parts(replace(work, graphs=frozenset(("attention",)))).attention.times.kernels == 1
    assert Parts(work).attention.times.kernels > 1
    assert Parts(work).attention.times.forward == (
        Parts(replace(work, graphs=frozenset(("attention",)))).attention.times.forward
    )


def test_kernels_of_a_block_are_those_that_nsight_counted():
    """463,348 in a step of 64 micro batches of 48 blocks, with products of 16 bits."""
    shape = load_decoder("qwen3-30b-a3b").shape
    work = replace(
        job(Mesh(ep=16, dp=16), EXPERTS), shape=shape, sequence=4096, attention="fused",
        micro_batch=1, dispatch="deepep",
    )  # fmt: skip
    parts = Parts(work)
    counted = 3 * (parts.attention.times.kernels + parts.experts.times.kernels)

    assert counted == pytest.approx(463348 / (64 * 48), rel=0.05)
