"""`simreduce bench TOPOLOGY`: letters and columns of nccl-tests."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any

import click

from simreduce import units
from simreduce.app.cli import command, topology_argument
from simreduce.app.cli.reply import (
    Reply,
    json_text,
    output_option,
    report_options,
    say,
    show_until_stopped,
)
from simreduce.app.cli.setups import (
    algo_option,
    all_option,
    collective_options,
    read_collective,
    read_strategies,
    setup_options,
    sizes_options,
    workers_option,
)
from simreduce.computing import grouped
from simreduce.errors import InputError
from simreduce.files import tables
from simreduce.files.formats.syntax import Faults
from simreduce.files.published import ITERATIONS
from simreduce.planners.algorithms import COLLECTIVES, TWO_LEVEL
from simreduce.planners.strategy import Strategy
from simreduce.report.bench import (
    BENCH,
    NCCL_TESTS,
    SizeTimes,
    TimedRun,
    bench_table,
    calls_line,
    folded_lines,
    preview_lines,
)
from simreduce.report.headings import equal_paths_text, fitted_on_text, runtimes_text
from simreduce.study.ranking import Refused, Stuck
from simreduce.study.tune.sizes import BY_DEFAULT, BenchRow, bench as measure, bench_all

Named = list[tuple[Strategy, bool]]


@command(
    examples="""
    simreduce bench dgx1v --algo nccl,ring -b 1M -e 64M
    simreduce bench dgx-h100x4 --algo nccl -b 1G
    """
)
@topology_argument
@algo_option(
    "Simulate these, all: every strategy; default nccl (RCCL on AMD's GPUs), or the first there is."
)
@sizes_options("32M")
@collective_options
@click.option(
    "-t",
    "--nthreads",
    type=click.IntRange(1),
    default=None,
    help="Let so many threads of each machine drive -g GPUs each, or an equal part of all; default:"
    " a process for each GPU.",
)
@click.option(
    "-n",
    "--iters",
    type=click.IntRange(1),
    default=ITERATIONS,
    help=f"Time so many calls of NCCL in a row; default {ITERATIONS}.",
)
@click.option(
    "-w",
    "--warmup_iters",
    "--warmup-iters",
    type=click.IntRange(0),
    default=None,
    help="Taken for nccl-tests' sake: a simulated call is always warm.",
)
@click.option(
    "--fold/--no-fold",
    default=None,
    help="Simulate one of equal machines for all, where that takes the same time; default: for 64 "
    "equal GPUs or more, where a plan takes long, and where machines are many.",
)
@setup_options()
@all_option
@workers_option
@output_option(
    "-J",
    "--output_file",
    "--output-file",
    about="Also write nccl-tests' JSON; -: stdout, with the table on stderr.",
)
@report_options
def bench(
    faults: Faults,
    topology: str,
    algo: tuple[str, ...],
    minbytes: str,
    maxbytes: str | None,
    stepbytes: str,
    stepfactor: float | None,
    fold: bool | None,
    simulate_all: bool,
    workers: int,
    iters: int,
    warmup_iters: int | None,
    **given: Any,
) -> Reply:
    """Simulate one collective of one tensor of each size on TOPOLOGY (a shipped name, a file, or
    e.g. switch:8,bandwidth=10GB/s).

    With --algo all, what takes long is simulated only as far as it may be the fastest of its size;
    its row then says what it takes at least.

    A strategy that the machine refuses has the reason in its rows.

    Exit status 1 if a strategy can never finish, 2 if the machine refuses all of them. On Ctrl-C or
    SIGTERM, prints the rows so far and exits with status 130.
    """
    if warmup_iters == 0:
        why = "a first call also connects and loads kernels, and how long that takes is not known"
        faults.add("-w 0", f"{why}; give 1 or more")
    question = read_collective(
        faults,
        topology,
        lambda collective: _strategies(algo, collective),
        (minbytes, maxbytes, stepbytes, stepfactor),
        given,
        folded=bool(fold),
        iters=iters,
    )
    began = _now()
    strategies = [strategy for strategy, _ in question.strategies]
    if question.calls != BY_DEFAULT and not any(each.reduced_by_nccl for each in strategies):
        raise InputError("-t, -n: only NCCL issues its calls so; add --algo nccl")
    by_name = all(by_name for _, by_name in question.strategies)
    asked = question.setup, strategies, question.nbytes, question.dtype
    options: dict[str, Any] = {
        "faithful": question.faithful,
        "root": question.root,
        "fold": fold,
        "calls": question.calls,
    }
    total, text = len(strategies) * len(question.nbytes), "simulated {} of {} rows"
    rows: Sequence[BenchRow]
    if by_name:
        rows, complete = show_until_stopped(measure(*asked, **options), total, text, preview_lines)
    else:
        options |= {"workers": workers, "simulate_all": simulate_all}
        lines, complete = show_until_stopped(
            bench_all(*asked, **options),
            total,
            text,
            lambda lines: preview_lines([row for _, row in lines]),
        )
        rows = _take(lines, strategies, question.nbytes)
    times = SizeTimes(question.setup, rows, question.name, complete, question.calls)
    run = TimedRun(times, sys.argv[1:], began, _now())
    return Reply(
        lambda: bench_table(times, _about(times)),
        lambda: BENCH.write(times),
        files={"output_file": lambda: [json_text(NCCL_TESTS.write(run))]},
        failed=bool(times.unfinished(Stuck)) or any(row.wrong for row in times.done),
        complete=complete,
    )


def _about(times: SizeTimes) -> list[str]:
    """The lines above the table."""
    setup = times.setup
    return tables.setup_lines(
        f"simulated {times.collective.replace('_', '-')}, {units.plural(setup.layout.n, 'rank')}",
        (setup.machine.name, setup.machine.digest),
        runtimes_text(row.runtime for row in times.rows),
        setup.calibration.name,
        fitted_on_text(setup.fitted_on),
        times.nominal,
        setup.nccl.text and f"nccl: {setup.nccl.text}",
        times.warning and f"warning: {times.warning}",
        calls_line(times),
        setup.equal_paths and f"equal paths: {equal_paths_text(setup.equal_paths)}",
        *folded_lines(times),
        f"disturbed: {setup.disturbed}" if setup.disturbed else "",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _strategies(texts: tuple[str, ...], collective: str) -> Named:
    """The strategies, and whether each was given by name: the machine may refuse what `all`
    added.
    """
    known = COLLECTIVES[collective]
    names = [*known, *(TWO_LEVEL if collective == "all_reduce" else ())]
    return read_strategies(texts or ("nccl" if "nccl" in known else names[0],), names, collective)


def _take(
    lines: Sequence[tuple[int, BenchRow]],
    strategies: Sequence[Strategy],
    nbytes: Sequence[int],
) -> list[BenchRow]:
    """The rows, size by size. What the machine cannot run is said on stderr."""
    lines = sorted(lines, key=itemgetter(0))
    refused = grouped(
        (place % len(strategies), (nbytes[place // len(strategies)], row.unfinished))
        for place, row in lines
        if isinstance(row.unfinished, Refused)
    )
    for number, faults in sorted(refused.items()):
        name, sizes = strategies[number].text, ", ".join(f"{size} B" for size, _ in faults)
        where = f" at {sizes}" if len(faults) < len(nbytes) else ""
        for problem in faults[0][1].error.problems:
            say(f"{name} left out{where}: {problem.removeprefix(f'{name}: ')}")
    return [row for _, row in lines if not isinstance(row.unfinished, Refused)]
