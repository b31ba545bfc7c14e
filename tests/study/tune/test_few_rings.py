"""What a library's limit of rings costs."""

from __future__ import annotations

import pytest

from simreduce.engine.setup import Setup
from simreduce.planners.layouts import layout
from simreduce.planners.strategy import parse_strategy
from simreduce.study.question import Question
from simreduce.study.tune.bench import tensor
from simreduce.study.tune.few_rings import FewRings, few_rings
from simreduce.topology import load_topology


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
