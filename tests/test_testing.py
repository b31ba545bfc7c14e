"""What plugin authors get: the check of an algorithm finds what is wrong with it."""

from __future__ import annotations

import pytest

from simreduce.engine.setup import Setup
from simreduce.planners.algorithms import ALGORITHMS, Algorithm
from simreduce.testing import check_algorithm, copy_plan, pair


@pytest.mark.parametrize("strategy", ["ring", "xring+packs=2", "hierarchical_copy"])
def test_ours_pass(strategy):
    assert check_algorithm(strategy) > 0


def test_other_collectives_pass():
    assert check_algorithm("trees", (2, 3), (1,), collective="broadcast") > 0


def test_a_wrong_one_is_found(monkeypatch):
    def lazy(builder, layout, tensors, options):  # noqa: ARG001 - a planner's signature
        return [list(tensor) for tensor in tensors]

    monkeypatch.setitem(ALGORITHMS, "lazy", Algorithm("lazy", lazy, "does nothing"))
    with pytest.raises(AssertionError, match="lazy on 2 ranks in 1 tasks: 1 elements: "):
        check_algorithm("lazy")


def test_one_that_refuses_everything_is_found():
    with pytest.raises(AssertionError, match="every machine was refused: "):
        check_algorithm("hierarchical_copy_gcp_v100", (2, 3))


@pytest.mark.parametrize(("ranks", "tasks"), [((), (1,)), ((2, 4), ()), ((3,), (2,))])
def test_a_check_of_nothing_is_no_success(ranks, tasks):
    with pytest.raises(
        AssertionError, match="ring: nothing to check: no number of ranks is a mult"
    ):
        check_algorithm("ring", ranks, tasks)


def test_small_machines_take_whole_seconds():
    machine = pair()

    assert 4.0 == Setup(machine, "ideal").simulate(copy_plan(machine, (0, 1))).seconds
