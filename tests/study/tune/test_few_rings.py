"""What a library's limit of rings costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from simreduce.engine import Calibration
from simreduce.engine.runtime import NcclConstants
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.export import export
from simreduce.export.framework import Choice
from simreduce.planners.layouts import layout
from simreduce.planners.nccl import DEFAULTS, Settings
from simreduce.planners.strategy import parse_strategy
from simreduce.report.bench import BENCH, SizeTimes
from simreduce.report.ranking import RUN, TUNE, ranking_table
from simreduce.report.sweeps import ComparedSweeps, compared_text
from simreduce.study.capacity import load_question
from simreduce.study.capacity.answer import answer
from simreduce.study.ranking import Question
from simreduce.study.scenario_files import load_scenario
from simreduce.study.sweep import BENCH as BENCH_KIND, Cell, Figures, make_cell
from simreduce.study.sweep.evaluate import evaluate
from simreduce.study.sweep.running import compare
from simreduce.study.sweep.store import Sweep
from simreduce.study.tune.rank import rank
from simreduce.study.tune.search.search import Tuned, files_of
from simreduce.study.tune.search.step_calls import decisions, more_channels
from simreduce.study.tune.search.tune import advice_of, tune
from simreduce.study.tune.sizes import bench, tensor
from simreduce.study.tune.whatif import FewRings, few_rings, library_warning
from simreduce.topology import load_topology
from simreduce.units import format_duration
from simreduce.workload.loader import load_workload


def ask(name: str, n: int, strategy: str = "rccl") -> FewRings | None:
    """The limit on the first `n` GPUs of a machine."""
    machine = load_topology(name)
    setup = Setup(machine, "nccl", part=layout(machine).only(range(n)))
    return few_rings(Question(parse_strategy(strategy), tensor(64 << 20, 0), setup))


def test_five_to_seven_gpus_have_two_rings_and_eight_have_listed_ones() -> None:
    found = {n: ask("mi355x", n) for n in range(2, 9)}
    assert [n for n, limit in found.items() if limit] == [5, 6, 7]
    assert {limit.rings for limit in found.values() if limit} == {2}


def test_the_call_on_each_number_of_gpus_and_with_more_channels() -> None:
    found = ask("mi355x", 6)
    assert found is not None
    assert [at.gpus for at in found.counts] == [2, 3, 4, 5, 6, 7, 8]
    (mine,) = (at for at in found.counts if at.gpus == 6)
    assert mine.busbw == pytest.approx((64 << 20) / mine.seconds * 2 * 5 / 6)
    assert found.lifted.seconds < mine.seconds / 1.5
    assert mine.busbw < min(at.busbw for at in found.counts if at.gpus in (2, 3, 4, 8))


def test_there_is_no_limit_for_nccl_or_for_copies() -> None:
    assert ask("dgx-h100", 6, "nccl") is None
    assert ask("mi355x", 6, "ring") is None


def at(name: str, n: int, **settings: int) -> Setup:
    """The first `n` GPUs of a machine."""
    machine = load_topology(name)
    part = layout(machine).only(range(n))
    return Setup(machine, BY_STRATEGY, part=part, nccl=replace(DEFAULTS, **settings))


def test_a_warning_says_what_the_limit_costs_and_what_to_set() -> None:
    said = {n: library_warning(at("mi355x", n), ["nccl"]) for n in range(1, 9)}
    assert [n for n, warning in said.items() if warning] == [5, 6, 7]
    question = Question(parse_strategy("nccl"), tensor(64_000_000, 0), at("mi355x", 6))
    found = few_rings(replace(question, setup=question.setup.but(runtime="nccl")))
    assert found is not None
    (now,) = (each.seconds for each in found.counts if each.gpus == 6)
    assert said[6] == (
        "RCCL takes 2 rings on 6 GPUs of a node: an all-reduce of 64 MB takes"
        f" {format_duration(now)}, {format_duration(found.lifted.seconds)} with"
        " NCCL_MIN_NCHANNELS=32"
    )


def test_no_warning_where_nothing_is_slow() -> None:
    assert not library_warning(at("mi355x", 6, min_channels=32), ["nccl"])
    assert not library_warning(at("mi355x", 6), ["tensorflow"])
    assert not library_warning(at("mi355x", 6), [])
    assert not library_warning(at("dgx-h100", 6), ["nccl"])
    assert not library_warning(Setup(load_topology("mi355xx2")), ["nccl"])


def test_bench_says_it_above_its_table_and_in_its_document() -> None:
    setup = at("mi355x", 6)
    rows = list(bench(setup, [parse_strategy("rccl")], [1 << 20]))
    times = SizeTimes(setup, rows)
    assert BENCH.write(times)["warning"] == library_warning(setup, ["nccl"])
    copies = list(bench(setup, [parse_strategy("ring")], [1 << 20]))
    assert "warning" not in BENCH.write(SizeTimes(setup, copies))


@pytest.fixture
def six(tmp_path: Path) -> Path:
    """A file with the first six GPUs of an MI300X machine."""
    gpus = "\n".join(f'  ["gpu{n}", "gpu[{n + 1}-5]"],' for n in range(5))
    path = tmp_path / "six.toml"
    path.write_text(
        f"""
title = "6 MI300X, a link between every two"
[nodes.gpu]
names = ["gpu[0-5]"]
kind = "gpu"
model = "MI300X"
[nodes.cpu]
names = ["cpu0"]
kind = "cpu"
[links.mesh]
class = "xgmi_cdna3"
pairs = [
{gpus}
]
[links.pcie5_x16]
pairs = [["gpu[0-5]", "cpu0"]]
""",
        "utf-8",
    )
    return path


def test_rankings_say_it_in_their_heads(six: Path) -> None:
    scenario = six.with_name("mine.toml")
    scenario.write_text('topology = "six.toml"\nworkload = "alexnet"\n', "utf-8")
    asked = load_scenario(str(scenario), strategies=["nccl", "ring"])
    ranking = rank(asked)
    warning = library_warning(asked.setup, ["nccl"])
    assert warning
    assert f"# warning      {warning}" in ranking_table(ranking).splitlines()
    assert RUN.write(ranking)["warning"] == warning
    copies = rank(load_scenario(str(scenario), strategies=["ring"]))
    assert "warning" not in ranking_table(copies)


def test_sweeps_keep_it_and_compare_says_it_once(six: Path) -> None:
    asked = {"topology": str(six), "strategy": "nccl"}
    row = evaluate(make_cell(BENCH_KIND, asked | {"size": 1 << 20}))
    assert isinstance(row, Figures)
    assert row.warning == library_warning(Setup(str(six)), ["nccl"])
    copies = evaluate(make_cell(BENCH_KIND, asked | {"size": 1 << 20, "strategy": "ring"}))
    assert isinstance(copies, Figures)
    assert copies.warning is None
    sweep = Sweep(1, "mine", BENCH_KIND, ("strategy",), {}, "0.1", 2, "2026-01-01")
    rows = [{"strategy": name, **each.values} for name, each in (("nccl", row), ("ring", copies))]
    found = compare((sweep, rows), (sweep, rows))
    assert found.warnings == (f"{row.topology}: {row.warning}",)
    text = compared_text(ComparedSweeps(found, [(name, sweep) for name in ("a.db", "b.db")]))
    assert text.count("NCCL_MIN_NCHANNELS") == 1


def test_capacity_notes_it_of_a_machine_with_few_rings(six: Path) -> None:
    path = six.with_name("capacity.toml")
    path.write_text(
        """
workload = "alexnet"
[prices.machines."six.toml"]
price = "10 USD/h"
[target]
samples = 1e6
[step]
batch = 32
[[options]]
machine = "six.toml"
step.rate = "50 TFLOP/s"
""",
        "utf-8",
    )
    asked = load_question(str(path))

    def rows(cells: Sequence[Cell]) -> list[Figures | None]:
        found = map(evaluate, cells)
        return [row if isinstance(row, Figures) else None for row in found]

    found = answer(asked, rows, sensitivity=False)
    (note,) = (each for each in found.notes if "NCCL_MIN_NCHANNELS=32" in each)
    assert note.startswith("six.toml: RCCL takes 2 rings on 6 GPUs of a node")


def test_times_on_cdna_2_are_nominal_unless_constants_are_given() -> None:
    said = library_warning(Setup("frontier"), ["nccl"])
    assert said == (
        "RCCL's times on CDNA 2 are nominal: they have the constants of rccl-cdna3, as no clean"
        " table of CDNA 2 is public"
    )
    assert not library_warning(Setup("frontier"), ["tensorflow"])
    own = Calibration("mine", nccl=NcclConstants(launch=1e-6))
    assert not library_warning(Setup("frontier", calibration=own), ["nccl"])
    assert not library_warning(Setup("mi300x"), ["nccl"])
    six = at("frontier", 6)
    assert library_warning(six, ["nccl"]).endswith(said)


@pytest.mark.parametrize(
    ("strategy", "size", "settings"),
    [
        ("oneshot", "1M", {}),
        ("nccl", "4K", {}),
        ("nccl", "128M", {"min_channels": 32}),
    ],
)
def test_calls_that_more_channels_do_not_help_are_not_blamed_on_rings(strategy, size, settings):
    chosen = parse_strategy(strategy)
    setup = Setup("mi355x", BY_STRATEGY, nccl=Settings(**settings)).running(chosen)
    setup = setup.but(part=setup.layout.only(range(6)))
    question = Question(chosen, load_workload(f"bytes:{size}"), setup)

    assert few_rings(question) is None


def tuned(path: Path, target: str) -> Tuned:
    """The best setting of a target for AlexNet on the machine of a file."""
    scenario = path.with_name("mine.toml")
    scenario.write_text(f'topology = "{path.name}"\nworkload = "alexnet"\n', "utf-8")
    return tune(load_scenario(str(scenario)), target)


def test_tune_advises_more_channels_and_its_files_set_them(six: Path) -> None:
    found = tuned(six, "nccl")
    assert found.advised.setting.channels == 32
    assert found.advised.seconds < found.default.seconds / 1.5
    environment = files_of(found)["nccl.env"]
    assert "\nNCCL_MIN_NCHANNELS=32\n" in environment
    assert "NCCL_MIN_NCHANNELS=32" in advice_of(found).do
    rows = TUNE.write(found)["rows"]
    assert {row.get("min_nchannels") for row in rows} == {None, 32}


def test_tune_advises_more_channels_where_larger_buckets_are_faster_yet(six: Path) -> None:
    """Those start after back-propagation; smaller ones than today's gain besides, for sure."""
    found = tuned(six, "pytorch")
    assert found.best.setting.strategy == "nccl+ddp=236"
    assert found.advised.setting == replace(
        found.default.setting, strategy="nccl+ddp=15.75", channels=32
    )
    assert "NCCL_MIN_NCHANNELS=32" in files_of(found)["nccl.env"]


def test_tune_tries_no_more_channels_elsewhere(six: Path) -> None:
    assert more_channels(Setup(str(six))) == 32
    assert more_channels(at("mi300x", 8)) == 0
    assert more_channels(at("dgx-h100", 6)) == 0
    assert more_channels(at("mi300x", 6, max_channels=4)) == 0
    assert more_channels(at("mi300x", 6, max_channels=16)) == 16
    assert max(how.channels for how in decisions(Setup(str(six)))) == 32


def test_exports_of_nccl_s_own_choice_name_the_variable() -> None:
    def environment(setup: Setup) -> str:
        choice = Choice(setup, tensor(1 << 20, 0), parse_strategy("nccl"))
        return export("nccl", choice)["nccl.env"]

    assert "# NCCL_MIN_NCHANNELS=32\n" in environment(at("mi355x", 6))
    assert "NCCL_MIN_NCHANNELS" not in environment(at("mi355x", 8))
    assert "\nNCCL_MIN_NCHANNELS=32\n" in environment(at("mi355x", 6, min_channels=32))
    assert "For more bandwidth" not in environment(at("mi355x", 6, min_channels=32))


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_all_numbers_of_gpus_cut_the_size_of_the_table_equally(collective: str) -> None:
    strategy = parse_strategy("rccl", collective)
    found = few_rings(Question(strategy, tensor(64 << 20, 0, 6), at("mi355x", 6).running(strategy)))
    assert found is not None
    assert all(found.nbytes // 16 % n == 0 for n in range(2, 9))
    assert 0 <= (64 << 20) - found.nbytes < 16 * 840
    for each in found.counts:
        rate = found.nbytes / each.seconds * (each.gpus - 1) / each.gpus
        assert each.busbw == pytest.approx(rate)
