"""Where plans run for real: one interface over the devices of one process, of a cluster, or GPUs.

    with open_backend("inproc", layout) as backend:
        measured = backend.run(plan, repetitions=20)
        measured.seconds, measured.wrong

`measuring.time_in_rounds` times several candidates in turns, so that other load on the machine
hits all of them alike.

TensorFlow is not imported here. It runs in the driver, a process of its own with the environment
of `child.ENVIRONMENT`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simreduce.computing.arrays import Floats
from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Kind, Plan
from simreduce.planners.layouts import Layout
from simreduce_validate.running import by_rank, placement
from simreduce_validate.running.builtin import COLLECTIVE, NCCL, Builtin
from simreduce_validate.running.by_rank import BY_RANK, Members
from simreduce_validate.running.child import START_SECONDS, Child
from simreduce_validate.running.computer import Computer
from simreduce_validate.running.links import Links
from simreduce_validate.running.program import Event
from simreduce_validate.running.protocol import ROUTES, DriverConfig, FirstStep
from simreduce_validate.running.shaped_links import shape_links
from simreduce_validate.running.workers import Worker, loopback, start_workers

BACKENDS = ("inproc", "cluster", "shaped", "gpu")
DRIVER = "simreduce_validate.running.driver"
PATIENCE = 120.0
"""Seconds after which a request that has no answer is given up."""

_OPENING = 30.0
"""More seconds to open each GPU: a context with TensorFlow's libraries takes 1 to 10 s, and one GPU
waits for another.
"""

_COPIES = 5
"""Memory that a candidate needs, in its inputs: these, results and what is between.

ResNet-50 on 8 CPU devices took 4.9.
"""


@dataclass(frozen=True, slots=True)
class Measurement:
    """`seconds` of each step, divided by how often it does the plan.

    `wrong` lists results that break the contract, `departures` executed ops that are not those of
    the plan. Unless both are empty, the times mean nothing.
    """

    seconds: Floats
    wrong: tuple[str, ...]
    departures: tuple[str, ...]
    prepared: FirstStep

    @property
    def median(self) -> float:
        """Seconds of the median step."""
        return float(np.median(self.seconds))


@dataclass
class Backend:
    """Open devices, until the `with` block ends.

    `devices` are those of the plans it takes, or the first of them if plans leave the others idle;
    `place` is the TensorFlow device of each. `provenance` describes hardware and software. A
    request that takes more than `patience` seconds raises DeviceError, and ends the backend's use.
    """

    name: str
    devices: tuple[str, ...]
    place: tuple[str, ...]
    workers: tuple[Worker, ...]
    patience: float
    provenance: Mapping[str, Any]
    driver: Child = field(repr=False)
    _stack: ExitStack = field(repr=False)
    _count: int = field(default=0, repr=False)
    _functions: bool = field(default=False, repr=False)

    def prepare(
        self, work: Plan | Builtin, *, chained: int = 1, route: str = ROUTES[0]
    ) -> Executable:
        """Build a plan, or one of TensorFlow's own, run it once and check it. A step does it
        `chained` times in a row.

        InputError for what these devices cannot do.
        """
        if problems := self._problems(work, chained, route):
            raise InputError(problems)
        self._count += 1
        self._functions |= route == ROUTES[1]
        if isinstance(work, Builtin) and work.name in BY_RANK:
            members = Members(work, self.workers, self.devices, self._count, self.patience)
            self._stack.callback(members.close)
            return Executable(self, self._count, chained, members.prepared, members)
        found = self.driver.ask("prepare", self._count, work, chained, route, seconds=self.patience)
        assert isinstance(found, FirstStep)  # noqa: S101
        return Executable(self, self._count, chained, found)

    def share(self, work: Plan | Builtin) -> float:
        """The part of the memory that a candidate may need: of a GPU's own, or, of CPU devices, of
        this machine's.
        """
        plan = work if isinstance(work, Plan) else work.plan(self.devices)
        given = plan.kind == Kind.INPUT
        by_device = np.bincount(plan.device[given], weights=plan.nbytes[given], minlength=1)
        gpu: int | None = self.provenance.get("gpu_memory_bytes")
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if gpu is None else gpu
        return _COPIES * float(by_device.sum() if gpu is None else by_device.max()) / memory

    def run(
        self,
        work: Plan | Builtin,
        repetitions: int,
        *,
        warmup: int = 2,
        chained: int = 1,
        route: str = ROUTES[0],
    ) -> Measurement:
        """Time one candidate alone, and check it once more after its last step."""
        candidate = self.prepare(work, chained=chained, route=route)
        try:
            candidate.time(warmup)
            return candidate.measured(candidate.time(repetitions))
        finally:
            candidate.release()

    def _problems(self, work: Plan | Builtin, chained: int, route: str) -> list[str]:
        problems = []
        if route not in ROUTES:
            problems.append(_name_nearest("--route", route, ROUTES))
        if chained < 1:
            problems.append(f"chained: a step does a plan once or more often, not {chained} times")
        if isinstance(work, Plan):
            fits = work.device.max(initial=-1) < len(self.devices)
            if not fits or work.devices[: len(self.devices)] != self.devices:
                problems.append(
                    f"the plan is for {', '.join(work.devices)}, and these devices are "
                    f"{', '.join(self.devices)}"
                )
            if work.executor.any() and not all(map(placement.is_cpu, self.place)):
                problems.append(f"the plan is NCCL's, which copies are not; {NCCL} runs it on GPUs")
            if work.machines > 1:
                problems.append(
                    f"the plan is that of one of {work.machines} equal machines, and cannot run "
                    f"alone"
                )
            return problems
        if chained > 1:
            problems.append(f"{work.name}: only plans are chained")
        if work.name == COLLECTIVE and self._functions and route == ROUTES[0] and self.workers:
            # The workers' groups then belong to the functions' context, and a session's would wait
            # for ever.
            problems.append(
                f"{work.name}: not by session in a cluster that has run functions; open another"
            )
        return [*problems, *(by_rank.problems(work, self.workers) if work.name in BY_RANK else [])]


@dataclass(frozen=True)
class Executable:
    """A plan or builtin that is ready to run on a backend; `prepared` describes its first step."""

    backend: Backend = field(repr=False)
    number: int
    chained: int
    prepared: FirstStep
    members: Members | None = field(default=None, repr=False)

    def time(self, repetitions: int) -> Floats:
        """Seconds of each of so many steps, one after another, divided by how often a step does the
        plan.
        """
        if self.members:
            return np.array(self.members.time(repetitions))
        found = self.backend.driver.ask(
            "time", self.number, repetitions, seconds=self.backend.patience
        )
        return np.array(found) / self.chained

    def check(self) -> list[str]:
        """Every result of the last step that the contract does not allow."""
        if self.members:
            return self.members.check()
        return list(self.backend.driver.ask("check", self.number, seconds=self.backend.patience))

    def trace(self) -> list[Event]:
        """A step more, and when each of its ops began and ended. InputError for the route
        `function`.
        """
        if self.members:
            raise InputError(
                "every rank runs a program of its own, and there is no common timeline"
            )
        found: list[Event] = self.backend.driver.ask(
            "trace", self.number, seconds=self.backend.patience
        )
        return found

    def measured(self, seconds: Floats) -> Measurement:
        """These times, with every fault of the first and the last step."""
        wrong = dict.fromkeys((*self.prepared.faults, *self.check()))
        return Measurement(seconds, tuple(wrong), self.prepared.departures, self.prepared)

    def release(self) -> None:
        """Free what it holds."""
        if self.members:
            self.members.close()
        else:
            self.backend.driver.ask("release", self.number, seconds=self.backend.patience)


@contextmanager
def open_backend(
    name: str,
    layout: Layout,
    *,
    used: int | None = None,
    workers: Sequence[Worker] = (),
    driver_prefix: Sequence[str] = (),
    links: Links | None = None,
    threads: int = 0,
    split: int = 1,
    pretend: bool = False,
    patience: float = PATIENCE,
) -> Iterator[Backend]:
    """The first `used` devices of `layout` (default: all) on one of `BACKENDS`, until the `with`
    block ends.

    `inproc`: CPU devices of one process, which share cores and memory.

    `cluster`: one process per device or, if the layout has several tasks, per task, whose devices
    are CPU devices of its process. `workers` are their addresses and commands to start them, by
    default on this machine's loopback. `driver_prefix` starts the driver, which must reach all
    workers.

    `shaped`: a cluster with `links` of known rate between its workers. The driver is beside the
    first worker.

    `gpu`: rank i is GPU i of this machine, every host is its CPU. Each physical GPU is `split` into
    parts. `pretend` takes CPU devices for the GPUs.

    `threads` is how many ops run at a time in one process, 0 for one per core. Raises InputError
    for what cannot be, DeviceError if a process does not start.
    """
    check_names(name)
    check_tensorflow()
    devices = layout.devices[:used]
    computers: list[Computer] = []
    with ExitStack() as stack:
        if name == "shaped":
            if links is None:
                raise InputError("--backend shaped: --rate is missing, such as --rate 200mbit")
            workers = stack.enter_context(shape_links(links)).workers
            driver_prefix = workers[0].prefix
        if name in {"cluster", "shaped"}:
            place, workers, cpus = _place_workers(layout, devices, workers)
            computers = stack.enter_context(start_workers(workers, cpus, threads))
            addresses = tuple(worker.address for worker in workers)
            config = DriverConfig(devices, place, threads=threads, cluster=addresses)
        elif name == "gpu" and not pretend:
            place = tuple(placement.gpus(layout, devices))
            config = DriverConfig(devices, place, gpus=split, threads=threads)
        else:
            place = tuple(placement.logical_cpus(len(devices)))
            config = DriverConfig(devices, place, cpus=len(devices), threads=threads)
        driver = _start_driver(stack, name, driver_prefix, config)
        gpus = sum(not placement.is_cpu(each) for each in place)
        seconds = max(START_SECONDS, patience) + _OPENING * gpus
        provenance = driver.ask("open", config, seconds=seconds)
        provenance |= _links_and_computers(links, workers, computers)
        yield Backend(name, devices, place, tuple(workers), patience, provenance, driver, stack)


def _place_workers(
    layout: Layout, devices: Sequence[str], workers: Sequence[Worker]
) -> tuple[tuple[str, ...], tuple[Worker, ...], list[int]]:
    """The TensorFlow device of each device, the workers, and the CPU devices of each worker."""
    place = placement.workers(layout, devices)
    processes = {placement.process(each) for each in place}
    tasks = sorted(processes, key=lambda name: int(name.rpartition(":")[2]))
    if workers and len(workers) != len(tasks):
        raise InputError(
            f"{len(workers)} workers for {len(tasks)} processes; give an address for each"
        )
    cpus = [sum(placement.process(each) == task for each in place) for task in tasks]
    return tuple(place), tuple(workers) or tuple(loopback(len(tasks))), cpus


def _start_driver(
    stack: ExitStack, name: str, prefix: Sequence[str], config: DriverConfig
) -> Child:
    # TensorFlow then numbers GPUs as nvidia-smi does, and looks for none where there are none.
    visible = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID") if config.gpus else ("CUDA_VISIBLE_DEVICES", "")
    driver = Child(DRIVER, f"{name}: the driver", prefix, [visible])
    stack.callback(driver.close)
    return driver


def _links_and_computers(
    links: Links | None, workers: Sequence[Worker], computers: Sequence[Computer]
) -> dict[str, Any]:
    """What a backend adds to the provenance that the driver gives."""
    found: dict[str, Any] = {} if links is None else {"links": links.text}
    if computers:
        found["workers"] = [
            {"address": worker.address, **computer._asdict()}
            for worker, computer in zip(workers, computers, strict=True)
        ]
    return found


def check_tensorflow() -> None:
    """InputError if it is not installed."""
    if importlib.util.find_spec("tensorflow") is None:
        raise InputError("devices need TensorFlow: pip install 'simreduce[tensorflow]'")


def check_names(backend: str, route: str = ROUTES[0]) -> None:
    """InputError for a backend or a route that there is not; names the nearest."""
    problems = []
    if backend not in BACKENDS:
        problems.append(_name_nearest("--backend", backend, BACKENDS))
    if route not in ROUTES:
        problems.append(_name_nearest("--route", route, ROUTES))
    if problems:
        raise InputError(problems)


def _name_nearest(option: str, name: str, known: Sequence[str]) -> str:
    return f"{option}: unknown {name!r}{did_you_mean(name, known)}; one of {', '.join(known)}"
