"""TensorFlow's own all-reduces, checked and timed like our plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Contract, Plan, PlanBuilder
from simreduce.planners.strategy import parse_strategy

BUILTINS: Mapping[str, str] = {
    "HierarchicalCopyAllReduce": "hierarchical_copy",
    "ReductionToOneDevice": "reduce_to_one",
    "NcclAllReduce": "nccl",
    "CollectiveReduceV2": "collective",
    "CollectiveReduceV2:nccl": "nccl",
    "MultiWorkerMirroredStrategy": "collective",
    "SyncReplicasOptimizer": "reduce_to_one+mean",
}
"""By name, our strategy that stands for it: what a prediction is made from. An odd number of
devices is too much for upstream's hierarchical copy, which forgets the last. The last two are a
process per rank, of a cluster. SyncReplicasOptimizer's variables are
on rank 0, so that an update moves what `reduce_to_one` does; the tokens are not in it, nor that
accumulators add one by one.
"""

COLLECTIVE = "CollectiveReduceV2"
"""The runtime's own ring."""

NCCL, NCCL_COLLECTIVE = "NcclAllReduce", "CollectiveReduceV2:nccl"
"""Those that call NCCL, which takes physical GPUs only. The first is what runs where the strategy
`nccl` is measured; the second is the collective of `MirroredStrategy`.
"""

MULTI_WORKER, SYNC_REPLICAS = "MultiWorkerMirroredStrategy", "SyncReplicasOptimizer"
"""Those for which every rank runs a program of its own."""


@dataclass(frozen=True, slots=True)
class Builtin:
    """An all-reduce among the first `ranks` devices, of gradients with these `elements`."""

    name: str
    elements: tuple[int, ...]
    ranks: int
    dtype: int = 0

    @property
    def mean(self) -> bool:
        """Whether it divides by the number of ranks."""
        return parse_strategy(BUILTINS[self.name]).mean

    def plan(self, devices: Sequence[str]) -> Plan:
        """Its inputs and results as a plan of INPUTs, OUTPUTs and a contract, without ops
        between.
        """
        b, intervals, lo = PlanBuilder(devices), [], 0
        for count in self.elements:
            intervals.append((lo, lo + count, self.dtype))
            lo += count
        for interval in intervals:
            for rank in range(self.ranks):
                b.output(b.input(rank, *interval))
        return b.finish(
            Contract.all_reduce(range(self.ranks), intervals, self.ranks if self.mean else 1)
        )


def check_builtin(name: str) -> str:
    """The name of one; InputError names the nearest."""
    if name not in BUILTINS:
        raise InputError(
            f"--builtin: unknown {name!r}{did_you_mean(name, BUILTINS)}; one of "
            f"{', '.join(BUILTINS)}"
        )
    return name
