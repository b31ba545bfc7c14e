"""How long the largest machines take, and how much memory: loading, planning, simulating and
proving.

    python benchmarks/scale.py [CASE ...]

Each case runs in a process of its own, from the start of Python to the end. Where equal machines
are folded, one of them is simulated for all; a tree across them is not symmetric, so its machines
are loaded and simulated one by one. Four jobs share 128 DGX H100, each with the step of a ResNet-50
in buckets of 1 MB on 32 nodes of all leaves. Compiling is excluded: small cases are run before,
which keeps the machine code.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
    "jobs": (128, "isolated"),
    "jobs, tree": (128, "tree"),
}
SMALL = [("switch:512", "ring", "ideal"), (8, "tree")]
SIZE = "1G"
JOB = """
[[job]]
name = "job {0}"
nodes = {1}
workload = "resnet50"
strategy = "nccl+ddp=1"
step = {{batch = 64, time = "100 ms"}}
count = 2
"""


def command_of(case: tuple[Any, ...], folder: str) -> tuple[str, ...]:
    """The command of a case, whose files are in a folder."""
    if len(case) == 3:
        topology, algorithm, runtime = case
        return ("bench", topology, "--algo", algorithm, "--runtime", runtime, "-b", SIZE)
    nodes, congestion = case
    fabric = f"fabric=fat_tree,radix=32,oversubscription=2,congestion={congestion}"
    file = Path(folder, "jobs.toml")
    jobs = [JOB.format(i, [*range(i, nodes, 4)]) for i in range(4)]
    file.write_text(f'topology = "dgx-h100x{nodes},{fabric}"\n{"".join(jobs)}')
    return ("jobs", str(file))


def measured(case: tuple[Any, ...]) -> tuple[float, float, float, int]:
    """Seconds, seconds of processor time and peak MiB of a case's command, and its status."""
    with tempfile.TemporaryDirectory() as folder:
        return _measured(["-m", "simreduce", *command_of(case, folder), "--json"])


def _measured(command: list[str]) -> tuple[float, float, float, int]:
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
    for case in SMALL:
        measured(case)
    print(f"{'case':<48} {'s':>7} {'cpu s':>7} {'peak MiB':>9}")
    for name in sys.argv[1:] or CASES:
        wall, processor, peak, status = measured(CASES[name])
        failed = f"  status {status}" if status else ""
        words = f"{name}: {', '.join(map(str, CASES[name]))}"
        print(f"{words:<48} {wall:>7.1f} {processor:>7.1f} {peak:>9.0f}{failed}", flush=True)


if __name__ == "__main__":
    main()
