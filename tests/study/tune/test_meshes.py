"""All meshes of a job: what the search finds, and what it says of the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simreduce import units
from simreduce.errors import ScenarioError
from simreduce.export.frameworks import MESH_PROGRAMS
from simreduce.study.scenario_files import build_meshes, load_meshes
from simreduce.study.tune.meshes import rank_meshes
from simreduce.study.tune.whatif import network_changes
from simreduce.study.tune.whatif_steps import (
    look_at_step,
    percentiles_of_step,
)
from simreduce.training.mesh import ORDER, Mesh
from simreduce.training.mesh.held import held_by
from simreduce.training.mesh.passes import Costs, MeshPasses
from simreduce.training.mesh.pipeline import load_schedule
from simreduce.training.mesh.write import at_least, simulate_mesh, write_ranks
from simreduce.training.recorded import replay_execution
from tests.thorough import THOROUGH

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


@pytest.fixture(scope="module")
def everything(ranked):
    """Each job of the search with its bound and its step."""
    asked, _ = ranked
    costs = Costs(asked.setup, Mesh())
    known = [(job, costs.of_mesh(job.mesh)) for job in asked.question.jobs]
    return [(job, at_least(job, each), simulate_mesh(job, each)) for job, each in known]


@pytest.mark.slow
def test_the_search_finds_the_best_of_all(ranked, everything):
    """As if every job were simulated; each takes at least its bound."""
    asked, found = ranked
    kinds = {(job.schedule, job.virtual) for job in asked.question.jobs}

    assert {
        ("zbv", 2),
        ("dualpipe", 2),
        ("zero_bubble", 4),
        ("interleaved", 4),
        ("1f1b", 1),
    } < kinds
    for job, bound, step in everything:
        assert bound <= step.seconds * (1 + 1e-9), job.text
    assert found.recommended.seconds == min(step.seconds for _, _, step in everything)
    assert len(found.candidates) + found.bounded == len(asked.question.jobs)
    assert found.bounded > 0


def test_an_interrupt_before_bounds_leaves_a_mesh_that_fits():
    """The first outcome is the step of one mesh, and a stop then loses nothing."""
    asked = scenario("auto")

    def stop_after_one(coming, _):
        yield next(iter(coming))
        raise KeyboardInterrupt

    found = rank_meshes(asked, 1, stop_after_one)

    assert found.untried == len(asked.question.jobs) - 1
    assert found.recommended.fit.fits
    assert found.recommended.job.recompute == "none"


@pytest.mark.slow
def test_near_meshes_come_with_their_best_choice(ranked, everything, monkeypatch):
    """Of each mesh and schedule near the best, as if every job were simulated."""
    monkeypatch.setattr("simreduce.study.tune.meshes._NEAR", 1.5)
    found = rank_meshes(ranked[0])
    best: dict[object, float] = {}
    usual = {job: step.seconds for job, _, step in everything}
    for job, _, step in everything:
        twin = replace(job, mesh=replace(job.mesh, order=ORDER))
        if twin != job and usual[twin] == step.seconds:  # the order of ranks changes nothing
            continue
        alike = job.mesh, job.schedule
        best[alike] = min(step.seconds, best.get(alike, step.seconds))
    shown = {alike: seconds for alike, seconds in best.items()
             if seconds <= 1.5 * found.recommended.seconds}  # fmt: skip
    told: dict[object, float] = {}
    for each in found.candidates:
        told.setdefault((each.job.mesh, each.job.schedule), each.seconds)

    assert len(shown) > 1
    assert shown.items() <= told.items()


def test_steps_are_in_order_and_fit(ranked):
    _, found = ranked

    assert [each.seconds for each in found.candidates] == sorted(
        each.seconds for each in found.candidates
    )
    assert not any(each.misfit for each in found.candidates)


def test_one_row_stands_for_each_mesh(ranked):
    """The simplest of those within 1 % of its fastest; so is the advice, among all meshes."""
    _, found = ranked
    meshes = [(job.mesh.text, rows[0].misfit) for job, rows in found.folded.items()]

    assert len(meshes) == len({*meshes}) < len(found.candidates)
    assert sum(map(len, found.folded.values())) == len(found.candidates)
    for job, rows in found.folded.items():
        good = [row for row in rows if row.seconds <= rows[0].seconds * 1.01]
        assert job in [row.job for row in good]
        assert job.complexity == min(row.job.complexity for row in good)
    assert found.recommended.job in found.folded
    assert found.recommended.seconds <= found.candidates[0].seconds * 1.01
    assert found.job.words in found.advice[0].do


def test_meshes_that_are_named_stand_for_themselves():
    """Two ways to use a mesh that a user compares are two rows."""
    found = rank_meshes(scenario(["tp=2"], micro_batch=[1, 2]))

    assert [[row] for row in found.candidates] == list(found.folded.values())


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
    whole = found.case.write()
    ran = replay_execution(whole, found.scenario.setup, "nccl")

    assert [*range(8)] == [*whole.nodes]
    assert ran.seconds == pytest.approx(found.recommended.seconds, rel=1e-3)


@pytest.mark.slow
def test_what_hides_in_a_pass_runs_beside_its_kernels():
    """Ring of keys and values, sums beside gradients, reductions, sends: within a few percent."""
    overlap = ["tp_grad", "grad_reduce", "p2p"]
    found = rank_meshes(scenario("tp=2,cp=2,pp=2", overlap=overlap, interference=0, global_batch=8))
    ran = replay_execution(found.case.write(), found.scenario.setup, "nccl")

    assert ran.seconds == pytest.approx(found.recommended.seconds, rel=0.05)


def test_too_many_nodes_are_those_of_the_first_pipeline():
    found = rank_meshes(scenario("tp=2,pp=2", global_batch=8))
    passes = MeshPasses(found.job, Costs(found.scenario.setup, found.job.mesh))
    every, first = found.case.write(), write_ranks(found.job, passes, most=100)

    assert {rank: every.nodes[rank] for rank in (0, 4)} == first.nodes
    [note] = first.notes
    assert note.startswith("of 8 ranks, those of the first pipeline")


def test_what_a_step_spends_adds_up(ranked):
    """Of the rank that ends last, to all of its time; its timeline is kept on request."""
    _, found = ranked
    closer = found.closely

    for step in (each.step for each in found.candidates):
        assert sum(step.by.values()) == pytest.approx(step.seconds, rel=1e-9)
        assert not step.ran
    assert found.recommended.seconds == closer.seconds == max(each.end for each in closer.ran)


def test_percentiles_of_the_best_step(ranked):
    """None where nobody says that GPUs differ, as of A100."""
    _, found = ranked
    best = found.recommended
    apart = replace(best, job=replace(best.job, gpu=replace(best.job.gpu, spread=0.02)))
    by = percentiles_of_step(replace(found, candidates=(apart, *found.candidates[1:])))

    assert percentiles_of_step(found) == {}
    assert list(by) == ["p50", "p90", "p99"]
    assert best.seconds < by["p50"] < by["p90"] < by["p99"] < best.seconds * 1.1


@pytest.mark.slow
@pytest.mark.parametrize(("target", "program"), MESH_PROGRAMS.items())
def test_a_program_gets_the_fastest_that_it_can_run(ranked, everything, target, program):
    """As if every job that it can run were simulated."""
    asked, _ = ranked
    found = rank_meshes(replace(asked, framework=target))
    able = [step.seconds for job, _, step in everything if not program.why_not(job)]

    assert 0 < len(able) < len(asked.question.jobs)
    assert found.recommended.seconds == min(able)
    assert len(found.candidates) + found.bounded == len(able)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{}, {"micro_batch": 1, "order": "tp-cp-ep-pp-dp"}])
def test_experts_and_memory(changes):
    """The best of what fits, of all that `auto` tries of a model with experts: as if every job were
    simulated, with as many micro batches as it has.
    """
    model = "transformer:layers=8,hidden=4096,heads=32,vocab=51200,seq=2048,experts=16,topk=2"
    asked = scenario(
        "auto", f"{model},expert_ffn=8192", global_batch=16, recompute="none", **changes
    )
    found, costs = rank_meshes(asked), Costs(asked.setup, Mesh())
    fitting = []
    for job in asked.question.jobs:
        schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
        peak = max(held_by(job, schedule, rank).peak for rank in range(job.mesh.pp))
        if peak <= found.memory:
            fitting.append(simulate_mesh(job, costs.of_mesh(job.mesh)).seconds)

    assert 0 < len(fitting) < len(asked.question.jobs)
    assert found.recommended.seconds == min(fitting)


def test_meshes_that_do_not_fit_come_last():
    """On GPUs of 40 GB; every mesh that is named is simulated."""
    named = scenario(["dp=8", "tp=8"], "llama-3-8b", micro_batch=1, global_batch=8)
    found = rank_meshes(named)

    assert [True, False] == [each.fit.fits for each in found.candidates]
    assert "tp=8" == found.job.mesh.text


def test_more_waits_take_longer():
    """A pipeline has a bubble, and sums of tensor parallel ranks take time; both are said."""
    found = rank_meshes(scenario(["dp=8", "pp=4", "tp=4"], micro_batch=1))
    spent = {each.job.mesh.text: each.step.by for each in found.candidates}

    assert spent["tp=4,dp=2"]["tp"] > 0.0
    assert spent["pp=4,dp=2"]["pipeline"] > 0.0
    assert "tp" not in spent["dp=8"]
    assert "pipeline" not in spent["dp=8"]


def test_links_that_differ_are_refused():
    """By their names, nodes, or if they are cut. Slower classes take longer."""
    named = {"gpu0<>nvswitch0": 0.5, "gpu0": 0.5, "nvlink3": 0.0}
    asked = {
        "topology": "dgx-a100",
        "workload": MODEL,
        "step": {"mesh": "tp=8", "global_batch": 32},
    }
    for name, factor in named.items():
        with pytest.raises(ScenarioError, match="one group of ranks stands for all alike"):
            build_meshes(Path("mine.toml"), {**asked, "link_factors": {name: factor}})
    slower = build_meshes(Path("mine.toml"), {**asked, "link_factors": {"nvlink3": 0.5}})
    usual = build_meshes(Path("mine.toml"), asked)

    assert rank_meshes(slower).recommended.seconds > rank_meshes(usual).recommended.seconds


def test_all_that_gpus_do_is_twice_as_fast():
    """What moves takes as long, where nothing hides it."""
    slow, fast = (
        rank_meshes(scenario("tp=2,pp=2", speed=speed, overlap=[])).recommended.step.by
        for speed in (1.0, 2.0)
    )

    for key in ("compute", "update"):
        assert slow[key] == pytest.approx(2.0 * fast[key], rel=1e-9)
    assert slow["tp"] == pytest.approx(fast["tp"], rel=1e-9)


def test_gpt_3_has_thousands_of_meshes():
    """On 512 GPUs."""
    asked = scenario("auto", "gpt-3-175b", "dgx-h100x64", global_batch=1536)

    assert len(asked.question.jobs) > 4000


@pytest.mark.slow
def test_bounds_cut_nearly_all_of_them():
    """Those near the best are left."""
    few = "llama-3-8b", "dgx-h100x4", 64
    model, machine, batch = ("gpt-3-175b", "dgx-h100x64", 1536) if THOROUGH else few
    asked = scenario("auto", model, machine, global_batch=batch)
    found = rank_meshes(asked)

    assert len(found.candidates) < 0.05 * len(asked.question.jobs)
    assert found.recommended.fit.fits


def test_what_would_help_is_what_the_changed_machine_gives():
    """A wider network is simulated as such, though costs of the given one are kept."""
    found = rank_meshes(scenario("tp=8,pp=2", topology="dgx-h100x2"))
    taken = {each.change.figure: each.seconds for each in look_at_step(found).savings}
    [wider] = network_changes(found.scenario.setup.topology)
    again = simulate_mesh(found.job, Costs(wider.apply(found.scenario.setup), found.job.mesh))

    assert again.seconds < found.recommended.seconds
    assert again.seconds == taken["lanes"]


LARGE = 'topology = "{}"\nworkload = "llama-3-70b"\n[step]\nglobal_batch = 128\n{}\n'


@pytest.mark.parametrize(
    ("machine", "mesh", "says", "then_on", "then"),
    [
        (
            "dgx-h100x4", 'mesh = "tp=8,dp=4"', 'optimizer = "fsdp"',
            "dgx-h100x4", 'mesh = "tp=8,dp=4"\noptimizer = "fsdp"',
        ),
        (
            "dgx-h100", 'mesh = "tp=2"', '4 times as many GPUs, as mesh = "tp=8,dp=4" with',
            "dgx-h100x4", 'mesh = "tp=8,dp=4"\nrecompute = "full"\noptimizer = "fsdp"',
        ),
        ("dgx-h100x8", 'mesh = "tp=8,pp=4"', "", "", ""),
    ],
)  # fmt: skip
def test_a_mesh_that_does_not_fit_says_what_would_and_keeps_the_promise(
    tmp_path, machine, mesh, says, then_on, then
):
    path = tmp_path / "large.toml"
    path.write_text(LARGE.format(machine, mesh))
    found = rank_meshes(load_meshes(str(path)))

    assert bool(says) == found.recommended.misfit
    assert found.fits_with.startswith(says)
    if says:
        path.write_text(LARGE.format(then_on, then))
        again = rank_meshes(load_meshes(str(path))).recommended.fit
        assert again.fits
        assert f"({units.format_size(again.needed)} a GPU)" in found.fits_with


def test_what_would_fit_by_another_stack_can_be_asked(tmp_path):
    """torchtitan's selective checkpointing op by op is not counted of unfused attention."""
    path = tmp_path / "unfused.toml"
    text = LARGE.replace("70b", "8b").format("dgx-h100", 'mesh = "tp=2"\nkernels = "torchtitan"')
    path.write_text(text + 'attention = "unfused"\n')
    found = rank_meshes(load_meshes(str(path)))
    says, _, _ = found.fits_with.partition(" (")
    path.write_text(text + f'attention = "unfused"\n{says}\n')

    assert says == 'recompute = "selective"'
    assert rank_meshes(load_meshes(str(path))).recommended.fit.fits
