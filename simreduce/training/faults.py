"""Faults of the links beside the steps, on a clock that skips steps which are all alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import simpy

from simreduce.engine import Fabric, Fault
from simreduce.training.ledger import Process

_BEFORE = 2
"""Whole steps that are still simulated before a fault."""


class LinkFaults:
    """What happens to links, and when: seconds since the beginning of the first step, skipped ones
    among them.
    """

    def __init__(self, fabric: Fabric, faults: Sequence[Fault]) -> None:
        self._fabric, self._env = fabric, fabric.env
        self._left = sorted(faults, key=lambda fault: fault.time)
        self._skipped = 0.0
        self._process = self._env.process(self._happen())

    def _happen(self) -> Process:
        while self._left:
            delay = self._to_come()
            if delay > 0.0:
                try:
                    yield self._env.timeout(delay)
                except simpy.Interrupt:
                    continue
            self._fabric.schedule([replace(self._left.pop(0), time=0.0)])

    def _to_come(self) -> float:
        """Seconds to the next; inf if none is to come."""
        return self._left[0].time - self._skipped - self._env.now if self._left else inf

    @property
    def left(self) -> int:
        """How many are to come."""
        return len(self._left)

    @property
    def over(self) -> bool:
        """Whether all have happened."""
        return not self._left

    @property
    def next(self) -> Fault:
        """The next one; IndexError if they are over."""
        return self._left[0]

    def approach(self, period: float) -> None:
        """Skip whole steps of `period` seconds, but for the last ones before the next fault."""
        if not self._left or period <= 0.0:
            return
        steps = self._to_come() // period - _BEFORE
        if steps > 0:
            self._skipped += steps * period
            self._process.interrupt()
