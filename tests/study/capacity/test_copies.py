"""Copies of jobs on many machines: as on each alone, the cheapest, and every fault at once."""

from __future__ import annotations

import json
import math

import pytest

from simreduce.errors import InputError
from simreduce.report.capacity import CAPACITY_JOBS
from simreduce.report.capacity_page import copies_text
from simreduce.study.capacity import load_question
from simreduce.study.capacity.answer import answer_copies, cell_of
from simreduce.study.capacity.choose import (
    COPY,
    Configuration,
    CopiesOffer,
    EvaluatedCluster,
    offer_copies,
    rank_offers,
)
from simreduce.study.scenario_files import read_scenario_file
from simreduce.study.sweep import Figures
from simreduce.study.sweep.running import CellRunner
from simreduce.study.tune.jobs import fit_jobs

NETWORKS = ("nics=1,radix=4,oversubscription=4", "nics=1,radix=4")
MIX = (
    f'topology = "dgx1vx12,fabric=fat_tree,{NETWORKS[0]}"\n'
    '[[job]]\nname = "a"\nnodes = 5\nworkload = "bytes:16M"\ncount = 2\n'
)
PLAN = f"""
jobs = "mix.toml"
[target]
slowdown = 1.05
copies = 1
hourly = "1000 USD/h"
hourly_per_copy = "1000 USD/h"
[prices.machines.dgx1v]
price = "10 USD/h"
[prices.networks.ib_edr]
cable = "1 USD/h"
[[options]]
machine = "dgx1v"
nodes = [4, 5, 12]
network = ["fat_tree,{NETWORKS[0]}", "fat_tree,{NETWORKS[1]}"]
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """The question of files with these texts, in the folder at hand."""
    monkeypatch.chdir(tmp_path)

    def _load(plan: str = PLAN, mix: str = MIX):
        (tmp_path / "mix.toml").write_text(mix, "utf-8")
        (tmp_path / "plan.toml").write_text(plan, "utf-8")
        return load_question("plan.toml")

    return _load


@pytest.fixture(scope="module")
def runner():
    """One for all, so that each option is simulated once."""
    with CellRunner(workers=0) as found:
        yield found


@pytest.mark.slow
def test_copies_are_those_that_fit_on_each_machine_alone(load, runner):
    question = load()
    found = answer_copies(question, runner.rows)
    path, document = read_scenario_file("mix.toml")

    alone = {}
    for option in question.options:
        if option.nodes >= 5:
            document["topology"] = option.scenario["topology"]
            *_, alone[option.key] = fit_jobs(path, document, 1.05)
    assert {each.candidate.key: each.candidate.copies for each in found.offers} == {
        key: each.fit.copies for key, each in alone.items()
    }
    assert [each.candidate.row.limit for each in found.offers] == [
        each.fit.limit for each in alone.values()
    ]
    assert {1, 2} == {each.fit.copies for each in alone.values()}
    assert [name for name, _ in found.refused] == [o.key.label for o in question.options[:2]]
    assert all("5 nodes asked for, and 4 of 4 are free" in reason for _, reason in found.refused)


@pytest.mark.parametrize(
    ("target", "best"),
    [
        ("copies = 2", lambda hourly, copies: hourly if copies >= 2 else math.inf),
        ("copies = 1", lambda hourly, copies: hourly if copies >= 1 else math.inf),
        ("", lambda hourly, copies: hourly / copies if copies else math.inf),
        ('hourly = "100 USD/h"',
         lambda hourly, copies: hourly / copies if copies and hourly <= 100 else math.inf),
        ("copies = 3", lambda _, __: math.inf),
        ('hourly_per_copy = "1 USD/h"', lambda _, __: math.inf),
    ],
)  # fmt: skip
def test_the_choice_is_the_cheapest_of_all(load, runner, target, best):
    """By brute force, with pieces that are counted by hand."""
    limits = 'copies = 1\nhourly = "1000 USD/h"\nhourly_per_copy = "1000 USD/h"'
    question = load(PLAN.replace(limits, target))
    found = answer_copies(question, runner.rows)

    rows = runner.rows([cell_of(option, question.folder) for option in question.options])
    costs = {}
    for option, row in zip(question.options, rows, strict=True):
        if row.state == "done":
            offer = next(o for o in found.offers if o.candidate.key == option.key)
            cables = offer.candidate.quantities.get("networks.ib_edr.cable", 0)
            costs[option.key] = best(10 * option.nodes + cables, row.fit)
    least = min(costs.values())

    assert (found.chosen is None) == math.isinf(least)
    if found.chosen:
        assert least == costs[found.chosen.candidate.key]
        assert found.chosen == found.ranked[0]
    else:
        assert copies_text(found).splitlines()[1] == "No option meets the target."


def test_of_clusters_whose_copies_cost_the_same_the_cheaper_one_comes_first():
    """Even if it has more nodes; and of those that cost the same, the one with cheaper copies."""

    def offered(nodes: int, hourly: float, copies: int) -> CopiesOffer:
        key, row = Configuration(*[f"{nodes}"] * 7), Figures(state="done", fit=copies)
        cluster = EvaluatedCluster(key, nodes, nodes, {}, row)
        return CopiesOffer(hourly, (), cluster, hourly / copies)

    two, four, eight = offered(2, 20.0, 2), offered(4, 10.0, 1), offered(8, 20.0, 4)

    assert [eight, four, two] == rank_offers([two, four, eight], COPY)
    assert [four, eight, two] == rank_offers([two, four, eight], "hourly")


def test_what_is_missed_is_named(load, runner):
    question = load(PLAN.replace("copies = 1", "copies = 2").replace("1000", "100"))
    found = answer_copies(question, runner.rows)
    cluster = found.offers[-1].candidate

    missed = {each.candidate.nodes: each.misses for each in found.offers[:3]}
    assert {5: ("copies",), 12: ("copies", "hourly", "hourly_per_copy")} == missed
    assert cluster.copies == 2
    assert offer_copies(cluster, question.prices, question.target).misses == ("hourly",)
    document = json.loads(json.dumps(CAPACITY_JOBS.write(found)))
    assert document["choice"] is None
    assert document["options"][-1]["copies"] == 2
    assert document["options"][-1]["limit"] == "10 of 12 nodes are taken"


@pytest.mark.parametrize(
    ("plan", "mix", "faults"),
    [
        (("nodes =", 'method = "fsdp"\nstrategy = "ring"\nbatch = 2\nstep.batch = 3\nnodes ='),
         None,
         [f"plan.toml: options[0].{key}: is for one training step; leave it out beside jobs"
          for key in ("method", "strategy", "batch", "step")]),
        (("slowdown = 1.05", "slowdwn = 1.05\nefficiency = 0.9"), None,
         ["plan.toml: target.slowdwn: unknown key (did you mean 'slowdown'?)",
          "plan.toml: target.slowdown: missing; how many times as long as alone",
          "plan.toml: target.efficiency: is for one training step"]),
        (('hourly_per_copy = "1000 USD/h"', 'hourly_per_copy = "10 EUR/h"'), ("16M", "16Q"),
         ["plan.toml: target.hourly_per_copy: is in EUR, prices are in USD; convert it",
          "plan.toml: jobs: mix.toml: job[0].workload: bytes:16Q: '16Q' is not a size"]),
        (('fat_tree,nics=1,radix=4"', 'fat_tre"'), ("count", "cuont"),
         ["plan.toml: options[0].network[1]: unknown fabric 'fat_tre' (did you mean 'fat_tree'?)",
          "plan.toml: jobs: mix.toml: job[0].cuont: unknown key (did you mean 'count'?)"]),
        (("dgx1v", "dgx1v"), ("nodes = 5", "nodes = [0]"),
         ["plan.toml: jobs: mix.toml: job[0].nodes: say how many nodes, not which"]),
        (('jobs = "mix.toml"', 'jobs = "mixx.toml"'), None,
         ["plan.toml: jobs: mixx.toml: there is no such file"]),
        (('jobs = "mix.toml"', 'jobs = "../mix.toml"'), None,
         ["plan.toml: jobs: must be the name of a file beside this one, without a folder"]),
        (('jobs = "mix.toml"', 'jobs = ""'), None,
         ["plan.toml: jobs: must be the name of a file beside this one, without a folder"]),
        (('jobs = "mix.toml"', 'workload = "alexnet"\nstep = {batch = 1, time = "1 ms"}'), None,
         [f"plan.toml: target.{key}: is for jobs; give their file as jobs"
          for key in ("copies", "hourly_per_copy", "slowdown")]),
    ],
)  # fmt: skip
def test_every_fault_is_said_at_once(load, plan, mix, faults):
    with pytest.raises(InputError) as caught:
        load(PLAN.replace(*plan), MIX.replace(*mix) if mix else MIX)
    found = caught.value.problems

    assert len(found) == len(faults)
    for fault in faults:
        assert any(each.startswith(fault) for each in found), (fault, found)


def test_what_the_files_of_jobs_have_is_part_of_the_question(load, tmp_path):
    """Another gradient in a file that a job names is another cell."""
    (tmp_path / "g.csv").write_text("name,elements,dtype\na,1000,float32\n", "utf-8")
    mix = MIX.replace("bytes:16M", "g.csv")
    question = load(PLAN, mix)
    cell = cell_of(question.options[0], question.folder)

    assert "job[0].workload" in cell.contents
