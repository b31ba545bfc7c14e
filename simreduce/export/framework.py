"""A system that takes settings: all that the package knows of it, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from simreduce.export.choice import REPLICATED, Choice
from simreduce.export.mesh_settings import MeshProgram
from simreduce.workload import Workload

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
