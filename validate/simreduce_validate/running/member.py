"""One rank of MultiWorkerMirroredStrategy. Started by `multi_worker`, which sets TF_CONFIG."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from simreduce import dtypes
from simreduce.plan import Kind, Plan
from simreduce_validate.running.builtin import Builtin
from simreduce_validate.running.contents import Contents, difference
from simreduce_validate.running.serve import serve


class Member:
    """An all-reduce of every gradient in one call, as the strategy makes it for a step."""

    def __init__(self) -> None:
        self._plan: Plan
        self._contents: Contents
        self._call: Any
        self._last: Sequence[Any] = ()
        self._rank = -1

    def start(self, work: Builtin, devices: tuple[str, ...]) -> tuple[list[str], float]:
        """Join the other ranks and reduce once: what was wrong, and the seconds until then."""
        began = time.perf_counter()
        self._rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        self._plan = work.plan(devices)
        self._contents = Contents.of(self._plan)
        tf.config.threading.set_intra_op_parallelism_threads(1)
        distribute = tf.distribute
        ring = distribute.experimental.CommunicationOptions(
            implementation=distribute.experimental.CommunicationImplementation.RING
        )
        strategy = distribute.MultiWorkerMirroredStrategy(communication_options=ring)
        numpy_type = tf.dtypes.as_dtype(dtypes.NAMES[work.dtype]).as_numpy_dtype
        own = [tf.Variable(self._contents.given(op).astype(numpy_type)) for op in self._mine(Kind.INPUT)]

        def summed() -> Any:
            context = distribute.get_replica_context()
            return context.all_reduce(distribute.ReduceOp.SUM, [tf.identity(variable) for variable in own])

        self._call = tf.function(lambda: strategy.run(summed), autograph=False)
        self.time(1)
        return self.check(), time.perf_counter() - began

    def time(self, repetitions: int) -> list[float]:
        """Seconds of each of so many calls."""
        found = []
        for _ in range(repetitions):
            began = time.perf_counter()
            self._last = self._call()
            found.append(time.perf_counter() - began)
        return found

    def check(self) -> list[str]:
        """What is wrong with the last results of this rank."""
        plan = self._plan
        found = [
            difference(
                plan.devices[self._rank],
                int(plan.lo[op]),
                tensor.numpy().astype(np.float64),
                self._contents.promised(op),
            )
            for op, tensor in zip(self._mine(Kind.OUTPUT), self._last, strict=True)
        ]
        return [text for text in found if text]

    def _mine(self, kind: Kind) -> list[int]:
        ops: list[int] = np.flatnonzero(
            (self._plan.kind == kind) & (self._plan.device == self._rank)
        ).tolist()
        return ops


if __name__ == "__main__":
    member = Member()
    serve({"start": member.start, "time": member.time, "check": member.check})
