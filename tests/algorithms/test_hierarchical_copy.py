"""hierarchical_copy on 8 devices: exactly the transfers of TensorFlow's."""

from __future__ import annotations

from collections import Counter

import pytest

from simreduce.errors import StrategyError
from simreduce.plan import Kind, verify
from tests.algorithms.transfers import formulas, plan_for, transfers

NVLINK = {0: {1, 2, 3, 4}, 1: {0, 2, 3, 5}, 2: {0, 1, 3, 6}, 3: {0, 1, 2, 7},
          4: {0, 5, 6, 7}, 5: {1, 4, 6, 7}, 6: {2, 4, 5, 7}, 7: {3, 4, 5, 6}}  # fmt: skip


@pytest.mark.parametrize("pack", range(8))
def test_the_table_of_eight_packs(pack):
    """Pack i: main i, secondary i+4 mod 8; each adds its own quad, the total crosses back and is handed out."""
    main, secondary = pack, (pack + 4) % 8
    near, far = (range(4), range(4, 8)) if main < 4 else (range(4, 8), range(4))
    expected = Counter({(d, main): 1 for d in near if d != main})
    expected.update({(d, secondary): 1 for d in far if d != secondary})
    expected.update({(secondary, main): 1, (main, secondary): 1})
    expected.update({(main, d): 1 for d in near if d != main})
    expected.update({(secondary, d): 1 for d in far if d != secondary})
    plan = plan_for("hierarchical_copy", "full:8", *[1] * pack, 100)
    found = Counter((int(s[3:]), int(t[3:])) for s, t, n in plan.copies() if n == 100)

    assert expected == found


def test_eight_packs_are_112_transfers_over_links_that_exist():
    plan = plan_for("hierarchical_copy+packs=8", "dgx1v", 800)
    loads = Counter((int(s[3:]), int(t[3:])) for s, t, _ in plan.copies())

    assert plan.transfers == 112
    assert {(a, b): 2 if abs(a - b) == 4 else 4 for a in NVLINK for b in NVLINK[a]} == loads
    assert {100} == {n for _, _, n in plan.copies()}
    assert verify(plan) == []


def test_the_sum_is_the_main_devices_group_plus_the_other():
    plan = plan_for("hierarchical_copy", "full:8", 5)
    texts = formulas(plan)

    assert {"((x0+x1+x2+x3)+(x4+x5+x6+x7))"} == {
        texts[op] for op in range(len(plan)) if plan.kind[op] == Kind.OUTPUT
    }


def test_four_devices_pack_one():
    """N = 4, pack 1: add {0,1} on 1, add {2,3} on 3, 3 -> 1, 1 -> 3, 1 -> 0, 3 -> 2."""
    plan = plan_for("hierarchical_copy", "full:4", 1, 9)
    found = Counter({(s, t): k for (s, t, n), k in transfers(plan).items() if n == 9})
    expected = Counter(("gpu0 gpu1", "gpu2 gpu3", "gpu3 gpu1", "gpu1 gpu3", "gpu1 gpu0", "gpu3 gpu2"))

    assert Counter({tuple(k.split()): v for k, v in expected.items()}) == found


@pytest.mark.parametrize("devices", [1, 3, 5, 7])
def test_odd_numbers_are_refused(devices):
    """Upstream gives a wrong sum there: it drops the last device."""
    with pytest.raises(StrategyError, match="even number of GPUs"):
        plan_for("hierarchical_copy", f"full:{devices}", 8)
