"""What is said of measured times, and that README shows it as it is said."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from simreduce_validate.accuracy import assess
from simreduce_validate.calibrating.session import Session
from simreduce_validate.campaign import Campaign
from simreduce_validate.cases import Case, Control, Timing
from simreduce_validate.report.accuracy import accuracy_lines
from simreduce_validate.report.answer import answer_lines
from simreduce_validate.report.calibration import session_lines
from simreduce_validate.report.validation import fault_lines, samples_line, transfer_lines, warnings
from simreduce_validate.running import Measurement
from simreduce_validate.transfers import Transfer
from simreduce_validate.validation import best_of

from simreduce.engine import NOMINAL, Calibration
from simreduce.engine.calibrate.fit import Fit
from simreduce.engine.runtime import Processor
from simreduce.planners.strategy import parse_strategy
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.sizes import tensor
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
        if re.match(r"# .*(predictions: \|error\||: predicted fastest |controls[:,] )", line)
    ]

    assert len(shown) >= 4
    for line in shown:
        assert set(parts(line)) <= said, line


def generic(line):
    """A line of the answer, with N for numbers and X for names of strategies."""
    line = re.sub(r"(?<=take     ).*(?=; what is)", "X", line.removeprefix("# "))
    line = re.sub(r"(?<=most of all ).* of [^ ]+ k?M?B", "X", line)
    return re.sub(r"[+-]?\d[\d.]*", "N", line)


def test_the_answer_is_five_lines_as_the_tutorial_shows():
    """Calibrations differ in where they are kept."""
    rows = [*replicated(measured(), 1.0), *replicated(measured(), 1.3, nbytes=1 << 20)]
    rows[0] = with_drift(rows[0])
    timed = [t for t in rows if t.case.control is None]
    said = [generic(line) for line in answer_lines(timed, assess(rows), "in x")]
    shown = [
        line for line in README.splitlines() if re.match("# (off by|take|sure|drifted) ", line)
    ]

    assert ["off by", "take", "sure", "drifted", "kept"] == [line[:8].strip() for line in said]
    assert 8 == len(shown)
    for line in shown:
        part, _, drift = generic(line).partition("; in this run")
        assert any(part == each.partition("; in this run")[0] for each in said), line
        assert not drift or any(drift in each for each in said), line


def test_the_answer_says_what_the_timings_say():
    """`a` is predicted to take 1 ms and takes 1.5, `bb` 2 and takes 1: the chosen one costs half.
    Another size has the same fastest, a third another.
    """
    rows = [
        *(exact(name, took, predicted, nbytes) for nbytes in (1 << 12, 1 << 14)
          for name, took, predicted in (("a", 1.5, 1), ("bb", 1, 2))),
        exact("a", 3, 3, 1 << 20),
        exact("bb", 4, 4, 1 << 20),
    ]  # fmt: skip
    off, take, sure, drifted, kept = answer_lines(rows, assess(rows), "here")

    assert off == "off by   33.3% in the median, 100.0% at the 90th percentile, of 6 predictions"
    assert take.startswith("take     bb (4.096 kB to 16.38 kB), a (1.049 MB); what is predicted")
    assert take.endswith("takes 50.0% longer in the median, 50.0% at worst")
    assert sure.startswith("sure     in order 1 of 3 pairs certainly more than 5 % apart; ")
    assert sure.endswith("a choice by predictions certainly costs 50.0% at worst")
    assert drifted == "drifted  no plan of a calibration was timed again"
    assert kept == "kept     here"


def test_the_answer_without_predictions_and_without_right_results():
    rows = [exact("a", 2, math.nan, 4096), exact("bb", 1, math.nan, 4096)]
    wrong = [replace(t, measured=replace(t.measured, wrong=("no sum",))) for t in rows]

    assert [
        "off by   unknown, as nothing is predicted",
        "take     bb (4.096 kB)",
        "sure     medians +-0.0%",
    ] == answer_lines(rows, assess(rows), "x")[:3]
    assert [
        "off by   unknown, as nothing is predicted",
        "take     none, as no measured step was right",
        "sure     nothing",
    ] == answer_lines(wrong, assess(wrong), "x")[:3]


def session(tried):
    """A calibration of one constant, fitted to one of the timings."""
    fit = Fit({"step": 1e-3}, {"step": 2e-5}, {"dispatch.cast": "why"}, np.array([0.02]))
    found = Calibration("mine", "2 devices", provenance={"hardware": "a computer"})
    return Session(found, fit, [exact("a", 1, 1, 64)], tried=tried)


def test_a_calibration_is_five_lines_and_what_it_is_of(tmp_path):
    """The constants come with --details."""
    tried, path = [exact("a", 2, 1, 4096), exact("bb", 3, 3, 4096)], tmp_path / "mine.toml"
    short, whole = (list(session_lines(session(tried), path, details=d)) for d in (False, True))

    assert 2 + 5 == len(short)
    assert f"# kept     {path}; use it with --calibration {path}" == whole[6]
    assert f"{whole[6]}; --details has all constants" == short[6]
    assert short[:6] == whole[:6]
    assert any("step" in line and "1 ms" in line for line in whole[7:])


def test_a_calibration_that_tried_nothing_says_so(tmp_path):
    lines = list(session_lines(session(()), tmp_path / "mine.toml", details=False))

    assert 2 + 2 == len(lines)
    assert lines[2].endswith("of the fit itself; no other strategy was tried")


def exact(name, took, predicted, nbytes):
    """A candidate that takes so many ms in every round."""
    case = Case(name, None, nbytes // 4, 0, "sum", predicted * 1e-3)
    return Timing(case, Measurement(np.full(20, took * 1e-3), (), (), None))


def replicated(rows, scale, nbytes=4096):
    """The same rows at another size."""
    return [
        replace(t, case=replace(t.case, count=nbytes // 4, predicted=t.case.predicted * scale))
        if t.case.control is None
        else replace(t, case=replace(t.case, control=Control(1e-3, (nbytes,))))
        for t in rows
    ]


def with_drift(timing):
    """The second half of its samples takes half as long again."""
    seconds = timing.measured.seconds * np.repeat([1.0, 1.5], len(timing.measured.seconds) // 2)
    return replace(timing, measured=replace(timing.measured, seconds=seconds))


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
