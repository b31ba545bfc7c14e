"""What `verify` does over device counts and sizes."""

from __future__ import annotations

import pytest

from simreduce.algorithms import ALGORITHMS, Algorithm
from simreduce.errors import StrategyError
from simreduce.tune.prove import RANKS, Proof, prove, prove_all


def _forgetful(b, layout, tensors, shards):  # noqa: ARG001 - a planner's signature
    """The sum on rank 0 lacks the last rank, where there is more than one."""
    return [
        [[b.copy(b.add([b.copy(v, 0) for v in tensor[:-1] or tensor]), v.device)] for v in tensor]
        for tensor in tensors
    ]


def test_each_count_is_proven_alone_and_all_of_them_together():
    """One plan per count, and one with a gradient of each."""
    assert Proof("ring", 4, 3) == prove("ring", 4, (1, 7))
    assert Proof("ring", 4, 1) == prove("ring", 4, (7,))


def test_a_refusal_is_no_problem():
    """It says why."""
    assert Proof(
        "hierarchical_copy",
        3,
        0,
        refused="hierarchical_copy: hierarchical_copy needs an even number of GPUs, 2 or more, not 3",
    ) == prove("hierarchical_copy", 3, (1, 7))


def test_a_plan_that_sums_wrong_is_told_with_its_rank(monkeypatch):
    """For every size at which it fails, in words."""
    monkeypatch.setitem(ALGORITHMS, "forgetful", Algorithm("forgetful", _forgetful, "forgets one"))
    proof = prove("forgetful", 3, (5,))

    assert ("", 1) == (proof.refused, proof.plans)
    assert (
        tuple(f"5 elements: wrong sum: gpu{i} [0, 5): rank 2 is missing" for i in range(3)) == proof.problems
    )


def test_what_cannot_be_read_is_a_fault():
    """A misspelt strategy is not a refusal."""
    with pytest.raises(StrategyError, match="did you mean 'ring'"):
        prove("rng", 4, (1,))


def test_everything_is_every_algorithm_on_every_number_of_gpus(monkeypatch):
    """Alone and in packs; one that is added is among them, and is found out."""
    broken = Algorithm("forgetful", _forgetful, "forgets one")
    monkeypatch.setattr("simreduce.tune.prove.ALGORITHMS", {"ring": ALGORITHMS["ring"], "forgetful": broken})
    monkeypatch.setitem(ALGORITHMS, "forgetful", broken)
    proofs = list(prove_all((7,)))

    assert {
        (name + packs, n) for name in ("ring", "forgetful") for packs in ("", "+packs=3") for n in RANKS
    } == {(p.strategy, p.ranks) for p in proofs}
    assert {"forgetful", "forgetful+packs=3"} == {p.strategy for p in proofs if p.problems}
