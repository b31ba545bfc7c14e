"""The order of nodes: distinct orders, their bounds, and the best of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simreduce.engine.bounds import narrowest_cut
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.report.jobs import verdict
from simreduce.study.scenario import Scenario
from simreduce.study.scenario_files import build_meshes, build_scenario
from simreduce.study.tune import placement
from simreduce.study.tune.placement import Placement, on_nodes, place
from simreduce.study.tune.placement.orders import Cuts, Orders, bytes_between, mesh_seconds
from simreduce.study.tune.search.setting import Setting, evaluate
from simreduce.topology import load_topology
from simreduce.topology.switch_groups import switch_groups
from simreduce.workload.loader import load_workload
from tests.thorough import slow

FAT = "gh200x{},fabric=fat_tree,radix={},oversubscription={}"


def scenario(
    machine: str, order: Sequence[int], strategy: str = "nccl", size: str = "bytes:16MiB"
) -> Scenario:
    setup = Setup(machine, "by_strategy")
    part = layout(setup.machine).on(order)
    return Scenario(
        "s", "s", setup.but(part=part), load_workload(size), (parse_strategy(strategy),)
    )


def seconds(asked: Scenario, order: Sequence[int]) -> float:
    setup = asked.setup.but(part=layout(asked.setup.machine).on(order))
    own = Scenario("s", "s", setup, asked.workload, asked.strategies)
    return evaluate(own, Setting(asked.strategies[0].text if asked.strategies else "nccl")).seconds


def orders(machine: str, free: Sequence[int] = ()) -> Orders:
    topology = load_topology(machine)
    names = [str(i) for i in free] or switch_groups(topology).machines
    return Orders(switch_groups(topology), names)


def test_a_layout_on_nodes_keeps_the_gpus_of_each() -> None:
    whole = layout(load_topology("dgx1vx4"))
    found = whole.on([2, 0])
    assert found.ranks == (*whole.ranks[16:24], *whole.ranks[:8])
    assert found.tasks == (tuple(range(8)), tuple(range(8, 16)))
    assert found.hosts == (whole.hosts[2], whole.hosts[0])
    assert whole.on([0, 1, 2, 3]) == whole
    for wrong in ([], [0, 0], [4]):
        with pytest.raises(ValueError, match="name each once"):
            whole.on(wrong)


@pytest.mark.parametrize(
    ("machine", "nodes", "count"),
    [
        ("gh200x8", 8, 1),
        (FAT.format(8, 4, 2), 8, math.comb(8, 4) // 2),
        (FAT.format(6, 2, 1), 6, math.factorial(6) // 2**3 // 6),
        (FAT.format(7, 4, 2), 7, math.comb(7, 3)),
        ("gh200x8,fabric=fat_tree,levels=3,radix=4", 8, math.factorial(8) // 2**7),
        ("gh200x5,fabric=fat_tree,radix=4,equal_cost=hashed", 5, math.factorial(5)),
    ],
)
def test_every_distinct_order_is_listed_once(machine: str, nodes: int, count: int) -> None:
    found = orders(machine)
    listed = list(found.all(nodes))
    assert len(listed) == len({*listed}) == count
    every = {found.canonical(found.leaves(o)) for o in itertools.permutations(range(nodes))}
    assert {*listed} == every
    assert all(found.canonical(each) == each for each in listed)


def test_orders_of_some_of_the_free_nodes() -> None:
    found = orders(FAT.format(8, 4, 2), range(1, 7))
    every = {found.canonical(found.leaves(o)) for o in itertools.permutations(range(6), 3)}
    assert {*found.all(3)} == every
    assert all(found.leaves(found.nodes(each)) == each for each in every)


def test_orders_that_are_alike_take_as_long() -> None:
    asked = scenario(FAT.format(6, 2, 1), range(6))
    found = orders(FAT.format(6, 2, 1))
    times: dict[object, list[float]] = {}
    draw = random.Random(1)  # noqa: S311 - no secret
    for order in draw.sample([*itertools.permutations(range(6))], 60):
        times.setdefault(found.canonical(found.leaves(order)), []).append(seconds(asked, order))
    assert len(times) > 10
    for each in times.values():
        assert each == pytest.approx([each[0]] * len(each), rel=1e-12)
    assert len({round(each[0] * 1e9) for each in times.values()}) > 1


def test_what_a_ring_moves_out_of_a_leaf() -> None:
    # Each crossing of a ring carries 2 (n-1)/n of the tensor, and the up-links of a leaf share it.
    machine, size = FAT.format(8, 4, 2), 16 << 20
    asked = scenario(machine, range(8), "ring")
    plan = asked.setup.running(parse_strategy("ring")).compile("ring", asked.workload)
    moved = bytes_between(plan, asked.setup.layout)
    cuts, found = Cuts(orders(machine), moved), orders(machine)
    up = switch_groups(asked.setup.topology).leaves[0].rate
    assert moved[0, 1] == pytest.approx(2 * 7 / 8 * size)
    rows = {(0, 1, 2, 3, 4, 5, 6, 7): 1, (0, 4, 1, 5, 2, 6, 3, 7): 4, (0, 1, 4, 5, 2, 3, 6, 7): 2}
    bounds, _ = cuts.seconds([found.leaves(order) for order in rows])
    assert bounds == pytest.approx([n * 2 * 7 / 8 * size / up for n in rows.values()])
    for order, bound in zip(rows, bounds, strict=True):
        assert bound <= seconds(asked, order)


def test_steps_have_the_bounds_of_the_orders_they_lead_to() -> None:
    machine, given = FAT.format(12, 4, 2), [3, 7, 1, 9, 5, 8, 2]
    asked = scenario(machine, given)
    names = tuple(map(str, given))
    made = placement._Placing(
        placement._on(asked, (*names, "0", "4")), names, (*names, "0", "4"), 1,
        lambda _done, _all: None,
    )  # fmt: skip
    moved = np.random.default_rng(1).random((7, 7)) * 1e9
    np.fill_diagonal(moved, 0.0)
    cuts, at = Cuts(made.orders, moved), made.orders.leaves(made.start)
    near = made._near(at)
    reached = [placement._step(at, near, i) for i in range(len(near[0]))]
    assert len({*reached}) == len(reached) > 10
    for one, other in zip(cuts.steps(at, *near), cuts.seconds(reached), strict=True):
        assert one == pytest.approx(other)


@pytest.mark.parametrize(
    ("machine", "order"),
    [
        (FAT.format(5, 2, 2), (0, 2, 4, 1, 3)),
        *slow(
            [
                (FAT.format(5, 3, 3), (0, 3, 1, 4, 2)),
                ("gh200x5,fabric=fat_tree,levels=3,radix=4,oversubscription=3", (0, 3, 1, 4, 2)),
                ("gh200x5,fabric=dragonfly,p=1,a=2,h=1", (0, 2, 4, 1, 3)),
                (
                    "gh200x5,fabric=fat_tree,radix=3,oversubscription=3,equal_cost=hashed",
                    (0, 3, 1, 4, 2),
                ),
            ]
        ),
    ],
)
def test_the_best_of_all_orders(machine: str, order: tuple[int, ...]) -> None:
    asked = scenario(machine, order)
    best = min(seconds(asked, each) for each in itertools.permutations(range(len(order))))
    found = place(asked)
    assert found.complete
    assert found.best_seconds == pytest.approx(best, rel=1e-9)
    assert seconds(asked, [int(name) for name in found.best]) == found.best_seconds
    assert seconds(asked, order) == found.given_seconds


def test_the_best_of_all_orders_of_ten_nodes() -> None:
    machine, order = FAT.format(10, 5, 5), (0, 5, 1, 6, 2, 7, 3, 8, 4, 9)
    asked, every = scenario(machine, order), orders(machine)
    best = min(seconds(asked, every.nodes(each)) for each in every.all(10))
    found = place(asked)
    assert found.orders == math.comb(10, 5) // 2
    assert found.best_seconds == pytest.approx(best, rel=1e-9)
    assert found.simulated < found.orders // 2
    assert found.ratio < 0.5


def test_the_order_in_a_unit_of_rails_changes_nothing() -> None:
    found = place(scenario("dgx-h100x4,fabric=rail_optimised,unit=4", (2, 0, 3, 1)))
    assert (found.orders, found.simulated, found.kept, found.ratio) == (1, 1, True, 1.0)
    assert found.advised == found.given == ("2", "0", "3", "1")


def test_free_nodes_below_one_switch_are_better() -> None:
    found = place(scenario(FAT.format(8, 4, 4), (0, 4, 1, 5)), [str(i) for i in range(8)])
    assert not found.kept
    assert {*found.best} in ({*"0123"}, {*"4567"})
    assert found.best_seconds < found.given_seconds


def _allocation(seed: int) -> Placement:
    draw = random.Random(seed)  # noqa: S311 - no secret
    leaf = draw.choice((2, 3, 4))
    machine = FAT.format(12, leaf, draw.choice((1, leaf)))
    order = draw.sample(range(12), draw.randint(2, 12))
    free = [str(i) for i in draw.sample(range(12), draw.choice((0, 3)))]
    return place(scenario(machine, order, draw.choice(("nccl", "ring"))), free, effort=20_000)


@pytest.mark.parametrize("some", [3, *slow([0, 1, 2, 4])])
def test_never_worse_than_the_given_order_or_the_one_sorted_by_switch(some: int) -> None:
    for seed in range(10 * some, 10 * some + 10):
        found = _allocation(seed)
        assert found.best_seconds <= min(found.given_seconds, found.sorted_seconds), seed
        assert found.bound <= found.best_seconds
        assert len({*found.best}) == len(found.given)
        assert {*found.best} <= {*found.free}


def test_orders_too_many_to_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "LISTED", 20)
    order = (0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11)
    asked = scenario(FAT.format(12, 4, 4), order)
    found = place(asked)
    assert found.orders is None
    assert not found.complete
    assert found.ratio < 0.5
    assert place(asked) == found  # the same every time


def test_a_step_on_the_better_order() -> None:
    table = {
        "topology": FAT.format(6, 3, 3), "workload": "resnet50", "nodes": "0,3,1,4,2,5",
        "strategies": ["nccl+ddp"], "step": {"batch": 32, "time": "50 ms"},
    }  # fmt: skip
    found = place(build_scenario(Path("t.toml"), table))
    assert found.batch is not None
    assert found.best_seconds < found.given_seconds


def test_a_mesh_on_the_better_order() -> None:
    # Tensor parallel pairs over two nodes are the busiest: those below one leaf are best.
    table = {
        "topology": FAT.format(4, 2, 2), "workload": "llama-3-8b", "nodes": "0,2,1,3",
        "step": {"mesh": "tp=2,dp=2", "global_batch": 4},
    }  # fmt: skip
    asked = build_meshes(Path("t.toml"), table)
    found = place(asked)
    assert found.batch is not None
    assert not found.kept
    assert [{*found.best[:2]}, {*found.best[2:]}] in ([{"0", "1"}, {"2", "3"}],
                                                      [{"2", "3"}, {"0", "1"}])  # fmt: skip
    every = [on_nodes(asked, order).setup for order in itertools.permutations("0123")]
    assert found.best_seconds == pytest.approx(min(mesh_seconds(asked, each) for each in every))


def test_one_node_has_no_order() -> None:
    with pytest.raises(InputError, match="all ranks are on one node"):
        place(scenario("dgx1v", (0,)))


@pytest.mark.parametrize(
    "machine",
    [FAT.format(9, 3, 3), "dgx1vx8,fabric=fat_tree,nics=1,radix=4,oversubscription=2"],
)
@pytest.mark.parametrize("count", [5, 7])
def test_every_listed_order_is_the_canonical_one_of_its_kind(machine, count):
    """So that listed orders need not be made canonical again."""
    known = orders(machine)
    found = list(known.all(count))

    assert len(found) > 10
    assert all(known.canonical(each) == each for each in found)


@pytest.mark.parametrize(
    ("worth", "given", "advised", "seconds"),
    [
        (0.01, 2.0, "sorted", 1.005),
        (0.001, 2.0, "best", 1.0),
        (0.01, 1.008, "given", 1.008),
        (0.01, 1.012, "best", 1.0),
    ],
)
def test_the_order_by_switch_is_advised_unless_the_best_is_worth_more(
    worth, given, advised, seconds
) -> None:
    found = place(scenario(FAT.format(4, 2, 2), [0, 2, 1, 3]))
    orders = {"given": ("a", "b", "c"), "sorted": ("c", "a", "b"), "best": ("b", "c", "d")}
    times = {"given_seconds": given, "sorted_seconds": 1.005, "best_seconds": 1.0, "bound": 0.0}
    asked = replace(found.scenario, worth=worth)
    found = replace(found, scenario=asked, **orders, **times)
    assert found.advised == orders[advised]
    assert found.advised_seconds == seconds
    said = verdict(found)
    assert ("saves only" in said) == (advised != "best")
    if advised == "sorted":
        assert said.endswith("the best order that was found saves only 0.498 % more")


def test_orders_of_the_same_nodes_share_the_search_of_their_cut() -> None:
    narrowest_cut.cache_clear()
    found = place(scenario(FAT.format(8, 2, 2), [0, 2, 4, 1, 3, 5]))
    assert found.simulated > 1
    assert narrowest_cut.cache_info().misses == 1
