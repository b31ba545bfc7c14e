"""`simreduce topo rings` and `simreduce topo trees`: what was found for the graph at hand, and how
good it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click

import simreduce
from simreduce.cli.options import (
    F,
    as_json,
    echo_beside,
    echo_json,
    gather,
    gpus_options,
    shape_of,
)
from simreduce.cli.pictures import check_pictures, picture_options, write_pictures
from simreduce.cli.progress import Progress
from simreduce.errors import InputError, did_you_mean
from simreduce.layouts import Layout, layout
from simreduce.pictures import Panel, patterns_picture
from simreduce.synthesis import optimum
from simreduce.synthesis.network import Network, connected
from simreduce.synthesis.rings import all_reduce_rate, best_order, hops, ring_packing
from simreduce.synthesis.text import ring_text, tree_lines
from simreduce.synthesis.trees import PACKINGS
from simreduce.topology import Topology, load_topology
from simreduce.units import counted

_GB = 1e9
_ROOTED = ("broadcast", "reduce")


def _common(command: F) -> F:
    for option in (
        as_json,
        picture_options("Also draw them"),
        gpus_options,
        click.argument("topology"),
    ):
        command = option(command)
    return command


@click.command()
@_common
def rings(
    topology: str,
    ngpus: int | None,
    gpus: str | None,
    svg: str | None,
    png: str | None,
    as_json: bool,
) -> None:
    """The rings that share TOPOLOGY best, and the best order for a single one.

    Where direct links connect the GPUs, only these are used; otherwise the routes between them.
    """
    problems: list[str] = []
    machine, shape = _read(problems, topology, ngpus, gpus, svg, png, as_json)
    if problems or machine is None or shape is None:
        raise InputError(problems)
    network = shape.network()
    if not ring_packing(network).patterns:
        network = shape.network(routed=True)
    with Progress("packing rings"):
        found, best = ring_packing(network), best_order(network)
    if best is None:
        raise InputError(
            f"{topology}: no ring over these GPUs was found on the links and routes between them"
        )
    whole, part = optimum.scatter_then_gather(network), optimum.all_gather(network)
    outcome = _Outcome(all_reduce_rate(network.ranks, found.rate), whole, part.bottleneck(network))
    alone = network.rate(hops(best))
    document = {
        **_head("topo rings", machine, network, outcome),
        "link_rate_gb_per_s": found.rate / _GB,
        "rings": [
            {"order": [network.names[r] for r in ring], "share_gb_per_s": x / _GB}
            for ring, x in found.patterns
        ],
        "best_order": {"order": [network.names[r] for r in best], "share_gb_per_s": alone / _GB},
    }
    lines = [f"{x / _GB:8.2f} GB/s  {ring_text(network, ring)}" for ring, x in found.patterns]
    lines += [
        "",
        "The best order of one ring:",
        f"{alone / _GB:8.2f} GB/s  {ring_text(network, best)}",
    ]
    panels = [Panel(f"{x / _GB:.2f} GB/s", hops(ring), x) for ring, x in found.patterns]
    about = f"reduce-scatter and all-gather, {counted(len(panels), 'ring')}"
    _show(
        document, _Shown(machine, network, about, outcome, lines, panels), svg, png, as_json=as_json
    )


@click.command()
@_common
@click.option(
    "--collective", default="all_reduce", metavar="NAME", help="all_reduce, broadcast, reduce, ..."
)
@click.option(
    "--root", type=int, default=None, help="The rank that broadcasts or receives; default 0."
)
def trees(
    topology: str,
    ngpus: int | None,
    gpus: str | None,
    svg: str | None,
    png: str | None,
    as_json: bool,
    collective: str,
    root: int | None,
) -> None:
    """The trees that share TOPOLOGY best.

    Where direct links connect the GPUs, only these are used; otherwise the routes between them.
    """
    problems: list[str] = []
    machine, shape = _read(problems, topology, ngpus, gpus, svg, png, as_json)
    if collective not in PACKINGS:
        near = did_you_mean(collective, PACKINGS) or f"; known are {', '.join(PACKINGS)}"
        problems.append(f"--collective {collective}: no trees are packed for it{near}")
    elif root is not None and collective not in _ROOTED:
        problems.append(f"--root {root}: {collective} has no root; {' and '.join(_ROOTED)} have")
    if shape is not None and root is not None and not 0 <= root < shape.n:
        problems.append(f"--root {root}: the ranks are 0 to {shape.n - 1}")
    if problems or machine is None or shape is None:
        raise InputError(problems)
    network = shape.network()
    if not connected(network.ranks, network.edges):
        raise InputError(f"{topology}: some of these GPUs have no way to others")
    with Progress("packing trees"):
        found = PACKINGS[collective](network, root or 0)
    # The share of one root's trees is 1/n of the tensor.
    times = network.ranks if collective in ("all_gather", "reduce_scatter") else 1
    best = optimum.of(network, collective, root or 0)
    limit = best or min(
        optimum.all_gather(network), optimum.ports(network), key=lambda bound: bound.rate
    )
    bound = min(found.bound * times, limit.rate) if best is None else best.rate
    outcome = _Outcome(found.rate * times, bound, limit.bottleneck(network))
    document = {
        **_head("topo trees", machine, network, outcome),
        "collective": collective,
        "trees": [
            {
                "root": network.names[tree.root],
                "up": [[network.names[u], network.names[v]] for u, v in tree.up],
                "down": [[network.names[u], network.names[v]] for u, v in tree.down],
                "share_gb_per_s": x / _GB,
            }
            for tree, x in found.patterns
        ],
    }
    lines = []
    for tree, x in found.patterns:
        text = tree_lines(network, tree)
        lines += [f"{x / _GB:8.2f} GB/s  {text[0]}", *(f"{'':15}{line}" for line in text[1:])]
    panels = [
        Panel(f"{x / _GB:.2f} GB/s", tree.down or tree.up, x, tree.root)
        for tree, x in found.patterns
    ]
    about = f"{collective}, {counted(len(panels), 'tree')}"
    _show(
        document, _Shown(machine, network, about, outcome, lines, panels), svg, png, as_json=as_json
    )


class _Outcome(NamedTuple):
    """Bytes/s of the whole tensor: reached, and at best; and what limits it."""

    rate: float
    optimum: float
    bottleneck: str

    @property
    def gap(self) -> float:
        """The part of the optimum that is not reached; rounding is none."""
        gap = 1 - self.rate / self.optimum
        return gap if gap > 1e-9 else 0.0


class _Shown(NamedTuple):
    """What is printed and drawn."""

    machine: Topology
    network: Network
    about: str
    outcome: _Outcome
    lines: Sequence[str]
    panels: Sequence[Panel]


def _head(command: str, machine: Topology, network: Network, outcome: _Outcome) -> dict[str, Any]:
    return {
        "command": command,
        "version": simreduce.__version__,
        "topology": machine.name,
        "digest": machine.digest,
        "gpus": list(network.names[: network.ranks]),
        "rate_gb_per_s": outcome.rate / _GB,
        "optimum_gb_per_s": outcome.optimum / _GB,
        "gap": outcome.gap,
        "bottleneck": outcome.bottleneck,
        "network": "direct" if network.direct else "routed",
    }


def _show(
    document: dict[str, Any], shown: _Shown, svg: str | None, png: str | None, *, as_json: bool
) -> None:
    outcome, network = shown.outcome, shown.network
    reached = f"{outcome.rate / _GB:.2f} GB/s of at most {outcome.optimum / _GB:.2f}"
    reached += " over direct links" if network.direct else ""
    reached += f", {outcome.gap:.2%} short" if outcome.gap else ""
    if svg or png:
        title, subtitle = (
            f"{shown.machine.name}: {shown.about}",
            f"{reached}; bottleneck {outcome.bottleneck}",
        )
        picture = patterns_picture(title, subtitle, network.names[: network.ranks], shown.panels)
        write_pictures(picture, svg, png)
    if as_json:
        echo_json(document)
        return
    about = f"# {shown.machine.name} ({shown.machine.digest}), {counted(network.ranks, 'GPU')}"
    head = [f"{about}: {shown.about}", f"# {reached}", f"# bottleneck {outcome.bottleneck}", ""]
    echo_beside("\n".join([*head, *shown.lines]), svg, png)


def _read(
    problems: list[str],
    topology: str,
    ngpus: int | None,
    gpus: str | None,
    svg: str | None,
    png: str | None,
    as_json: bool,
) -> tuple[Topology | None, Layout | None]:
    machine = gather(problems, load_topology, topology)
    shape = None if machine is None else gather(problems, _shape, topology, machine, ngpus, gpus)
    gather(problems, check_pictures, svg, png, as_json=as_json)
    return machine, shape


def _shape(topology: str, machine: Topology, ngpus: int | None, gpus: str | None) -> Layout:
    shape = shape_of(layout(machine), ngpus, gpus)
    try:
        if shape.n < 2:
            raise InputError(f"{shape.n} GPU has nobody to share with; take 2 at least")
        shape.network()
    except ValueError as error:
        asked = (
            f"--gpus {gpus}" if gpus is not None else topology if ngpus is None else f"-g {ngpus}"
        )
        raise InputError(f"{asked}: {error}") from None
    return shape
