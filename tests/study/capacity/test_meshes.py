"""Capacity with meshes: the fastest mesh that fits is priced, on each number of machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simreduce.errors import InputError
from simreduce.report.capacity import CAPACITY
from simreduce.report.capacity_page import capacity_text
from simreduce.study.capacity import load_question
from simreduce.study.capacity.answer import answer
from simreduce.study.capacity.flips import Rate, bound_compute, bound_links
from simreduce.study.scenario_files import build_meshes
from simreduce.study.sweep.evaluate import evaluate
from simreduce.study.tune.meshes import rank_meshes

MODEL = "transformer:layers=8,hidden=2048,heads=16,vocab=51200,seq=1024"
FILE = f"""
workload = "{MODEL}"
global_batch = 64
[prices.machines.dgx-a100]
price = "16 USD/h"
[target]
tokens = 1e9
time = "2 d"
[step]
mesh = ["tp=8,pp=2", "tp=2", "pp=4"]
micro_batch = [1, 2]
[[options]]
machine = "dgx-a100"
nodes = [1, 2]
"""


@pytest.fixture
def question(tmp_path):
    """Reads a question with other words in place of some of its own."""

    def write(*changes):
        text = FILE
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "mine.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def rows(cells):
    return [evaluate(cell) for cell in cells]


def test_the_best_mesh_of_each_number_of_machines_is_priced(question):
    """As `step` finds it; those that do not fill one machine are left out there."""
    found = answer(load_question(str(question())), rows, sensitivity=False)

    assert 2 == len(found.offers)
    for each, machine, meshes in zip(
        found.offers, ("dgx-a100", "dgx-a100x2"),
        (["tp=2", "pp=4"], ["tp=8,pp=2", "tp=2", "pp=4"]), strict=True,
    ):  # fmt: skip
        step = {"mesh": meshes, "micro_batch": [1, 2], "global_batch": 64}
        table = {"topology": machine, "workload": MODEL, "step": step}
        best = rank_meshes(build_meshes(Path("mine.toml"), table)).recommended
        assert (best.seconds, best.job.text) == (each.candidate.step, each.candidate.row.chosen)
        per_hour = best.step.tokens_per_second * 3600.0
        assert each.per_million == pytest.approx(each.hourly / per_hour * 1e6, rel=1e-6)
        assert each.time == pytest.approx(1e9 / best.step.tokens_per_second, rel=1e-6)


def test_the_text_and_the_document_name_the_mesh(question):
    """In the headline too, and what the time goes into by axis."""
    found = answer(load_question(str(question())), rows, sensitivity=False)
    document, text = CAPACITY.write(found), capacity_text(found)

    assert document["choice"]["mesh"] in document["headline"]
    assert "micro_batch=" in document["choice"]["mesh"]
    assert document["choice"]["tokens_per_second"] > 0.0
    assert 1.0 == pytest.approx(sum(part["share"] for part in document["binds"]))
    assert "and train with " in text.splitlines()[1]
    assert "simreduce accuracy mesh" in text


@pytest.mark.parametrize(("link", "bound"), [("", bound_compute), ("nvlink3", bound_links)])
def test_bounds_of_other_rates_hold(question, link, bound):
    """Where all meshes are searched again."""
    asked = load_question(str(question(('mesh = ["tp=8,pp=2", "tp=2", "pp=4"]', 'mesh = "auto"'),
                                       ("nodes = [1, 2]", "nodes = 1"))))  # fmt: skip
    now = answer(asked, rows, sensitivity=False).offers[0].candidate
    for factor in (0.5, 1.5, 4.0):
        changed = [Rate("", (), link).changed(option, factor)
                   for option in asked.options]  # fmt: skip
        then = answer(
            replace(asked, options=tuple(changed)), rows, sensitivity=False
        ).offers[0].candidate  # fmt: skip

        best, worst = (bound(now, factor, best=which) for which in (True, False))
        assert best.step <= then.step <= worst.step, factor
        assert worst.efficiency <= then.efficiency <= best.efficiency + 1e-9, factor


def test_changes_of_the_choice_are_found(question):
    """By prices, errors and rates of a machine's GPUs and links."""
    found = answer(load_question(str(question(("nodes = [1, 2]", "nodes = 1")))), rows)
    names = {each.name for each in found.assumptions}

    assert {"machines.dgx-a100.price", "compute of dgx-a100"} <= names
    assert found.complete


def test_what_does_not_fit_is_left_out(question):
    """With what a GPU needs and has."""
    found = answer(
        load_question(str(question((MODEL, "llama-3-70b"), ("nodes = [1, 2]", "nodes = 1"),
                                   ('"tp=8,pp=2", "tp=2", "pp=4"', '"tp=8,pp=1"')))),
        rows, sensitivity=False,
    )  # fmt: skip
    ((_, reason),) = found.refused

    assert not found.offers
    assert "needs" in reason
    assert "a GPU has 42.3 GB" in reason


def test_no_mesh_that_fills_the_machines(question):
    found = answer(
        load_question(str(question(('"tp=8,pp=2", "tp=2", "pp=4"', '"tp=3", "tp=8,pp=4"')))),
        rows, sensitivity=False,
    )  # fmt: skip

    assert 2 == len(found.refused)
    assert all("tp x cp x pp is 3, and the machine has" in reason for _, reason in found.refused)


def test_faults_are_all_of_them(question):
    path = question(
        ("nodes = [1, 2]", 'nodes = [1, 2]\nmethod = "ddp"\nbatch = 4'),
        ('"tp=2"', '"tpp=2"'), ("micro_batch = [1, 2]", 'recompute = "ful"'),
        ("global_batch = 64", 'global_batch = 64\nfails = "node"'),
    )  # fmt: skip
    with pytest.raises(InputError) as error:
        load_question(str(path))
    text = "\n".join(error.value.problems)

    assert "options[0].method: step.mesh says how ranks share the work; leave it out" in text
    assert "options[0].batch: step.mesh says" in text
    assert "recompute: must be one of none, selective, full, op, got 'ful'" in text
    assert "unknown axis 'tpp' (did you mean 'tp'?)" in text
    assert "fails: steps on a mesh are not simulated without a part of the machine" in text


@pytest.mark.parametrize(
    ("price", "order"), [("9", "not told apart: "), ("90", "the order holds even so")]
)
def test_an_order_that_rests_on_constants_of_others_says_so(question, price, order):
    """B200 has the kernels of H100: near prices are not told apart, far ones are."""
    more = f'[prices.machines.hgx-b200]\nprice = "{price} USD/h"\n[prices.machines.dgx-a100]'
    path = question(
        ("[prices.machines.dgx-a100]", more),
        ("nodes = [1, 2]", 'nodes = [1]\n[[options]]\nmachine = "hgx-b200"\nnodes = [1]'),
        ("16 USD/h", "4 USD/h"),
    )
    found = answer(load_question(str(path)), rows, sensitivity=False)
    said = CAPACITY.write(found)["headline"]

    assert "Kernels of B200 are nominal: products, memory, host by constants of H100" in said
    assert capacity_text(found).lower().count("kernels of b200 are nominal") == 1
    assert order in said
    assert bool(found.rivals) == order.startswith("not")
    step, low, high = (found.chosen.candidate.row.values[k] for k in ("seconds", "low", "high"))
    assert low < step < high
    assert all(each.candidate.key.machine != found.chosen.candidate.key.machine
               for each in found.rivals)  # fmt: skip


def test_after_a_stop_one_mesh_of_each_number_of_machines_is_known(question):
    """The first mesh takes at least as long as the best; nothing else is built on it."""
    path = question(('["tp=8,pp=2", "tp=2", "pp=4"]', '"auto"'), ("global_batch = 64", ""),
                    ("micro_batch = [1, 2]", "global_batch = 64"))  # fmt: skip

    def until(count):
        left = iter(range(count))
        return lambda cells: [evaluate(c) if next(left, None) is not None else None for c in cells]

    stopped, later, whole = (
        answer(load_question(str(path)), until(count), sensitivity=count < 4) for count in (2, 3, 4)
    )

    assert [each.candidate.first for each in stopped.offers] == [True, True]
    assert (stopped.complete, stopped.waiting, stopped.assumptions) == (False, (), ())
    assert [each["first_mesh"] for each in CAPACITY.write(stopped)["options"]] == [True, True]
    assert "Of 2 options only the first mesh was simulated" in capacity_text(stopped)
    # The one that promises most comes next.
    (again,) = [each for each in later.offers if not each.candidate.first]
    assert again.candidate.key == stopped.ranked[0].candidate.key
    assert "first of many" not in capacity_text(whole)
    for first, best in zip(stopped.offers, whole.offers, strict=True):
        assert best.candidate.step < first.candidate.step
