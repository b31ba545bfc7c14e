"""The all_reduce_spec of MultiWorkerAllReduce: what it reads, and what it refuses."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from simreduce.errors import StrategyError
from simreduce.planners.strategy import DEFAULT, Range, parse_multi_worker_spec


class Spec(NamedTuple):
    alg: str
    shards: int
    limit: int


@pytest.mark.parametrize(
    ("given", "ranges"),
    [
        (DEFAULT, [Range("pscpu/pscpu", 2, -1)]),
        ("nccl/xring", [Range("nccl/xring", 1, -1)]),
        ("pscpu#2:4k:xring", [Range("pscpu#2:4k:xring", 1, -1)]),
        (("xring",), [Range("xring", 1, -1)]),
        (("xring", 2), [Range("xring", 2, -1)]),
        (("xring", 2, 2048), [Range("xring", 2, 2048)]),
        (Spec("psgpu", 4, -1), [Range("psgpu", 4, -1)]),
        ([("pscpu", 2, 2048), Spec("pscpu", 2, 65536), ("xring",)],
         [Range("pscpu", 2, 2048), Range("pscpu", 2, 65536), Range("xring", 1, -1)]),
        ([], []),
    ],
)  # fmt: skip
def test_what_it_reads(given, ranges):
    """A name is taken whole: the grammar of tf_cnn_benchmarks is not applied."""
    assert ranges == parse_multi_worker_spec(given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((), "Too many elements"),
        (("xring", 1, -1, 0), "Too many elements"),
        (["xring"], "A tuple is expected for all_reduce spec: 'xring'"),
        ([("xring",), ["pscpu", 1]], "A tuple is expected"),
        ((2, "xring"), "a name and up to two whole numbers"),
        (("xring", "2"), "a name and up to two whole numbers"),
    ],
)
@pytest.mark.parametrize("faithful", [False, True])
def test_what_it_refuses(given, says, faithful):
    with pytest.raises(StrategyError, match=says):
        parse_multi_worker_spec(given, faithful=faithful)


def test_every_fault_is_listed():
    with pytest.raises(StrategyError) as error:
        parse_multi_worker_spec(["xring", ("pscpu",), (), ("xring", 1.5)])

    assert len(error.value.problems) == 3


@pytest.mark.parametrize("given", [None, 3, {"pscpu": 2}])
def test_other_types_are_no_range_upstream(given):
    assert parse_multi_worker_spec(given, faithful=True) == []
    with pytest.raises(StrategyError, match="a name, a tuple"):
        parse_multi_worker_spec(given)
