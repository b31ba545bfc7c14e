"""NCCL's parallel aggregated trees: right results, few messages, no more bytes than needed, and
where NCCL takes them.
"""

from __future__ import annotations

from collections import Counter
from math import ceil, log2

import numpy as np
import pytest

from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.plan import Kind, verify
from simreduce.plan.ops import FOLLOWING
from simreduce.planners.nccl import Settings
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import tensor

GATHERS = ["all_gather", "reduce_scatter"]


def _setup(ranks: int, **nccl: object) -> Setup:
    """The first GPU of as many machines."""
    whole = Setup(f"dgx-h100x{max(ranks, 2)}", "nccl", nccl=Settings(**nccl))
    return whole.but(part=whole.layout.only(range(0, 8 * ranks, 8)))


def _plan(setup: Setup, collective: str, nbytes: int, text: str = "nccl:pat"):
    strategy = parse_strategy(text, collective)
    return setup.compile(strategy, tensor(nbytes, 0, setup.layout.n), collective)


def _following(plan):
    copies = plan.kind == Kind.COPY
    return (plan.stream[copies] // len(plan.devices)) & FOLLOWING > 0


@pytest.mark.parametrize("collective", GATHERS)
@pytest.mark.parametrize("ranks", [*range(2, 18), 32])
def test_the_result_is_right_on_any_number_of_machines_and_for_any_size(collective, ranks):
    setup = _setup(ranks)
    for nbytes in (4 * ranks, 1 << 16, (3 << 20) + 4):
        assert [] == verify(_plan(setup, collective, nbytes))
        assert [] == verify(_plan(setup, collective, nbytes, "nccl:pat+channels=2"))


@pytest.mark.parametrize("collective", GATHERS)
@pytest.mark.parametrize("ranks", [2, 3, 8, 13, 16])
def test_a_rank_sends_a_message_for_each_doubling_and_all_parts_but_one(collective, ranks):
    plan = _plan(_setup(ranks), collective, 4096 * ranks)
    copies = plan.kind == Kind.COPY
    sent = Counter(plan.source[copies][~_following(plan)].tolist())
    assert set(sent.values()) == {ceil(log2(ranks))}
    elements = (plan.hi - plan.lo)[copies]
    received = np.bincount(plan.device[copies], elements)
    assert set(received[received > 0].tolist()) == {1024 * (ranks - 1)}


@pytest.mark.parametrize("collective", GATHERS)
def test_a_message_holds_no_more_than_a_step_of_the_buffer(collective):
    """Parts of 128 KiB are four to a step of 512 KiB; one of 1 MiB goes by itself."""
    setup = _setup(16)
    for part, most in ((128 << 10, 4), (1 << 20, 1)):
        plan = _plan(setup, collective, 16 * part, "nccl:pat+channels=1")
        sizes = Counter[tuple[int, int]]()
        message = Counter[int]()
        copies = np.flatnonzero(plan.kind == Kind.COPY)
        for op, follows in zip(copies.tolist(), _following(plan).tolist(), strict=True):
            source = int(plan.source[op])
            message[source] += not follows
            sizes[source, message[source]] += 1
        assert max(sizes.values()) == most


@pytest.mark.parametrize("collective", GATHERS)
def test_it_is_faster_than_a_ring_of_the_same_protocol_and_never_below_the_floor(collective):
    setup = _setup(16)
    by = {
        name: setup.simulate(_plan(setup, collective, 1 << 16, f"nccl:{name}+simple"))
        for name in ("pat", "ring")
    }
    assert by["pat"].seconds < by["ring"].seconds / 2
    assert by["pat"].floors.hardware <= by["pat"].seconds


@pytest.mark.parametrize("collective", GATHERS)
def test_nccl_takes_it_since_2_23_where_its_model_does(collective):
    """Small tensors over many machines; large ones go round rings."""

    def messages(nbytes: int, **nccl: object) -> bool:
        return bool(_following(_plan(_setup(16, **nccl), collective, nbytes, "nccl")).any())

    assert messages(1 << 16)
    assert not messages(1 << 26)
    assert not messages(1 << 16, version=(2, 22))


def test_it_is_refused_where_a_machine_has_several_gpus_or_there_is_one():
    for setup in (Setup("dgx-h100x2", "nccl"), Setup("dgx-h100", "nccl")):
        with pytest.raises(StrategyError, match="has no pat on"):
            _plan(setup, "all_gather", 1 << 16)
    with pytest.raises(StrategyError):
        parse_strategy("nccl:pat")
    said = "PAT's times are nominal: no published table of it was compared"
    assert _setup(2).nominal(["nccl:pat"]) == said
