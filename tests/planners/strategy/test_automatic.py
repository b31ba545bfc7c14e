"""TensorFlow's own choices: the DGX-1 test row by row, each rule, and the names as strategies."""

from __future__ import annotations

import pytest

from simreduce.errors import StrategyError
from simreduce.export import settings
from simreduce.plan import verify
from simreduce.planners.layouts import Layout, layout
from simreduce.planners.strategy import (
    AUTOMATIC,
    choose_the_best,
    has_dgx1_like_links,
    parse_strategy,
    resolve,
    tensorflow_choice,
)
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload

TABLE = [{1, 2, 3, 4}, {0, 2, 3, 5}, {0, 1, 3, 6}, {0, 1, 2, 7},
         {0, 5, 6, 7}, {1, 4, 6, 7}, {2, 4, 5, 7}, {3, 4, 5, 6}]  # fmt: skip
"""The peers of each GPU of a DGX-1."""

WORK = Workload("test", (Gradient("a", 100), Gradient("b", 7)))


def machine(text):
    return layout(load_topology(text))


def on_devices(*names, hosts=("cpu0",)):
    """One task of the named devices, every pair linked."""
    n = len(names)
    links = tuple(tuple(int(i != j) for j in range(n)) for i in range(n))
    return Layout(names, (tuple(range(n)),), hosts, links)


def with_row(i, row):
    return [row if k == i else known for k, known in enumerate(TABLE)]


def test_the_table_itself():
    assert has_dgx1_like_links(TABLE)


@pytest.mark.parametrize("i", range(8))
def test_a_row_may_hold_the_device_itself(i):
    assert has_dgx1_like_links(with_row(i, TABLE[i] | {i}))


def test_all_rows_may_hold_their_device():
    assert has_dgx1_like_links([row | {i} for i, row in enumerate(TABLE)])


@pytest.mark.parametrize("i", range(8))
def test_every_row_counts(i):
    peer = min(TABLE[i])
    other = next(d for d in range(8) if d != i and d not in TABLE[i])

    assert not has_dgx1_like_links(with_row(i, TABLE[i] - {peer}))
    assert not has_dgx1_like_links(with_row(i, TABLE[i] | {other}))
    assert not has_dgx1_like_links(with_row(i, set()))


def test_fewer_than_eight_devices_are_no_dgx1():
    assert not has_dgx1_like_links([])
    assert not has_dgx1_like_links(TABLE[:7])


def test_devices_beyond_eight_are_not_looked_at():
    assert has_dgx1_like_links([*TABLE, set(), {0, 1, 2}])


def test_the_position_selects_the_row():
    assert not has_dgx1_like_links(TABLE[4:] + TABLE[:4])


@pytest.mark.parametrize(
    ("topology", "choices"),
    [
        ("dgx1v", ("hierarchical_copy+packs=8", "nccl+packs=1", "nccl+bucket=0")),
        ("dgx1p", ("hierarchical_copy+packs=8", "nccl+packs=1", "nccl+bucket=0")),
        ("full:8", ("nccl+packs=1", "nccl+packs=1", "nccl+bucket=0")),
        ("full:4", ("nccl+packs=1", "nccl+packs=1", "nccl+bucket=0")),
        ("dgx1vx2", ("pscpu/pscpu#2", "nccl+packs=1", "nccl+bucket=0")),
    ],
)
def test_what_each_rule_chooses(topology, choices):
    names = ("choose_the_best", "select_cross_device_ops", "mirrored_strategy")

    assert dict(zip(names, choices, strict=True)) == tensorflow_choice(machine(topology))


def test_part_of_a_dgx1_is_none():
    assert choose_the_best(machine("dgx1v").subset(4)) == "nccl+packs=1"


def test_more_devices_than_there_are():
    assert choose_the_best(machine("dgx1v"), requested=8) == "hierarchical_copy+packs=8"
    assert choose_the_best(machine("dgx1v"), requested=9) == "reduce_to_one"


@pytest.mark.parametrize(
    ("devices", "choices"),
    [
        (on_devices("gpu0", "cpu0"), ("reduce_to_one", "reduce_to_one", "reduce_to_one")),
        (on_devices("cpu0"), ("reduce_to_one", "reduce_to_one", "collective+bucket=0")),
    ],
)
def test_cpus_among_the_devices(devices, choices):
    assert choices == tuple(tensorflow_choice(devices).values())


@pytest.mark.parametrize("name", AUTOMATIC)
@pytest.mark.parametrize("topology", ["dgx1v", "full:2", "dgx1vx2"])
@pytest.mark.parametrize("mean", ["", "+mean"])
def test_a_rule_is_a_strategy(name, topology, mean):
    shape = machine(topology)
    plan = compile_plan(name + mean, WORK, shape)

    assert verify(plan) == []
    assert compile_plan(AUTOMATIC[name](shape) + mean, WORK, shape).digest == plan.digest
    assert parse_strategy(name + mean).text == name + mean
    assert resolve(parse_strategy(name + mean), shape).text == AUTOMATIC[name](shape) + mean


def test_settings_are_those_of_the_choice():
    shape = machine("dgx1v")
    choice = parse_strategy("hierarchical_copy+packs=8")

    assert settings(choice, shape) == settings(parse_strategy("choose_the_best"), shape)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("choose_the_best+packs=2", "chooses its own packing; leave out \\+packs=2"),
        ("choose_the_best#2", "is a whole strategy"),
        ("pscpu:2k:mirrored_strategy", "is a whole strategy"),
        ("chose_the_best", "did you mean 'choose_the_best'"),
    ],
)
def test_what_is_refused(text, says):
    with pytest.raises(StrategyError, match=says):
        parse_strategy(text)
