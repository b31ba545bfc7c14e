"""`simreduce topo`."""

from __future__ import annotations

from functools import partial

import click

from simreduce import units
from simreduce.app.cli import terminal
from simreduce.app.cli.completion import topology_argument
from simreduce.app.cli.group import CommandGroup
from simreduce.app.cli.options import calibration_option
from simreduce.app.cli.packings import rings, trees
from simreduce.app.cli.progress import Progress
from simreduce.app.cli.reply import (
    PictureOption,
    Reply,
    echo_json,
    option_faults,
    output_paths,
    picture_options,
    report_options,
    wants_json,
    write_pictures,
)
from simreduce.app.cli.topo_files import check, export, import_
from simreduce.app.cli.topo_place import place
from simreduce.engine.calibrate import load_calibration
from simreduce.files.outputs import STDOUT
from simreduce.report.pictures import machine_picture
from simreduce.report.topo import LIST, P2P, SHOW, Copies, p2p_table
from simreduce.study.tune.p2p import peer_to_peer
from simreduce.topology import Topology, load_topology, matrix_text, shipped
from simreduce.topology.matrix import figure_lines, parts_line, rule_lines


@click.group(cls=CommandGroup)
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
@topology_argument
@picture_options("Draw the machine instead")
@report_options
def show(topology: str) -> Reply | None:
    """Show the matrix of `nvidia-smi topo -m`, and every link with its rate; or draw the machine.

    Of large machines the matrix shows the first of equal machines, or the first rows, and says so;
    the picture shows a part one by one and counts the rest.
    """
    faults = option_faults()
    found = faults.attempt("", load_topology, topology)
    machine, paths = faults.require(found), output_paths(PictureOption)
    document = partial(SHOW.write, machine)
    if not paths:
        return Reply(lambda: _lines(machine), document)
    drawing = machine_picture(machine)
    write_pictures(lambda: drawing)
    if wants_json():
        echo_json(document())
        return None
    for option, path in paths.items():
        if path != STDOUT:
            form = "as SVG" if option == "--svg" else "doubled, as PNG"
            terminal.show(f"{path}: {drawing.width:.0f} x {drawing.height:.0f} pixels, {form}")
    return None


def _lines(machine: Topology) -> list[str]:
    figures = [*rule_lines(machine), *figure_lines(machine)]
    return [
        f"# {machine.name}: {machine.title} ({machine.digest})",
        "",
        matrix_text(machine),
        "",
        "Links, per direction (both directions alike unless listed twice):",
        *(f"  {line}" for line in _links(machine)),
        "",
        f"Devices: {parts_line(machine)}",
        *(["", "Besides their links:"] if figures else []),
        *(f"  {line}" for line in figures),
    ]


def _links(machine: Topology) -> list[str]:
    lines: list[str] = []
    seen: dict[tuple[str, str, int], tuple[object, ...]] = {}
    for link in machine.links:
        if link.is_toll:
            continue
        figures = (
            link.link_class,
            link.lanes,
            link.nominal,
            link.bandwidth,
            link.latency,
            link.parallel,
        )
        if seen.get((link.target, link.source, link.parallel)) == figures:
            continue
        seen[link.source, link.target, link.parallel] = figures
        rate, nominal = map(units.format_bandwidth, (link.bandwidth, link.nominal))
        what = f"{link.source} - {link.target}: {link.link_class} x{link.lanes}"
        latency = units.format_duration(link.latency)
        lines.append(f"{what}, {rate} of nominal {nominal}, {latency}")
    return lines


@topo.command(examples="simreduce topo p2p dgx1v")
@topology_argument
@calibration_option("nominal")
@report_options
def p2p(topology: str, calibration: str) -> Reply:
    """Predict the matrices of p2pBandwidthLatencyTest for a machine."""
    faults = option_faults()
    found = faults.attempt("", load_topology, topology)
    constants = faults.attempt("--calibration", load_calibration, calibration)
    machine, used = faults.require(found), faults.require(constants)
    with Progress("predicting the copies"):
        document = P2P.write(Copies(machine, used, peer_to_peer(machine, used)))
    about = f"# {machine.name}: {machine.title} ({machine.digest}), calibration {used.name}"
    return Reply(lambda: f"{about}\n\n{p2p_table(document)}", lambda: document)


for each in (rings, trees, import_, export, check, place):
    topo.add_command(each)
