"""Proofs of many plans: every algorithm, packer and variable-update mode, over device counts and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from simreduce.algorithms import ALGORITHMS, COLLECTIVES, TWO_LEVEL, Algorithm
from simreduce.errors import OptionNotTaken, StrategyError
from simreduce.layouts import Layout, Reducer, layout
from simreduce.plan import Plan, verify
from simreduce.strategy import Strategy, compile_collective, parse_strategy
from simreduce.topology import load_topology
from simreduce.tune.bench import ROOTED
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
CHUNK = 100
"""Bytes of a chunk: several of them, and a shorter last one, for most of `COUNTS`."""
MOST_RANKS = 512
"""GPUs that the command line proves: plans grow with their square."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found of one strategy on `ranks` GPUs in `tasks` machines.

    `plans` were checked. `refused` says why it does not take other gradient lists, once for each of them.
    """

    strategy: str
    ranks: int
    tasks: int
    plans: int
    problems: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    collective: str = "all_reduce"


def machines(ranks: int, tasks: int) -> Layout:
    """`tasks` machines of equally many GPUs and a CPU each, and a switch that links all and can sum. ValueError unless `tasks` divides `ranks`.

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
        reducers=(Reducer("switch0", tuple(range(ranks)), ()),),
    )


def prove(
    text: str, ranks: int, counts: Sequence[int], tasks: int = 1, *, faithful: bool = False,
    collective: str = "all_reduce", root: int = 0,
) -> Proof:  # fmt: skip
    """Compile and verify `text` for gradient lists made of `counts` elements each, and of all of them together.

    StrategyError if the text cannot be read, or asks for what its algorithm takes on no machine.
    """
    strategy = parse_strategy(text, collective)
    return _prove_on(strategy, machines(ranks, tasks), counts, faithful=faithful, root=root)


def _prove_on(
    strategy: Strategy, shape: Layout, counts: Sequence[int], *, faithful: bool = False, root: int = 0
) -> Proof:
    def build(workload: Workload) -> Plan:
        return compile_collective(
            strategy.collective, strategy, workload, shape, root=root, faithful=faithful
        )

    name = f"{strategy.text}, root {root}" if strategy.collective in ROOTED else strategy.text
    proof = _proof(name, shape, counts, build)
    refused = tuple(reason.replace(f"{strategy.text}: ", "") for reason in proof.refused)
    return replace(proof, collective=strategy.collective, refused=refused)


def _proof(name: str, shape: Layout, counts: Sequence[int], build: Callable[[Workload], Plan]) -> Proof:
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


def prove_all(counts: Sequence[int]) -> Iterator[Proof]:
    """Every algorithm with every shard count that it would try, alone and in 3 packs, and if it is a pipeline in chunks;
    every two-level algorithm of `TWO_LEVEL`; every packer; every mode; every algorithm of every other collective, with
    the first and the last rank as roots.
    """
    shapes = [(ranks, tasks) for ranks in RANKS for tasks in TASKS if ranks % tasks == 0]
    for algorithm in (*ALGORITHMS.values(), *(ALGORITHMS[pair] for pair in TWO_LEVEL)):
        for ranks, tasks in shapes:
            choices = set(algorithm.choices(machines(ranks, tasks)))
            for shards in sorted(choices | {2} if choices and algorithm.shards else choices):
                spec = algorithm.name if shards == 1 else f"{algorithm.name}#{shards}"
                yield prove(spec, ranks, counts, tasks)
                yield prove(f"{spec}+packs=3", ranks, counts, tasks)
                if algorithm.pipelined:
                    yield prove(f"{spec}+chunk={CHUNK}", ranks, counts, tasks)
    for machine in REAL:
        shape = layout(load_topology(machine))
        for name in ON_LINKS:
            yield _prove_on(parse_strategy(name), shape, counts)
    for text in COMMON:
        for ranks, tasks in shapes:
            yield prove(text, ranks, counts, tasks)
    for mode in MODES:
        for ranks, tasks in shapes:
            yield _prove_mode(mode, machines(ranks, tasks), counts)
    for collective, known in COLLECTIVES.items():
        if collective != "all_reduce":
            yield from _prove_collective(collective, known.values(), counts)


def _prove_collective(
    collective: str, algorithms: Iterable[Algorithm], counts: Sequence[int]
) -> Iterator[Proof]:
    for algorithm in algorithms:
        for text in (algorithm.name, *([f"{algorithm.name}+chunk={CHUNK}"] if algorithm.pipelined else [])):
            for ranks in RANKS:
                for root in sorted({0, ranks - 1}) if collective in ROOTED else (0,):
                    yield prove(text, ranks, counts, collective=collective, root=root)


def _prove_mode(mode: str, shape: Layout, counts: Sequence[int]) -> Proof:
    flags = Flags(all_reduce_spec="xring" if mode == "distributed_all_reduce" else "")
    return _proof(
        f"--variable_update={mode}",
        shape,
        counts,
        lambda workload: variable_update(mode, workload, shape, flags),
    )
