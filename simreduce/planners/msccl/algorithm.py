"""Algorithms of MSCCL as values, and their XML.

The format is that of MSCCL's parser (Azure/msccl-executor-nccl, `src/misc/msccl/msccl_parser.cc`,
and microsoft/msccl, `src/include/msccl.h`), which RCCL has too. An `algo` has a `gpu` for each
rank, a gpu has thread blocks `tb`, and a thread block runs its `step`s in order. A thread block
sends to at most one GPU and receives from at most one, on one channel. Buffers are the call's
input `i` and output `o` in `nchunksperloop` equal chunks, and scratch `s`. A step may wait
(`depid`, `deps`) until a thread block of its GPU has done a step that tells (`hasdep`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

MOST_STEPS = 256
MOST_BLOCKS = 216
MOST_BLOCKS_PER_CHANNEL = 32
MOST_CHANNELS = 32
MOST_COUNT = 71
"""Limits of `msccl.h`; the chunks of one step are fewer than its MSCCL_MAX_COUNT."""

MOST_CHUNKS = 1 << 16
"""More are not interpreted: a damaged file shall not fill the memory."""

MOST_BYTES = 1 << 60

COLLECTIVES: Mapping[str, str] = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}  # fmt: skip
"""Our names by MSCCL's. Its reduce and broadcast do not say which rank is the root."""

PROTOCOLS = ("Simple", "LL", "LL128")


class ChunkPlace(NamedTuple):
    """Chunk `offset` of a buffer: `i`, `o` or `s`."""

    buffer: str
    offset: int

    def __str__(self) -> str:
        return f"{self.buffer}[{self.offset}]"

    def after(self, chunks: int) -> ChunkPlace:
        """The place `chunks` chunks further on."""
        return ChunkPlace(self.buffer, self.offset + chunks)


class StepEffects(NamedTuple):
    """The effects of a kind of step besides waiting.

    It may receive, read `source`, read `target`, write `target` and send.
    """

    receives: bool = False
    reads_source: bool = False
    reads_target: bool = False
    writes: bool = False
    sends: bool = False


KINDS: Mapping[str, StepEffects] = {
    "nop": StepEffects(),
    "s": StepEffects(reads_source=True, sends=True),
    "r": StepEffects(receives=True, writes=True),
    "rcs": StepEffects(receives=True, writes=True, sends=True),
    "rrs": StepEffects(receives=True, reads_source=True, sends=True),
    "rrc": StepEffects(receives=True, reads_source=True, writes=True),
    "rrcs": StepEffects(receives=True, reads_source=True, writes=True, sends=True),
    "cpy": StepEffects(reads_source=True, writes=True),
    "re": StepEffects(reads_source=True, reads_target=True, writes=True),
}
"""Actions by kind of step.

A step that receives and reads its source adds the two, before it writes and sends.
"""


@dataclass(frozen=True, slots=True)
class Step:
    """`count` chunks of a kind of `KINDS`. It waits for step `waits[1]` of block `waits[0]`, and
    tells others that it is done if `tells`.
    """

    kind: str
    source: ChunkPlace
    target: ChunkPlace
    count: int
    waits: tuple[int, int] | None = None
    tells: bool = False

    @property
    def action(self) -> StepEffects:
        """The effects of the step's kind."""
        return KINDS[self.kind]

    @property
    def places(self) -> Iterator[ChunkPlace]:
        """The first of the chunks that it reads or writes on its own GPU."""
        if self.action.reads_source:
            yield self.source
        if self.action.writes:
            yield self.target


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """A thread block that sends to GPU `send` and receives from GPU `receive`, -1 for none."""

    send: int
    receive: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class MscclGpu:
    """The chunks of each buffer, and the thread blocks by number."""

    inputs: int
    outputs: int
    scratch: int
    blocks: tuple[ThreadBlock, ...]


@dataclass(frozen=True, slots=True)
class MscclAlgorithm:
    """The steps of every GPU for a collective of `least` to `most` bytes."""

    name: str
    collective: str
    protocol: str
    channels: int
    chunks: int
    gpus: tuple[MscclGpu, ...]
    in_place: bool = True
    out_of_place: bool = False
    least: int = 0
    most: int = MOST_BYTES

    @property
    def steps(self) -> int:
        """The steps of all GPUs."""
        return sum(len(block.steps) for gpu in self.gpus for block in gpu.blocks)


def xml_text(algorithm: MscclAlgorithm) -> str:
    """The XML of an algorithm."""
    from xml.sax.saxutils import quoteattr  # noqa: PLC0415 - loads urllib and http

    a = algorithm
    coll = next(theirs for theirs, ours in COLLECTIVES.items() if ours == a.collective)
    head = (
        f"<algo name={quoteattr(a.name)} proto={quoteattr(a.protocol)}"
        f' nchannels="{a.channels}" nchunksperloop="{a.chunks}" ngpus="{len(a.gpus)}"'
        f' coll="{coll}" inplace="{int(a.in_place)}" outofplace="{int(a.out_of_place)}"'
        f' minBytes="{a.least}" maxBytes="{a.most}">'
    )
    lines = [head]
    for rank, gpu in enumerate(a.gpus):
        chunks = f'i_chunks="{gpu.inputs}" o_chunks="{gpu.outputs}" s_chunks="{gpu.scratch}"'
        lines.append(f'  <gpu id="{rank}" {chunks}>')
        for number, block in enumerate(gpu.blocks):
            peers = f'send="{block.send}" recv="{block.receive}" chan="{block.channel}"'
            lines.append(f'    <tb id="{number}" {peers}>')
            lines += [f"      {_step(i, step)}" for i, step in enumerate(block.steps)]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _step(number: int, step: Step) -> str:
    (source, source_offset), (target, target_offset) = step.source, step.target
    block, of = step.waits or (-1, -1)
    return (
        f'<step s="{number}" type="{step.kind}" srcbuf="{source}" srcoff="{source_offset}"'
        f' dstbuf="{target}" dstoff="{target_offset}" cnt="{step.count}"'
        f' depid="{block}" deps="{of}" hasdep="{int(step.tells)}"/>'
    )
