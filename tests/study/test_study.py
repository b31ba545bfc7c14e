"""Outcomes of many questions: reasons are said once."""

from __future__ import annotations

from simreduce.study.ranking import by_reason

ROUTE = "no route from 'gpu0' to 'gpu1'"


def test_a_reason_is_said_once():
    """Behind the names that it holds for, or the first, without packings of an algorithm."""
    names = ("ring", "ring+packs=2", "chain+packs=8", "direct", "trees", "xring", "psgpu")
    refused = [(name, f"{name}: {ROUTE}") for name in names] + [("nccl", "nccl: odd")]

    assert by_reason(refused, brief=True) == [
        f"ring, chain+packs=8, direct and 3 more: {ROUTE}",
        "nccl: odd",
    ]
    assert by_reason(refused) == [f"{', '.join(names)}: {ROUTE}", "nccl: odd"]
    assert by_reason([("ring", "ring#5: too many"), ("a", "ring#5: too many")]) == [
        "ring#5: too many"
    ]
    assert by_reason([]) == []
