"""CSV files whose first line names columns."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from simreduce.errors import InputError, did_you_mean
from simreduce.files.formats.faults import Faults


def read_csv(
    content: str, keys: Sequence[str], example: str, faults: Faults, refuse: type[InputError]
) -> list[tuple[str, dict[str, str]]]:
    """Return (`line 3`, its cells by column) of each row.

    The first line names columns, of `keys`; `example` is such a line. Empty lines and those that
    begin with # do not count. A line that is no row is a fault. Raises `refuse` with every fault if
    the first line is wrong.
    """
    before = len(faults.problems)
    lines = [
        (f"line {i}", line)
        for i, line in enumerate(content.split("\n"), 1)
        if line.strip() and line[0] != "#"
    ]
    if not lines:
        faults.add("", f"empty; the first line names the columns: {example}")
        faults.raise_any(refuse)
    (place, header), *rows = [(place, _cells(faults, place, line)) for place, line in lines]
    damaged = len(faults.problems)
    if header and not any(key in keys or did_you_mean(key, keys) for key in header):
        del faults.problems[before:]
        faults.add(place, f"no columns; expected a CSV file that begins with {example}")
        faults.raise_any(refuse)
    faults.unknown(place, header, keys)
    for key in keys:
        if header.count(key) > 1:
            faults.add(place, f"two columns {key!r}")
    wrong_header = not header or len(faults.problems) > damaged
    for where, row in rows:
        if row and len(row) != len(header):
            fields = f"{len(row)} {'field' if len(row) == 1 else 'fields'}"
            faults.add(where, f"{fields} where the header has {len(header)}")
    if wrong_header:
        faults.raise_any(refuse)
    return [
        (where, dict(zip(header, row, strict=True)))
        for where, row in rows
        if len(row) == len(header)
    ]


def _cells(faults: Faults, place: str, line: str) -> list[str]:
    """The cells of one line, in which a quoted cell must end; none after a fault."""
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        faults.add(place, error)
        return []
