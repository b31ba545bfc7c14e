"""Reduction algorithms, one idea a file. Adding one is a file and a line in `ALGORITHMS` or in
`families.FAMILIES`.

A planner is a function `(builder, layout, tensors, options) -> results` (see `planner`). What the
devices at hand or the shard count do not allow is a `StrategyError` that says what would be. A
planner sees a `Layout`: devices, tasks, which pairs are linked. It knows no bandwidth and no time.
A family gives collectives over groups of devices (see `planner`); every one of them is an algorithm
too, and any two make a two-level algorithm `inner/outer`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from simreduce.computing import workers
from simreduce.errors import NotFoldable, OptionNotTaken, StrategyError, did_you_mean, quote
from simreduce.plan import PlanBuilder
from simreduce.planners.algorithms import kernels, nccl, trees, trees as relay
from simreduce.planners.algorithms.families import (
    FAMILIES,
    blueconnect,
    fits,
    planner as planner_of,
    two_level,
)
from simreduce.planners.algorithms.kernels import in_switch
from simreduce.planners.algorithms.nccl import nccl_pscpu, nccl_rechd, nccl_xring
from simreduce.planners.algorithms.nccl.paths import BY_ENGINE, SYMMETRIC
from simreduce.planners.algorithms.planner import (
    NAMES,
    Choices,
    Options,
    Planner,
    Results,
    Tensors,
    guard,
    guard_choices,
    load_plugins,
    warn_of_unloaded,
    why_unloaded,
)
from simreduce.planners.algorithms.ring import best_ring, multi_ring
from simreduce.planners.algorithms.tensorflow import (
    collective,
    copy_to_cpu,
    copy_to_gpus,
    hierarchical_copy,
    hierarchical_copy_gcp_v100,
    pscpu,
    pscpu_pscpu,
    psgpu,
    reduce_to_one,
    xring,
)
from simreduce.planners.layouts import Layout
from simreduce.planners.synthesis import MOST_RANKS

PACKS = (0, 2, 4, 8, 16)
"""Numbers of packs tried; 0 is no packing. tf_cnn_benchmarks' own recipes use 2 and 8."""

LIBRARY_PACKS = (0, 1, 8)
"""The same for what libraries run: on whole buffers, as Horovod fuses them and DDP buckets them."""


_MOST_RELAYED = 16
"""GPUs up to which rankings try all-to-alls with relays, whose plans have paths for each pair."""


def _one(_: Layout) -> Sequence[int]:
    return (1,)


def _where(holds: Callable[[Layout], bool]) -> Choices:
    """One shard on layouts of which that holds; others are not worth trying."""
    return lambda layout: (1,) if holds(layout) else ()


# With one task there is nothing to cross: only detours are left.
_ACROSS = _where(lambda layout: len(layout.tasks) > 1)
_ACROSS_ALIKE = _where(lambda layout: len({*map(len, layout.tasks)}) == 1 < len(layout.tasks))
_JOINED = _where(lambda layout: len(layout.tasks) == 1 and layout.joined)
_SEARCHED = _where(lambda layout: layout.n <= MOST_RANKS)
_SUMMED = _where(lambda layout: bool(layout.reducers))


@dataclass(frozen=True, slots=True)
class Algorithm:
    """A planner with what the command line says about it.

    `shards` is the meaning of `#k`, "" if it has none; `choices` gives the shard counts worth
    trying on a layout. `pipelined` says whether it cuts what it sends into chunks. `packs` are the
    numbers of packs worth trying, 0 for no packing. `symmetric` says whether it does the same on
    every of a number of equal machines, so that they can be folded. `quirks` says whether upstream
    may do something else (`Options.faithful`). `kernel` says that kernels on GPUs do all of it, no
    copies of a framework.
    """

    name: str
    plan: Planner
    summary: str
    shards: str = ""
    choices: Choices = _one
    pipelined: bool = False
    packs: Sequence[int] = PACKS
    symmetric: bool = False
    quirks: bool = False
    kernel: bool = False

    def reduce(self, b: PlanBuilder, layout: Layout, tensors: Tensors, options: Options) -> Results:
        """Plan the collective of every tensor over all ranks."""
        for refused, why in (
            (options.shards != 1 and not self.shards, f"{self.name} takes no shards"),
            (options.shards < 1 and not options.faithful, "the number of shards is 1 or more"),
            (options.chunk and not self.pipelined,
             f"{self.name} sends no chunks; leave out +chunk"),
        ):  # fmt: skip
            if refused:
                raise OptionNotTaken(why)
        if layout.machines > 1 and not self.symmetric:
            raise NotFoldable(
                f"{self.name} does not do the same on each of the {layout.machines} equal "
                "machines, so that one of them could "
                "stand for all; those that do: "
                f"{', '.join(f.name for f in FAMILIES.values() if f.symmetric)}, and inner/outer "
                "with one of them as the outer"
            )
        return self.plan(b, layout, tensors, options)


def _trees(plan: Planner) -> Algorithm:
    summary = "trees that share the links at hand best"
    return Algorithm("trees", plan, summary, choices=_SEARCHED, pipelined=True, packs=LIBRARY_PACKS)


_IN_PARTS: Mapping[str, Sequence[str]] = {
    "reduce_scatter": ("ring", "direct"),
    "all_gather": ("ring", "direct"),
}
"""Families that are symmetric in collectives besides all-reduces; NCCL's rings are too."""


_WHERE = {
    "nvls": _SUMMED,
    "nvlstree": _SUMMED,
    "collnet": _where(
        lambda layout: len(layout.tasks) > 1 and not all(each.heads for each in layout.reducers)
    ),
    "pat": _where(lambda layout: len(layout.tasks) == layout.n > 1),
    "allpairs": _JOINED,
}
"""Where the algorithms of NCCL that not every machine has are worth trying."""


def _nccl(collective: str, **algorithms: str) -> tuple[Algorithm, ...]:
    """NCCL as it chooses by itself, then by each of its algorithms, which rankings do not try."""
    folds = collective == "all_reduce" or collective in _IN_PARTS
    bare = Algorithm(
        "nccl",
        nccl.planner(collective),
        "NCCL, as it chooses by itself",
        "ignored" if collective == "all_reduce" else "",
        symmetric=folds,
    )
    return bare, *(
        Algorithm(
            f"nccl:{name}",
            nccl.planner(collective, name),
            f"NCCL's {words}",
            choices=_WHERE.get(name, _one),
            packs=(),
            symmetric=folds and name == "ring",
        )
        for name, words in algorithms.items()
    )


def _kernel(name: str, run: kernels.Run, summary: str, most: int = kernels.MOST_GPUS) -> Algorithm:
    """A kernel on every GPU, which rankings do not try: an application calls it, not a framework's
    setting.
    """
    plan = kernels.planner(run, most)
    return Algorithm(name, plan, summary, choices=_JOINED, packs=(), kernel=True)


def _engine(collective: str) -> Algorithm:
    """NCCL's copies by copy engines."""
    summary = "NCCL's copies by copy engines, without SMs"
    run = kernels.as_nccl(collective, BY_ENGINE)
    return _kernel("symmetric:engine", run, summary, kernels.MOST_BY_ENGINES)


def _symmetric(collective: str) -> tuple[Algorithm, ...]:
    """NCCL's symmetric kernels as it chooses among them, then each."""
    titles = {"": "symmetric kernels, as it chooses"}
    titles |= {name: each.title for name, each in kernels.SYMMETRIC_KERNELS[collective].items()}
    return tuple(
        _kernel(
            f"{SYMMETRIC}:{name}".rstrip(":"),
            kernels.as_nccl(collective, SYMMETRIC, name),
            f"NCCL's {title}",
            kernels.MOST_SYMMETRIC,
        )
        for name, title in titles.items()
    )


_PAT = "parallel aggregated trees, over machines with one GPU each"

# fmt: off
_TABLE = (
    *_nccl("all_reduce", ring="rings", tree="chains and double binary trees",
           nvls="switches that sum and multicast",
           nvlstree="switches that sum, and trees across",
           collnet="switches of the network that sum (CollNet, SHARP)",
           allpairs="sends from each GPU to each, by kernels of MSCCL in RCCL"),
    Algorithm("nccl/xring", nccl_xring, "NCCL in every task, a ring across",
              "1 only, with several tasks", _ACROSS, quirks=True),
    Algorithm("nccl/rechd", nccl_rechd, "NCCL in every task, halving-doubling across", "ignored",
              _ACROSS, quirks=True),
    Algorithm("nccl/pscpu", nccl_pscpu, "NCCL in every task, a shuffle on the CPUs across",
              "ignored", _ACROSS, quirks=True),
    Algorithm("xring", xring, "tf_cnn_benchmarks' ring over all GPUs", "sub-chunks of a segment",
              # In one task the rings of all sub-chunks are rotations of one list on the same links.
              lambda layout: (1,) if len(layout.tasks) == 1 else (1, 2)),
    Algorithm("pscpu", pscpu, "sums shards on the tasks' CPUs, a group of them per tensor",
              "CPUs per tensor"),
    Algorithm("psgpu", psgpu, "sums shards on the GPUs, a group of them per tensor",
              "GPUs per tensor",
              lambda layout: [1 << i for i in range(len(layout.ranks).bit_length())]),
    Algorithm("pscpu/pscpu", pscpu_pscpu, "sums on every task's CPU, then a shuffle",
              "CPUs that sum across", _ACROSS, quirks=True),
    Algorithm("collective", collective, "TensorFlow's runtime ring", "rings, 1 or 2",
              lambda _: (1, 2)),
    Algorithm("hierarchical_copy", hierarchical_copy, "two quads and a bridge, made for the DGX-1",
              quirks=True),
    Algorithm(
        "hierarchical_copy_gcp_v100",
        hierarchical_copy_gcp_v100,
        "two quads and two bridges, made for GCP's machine with 8 V100",
        choices=_where(lambda layout: len(layout.ranks) == 8),
    ),
    Algorithm("copy_to_cpu", copy_to_cpu,
              "sums every tensor on the CPU, then copies it to every GPU"),
    Algorithm("copy_to_gpus", copy_to_gpus,
              "sums tensor i on GPU i mod n, then copies it to every GPU"),
    Algorithm("reduce_to_one", reduce_to_one,
              "sums every tensor on the first GPU, then copies it to every GPU"),
    Algorithm("in_switch", in_switch, "switches that can sum add what passes through them",
              choices=_SUMMED,
              pipelined=True, packs=LIBRARY_PACKS, kernel=True),
    _kernel("oneshot", kernels.ONE_SHOT.run, "one kernel reads everything from all GPUs, and adds"),
    _kernel("twoshot", kernels.TWO_SHOT.run,
            "one kernel reads and adds its part, then reads all sums"),
    _kernel("multimem", kernels.MULTIMEM.run,
            "one kernel has the NVSwitch sum on load, copy on store", kernels.MOST_SYMMETRIC),
    *_symmetric("all_reduce"),
    Algorithm("blueconnect", blueconnect, "rings level by level: in every task, then across",
              choices=_ACROSS_ALIKE,
              packs=LIBRARY_PACKS),
    Algorithm("best_ring", best_ring,
              "textbook ring in the order whose slowest hop is fastest", choices=_SEARCHED,
              packs=LIBRARY_PACKS),
    Algorithm("multi_ring", multi_ring, "rings that share the links at hand best",
              choices=_SEARCHED, packs=LIBRARY_PACKS),
    _trees(trees.all_reduce),
)

_OWN: Mapping[str, Sequence[Algorithm]] = {
    "all_reduce": _TABLE,
    "reduce_scatter": (*_nccl("reduce_scatter", ring="rings", pat=_PAT),
                       *_symmetric("reduce_scatter"),
                       _trees(trees.planner("reduce_scatter"))),
    "all_gather": (*_nccl("all_gather", ring="rings", pat=_PAT),
                   *_symmetric("all_gather"), _engine("all_gather"),
                   _trees(trees.planner("all_gather"))),
    "reduce": (*_nccl("reduce", ring="rings"), _trees(trees.planner("reduce"))),
    "broadcast": (*_nccl("broadcast", ring="rings"), _trees(trees.planner("broadcast"))),
    "all_to_all": (
        *_nccl("all_to_all"),
        _engine("all_to_all"),
        Algorithm("relay", relay.all_to_all, "parts go over other GPUs where that is faster",
                  choices=_where(lambda layout: 1 < layout.n <= _MOST_RELAYED),
                  pipelined=True, packs=LIBRARY_PACKS),
    ),
    "send_receive": _nccl("send_receive"),
}
# fmt: on


class Catalogue(dict[str, Algorithm]):
    """The algorithms of one collective by the name users type. All-reduces also have `inner/outer`
    for any two families that fit: it is found like any other but not listed, as there are too many.
    """

    def __init__(self, collective: str) -> None:
        super().__init__((algorithm.name, algorithm) for algorithm in _OWN[collective])
        self._paired = collective == "all_reduce"
        for name, family in FAMILIES.items():
            if function := getattr(family, collective):
                self[name] = Algorithm(
                    name,
                    planner_of(collective, function),
                    family.summary,
                    pipelined=family.pipelined,
                    packs=LIBRARY_PACKS,
                    symmetric=family.symmetric
                    and (self._paired or name in _IN_PARTS.get(collective, ())),
                )

    def __missing__(self, name: str) -> Algorithm:
        if name not in self:
            raise KeyError(name)
        inner, outer = (FAMILIES[part] for part in name.split("/"))
        return Algorithm(
            name,
            two_level(inner, outer),
            f"{inner.name} in every task, {outer.name} across",
            choices=_ACROSS,
            pipelined=True,
            packs=LIBRARY_PACKS,
            symmetric=outer.symmetric,
        )

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (
            isinstance(name, str) and "/" in name and name in self.pairs()
        )

    def pairs(self) -> list[str]:
        """Every `inner/outer`."""
        table = FAMILIES.values() if self._paired else ()
        return [
            f"{inner.name}/{outer.name}" for inner in table for outer in table if fits(inner, outer)
        ]

    def hint(self, name: str, others: Iterable[str] = ()) -> str:
        """Return what to type instead of an unknown name: the nearest one, or all known names.

        `others` count as known names too.
        """
        if why := why_unloaded(name):
            return f": {why}"
        known = [*self, *others]
        near = did_you_mean(name, [*known, *(self.pairs() if "/" in name else ())])
        pairs = "; any two families make inner/outer, as in ring/halving_doubling" * self._paired
        if near:
            return near
        warn_of_unloaded()
        return f"; known: {', '.join(known)}{pairs}"


COLLECTIVES: Mapping[str, Catalogue] = MappingProxyType({name: Catalogue(name) for name in NAMES})
"""By collective, every algorithm by the name users type."""

ALGORITHMS = COLLECTIVES["all_reduce"]
"""Every all-reduce by the name users type."""

KERNELS = ("oneshot", "twoshot", "multimem", "symmetric")
"""All-reduces by one kernel that reads and writes the memory of its peers."""

TWO_LEVEL = (
    "ring/ring",
    "ring/halving_doubling",
    "ring/double_tree",
    "chain/double_tree",
    "torus_2d/ring",
    "direct/ring",
    "direct/halving_doubling",
    "direct/direct",
    "direct/one_shot",
    "halving_doubling/halving_doubling",
)
"""The two-level algorithms worth trying on several machines: those with few messages for small
tensors, those in parts for large ones, `chain/double_tree` as NCCL's tree, and `torus_2d/...` for
the squares in a DGX-1.
"""


def algorithm(
    name: str,
    summary: str,
    *,
    collective: str = "all_reduce",
    shards: str = "",
    choices: Choices = _one,
    pipelined: bool = False,
    packs: Sequence[int] = PACKS,
) -> Callable[[Planner], Planner]:
    """Register the planner below it: `--algo NAME`, `compile("NAME", ...)` and rankings find it.

    `collective` is what the planner does; `Algorithm` describes the other arguments.
    Raises StrategyError if the name is taken or no name, TypeError unless the planner takes four
    arguments.
    """
    known = COLLECTIVES.get(collective)
    if known is None:
        raise StrategyError(
            f"{name}: unknown collective {collective!r}{did_you_mean(collective, NAMES)}"
        )
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise StrategyError(f"{name!r} is no name for an algorithm; letters, digits and _ make one")

    if any(not isinstance(each, int) or each < 0 for each in packs):
        raise TypeError(f"{name}: packs are whole numbers from 0, not {quote(packs)}")

    def register(planner: Planner) -> Planner:
        taken = known.get(name)
        if taken is not None and _place(taken.plan) != _place(planner):
            raise StrategyError(f"{name}: there is an algorithm of that name: {taken.summary}")
        try:
            inspect.signature(planner).bind(*_ARGUMENTS)
        except TypeError as error:
            raise TypeError(f"{name}: a planner takes ({', '.join(_ARGUMENTS)}): {error}") from None
        plan, counts = guard(planner, collective), guard_choices(choices)
        known[name] = Algorithm(name, plan, summary, shards, counts, pipelined, packs, quirks=True)
        workers.modules.add(planner.__module__)
        return planner

    return register


_NAME = re.compile(r"[a-z][a-z0-9_]*")
_RESERVED = ("all", "auto")
_ARGUMENTS = ("builder", "layout", "tensors", "options")


def _place(planner: Planner) -> tuple[object, object]:
    """Where a planner is defined: a notebook may define it again."""
    return getattr(planner, "__module__", None), getattr(planner, "__qualname__", planner)


__all__ = [
    "ALGORITHMS",
    "COLLECTIVES",
    "FAMILIES",
    "NAMES",
    "TWO_LEVEL",
    "Algorithm",
    "Options",
    "Planner",
    "Results",
    "Tensors",
    "algorithm",
    "warn_of_unloaded",
]

load_plugins()
