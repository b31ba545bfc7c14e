"""`simreduce sweep`, `table`, `plot`, `compare`, `capacity` and `prices`: many questions at once.

`sweep` asks a question again and again, with other keys; `table`, `plot` and `compare` show the
rows of sweeps in databases. `capacity FILE` finds the cheapest configuration that meets a target;
`prices [NAME]` shows what a price list says, with where and when each price was found.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from simreduce import units
from simreduce.app.cli import command, completes
from simreduce.app.cli.reply import (
    Progress,
    Reply,
    output_option,
    output_paths,
    picture_options,
    report_options,
    say,
    write_pictures,
)
from simreduce.app.cli.setups import (
    budget_options,
    is_typed,
    read_budget,
    read_numbers,
    reading,
    refuse,
    workers_option,
)
from simreduce.app.cli.terminal import SCREEN, show
from simreduce.computing.workers import pass_on, time_is_up, until_stopped, within
from simreduce.errors import DeviceError, InputError, quote
from simreduce.files import is_file, read_text
from simreduce.files.formats.documents import Document
from simreduce.files.formats.syntax import Faults
from simreduce.plan.ops import MEMORY, free_memory
from simreduce.report.capacity import (
    CAPACITY,
    CAPACITY_JOBS,
    LISTS,
    PRICES,
    lists_text,
    options_plot,
    prices_text,
)
from simreduce.report.capacity_page import capacity_text, copies_text
from simreduce.report.jobs import PLACEMENT
from simreduce.report.pages import kind_of, read_document
from simreduce.report.pages.sweep import HEAT, KINDS as PLOTS, LINES, sweep_plot
from simreduce.report.sweeps import (
    COMPARE,
    COMPARED_ORDERS,
    ComparedSweeps,
    check_columns,
    compare_orders,
    compared_orders_text,
    compared_text,
    count_states,
    csv_text,
    first_columns,
    parquet_bytes,
    pivot,
    pivot_table,
    query,
    rows_table,
    sweep_document,
    sweep_text,
    table_lines,
)
from simreduce.study.capacity import load_question
from simreduce.study.capacity.answer import RankedOptions, answer, answer_copies, plan_of
from simreduce.study.capacity.price_list import join, load_prices, shipped
from simreduce.study.sweep import DONE, FAILED, KILLED, KINDS, STUCK, Cell, objective
from simreduce.study.sweep.engine import (
    CLUSTERS,
    MEMORY_DEFAULT,
    DaskCluster,
    Engine,
    EngineGone,
    Processes,
)
from simreduce.study.sweep.grid import (
    SAMPLES,
    Sample,
    Specification,
    parse_scalar,
    read_specification,
)
from simreduce.study.sweep.running import CellRunner, compare as compare_sweeps, running
from simreduce.study.sweep.store import IN_MEMORY, CellAnswer, Store, Sweep

_LEAST = 64 << 20


def _sample(text: str) -> Sample:
    """`sobol:128`."""
    by, _, count = text.partition(":")
    if by not in SAMPLES or not count.isdecimal() or not 1 <= int(count) <= 10_000_000:
        raise ValueError(f"must be random:N or sobol:N, with N cells, got {quote(text)}")
    return Sample(by, int(count))


def _memory(text: str) -> int:
    """Bytes of each worker."""
    nbytes = units.cli_size(text)
    if nbytes < _LEAST:
        raise ValueError(f"needs at least {units.format_size(_LEAST)}, got {quote(text)}")
    return nbytes


def _names(text: str) -> list[str]:
    """`a,b` as a list; ValueError for an empty name."""
    found = [name.strip() for name in text.split(",")]
    if "" in found or "-" in found:
        raise ValueError(f"{text!r} has an empty name")
    return found


def _two_numbers(text: str) -> list[int]:
    """`1,2` as a list; ValueError for anything else."""
    found = read_numbers(text)
    if len(found) != 2:
        raise ValueError(f"two numbers with a comma between, such as 1,2, got {quote(text)}")
    return found


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
    help="Vary KEY: 1,2,4 or 1..64*2 or 8M..1G*2 or ring;nccl. Repeatable: all combinations. For"
    " links: topology.links.NAME.bandwidth, or in a scenario link_factors.CLASS, such as ib_ndr.",
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
    callback=reading(_sample),
    metavar="random:N|sobol:N",
    help="Take N of the combinations; also of intervals such as 0.5..2.0.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=None, help="Start the sample here; default 0."
)
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
    default=str(MEMORY_DEFAULT),
    envvar=MEMORY,
    callback=reading(_memory),
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
    sample: Sample | None,
    seed: int | None,
    kind: str | None,
    db: str | None,
    others: Sequence[str],
    workers: int,
    cluster: str | None,
    memory: int | None,
    retry: bool,
    dry_run: bool,
) -> Reply | None:
    """Answer a question for every combination of values: of a sweep FILE, a SCENARIO or a TOPOLOGY.

    Each row is stored as it finishes. Stopped at any moment and started again, the sweep goes on
    where it was. Cells that cannot be are listed with the reason.

    Exit status 1 if a cell can never finish, killed its workers or failed, or if none is done. On
    Ctrl-C or SIGTERM, keeps the rows so far and exits with status 130.
    """
    drawn = "only --sample draws from it; for jitter, --over seed"
    faults.check(seed is None or is_typed("sample"), f"--seed {seed}", drawn)
    held = {
        key: faults.attempt(f"--set {key}", parse_scalar, key, value)
        for key, value in _pairs(faults, "--set", fixed).items()
    }
    spec = faults.attempt(
        "", read_specification, question, _pairs(faults, "--over", over),
        {key: value for key, value in held.items() if value is not None},
        [[key.strip() for key in keys.split(",")] for keys in zipped],
        sample and replace(sample, seed=seed or 0), kind,
    )  # fmt: skip
    known = cluster is None or "://" in cluster or cluster in CLUSTERS
    words = f"{quote(cluster)} is none of tcp://HOST:PORT, slurm, kubernetes"
    faults.check(known, "--cluster", words)
    spec = faults.require(spec)
    path = db or f"{Path(spec.title.partition(',')[0]).stem.replace(':', '-') or 'sweep'}.db"
    each = memory or 0
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
    ended += "; the same command goes on from here" if ended and path != IN_MEMORY else ""
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


_BAD = (STUCK, KILLED, FAILED)
"""States of cells that may be a fault of nobody's input."""
_SHOWN = 40
"""Rows that are shown at once; `simreduce table` shows more."""


_STATES = "SELECT state FROM sweep"

_where_option = click.option(
    "--where", default=None, metavar="SQL", help='Keep rows such as "nodes > 4 AND busbw > 1e10".'
)


@command(
    examples="""
    simreduce sweep dgx1v --over size=1M..64M*4 --over strategy=ring,nccl --db sizes.db
    simreduce table sizes.db --pivot size,strategy,seconds
    """
)
@click.argument("db")
@click.option("--sweep", "number", type=int, default=None, help="Show this sweep; default: last.")
@click.option("--list", "list_", is_flag=True, help="List the sweeps of the database.")
@click.option("--columns", default=None, callback=reading(_names), metavar="A,B,...",
              help="Show these columns, or all.")  # fmt: skip
@_where_option
@click.option("--sort", default=None, callback=reading(_names), metavar="A,-B",
              help="Sort by A, then by B downwards.")  # fmt: skip
@click.option("--group", default=None, callback=reading(_names), metavar="A,B",
              help="Of rows with equal A and B, keep the best.")  # fmt: skip
@click.option("--by", default=None, metavar="[-]NAME", help="What is best: least NAME, or "
              "greatest with -; default seconds, of jobs slowdown.")  # fmt: skip
@click.option("--pivot", "axes", default=None, callback=reading(_names),
              metavar="DOWN,ACROSS,VALUE",
              help="A row for each value of DOWN, a column for each of ACROSS.")  # fmt: skip
@click.option("--limit", type=click.IntRange(0), default=None, help="Show so many rows.")
@output_option("--csv", about="Also write CSV; -: stdout.")
@output_option("--parquet", about="Also write Parquet.")
@report_options
def table(
    faults: Faults,
    db: str,
    number: int | None,
    list_: bool,
    columns: list[str] | None,
    where: str | None,
    sort: list[str] | None,
    group: list[str] | None,
    by: str | None,
    axes: list[str] | None,
    limit: int | None,
) -> Reply | None:
    """Show the rows of a sweep in the database DB, while it runs or afterwards.

    Tables have ms and GB/s; CSV, JSON and Parquet have SI units and every digit. --where takes any
    condition of SQLite on the columns; --columns all shows their names.
    """
    fine = axes is None or len(axes) == 3
    faults.check(fine, f"--pivot {','.join(axes or ())}", "must be DOWN,ACROSS,VALUE")
    store = faults.attempt("", Store, db)
    with store or faults.require(store) as store:
        if list_:
            faults.raise_any()
            for each in store.sweeps():
                show(f"{each.id}  {each.name}: {', '.join(each.keys)}; {each.cells} cells")
            return None
        chosen = faults.attempt("", store.show, number)
        sweep, known = chosen or faults.require(chosen)
        every, by = [*known, *(["cells"] if group else [])], by or objective(sweep.kind)
        text = faults.attempt(
            "", query, known, where=where, group=group or (), by=by, sort=sort or (), limit=limit
        )
        columns = every if columns == ["all"] else columns
        faults.attempt("", check_columns, [*(columns or ()), *(axes or ())], every)
        if faults.problems:
            faults.attempt("", _select, store, query(known, where=where, limit=0), where)
        rows = _select(store, faults.require(text), where)
        counts = count_states({"state": state} for (state,) in store.select(_STATES)[1])
        names, shown = columns or first_columns(sweep, rows, group=group is not None), rows
        if axes:
            names, shown = pivot(rows, *axes)
        kept = [{name: row[name] for name in names} for row in shown]
        shape = (
            pivot_table(kept, names, *axes[1:])
            if axes
            else rows_table(names, kept, all_names=columns is not None)
        )
        lines = table_lines(store, sweep, shape, counts, SCREEN if limit is None else None)
    every, whole = (names, kept) if columns or axes else (every, rows)
    return Reply(
        lambda: lines,
        lambda: sweep_document(sweep, db, counts, whole, complete="waiting" not in counts),
        files={
            "csv": lambda: [csv_text(every, whole)],
            "parquet": lambda: [parquet_bytes(sweep, every, whole)],
        },
    )


def _select(store: Store, text: str, where: str | None) -> list[dict[str, Any]]:
    """The rows of a query. InputError if SQLite does not understand `--where`."""
    faults = Faults()
    found = faults.attempt(f"--where {where}" if where else "", store.select, text)
    names, rows = faults.require(found)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _read_sweep(
    path: str, number: int | None, where: str | None
) -> tuple[Sweep, list[dict[str, Any]]]:
    """The sweep of that number in a database, the last unless given, and its rows that fit a
    condition of SQLite. InputError if there is none.
    """
    with Store(path) as store:
        sweep, columns = store.show(number)
        return sweep, _select(store, query(columns, where=where), where)


@command(
    examples="""
    simreduce sweep dgx1v --over size=1M..64M*4 --over strategy=ring,nccl --db sizes.db
    simreduce plot sizes.db --kind heat --svg times.svg
    simreduce plot sizes.db --svg busbw.svg
    """
)
@click.argument("db")
@click.option("--sweep", "number", type=int, default=None, help="Draw this sweep; default: last.")
@click.option(
    "--kind", type=click.Choice(PLOTS), default=LINES, help=f"Draw this; default {LINES}."
)
@click.option(
    "-x", default=None, metavar="COLUMN", help="Across; default: the numbers that vary most."
)
@click.option(
    "-y",
    default=None,
    metavar="COLUMN",
    help="Upwards; default: seconds, busbw of collectives, slowdown of jobs, for heat the next key"
    " that varies.",
)
@click.option(
    "--value", default=None, metavar="COLUMN", help="What a heat map shows; default as -y of lines."
)
@_where_option
@picture_options("Write the plot")
def plot(
    faults: Faults,
    db: str,
    number: int | None,
    kind: str,
    x: str | None,
    y: str | None,
    value: str | None,
    where: str | None,
) -> None:
    """Draw the cells of a sweep in the database DB: lines over a key, with the 80 % band of the
    calibration; a heat map over two keys; or what no other cell beats in two columns (pareto).
    """
    missing = "is missing; say where to write the plot"
    faults.check(output_paths(), "--svg FILE or --png FILE", missing)
    fine = value is None or kind == HEAT
    faults.check(fine, f"--value {value}", f"is for --kind {HEAT}; give -y")
    sweep, rows = faults.require(faults.attempt("", _read_sweep, db, number, where))
    write_pictures(partial(sweep_plot, sweep, rows, kind, x, y, value))


_COMPARED = (
    "compare takes the databases of two sweeps, or the --json of two simreduce tune --placement or"
    " simreduce topo place, in files that end with .json"
)


@command(
    examples="""
    simreduce sweep dgx1v --over size=1M,64M --over strategy=ring,nccl --db before.db
    simreduce sweep dgx1v --over size=1M,64M --over strategy=ring,nccl --db after.db
    simreduce compare before.db after.db
    """
)
@click.argument("a")
@click.argument("b")
@click.option(
    "--sweeps",
    default=None,
    callback=reading(_two_numbers),
    metavar="I,J",
    help="Compare sweep I of A with sweep J of B; default: the last of each.",
)
@click.option(
    "--choose",
    default=None,
    metavar="KEY",
    help="Say where the fastest value of KEY changed; default: strategy, method or machine.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0.0),
    default=0.0,
    metavar="PART",
    help="Take times as equal that differ by no more than this part; default 0.",
)
@_where_option
@report_options
def compare(
    faults: Faults,
    a: str,
    b: str,
    sweeps: list[int] | None,
    choose: str | None,
    tolerance: float,
    where: str | None,
) -> Reply:
    """Compare two sweeps in the databases A and B, such as those of two versions or calibrations:
    which times changed and by how much, and which winners did. Cells are matched by the keys that
    vary. Exits with status 1 if an answer changed.

    Of two results of `simreduce tune --placement --json` or `simreduce topo place --json`, in files
    that end with .json, says at which part of the speed of the best order that they found the given
    order of each runs.
    """
    documents = [path.endswith(".json") for path in (a, b)]
    if any(documents):
        if not all(documents) and is_file(a) and is_file(b):
            raise InputError(f"{a}, {b}: {_COMPARED}")
        return _compare_orders(faults, a, b)
    first, second = sweeps or (None, None)
    old = faults.attempt("", _read_sweep, a, first, where)
    new = faults.attempt("", _read_sweep, b, second, where)
    before, after = faults.require(old), faults.require(new)
    result = compare_sweeps(before, after, choose, tolerance)
    both = ComparedSweeps(result, ((a, before[0]), (b, after[0])))
    return Reply(
        partial(compared_text, both), partial(COMPARE.write, both), failed=bool(result.changed)
    )


def _compare_orders(faults: Faults, *paths: str) -> Reply:
    refuse(faults, ("sweeps", "choose", "tolerance", "where"), "is for sweeps; leave it out")
    results = [faults.attempt("", _read_order, path) for path in paths]
    faults.raise_any()
    found = compare_orders(paths, [each for each in results if each])
    return Reply(partial(compared_orders_text, found), partial(COMPARED_ORDERS.write, found))


def _read_order(path: str) -> Mapping[str, Any]:
    """A saved result of a search of orders; InputError if it is none."""
    found = read_document(read_text(Path(path), InputError), path)
    if found.get("command") != PLACEMENT.command or kind_of(found, path)[1] is not PLACEMENT:
        raise InputError(f"{path}: has no order of nodes; {_COMPARED}")
    return found


R = TypeVar("R", bound=RankedOptions[Any])


@command(
    examples=r"""
    printf 'workload = "resnet50"\nprices = "aws-capacity-blocks"\n' > plan.toml
    printf '[target]\nsamples = 115e6\ntime = "1 d"\n' >> plan.toml
    printf '[[options]]\nmachine = "p4d"\nnodes = [1, 2]\nstrategy = "nccl"\n' >> plan.toml
    printf 'step.batch = 256\nstep.rate = "60 TFLOP/s"\n' >> plan.toml
    simreduce capacity plan.toml
    """
)
@click.argument("file")
@click.option(
    "--db",
    default=None,
    metavar="FILE",
    help="Keep what is simulated in this database of sweeps, and take what it has.",
)
@click.option(
    "--prices",
    multiple=True,
    metavar="NAME|FILE",
    help="Take this price list instead of the file's; simreduce prices lists those that are"
    " shipped. Repeatable: of a price that two have, the first counts.",
)
@click.option(
    "--sensitivity/--no-sensitivity",
    default=True,
    help="Also say at which prices, rates and errors the choice changes; default: do.",
)
@budget_options()
@workers_option
@picture_options("Also draw cost against time, or prices of copies of jobs")
@report_options
def capacity(
    faults: Faults,
    file: str,
    db: str | None,
    prices: tuple[str, ...],
    sensitivity: bool,
    budget: str | None,
    quick: bool,
    workers: int,
) -> Reply:
    """Choose the cheapest of the machines, networks and methods in FILE that meets its target, and
    say what binds it, the frontier of cost against time, and at which value of each assumption the
    choice changes. Exits with status 1 if none meets the target.

    With `jobs` in FILE, a file of several jobs, say how many copies of these each of the machines
    holds, none slower than promised, and choose the cheapest.

    With `mesh = "auto"`, one mesh of each configuration is simulated first, then all that may be
    the fastest, of the configuration that promises most first.

    With --db, a command that is stopped goes on where it was, and other prices need no simulation.
    On Ctrl-C or SIGTERM, prints what is known and exits with status 130.
    """
    seconds = read_budget(faults, budget, quick=quick)
    question = faults.require(faults.attempt("", load_question, file, prices))
    with (
        within(seconds),
        Progress("simulated {} of {} configurations", _preview) as progress,
        running(db, workers, progress.watch, say) as runner,
    ):
        if runner.store:  # so that `simreduce table` shows what was asked
            runner.store.begin(question.name, {"question": question.name}, plan_of(question))
        if question.target.slowdown is None:
            steps = answer(question, runner.rows, sensitivity=sensitivity)
            return _reply(steps, runner, capacity_text, CAPACITY)
        return _reply(answer_copies(question, runner.rows), runner, copies_text, CAPACITY_JOBS)


def _preview(seen: Sequence[CellAnswer]) -> list[str]:
    """The steps so far, the last ones first."""
    return [
        f"{each.cell.table['topology']}: {units.format_duration(each.row.seconds)}"
        for each in reversed(seen)
        if each.row.seconds is not None
    ][:SCREEN]


def _reply(answered: R, runner: CellRunner, text: Callable[[R], str], document: Document) -> Reply:
    found = replace(answered, hurried=runner.stopped and time_is_up())
    pass_on(found.waiting and not found.offers)
    return Reply(
        partial(text, found),
        partial(document.write, found),
        picture=lambda: options_plot(document.write(found)),
        failed=not found.chosen,
        complete=not runner.stopped or found.hurried,
    )


@command(
    examples="""
    simreduce prices
    simreduce prices aws-on-demand
    simreduce prices servers-2026 h100-cluster-2024
    """
)
@click.argument("name", nargs=-1, shell_complete=completes(shipped))
@report_options
def prices(faults: Faults, name: tuple[str, ...]) -> Reply:
    """Print the price list NAME, a shipped one or a file, with the source and the date of every
    price. Several are printed as one, as a capacity file joins them. Without NAME, list those that
    are shipped.
    """
    found = [faults.attempt("", load_prices, each) for each in name or shipped()]
    lists = [each for each in found if each is not None]
    if not name:
        named = [*zip(shipped(), lists, strict=True)]
        return Reply(partial(lists_text, named), partial(LISTS.write, named))
    whole = faults.require(faults.attempt("", join, lists) if len(lists) == len(found) else None)
    return Reply(partial(prices_text, whole), partial(PRICES.write, whole))
