"""nccl-tests' two bandwidths, in bytes/s (its `doc/PERFORMANCE.md`)."""

from __future__ import annotations


def algbw(nbytes: int, seconds: float) -> float:
    """Bytes of one rank's array per second; 0 for a plan that takes no time."""
    return nbytes / seconds if seconds else 0.0


def busbw(nbytes: int, seconds: float, ranks: int, collective: str = "all_reduce") -> float:
    """Algbw, times what makes it comparable with what one link carries: 2(n-1)/n for an all-reduce,
    (n-1)/n where every rank keeps or has a part, 1 for a broadcast and a reduce.
    """
    return algbw(nbytes, seconds) * _factor(collective, ranks)


def _factor(collective: str, ranks: int) -> float:
    if collective in ("broadcast", "reduce"):
        return 1.0
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks
