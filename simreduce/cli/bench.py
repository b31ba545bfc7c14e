"""`simreduce bench TOPOLOGY`: letters and columns of nccl-tests."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial

import click

from simreduce import dtypes, tables, units
from simreduce.algorithms import COLLECTIVES, NAMES, TWO_LEVEL
from simreduce.calibrate import load_calibration
from simreduce.cli.options import (
    T,
    as_json,
    calibration_option,
    check_collective,
    check_outputs,
    check_used,
    disturbance_options,
    echo_beside,
    echo_json,
    faithful_option,
    gather,
    gather_of,
    gpu_indices_option,
    gpus_options,
    read_disturbance,
    read_gpu_indices,
    runtime_option,
    shape_of,
    write_output,
)
from simreduce.cli.progress import Progress
from simreduce.cli.sizes import read_sizes, sizes_options
from simreduce.cli.strategies import algo_option, read_strategies
from simreduce.engine import check_routes, runtime_named
from simreduce.errors import InputError
from simreduce.layouts import Layout, layout
from simreduce.report import bench_document, bench_table, folded_lines, nccl_tests_document
from simreduce.setup import Setup
from simreduce.strategy import Strategy, compile_collective
from simreduce.topology import Folded, Topology, load_machine
from simreduce.tune.bench import DIVIDED, Stuck, bench as measure, tensor
from simreduce.workload import Workload


@click.command()
@click.argument("topology")
@algo_option("Strategies, all: every one; default ring, or the first there is")
@click.option(
    "--collective",
    default="all_reduce",
    metavar="NAME",
    help=f"{', '.join(NAMES)}; default all_reduce.",
)
@click.option(
    "-r", "--root", type=int, default=0, help="Rank that broadcasts, or that a reduce ends on."
)
@sizes_options("32M")
@gpus_options
@click.option("-d", "--datatype", default="float", help="float, half, double, ...")
@click.option(
    "--fold",
    is_flag=True,
    help="Simulate one of equal machines for all; the default where they are too many.",
)
@runtime_option("tensorflow")
@calibration_option("nominal")
@gpu_indices_option
@faithful_option
@disturbance_options
@click.option(
    "-J",
    "--output_file",
    "--output-file",
    default=None,
    metavar="FILE",
    help="Also write nccl-tests' JSON; -: stdout, with the table on stderr.",
)
@as_json
def bench(
    topology: str,
    algo: tuple[str, ...],
    collective: str,
    root: int,
    minbytes: str,
    maxbytes: str | None,
    stepbytes: str,
    stepfactor: float,
    ngpus: int | None,
    gpus: str | None,
    datatype: str,
    fold: bool,
    runtime: str,
    calibration: str,
    gpu_indices: str | None,
    faithful: bool | None,
    jitter: str,
    seed: int,
    slow: tuple[str, ...],
    fault: tuple[str, ...],
    output_file: str | None,
    as_json: bool,
) -> int:
    """One collective of one tensor of each size on TOPOLOGY (a shipped name, a file, or e.g.
    switch:8,bandwidth=10GB/s).

    Exit status 1 if a strategy can never finish. What is stopped (Ctrl-C, SIGTERM) prints the rows
    that it has, with status 130.
    """
    problems: list[str] = []
    machine = gather(problems, load_machine, topology, folded=fold)
    order = gather(problems, read_gpu_indices, gpu_indices)
    shape = (
        None if machine is None else gather(problems, shape_of, layout(machine), ngpus, gpus, order)
    )
    dtype = gather_of("--datatype", problems, dtypes.code, datatype)
    swept = gather(problems, read_sizes, minbytes, maxbytes, stepbytes, stepfactor)
    known = gather(problems, check_collective, collective)
    gather(problems, check_used, collective, faithful, gpu_indices)
    named = gather(problems, _strategies, algo, known) if known else None
    chosen = gather_of("--runtime", problems, runtime_named, runtime)
    constants = gather_of("--calibration", problems, load_calibration, calibration)
    disturbance = gather(problems, read_disturbance, jitter, seed, slow, fault,
                         machine if isinstance(machine, Topology) else None)  # fmt: skip
    gather(problems, check_outputs, {"-J": output_file}, as_json=as_json)
    if shape and not 0 <= root < shape.n:
        problems.append(f"-r {root}: the ranks are 0 to {shape.n - 1}")
    parts = shape.n if shape and collective in DIVIDED else 1
    if dtype is not None and swept and swept[0] < dtypes.SIZES[dtype] * parts:
        each = f" for each of {parts} ranks" if parts > 1 else ""
        problems.append(f"-b {minbytes}: less than one element of {dtypes.NAMES[dtype]}{each}")
    if (
        problems
        or not (machine and shape and named and swept and chosen and constants)
        or dtype is None
    ):
        raise InputError(problems)
    assert disturbance is not None  # noqa: S101 - else there is a problem
    began = _now()
    accepted = partial(
        _accepted,
        machine,
        shape,
        [tensor(size, dtype, parts) for size in swept],
        bool(faithful),
        root,
    )
    strategies = [strategy for strategy, by_name in named if by_name or accepted(strategy)]
    coming = measure(
        Setup(machine, chosen, constants, disturbance, shape), strategies, swept, dtype,
        faithful=bool(faithful), root=root,
    )  # fmt: skip
    rows, complete = _until_stopped(coming, len(strategies) * len(swept))
    ranks = shape.n
    ended = _now()
    if as_json:
        echo_json(
            bench_document(
                rows,
                ranks,
                machine.name,
                chosen.name,
                constants.name,
                collective,
                disturbance.text,
                complete=complete,
            )
        )
    else:
        about = tables.setup_lines(
            f"simulated {collective.replace('_', '-')}, {units.counted(ranks, 'rank')}",
            (machine.name, machine.digest),
            chosen.name,
            constants.name,
            *folded_lines(rows),
            f"disturbed: {disturbance.text}" if disturbance.text else "",
        )
        echo_beside(bench_table(rows, ranks, about, complete=complete), output_file)
    if output_file is not None:
        document = nccl_tests_document(rows, ranks, sys.argv[1:], machine.name, began, ended)
        write_output(output_file, [json.dumps(document, indent=2) + "\n"])
    return int(any(isinstance(r, Stuck) or r.wrong for r in rows)) if complete else 130


def _until_stopped(coming: Iterable[T], total: int) -> tuple[list[T], bool]:
    """What came, and whether nobody stopped it; an interrupt before the first is the caller's."""
    rows: list[T] = []
    try:
        with Progress("simulated {} of {} rows") as progress:
            progress(0, total)
            for row in coming:
                rows.append(row)
                progress(len(rows), total)
    except KeyboardInterrupt:
        if not rows:
            raise
        return rows, False
    return rows, True


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _strategies(texts: tuple[str, ...], collective: str) -> list[tuple[Strategy, bool]]:
    """The strategies asked for, and whether by name: the machine may refuse those that `all` stands
    for.
    """
    known = COLLECTIVES[collective]
    names = [*known, *(TWO_LEVEL if collective == "all_reduce" else ())]
    return read_strategies(texts or ("ring" if "ring" in known else names[0],), names, collective)


def _accepted(
    machine: Topology | Folded,
    shape: Layout,
    workloads: list[Workload],
    faithful: bool,
    root: int,
    strategy: Strategy,
) -> bool:
    """Whether the machine can run it at every size; says why not."""
    try:
        plans = [
            compile_collective(
                strategy.collective, strategy, workload, shape, root=root, faithful=faithful
            )
            for workload in workloads
        ]
        check_routes(plans[0], machine)
    except InputError as error:
        for problem in error.problems:
            click.echo(
                f"{strategy.text} left out: {problem.removeprefix(f'{strategy.text}: ')}", err=True
            )
        return False
    return True
