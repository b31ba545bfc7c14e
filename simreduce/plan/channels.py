"""The channels of NCCL's ops: one number whose fields are read and written here alone.

| bits | field | of |
|---|---|---|
| 0 to 5 | which of NCCL's channels | sends and launches |
| 6 to 11 | how many channels of NCCL it represents, less one | sends and launches |
| 12 to 15 | `LAST`, `JOINED`, `FOLLOWING`, `PEER` | sends |
| 12 | `SWITCHED` | launches of kernels |
| 13 | `BEGINS` | launches of kernels without channels |
| 14 | `ENGINE` | launches and copies of kernels without channels |
| 15 | `ONE_WAY` | copies of kernels without channels |
| 0 and 1, 2 and 3 | barriers, and those that release | launches of kernels without channels |
| 16 and 17 | how often the threads of a block are halved | sends |
| 18 | `UNALIGNED` | sends |

A launch is an INPUT and a send a COPY, so the kind of an op says whose flags its channel has. One
number takes four bytes of an op where columns of their own would take seven.
"""

from __future__ import annotations

from typing import TypeVar

from simreduce.computing.arrays import AnyInts

CHANNELS = 64
"""Channels that NCCL has at most."""

LAST = 1 << 12
"""The receiver does not send it on: the block there copies it to the user's buffer, and its own
next send waits.
"""

JOINED = 1 << 13
"""The send is one of a tree, whose blocks hear from several others or serve them."""

FOLLOWING = 1 << 14
"""The send is of a chunk's parts after the first."""

PEER = 1 << 15
"""A user has posted the send, to a peer with a connection of its own."""

SWITCHED = 1 << 12
"""The launched kernels have switches sum."""

BEGINS = 1 << 13
"""The kernel begins here: the launch of one that has no channels."""

ENGINE = 1 << 14
"""Copy engines move the bytes, not kernels. The channel represents as many others as GPUs take
part, or as share an engine.
"""

ONE_WAY = 1 << 15
"""The switch sums or multicasts, and does not do both: what passes it has two hops, not four."""

_BARRIER = 1
_RELEASE = 4
_MOST_SYNCS = 4

_HALVING = 1 << 16

UNALIGNED = 1 << 18
"""The send is of ranks' parts that do not begin at multiples of 16 bytes, which threads move at
once.
"""

Channels = TypeVar("Channels", int, AnyInts)


def merged_channel(number: int, blocks: int) -> int:
    """The channel that represents `blocks` channels of NCCL that do the same.

    The channel of a launch of kernels represents all channels of the kernels.
    """
    return number + CHANNELS * (blocks - 1)


def halve_threads(channel: int, times: int) -> int:
    """The channel of a send whose blocks have half of the threads, `times` (0 to 3) over."""
    return channel + _HALVING * times


def count_blocks(channel: Channels) -> Channels:
    """How many channels of NCCL a channel represents, each a block of threads."""
    return channel % LAST // CHANNELS + 1


def count_halvings(channel: Channels) -> Channels:
    """How often the threads of a send's blocks are halved."""
    return channel // _HALVING % 4


def sync_channel(barriers: int, releases: int, flags: int = 0) -> int:
    """The channel of a launch of a kernel without channels, or of a point on its way where its GPUs
    wait for each other: so many barriers (0 to 3), of which `releases` release what was written.
    """
    return _BARRIER * barriers + _RELEASE * releases + flags


def count_barriers(channel: Channels) -> Channels:
    """How many barriers such a launch has, those that release among them."""
    return channel // _BARRIER % _MOST_SYNCS


def count_releases(channel: Channels) -> Channels:
    """How many of them release what was written."""
    return channel // _RELEASE % _MOST_SYNCS
