"""`simreduce table DB`: the rows of a sweep."""

from __future__ import annotations

import click

from simreduce.cli.group import command
from simreduce.cli.options import check_outputs, echo_json, report_options, write_output
from simreduce.cli.terminal import SCREEN, rows_shown, show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.report.sweeps import (
    check_columns,
    count_states,
    csv_text,
    first_columns,
    parquet_bytes,
    pivot,
    pivot_table,
    query,
    rows_table,
    sweep_document,
    table_lines,
)
from simreduce.sweep import Store


@command(
    examples="""
    simreduce sweep dgx1v --over size=1M..64M*4 --over strategy=ring,nccl --db sizes.db
    simreduce table sizes.db --pivot size,strategy,seconds
    """
)
@click.argument("db")
@click.option("--sweep", "number", type=int, default=None, help="Show this sweep; default: last.")
@click.option("--list", "list_", is_flag=True, help="List the sweeps of the database.")
@click.option("--columns", default=None, metavar="A,B,...", help="Show these columns, or all.")
@click.option(
    "--where", default=None, metavar="SQL", help='Keep rows such as "nodes > 4 AND busbw > 1e10".'
)
@click.option("--sort", default=None, metavar="A,-B", help="Sort by A, then by B downwards.")
@click.option("--group", default=None, metavar="A,B", help="Of rows with equal A and B, keep the "
              "best.")  # fmt: skip
@click.option("--by", default="seconds", metavar="[-]NAME", help="What is best: least NAME, or "
              "greatest with -; default seconds.")  # fmt: skip
@click.option("--pivot", "across", default=None, metavar="DOWN,ACROSS,VALUE", help="A row for each "
              "value of DOWN, a column for each of ACROSS.")  # fmt: skip
@click.option("--limit", type=click.IntRange(0), default=None, help="Show so many rows.")
@click.option("--csv", "to_csv", default=None, metavar="FILE", help="Also write CSV; -: stdout.")
@click.option("--parquet", default=None, metavar="FILE", help="Also write Parquet.")
@report_options
def table(
    db: str,
    number: int | None,
    list_: bool,
    columns: str | None,
    where: str | None,
    sort: str | None,
    group: str | None,
    by: str,
    across: str | None,
    limit: int | None,
    to_csv: str | None,
    parquet: str | None,
    as_json: bool,
) -> None:
    """Show the rows of a sweep in the database DB, while it runs or afterwards.

    Tables have ms and GB/s; CSV, JSON and Parquet have SI units and every digit. --where takes any
    condition of SQLite on the columns; --columns all shows their names.
    """
    faults = Faults()
    faults.attempt("", check_outputs, {"--csv": to_csv, "--parquet": parquet}, as_json=as_json)
    axes = _names(across)
    if across is not None and len(axes) != 3:
        faults.add(f"--pivot {across}", "must be DOWN,ACROSS,VALUE")
    faults.raise_any()
    with Store.open(db) as store:
        if list_:
            for each in store.sweeps():
                show(f"{each.id}  {each.name}: {', '.join(each.keys)}; {each.cells} cells")
            return
        sweep, known = store.show(number)
        text = query(known, where=where, group=_names(group), by=by, sort=_names(sort), limit=limit)
        place = f"--where {where}" if where else ""
        found, values = faults.attempt(place, store.select, text) or ([], [])
        faults.raise_any()
        rows = [dict(zip(found, each, strict=True)) for each in values]
        counts = count_states({"state": state} for (state,) in store.select(_STATES)[1])
        names = _names(columns) or first_columns(sweep, rows, group=group is not None)
        if columns == "all":
            names = [*known, *(["cells"] if group else [])]
        check_columns([*names, *axes], found)
        shown = rows
        if across is not None:
            names, shown = pivot(rows, *axes)
        kept = [{name: row[name] for name in names} for row in shown]
        if as_json:
            echo_json(sweep_document(sweep, db, counts, kept if columns or across else rows,
                                     complete="waiting" not in counts))  # fmt: skip
        else:
            shape = (
                pivot_table(kept, names, *axes[1:])
                if across
                else rows_table(names, kept, all_names=columns is not None)
            )
            most = rows_shown(everything=limit is not None, most=SCREEN)
            show("\n".join(table_lines(store, sweep, shape, counts, most)), to_csv)
        every = names if columns or across else [*known, *(["cells"] if group else [])]
        whole = kept if columns or across else rows
        if to_csv is not None:
            write_output(to_csv, [csv_text(every, whole)])
        if parquet is not None:
            write_output(parquet, [parquet_bytes(sweep, every, whole)])


_STATES = "SELECT state FROM sweep"


def _names(text: str | None) -> list[str]:
    """`a,b` as a list. InputError for an empty name."""
    if text is None:
        return []
    found = [name.strip() for name in text.split(",")]
    if "" in found or "-" in found:
        raise InputError(f"{text!r} has an empty name")
    return found
