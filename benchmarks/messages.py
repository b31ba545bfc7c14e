"""Messages per second and peak memory of whole simulations: plan built, lowered and run, warm, one
core.

    python benchmarks/messages.py [RANKS ...]

One all-reduce of 64 KiB a rank on a switch, a 2:1 fat tree and a torus. Each row is a process of
its own that has compiled the kernel before; memory is what the row needs above that. `naive` is the
model in tests/engine/oracle.py, one SimPy process per op in exact fractions, on plans small enough
for it: how many times as long it takes. Processor seconds, as machines are shared.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from simreduce.engine import IDEAL, NOMINAL, Simulator, runtime_named
from simreduce.errors import InputError
from simreduce.plan import Kind, Plan
from simreduce.planners.layouts import layout
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.topology import Topology, load_topology
from simreduce.workload import Gradient, Workload

RANKS = (8, 64, 256, 1024, 4096)
ALGORITHMS = ("ring", "direct", "halving_doubling", "torus_2d", "double_tree")
NAIVE_OPS = 5_000
PATIENCE = 300
"""Seconds after which a row is given up: where nearly every transfer shares links with nearly every
other one and few end together, each end changes the rates of thousands.
"""
TORI = {8: "4x2", 64: "8x8", 256: "16x16", 1024: "32x32", 4096: "64x64"}


def machines(ranks: int) -> dict[str, str]:
    """Fabrics with ports of 12.5 GB/s; the fat tree has two hosts for every up-link."""
    found = {
        "switch": f"switch:{ranks},bandwidth=12.5GB/s,latency=2us",
        "fat_tree": (
            f"fat_tree:{ranks},radix={min(ranks // 2, 32)},oversubscription=2,bandwidth=12.5GB/s,"
            "latency=2us"
        ),
    }
    if ranks in TORI:
        found["torus"] = f"torus:{TORI[ranks]},bandwidth=12.5GB/s,latency=1us"
    return found


def peak() -> float:
    """MiB that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(machine: str, algorithm: str, ranks: int) -> str:
    topology = load_topology(machine)
    shape = layout(topology)
    workload = Workload("benchmark", (Gradient("gradient", 16384 * ranks),))
    warm = load_topology("switch:64")
    Simulator(warm, IDEAL).simulate(compile_plan("direct", workload, layout(warm)))  # machine code
    before = peak()
    start = time.process_time()
    try:
        plan = compile_plan(algorithm, workload, shape)
    except InputError as error:
        return f"refused: {error}"
    built = time.process_time() - start
    result = Simulator(topology, IDEAL).simulate(plan)
    seconds = time.process_time() - start
    ratio = f"{_naive(plan, topology) / seconds:9.0f}x" if len(plan) <= NAIVE_OPS else f"{'':>10}"
    return (
        f"{result.transfers:>10,} {built:8.3f} {seconds:8.3f} {result.transfers / seconds:>11,.0f} "
        f"{1e6 * seconds / result.transfers:>8.2f} {peak() - before:>7.0f} {ratio} "
        f"{result.seconds:.9f}"
    )


def _naive(plan: Plan, topology: Topology) -> float:
    from tests.engine import oracle  # noqa: PLC0415 - needs the tests beside it

    start = time.process_time()
    oracle.Oracle(topology, runtime_named("ideal"), NOMINAL).run(
        [oracle.Submission(plan, [0.0] * sum(kind == Kind.INPUT for kind in plan.kind))]
    )
    return time.process_time() - start


def main() -> None:
    print(
        f"{'machine':<9} {'algorithm':<17} {'ranks':>5} {'messages':>10} {'build s':>8} "
        f"{'all s':>8} {'messages/s':>11} "
        f"{'us each':>8} {'MiB':>7} {'naive':>10} predicted s"
    )
    for ranks in [int(text) for text in sys.argv[1:]] or RANKS:
        for fabric, machine in machines(ranks).items():
            for algorithm in ALGORITHMS:
                with multiprocessing.get_context("spawn").Pool(1) as process:
                    try:
                        line = process.apply_async(measure, (machine, algorithm, ranks)).get(
                            PATIENCE
                        )
                    except multiprocessing.TimeoutError:
                        line = f"more than {PATIENCE} s"
                print(f"{fabric:<9} {algorithm:<17} {ranks:>5} {line}", flush=True)


if __name__ == "__main__":
    main()
