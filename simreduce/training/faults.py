"""Link faults while steps run, on a clock that skips equal steps."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import simpy

from simreduce.engine import Fabric, Fault

Process = Generator[simpy.Event, Any, None]

_BEFORE = 2
"""Whole steps to simulate before a fault."""


class LinkFaults:
    """Faults in order of time, in seconds since the first step began, skipped steps included."""

    def __init__(self, fabric: Fabric, faults: Sequence[Fault]) -> None:
        self._fabric, self._env = fabric, fabric.env
        self.left = sorted(faults, key=lambda fault: fault.time)
        """Those to come."""
        self._skipped = 0.0
        self._process = self._env.process(self._play())

    def _play(self) -> Process:
        while self.left:
            delay = self._to_come()
            if delay > 0.0:
                try:
                    yield self._env.timeout(delay)
                except simpy.Interrupt:
                    continue
            self._fabric.schedule([replace(self.left.pop(0), time=0.0)])

    def _to_come(self) -> float:
        """Seconds to the next fault; inf if there is none."""
        return self.left[0].time - self._skipped - self._env.now if self.left else inf

    def approach(self, period: float) -> None:
        """Skip whole steps of `period` seconds up to the last few before the next fault."""
        if not self.left or period <= 0.0:
            return
        steps = self._to_come() // period - _BEFORE
        if steps > 0:
            self._skipped += steps * period
            self._process.interrupt()
