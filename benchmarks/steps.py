"""How long it takes to simulate a training step whose variables are on the CPUs of all machines:
thousands of small plans.

    python benchmarks/steps.py [MACHINES ...]

p3.16xlarge, eight GPUs each, ResNet-50. CPU seconds, and the megabytes that the process has had at
most.
"""

from __future__ import annotations

import resource
import sys
import time

from simreduce.engine.setup import Setup
from simreduce.planners.layouts import layout
from simreduce.topology import load_topology
from simreduce.training import StepJob, method_for_mode, profile_from_seconds, simulate_step
from simreduce.training.variable_update import Flags
from simreduce.workload.loader import load_model


def main() -> None:
    model = load_model("resnet50")
    job = StepJob(model, profile_from_seconds(model, 0.3), 64)
    print(f"{'GPUs':>5} {'plans':>6} {'made':>7} {'simulated':>10} {'MB':>6} {'step':>11}")
    for machines in [int(text) for text in sys.argv[1:]] or [4, 32]:
        topology = load_topology(f"p3-16xlargex{machines}")
        shape = layout(topology)
        began = time.process_time()
        method = method_for_mode(
            "parameter_server", model.workload, shape, Flags(local_parameter_device="cpu")
        )
        made = time.process_time()
        step = simulate_step(job, method, Setup(topology))
        ended = time.process_time()
        plans = len(step.buckets) + len(step.reads)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{len(shape.ranks):>5} {plans:>6} {made - began:>6.2f}s {ended - made:>9.2f}s "
            f"{most:>6.0f} "
            f"{step.seconds * 1e3:>8.3f} ms"
        )


if __name__ == "__main__":
    main()
