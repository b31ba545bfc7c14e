"""Runtimes: which queues (lanes) an op takes, and whether local ops cost time.

Small values, one per runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Kind
from simreduce.plan.channels import CHANNELS, FOLLOWING
from simreduce.plan.plan import Executor
from simreduce.topology import Node


class Call(NamedTuple):
    """The properties of an op that decide its lanes.

    `channel` is the op's stream channel, or -1; `far` says whether it is a send of NCCL's over a
    network.
    """

    executor: Executor
    kind: Kind
    source: Node
    target: Node
    channel: int
    far: bool = False


def no_lanes(_: Call) -> tuple[str, ...]:
    """Nothing queues. A runtime with these skips the work of every op."""
    return ()


@dataclass(frozen=True, slots=True)
class Runtime:
    """How a runtime queues ops and what it charges for.

    `lanes(call)` names the lanes of an op, and `pipes(call)` the lanes that it takes only for its
    flow, after its latency; `dispatch` says whether ops pay their dispatch cost; `local` whether
    ADD, SLICE, CONCAT, SCALE and CAST move bytes through their device's memory; `staged` whether
    copies between machines go through the memory of both hosts; `kernels` whether the copies of
    GPUs and their sums are steps of kernels like NCCL's, with the queues and costs of its Simple
    protocol, and in no order but that of their connections. What NCCL executes has NCCL's under
    every runtime. `plain` says that lanes depend on no name, except that they hold the names of
    nodes and machines as they are, and on whether two are equal.
    """

    name: str
    lanes: Callable[[Call], tuple[str, ...]]
    dispatch: bool
    local: bool
    staged: bool = False
    pipes: Callable[[Call], tuple[str, ...]] = no_lanes
    kernels: bool = False
    plain: bool = False

    @property
    def queues(self) -> bool:
        """Whether any op may have to queue."""
        return self.lanes is not no_lanes or self.pipes is not no_lanes or self.kernels


_FREE = (Kind.INPUT, Kind.OUTPUT)


def _tensorflow_lanes(call: Call) -> tuple[str, ...]:
    """The lanes of TensorFlow: its streams per GPU.

    Each GPU has four: one compute, one host-to-device, one device-to-host, one device-to-device.

    A copy between GPUs is queued on the sender's device-to-device stream, so all peer copies of one
    GPU go one after another, whatever links they use (`gpu_util.cc`). Between processes a value
    goes from the GPU to its host, over the network, and from the host to the other GPU; that is one
    copy here, which holds both GPUs' streams. Ops on a CPU run on a thread pool: no lane. A copy
    does not wait for the compute streams of its two ends.
    """
    source, target = call.source, call.target
    if call.kind in _FREE:
        return ()
    if call.kind != Kind.COPY:
        return (f"{target.name} compute",) if target.kind == "gpu" else ()
    if source.kind == target.kind == "gpu" and source.machine == target.machine:
        return (f"{source.name} device-to-device",)
    out = (f"{source.name} device-to-host",) if source.kind == "gpu" else ()
    return (*out, f"{target.name} host-to-device") if target.kind == "gpu" else out


def _tensorflow_pipes(call: Call) -> tuple[str, ...]:
    """Two machines share one gRPC channel.

    The sender queues values and sends them one at a time, first ready, first served. The wire's
    latency adds to each.
    """
    source, target = call.source.machine, call.target.machine
    between = call.kind == Kind.COPY and source != target
    return (f"{source}>{target} channel",) if between else ()


def nccl_pipes(call: Call) -> tuple[str, ...]:
    """The connection of a channel to the next GPU.

    Its bytes move one send after another, while the latencies of those behind it pass. Sums are
    part of what receives.
    """
    if call.kind != Kind.COPY:
        return ()
    source, target = call.source, call.target
    there = target.name if source.machine == target.machine else f"{target.machine}/{target.name}"
    return (f"{source.name}>{there} nccl {call.channel % CHANNELS}",)


def named_lanes(call: Call, runtime: Runtime) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The lanes and the pipes of a call."""
    if call.executor == Executor.TF:
        return runtime.lanes(call), runtime.pipes(call)
    pipes = nccl_pipes(call)
    if call.executor >= Executor.KERNEL:
        return (), pipes
    if call.channel >= 0 and not {call.source.kind, call.target.kind} <= {"gpu", "cpu"}:
        if not call.far:
            return pipes, ()  # of switches that sum: latencies do not overlap
        if call.source.kind == "switch":
            return (), pipes  # a switch of the network sends by itself
    if call.far and call.channel >= 0 and not call.channel & FOLLOWING:
        # The thread that hands a GPU's messages to the NICs, one after another. It has seen that of
        # a chunk when the parts after its first come.
        return (f"{call.source.name} proxy",), pipes
    return (), pipes


IDEAL = Runtime("ideal", no_lanes, dispatch=False, local=False)
"""Pure alpha-beta: no lanes, no overheads, local ops are free."""

TENSORFLOW = Runtime(
    "tensorflow",
    _tensorflow_lanes,
    dispatch=True,
    local=True,
    staged=True,
    pipes=_tensorflow_pipes,
    plain=True,
)
"""TensorFlow's own copies and kernels."""

NCCL = Runtime("nccl", no_lanes, dispatch=False, local=True, kernels=True)
"""NCCL's transports, whatever the algorithm: PyTorch's DDP and Horovod give it their buckets. To
pack and unpack moves bytes through a GPU's memory.
"""

RUNTIMES: Mapping[str, Runtime] = {r.name: r for r in (TENSORFLOW, NCCL, IDEAL)}


def runtime_named(name: str) -> Runtime:
    """The runtime of that name; InputError names the nearest."""
    if name not in RUNTIMES:
        raise InputError(
            f"unknown runtime {name!r}{did_you_mean(name, RUNTIMES)}; one of {', '.join(RUNTIMES)}"
        )
    return RUNTIMES[name]
