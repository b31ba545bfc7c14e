"""Reads `rocm-smi --showtopo` and `amd-smi topology`, as text or as JSON of `amd-smi --json`.

Both print tables over the GPUs: of the type of each pair's link, of hops, and (amd-smi) of the
least and the greatest rate in MB/s, whose ratio is the number of links; `0-0` says that no link
joins a pair (ROCm's guide to rocm-smi). Without rates one link joins a pair. rocm-smi states the
NUMA node of each GPU. NICs stand in neither. What follows is a table as `nvidia-smi topo -m` prints
it, and its machine.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simreduce import units
from simreduce.errors import TopologyError, did_you_mean, quote
from simreduce.files.formats.syntax import Faults, read_json
from simreduce.topology.elements import LinkClass
from simreduce.topology.graph import Topology
from simreduce.topology.importers.parts import GpuModel
from simreduce.topology.importers.topo_m import (
    MOST_CHARACTERS,
    TopologyMatrix,
    is_topo_m,
    machine_of,
    read_topo_m,
)

_TYPE, _HOPS, _RATES = "LINK TYPE", "HOPS", "NUMA BW"
_TITLE = re.compile(r"=+ (Weight|Hops|Link Type) between two GPUs =+|([A-Z][A-Z -]{2,40}) TABLE:")
_NUMA = re.compile(r"GPU ?\[?([0-9]{1,4})\]?\s*: \(Topology\) Numa Node: (-?[0-9]{1,4})")
_DEVICE = re.compile(r"GPU[0-9]{1,4}|[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
_RATE = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_NO_LINK = "0-0"
_WORDS = {_TYPE: r"0|SELF|XGMI|PCIE", _HOPS: r"[0-9]{1,3}|N/A", _RATES: rf"{_RATE.pattern}|N/A"}
"""The cells of the tables that count."""
_LINK_LIMITS = (1_000, 1_000_000)
"""MB/s of one link: xGMI has had 50,000 to 76,800."""
_MOST_LINKS = 8
"""Those of a module of MI250X; its two dies share four."""
_KINDS = ("XGMI", "PCIE", "SELF")
_MOST_GPUS = 128


@dataclass(slots=True)
class _Tables:
    """Cells of each table by row and column, as printed."""

    names: tuple[str, ...] = ()
    cells: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    numa: dict[int, str] = field(default_factory=dict)

    def cell(self, table: str, i: int, j: int) -> str:
        """A cell, "" where the table is not printed."""
        return self.cells[table][self.names[i]][j] if table in self.cells else ""


def is_rocm_smi(text: str) -> bool:
    """Whether a text looks like what rocm-smi or amd-smi prints about links."""
    head = text[: MOST_CHARACTERS + 1]
    if head.lstrip("\ufeff \t\r\n").startswith("["):
        return '"link_type"' in head
    return _TITLE.search(head) is not None


def table_reader(text: str) -> Callable[..., tuple[Topology, list[str]]] | None:
    """What reads a table of links by its looks: of rocm-smi, amd-smi or `nvidia-smi topo -m`."""
    if is_rocm_smi(text):
        return read_rocm_smi
    return read_topo_m if is_topo_m(text) else None


def read_rocm_smi(
    text: str,
    name: str,
    model: GpuModel | None = None,
    socket: tuple[str, int] | None = None,
    classes: Mapping[str, LinkClass] | None = None,
) -> tuple[Topology, list[str]]:
    """The machine of what rocm-smi or amd-smi printed, and notes; parameters as of `read_topo_m`,
    but that sockets are AMD's.

    Raises `TopologyError` with every fault.
    """
    faults = Faults(name)
    faults.check(
        len(text) <= MOST_CHARACTERS,
        "",
        f"more than {MOST_CHARACTERS >> 20} MiB: no table of rocm-smi is as long",
    )
    faults.raise_any(TopologyError)
    as_json = text.lstrip("\ufeff \t\r\n").startswith("[")
    tables = (_read_json if as_json else _read_text)(text, faults)
    faults.check(
        tables.names or faults.problems,
        "",
        "no table of link types: print all of `rocm-smi --showtopo`",
    )
    faults.raise_any(TopologyError)
    table = _as_table(tables, faults)
    faults.raise_any(TopologyError)
    program = "amd-smi topology" if as_json or _RATES in tables.cells else "rocm-smi --showtopo"
    machine, notes = machine_of(
        table, name, program, faults, model, socket or ("xgmi3", 3), classes
    )
    if table.xgmi and _RATES not in tables.cells:
        notes.append("how many links join a pair is not printed; one is taken")
    return machine, [*notes, "NICs are not printed: add those that the machine has"]


def _read_text(text: str, faults: Faults) -> _Tables:
    tables = _Tables()
    title, names = "", tuple[str, ...]()
    for number, line in enumerate(text.splitlines(), 1):
        place = f"line {number}"
        if match := _TITLE.search(line):
            title, names = (match[1] or match[2]).upper(), ()
            faults.check(title not in tables.cells, place, f"a second table of {title}")
        elif numa := _NUMA.search(line):
            tables.numa[int(numa[1])] = numa[2]
        elif title in _WORDS and (fields := line.split()):
            if _DEVICE.fullmatch(fields[0]) is None:
                title = ""  # the table has ended
            elif not names:
                names = tuple(fields)
                _head(tables, names, faults, place)
            else:
                _row(tables, title, fields, faults, place)
    for title, rows in tables.cells.items():
        lacking = [name for name in tables.names if name not in rows]
        faults.check(not lacking, title, f"no row of {units.first_few(lacking, 1)}")
    if _TYPE not in tables.cells:
        tables.names = ()
    return tables


def _head(tables: _Tables, names: tuple[str, ...], faults: Faults, place: str) -> None:
    tables.names = tables.names or names
    odd = [name for name in names if not _DEVICE.fullmatch(name)]
    if odd:
        faults.add(place, f"{quote(odd[0])} is no GPU: write GPU0, or its bus id")
    elif names != tables.names:
        faults.add(place, "other GPUs than in the table before, or in another order")
    elif len(set(names)) != len(names) or len(names) > _MOST_GPUS:
        faults.add(place, f"a GPU twice, or more than {_MOST_GPUS} GPUs")


def _row(tables: _Tables, title: str, fields: list[str], faults: Faults, place: str) -> None:
    rows, (name, *cells) = tables.cells.setdefault(title, {}), fields
    if name not in tables.names:
        faults.add(place, f"{quote(name)} is none of the columns{did_you_mean(name, tables.names)}")
    elif name in rows:
        faults.add(place, f"a second row of {name}")
    elif len(cells) != len(tables.names):
        gpus = units.plural(len(tables.names), "GPU")
        faults.add(place, f"{units.plural(len(cells), 'cell')} for {gpus}")
    else:
        for cell in dict.fromkeys(cells):
            _check_cell(title, cell, faults, place)
    rows.setdefault(name, tuple(cells))


def _check_cell(title: str, cell: str, faults: Faults, place: str) -> None:
    if not re.fullmatch(_WORDS[title], cell):
        near = did_you_mean(cell, _KINDS) if title == _TYPE else ""
        wanted = {_TYPE: "XGMI or PCIE", _HOPS: "a number of hops", _RATES: "50000-100000, or N/A"}
        faults.add(place, f"{quote(cell)} is not {wanted[title]}{near}")
    elif title == _RATES and (match := _RATE.fullmatch(cell)) and cell != _NO_LINK:
        least, most = int(match[1]), int(match[2])
        low, high = _LINK_LIMITS
        if not low <= least <= high:
            faults.add(place, f"{quote(cell)}: no link has {least:,} MB/s")
        elif not least <= most <= _MOST_LINKS * least:
            faults.add(
                place,
                f"{quote(cell)}: the greatest rate is 1 to {_MOST_LINKS} times the least,"
                " that of one link",
            )


def _read_json(text: str, faults: Faults) -> _Tables:
    tables = _Tables()
    read = faults.attempt("", read_json, text.lstrip("\ufeff"), "is not JSON")
    found = faults.require(read, TopologyError)
    gpus = [
        each for each in found if isinstance(each, dict) and isinstance(each.get("links"), list)
    ]
    if not faults.check(
        len(gpus) == len(found) and 0 < len(gpus) <= _MOST_GPUS,
        "",
        f"must be a list of 1 to {_MOST_GPUS} GPUs with links",
    ):
        return tables
    if not faults.check(
        [each.get("gpu") for each in gpus] == list(range(len(gpus))),
        "",
        "the GPUs must be numbered 0, 1, ... by gpu",
    ):
        return tables
    tables.names = tuple(f"GPU{i}" for i in range(len(gpus)))
    for i, each in enumerate(gpus):
        _json_row(tables, i, each["links"], faults)
    return tables


def _json_row(tables: _Tables, i: int, links: Iterable[Any], faults: Faults) -> None:
    place = f"[{i}].links"
    row: dict[int, dict[str, Any]] = {}
    for link in links:
        to = link.get("gpu") if isinstance(link, dict) else None
        if type(to) is not int or not 0 <= to < len(tables.names) or to in row:
            faults.add(place, f"{quote(str(to))} is not another GPU of the file, or stands twice")
        else:
            row[to] = link
    if not faults.check(
        len(row) == len(tables.names),
        place,
        f"{units.plural(len(row), 'link')} for {len(tables.names)} GPUs",
    ):
        return
    order = [row[j] for j in range(len(tables.names))]
    for title, key, default in (
        (_TYPE, "link_type", ""),
        (_HOPS, "num_hops", "N/A"),
        (_RATES, "bandwidth", "N/A"),
    ):
        if title != _TYPE and not any(key in link for link in order):
            continue
        cells = tuple(str(link.get(key, default)) for link in order)
        for cell in dict.fromkeys(cells):
            _check_cell(title, cell, faults, f"{place}[{cells.index(cell)}].{key}")
        tables.cells.setdefault(title, {})[tables.names[i]] = cells


def _as_table(tables: _Tables, faults: Faults) -> TopologyMatrix:
    """The cells in words of `nvidia-smi topo -m`. GPUs are numbered in the order of the columns."""
    for title, rows in tables.cells.items():
        if not faults.check(len(rows) == len(tables.names), title, "not every GPU has a row"):
            return TopologyMatrix((), (), ())
    many = range(len(tables.names))
    grid = [["X"] * len(many) for _ in many]
    for i, j in itertools.permutations(many, 2):
        kind, hops, rates = (tables.cell(title, i, j) for title in (_TYPE, _HOPS, _RATES))
        if kind not in ("XGMI", "PCIE"):
            faults.add(tables.names[i], f"{kind} to {tables.names[j]}; it must be XGMI or PCIE")
        else:
            near = kind == "XGMI" and hops in ("", "1", "N/A") and rates != _NO_LINK
            grid[i][j] = f"XGMI{_lanes(rates)}" if near else _pcie(tables, i, j, hops)
    affinity = tuple(tables.numa.get(i, "") for i in many)
    return TopologyMatrix(tuple(f"GPU{i}" for i in many), tuple(map(tuple, grid)), affinity)


def _lanes(rates: str) -> int:
    """The greatest rate over the least, which is that of one link."""
    match = _RATE.fullmatch(rates)
    return round(int(match[2]) / int(match[1])) if match else 1


def _pcie(tables: _Tables, i: int, j: int, hops: str) -> str:
    """PHB below one NUMA node, by hops where that is not stated, else SYS."""
    a, b = tables.numa.get(i), tables.numa.get(j)
    same = a == b if a is not None and b is not None else hops in ("1", "2")
    return "PHB" if same else "SYS"
