"""What `tune` says to set: nothing that is not worth it, and of what is, the simplest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simreduce.planners.nccl.constants import Rule
from simreduce.planners.strategy import parse_strategy
from simreduce.report.ranking import tuned_text
from simreduce.study.advice import Sureness
from simreduce.study.frameworks import SCALES
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.search.search import SettingRow, Tuned, files_of
from simreduce.study.tune.search.setting import Setting, evaluate, reducing_scenario
from simreduce.study.tune.search.tune import advice_of, tune, with_advice
from tests.thorough import slow


def asked(tmp_path, text, topology="pcie-single-root-4", workload="alexnet"):
    path = tmp_path / "small.toml"
    path.write_text(f'topology = "{topology}"\nworkload = "{workload}"\n{text}')
    return load_scenario(str(path))


BUSY = '[step]\nbatch = 8\ntime = "4 ms"\n'
IDLE = '[step]\nbatch = 8\ntime = "4 s"\n'


def test_a_default_that_costs_nothing_is_kept(tmp_path):
    """Where compute hides nearly all of it, whatever the search finds."""
    found = tune(asked(tmp_path, IDLE), "pytorch")
    advice = advice_of(found)

    assert found.advised == found.default
    assert not advice.changes
    assert "Keep PyTorch's defaults (DDP)" == advice.do
    assert "bucket_cap_mb" not in files_of(found)["simreduce_ddp.py"]


def test_a_setting_is_named_as_one_types_it():
    """One rule of NCCL's is part of a strategy; several are listed."""
    rule = Rule("all_reduce", 0, None, "tree", "simple", 2, -1, -1)
    one = Setting("nccl+ddp=38,view", rules=(rule,))
    several = replace(one, rules=(replace(rule, most=9, algorithm="ring", channels=0), rule))

    assert "nccl:tree+simple+channels=2+ddp=38,view" == one.label == parse_strategy(one.label).text
    assert several.label == ("nccl+ddp=38,view [to 9 B ring+simple, tree+simple+channels=2]")


def test_shards_are_not_offered_twice_and_a_bound_says_something(tmp_path):
    """What sharding the update saves stands beside settings that do not; a bound that leaves more
    than half is left out.
    """
    found = tune(asked(tmp_path, BUSY.replace("[step]", '[step]\nupdate = "8 ms"')), "deepspeed")
    rows = {row.setting.method: row for row in found.rows}

    for method in ("ddp", "zero1"):
        assert ("alone saves up to" in tuned_text(replace(found, chosen=rows[method]))) is (
            method == "ddp"
        )
    for part in (0.9, 0.1):
        text = tuned_text(replace(found, bound=part * found.advised.seconds))
        assert ("no setting of these is more than" in text) is (part == 0.9)


@pytest.mark.parametrize(
    "target",
    ["pytorch", *slow(["horovod", "nccl", "jax", "tf_cnn_benchmarks"])],
)
@pytest.mark.parametrize("text", [BUSY, IDLE, ""], ids=["busy", "idle", "no step"])
def test_a_change_is_worth_it_whatever_a_call_costs(tmp_path, target, text):
    """With half and with twice the stated cost of a call, by simulation."""
    scenario = asked(tmp_path, text)
    found = tune(scenario, target)
    if found.advised == found.default:
        assert found.best == found.default or found.reason
        return
    at = reducing_scenario(found.scenario)
    for scale in SCALES:
        dearer = at.but(call_cost=scale * scenario.setup.call_cost)
        took, today = (
            evaluate(dearer, row.setting).seconds for row in (found.advised, found.default)
        )
        assert today - took >= scenario.worth * today * (1 - 1e-9)


@pytest.fixture(scope="module")
def worth_it(tmp_path_factory):
    """A change that saves 3 %: copies of gradients, whose calls are the default's."""
    found = tune(asked(tmp_path_factory.mktemp("busy"), BUSY), "pytorch")
    assert Setting("nccl+ddp=25,1,view") == found.advised.setting
    return found


@pytest.mark.slow
def test_what_is_not_worth_a_change_is_up_to_the_user(worth_it):
    assert worth_it.advised != worth_it.default
    gain = 1 - worth_it.advised.seconds / worth_it.default.seconds
    assert gain > 0.01

    picky = replace(worth_it, scenario=replace(worth_it.scenario, worth=gain + 0.01))
    kept = with_advice(picky)
    assert kept.advised == kept.default
    assert "that a change has to save" in kept.reason


@pytest.mark.slow
def test_a_simpler_setting_than_the_fastest_is_simulated_and_used(worth_it):
    """The fastest in another order is hardly faster than in NCCL's own, which nobody tried."""
    plain = worth_it.best
    fancy = replace(
        plain, setting=replace(plain.setting, order=(0, 1, 2, 3)), seconds=plain.seconds * 0.9999
    )
    few = replace(worth_it, rows=(fancy, worth_it.default))
    again = with_advice(few)

    assert fancy == again.best
    assert not again.advised.setting.order
    assert "" == again.reason


def test_where_the_fastest_is_in_doubt_a_simpler_gain_that_is_sure_is_advised(
    worth_it, monkeypatch
):
    """DDP's own caps with views, which nobody tried."""
    now, doubted = worth_it.default, Setting("nccl+ddp=31,view")
    monkeypatch.setattr(
        "simreduce.study.frameworks.not_told_apart",
        lambda option, *_: "who knows" * (option.row.setting == doubted),
    )
    fast = replace(now, setting=doubted, seconds=now.seconds / 2)
    again = with_advice(replace(worth_it, rows=(fast, now), chosen=None))

    assert Setting("nccl+ddp=25,1,view") == again.advised.setting
    assert (fast, "who knows") == (again.best, again.reason)
    assert advice_of(again).changes


def test_what_other_calls_gain_has_to_be_more_than_their_error():
    """Calls of a hundredth of the size, which err by themselves."""
    scenario = replace(load_scenario("dgx1v-resnet50"), strategies=None)
    many, few = Setting("nccl+ddp=0.25"), Setting("nccl+ddp")
    default, sure = SettingRow(few, 2e-3), Sureness(0.8, 1.2)
    for part, worth in ((0.97, False), (0.5, True)):
        best = SettingRow(many, default.seconds * part)
        found = Tuned(
            scenario, "pytorch", "time", (best, default), default, 2, 2, 1e-9, 1e-9, sureness=sure
        )
        assert worth is found.apart(default)
        again = with_advice(found)
        assert worth or "less than the error of these predictions: measure both" == again.reason


def test_a_plugin_that_adds_little_is_no_better_than_its_setting_without_it():
    """That one is not worth it where calls cost more, and neither is the plugin."""
    scenario = replace(load_scenario("dgx1v-resnet50"), strategies=None).but(call_cost=50e-6)
    few, many = Setting("nccl+ddp"), Setting("nccl+ddp=0.25")
    rule = Rule("all_reduce", 0, None, "ring", "simple", 8, 1, 8)
    default = SettingRow(few, evaluate(scenario, few).seconds)
    plain, ruled = (
        SettingRow(setting, default.seconds * part)
        for setting, part in ((many, 0.97), (replace(many, rules=(rule,)), 0.969))
    )
    rows = ruled, plain, default
    found = Tuned(scenario, "pytorch", "time", rows, default, 3, 3, 1e-9, 1e-9)
    again = with_advice(found)

    assert default == again.advised
    assert "if a call costs" in again.reason


def test_many_dear_calls_are_not_worth_what_they_gain():
    """A tiny bucket that wins by a little loses it as soon as calls cost more."""
    scenario = load_scenario("dgx1v-resnet50")
    scenario = replace(scenario, strategies=None).but(call_cost=50e-6)
    many, few = Setting("nccl+ddp=0.25"), Setting("nccl+ddp")
    default = SettingRow(few, evaluate(scenario, few).seconds)
    best = SettingRow(many, default.seconds * 0.97)
    found = Tuned(scenario, "pytorch", "time", (best, default), default, 2, 2, 1e-9, 1e-9)
    again = with_advice(found)

    assert again.advised == default
    assert "if a call costs" in again.reason


def test_one_subject_in_words_and_files(worth_it):
    advice = advice_of(worth_it)
    text = files_of(worth_it)["simreduce_ddp.py"]

    assert advice.option.row == worth_it.advised
    words = advice.do.removeprefix("Set ").removesuffix(" (DDP)").split(", ")
    assert words != [advice.do]
    for key, _, value in (word.partition("=") for word in words):
        assert f'"{key}": {value}' in text
