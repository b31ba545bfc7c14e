"""All-reduces by one kernel on every GPU, which reads and writes the memory of the others.

`oneshot`: every GPU reads all of the others' data and adds for itself, between two barriers (vLLM's
custom all-reduce, TensorRT-LLM's and FlashInfer's ONESHOT, PyTorch's `one_shot_all_reduce`).

`twoshot`: every GPU reads and adds its part, and after a barrier all read the sums (TWOSHOT).

`multimem`: every GPU has the NVSwitch sum its part on load and multicast it on store, between two
barriers (PyTorch's `multimem_all_reduce_`). Needs NVLink SHARP.

`symmetric`: NCCL's symmetric kernels, the one that NCCL takes or one that is named
(`planners.nccl.constants`). With flags beside the data (LL) no barrier is needed. All-gathers write
to peers, reduce-scatters read from them, or a switch multicasts or sums.

`symmetric:engine`: NCCL's all-gathers and all-to-alls by copy engines, which take no SM. A batch of
copies from every GPU to every other, or to a switch that multicasts them, between two barriers of
the streams.

Barriers before the first bytes and after the last are part of the launch here; the one between is
an op that waits for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from simreduce import dtypes
from simreduce.errors import NotFoldable, StrategyError
from simreduce.plan import Executor, PlanBuilder, Value, Values
from simreduce.plan.channels import (
    BEGINS,
    ENGINE,
    ONE_WAY,
    SWITCHED,
    merged_channel,
    sync_channel,
)
from simreduce.planners.algorithms import direct
from simreduce.planners.algorithms.family import Knobs
from simreduce.planners.algorithms.nccl import switches
from simreduce.planners.algorithms.nccl.paths import BY_ENGINE, SYMMETRIC, decided
from simreduce.planners.algorithms.planner import Options, Planner, Results, Tensors, plan_chain
from simreduce.planners.layouts import Decision, Layout

MOST_GPUS = 8
"""GPUs that the kernels of vLLM, TensorRT-LLM and PyTorch have pointers for (vLLM
csrc/custom_all_reduce.cuh).
"""

MOST_SYMMETRIC = 72
"""GPUs of the largest NVLink domain."""

MOST_BY_ENGINES = 64
"""GPUs whose number a launch holds here (`plan.channels`)."""

_BLOCKS = 36
"""vLLM's blocks of 512 threads (the same file)."""

_TORCH_BLOCKS = 48
"""PyTorch's 24 blocks of 1,024 threads, as blocks of 512 (pytorch
torch/csrc/distributed/c10d/CUDASymmetricMemoryOps.cu).
"""

_NCCL_BLOCKS = 64
"""NCCL's, at most (NVIDIA/nccl src/include/sym_kernels.h)."""

_LEAST, _PIECES = 1 << 15, 16
"""Bytes of a piece that goes through a switch, at least, and pieces at most."""

Run = Callable[[PlanBuilder, Layout, Values, Sequence[Value]], Values]


def planner(run: Run, most: int = MOST_GPUS) -> Planner:
    """The planner of a kernel on up to `most` GPUs; each tensor waits for the one before."""

    def plan(b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        _check(layout, most)

        def plan_next(tensor: Sequence[Value], before: Sequence[Value]) -> Sequence[Value]:
            given = Values.of(tensor)
            return run(b, layout, given, before) if layout.n > 1 else given

        return plan_chain(b, tensors, plan_next)

    return plan


def _check(layout: Layout, most: int) -> None:
    if layout.machines > 1:
        raise NotFoldable("the GPUs of one kernel are of one machine")
    if layout.n > most:
        raise StrategyError(f"runs on up to {most} GPUs, and these are {layout.n}")
    if not layout.joined:
        raise StrategyError("needs NVLinks or NVSwitches between all GPUs")


@contextmanager
def _kernel(
    b: PlanBuilder, given: Values, before: Sequence[Value], channel: int, *, flagged: bool = False
) -> Iterator[int]:
    """Mark the ops appended inside as a kernel's; yields the op to wait for."""
    executor, b.executor = b.executor, Executor.KERNEL_LL if flagged else Executor.KERNEL
    first, ops = given[0].device, [value.op for value in (*given, *before)]
    try:
        yield b.barrier(first, ops, b.stream(first, channel | BEGINS))
    finally:
        b.executor = executor


def _held(b: PlanBuilder, given: Values, launch: int) -> Values:
    """The values once the op `launch` is done."""
    return Values.of([b.hold(value, (launch,)) for value in given])


def oneshot(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU reads everything."""
    with _kernel(b, given, before, sync_channel(2, 0)) as launch:
        return _one(b, _held(b, given, launch))


def _one(b: PlanBuilder, given: Values) -> Values:
    n = len(given)
    wanted = given[direct.givers(n, n) % n][None]
    return direct.add_up(b, direct.exchange(b, given[None], wanted))[0, :]


def twoshot(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU adds its part; then all read the sums, a thread from one GPU at a time."""
    with _kernel(b, given, before, sync_channel(2, 0)) as launch:
        sums = direct.reduce_scatter(b, _held(b, given, launch)[None], Knobs())[0, :]
        middle = b.stream(sums[0].device, sync_channel(1, 1))
        done = b.barrier(sums[0].device, sums.op.tolist(), middle)
        return _gather(b, _held(b, sums, done), _serving(_BLOCKS, len(given)))


def _serving(blocks: int, n: int) -> int:
    """The channel of the blocks of a GPU that serve one of its peers."""
    return merged_channel(0, max(blocks // (n - 1), 1))


def _gather(b: PlanBuilder, sums: Values, channel: int = -1) -> Values:
    """The parts of all on every GPU, over connections of this channel if one is given."""
    n = len(sums)
    sender = direct.givers(n, n)[1:]
    wanted = sums[sender].on(np.broadcast_to(sums.device, sender.shape))
    if channel >= 0:
        streams = b.streams(sums.device[sender], channel)
        arrived = b.copies(wanted, wanted.device, stream=streams)
    else:
        arrived = b.copies(wanted, wanted.device)
    at = np.arange(n)[:, None]
    all_of_them = Values.concatenate([sums[None], arrived], axis=0)
    return b.joins(all_of_them[(at - np.arange(n)) % n, at])


def multimem(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    """The switch sums and multicasts, by PyTorch's blocks."""
    return _in_switch(b, layout, given, before, _TORCH_BLOCKS)


def _in_switch(
    b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value], blocks: int
) -> Values:
    found = switches.boxes(layout, given.device.tolist())
    count = _count(_nbytes(given) // len(given))
    with _kernel(b, given, before, sync_channel(2, 1, SWITCHED)) as launch:
        how = Decision("nvls", "simple", blocks)
        return switches.nvls_all_reduce(b, given, found, how, (launch,), count)


def _nbytes(given: Values) -> int:
    return int(given.elements.max(initial=0)) * dtypes.SIZES[given.dtype]


def _count(nbytes: int) -> int:
    """Pieces in which so many bytes go through a switch."""
    return max(min(nbytes // _LEAST, _PIECES), 1)


def symmetric(collective: str, name: str = "") -> Run:
    """One of NCCL's symmetric kernels, or the one that NCCL takes."""
    return _as_nccl(collective, Decision(SYMMETRIC, name))


def engine(collective: str) -> Run:
    """A collective by copy engines, as NCCL takes them."""
    return _as_nccl(collective, Decision(BY_ENGINE))


def _as_nccl(collective: str, wanted: Decision) -> Run:
    def run(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
        shares = len(given) if collective == "all_gather" else 1
        nbytes, ranks = _nbytes(given) * shares, given.device.tolist()
        how = decided(layout, ranks, collective, nbytes, wanted, given.dtype)
        return symmetric_run(collective, how)(b, layout, given, before)

    return run


def _flagged(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU writes everything to all, with flags."""
    with _kernel(b, given, before, sync_channel(0, 0), flagged=True) as launch:
        return _one(b, _held(b, given, launch))


def _multicast(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU writes everything once, with flags, and the switch multicasts it."""
    ((switch, _),) = switches.boxes(layout, given.device.tolist())
    n = len(given)
    with _kernel(b, given, before, sync_channel(0, 0), flagged=True) as launch:
        up = b.copies(given, np.full(n, switch), after=(launch,))
        down = b.copies(
            up[np.repeat(np.arange(n), n)].reshape(n, n),
            np.broadcast_to(given.device, (n, n)),
        )
        return b.adds([down[i, :] for i in range(n)])


def _stores(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU reads and adds its part, and writes the sum to all."""
    with _kernel(b, given, before, sync_channel(2, 1)) as launch:
        sums = direct.reduce_scatter(b, _held(b, given, launch)[None], Knobs())
        return _gather(b, sums[0, :], _serving(_NCCL_BLOCKS, len(given)))


def _summed(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    return _in_switch(b, layout, given, before, _NCCL_BLOCKS)


def _engine_gather(b: PlanBuilder, _: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU writes its part to every other."""
    n = len(given)
    with _kernel(b, given, before, merged_channel(0, n) + ENGINE) as launch:
        return _gather(b, _held(b, given, launch), merged_channel(0, n - 1) + ENGINE)


def _engine_multicast(
    b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]
) -> Values:
    """Every GPU writes its part once, and the switch multicasts it."""
    ((switch, _),) = switches.boxes(layout, given.device.tolist())
    n = len(given)
    with _kernel(b, given, before, merged_channel(0, n) + ENGINE + SWITCHED) as launch:
        up = b.copies(given, np.full(n, switch), after=(launch,))
        to = np.broadcast_to(given.device[:, None], (n, n))
        giver = np.tile(np.arange(n), (n, 1))
        stream = b.streams(np.full((n, n), switch), merged_channel(0, n) + ENGINE + giver)
        return b.joins(b.copies(up[giver], to, stream=stream))


def _engine_exchange(b: PlanBuilder, _: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU writes a part to every other; by GPU and giver."""
    n = len(given)
    with _kernel(b, given, before, merged_channel(0, n) + ENGINE) as launch:
        part = _held(b, given, launch).cut(n)
        taker, giver = np.indices((n, n))
        far = taker != giver
        sent = part[giver[far], taker[far]]
        stream = b.streams(sent.device, merged_channel(0, n - 1) + ENGINE)
        moved = b.copies(sent, given.device[taker[far]], stream=stream)
        own = b.slices(part[np.arange(n), np.arange(n)])
        order = np.argsort(np.concatenate([np.flatnonzero(far), np.flatnonzero(~far)]))
        return Values.concatenate([moved, own])[order]


def _gathered(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU writes its part to all, with flags."""
    with _kernel(b, given, before, sync_channel(0, 0), flagged=True) as launch:
        return _gather(b, _held(b, given, launch))


def _gathered_by_switch(
    b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]
) -> Values:
    """Every GPU writes its part once, with flags, and the switch multicasts it."""
    with _kernel(b, given, before, sync_channel(0, 0), flagged=True) as launch:
        return _spread(b, layout, given, launch, 1)


def _stored(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU writes its part to all."""
    with _kernel(b, given, before, sync_channel(2, 1)) as launch:
        return _gather(b, _held(b, given, launch), _serving(_NCCL_BLOCKS, len(given)))


def _stored_by_switch(
    b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]
) -> Values:
    """Every GPU writes its part once, and the switch multicasts it."""
    with _kernel(b, given, before, sync_channel(2, 1, SWITCHED)) as launch:
        return _spread(b, layout, given, launch, _count(_nbytes(given)))


def _spread(b: PlanBuilder, layout: Layout, given: Values, launch: int, count: int) -> Values:
    """Every GPU's part through the switch to all, in `count` pieces."""
    ((switch, _),) = switches.boxes(layout, given.device.tolist())
    n, (rise, fall) = len(given), _hops()
    part = given.cut(count)
    streams = b.streams(part.device, rise)
    up = b.copies(part, np.full(part.shape, switch), stream=streams, after=(launch,))
    to, giver = np.broadcast_arrays(given.device[:, None, None], given.device[:, None])
    down = b.copies(
        up[np.tile(np.arange(n), (n, 1))], np.broadcast_to(to, (n, n, count)),
        stream=b.streams(np.broadcast_to(giver, (n, n, count)), fall),
    )  # fmt: skip
    return b.joins(b.joins(down))


def _hops() -> tuple[int, int]:
    """The channels of what goes up to a switch and comes down again."""
    rise, fall = (merged_channel(stage, _NCCL_BLOCKS) + ONE_WAY for stage in range(2))
    return rise, fall


def _scattered(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU writes every other its part, with flags, and all add."""
    with _kernel(b, given, before, sync_channel(0, 0), flagged=True) as launch:
        return direct.reduce_scatter(b, _held(b, given, launch)[None], Knobs())[0, :]


def _loaded(b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]) -> Values:
    """Every GPU reads its part from all, and adds."""
    with _kernel(b, given, before, sync_channel(2, 0)) as launch:
        return direct.reduce_scatter(b, _held(b, given, launch)[None], Knobs())[0, :]


def _loaded_by_switch(
    b: PlanBuilder, layout: Layout, given: Values, before: Sequence[Value]
) -> Values:
    """Every GPU has the switch sum its part on load."""
    ((switch, _),) = switches.boxes(layout, given.device.tolist())
    n, (rise, fall) = len(given), _hops()
    with _kernel(b, given, before, sync_channel(2, 0, SWITCHED)) as launch:
        pieces = given.cut(n).cut(_count(_nbytes(given) // n))  # by GPU, part and piece
        streams = b.streams(pieces.device, rise)
        up = b.copies(pieces, np.full(pieces.shape, switch), stream=streams, after=(launch,))
        sums = b.adds([up[i, :] for i in range(n)])
        to = np.broadcast_to(given.device[:, None], sums.shape)
        return b.joins(b.copies(sums, to, stream=b.streams(to, fall)))


class KernelSchedule(NamedTuple):
    """One of NCCL's symmetric kernels, with NCCL's own name."""

    title: str
    run: Run


SYMMETRIC_KERNELS: Mapping[str, Mapping[str, KernelSchedule]] = {
    "all_reduce": {
        "agxll_r": KernelSchedule("AllReduce_AGxLL_R", _flagged),
        "agxllmc_r": KernelSchedule("AllReduce_AGxLLMC_R", _multicast),
        "rsxld_agxst": KernelSchedule("AllReduce_RSxLD_AGxST", _stores),
        "rsxldmc_agxstmc": KernelSchedule("AllReduce_RSxLDMC_AGxSTMC", _summed),
    },
    "all_gather": {
        "ll": KernelSchedule("AllGather_LL", _gathered),
        "llmc": KernelSchedule("AllGather_LLMC", _gathered_by_switch),
        "st": KernelSchedule("AllGather_ST", _stored),
        "stmc": KernelSchedule("AllGather_STMC", _stored_by_switch),
    },
    "reduce_scatter": {
        "ll": KernelSchedule("ReduceScatter_LL", _scattered),
        "ld": KernelSchedule("ReduceScatter_LD", _loaded),
        "ldmc": KernelSchedule("ReduceScatter_LDMC", _loaded_by_switch),
    },
}
"""By collective, and the name that strategies have."""

_ENGINES: Mapping[str, Mapping[str, Run]] = {
    "all_gather": {"engine": _engine_gather, "engine_mc": _engine_multicast},
    "all_to_all": {"engine": _engine_exchange},
}
"""Collectives by copy engines, by what a decision has for a protocol."""


def symmetric_run(collective: str, how: Decision) -> Run:
    """What carries out a decision for NCCL's symmetric kernels or copy engines."""
    if how.algorithm == BY_ENGINE:
        return _ENGINES[collective][how.protocol]
    return SYMMETRIC_KERNELS[collective][how.protocol].run
