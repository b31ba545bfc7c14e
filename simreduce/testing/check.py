"""The check of an algorithm: proofs of its plans, and what every prediction must hold to."""

from __future__ import annotations

from collections.abc import Sequence

from simreduce.engine import IDEAL, TENSORFLOW
from simreduce.engine.setup import Setup
from simreduce.errors import StrategyError
from simreduce.plan import Plan
from simreduce.study.tune.bench import tensor
from simreduce.study.tune.prove import COUNTS, prove

RANKS = (1, 2, 3, 4, 5, 8)


def check_algorithm(
    strategy: str,
    ranks: Sequence[int] = RANKS,
    tasks: Sequence[int] = (1, 2),
    counts: Sequence[int] = COUNTS,
    collective: str = "all_reduce",
) -> int:
    """Prove the plans of a strategy, and simulate some of them; the number of plans.

    Plans are for gradients of `counts` elements on machines with so many ranks in so many tasks.
    AssertionError tells the first plan that is wrong, that takes less time than its floor, or that
    takes another time when simulated again. What the strategy refuses is left out, but not all.
    """
    plans, why = 0, "nothing to check: no number of ranks is a multiple of one of tasks"
    for n in ranks:
        for m in tasks:
            if n % m:
                continue
            proof = prove(strategy, n, counts, m, collective=collective)
            where = f"{strategy} on {n} ranks in {m} tasks"
            if proof.problems:
                raise AssertionError(f"{where}: {proof.problems[0]}")
            plans += proof.plans
            if proof.refused:
                why = f"every machine was refused: {proof.refused[0]}"
        _check_times(strategy, n, collective)
    if not plans:
        raise AssertionError(f"{strategy}: {why}")
    return plans


def _check_times(strategy: str, ranks: int, collective: str) -> None:
    for runtime in (IDEAL, TENSORFLOW):
        setup = Setup(f"switch:{ranks}", runtime)
        try:
            plan = setup.compile(strategy, tensor(1 << 16, 0, ranks), collective)
        except StrategyError:
            continue
        _check_time(setup, plan, f"{strategy} on {ranks} ranks ({runtime.name})")


def _check_time(setup: Setup, plan: Plan, where: str) -> None:
    result, again = setup.simulate(plan), setup.simulate(plan)
    if result.seconds < result.floors.seconds:
        raise AssertionError(f"{where}: {result.seconds} s, below {result.floors.seconds} s")
    if result.to_json() != again.to_json():
        raise AssertionError(f"{where}: two simulations differ")
