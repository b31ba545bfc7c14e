"""`simreduce bench TOPOLOGY`: letters and columns of nccl-tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from simreduce import tables, units
from simreduce.algorithms import COLLECTIVES, TWO_LEVEL
from simreduce.cli.completion import topology_argument
from simreduce.cli.group import command
from simreduce.cli.options import (
    all_option,
    check_outputs,
    echo_json,
    json_text,
    report_options,
    workers_option,
    write_output,
)
from simreduce.cli.progress import until_stopped
from simreduce.cli.setups import Collective, collective_options, read_collective, setup_options
from simreduce.cli.sizes import sizes_options
from simreduce.cli.strategies import algo_option, read_strategies
from simreduce.cli.terminal import show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.report.bench import (
    Row,
    bench_document,
    bench_table,
    folded_lines,
    preview_lines,
)
from simreduce.report.heads import runtimes_text
from simreduce.report.nccl_tests import nccl_tests_document
from simreduce.strategy import Strategy
from simreduce.tune.bench import BenchRow, Stuck, bench as measure
from simreduce.tune.bench_all import Line, bench_all

Named = list[tuple[Strategy, bool]]


@command(
    examples="""
    simreduce bench dgx1v --algo nccl,ring -b 1M -e 64M
    simreduce bench dgx-h100x4 --algo nccl -b 1G
    """
)
@topology_argument
@algo_option("Simulate these, all: every strategy; default ring, or the first there is.")
@sizes_options("32M")
@collective_options
@click.option(
    "--fold/--no-fold",
    default=None,
    help="Simulate one of equal machines for all; default: where that gives the same bits for 64 "
    "GPUs or more, where a plan takes long, and where machines are too many.",
)
@setup_options()
@all_option
@workers_option
@click.option(
    "-J",
    "--output_file",
    "--output-file",
    default=None,
    metavar="FILE",
    help="Also write nccl-tests' JSON; -: stdout, with the table on stderr.",
)
@report_options
def bench(
    topology: str,
    algo: tuple[str, ...],
    minbytes: str,
    maxbytes: str | None,
    stepbytes: str,
    stepfactor: float | None,
    fold: bool | None,
    simulate_all: bool,
    workers: int | None,
    output_file: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Simulate one collective of one tensor of each size on TOPOLOGY (a shipped name, a file, or
    e.g. switch:8,bandwidth=10GB/s).

    With --algo all, what takes long is simulated only as far as it may be the fastest of its size;
    its row then says what it takes at least.

    Exit status 1 if a strategy can never finish. On Ctrl-C or SIGTERM, prints the rows so far and
    exits with status 130.
    """
    faults = Faults()
    question = read_collective(
        faults,
        topology,
        lambda collective: _strategies(algo, collective),
        (minbytes, maxbytes, stepbytes, stepfactor),
        folded=bool(fold),
        **given,
    )
    faults.attempt("", check_outputs, {"-J": output_file}, as_json=as_json)
    if faults.problems or question is None:
        raise InputError(faults.problems)
    began = _now()
    strategies = [strategy for strategy, _ in question.strategies]
    by_name = all(by_name for _, by_name in question.strategies)
    asked = question.setup, strategies, question.nbytes, question.dtype
    options: dict[str, Any] = {
        "faithful": question.faithful,
        "root": question.root,
        "fold": fold,
    }
    total, text = len(strategies) * len(question.nbytes), "simulated {} of {} rows"
    rows: Sequence[Row]
    if by_name:
        rows, complete = until_stopped(measure(*asked, **options), total, text, preview_lines)
    else:
        options |= {"workers": workers or os.cpu_count() or 1, "simulate_all": simulate_all}
        lines, complete = until_stopped(
            bench_all(*asked, **options),
            total,
            text,
            _preview,
        )
        rows = _take(lines, strategies, question.nbytes)
    ranks, name = question.setup.layout.n, question.setup.machine.name
    ended = _now()
    if as_json:
        echo_json(_document(question, rows, complete=complete))
    else:
        show(bench_table(rows, ranks, _about(question, rows), complete=complete), output_file)
    if output_file is not None:
        document = nccl_tests_document(rows, ranks, sys.argv[1:], name, began, ended)
        write_output(output_file, [json_text(document)])
    failed = any(isinstance(r, Stuck) or (isinstance(r, BenchRow) and r.wrong) for r in rows)
    return int(failed) if complete else 130


def _document(
    question: Collective[Named], rows: Sequence[Row], *, complete: bool
) -> dict[str, Any]:
    setup = question.setup
    return bench_document(
        rows,
        setup.layout.n,
        setup.machine.name,
        setup.runtime.name,
        setup.calibration.name,
        question.name,
        setup.disturbance.text,
        complete=complete,
    )


def _about(question: Collective[Named], rows: Sequence[Row]) -> list[str]:
    """The lines above the table."""
    setup = question.setup
    disturbance = setup.disturbance.text
    return tables.setup_lines(
        f"simulated {question.name.replace('_', '-')}, {units.plural(setup.layout.n, 'rank')}",
        (setup.machine.name, setup.machine.digest),
        runtimes_text(row.runtime for row in rows),
        setup.calibration.name,
        *folded_lines(rows),
        f"disturbed: {disturbance}" if disturbance else "",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _strategies(texts: tuple[str, ...], collective: str) -> Named:
    """The strategies, and whether each was given by name: the machine may refuse those that `all`
    stands for.
    """
    known = COLLECTIVES[collective]
    names = [*known, *(TWO_LEVEL if collective == "all_reduce" else ())]
    return read_strategies(texts or ("ring" if "ring" in known else names[0],), names, collective)


def _preview(lines: Sequence[Line]) -> list[str]:
    return preview_lines([r for _, r in lines if not isinstance(r, InputError)])


def _take(
    lines: Sequence[Line], strategies: Sequence[Strategy], nbytes: Sequence[int]
) -> list[Row]:
    """The rows, size by size. What the machine cannot run is said on stderr."""
    rows: list[Row] = []
    refused: dict[int, list[tuple[int, InputError]]] = {}
    for place, row in sorted(lines, key=lambda line: line.place):
        size, strategy = divmod(place, len(strategies))
        if isinstance(row, InputError):
            refused.setdefault(strategy, []).append((size, row))
        else:
            rows.append(row)
    for number, faults in sorted(refused.items()):
        name = strategies[number].text
        where = ""
        if len(faults) < len(nbytes):
            where = " at " + ", ".join(f"{nbytes[size]} B" for size, _ in faults)
        for problem in faults[0][1].problems:
            click.echo(f"{name} left out{where}: {problem.removeprefix(f'{name}: ')}", err=True)
    return rows
