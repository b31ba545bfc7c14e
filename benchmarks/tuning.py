"""How many simulations find the best size of DDP's buckets: by bounds, and by general optimisers.

Each looks for the size with the fastest all-reduce of a model, on a logarithmic scale. What counts
is the number of different packings that are simulated until one is within 0.1 % of the best of all;
of methods that draw, the median of five seeds. The search by bounds also knows when it is done, so
its number is that of the whole search, with single calls, which are far smaller, beside it.

    pip install optuna nevergrad
    python benchmarks/tuning.py
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf, log2
from random import Random
from statistics import median

from scipy.optimize import differential_evolution, minimize_scalar

from simreduce.engine.setup import Setup
from simreduce.export.framework import bucket_sizes
from simreduce.study.scenario import Scenario
from simreduce.study.tune.search.by_nccl import NcclSearch
from simreduce.study.tune.search.packings import distinct, read_packing
from simreduce.study.tune.search.search import Aim
from simreduce.study.tune.search.setting import Setting, evaluate, simulating
from simreduce.units import MIB
from simreduce.workload.loader import load_workload

CASES = (("dgx1v", "resnet50"), ("dgx-a100", "bert-base"), ("dgx-h100", "gpt2"))
SEEDS, MOST, NEAR = 5, 60, 1.001


class EnoughError(Exception):
    """An optimiser has had its simulations."""


@dataclass
class Times:
    """Seconds by packing, which all methods share."""

    scenario: Scenario
    known: dict[object, float] = field(default_factory=dict)

    def look_up(self, nbytes: float) -> tuple[object, float]:
        """What tells a packing from others, and its seconds."""
        text = f"+ddp={int(nbytes) / MIB:g},view"
        packing = read_packing(text, self.scenario.workload.gradients)
        key = packing.groups, packing.sizes
        if key not in self.known:
            self.known[key] = evaluate(self.scenario, Setting(f"nccl{text}")).seconds
        return key, self.known[key]


@dataclass
class Trial:
    """The simulations of one method, which ends after `MOST`."""

    times: Times
    seen: dict[object, float] = field(default_factory=dict)

    def __call__(self, exponent: float) -> float:
        """Seconds of buckets of 2 to this power."""
        key, seconds = self.times.look_up(2.0**exponent)
        if key not in self.seen and len(self.seen) >= MOST:
            raise EnoughError
        self.seen[key] = seconds
        return seconds

    def needed(self, best: float) -> float:
        """How many simulations it took to come near the best; infinite if it did not."""
        places = (i for i, each in enumerate(self.seen.values(), 1) if each <= NEAR * best)
        return next(places, inf)


Method = Callable[[Trial, float, float, int], None]
"""Looks for the exponent with the least seconds between two, with a seed."""


def golden(trial: Trial, low: float, high: float, _seed: int) -> None:
    """Golden section with parabolas (Brent)."""
    minimize_scalar(trial, bounds=(low, high), method="bounded")


def evolution(trial: Trial, low: float, high: float, seed: int) -> None:
    """Differential evolution."""
    differential_evolution(lambda x: trial(x[0]), [(low, high)], rng=seed, popsize=5)


def tpe(trial: Trial, low: float, high: float, seed: int) -> None:
    """Optuna's tree-structured Parzen estimator."""
    import optuna  # noqa: PLC0415 - only this method needs it

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    study.optimize(lambda each: trial(each.suggest_float("size", low, high)), n_trials=4 * MOST)


def nevergrad(trial: Trial, low: float, high: float, seed: int) -> None:
    """Nevergrad's evolution strategy (1+1): its own choice, NGOpt, fails with numpy 2."""
    import nevergrad as ng  # noqa: PLC0415 - as above

    size = ng.p.Scalar(lower=low, upper=high)
    size.random_state.seed(seed)
    optimizer = ng.optimizers.OnePlusOne(parametrization=size, budget=MOST)
    optimizer.minimize(trial)


def draw(trial: Trial, low: float, high: float, seed: int) -> None:
    """Sizes by chance."""
    chance = Random(seed)  # noqa: S311 - no secret
    for _ in range(4 * MOST):
        trial(chance.uniform(low, high))


METHODS: dict[str, Method] = {
    "golden section (scipy)": golden,
    "differential evolution (scipy)": evolution,
    "TPE (optuna)": tpe,
    "(1+1) (nevergrad)": nevergrad,
    "random": draw,
}


def needed(times: Times, method: Method, best: float, sizes: list[int], seed: int) -> float:
    """The simulations that a method needs."""
    trial = Trial(times)
    with suppress(EnoughError):
        method(trial, log2(sizes[0]), log2(sizes[-1]), seed)
    return trial.needed(best)


def rows(scenario: Scenario) -> list[tuple[str, str, str]]:
    """Of each method: its name, the simulations it needs, and calls beside them."""
    gradients = scenario.workload.gradients
    sizes, times = bucket_sizes(gradients), Times(scenario)
    texts = [(f"+ddp={size / MIB:g},view", size) for size in sizes]
    found = []
    packings = distinct(texts, gradients)
    for name, ruled in (("bounds", False), ("bounds, with all choices of NCCL", True)):
        search = NcclSearch(Aim(scenario), packings=packings, ruled=ruled)
        with simulating(search.scenario) as do:
            search.run(do)
        found.append((name, str(search.tried), str(search.calls.counted)))
    best = min(times.look_up(size)[1] for size in sizes)
    for name, method in METHODS.items():
        count = median(needed(times, method, best, sizes, seed) for seed in range(SEEDS))
        found.append((name, f"> {MOST}" if count == inf else f"{count:g}", ""))
    return [*found, ("every size", str(len(packings)), "")]


def main() -> None:
    """Print a row for each method, with the cases beside each other."""
    tables = []
    for machine, model in CASES:
        setup = partial(Setup, machine, "nccl")
        tables.append(rows(Scenario(model, model, setup(), load_workload(model), None)))
    print(f"{'method':34}" + "".join(f"{f'{m} {w}':>22}" for m, w in CASES))
    for row in zip(*tables, strict=True):
        cells = [f"{count} + {calls} calls" if calls else count for _, count, calls in row]
        print(f"{row[0][0]:34}" + "".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    main()
