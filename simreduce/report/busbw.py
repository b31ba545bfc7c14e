"""nccl-tests' two bandwidths, in bytes/s (its `doc/PERFORMANCE.md`)."""

from __future__ import annotations


def algbw(nbytes: int, seconds: float) -> float:
    """Bytes of one rank's array per second; 0 for a plan that takes no time."""
    return nbytes / seconds if seconds else 0.0


def busbw(nbytes: int, seconds: float, ranks: int) -> float:
    """That is algbw x 2(n-1)/n: for an all-reduce, comparable with what one link carries."""
    return algbw(nbytes, seconds) * 2 * (ranks - 1) / ranks
