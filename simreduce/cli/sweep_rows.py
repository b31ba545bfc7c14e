"""The rows of a sweep, as several commands read them."""

from __future__ import annotations

from typing import Any

import click

from simreduce.errors import InputError
from simreduce.report.sweeps import query
from simreduce.sweep import Store, Sweep

where_option = click.option(
    "--where", default=None, metavar="SQL", help='Keep rows such as "nodes > 4 AND busbw > 1e10".'
)


def read_sweep(
    path: str, number: int | None, where: str | None
) -> tuple[Sweep, list[dict[str, Any]]]:
    """The sweep of that number in a database, the last unless given, and its rows that fit a
    condition of SQLite. InputError if there is none, or if SQLite does not understand it.
    """
    with Store.open(path) as store:
        sweep, columns = store.show(number)
        try:
            names, rows = store.select(query(columns, where=where))
        except InputError as error:
            raise InputError([f"--where {where}: {each}" for each in error.problems]) from None
    return sweep, [dict(zip(names, row, strict=True)) for row in rows]
