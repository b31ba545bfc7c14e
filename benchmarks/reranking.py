"""How long one process takes to rank again, in milliseconds of processor time.

    python benchmarks/reranking.py [MACHINE ...]

A dozen usual strategies, and all, of one tensor of 64 MiB: the first time, as they were, and with
one thing changed. Then what a page shows of the best: its plan, recording, savings, explanation and
timeline. Each figure is the least of three.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from simreduce.engine import Disturbance, Fault
from simreduce.engine.setup import Setup
from simreduce.planners.nccl import Settings
from simreduce.planners.strategy import parse_strategy
from simreduce.report.blocks import timeline_of_threads
from simreduce.report.explain import EXPLAIN, Explained
from simreduce.report.trace import recording_threads
from simreduce.study.scenario import Scenario
from simreduce.study.tune.plan_cache import PlanCache
from simreduce.study.tune.rank import rank
from simreduce.study.tune.whatif import savings
from simreduce.topology import load_topology
from simreduce.workload.loader import load_workload

MACHINES = "dgx1v", "dgx-a100"
USUAL = (
    "nccl", "nccl:ring", "nccl:tree", "nccl+packs=1", "nccl+ddp", "ring", "halving_doubling",
    "direct", "hierarchical_copy", "xring", "pscpu", "collective",
)  # fmt: skip
TIMES = 3


def least(*runs: Callable[[], object]) -> int:
    """Milliseconds of the quickest."""
    seconds = []
    for run in runs:
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return round(min(seconds) * 1e3)


def measure(name: str, names: tuple[str, ...]) -> Iterator[int]:
    """The time of the first ranking, and of each kind that comes later."""
    machine, cache = load_topology(name), PlanCache()
    link = machine.links[0]

    def asking(setup: Setup, size: str = "64MiB") -> Callable[[], object]:
        strategies = tuple(map(parse_strategy, names)) or None
        scenario = Scenario("", "", setup, load_workload(f"bytes:{size}"), strategies)
        return lambda: rank(scenario, cache=cache)

    def setups(change: Callable[[int], Setup]) -> list[Callable[[], object]]:
        return [asking(change(i)) for i in range(TIMES)]

    whole = Setup(machine, "by_strategy")
    asking(whole, "1MiB")()  # loads machine code and reads calibrations
    yield least(asking(whole))
    yield least(asking(whole))
    yield least(*(asking(whole, f"{48 + i}MiB") for i in range(TIMES)))
    yield least(*setups(lambda i: whole.but(machine=machine.scale_links({link.name: 0.4 + i / 9}))))
    yield least(
        *setups(
            lambda i: whole.but(
                disturbance=Disturbance(faults=(Fault(0.0, link.name, None, 0.4 + i / 9),))
            )
        )
    )
    yield least(*setups(lambda i: whole.but(nccl=Settings(max_channels=i + 2))))


def look(name: str) -> Iterator[int]:
    """The times of what a page shows of the best strategy."""
    setup = Setup(load_topology(name), "nccl")
    workload = load_workload("bytes:64MiB")
    plan = setup.compile("nccl", workload)
    recording = setup.record(plan)
    found = savings(recording, setup)
    for run in (
        lambda: setup.compile("nccl", workload),
        lambda: setup.record(plan),
        lambda: savings(recording, setup),
        lambda: EXPLAIN.write(Explained(setup.record(plan), found, {})),
        lambda: timeline_of_threads(
            recording_threads(setup.record(plan), setup.topology), recording.result.path.op.tolist()
        ),
    ):
        yield least(*[run] * TIMES)


def main() -> None:
    print(f"{'':26} first  same  size  link  fault  NCCL")
    for name in sys.argv[1:] or MACHINES:
        for names in (USUAL, ()):
            label = f"{name}, {len(names) or 'all'} strategies"
            figures = [f"{each:>6}" for each in measure(name, names)]
            print(f"{label:25}{''.join(figures)}", flush=True)
    print(f"\n{'':26}  plan  recording  savings  explanation  timeline")
    for name in sys.argv[1:] or MACHINES:
        plan, recording, saved, explained, timeline = look(name)
        print(f"{name:26}{plan:>6}{recording:>11}{saved:>9}{explained:>13}{timeline:>10}")


if __name__ == "__main__":
    main()
