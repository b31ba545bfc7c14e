"""A system that takes settings: all that the package knows of it, as one value.

A `MeshProgram` is one that trains on meshes: what it lacks, and its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from simreduce.errors import InputError
from simreduce.export.choice import REPLICATED, Choice, holding
from simreduce.workload import Workload

if TYPE_CHECKING:
    from simreduce.training.mesh.job import MeshJob

MeshedJob: TypeAlias = "MeshJob"
"""What a program trains; only type checkers load it, as a bench trains nothing."""

ORDER = "tp-cp-ep-dp-pp"
"""The order in which programs lay ranks, unless they are told."""


@dataclass(frozen=True, slots=True)
class MeshProgram:
    """A program that trains on meshes.

    It has a `title` in sentences, and writes the `files` of a mesh. It knows `schedules`, `orders`
    of ranks and ways to split layers into stages; `limits` say with its title what else it lacks,
    and whether a mesh asks for that.
    """

    title: str
    files: Callable[[MeshedJob], Mapping[str, str]]
    limits: Callable[[str, MeshedJob], Mapping[str, bool]]
    schedules: tuple[str, ...] = ("1f1b", "interleaved")
    orders: tuple[str, ...] = (ORDER,)
    splits: tuple[str, ...] = ("even",)

    def why_not(self, job: MeshedJob) -> list[str]:
        """Why it cannot run a mesh; nothing if it can."""
        title, order = self.title, job.mesh.order
        return holding(
            {
                f"{title} has NCCL sum activations, not {job.tensor_all_reduce}": (
                    job.tensor_all_reduce != "nccl"
                ),
                f"{title} has no schedule {job.schedule}; it has {', '.join(self.schedules)}": (
                    job.mesh.pp > 1 and job.schedule not in self.schedules
                ),
                f"{title} does not lie ranks as {order}; it takes {' or '.join(self.orders)}": (
                    order not in self.orders
                ),
                f"{title} splits layers evenly, not as listed": job.splitting not in self.splits,
                **self.limits(title, job),
            }
        )

    def export(self, job: MeshedJob) -> Mapping[str, str]:
        """The files of a mesh by name. InputError with the reasons why there are none."""
        if problems := self.why_not(job):
            raise InputError(problems)
        return self.files(job)


def unwritten(title: str, job: MeshedJob, *, dispatch: bool = True) -> dict[str, bool]:
    """That settings of CUDA graphs, and of what moves tokens unless `dispatch` is false, are not
    written for a program.
    """
    what = ["cuda_graphs"] * bool(job.graphs) + ["dispatch"] * (
        dispatch and job.dispatch == "deepep"
    )
    return {f"settings of {' and '.join(what)} are not written for {title}": bool(what)}


Knobs = Mapping[str, Sequence[object]]
"""Settings of shards by PyTorch's names, with the values that are tried, the defaults first."""


def no_files(_: Choice) -> Mapping[str, str]:
    """The files of a system that is not told strategies."""
    return {}


@dataclass(frozen=True, slots=True)
class Framework:
    """A system that takes settings; what does not hold for it keeps its default here.

    Commands take its `name`; sentences have its `title`. It says why it has no setting for a choice
    (`refusals`), the strategies near to one that it may have settings for, the `nearest` first, and
    the `files` that set it to one. A program that trains on meshes has its settings in `mesh`. What
    `starts_ranks` takes an order of nodes, whatever strategy runs on them.

    Unless it is told, it runs the strategy of `default`, "" if that is not known, which sentences
    call `default_words` or else its defaults. `switches` says by strategy what has small tensors go
    by it; what does not train (`trains`) has no other strategies. Of a framework that was
    `published` (the year of its paper or release), jobs are advised that name no framework.
    `has_typed` says that `StrategySettings` has what to type for it, where upstream makes the same
    plan.

    `tune` tries `packings` besides the default's, each with the bytes of a bucket, where NCCL runs
    the reductions, and those in half precision too if `half` says so. What does not pack (`packs`)
    has the packings and shards of the scenario. `by_plans` says that whole plans of all algorithms
    are searched, `modes` that there are tf_cnn_benchmarks' modes with variables on servers,
    `cycles` that a background thread has a cycle, `settled` that buffers are settled before a step.

    It has the `methods` of a step, and those that are `named` if the scenario names them. `knobs`
    are the settings of shards, `unit` the elements of a unit by default, 0 for blocks. One in
    `coarser` sizes of units is tried, in eight where units have other rules too.
    """

    name: str
    title: str
    files: Callable[[Choice], Mapping[str, str]] = no_files
    refusals: Callable[[Choice], list[str]] = lambda _: []
    nearest: Callable[[Choice], list[str]] = lambda _: []
    mesh: MeshProgram | None = None
    starts_ranks: bool = False

    default: Callable[[Choice], str] = lambda _: ""
    default_words: str = ""
    switches: Mapping[str, str] = field(default_factory=dict)
    trains: bool = True
    published: int = 0
    has_typed: bool = False

    packings: Callable[[Workload], list[tuple[str, int]]] | None = None
    half: bool = False
    packs: bool = True
    by_plans: bool = False
    modes: bool = False
    cycles: bool = False
    settled: bool = False

    methods: tuple[str, ...] = (REPLICATED,)
    named: tuple[str, ...] = ()
    knobs: Knobs = field(default_factory=dict)
    unit: int = 0
    coarser: int = 0

    @property
    def tried(self) -> tuple[str, ...]:
        """The strategies of which it gets the fastest where nobody names one."""
        return () if self.trains else tuple(self.switches)
