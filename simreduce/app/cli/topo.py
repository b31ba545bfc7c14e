"""`simreduce topo`: machines, also as others write them down, and their best rings and trees."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from simreduce import units
from simreduce.app.cli import CommandGroup, command, terminal, topology_argument
from simreduce.app.cli.reply import (
    PictureOption,
    Progress,
    Reply,
    json_text,
    note,
    options,
    output_option,
    output_path,
    output_paths,
    picture_options,
    report_options,
    say,
    wants_json,
    write_output,
)
from simreduce.app.cli.setups import (
    calibration_option,
    check_root,
    gpus_options,
    machine_argument,
    reading,
    refuse,
    root_option,
    shape_of,
)
from simreduce.computing import group_by
from simreduce.engine import Calibration
from simreduce.engine.calibrate import load_calibration
from simreduce.engine.calibrate.logs import (
    NVBANDWIDTH,
    OSU,
    has_rows,
    read_nccl_logs,
    read_p2p_test,
)
from simreduce.errors import InputError, TopologyError, near_or_all
from simreduce.files import STDOUT, exists, read_text
from simreduce.files.formats.documents import Document
from simreduce.files.formats.syntax import Faults
from simreduce.files.launchers import without_marks
from simreduce.files.tables import Column, Table
from simreduce.planners.algorithms.ring import sample
from simreduce.planners.layouts import Layout, layout
from simreduce.planners.synthesis import Network, is_connected, optimum
from simreduce.planners.synthesis.rings import (
    all_reduce_rate,
    all_to_all,
    all_to_all_paths,
    best_order,
    hops,
    ring_packing,
)
from simreduce.planners.synthesis.trees import PACKINGS as BY_TREES, Trees, ring_text, tree_lines
from simreduce.report.drawing import Drawing
from simreduce.report.pictures import Panel, machine_picture, patterns_picture
from simreduce.report.pictures.scene import link_pairs
from simreduce.report.topo import (
    CHECK,
    GRAPHS,
    LIST,
    MATRICES,
    P2P,
    RINGS,
    ROWS,
    SHOW,
    TREES,
    Copies,
    Packed,
    PackingOutcome,
    p2p_table,
)
from simreduce.study.tune.sizes import peer_to_peer
from simreduce.topology import (
    LinkClass,
    Topology,
    link_classes,
    load_topology,
    matrix_text,
    shipped,
)
from simreduce.topology.check import Suspicion, check_file
from simreduce.topology.importers import machine_file_in, nccl_log, with_machine_file
from simreduce.topology.importers.hosts import READERS as HOST_READERS
from simreduce.topology.importers.nccl_xml import read_nccl_graphs, read_nccl_topology
from simreduce.topology.importers.parts import (
    FORMS,
    UNKNOWN,
    GpuModel,
    leaves_simple,
    model_named,
    read_link_table,
    with_nvlinks,
)
from simreduce.topology.importers.rocm_smi import table_reader
from simreduce.topology.importers.topo_m import figure_lines, parts_line, rule_lines
from simreduce.topology.machine_files import to_toml
from simreduce.topology.routing import GPU_LINKS, is_nvlink
from simreduce.units import plural

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
    "--gpu", default=None, callback=reading(model_named), metavar="MODEL",
    help="Take the GPUs for V100, A100, H100, ...",
)  # fmt: skip
@click.option(
    "--nvlink",
    default=None,
    metavar="FORM",
    help=f"Add the NVLinks that the file does not show: {FORMS}.",
)
@click.option(
    "--links",
    "classes",
    default=None,
    callback=reading(read_link_table),
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
    help="Join the CPUs of a table by this, such as xgmi:3; default upi:2, xgmi:3 or upi2:3 "
    "for PCIe Gen3, 4 or 5, of AMD's GPUs xgmi3:3.",
)
@click.option(
    "--nic",
    "nics",
    multiple=True,
    metavar="BUSID",
    help="Take this device without a class for a NIC. Repeatable.",
)
@_output
def import_(faults: Faults, file: str, **given: Any) -> None:
    """Write what another tool wrote as a machine file (or, for measurements and NCCL's graphs, as
    JSON).

    FILE is what `nvidia-smi topo -m`, `rocm-smi --showtopo` or `amd-smi topology` prints, NCCL's or
    RCCL's topology or graph XML, a log of NCCL with the graph that NCCL_DEBUG_SUBSYS=GRAPH prints,
    or the output of p2pBandwidthLatencyTest, nvbandwidth, nccl-tests or rccl-tests; its content
    says which.
    """
    text = read_text(Path(file), InputError)
    if not text.strip():
        raise InputError(f"{file}: is empty")
    if is_log := nccl_log.SYSTEM.search(text) is not None:
        # Rows of nccl-tests beside it are for `simreduce calibrate`.
        text = nccl_log.to_xml(text, file)
    read, text = _reader_of(text)
    if read is None:
        why = _named(text)
        whole = f"is {why}" if why else f"none of {_READ}; a machine file needs no import"
        raise InputError(f"{file}: {whole}")
    given = {name: value for name, value in given.items() if value not in (None, ())}
    unknown = [name for name in given if name not in inspect.signature(read).parameters]
    refuse(faults, unknown, f"says nothing about {file}, which is another kind of file")
    faults.raise_any()
    if is_log and "gpu" not in given:
        note(f"{file}: says how many NVLinks a GPU has and not which it is; --gpu does")
    write_output(
        output_path("output") or STDOUT, [read(text.lstrip("\ufeff"), Path(file).name, **given)]
    )


_READ = (
    "`nvidia-smi topo -m`, `rocm-smi --showtopo`, `amd-smi topology`, NCCL or RCCL XML, NCCL's "
    "graph in its log, "
    "p2pBandwidthLatencyTest, nvbandwidth, nccl-tests and rccl-tests"
)
_P2P_STATUS = r"(?m)^\s*GPU\d+(\s+(X|OK|CNS|GNS|TNS|NS|U))+\s*$"
_NAMED = {
    _P2P_STATUS: (
        "what `nvidia-smi topo -p2p` prints, which pairs may copy and not how they are linked; "
        "bring `nvidia-smi topo -m`"
    ),
    OSU.pattern: (
        "a table of OSU's benchmarks, which `simreduce calibrate --from-nccl-tests` reads"
    ),
    r"NCCL INFO": (
        "a log of NCCL without its graph; bring the file that it writes with NCCL_TOPO_DUMP_FILE, "
        "a log with NCCL_DEBUG_SUBSYS=GRAPH, or for `simreduce replay` one with "
        "NCCL_DEBUG_SUBSYS=COLL"
    ),
}
"""Files that people hand over, by what they have, and what to bring instead."""


def _named(text: str) -> str:
    """What a file is that is not read; "" if that is not known."""
    if any(fits(text) for fits, _ in HOST_READERS):
        return "a list of hosts and the switches above them, for `simreduce topo place --nodes`"
    return next((words for known, words in _NAMED.items() if re.search(known, text)), "")


def _reader_of(text: str) -> tuple[Callable[..., str] | None, str]:
    """What `_reader` finds in a text, or else in one without marks of launchers, and that text."""
    read = _reader(text)
    if read is None and (read := _reader(plain := without_marks(text))):
        text = plain
    return read, text


def _reader(text: str) -> Callable[..., str] | None:
    """The function that turns a text into a file of ours, by its content."""
    if text.lstrip("\ufeff \t\r\n").startswith("<"):
        return _import_graphs if "<graphs" in text else _import_xml
    if ("Matrix" in text and "P2P" in text) or NVBANDWIDTH.search(text):
        return _import_p2p
    if table_reader(text) and not re.search(_P2P_STATUS, text):
        return _import_table
    return _import_nccl_tests if has_rows(text) else None


def _import_xml(
    text: str,
    name: str,
    *,
    gpu: GpuModel | None = None,
    nvlink: str | None = None,
    classes: Mapping[str, LinkClass] | None = None,
    nics: tuple[str, ...] = (),
) -> str:
    if not (gpu or nvlink or classes or nics) and (machine := machine_file_in(text, name)):
        return to_toml(machine)
    classes = classes or link_classes()
    machine, notes = read_nccl_topology(
        text.lstrip(), name, gpu, [nic.lower() for nic in nics], classes
    )
    return _machine_file(machine, notes, nvlink, classes)


def _import_table(
    text: str,
    name: str,
    *,
    gpu: GpuModel | None = None,
    nvlink: str | None = None,
    classes: Mapping[str, LinkClass] | None = None,
    nvlink_class: str | None = None,
    pcie: str | None = None,
    socket: str | None = None,
) -> str:
    classes = classes or link_classes()
    named = _with_classes(gpu, nvlink_class, pcie, classes)
    read = table_reader(text)
    assert read is not None  # noqa: S101 - `_reader` has looked
    joined = None if socket is None else _socket(socket, classes)
    machine, notes = read(text, name, named, socket=joined, classes=classes)
    return _machine_file(machine, notes, nvlink, classes)


def _import_graphs(text: str, name: str) -> str:
    return json_text(GRAPHS.write(read_nccl_graphs(text, name)))


def _import_p2p(text: str, name: str) -> str:
    program = "nvbandwidth" if NVBANDWIDTH.search(text) else "p2pBandwidthLatencyTest"
    return json_text(MATRICES.write((program, read_p2p_test(without_marks(text), name))))


def _import_nccl_tests(text: str, name: str) -> str:
    logs = read_nccl_logs(text, name, note)
    launch = logs[0].nthreads, logs[0].ngpus, logs[0].iterations
    return json_text(ROWS.write((launch, [row for log in logs for row in log.rows])))


def _with_classes(
    model: GpuModel | None, nvlink: str | None, pcie: str | None, classes: Mapping[str, LinkClass]
) -> GpuModel | None:
    """The model with link classes that stand in for its own."""
    for option, name, stem in (("--nvlink-class", nvlink, GPU_LINKS), ("--pcie", pcie, "pcie")):
        known = [each for each in classes if each.startswith(stem)]
        if name is not None and name not in known:
            raise InputError(f"{option}: unknown class {name!r}{near_or_all(name, known)}")
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
    for each in notes:
        note(f"{machine.name}: {each}")
    return to_toml(machine, notes)


@command(examples="simreduce topo export dgx-a100 --format nccl -o dgx-a100.xml")
@machine_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["toml", "nccl"]),
    default="toml",
    help="Write a machine file, or NCCL's XML; default toml.",
)
@_output
def export(machine: Topology, form: str) -> None:
    """Write a machine as one file without `extends`: ours, or NCCL's (NCCL_TOPO_FILE)."""
    if form == "nccl" and leaves_simple(machine):
        say(
            f"simreduce: {machine.name}: on several nodes EFA's plugin sets NCCL_PROTO=simple, "
            "which the file cannot say"
        )
    write_output(
        output_path("output") or STDOUT,
        [to_toml(machine) if form == "toml" else with_machine_file(machine)],
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
    wrong = [problem for problem in problems if not isinstance(problem, Suspicion)]
    if wants_json():
        click.echo(json_text(CHECK.write({"file": file, "problems": problems})), nl=False)
    elif not wrong:
        for problem in problems:
            terminal.complain(f"warning: {problem}")
        terminal.show(f"{file}: no fault")
    if wrong:
        raise click.exceptions.Exit(2) if wants_json() else TopologyError(problems)


def _faults_of_measurements(file: str) -> list[str] | None:
    """The faults of a file with measurements that `topo import` reads; None of any other file."""
    if file.endswith(".toml") or not exists(file):
        return None
    faults = Faults()
    text = faults.attempt("", read_text, Path(file), InputError)
    read, text = _reader_of(text or "")
    if read not in (_import_p2p, _import_nccl_tests):
        return None
    faults.attempt("", read, text.lstrip("\ufeff"), file)
    return faults.problems


_GB = 1e9
_IN_PARTS = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives whose trees carry a part of the tensor, one of as many as there are ranks."""

PACKINGS: Mapping[str, Callable[[Network, int], Trees]] = {
    **BY_TREES,
    "all_to_all": lambda network, _: all_to_all_paths(network),
}


_common = options(
    topology_argument,
    gpus_options,
    picture_options("Also draw them"),
    report_options,
)


@command(examples="simreduce topo rings dgx1v")
@_common
def rings(faults: Faults, topology: str, **given: Any) -> Reply:
    """Find the rings that share TOPOLOGY best, and the best order for a single one.

    Where direct links connect the GPUs, only these are used; otherwise the routes between them. Of
    more than 64 GPUs in equal machines, a few machines are searched: rings through all go on alike.
    The JSON document then has the GPUs and rings of these few, and says how many there are.
    """
    machine, shape = faults.require(_read(faults, topology, sample, **given))
    few = sample(shape)
    network = few.network()
    with Progress("packing rings"):
        if not ring_packing(network).patterns:
            network = few.network(routed=True)
        found, best = ring_packing(network), best_order(network)
    if best is None:
        raise InputError(
            f"{topology}: no ring over these GPUs was found on the links and routes between them"
        )
    outcome = _ring_outcome(network, found.rate, shape.n)
    alone = network.rate(hops(best))
    lines = [f"{x / _GB:8.2f} GB/s  {ring_text(network, ring)}" for ring, x in found.patterns]
    best_line = f"{alone / _GB:8.2f} GB/s  {ring_text(network, best)}"
    lines += ["", "The best order of one ring:", best_line]
    panels = [Panel(f"{x / _GB:.2f} GB/s", hops(ring), x) for ring, x in found.patterns]
    about = f"reduce-scatter and all-gather, {plural(len(panels), 'ring')}"
    machines, searched = shape.task_count, few.task_count
    if few is shape:
        machines = searched = 0
    else:
        about += f" through {machines} equal machines as through these {searched}"
    packed = Packed(
        machine, network, about, outcome, found.patterns, lines, panels, shape.n,
        link_rate=found.rate, best=(best, alone), machines=machines, searched=searched,
    )  # fmt: skip
    return _reply(RINGS, packed)


def _ring_outcome(network: Network, rate: float, n: int) -> PackingOutcome:
    """The outcome for `n` ranks; `network` may have only some of them."""
    if n > network.ranks:
        cut = optimum.narrowest_cut(network)
        text = f"the narrowest cut of {plural(len(network.tasks), 'machine')}, a bound"
        return PackingOutcome(all_reduce_rate(n, rate), all_reduce_rate(n, cut), text)
    whole, part = optimum.scatter_then_gather(network), optimum.all_gather(network)
    return PackingOutcome(all_reduce_rate(n, rate), whole, part.bottleneck(network))


@command(examples="simreduce topo trees dgx1v --collective broadcast")
@_common
@click.option(
    "--collective",
    default="all_reduce",
    metavar="NAME",
    help=f"Pack trees for this: {', '.join(PACKINGS)}; default all_reduce.",
)
@root_option
@click.option("--bound", is_flag=True, help="Print the best rate alone; pack no trees.")
def trees(
    faults: Faults, topology: str, collective: str, root: int | None, bound: bool, **given: Any
) -> Reply:
    """Find the trees that share TOPOLOGY best; for all_to_all, paths over other GPUs.

    Where direct links connect the GPUs, only these are used; otherwise the routes between them.
    """
    read = _read(faults, topology, lambda whole: whole, **given)
    if collective not in PACKINGS:
        words = f"no trees are packed for it{near_or_all(collective, PACKINGS)}"
        faults.add(f"--collective {collective}", words)
    else:
        check_root(faults, root, collective, read[1].n if read else None)
    drawn = bound and output_paths()
    faults.check(not drawn, "--bound", "there are no trees to draw; leave out --svg and --png")
    machine, shape = faults.require(read)
    network = shape.network()
    if not is_connected(network.ranks, network.edges):
        raise InputError(f"{topology}: some of these GPUs have no way to others")
    with Progress("packing trees"):
        found = None if bound else PACKINGS[collective](network, root or 0)
        outcome = _tree_outcome(network, collective, root or 0, found)
    if found is None:
        return _reply(TREES, Packed(machine, network, collective, outcome, collective=collective))
    lines = []
    for tree, x in found.patterns:
        text = tree_lines(network, tree)
        lines += [f"{x / _GB:8.2f} GB/s  {text[0]}", *(f"{'':15}{line}" for line in text[1:])]
    panels = [
        Panel(f"{x / _GB:.2f} GB/s", tree.down or tree.up, x, tree.root)
        for tree, x in found.patterns
    ]
    word = "path" if collective == "all_to_all" else "tree"
    about = f"{collective}, {plural(len(panels), word)}"
    packed = Packed(
        machine, network, about, outcome, found.patterns, lines, panels, collective=collective
    )
    return _reply(TREES, packed)


def _tree_outcome(
    network: Network, collective: str, root: int, found: Trees | None
) -> PackingOutcome:
    # The share of one root's trees is 1/n of the tensor.
    times = network.ranks if collective in _IN_PARTS else 1
    if collective == "all_to_all":
        best: optimum.Optimum | None = all_to_all(network)
    else:
        best = optimum.best_rate(network, collective, root)
    limit = best or min(
        optimum.all_gather(network), optimum.ports(network), key=lambda bound: bound.rate
    )
    proved = limit.rate if best or found is None else min(found.bound * times, limit.rate)
    rate = None if found is None else found.rate * times
    return PackingOutcome(rate, proved, limit.bottleneck(network))


def _reply(document: Document, packing: Packed) -> Reply:
    """The reply of a packing."""
    outcome, network, machine = packing.outcome, packing.network, packing.machine
    reached = f"at most {outcome.optimum / _GB:.2f}"
    reached = (
        f"{reached} GB/s" if outcome.rate is None else f"{outcome.rate / _GB:.2f} GB/s of {reached}"
    )
    reached += " over direct links" if network.direct else ""
    reached += f", {outcome.gap:.2%} short" if outcome.gap else ""
    subtitle = f"{reached}; bottleneck {outcome.bottleneck}"
    about = f"# {machine.name} ({machine.digest}), {plural(packing.gpus or network.ranks, 'GPU')}"
    head = [f"{about}: {packing.about}", f"# {reached}", f"# bottleneck {outcome.bottleneck}"]
    return Reply(
        lambda: [*head, *(["", *packing.lines] if packing.lines else [])],
        lambda: document.write(packing),
        picture=lambda: patterns_picture(
            f"{machine.name}: {packing.about}", subtitle, network.names[: network.ranks],
            packing.panels,
        ),
    )  # fmt: skip


def _read(
    faults: Faults,
    topology: str,
    searched: Callable[[Layout], Layout],
    *,
    ngpus: int | None,
    gpus: str | None,
) -> tuple[Topology, Layout] | None:
    """The machine and its GPUs; notes the faults of all options that rings and trees share."""
    machine = faults.attempt("", load_topology, topology)
    shape = faults.attempt("", shape_of, layout(machine), ngpus, gpus) if machine else None
    source = f"--gpus {gpus}" if gpus is not None else topology if ngpus is None else f"-g {ngpus}"
    if shape and shape.n < 2:
        faults.add(source, f"{shape.n} GPU has nobody to share with; take 2 at least")
    elif shape:
        faults.attempt(source, lambda whole: searched(whole).network(), shape)
    return (machine, shape) if machine and shape else None


class _Topo(CommandGroup):
    """`place` loads all that ranks, without which the others begin in half the time."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name."""
        if cmd_name != "place":
            return super().get_command(ctx, cmd_name)
        from simreduce.app.cli.run import place  # noqa: PLC0415 - as above

        found: click.Command = place
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, sorted."""
        return sorted([*super().list_commands(ctx), "place"])


@click.group(cls=_Topo)
def topo() -> None:
    """List, show, draw, predict, import and check machines; find their best rings and trees."""


_INLINE = """
Inline: ring:8  full:8  switch:64,bandwidth=12.5GB/s,latency=2us  torus:8x8
        fat_tree:1024,radix=32,oversubscription=2  fat_tree:1024,levels=3  dragonfly:1056
Several machines: dgx1vx4,nic=ib_edr  dgx-h100x64,fabric=rail_optimised,nics=4
        fabrics are switch, fat_tree, rail_optimised, rail_only, dragonfly and torus
        nic= is the class of their NICs, nics= how many of each machine are used
Equal paths: equal_cost=hashed,seed=1 or equal_cost=split"""


@topo.command("list", examples="simreduce topo list")
@report_options
def list_() -> Reply:
    """List the machines that come with simreduce, with their GPUs and NICs, and the generators."""
    machines = [load_topology(name) for name, _ in shipped()]
    rows = [(each.name, parts_line(each), each.title) for each in machines]
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    lines = [f"{name:{first}}  {parts:{second}}  {title}" for name, parts, title in rows]
    return Reply(lambda: [*lines, _INLINE], partial(LIST.write, machines))


@topo.command(
    examples="""
    simreduce topo show dgx1v
    simreduce topo show dgx-a100 --svg dgx-a100.svg
    """
)
@machine_argument
@picture_options("Draw the machine instead")
@report_options
def show(machine: Topology) -> Reply:
    """Show the matrix of `nvidia-smi topo -m`, and every link with its rate; or draw the machine.

    Of large machines the matrix shows the first of equal machines, or the first rows, and counts
    the others; links that are alike share a line. The picture shows a part one by one and counts
    the rest.
    """
    paths, drawing = output_paths(PictureOption), cache(machine_picture)
    return Reply(
        lambda: _drawn(drawing(machine), paths) if paths else _lines(machine),
        partial(SHOW.write, machine),
        picture=partial(drawing, machine),
    )


def _drawn(drawing: Drawing, paths: Mapping[str, str]) -> Iterator[str]:
    """The size of each picture."""
    for option, path in paths.items():
        form = "as SVG" if option == "--svg" else "doubled, as PNG"
        yield f"{path}: {drawing.width:.0f} x {drawing.height:.0f} pixels, {form}"


def _lines(machine: Topology) -> list[str]:
    figures = [*rule_lines(machine), *figure_lines(machine)]
    return [
        f"# {machine.name}: {machine.title} ({machine.digest})",
        "",
        *_matrix(machine),
        "",
        "Links, per direction (both directions alike unless listed twice):",
        *(f"  {line}" for line in _links(machine)),
        "",
        f"Devices: {parts_line(machine)}",
        *(["", "Besides their links:"] if figures else []),
        *(f"  {line}" for line in figures),
    ]


def _matrix(machine: Topology) -> Iterator[str]:
    """The matrix in columns, and its legend."""
    for tabbed, lines in groupby(matrix_text(machine).split("\n"), lambda line: "\t" in line):
        if tabbed:
            (first, *others), *rows = (tuple(line.split("\t")) for line in lines)
            yield from Table((Column(first, left=True), *map(Column, others)), (*rows,)).lines()
        else:
            yield from lines


_MOST_LINKS = 64
"""Links that have a line each; of more, those alike but for numbers in their names share one."""


def _links(machine: Topology) -> list[str]:
    """A line for each wire, two where its directions differ; one for those alike of many."""
    backs = {pair.back for pair in link_pairs(machine) if len(pair.figures) == 1}
    lines = []
    for link in machine.links:
        if not link.is_toll and link not in backs:
            rate, nominal = map(units.format_bandwidth, (link.bandwidth, link.nominal))
            what = f"{link.source} - {link.target}: {link.link_class} x{link.lanes}"
            latency = units.format_duration(link.latency)
            lines.append(f"{what}, {rate} of nominal {nominal}, {latency}")
    if len(lines) <= _MOST_LINKS:
        return lines
    found = group_by(lines, lambda line: re.sub(r"\d+(?=.*:)", "", line)).values()
    return [f"{alike[0]}{units.and_more(alike, ' like it')}" for alike in found]


@topo.command(examples="simreduce topo p2p dgx1v")
@machine_argument
@calibration_option("nominal", read=load_calibration)
@report_options
def p2p(machine: Topology, calibration: Calibration) -> Reply:
    """Predict the matrices of p2pBandwidthLatencyTest for a machine."""
    with Progress("predicting the copies"):
        document = P2P.write(Copies(machine, calibration, peer_to_peer(machine, calibration)))
    about = f"# {machine.name}: {machine.title} ({machine.digest}), calibration {calibration.name}"
    return Reply(lambda: f"{about}\n\n{p2p_table(document)}", lambda: document)


for each in (rings, trees, import_, export, check):
    topo.add_command(each)
