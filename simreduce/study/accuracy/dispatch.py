"""Published times of DeepEP's dispatch and combine beside predictions; no constant is fitted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from simreduce.engine.setup import Setup
from simreduce.files.published.dispatch import (
    ACTIVE,
    BYTES,
    EXPERTS,
    PublishedDispatch,
    published_dispatches,
)
from simreduce.training.mesh.costs import Costs
from simreduce.training.mesh.experts import reached
from simreduce.training.mesh.parts import ALL_TO_ALL, DISPATCH, MeshCall
from simreduce.training.mesh.ways import EP, Mesh


class DispatchPoint(NamedTuple):
    """A published call, its seconds, and those that are predicted."""

    call: PublishedDispatch
    seconds: float
    predicted: float

    @property
    def error(self) -> float:
        """By what part the prediction is too long."""
        return self.predicted / self.seconds - 1.0


def predict_dispatches() -> Iterator[DispatchPoint]:
    """Every call, as it is predicted."""
    for call in published_dispatches():
        yield DispatchPoint(call, _published(call), _predicted(call))


def _published(call: PublishedDispatch) -> float:
    if call.seconds is not None:
        return call.seconds
    machines = len(Setup(call.machine, "nccl").layout.tasks)
    places = call.ranks if call.link == "nvlink" else machines
    counted = call.tokens * BYTES[call.direction] * reached(EXPERTS, ACTIVE, places)
    return counted / call.rate


def _predicted(call: PublishedDispatch) -> float:
    """Low-latency kernels send a copy for each expert straight to its rank."""
    straight = call.kernel == "low latency"
    costs = Costs(Setup(call.machine, "nccl"), Mesh(ep=call.ranks, dp=call.ranks, etp=1))
    nbytes = call.tokens * ACTIVE * BYTES[call.direction]
    spread = () if straight else (EXPERTS, ACTIVE)
    return costs.of(
        MeshCall(EP, ALL_TO_ALL if straight else DISPATCH, nbytes, spread=spread), 0
    ).seconds
