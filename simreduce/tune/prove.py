"""Proofs of many plans: every algorithm, over device counts and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simreduce.algorithms import ALGORITHMS
from simreduce.errors import StrategyError
from simreduce.layouts import layout
from simreduce.plan import verify
from simreduce.strategy import compile_plan, parse_strategy
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload

RANKS = (*range(1, 18), 24, 32, 64)
COUNTS = (1, 7, 64, 1000)


@dataclass(frozen=True, slots=True)
class Proof:
    """What was found of one strategy on `ranks` GPUs of one machine. `refused` says why it takes none of them."""

    strategy: str
    ranks: int
    plans: int
    problems: tuple[str, ...] = ()
    refused: str = ""


def prove(text: str, ranks: int, counts: Sequence[int]) -> Proof:
    """Compile and verify `text` for gradient lists made of `counts` elements each, and of all of them together.

    StrategyError if the text cannot be read; a device count that it does not accept is `refused`.
    """
    strategy = parse_strategy(text)
    shape = layout(load_topology(f"full:{ranks}"))
    singles = [(Gradient("gradient", count),) for count in counts]
    together = tuple(Gradient(f"gradient{i}", count) for i, count in enumerate(counts))
    lists = [*singles, together] if len(counts) > 1 else singles
    problems: list[str] = []
    for gradients in lists:
        try:
            plan = compile_plan(strategy, Workload("proof", gradients), shape)
        except StrategyError as error:
            return Proof(text, ranks, 0, refused="; ".join(error.problems))
        sizes = "+".join(str(g.elements) for g in gradients)
        problems += [f"{sizes} elements: {problem}" for problem in verify(plan)]
    return Proof(text, ranks, len(lists), tuple(problems))


def prove_all(counts: Sequence[int]) -> Iterator[Proof]:
    """Every algorithm with every shard count it would try, alone and in 3 packs, on all device counts."""
    for algorithm in ALGORITHMS.values():
        for ranks in RANKS:
            for shards in algorithm.choices(layout(load_topology(f"full:{ranks}"))):
                spec = algorithm.name if shards == 1 else f"{algorithm.name}#{shards}"
                yield prove(spec, ranks, counts)
                yield prove(f"{spec}+packs=3", ranks, counts)
