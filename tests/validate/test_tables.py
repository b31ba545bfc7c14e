"""What is said of measured times, and that README shows it as it is said."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simreduce_validate.accuracy import assess
from simreduce_validate.campaign import Campaign
from simreduce_validate.cases import Case, Control, Timing
from simreduce_validate.report.accuracy import accuracy_lines
from simreduce_validate.report.validation import fault_lines, samples_line, transfer_lines, warnings
from simreduce_validate.running import Measurement
from simreduce_validate.transfers import Transfer
from simreduce_validate.validation import best_of

from simreduce.engine import NOMINAL
from simreduce.engine.calibration import Processor
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario import load_scenario
from simreduce.study.tune.bench import tensor
from tests.validate.devices import devices

README = (Path(__file__).parents[2] / "docs" / "tutorials" / "calibrate.md").read_text("utf-8")


def row(name, scale=1.0, settled=0, rounds=20):
    case = Case(name, None, 1024, 0, "sum", 1e-3 * scale)
    scatter = np.random.default_rng(len(name)).lognormal(0.0, 0.1, rounds)
    return Timing(case, Measurement(scale * 1e-3 * scatter, (), (), None), settled=settled)


@pytest.mark.parametrize(
    ("settled", "chained", "expected"),
    [
        ((0, 0), 1, "medians of 20 samples, each one step"),
        ((1, 1), 1, "medians of 20 samples, each one step after as many warm-up steps"),
        (
            (6, 6),
            1,
            "medians of 20 samples, each the median of 6 steps after as many warm-up steps",
        ),
        (
            (1, 6),
            3,
            (
                "medians of 20 samples, each the median of 1 to 6 steps after as many warm-up "
                "steps; a step is 3 all-reduces"
            ),
        ),
    ],
)
def test_what_a_sample_is_is_said(settled, chained, expected):
    rows = [row("a", settled=settled[0]), row("b", settled=settled[1])]

    assert expected == samples_line(rows, chained)


def parts(line):
    """Of a line of the accuracy, with N for numbers, S for a size and A for strategies."""
    line = re.sub(r"^[\d.]+ k?M?G?B(?=: )", "S", line.lstrip("# "))
    line = re.sub(r"fastest [^,]+", "fastest A", line)
    line = re.sub(r"^controls, [^:]+: (.*), of [^;]+", r"controls, S: \1, of C", line)
    return [re.sub(r"[+-]?\d[\d.]*", "N", part) for part in line.split("; ")]


def measured(rounds=20):
    """Three candidates, the first measured twice, and a control that now takes 20 % longer."""
    rows = [
        row(name, scale, rounds=rounds) for scale, name in enumerate(("a", "bb", "ccc"), start=1)
    ]
    again = replace(rows[0], case=replace(rows[0].case, repeats=0))
    case = Case("copies", None, 16384, 0, "sum", math.nan, control=Control(1e-3, (4096,)))
    return [*rows, again, Timing(case, Measurement(np.full(rounds, 1.2e-3), (), (), None))]


def accuracy(rounds):
    return assess(measured(rounds))


def test_readme_shows_what_is_said_of_predictions():
    """What `calibrate` and `validate` print of real devices cannot be printed again here; its words
    can.
    """
    said = {
        part
        for rounds in (5, 20)
        for line in accuracy_lines(accuracy(rounds))
        for part in parts(line)
    }
    shown = [
        line
        for line in README.splitlines()
        if re.match(r"# .*(predictions: \|error\||predicted fastest |controls[:,] )", line)
    ]

    assert len(shown) >= 4
    for line in shown:
        assert set(parts(line)) <= said, line


def test_a_fault_of_a_control_is_told_as_one():
    *rows, control = measured()
    wrong = replace(control, measured=replace(control.measured, wrong=("no sum",)))

    assert ["control: copies, 65536 bytes: no sum"] == fault_lines([*rows, wrong])


def test_what_a_control_says_is_said_by_size_and_over_all():
    lines = accuracy_lines(accuracy(20))

    assert lines[-2].startswith(
        "controls: plans of the calibration, timed again, differ by 16.7% in the median, "
        "16.7% at the 90th percentile; all together +20.0% (+20.0% to +20.0%); |error| of the "
        "candidates beside them "
    )
    assert lines[-1].startswith(
        "controls, 4.096 kB: +20.0% (+20.0% to +20.0%), of copies of 64 KiB +20.0%; |error| "
    )


def test_readme_shows_what_a_sample_is():
    shown = [line for line in README.splitlines() if re.match(r"# medians? of \d", line)]

    assert shown
    for line in shown:
        assert re.fullmatch(
            r"# medians of \d+ samples, each (one step|the median of \d+( to \d+)? steps)( after "
            r"as many warm-up steps)?",
            line,
        )


def test_transfers_of_which_nothing_is_predicted_have_their_measured_ends():
    """Nothing is said of differences."""
    known = Transfer(3, "a", "b", 8, 2e-6, 1e-6)
    lines = transfer_lines(row("ring"), [known])
    blind = transfer_lines(row("ring"), [known._replace(predicted=math.nan)])

    assert ["3", "8", "2.0", "1.0", "-1.0", "a>b"] == lines[-1].split()
    assert ["3", "8", "2.0", "-", "-", "a>b"] == blind[-1].split()
    assert "# ring, 4096 bytes: 1 transfer of one step" == blind[0]
    assert len(lines[-1]) == len(blind[-1])


@pytest.mark.parametrize(
    ("asked", "knows", "blind"),
    [
        ({}, False, True),
        ({}, True, False),
        ({"backend": "cluster"}, False, True),
        ({"backend": "shaped", "rate": "200mbit"}, False, False),
    ],
)
def test_nothing_is_predicted_of_cpu_devices_that_the_calibration_does_not_know(
    asked, knows, blind
):
    """Unless their links are known, which bound the time."""
    constants = replace(NOMINAL, cpu=Processor(cores=2)) if knows else NOMINAL
    where = devices("switch:3", **asked)
    campaign = Campaign(where, where.setup(constants))
    (case,) = campaign.cases(tensor(1 << 20, 0), [parse_strategy("ring")])

    assert blind == campaign.blind == math.isnan(case.predicted)
    assert blind == any("nothing is predicted" in line for line in warnings(campaign))


@pytest.mark.parametrize("knows", [False, True])
@pytest.mark.parametrize("listed", [("pscpu", "chain", "ring"), ("ring", "chain", "pscpu")])
def test_the_best_of_a_scenario_are_so_wherever_they_stand_in_it(tmp_path, knows, listed):
    """Also where nothing is known of the devices, and predictions are no times: then by what the
    constants make of their plans.
    """
    path = tmp_path / "s.toml"
    path.write_text(
        f'topology = "switch:4"\nworkload = "bytes:64MiB"\nstrategies = {list(listed)}\n'
    )
    constants = replace(NOMINAL, cpu=Processor(cores=2)) if knows else NOMINAL
    where = devices("switch:4")
    campaign = Campaign(where, where.setup(constants))
    found = [strategy.text for strategy in best_of(campaign, load_scenario(str(path)), 2)]

    assert knows != campaign.blind
    assert ["ring", "chain"] == found
