"""How long it takes to repeat a training with synchronous replicas: 100 updates of 64 workers, 60
gradients in each.

    python benchmarks/replicas.py [REPETITIONS of delays] [of flows]

With plain delays, and with real flows into and out of one server and of four, on two processes.
Seconds are also told for 1,000 repetitions.
"""

from __future__ import annotations

import sys
import time

from simreduce.engine import IDEAL
from simreduce.engine.setup import Setup
from simreduce.topology import load_topology
from simreduce.training.distributions import Lognormal
from simreduce.training.replicas import ReplicasJob, SyncSettings
from simreduce.training.replicas.network import LinkNetwork, delays
from simreduce.training.stragglers import repeat

WORKERS, UPDATES = 64, 100


def measure(name: str, network, repetitions: int) -> None:
    job = ReplicasJob(SyncSettings(60, WORKERS), network, Lognormal(0.1, 0.02), seed=1)
    began = time.perf_counter()
    spread = repeat(job, UPDATES, repetitions, processes=2)
    seconds = time.perf_counter() - began
    step = spread.step()
    print(
        f"{name:28} {repetitions:>6,} {seconds:>8.2f} {1000 * seconds / repetitions:>8.1f} "
        f"{step.mean * 1e3:>10.3f} "
        f"{(step.high - step.mean) * 1e3:>8.3f}"
    )


def main() -> None:
    with_delays, with_flows = (
        int(text) for text in (sys.argv[1:] + ["1000", "60"][len(sys.argv) - 1 :])
    )
    workers = tuple(f"gpu{i}" for i in range(WORKERS))
    machine = load_topology(f"switch:{WORKERS + 4},bandwidth=1GB/s,latency=10us")
    print(f"{'':28} {'':>6} {'':>8} {'s for':>8} {'update':>10} {'':>8}")
    print(f"{'network':28} {'runs':>6} {'s':>8} {'1,000':>8} {'ms':>10} {'+-':>8}")
    measure("delays, 1 variable", delays(WORKERS, 1, 1e-3, 1e-3, 1e-5), with_delays)
    measure("delays, 8 variables", delays(WORKERS, 8, 1e-3, 1e-3, 1e-5), with_delays)
    for servers in (1, 4):
        names = tuple(f"gpu{WORKERS + i}" for i in range(servers))
        network = LinkNetwork(Setup(machine, IDEAL), workers, names, (1 << 20,) * servers)
        measure(f"flows, 1 MiB on each of {servers}", network, with_flows)


if __name__ == "__main__":
    main()
