"""TensorFlow's own all-reduces that run a program in a process per rank."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from simreduce import dtypes
from simreduce_validate.running.builtin import MULTI_WORKER, SYNC_REPLICAS, Builtin
from simreduce_validate.running.child import START_SECONDS, Child
from simreduce_validate.running.execution import StepCounts
from simreduce_validate.running.protocol import FirstStep
from simreduce_validate.running.workers import Worker, beside

_MODULES = {
    MULTI_WORKER: "simreduce_validate.running.member",
    SYNC_REPLICAS: "simreduce_validate.running.sync_replicas",
}

BY_RANK = frozenset(_MODULES)
"""Their names."""


_ACCUMULATED = ("float32", "float16", "float64")


def problems(work: Builtin, workers: Sequence[Worker]) -> list[str]:
    """The reasons why these processes cannot run it."""
    found = []
    if len(workers) < work.ranks:
        found.append(f"{work.name}: needs a process per rank: a cluster of one machine's devices")
    dtype = dtypes.NAMES[work.dtype]
    if work.name == SYNC_REPLICAS and dtype not in _ACCUMULATED:
        found.append(
            f"{work.name}: its accumulators take no {dtype}, only {', '.join(_ACCUMULATED)}"
        )
    return found


class Members:
    """The processes of one candidate, a rank each. They hold ports of their own beside the
    cluster's workers.
    """

    def __init__(
        self,
        work: Builtin,
        workers: Sequence[Worker],
        devices: Sequence[str],
        number: int,
        patience: float,
    ) -> None:
        self._patience = patience
        self._stack = ExitStack()
        ranks = [beside(worker, number) for worker in workers[: work.ranks]]
        addresses = [rank.address for rank in ranks]
        try:
            self._children = [
                self._start(_MODULES[work.name], rank, addresses, index)
                for index, rank in enumerate(ranks)
            ]
            found = self._ask_all("start", START_SECONDS, work, tuple(devices))
        except BaseException:
            self.close()
            raise
        faults = tuple(text for texts, _ in found for text in texts)
        self.prepared = FirstStep(faults, (), StepCounts(), max(seconds for _, seconds in found))

    def time(self, repetitions: int) -> list[float]:
        """Seconds of each step, of the rank that took longest."""
        return [
            max(step)
            for step in zip(*self._ask_all("time", self._patience, repetitions), strict=True)
        ]

    def check(self) -> list[str]:
        """The faults of the last results."""
        return [text for texts in self._ask_all("check", self._patience) for text in texts]

    def close(self) -> None:
        """Stop the processes."""
        self._stack.close()

    def _start(self, module: str, rank: Worker, addresses: Sequence[str], index: int) -> Child:
        config = {
            "cluster": {"worker": list(addresses)},
            "task": {"type": "worker", "index": index},
        }
        settings = [
            ("TF_CONFIG", json.dumps(config, separators=(",", ":"))),
            ("CUDA_VISIBLE_DEVICES", ""),
        ]
        child = Child(module, f"rank {index} ({rank.address})", rank.prefix, settings)
        self._stack.callback(child.close)
        return child

    def _ask_all(self, method: str, seconds: float, *arguments: object) -> list[Any]:
        for child in self._children:
            child.tell(method, *arguments)
        return [child.answer(method, seconds) for child in self._children]
