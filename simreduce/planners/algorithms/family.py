"""Algorithm families: collectives over groups of devices, all groups in lockstep.

A family's functions are given a `Values` of shape (groups, n): entry [g, p] is what position p of
group g gives. Groups share no device, and one call plans all of them by array arithmetic, so that a
two-level algorithm over 512 machines is a few calls. Every stream they use has a channel from
`knobs.channel` on.

A family is *symmetric* if every position does the same as position 0, shifted: what position p has
of position q depends on where q is as seen from p (q - p, or p XOR q), and so do the steps. Its
all-reduce then plans one of `knobs.machines` equal machines for all of them. It is written once: it
takes the number of positions from `size`, its parts from `parts`, numbers positions from 0 to n - 1
whether or not they are here, and gets what others have by `pull`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from simreduce import dtypes
from simreduce.computing.arrays import Ints
from simreduce.errors import UnevenParts
from simreduce.plan import PlanBuilder, Values
from simreduce.plan.ops import Numbers, most_ops, too_large
from simreduce.plan.plan import NO_STREAM
from simreduce.planners.algorithms.planner import Options

NAMES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "reduce",
    "broadcast",
    "all_to_all",
    "send_receive",
)
"""The collectives."""

After: TypeAlias = "Sequence[int] | Ints"
"""Ops to wait for."""

Pull: TypeAlias = Callable[[Values, Values, After], Values]
Connect: TypeAlias = Callable[..., Pull]
"""`puller`, or what takes its place."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """Options of one collective of a family.

    `channel` is the first stream channel to take, `chunk` the most elements that a pipeline sends
    as one piece (0: no limit), `root` the position where a rooted collective starts or ends. With
    `machines` equal machines, the values are the positions of the first one; the next machine has
    the next positions.
    """

    channel: int = 0
    chunk: int = 0
    root: int = 0
    machines: int = 1


Collective: TypeAlias = Callable[[PlanBuilder, Values, Knobs], Values]
"""From shape (groups, n) to

- all_reduce: (groups, n), the sum over the group, on every position;
- reduce_scatter: (groups, n), part p of the sum on position p, cut as `Values.cut(n)` cuts;
- all_gather: (groups, n), the whole on every position; position p gave part p;
- reduce: (groups, 1), the sum on the root;
- broadcast: (groups, n), the root's value on every position; other entries only name devices;
- all_to_all: (groups, n, n), at [g, q, p] the part that p gave for q; position p gave one value,
  which `cut(n)` cuts into the parts;
- send_receive: (groups, n), at position p what position p - 1 gave, at 0 what the last one gave.
"""


@dataclass(frozen=True, slots=True)
class Family:
    """The collectives that one idea gives; None where it gives none.

    It uses at most `channels` stream channels. `pipelined` families heed `Knobs.chunk`;
    `symmetric` ones have a symmetric all-reduce.
    """

    name: str
    summary: str
    all_reduce: Collective | None = None
    reduce_scatter: Collective | None = None
    all_gather: Collective | None = None
    reduce: Collective | None = None
    broadcast: Collective | None = None
    all_to_all: Collective | None = None
    send_receive: Collective | None = None
    channels: int = 1
    pipelined: bool = False
    symmetric: bool = False


def knobs(options: Options, dtype: int, root: int = 0) -> Knobs:
    """The knobs that a user's options mean for tensors of `dtype`; a chunk has at least one
    element.
    """
    chunk = max(options.chunk // dtypes.SIZES[dtype], 1) if options.chunk else 0
    return Knobs(chunk=chunk, root=root)


def size(values: Values, knobs: Knobs) -> int:
    """The number of positions, including the positions of other machines."""
    return values.shape[1] * knobs.machines


def parts(values: Values, knobs: Knobs) -> Values:
    """Every value in as many parts as there are positions, along a new axis. StrategyError if
    machines that do not do the same would be taken for one.
    """
    _check_even(values, knobs)
    return values.cut(size(values, knobs))


def common_parts(values: Values, knobs: Knobs) -> Values:
    """Return `parts` of position 0's value, by group and part.

    They are the parts of every position where all have one interval. With many positions, the parts
    of each would take gigabytes.
    """
    _check_even(values, knobs)
    return values[:, 0].cut(size(values, knobs))


def _check_even(values: Values, knobs: Knobs) -> None:
    n = size(values, knobs)
    uneven = values.elements[values.elements % n > 0]
    if knobs.machines > 1 and len(uneven):
        raise UnevenParts(
            f"{uneven[0]} elements are no {n} equal parts, so the machines do not do the same and "
            f"cannot be folded; try a size that {n} divides"
        )


def everyones(shards: Values, knobs: Knobs) -> Values:
    """The shards of all positions; on this machine, position p's is at p.

    The shards of other machines have the same size and differ by their intervals only.
    """
    if knobs.machines == 1:
        return shards
    lo = shards.lo[:, :1] + shards.elements[:, :1] * np.arange(size(shards, knobs))
    return shards[:, np.zeros(lo.shape[1], dtype=np.int64)].view(lo, lo + shards.elements[:, :1])


def by_row(collective: Collective, b: PlanBuilder, values: Values, knobs: Knobs) -> Values:
    """A collective of the groups along the last axis."""
    made = collective(b, values.reshape(-1, values.shape[-1]), knobs)
    return made.reshape(*values.shape[:-1], made.shape[-1])


def pull(
    b: PlanBuilder, values: Values, source: Ints, wanted: Values, *,
    stream: Numbers = NO_STREAM, after: After = (),
) -> Values:  # fmt: skip
    """Copies to the devices of `wanted` of its intervals, each from the value of position `source`:
    along axis 1 of `values`, or beyond it on another machine.
    """
    return puller(b, values.device, source, stream=stream)(values, wanted, after)


def puller(
    b: PlanBuilder,
    device: Ints,
    source: Ints,
    *,
    channel: int | None = None,
    stream: Numbers = NO_STREAM,
) -> Pull:
    """`pull` of any values on `device`, as a function of them, of `wanted` and of `after`: for
    families that pull from the same positions step by step. They leave by the sender's stream of
    `channel`, if one is given.
    """
    away, sender = np.divmod(source, device.shape[1])
    machines: Numbers = away if away.any() else 0
    if channel is not None:
        stream = b.streams(device[:, sender], channel)

    def step(values: Values, wanted: Values, after: After) -> Values:
        given = wanted.with_ops(values.op[:, sender])
        return b.copies(given, wanted.device, stream=stream, after=after, away=machines)

    return step


def chunk_count(elements: int, chunk: int, each: int) -> int:
    """How many chunks of at most `chunk` elements (0: no limit) there are; PlanTooLarge if, at
    `each` ops a chunk, they are more than a plan may hold.
    """
    count = max(-(-elements // chunk), 1) if chunk else 1
    check_chunks(count, each)
    return count


def check_chunks(count: int, each: int) -> None:
    """PlanTooLarge if chunks of `each` ops are more than a plan may hold."""
    if count * each > most_ops():
        raise too_large(count * each)
