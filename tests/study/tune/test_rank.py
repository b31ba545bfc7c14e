"""The ranking: order, recommendation, and what the machine does not accept."""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import replace

import pytest

from simreduce.computing.workers import within
from simreduce.engine import IDEAL
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.errors import StrategyError
from simreduce.planners.algorithms import ALGORITHMS, TWO_LEVEL, Algorithm
from simreduce.planners.algorithms.kernels import SYMMETRIC_KERNELS
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.study.frameworks import default_text, names_for
from simreduce.study.scenario import Scenario
from simreduce.study.tune import rank as module
from simreduce.study.tune.rank import (
    Candidate,
    StrategyRanking,
    candidates,
    evaluate,
    rank,
    ranking_limits,
)
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload
from simreduce.workload.loader import load_workload
from tests.simulating import simulate


def _scenario(
    *strategies: str, machine: str = "full:4", workload: str = "bytes:1M", repeat: int = 1
) -> Scenario:
    chosen = tuple(map(parse_strategy, strategies)) or None
    return Scenario("test", "a test", Setup(machine), load_workload(workload), chosen, repeat)


def names(ranking: StrategyRanking) -> list[Candidate]:
    """The candidates, each with the others that make the same plan."""
    return [name for c in ranking.candidates for name in (c, *c.also)]


def _lazy(b, layout, tensors, options):  # noqa: ARG001 - a planner's signature
    """Every rank keeps what it has: no time at all, and wrong."""
    return [list(tensor) for tensor in tensors]


@pytest.fixture
def lazy(monkeypatch):
    """An algorithm that is fast and wrong."""
    monkeypatch.setitem(ALGORITHMS, "lazy", Algorithm("lazy", _lazy, "does nothing"))
    return "lazy"


@pytest.fixture
def no_default(monkeypatch):
    """No framework runs anything unless it is told."""
    monkeypatch.setattr(module, "default_text", lambda _name, _scenario: "")


def test_the_fastest_comes_first():
    """Every candidate that the machine accepts, each with the time that its plan takes."""
    scenario = _scenario("psgpu", "ring", "reduce_to_one", "xring", machine="switch:4")
    ranking = rank(scenario)
    shape = scenario.setup.layout

    times = [c.seconds for c in ranking.candidates]
    assert sorted(times) == times
    asked = {"psgpu", "ring", "reduce_to_one", "xring"}
    assert asked | {"nccl+bucket=0"} == {c.strategy.text for c in names(ranking)}
    for c in (each for each in names(ranking) if each.strategy.text in asked):
        plan = compile_plan(c.strategy, scenario.workload, shape)
        result = simulate(plan, scenario.setup.topology)
        assert (result.seconds, result.floors.hardware, plan.transfers) == (
            c.seconds,
            c.floor_seconds,
            c.transfers,
        )
        assert (result.links[0].name, result.lanes[0].name) == (c.link, c.lane)
        assert c.floor_seconds <= c.seconds


def test_one_plan_is_one_row_whatever_its_names():
    """However they were listed: one gradient makes copy_to_gpus a star on the first GPU, too."""
    orders = [
        [c.strategy.text for c in names(rank(_scenario(*texts)))]
        for texts in (
            ("reduce_to_one", "psgpu", "copy_to_gpus"),
            ("psgpu", "copy_to_gpus", "reduce_to_one"),
        )
    ]

    assert [["copy_to_gpus", "psgpu", "reduce_to_one"]] * 2 == orders


def test_other_names_keep_what_is_typed_for_them():
    """A row has the first name that can be run, and every target has the settings of one."""
    ranking = rank(_scenario("copy_to_gpus", "nccl+bucket=0", "nccl+packs=1", "nccl+ddp=25,view"))
    row = next(c for c in ranking.candidates if c.strategy.spec == "nccl")

    assert ("nccl+bucket=0", ["nccl+packs=1", "nccl+ddp=25,view"]) == (
        row.strategy.text,
        [c.strategy.text for c in row.also],
    )
    assert {row.digest} == {c.digest for c in row.also}
    settable = (name for c in (row, *row.also) for name in [c] if c.settings.tf_cnn_benchmarks)
    assert ["nccl+packs=1"] == [name.strategy.text for name in settable]


@pytest.mark.parametrize(
    ("machine", "reasons"),
    [
        ("full:3", {}),
        (
            "full:1",
            {
                "hierarchical_copy": "needs 2 devices or more",
                "xring": "needs 2 GPUs or more",
                "collective": "needs a group of 2 GPUs or more",
            },
        ),
    ],
)
def test_all_is_every_candidate_or_the_reason_why_not(machine, reasons):
    """Nothing is left out silently."""
    scenario = _scenario(machine=machine, workload="bytes:64K")
    ranking = rank(scenario)
    tried = candidates(scenario.setup.layout)

    assert sorted(s.text for s in tried) == sorted(
        [c.strategy.text.partition("+chunk=")[0] for c in names(ranking)]
        + [name for name, _ in ranking.refused]
    )
    assert set(reasons) == {parse_strategy(name).ranges[0].algorithm for name, _ in ranking.refused}
    assert [
        (name, f"{name}: {reasons[parse_strategy(name).ranges[0].algorithm]}")
        for name, _ in ranking.refused
    ] == list(ranking.refused)


def test_a_machine_without_a_route_for_a_plan_does_not_accept_it():
    """In a ring of GPUs only neighbours are joined: what sends further is refused, and the rest is
    ranked.
    """
    ranking = rank(_scenario(machine="ring:4", workload="bytes:64K"))
    refused = dict(ranking.refused)

    assert {"ring", "xring", "copy_to_cpu", "pscpu"} <= {c.strategy.spec for c in names(ranking)}
    assert {"reduce_to_one", "copy_to_gpus", "psgpu#4"} <= set(refused)
    assert "reduce_to_one: no route from 'gpu2' to 'gpu0'" in refused["reduce_to_one"] or (
        "reduce_to_one: no route from 'gpu0' to 'gpu2'" in refused["reduce_to_one"]
    )


def test_strategies_given_by_name_that_are_refused_are_kept_or_faults_where_all_are():
    """With the reasons, all of them at once."""
    names = ("hierarchical_copy_gcp_v100", "xring#4")
    reasons = (
        "hierarchical_copy_gcp_v100: needs exactly 8 devices, not 3",
        "xring#4: the number of sub-chunks must be from 1 to the GPUs per task, 3 here",
    )
    found = rank(_scenario(names[0], "ring", names[1], machine="full:3"))
    assert ["ring"] == [c.strategy.text for c in found.candidates]
    assert [*zip(names, reasons, strict=True)] == [*found.refused]

    with pytest.raises(StrategyError) as caught:
        rank(_scenario(*names, machine="full:3"))
    assert reasons == caught.value.problems


def test_what_runs_today_is_beside_what_is_named():
    """It is the default of the first framework that has a setting for one, where no default is
    named; plans that no framework has a setting for are compared by themselves.
    """
    ranking = rank(_scenario("ring", "xring", machine="switch:4"))
    (first, *_) = ranking.advice

    assert {"ring", "xring", "copy_to_gpus"} == {c.strategy.text for c in ranking.candidates}
    assert ("tf_cnn_benchmarks", "copy_to_gpus") == (first.framework, first.today.name)
    assert "Set --all_reduce_spec=xring" == first.do
    alone = rank(_scenario("ring", "direct", machine="switch:4"))
    assert {"ring", "direct"} == {c.strategy.text for c in alone.candidates}
    named = rank(_scenario("ring", "nccl+fusion", machine="switch:4"))
    assert {"ring", "nccl+fusion"} == {c.strategy.text for c in named.candidates}
    assert ["nccl+fusion"] == [each.today.name for each in named.advice]


@pytest.mark.usefixtures("no_default")
def test_when_no_setting_runs_any_the_fastest_is_recommended():
    """It can still be built."""
    recommended = rank(_scenario("ring+packs=2", "ring", machine="switch:4")).recommended

    assert recommended is not None
    assert "ring" == recommended.strategy.text


@pytest.mark.usefixtures("no_default")
def test_what_is_not_proven_is_never_recommended(lazy):
    """It is listed with the number of its wrong elements: every one, on every rank."""
    ranking = rank(_scenario(lazy, "reduce_to_one"))
    recommended = ranking.recommended

    assert [("lazy", 4 * 2**18), ("reduce_to_one", 0)] == [
        (c.strategy.text, c.wrong) for c in ranking.candidates
    ]
    assert recommended is not None
    assert "reduce_to_one" == recommended.strategy.text
    assert rank(_scenario(lazy)).recommended is None


def test_repeated_reductions_give_the_time_of_one():
    """Of a chain in which each waits for the one before; on one link that is the time alone."""
    once = rank(_scenario("reduce_to_one", machine="full:2")).candidates[0]
    chained = rank(_scenario("reduce_to_one", machine="full:2", repeat=4)).candidates[0]

    assert pytest.approx(once.seconds, rel=1e-12) == chained.seconds
    assert (once.transfers, once.wrong) == (chained.transfers, chained.wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning"
)  # from Python 3.12 on, beside numpy's threads
def test_many_processes_give_the_same_ranking():
    """To the last bit, in the same order, with the same reasons; progress counts one by one."""
    scenario = _scenario(machine="full:3", workload="bytes:64K").but(runtime=IDEAL)
    calls: list[tuple[int, int]] = []

    def count(coming, total):
        calls.append((0, total))
        for done, each in enumerate(coming, 1):
            calls.append((done, total))
            yield each

    alone, together = rank(scenario), rank(scenario, 2, count)

    assert alone.candidates == together.candidates
    assert alone.refused == together.refused
    total = len(candidates(scenario.setup.layout))
    assert [(i, total) for i in range(total + 1)] == calls


def test_more_processes_than_strategies_do_no_harm():
    """There are only as many as there is work for."""
    assert rank(_scenario("ring")).candidates == rank(_scenario("ring"), 10_000).candidates


def test_one_strategy_is_evaluated_alone():
    """A candidate; or StrategyError, with the reason why the machine does not accept it."""
    scenario = _scenario("ring", machine="full:3")

    assert isinstance(evaluate(scenario, parse_strategy("ring")), Candidate)
    with pytest.raises(StrategyError) as refused:
        evaluate(scenario, parse_strategy("xring#9"))
    assert refused.value.problems == (
        "xring#9: the number of sub-chunks must be from 1 to the GPUs per task, 3 here",
    )


IN_SWITCH = {"in_switch"}
ACROSS = IN_SWITCH | {
    "nccl/xring",
    "nccl/rechd",
    "nccl/pscpu",
    "pscpu/pscpu",
    "blueconnect",
    *TWO_LEVEL,
}
"""What is tried on several machines only."""

KERNELS = {"oneshot", "twoshot", "multimem", "symmetric"}
BY_NAME = (
    {f"nccl:{name}" for name in ("ring", "tree", "nvls", "nvlstree", "collnet", "allpairs")}
    | KERNELS
    | {f"symmetric:{name}" for name in SYMMETRIC_KERNELS["all_reduce"]}
)
"""What is never tried: `nccl` is the one of them that NCCL would choose, and kernels are called by
an application, not by a framework's setting.
"""

RINGS = {"collective", "collective#2"}


@pytest.mark.parametrize(
    ("machine", "specs", "untried"),
    [
        ("full:8", {"psgpu", "psgpu#2", "psgpu#4", "psgpu#8", "xring", *RINGS}, ACROSS),
        ("full:3", {"psgpu", "psgpu#2", "xring", *RINGS}, ACROSS | {"hierarchical_copy_gcp_v100"}),
        (
            "dgx1vx2",
            {"psgpu", "psgpu#2", "psgpu#4", "psgpu#8", "psgpu#16", "xring", "xring#2", *RINGS},
            IN_SWITCH | {"hierarchical_copy_gcp_v100"},
        ),
    ],
)
def test_shards_worth_trying_follow_the_machine(machine, specs, untried):
    """Powers of two up to the GPUs for shuffles; a second ring order where there are several
    machines.

    What is made for several machines, or for eight GPUs, is tried there only; all that is tried, in
    every packing.
    """
    found = candidates(layout(load_topology(machine)))

    assert specs == {
        s.spec for s in found if s.ranges[0].algorithm in ("psgpu", "xring", "collective")
    }
    assert (set(ALGORITHMS) | set(TWO_LEVEL)) - untried - BY_NAME == {
        s.ranges[0].algorithm for s in found
    }
    assert set(ALGORITHMS) >= BY_NAME
    packings = ("none", "packs=2", "packs=4", "packs=8", "packs=16")
    assert {(spec, packing) for spec in specs for packing in packings} <= {
        (s.spec, s.packing) for s in found
    }
    assert {
        *packings, "packs=1", "small=4096,10", "small=65536,10", "merge=32", "repack=8,fp16",
        "bucket=25M", "bucket=0", "ddp", "fusion",
    } == {s.packing for s in found}  # fmt: skip
    assert len(found) == len({s.text for s in found})


def test_what_tensorflow_would_choose_is_named():
    """By the rules that choose it; none chooses a plain ring."""
    ranking = rank(
        _scenario("nccl+packs=1", "ring", "nccl+bucket=0", machine="full:2", workload="bytes:64K")
    )

    rules = ("choose_the_best", "select_cross_device_ops"), ("mirrored_strategy",)
    assert {"nccl+bucket=0": (*rules[1], *rules[0]), "nccl+packs=1": rules[0], "ring": ()} == {
        c.strategy.text: c.chosen_by for c in names(ranking)
    }


def test_what_upstream_does_instead_is_named():
    """Hierarchical copy drops the last of an odd number of GPUs there; a faithful ranking has that
    plan itself.
    """
    scenario = _scenario("hierarchical_copy", "copy_to_gpus", machine="full:3", workload="bytes:12")
    meant = {c.strategy.text: c for c in rank(scenario).candidates}
    done = {c.strategy.text: c for c in rank(replace(scenario, faithful=True)).candidates}

    assert (
        "upstream makes 3 transfers of it and gives 9 wrong elements"
        == meant["hierarchical_copy"].upstream
    )
    assert "" == meant["copy_to_gpus"].upstream
    assert (0, 9) == (meant["hierarchical_copy"].wrong, done["hierarchical_copy"].wrong)
    assert (0, 0) == (meant["copy_to_gpus"].wrong, done["copy_to_gpus"].wrong)
    assert {""} == {c.upstream for c in done.values()}


def test_rings_take_the_order_of_the_scenario():
    """`gpu_indices` reaches the planners: on a ring of four GPUs only neighbours are joined."""
    scenario = _scenario("xring", machine="ring:4", workload="bytes:64K")
    ring = scenario.setup.layout

    assert rank(scenario.but(part=ring.with_order((3, 2, 1, 0)))).candidates
    with pytest.raises(StrategyError, match="xring: no route from"):
        rank(scenario.but(part=ring.with_order((0, 2, 1, 3))))


def test_todays_strategies_come_first_then_those_that_pack_and_the_refused_in_order(monkeypatch):
    """A first answer comes early, beside what all else is compared with; what is printed does not
    depend on it.
    """
    seen = []

    def evaluate(_scenario, strategy, *_, **_options):
        seen.append(strategy)
        raise StrategyError(f"{strategy.text}: refused")

    monkeypatch.setattr("simreduce.study.tune.rank.evaluate", evaluate)
    scenario = replace(_scenario(), strategies=None)
    every = candidates(scenario.setup.layout)
    ranking = rank(scenario)

    today = {*(default_text(name, scenario) for name in names_for(scenario)), "nccl"}
    first = [s.text for s in seen if s.text in today]
    assert [s.text for s in seen[: len(first)]] == first
    packed = [s.packing != "none" for s in seen[len(first) :]]
    assert sorted(packed, reverse=True) == packed
    assert {True, False} == set(packed)
    assert [s.text for s in every] == [text for text, _ in ranking.refused]


def _plain(ranking: StrategyRanking) -> dict[str, Candidate]:
    """Simulated strategies by name, without what depends on the others."""
    return {c.strategy.text: replace(c, also=(), chosen_by=()) for c in names(ranking)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("machine", "calibration", "sizes", "repeat"),
    [
        ("dgx1v", "nominal", (1 << 16, 1 << 12), 1),
        ("dgx1v", "dgx1p-tf2018", (1 << 16,), 3),
    ],
)
def test_cutting_off_changes_no_row_that_is_simulated(
    monkeypatch, machine, calibration, sizes, repeat
):
    """The first rows and all that is recommended are the same; the others are bounds below their
    times, whatever the number of processes.
    """
    monkeypatch.setattr("simreduce.study.tune.simulate.LONG", 300)
    monkeypatch.setattr("simreduce.study.tune.simulate._QUICK", 1)
    monkeypatch.setattr("simreduce.study.tune.rank.FIRST", 3)
    workload = Workload("some", tuple(Gradient(f"g{i}", n) for i, n in enumerate(sizes)))
    setup = Setup(machine, BY_STRATEGY, calibration)
    scenario = Scenario("test", "a test", setup, workload, None, repeat)
    whole = rank(scenario, simulate_all=True)
    cut, twice = rank(scenario), rank(scenario, 2)
    times = {c.strategy.text.partition("+chunk=")[0]: c.seconds for c in names(whole)}

    assert cut == twice
    assert not whole.bounded
    assert cut.bounded
    assert whole.candidates[:3] == cut.candidates[:3]
    assert whole.refused == cut.refused
    # Other names of its plan may be bounds, which nobody knows to be the same plan.
    assert replace(whole.recommended, also=()) == replace(cut.recommended, also=())
    for target in ("tf_cnn_benchmarks", "tensorflow"):
        assert whole.fastest_by(target) == cut.fastest_by(target)
    assert _plain(cut).items() <= _plain(whole).items()
    assert len(names(cut)) + len(cut.bounded) == len(names(whole))
    for each in cut.bounded:
        assert cut.candidates[2].seconds < each.seconds <= times[each.strategy.text]
    assert [c.seconds for c in cut.bounded] == sorted(c.seconds for c in cut.bounded)


def test_what_is_named_is_simulated_to_its_end(monkeypatch):
    monkeypatch.setattr("simreduce.study.tune.simulate.LONG", 1)

    assert not rank(_scenario("psgpu", "ring", "reduce_to_one", "xring")).bounded


def test_no_strategy_of_few_is_cut_off():
    """What a target can run matters up to its time, all others while few are known."""
    scenario = _scenario("ring", "psgpu")
    limit_of = ranking_limits(scenario, rank(scenario).candidates)

    assert math.inf == limit_of(parse_strategy("ring")) == limit_of(parse_strategy("psgpu"))


def _looking_long(monkeypatch, work):
    """A ring, then a tree that `work` is done for to know what it promises."""
    find = module._find_rate

    def slowly(setup, spec):
        return find(setup, spec) if spec == "ring" else work()

    monkeypatch.setattr(module, "_find_rate", slowly)
    setup = Setup(load_topology("switch:4"), IDEAL)
    texts = [parse_strategy(text) for text in ("ring", "double_tree")]
    scenario = Scenario("test", "a test", setup, load_workload("bytes:1M"), None)
    return module.by_promise(texts, scenario)


def test_a_budget_ends_a_long_look_at_an_algorithm(monkeypatch):
    """What it promises is not known, so it comes last."""
    begun = time.monotonic()
    with within(1.0):
        order = _looking_long(monkeypatch, lambda: time.sleep(30))
    assert time.monotonic() - begun < 5
    assert order.order == [0, 1]
    assert 0 < order.least[0] < order.least[1] == math.inf


def test_a_spent_budget_does_not_size_the_plans_of_all(monkeypatch):
    """Where what runs today is late, the others come in the order of what they promise."""
    asked = []
    monkeypatch.setattr(Setup, "many_ops", lambda _, strategy, __: asked.append(strategy) or 1e12)
    setup = Setup(load_topology("switch:4"), IDEAL)
    scenario = Scenario("test", "a test", setup, load_workload("bytes:1M"), None)
    texts = [parse_strategy(text) for text in ("nccl", "ring", "xring", "double_tree")]
    monkeypatch.setattr(module, "_find_rate", lambda *_: 0.0)
    monkeypatch.setattr(module, "time_is_up", lambda: True)
    with within(60.0):
        assert module.by_promise(texts, scenario).late == [0]
    assert {each.text for each in asked} == {"nccl"}


def test_ctrl_c_ends_more_than_the_look_at_an_algorithm(monkeypatch):
    with within(60.0), pytest.raises(KeyboardInterrupt):
        _looking_long(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
