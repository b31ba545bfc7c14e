"""Whether what a training step holds fits the memory of a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from simreduce import units
from simreduce.topology import Topology
from simreduce.training.sharded.memory import Shares, replicated_memory
from simreduce.training.sharded.settings import DDP, Sharding, wrap
from simreduce.training.step import UNCOUNTED, Activations, Memory
from simreduce.workload import Model

if TYPE_CHECKING:
    from simreduce.training.step_table import StepQuestion


class MemoryFit(NamedTuple):
    """Bytes that a GPU needs and has; 0 where nobody says how many it has.

    `activations` are those among what it needs, None where there is no step.
    """

    needed: int
    available: int
    activations: Activations | None = None

    @property
    def fits(self) -> bool | None:
        """Whether they fit; None where that is not known."""
        return self.needed <= self.available if self.available else None

    @property
    def words(self) -> str:
        """Both as text: `needs 128 GB, and a GPU has 80 GB`."""
        has = units.format_size(self.available) if self.available else "nobody says how much"
        which = f"; {self.activations.words}" if self.activations else ""
        return f"needs {units.format_size(self.needed)}, and a GPU has {has}{which}"


def fit_of(memory: Memory, topology: Topology, names: Iterable[str]) -> MemoryFit:
    """Whether the smallest memory of these GPUs is enough."""
    return MemoryFit(memory.peak, device_memory(topology, names), memory.activations)


def device_memory(topology: Topology, names: Iterable[str]) -> int:
    """Bytes of the smallest memory of these GPUs; 0 if that of one is not known."""
    return min((topology.nodes[name].memory for name in names), default=0)


def least_memory(
    method: str,
    model: Model,
    sharding: Sharding,
    ranks: int,
    activations: Activations = UNCOUNTED,
) -> Memory:
    """Return a lower bound of a GPU's memory with a method, without a simulation.

    It counts parameters, gradients and optimizer states, where `ranks` GPUs share one copy; the
    least that a pass gathers and has to reduce; and `activations`. A simulated step holds no less.
    """
    if method == DDP:
        found = replicated_memory(model.workload, sharding)
    else:
        listed = {g.dtype for layer in model.layers for g in layer.gradients}
        param, reduce = sharding.wire(min(listed, default=0))
        shared = wrap(model, sharding.units)
        found = Shares(method, shared, ranks, param, reduce, sharding.optimizer).least
    return found.plus(activations)


def nearest_fit(step: StepQuestion, topology: Topology, ranks: Iterable[str],
                methods: Iterable[str]) -> str:  # fmt: skip
    """The change of a step with which a GPU has enough memory, in the words of a scenario.

    Another of `methods` counts as nearer than half of the batch in twice as many passes. Return ""
    where neither is enough, or where nobody says how much memory there is.
    """
    job, names, listed = step.job, [*ranks], [*methods]
    have = device_memory(topology, names)
    for halved in range(job.batch.bit_length()):
        batch = job.batch >> halved
        activations = step.activations.rescale(job.batch, batch)
        for method in listed:
            memory = least_memory(
                method, job.model, step.sharding or Sharding(), len(names), activations
            )
            fit = MemoryFit(memory.peak, have, activations)
            if fit.fits:
                passes = f"batch = {batch}, accumulate = {job.accumulate << halved}, "
                return f'{passes * bool(halved)}method = "{method}" {fit.words}'
    return ""
