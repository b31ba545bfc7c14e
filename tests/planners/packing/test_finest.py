"""Packings of recorded buckets."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from simreduce.planners.packing import joined_sizes, why_too_fine
from simreduce.planners.strategy import parse_strategy
from simreduce.workload import Gradient

MIB = 1 << 20
SIZES = st.lists(st.integers(25 * MIB // 4, 40 * MIB // 4), min_size=3, max_size=30)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True), ("+packs=4", True), ("+ddp", True), ("+ddp=25", True), ("+ddp=24.9", False),
        ("+ddp=100,view", True), ("+ddp=100,3", False), ("+fusion", True), ("+fusion=0", False),
        ("+fusion=1M", False), ("+bucket=0", True), ("+bucket=1M", False), ("+bucket=2G", True),
    ],
)  # fmt: skip
def test_what_would_divide_a_bucket_is_refused(text, fits):
    packer = parse_strategy(f"nccl{text}").packer

    assert fits == (why_too_fine(packer, 25 * MIB) == "")
    assert why_too_fine(packer, 0) == ""


@given(SIZES)
def test_buckets_are_joined_as_their_size_says(elements):
    """A cap makes buckets of as many recorded ones as its own, in the middle of the list."""
    gradients = [Gradient(f"g{i}", n) for i, n in enumerate(reversed(elements))]
    finest = min(4 * n for n in elements[1:-1]) // MIB * MIB
    sizes = joined_sizes([4 * n for n in elements], finest)

    assert sizes == sorted(sizes)
    assert sizes[0] == finest
    for size in sizes:
        packer = parse_strategy(f"nccl+ddp={size / MIB:g}").packer
        held = [
            sum(gradients[i].nbytes for i in group) for group in packer.arrange(gradients).groups
        ]
        assert all(nbytes >= size for nbytes in held[:-1])
    assert (
        len(parse_strategy(f"nccl+ddp={sizes[-1] / MIB:g}").packer.arrange(gradients).groups) == 1
    )
