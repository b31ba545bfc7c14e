"""Ranking again with what is known from earlier rankings: the same results, for less work."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from simreduce.engine import Disturbance, Fault
from simreduce.engine.setup import Setup
from simreduce.plan import verify
from simreduce.planners.nccl import Settings
from simreduce.planners.strategy import parse_strategy
from simreduce.report.ranking import RUN
from simreduce.study.scenario import Scenario
from simreduce.study.tune import plan_cache
from simreduce.study.tune.plan_cache import PlanCache
from simreduce.study.tune.rank import rank
from simreduce.topology import load_topology
from simreduce.workload.loader import load_workload

MACHINE = load_topology("v100-mesh-4")
LINK = MACHINE.links[0]
NAMES = "nccl", "nccl:tree", "ring", "ring+packs=1", "trees", "chain", "pscpu", "nccl+ddp"


def scenario(setup=None, workload="bytes:4MiB", names=NAMES):
    strategies = tuple(map(parse_strategy, names))
    return Scenario(
        "", "", setup or Setup(MACHINE, "by_strategy"), load_workload(workload), strategies
    )


def setup(**changes):
    return Setup(MACHINE, "by_strategy").but(**changes)


ASKED = {
    "the same": scenario(),
    "another size": scenario(workload="bytes:1MiB"),
    "slow links": scenario(setup(machine=MACHINE.scale_links({LINK.link_class: 0.5}))),
    "one slow link": scenario(setup(machine=MACHINE.scale_links({LINK.name: 0.25}))),
    "a cut link": scenario(setup(machine=MACHINE.scale_links({LINK.name.replace(">", "<>"): 0.0}))),
    "a fault": scenario(setup(disturbance=Disturbance(faults=(Fault(0.0, LINK.name, None, 0.1),)))),
    "a slow GPU": scenario(setup(disturbance=Disturbance(slow={MACHINE.devices[1]: 3.0}))),
    "few channels": scenario(setup(nccl=Settings(max_channels=1))),
    "several in a row": replace(scenario(), repeat=2),
    "upstream's quirks": replace(scenario(), faithful=True),
    "another part": scenario(setup(part=setup().layout.subset(3))),
    "many gradients": scenario(workload="alexnet"),
}


@pytest.fixture(scope="module")
def documents():
    return {name: RUN.write(rank(asked)) for name, asked in ASKED.items()}


@pytest.mark.slow
@pytest.mark.parametrize("most_ops", [10_000, 1 << 20])
def test_what_is_known_changes_no_ranking(documents, most_ops):
    """In any order of questions, whatever is still known, and when it all was asked before."""
    cache = PlanCache(most_ops)
    for name in [*ASKED, *list(ASKED)[::-3]]:
        assert RUN.write(rank(ASKED[name], cache=cache)) == documents[name]


def test_the_questions_differ(documents):
    """Else they would not show that what is known of one is not taken for another."""
    times = {
        name: [row["time_us"] for row in document["candidates"]]
        for name, document in documents.items()
    }
    assert len({tuple(each) for each in times.values()}) == len(times) - 1  # no quirks here


@pytest.mark.parametrize(
    ("name", "planned"),
    [("the same", set()), ("a fault", set()), ("slow links", {"trees"})],
)
def test_only_what_may_be_another_plan_is_planned_again(name, planned):
    """A proof is of the plan, and planners see neither faults nor, mostly, bandwidth."""
    cache = PlanCache()
    rank(scenario(), cache=cache)
    compiled = Setup.compile
    made = []

    def compile_it(self, strategy, *arguments, **options):
        made.append(strategy.spec)
        return compiled(self, strategy, *arguments, **options)

    with (
        mock.patch.object(Setup, "compile", compile_it),
        mock.patch.object(plan_cache, "verify", side_effect=verify) as proofs,
    ):
        rank(ASKED[name], cache=cache)
    assert {spec for spec in made if spec != "chain"} == planned  # whose chunks are searched for
    assert proofs.call_count <= len(made)


def test_room_is_bounded():
    cache = PlanCache(3_000)
    for nbytes in range(4096, 4096 * 12, 4096):
        rank(scenario(workload=f"bytes:{nbytes}", names=("ring", "nccl")), cache=cache)
        assert 0 < sum(ops for ops, _ in cache._kept.values()) == cache._ops <= 3_000
        assert len(cache._made) <= len(cache._kept)


def test_what_was_fastest_comes_first():
    """Pipelines too, whose rows name the chunks that were found for them."""
    cache, seen = PlanCache(), []
    took = {
        (name.strategy.spec, name.strategy.packing): row.seconds
        for row in rank(scenario(), cache=cache).candidates
        for name in (row, *row.also)
    }

    def watch(coming, _total):
        for place, row in coming:
            seen.append(row)
            yield place, row

    rank(ASKED["a fault"], watch=watch, cache=cache)

    assert any(row.strategy.chunk for row in seen)
    times = [took[row.strategy.spec, row.strategy.packing] for row in seen]
    assert len(times) == len(NAMES)
    assert times == sorted(times)
