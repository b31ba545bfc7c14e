"""Proofs of many plans: every algorithm, packer and variable-update mode, over device counts and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from simreduce.algorithms import ALGORITHMS
from simreduce.errors import StrategyError
from simreduce.layouts import Layout, layout
from simreduce.plan import Plan, verify
from simreduce.strategy import compile_plan, parse_strategy
from simreduce.topology import load_topology
from simreduce.tune.candidates import COMMON
from simreduce.variable_update import MODES, Flags, variable_update
from simreduce.workload import Gradient, Workload

RANKS = (*range(1, 18), 24, 32, 64)
TASKS = (1, 2, 4)
COUNTS = (1, 7, 64, 1000)
MOST_LINKED = 17
REAL = ("dgx1v", "dgx1p")
"""Machines with links of several lanes, and pairs without a link, for the algorithms that look at links."""
ON_LINKS = ("nccl", "collective#2", "hierarchical_copy+packs=8")
MOST_RANKS = 512
"""GPUs that the command line proves: plans grow with their square."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found of one strategy on `ranks` GPUs in `tasks` machines.

    `plans` were checked. `refused` says why it takes some or, if `plans` is 0, all of the gradient lists not.
    """

    strategy: str
    ranks: int
    tasks: int
    plans: int
    problems: tuple[str, ...] = ()
    refused: str = ""


def machines(ranks: int, tasks: int) -> Layout:
    """`tasks` machines of equally many GPUs and a CPU each. ValueError unless `tasks` divides `ranks`.

    Every two GPUs of a machine are linked, up to `MOST_LINKED` of them: more rings prove nothing new.
    """
    if tasks < 1 or ranks % tasks:
        raise ValueError(f"{ranks} GPUs cannot be shared evenly by {tasks} machines")
    each = ranks // tasks
    linked = each <= MOST_LINKED
    return Layout(
        ranks=tuple(f"n{t}.gpu{g}" for t in range(tasks) for g in range(each)),
        tasks=tuple(tuple(range(t * each, (t + 1) * each)) for t in range(tasks)),
        hosts=tuple(f"n{t}.cpu0" for t in range(tasks)),
        links=tuple(
            tuple(int(linked and a != b and a // each == b // each) for b in range(ranks))
            for a in range(ranks)
        ),
    )


def prove(text: str, ranks: int, counts: Sequence[int], tasks: int = 1, *, faithful: bool = False) -> Proof:
    """Compile and verify `text` for gradient lists made of `counts` elements each, and of all of them together.

    StrategyError if the text cannot be read.
    """
    return _prove_on(text, machines(ranks, tasks), counts, faithful=faithful)


def _prove_on(text: str, shape: Layout, counts: Sequence[int], *, faithful: bool) -> Proof:
    strategy = parse_strategy(text)
    return _proof(
        text, shape, counts, lambda workload: compile_plan(strategy, workload, shape, faithful=faithful)
    )


def _proof(name: str, shape: Layout, counts: Sequence[int], build: Callable[[Workload], Plan]) -> Proof:
    lists: list[tuple[Gradient, ...]] = [(Gradient("gradient", count),) for count in counts]
    if len(counts) > 1:
        lists.append(tuple(Gradient(f"gradient{i}", count) for i, count in enumerate(counts)))
    plans, problems, refused = 0, [], ""
    for gradients in lists:
        try:
            plan = build(Workload("proof", gradients))
        except StrategyError as error:
            refused = "; ".join(error.problems)
            continue
        plans += 1
        sizes = "+".join(str(g.elements) for g in gradients)
        problems += [f"{sizes} elements: {problem}" for problem in verify(plan)]
    return Proof(name, shape.n, len(shape.tasks), plans, tuple(problems), refused)


def prove_all(counts: Sequence[int]) -> Iterator[Proof]:
    """Every algorithm with every shard count that it would try, alone and in 3 packs; every packer; every mode."""
    shapes = [(ranks, tasks) for ranks in RANKS for tasks in TASKS if ranks % tasks == 0]
    for algorithm in ALGORITHMS.values():
        for ranks, tasks in shapes:
            choices = set(algorithm.choices(machines(ranks, tasks)))
            for shards in sorted(choices | {2} if choices and algorithm.shards else choices):
                spec = algorithm.name if shards == 1 else f"{algorithm.name}#{shards}"
                yield prove(spec, ranks, counts, tasks)
                yield prove(f"{spec}+packs=3", ranks, counts, tasks)
    for machine in REAL:
        shape = layout(load_topology(machine))
        for name in ON_LINKS:
            yield _prove_on(name, shape, counts, faithful=False)
    for text in COMMON:
        for ranks, tasks in shapes:
            yield prove(text, ranks, counts, tasks)
    for mode in MODES:
        for ranks, tasks in shapes:
            yield _prove_mode(mode, machines(ranks, tasks), counts)


def _prove_mode(mode: str, shape: Layout, counts: Sequence[int]) -> Proof:
    flags = Flags(all_reduce_spec="xring" if mode == "distributed_all_reduce" else "")
    return _proof(
        f"--variable_update={mode}",
        shape,
        counts,
        lambda workload: variable_update(mode, workload, shape, flags),
    )
