"""The process of one rank, for candidates that run a program of their own on every rank.

Started by `by_rank`, which sets TF_CONFIG.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from simreduce import dtypes
from simreduce.plan import Kind, Plan
from simreduce_validate.running.builtin import Builtin
from simreduce_validate.running.contents import Contents, difference
from simreduce_validate.running.serve import serve


class RankProgram(Protocol):
    """What a rank runs."""

    def join(self, addresses: Sequence[str], rank: int, own: Sequence[Any]) -> None:
        """Join the other ranks, at `addresses`, with these gradients."""

    def step(self) -> None:
        """One all-reduce of all of them; returns when this rank has its results."""

    def results(self) -> Sequence[Any]:
        """Those of the last step, as arrays."""


class Rank:
    """A program's steps, timed and checked."""

    def __init__(self, program: RankProgram) -> None:
        self._program = program
        self._plan: Plan
        self._contents: Contents
        self._rank = -1

    def start(self, work: Builtin, devices: tuple[str, ...]) -> tuple[list[str], float]:
        """Join the other ranks and reduce once: what was wrong, and the seconds until then."""
        began = time.perf_counter()
        config = json.loads(os.environ["TF_CONFIG"])
        self._rank = config["task"]["index"]
        self._plan = work.plan(devices)
        self._contents = Contents.of(self._plan)
        numpy_type = tf.dtypes.as_dtype(dtypes.NAMES[work.dtype]).as_numpy_dtype
        own = [self._contents.given(op).astype(numpy_type) for op in self._mine(Kind.INPUT)]
        self._program.join(config["cluster"]["worker"], self._rank, own)
        self.time(1)
        return self.check(), time.perf_counter() - began

    def time(self, repetitions: int) -> list[float]:
        """Seconds of each of so many steps."""
        found = []
        for _ in range(repetitions):
            began = time.perf_counter()
            self._program.step()
            found.append(time.perf_counter() - began)
        return found

    def check(self) -> list[str]:
        """The faults of this rank's last results."""
        plan = self._plan
        found = [
            difference(
                plan.devices[self._rank],
                int(plan.lo[op]),
                np.asarray(result).astype(np.float64),
                self._contents.promised(op),
            )
            for op, result in zip(self._mine(Kind.OUTPUT), self._program.results(), strict=True)
        ]
        return [text for text in found if text]

    def _mine(self, kind: Kind) -> list[int]:
        ops: list[int] = np.flatnonzero(
            (self._plan.kind == kind) & (self._plan.device == self._rank)
        ).tolist()
        return ops


def serve_rank(program: RankProgram) -> None:
    """Be a rank that runs `program`, until stdin ends."""
    rank = Rank(program)
    serve({"start": rank.start, "time": rank.time, "check": rank.check})
