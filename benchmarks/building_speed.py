"""How long it takes to build and to prove the plans of large machines, in processor time.

    python benchmarks/building_speed.py [RANKS ...]

Each case runs in a process of its own, as a first plan does. A ring, and direct exchanges, have
about n^2 ops per collective: where that is more than a plan may hold, the builder says so. Then
come many small gradients among 8 GPUs.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from dataclasses import fields

import numpy as np

from simreduce.errors import StrategyError
from simreduce.plan import verify
from simreduce.planners.layouts import layout
from simreduce.planners.strategy.compiler import compile_collective
from simreduce.topology import load_topology
from simreduce.workload import Gradient, Workload

RANKS = (64, 256, 1024, 2048, 4096)
CASES = (
    ("all_reduce", "ring"),
    ("all_reduce", "direct"),
    ("all_to_all", "direct"),
    ("all_reduce", "halving_doubling"),
)

MANY = 99_000
"""Gradients of 1 KiB."""
OF_MANY = ("psgpu", "nccl", "ring", "collective", "hierarchical_copy")


def measure(collective: str, algorithm: str, ranks: int, gradients: int = 1) -> str:
    machine = layout(load_topology(f"switch:{ranks}"))
    elements = 1024 * ranks if gradients == 1 else 256
    workload = Workload(
        "benchmark", tuple(Gradient(f"gradient{i}", elements) for i in range(gradients))
    )
    start = time.process_time()
    try:
        plan = compile_collective(collective, algorithm, workload, machine)
    except StrategyError as error:
        return str(error)
    built = time.process_time() - start
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    problems = verify(plan)
    proved = time.process_time() - start - built
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if problems:
        return f"{len(problems)} problems: {problems[0]}"
    columns = [getattr(plan, field.name) for field in fields(plan)]
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    each = sum(a.itemsize if a.strides == (0,) else a.nbytes for a in arrays) / len(plan)
    return f"{len(plan):>10,} {each:>6.0f} {built:>9.3f} {proved:>9.3f} {held:>9.0f} {most:>9.0f}"


def main() -> None:
    print(
        f"{'collective':<11} {'algorithm':<17} {'ranks':>5} {'ops':>10} {'B/op':>6} {'build s':>9} "
        f"{'proof s':>9} "
        f"{'build MiB':>9} {'proof MiB':>9}"
    )
    for ranks in [int(text) for text in sys.argv[1:]] or RANKS:
        for collective, algorithm in CASES:
            with multiprocessing.get_context("spawn").Pool(1) as process:
                line = process.apply(measure, (collective, algorithm, ranks))
            print(f"{collective:<11} {algorithm:<17} {ranks:>5} {line}", flush=True)
    print(f"{MANY:,} gradients:")
    for algorithm in OF_MANY:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            line = process.apply(measure, ("all_reduce", algorithm, 8, MANY))
        print(f"{'all_reduce':<11} {algorithm:<17} {8:>5} {line}", flush=True)


if __name__ == "__main__":
    main()
