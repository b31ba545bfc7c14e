"""`simreduce bench TOPOLOGY`: letters and columns of nccl-tests."""

from __future__ import annotations

import sys

import click

import simreduce
from simreduce import dtypes, units
from simreduce.algorithms import ALGORITHMS
from simreduce.calibrate import load_calibration
from simreduce.cli.options import as_json, calibration_option, echo_json, runtime_option, write_json
from simreduce.engine import runtime_named
from simreduce.errors import InputError, StrategyError
from simreduce.layouts import Layout, layout
from simreduce.report import bench_document, bench_table, nccl_tests_document
from simreduce.strategy import Strategy, compile_plan, parse_strategy
from simreduce.topology import load_topology
from simreduce.tune.bench import bench as measure, sizes
from simreduce.workload import Gradient, Workload


@click.command()
@click.argument("topology")
@click.option(
    "--algo", multiple=True, default=("ring",), metavar="STRATEGY", help="May be repeated; all: every one."
)
@click.option("-b", "--minbytes", default="32M", metavar="SIZE", help="Smallest size; default 32M.")
@click.option("-e", "--maxbytes", default=None, metavar="SIZE", help="Largest size; default: minbytes.")
@click.option("-i", "--stepbytes", default="1M", metavar="SIZE", help="Step between sizes; default 1M.")
@click.option("-f", "--stepfactor", type=float, default=0.0, help="Factor between sizes, instead of a step.")
@click.option("-g", "--ngpus", type=int, default=None, help="Use the first GPUs only.")
@click.option("-d", "--datatype", default="float", help="float, half, double, ...")
@runtime_option("tensorflow")
@calibration_option("nominal")
@click.option(
    "-J", "--output_file", "--output-file", default=None, metavar="FILE", help="Also write nccl-tests' JSON."
)
@as_json
def bench(
    topology: str,
    algo: tuple[str, ...],
    minbytes: str,
    maxbytes: str | None,
    stepbytes: str,
    stepfactor: float,
    ngpus: int | None,
    datatype: str,
    runtime: str,
    calibration: str,
    output_file: str | None,
    as_json: bool,
) -> int:
    """All-reduce one tensor of each size on TOPOLOGY (a shipped name, a file, or e.g. switch:8,bandwidth=10GB/s)."""
    machine = load_topology(topology)
    shape = layout(machine) if ngpus is None else _subset(layout(machine), ngpus)
    dtype = dtypes.code(datatype)
    smallest = _size("-b", minbytes)
    largest = smallest if maxbytes is None else _size("-e", maxbytes)
    swept = sizes(smallest, largest, _size("-i", stepbytes), stepfactor)
    strategies = _strategies(algo, shape)
    chosen, constants = runtime_named(runtime), load_calibration(calibration)
    rows = list(measure(machine, shape, strategies, swept, dtype, chosen, constants))
    ranks = len(shape.ranks)
    if output_file:
        write_json(output_file, nccl_tests_document(rows, ranks, sys.argv[1:], machine.name))
    if as_json:
        echo_json(bench_document(rows, ranks, machine.name, chosen.name, constants.name))
    else:
        about = [
            f"simreduce {simreduce.__version__}: simulated all-reduce, {ranks} ranks",
            f"topology {machine.name} ({machine.digest}), runtime {chosen.name}, calibration {constants.name}",
        ]
        click.echo(bench_table(rows, ranks, about))
    return int(any(r.wrong for r in rows))


def _size(option: str, text: str) -> int:
    try:
        return units.cli_size(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None


def _subset(shape: Layout, ngpus: int) -> Layout:
    try:
        return shape.subset(ngpus)
    except ValueError as error:
        raise InputError(f"-g {ngpus}: {error}") from None


def _strategies(texts: tuple[str, ...], shape: Layout) -> list[Strategy]:
    """The strategies asked for; `all` is every algorithm that accepts the devices, and says which do not."""
    found: list[Strategy] = []
    problems: list[str] = []
    for text in texts:
        if text == "all":
            found += [s for s in map(parse_strategy, ALGORITHMS) if _accepted(s, shape)]
            continue
        try:
            found.append(parse_strategy(text))
        except StrategyError as error:
            problems += error.problems
    if problems:
        raise StrategyError(problems)
    return found


def _accepted(strategy: Strategy, shape: Layout) -> bool:
    try:
        compile_plan(strategy, Workload("probe", (Gradient("probe", len(shape.ranks)),)), shape)
    except StrategyError as error:
        for problem in error.problems:
            click.echo(f"left out: {problem}", err=True)
        return False
    return True
