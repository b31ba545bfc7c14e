"""Proofs of many plans.

They are of every algorithm, packer and variable-update mode, over device counts and sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from simreduce.computing import grouped
from simreduce.computing.workers import working
from simreduce.errors import OptionNotTaken, StrategyError
from simreduce.plan import Plan, verify
from simreduce.planners.algorithms import (
    ALGORITHMS,
    COLLECTIVES,
    TWO_LEVEL,
    Algorithm,
    warn_of_unloaded,
)
from simreduce.planners.layouts import Layout, Reducer, layout
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_collective
from simreduce.study.tune.rank import COMMON
from simreduce.study.tune.sizes import ROOTED
from simreduce.topology import load_topology
from simreduce.training.variable_update import MODES, Flags, variable_update
from simreduce.workload import Gradient, Workload

RANKS = (*range(1, 18), 24, 32, 64)
TASKS = (1, 2, 4)
COUNTS = (1, 7, 64, 1000)
MOST_LINKED, MOST_IN_ALL = 17, 32
REAL = ("dgx1v", "dgx1p")
"""Machines with links of several lanes and pairs without a link, for algorithms that see links."""
ON_LINKS = ("nccl", "collective#2", "hierarchical_copy+packs=8")
BY_NCCL = ("nccl:ring+ll128+channels=5", "nccl:tree+ll+channels=5", "nccl:nvls+channels=16")
"""Programs of NCCL, on any machine."""
ACROSS = ("nccl:tree+channels=32", "nccl:nvlstree+channels=16", "nccl:ring+channels=16")
"""Programs of NCCL across machines with a NIC for each GPU and switches that sum."""
SUMMED = ("dgx-h100x3,fabric=rail_optimised,reduce=yes", "dgx1vx3,fabric=rail_only,reduce=yes")
"""Machines for CollNet: 3 with 8 GPUs each, and switches that sum between them."""
ONE_EACH = "nccl:pat"
"""An algorithm for machines with one GPU each."""
CHUNK = 100
"""Bytes of a chunk: most of `COUNTS` make several chunks and a shorter last one."""
MOST_RANKS = 512
"""Upper limit of GPUs on the command line: plans grow with their square."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of one strategy on `ranks` GPUs in `tasks` machines.

    `plans` is how many plans were checked. `refused` gives the reason for each gradient list that
    the strategy refuses.
    """

    strategy: str
    ranks: int
    tasks: int
    plans: int
    problems: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    collective: str = "all_reduce"


@dataclass(frozen=True, slots=True)
class ProofCase:
    """A strategy to prove, or if `is_mode` a variable-update mode.

    It runs on `machines(ranks, tasks)`, or on the shipped `machine` if one is named.
    """

    text: str
    ranks: int
    tasks: int = 1
    collective: str = "all_reduce"
    root: int = 0
    machine: str = ""
    is_mode: bool = False
    faithful: bool = False

    def prove(self, counts: Sequence[int]) -> Proof:
        """The proof, for one gradient of each of `counts` elements, and for all of them together.

        StrategyError if the text cannot be read, or has an option that its algorithm never takes.
        """
        shape = (
            layout(load_topology(self.machine))
            if self.machine
            else machines(self.ranks, self.tasks)
        )
        if self.is_mode:
            flags = Flags(all_reduce_spec="xring" if self.text == "distributed_all_reduce" else "")
            build = partial(variable_update, self.text, layout=shape, flags=flags)
            return _proof(f"--variable_update={self.text}", shape, counts, build)
        strategy = parse_strategy(self.text, self.collective)
        build = partial(
            compile_collective, self.collective, strategy, layout=shape, root=self.root,
            faithful=self.faithful,
        )  # fmt: skip
        rooted = self.collective in ROOTED
        proof = _proof(
            f"{strategy.text}, root {self.root}" if rooted else strategy.text, shape, counts, build
        )
        return replace(
            proof,
            collective=self.collective,
            refused=tuple(reason.replace(f"{strategy.text}: ", "") for reason in proof.refused),
        )

    @property
    def search(self) -> tuple[str, int, int, str]:
        """Equal for cases whose planners search the same graph, which one process does once."""
        name = re.split(r"[#+:]", self.text)[0]
        return (
            self.machine,
            self.ranks,
            self.tasks,
            "rings" if name in ("best_ring", "multi_ring") else name,
        )


@lru_cache(maxsize=64)
def machines(ranks: int, tasks: int) -> Layout:
    """`tasks` machines with a CPU and equally many GPUs each.

    A switch links all GPUs and can sum. ValueError unless `tasks` divides `ranks`.

    Every two GPUs of a machine are linked, for at most `MOST_LINKED` in a machine and `MOST_IN_ALL`
    in all: more rings prove nothing new, and the search for trees takes many minutes.
    """
    if tasks < 1 or ranks % tasks:
        raise ValueError(f"{ranks} GPUs cannot be shared evenly by {tasks} machines")
    each = ranks // tasks
    linked = each <= MOST_LINKED and ranks <= MOST_IN_ALL
    return Layout(
        ranks=tuple(f"n{t}.gpu{g}" for t in range(tasks) for g in range(each)),
        tasks=tuple(tuple(range(t * each, (t + 1) * each)) for t in range(tasks)),
        hosts=tuple(f"n{t}.cpu0" for t in range(tasks)),
        links=tuple(
            tuple(int(linked and a != b and a // each == b // each) for b in range(ranks))
            for a in range(ranks)
        ),
        reducers=(Reducer("switch0", tuple(range(ranks)), ()),),
    )


def _proof(
    name: str, shape: Layout, counts: Sequence[int], build: Callable[[Workload], Plan]
) -> Proof:
    lists: list[tuple[Gradient, ...]] = [(Gradient("gradient", count),) for count in counts]
    if len(counts) > 1:
        lists.append(tuple(Gradient(f"gradient{i}", count) for i, count in enumerate(counts)))
    plans, problems, refused = 0, [], []
    for gradients in lists:
        try:
            plan = build(Workload("proof", gradients))
        except OptionNotTaken:
            raise
        except StrategyError as error:
            refused.append("; ".join(error.problems))
            continue
        plans += 1
        sizes = "+".join(str(g.elements) for g in gradients)
        problems += [f"{sizes} elements: {problem}" for problem in verify(plan)]
    return Proof(name, shape.n, len(shape.tasks), plans, tuple(problems), tuple(refused))


def prove_all(
    cases: Sequence[ProofCase], counts: Sequence[int], workers: int = 1
) -> Generator[tuple[int, Proof], None, None]:
    """Yield the place of each case in `cases` and its proof, in any order.

    `workers` processes make them, which end when the generator is closed.
    """
    alike = grouped((case.search, place) for place, case in enumerate(cases))
    # The largest first, so that no process is left alone with one of them at the end.
    batches = sorted(alike.values(), key=lambda places: -cases[places[0]].ranks)
    if workers == 1:
        batches = [[place] for places in batches for place in places]
    with working(partial(_prove_batch, counts), workers) as work_on:
        for number, proofs in work_on([[cases[place] for place in batch] for batch in batches]):
            yield from zip(batches[number], proofs, strict=True)


def _prove_batch(counts: Sequence[int], cases: Sequence[ProofCase]) -> list[Proof]:
    return [case.prove(counts) for case in cases]


def everything() -> list[ProofCase]:
    """All cases that `verify --all` proves.

    These are every algorithm, `TWO_LEVEL` pairs included, with every shard count it would try,
    alone, in 3 packs and, if pipelined, in chunks; every packer; every variable-update mode; and
    every algorithm of the other collectives, with the first and the last rank as root.
    """
    warn_of_unloaded()
    shapes = [(ranks, tasks) for ranks in RANKS for tasks in TASKS if ranks % tasks == 0]
    cases = []
    for algorithm in (*ALGORITHMS.values(), *(ALGORITHMS[pair] for pair in TWO_LEVEL)):
        for ranks, tasks in shapes:
            choices = set(algorithm.choices(machines(ranks, tasks)))
            for shards in sorted(choices | {2} if choices and algorithm.shards else choices):
                spec = algorithm.name if shards == 1 else f"{algorithm.name}#{shards}"
                options = ("", "+packs=3", *([f"+chunk={CHUNK}"] if algorithm.pipelined else []))
                cases += [ProofCase(spec + option, ranks, tasks) for option in options]
    real = {machine: layout(load_topology(machine)).n for machine in REAL}
    others = [name for name in COLLECTIVES if name != "all_reduce"]
    return [
        *cases,
        *(ProofCase(text, *shape) for text in BY_NCCL for shape in shapes),
        *(ProofCase(text, 24, 3, machine="dgx-h100x3") for text in ACROSS),
        *(ProofCase("nccl:collnet+channels=16", 24, 3, machine=machine) for machine in SUMMED),
        *(ProofCase(name, n, machine=machine) for machine, n in real.items() for name in ON_LINKS),
        *(ProofCase(text, *shape) for text in COMMON for shape in shapes),
        *(ProofCase(mode, *shape, is_mode=True) for mode in MODES for shape in shapes),
        *(case for name in others for case in _cases_of(name, COLLECTIVES[name].values())),
    ]


def _cases_of(collective: str, algorithms: Iterable[Algorithm]) -> list[ProofCase]:
    return [
        ProofCase(text, ranks, ranks if algorithm.name == ONE_EACH else 1, collective, root)
        for algorithm in algorithms
        for text in (
            algorithm.name,
            *([f"{algorithm.name}+chunk={CHUNK}"] if algorithm.pipelined else []),
        )
        for ranks in RANKS
        for root in (sorted({0, ranks - 1}) if collective in ROOTED else (0,))
    ]
