"""Machines and plans that are too many or too large to hold are folded; what cannot be is loaded
whole, or refused.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from simreduce.engine import IDEAL, RUNTIMES, Disturbance
from simreduce.engine.setup import Setup
from simreduce.errors import NotFoldable, PlanTooLarge, StrategyError
from simreduce.plan import ops
from simreduce.planners.algorithms.families import FAMILIES
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.simulate import FOLDED_FROM
from simreduce.study.tune.sizes import BenchRow, bench
from simreduce.topology import Folded, Topology, fold, load_machine, load_topology
from tests.thorough import examples


def row(
    machine: Topology | Folded, strategy: str, nbytes: int = 1 << 20, fold: bool | None = None
) -> BenchRow:
    asked = [parse_strategy(strategy)]
    (found,) = bench(Setup(machine, IDEAL), asked, [nbytes], fold=fold)
    return found


SYMMETRIC = [name for name, family in FAMILIES.items() if family.symmetric]


@settings(deadline=None, max_examples=examples(15))
@example(128, "bidirectional_ring", "", 5, "tensorflow", 1)  # hangs on ties
@example(128, "bidirectional_ring", "", 21, "tensorflow", 1)  # and in the last digits
@example(128, "bidirectional_ring", "", 115, "tensorflow", 1)  # which nothing that moves tells
@given(
    st.integers(FOLDED_FROM, 80) | st.just(128),
    st.sampled_from(SYMMETRIC),
    st.sampled_from(["", "+mean", "+packs=2"]),
    st.integers(1, 1 << 12),
    st.sampled_from([*RUNTIMES]),
    st.integers(1, 10_000),
)
def test_many_equal_gpus_are_folded_to_the_last_digit(n, name, options, part, runtime, latency):
    setup = Setup(f"switch:{n},latency={latency}ns", runtime)
    asked, nbytes = [parse_strategy(name + options)], [4 * part * n]
    found, whole = (list(bench(setup, asked, nbytes, fold=fold)) for fold in (None, False))

    for one, every in zip(found, whole, strict=True):
        folded = one.machines > 1
        # One of the machines cannot start a little later than the others: only all can say what
        # moves. Ends that are 4 ulp apart are one, of all but not of one alone.
        digits = ("seconds", "link_share")
        tied = dict.fromkeys(digits, 0.0) if folded else {}
        assert all(getattr(one, k) == pytest.approx(getattr(every, k), rel=1e-14) for k in digits)
        assert replace(one, machines=1, proved_on=1, **tied) == replace(
            every, moved=None if folded else every.moved, **tied
        )
    if name in ("ring", "direct") and "packs" not in options and runtime != "nccl":
        assert (found[0].machines, found[0].proved_on, whole[0].machines) == (n, 4, 1)


MACHINES = ("switch:5", "switch:24,bandwidth=25GB/s,latency=2.7us", "dgx1vx3", "dgx-a100x3",
            "dgx-h100x4", "p4dx3", "alpsx4", "gh200x7")  # fmt: skip
ASKED = [
    *SYMMETRIC, *(f"nccl:ring{more}" for more in ("", "+simple", "+ll", "+ll128+channels=3")),
    "ring+packs=3", "direct+mean", "ring/direct+chunk=96KiB", "chain/ring+chunk=1MB", "nccl",
    "chain/ring",
]  # fmt: skip


@settings(deadline=None, max_examples=examples(150, usual=15))
@example("dgx-h100x4", "ring", "tensorflow", 1 << 22, 1)  # its switches sum
@given(
    st.sampled_from(MACHINES), st.sampled_from(ASKED), st.sampled_from([*RUNTIMES]),
    st.integers(4, 1 << 23), st.sampled_from([1, 4, 1 << 7, 1 << 10, 3 << 12]),
)  # fmt: skip
def test_what_is_folded_takes_as_long_as_all_machines(machine, text, runtime, nbytes, step):
    """Of any size, by NCCL's protocols, with chunk sizes that are searched for or given."""
    assume("/" not in text or "x" in machine)
    asked, nbytes = [parse_strategy(text)], [max(nbytes // step * step, 4)]
    whole, found = (
        next(bench(Setup(load_machine(machine, folded=one), runtime), asked, nbytes, fold=one))
        for one in (False, True)
    )

    assert found.seconds == pytest.approx(whole.seconds, rel=1e-9)
    names = ("algorithm", "count", "transfers", "link", "wrong")
    assert [getattr(found, name) for name in names] == [getattr(whole, name) for name in names]
    assert found.interval == (whole.interval and pytest.approx(whole.interval, rel=1e-9))
    assert found.floor_seconds == pytest.approx(whole.floor_seconds, rel=1e-9)


@settings(deadline=None, max_examples=examples(20, usual=8))
@given(
    st.sampled_from(["switch:5", "dgx1vx3", "dgx-h100x4", "gh200x7"]),
    st.sampled_from([*SYMMETRIC, "nccl:ring+simple"]), st.sampled_from([*RUNTIMES]),
    st.integers(4, 1 << 22), st.sampled_from([1, 4 * 3360]),
    st.sampled_from(["one", "node", "class"]), st.integers(0, 1 << 10), st.floats(0.3, 1.0),
)  # fmt: skip
@example("dgx1vx3", "ring", "tensorflow", 1 << 20, 4 * 3360, "class", 0, 0.5)
def test_slow_links_are_folded_only_where_all_machines_have_them(
    machine, text, runtime, nbytes, step, what, at, factor
):
    """Whatever links are slow: every plan is folded that can be, as if it took long."""
    whole = load_topology(machine)
    link = whole.links[at % len(whole.links)]
    name = {"one": link.name, "node": link.source, "class": link.link_class}[what]
    setup = Setup(whole.scale_links({name: factor}), runtime)
    asked, nbytes = [parse_strategy(text)], [max(nbytes // step * step, 4)]
    with mock.patch.object(Setup, "many_ops", return_value=1 << 23):
        found = next(bench(setup, asked, nbytes))
    expected = next(bench(setup, asked, nbytes, fold=False))

    assert found.seconds == pytest.approx(expected.seconds, rel=1e-9)
    if (what, text, step) == ("class", "ring", 4 * 3360) and nbytes[0] >= step:
        assert found.machines > 1


def test_what_would_not_be_the_same_is_not_folded_by_default():
    machine = load_topology("switch:64")
    slow = Disturbance(jitter=0.1)
    cases = [
        (Setup(machine), "ring", 1 << 20, 64),
        (Setup(machine), "ring", (1 << 20) + 4, 1),
        (Setup(machine), "chain", 1 << 20, 1),
        (Setup(machine, disturbance=slow), "ring", 1 << 20, 1),
        (Setup(machine, part=layout(machine).subset(63)), "ring", 63 << 10, 1),
        (Setup("switch:63"), "ring", 63 << 10, 1),
        (Setup("dgx1vx8"), "ring/ring", 1 << 20, 1),
    ]
    for setup, text, nbytes, machines in cases:
        (found,) = bench(setup, [parse_strategy(text)], [nbytes])
        assert found.machines == machines


def test_machines_that_are_many_are_loaded_whole_for_no_fold(monkeypatch):
    monkeypatch.setattr("simreduce.topology.loader.FOLDED_ABOVE", 16)
    many = load_machine("dgx1vx4")

    whole = row(load_topology("dgx1vx4"), "ring/ring")
    assert row(many, "ring/ring", fold=False) == whole
    assert row(load_machine("dgx1vx4", folded=True), "ring/ring", fold=False) == whole
    with pytest.raises(NotFoldable, match="too large to hold unfolded"):
        row(fold(load_topology("dgx1vx4"), 8), "ring/ring", fold=False)


def test_a_folded_row_is_the_row_of_all():
    whole, folded = (
        row(load_topology("dgx1vx4"), "ring/ring+chunk=64KiB"),
        row(fold(load_topology("dgx1vx4")), "ring/ring+chunk=64KiB"),
    )

    assert folded.seconds == whole.seconds
    assert folded.transfers == whole.transfers
    assert (folded.wrong, folded.machines, folded.proved_on) == (0, 4, 4)
    assert (whole.machines, whole.proved_on) == (1, 1)


def test_a_plan_too_large_to_hold_is_folded(monkeypatch):
    machine = load_topology("switch:16")
    whole = row(machine, "ring")
    monkeypatch.setenv("SIMREDUCE_MEMORY", "100kB")
    folded = row(machine, "ring")

    assert (folded.machines, folded.seconds) == (16, whole.seconds)


@pytest.mark.parametrize(
    ("machine", "strategy"), [("fat_tree:16,radix=4", "ring"), ("switch:16", "xring")]
)
def test_a_plan_too_large_to_hold_and_to_fold_is_refused(monkeypatch, machine, strategy):
    monkeypatch.setenv("SIMREDUCE_MEMORY", "10kB")
    monkeypatch.setattr(ops, "_ROWS", 50)
    with pytest.raises(StrategyError, match="the plan would have "):
        row(load_topology(machine), strategy)


def test_some_of_the_gpus_are_not_folded(monkeypatch):
    monkeypatch.setenv("SIMREDUCE_MEMORY", "10kB")
    machine = load_topology("switch:16")
    with pytest.raises(PlanTooLarge, match="some of the GPUs only"):
        list(
            bench(
                Setup(machine, IDEAL, part=layout(machine).subset(8)),
                [parse_strategy("ring")],
                [1 << 20],
            )
        )


def test_machines_that_are_many_are_loaded_whole_for_a_tree(monkeypatch):
    expected = row(load_topology("dgx1vx4"), "ring/binary_tree+chunk=64KiB")
    monkeypatch.setattr("simreduce.topology.loader.FOLDED_ABOVE", 16)
    machine = load_machine("dgx1vx4")

    assert isinstance(machine, Folded)
    assert row(machine, "ring/binary_tree+chunk=64KiB") == expected
    assert row(machine, "direct").machines == 4


def test_what_cannot_be_folded_is_simulated_whole():
    machine = load_machine("dgx1vx4", folded=True)
    assert row(machine, "ring/binary_tree") == row(load_topology("dgx1vx4"), "ring/binary_tree")
    with pytest.raises(NotFoldable, match="does not do the same on each of the 8 equal machines"):
        row(fold(load_topology("dgx1vx4"), 8), "ring/binary_tree")


@pytest.mark.parametrize("nbytes", [24, 1000])
def test_ragged_parts_are_not_folded(nbytes):
    one = row(fold(load_topology("switch:7")), "ring", nbytes)
    assert one == row(load_topology("switch:7"), "ring", nbytes)
    assert (one.count, one.machines) == (nbytes // 4, 1)


def test_parts_too_many_to_simulate_and_too_ragged_to_fold_are_refused():
    with pytest.raises(PlanTooLarge) as refused:
        row(load_machine("switch:100000"), "ring", 1000)
    assert "250 elements are no 100000 equal parts" in refused.value.problems[0]
    assert "the plan would have about" in refused.value.problems[1]


@pytest.mark.parametrize(("nbytes", "machines"), [(1 << 28, 1), (268_435_200, 6)])
def test_a_tensor_is_never_made_smaller_to_be_folded(nbytes, machines):
    """By TensorFlow's queues, ragged parts take 1.8 times as long."""
    whole, one = (
        next(bench(Setup(load_machine("dgx-h100x6", folded=f)), [parse_strategy("direct")],
                   [nbytes], fold=f))
        for f in (False, True)
    )  # fmt: skip
    assert (one.machines, one.count) == (machines, nbytes // 4)
    assert one.seconds == pytest.approx(whole.seconds, rel=1e-9)


@pytest.mark.parametrize("protocol", ["ll", "ll128"])
def test_hops_between_folded_gpus_of_one_machine_are_no_network(protocol):
    whole, one = (
        row(load_machine("switch:24,bandwidth=25GB/s,latency=2.7us", folded=f),
            f"nccl:ring+{protocol}", 96 * 128_601)
        for f in (False, True)
    )  # fmt: skip
    assert (whole.machines, one.machines) == (1, 24)
    assert one.seconds == pytest.approx(whole.seconds, rel=1e-9)
    assert one.interval == pytest.approx(whole.interval, rel=1e-9)


@pytest.mark.parametrize(
    ("machine", "folds"),
    # GPUs of a DGX-1V share NICs, so that every second machine, crossed the other way round, loads
    # its PCIe switches in another order.
    [("gh200x7", True), ("p4dx3", True), ("alpsx4", True), ("dgx-h100x3", True),
     ("dgx1vx4", False)],
)  # fmt: skip
@pytest.mark.parametrize("protocol", ["simple", "ll128"])
def test_nccls_rings_of_equal_machines_take_as_long_folded(machine, folds, protocol):
    """Of equal parts."""
    n, text = layout(load_topology(machine)).n, f"nccl:ring+{protocol}+channels=8"
    whole, one = (row(load_machine(machine, folded=f), text, n * 8 << 15) for f in (False, True))
    count = len(layout(load_topology(machine)).tasks)
    assert (whole.machines, one.machines) == (1, count if folds else 1)
    assert whole.seconds == pytest.approx(one.seconds, rel=1e-12)
    assert (whole.count, whole.transfers, whole.wrong) == (one.count, one.transfers, one.wrong)


def test_a_plan_that_takes_long_is_folded(monkeypatch):
    monkeypatch.setattr("simreduce.planners.strategy.compiler.LONG", 1 << 18)
    asked, nbytes = [parse_strategy("nccl:ring+simple+channels=16")], [1 << 20]
    (whole,) = bench(Setup("dgx-h100x16"), asked, nbytes, fold=False)
    (found,) = bench(Setup("dgx-h100x16"), asked, nbytes)
    assert (found.machines, found.proved_on, found.wrong) == (16, 4, 0)
    assert found.seconds == pytest.approx(whole.seconds, rel=1e-12)


def test_a_size_that_cannot_be_folded_is_refused_where_all_machines_take_minutes(monkeypatch):
    """At once, with how long and what to do; of equal parts it is folded."""
    setup, ring = Setup(load_machine("dgx1vx600")), [parse_strategy("ring")]
    with pytest.raises(StrategyError) as refused:
        list(bench(setup, ring, [1_000_000]))
    assert "elements are no 4800 equal parts" in refused.value.problems[0]
    words = "ring: all machines would take about 3 minutes, for 69,120,000 ops; --no-fold"
    assert refused.value.problems[1].startswith(words)
    (found,) = bench(setup, ring, [4800 * 4 * 8])
    assert found.machines == 600
    # However long it takes, if that is asked for.
    monkeypatch.setattr("simreduce.study.tune.sizes.PATIENCE", 0.0)
    monkeypatch.setattr("simreduce.planners.strategy.compiler.LONG", 1 << 10)
    few = Setup("dgx1vx4")
    with pytest.raises(StrategyError, match="--no-fold"):
        list(bench(few, ring, [1_000_004]))
    assert next(bench(few, ring, [1_000_004], fold=False)).machines == 1


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("nccl:tree+ll", {}),
        ("nccl:ring", {"disturbance": Disturbance(jitter=0.1)}),
        ("nccl:ring", {"part": layout(load_topology("dgx-h100x4")).subset(24)}),
    ],
)
def test_a_plan_that_takes_long_is_whole_where_it_cannot_be_folded(strategy, settings, monkeypatch):
    monkeypatch.setattr(Setup, "many_ops", lambda *_: 1 << 23)
    (found,) = bench(Setup("dgx-h100x4", **settings), [parse_strategy(strategy)], [1 << 12])
    assert found.machines == 1


def test_trees_of_too_many_machines_are_refused_at_once():
    with pytest.raises(NotFoldable, match="131072 GPUs are too many to simulate one by one"):
        row(load_machine("dgx-h100x16384"), "nccl:nvlstree")
