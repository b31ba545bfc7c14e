"""What reports advise, and how sure they are."""

from __future__ import annotations

import pytest

from simreduce.study.advice import Option, advise

ERRORS = {"factor": 1.5, "ratio_factor": 1.2}


@pytest.mark.parametrize(("today", "apart"), [(1.25, True), (1.15, False)])
def test_a_gap_is_held_against_the_error_of_a_ratio_and_a_time_against_its_own(today, apart):
    found = advise(Option("nccl", 1.0), [Option("nccl+ddp", today, "PyTorch")], ERRORS)

    assert (1.5, apart) == (found.factor, found.apart)
    assert "within a factor of 1.50" in found.caution("nominal")


def test_of_other_times_than_nccls_nothing_is_known():
    found = advise(Option("ring", 1.0), [Option("nccl", 2.0, "NCCL")], ERRORS)

    assert (None, None) == (found.factor, found.apart)
