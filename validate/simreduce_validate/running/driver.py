"""The process that builds graphs, runs and times them. Started by `backend`."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from simreduce.errors import InputError
from simreduce.plan import Plan
from simreduce_validate.running import emitter
from simreduce_validate.running.builders import builtin_program
from simreduce_validate.running.builtin import Builtin
from simreduce_validate.running.contents import Contents
from simreduce_validate.running.execution import find_departures, find_missing, read_execution
from simreduce_validate.running.function import FunctionRunner, prepare_process
from simreduce_validate.running.placement import is_cpu
from simreduce_validate.running.program import Event, Program, Runner, faults, load
from simreduce_validate.running.protocol import ROUTES, DriverConfig, FirstStep
from simreduce_validate.running.serve import serve
from simreduce_validate.running.session import SessionRunner, session_config


@dataclass
class _Executable:
    program: Program
    runner: Runner
    contents: Contents


class Driver:
    """The devices and candidates of one backend."""

    def __init__(self) -> None:
        self._config = DriverConfig(())
        self._candidates: dict[int, _Executable] = {}

    def open(self, config: DriverConfig) -> dict[str, Any]:
        """Open the devices; returns what they are, for a result's provenance."""
        self._config = config
        prepare_process(config.cpus, config.threads, config.gpus)
        if config.cluster:
            tf.config.experimental_connect_to_cluster(
                tf.train.ClusterSpec({"worker": list(config.cluster)}),
                job_name="driver",
                protocol="grpc",
            )
        physical = tf.config.list_physical_devices("GPU")
        if (there := len(physical) * config.gpus) < (
            needed := sum(not is_cpu(name) for name in config.place)
        ):
            raise InputError(f"TensorFlow finds {there} GPUs here, and {needed} are needed")
        gpus = [tf.config.experimental.get_device_details(gpu) for gpu in physical]
        memory = {"gpu_memory_bytes": self._open_gpus()} if needed else {}
        return {
            **memory,
            "tensorflow": tf.__version__,
            "python": platform.python_version(),
            "machine": f"{platform.system()} {platform.release()} {platform.machine()}",
            "gpus": ", ".join(str(gpu.get("device_name", "GPU")) for gpu in gpus),
        }

    def prepare(self, number: int, work: Plan | Builtin, chained: int, route: str) -> FirstStep:
        """Build a candidate, run it once, and check the executed ops and the results."""
        if isinstance(work, Builtin):
            program = builtin_program(work, self._config.place, self._config.devices, number)
        else:
            program = emitter.program(work, self._config.place, chained)
        contents = Contents.of(program.plan)
        began = time.perf_counter()
        runner = self._runner(program, number, route)
        self._candidates[number] = _Executable(program, runner, contents)
        load(program, runner, contents)
        runner.run()
        built = time.perf_counter() - began
        found = read_execution(runner.partitions(), runner.graph)
        return FirstStep(
            faults=tuple(faults(program, runner, contents)),
            departures=tuple(
                find_missing(work, program.place, found)
                if isinstance(work, Builtin)
                else find_departures(work, program.place, found, chained)
            ),
            executed=found,
            seconds=built,
        )

    def time(self, number: int, repetitions: int) -> list[float]:
        """Seconds of each of so many steps, one after another."""
        run, found = self._candidates[number].runner.run, []
        for _ in range(repetitions):
            began = time.perf_counter()
            run()
            found.append(time.perf_counter() - began)
        return found

    def check(self, number: int) -> list[str]:
        """The faults of the results of the last step."""
        candidate = self._candidates[number]
        return faults(candidate.program, candidate.runner, candidate.contents)

    def trace(self, number: int) -> list[Event]:
        """A step more, with its timeline."""
        return self._candidates[number].runner.trace()

    def release(self, number: int) -> None:
        """Free what a candidate holds."""
        self._candidates.pop(number).runner.close()

    def _open_gpus(self) -> int:
        """Open a context on every GPU, which takes seconds for each; returns the bytes of memory
        that TensorFlow may use of the one that has least.
        """
        ours = self._config
        with tf.compat.v1.Session(
            config=session_config(ours.cpus, ours.threads, ours.gpus)
        ) as all_:
            found = all_.list_devices()
        return min(int(each.memory_limit_bytes) for each in found if each.device_type == "GPU")

    def _runner(self, program: Program, number: int, route: str) -> Runner:
        if route == ROUTES[1]:
            return FunctionRunner(program)
        ours = self._config
        config = session_config(ours.cpus, ours.threads, ours.gpus)
        target = f"grpc://{ours.cluster[0]}" if ours.cluster else ""
        if ours.cluster:
            config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
        return SessionRunner(program, config, target, f"candidate{number}/")


if __name__ == "__main__":
    driver = Driver()
    serve({
        "open": driver.open, "prepare": driver.prepare, "time": driver.time, "check": driver.check,
        "trace": driver.trace, "release": driver.release,
    })  # fmt: skip
