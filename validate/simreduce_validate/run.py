"""Plans on real devices, timed beside what is predicted for them: nccl-tests' columns, twice.

    python -m simreduce_validate.run switch:4 --algo ring,direct -b 1K -e 1M -f 8 --backend inproc

Every size of every candidate is checked before its time is shown: all results on all devices, and that the transfers and sums
that were executed are those of the plan. Exit status 1 if any of it is wrong.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

import simreduce as sr
from simreduce import dtypes
from simreduce.algorithms import ALGORITHMS
from simreduce.calibrate import load_calibration
from simreduce.cli.main import main
from simreduce.cli.options import (
    as_json,
    calibration_option,
    echo_json,
    gather,
    gpus_options,
    read_size,
    shape_of,
)
from simreduce.engine import Calibration
from simreduce.errors import InputError, StrategyError
from simreduce.layouts import Layout
from simreduce.plan import Plan
from simreduce.report.busbw import algbw, busbw
from simreduce.strategy import Strategy, compile_plan, parse_strategy
from simreduce.topology import Topology, load_topology
from simreduce.tune.bench import sizes, tensor
from simreduce_validate.running import BUILTINS, ROUTES, Builtin, Measurement, Worker, in_turns, open_backend
from simreduce_validate.running.backend import BACKENDS, PATIENCE, Backend, check_names
from simreduce_validate.running.builtin import check_builtin
from simreduce_validate.running.discover import this_machine, visible

AUTO = "auto"
"""The topology that stands for the GPUs of this machine."""


@dataclass(frozen=True, slots=True)
class Row:
    """One size of one candidate; seconds. `predicted` is NaN where a builtin has no plan of ours for these devices."""

    algorithm: str
    count: int
    dtype: int
    redop: str
    measured: Measurement
    predicted: float

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.count * dtypes.SIZES[self.dtype]

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured.median - 1

    @property
    def faults(self) -> tuple[str, ...]:
        """All that makes the time meaningless."""
        return (*self.measured.wrong, *self.measured.departures)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("topology")
@click.option(
    "--algo", multiple=True, metavar="A[,B...]", help="Strategies; may be repeated; all: every algorithm."
)
@click.option("--builtin", multiple=True, metavar="NAME", help=f"TensorFlow's own: {', '.join(BUILTINS)}.")
@click.option("-b", "--minbytes", default="1M", metavar="SIZE", help="Smallest size; default 1M.")
@click.option("-e", "--maxbytes", default=None, metavar="SIZE", help="Largest size; default: minbytes.")
@click.option("-i", "--stepbytes", default="1M", metavar="SIZE", help="Step between sizes; default 1M.")
@click.option("-f", "--stepfactor", type=float, default=0.0, help="Factor between sizes, instead of a step.")
@gpus_options
@click.option(
    "-d", "--datatype", "--dtype", default="float", help="float, half, double, bfloat16, int32, ..."
)
@click.option("-n", "--iters", type=click.IntRange(1), default=20, help="Timed steps of each; default 20.")
@click.option(
    "-w",
    "--warmup_iters",
    "--warmup-iters",
    type=click.IntRange(0),
    default=2,
    help="Steps before; default 2.",
)
@click.option(
    "--chained", type=click.IntRange(1), default=1, help="All-reduces in a row in one step; default 1."
)
@click.option("--backend", default="inproc", metavar="NAME", help=f"{', '.join(BACKENDS)}; default inproc.")
@click.option(
    "--route", default=ROUTES[0], metavar="NAME", help=f"{' or '.join(ROUTES)}; default {ROUTES[0]}."
)
@click.option(
    "--hosts", default=None, metavar="HOST:PORT,...", help="Of a cluster: where each process listens."
)
@click.option(
    "--launch",
    default="",
    metavar="COMMAND",
    help="Of a cluster: starts what follows it on {host}, for worker {i}.",
)
@click.option("--split", type=click.IntRange(1), default=1, help="Of gpu: parts of each physical GPU.")
@click.option("--pretend", is_flag=True, help="Of gpu: take CPU devices for the GPUs.")
@click.option(
    "--timeout", type=float, default=PATIENCE, help=f"Seconds for one request; default {PATIENCE:g}."
)
@calibration_option("nominal")
@as_json
def run(
    topology: str, algo: tuple[str, ...], builtin: tuple[str, ...], minbytes: str, maxbytes: str | None, stepbytes: str,
    stepfactor: float, ngpus: int | None, gpus: str | None, datatype: str, iters: int, warmup_iters: int, chained: int,
    backend: str, route: str, hosts: str | None, launch: str, split: int, pretend: bool, timeout: float,
    calibration: str, as_json: bool,
) -> int:  # fmt: skip
    """Time all-reduces on real devices, as if they were TOPOLOGY (a name, a file, e.g. switch:4; auto: this machine's GPUs)."""
    problems: list[str] = []
    machine = gather(problems, _machine, topology, split)
    order = (
        None
        if machine is None
        else gather(problems, _shape, machine, ngpus, gpus, auto=topology == AUTO and split == 1)
    )
    dtype = gather(problems, dtypes.code, datatype)
    swept = gather(problems, _sizes, minbytes, maxbytes, stepbytes, stepfactor)
    named = gather(problems, _named, algo or (() if builtin else ("ring",)))
    constants = gather(problems, load_calibration, calibration)
    workers = gather(problems, read_workers, hosts, launch)
    builtins = [name for text in builtin for name in text.split(",") if gather(problems, check_builtin, name)]
    if dtype is not None and swept and swept[0] < dtypes.SIZES[dtype]:
        problems.append(f"-b {minbytes}: less than one element of {dtypes.NAMES[dtype]}")
    if not timeout > 0:
        problems.append(f"--timeout {timeout:g}: needs seconds above 0")
    gather(problems, check_names, backend, route)
    for option, value in (("--hosts", hosts), ("--launch", launch)):
        if value and backend != "cluster":
            problems.append(f"{option}: only --backend cluster has other processes")
    if problems or not (machine and order and swept and named is not None and constants) or dtype is None:
        raise InputError(problems)
    strategies = [s for s, asked in named if asked or _accepted(s, order, swept, dtype)]
    used = max(
        [
            order.n,
            *(
                _used(compile_plan(s, tensor(n, dtype), order))
                for s in strategies
                for n in (swept[0], swept[-1])
            ),
        ]
    )
    question = Question(
        machine, order, strategies, builtins, dtype, constants, iters, warmup_iters, chained, route
    )
    with open_backend(
        backend, order, used=used, workers=workers or (), split=split, pretend=pretend, patience=timeout
    ) as devices:
        rows = [row for nbytes in swept for row in question.rows(devices, nbytes)]
        provenance = devices.provenance
    if as_json:
        echo_json(document(rows, order.n, machine.name, backend, route, constants.name, chained, provenance))
    else:
        about = [
            f"simreduce {sr.__version__}: all-reduce on {order.n} devices of {backend}, route {route}",
            f"topology {machine.name} ({machine.digest}), runtime tensorflow, calibration {constants.name}",
            ", ".join(f"{key} {value}" for key, value in provenance.items() if value),
            f"median of {iters} steps" + (f" of {chained} all-reduces each" if chained > 1 else ""),
        ]
        click.echo(table(rows, order.n, about))
    return int(any(row.faults for row in rows))


@dataclass(frozen=True, slots=True)
class Question:
    """What all rows have in common."""

    topology: Topology
    layout: Layout
    strategies: Sequence[Strategy]
    builtins: Sequence[str]
    dtype: int
    calibration: Calibration
    repetitions: int
    warmup: int
    chained: int
    route: str

    def rows(self, backend: Backend, nbytes: int) -> list[Row]:
        """All candidates at one size, predicted first, then timed in turns."""
        workload = tensor(nbytes, self.dtype)
        plans = [compile_plan(strategy, workload, self.layout) for strategy in self.strategies]
        predicted = [self._predicted(plan, self.chained) for plan in plans]
        predicted += [self._builtin_predicted(name, nbytes) for name in self.builtins]
        candidates = [backend.prepare(plan, chained=self.chained, route=self.route) for plan in plans]
        candidates += [
            backend.prepare(Builtin(name, (workload.elements,), self.layout.n, self.dtype), route=self.route)
            for name in self.builtins
        ]
        measured = in_turns(candidates, self.repetitions, warmup=self.warmup)
        for candidate in candidates:
            candidate.release()
        names = [(s.text, "avg" if s.mean else "sum") for s in self.strategies]
        names += [(name, "sum") for name in self.builtins]
        return [
            Row(name, workload.elements, self.dtype, redop, m, p)
            for (name, redop), m, p in zip(names, measured, predicted, strict=True)
        ]

    def _predicted(self, plan: Plan, times: int) -> float:
        whole = sr.repeat(plan, times) if times > 1 else plan
        return sr.simulate(whole, self.topology, "tensorflow", self.calibration).seconds / times

    def _builtin_predicted(self, name: str, nbytes: int) -> float:
        try:
            return self._predicted(compile_plan(BUILTINS[name], tensor(nbytes, self.dtype), self.layout), 1)
        except StrategyError:
            return math.nan


_HEADER = (
    "#                                                 measured                  predicted",
    "#       size         count      type   redop     time   algbw   busbw     time   busbw   error #faults  transfers  algorithm",
    "#        (B)    (elements)                       (us)  (GB/s)  (GB/s)     (us)  (GB/s)",
)  # fmt: skip


def table(rows: Sequence[Row], ranks: int, about: Sequence[str]) -> str:
    """nccl-tests' columns of what was measured, what was predicted, and how far off that is; faults below."""
    lines = [*(f"# {line}" for line in about), *_HEADER]
    lines += [
        f"{r.nbytes:12d}  {r.count:12d}  {dtypes.NAMES[r.dtype]:>8}  {r.redop:>6}  {r.measured.median * 1e6:7.1f}  "
        f"{algbw(r.nbytes, r.measured.median) / 1e9:6.2f}  {busbw(r.nbytes, r.measured.median, ranks) / 1e9:6.2f}  "
        + (
            f"{r.predicted * 1e6:7.1f}  {busbw(r.nbytes, r.predicted, ranks) / 1e9:6.2f}  {r.error:+6.0%}"
            if math.isfinite(r.predicted)
            else f"{'-':>7}  {'-':>6}  {'-':>6}"
        )
        + f"  {len(r.faults):6d}  {sum(r.measured.prepared.executed.transfers.values()):9d}  {r.algorithm}"
        for r in rows
    ]
    faults = [f"{r.algorithm}, {r.nbytes} bytes: {fault}" for r in rows for fault in r.faults]
    lines.append(f"# Faults               : {len(faults)} {'FAILED' if faults else 'OK'}")
    lines += [f"#   {fault}" for fault in faults[:20]]
    return "\n".join(lines)


def document(
    rows: Sequence[Row], ranks: int, topology: str, backend: str, route: str, calibration: str, chained: int,
    provenance: Any,
) -> dict[str, Any]:  # fmt: skip
    """The same as a document, with every single time."""
    return {
        "command": "validate.run",
        "version": sr.__version__,
        "topology": topology,
        "ranks": ranks,
        "backend": backend,
        "route": route,
        "chained": chained,
        "runtime": "tensorflow",
        "calibration": calibration,
        "provenance": dict(provenance),
        "rows": [
            {
                "size_bytes": r.nbytes,
                "count": r.count,
                "type": dtypes.NAMES[r.dtype],
                "redop": r.redop,
                "algorithm": r.algorithm,
                "time_us": r.measured.median * 1e6,
                "times_us": [seconds * 1e6 for seconds in r.measured.seconds.tolist()],
                "algbw_gb_per_s": algbw(r.nbytes, r.measured.median) / 1e9,
                "busbw_gb_per_s": busbw(r.nbytes, r.measured.median, ranks) / 1e9,
                "predicted_time_us": r.predicted * 1e6 if math.isfinite(r.predicted) else None,
                "error": r.error if math.isfinite(r.predicted) else None,
                "wrong": len(r.faults),
                "faults": list(r.faults),
                "transfers": sum(r.measured.prepared.executed.transfers.values()),
                "control_messages": r.measured.prepared.executed.messages,
            }
            for r in rows
        ],
    }


def read_workers(hosts: str | None, launch: str) -> list[Worker]:
    """`--hosts a:2222,b:2222`, started with `--launch`, in which {host} and {i} stand for a worker's own."""
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
        except (ValueError, KeyError, IndexError):
            problems.append(
                f"--launch {launch!r}: a command in which only {{host}} and {{i}} stand in braces"
            )
            break
        found.append(Worker(address.strip(), prefix))
    if problems:
        raise InputError(problems)
    return found


def _machine(topology: str, split: int) -> Topology:
    return this_machine(split) if topology == AUTO else load_topology(topology)


def _shape(machine: Topology, ngpus: int | None, gpus: str | None, *, auto: bool) -> Layout:
    """The devices to use; of this machine's GPUs, those that TensorFlow may."""
    shape = sr.layout(machine)
    return shape_of(shape.only(visible(shape.n)) if auto else shape, ngpus, gpus)


def _sizes(minbytes: str, maxbytes: str | None, stepbytes: str, stepfactor: float) -> list[int]:
    problems: list[str] = []
    smallest = gather(problems, read_size, "-b", minbytes)
    largest = smallest if maxbytes is None else gather(problems, read_size, "-e", maxbytes)
    step = gather(problems, read_size, "-i", stepbytes)
    if smallest is None or largest is None or step is None:
        raise InputError(problems)
    return sizes(smallest, largest, step, stepfactor)


def _named(texts: Sequence[str]) -> list[tuple[Strategy, bool]]:
    """The strategies of `--algo`, and whether each was asked for by name. `A,B` are two, unless it is one with a comma in it."""
    found: list[tuple[Strategy, bool]] = []
    problems: list[str] = []
    for text in texts:
        if text == "all":
            found += [(parse_strategy(name), False) for name in ALGORITHMS]
            continue
        try:
            found.append((parse_strategy(text), True))
        except StrategyError:
            for part in re.split(r",(?=[A-Za-z])", text):
                if strategy := gather(problems, parse_strategy, part):
                    found.append((strategy, True))
    if problems:
        raise InputError(problems)
    return found


def _accepted(strategy: Strategy, shape: Layout, swept: Sequence[int], dtype: int) -> bool:
    """Whether these devices can do it at every size; says why not."""
    try:
        for nbytes in swept:
            compile_plan(strategy, tensor(nbytes, dtype), shape)
    except StrategyError as error:
        for problem in error.problems:
            click.echo(f"{strategy.text} left out: {problem.removeprefix(f'{strategy.text}: ')}", err=True)
        return False
    return True


def _used(plan: Plan) -> int:
    """How many of its devices, from the first on, a plan needs."""
    return int(plan.device.max(initial=0)) + 1


if __name__ == "__main__":
    main(run)
