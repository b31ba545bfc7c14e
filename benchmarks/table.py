"""Writes a table of whole commands: CPU seconds and peak memory. Run: make bench-table.

Peers are measured by their own programs; the table says which of them are installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

_CASES = (
    "switch:1024 --algo ring -b 64M",
    "switch:1024 --algo ring -b 64M --no-fold",
    "switch:1024 --algo direct -b 64M --no-fold",
    "fat_tree:1024,oversubscription=2 --algo direct -b 64M --no-fold",
    "torus:16x16 --algo direct -b 64M --no-fold",
    "switch:4096 --algo halving_doubling -b 64M --no-fold",
    "switch:8 --algo ring -b 64M",
    "switch:8 --algo direct -b 64M",
    "switch:1024 --algo halving_doubling -b 64M --no-fold",
    "switch:4096 --algo ring -b 64M",
    "switch:4096 --algo ring -b 64M --no-fold",
    "switch:131072 --algo ring -b 64M",
    "switch:131072 --algo double_tree -b 64M",
    "fat_tree:131072,shuffle=1,radix=128 --algo halving_doubling -b 64M",
)
_PEERS = ("smpirun", "AstraSim_Analytical_Congestion_Aware")


def measure(case: str) -> str:
    """The row of `simreduce bench CASE`."""
    command = [sys.executable, "-m", "simreduce", "bench", *case.split(), "--runtime", "ideal"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds, megabytes = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
    return f"| `{case}` | {process.returncode} | {seconds:.2f} | {megabytes:.0f} |"


if __name__ == "__main__":
    there = [peer for peer in _PEERS if shutil.which(peer)]
    lines = [f"Peers installed: {', '.join(there) or 'none'}.", ""]
    lines += ["| case | exit status | CPU s | peak MB |", "|---|---|---|---|"]
    sys.stdout.write("\n".join(lines) + "\n")
    for each in _CASES:
        sys.stdout.write(measure(each) + "\n")
        sys.stdout.flush()
