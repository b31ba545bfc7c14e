"""MSCCL's XML of a strategy: one file for each range of sizes, proved before it is written.

MSCCL++ has the same as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import lcm

import numpy as np

from simreduce.errors import InternalError, StrategyError
from simreduce.export.framework import REPLICATED, Choice, Framework, holding
from simreduce.plan import Plan
from simreduce.planners.msccl import MOST_BYTES, MscclAlgorithm, xml_text
from simreduce.planners.msccl.from_plan import algorithm_of
from simreduce.planners.msccl.interpreter import plan_text, problems_of
from simreduce.planners.packing.arrangement import NoPacking
from simreduce.planners.strategy import NO_LIMIT, Range, Strategy
from simreduce.workload import Gradient, Workload

_MOST_RANKS = 128
_MOST_CHUNKS = 4096
_LIKE = {"nccl": "ring", "nccl:ring": "ring", "nccl:tree": "double_tree", "nccl:nvls": "direct",
         "in_switch": "direct", "copy_to_cpu": "reduce_to_one", "pscpu": "psgpu"}  # fmt: skip


def refusals(choice: Choice) -> list[str]:
    """Why MSCCL cannot run a choice."""
    strategy, ranks = choice.resolved, choice.setup.layout.n
    names = {each.algorithm.partition(":")[0] for each in strategy.ranges}
    packs = not isinstance(strategy.packer, NoPacking)
    found = holding(
        {
            f"MSCCL runs one collective, and this is {choice.method}": choice.method != REPLICATED,
            f"MSCCL's thread blocks are too few for {ranks} ranks": ranks > _MOST_RANKS,
            "NCCL carries its own algorithms out; MSCCL takes others": choice.rules
            or "nccl" in names,
            "MSCCL cuts messages itself; leave out +chunk": strategy.chunk,
            "MSCCL divides nothing; leave out +mean": strategy.mean,
            "MSCCL sees packs and chooses by their size, not by that of gradients": (
                len(strategy.ranges) > 1 and packs
            ),
        }
    )
    if found:
        return found
    try:
        _algorithms(choice)
    except StrategyError as error:
        return [problem.removeprefix(f"{strategy.text}: ") for problem in error.problems]
    return []


def nearest(choice: Choice) -> list[str]:
    """Strategies that MSCCL has settings for, the nearest first."""
    spec = choice.resolved.spec
    return [*dict.fromkeys((spec, _LIKE.get(spec, spec), "ring", "direct"))]


def named(
    choice: Choice, stem: str, suffix: str, text: Callable[[MscclAlgorithm], str]
) -> dict[str, str]:
    """The text of each range's algorithm, once it is proved."""
    made = _algorithms(choice)
    for algorithm in made:
        if problems := problems_of(algorithm):
            raise InternalError(f"{algorithm.name}: the algorithm is wrong: {problems[0]}")
    numbers = [""] if len(made) == 1 else [f"-{i}" for i in range(len(made))]
    return {f"{stem}{n}.{suffix}": text(each) for n, each in zip(numbers, made, strict=True)}


def _algorithms(choice: Choice) -> list[MscclAlgorithm]:
    """The algorithm of each range, with the bytes of calls that it is for."""
    strategy = choice.resolved
    found, least = [], 0
    for part in strategy.ranges:
        most = MOST_BYTES if part.limit == NO_LIMIT else part.limit * choice.width
        alone = _alone(strategy, part)
        made = algorithm_of(_plan(choice, alone), f"{part} on {choice.setup.machine.name}")
        found.append(replace(made, least=least, most=most))
        least = most + 1
    return found


def _alone(strategy: Strategy, part: Range) -> Strategy:
    """A strategy that does with one tensor what a range of another does with each of its packs."""
    one = part._replace(limit=NO_LIMIT)
    return replace(
        strategy, text=str(part), spec=str(part), packing="none", ranges=(one,), packer=NoPacking()
    )


def _plan(choice: Choice, strategy: Strategy) -> Plan:
    """Return the plan for a tensor that it cuts without remainders.

    Of twice as large a tensor, every piece is twice as large.
    """

    def compile_for(elements: int) -> Plan:
        return choice.setup.compile(strategy, Workload("chunks", (Gradient("chunks", elements),)))

    for elements in _sizes(choice.setup.layout.n):
        plan = compile_for(elements)
        if _chunks(plan) <= _MOST_CHUNKS and _scales(plan, compile_for(2 * elements)):
            return plan
    raise StrategyError("its pieces are not the same shares of every tensor")


def _sizes(n: int) -> Iterator[int]:
    """Sizes that may be cut evenly: multiples of the number of ranks."""
    tried = [n * k for k in (1, 2, 3, 4, 6, 8, 12, 16)]
    yield from dict.fromkeys([*tried, lcm(*range(1, min(n, 12) + 1)) * n, n * (n - 1) * 24])


def _chunks(plan: Plan) -> int:
    edges = np.concatenate([plan.lo, plan.hi])
    return int(edges.max()) // max(int(np.gcd.reduce(edges)), 1)


def _scales(plan: Plan, larger: Plan) -> bool:
    same = len(plan) == len(larger)
    return same and bool((2 * plan.lo == larger.lo).all() and (2 * plan.hi == larger.hi).all())


MSCCL = Framework(
    "msccl",
    "MSCCL",
    lambda choice: named(choice, "msccl", "xml", xml_text),
    refusals,
    nearest,
    trains=False,
)


def _files(choice: Choice) -> dict[str, str]:
    layout = choice.setup.layout
    machines = [next(i for i, task in enumerate(layout.tasks) if rank in task)
                for rank in range(layout.n)]  # fmt: skip
    return named(choice, "mscclpp", "json", lambda each: plan_text(each, machines))


MSCCLPP = Framework("mscclpp", "MSCCL++", _files, refusals, nearest, trains=False)
