"""How many simulations find the best size of DDP's buckets: by bounds, golden section, by chance.

Each looks for the size with the fastest all-reduce of a model. The search by bounds looks at NCCL's
choices too. It simulates single calls for that, which are counted, though each is far smaller than
a plan.

    python benchmarks/tuning.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from scipy.optimize import minimize_scalar

from simreduce.scenario import Scenario
from simreduce.setup import Setup
from simreduce.tune.search.by_nccl import NcclSearch
from simreduce.tune.search.packings import MIB, bucket_sizes, distinct
from simreduce.tune.search.setting import Setting, evaluate
from simreduce.workload import load_workload

CASES = (("dgx1v", "resnet50"), ("dgx-a100", "bert-base"), ("dgx-h100", "gpt2"))


@dataclass
class Times:
    """Seconds by size of buckets in bytes, of those that were asked for."""

    scenario: Scenario
    known: dict[int, float] = field(default_factory=dict)

    def __call__(self, nbytes: float) -> float:
        size = int(nbytes)
        if size not in self.known:
            setting = Setting(f"nccl+ddp={size / MIB:g},view")
            self.known[size] = evaluate(self.scenario, "time", setting).seconds
        return self.known[size]


def rows(scenario: Scenario) -> list[tuple[str, float, int, int]]:
    """Of each method: its name, the best time in seconds, simulated plans and calls."""
    gradients = scenario.workload.gradients
    sizes = bucket_sizes(gradients)
    texts = [(f"+ddp={size / MIB:g},view", size) for size in sizes]
    search = NcclSearch(scenario, "time", distinct(texts, gradients))
    search.run(1)
    found = [("bounds", search.outcome.best, search.tried, search.calls.counted)]
    golden, drawn, every = (Times(scenario) for _ in range(3))
    minimize_scalar(golden, bounds=(sizes[0], sizes[-1]), method="bounded")
    draw = Random(0)  # noqa: S311 - no secret
    for _ in golden.known:
        drawn(draw.uniform(sizes[0], sizes[-1]))
    for size in sizes:
        every(size)
    named = {"golden section": golden, "random": drawn, "every size": every}
    return [*found, *((n, min(t.known.values()), len(t.known), 0) for n, t in named.items())]


def main() -> None:
    """Print a row for each case and method."""
    print(f"{'machine':10} {'model':10} {'method':14} {'time (ms)':>9} {'plans':>6} {'calls':>6}")
    for machine, model in CASES:
        scenario = Scenario(model, model, Setup(machine, "nccl"), load_workload(model), None)
        for name, best, plans, calls in rows(scenario):
            print(f"{machine:10} {model:10} {name:14} {best * 1e3:9.3f} {plans:6} {calls:6}")


if __name__ == "__main__":
    main()
