"""hierarchical_copy and its GCP variant: exactly the transfers of TensorFlow's."""

from __future__ import annotations

from collections import Counter

import pytest

from simreduce.errors import StrategyError
from simreduce.plan import Kind, verify
from simreduce.planners.algorithms.tensorflow import GCP_V100, dgx1_pair
from simreduce.planners.layouts import layout
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload
from tests.planners.algorithms.transfers import formulas, plan_for, transfers

NVLINK = {0: {1, 2, 3, 4}, 1: {0, 2, 3, 5}, 2: {0, 1, 3, 6}, 3: {0, 1, 2, 7},
          4: {0, 5, 6, 7}, 5: {1, 4, 6, 7}, 6: {2, 4, 5, 7}, 7: {3, 4, 5, 6}}  # fmt: skip

EIGHT_PACKS = [
    {"pack": 0, "dgx1_main": 0, "dgx1_secondary": 4, "gcp_main": 0, "gcp_secondary": 5},
    {"pack": 1, "dgx1_main": 1, "dgx1_secondary": 5, "gcp_main": 2, "gcp_secondary": 7},
    {"pack": 2, "dgx1_main": 2, "dgx1_secondary": 6, "gcp_main": 5, "gcp_secondary": 0},
    {"pack": 3, "dgx1_main": 3, "dgx1_secondary": 7, "gcp_main": 7, "gcp_secondary": 2},
    {"pack": 4, "dgx1_main": 4, "dgx1_secondary": 0, "gcp_main": 0, "gcp_secondary": 5},
    {"pack": 5, "dgx1_main": 5, "dgx1_secondary": 1, "gcp_main": 2, "gcp_secondary": 7},
    {"pack": 6, "dgx1_main": 6, "dgx1_secondary": 2, "gcp_main": 5, "gcp_secondary": 0},
    {"pack": 7, "dgx1_main": 7, "dgx1_secondary": 3, "gcp_main": 7, "gcp_secondary": 2},
]
"""As TensorFlow's own functions give them."""


def faithful_plan(strategy, topology, *elements):
    gradients = tuple(Gradient(f"g{i}", n) for i, n in enumerate(elements))
    machine = layout(load_topology(topology))
    return compile_plan(strategy, Workload("test", gradients), machine, faithful=True)


def numbered(plan):
    """How often each (source, destination) moves something, by GPU number."""
    return Counter((int(s[3:]), int(t[3:])) for s, t, _ in plan.copies())


@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize("row", EIGHT_PACKS)
def test_the_pairs_of_eight_packs(row, faithful):
    i = row["pack"]

    assert (row["dgx1_main"], row["dgx1_secondary"]) == dgx1_pair(i, 8, faithful=faithful)
    assert (row["gcp_main"], row["gcp_secondary"]) == GCP_V100[i % 4]


@pytest.mark.parametrize("row", EIGHT_PACKS)
@pytest.mark.parametrize(
    ("strategy", "table"), [("hierarchical_copy", "dgx1"), ("hierarchical_copy_gcp_v100", "gcp")]
)
def test_the_transfers_of_every_pack(row, strategy, table):
    """Each of the pair adds its own quad, the total crosses back and is handed out."""
    main, secondary = row[f"{table}_main"], row[f"{table}_secondary"]
    near, far = (range(4), range(4, 8)) if main < 4 else (range(4, 8), range(4))
    expected = Counter({(d, main): 1 for d in near if d != main})
    expected.update({(d, secondary): 1 for d in far if d != secondary})
    expected.update({(secondary, main): 1, (main, secondary): 1})
    expected.update({(main, d): 1 for d in near if d != main})
    expected.update({(secondary, d): 1 for d in far if d != secondary})
    plan = plan_for(strategy, "full:8", *[1] * row["pack"], 100)
    found = Counter((int(s[3:]), int(t[3:])) for s, t, n in plan.copies() if n == 100)

    assert expected == found


def test_eight_packs_are_112_transfers_over_links_that_exist():
    plan = plan_for("hierarchical_copy+packs=8", "dgx1v", 800)

    assert plan.transfers == 112
    assert {(a, b): 2 if abs(a - b) == 4 else 4 for a in NVLINK for b in NVLINK[a]} == numbered(
        plan
    )
    assert {100} == {n for _, _, n in plan.copies()}
    assert verify(plan) == []


def test_eight_packs_by_the_table_of_gcp():
    """0-2 and 5-7 carry 8 packs each way; 0-5, 2-7 and the other links of 0, 2, 5, 7 carry 4; 1-3,
    4-6 none.
    """
    plan = plan_for("hierarchical_copy_gcp_v100+packs=8", "full:8", 800)
    eights = [(0, 2), (5, 7)]
    fours = [(0, 5), (2, 7), (0, 1), (0, 3), (2, 1), (2, 3), (5, 4), (5, 6), (7, 4), (7, 6)]
    expected = {
        pair: k
        for k, pairs in ((8, eights), (4, fours))
        for a, b in pairs
        for pair in ((a, b), (b, a))
    }

    assert plan.transfers == 112
    assert expected == numbered(plan)
    assert verify(plan) == []


@pytest.mark.parametrize("devices", [1, 2, 4, 7, 9])
def test_the_table_of_gcp_is_for_eight(devices):
    with pytest.raises(StrategyError, match=f"exactly 8 devices, not {devices}"):
        plan_for("hierarchical_copy_gcp_v100", f"full:{devices}", 8)


def test_the_sum_is_the_main_devices_group_plus_the_other():
    plan = plan_for("hierarchical_copy", "full:8", 5)
    texts = formulas(plan)

    assert {"((x0+x1+x2+x3)+(x4+x5+x6+x7))"} == {
        texts[op] for op in range(len(plan)) if plan.kind[op] == Kind.OUTPUT
    }


def test_two_devices():
    """N = 2: pack 0 adds on 0, pack 1 on 1; 2 transfers a pack."""
    plan = plan_for("hierarchical_copy", "full:2", 5, 6)

    assert transfers(plan) == {("gpu1", "gpu0", 5): 1, ("gpu0", "gpu1", 5): 1,
            ("gpu0", "gpu1", 6): 1, ("gpu1", "gpu0", 6): 1}  # fmt: skip


def test_four_devices_pack_one():
    """N = 4, pack 1: add {0,1} on 1, add {2,3} on 3, 3 -> 1, 1 -> 3, 1 -> 0, 3 -> 2."""
    plan = plan_for("hierarchical_copy", "full:4", 1, 9)
    found = Counter({(s, t): k for (s, t, n), k in transfers(plan).items() if n == 9})
    expected = Counter(
        ("gpu0 gpu1", "gpu2 gpu3", "gpu3 gpu1", "gpu1 gpu3", "gpu1 gpu0", "gpu3 gpu2")
    )

    assert Counter({tuple(k.split()): v for k, v in expected.items()}) == found


@pytest.mark.parametrize("devices", range(2, 18))
@pytest.mark.parametrize("options", ["", "+packs=5", "+mean"])
def test_every_number_of_devices_verifies(devices, options):
    plan = plan_for("hierarchical_copy" + options, f"full:{devices}", *range(1, devices + 2))

    assert verify(plan) == []


@pytest.mark.parametrize("devices", [2, 3, 4, 5, 7, 8])
def test_a_tensor_is_two_transfers_for_every_device_but_one(devices):
    plan = plan_for("hierarchical_copy", f"full:{devices}", *[8] * devices)

    assert 2 * (devices - 1) * devices == plan.transfers


@pytest.mark.parametrize("devices", [2, 4, 6, 8])
def test_upstream_agrees_on_even_numbers(devices):
    sizes = range(1, devices + 1)

    assert (
        plan_for("hierarchical_copy", f"full:{devices}", *sizes).digest
        == faithful_plan("hierarchical_copy", f"full:{devices}", *sizes).digest
    )


@pytest.mark.parametrize("devices", [3, 5, 7])
def test_upstream_drops_the_last_of_an_odd_number(devices):
    """Every device receives the sum of all but the last one, whichever device is the main one."""
    plan = faithful_plan("hierarchical_copy", f"full:{devices}", *[4] * devices)
    problems = verify(plan)

    assert {"wrong sum"} == {p.rule for p in problems}
    assert 4 * devices * devices == sum(p.elements for p in problems)
    assert all(p.message.endswith(f"rank {devices - 1} is missing") for p in problems[:20])


def test_upstream_may_sum_on_a_device_that_it_drops():
    """N = 3, pack 2: main 2, although only 0 and 1 are summed."""
    plan = faithful_plan("hierarchical_copy", "full:3", 1, 1, 9)
    texts = formulas(plan)
    found = Counter({(s, t): k for (s, t, n), k in transfers(plan).items() if n == 9})

    assert texts[len(texts) - 1] == "(x1+x0)"
    assert (
        Counter([("gpu0", "gpu2"), ("gpu1", "gpu2"), ("gpu2", "gpu0"), ("gpu2", "gpu1")]) == found
    )


def test_upstream_sums_groups_of_one_where_they_are():
    """N = 3: TensorFlow's sum of one tensor is that tensor, whatever device it is asked for on.

    Pack 0 adds on 0 and hands out by 1; pack 1 adds on 1 and hands out by 2, which gets the total
    twice.
    """
    found = transfers(faithful_plan("hierarchical_copy", "full:3", 7, 9))

    assert Counter({
        ("gpu1", "gpu0", 7): 1, ("gpu0", "gpu1", 7): 1, ("gpu1", "gpu2", 7): 1,
        ("gpu0", "gpu1", 9): 1, ("gpu1", "gpu2", 9): 2, ("gpu2", "gpu0", 9): 1,
    }) == found  # fmt: skip


@pytest.mark.parametrize("plan", [plan_for, faithful_plan])
def test_one_device_is_refused(plan):
    """Upstream too: there is nothing to add in its second group."""
    with pytest.raises(StrategyError, match="2 devices or more"):
        plan("hierarchical_copy", "full:1", 8)
