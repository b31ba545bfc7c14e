"""Steps whose times are worked out by hand, and what must hold for all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from math import inf, nextafter

import numpy as np
import pytest
import simpy
from hypothesis import given, settings, strategies as st

import simreduce as sr
from simreduce.engine import (
    CALM,
    IDEAL,
    TENSORFLOW,
    Calibration,
    Disturbance,
    Fabric,
    Fault,
    Processor,
    Runtime,
)
from simreduce.engine.lowering.resources import measure_working_set
from simreduce.engine.setup import Setup
from simreduce.errors import Deadlock, InputError
from simreduce.planners.layouts import layout
from simreduce.testing import FREE_NCCL
from simreduce.topology import Topology, load_topology
from simreduce.training import (
    Method,
    Profile,
    StepJob,
    StepResult,
    method_for_mode,
    record_step,
    simulate_step,
)
from simreduce.training.calls import Lowering
from simreduce.training.passes import to_cycle
from simreduce.training.variable_update import Flags
from simreduce.workload import Gradient, Layer, Model
from tests.thorough import examples
from tests.training.small import TICK, by, job, model, pair, run, ticks

SIZES = st.lists(st.integers(1, 64).map(lambda n: 2 * n), min_size=1, max_size=6)


def times(layers: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 100), min_size=layers, max_size=layers)


JOBS = SIZES.flatmap(lambda kib: st.tuples(st.just(kib), times(len(kib)), times(len(kib))))


@given(JOBS)
@settings(max_examples=examples(100))
def test_without_overlap_a_step_is_the_sum_of_its_parts(parts):
    """One pack of everything can start only when everything is there."""
    kib, forward, backward = parts
    step = run(job(*parts), "ring+packs=1")
    compute = (sum(forward) + sum(backward)) * TICK

    assert compute + sum(kib) * TICK == step.seconds
    assert (compute, sum(kib) * TICK) == (step.compute, step.communication)
    assert step.communication == step.exposed


@given(JOBS)
@settings(max_examples=examples(100))
def test_with_free_overlap_a_step_is_the_longer_of_its_parts(parts):
    """The gradients of the step before are there from the start."""
    kib, forward, backward = parts
    step = run(job(*parts, consistency="relaxed"), "ring+packs=1")

    assert max(sum(forward) + sum(backward), sum(kib)) * TICK == step.seconds
    assert max(0, sum(kib) - sum(forward) - sum(backward)) * TICK == step.exposed


@given(JOBS)
@settings(max_examples=examples(100))
def test_buckets_that_go_one_by_one(parts):
    """f_k = max(f_(k-1), ready_k) + c_k: the exposure is what the last of them ends later than the
    backward pass.
    """
    kib, forward, backward = parts
    step = run(job(*parts), "ring", streams=1)
    finish, expected = 0, []
    ready = sum(forward)
    for size, took in zip(reversed(kib), reversed(backward), strict=True):
        ready += took
        finish = max(finish, ready) + size
        expected.append((ready, finish - size, finish))

    assert expected == ticks(step)
    assert max(finish, ready) * TICK == step.seconds
    assert (max(finish, ready) - ready) * TICK == step.exposed


def test_an_exposure_by_hand():
    """Ready after 3, 5 and 6 ticks, 4, 2 and 2 ticks each: the queue never empties, and ends 5
    ticks after the backward.
    """
    step = run(job([2, 2, 4], [0, 0, 1], [1, 2, 2]), "ring", streams=1)

    assert [(3, 3, 7), (5, 7, 9), (6, 9, 11)] == ticks(step)
    assert (11 * TICK, 5 * TICK) == (step.seconds, step.exposed)


@given(JOBS, st.integers(2, 4))
@settings(max_examples=examples(50))
def test_passes_that_add_up(parts, passes):
    """With no_sync those before the last only compute; without it each is a step but for the
    update.
    """
    once = run(job(*parts), "ring", streams=1)
    late, every = (
        run(job(*parts, accumulate=passes, no_sync=how, update=TICK), "ring", streams=1)
        for how in (True, False)
    )

    assert late.seconds == (passes - 1) * once.compute + once.seconds + TICK
    assert every.seconds == passes * once.seconds + TICK
    assert late.compute == every.compute == passes * once.compute
    assert (len(once.buckets), passes * len(once.buckets)) == (
        len(late.buckets),
        len(every.buckets),
    )
    assert late.samples_per_second == pytest.approx(2 * passes / late.seconds)


def test_without_a_queue_reductions_share_the_links():
    """Two of 4 ticks that begin at once take 8 ticks both; with two streams as well."""
    work = job([4, 4], [0, 0], [0, 1])

    assert [(1, 1, 9), (1, 1, 9)] == ticks(run(work, "ring")) == ticks(run(work, "ring", streams=2))


def test_ddp_starts_no_bucket_before_those_ahead_of_it():
    """The float16 gradient is ready first, but its bucket closes last; the others do not wait for
    its bytes.
    """
    gradients = (Gradient("a", 512), Gradient("b", 512), Gradient("c", 1024, dtype=1))
    layers = tuple(Layer(g.name, (g,)) for g in gradients)
    profile = Profile((0.0,) * 3, (TICK, TICK, TICK), "by hand")
    work = StepJob(Model("mixed", layers), profile, 1)
    buckets = run(work, "ring+ddp").buckets

    # Neither dtype fills 1 MiB: buckets come last in the order in which they began, float16 first.
    assert [(2,), (0, 1)] == [b.gradients for b in buckets]
    method = by("ring+ddp", work, pair())
    turned = Method("turned", method.plan, method.reductions[::-1], streams=1, in_order=True)
    assert [((0, 1), 3.0), ((2,), 3.0)] == [
        (b.gradients, b.ready / TICK) for b in run(work, turned).buckets
    ]


@given(st.integers(1, 40), st.lists(st.integers(0, 12), min_size=3, max_size=3))
@settings(max_examples=examples(100))
def test_horovod_looks_once_a_cycle(cycle, backward):
    """What became ready within one cycle travels in one buffer, from the next whole cycle on."""
    step = run(job([2, 2, 2], [1, 0, 0], backward), "ring+fusion", cycle=cycle * TICK)
    last = step.simulated[:-1]
    begin = round(sum(last) / TICK)
    ready = [begin + 1 + at for at in accumulate(reversed(backward))]
    turns = [-(-at // cycle) * cycle for at in ready]
    buffers = {turn: tuple(sorted(2 - i for i in range(3) if turns[i] == turn)) for turn in turns}

    assert list(buffers.values()) == [b.gradients for b in step.buckets]
    free = 0.0
    for turn, bucket in zip(buffers, step.buckets, strict=True):
        start = max(turn, free)
        assert pytest.approx(start - begin) == bucket.start / TICK
        free = start + 2 * len(bucket.gradients)


@given(st.integers(1, 10**6), st.floats(1e-6, 1e-1), st.integers(-2, 2))
def test_a_boundary_of_a_cycle_is_no_earlier_one(number, cycle, ulps):
    """Whatever its rounding: who comes with it is in time, a while later is not."""
    at = number * cycle
    for _ in range(abs(ulps)):
        at = nextafter(at, inf if ulps > 0 else 0.0)

    assert to_cycle(at, cycle) <= 1e-9 * at
    assert to_cycle(at + cycle / 4, cycle) == pytest.approx(0.75 * cycle, rel=1e-6)


MISSED = 0.25
"""The part of a step's values that its host's cache does not hold."""


def summed_by_the_host() -> tuple[StepJob, Method, Topology, Calibration]:
    """Buffers of one gradient, which are there at once and summed on the host, each in less than
    the cache holds.
    """
    machine = load_topology("pcie-single-root-4")
    work = StepJob(model(8, 8, 8, 8), Profile((0.0,) * 4, (TICK,) * 4, "by hand"), 1)
    method = by("pscpu+fusion=8K", work, machine, cycle=1000 * TICK)
    processor = Processor(rates={"add": 1e9}, memory=1e6)
    (whole,) = measure_working_set(
        method.plan, [machine.nodes[d] for d in method.plan.devices], processor
    ).values()
    processor = replace(processor, cache=int(whole * (1 - MISSED)))
    return work, method, machine, Calibration("here", cpu=processor)


@pytest.mark.parametrize("jitter", [0.0, 0.125])
def test_all_parts_of_a_step_have_one_cache(jitter):
    """Those lowered together, those lowered by themselves, and the buffers of Horovod."""
    _, method, machine, calibration = summed_by_the_host()
    fabric = Fabric(
        simpy.Environment(), machine, calibration, TENSORFLOW, Disturbance(jitter=jitter)
    )
    known = [r.plan for r in method.reductions]
    late = [r.plan for i in range(4) for r in method.fusion.reductions((i,))]
    lowering = Lowering(fabric, method.plan, known)
    memory = list(fabric.resources.shared_memory.values())
    missed = []
    for plan in known + late:
        low = lowering.of(plan)
        taken = low.by_op.weight * np.repeat(
            low.amount / np.maximum(plan.nbytes, 1), np.diff(low.by_op.use_start)
        )
        missed.append(taken[np.isin(low.by_op.uses, memory)])

    assert len(known) + len(late) == 8
    assert all(len(each) and each == pytest.approx(MISSED) for each in missed)


def test_next_to_no_jitter_is_next_to_none():
    work, method, machine, calibration = summed_by_the_host()
    method = replace(method, fusion=None)
    calm, jittered = (
        simulate_step(work, method, Setup(machine, TENSORFLOW, calibration, disturbance))
        for disturbance in (CALM, Disturbance(jitter=1e-12))
    )

    assert calm.seconds == pytest.approx(jittered.seconds, rel=1e-9)


def test_horovod_with_a_long_cycle_sends_the_buffers_of_the_packer():
    """All gradients of a step are there when the thread looks; the threshold alone cuts them."""
    work = StepJob(model(4, 8, 12, 16), Profile((0.0,) * 4, (TICK,) * 4, "by hand"), 1)
    step = run(work, "ring+fusion=20K", cycle=1000 * TICK)
    static = by("ring+fusion=20K", work, pair()).fusion.fusion.arrange(
        work.model.workload.gradients
    )

    assert [tuple(sorted(group)) for group in static.groups] == [b.gradients for b in step.buckets]
    assert [(3,), (1, 2), (0,)] == [b.gradients for b in step.buckets]


def test_a_cycle_of_nothing_sends_what_is_ready():
    """Layer by layer, at once."""
    step = run(job([2, 2], [0, 0], [3, 1]), "ring+fusion", cycle=0.0)

    assert [(1, 1, 3), (4, 4, 6)] == ticks(step)


def test_relaxed_consistency_reduces_the_step_before():
    """All of it is ready when the step begins, one by one in the order of back-propagation."""
    step = run(job([2, 4], [1, 1], [1, 1], consistency="relaxed"), "ring", streams=1)

    assert [(0, 0, 4), (0, 4, 6)] == ticks(step)
    assert [(1,), (0,)] == [b.gradients for b in step.buckets]
    assert 6 * TICK == step.seconds


def test_without_a_barrier_a_layer_waits_for_its_own_variables_only():
    """The large gradient of the last layer is still on its way when the first layer goes on."""
    work = job([2, 12], [6, 1], [1, 1], barrier=False)
    # Alone from 8 to 9, then the two share: the small one takes 2 * 2 ticks and ends at 13, with 12
    # - 1 - 2 = 9 left.
    with_barrier = run(job([2, 12], [6, 1], [1, 1]), "ring")
    step = run(work, "ring")

    assert 22 * TICK == with_barrier.seconds
    # Compute ends at 9. The next forward begins at 13, its second layer waits until 22, and compute
    # ends at 25.
    assert step.settled
    assert step.seconds < with_barrier.seconds
    assert step.seconds == pytest.approx(16 * TICK)


def served_by_its_host(forward: int, consistency: str, *faults: Fault) -> tuple[StepResult, float]:
    """One GPU and a layer, without a barrier; and seconds of its variables on the way from the
    host, or of gradients to it.
    """
    machine = load_topology("gh200")
    work = job([1 << 21], [forward], [0], consistency=consistency, barrier=False)
    shape = layout(machine)
    method = method_for_mode("parameter_server", work.model.workload, shape, SERVERS)
    step = simulate_step(
        work, method, Setup(machine, IDEAL, disturbance=Disturbance(faults=faults))
    )
    return step, max(b.finish - b.start for b in step.reads)


def test_what_a_layer_waits_for_without_a_barrier():
    """Strong: what is read in its own step, after the update of the one before. Staged: what the
    step before has read and nothing else, so that the way of its gradients and variables, 2 r, and
    its compute c are shared by two steps.
    """
    strong, way = served_by_its_host(0, "strong")
    assert strong.seconds == pytest.approx(2 * way)

    for forward in (4, 8):
        step, way = served_by_its_host(forward, "staged")
        assert 2 * way > forward * TICK
        assert step.seconds == pytest.approx((forward * TICK + 2 * way) / 2)


def test_steps_that_never_come_to_be_alike_are_told_by_the_mean_of_the_later_half():
    """The two of a pair differ, and their mean is what a step takes."""
    step, _ = served_by_its_host(4, "staged")

    assert not step.settled
    assert 100 == len(step.simulated)
    later = step.simulated[50:]
    assert min(later) < step.seconds < max(later)
    assert sum(step.simulated[50:]) / 50 == step.seconds


def test_a_fault_later_than_steps_that_never_come_to_be_alike_is_refused():
    with pytest.raises(
        InputError, match="gpu0 at 100 s: later than 100 steps, which do not come to take"
    ):
        served_by_its_host(4, "staged", Fault(100.0, "gpu0", 0.0))


def test_the_update_comes_last():
    """Once, on the slowest device."""
    work = job([2], [1], [1], update=3 * TICK, slow={"gpu1": 2.0})
    step = run(work, "ring")

    assert (4 + 2 + 6) * TICK == step.seconds
    assert (4 * TICK, 6 * TICK, 2 * TICK) == (step.compute, step.update, step.exposed)


def test_servers_update_at_their_own_pace():
    """Not at that of a slow GPU, unless the variables are there."""
    machine = load_topology("pcie-single-root-4")
    shape, update = layout(machine), 64 * TICK

    def step(place: str, **slow: float) -> StepResult:
        work = job([2], [1], [1], update=update, slow={"gpu3": 2.0})
        method = method_for_mode(
            "parameter_server", work.model.workload, shape, Flags(local_parameter_device=place)
        )
        return simulate_step(
            work, method, Setup(machine, IDEAL, disturbance=Disturbance(slow=slow))
        )

    assert update == step("cpu").update == step("gpu").update  # which is gpu0
    assert 3 * update == step("cpu", **{shape.hosts[0]: 3.0}).update
    assert 3 * update == step("gpu", gpu0=3.0).update


def test_what_a_calibration_says_of_a_step_comes_first():
    """Once a step and machine, where ops are dispatched; without a barrier the steps before hide
    it.
    """
    machine = load_topology("full:2,bandwidth=1MiB/s,latency=0us")
    costly = Calibration("costly steps", step=5 * TICK, nccl=FREE_NCCL)

    def step(runtime: Runtime = TENSORFLOW, **more: object) -> StepResult:
        work = job([2], [1], [1], **more)
        method = by("nccl:ring+simple+channels=1", work, machine)
        return simulate_step(work, method, Setup(machine, runtime, costly))

    assert (9 * TICK, 5 * TICK, 2 * TICK) == (step().seconds, step().launch, step().exposed)
    assert 7 * TICK == step().buckets[0].start
    assert 4 * TICK == step(IDEAL).seconds
    assert 0.0 == step(barrier=False).launch


def test_a_reduction_waits_for_the_slowest_device():
    """Each device computes in its own time."""
    step = run(job([2, 2], [2, 2], [2, 2], slow={"gpu1": 1.5}), "ring", streams=1)

    assert [(9, 9, 11), (12, 12, 14)] == ticks(step)
    assert {"gpu0": 8 * TICK, "gpu1": 12 * TICK} == {
        name: max(s.end for s in step.spans if s.device == name) for name in ("gpu0", "gpu1")
    }


@pytest.mark.parametrize(("slow", "expected"), [("gpu0", 6 + 2), ("gpu1", 6 + 2 + 2)])
def test_a_device_that_is_early_sends_what_it_has(slow, expected):
    """Two ticks each way. The copy from gpu1 to gpu0, which sums, overlaps gpu0's compute."""
    step = run(job([2], [1], [1], slow={slow: 3.0}), "reduce_to_one")

    assert expected * TICK == step.seconds
    assert 2 * TICK == step.buckets[0].start


def test_nccl_waits_for_all_of_its_devices():
    """Its kernels meet before anything moves."""
    machine = load_topology("full:2,bandwidth=1MiB/s,latency=0us")
    step = run(job([2], [1], [1], slow={"gpu0": 3.0}), "nccl", machine)

    assert 6 * TICK == step.buckets[0].ready == step.buckets[0].start


def test_a_disturbance_slows_down_compute_as_well():
    """A slow device is slow in all that it does."""
    work, machine = job([2], [2], [2]), pair()
    slow = Disturbance(slow={"gpu0": 2.0})
    step = simulate_step(work, by("ring", work, machine), Setup(machine, IDEAL, disturbance=slow))

    assert (8 + 4) * TICK == step.seconds  # links of the device carry half as much, too


def test_sums_and_kernels_queue_on_a_device_under_tensorflow():
    """The sum of the first gradient is ready during the long pass of the layer below, and waits for
    its end.
    """
    machine, work = load_topology("full:2"), job([2, 2], [1, 1], [512, 1])

    def first_end(runtime):
        method = by("reduce_to_one", work, machine)
        return simulate_step(work, method, Setup(machine, runtime)).buckets[0].finish

    assert first_end(IDEAL) < 4 * TICK
    assert first_end(TENSORFLOW) > (2 + 1 + 512) * TICK


def test_kernels_wait_for_sums_under_tensorflow():
    """A device that sums others' gradients, a tick each, computes later; one that does not is not
    held up.
    """
    machine, work = load_topology("full:2"), job([2] * 3, [1] * 3, [4] * 3)
    calibration = Calibration("slow sums", dispatch={"add": TICK})
    method = by("reduce_to_one", work, machine)
    step = simulate_step(work, method, Setup(machine, TENSORFLOW, calibration))
    ends = {
        name: max(s.end for s in step.spans if s.device == name) / TICK for name in ("gpu0", "gpu1")
    }

    # The sum of the last layer's gradient comes between the next two kernels; two sums are left
    # when the last has ended.
    assert {"gpu0": pytest.approx(15 + 1), "gpu1": 15} == ends
    assert pytest.approx(15 + 3, rel=1e-3) == step.seconds / TICK


@pytest.mark.parametrize(
    "strategy", ["copy_to_gpus", "xring#2", "hierarchical_copy", "nccl", "ring+packs=2"]
)
@pytest.mark.parametrize("runtime", [IDEAL, TENSORFLOW])
def test_a_lone_reduction_takes_as_long_as_its_plan(strategy, runtime):
    """Without compute, a step of one pack is what `simulate` says of the plan."""
    machine = load_topology("full:4")
    work = job([64], [0], [0])
    method = by(strategy, work, machine)
    step = simulate_step(work, method, Setup(machine, runtime))

    assert sr.simulate(method.plan, machine, runtime).seconds == step.seconds


def test_a_link_that_never_comes_back_is_a_deadlock():
    """Also when Horovod's thread could look for ever."""
    machine, work = pair(), job([2], [1], [1])
    cut = Disturbance(faults=(Fault(TICK, "gpu0", 0.0),))
    for strategy in ("ring", "ring+fusion"):
        with pytest.raises(Deadlock, match="no bandwidth on gpu0"):
            simulate_step(work, by(strategy, work, machine), Setup(machine, IDEAL, disturbance=cut))


@pytest.mark.parametrize(("at", "expected"), [(3, [16, 6, 6]), (15, [6, 6, 10 + 6, 6, 6])])
def test_a_link_that_fails_for_a_while_delays_one_step(at, expected):
    """Steps are simulated until they are equal again after a fault, however late; all are kept."""
    machine, work = pair(), job([4], [1], [1])
    faults = Fault(at * TICK, "gpu0", 0.0), Fault((at + 10) * TICK, "gpu0")
    step = simulate_step(
        work,
        by("ring", work, machine),
        Setup(machine, IDEAL, disturbance=Disturbance(faults=faults)),
    )

    assert [pytest.approx(t) for t in expected] == [t / TICK for t in step.simulated]
    assert step.settled
    assert pytest.approx(6 * TICK) == step.seconds
    assert pytest.approx(16 * TICK) == step.slowest.seconds
    assert pytest.approx(10 * TICK) == step.slowest.exposed - step.exposed


def faulty(*faults: Fault, **more: object) -> StepResult:
    machine, work = pair(), job([4], [1], [1], **more)
    method = by("ring", work, machine)
    return simulate_step(
        work, method, Setup(machine, IDEAL, disturbance=Disturbance(faults=faults))
    )


def test_steps_that_are_alike_are_skipped_before_a_late_fault():
    """A step takes 6 ticks. A link that is away for 10 ticks, 100,003 ticks after the beginning,
    costs one of them 10.
    """
    steps = 100_002 // 6
    away = Fault((6 * steps + 3) * TICK, "gpu0", 0.0), Fault((6 * steps + 13) * TICK, "gpu0")
    step = faulty(*away)

    assert len(step.simulated) < 10
    assert [pytest.approx(t) for t in (6, 16, 6, 6)] == [t / TICK for t in step.simulated[-4:]]
    assert pytest.approx(16 * TICK) == step.slowest.seconds


def test_a_link_that_fails_late_and_for_ever_ends_the_training():
    with pytest.raises(Deadlock, match="no bandwidth on gpu0"):
        faulty(Fault(100.0, "gpu0", 0.0))


def test_a_fault_that_only_later_steps_feel_is_felt():
    """Links are slower from the update of the second step on, which is as long as the first."""
    step = faulty(Fault(26 * TICK, "gpu0", factor=0.5), update=10 * TICK)

    assert [pytest.approx(t) for t in (16, 16, 20, 20)] == [t / TICK for t in step.simulated]


def test_a_fault_that_changes_nothing_leaves_no_slowest_step():
    assert faulty(Fault(0.1, "gpu0")).slowest is None


SERVERS = Flags(local_parameter_device="cpu", ps_tasks=(0,))


def incast(workers: int, kib: int, **more: object) -> tuple[object, float, float]:
    """One parameter server, on the machine of the first of `workers`; its step, seconds of a way
    alone, and latency.
    """
    machine = load_topology(f"gh200x{workers},nic=ib_edr")
    work = job([kib], [0], [0], **more)
    shape = layout(machine)
    step = simulate_step(
        work,
        method_for_mode("parameter_server", work.model.workload, shape, SERVERS),
        Setup(machine, IDEAL),
    )
    route = machine.router.route(shape.hosts[1], shape.hosts[0])
    links = [machine.links[i] for i in route.links]
    inside = [machine.links[i] for i in machine.router.route(shape.ranks[0], shape.hosts[0]).links]
    alone = kib * 1024 / min(link.bandwidth for link in links)
    first = kib * 1024 / min(link.bandwidth for link in inside) + sum(
        link.latency for link in inside
    )
    return step, alone, sum(link.latency for link in links) + first


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_the_incast_of_a_parameter_server(workers):
    """All but the server's own worker send S over one link, at the same time: (W - 1) S / B, and
    again to read.
    """
    step, alone, rest = incast(workers, 4096)

    assert step.seconds == pytest.approx(2 * ((workers - 1) * alone + rest), rel=1e-9)
    assert workers == len(step.buckets)


def test_staged_variables_are_read_while_the_layers_compute():
    """Forward waits for what is read in this step; with staging only the end of the step does."""
    machine = load_topology("pcie-single-root-4")
    shape = layout(machine)
    work = {how: job([65536], [64], [1], consistency=how) for how in ("strong", "staged")}
    steps = {}
    for how, each in work.items():
        method = method_for_mode("parameter_server", each.model.workload, shape, SERVERS)
        steps[how] = simulate_step(each, method, Setup(machine, IDEAL))
    read = max(b.finish for b in steps["strong"].reads)

    assert steps["strong"].seconds - steps["staged"].seconds == pytest.approx(read)
    assert steps["staged"].exposed == pytest.approx(steps["staged"].buckets[-1].finish - 65 * TICK)
    assert read <= 64 * TICK


def test_a_distributed_replica_reads_at_the_end_of_the_step():
    """Its reads follow its updates, variable by variable, and are part of them."""
    machine = load_topology("gh200x2,nic=ib_edr")
    shape, work = layout(machine), job([64, 64], [1, 1], [1, 1])
    method = method_for_mode(
        "distributed_replicated", work.model.workload, shape, Flags(local_parameter_device="cpu")
    )
    step = simulate_step(work, method, Setup(machine, IDEAL))

    assert () == step.reads
    assert [(1,), (0,)] == [b.gradients for b in step.buckets]
    assert step.seconds == max(b.finish for b in step.buckets)


def test_independent_devices_wait_for_nobody():
    """And are as efficient as can be."""
    work, machine = job([2, 2], [1, 2], [3, 4]), pair()
    method = method_for_mode("independent", work.model.workload, layout(machine), Flags())
    step = simulate_step(work, method, Setup(machine))

    assert (10 * TICK, 0.0) == (step.seconds, step.exposed)
    assert 2 * 1 / (10 * TICK) == step.samples_per_second


@settings(max_examples=examples(40))
@given(
    JOBS,
    st.sampled_from(
        [
            "ring",
            "ring+ddp",
            "ring+packs=2",
            "ring+fusion",
            "nccl",
            "copy_to_gpus",
            "xring+small=4096,3",
        ]
    ),
    st.sampled_from([IDEAL, TENSORFLOW]),
    st.sampled_from(["strong", "relaxed"]),
)
def test_what_holds_for_every_step(parts, strategy, runtime, consistency):
    """Every gradient is in one bucket, which starts when it is ready; a step is no shorter than its
    parts.
    """
    work = job(*parts, consistency=consistency)
    step = run(work, strategy, load_topology("switch:4,bandwidth=1MiB/s,latency=0us"), runtime)
    computed = max((span.end for span in step.spans), default=0.0)

    assert list(range(len(parts[0]))) == sorted(i for b in step.buckets for i in b.gradients)
    assert all(b.ready <= b.start <= b.finish for b in step.buckets)
    assert step.seconds >= step.compute * (1 - 1e-12)
    assert step.seconds == pytest.approx(max(computed, *(b.finish for b in step.buckets)))
    if consistency == "strong":
        ready = {b.gradients: b.ready for b in step.buckets}
        first = min(ready.values())
        assert first >= sum(parts[1]) * TICK * (1 - 1e-12)


@settings(max_examples=examples(40))
@given(JOBS, st.sampled_from(["ring", "ring+ddp", "ring+small=4096,3", "nccl"]))
def test_no_step_is_below_its_bounds(parts, strategy):
    """One by one: compute; from the first readiness on all that moves; and what the last bucket
    takes after the backward pass. Links that are twice as fast make no step longer.
    """
    work = job(*parts)
    step, faster = (
        run(work, strategy, load_topology(f"full:4,bandwidth={rate}MiB/s,latency=0us"), streams=1)
        for rate in (1, 2)
    )
    compute = (sum(parts[1]) + sum(parts[2])) * TICK
    took = [b.finish - b.start for b in step.buckets]
    bounds = compute, min(b.ready for b in step.buckets) + sum(took), compute + took[-1]

    assert step.seconds >= max(bounds) * (1 - 1e-12)
    assert faster.seconds <= step.seconds * (1 + 1e-12)


def test_a_consistency_that_does_not_exist():
    with pytest.raises(InputError, match="did you mean 'relaxed'"):
        job([1], [1], [1], consistency="relaxd")


def test_an_update_needs_a_barrier():
    with pytest.raises(InputError, match="without a barrier"):
        job([1], [1], [1], update=1.0, barrier=False)


def test_jitter_is_that_of_each_reduction_by_itself():
    """Reductions that are alike are not disturbed alike, and the same again for the same seed."""
    machine, work = (
        load_topology("switch:2,bandwidth=1GiB/s,latency=1ms"),
        job([2, 2], [0, 0], [64, 64]),
    )
    method = by("ring", work, machine, streams=1)
    first, second = (
        [
            b.finish - b.start
            for b in simulate_step(work, method, Setup(machine, IDEAL, disturbance=d)).buckets
        ]
        for d in (Disturbance(jitter=0.5, seed=3), Disturbance(jitter=0.5, seed=3))
    )

    assert first == second
    assert first[0] != first[1]


def test_a_step_on_a_fat_tree_is_that_of_a_fabric_whose_links_may_change():
    """Equal links are simulated as bundles where none can change."""
    machine = load_topology("fat_tree:8,radix=4,oversubscription=2")
    work = job([2, 2], [1, 1], [64, 64])
    method = by("ring", work, machine, streams=1)
    setup = Setup(machine, IDEAL)
    step = simulate_step(work, method, setup)

    assert step.communication > 0.0
    assert step.seconds == pytest.approx(record_step(work, method, setup).step.seconds)
