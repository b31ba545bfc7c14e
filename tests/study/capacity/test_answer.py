"""Whole answers: equal to brute force, kept in a database, monotone in rates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

from simreduce.report.capacity import CAPACITY, _becomes, near_words
from simreduce.report.capacity_page import capacity_text
from simreduce.study.capacity import load_question
from simreduce.study.capacity.answer import answer, candidate_of, cell_of, parts
from simreduce.study.capacity.choose import choose
from simreduce.study.capacity.flips import Rate, bound_compute, bound_links
from simreduce.study.capacity.options import links_of
from simreduce.study.scenario_files import load_scenario
from simreduce.study.sweep.evaluate import evaluate
from simreduce.study.sweep.running import CellRunner, running
from simreduce.study.tune.steps import rank_steps
from tests.thorough import examples

MACHINE = """
[nodes.gpu]
names = ["gpu0"]
kind = "gpu"
[nodes.nic]
names = ["nic0"]
kind = "nic"
network = "tcp_25"
[nodes.cpu]
names = ["cpu0"]
kind = "cpu"
[links.pcie3_x16]
pairs = [["gpu0", "cpu0"], ["nic0", "cpu0"]]
[links.staged_pcie3]
pairs = [["gpu0", "gpu0"]]
"""
FILE = """
workload = "alexnet"
runtime = "ideal"
[prices.machines."box.toml"]
price = "1.5 USD/h"
[prices.networks.tcp_25]
port = "0.2 USD/h"
[target]
samples = 1e6
samples_per_second = 650
[step]
batch = 32
rate = "3 TFLOP/s"
[[options]]
machine = "box.toml"
nodes = [1, 2, 3, 4]
strategy = ["ring", "halving_doubling"]
"""


@pytest.fixture(scope="module")
def question(tmp_path_factory):
    """Boxes with one GPU and one port."""
    folder = tmp_path_factory.mktemp("capacity")
    (folder / "box.toml").write_text(MACHINE, "utf-8")
    (folder / "mine.toml").write_text(FILE, "utf-8")
    return load_question(str(folder / "mine.toml"))


@pytest.fixture(scope="module")
def rows():
    """Rows of cells, each simulated once for all tests."""
    with running(None) as found:
        yield found.rows


@pytest.fixture(scope="module")
def found(question, rows):
    """Its answer."""
    return answer(question, rows)


@pytest.mark.slow
def test_the_answer_is_that_of_brute_force_by_hand(found, tmp_path):
    """Every configuration as a scenario of its own, its cost as it stands in the price list."""
    (tmp_path / "box.toml").write_text(MACHINE, "utf-8")
    best = None
    for nodes in (1, 2, 3, 4):
        for strategy in ("ring", "halving_doubling"):
            machine = "box.toml" if nodes == 1 else f"{tmp_path}/box.tomlx{nodes}"
            (tmp_path / "one.toml").write_text(
                f'topology = "{machine}"\nworkload = "alexnet"\nruntime = "ideal"\n'
                f'strategies = ["{strategy}"]\n[step]\nbatch = 32\nrate = "3 TFLOP/s"\n'
            )
            (step,) = rank_steps(load_scenario(str(tmp_path / "one.toml"))).candidates
            rate = step.step.samples_per_second
            hourly = 1.5 * nodes + 0.2 * (nodes if nodes > 1 else 0)
            cost = 1e6 / rate / 3600 * hourly
            if rate >= 650 and (best is None or cost < best[0]):
                best = cost, nodes, strategy

    chosen = found.chosen
    assert chosen is not None
    assert best is not None
    assert best == (pytest.approx(chosen.cost), chosen.candidate.nodes, chosen.candidate.key[5])
    assert 8 == len(found.offers)
    assert 1.0 == pytest.approx(sum(part.share for part in parts(chosen.candidate)))


def test_the_pieces_of_a_network_are_counted(question):
    """A switch port and a cable for each box; none for one by itself."""
    made = {o.nodes: links_of(o, question.folder) for o in question.options}

    assert (0, 0, "") == (made[1].ports, made[1].cables, made[1].network)
    assert (4, 4, "tcp_25") == (made[4].ports, made[4].cables, made[4].network)


def test_what_the_database_has_is_not_simulated_again(question, tmp_path, monkeypatch):
    """Neither with other prices; and what was there before a stop counts."""
    path = str(tmp_path / "kept.db")
    with running(path) as runner:
        runner.rows([cell_of(option, question.folder) for option in question.options[:3]])
        before = answer(question, runner.rows)

    monkeypatch.setattr(CellRunner, "run", None)
    dearer = replace(question, prices=question.prices.but("machines.box.toml.price", 1.4))
    with running(path) as runner:
        again = answer(question, runner.rows)
        other = answer(dearer, runner.rows, sensitivity=False)

    assert CAPACITY.write(before) == CAPACITY.write(again)
    assert other.offers[0].hourly == 1.4


def test_a_rate_flips_the_choice_within_its_tolerance(question, found):
    """At the value that is said the choice is the other one, a tolerance before it is not."""
    flips = [
        (a, flip)
        for a in found.assumptions
        if a.tolerance and a.name.startswith(("links", "compute"))
        for flip in (a.down, a.up)
        if flip is not None
    ]
    assert flips
    for assumption, flip in flips:
        nearer = flip.at * (1 + 2 * assumption.tolerance) ** (1 if flip.at < 1 else -1)
        for factor, key in ((flip.at, flip.becomes), (nearer, found.chosen.candidate.key)):
            moved = [
                _simulated(question, option, assumption.name, factor) for option in question.options
            ]
            chosen = choose(moved, question.prices, question.target)
            assert (None if chosen is None else chosen.candidate.key) == key


def test_rates_are_searched_side_by_side_for_a_while(question, rows, found):
    """In rounds of several simulations; when time is over, what is known stands there."""
    sizes = []
    again = answer(question, lambda cells: sizes.append(len(cells)) or rows(cells))
    short = answer(replace(question, patience=1e-9), rows)

    assert max(sizes[1:]) > 1
    assert found.complete
    assert not short.complete
    for a, b in zip(again.assumptions, short.assumptions, strict=True):
        if not b.complete:
            assert b.holds == (1.0, 1.0)
            assert (b.down, b.up) == (None, None)
        else:
            assert a == b


def _simulated(question, option, name, factor):
    link = name.removeprefix("links ") if name.startswith("links ") else ""
    changes = name.startswith("compute") or (link and option.nodes > 1)
    changed = Rate(name, (), link).changed(option, factor) if changes else option
    return candidate_of(question, changed, evaluate(cell_of(changed, question.folder)))


@settings(max_examples=examples(80, usual=8), deadline=None)
@given(st.integers(1, 7), st.sampled_from([0.3, 0.8, 1.2, 3.0]))
def test_faster_links_and_chips_never_make_a_step_longer(question, place, factor):
    """On machines with one kind of port and algorithms that do not look at rates; and steps stay
    within the bounds that spare simulations.
    """
    option = question.options[place]
    now = _simulated(question, option, "", 1.0)
    names = [("compute", bound_compute)] + [("links tcp_25", bound_links)] * (option.nodes > 1)
    for name, bound in names:
        then = _simulated(question, option, name, factor)

        shorter, longer = (then, now) if factor > 1 else (now, then)
        assert shorter.step <= longer.step * (1 + 1e-6)
        assert bound(now, factor, best=True).step <= then.step
        assert then.step <= bound(now, factor, best=False).step


def test_more_nodes_are_never_cheaper_per_hour(found):
    """Of one kind."""
    for one in found.offers:
        for other in found.offers:
            if one.candidate.nodes < other.candidate.nodes:
                assert one.hourly < other.hourly


def test_what_costs_little_more_and_is_done_much_sooner_is_named(found):
    """Where nothing nearly meets the target for less; what takes more than 4/5 of the time is not,
    nor is what costs over 5 % more.
    """
    chosen = found.chosen

    def said(cost, time):
        other = replace(
            found.offers[-1], cost=cost * chosen.cost, time=time * chosen.time, misses=()
        )
        return near_words(replace(found, offers=(chosen,), frontier=(other, chosen)))

    assert said(1.04, 0.5).endswith(" costs 4.0% more and is done 50% sooner")
    assert [said(1.06, 0.5), said(1.04, 0.9)] == ["", ""]


def test_the_report_says_what_was_asked(found):
    """The choice, what binds, at which values it changes, and units."""
    text = capacity_text(found)

    for part in (
        "(USD/h)",
        "What limits it?  exposed communication",
        "is the busiest.",
        "The nearest values at which another option is chosen",
    ):
        assert part in text
    assert "machines.box.toml.price" in text
    assert "capacity" == CAPACITY.write(found)["command"]


def test_an_assumed_rate_has_no_interval_but_other_rates(question, rows, found):
    """What the choice costs at three quarters of it is at most, and at five quarters at least, what
    is said without a simulation. A time that was measured keeps its interval.
    """
    slow, now, fast = found.at_rates
    option = next(o for o in question.options if o.key == found.chosen.candidate.key)
    for at, best in ((slow, False), (fast, True)):
        changed = Rate("", ()).changed(option, at.factor)
        exact = candidate_of(question, changed, evaluate(cell_of(changed, question.folder)))
        assert (at.offer.candidate.step <= exact.step) is best
    assert [0.75, 1.0, 1.25] == [each.factor for each in found.at_rates]
    assert now.offer is found.chosen
    assert slow.offer.per_million > now.offer.per_million > fast.offer.per_million
    assert "How sure: 3 TFLOP/s a GPU is assumed, not measured. At 2.25 TFLOP/s a GPU at most " in (
        capacity_text(found)
    )

    measured = {key: value for key, value in option.scenario["step"].items() if key != "rate"}
    timed = replace(option, scenario={**option.scenario, "step": {**measured, "time": "40 ms"}})
    again = answer(replace(question, options=(timed,)), rows, sensitivity=False)
    assert () == again.at_rates
    assert "is assumed" not in capacity_text(again)
    assert not CAPACITY.write(again)["sensitivity_asked"]


def test_targets_in_tokens_are_those_in_samples(question, rows):
    """A rate, a run and a price of tokens, each of which some options miss."""
    samples = replace(question.target, samples_per_second=None)
    plain = answer(replace(question, target=samples), rows, sensitivity=False)
    costs = sorted(each.per_million for each in plain.offers)
    priced = replace(samples, tokens=100, cost_per_million_tokens=costs[3] / 100)
    paced = replace(samples, tokens=100, tokens_per_second=100 * 650.0)

    found = answer(replace(question, target=priced), rows)
    assert 4 == len(found.ranked)
    assert {"cost_per_million_tokens"} == {m for each in found.offers for m in each.misses}
    assert found.chosen.per_million == pytest.approx(costs[0] / 100)
    limits = [a for a in found.assumptions if a.name == "step time of all"]
    assert limits[0].up.at == pytest.approx(costs[3] / costs[0])
    assert limits[0].up.becomes is None
    met = answer(replace(question, target=paced), rows, sensitivity=False)
    same = answer(question, rows, sensitivity=False)
    assert [each.meets for each in same.offers] == [each.meets for each in met.offers]


def test_no_option_meets_the_target(question, rows):
    """The answer says what they miss."""
    wanted = replace(question.target, efficiency=1.0)
    found = answer(replace(question, target=wanted), rows)

    assert found.chosen is None
    assert "efficiency: missed by 8 of 8" in capacity_text(found)
    assert CAPACITY.write(found)["choice"] is None


def test_rows_are_the_best_first_and_those_that_miss_the_target_last(found):
    missing = [each for each in found.offers if not each.meets]
    table = capacity_text(found).partition("\n\nWhat the choice spends")[0]
    table = table.splitlines()[-len(found.offers) :]

    assert not found.offers[0].meets
    assert table[0].startswith("  choice ")
    assert all(line.endswith("samples_per_second") for line in table[-len(missing) :])


@pytest.mark.parametrize(
    ("step", "source", "words"),
    [
        ("", "estimated", " of activations (estimated)"),
        ('activations = "1 GB"\n', "given", "1 GB of activations (given)"),
    ],
)
def test_the_choice_says_where_its_activations_come_from(tmp_path, rows, step, source, words):
    """In the document and the text, with the memory of a GPU."""
    (tmp_path / "plan.toml").write_text(
        'workload = "gpt2,sequence=128"\n[prices.machines.dgx1v]\nprice = "1 USD/h"\n[step]\n'
        f'batch = 2\ntime = "30 ms"\n{step}[[options]]\nmachine = "dgx1v"\n',
        "utf-8",
    )
    found = answer(load_question(str(tmp_path / "plan.toml")), rows, sensitivity=False)
    document = CAPACITY.write(found)

    assert source == document["choice"]["activations"]
    line = next(each for each in capacity_text(found).splitlines() if "A GPU needs" in each)
    assert ", and a GPU has 16.95 GB; " in line
    assert line.removesuffix(".").endswith(words)
    assert not any("activations" in note for note in found.notes)


@pytest.mark.slow
def test_activations_that_are_not_counted_are_a_note(tmp_path, rows):
    """Nobody says what is concatenated in GoogLeNet's modules; AlexNet's layers follow in turn."""
    for model, source in (("googlenet", "not_counted"), ("alexnet", "estimated")):
        (tmp_path / "plan.toml").write_text(
            f'workload = "{model}"\n[prices.machines.dgx1v]\nprice = "1 USD/h"\n[step]\n'
            'batch = 2\ntime = "30 ms"\n[[options]]\nmachine = "dgx1v"\n',
            "utf-8",
        )
        found = answer(load_question(str(tmp_path / "plan.toml")), rows, sensitivity=False)

        assert {source} == {row["activations"] for row in CAPACITY.write(found)["options"]}
        told = any("activations are not counted" in note for note in found.notes)
        assert told == (source == "not_counted")


@pytest.mark.parametrize("strategy", ["nccl", "nccl:collnet"])
def test_times_of_collnet_are_nominal(tmp_path, rows, strategy):
    (tmp_path / "plan.toml").write_text(
        'workload = "alexnet"\nprices = "h100-cluster-2024"\n[step]\nbatch = 2\ntime = "30 ms"\n'
        '[[options]]\nmachine = "dgx-h100"\nnodes = 2\nnetwork = "rail_optimised,reduce=yes"\n'
        f'strategy = "{strategy}+ddp"\n',
        "utf-8",
    )
    found = answer(load_question(str(tmp_path / "plan.toml")), rows, sensitivity=False)

    assert any("CollNet's times are nominal" in note for note in found.notes) == (
        strategy == "nccl:collnet"
    )


def test_a_change_of_the_choice_names_machines_as_the_answer_does():
    assert "2 x AWS p4d.24xlarge, switch, nccl" == _becomes({"becomes": "2 x p4d, switch, nccl"})
    assert "none meets the target" == _becomes({"becomes": None})
    assert "" == _becomes(None)
