"""Steps on a machine: lower bounds, what a rank did, and what overlaps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations

import pytest

from simreduce.engine.setup import Setup
from simreduce.training.executions import COMPUTE
from simreduce.training.mesh import Mesh
from simreduce.training.mesh.passes import Costs, MeshPasses
from simreduce.training.mesh.pipeline import Action
from simreduce.training.mesh.write import at_least, simulate_mesh
from tests.training.mesh.jobs import EXPERTS, GPU, LLAMA, job

TEXT = "transformer:layers=6,hidden=512,heads=8,vocab=4096,seq=256"
BOTH = frozenset({"grad_reduce", "param_gather"})


@cache
def _setup() -> Setup:
    return Setup("dgx-a100", "nccl")


def _step(mesh, text=TEXT, **more):
    work = job(mesh, text, **{"optimizer": "distributed", **more})
    costs = Costs(_setup(), work.mesh)
    return work, costs, simulate_mesh(work, costs, closely=True)


@pytest.mark.parametrize("overlap", [frozenset(), BOTH])
@pytest.mark.parametrize(
    ("mesh", "more"),
    [
        (Mesh(dp=8), {}),
        (Mesh(tp=8), {"sequence_parallel": True}),
        (Mesh(cp=2, dp=4), {}),
        (Mesh(tp=2, dp=4), {"optimizer": "fsdp"}),
        (Mesh(tp=2, pp=4), {}),  # uneven stages: 1, 2, 2, 1
        (Mesh(pp=2, dp=4), {"schedule": "gpipe", "recompute": "full"}),
        (Mesh(pp=2, dp=4), {"schedule": "interleaved", "virtual": 3}),
        (Mesh(pp=2, dp=4), {"schedule": "zero_bubble", "virtual": 3}),
        (Mesh(pp=2, dp=4), {"schedule": "zbv", "virtual": 2}),
        (Mesh(pp=2, dp=4), {"schedule": "dualpipe", "virtual": 2, "micros": 8}),
        (Mesh(pp=2, dp=4, ep=4), {"text": EXPERTS}),
    ],
)
def test_no_step_is_faster_than_its_bound(mesh, more, overlap):
    """Which says what need not be simulated; all of a step's time is spent on something."""
    work, costs, step = _step(mesh, overlap=overlap, **more)

    assert 0 < at_least(work, costs) <= step.seconds * (1 + 1e-12)
    assert sum(step.by.values()) == pytest.approx(step.seconds, rel=1e-9)
    assert all(seconds > 0 for seconds in step.by.values())


def test_the_bound_of_a_pipeline_has_its_bubble():
    """Of equal stages with nothing to send it is nearly the step."""
    text = TEXT.replace("layers=6", "layers=4").replace("vocab=4096", "vocab=8")
    work, costs, step = _step(Mesh(pp=4, dp=2), text, micros=4, optimizer="replicated")

    assert at_least(work, costs) > 0.8 * step.seconds


def test_reductions_hide_behind_the_last_backward_pass():
    """As buckets that are reduced while earlier blocks compute; else all come at the end."""
    text = "transformer:layers=8,hidden=2048,heads=16,vocab=4096,seq=512"  # several buckets
    late = _step(Mesh(dp=8), text, overlap=frozenset())[2]
    early = _step(Mesh(dp=8), text, overlap=BOTH)[2]

    assert early.by["data"] < 0.7 * late.by["data"]
    assert early.seconds < late.seconds


def test_what_hides_slows_what_it_hides_behind():
    """More, the more SMs it holds; what takes longer is said to be interference."""
    text = "transformer:layers=8,hidden=2048,heads=16,vocab=4096,seq=512"
    none, some, more = (
        _step(Mesh(dp=8), text, overlap=BOTH, interference=factor)[2] for factor in (0.0, 1.0, 2.0)
    )

    assert "interference" not in none.by
    assert 0 < some.by["interference"] < more.by["interference"]
    assert none.seconds < some.seconds < more.seconds
    assert none.by["compute"] == some.by["compute"] == more.by["compute"]


def test_sends_that_overlap_do_not_hold_a_rank_up():
    """Else a rank waits until what it sends has arrived."""
    mesh, micros = Mesh(pp=4, dp=2), 16
    waits = _step(mesh, micros=micros)[2]
    hides = _step(mesh, micros=micros, overlap=frozenset({"p2p"}))[2]

    assert hides.seconds < waits.seconds


def test_nodes_of_every_stage_are_kept_when_asked():
    """Those of the first pipeline's ranks; without, none."""
    work, costs, step = _step(Mesh(pp=2, dp=4))
    passes = [each for each in step.ran if each.node.kind == COMPUTE and each.rank == 4]

    assert {0, 4} == {each.rank for each in step.ran}
    assert 2 * work.micros + 1 == sum(not each.node.name.startswith("sent") for each in passes)
    assert () == simulate_mesh(work, costs).ran


@pytest.mark.parametrize("places", [*permutations(range(4))])
def test_a_file_may_place_stages_on_any_rank(tmp_path, places):
    """Both ends of a shared embedding wherever they are; every rank is written."""
    path = tmp_path / "mine.csv"
    path.write_text("".join(f"{s}F0,{s}B0\n" for s in places), "utf-8")
    home = tuple(places.index(stage) for stage in range(4))
    text = TEXT.replace("layers=6", "layers=4") + ",tied=yes"
    step = _step(Mesh(pp=4, dp=2), text, micros=1, schedule=str(path), placed=home)[2]

    assert {0, 2, 4, 6} == {each.rank for each in step.ran}
    ends = {each.node.group for each in step.ran if each.node.name == "embedding"}
    assert {(2 * home[0], 2 * home[3])} == ends


@pytest.mark.parametrize(
    ("mesh", "more"),
    [
        (Mesh(dp=8), {}),
        (Mesh(tp=2, pp=4), {}),
        (Mesh(tp=2, dp=4), {"optimizer": "fsdp"}),
        (Mesh(dp=8, copies=2), {"optimizer": "fsdp"}),
        (Mesh(pp=2, dp=4), {"schedule": "interleaved", "virtual": 3}),
    ],
)
def test_the_critical_path_is_all_of_the_step(mesh, more):
    """Its pieces follow each other without a gap, from the start to the end."""
    step = _step(mesh, overlap=BOTH, **more)[2]

    assert sum(piece.seconds for piece in step.path) == pytest.approx(step.seconds)
    assert all(one.end == other.begin for one, other in pairwise(step.path))
    assert {"forward", "backward", "update"} <= {piece.kind for piece in step.path}
    assert ("transfer" in {piece.kind for piece in step.path}) == (mesh.pp > 1 or "data" in step.by)


def test_what_is_left_for_later_hides_nothing():
    """Of zero bubble's backward pass for inputs, what sums them is exposed."""
    whole, costs, _ = _step(Mesh(tp=8), overlap=frozenset({"tp_grad"}), sequence_parallel=True)
    passes = MeshPasses(whole, costs)
    both, one = (passes.of(Action(0, kind, 0)).by["tp"] for kind in ("B", "I"))

    assert one > 1.05 * both


def test_two_passes_at_once_slow_down_beside_what_they_hide():
    """By as much as kernels lose beside all-to-alls, unless these take longer."""
    facts = {"text": EXPERTS, "schedule": "dualpipe", "virtual": 2, "micros": 8}
    jobs = [_step(Mesh(pp=2, dp=4, ep=4), interference=k, **facts)[:2] for k in (0.0, 2.0)]
    action = Action(1, "F", 4, Action(2, "B", 0))
    none, some = (MeshPasses(job, costs).of(action).by for job, costs in jobs)

    assert none["compute"] == some["compute"]
    assert none["ep"] < some["ep"]


def test_op_by_op_costs_half_of_a_forward_pass():
    """About: k, o and w3 of seven products, and what moves bytes."""
    full, op, none = (
        _step(Mesh(dp=8), text=LLAMA, attention="fused", recompute=policy)[2].by["compute"]
        for policy in ("full", "op", "none")
    )

    assert 0.35 < (op - none) / (full - none) < 0.75


def test_recomputation_costs_a_forward_pass():
    """Full: about a third more kernels; selective: less than that, more than none."""
    full, some, none = (
        _step(Mesh(dp=8), recompute=policy)[2].by["compute"]
        for policy in ("full", "selective", "none")
    )

    assert none < some < full
    assert full == pytest.approx(none * 4 / 3, rel=0.1)


def test_small_sums_by_a_kernel_are_faster_and_leave_all_else_as_it_is():
    """Tensor parallel ranks of H100 wait less for sums of half a megabyte."""
    setup, mesh = Setup("dgx-h100", "nccl"), Mesh(tp=8)
    by = {
        name: simulate_mesh(job(mesh, TEXT, tensor_all_reduce=name), Costs(setup, mesh)).by
        for name in ("nccl", "multimem")
    }
    assert by["multimem"]["tp"] < by["nccl"]["tp"] / 1.5
    assert by["multimem"]["compute"] == by["nccl"]["compute"]


def test_unlucky_draws_of_gpus_take_longer():
    """By what computes only; the expected step is between half and 90 % of all draws."""
    setup, gpu = _setup(), replace(GPU, spread=0.02)
    work = job(Mesh(tp=2, dp=4), TEXT, optimizer="distributed", gpu=gpu)
    costs = Costs(setup, work.mesh)
    p50, p90, p99 = (
        simulate_mesh(replace(work, part=part), costs).seconds for part in (0.5, 0.9, 0.99)
    )
    expected = simulate_mesh(work, costs).seconds
    even = simulate_mesh(replace(work, gpu=GPU), costs)

    assert even.seconds < p50 < expected < p90 < p99
    longer = even.by[COMPUTE] * (gpu.slowest(8, 0.99) - 1.0)
    assert p99 - even.seconds == pytest.approx(longer, rel=1e-6)
    assert simulate_mesh(replace(work, gpu=GPU, part=0.99), costs).seconds == even.seconds
