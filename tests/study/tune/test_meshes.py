"""All meshes of a job: what the search finds, and what it says of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simreduce.errors import ScenarioError
from simreduce.export.meshes import TARGETS, why_no_mesh
from simreduce.study.scenario import build_meshes
from simreduce.study.tune.meshes import choice_of_job, rank_meshes, simulate_best
from simreduce.training.mesh.costs import Costs
from simreduce.training.mesh.simulate import at_least, simulate_mesh

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


def test_what_a_step_spends_adds_up(ranked):
    """Of the rank that ends last, to all of its time; its timeline is kept on request."""
    _, found = ranked
    closer = simulate_best(found)

    for step in found.steps:
        assert sum(step.by.values()) == pytest.approx(step.seconds, rel=1e-9)
        assert not step.ran
    assert found.best.seconds == closer.seconds == max(each.end for each in closer.ran)


@pytest.mark.parametrize("target", TARGETS)
def test_a_program_gets_the_fastest_that_it_can_run(ranked, target):
    """As if every job that it can run were simulated."""
    asked, _ = ranked
    found = rank_meshes(replace(asked, framework=target))
    able = [job for job in asked.question.jobs if not why_no_mesh(target, choice_of_job(job))]
    seconds = [simulate_mesh(job, asked.setup, Costs(asked.setup, job.mesh)).seconds
               for job in able]  # fmt: skip

    assert able
    assert found.best.seconds == min(seconds)
    assert len(found.steps) + found.bounded == len(able)


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
