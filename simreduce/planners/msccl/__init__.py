"""MSCCL's algorithms: from plans, as XML and as MSCCL++'s JSON, and proved by interpretation.

Algorithms of MSCCL as values, and their XML.

The format is that of MSCCL's parser (Azure/msccl-executor-nccl, `src/misc/msccl/msccl_parser.cc`,
and microsoft/msccl, `src/include/msccl.h`), which RCCL has too. An `algo` has a `gpu` for each
rank, a gpu has thread blocks `tb`, and a thread block runs its `step`s in order. A thread block
sends to at most one GPU and receives from at most one, on one channel. Buffers are the call's
input `i` and output `o` in `nchunksperloop` equal chunks, and scratch `s`. A step may wait
(`depid`, `deps`) until a thread block of its GPU has done a step that tells (`hasdep`).

Checks of what MSCCL's parser and its fixed arrays ask of an algorithm before it runs.

Reads MSCCL's XML as a value. What the value means is for `interpreter`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats.syntax import Element, Faults, read_xml
from simreduce.units import plural

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
        ends = (self.action.reads_source, self.source), (self.action.writes, self.target)
        return (place for used, place in ends if used)


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
    def call_chunks(self) -> tuple[int, int]:
        """Chunks of the input and of the output of a call, on each GPU."""
        each = self.chunks // len(self.gpus)
        inputs = each if self.collective == "all_gather" else self.chunks
        return inputs, each if self.collective == "reduce_scatter" else self.chunks

    @property
    def steps(self) -> int:
        """The steps of all GPUs."""
        return sum(len(block.steps) for gpu in self.gpus for block in gpu.blocks)


def coll_of(algorithm: MscclAlgorithm) -> str:
    """MSCCL's name of the collective."""
    return next(theirs for theirs, ours in COLLECTIVES.items() if ours == algorithm.collective)


def xml_text(algorithm: MscclAlgorithm) -> str:
    """The XML of an algorithm."""
    from xml.sax.saxutils import quoteattr  # noqa: PLC0415 - loads urllib and http

    a = algorithm
    head = (
        f"<algo name={quoteattr(a.name)} proto={quoteattr(a.protocol)}"
        f' nchannels="{a.channels}" nchunksperloop="{a.chunks}" ngpus="{len(a.gpus)}"'
        f' coll="{coll_of(a)}" inplace="{int(a.in_place)}" outofplace="{int(a.out_of_place)}"'
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


def structure_problems(algorithm: MscclAlgorithm) -> list[str]:
    """The rules that an algorithm breaks, as sentences."""
    return [
        *_of_algorithm(algorithm),
        *(
            f"gpu {rank} {problem}"
            for rank, gpu in enumerate(algorithm.gpus)
            for problem in _of_gpu(algorithm, rank, gpu)
        ),
    ]


def limit_problems(algorithm: MscclAlgorithm) -> list[str]:
    """The limits of MSCCL that an algorithm exceeds."""
    blocks = max(len(gpu.blocks) for gpu in algorithm.gpus)
    steps = max((len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks), default=0)
    each = Counter(
        (rank, side, block.channel)
        for rank, gpu in enumerate(algorithm.gpus)
        for block in gpu.blocks
        for side, peer in (("send", block.send), ("recv", block.receive))
        if peer >= 0
    )
    peers = max(each.values(), default=0)
    figures = (
        (algorithm.channels, MOST_CHANNELS, f"{algorithm.channels} channels"),
        (blocks, MOST_BLOCKS, f"{blocks} thread blocks on a GPU"),
        (steps, MOST_STEPS, f"{plural(steps, 'step')} in a thread block"),
        (peers, MOST_BLOCKS_PER_CHANNEL, f"{peers} peers of a GPU on one channel"),
    )
    return [f"{words}; MSCCL has {most}" for count, most, words in figures if count > most]


def _of_algorithm(algorithm: MscclAlgorithm) -> Iterator[str]:
    a, gpus = algorithm, len(algorithm.gpus)
    rules = (
        (not (a.in_place or a.out_of_place),
         "inplace and outofplace are both 0: no call would use it"),
        (a.chunks > MOST_CHUNKS,
         f"nchunksperloop is {a.chunks}; at most {MOST_CHUNKS} can be proved"),
        (a.collective != "all_reduce" and a.chunks % gpus,
         f"{plural(a.chunks, 'chunk')} cannot be shared evenly by {plural(gpus, 'GPU')}"),
        (a.collective == "all_to_all" and a.in_place, "an all-to-all in place is not defined"),
    )  # fmt: skip
    return chain(limit_problems(a), (why for broken, why in rules if broken))


def _of_gpu(algorithm: MscclAlgorithm, rank: int, gpu: MscclGpu) -> Iterator[str]:
    for side in ("send", "receive"):
        seen: dict[tuple[int, int], int] = {}
        for number, block in enumerate(gpu.blocks):
            peer = getattr(block, side)
            if peer < 0:
                continue
            if peer >= len(algorithm.gpus) or peer == rank:
                yield f"tb {number}: there is no other gpu {peer}"
            if (first := seen.get((block.channel, peer))) is not None:
                where = f"of gpu {peer} on channel {block.channel}"
                yield f"tb {number}: tb {first} has the {side} side {where} already"
            seen[block.channel, peer] = number
    # Chunks of each buffer that both the file and the call have.
    inputs, outputs = algorithm.call_chunks
    sizes = {"i": min(gpu.inputs, inputs), "o": min(gpu.outputs, outputs), "s": gpu.scratch}
    for number, block in enumerate(gpu.blocks):
        if block.channel >= algorithm.channels:
            yield f"tb {number}: channel {block.channel} of {algorithm.channels}"
        for at, step in enumerate(block.steps):
            problems = _of_step(gpu, block, step, sizes)
            yield from (f"tb {number} step {at}: {problem}" for problem in problems)
        yield from (f"tb {number} {problem}" for problem in _of_nops(block))


def _of_step(gpu: MscclGpu, block: ThreadBlock, step: Step, sizes: dict[str, int]) -> Iterator[str]:
    action = step.action
    least = 0 if step.kind == "nop" else 1
    rules = (
        (action.sends and block.send < 0, "sends, and its thread block has no send peer"),
        (action.receives and block.receive < 0,
         "receives, and its thread block has no recv peer"),
        (not least <= step.count <= MOST_COUNT,
         f"cnt {step.count} is not from {least} to {MOST_COUNT}"),
    )  # fmt: skip
    yield from (why for broken, why in rules if broken)
    for place in step.places:
        if place.offset < 0 or place.offset + step.count > sizes[place.buffer]:
            last = place.after(max(step.count, 1) - 1)
            yield f"{place} to {last}: the buffer has {plural(sizes[place.buffer], 'chunk')}"
    if step.waits is not None:
        number, of = step.waits
        if number >= len(gpu.blocks) or not 0 <= of < len(gpu.blocks[number].steps):
            yield f"waits for tb {number} step {of}, which is not there"
        elif not any(later.tells for later in gpu.blocks[number].steps[of:]):
            yield f"waits for tb {number} step {of}, and neither it nor a later one has hasdep"


def _of_nops(block: ThreadBlock) -> Iterator[str]:
    """MSCCL hangs what a nop waits for on the next step, which must wait for something itself."""
    pending = False
    for at, step in enumerate(block.steps):
        if step.kind == "nop":
            pending = pending or step.waits is not None
            continue
        if pending and step.waits is None:
            yield f"step {at}: follows a nop that waits, and waits for nothing itself"
        pending = False
    if pending:
        yield "ends with a nop that waits; MSCCL drops it"


_BUFFERS = ("i", "o", "s")
_MOST = 1 << 62


def read_algorithm(text: str, name: str) -> MscclAlgorithm:
    """The algorithm of a file named `name`; raises `InputError` with every fault and its line."""
    root = read_xml(text, name)
    if root.tag != "algo":
        raise InputError(f"{name}: {root.place}: MSCCL's root is <algo>, this is <{root.tag}>")
    faults = Faults(name)
    count = _number(root, "ngpus", faults, 1)
    found = [_gpu(each, faults) for each in _numbered(root, "gpu", "id", faults)]
    faults.check(
        len(found) == count or "ngpus" not in root.attributes,
        root.place,
        f"ngpus is {count}, and there are {len(found)} gpu elements",
    )
    algorithm = MscclAlgorithm(
        root.get("name"),
        COLLECTIVES.get(_word(root, "coll", tuple(COLLECTIVES), faults), ""),
        _word(root, "proto", PROTOCOLS, faults),
        _number(root, "nchannels", faults, 1),
        _number(root, "nchunksperloop", faults, 1),
        tuple(found),
        bool(_number(root, "inplace", faults, 0, 1)),
        bool(_number(root, "outofplace", faults, 0, 1)) if "outofplace" in root.attributes else
        not _number(root, "inplace", Faults(), 0, 1),
        _number(root, "minBytes", faults, 0) if "minBytes" in root.attributes else 0,
        _number(root, "maxBytes", faults, 0) if "maxBytes" in root.attributes else _MOST,
    )  # fmt: skip
    faults.raise_any()
    return algorithm


def _gpu(element: Element, faults: Faults) -> MscclGpu:
    inputs, outputs, scratch = (_number(element, f"{b}_chunks", faults, 0) for b in _BUFFERS)
    blocks = (_block(each, faults) for each in _numbered(element, "tb", "id", faults))
    return MscclGpu(inputs, outputs, scratch, tuple(blocks))


def _block(element: Element, faults: Faults) -> ThreadBlock:
    send, receive = (_number(element, each, faults, -1) for each in ("send", "recv"))
    steps = (_read_step(each, faults) for each in _numbered(element, "step", "s", faults))
    return ThreadBlock(send, receive, _number(element, "chan", faults, 0), tuple(steps))


def _read_step(element: Element, faults: Faults) -> Step:
    kind = _word(element, "type", tuple(KINDS), faults) or "nop"
    source, target = (
        ChunkPlace(
            _word(element, f"{end}buf", _BUFFERS, faults) or "i",
            _number(element, f"{end}off", faults, -1),
        )
        for end in ("src", "dst")
    )
    block, of = _number(element, "depid", faults, -1), _number(element, "deps", faults, -1)
    return Step(
        kind, source, target, _number(element, "cnt", faults, 0),
        (block, of) if block >= 0 else None, bool(_number(element, "hasdep", faults, 0, 1)),
    )  # fmt: skip


def _numbered(parent: Element, tag: str, key: str, faults: Faults) -> list[Element]:
    """The children with this tag, which must be numbered from 0 on without gaps."""
    found = sorted(parent.all(tag), key=lambda each: _number(each, key, Faults(), 0))
    for each in parent.children:
        if each.tag != tag:
            near = did_you_mean(each.tag, [tag])
            faults.add(each.place, f"<{each.tag}> has no place in <{parent.tag}>{near}")
    for number, each in enumerate(found):
        faults.check(
            _number(each, key, faults, 0) == number,
            each.place,
            f'{tag} {key}="{each.get(key)}": expected {number}',
        )
    return found


def _number(element: Element, key: str, faults: Faults, least: int, most: int = _MOST) -> int:
    text = element.get(key)
    if re.fullmatch(r"-?[0-9]{1,19}", text) and least <= int(text) <= most:
        return int(text)
    span = f"{least} or {most}" if most == least + 1 else f"a whole number from {least}"
    have = f"got {quote(text)}" if key in element.attributes else "it is missing"
    faults.add(element.place, f"{element.tag} {key}: must be {span}; {have}")
    return least


def _word(element: Element, key: str, words: tuple[str, ...], faults: Faults) -> str:
    text = element.get(key)
    if text in words:
        return text
    near = did_you_mean(text, words) or f"; one of {', '.join(words)}"
    faults.add(element.place, f"{element.tag} {key}: unknown {quote(text)}{near}")
    return ""
