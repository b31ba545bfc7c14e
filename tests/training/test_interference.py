"""Compute beside what moves, by hand, and what kernels lose there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from heapq import heapreplace
from math import ceil

import pytest
import simpy
from hypothesis import given, settings, strategies as st

from simreduce.engine.setup import Setup
from simreduce.planners.nccl.choice import NO_CTAS
from simreduce.planners.strategy import parse_strategy
from simreduce.training.calls import CallCost, arriving
from simreduce.training.eager import AMP, FP32, Convolution, Launched
from simreduce.training.executions import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE,
    FORWARD,
    UPDATE,
    Execution,
    ExecutionNode,
)
from simreduce.training.executor import Slows, run_nodes
from simreduce.training.gpus import GPUS, Kernels
from simreduce.training.interference import (
    CHANNEL,
    CLOCK,
    KINDS,
    OWN,
    Beside,
    Channels,
    Law,
    by_share,
    rounds_of,
    tiling_of,
)
from simreduce.training.memory import ModelRun
from simreduce.training.passes import least_losses, loses_of
from simreduce.training.running import run_profile
from simreduce.training.step import StepJob
from simreduce.workload import Gradient, Workload
from simreduce.workload.loader import load_model
from tests.thorough import examples

PARTS = st.floats(0.0, 0.9)
SECONDS = st.floats(0.0, 100.0)


def _work(seconds, lane="GPU", after=()):
    return ExecutionNode("work", COMPUTE, after, lane, seconds)


def _sum(lane="NCCL", after=()):
    return ExecutionNode("sum", COLLECTIVE, after, lane, collective="all_reduce", nbytes=1)


def _ends(nodes, seconds, part, ranks=2):
    """When each node of the first rank ends; all that moves takes `seconds`, and each holds a block
    that takes this part of the speed.
    """
    env = simpy.Environment()
    execution = Execution("test", dict.fromkeys(range(ranks), tuple(nodes)), ranks)
    slows = Slows(lambda _node, _group: Channels(1), lambda flying, _phase: len(flying) * part)
    ran = run_nodes(execution, env, lambda _node, _group: env.timeout(seconds), slows)
    ends = {id(each.node): each.end for each in ran if each.rank == 0}
    return [ends[id(node)] for node in nodes]


@given(work=SECONDS, moved=SECONDS, part=PARTS)
def test_compute_loses_the_part_of_its_speed_while_something_moves(work, moved, part):
    """What it did not do meanwhile it does after."""
    [computed, summed] = _ends([_work(work), _sum()], moved, part)

    assert summed == moved
    done = work / (1.0 - part)
    assert computed == pytest.approx(done if done <= moved else work + part * moved, abs=1e-9)


@given(before=SECONDS, work=SECONDS, moved=SECONDS, part=PARTS)
def test_what_begins_during_compute_slows_the_rest_of_it(before, work, moved, part):
    """A collective that waits for another lane."""
    nodes = [_work(before + work), _work(before, "CPU"), _sum(after=(1,))]
    computed = _ends(nodes, moved, part)[0]
    # The work of the other lane is done at `before`, as nothing moves until then.
    rest = work / (1.0 - part)

    assert computed == pytest.approx(
        before + (rest if rest <= moved else work + part * moved), abs=1e-9
    )


@given(work=SECONDS, moved=SECONDS, lanes=st.integers(1, 3))
def test_what_moves_at_once_slows_together(work, moved, lanes):
    """Each takes a quarter."""
    nodes = [_work(work), *(_sum(f"NCCL {i}") for i in range(lanes))]
    computed, part = _ends(nodes, moved, 0.25)[0], 0.25 * lanes
    done = work / (1.0 - part)

    assert computed == pytest.approx(done if done <= moved else work + part * moved, abs=1e-9)


@given(work=st.lists(SECONDS, max_size=5), moved=SECONDS)
def test_nothing_is_slower_without_the_law(work, moved):
    """To the bit: whatever moves, compute takes its own time."""
    nodes = [_sum("first"), *(_work(each) for each in work), _sum("second")]
    found, total = _ends(nodes, moved, 0.0), 0.0
    for each, end in zip(work, found[1:-1], strict=True):
        total += each
        assert end == total


@given(forward=SECONDS, backward=SECONDS, moved=SECONDS)
def test_each_pass_loses_its_own_part(forward, backward, moved):
    """Beside what moves from the beginning: forward a tenth of the speed, backward a half."""
    passes = [
        _work(seconds)._replace(phase=phase)
        for phase, seconds in ((FORWARD, forward), (BACKWARD, backward))
    ]
    execution = Execution("test", {0: (*passes, _sum())}, 1)
    parts = {FORWARD: 0.1, BACKWARD: 0.5}
    slows = Slows(
        lambda _node, _group: Channels(1), lambda flying, phase: len(flying) * parts.get(phase, 0.9)
    )
    env = simpy.Environment()
    ran = run_nodes(execution, env, lambda _node, _group: env.timeout(moved), slows)
    ends = {each.node.phase: each.end for each in ran}
    first = forward / 0.9 if forward / 0.9 <= moved else forward + 0.1 * moved
    beside = max(moved - first, 0.0)
    second = backward / 0.5 if backward / 0.5 <= beside else backward + 0.5 * beside

    assert ends[FORWARD] == pytest.approx(first, abs=1e-9)
    assert ends[BACKWARD] == pytest.approx(first + second, abs=1e-9)


def test_the_pass_that_waits_for_its_host_loses_less():
    """GPT-2 with 4 samples on H100: kernels of the forward pass take about as long as its host even
    beside 16 channels; those of the backward pass take far longer there.
    """
    model, gpu = load_model("gpt2"), GPUS["H100"]
    kernels = partial(run_profile, model, batch=4, run=ModelRun())
    alone = kernels(gpu)
    job = StepJob(model, alone, 4, gpu=gpu, kernels=kernels)
    setup = Setup("dgx-h100", "nccl")
    moved = 3 * min(16 * CHANNEL, arriving(setup))
    beside, held = kernels(gpu.next_to(Beside(16, moved))), (Channels(16),)
    lose, least = loses_of(job, setup), least_losses(job, setup)

    assert lose(held, FORWARD) == pytest.approx(1.0 - sum(alone.forward) / sum(beside.forward))
    assert lose(held, BACKWARD) == pytest.approx(1.0 - sum(alone.backward) / sum(beside.backward))
    assert lose(held, UPDATE) == pytest.approx(1.0 - alone.seconds / beside.seconds)
    assert lose(held, FORWARD) < 0.5 * lose(held, BACKWARD)
    assert least(16) == lose(held, FORWARD)
    assert lose((), BACKWARD) == 0.0


UNITS = 132
BLOCKS = st.integers(0, 64)
TILES = st.integers(1, 5000)


def _slowed(blocks, moved=0.0, gpu="H200"):
    return GPUS[gpu].next_to(Beside(blocks, moved)).slowed


def test_a_product_of_two_rounds_takes_twice_as_long_beside_four_blocks():
    """128 blocks with two tiles each leave four SMs free: none for pairs beside three blocks."""
    assert tiling_of(2048, 4096, 4096, 1, UNITS).tiles == 256
    assert _slowed(1).product(2048, 4096, 4096) == 1.0
    for blocks in (4, 8, 16, 24, 32):
        assert _slowed(blocks).product(2048, 4096, 4096) == pytest.approx(2.0 ** (1.0 - CLOCK))


@pytest.mark.parametrize("gpu", ["H200", "A100"])
def test_a_product_without_results_loses_nothing_to_sms(gpu):
    slowed = _slowed(8, gpu=gpu)
    assert slowed.product(0, 4096, 64) == slowed.unpaired(0) == 1.0
    assert slowed.attention(0, 16) == 1.0


def test_blocks_that_start_late_do_their_own_tiles_after_the_others():
    """392 tiles on 132 SMs are three rounds; beside four blocks, 128 SMs do 384 in three, and the
    four late blocks two each."""
    assert rounds_of(392, 132, 132, OWN) == 3
    assert rounds_of(392, 132, 131, OWN) == 4
    assert rounds_of(392, 132, 128, OWN) == 5


def test_one_late_block_is_half_as_likely_where_all_that_is_free_is_needed():
    assert rounds_of(128, 66, 64, OWN) == (rounds_of(128, 66, 65, OWN) + 4) / 2


def test_without_clusters_tiles_take_what_is_free():
    """A100 has 108 SMs, each of which takes a tile at a time."""
    tiles = tiling_of(8192, 8192, 8192, 1, 108).tiles
    rounds = ceil(tiles / 84) / ceil(tiles / 108)
    assert _slowed(24, gpu="A100").product(8192, 8192, 8192) == pytest.approx(
        rounds ** (1.0 - CLOCK)
    )


@given(tiles=st.integers(1, 3000), free=st.integers(1, UNITS - 1))
def test_late_blocks_go_where_another_has_ended(tiles, free):
    """As if each took the slot that is free first, of kernels of more than two rounds."""
    late = UNITS - free
    slots = [0] * free
    for takes in [1] * max(tiles - OWN * late, 0) + [OWN] * late:
        heapreplace(slots, slots[0] + takes)
    if tiles > OWN * UNITS and late > 1:
        assert rounds_of(tiles, UNITS, free, OWN) == max(slots)


@given(tiles=TILES, free=st.integers(1, UNITS))
def test_no_kernel_is_done_sooner_on_fewer_sms(tiles, free):
    """Nor later than if what is free did all, and then each late block its own in turn."""
    for own in (0, OWN):
        found = rounds_of(tiles, UNITS, free, own)
        assert found >= ceil(tiles / UNITS)
        late = ceil((UNITS - free) / free)
        assert found <= ceil(tiles / free) + own * (late + 1)


@given(blocks=BLOCKS, rows=st.integers(1, 9000), columns=st.integers(1, 9000))
def test_blocks_that_wait_slow_products_alone(blocks, rows, columns):
    slowed = _slowed(blocks)
    assert slowed.moves == 1.0
    longer = slowed.product(rows, columns, 4096)
    assert longer >= 1.0 if blocks else longer == 1.0


@settings(deadline=None, max_examples=examples(3000))
@given(
    gpu=st.sampled_from(sorted(GPUS)), rows=st.integers(1, 20_000), columns=st.integers(1, 60_000),
    inner=st.integers(1, 30_000), heads=st.integers(1, 64),
)  # fmt: skip
def test_no_kernel_loses_less_beside_more_blocks(gpu, rows, columns, inner, heads):
    """Nor beside as many as the GPU has SMs, or more."""
    counts = [*range(65), GPUS[gpu].units - 1, GPUS[gpu].units, 2 * GPUS[gpu].units]
    beside = [_slowed(blocks, gpu=gpu) for blocks in counts]
    for found in (
        [slowed.product(rows, columns, inner) for slowed in beside],
        [slowed.unpaired(rows) for slowed in beside],
        [slowed.attention(rows, heads) for slowed in beside],
    ):
        assert found == sorted(found)


@given(blocks=BLOCKS, moved=st.floats(0.0, 4e12))
def test_what_moves_bytes_shares_the_memory_with_what_moves_beside_it(blocks, moved):
    left = max(1.0 - moved / GPUS["H200"].memory_bandwidth, 0.1)
    assert _slowed(blocks, moved).moves == pytest.approx(1.0 / left)


@given(blocks=st.integers(1, 32), rows=st.integers(64, 9000), columns=st.integers(64, 9000))
def test_kernels_of_a_gpu_take_longer_beside_blocks(blocks, rows, columns):
    """As many times as the law says, but for the time of an empty kernel."""
    gpu = GPUS["H100"]
    beside = gpu.next_to(Beside(blocks, 1e11))
    one, two = (Kernels(each).product(rows, columns, 4096) for each in (gpu, beside))
    factor = beside.slowed.product(rows, columns, 4096)
    assert two - gpu.kernel == pytest.approx((one - gpu.kernel) * factor)
    moved = [Kernels(each).moves(1e6, (4.0, 0.0)).forward - gpu.kernel for each in (gpu, beside)]
    assert moved[1] == pytest.approx(moved[0] * beside.slowed.moves)


def _law(asked=None, rate=100e9, most=450e9):
    """A pass of eight seconds that takes two more beside blocks, or each kind one, and twice that
    backward.
    """

    def passes(beside, only):
        if asked is not None:
            asked.append((beside, only))
        more = (1.0 if only else 2.0) * bool(beside.blocks)
        return {FORWARD: 8.0 + more, BACKWARD: 8.0 + 2.0 * more, "": 16.0 + 3.0 * more}

    return Law(passes, rate, most)


def test_the_law_of_a_job_is_that_of_its_passes():
    """What they take beside channels is asked for once each; a number overrides it."""
    asked = []
    lose, two, many = _law(asked), (Channels(2),), (Channels(32),)
    assert [lose(each, FORWARD) for each in ((), two, many, two)] == [
        0.0, *[pytest.approx(0.2)] * 3,
    ]  # fmt: skip
    assert asked == [(Beside(), ""), (Beside(2, 120e9), ""), (Beside(32, 300e9), "")]
    assert lose(two, BACKWARD) == pytest.approx(1.0 - 8.0 / 12.0)
    assert lose(two, UPDATE) == pytest.approx(1.0 - 16.0 / 22.0)
    assert lose.by_kind(two, BACKWARD) == dict.fromkeys(KINDS, 2.0)
    assert by_share(2.0, 132)((Channels(16), Channels(8)), FORWARD) == pytest.approx(48 / 132)
    assert by_share(10.0, 132)((Channels(24),), FORWARD) == pytest.approx(0.9)


def test_collectives_over_equal_links_share_them():
    """Others add up, to what all links bring at most; each channel moves 20 GB/s."""
    law = _law()
    assert law.beside((Channels(8), Channels(8))) == Beside(16, 3 * 100e9)
    assert law.beside((Channels(8), Channels(8, 400e9))) == Beside(16, 3 * 260e9)
    assert law.beside((Channels(32), Channels(32, 440e9))) == Beside(64, 3 * 450e9)
    assert law.beside((Channels(2, brings=90e9),)) == Beside(2, 3 * 90e9)
    assert law.beside((Channels(2, brings=90e9), Channels(1))) == Beside(3, 3 * 100e9)


@pytest.mark.parametrize(
    ("machine", "policy", "collective", "blocks"),
    [
        ("dgx-h100", 0, "all_gather", 2),
        ("dgx-h100", 0, "reduce_scatter", 2),
        ("hgx-b200", 0, "all_reduce", 3),
        ("dgx-a100", 0, "all_gather", 9),
        ("dgx-a100", 0, "all_reduce", 7),
        ("dgx-h100", NO_CTAS, "all_gather", 0),
        ("dgx-a100", NO_CTAS, "all_gather", 0),
    ],
)
def test_symmetric_kernels_and_copy_engines_have_blocks_and_bytes(
    machine, policy, collective, blocks
):
    """NCCL's estimate of its blocks (`choose_symmetric`), and the tensor in the time of the call:
    many times what 20 GB/s for each block would be.
    """
    setup, tensor = Setup(machine), Workload("call", (Gradient("tensor", 1 << 24),))
    nccl, strategy = parse_strategy("nccl"), parse_strategy("nccl", collective)
    setup = setup.but(nccl=replace(setup.nccl, symmetric=True, cta_policy=policy)).running(nccl)
    cost = CallCost.alone(setup, setup.compile(strategy, tensor))

    assert cost.held == Channels(blocks, 0.0, pytest.approx((1 << 26) / cost.seconds))
    assert cost.brings > max(130e9, 15e9 * blocks)


def test_compute_is_slower_beside_copy_engines():
    """Which hold no SM: by the memory that they use."""
    env, nodes = simpy.Environment(), (_work(4.0), _sum())
    slows = Slows(lambda *_: Channels(0, brings=1.0), lambda flying, _: 0.5 * len(flying))
    execution = Execution("test", {0: nodes}, 1)
    ran = run_nodes(execution, env, lambda *_: env.timeout(2.0), slows)

    assert {each.node.name: each.end for each in ran} == {"sum": 2.0, "work": 5.0}


@pytest.mark.parametrize(
    ("gpu", "precision", "places", "tiles"),
    [("A100", AMP, 196, 196), ("H200", AMP, 784, 392), ("V100", FP32, 196, 800)],
)
def test_convolutions_lose_by_the_tiles_that_they_are_timed_by(gpu, precision, places, tiles):
    """Of 3 x 3 windows and 256 channels. In float32 by Winograd's algorithm."""
    shape = Convolution(64, places, 9.0 * 256, 256, (3, 3, 1))
    alone = replace(GPUS[gpu], kernel=0.0)
    beside = alone.next_to(Beside(16))
    one, two = (Launched(each, precision).convolved(shape).seconds for each in (alone, beside))

    assert two / one == pytest.approx(beside.slowed.tiles(tiles))


def test_products_without_tensor_cores_lose_by_the_tiles_that_they_are_timed_by():
    alone = replace(GPUS["A100"], kernel=0.0)
    beside, shape = alone.next_to(Beside(16)), (12544, 256, 2304)
    one, two = (Launched(each, FP32).product(*shape).seconds for each in (alone, beside))
    _, tiles = Launched(alone, FP32).tiled(*shape)

    assert two / one == pytest.approx(beside.slowed.tiles(tiles))
    assert tiles != tiling_of(*shape, 1, alone.units).tiles


@given(
    spans=st.lists(st.tuples(st.floats(0, 9), st.floats(0.1, 9), st.integers(1, 3)), max_size=4),
    work=st.floats(0.1, 20.0),
)
def test_what_compute_lost_is_said_by_what_was_beside_it(spans, work):
    """What each node lost adds up to what it took longer."""
    env = simpy.Environment()
    nodes, took = [_work(work)], {}
    for i, (begin, seconds, channels) in enumerate(spans):
        nodes += [_work(begin, f"wait {i}"), _sum(f"NCCL {i}", after=(len(nodes),))]
        took[id(nodes[-1])] = seconds, channels
    slows = Slows(
        lambda node, _: Channels(took[id(node)][1]),
        lambda flying, _: min(0.1 * sum(each.number for each in flying), 0.9),
    )
    execution = Execution("test", {0: tuple(nodes)}, 1)
    ran = run_nodes(execution, env, lambda node, _: env.timeout(took[id(node)][0]), slows)
    [mine] = [each for each in ran if each.node is nodes[0]]
    lost = dict(mine.lost)

    assert sum(lost.values()) == pytest.approx(mine.end - work, abs=1e-9)
    assert all(flying == tuple(sorted(flying)) != () for flying in lost)


def test_a_group_has_the_links_of_its_own_ranks():
    """Of four machines of eight GPUs: neighbours have NVLink, one GPU of each has one NIC, and all
    have eight; on a mesh of links only those among the group count.
    """
    setup = Setup("dgx-h100x4", "nccl")
    ranks = setup.layout.ranks
    whole, near = arriving(setup), arriving(setup, ranks[:8])
    rail, pair = arriving(setup, ranks[::8]), arriving(setup, (*ranks[:2], *ranks[8:10]))

    assert whole == pytest.approx(8 * rail)
    assert pair == pytest.approx(2 * rail)
    assert near > whole > rail
    cube = Setup("dgx1v", "nccl")
    alone = arriving(cube, cube.layout.ranks[:2])
    assert alone < 0.6 * arriving(cube)
