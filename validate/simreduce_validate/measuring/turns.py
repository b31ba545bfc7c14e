"""Candidates timed in turns, A B A B, so that drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from simreduce.computing.arrays import Floats


class Timed(Protocol):
    """What can be timed: an `Executable` of a backend."""

    def time(self, repetitions: int) -> Floats:
        """Seconds of each of so many steps, one after another."""


def time_in_rounds(
    candidates: Sequence[Timed],
    rounds: int,
    *,
    warmup: int = 2,
    settled: Sequence[int] = (),
    note: Callable[[int, int, float], None] = lambda _place, _round, _seconds: None,
) -> list[Floats]:
    """Seconds of each candidate by round: one step each, one candidate after another.

    `note` gets every sample as it comes: place of the candidate, round, seconds.

    All candidates take `warmup` steps before the first round. `settled` says by candidate how many
    steps in a row make a sample: it is their median, after as many warm-up steps, which refill the
    caches. With 0, a sample is one step.
    """
    for candidate in candidates:
        if warmup:
            candidate.time(warmup)
    found = np.empty((len(candidates), rounds))
    for number in range(rounds):
        for place, candidate in enumerate(candidates):
            steps = settled[place] if settled else 0
            found[place, number] = np.median(candidate.time(2 * steps or 1)[steps:])
            note(place, number, float(found[place, number]))
    return list(found)
