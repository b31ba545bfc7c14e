"""Published times of kernels beside predictions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from simreduce import dtypes
from simreduce.engine.setup import BY_STRATEGY, Setup
from simreduce.files.published.kernels import KERNEL_SETS, PublishedKernel, published_kernels
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.bench import tensor

_DTYPE = dtypes.NAMES.index("bfloat16")


class KernelPoint(NamedTuple):
    """A published call, and the seconds that are predicted, with its copies."""

    call: PublishedKernel
    predicted: float

    @property
    def error(self) -> float:
        """By what part the prediction is too long."""
        return self.predicted / self.call.seconds - 1.0

    @property
    def held(self) -> bool:
        """Whether its set takes no part in any fit."""
        return KERNEL_SETS[self.call.set].held


def predict_kernels() -> Iterator[KernelPoint]:
    """Every call, as it is predicted."""
    for call in published_kernels():
        setup = setup_of(call.machine, call.gpus)
        yield KernelPoint(call, predict_call(setup, call))


def predict_call(setup: Setup, call: PublishedKernel) -> float:
    """Seconds of a call. A copy of the tensor is a kernel that reads and writes it."""
    strategy = parse_strategy(call.strategy)
    running = setup.running(strategy)
    plan = running.compile(strategy, tensor(call.nbytes, _DTYPE))
    seconds = float(running.summarise(plan).seconds)
    gpu = setup.machine.nodes[setup.layout.ranks[0]]
    each = setup.constants.nccl.kernels.launch + 2 * call.nbytes / gpu.memory_bandwidth
    return seconds + call.copies * each


@cache
def setup_of(machine: str, gpus: int) -> Setup:
    """A machine's first GPUs."""
    whole = Setup(machine, BY_STRATEGY)
    return whole.but(part=whole.layout.subset(gpus))
