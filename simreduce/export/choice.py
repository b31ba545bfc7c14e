"""A strategy to export, for a workload on a machine, with what a training step adds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from simreduce import dtypes, units
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError, escape
from simreduce.files.formats import Faults
from simreduce.files.names import Name
from simreduce.planners.nccl import Facts, choose, facts
from simreduce.planners.nccl.tables import COLLECTIVES
from simreduce.planners.nccl.tuner_csv import Rule
from simreduce.planners.packing import Arrangement, Packer
from simreduce.planners.strategy import Strategy, resolve
from simreduce.version import __version__
from simreduce.workload import Workload

REPLICATED = "ddp"
"""The method in which every GPU has all parameters."""


class Shards(Protocol):
    """The settings of a sharded method, by PyTorch's names; dtypes by code, None for the listed."""

    @property
    def group(self) -> int:
        """Ranks that hold one copy of the shards; 0 for all ranks of a machine."""

    @property
    def units(self) -> str | int:
        """The rule by which layers are put together, "" for blocks or else layers."""

    @property
    def forward_prefetch(self) -> int:
        """Units that are gathered ahead besides the next."""

    @property
    def backward_prefetch(self) -> str:
        """`pre`, `post` or `none`."""

    @property
    def limit_all_gathers(self) -> int:
        """Freed units in use at most; 0 for no limit."""

    @property
    def reshard_after_forward(self) -> bool:
        """Whether parameters are freed after the forward pass."""

    @property
    def param_dtype(self) -> int | None:
        """Of all-gathers."""

    @property
    def reduce_dtype(self) -> int | None:
        """Of reductions."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting to hand over.

    `rules` choose NCCL's algorithm by size instead of the strategy, if there are any. `cycle` is
    the time between two runs of Horovod's background thread in seconds. A `method` other than
    `ddp` shards by `shards`, in units of at most `unit` elements; a step sums the gradients of
    `accumulate` passes, each of `batch` samples, 0 if that is not known. `hosts` are the names of
    the nodes in the order of ranks, if they have names, and `groups` number the switches that each
    is below.
    """

    setup: Setup
    workload: Workload
    strategy: Strategy
    rules: tuple[Rule, ...] = ()
    cycle: float | None = None
    method: str = REPLICATED
    shards: Shards | None = None
    unit: int = 0
    accumulate: int = 1
    batch: int = 0
    hosts: tuple[Name, ...] = ()
    groups: tuple[int, ...] = ()

    @property
    def resolved(self) -> Strategy:
        """The strategy that one of TensorFlow's rules chooses here, or the strategy itself."""
        return resolve(self.strategy, self.setup.layout)

    @property
    def facts(self) -> Facts:
        """The communicator in NCCL's terms."""
        part = self.setup.part
        gpus = part.ranks if part is not None and part.machines == 1 else ()
        return facts(self.setup.machine, gpus, self.setup.nccl)

    @property
    def title(self) -> str:
        """The first comment of a file, in a line that ends no docstring."""
        ranks = units.plural(self.setup.layout.n, "rank")
        method = "" if self.method == REPLICATED else f"{self.method}, "
        what = f"{method}{self.strategy.text} for {self.workload.name}"
        text = f"simreduce {__version__}: {what} on {self.setup.machine.name}, {ranks}"
        return escape(text.translate({ord('"'): "'", ord("\\"): "/", ord("\n"): " "}))

    @property
    def width(self) -> int:
        """Bytes of an element of the first gradient."""
        return dtypes.SIZES[self.workload.gradients[0].dtype]

    @property
    def is_uniform(self) -> bool:
        """Whether all gradients have one dtype."""
        return len({gradient.dtype for gradient in self.workload.gradients}) == 1

    def arrange(self, packer: Packer) -> Arrangement | None:
        """Return a packer's arrangement of the gradients; None if it refuses them."""
        try:
            return packer.arrange(self.workload.gradients)
        except StrategyError:
            return None

    def packs_alike(self, packer: Packer) -> bool:
        """Whether another packer makes the same packs as the strategy, in the same order."""
        own, other = self.arrange(self.resolved.packer), self.arrange(packer)
        return own is not None and other is not None and _packs(own) == _packs(other)


def _packs(arrangement: Arrangement) -> tuple[object, int, int | None]:
    """Return the tensors that travel together, in order; tensors that travel alone have none."""
    groups = [frozenset(group) for group in arrangement.groups]
    alone = all(len(group) == 1 for group in groups)
    return set(groups) if alone else groups, arrangement.pieces, arrangement.wire


def not_by_nccl(choice: Choice) -> list[str]:
    """Why NCCL alone does not carry a choice out on its machine; empty if it does."""
    strategy = choice.resolved
    names = [r.algorithm.partition(":") for r in strategy.ranges]
    foreign = ["".join(name) for name in names if name[0] != "nccl"]
    if foreign:
        return [
            f"NCCL has no {' and no '.join(dict.fromkeys(foreign))}; it has ring, tree and NVLS"
        ]
    if strategy.collective not in COLLECTIVES:
        return []
    faults = Faults()
    for _, _, algorithm in names:
        faults.attempt(
            "", choose, choice.facts, strategy.collective, 1 << 20, choice.setup.nccl,
            algorithm=algorithm, protocol=strategy.nccl.protocol,
        )  # fmt: skip
    return faults.problems


def like_nccl(choice: Choice, packings: Sequence[str]) -> list[str]:
    """The choice's algorithms, if NCCL runs them, then NCCL's own, each with these packings."""
    own = "nccl" if not_by_nccl(choice) else choice.resolved.spec
    return [f"{spec}{packing}" for spec in dict.fromkeys((own, "nccl")) for packing in packings]


def not_gradients(choice: Choice, what: str) -> list[str]:
    """That a target does nothing but all-reduces of gradients, if the choice is something else."""
    if choice.strategy.collective != "all_reduce":
        return [f"{what} reduces gradients, and this is {choice.strategy.collective}"]
    if choice.method != REPLICATED:
        return [f"{what} shards nothing, and this is {choice.method}"]
    return []


def size_text(nbytes: int) -> str:
    """A size as strategies spell it: `25MiB`."""
    return f"{nbytes >> 20}MiB" if nbytes and not nbytes % (1 << 20) else str(nbytes)
