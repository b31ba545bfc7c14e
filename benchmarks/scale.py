"""How long the largest machines take, and how much memory: loading, planning, simulating and
proving.

    python benchmarks/scale.py [CASE ...]

Each case runs in a process of its own, from the start of Python to the end. Where equal machines
are folded, one of them is simulated for all; a tree across them is not symmetric, so its machines
are loaded and simulated one by one. Compiling is excluded: a small case is run before, which keeps
the machine code.
"""

from __future__ import annotations

import os
import sys
import time

CASES = {
    "ring": ("switch:131072", "ring", "ideal"),
    "bidirectional_ring": ("switch:131072", "bidirectional_ring", "ideal"),
    "halving_doubling": ("switch:131072", "halving_doubling", "ideal"),
    "direct": ("switch:131072", "direct", "ideal"),
    "ring/ring": ("dgx1vx16384", "ring/ring", "ideal"),
    "ring/ring, queues": ("dgx1vx16384", "ring/ring", "tensorflow"),
    "ring/halving_doubling": ("dgx1vx16384", "ring/halving_doubling", "ideal"),
    "ring/double_tree": ("dgx1vx16384", "ring/double_tree", "ideal"),
    "ring/binary_tree, queues": ("dgx1vx16384", "ring/binary_tree", "tensorflow"),
}
SMALL = ("switch:512", "ring", "ideal")
SIZE = "1G"


def measured(topology: str, algorithm: str, runtime: str) -> tuple[float, float, float, int]:
    """Seconds, seconds of processor time and peak MiB of `simreduce bench`, and its status."""
    command = [
        "-m",
        "simreduce",
        "bench",
        topology,
        "--algo",
        algorithm,
        "--runtime",
        runtime,
        "-b",
        SIZE,
        "--json",
    ]
    start = time.perf_counter()
    silent = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    child = os.posix_spawn(
        sys.executable, [sys.executable, *command], os.environ, file_actions=[silent]
    )
    _, status, used = os.wait4(child, 0)
    wall = time.perf_counter() - start
    return (
        wall,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss / 1024,
        os.waitstatus_to_exitcode(status),
    )


def main() -> None:
    """Print a line for each case."""
    measured(*SMALL)
    print(
        f"{'topology':<14} {'algorithm':<22} {'runtime':<10} {'s':>7} {'cpu s':>7} {'peak MiB':>9}"
    )
    for name in sys.argv[1:] or CASES:
        wall, processor, peak, status = measured(*CASES[name])
        failed = f"  status {status}" if status else ""
        topology, algorithm, runtime = CASES[name]
        print(
            f"{topology:<14} {algorithm:<22} {runtime:<10} {wall:>7.1f} {processor:>7.1f} "
            f"{peak:>9.0f}{failed}",
            flush=True,
        )


if __name__ == "__main__":
    main()
