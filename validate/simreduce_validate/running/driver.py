"""The process that builds graphs, runs them and looks at the clock. Started by `backend`."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

import tensorflow as tf

from simreduce.errors import InputError
from simreduce.plan import Plan
from simreduce_validate.running import emitter
from simreduce_validate.running.builders import builtin_program
from simreduce_validate.running.builtin import Builtin
from simreduce_validate.running.contents import Contents
from simreduce_validate.running.executed import departures, executed
from simreduce_validate.running.function import FunctionStep, prepare_process
from simreduce_validate.running.placement import is_cpu
from simreduce_validate.running.program import Event, Program, Step, faults, load
from simreduce_validate.running.serve import serve
from simreduce_validate.running.session import SessionStep, settings
from simreduce_validate.running.setup import ROUTES, Prepared, Setup


@dataclass
class _Candidate:
    program: Program
    step: Step
    contents: Contents


class Driver:
    """What one backend's driver has open."""

    def __init__(self) -> None:
        self._setup = Setup(())
        self._candidates: dict[int, _Candidate] = {}

    def open(self, setup: Setup) -> dict[str, str]:
        """Take the devices; what they are, for a result's provenance."""
        self._setup = setup
        prepare_process(setup.cpus, setup.threads, setup.gpus)
        if setup.cluster:
            tf.config.experimental_connect_to_cluster(
                tf.train.ClusterSpec({"worker": list(setup.cluster)}),
                job_name="driver",
                protocol="grpc",
            )
        physical = tf.config.list_physical_devices("GPU")
        if (there := len(physical) * setup.gpus) < (
            needed := sum(not is_cpu(name) for name in setup.place)
        ):
            raise InputError(f"TensorFlow finds {there} GPUs here, and {needed} are needed")
        gpus = [tf.config.experimental.get_device_details(gpu) for gpu in physical]
        return {
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
            "gpus": ", ".join(str(gpu.get("device_name", "GPU")) for gpu in gpus),
        }

    def prepare(self, number: int, work: Plan | Builtin, chained: int, route: str) -> Prepared:
        """Build a candidate, run it once, and look at what was executed and what came out."""
        if isinstance(work, Builtin):
            program = builtin_program(work, self._setup.place, self._setup.devices, number)
        else:
            program = emitter.program(work, self._setup.place, chained)
        contents = Contents.of(program.plan)
        began = time.perf_counter()
        step = self._step(program, number, route)
        self._candidates[number] = _Candidate(program, step, contents)
        load(program, step, contents)
        step.run()
        built = time.perf_counter() - began
        found = executed(step.partitions(), step.graph)
        return Prepared(
            faults=tuple(faults(program, step, contents)),
            departures=()
            if isinstance(work, Builtin)
            else tuple(departures(work, program.place, found, chained)),
            executed=found,
            seconds=built,
        )

    def time(self, number: int, repetitions: int) -> list[float]:
        """Seconds of each of so many steps, one after another."""
        run, found = self._candidates[number].step.run, []
        for _ in range(repetitions):
            began = time.perf_counter()
            run()
            found.append(time.perf_counter() - began)
        return found

    def check(self, number: int) -> list[str]:
        """What is wrong with the results of the last step."""
        candidate = self._candidates[number]
        return faults(candidate.program, candidate.step, candidate.contents)

    def trace(self, number: int) -> list[Event]:
        """A step more, with its timeline."""
        return self._candidates[number].step.trace()

    def release(self, number: int) -> None:
        """Free what a candidate holds."""
        self._candidates.pop(number).step.close()

    def _step(self, program: Program, number: int, route: str) -> Step:
        setup = self._setup
        if route == ROUTES[1]:
            return FunctionStep(program)
        config = settings(setup.cpus, setup.threads, setup.gpus)
        target = f"grpc://{setup.cluster[0]}" if setup.cluster else ""
        if setup.cluster:
            config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
        return SessionStep(program, config, target, f"candidate{number}/")


if __name__ == "__main__":
    driver = Driver()
    serve({
        "open": driver.open, "prepare": driver.prepare, "time": driver.time, "check": driver.check,
        "trace": driver.trace, "release": driver.release,
    })  # fmt: skip
