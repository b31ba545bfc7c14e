"""How fast the compiled kernel is on its own: a ring on a switch, and what competes on a fat tree.

    python benchmarks/kernel_speed.py [ROW ...]

The kernel's tables are built here by array arithmetic; neither planner nor lowering takes part. The
fat tree has two levels: 1,024 hosts, 32 hosts and 16 up-links per leaf, every cable 12.5 GB/s and 1
us per direction, one path per pair: up to the spine of the destination's number modulo 16. A
message pays the latency of its cables once, before its bytes compete. Rings move 64 MiB; each rank
sends its chunks one after another.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import NamedTuple

import numpy as np

from simreduce.engine.kernel.store import KernelStore
from simreduce.engine.lowering.calls import Calls

HOSTS, HOSTS_PER_LEAF, SPINES = 1024, 32, 16
LEAVES = HOSTS // HOSTS_PER_LEAF
BANDWIDTH, CABLE = 12.5e9, 1e-6
SIZE = 64 * 2**20


class Load(NamedTuple):
    """Resources, and one submission as `KernelStore.append` takes it."""

    capacity: np.ndarray
    calls: Calls
    call: np.ndarray
    amount: np.ndarray
    waits: np.ndarray
    successor_start: np.ndarray
    successors: np.ndarray
    release_op: np.ndarray

    @property
    def messages(self) -> int:
        return int(np.count_nonzero(self.amount))


def tree_paths(source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(resources in rows, row starts, number of cables): out of host, up, down, into host."""
    leaf, other = source // HOSTS_PER_LEAF, target // HOSTS_PER_LEAF
    spine = target % SPINES
    far = leaf != other
    up = 2 * HOSTS + leaf * SPINES + spine
    down = 2 * HOSTS + LEAVES * SPINES + other * SPINES + spine
    table = np.stack([source, up, down, HOSTS + target], axis=1)
    used = np.stack([far | True, far, far, far | True], axis=1)
    return table[used], np.concatenate([[0], np.cumsum(used.sum(axis=1))]), used.sum(axis=1)


def tree_capacity() -> np.ndarray:
    return np.full(2 * HOSTS + 2 * LEAVES * SPINES, BANDWIDTH)


def switch_paths(
    source: np.ndarray, target: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    uses = np.stack([source, HOSTS + target], axis=1)
    return uses.ravel(), np.arange(0, 2 * len(source) + 1, 2), np.full(len(source), 2)


def table(uses: np.ndarray, start: np.ndarray, latency: np.ndarray) -> Calls:
    """Calls with these resources; the last one is free."""
    n = len(latency) + 1
    return Calls(
        overhead=np.zeros(n),
        work=np.zeros(n),
        latency=np.append(latency, 0.0),
        holds=np.ones(n, dtype=bool),
        cap=np.full(n, np.inf),
        lane_start=np.zeros(n + 1, dtype=np.int64),
        early=np.zeros(n, dtype=np.int64),
        lanes=np.zeros(0, dtype=np.int64),
        use_start=np.append(start, start[-1]),
        uses=uses,
        weight=np.ones(len(uses)),
    )


def ring(paths=tree_paths, capacity=tree_capacity, place=None, jitter: float = 0.0) -> Load:
    """Reduce-scatter and all-gather over 1,024 ranks: ops are inputs, then copies and sums step by
    step.
    """
    n = HOSTS
    place = np.arange(n) if place is None else place
    uses, start, cables = paths(place, np.roll(place, -1))
    latency = cables * CABLE
    calls = table(uses, start, latency)
    copies, sums = (2 * n - 2) * n, (n - 1) * n
    call = np.empty(n + copies + sums, dtype=np.int32)
    amount = np.zeros(len(call))
    call[:n] = n  # inputs
    # Op ids: of step s the copy of rank r, and of the first n - 1 steps the sum at rank r.
    steps = np.arange(2 * n - 2)
    begin = n + 2 * n * np.minimum(steps, n - 1) + n * np.maximum(steps - (n - 1), 0)
    copy = begin[:, None] + np.arange(n)[None, :]
    total = copy[: n - 1] + n
    call[copy] = np.arange(n)[None, :]
    call[total] = n
    amount[copy] = SIZE / n
    # A copy lets the next rank sum, or pass on, and its own rank send the next.
    rows: list[tuple[np.ndarray, np.ndarray]] = [(np.arange(n), copy[0])]
    after = np.roll(np.arange(n), -1)
    rows.append((copy[:-1].ravel(), copy[1:].ravel()))
    rows.append((copy[: n - 1].ravel(), total[:, after].ravel()))
    rows.append((total.ravel(), copy[1:n].ravel()))
    rows.append((copy[n - 1 : -1].ravel(), copy[n:][:, after].ravel()))
    before = np.concatenate([a for a, _ in rows])
    then = np.concatenate([b for _, b in rows])
    order = np.lexsort((then, before))
    successors = then[order].astype(np.int32)
    successor_start = np.concatenate([[0], np.cumsum(np.bincount(before, minlength=len(call)))])
    waits = np.bincount(then, minlength=len(call)).astype(np.int32)
    waits[:n] += 1
    if jitter:
        calls, call = jittered(calls, call, amount, jitter)
    return Load(
        capacity(),
        calls,
        call,
        amount,
        waits,
        successor_start.astype(np.int32),
        successors,
        np.arange(n),
    )


def jittered(
    calls: Calls, call: np.ndarray, amount: np.ndarray, by: float
) -> tuple[Calls, np.ndarray]:
    """A latency of its own for every message."""
    random = np.random.default_rng(5)
    copies = np.flatnonzero(amount)
    mine = call[copies]
    count = np.diff(calls.use_start)[mine]
    start = np.concatenate([[0], np.cumsum(count)])
    where = np.repeat(calls.use_start[:-1][mine] - start[:-1], count) + np.arange(start[-1])
    new = np.full(len(call), len(copies), dtype=np.int32)
    new[copies] = np.arange(len(copies))
    latency = calls.latency[mine] * (1 + by * random.uniform(-1.0, 1.0, len(copies)))
    return table(calls.uses[where], start, latency), new


def permutations(count: int, hosts: int = HOSTS) -> Load:
    """Each of the first `hosts` hosts sends one flow per random permutation at once; sizes 64 KiB
    +-50 %.
    """
    random = np.random.default_rng(7)
    source = np.tile(np.arange(hosts), count)
    target = np.concatenate([random.permutation(hosts) for _ in range(count)])
    return at_once(source, target, random)


def at_once(source: np.ndarray, target: np.ndarray, random: np.random.Generator) -> Load:
    """A flow of 64 KiB +-50 % for each pair, all at once; flows of one pair are of one call."""
    n = len(source)
    pairs, call = np.unique(source * HOSTS + target, return_inverse=True)
    uses, start, cables = tree_paths(pairs // HOSTS, pairs % HOSTS)
    amount = SIZE / HOSTS * random.uniform(0.5, 1.5, n)
    ids = np.arange(n)
    return Load(
        tree_capacity(),
        table(uses, start, cables * CABLE),
        call,
        amount,
        np.ones(n, dtype=np.int32),
        np.zeros(n + 1, dtype=np.int32),
        ids[:0],
        ids,
    )


def shuffled() -> np.ndarray:
    return np.random.default_rng(3).permutation(HOSTS)


def switch() -> Load:
    return ring(switch_paths, lambda: np.full(2 * HOSTS, BANDWIDTH))


ROWS = {
    "switch": ("ring on a switch", switch),
    "linear": ("ring, linear placement", ring),
    "shuffled": ("ring, shuffled placement", lambda: ring(place=shuffled())),
    "linear-jitter": ("ring, linear, latency +-10 %", lambda: ring(jitter=0.1)),
    "shuffled-jitter": (
        "ring, shuffled, latency +-10 %",
        lambda: ring(place=shuffled(), jitter=0.1),
    ),
    "permutations-1": ("1 permutation", lambda: permutations(1)),
    "permutations-4": ("4 permutations at once", lambda: permutations(4)),
    "permutations-16": ("16 permutations at once", lambda: permutations(16)),
    "permutations-256": ("256 permutations of 64 hosts", lambda: permutations(256, 64)),
}


def run(load: Load) -> tuple[float, float]:
    """(seconds of processor time, which others on the machine disturb least; seconds predicted)"""
    begin = time.process_time()
    store = KernelStore(load.capacity.tolist())
    store.compile()
    load = load._replace(waits=load.waits.copy())  # the store keeps it
    store.append(*load[1:], np.zeros(len(load.release_op)), 0)
    done, end = store.advance(0.0, np.inf)
    spent = time.process_time() - begin
    assert done
    assert np.isfinite(store.state.finish).all()
    return spent, end


def main() -> None:
    begin = time.process_time()
    run(permutations(1))
    print(f"numba and the compiled kernel: {time.process_time() - begin:.2f} s")
    print(f"{'':32}{'messages':>10}{'cpu s':>9}{'messages/s':>12}{'peak MB':>9}  predicted s")
    for key in sys.argv[1:] or ROWS:
        title, build = ROWS[key]
        load = build()
        spent, end = min(run(load) for _ in range(3 if load.messages < 100_000 else 2))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rate = load.messages / spent
        print(
            f"{title:32}{load.messages:>10,}{spent:9.3f}{rate:>12,.0f}{peak:9.0f}  {end:.10f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
