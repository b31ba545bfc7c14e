"""`simreduce topo`."""

from __future__ import annotations

import click

from simreduce import units
from simreduce.cli.completion import topology_argument
from simreduce.cli.group import CommandGroup
from simreduce.cli.options import echo_json, report_options
from simreduce.cli.packings import rings, trees
from simreduce.cli.pictures import check_pictures, picture_options, write_pictures
from simreduce.cli.terminal import show as print_report
from simreduce.cli.topo_files import check, export, import_
from simreduce.cli.topo_p2p import p2p
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.pictures import machine_picture
from simreduce.report.machines import list_document, show_document
from simreduce.topology import Topology, load_topology, matrix_text, shipped
from simreduce.topology.listing import figure_lines, rule_lines


@click.group(cls=CommandGroup)
def topo() -> None:
    """List, show, draw, predict, import and check machines; find their best rings and trees."""


for each in (rings, trees, p2p, import_, export, check):
    topo.add_command(each)


_INLINE = """
Inline: ring:8  full:8  switch:64,bandwidth=12.5GB/s,latency=2us  torus:8x8
        fat_tree:1024,radix=32,oversubscription=2  fat_tree:1024,levels=3  dragonfly:1056
Several machines: dgx1vx4,nic=ib_edr  dgx-h100x64,fabric=rail_optimised
        fabrics are switch, fat_tree, rail_optimised, rail_only, dragonfly and torus
Equal paths: equal_cost=hashed,seed=1 or equal_cost=split"""


@topo.command("list", examples="simreduce topo list")
@report_options
def list_(as_json: bool) -> None:
    """List the machines that come with simreduce, and the generators."""
    machines = shipped()
    if as_json:
        echo_json(list_document(machines))
        return
    width = max(len(name) for name, _ in machines)
    print_report("\n".join([*(f"{name:{width}}  {title}" for name, title in machines), _INLINE]))


@topo.command(
    examples="""
    simreduce topo show dgx1v
    simreduce topo show dgx-a100 --svg dgx-a100.svg
    """
)
@topology_argument
@picture_options("Draw the machine instead")
@report_options
def show(topology: str, svg: str | None, png: str | None, as_json: bool) -> None:
    """Show the matrix of `nvidia-smi topo -m`, and every link with its rate; or draw the machine.

    Of large machines the matrix shows the first of equal machines, or the first rows, and says so;
    the picture shows a part one by one and counts the rest.
    """
    faults = Faults()
    machine = faults.attempt("", load_topology, topology)
    faults.attempt("", check_pictures, svg, png, as_json=as_json)
    if faults.problems or machine is None:
        raise InputError(faults.problems)
    for line in write_pictures(machine_picture(machine), svg, png) if svg or png else ():
        if not as_json:
            click.echo(line)
    if as_json:
        echo_json(show_document(machine))
    if as_json or svg or png:
        return
    figures = [*rule_lines(machine), *figure_lines(machine)]
    lines = [
        f"# {machine.name}: {machine.title} ({machine.digest})",
        "",
        matrix_text(machine),
        "",
        "Links, per direction (both directions alike unless listed twice):",
        *(f"  {line}" for line in _links(machine)),
        *(["", "Besides their links:"] if figures else []),
        *(f"  {line}" for line in figures),
    ]
    print_report("\n".join(lines))


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
