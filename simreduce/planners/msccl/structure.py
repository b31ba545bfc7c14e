"""Checks of what MSCCL's parser and its fixed arrays ask of an algorithm before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from simreduce.planners.msccl.algorithm import (
    MOST_BLOCKS,
    MOST_BLOCKS_PER_CHANNEL,
    MOST_CHANNELS,
    MOST_CHUNKS,
    MOST_COUNT,
    MOST_STEPS,
    MscclAlgorithm,
    MscclGpu,
    Step,
    ThreadBlock,
)
from simreduce.units import plural


def structure_problems(algorithm: MscclAlgorithm) -> list[str]:
    """The rules that an algorithm breaks, as sentences."""
    found = list(_of_algorithm(algorithm))
    for rank, gpu in enumerate(algorithm.gpus):
        found += [f"gpu {rank} {problem}" for problem in _of_gpu(algorithm, rank, gpu)]
    return found


def limit_problems(algorithm: MscclAlgorithm) -> list[str]:
    """The limits of MSCCL that an algorithm exceeds."""
    found = []
    if algorithm.channels > MOST_CHANNELS:
        found.append(f"{algorithm.channels} channels; MSCCL has {MOST_CHANNELS}")
    blocks = max(len(gpu.blocks) for gpu in algorithm.gpus)
    if blocks > MOST_BLOCKS:
        found.append(f"{blocks} thread blocks on a GPU; MSCCL has {MOST_BLOCKS}")
    steps = max((len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks), default=0)
    if steps > MOST_STEPS:
        found.append(f"{plural(steps, 'step')} in a thread block; MSCCL has {MOST_STEPS}")
    each = Counter(
        (rank, side, block.channel)
        for rank, gpu in enumerate(algorithm.gpus)
        for block in gpu.blocks
        for side, peer in (("send", block.send), ("recv", block.receive))
        if peer >= 0
    )
    if each and max(each.values()) > MOST_BLOCKS_PER_CHANNEL:
        words = f"{max(each.values())} peers of a GPU on one channel"
        found.append(f"{words}; MSCCL has {MOST_BLOCKS_PER_CHANNEL}")
    return found


def _of_algorithm(algorithm: MscclAlgorithm) -> Iterator[str]:
    yield from limit_problems(algorithm)
    if not (algorithm.in_place or algorithm.out_of_place):
        yield "inplace and outofplace are both 0: no call would use it"
    if algorithm.chunks > MOST_CHUNKS:
        yield f"nchunksperloop is {algorithm.chunks}; at most {MOST_CHUNKS} can be proved"
    parts = algorithm.collective != "all_reduce"
    if parts and algorithm.chunks % len(algorithm.gpus):
        gpus = plural(len(algorithm.gpus), "GPU")
        yield f"{plural(algorithm.chunks, 'chunk')} cannot be shared evenly by {gpus}"
    if algorithm.collective == "all_to_all" and algorithm.in_place:
        yield "an all-to-all in place is not defined"


def _of_gpu(algorithm: MscclAlgorithm, rank: int, gpu: MscclGpu) -> Iterator[str]:
    for side in ("send", "receive"):
        seen: dict[tuple[int, int], int] = {}
        for number, block in enumerate(gpu.blocks):
            peer = getattr(block, side)
            if peer < 0:
                continue
            if peer >= len(algorithm.gpus) or peer == rank:
                yield f"tb {number}: there is no other gpu {peer}"
            key = (block.channel, peer)
            if key in seen:
                where = f"of gpu {peer} on channel {block.channel}"
                yield f"tb {number}: tb {seen[key]} has the {side} side {where} already"
            seen[key] = number
    sizes = _sizes(algorithm, gpu)
    for number, block in enumerate(gpu.blocks):
        if block.channel >= algorithm.channels:
            yield f"tb {number}: channel {block.channel} of {algorithm.channels}"
        for at, step in enumerate(block.steps):
            problems = _of_step(gpu, block, step, sizes)
            yield from (f"tb {number} step {at}: {problem}" for problem in problems)
        yield from (f"tb {number} {problem}" for problem in _of_nops(block))


def _sizes(algorithm: MscclAlgorithm, gpu: MscclGpu) -> dict[str, int]:
    """Chunks of each buffer that both the file and the call have."""
    each = algorithm.chunks // len(algorithm.gpus)
    inputs = each if algorithm.collective == "all_gather" else algorithm.chunks
    outputs = each if algorithm.collective == "reduce_scatter" else algorithm.chunks
    return {"i": min(gpu.inputs, inputs), "o": min(gpu.outputs, outputs), "s": gpu.scratch}


def _of_step(gpu: MscclGpu, block: ThreadBlock, step: Step, sizes: dict[str, int]) -> Iterator[str]:
    action = step.action
    if action.sends and block.send < 0:
        yield "sends, and its thread block has no send peer"
    if action.receives and block.receive < 0:
        yield "receives, and its thread block has no recv peer"
    least = 0 if step.kind == "nop" else 1
    if not least <= step.count <= MOST_COUNT:
        yield f"cnt {step.count} is not from {least} to {MOST_COUNT}"
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
        if step.kind != "nop":
            if pending and step.waits is None:
                yield f"step {at}: follows a nop that waits, and waits for nothing itself"
            pending = False
        elif step.waits is not None:
            pending = True
    if pending:
        yield "ends with a nop that waits; MSCCL drops it"
