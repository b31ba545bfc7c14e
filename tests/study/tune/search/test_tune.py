"""The best setting, against exhaustive searches of small problems and against single candidates."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.planners.nccl import Settings, choose
from simreduce.planners.nccl.constants import Rule, read_tuner
from simreduce.report.ranking import tuned_text
from simreduce.study.scenario import Scenario
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.rank import rank
from simreduce.study.tune.search import step_calls
from simreduce.study.tune.search.by_nccl import NcclSearch
from simreduce.study.tune.search.packings import (
    MIB,
    CallSetting,
    CallSize,
    distinct,
    estimate_overlap,
    find_rates,
    simulate_call,
    text_of,
)
from simreduce.study.tune.search.search import (
    Aim,
    BucketTime,
    SettingRow,
    Tuned,
    files_of,
    ranking_of,
)
from simreduce.study.tune.search.setting import SAME, Setting, evaluate, simulating
from simreduce.study.tune.search.step_calls import PART, StepCalls, decisions, partition
from simreduce.study.tune.search.targets import nccl_packings
from simreduce.study.tune.search.tune import advice_of, tune
from simreduce.training.calls import FIXED, PRECISION
from simreduce.workload import Gradient, Workload
from tests.thorough import some

MACHINES = ("v100-mesh-4", "dgx1v", "dgx-a100", "h100-mesh-4", "pcie-single-root-4", "dgx-a100x2")
_FLOAT = 0


@cache
def machine(name):
    return Setup(name, "nccl")


def problem(seed, machines=MACHINES, most=12):
    """A random workload on a random machine."""
    draw = Random(seed)  # noqa: S311 - no secret
    setup = machine(draw.choice(machines))
    count = draw.randint(3, most)
    sizes = [int(2 ** draw.uniform(8, 22)) for _ in range(count)]
    gradients = tuple(Gradient(f"g{i}", size, _FLOAT) for i, size in enumerate(sizes))
    return Scenario(f"random{seed}", f"random {seed}", setup, Workload("random", gradients), None)


def alone(setup):
    """A scenario of one gradient on the machine."""
    return Scenario("s", "s", setup, Workload("w", (Gradient("g", 1, _FLOAT),)), None)


def do(setup):
    return lambda work, asked: [work(alone(setup), each) for each in asked]


def single(how, text):
    """One decision for all sizes with a packing."""
    rule = Rule("all_reduce", 0, None, how.algorithm, how.protocol, how.channels, -1, -1)
    return Setting(f"nccl{text}", (rule,))


CAPS = (0.001, 0.01, 0.1, 0.5, 1, 2, 4, 8, 16, 32)


def packings(scenario):
    texts = [
        ("", 0),
        *((f"+ddp={mib:g}{word}", int(mib * MIB)) for mib in CAPS for word in (",view", "")),
    ]
    return distinct(texts, scenario.workload.gradients)


def exhaustive(scenario, packed):
    """The shortest time of every packing with every decision, and with NCCL's own."""
    settings = [Setting(f"nccl{p.text}") for p in packed]
    settings += [single(how, p.text) for p in packed for how in decisions(scenario.setup)]
    return min(evaluate(scenario, s).seconds for s in settings), len(settings)


def against_exhaustive(seed, machines=MACHINES):
    """Simulations of the search, and those of all settings; the search finds the best."""
    scenario = problem(seed, machines)
    packed = packings(scenario)
    search = NcclSearch(Aim(scenario), packings=packed)
    with simulating(search.scenario) as work:
        search.run(work)
    best, count = exhaustive(scenario, packed)

    assert search.outcome.bound >= search.outcome.best * (1 - SAME)
    assert search.outcome.best <= best * (1 + 1e-9)
    return search.calls.counted + len({*search.settings.values()}), count


def test_the_search_finds_the_best_with_a_quarter_of_the_simulations():
    simulated, count = against_exhaustive(7, ("pcie-single-root-4",))

    assert simulated <= count / 4


@pytest.mark.thorough
@pytest.mark.parametrize("seed", some(range(20), 6))
def test_the_search_finds_the_best_of_each_problem_with_a_quarter_of_the_simulations(seed):
    simulated, count = against_exhaustive(seed)

    assert simulated <= count / 4


@pytest.mark.thorough
@pytest.mark.parametrize("seed", some(range(100, 150), 10))
def test_no_single_choice_is_faster_than_the_best(seed):
    """Every choice with the packing that was found and with the default, and some with others."""
    scenario = problem(seed, most=20)
    found = tune(scenario, "pytorch")
    draw = Random(seed)  # noqa: S311 - no secret
    packed = nccl_packings("pytorch", scenario, half=False)
    choices = decisions(scenario.setup)
    own = [found.best.setting.strategy.removeprefix("nccl"), packed[0].text]
    settings = [single(how, text) for how in choices for text in own]
    settings += [single(draw.choice(choices), draw.choice(packed).text) for _ in range(12)]
    for setting in settings:
        assert evaluate(scenario, setting).seconds >= found.best.seconds * (1 - 1e-9)


@pytest.mark.parametrize("name", MACHINES)
def test_bounds_of_calls_hold(name):
    setup, draw = machine(name), Random(name)  # noqa: S311 - no secret
    choices = draw.sample(decisions(setup), 4)
    calls = StepCalls(setup, choices)
    sizes = [CallSize(int(2 ** draw.uniform(6, 23)), _FLOAT) for _ in range(8)]
    calls.rate(do(setup))
    proven = {(how, size): calls.bound(how, size) for how in choices for size in sizes}
    calls.ask([CallSetting(how, size) for how in choices for size in sizes[:4]], do(setup))

    for how in choices:
        for size in sizes[4:]:
            took = simulate_call(alone(setup), CallSetting(how, size)).seconds
            assert 0 < proven[how, size] <= calls.bound(how, size), (text_of(how), size)
            assert proven[how, size] <= took
            # What is tried and not proven holds up to the precision of sizes that share one call.
            assert calls.bound(how, size) <= took * (1 + PRECISION), (text_of(how), size)


@given(st.integers(1, 1 << 40))
def test_a_call_stands_for_others_that_are_larger_by_the_precision(elements):
    size = CallSize(elements, _FLOAT)

    assert size.rounded.elements <= elements <= size.rounded.elements * (1 + PRECISION)
    assert size.rounded.rounded == size.rounded


@pytest.mark.thorough
@pytest.mark.parametrize("seed", some(range(8), 4))
def test_bounds_hold_on_many_machines(seed):
    """Trees among a part of the machines are no slower, but for the factor, and rates hold."""
    draw = Random(seed)  # noqa: S311 - no secret
    setup = machine(draw.choice(["dgx-h100x64", "dgx-a100x32"]))
    how = draw.choice([how for how in decisions(setup) if how.channels >= 8])
    size = CallSize(int(2 ** draw.uniform(16, 24)), _FLOAT).rounded
    part = simulate_call(alone(setup), CallSetting(how, size, coarse=True))
    whole = simulate_call(alone(setup), CallSetting(how, size))
    rates = find_rates(alone(setup), how)

    assert PART * part.seconds <= whole.seconds
    assert max(rates.latency, rates.busy * size.nbytes) <= whole.seconds


def test_a_settled_size_has_its_fastest_decision():
    setup = machine("dgx1v")
    calls = StepCalls(setup, decisions(setup))
    size = CallSize(300_000, _FLOAT).rounded
    calls.rate(do(setup))
    calls.settle([CallSize(1000, _FLOAT), CallSize(1 << 22, _FLOAT), size], do(setup))
    every = [simulate_call(alone(setup), CallSetting(how, size)).seconds for how in calls.choices]

    assert calls.best(size)[0] == min(every)
    assert calls.least(size) == min(every)
    assert calls.counted < len(calls.choices)


@pytest.mark.parametrize("name", ["tree", "nvlstree", "ring"])
def test_calls_between_simulated_ones_take_nearly_what_a_line_says(name):
    """Where NCCL halves its chunks, lines end; rings are simulated every one."""
    setup = machine("dgx-h100x4" if name == "nvlstree" else "dgx-a100x2")
    how = [how for how in decisions(setup) if how[:2] == (name, "simple")][-1]
    calls, sizes = (
        StepCalls(setup, []),
        [CallSize(int(300_000 * 1.4**i), _FLOAT) for i in range(12)],
    )
    calls.surround([(how, size) for size in sizes], do(setup), 1 << 40)
    left = [size for size in sizes if calls.known(how, size) is None]

    assert (name == "ring") == (not left)
    for size in left:
        took = simulate_call(alone(setup), CallSetting(how, size)).seconds
        assert calls.between(how, size) == pytest.approx(took, rel=0.03)


def test_no_more_calls_are_simulated_for_lines_than_the_effort_allows():
    setup = machine("dgx-a100x2")
    how = next(how for how in decisions(setup) if how[:2] == ("tree", "simple"))
    calls, sizes = StepCalls(setup, []), [CallSize(300_000 * i, _FLOAT) for i in range(1, 20)]
    calls.surround([(how, size) for size in sizes], do(setup), 1)

    assert calls.counted == 2


def step_scenario(tmp_path, more="", workload="resnet50"):
    path = tmp_path / "step.toml"
    path.write_text(
        f'topology = "v100-mesh-4"\nworkload = "{workload}"\n'
        f'[step]\nbatch = 8\ntime = "8 ms"\n{more}'
    )
    return load_scenario(str(path))


@pytest.mark.parametrize("more", ["", "streams = 0", 'consistency = "relaxed"', 'update = "1 ms"'])
def test_bounds_of_steps_hold(tmp_path, more):
    scenario = step_scenario(tmp_path, more, "alexnet").but(runtime="nccl")
    clock = estimate_overlap(scenario)
    calls = StepCalls(scenario.setup, [])
    for text in ("", "+ddp=5", "+ddp=25,1,view", "+fusion=8000000", "+packs=3"):
        (packing,) = distinct([(text, 0)], scenario.workload.gradients)
        own = {size: calls.own(size) for size in packing.calls}
        price = {s: simulate_call(scenario, CallSetting(how, s)).seconds for s, how in own.items()}
        took = evaluate(scenario, Setting(f"nccl{text}")).seconds

        assert clock.compute <= clock.bound(packing, price.__getitem__) <= took * (1 + 1e-9)


@pytest.mark.thorough
def test_jaxs_buffers_are_settled_before_the_step(tmp_path):
    """XLA combines when it compiles; only Horovod waits for a cycle. One buffer is as one pack, and
    none may be faster than its bound.
    """
    scenario = step_scenario(tmp_path).but(runtime="nccl")
    fixed = replace(scenario, step=replace(scenario.step, cycle=FIXED))
    whole, pack = (
        evaluate(fixed, Setting(text)).seconds
        for text in ("nccl+fusion=1000000000", "nccl+packs=1")
    )
    assert whole == pytest.approx(pack, rel=1e-12)
    calls, clock = StepCalls(scenario.setup, []), estimate_overlap(fixed)
    (packing,) = distinct([("+fusion=8000000", 0)], scenario.workload.gradients)
    price = {
        s: simulate_call(scenario, CallSetting(calls.own(s), s)).seconds for s in packing.calls
    }
    took = evaluate(fixed, Setting("nccl+fusion=8000000")).seconds
    assert clock.bound(packing, price.__getitem__) <= took * (1 + 1e-9) < whole
    found = tune(scenario, "jax")
    assert found.best.seconds <= took
    assert found.scenario.step.cycle == scenario.step.cycle


@pytest.mark.thorough
def test_the_step_and_not_the_time_is_shortened_where_there_is_one(tmp_path):
    scenario = step_scenario(tmp_path)
    found = tune(scenario)
    by_time = tune(scenario, objective="time")

    assert found.objective == "step"
    assert found.complete
    assert found.best.seconds <= found.default.seconds
    # One bucket is best for the time; a step wants one that starts early.
    step = evaluate(scenario.but(runtime="nccl"), by_time.best.setting).seconds
    assert found.best.seconds < step


def test_rules_by_size_say_what_was_simulated():
    """Small gradients take one protocol and large ones another, as NCCL can be told by a file."""
    gradients = tuple(
        Gradient(f"g{i}", size, _FLOAT) for i, size in enumerate([256] * 5 + [1 << 22])
    )
    scenario = Scenario("s", "s", machine("dgx-a100x2"), Workload("w", gradients), None)
    found = tune(scenario, "nccl")
    rules = found.best.setting.rules

    assert len(rules) == 2
    assert (rules[0].least, rules[-1].most) == (512, 2 << 24)
    assert rules[0].most + 1 == rules[1].least
    assert rules[0].protocol != rules[1].protocol
    told = scenario.but(nccl=replace(Settings(), tuner=rules)).setup
    assert told.simulate(told.compile("nccl", scenario.workload)).seconds == found.best.seconds


@pytest.mark.parametrize("name", ["v100-mesh-4", "v100-mesh-4x2"])
def test_fewer_ranges_than_fastest_choices_are_the_best_of_all(monkeypatch, name):
    """Two ranges where four choices are the fastest of some size; not all are simulated for all.

    On the second machine what is simulated anyhow has a cut into two ranges, but not the best.
    """
    monkeypatch.setattr(step_calls, "partition", partial(partition, most=2))
    setup, sizes = machine(name), [CallSize(3 * 4**i, _FLOAT) for i in range(4, 12)]
    calls = StepCalls(setup, decisions(setup))
    calls.rate(do(setup))
    calls.settle(sizes, do(setup))
    winners = list(dict.fromkeys(calls.best(size)[1] for size in sizes))
    rules = calls.rules(sizes, do(setup))
    simulated = sum(calls.known(how, size) is not None for how in winners for size in sizes)
    calls.ask([CallSetting(how, size) for how in winners for size in sizes], do(setup))
    costs = [[calls.known(how, size) for how in winners] for size in sizes]
    took = sum(calls.known(calls.chosen(rules, size), size) for size in sizes)

    assert len(winners) > 2 >= len(rules)
    assert simulated < len(winners) * len(sizes)
    assert took == pytest.approx(partition(np.array(costs), 2)[0], rel=1e-12)


def test_half_precision_only_on_request():
    scenario = problem(3, ("pcie-single-root-4",))
    full, half = (tune(scenario, "pytorch", half=half) for half in (False, True))

    assert not any("fp16" in row.setting.strategy for row in full.rows)
    assert half.points > full.points
    assert half.best.seconds <= full.best.seconds
    assert "fp16" in half.best.setting.strategy
    assert "gradients in fp16 (register_comm_hook" in advice_of(half).fastest_words


def test_an_interrupt_gives_the_best_so_far_with_its_bound():
    scenario = problem(4)
    whole = tune(scenario, "pytorch")

    def interrupt(*_):
        raise KeyboardInterrupt

    found = tune(scenario, "pytorch", progress=interrupt)

    assert found.stopped
    text = tuned_text(found)
    tried = f"{len(found.rows):,} of {found.points:,} settings were simulated."
    assert f" is known: {tried}" in text or f"Others may be faster: {tried}" in text
    assert "it is the fastest" not in text
    assert "settings were simulated." not in tuned_text(whole)
    assert found.bound <= whole.best.seconds <= found.best.seconds <= found.default.seconds


def test_a_spent_effort_leaves_a_bound():
    scenario = problem(5)
    whole, some = tune(scenario, "pytorch"), tune(scenario, "pytorch", effort=1)

    assert some.bound <= whole.best.seconds <= some.best.seconds
    assert some.calls < whole.calls


def test_a_step_needs_one():
    with pytest.raises(InputError, match="no \\[step\\]"):
        tune(problem(1), objective="step")


@pytest.mark.slow
def test_times_of_huge_machines_are_composed_of_calls(monkeypatch):
    """Without copies, what a simulation of the whole plan says, but for sizes that share a call."""
    scenario = problem(6, machines=("dgx-a100x2",))
    monkeypatch.setattr("simreduce.study.tune.search.by_nccl.MANY", 2)
    found = tune(scenario, "pytorch")
    rows = [row for row in found.rows if "view" in row.setting.strategy]

    assert found.composed
    assert rows
    for row in rows:
        took = evaluate(scenario, row.setting).seconds
        assert row.seconds <= took * (1 + 1e-9)
        assert row.seconds >= took * (1 - 2 * PRECISION)


def small_scenario(tmp_path, runtime="tensorflow"):
    """A scenario of a few gradients."""
    gradients = tmp_path / "gradients.csv"
    gradients.write_text("name,elements\n" + "".join(f"g{i},{50 * 7**i}\n" for i in range(6)))
    path = tmp_path / "small.toml"
    path.write_text(
        f'topology = "v100-mesh-4"\nworkload = "gradients.csv"\nruntime = "{runtime}"\n'
    )
    return load_scenario(str(path))


@pytest.mark.slow
@pytest.mark.parametrize(
    "target", [pytest.param("tensorflow", marks=pytest.mark.slow), "tf_cnn_benchmarks"]
)
def test_nothing_that_run_ranks_for_a_target_is_faster(tmp_path, target):
    scenario = small_scenario(tmp_path)
    ranked = rank(scenario).fastest_by(target)
    found = tune(scenario, target)

    assert found.complete
    assert found.best.seconds <= ranked.seconds
    assert len(found.rows) < found.points / 4
    assert found.default.seconds >= found.best.seconds


@pytest.mark.thorough
def test_any_algorithm_competes_for_any_target(tmp_path):
    scenario = small_scenario(tmp_path)
    found = tune(scenario, "any")
    best = min(rank(scenario).candidates, key=lambda c: c.seconds)

    assert found.best.seconds <= best.seconds * (1 + 1e-9)
    assert found.points > tune(scenario, "tensorflow").points


def test_what_is_pasted_says_the_best_setting(tmp_path):
    scenario = small_scenario(tmp_path, "nccl")
    gradients = tuple(Gradient(f"g{i}", n, _FLOAT) for i, n in enumerate([256] * 5 + [1 << 22]))
    scenario = replace(
        scenario, setup=machine("dgx-a100x2"), workload=Workload("two kinds", gradients)
    )
    found = tune(scenario, "nccl")
    (table,) = [
        text for name, text in files_of(found, found.best.setting).items() if name.endswith(".csv")
    ]
    rules = [rule for rule in read_tuner(table, "export") if rule.collective == "all_reduce"]
    told = scenario.setup.but(nccl=replace(Settings(), tuner=tuple(rules)))

    assert found.best.setting.rules
    took = told.simulate(told.compile("nccl", scenario.workload)).seconds
    assert took == pytest.approx(found.best.seconds, rel=1e-9)


def test_devices_get_the_best_first_of_what_they_can_run(tmp_path):
    path = tmp_path / "plain.toml"
    path.write_text('topology = "switch:4"\nworkload = "bytes:4MiB"\n')
    found = tune(load_scenario(str(path)), "tensorflow")
    every = ranking_of(found, 2, lambda _: True)
    without = ranking_of(found, 2, lambda strategy: not strategy.by_nccl)

    assert every.candidates[0].strategy.text == found.best.setting.strategy
    assert 2 == len({c.strategy.text for c in every.candidates})
    assert 2 == len({c.strategy.text for c in without.candidates})
    assert not any(c.strategy.by_nccl for c in without.candidates)


CURVES = [
    # times as multiples of the best, by bucket; the flat range
    ((1.2, 1.01, 1.0, 1.005, 1.3), (2, 4)),
    ((1.01, 1.2, 1.0, 1.3, 1.005), (3, 3)),
    ((1.0, 1.0, 1.0), (1, 3)),
]


@pytest.mark.parametrize(("times", "flat"), CURVES)
def test_the_best_is_flat_as_far_as_times_stay_near_it(times, flat):
    best = SettingRow(Setting("nccl"), 1e-3)
    places = tuple(BucketTime(i, 1e-3 * t) for i, t in enumerate(times, 1))
    found = Tuned(problem(3), "pytorch", "time", (best,), best, 9, 9, 1e-3, 1e-3, curve=places)

    assert found.flat == flat


def test_what_was_not_simulated_says_nothing_of_how_flat_the_best_is():
    best = SettingRow(Setting("nccl"), 1e-3)
    places = (BucketTime(1, 0.8e-3, exact=False), BucketTime(2, 1e-3), BucketTime(3, 2e-3))
    found = Tuned(problem(3), "pytorch", "time", (best,), best, 9, 9, 1e-3, 1e-3, curve=places)

    assert found.flat is None


def test_a_choice_for_one_size_leaves_other_sizes_nccl_s_own():
    """The plugin's file is NCCL's own but for calls from half to twice of that size."""
    workload = Workload("w", (Gradient("g", 1 << 18, _FLOAT),))
    scenario = Scenario("s", "s", machine("dgx-h100"), workload, None, framework="nccl")
    found = tune(scenario, "nccl")
    files, at = files_of(found), scenario.setup.communicator.facts
    told = Settings(tuner=read_tuner(files["nccl_tuner.csv"], ""))
    [rule] = found.advised.setting.rules

    assert (rule.least, rule.most) == (1 << 19, 1 << 21)
    for octave in range(10, 31):
        own, ruled = (choose(at, "all_reduce", 1 << octave, each) for each in (Settings(), told))
        same = (own.algorithm, own.protocol, own.channels) == (
            ruled.algorithm, ruled.protocol, ruled.channels,
        )  # fmt: skip
        assert same or 19 <= octave <= 21
        assert not same or octave != 20
    words = "# Chosen for calls of 1.049 MB, and obeyed by calls of all sizes.\n# Or by the rules"
    assert words in files["nccl.env"]
    assert advice_of(found).caveat.startswith("for calls of 1.049 MB; others keep NCCL's own")
