"""Fields of the channels of NCCL's ops."""

from __future__ import annotations

from hypothesis import given, strategies as st

from simreduce.plan.ops import (
    CHANNELS,
    FOLLOWING,
    JOINED,
    LAST,
    PEER,
    SWITCHED,
    count_blocks,
    count_halvings,
    halve_threads,
    merged_channel,
)

FLAGS = (LAST, JOINED, FOLLOWING, PEER)


@given(
    number=st.integers(0, CHANNELS - 1),
    blocks=st.integers(1, CHANNELS),
    flags=st.sets(st.sampled_from(FLAGS)),
    halvings=st.integers(0, 3),
)
def test_every_field_reads_back_whatever_the_others_hold(number, blocks, flags, halvings):
    channel = halve_threads(merged_channel(number, blocks) + sum(flags), halvings)

    assert channel % CHANNELS == number
    assert count_blocks(channel) == blocks
    assert {flag for flag in FLAGS if channel & flag} == flags
    assert count_halvings(channel) == halvings


@given(blocks=st.integers(1, CHANNELS))
def test_launches_that_use_switches_have_their_blocks_besides(blocks):
    channel = merged_channel(0, blocks)

    assert not channel & SWITCHED
    assert count_blocks(channel + SWITCHED) == blocks
