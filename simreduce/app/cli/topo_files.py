"""`simreduce topo import`, `topo export` and `topo check`: machines as other tools and people write
them down.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from simreduce.app.cli.completion import topology_argument
from simreduce.app.cli.group import command
from simreduce.app.cli.reply import (
    echo_json,
    json_text,
    option_faults,
    output_option,
    output_path,
    report_options,
    wants_json,
    write_output,
)
from simreduce.app.cli.terminal import complain, show
from simreduce.engine.calibrate.measured import read_nccl_tests, read_p2p_test
from simreduce.engine.calibrate.nccl_tests import read_launch
from simreduce.errors import InputError, TopologyError, did_you_mean
from simreduce.files.formats import Faults
from simreduce.files.outputs import STDOUT
from simreduce.files.textfiles import exists, read_text
from simreduce.report.topo import CHECK, GRAPHS, MATRICES, ROWS
from simreduce.topology import LinkClass, Topology, link_classes, load_topology
from simreduce.topology.check import Suspicion, check_file
from simreduce.topology.importers import (
    FORMS,
    UNKNOWN,
    GpuModel,
    model_named,
    read_link_table,
    read_nccl_graphs,
    read_nccl_topology,
    table_reader,
    to_nccl_xml,
    with_nvlinks,
)
from simreduce.topology.routing.staging import GPU_LINKS, is_nvlink
from simreduce.topology.toml_writer import to_toml

_output = output_option(
    "-o", "--output", default=STDOUT, about="Write this file; default -, stdout."
)


@command(
    "import",
    examples="""
    simreduce topo export dgx-a100 --format nccl -o a100.xml
    simreduce topo import a100.xml -o a100.toml
    """,
)
@click.argument("file")
@click.option(
    "--gpu", default=None, metavar="MODEL", help="Take the GPUs for V100, A100, H100, ..."
)
@click.option(
    "--nvlink",
    default=None,
    metavar="FORM",
    help=f"Add the NVLinks that the file does not show: {FORMS}.",
)
@click.option(
    "--links",
    "table",
    default=None,
    metavar="FILE",
    help="Take the figures of link classes from [links.NAME] tables.",
)
@click.option(
    "--nvlink-class",
    default=None,
    metavar="CLASS",
    help="Take the NVLinks of a table for nvlink2, nvlink3, ...",
)
@click.option(
    "--pcie",
    default=None,
    metavar="CLASS",
    help="Take the PCIe links of a table for pcie3_x16, pcie4_x16, ...",
)
@click.option(
    "--socket",
    default=None,
    metavar="CLASS:N",
    help="Join the CPUs of a table by this, such as xgmi:3; default upi:2, of AMD's GPUs xgmi3:3.",
)
@click.option(
    "--nic",
    "nics",
    multiple=True,
    metavar="BUSID",
    help="Take this device without a class for a NIC. Repeatable.",
)
@_output
def import_(file: str, **given: Any) -> None:
    """Write what another tool wrote as a machine file (or, for measurements and NCCL's graphs, as
    JSON).

    FILE is what `nvidia-smi topo -m`, `rocm-smi --showtopo` or `amd-smi topology` prints, NCCL's or
    RCCL's topology or graph XML, or the output of p2pBandwidthLatencyTest, nccl-tests or
    rccl-tests; its content says which.
    """
    option_faults().raise_any()
    text = read_text(Path(file), InputError)
    if not text.strip():
        raise InputError(f"{file}: is empty")
    read = _reader(text)
    if read is None:
        raise InputError(f"{file}: none of {_READ}; a machine file needs no import")
    faults, context = Faults(), click.get_current_context()
    given = {name: value for name, value in given.items() if value not in (None, ())}
    for option in context.command.params:
        if option.name in given and option.name not in inspect.signature(read).parameters:
            faults.add(option.opts[0], f"says nothing about {file}, which is another kind of file")
    faults.raise_any()
    write_output(
        output_path("output") or STDOUT, [read(text.lstrip("\ufeff"), Path(file).name, **given)]
    )


_READ = (
    "`nvidia-smi topo -m`, `rocm-smi --showtopo`, `amd-smi topology`, NCCL or RCCL XML, "
    "p2pBandwidthLatencyTest, nccl-tests and rccl-tests"
)


def _reader(text: str) -> Callable[..., str] | None:
    """The function that turns a text into a file of ours, by its content."""
    if text.lstrip("\ufeff \t\r\n").startswith("<"):
        return _import_graphs if "<graphs" in text else _import_xml
    if "Matrix" in text and "P2P" in text:
        return _import_p2p
    if table_reader(text):
        return _import_table
    return _import_nccl_tests if re.search(r"\bbusbw\b", text) else None


def _import_xml(
    text: str,
    name: str,
    *,
    gpu: str | None = None,
    nvlink: str | None = None,
    table: str | None = None,
    nics: tuple[str, ...] = (),
) -> str:
    model = model_named(gpu) if gpu else None
    classes = read_link_table(table) if table else link_classes()
    machine, notes = read_nccl_topology(
        text.lstrip(), name, model, [nic.lower() for nic in nics], classes
    )
    return _machine_file(machine, notes, nvlink, classes)


def _import_table(
    text: str,
    name: str,
    *,
    gpu: str | None = None,
    nvlink: str | None = None,
    table: str | None = None,
    nvlink_class: str | None = None,
    pcie: str | None = None,
    socket: str | None = None,
) -> str:
    model = model_named(gpu) if gpu else None
    classes = read_link_table(table) if table else link_classes()
    named = _with_classes(model, nvlink_class, pcie, classes)
    read = table_reader(text)
    assert read is not None  # noqa: S101 - `_reader` has looked
    joined = {} if socket is None else {"socket": _socket(socket, classes)}
    machine, notes = read(text, name, named, classes=classes, **joined)
    return _machine_file(machine, notes, nvlink, classes)


def _import_graphs(text: str, name: str) -> str:
    return json_text(GRAPHS.write(read_nccl_graphs(text, name)))


def _import_p2p(text: str, name: str) -> str:
    return json_text(MATRICES.write(read_p2p_test(text, name)))


def _import_nccl_tests(text: str, name: str) -> str:
    return json_text(ROWS.write((read_launch(text), read_nccl_tests(text, name))))


def _with_classes(
    model: GpuModel | None, nvlink: str | None, pcie: str | None, classes: Mapping[str, LinkClass]
) -> GpuModel | None:
    """The model with link classes that stand in for its own."""
    for option, name, stem in (("--nvlink-class", nvlink, GPU_LINKS), ("--pcie", pcie, "pcie")):
        known = [each for each in classes if each.startswith(stem)]
        if name is not None and name not in known:
            near = did_you_mean(name, known) or f"; known are {', '.join(known)}"
            raise InputError(f"{option}: unknown class {name!r}{near}")
    if not (nvlink or pcie):
        return model
    base = model or UNKNOWN
    if nvlink and model and not model.nvlink:
        raise InputError(f"--nvlink-class {nvlink}: {model.name} has no NVLinks")
    return replace(base, nvlink=nvlink or base.nvlink, pcie=pcie or base.pcie)


def _socket(text: str, classes: Mapping[str, LinkClass]) -> tuple[str, int]:
    """The class and the number of `--socket`."""
    name, _, lanes = text.partition(":")
    # What is between sockets is none of the other kinds.
    other = ("nvlink", "pcie", "staged", "c2c", "xgmi_")
    sockets = [
        each.name
        for each in classes.values()
        if each.holds_lane and not each.name.startswith(other)
    ]
    if name not in sockets or not re.fullmatch(r"[1-9][0-9]?", lanes or "1"):
        raise InputError(
            f"--socket {text}: must be one of {', '.join(sockets)}, and :N for several links"
        )
    return name, int(lanes or "1")


def _machine_file(
    machine: Topology, notes: list[str], nvlink: str | None, classes: Mapping[str, LinkClass]
) -> str:
    """The machine file; notes on stderr and as comments in it."""
    if nvlink:
        machine = with_nvlinks(machine, nvlink, load_topology, classes)
    elif len(machine.devices) > 1 and not any(is_nvlink(link) for link in machine.links):
        notes.append("no NVLinks in the file; --nvlink says what they are if the machine has some")
    for note in notes:
        click.echo(f"simreduce: {machine.name}: {note}", err=True)
    return to_toml(machine, notes)


@command(examples="simreduce topo export dgx-a100 --format nccl -o dgx-a100.xml")
@topology_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["toml", "nccl"]),
    default="toml",
    help="Write a machine file, or NCCL's XML; default toml.",
)
@_output
def export(topology: str, form: str) -> None:
    """Write a machine as one file without `extends`: ours, or NCCL's (NCCL_TOPO_FILE)."""
    faults = option_faults()
    machine = faults.require(faults.attempt("", load_topology, topology))
    write_output(
        output_path("output") or STDOUT,
        [to_toml(machine) if form == "toml" else to_nccl_xml(machine)],
    )


@command(examples="simreduce topo check dgx1v")
@click.argument("file")
@report_options
def check(file: str) -> None:
    """List every fault of a machine (its file or its name), or of a file that `topo import` reads,
    with its place.

    Exit status 0 or 2. A machine that is merely suspicious gets a warning and status 0.
    """
    problems = _faults_of_measurements(file)
    problems = check_file(file) if problems is None else problems
    faults = [problem for problem in problems if not isinstance(problem, Suspicion)]
    if wants_json():
        echo_json(CHECK.write({"file": file, "problems": problems}))
    elif not faults:
        for problem in problems:
            complain(f"warning: {problem}")
        show(f"{file}: no fault")
    if faults:
        raise click.exceptions.Exit(2) if wants_json() else TopologyError(problems)


def _faults_of_measurements(file: str) -> list[str] | None:
    """The faults of a file with measurements that `topo import` reads; None of any other file."""
    if file.endswith(".toml") or not exists(file):
        return None
    faults = Faults()
    text = faults.attempt("", read_text, Path(file), InputError)
    read = _reader(text) if text else None
    if text is None or read not in (_import_p2p, _import_nccl_tests):
        return None
    faults.attempt("", read, text.lstrip("\ufeff"), file)
    return faults.problems
