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
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

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
    shape_of,
)
from simreduce.cli.sizes import read_sizes, sizes_options
from simreduce.engine import Calibration
from simreduce.errors import InputError, StrategyError
from simreduce.layouts import Layout
from simreduce.plan import Plan
from simreduce.report.busbw import algbw, busbw
from simreduce.strategy import Strategy, compile_plan, parse_strategy
from simreduce.topology import Topology, load_topology
from simreduce.tune.bench import tensor
from simreduce_validate.measuring import (
    Forecast,
    Interval,
    Record,
    already_there,
    in_rounds,
    median_interval,
    noise,
    ratio_interval,
    recording,
)
from simreduce_validate.measuring.provenance import provenance as provenance_of
from simreduce_validate.running import BUILTINS, ROUTES, Builtin, Measurement, Worker, open_backend
from simreduce_validate.running.backend import BACKENDS, PATIENCE, Backend, check_names
from simreduce_validate.running.builtin import check_builtin
from simreduce_validate.running.discover import this_machine, visible
from simreduce_validate.running.links import Links, read_links

SHAPED = "shaped"
AUTO = "auto"
"""The topology that stands for the GPUs of this machine."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be measured, and the seconds predicted for it: NaN where a builtin has no plan of ours for these devices.
    `repeats` is the place of an earlier case that is the very same: what the two differ by is noise.
    """

    algorithm: str
    work: Plan | Builtin
    count: int
    dtype: int
    redop: str
    predicted: float
    repeats: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.count * dtypes.SIZES[self.dtype]

    @property
    def forecast(self) -> Forecast:
        """As it is recorded."""
        plan = self.work.digest if isinstance(self.work, Plan) else ""
        predicted = self.predicted * 1e6 if math.isfinite(self.predicted) else None
        return Forecast(
            self.algorithm, self.nbytes, self.count, dtypes.NAMES[self.dtype], self.redop, plan, predicted, self.repeats
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One size of one candidate."""

    case: Case
    measured: Measurement

    @property
    def interval(self) -> Interval:
        """Between which seconds the median lies."""
        return median_interval(self.measured.seconds)

    @property
    def predicted(self) -> float:
        """Seconds."""
        return self.case.predicted

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
@sizes_options("1M")
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
@click.option(
    "--rate", default=None, metavar="RATE", help="Of shaped: of every port, each way, such as 200mbit."
)
@click.option("--delay", default=None, metavar="TIME", help="Of shaped: one way, such as 5ms; default 0.")
@click.option(
    "--slow",
    multiple=True,
    metavar="PORT=RATE",
    help="Of shaped: one slower port, such as 2=100mbit; may be repeated.",
)
@click.option(
    "--out", default=None, metavar="FILE", help="Keep predictions, then every sample, in a new file."
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
    backend: str, route: str, hosts: str | None, launch: str, rate: str | None, delay: str | None, slow: tuple[str, ...], out: str | None,
    split: int, pretend: bool, timeout: float,
    calibration: str, as_json: bool,
) -> int:  # fmt: skip
    """Time all-reduces on real devices, as if they were TOPOLOGY (a name, a file, e.g. switch:4; auto: this machine's GPUs)."""
    problems: list[str] = []
    links: Links | None = None
    machine: Topology | None = None
    order: Layout | None = None
    if backend == SHAPED:
        if links := gather(problems, read_links, topology, rate, delay, slow):
            machine, order = links.machine(), links.layout()
        problems += [
            f"{option}: with --backend shaped, switch:N says how many workers there are"
            for option, value in (("-g", ngpus), ("--gpus", gpus))
            if value is not None
        ]
    elif machine := gather(problems, _machine, topology, split):
        order = gather(problems, _shape, machine, ngpus, gpus, auto=topology == AUTO and split == 1)
    dtype = gather(problems, dtypes.code, datatype)
    swept = gather(problems, read_sizes, minbytes, maxbytes, stepbytes, stepfactor)
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
    for option, given in (("--rate", rate), ("--delay", delay), ("--slow", slow)):
        if given and backend != SHAPED:
            problems.append(f"{option}: only --backend shaped sets the links")
    if out is not None and Path(out).exists():
        problems.append(already_there(out))
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
    cases = [question.cases(nbytes, twice=out is not None) for nbytes in swept]
    forecasts = [case.forecast for group in cases for case in group]
    with ExitStack() as stack:
        devices = stack.enter_context(
            open_backend(
                backend, order, used=used, workers=workers or (), links=links, split=split, pretend=pretend,
                patience=timeout,
            )
        )  # fmt: skip
        provenance = devices.provenance
        record = None
        if out is not None:
            settings = {
                "topology": machine.name, "topology_digest": machine.digest, "backend": backend, "route": route,
                "runtime": "tensorflow", "calibration": constants.name, "iterations": iters, "warmup": warmup_iters,
                "chained": chained,
            }  # fmt: skip
            ran_on = provenance_of(provenance, settings)
            record = stack.enter_context(recording(Path(out), ran_on, forecasts))
        rows: list[Row] = []
        for group in cases:
            rows += question.rows(devices, group, len(rows), record)
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

    def cases(self, nbytes: int, *, twice: bool) -> list[Case]:
        """All candidates at one size, with what is predicted; the first once more in the end, if `twice`."""
        workload = tensor(nbytes, self.dtype)
        count = workload.elements
        found = []
        for strategy in self.strategies:
            plan = compile_plan(strategy, workload, self.layout)
            redop = "avg" if strategy.mean else "sum"
            found.append(
                Case(strategy.text, plan, count, self.dtype, redop, self._predicted(plan, self.chained))
            )
        for name in self.builtins:
            work = Builtin(name, (count,), self.layout.n, self.dtype)
            found.append(Case(name, work, count, self.dtype, "sum", self._builtin_predicted(name, nbytes)))
        return [*found, replace(found[0], repeats=0)] if twice else found

    def rows(self, backend: Backend, cases: Sequence[Case], first: int, record: Record | None) -> list[Row]:
        """Time cases in turns. The first is candidate `first` of the record."""
        candidates = [
            backend.prepare(
                case.work, chained=self.chained if isinstance(case.work, Plan) else 1, route=self.route
            )
            for case in cases
        ]

        def note(place: int, number: int, seconds: float) -> None:
            if record:
                record.sample(first + place, number, seconds)

        samples = in_rounds(candidates, self.repetitions, warmup=self.warmup, note=note)
        found = [
            Row(case, candidate.measured(seconds))
            for case, candidate, seconds in zip(cases, candidates, samples, strict=True)
        ]
        for place, (row, candidate) in enumerate(zip(found, candidates, strict=True), start=first):
            if record:
                record.checked(place, row.faults)
            candidate.release()
        return found

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
        f"{r.case.nbytes:12d}  {r.case.count:12d}  {dtypes.NAMES[r.case.dtype]:>8}  {r.case.redop:>6}  {r.measured.median * 1e6:7.1f}  "
        f"{algbw(r.case.nbytes, r.measured.median) / 1e9:6.2f}  {busbw(r.case.nbytes, r.measured.median, ranks) / 1e9:6.2f}  "
        + (
            f"{r.predicted * 1e6:7.1f}  {busbw(r.case.nbytes, r.predicted, ranks) / 1e9:6.2f}  {r.error:+6.0%}"
            if math.isfinite(r.predicted)
            else f"{'-':>7}  {'-':>6}  {'-':>6}"
        )
        + f"  {len(r.faults):6d}  {sum(r.measured.prepared.executed.transfers.values()):9d}  {r.case.algorithm}"
        for r in rows
    ]
    lines += [f"# {line}" for line in noise_lines(rows)]
    faults = [f"{r.case.algorithm}, {r.case.nbytes} bytes: {fault}" for r in rows for fault in r.faults]
    lines.append(f"# Faults               : {len(faults)} {'FAILED' if faults else 'OK'}")
    lines += [f"#   {fault}" for fault in faults[:20]]
    return "\n".join(lines)


def noise_lines(rows: Sequence[Row]) -> list[str]:
    """What the medians are worth: their intervals, outliers, drift, and what the same candidate differs by from itself."""
    found = [noise(row.measured.seconds) for row in rows]
    widths = [(r.interval.high - r.interval.low) / 2 / r.measured.median for r in rows]
    samples, far = sum(len(r.measured.seconds) for r in rows), sum(len(each.outliers) for each in found)
    lines = [
        f"medians: +-{np.median(widths):.1%} (the worst +-{max(widths):.1%}) with 95 %",
        f"outliers: {far} of {samples} samples; they count",
    ]
    lines += [
        f"drift: {r.case.algorithm}, {r.case.nbytes} bytes: the second half took {each.drift.value:+.1%} "
        f"({each.drift.low:+.1%} to {each.drift.high:+.1%})"
        for r, each in zip(rows, found, strict=True)
        if each.drifts
    ]
    for row in rows:
        if row.case.repeats is not None:
            same = next(r for r in rows if r.case.nbytes == row.case.nbytes)
            ratio = ratio_interval(row.measured.seconds, same.measured.seconds)
            lines.append(
                f"noise floor: {row.case.algorithm}, {row.case.nbytes} bytes, measured twice: {ratio.value - 1:+.1%} "
                f"({ratio.low - 1:+.1%} to {ratio.high - 1:+.1%})"
            )
    return lines


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
                "size_bytes": r.case.nbytes,
                "count": r.case.count,
                "type": dtypes.NAMES[r.case.dtype],
                "redop": r.case.redop,
                "algorithm": r.case.algorithm,
                "time_us": r.measured.median * 1e6,
                **_worth(r),
                "repeats": r.case.repeats,
                "times_us": [seconds * 1e6 for seconds in r.measured.seconds.tolist()],
                "algbw_gb_per_s": algbw(r.case.nbytes, r.measured.median) / 1e9,
                "busbw_gb_per_s": busbw(r.case.nbytes, r.measured.median, ranks) / 1e9,
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


def _worth(row: Row) -> dict[str, Any]:
    """What the median of a row is worth. `drift` has no bounds where there are too few samples for them."""
    found, interval = noise(row.measured.seconds), row.interval
    return {
        "low_us": interval.low * 1e6,
        "high_us": interval.high * 1e6,
        "spread": found.spread,
        "outliers": list(found.outliers),
        "drift": found.drift.value,
        "drifts": found.drifts,
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
