"""One call of NCCL alone: one way round the GPUs stands for all where they are alike."""

from __future__ import annotations

from functools import cache

import pytest

from simreduce.engine.setup import Setup
from simreduce.study.tune.search import packings
from simreduce.study.tune.search.packings import CallSetting, CallSize, simulate_call
from simreduce.study.tune.search.step_calls import decisions
from tests.study.tune.search.test_tune import alone

CASES = [
    ("dgx-a100x2", "tree", "simple"),
    ("dgx-a100x2", "tree", "ll"),
    ("dgx-a100x4", "ring", "ll128"),
    ("dgx-h100x4", "nvlstree", "simple"),
]


@cache
def setup_of(name):
    return Setup(name, "nccl")


def find_how(setup, algorithm, protocol, channels):
    chosen = [how for how in decisions(setup) if how[:2] == (algorithm, protocol)]
    return next((how for how in chosen if how.channels == channels), chosen[-1])


def by_one_way_and_by_all(setup, how, elements, monkeypatch):
    """The call simulated by one way, if that stands for all, and by all ways."""
    found = []
    for large in (0, 1 << 40):
        monkeypatch.setattr(packings, "_LARGE", large)
        found.append(simulate_call(alone(setup), CallSetting(how, CallSize(elements, 0))))
    return found


@pytest.mark.parametrize("elements", [1 << 21, 98_765_000])
@pytest.mark.parametrize(("machine", "algorithm", "protocol"), CASES)
def test_one_way_takes_as_long_as_all(machine, algorithm, protocol, elements, monkeypatch):
    """Where the ways share the elements out evenly; else but for one element of a piece."""
    monkeypatch.setattr(packings, "MANY", 2)
    setup = setup_of(machine)
    how = find_how(setup, algorithm, protocol, 16)
    one, every = by_one_way_and_by_all(setup, how, elements // 64, monkeypatch)

    assert one.ops < every.ops / 2
    even = elements == 1 << 21
    assert one.seconds == pytest.approx(every.seconds, rel=1e-12 if even else 1e-4)


def test_heads_of_few_machines_are_all_simulated(monkeypatch):
    """Their pieces may differ by an element."""
    setup = setup_of("dgx-h100x4")
    how = find_how(setup, "nvlstree", "simple", 16)
    one, every = by_one_way_and_by_all(setup, how, 1 << 18, monkeypatch)

    assert one == every


def test_more_channels_on_some_ways_than_on_others_are_all_simulated(monkeypatch):
    """12 channels on 8 ways."""
    setup = setup_of("dgx-a100x2")
    one, every = by_one_way_and_by_all(
        setup, find_how(setup, "tree", "simple", 12), 1 << 18, monkeypatch
    )

    assert one == every


def test_ways_of_which_one_is_slower_are_all_simulated(monkeypatch):
    machine = setup_of("dgx-a100x2").topology
    nic = next(node.name for node in machine.nodes.values() if node.kind == "nic")
    setup = Setup(machine.scale_links({nic: 0.5}), "nccl")
    one, every = by_one_way_and_by_all(
        setup, find_how(setup, "tree", "simple", 16), 1 << 18, monkeypatch
    )

    assert one == every


def test_rings_of_another_shape_are_all_simulated(monkeypatch):
    """The rings of a DGX-1V turn differently."""
    setup = setup_of("dgx1v")
    how = find_how(setup, "ring", "simple", 12)
    one, every = by_one_way_and_by_all(setup, how, 1 << 18, monkeypatch)

    assert one == every


def test_a_small_call_is_simulated_whole():
    setup = setup_of("dgx-a100x2")
    how = find_how(setup, "tree", "simple", 16)
    found = simulate_call(alone(setup), CallSetting(how, CallSize(1 << 14, 0)))

    assert found.ops == found.whole
