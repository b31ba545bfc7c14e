"""How long it takes to get from a topology and a plan to the arrays that the kernel runs, and back
to a result.

python benchmarks/lowering_speed.py [--ranks 1024]

The plans are made of columns here, so that nothing else is measured: the textbook ring, and the
direct all-reduce in which every rank sends a shard to every other, sums its own, and sends it back.
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc

import numpy as np

import simreduce as sr
from simreduce.engine import IDEAL, NOMINAL, bounds
from simreduce.engine.lowering import lower
from simreduce.engine.lowering.resources import Resources
from simreduce.plan import Contract, Kind, Plan
from simreduce.plan.plan import NO_STREAM

ELEMENTS = 1 << 24


def plan_of(n: int, blocks: list[tuple]) -> Plan:
    """A plan of blocks (kind, device, lo, hi, stream, operands), operands an array of ops by
    operands each.
    """
    count = [len(block[1]) for block in blocks]
    total = sum(count)

    def column(at: int, dtype: type) -> np.ndarray:
        out = np.empty(total, dtype=dtype)
        end = 0
        for block, size in zip(blocks, count, strict=True):
            out[end : end + size] = block[at]
            end += size
        return out

    operands = [block[5] for block in blocks]
    each = np.repeat([o.shape[1] for o in operands], count)
    return Plan(
        devices=tuple(f"gpu{i}" for i in range(n)),
        kind=column(0, np.int8),
        device=column(1, np.int32),
        lo=column(2, np.int64),
        hi=column(3, np.int64),
        dtype=np.zeros(total, np.int8),
        arg=column(1, np.int32),  # an INPUT is what its device gives
        stream=column(4, np.int32),
        executor=np.zeros(total, np.int8),
        operand_start=np.concatenate([[0], np.cumsum(each)]).astype(np.int32),
        operands=np.concatenate([o.reshape(-1) for o in operands]).astype(np.int32),
        control_start=np.zeros(total + 1, np.int32),
        controls=np.zeros(0, np.int32),
        contract=Contract.all_reduce(range(n), [(0, ELEMENTS, 0)]),
    )


def ring(n: int) -> Plan:
    """2(n-1) steps of n copies, each rank's in one stream."""
    chunk = np.arange(n)
    lo, hi = chunk * ELEMENTS // n, (chunk + 1) * ELEMENTS // n
    none = np.zeros((n, 0), np.int32)
    blocks: list[tuple] = [(Kind.INPUT, chunk, 0, ELEMENTS, NO_STREAM, none)]
    first, held, at = n, (chunk + 1) % n, (chunk + 1) % n
    history = np.empty((n, n), np.int64)  # step, chunk
    for _ in range(n - 1):
        to = (at + 1) % n
        blocks.append((Kind.COPY, to, lo, hi, at, held[:, None]))
        blocks.append((Kind.ADD, to, lo, hi, NO_STREAM, np.stack([first + chunk, to], axis=1)))
        held, at, first = first + n + chunk, to, first + 2 * n
    history[0] = held
    for step in range(1, n):
        to = (at + 1) % n
        blocks.append((Kind.COPY, to, lo, hi, at, held[:, None]))
        held, at, first = first + chunk, to, first + n
        history[step] = held
    parts = history[(chunk[:, None] - chunk) % n, chunk]  # chunk c reaches rank (c + step) mod n
    blocks.append((Kind.CONCAT, chunk, 0, ELEMENTS, NO_STREAM, parts))
    blocks.append((Kind.OUTPUT, chunk, 0, ELEMENTS, NO_STREAM, (first + chunk)[:, None]))
    return plan_of(n, blocks)


def direct(n: int) -> Plan:
    """n(n-1) copies there, n sums, n(n-1) copies back."""
    chunk = np.arange(n)
    lo, hi = chunk * ELEMENTS // n, (chunk + 1) * ELEMENTS // n
    source, owner = (each.reshape(-1) for each in np.nonzero(~np.eye(n, dtype=bool)))
    blocks: list[tuple] = [
        (Kind.INPUT, chunk, 0, ELEMENTS, NO_STREAM, np.zeros((n, 0), np.int32)),
        (Kind.COPY, owner, lo[owner], hi[owner], NO_STREAM, source[:, None]),
    ]
    copy = np.arange(n * n).reshape(n, n)
    copy[source, owner] = n + np.arange(n * (n - 1))
    copy[chunk, chunk] = chunk
    sums = n * n + chunk
    blocks += [
        (Kind.ADD, chunk, lo, hi, NO_STREAM, copy.T),
        (Kind.COPY, owner, lo[source], hi[source], NO_STREAM, sums[source][:, None]),
    ]
    back = np.empty((n, n), np.int64)
    back[source, owner] = n * n + n + np.arange(n * (n - 1))
    back[chunk, chunk] = sums
    last = 2 * n * n + chunk
    blocks += [
        (Kind.CONCAT, chunk, 0, ELEMENTS, NO_STREAM, back.T),
        (Kind.OUTPUT, chunk, 0, ELEMENTS, NO_STREAM, last[:, None]),
    ]
    return plan_of(n, blocks)


def timed(call, *arguments, repeat: int = 3):
    """Seconds of processor time of the best of a few calls, and what the last returned."""
    best = float("inf")
    for _ in range(repeat):
        gc.collect()
        begin = time.process_time()
        value = call(*arguments)
        best = min(best, time.process_time() - begin)
    return best, value


def megabytes(call, *arguments) -> tuple[float, float]:
    """What is held after a call, and at its peak."""
    gc.collect()
    tracemalloc.start()
    value = call(*arguments)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del value
    return held / 1e6, peak / 1e6


def digest(plan: Plan) -> str:
    return plan.digest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    n = parser.parse_args().ranks
    for text in ("switch:4096", "fat_tree:4096", "torus:16x16x16", "dgx1vx512,fabric=fat_tree"):
        load, machine = timed(sr.load_topology, text)
        shape, _ = timed(sr.layout, machine)
        print(f"{text:28} load {load:.3f} s, layout {shape:.3f} s")
    side = round(n**0.5)
    networks = (
        f"switch:{n}",
        f"fat_tree:{n},radix=32,oversubscription=2",
        f"torus:{side}x{n // side}",
    )
    for name, plan in (("ring", ring(n)), ("direct", direct(n))):
        print(f"{name}, {n} ranks: {len(plan):,} ops, {plan.transfers:,} copies")
        for text in networks:
            machine = sr.load_topology(text)
            resources = Resources.of(machine, NOMINAL)
            seconds, lowered = timed(lower, plan, machine, IDEAL, NOMINAL, resources)
            held, peak = megabytes(lower, plan, machine, IDEAL, NOMINAL, resources)
            print(
                f"  {text:40} lower {seconds:.3f} s, {held:.0f} MB held, {peak:.0f} MB at its peak"
            )
        for call, *arguments in (
            (bounds.alone, lowered, resources),
            (bounds.resource_seconds, lowered, resources),
            (bounds.critical_path, lowered, resources),
            (digest, plan),
        ):
            print(f"  {call.__name__} {timed(call, *arguments)[0]:.3f} s")


if __name__ == "__main__":
    main()
