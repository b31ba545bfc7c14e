"""What is asked of devices: what the options mean that `calibrate`, `validate` and `run --measure`
share.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import click

import simreduce as sr
from simreduce.cli.options import gather, shape_of
from simreduce.errors import InputError, StrategyError
from simreduce.layouts import Layout
from simreduce.plan import Executor
from simreduce.scenario import Scenario
from simreduce.strategy import Strategy, compile_plan
from simreduce.topology import Topology, load_topology
from simreduce.workload import Workload
from simreduce_validate.running import Worker, open_backend
from simreduce_validate.running.backend import Backend, check_names
from simreduce_validate.running.discover import this_machine, visible
from simreduce_validate.running.links import MOST_PORTS, Links, read_links
from simreduce_validate.running.stage import Stage, build_stage

SHAPED = "shaped"
AUTO = "auto"
"""The topology that stands for the GPUs of this machine."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices that were asked for, none of them started. `topology` is what planners are told,
    `stage.machine` what is simulated.
    """

    stage: Stage
    topology: Topology
    links: Links | None
    workers: tuple[Worker, ...]
    route: str
    split: int
    pretend: bool
    patience: float

    @property
    def layout(self) -> Layout:
        """What planners see."""
        return self.stage.layout

    @contextmanager
    def open(self, used: int) -> Iterator[Backend]:
        """The first `used` of them, until the `with` block ends."""
        with open_backend(
            self.stage.backend, self.layout, used=used, workers=self.workers, links=self.links, split=self.split,
            pretend=self.pretend, patience=self.patience,
        ) as backend:  # fmt: skip
            yield backend


def read_devices(
    topology: str | Scenario | None, ngpus: int | None, gpus: str | None, *, backend: str, route: str, hosts: str | None,
    launch: str, rate: str | None, delay: str | None, slow_port: Sequence[str], split: int, pretend: bool, timeout: float,
) -> Devices:  # fmt: skip
    """What the options of `device_options` ask for, as a machine by its name or that of a scenario.
    InputError tells all that is wrong; None is a machine of which something is wrong that is told
    already.
    """
    problems: list[str] = []
    links: Links | None = None
    machine: Topology | None = None
    order: Layout | None = None
    if backend == SHAPED:
        if links := gather(problems, read_links, _workers(topology), rate, delay, tuple(slow_port)):
            machine, order = links.machine(), links.layout()
            if isinstance(topology, Scenario) and topology.setup.layout.order:
                order = order.ordered(topology.setup.layout.order)
        problems += [
            f"{option}: with --backend shaped, switch:N says how many workers there are"
            for option, value in (("-g", ngpus), ("--gpus", gpus))
            if value is not None
        ]
    elif isinstance(topology, Scenario):
        machine = topology.setup.topology
        order = gather(problems, shape_of, topology.setup.layout, ngpus, gpus)
    elif topology is not None and (machine := gather(problems, _machine, topology, split)):
        order = gather(problems, _shape, machine, ngpus, gpus, auto=topology == AUTO and split == 1)
    workers = gather(problems, read_workers, hosts, launch)
    if not timeout > 0:
        problems.append(f"--timeout {timeout:g}: needs seconds above 0")
    gather(problems, check_names, backend, route)
    for option, useless in (("--split", split > 1), ("--pretend", pretend)):
        if useless and backend != "gpu":
            problems.append(f"{option}: only --backend gpu has GPUs")
    for option, value in (("--hosts", hosts), ("--launch", launch)):
        if value and backend != "cluster":
            problems.append(f"{option}: only --backend cluster has other processes")
    for option, given in (("--rate", rate), ("--delay", delay), ("--slow-port", slow_port)):
        if given and backend != SHAPED:
            problems.append(f"{option}: only --backend shaped sets the links")
    if problems or not machine or not order:
        raise InputError(problems)
    where = build_stage(backend, order, machine, links, pretend=pretend)
    return Devices(where, machine, links, tuple(workers or ()), route, split, pretend, timeout)


def read_workers(hosts: str | None, launch: str) -> list[Worker]:
    """`--hosts a:2222,b:2222`, started with `--launch`, in which {host} and {i} stand for a
    worker's own.
    """
    if hosts is None:
        if launch:
            raise InputError("--launch: needs --hosts, which says where the workers are")
        return []
    problems, found = [], []
    for i, address in enumerate(hosts.split(",")):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            problems.append(f"--hosts: {address!r} is not HOST:PORT, such as 10.0.0.1:2222")
            continue
        try:
            prefix = tuple(part.format(host=host, i=i) for part in shlex.split(launch))
        except (ValueError, KeyError, IndexError, AttributeError):
            problems.append(
                f"--launch {launch!r}: a command in which only {{host}} and {{i}} stand in braces"
            )
            break
        found.append(Worker(address.strip(), prefix))
    if problems:
        raise InputError(problems)
    return found


def _workers(topology: str | Scenario | None) -> str:
    """What says how many workers shaped links have; the most, where that is not known."""
    if isinstance(topology, Scenario):
        return topology.setup.topology.name
    return f"switch:{MOST_PORTS}" if topology is None else topology


def _machine(topology: str, split: int) -> Topology:
    return this_machine(split) if topology == AUTO else load_topology(topology)


def _shape(machine: Topology, ngpus: int | None, gpus: str | None, *, auto: bool) -> Layout:
    """The devices to use; of this machine's GPUs, those that TensorFlow may."""
    shape = sr.layout(machine)
    return shape_of(shape.only(visible(shape.n)) if auto else shape, ngpus, gpus)


def can_run(
    strategy: Strategy, devices: Devices, workloads: Sequence[Workload], *, faithful: bool = False
) -> bool:
    """Whether these devices can do it with every workload; says on stderr why not."""
    reasons = refusals(strategy, devices, workloads, faithful=faithful)
    for reason in reasons:
        click.echo(f"{strategy.text} left out: {reason}", err=True)
    return not reasons


def refusals(
    strategy: Strategy, devices: Devices, workloads: Sequence[Workload], *, faithful: bool = False
) -> list[str]:
    """Why these devices cannot do it with every workload. NCCL's plans are for GPUs: between CPU
    devices they are copies like others, which nobody would ask for.
    """
    try:
        plans = [
            compile_plan(strategy, workload, devices.layout, faithful=faithful)
            for workload in workloads
        ]
    except StrategyError as error:
        return [problem.removeprefix(f"{strategy.text}: ") for problem in error.problems]
    theirs = any((plan.executor == Executor.NCCL).any() for plan in plans)
    return ["NCCL has no CPU devices"] if theirs and devices.stage.on_cpus else []
