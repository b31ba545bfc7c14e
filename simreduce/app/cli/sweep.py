"""`simreduce sweep`: a question again and again, with other keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click

from simreduce import units
from simreduce.app.cli.group import command
from simreduce.app.cli.options import is_typed, workers_option
from simreduce.app.cli.reply import Progress, Reply, report_options, say
from simreduce.computing.watching import until_stopped
from simreduce.errors import DeviceError, InputError, quote
from simreduce.files.formats import Faults
from simreduce.plan.ops import free_memory
from simreduce.report.sweeps import (
    count_states,
    first_columns,
    rows_table,
    sweep_document,
    sweep_text,
)
from simreduce.study.sweep import KINDS, Cell, Specification, Store, Sweep, read_specification
from simreduce.study.sweep.cells import DONE, FAILED, KILLED, STUCK
from simreduce.study.sweep.engines import Engine, EngineGone, Processes
from simreduce.study.sweep.engines.cluster import CLUSTERS, DaskCluster
from simreduce.study.sweep.engines.engine import MEMORY, MEMORY_DEFAULT
from simreduce.study.sweep.grid import SAMPLES, Sample, parse_scalar
from simreduce.study.sweep.running import CellRunner


@command(
    examples="""
    simreduce sweep dgx-a100 --over nodes=1..4*2 --over strategy=ring,nccl --db :memory:
    """
)
@click.argument("question", metavar="FILE|SCENARIO|TOPOLOGY")
@click.option(
    "--over",
    multiple=True,
    metavar="KEY=VALUES",
    help="Vary KEY: 1,2,4 or 1..64*2 or 8M..1G*2 or ring;nccl. Repeatable: all combinations.",
)
@click.option("--set", "fixed", multiple=True, metavar="KEY=VALUE", help="Set KEY. Repeatable.")
@click.option(
    "--zip",
    "zipped",
    multiple=True,
    metavar="KEY,KEY",
    help="Take the values of these keys side by side. Repeatable.",
)
@click.option(
    "--sample",
    default=None,
    metavar="random:N|sobol:N",
    help="Take N of the combinations; also of intervals such as 0.5..2.0.",
)
@click.option("--seed", type=int, default=None, help="Start the sample here; default 0.")
@click.option("--kind", type=click.Choice(KINDS), default=None, help="Ask for this; default: step "
              "if the scenario has one, else run; bench for a topology.")  # fmt: skip
@click.option("--db", default=None, metavar="FILE", help="Keep rows in this database; default "
              "NAME.db; :memory: keeps none.")  # fmt: skip
@click.option(
    "--from",
    "others",
    multiple=True,
    metavar="DB",
    help="Take equal cells from this database. Repeatable.",
)
@workers_option
@click.option(
    "--cluster",
    default=None,
    metavar="ADDRESS|slurm|kubernetes",
    help="Compute on a Dask cluster, such as tcp://host:8786; default: here.",
)
@click.option(
    "--memory",
    default=None,
    metavar="SIZE",
    help="Give each worker so much memory, and refuse cells that need more; default 4G.",
)
@click.option("--retry", is_flag=True, help="Also try cells again that killed workers or failed.")
@click.option("--dry-run", is_flag=True, help="Say how many cells there are, and compute none.")
@report_options
def sweep(
    faults: Faults,
    question: str,
    over: Sequence[str],
    fixed: Sequence[str],
    zipped: Sequence[str],
    sample: str | None,
    seed: int | None,
    kind: str | None,
    db: str | None,
    others: Sequence[str],
    workers: int,
    cluster: str | None,
    memory: str | None,
    retry: bool,
    dry_run: bool,
) -> Reply | None:
    """Answer a question for every combination of values: of a sweep FILE, a SCENARIO or a TOPOLOGY.

    Each row is stored as it finishes. Stopped at any moment and started again, the sweep goes on
    where it was. Cells that cannot be are listed with the reason.

    Exit status 1 if a cell can never finish, killed its workers or failed, or if none is done. On
    Ctrl-C or SIGTERM, keeps the rows so far and exits with status 130.
    """
    bytes_each = faults.attempt("--memory", _memory, memory)
    chosen = faults.attempt("", _sample, sample, seed)
    held = {
        key: faults.attempt(f"--set {key}", parse_scalar, key, value)
        for key, value in _pairs(faults, "--set", fixed).items()
    }
    spec = faults.attempt(
        "", read_specification, question, _pairs(faults, "--over", over),
        {key: value for key, value in held.items() if value is not None},
        [[key.strip() for key in keys.split(",")] for keys in zipped], chosen, kind,
    )  # fmt: skip
    known = cluster is None or "://" in cluster or cluster in CLUSTERS
    words = f"{quote(cluster)} is none of tcp://HOST:PORT, slurm, kubernetes"
    faults.check(known, "--cluster", words)
    spec = faults.require(spec)
    path = db or f"{Path(spec.title.partition(',')[0]).stem.replace(':', '-') or 'sweep'}.db"
    each = bytes_each or 0
    engine: Callable[[], Engine] = partial(Processes, workers, each)
    if cluster is not None:
        engine = partial(DaskCluster, cluster, workers if is_typed("workers") else None, each, say)
    elif workers * each > free_memory():
        taken, free = map(units.format_size, (workers * each, free_memory()))
        words = f"{workers} workers may take {taken} together, more than the {free} that are free"
        say(f"{words}; give fewer --workers or less --memory")
    return _run(spec, path, others, engine, retry=retry, dry_run=dry_run)


def _run(
    spec: Specification,
    path: str,
    others: Iterable[str],
    engine: Callable[[], Engine],
    *,
    retry: bool,
    dry_run: bool,
) -> Reply | None:
    with Progress("planning"):
        plan = spec.plan()
    cells = [planned.cell for planned in plan if planned.cell]
    if dry_run:
        equal = len(cells) - len({cell.digest for cell in cells})
        click.echo(f"{len(plan):,} cells, {len(plan) - len(cells):,} refused, {equal:,} equal"
                   " to another")  # fmt: skip
        return None
    for other in others:  # what cannot be read is said before there is a new file
        Store(other).close()
    with Store(path, write=True) as store:
        begun = store.begin(spec.title, spec.document, plan)
        for other in others:
            store.copy_from(other, [cell.digest for cell in cells])
        ended = ""
        try:
            with closing(_compute(store, cells, engine, retry=retry)) as coming:
                stopped = until_stopped(coming, lambda _: True)[-1:] != [_ENDED]
        except (EngineGone, DeviceError) as error:
            ended, stopped = str(error), False
        ended = "stopped" if stopped else ended
        rows = store.table(begun.id)
    ended += ended and "; the same command goes on from here"
    counts = count_states(rows)
    return Reply(
        partial(_lines, begun, path, counts, rows, ended),
        partial(sweep_document, begun, path, counts, rows, complete=not ended),
        failed=bool(ended) or DONE not in counts or not counts.keys().isdisjoint(_BAD),
        complete=not stopped,
    )


_ENDED = "ended"


def _compute(
    store: Store, cells: Sequence[Cell], engine: Callable[[], Engine], *, retry: bool
) -> Generator[str, None, None]:
    """Compute what is missing: yield the digest of each stored answer, then `_ENDED`."""
    with CellRunner(store, engine=engine(), retry=retry, say=say) as runner:
        missing = runner.missing(cells)
        if known := len({cell.digest for cell in cells}) - len(missing):
            say(f"{known:,} cells have rows already")
        with (
            Progress("computed {} of {} cells") as progress,
            closing(runner.run(missing)) as answers,
        ):
            yield from progress.watch((answer.cell.digest for answer in answers), len(missing))
    if missing and (words := runner.engine.summary()):
        say(words)
    yield _ENDED


def _lines(
    begun: Sweep,
    path: str,
    counts: Mapping[str, int],
    rows: Sequence[Mapping[str, Any]],
    ended: str,
) -> list[str]:
    """The summary of a sweep, and its rows if they are few."""
    done = [row for row in rows if row["state"] == DONE]
    lines = [sweep_text(begun, path, counts, rows, ended=ended)]
    if 0 < len(done) <= _SHOWN:
        lines += ["", *rows_table(first_columns(begun, done, group=False), done).lines()]
    return lines


def _pairs(faults: Faults, option: str, texts: Iterable[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as a dictionary."""
    found: dict[str, Any] = {}
    for text in texts:
        key, sign, value = (part.strip() for part in text.partition("="))
        if not (key and sign and value):
            faults.add(f"{option} {text}", "must be KEY=VALUE")
        elif key in found:
            faults.add(f"{option} {text}", f"{key} is given twice")
        else:
            found[key] = value
    return found


def _sample(text: str | None, seed: int | None) -> Sample | None:
    """`sobol:128`."""
    if text is None:
        if seed is not None:
            raise InputError(f"--seed {seed}: only --sample draws from it; for jitter, --over seed")
        return None
    by, _, count = text.partition(":")
    if by not in SAMPLES or not count.isdecimal() or not 1 <= int(count) <= 10_000_000:
        raise InputError(f"--sample {text}: must be random:N or sobol:N, with N cells")
    if seed is not None and seed < 0:
        raise InputError(f"--seed {seed}: must be at least 0")
    return Sample(by, int(count), seed or 0)


def _memory(text: str | None) -> int:
    """Bytes of each worker."""
    given = os.environ.get(MEMORY) if text is None else text
    nbytes = MEMORY_DEFAULT if given is None else units.cli_size(given)
    if nbytes < _LEAST:
        raise ValueError(f"needs at least {units.format_size(_LEAST)}, got {quote(given)}")
    return nbytes


_BAD = (STUCK, KILLED, FAILED)
"""States of cells that may be a fault of nobody's input."""
_LEAST = 64 << 20
_SHOWN = 40
"""Rows that are shown at once; `simreduce table` shows more."""
