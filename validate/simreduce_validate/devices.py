"""Devices as the options of `calibrate`, `validate` and `run --measure` name them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import click

import simreduce as sr
from simreduce.app.cli.setups import shape_of
from simreduce.engine import Calibration
from simreduce.engine.runtime import LinkConstants
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, StrategyError
from simreduce.files.formats.syntax import Faults
from simreduce.plan import Executor
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy
from simreduce.planners.strategy.compiler import compile_plan
from simreduce.study.scenario import Scenario
from simreduce.topology import Topology, load_topology
from simreduce.workload import Workload
from simreduce_validate.running import BUILTINS, Worker, open_backend
from simreduce_validate.running.backend import Backend, check_names
from simreduce_validate.running.builtin import NCCL
from simreduce_validate.running.discover import this_machine, visible
from simreduce_validate.running.links import CABLE, MOST_PORTS, Links, read_links
from simreduce_validate.running.stage import Stage, build_stage

RUNTIME = "tensorflow"
STEP, REQUEST, LATE = 0.8e-3, 0.2e-3, 0.5e-3
"""Seconds that a session adds over shaped links, besides the ways of its messages: for each process
that takes part in a step, for a value's request and receipt, and for each way over our own switch,
as it and the receiver have to be woken.

Measured on two cores with one value of 4 bytes: from one process to another, to a third, and there
and back three times. Over links that the kernel shapes, steps took 1.6 to 2.2, 2.8 and 3.1 ms at
least. A way over our own switch took 0.3 to 0.6 ms longer than its delay.
"""

SHAPED = "shaped"
AUTO = "auto"
"""The topology that stands for the GPUs of this machine."""


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices to measure on, none of them started yet.

    Planners see `topology`; what is simulated is `stage.machine`.
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

    def setup(self, calibration: Calibration) -> Setup:
        """What is simulated for these devices. On shaped links, constants that know nothing of
        sessions have `STEP`, `REQUEST` and `LATE`.
        """
        if self.links and calibration.cpu is None and not calibration.step:
            dispatch = {"copy": REQUEST, **calibration.dispatch}
            way = LinkConstants(latency=(self.links.delay + LATE) / 2)
            known = {CABLE: way} if self.links.own_switch else {}
            links = {**known, **calibration.links}
            calibration = replace(calibration, step=STEP, dispatch=dispatch, links=links)
        return Setup(self.stage.machine, RUNTIME, calibration, part=self.layout)

    @contextmanager
    def open(self, used: int) -> Iterator[Backend]:
        """Start the first `used` devices, until the `with` block ends."""
        with open_backend(
            self.stage.backend,
            self.layout,
            used=used,
            workers=self.workers,
            links=self.links,
            split=self.split,
            pretend=self.pretend,
            patience=self.patience,
        ) as backend:
            yield backend


def read_devices(
    topology: str | Scenario | None,
    ngpus: int | None,
    gpus: str | None,
    *,
    backend: str,
    route: str,
    hosts: str | None,
    launch: str,
    rate: str | None,
    delay: str | None,
    slow_port: Sequence[str],
    split: int,
    pretend: bool,
    timeout: float,
) -> Devices:
    """The devices that stand for a machine, by name, or for that of a scenario.

    Raises InputError with every fault. None stands for a machine with a fault that is reported
    already.
    """
    faults = Faults()
    links: Links | None = None
    machine: Topology | None = None
    order: Layout | None = None
    if backend == SHAPED:
        links = faults.attempt("", read_links, _ports(topology), rate, delay, tuple(slow_port))
        if links:
            machine, order = links.machine(), _order(links, topology)
        for option, value in (("-g", ngpus), ("--gpus", gpus)):
            if value is not None:
                faults.add(option, "with --backend shaped, switch:N gives the number of workers")
    elif isinstance(topology, Scenario):
        machine = topology.setup.topology
        order = faults.attempt("", shape_of, topology.setup.layout, ngpus, gpus)
    elif topology is not None and (machine := faults.attempt("", _machine, topology, split)):
        whole_gpus = topology == AUTO and split == 1
        order = faults.attempt("", _layout, machine, ngpus, gpus, only_visible=whole_gpus)
    workers = faults.attempt("", read_workers, hosts, launch)
    if not timeout > 0:
        faults.add(f"--timeout {timeout:g}", "needs seconds above 0")
    faults.attempt("", check_names, backend, route)
    gpu_only = {"--split": split > 1, "--pretend": pretend}
    cluster_only = {"--hosts": hosts, "--launch": launch}
    shaped_only = {"--rate": rate, "--delay": delay, "--slow-port": slow_port}
    for name, options, why in (
        ("gpu", gpu_only, "has GPUs"),
        ("cluster", cluster_only, "has other processes"),
        (SHAPED, shaped_only, "sets the links"),
    ):
        for option, given in options.items():
            if given and backend != name:
                faults.add(option, f"only --backend {name} {why}")
    if faults.problems or not machine or not order:
        raise InputError(faults.problems)
    stage = build_stage(backend, order, machine, links, pretend=pretend)
    return Devices(stage, machine, links, tuple(workers or ()), route, split, pretend, timeout)


def read_workers(hosts: str | None, launch: str) -> list[Worker]:
    """The workers of `--hosts a:2222,b:2222`, started with `--launch`.

    In the command, {host} and {i} stand for a worker's own.
    """
    if hosts is None:
        if launch:
            raise InputError("--launch: needs --hosts, which says where the workers are")
        return []
    faults, found = Faults(), []
    for i, address in enumerate(hosts.split(",")):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            faults.add("--hosts", f"{address!r} is not HOST:PORT, such as 10.0.0.1:2222")
            continue
        try:
            prefix = tuple(part.format(host=host, i=i) for part in shlex.split(launch))
        except (ValueError, KeyError, IndexError, AttributeError):
            faults.add(f"--launch {launch!r}", "only {host} and {i} may stand in its braces")
            break
        found.append(Worker(address.strip(), prefix))
    faults.raise_any()
    return found


def _ports(topology: str | Scenario | None) -> str:
    """The text that says how many workers shaped links have; the most if that is unknown."""
    if isinstance(topology, Scenario):
        return topology.setup.topology.name
    return f"switch:{MOST_PORTS}" if topology is None else topology


def _order(links: Links, topology: str | Scenario | None) -> Layout:
    """The workers on shaped links, in the order of a scenario's rings."""
    order = topology.setup.layout.order if isinstance(topology, Scenario) else ()
    return links.layout().with_order(order) if order else links.layout()


def _machine(topology: str, split: int) -> Topology:
    return this_machine(split) if topology == AUTO else load_topology(topology)


def _layout(
    machine: Topology, ngpus: int | None, gpus: str | None, *, only_visible: bool
) -> Layout:
    """The devices to use; of this machine's GPUs, those that TensorFlow may."""
    whole = sr.layout(machine)
    return shape_of(whole.only(visible(whole.n)) if only_visible else whole, ngpus, gpus)


def can_run(
    strategy: Strategy,
    devices: Devices,
    workloads: Sequence[Workload],
    *,
    faithful: bool = False,
    chained: int = 1,
) -> bool:
    """Whether these devices can run a strategy with every workload; prints on stderr why not."""
    reasons = refusals(strategy, devices, workloads, faithful=faithful, chained=chained)
    for reason in reasons:
        click.echo(f"{strategy.text} left out: {reason}", err=True)
    return not reasons


def refusals(
    strategy: Strategy,
    devices: Devices,
    workloads: Sequence[Workload],
    *,
    faithful: bool = False,
    chained: int = 1,
) -> list[str]:
    """Why these devices cannot run a strategy with every workload.

    TensorFlow's ops of NCCL run `nccl`, on GPUs. NCCL's plans as plain copies would be no
    measurement of NCCL.
    """
    try:
        plans = [
            compile_plan(strategy, workload, devices.layout, faithful=faithful)
            for workload in workloads
        ]
    except StrategyError as error:
        return [problem.removeprefix(f"{strategy.text}: ") for problem in error.problems]
    if lacking := devices.stage.lacks(plans[0]):
        return [f"TensorFlow has no device for {lacking[0]}"]
    if not any((plan.executor != Executor.TF).any() for plan in plans):
        return []
    if why := nccl_refusal(devices):
        return [why]
    if strategy.text != BUILTINS[NCCL]:
        return [f"TensorFlow leaves all choices to NCCL, so only {BUILTINS[NCCL]} can be measured"]
    return ["TensorFlow's op of NCCL is not chained"] if chained > 1 else []


def nccl_refusal(devices: Devices) -> str:
    """Why NCCL cannot run on these devices, "" if it can."""
    if devices.stage.on_cpus:
        return "NCCL has no CPU devices"
    return "NCCL takes no parts of a GPU, as --split makes" if devices.split > 1 else ""
