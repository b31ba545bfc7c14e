"""The critical path of steps: a chain without gaps, whose pieces hold up the step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings, strategies as st

from simreduce.engine import IDEAL, NCCL, TENSORFLOW
from simreduce.engine.setup import Setup
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.topology import load_topology
from simreduce.training import (
    PathPiece,
    StepResult,
    method_for_mode,
    record_step,
    simulate_step,
)
from simreduce.training.path import seconds_by_kind
from simreduce.training.sharded import METHODS
from simreduce.training.sharded.collectives import sharded_method
from simreduce.training.sharded.simulation import simulate_sharded_step
from tests.thorough import examples
from tests.training.small import TICK, by, job, pair
from tests.training.test_sharded import JOBS as SHARDED, SETTINGS, nodes
from tests.training.test_step import JOBS, SERVERS

CLOSE = 1e-9


def check_path(step: StepResult) -> tuple[PathPiece, ...]:
    """Pieces from 0 to the end of the step, each beginning where the one before ends."""
    path, whole = step.path, step.simulated[-1]
    if whole == 0.0:
        assert path == ()
        return path
    assert path[0].begin <= whole * CLOSE
    assert path[-1].end == whole
    assert all(a.end == b.begin for a, b in pairwise(path))
    assert all(piece.seconds > 0.0 for piece in path)
    assert abs(sum(s for *_, s, _ in seconds_by_kind(path)) - whole) <= whole * CLOSE
    for piece in path:
        if piece.kind in ("transfer", "read"):
            assert piece.bucket
            took = piece.bucket.finish - piece.bucket.start
            assert piece.seconds <= took + whole * CLOSE
    return path


SYSTEMS = st.sampled_from(
    [
        ("ring", {"streams": 1}),
        ("ring", {}),
        ("direct", {"runtime": TENSORFLOW}),
        ("nccl+ddp", {"runtime": NCCL}),
        ("nccl+fusion", {"cycle": 3 * TICK}),
    ]
)


@settings(deadline=None, max_examples=examples(60))
@given(JOBS, SYSTEMS, st.booleans(), st.sampled_from(["strong", "relaxed"]), st.integers(1, 2))
def test_a_path_has_no_gaps(parts, system, barrier, consistency, passes):
    """Whatever reduces, with and without a barrier, of one pass or several."""
    strategy, more = system
    passes = passes if barrier and consistency == "strong" else 1
    work = job(*parts, barrier=barrier, consistency=consistency, accumulate=passes, no_sync=False)
    runtime = {"runtime": IDEAL, **more}["runtime"]
    method = by(strategy, work, pair(), **{k: v for k, v in more.items() if k != "runtime"})

    found = record_step(work, method, Setup(pair(), runtime))
    step = simulate_step(work, method, Setup(pair(), runtime))
    assert replace(found.step, path=step.path) == step
    check_path(step)
    check_path(found.step)


@settings(deadline=None, max_examples=examples(60))
@given(JOBS, st.data())
def test_what_is_on_the_path_holds_up_the_step(parts, data):
    """A pass on the path that takes a tick longer makes the step a tick longer: nothing else is
    late enough to hide it.
    """
    work = job(*parts)
    method = by("ring", work, pair(), streams=1)
    step = simulate_step(work, method, Setup(pair(), IDEAL))
    passes = [p for p in check_path(step) if p.kind in ("forward", "backward")]
    assume(passes)
    piece = data.draw(st.sampled_from(passes))
    layer = int(piece.name.removeprefix("layer"))
    times = list(getattr(work.profile, piece.kind))
    times[layer] += TICK
    slower = replace(work, profile=replace(work.profile, **{piece.kind: tuple(times)}))
    longer = simulate_step(slower, method, Setup(pair(), IDEAL))

    assert longer.seconds == pytest.approx(step.seconds + TICK)


@settings(deadline=None, max_examples=examples(40))
@given(SHARDED, SETTINGS, st.sampled_from(METHODS))
def test_sharded_steps_are_explained_in_full(work, sharding, method):
    """Every instant of a step on an undisturbed machine is a pass, a collective or the update."""
    sharding = replace(sharding, group=2 if method == "hsdp" else 0)
    setup = Setup(nodes(2, 2), IDEAL)
    how = sharded_method(method, parse_strategy("ring"), work, setup.layout, sharding)
    step = simulate_sharded_step(work, how, setup).step

    assert not {piece.kind for piece in check_path(step)} & {"wait", "turn", "launch"}


def test_ready_gradients_wait_for_horovods_cycle():
    """The thread looks every 30 ticks. The first step's gradients are there at 48 ticks, and their
    8 KiB are reduced from 60 to 68. So the second step has them at 116, and waits until 120; it is
    60 ticks long, and so is each after it, two of the thread's cycles.
    """
    work = job((4, 4), (16, 16), (8, 8))
    method = by("ring+fusion", work, pair(), cycle=30 * TICK)
    step = simulate_step(work, method, Setup(pair(), IDEAL))
    found = [(p.kind, round(p.seconds / TICK)) for p in step.path]

    assert found == [
        ("forward", 16), ("forward", 16), ("backward", 8), ("backward", 8), ("turn", 4),
        ("transfer", 8),
    ]  # fmt: skip


def test_reads_come_first_and_the_update_last():
    """Parameter servers: the first layer waits for its variables, the end for the last update."""
    machine = load_topology("pcie-single-root-4")
    work = job([65536, 64], [64, 1], [1, 1], update=512 * TICK)
    method = method_for_mode("parameter_server", work.model.workload, layout(machine), SERVERS)
    step = simulate_step(work, method, Setup(machine, IDEAL))
    path = check_path(step)

    assert path[0].kind == "read"
    assert [p.kind for p in path].count("forward") == 2
    assert (path[-1].kind, path[-1].seconds) == ("update", pytest.approx(512 * TICK))


def test_sums_that_wait_for_kernels_are_compute():
    """TensorFlow's sums queue behind kernels: a layer's gradients, on their way while the next
    layer computes for long, are summed when that ends, and so the layer is on the path.
    """
    work = job((64, 2), (1, 1), (4000, 1))
    method = by("direct", work, pair())
    found = record_step(work, method, Setup(pair(), TENSORFLOW))
    path = check_path(found.step)

    assert max(path, key=lambda piece: piece.seconds).kind == "backward"
