"""A naive run of MSCCL's algorithms: numbers, one thread block at a time, drawn at random.

It shares nothing with the interpreter but the values that describe an algorithm. It runs one
schedule; the interpreter speaks of all.
"""

from __future__ import annotations

import random
from collections import defaultdict

from simreduce.planners.msccl import MscclAlgorithm


class Stuck(Exception):  # noqa: N818 - an outcome, not a mistake
    """No thread block can go on."""


def run(algorithm: MscclAlgorithm, seed: int) -> list[list[int | None]]:
    """The chunks of every GPU's output after a call in place; None for what nobody wrote."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    chunks, ranks = algorithm.chunks, len(algorithm.gpus)
    memory = [defaultdict(lambda: None) for _ in range(ranks)]
    for rank in range(ranks):
        for i in range(chunks):
            memory[rank]["io", i] = value(rank, i)
    blocks = [(g, b) for g in range(ranks) for b in range(len(algorithm.gpus[g].blocks))]
    done = dict.fromkeys(blocks, 0)
    flags = dict.fromkeys(blocks, -1)
    waiting_to_send = {}
    wires = {}

    def place(spot, i):
        return ("s" if spot.buffer == "s" else "io", spot.offset + i)

    def try_step(g, b):
        block = algorithm.gpus[g].blocks[b]
        step = block.steps[done[g, b]]
        out = (g, block.send, block.channel)
        if (g, b) not in waiting_to_send:
            if step.waits and flags[g, step.waits[0]] < step.waits[1]:
                return False
            values = [0] * step.count
            if step.kind in ("r", "rcs", "rrs", "rrc", "rrcs"):
                into = (block.receive, g, block.channel)
                if into not in wires:
                    return False
                values = wires.pop(into)
                if len(values) != step.count:
                    raise Stuck
            if step.kind in ("s", "rrs", "rrc", "rrcs", "cpy", "re"):
                own = [memory[g][place(step.source, i)] for i in range(step.count)]
                values = [add(a, c) for a, c in zip(values, own, strict=True)]
            if step.kind == "re":
                own = [memory[g][place(step.target, i)] for i in range(step.count)]
                values = [add(a, c) for a, c in zip(values, own, strict=True)]
            if step.kind in ("r", "rcs", "rrc", "rrcs", "cpy", "re"):
                for i, number in enumerate(values):
                    memory[g][place(step.target, i)] = number
            if step.kind in ("s", "rcs", "rrs", "rrcs"):
                waiting_to_send[g, b] = values
        if (g, b) in waiting_to_send:
            if out in wires:
                return False
            wires[out] = waiting_to_send.pop((g, b))
        if step.tells:
            flags[g, b] = done[g, b]
        done[g, b] += 1
        return True

    while True:
        open_blocks = [
            (g, b) for g, b in blocks if done[g, b] < len(algorithm.gpus[g].blocks[b].steps)
        ]
        if not open_blocks:
            break
        draw.shuffle(open_blocks)
        if not any(try_step(g, b) for g, b in open_blocks):
            raise Stuck
    if wires:
        raise Stuck
    return [[memory[rank]["io", i] for i in range(chunks)] for rank in range(ranks)]


def value(rank: int, chunk: int) -> int:
    """What a rank puts into a chunk: no two sums of a few of them are equal."""
    return 10 ** (rank % 12) * (1 + 97 * chunk) + rank // 12


def add(a: int | None, b: int | None) -> int | None:
    """The sum of numbers; nothing if one is missing."""
    return None if a is None or b is None else a + b


def is_all_reduce(algorithm: MscclAlgorithm, seed: int) -> bool:
    """Whether one schedule ends with the sum of all ranks in every chunk."""
    ranks = range(len(algorithm.gpus))
    want = [sum(value(rank, i) for rank in ranks) for i in range(algorithm.chunks)]
    return all(row == want for row in run(algorithm, seed))
