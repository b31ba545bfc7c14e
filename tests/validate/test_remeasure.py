"""`simreduce run --measure`, as far as it needs no TensorFlow: what is measured, the tie rule,
faults of options.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st
from simreduce_validate.devices import read_devices
from simreduce_validate.measuring import Interval
from simreduce_validate.remeasure import (
    MeasuredCandidate,
    MeasuredRanking,
    _first,
    document,
    read,
    table,
)
from simreduce_validate.running.backend import BACKENDS, PATIENCE
from simreduce_validate.running.protocol import ROUTES

from simreduce import units
from simreduce.app.cli.run import run
from simreduce.app.cli.setups import device_options
from simreduce.errors import InputError
from simreduce.export import StrategySettings
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.rank import rank
from tests.app.cli.command import simreduce

__all__ = ["simreduce"]

SCENARIO = """
topology = "switch:4"
workload = "bytes:1MiB"
strategies = ["ring", "direct", "nccl", "hierarchical_copy", "halving_doubling", "xring"]
"""

RAN_ON = {
    "settings": {
        "backend": "inproc",
        "route": "session",
        "simulated": "cpu:4",
        "calibration": "nominal",
    },
    "hardware": {"cpu": "a CPU", "usable_cores": 2},
    "versions": {"tensorflow": "2.21.0"},
}
OPTIONS = {
    "backend": "inproc", "route": "session", "hosts": None, "launch": "", "rate": None,
    "delay": None, "slow_port": (), "split": 1,
    "pretend": False, "timeout": 120.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def ranking(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenario") / "four.toml"
    path.write_text(SCENARIO, "utf-8")
    return rank(load_scenario(str(path)))


def with_settings(ranking, *runnable):
    """The ranking, if TensorFlow could be told to run just those of its candidates."""
    told = StrategySettings("--all_reduce_spec=x", None), StrategySettings(None, None)
    found = [replace(c, settings=told[c.strategy.text not in runnable]) for c in ranking.candidates]
    return replace(ranking, candidates=tuple(found))


def measured(ranking, *intervals, faulty=()):
    """The first of a ranking, as if it had been measured: (low, median, high) of each."""
    rows = tuple(
        MeasuredCandidate(
            place,
            ranking.candidates[place - 1],
            1e-3,
            Interval(median, low, high),
            ("wrong",) * (place in faulty),
        )
        for place, (low, median, high) in enumerate(intervals, 1)
    )
    return MeasuredRanking(ranking, rows, RAN_ON)


def everything(ranking):
    return with_settings(ranking, *(c.strategy.text for c in ranking.candidates))


def test_the_fastest_measured_is_recommended_where_it_is_told_apart(ranking):
    found = measured(
        everything(ranking), (9e-3, 10e-3, 11e-3), (5e-3, 6e-3, 7e-3), (7.1e-3, 8e-3, 9e-3)
    )

    assert 2 == found.recommended.place
    assert [2, 3, 1] == [row.place for row in found.fastest]
    assert "not told apart" not in table(found)


def test_of_those_whose_intervals_overlap_with_the_fastest_the_one_predicted_faster_is(ranking):
    """The first overlaps with the second, but not with the fastest, which is the third: that
    counts.
    """
    found = measured(
        everything(ranking),
        (8e-3, 9e-3, 10e-3),
        (6e-3, 7.5e-3, 8.5e-3),
        (5e-3, 6e-3, 7e-3),
        (1, 2, 3),
    )

    assert 2 == found.recommended.place
    assert [3, 2] == [row.place for row in found.equals]
    third, second = (found.rows[i].candidate.strategy.text for i in (2, 1))
    assert f"(not told apart: {third}, {second}; of these it is predicted to be fastest)" in table(
        found
    )
    assert [third, second] == document(found)["not_told_apart"]
    assert second == document(found)["recommended"]


def test_what_has_faults_is_shown_and_never_recommended(ranking):
    """Its time means nothing, so it has no place either."""
    found = measured(everything(ranking), (1e-3, 2e-3, 3e-3), (5e-3, 6e-3, 7e-3), faulty={1})

    assert 2 == found.recommended.place
    assert [None, 1] == [row["place_measured"] for row in document(found)["measured"]]
    assert f"  {found.rows[0].candidate.strategy.text}: wrong" in table(found).splitlines()


def test_nothing_is_recommended_if_all_have_faults(ranking):
    found = measured(everything(ranking), (1e-3, 2e-3, 3e-3), faulty={1})

    assert found.recommended is None
    assert "Recommended: none" in table(found)
    assert document(found)["recommended"] is None


def test_what_no_setting_runs_is_not_recommended_if_another_can_be_typed(ranking):
    """As without measuring; it is said that it is faster."""
    second = ranking.candidates[1].strategy.text
    found = measured(with_settings(ranking, second), (1e-3, 2e-3, 3e-3), (5e-3, 6e-3, 7e-3))

    assert 2 == found.recommended.place
    assert f"({found.rows[0].candidate.strategy.text} is faster, 2 ms, but no setting" in table(
        found
    )
    assert (
        1
        == measured(
            with_settings(ranking), (1e-3, 2e-3, 3e-3), (5e-3, 6e-3, 7e-3)
        ).recommended.place
    )


@given(st.data())
def test_the_recommended_one_is_predicted_fastest_of_what_may_be_as_fast_as_the_fastest(
    ranking, data
):
    """For any intervals: nothing with a better place overlaps with the fastest."""
    many = len(ranking.candidates)
    numbers = st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=3).map(sorted)
    found = measured(everything(ranking), *data.draw(st.lists(numbers, min_size=1, max_size=many)))

    best, first = found.recommended, found.fastest[0]
    assert best.measured.low <= first.measured.high
    assert all(
        row.measured.low > first.measured.high for row in found.rows if row.place < best.place
    )


def test_the_first_that_the_devices_can_do_are_measured(ranking, capsys):
    """Not NCCL between CPU devices, and not what is proven wrong."""
    devices = read_inproc(ranking)
    candidates = list(everything(ranking).candidates)
    candidates[0] = replace(candidates[0], wrong=1)
    chosen = _first(replace(ranking, candidates=tuple(candidates)), 3, devices)

    able = [(i, c) for i, c in enumerate(candidates, 1) if i > 1 and c.strategy.text != "nccl"]
    assert able[:3] == chosen
    everyone = _first(everything(ranking), 99, devices)
    assert {"nccl"} == {c.strategy.text for c in candidates} - {
        c.strategy.text for _, c in everyone
    }
    assert "nccl left out: NCCL has no CPU devices" in capsys.readouterr().err


def test_one_that_can_be_typed_is_measured_too(ranking):
    """However far down it stands, and only one more."""
    devices = read_inproc(ranking)
    last = [c for c in ranking.candidates if c.strategy.text != "nccl"][-1]
    few = with_settings(ranking, last.strategy.text)

    assert [
        1,
        few.candidates.index(replace(last, settings=StrategySettings("--all_reduce_spec=x", None)))
        + 1,
    ] == [place for place, _ in _first(few, 1, devices)]
    assert [1] == [place for place, _ in _first(everything(ranking), 1, devices)]


def read_inproc(ranking):
    return read_devices(ranking.scenario, None, None, **OPTIONS)


def test_devices_stand_for_those_of_the_scenario_with_its_own_order_of_gpus(tmp_path):
    """Not for those of a machine that only has the same name."""
    path = tmp_path / "ordered.toml"
    path.write_text('topology = "dgx1v"\nworkload = "bytes:1MiB"\ngpu_indices = [0, 3, 2, 1, 4, '
                    '5, 6, 7]\n'
                    '[topology_overrides]\n"links.qpi.bandwidth" = "1 GB/s"\n',
                    "utf-8")  # fmt: skip
    scenario = load_scenario(str(path))
    found = read_devices(scenario, None, None, **OPTIONS)

    assert found.layout == scenario.setup.layout
    assert found.topology.digest == scenario.setup.topology.digest


def test_every_fault_of_a_scenario_and_of_devices_is_told_at_once(simreduce, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('topology = "dgx1w"\nworkload = "bytes:1MiB"\n', "utf-8")
    found = simreduce(
        "run", path, "--measure", "2", "--backend", "inprok", "--route", "x", "--timeout", "0",
        "--jitter", "0.1",
        "--hosts", "nohost",
    )  # fmt: skip

    assert (2, "") == (found.status, found.out)
    for part in (
        "dgx1w",
        "'inprok' (did you mean",
        "--route",
        "--timeout 0",
        "leave out --jitter",
        "HOST:PORT",
    ):
        assert part in found.err


def test_options_of_devices_are_faults_without_measuring(simreduce):
    found = simreduce(
        "run", "dgx1p-step-of-five", "--backend", "shaped", "--slow-port", "2=1mbit", "-n", "3"
    )

    assert (2, "") == (found.status, found.out)
    for option in ("--backend", "--slow-port", "--iters"):
        assert f"simreduce: {option}: only --measure needs devices" in found.err.splitlines()


def test_shaped_links_need_a_switch_of_workers():
    """A scenario on another machine cannot be played on them."""
    with pytest.raises(InputError, match="dgx1p: --backend shaped makes the links itself"):
        read(
            load_scenario("dgx1p-step-of-five"), **OPTIONS | {"backend": "shaped", "rate": "1mbit"}
        )


def test_the_help_names_what_there_is():
    """Options stand apart from the devices, so that help loads none of them."""
    command = {option.name: option for option in run.params}

    def names(option, lead):
        text = command[option].help.split(";")[0].removeprefix(lead)
        return re.findall(r"\w+", text.replace(" or ", " "))

    assert list(BACKENDS) == names("backend", "Run on ")
    assert list(ROUTES) == names("route", "Execute through ")
    assert (BACKENDS[0], ROUTES[0], PATIENCE) == tuple(
        command[name].default for name in ("backend", "route", "timeout")
    )
    assert set(OPTIONS) == {option.name for option in device_options(lambda: None).__click_params__}


def test_times_of_the_ranking_do_not_stand_beside_measured_ones(ranking):
    """They are of other devices. A measured strategy with a setting comes first."""
    few = replace(
        ranking,
        candidates=tuple(
            replace(
                c, settings=StrategySettings(None, "call" if c is ranking.candidates[1] else None)
            )
            for c in ranking.candidates
        ),
    )
    first, other = few.candidates[:2]
    row = MeasuredCandidate(1, first, math.nan, Interval(2e-3, 1e-3, 3e-3))
    slower = MeasuredCandidate(2, other, math.nan, Interval(8e-3, 7e-3, 9e-3))
    alone, both = (MeasuredRanking(few, rows, RAN_ON) for rows in ((row,), (row, slower)))

    unmeasured = (
        f"has no call for a measured one; predicted fastest on switch:4 is {other.strategy.text}:"
    )
    assert unmeasured in table(alone)
    assert units.format_duration(other.seconds) not in table(alone)
    assert "Recommended: " + other.strategy.text in table(both)
    assert "TensorFlow         call" in table(both)
    assert ["1", first.strategy.text, "-", "2.000"] == table(alone).splitlines()[7].split()[:4]
    assert document(alone)["measured"][0]["predicted_time_us"] is None


def test_the_fastest_measured_strategy_with_a_setting_stands_beside_the_recommended(ranking):
    flags, call = StrategySettings("--all_reduce_spec=x", None), StrategySettings(None, "call")
    chosen = [
        replace(c, settings=s) for c, s in zip(ranking.candidates, (flags, call), strict=False)
    ]
    few = replace(ranking, candidates=tuple(chosen))
    rows = tuple(
        MeasuredCandidate(
            place, c, math.nan, Interval(place * 2e-3, place * 1.9e-3, place * 2.1e-3)
        )
        for place, c in enumerate(chosen, 1)
    )

    name = chosen[1].strategy.text
    text = f"has no call for it; the fastest measured with one is {name}, measured 4 ms:"
    assert text in table(MeasuredRanking(few, rows, RAN_ON))
