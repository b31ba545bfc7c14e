"""All meshes of a job: what the search finds, and what it says of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from simreduce.errors import InputError, ScenarioError
from simreduce.study.scenario import build_meshes
from simreduce.study.tune.meshes import best_execution, best_for, rank_meshes, simulate_best
from simreduce.training.mesh.costs import Costs
from simreduce.training.mesh.simulate import at_least, simulate_mesh
from simreduce.training.replay import replay_execution

MODEL = "transformer:layers=8,hidden=2048,heads=16,vocab=51200,seq=1024"


def scenario(mesh, workload=MODEL, topology="dgx-a100", **step):
    table = {"mesh": mesh, "global_batch": 32, **step}
    return build_meshes(
        Path("mine.toml"), {"topology": topology, "workload": workload, "step": table}
    )


@pytest.fixture(scope="module")
def ranked():
    asked = scenario("auto")
    return asked, rank_meshes(asked)


def test_the_search_finds_the_best_of_all(ranked):
    """As if every job were simulated; each takes at least its bound."""
    asked, found = ranked
    setup, known = asked.setup, {}
    seconds = []
    for job in asked.question.jobs:
        costs = known.setdefault(job.mesh, Costs(setup, job.mesh))
        step = simulate_mesh(job, setup, costs)
        assert at_least(job, costs) <= step.seconds * (1 + 1e-9)
        seconds.append(step.seconds)

    assert found.best.seconds == min(seconds)
    assert len(found.steps) + found.bounded == len(asked.question.jobs)
    assert found.bounded > 0


def test_steps_are_in_order_and_fit(ranked):
    _, found = ranked

    assert [each.seconds for each in found.steps] == sorted(each.seconds for each in found.steps)
    assert all(found.fits(each) for each in found.steps)


@pytest.mark.parametrize(
    ("mesh", "more"),
    [
        ("tp=4,pp=2", {"overlap": [], "interference": 0}),
        ("tp=2,pp=2", {"overlap": [], "interference": 0, "optimizer": "replicated"}),
        ("tp=8", {"overlap": [], "interference": 0, "recompute": "full"}),
        ("tp=2,pp=2", {"sequence_parallel": False, "overlap": [], "interference": 0}),
    ],
)
def test_all_ranks_on_shared_links_take_as_long_as_those_that_stand_for_them(mesh, more):
    """Where nothing hides: every call of every rank is a node, and all of them share the links."""
    found = rank_meshes(scenario(mesh, global_batch=8, **more))
    whole = best_execution(found)
    ran = replay_execution(whole, found.scenario.setup, "nccl")

    assert [*range(8)] == [*whole.nodes]
    assert ran.seconds == pytest.approx(found.best.seconds, rel=1e-3)


def test_what_hides_in_a_pass_runs_beside_its_kernels():
    """Ring of keys and values, sums beside gradients, reductions, sends: within a few percent."""
    overlap = ["tp_grad", "grad_reduce", "p2p"]
    found = rank_meshes(scenario("tp=2,cp=2,pp=2", overlap=overlap, interference=0, global_batch=8))
    ran = replay_execution(best_execution(found), found.scenario.setup, "nccl")

    assert ran.seconds == pytest.approx(found.best.seconds, rel=0.05)


def test_too_many_nodes_are_those_of_the_first_pipeline():
    found = rank_meshes(scenario("tp=2,pp=2", global_batch=8))
    every, first = best_execution(found), best_execution(found, most=100)

    assert {rank: every.nodes[rank] for rank in (0, 4)} == first.nodes
    [note] = first.notes
    assert note.startswith("of 8 ranks, those of the first pipeline")


def test_what_a_step_spends_adds_up(ranked):
    """Of the rank that ends last, to all of its time; its timeline is kept on request."""
    _, found = ranked
    closer = simulate_best(found)

    for step in found.steps:
        assert sum(step.by.values()) == pytest.approx(step.seconds, rel=1e-9)
        assert not step.ran
    assert found.best.seconds == closer.seconds == max(each.end for each in closer.ran)


def test_a_program_gets_the_fastest_that_it_can_run(ranked):
    _, found = ranked

    assert "1f1b" == best_for(found, "deepspeed").job.schedule
    with pytest.raises(InputError, match="no target"):
        best_for(found, "keras")


def test_meshes_that_do_not_fit_come_last():
    """On GPUs of 40 GB; every mesh that is named is simulated."""
    named = scenario(["dp=8", "tp=8"], "llama-3-8b", micro_batch=1, global_batch=8)
    found = rank_meshes(named)

    assert [True, False] == [found.fits(each) for each in found.steps]
    assert "tp=8" == found.best.job.mesh.text


def test_more_waits_take_longer():
    """A pipeline has a bubble, and sums of tensor parallel ranks take time; both are said."""
    found = rank_meshes(scenario(["dp=8", "pp=4", "tp=4"], micro_batch=1))
    spent = {each.job.mesh.text: each.by for each in found.steps}

    assert spent["tp=4,dp=2"]["tp"] > 0.0
    assert spent["pp=4,dp=2"]["pipeline"] > 0.0
    assert "tp" not in spent["dp=8"]
    assert "pipeline" not in spent["dp=8"]


def test_links_that_differ_are_refused():
    table = {"mesh": "dp=8", "global_batch": 32}
    asked = {
        "topology": "dgx-a100",
        "workload": MODEL,
        "step": table,
        "link_factors": {"xgmi": 0.5},
    }
    with pytest.raises(ScenarioError, match="link_factors: one group of ranks stands for all"):
        build_meshes(Path("mine.toml"), asked)
