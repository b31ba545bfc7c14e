"""`simreduce validate MACHINE --backend nccl`: asks, and compares with our predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from simreduce.app.cli.reply import Progress, Reply
from simreduce.app.cli.setups import is_typed, read_sizes, refuse
from simreduce.files.formats.syntax import Faults
from simreduce.planners.nccl import read_settings
from simreduce.planners.nccl.environment import read_assignments
from simreduce.topology import load_topology
from simreduce_validate.nccl_library.asking import SIZES, ask, check_memory, fake_nodes
from simreduce_validate.nccl_library.comparing import answered, compare
from simreduce_validate.nccl_library.tools import full_version, prepare
from simreduce_validate.report.nccl_library import LIBRARY, library_lines

BACKEND = "nccl"
_KEPT = (
    "topology", "minbytes", "maxbytes", "stepbytes", "stepfactor", "backend", "nccl", "details",
    "wide", "as_json",
)  # fmt: skip
"""Parameters of the command that have a use here."""


def reply(
    faults: Faults, topology: str | None, nccl: Sequence[str], *, details: bool,
    minbytes: str, maxbytes: str | None, stepbytes: str, stepfactor: float | None, **_: Any,
) -> Reply:  # fmt: skip
    """Ask the library about a machine, and compare.

    Raises `InputError` with every fault, and where the library cannot be asked here.
    """
    others = {param.name or "" for param in click.get_current_context().command.params}
    refuse(
        faults, sorted(others - {*_KEPT}), "--backend nccl asks NCCL's library, and times nothing"
    )
    faults.check(topology, "TOPOLOGY is missing", "such as dgx-h100x2 for two nodes")
    version, variables = _read_settings(faults, nccl)
    sizes: Sequence[int] | None = SIZES
    if is_typed("minbytes") or maxbytes is not None:
        given = minbytes, maxbytes, stepbytes, stepfactor
        sizes = faults.attempt("", read_sizes, *given)
    if topology and (found := faults.attempt("", fake_nodes, topology)):
        faults.attempt("", check_memory, topology, found[1])
    sizes = faults.require(sizes)
    machine = load_topology(topology or "")
    collectives = answered(machine, version, variables, sizes)
    tools = prepare(version, Progress)
    with Progress(f"asking NCCL {version}"):
        answer = ask(topology or "", tools, variables, sizes, collectives)
    report = compare(answer, machine)
    return Reply(partial(library_lines, report, details=details), partial(LIBRARY.write, report))


def _read_settings(faults: Faults, texts: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """The version, and variables as they are typed; `--nccl 2.30.7` is `--nccl version=2.30.7`."""
    lines = [text if "=" in text else f"version={text}" for text in texts]
    own = Faults("--nccl")
    found = dict(read_assignments([("", line) for line in lines], own))
    version = own.attempt("", full_version, found.pop("version", "")) or ""
    read_settings(found, own, "")
    for name in (name for name in found if not name.startswith("NCCL_")):
        own.add(name, "is no variable of NCCL, and its library reads variables only")
    faults.problems += own.problems
    return version, found
