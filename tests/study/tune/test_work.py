"""What the work of a question counts for: the same on every machine, by any number of processes."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from simreduce.computing.workers import time_left, within
from simreduce.study.scenario import with_step
from simreduce.study.scenario_files import build_meshes, load_replicas, load_scenario
from simreduce.study.tune.meshes import rank_meshes
from simreduce.study.tune.rank import rank
from simreduce.study.tune.steps import rank_steps
from simreduce.study.tune.whatif_steps import look_at_step
from simreduce.training.stragglers import repeat
from tests.thorough import slow

MACHINE = 'topology = "switch:4"\nworkload = "alexnet"\n'
LARGE = 'topology = "dgx-a100x16"\nworkload = "alexnet"\nstrategies = ["nccl", "nccl+ddp"]\n'
STEP = '[step]\nbatch = 16\nrate = "20 TFLOP/s"\n'
REPLICAS = """
topology = "p3-16xlargex2"
[replicas]
workers = ["n0.gpu0", "n1.gpu0"]
servers = 1
size = "1 MB"
compute = "10 ms"
updates = 5
repetitions = 8
"""


def _meshes():
    table = {"mesh": "auto", "global_batch": 32}
    model = "transformer:layers=4,hidden=1024,heads=16,vocab=51200,seq=512"
    known = {"topology": "dgx-a100", "workload": model, "step": table}
    return build_meshes(Path("mine.toml"), known)


def _rank_step(text, write, workers):
    """With what the page looks at closely, which this process finds out."""
    ranking = rank_steps(with_step(load_scenario(write("step.toml", text))), workers)
    return _figures(ranking)


def _figures(ranking):
    rows = [(row.names, row.seconds) for row in ranking.candidates]
    return rows, [saving.seconds for saving in look_at_step(ranking).savings]


def _rank_meshes(_, workers):
    return _figures(rank_meshes(_meshes(), workers))


def _repeat(write, workers):
    q = load_replicas(write("replicas.toml", REPLICAS)).question
    return repeat(q.job, q.updates, q.repetitions, workers).updates.tolist()


QUESTIONS = {
    "run": lambda write, workers: (
        rank(load_scenario(write("run.toml", MACHINE)), workers).candidates
    ),
    "step": partial(_rank_step, f'{MACHINE}strategies = ["nccl+fusion", "ring"]\n{STEP}'),
    "composed": partial(_rank_step, LARGE + STEP),
    "meshes": _rank_meshes,
    "replicas": _repeat,
}
LONG = ["run", "composed"]


@pytest.mark.parametrize("asked", [*slow(LONG), *[each for each in QUESTIONS if each not in LONG]])
def test_work_counts_alike_by_any_number_of_processes_and_whatever_is_known_already(asked, write):
    spent, found = [], []
    for workers in (1, 2, 1):
        with within(1e3, of_work=True):
            found.append(QUESTIONS[asked](write, workers))
            spent.append(1e3 - time_left())
    assert spent[0] > 0.01
    assert all(one == pytest.approx(other, rel=1e-9) for one, other in pairwise(spent))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("part", [0.4, *slow([0.1])])
def test_a_ranking_that_a_budget_of_work_ends_is_the_same_by_any_number_of_processes(part, write):
    scenario = load_scenario(write("run.toml", MACHINE))
    with within(1e3, of_work=True):
        whole = rank(scenario)
        most = part * (1e3 - time_left())
    found = []
    for workers in (1, 2):
        with within(most, of_work=True):
            found.append(rank(scenario, workers))
    assert found[0].candidates == found[1].candidates
    assert found[0].hurried
    assert found[0].untried == found[1].untried > 0
    assert len(found[0].candidates) < len(whole.candidates)
