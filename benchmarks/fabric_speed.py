"""How long it takes to load machines on large networks, and to find their routes, in processor
time.

    python benchmarks/fabric_speed.py [MACHINExN,fabric=... ...]

Routes are those of a ring over all GPUs, one for each pair, and of 100,000 random pairs; then
single routes by name. Each case runs in a process of its own, as a first question does. The last
columns are what the network is made of.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time

import numpy as np

from simreduce.planners.layouts import layout
from simreduce.topology import load_topology, route

CASES = [
    f"{machine}x1024,{fabric}"
    for machine in ("dgx-h100", "dgx1v")
    for fabric in (
        "fabric=fat_tree",
        "fabric=fat_tree,levels=3",
        "fabric=fat_tree,levels=3,radix=64",
        "fabric=rail_optimised",
        "fabric=rail_optimised,levels=3",
        "fabric=rail_only",
        "fabric=dragonfly",
        "fabric=torus,dims=8x8x16",
    )
] + ["fat_tree:8192,levels=3,radix=32", "dragonfly:8192", "torus:16x16x32"]
RANDOM_PAIRS = 100_000
SINGLE_PAIRS = 1_000


def measure(text: str) -> str:
    start = time.process_time()
    topology = load_topology(text)
    loaded = time.process_time()
    layout(topology)
    laid = time.process_time()
    gpus = np.array([topology.router.index[name] for name in topology.devices])
    topology.router.routes(gpus, np.roll(gpus, -1))
    ring = time.process_time()
    ends = np.random.default_rng(0).integers(0, len(gpus), (2, RANDOM_PAIRS))
    routes = topology.router.routes(gpus[ends[0]], gpus[ends[1]])
    drawn = time.process_time()
    for a, b in ends[:, :SINGLE_PAIRS].T.tolist():
        route(topology, topology.devices[a], topology.devices[b])
    singly = time.process_time()
    assert np.diff(routes.start)[ends[0] != ends[1]].min() > 0
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    switches = sum(node.kind == "switch" for node in topology.nodes.values())
    return (
        f"{len(gpus):>6,} {loaded - start:>7.2f} {laid - loaded:>7.2f} {ring - laid:>7.3f} "
        f"{drawn - ring:>7.3f} "
        f"{singly - drawn:>7.3f} {held:>6.0f} {switches:>8,} {len(topology.links) // 2:>8,}"
    )


def main() -> None:
    print(f"{'':48} {'':>6} {'':>7} {'':>7} {'ring':>7} {RANDOM_PAIRS:>7,} {SINGLE_PAIRS:>7,}")
    print(
        f"{'topology':48} {'GPUs':>6} {'load s':>7} {'layout':>7} {'s':>7} {'pairs s':>7} "
        f"{'single':>7} {'MiB':>6} "
        f"{'switches':>8} {'cables':>8}"
    )
    for text in sys.argv[1:] or CASES:
        with multiprocessing.get_context("spawn").Pool(1) as process:
            print(f"{text:48} {process.apply(measure, (text,))}", flush=True)


if __name__ == "__main__":
    main()
