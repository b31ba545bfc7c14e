"""Sharded steps whose timelines are worked out by hand, and what must hold for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from simreduce import dtypes
from simreduce.engine import CALM, IDEAL, Disturbance, Fault
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import InputError, StrategyError
from simreduce.plan import verify, wrong_elements
from simreduce.planners.strategy import parse_strategy
from simreduce.testing import cable, machine, node
from simreduce.topology import Topology
from simreduce.training import Profile, SimulatedStep, StepJob, StepResult
from simreduce.training.sharded import METHODS, Do, Sharding, schedule, wrap
from simreduce.training.sharded.collectives import (
    ShardedMethod,
    key_cost,
    measure_costs,
    sharded_method,
)
from simreduce.training.sharded.simulation import (
    _Run,
    compose,
    running_sharded,
    simulate_sharded_step,
)
from simreduce.training.simulation import least_memory
from simreduce.workload import Gradient, Layer, Model
from simreduce.workload.loader import load_model
from tests.thorough import examples

RATE = 1e6
"""Bytes/s of every cable."""

CLOSE = 1e-9

DEFAULTS = Sharding()


@cache
def nodes(count: int, gpus: int, rails: float = 0.0, rate: float = RATE) -> Topology:
    """So many nodes of so many GPUs on a switch. A cable of the same rate joins each switch to the
    network; with `rails`, cables of that rate also join the GPUs of equal number.
    """
    parts = []
    for i in range(count):
        for j in range(gpus):
            gpu = f"gpu{i * gpus + j}"
            parts += [node(gpu, machine=str(i)), cable(gpu, f"switch{i}", rate)]
            parts += [cable(gpu, f"rail{j}", rails)] if rails else []
        parts += [node(f"switch{i}", machine=str(i)), cable(f"switch{i}", "spine", rate)]
    return machine(*parts)


def transformer(blocks: int, elements: int, root: int = 0) -> Model:
    """An embedding, blocks of two layers, and a head that has no parameters."""
    layers = [Layer("embeddings", (Gradient("e", root),) if root else ())]
    for i in range(blocks):
        half = elements // 2
        layers.append(Layer(f"h.{i}.attention", (Gradient(f"a{i}", half),)))
        layers.append(Layer(f"h.{i}.mlp", (Gradient(f"m{i}", elements - half),)))
    return Model("test", (*layers, Layer("head", ())))


def work(
    model: Model, forward: Sequence[float], backward: Sequence[float], **more: object
) -> StepJob:
    """Seconds by layer."""
    return StepJob(model, Profile(tuple(forward), tuple(backward), "by hand"), 1, **more)


def run(
    job: StepJob,
    where: Topology,
    method: str = "fsdp",
    sharding: Sharding = DEFAULTS,
    disturbance: Disturbance = CALM,
) -> SimulatedStep:
    setup = Setup(where, IDEAL, disturbance=disturbance)
    how = sharded_method(method, parse_strategy("ring"), job, setup.layout, sharding)
    return simulate_sharded_step(job, how, setup)


def ring(ranks: int, nbytes: float, rate: float = RATE) -> float:
    """Seconds of a ring's all-gather or reduce-scatter: n-1 of n parts pass every cable."""
    return (ranks - 1) / ranks * nbytes / rate


@pytest.mark.parametrize(("method", "gathers"), [("zero1", 2), ("zero2", 2), ("zero3", 1)])
def test_without_overlap_backward_waits_for_every_reduction(method, gathers):
    """DeepSpeed without `overlap_comm`: two blocks compute for 12 s, and both reductions add to
    that, as do gathers after the update or before the first block. Beside it one is hidden.
    """
    job = work(transformer(2, 4000), (0, 1, 1, 1, 1, 0), (0, 2, 2, 2, 2, 0))
    alone = ring(4, 4 * 4000)
    beside, waits = (
        run(job, nodes(1, 4), method, Sharding(overlap=overlap)).step.seconds
        for overlap in (True, False)
    )

    assert waits == pytest.approx(12 + (2 + gathers) * alone)
    assert beside == pytest.approx(waits - alone)


def by_recurrence(
    gather: float, scatter: float, f: float, b: float, root: tuple[float, ...], blocks: int
) -> tuple[float, list[float], list[float]]:
    """The end of an FSDP step with PyTorch's defaults, the ends of backward passes, and the starts
    of all-gathers in their order.

    `root` has the seconds of its all-gather and reduce-scatter, of the embedding's two passes and
    of the head's. Blocks are 1 to n. One link carries, in the order of issue,

        G(root) G(1) ... G(n)  G'(n) G'(n-1) S(n) G'(n-2) S(n-1) ... G'(1) S(3) S(2) S(1) S(root),

    G an all-gather for the forward pass, G' one for the backward pass. With e(k) the end of block
    k's forward pass and d(k) that of its backward pass, d(n+1) that of the head,

        G(k)  begins no earlier than e(k-2): with it two blocks are there, at most
        G'(k) begins no earlier than d(k+3), as three are there with the one that is prefetched:
              the CPU waits for e(n-1), nothing, e(n), d(n), d(n-1), ...
        S(k)  begins no earlier than d(k)
        e(k) = max(e(k-1), G(k)) + f        d(k) = max(d(k+1), G'(k)) + b
    """
    gather_root, scatter_root, f_in, b_in, f_out, b_out = root
    link, starts = gather_root, [0.0]
    e = [link + f_in]
    for k in range(1, blocks + 1):
        starts.append(max(link, e[k - 2] if k > 2 else 0.0))
        link = starts[-1] + gather
        e.append(max(e[k - 1], link) + f)
    d = {blocks + 1: e[blocks] + f_out + b_out}
    freed = {blocks + 1: e[blocks], blocks + 2: 0.0, blocks + 3: e[blocks - 1]}
    there = {}
    for k in range(blocks, 0, -1):
        starts.append(max(link, freed[k + 3]))
        link = there[k] = starts[-1] + gather
        if k < blocks:
            d[k + 1] = freed[k + 1] = max(d[k + 2], there[k + 1]) + b
            link = max(link, d[k + 1]) + scatter
    d[1] = max(d[2], there[1]) + b
    link = max(link, d[1]) + scatter
    end = max(link, d[1] + b_in) + scatter_root
    return end, [d[k] for k in range(1, blocks + 1)], starts


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize(
    ("f", "b"), [(1.0, 2.0), (0.3, 0.7), (0.05, 0.1), (0.0, 0.0), (3.0, 0.01), (0.01, 4.0)]
)
def test_twelve_blocks_by_recurrence(count, f, b):
    """From steps that only compute to steps that only communicate; blocks take 0.05 to 1 s on the
    wire.
    """
    n, block, rest = 8 * count, 64 * 4000, 64 * 9000
    times = [0.11, *[f / 4, f * 3 / 4] * 12, 0.21]
    back = [0.13, *[b / 4, b * 3 / 4] * 12, 0.31]
    step = run(work(transformer(12, block // 4, rest // 4), times, back), nodes(count, 8)).step
    whole, expected = ring(n, rest), ring(n, block)
    root = (whole, whole, 0.11, 0.13, 0.21, 0.31)
    end, ends, starts = by_recurrence(expected, expected, f, b, root, 12)
    gathers = [bucket.start for bucket in step.buckets if bucket.collective == "all_gather"]

    assert step.seconds == pytest.approx(end, rel=CLOSE)
    assert gathers == pytest.approx(starts, rel=CLOSE)
    if b:
        spans = [s for s in step.spans if s.backward and s.layer.endswith("attention")]
        assert [s.end for s in spans] == pytest.approx(ends[::-1], rel=CLOSE)
    assert step.exposed == pytest.approx(sum(s for _, s in step.exposed_by), rel=CLOSE)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_closed_forms(count):
    """Where blocks compute longer than two collectives take, only the first all-gathers and the
    last reduce-scatters show; where nothing computes, a step is the sum of all collectives.
    """
    n, block, rest = 8 * count, 64 * 4000, 64 * 9000
    g, r = ring(n, block), ring(n, rest)
    f, b = g, 2 * g
    model = transformer(12, block // 4, rest // 4)
    step = run(work(model, [0, *[f / 2] * 24, 0.5], [0, *[b / 2] * 24, 0.5]), nodes(count, 8)).step
    idle = run(work(model, [0] * 26, [0] * 26), nodes(count, 8)).step

    assert step.seconds == pytest.approx(r + g + 12 * f + 1.0 + 12 * b + g + r, rel=CLOSE)
    assert idle.seconds == pytest.approx(2 * r + 36 * g, rel=CLOSE)
    exposed = dict(step.exposed_by)
    assert exposed == pytest.approx({"all_gather": r + g, "reduce_scatter": g + r}, rel=CLOSE)


def test_replicas_on_rails():
    """Shard groups in nodes, all-reduces on rails of their own, which overlap all else: they show
    only after the last reduce-scatter. On a rail a ring of 4 takes 2 * 3/4 of a shard.
    """
    block, f, b = 64 * 4000, 1.0, 2.0
    model = transformer(12, block // 4)
    job = work(model, [0, *[f / 2] * 24, 0], [0, *[b / 2] * 24, 0], update=0.8)
    step = run(job, nodes(4, 8, RATE / 2), "hsdp").step
    g, across = ring(8, block), 2 * ring(4, block / 8, RATE / 2)
    found = dict(step.exposed_by)

    assert step.seconds == pytest.approx(g + 12 * f + 12 * b + g + across + 0.8 / 8, rel=CLOSE)
    assert found == pytest.approx(
        {"all_gather": g, "reduce_scatter": g, "all_reduce": across}, rel=CLOSE
    )


@pytest.mark.parametrize(
    ("method", "passes", "gathers", "scatters"),
    [("zero1", 3, 12, 12), ("zero2", 3, 12, 36), ("zero3", 3, 72, 36), ("fsdp", 3, 72, 12)],
)
def test_stages_and_passes(method, passes, gathers, scatters):
    """ZeRO-1 reduces once, ZeRO-2 in every pass; both gather after the update, where nothing hides
    it. Parameters that are sharded are gathered twice a pass. Between passes of ZeRO-3, the last
    reduce-scatter delays the first all-gather.
    """
    block, f, b = 64 * 4000, 1.0, 2.0
    model, g = transformer(12, block // 4), ring(8, block)
    job = work(model, [0, *[f / 2] * 24, 0], [0, *[b / 2] * 24, 0], update=0.8, accumulate=passes)
    step = run(job, nodes(1, 8), method).step
    kinds = [bucket.collective for bucket in step.buckets]
    compute = passes * 12 * (f + b) + 0.1

    assert (gathers, scatters) == (kinds.count("all_gather"), kinds.count("reduce_scatter"))
    more = {"zero1": 13, "zero2": 13, "zero3": 6, "fsdp": 2}[method]
    assert step.seconds == pytest.approx(compute + more * g, rel=CLOSE)


def test_without_a_barrier_gathers_overlap_the_next_forward_pass():
    """ZeRO-1 then shows one all-gather and one reduce-scatter."""
    block = 64 * 4000
    job = work(transformer(12, block // 4), [0, *[0.5] * 24, 0], [0, *[1.0] * 24, 0], barrier=False)
    step = run(job, nodes(1, 8), "zero1").step

    assert step.seconds == pytest.approx(36.0 + 2 * ring(8, block), rel=CLOSE)


def test_passes_that_reduce_every_time():
    """FSDP without no_sync: two passes reduce each block twice, hold no whole gradients, and take
    no less.
    """
    job = work(transformer(4, 64_000), [0, *[0.1] * 8, 0], [0, *[0.2] * 8, 0], accumulate=2)
    late, every = (
        run(replace(job, no_sync=no_sync), nodes(1, 4)).step for no_sync in (True, False)
    )

    assert (4, 8) == tuple(
        sum(b.collective == "reduce_scatter" for b in s.buckets) for s in (late, every)
    )
    assert late.seconds <= every.seconds
    assert late.memory.unreduced == 4 * 256_000 > every.memory.unreduced


TIMES = st.integers(0, 40).map(lambda n: n / 20)
JOBS = st.integers(1, 6).flatmap(
    lambda n: st.builds(
        lambda sizes, root, f, b, accumulate: work(
            Model(
                "test",
                (
                    Layer("in", (Gradient("in", root),) if root else ()),
                    *(Layer(f"h.{i}", (Gradient(f"g{i}", s),)) for i, s in enumerate(sizes)),
                    Layer("out", ()),
                ),
            ),
            f,
            b,
            accumulate=accumulate,
        ),
        st.lists(st.integers(1, 400).map(lambda k: 1000 * k), min_size=n, max_size=n),
        st.sampled_from([0, 100_000]),
        st.lists(TIMES, min_size=n + 2, max_size=n + 2),
        st.lists(TIMES, min_size=n + 2, max_size=n + 2),
        st.integers(1, 2),
    )
)
SETTINGS = st.builds(
    Sharding,
    forward_prefetch=st.integers(0, 3),
    backward_prefetch=st.sampled_from(["pre", "post", "none"]),
    limit_all_gathers=st.integers(0, 3),
    reshard_after_forward=st.booleans(),
    streams=st.integers(1, 2),
)
PAIR = nodes(1, 2)
AT_ONCE = work(
    Model("test", (Layer("h", (Gradient("g", 1000),)), Layer("out", ()))), [0.0, 0.0], [0.0, 0.0]
)
"""A job whose passes take no time."""


@settings(max_examples=examples(40), deadline=None)
@given(JOBS, SETTINGS)
def test_gathered_parameters_stay_within_the_limit(job, sharding):
    """What the settings imply, and never more than what is ever gathered."""
    memory = run(job, PAIR, sharding=sharding).step.memory

    assert 0 < memory.gathered <= memory.gathered_limit
    kept = memory.parameters + memory.gradients + memory.optimizer
    assert kept + memory.gathered <= memory.peak
    assert memory.peak <= kept + memory.gathered + memory.unreduced


@settings(max_examples=examples(40), deadline=None)
@given(JOBS, SETTINGS, st.sampled_from(METHODS), st.sampled_from([None, 1]))
@example(AT_ONCE, Sharding(limit_all_gathers=0, reshard_after_forward=False), "zero3", None)
def test_a_step_holds_no_less_than_what_is_said_without_it(job, sharding, method, dtype):
    """And exactly that for what it keeps."""
    sharding = replace(sharding, param_dtype=dtype, group=2 if method == "hsdp" else 0)
    memory = run(job, nodes(2, 2), method, sharding).step.memory
    least = least_memory(method, job.model, sharding, 2 if method == "hsdp" else 4)

    assert least.peak <= memory.peak
    assert (least.gathered, least.unreduced) <= (memory.gathered, memory.unreduced)
    for part in ("parameters", "gradients", "optimizer"):
        assert getattr(least, part) == getattr(memory, part)


def test_gradients_wait_for_their_reduction_in_its_dtype():
    """FSDP converts gradients in bfloat16 to float32 before it reduces them; ZeRO does not."""
    half, whole = dtypes.code("bfloat16"), dtypes.code("float32")
    job = work(transformer(4, 64_000), [0, *[0.1] * 8, 0], [0, *[0.2] * 8, 0])
    held = {
        (method, reduce): run(
            job, PAIR, method, Sharding(param_dtype=half, reduce_dtype=reduce)
        ).step.memory
        for method in ("fsdp", "zero3")
        for reduce in (half, whole)
    }

    assert held["fsdp", half].unreduced % (2 * 64_000) == 0
    assert held["fsdp", whole].unreduced == 2 * held["fsdp", half].unreduced > 0
    assert held["zero3", whole].unreduced == held["zero3", half].unreduced
    assert held["fsdp", whole].gathered == held["fsdp", half].gathered


@settings(max_examples=examples(40, usual=12), deadline=None)
@given(JOBS, SETTINGS)
def test_more_prefetch_is_never_longer(job, sharding):
    """One more unit ahead, a higher limit, and an all-gather that is issued before; and units that
    stay need fewer all-gathers.
    """
    sharding = replace(sharding, streams=1)
    earlier = {"none": "post", "post": "pre"}.get(sharding.backward_prefetch)
    more = [
        replace(sharding, forward_prefetch=sharding.forward_prefetch + 1),
        replace(sharding, limit_all_gathers=0),
    ]
    if sharding.limit_all_gathers:
        more.append(replace(sharding, limit_all_gathers=sharding.limit_all_gathers + 1))
    if earlier:
        more.append(replace(sharding, backward_prefetch=earlier))
    step = run(job, PAIR, sharding=sharding).step

    for each in more:
        assert run(job, PAIR, sharding=each).step.seconds <= step.seconds * (1 + CLOSE), each


@settings(max_examples=examples(25, usual=12), deadline=None)
@given(JOBS, SETTINGS, st.sampled_from(METHODS), st.floats(1.0, 8.0))
def test_a_faster_link_is_never_longer(job, sharding, method, factor):
    """For any method, with contention too; and a step is no shorter than its compute, and no
    longer than everything one after another.
    """
    slow, fast = (
        run(job, nodes(2, 2, rails=rate / 4, rate=rate), method, sharding)
        for rate in (RATE, RATE * factor)
    )

    assert fast.step.seconds <= slow.step.seconds * (1 + 1e-6)
    assert slow.step.compute <= slow.step.seconds * (1 + CLOSE)
    assert slow.step.seconds <= (slow.step.compute + slow.alone) * (1 + CLOSE)


def test_overlapping_all_reduces_share_cables():
    """Where replicas' all-reduces pass the cables of the shard groups, both are slower: the step is
    between that with free sharing and that with everything one after another.
    """
    job = work(transformer(6, 64_000), [0, *[0.05] * 12, 0], [0, *[0.1] * 12, 0])
    found = run(job, nodes(2, 4), "hsdp")
    alone = _alone(job, nodes(2, 4), "hsdp")

    assert alone.seconds * 1.01 < found.step.seconds < found.step.compute + found.alone


def _alone(job: StepJob, where: Topology, method: str) -> StepResult:
    """The step if collectives did not slow each other down."""
    setup = Setup(where, IDEAL)
    how = sharded_method(method, parse_strategy("ring"), job, setup.layout, Sharding())
    attempt = _Run(job, how, setup)
    attempt.alone(measure_costs(how, setup, keep=False))
    return attempt.prediction()


@pytest.mark.parametrize("method", ["fsdp", "zero2"])
def test_both_ways_to_simulate_agree(method):
    """Plans that run alone take the same on a fabric with all others."""
    job = work(transformer(3, 64_000, 8000), [0.1, *[0.05] * 6, 0], [0, *[0.1] * 6, 0.2])
    setup = Setup(nodes(2, 2), IDEAL)
    how = sharded_method(method, parse_strategy("ring"), job, setup.layout, Sharding())
    together = _Run(job, how, setup)
    together.together()
    alone = simulate_sharded_step(job, how, setup).step

    assert together.prediction().seconds == pytest.approx(alone.seconds, rel=CLOSE)


@settings(max_examples=examples(60, usual=12), deadline=None)
@given(JOBS, SETTINGS, st.sampled_from(METHODS), st.sampled_from([1.0, 1.5]), st.booleans())
def test_the_recurrence_gives_the_bits_of_the_simulation(job, sharding, method, slow, no_sync):
    """Of collectives that take what they take alone; and no step is shorter."""
    job = replace(job, update=0.3, no_sync=no_sync)
    setup = Setup(nodes(2, 2), IDEAL, disturbance=Disturbance(slow={"gpu1": slow}))
    how = sharded_method(method, parse_strategy("ring"), job, setup.layout, sharding)
    costs = measure_costs(how, setup, keep=False)
    alone = _Run(job, how, setup)
    alone.alone(costs)
    found = compose(job, how, setup, lambda key: key_cost(how, key, setup))

    assert found == alone.prediction().seconds
    assert found <= simulate_sharded_step(job, how, setup).step.seconds * (1 + CLOSE)


def test_a_slow_device_holds_up_all():
    """Every collective waits for it."""
    job = work(transformer(3, 64_000), [0, *[0.5] * 6, 0], [0, *[1.0] * 6, 0])
    calm = run(job, PAIR).step
    slow = run(job, PAIR, disturbance=Disturbance(slow={"gpu1": 1.5})).step

    assert slow.compute == pytest.approx(1.5 * calm.compute)
    assert slow.waiting == pytest.approx(0.25 * calm.compute)
    assert {"gpu0", "gpu1"} == {span.device for span in slow.spans}
    assert slow.seconds > calm.seconds


def test_jitter_scatters_collectives():
    """Each has its own, so they are simulated one by one; the same seed gives the same step."""
    job = work(transformer(3, 64_000), [0] * 8, [0] * 8)
    where = machine(cable("gpu0", "gpu1", RATE, 0.01))
    steps = [
        run(job, where, disturbance=Disturbance(jitter=jitter, seed=1)).step
        for jitter in (0.0, 0.2, 0.2)
    ]

    assert steps[0].seconds != steps[1].seconds == steps[2].seconds


def methods(layout_of: Topology, method: str, group: int = 0) -> ShardedMethod:
    setup = Setup(layout_of, IDEAL)
    job = work(transformer(2, 1001, 77), [0] * 6, [0] * 6)
    return sharded_method(
        method, parse_strategy("ring"), job, setup.layout, Sharding(group=group, param_dtype=3)
    )


@pytest.mark.parametrize(("method", "group"), [("fsdp", 0), ("hsdp", 0), ("hsdp", 2)])
def test_what_runs_is_proved_and_adds_up(method, group):
    """Every plan keeps its contract; and what all-reduces of replicas are given is what their
    reduce-scatters made: every shard ends as the sum of all ranks.
    """
    how = methods(nodes(3, 4), method, group)
    assert [0] * len(how.distinct) == [
        wrong_elements(verify(how.plan(key))) for key in how.distinct
    ]
    for unit, gathered in enumerate(how.units):
        scatter = how.plan(how.key("reduce_scatter", unit)).contract
        made = {
            int(device): (int(hi - lo), scatter.sets[members])
            for device, lo, hi, members in zip(
                scatter.device, scatter.lo, scatter.hi, scatter.members, strict=True
            )
        }
        sums = {device: members for device, (_, members) in made.items()}
        if how.replicas > 1:
            across = how.plan(how.key("all_reduce", unit)).contract
            for device, lo, hi, row in zip(
                across.device, across.lo, across.hi, across.members, strict=True
            ):
                others = [_global(how, int(device), member) for member in across.sets[row]]
                assert made[int(device)][0] == hi - lo
                sums[int(device)] = frozenset().union(*(_of(how, made, o) for o in others))
        else:
            sums = {d: frozenset(range(how.layout.n)) for d in sums}
        assert {frozenset(range(how.layout.n))} == set(sums.values())
        assert how.group * made[0][0] == gathered.padded(how.group) >= gathered.elements


def _global(how: ShardedMethod, device: int, member: int) -> int:
    """The rank of a member of the replicas' group of a device."""
    return device % how.group + member * how.group


def _of(how: ShardedMethod, made: dict[int, tuple[int, frozenset[int]]], rank: int) -> set[int]:
    """The ranks whose sum a rank's shard is."""
    first = rank // how.group * how.group
    return {first + member for member in made[rank][1]}


@pytest.mark.parametrize(
    ("stage", "gigabytes"), [("ddp", 120.0), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9)]
)
def test_memory_as_published(stage, gigabytes):
    """7.5 billion parameters on 64 GPUs, Adam in mixed precision: figure 1 of the ZeRO paper."""
    from simreduce.training.memory import shares_of

    model = Model("7.5B", (Layer("all", (Gradient("all", 7_500_000_000),)),))
    sharding = Sharding(param_dtype=1, units="model")
    if stage == "ddp":
        found = least_memory("ddp", model, sharding, 64).peak
    else:
        layout = Setup(nodes(8, 8), IDEAL).layout
        job = StepJob(model, Profile((0.0,), (0.0,), "none"), 1)
        how = sharded_method(stage, parse_strategy("ring"), job, layout, sharding)
        found = sum(shares_of(how).kept)

    assert round(found / 1e9, 1) == gigabytes


def test_units():
    """By blocks, layers and bytes; a layer without parameters belongs to the one before it."""
    model = transformer(2, 100, 7)
    names = {rule: [u.name for u in wrap(model, rule)] for rule in ("blocks", "layers", 240)}

    assert names == {
        "blocks": ["root", "h.0", "h.1"],
        "layers": [
            "embeddings",
            *(f"h.{i}.{part}" for i in (0, 1) for part in ("attention", "mlp")),
        ],
        240: ["embeddings", "h.0.mlp"],
    } or names[240] == ["embeddings", "h.1.attention"]
    assert [u.name for u in wrap(load_model("gpt2"), "")] == [
        "root",
        *(f"h.{i}" for i in range(12)),
    ]
    for rule in ("blocks", "layers", "model", 240):
        units = wrap(model, rule)
        assert sorted(i for u in units for i in u.layers) == [*range(6)]
        assert sum(u.elements for u in units) == model.workload.elements
    with pytest.raises(InputError, match="no name of a layer has a number"):
        wrap(load_model("alexnet"), "blocks")


LETTERS = {Do.GATHER: "g", Do.REDUCE: "r", Do.FORWARD: "F", Do.BACKWARD: "B"}

ISSUED = {
    "pre": "g0 g1 F1 g2 F2 g3 F3 g3 g2 B3 r3 g1 B2 r2 B1 r1 r0",
    "post": "g0 g1 F1 g2 F2 g3 F3 g3 B3 g2 r3 B2 g1 r2 B1 r1 r0",
    "none": "g0 g1 F1 g2 F2 g3 F3 g3 B3 r3 g2 B2 r2 g1 B1 r1 r0",
    "pre, no_sync": "g0 g1 F1 g2 F2 g3 F3 g3 g2 B3 g1 B2 B1",
    "post, no_sync": "g0 g1 F1 g2 F2 g3 F3 g3 B3 g2 B2 g1 B1",
    "none, no_sync": "g0 g1 F1 g2 F2 g3 F3 g3 B3 g2 B2 g1 B1",
    "stay": "g0 g1 F1 g2 F2 g3 F3 B3 r3 B2 r2 B1 r1 r0",
    "stay, no_sync": "g0 g1 F1 g2 F2 g3 F3 B3 B2 B1",
}
"""What FullyShardedDataParallel of PyTorch 2.13 issued with two CPU processes in its second step:
all-gathers, forward and backward passes and reduce-scatters, the root's unit being 0. Three blocks
between two linear layers, each block wrapped; recorded by wrapping the functions of
torch.distributed and by hooks of the blocks.
"""


@pytest.mark.parametrize("case", ISSUED)
def test_the_order_of_issue_is_pytorchs(case):
    """By backward_prefetch, SHARD_GRAD_OP (`stay`) and no_sync, whose last pass is as usual unless
    units stayed.
    """
    name, _, no_sync = case.partition(", ")
    units = wrap(transformer(3, 100, 7), "blocks")
    how = {"reshard_after_forward": False} if name == "stay" else {"backward_prefetch": name}
    issued = [
        LETTERS[each.do] + str(each.unit)
        for each in schedule("fsdp", units, Sharding(**how), 2 if no_sync else 1)
        if each.do in LETTERS and (each.unit or each.do in (Do.GATHER, Do.REDUCE))
    ]
    last = ISSUED[name].split() if no_sync else []
    if name == "stay" and no_sync:
        last = [each for each in last if each[0] != "g"]

    assert issued == ISSUED[case].split() + last


def test_forward_prefetch_changes_the_order_of_issue():
    """A block's all-gather comes before the forward pass of the block before it."""
    units = wrap(transformer(3, 100, 7), "blocks")
    issued = schedule("fsdp", units, Sharding(forward_prefetch=1))
    order = [LETTERS[each.do] + str(each.unit) for each in issued if each.do in LETTERS]

    assert order[:9] == ["g0", "g1", "F0", "g2", "F1", "g3", "F2", "F3", "F0"]


def test_the_runtime():
    """Libraries that shard use NCCL; TensorFlow has nothing of the kind, and links do not fail."""
    setup = Setup(nodes(1, 2), BY_STRATEGY)
    failing = Disturbance(faults=(Fault(0.0, "gpu0>switch0", 0.0),))

    assert running_sharded(setup, "fsdp, ring").runtime.name == "nccl"
    with pytest.raises(StrategyError, match=r"fsdp, ring: the runtime tensorflow has no sharded"):
        running_sharded(setup.but(runtime="tensorflow"), "fsdp, ring")
    with pytest.raises(StrategyError, match=r"^links that fail .* for ddp only; \[link_factors\]"):
        running_sharded(setup.but(disturbance=failing), "fsdp, ring")


@pytest.mark.parametrize(
    ("method", "strategy", "group", "says"),
    [
        ("hsdp", "ring", 3, "shard groups of 3 do not share 4 GPUs evenly"),
        ("fsdp", "nccl:tree", 0, "nccl:tree"),
        ("fsdp", "ring+packs=2", 0, r"\+packs=2 packs gradients for an all-reduce"),
    ],
)
def test_what_is_refused(method, strategy, group, says):
    """With the method's name."""
    job = work(transformer(2, 100), [0] * 6, [0] * 6)
    layout = Setup(nodes(1, 4), IDEAL).layout
    with pytest.raises(StrategyError, match=says) as error:
        sharded_method(method, parse_strategy(strategy), job, layout, Sharding(group=group))
    assert all(p.startswith(f"{method}, {strategy}: ") for p in error.value.problems)


def test_buckets_on_a_stream_follow_each_other():
    """In the order of issue, none before the one ahead of it has ended."""
    job = work(transformer(5, 64_000, 999), [0.1] * 12, [0.2] * 12)
    step = run(job, nodes(1, 4)).step
    times = [(b.start, b.finish) for b in step.buckets]

    assert all(a[1] <= b[0] + CLOSE for a, b in pairwise(times))
    assert np.isclose(sum(end - begin for begin, end in times), step.communication)
