"""Runtimes, which say in which queues (lanes) an op waits, and the constants of their costs.

No data sheet gives these constants. A calibration is a value, fitted elsewhere and used by the
engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Kind
from simreduce.plan.ops import CHANNELS, FOLLOWING
from simreduce.plan.plan import Executor
from simreduce.topology import Node
from simreduce.topology.elements import DEFAULT_REACH


@dataclass(frozen=True, slots=True)
class LinkConstants:
    """Replaces what the topology says of a link class. None keeps the topology's figure."""

    bandwidth: float | None = None  # bytes/s, per lane and direction
    latency: float | None = None  # s


@dataclass(frozen=True, slots=True)
class Processor:
    """The cores that do the ops of devices that are CPUs, and what passes between these.

    The work of an op does not depend on its size: its dispatch, and `message` if it goes to another
    machine. One core moves its bytes at `rates[kind]`; a copy to another machine has the rate of
    `transfer`. A core moves the bytes that an op touches beyond `own_cache` at `past_own` besides.

    An op uses at most one core. All ops share `cores` cores; at most `moving` of them move bytes at
    once. An op within a machine is one flow: its work and its bytes go on together, so a core that
    moves bytes does nothing else, and work waits when the bytes do. Messages are such flows too if
    one computer replaces all machines and the rate of `transfer` is known. Other messages take
    their turn at the cores for `work / cores` seconds, end their work after `work`, and then move
    their bytes over the network. They and the ops within machines take no cores from each other.

    The `cache` holds the first bytes of a step's values. Ops write the rest to `memory`, which all
    cores share; without a figure it limits nothing. A core's own rate counts its reads.
    """

    cores: float = 1.0
    moving: float = math.inf
    shared: bool = False  # one computer replaces all machines
    message: float = 0.0  # s of a core
    rates: Mapping[str, float] = field(
        default_factory=dict
    )  # bytes/s read and written; of copies, bytes/s
    own_cache: int = 0  # bytes, of each core
    past_own: float = math.inf  # bytes/s
    cache: int = 0  # bytes, of all
    memory: float = math.inf  # bytes/s written

    def missed(self, nbytes: float) -> float:
        """Return the part of what is written that does not stay in the cache.

        A step's values take `nbytes` bytes.
        """
        return 1.0 - self.cache / nbytes if nbytes > self.cache else 0.0


LINK_KINDS = ("nvlink", "pci", "shm", "net", "nvls")
"""Kinds of links that NCCL sends over: NVLink; PCIe with peer access; the memory of a host without
it; a network; and NVSwitches that sum and multicast.
"""

NVLS = "nvls"
PROTOCOLS = ("simple", "ll", "ll128")
"""NCCL's protocols. LL moves a flag of 4 bytes with every 4 bytes, LL128 one of 8 with every 120.
"""

_LATENCY = {  # us: NVLink, PCIe and a network by protocol; NVIDIA/nccl src/graph/tuning.cc
    "simple": {"nvlink": 1.9, "pci": 3.2, "shm": 3.2, "net": 12.0, "nvls": 6.0},
    "ll": {"nvlink": 0.9, "pci": 1.2, "shm": 3.0, "net": 0.7, "nvls": 0.9},
    "ll128": {"nvlink": 1.9, "pci": 2.5, "shm": 4.0, "net": 4.0, "nvls": 1.9},
}
"""But LL over a network: what V100 and A100 have besides the message and the wires; and Simple
within a machine: without the pause.
"""
_EFFICIENCY = {
    "simple": {"nvlink": 0.97, "pci": 0.9, "shm": 0.7, "net": 0.97, "nvls": 0.83},
    "ll": {"nvlink": 0.6, "pci": 0.6, "shm": 0.6, "net": 0.6, "nvls": 0.6},
    "ll128": {"nvlink": 0.7, "pci": 0.7, "shm": 0.7, "net": 0.8, "nvls": 0.7},
}


_JOIN = {"simple": 0.0, "ll": 2.3 * 1e-6, "ll128": 2.3 * 1e-6}
"""By NCCL's own table a hop of a tree over a network takes 5.0 us by LL, one of a ring 2.7;
NVIDIA/nccl src/graph/tuning.cc. The same work is done by LL128.
"""

_COPY_OUT = {"nvlink": 0.35, "pci": 0.35, "shm": 0.5, "net": 0.0, "nvls": 0.0}
"""Two A100 by NCCL 2.18 reach 2/(2 + 0.35) of the rate of eight. What arrives through a host's
memory is read over PCIe, which takes as long as the send. The NIC sends on meanwhile.
"""

_SLICE = {"nvlink": 1.5e-6, "pci": 2.5e-6, "shm": 2.5e-6, "net": 1e-6, "nvls": 0.0}
"""Two barriers, and a fence that lasts until what was written has arrived."""


def _by_link(table: Mapping[str, Mapping[str, float]], unit: float) -> dict[tuple[str, str], float]:
    return {(link, p): row[link] * unit for p, row in table.items() for link in LINK_KINDS}


class Software(NamedTuple):
    """What a network's software costs NCCL besides the wires.

    `message` is in seconds, for each message and channel. A tree's by LL are few and find the
    thread idle, as do the first eight of a ring by LL or LL128. By LL a channel moves at most
    `eager` bytes of data a second. A connection keeps at most `window` bytes on their way.
    """

    message: float = 0.0
    eager: float = math.inf
    window: float = math.inf


_SOFTWARE = {
    "slingshot": Software(8e-6, 0.7e9),
    **dict.fromkeys(("efa_100x4", "efa_200x2", "efa_400"), Software(0.0, 0.7e9)),
    "tcp_": Software(40e-6, window=3 << 20),
}
"""By what the names of links begin with. Libfabric copies what fits into its buffers, and agrees
with the receiver on the rest. A ring's messages take 8 to 10 us each: all-gathers over 256 and 540
Polaris, all-reduces over 2 and 4 Alps and 8 Polaris; the seven of an all-gather over 2 Polaris cost
nothing that shows (22 us in all). A tree's 4 KiB by LL take 5 to 8 us longer than 2 KiB there and
over EFA that writes to remote memory (p5), and those above more in proportion; not over EFA that
sends and receives (p3dn). Half of the largest buffer in which Linux receives (tcp_rmem, 6 MiB) is
data (Documentation/networking/ip-sysctl.rst).
"""


@dataclass(frozen=True, slots=True)
class KernelConstants:
    """Costs of kernels whose GPUs read and write each other's memory, besides the wires.

    A kernel begins `launch` seconds after its last GPU has arrived. A barrier, in which every GPU
    writes a flag to all others and waits for theirs, takes `barrier` seconds. One after which
    others read what was written takes `release` seconds more: the GPU waits until its writes have
    arrived; `release_multicast` if a switch multicasts them. The first bytes of a read arrive after
    `load` seconds; those with flags beside them (LL) are seen after `flag` seconds.

    Bytes move at `efficiency[link]` of the achievable rate of every link on the way, flags
    included. A block of 512 threads moves `block` bytes/s at most where each thread has one load
    under way; where a plan gives no number of blocks, threads have a load to every peer under way,
    and the links decide.

    Copy engines begin `engine_launch` seconds after the last GPU has arrived, and `engine_copy`
    later for each GPU that takes part; where a switch multicasts what they write,
    `engine_multicast_launch` and `engine_multicast_copy`. A GPU's move `engine_rate` bytes/s. These
    are the floors and rates of NCCL's own model, without CUDA graphs (NVIDIA/nccl
    src/tuning/ce_model.cc, 8898068, read 2026-11), the defaults those of Hopper.
    """

    launch: float = 1.5e-6
    barrier: float = 1.5e-6
    release: float = 3.5e-6
    release_multicast: float = 1.5e-6
    load: float = 1.4e-6
    flag: float = 3.3e-6
    efficiency: Mapping[str, float] = field(
        default_factory=lambda: {
            "nvlink": 0.92, "pci": 0.9, "shm": 0.7, "net": 0.97, NVLS: 0.8,
        }
    )  # fmt: skip
    block: float = 6.5e9
    engine_launch: float = 17.5e-6
    engine_copy: float = 1.957e-6
    engine_multicast_launch: float = 14.9e-6
    engine_multicast_copy: float = 0.726e-6
    engine_rate: float = 392e9


MISFIT = 0.15
"""The median misfit of three sizes of a published table."""


@dataclass(frozen=True, slots=True)
class NcclConstants:
    """Costs of NCCL's collectives besides the wires, by link kind and protocol.

    A collective begins `launch` seconds after its last GPU has arrived, `launch_channel` later for
    each of its channels, and `start[protocol]` later still. A step takes `latency[link, protocol]`
    seconds before its bytes move, and on a network the latency of wires and switches besides. By
    Simple a block pauses for `slice[link]` seconds after each slice of 1 MiB or less; on a link
    that several blocks share, others move theirs meanwhile. Bytes
    move at `efficiency[link, protocol]` of the achievable rate of every link on the way, flags
    included, and at most at `channel_rate[protocol]` bytes/s of data on one channel. A block that
    receives what it does not send on copies it out, and its next send waits for `copy_out[link]` of
    the time that the send to it took. In a tree, a send over a network takes `join[protocol]`
    seconds more. A block's first pass by LL, 4 KiB, takes up to `first_warps` seconds longer: that
    much from 512 bytes on, the data of two warps, which wait for each other; later passes overlap.
    (A step of 8 A100 takes 0.28, 0.5, 0.54, 0.68 and 1.2 us longer with 256 bytes, 512, 1, 2 and
    4 KiB than with 16 bytes; of 8 H100 0.25 us with 256 bytes and 0.4 with 4 KiB.) Over a network
    it counts `first_pass` times more instead: the NIC waits for all of its lines. Of the time of a
    pass by 512 threads, `few_threads` does not depend on their number, so that a block with half of
    them is that much slower. (Broadcasts of V100 and A100 on 2 to 16 machines: 64 threads pass on
    0.6 and 1 GB/s, 512 do 2.5 and 3.5.)

    Kernels that have switches sum begin `start["nvls"]` later, and move at most
    `channel_rate["nvls"]` on a channel. Their latencies do not overlap: the warps of a stage wait
    for each other before every chunk.

    On V100 and A100 a call takes 1.0 to 1.4 us longer for each channel, whatever the collective,
    the protocol and the number of GPUs: all-reduces of 2 and 8 GPUs, all-gathers and broadcasts on
    1 to 24 channels. On H100 channels cost nothing that shows.

    What a GPU sends over a network passes through one thread of its host, which takes `message`
    seconds for each chunk and channel, one after another, and what `software` has for the network.

    Threads move 16 bytes at once, but single bytes where the parts of a user's sends begin at no
    multiple of 16. One to a peer then moves at most `unaligned_peer` bytes/s by Simple, over all of
    its channels; infinite where nobody has published times of such sends.

    A process that drives all GPUs of a machine needs `launch` and `launch_each` seconds for each of
    them to issue a call, and `post` for each send or receive, while they still work on the call
    before (`per_call`). Before 2.8 it launches them as one cooperative group, in which every GPU
    waits for every other: `launch_pair` seconds more for each GPU, times their number (8 bytes
    take 17 us on 2 P100 and 50 on 8, 16 on 4 V100, 60 on 12).

    Over links of `zero_copy`, blocks write by Simple to buffers that users register, and copy
    nothing out. Channels write to the memory of peers no farther than `reach`, as in `Node.peer`,
    and else through the host's. `buffer` is that of Simple, NCCL_BUFFSIZE: over a network a channel
    keeps no more bytes on their way.

    `kernels` are the costs of kernels without channels: NCCL's symmetric ones, and those of others.

    `measured` has the collectives, and on how many GPUs, whose times on this very machine the
    constants were fitted to, and `misfit` how far off these times were before: the root mean square
    of log(predicted / measured).

    The defaults come from NCCL's own tuning model where a machine of every generation bears them
    out, else they are rounded means of public timings; a calibration replaces them.
    """

    launch: float = 8e-6
    start: Mapping[str, float] = field(
        default_factory=lambda: {"simple": 5e-6, "ll": 0.0, "ll128": 5e-6, NVLS: 10e-6}
    )
    latency: Mapping[tuple[str, str], float] = field(
        default_factory=lambda: _by_link(_LATENCY, 1e-6)
    )
    efficiency: Mapping[tuple[str, str], float] = field(
        default_factory=lambda: _by_link(_EFFICIENCY, 1.0)
    )
    channel_rate: Mapping[str, float] = field(
        default_factory=lambda: {"simple": 24e9, "ll": 5e9, "ll128": 16e9, NVLS: 20e9}
    )
    slice: Mapping[str, float] = field(default_factory=lambda: dict(_SLICE))
    launch_each: float = 2.6e-6
    launch_pair: float = 0.2e-6
    launch_channel: float = 0.5e-6
    post: float = 0.15e-6
    message: float = 1e-6
    software: Mapping[str, Software] = field(default_factory=lambda: dict(_SOFTWARE))
    copy_out: Mapping[str, float] = field(default_factory=lambda: dict(_COPY_OUT))
    zero_copy: tuple[str, ...] = ()
    reach: str = DEFAULT_REACH
    buffer: int = 4 << 20
    join: Mapping[str, float] = field(default_factory=lambda: dict(_JOIN))
    unaligned_peer: float = math.inf
    first_pass: float = 0.8
    first_warps: float = 0.3e-6
    few_threads: float = 0.45
    kernels: KernelConstants = field(default_factory=KernelConstants)
    measured: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    misfit: float = MISFIT

    def per_call(
        self, seconds: float, gpus: int, posts: int = 0, *, together: bool = False
    ) -> float:
        """Return the seconds of one of many calls in a row that take the GPUs so long.

        One process drives `gpus` of them on each machine (0: one process for each GPU) and posts so
        many sends and receives for each. It launches their kernels one by one or `together`.
        """
        if not (gpus or posts):
            return seconds
        each = self.launch_each if gpus else 0.0
        if together:
            each += self.launch_pair * gpus
        return max(seconds, self.launch + (each + self.post * posts) * max(gpus, 1))


ISSUED: Mapping[str, str] = {
    "device": "", "copy": "", "to_host": "copy", "from_host": "copy", "message": "copy",
    "input": "", "output": "input", "add": "", "slice": "add", "concat": "add", "scale": "add",
    "cast": "add",
}  # fmt: skip
"""What a host issues, and whose seconds stand for those that a calibration lacks.

`device` is paid once a step for each GPU that takes part: its executor starts, and is waited for at
the end. `to_host` and `from_host` are copies between a GPU and its host, `copy` those between
GPUs. A `message` tells a device that an op of another one is done, which it does not read. A view
of a value counts as `slice`, each part of a result as `output`.
"""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants by op kind and link class.

    `dispatch[kind]` is what one op of that kind (`copy`, `add`, ...) costs before its latency, in
    seconds, while it holds its lanes; on CPU devices, see `Processor`. `issue` is what the host of
    a machine takes to issue the ops of its GPUs, one after another (see `ISSUED`); without any, it
    takes no time and nothing waits for it. `links` is by link class; by
    `CLASS:d2h` or `CLASS:h2d`, its links that lead from GPUs to their host or back; or by the name
    of one link. The narrowest counts. `step` is what a step costs for every machine that takes
    part, in seconds, besides the way to the others and back (see `step_cost`). `nccl` is for what
    NCCL executes. `provenance` says what was measured, where and when; `errors` the standard error
    of each constant that has one, under the name the file gives it. `controls` are no constants:
    what some of the plans that it was learnt from took then, in seconds, by what they do and the
    bytes of their values, so that they can be timed again.
    """

    name: str
    title: str = ""
    dispatch: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, LinkConstants] = field(default_factory=dict)
    step: float = 0.0
    cpu: Processor | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)
    controls: Mapping[tuple[str, int], float] = field(default_factory=dict)
    nccl: NcclConstants = field(default_factory=NcclConstants)
    issue: Mapping[str, float] = field(default_factory=dict)

    def issuing(self, what: str) -> float:
        """Seconds in which a host issues one of `ISSUED`."""
        return self.issue.get(what, self.issue.get(ISSUED[what], 0.0))

    @property
    def dispatches(self) -> bool:
        """Whether it knows what the runtime takes to start an op."""
        return bool(self.dispatch or self.issue)


NOMINAL = Calibration(
    "nominal", "published link rates and latencies, no fitted constant, no dispatch cost"
)
"""The topology's own figures and nothing else."""


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
    nodes and machines as they are, and on whether two are equal. `host(call)` names the lane of the
    host that issues the op, where a calibration knows what that takes (see `issued`).
    """

    name: str
    lanes: Callable[[Call], tuple[str, ...]]
    dispatch: bool
    local: bool
    staged: bool = False
    pipes: Callable[[Call], tuple[str, ...]] = no_lanes
    kernels: bool = False
    plain: bool = False
    host: Callable[[Call], tuple[str, ...]] = no_lanes

    def issued(self, calibration: Calibration) -> Runtime:
        """Return the runtime with hosts that issue ops, if the calibration knows what that takes.

        An op then holds its host's lane until it is issued. What it queued for before are its
        pipes: a stream takes ops as they were issued, and latencies of several pass together.
        """
        if not calibration.issue or self.host is no_lanes:
            return self
        return replace(self, lanes=self._lanes_of_hosts, pipes=self._pipes_of_issued)

    def _lanes_of_hosts(self, call: Call) -> tuple[str, ...]:
        return self.host(call) or self.lanes(call)

    def _pipes_of_issued(self, call: Call) -> tuple[str, ...]:
        behind = self.lanes(call) if self.host(call) else ()
        return (*behind, *self.pipes(call))

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


def _tensorflow_host(call: Call) -> tuple[str, ...]:
    """One process issues the ops of all GPUs of a machine, whatever GPU they are for.

    Threads share the driver's lock and its one queue of what has ended.
    """
    ends = {call.source.kind, call.target.kind}
    return (f"{call.source.machine} host",) if "gpu" in ends else ()


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
    host=_tensorflow_host,
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
