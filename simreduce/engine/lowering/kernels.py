"""Costs of kernels without channels: launches, barriers, loads and stores, flags in the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simreduce.computing.arrays import Bools, Floats, Ints
from simreduce.engine.calibration import LINK_KINDS, NVLS, KernelConstants
from simreduce.engine.lowering.calls import Calls
from simreduce.engine.lowering.nccl import BYTES, Sends
from simreduce.engine.lowering.signatures import Signatures
from simreduce.plan import Executor, Kind
from simreduce.plan.channels import (
    BEGINS,
    ENGINE,
    ONE_WAY,
    SWITCHED,
    count_barriers,
    count_blocks,
    count_releases,
)

_HOPS, _HOPS_ONE_WAY = 4, 2
"""On a switch's way to sum and multicast: up, to who asks for the sum, back, and down to all; and
to do one of the two.
"""


def add_kernel_costs(
    calls: Calls, signatures: Signatures, sends: Sends, constants: KernelConstants
) -> Calls:
    """The calls with the latencies, barriers, rates and flags of kernels."""
    mine = signatures.executor >= Executor.KERNEL
    if not mine.any():
        return calls
    latency, cap = calls.latency.copy(), calls.cap.copy()
    launches: Bools = mine & (signatures.kind == Kind.INPUT)
    channel = np.maximum(signatures.channel[launches], 0)
    release = np.where(channel & SWITCHED > 0, constants.release_multicast, constants.release)
    latency[launches] = (
        (channel & BEGINS > 0) * constants.launch
        + count_barriers(channel) * constants.barrier
        + count_releases(channel) * release
    )
    latency[launches] = np.where(
        channel & ENGINE > 0, _engine_launch(channel, constants), latency[launches]
    )
    at = mine[sends.calls]
    copies, kinds = sends.calls[at], sends.kind[at]
    flags = signatures.executor[copies] == Executor.KERNEL_LL
    switched = kinds == LINK_KINDS.index(NVLS)
    blocks = signatures.channel[copies]
    one_way: Bools = flags | ((blocks >= 0) & (blocks & ONE_WAY > 0))
    hops = np.where(switched, np.where(one_way, _HOPS_ONE_WAY, _HOPS), 1)
    engines = (blocks >= 0) & (blocks & ENGINE > 0)
    first = np.where(engines, 0.0, np.where(flags, constants.flag, constants.load))
    latency[copies] = first / hops + sends.wires[at]
    limited = (blocks >= 0) & ~engines
    cap[copies[limited]] = constants.block * count_blocks(blocks[limited])
    cap[copies[engines]] = constants.engine_rate / count_blocks(blocks[engines])
    efficiency = np.array([constants.efficiency[kind] for kind in LINK_KINDS])
    factor: Floats = np.ones(len(latency))
    wire = np.where(flags, BYTES["ll"], BYTES["simple"]) / efficiency[kinds]
    factor[copies] = np.where(engines, 1.0, wire)
    weight = calls.weight * np.repeat(factor, np.diff(calls.use_start))
    return replace(calls, latency=latency, cap=cap, weight=weight)


def _engine_launch(channel: Ints, constants: KernelConstants) -> Floats:
    """Seconds until copy engines begin."""
    switched, gpus = channel & SWITCHED > 0, count_blocks(channel)
    seconds: Floats = np.where(
        switched,
        constants.engine_multicast_launch + constants.engine_multicast_copy * gpus,
        constants.engine_launch + constants.engine_copy * gpus,
    )
    return seconds
