"""`simreduce topo rings` and `simreduce topo trees`: what was found for the graph at hand, and how
good it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from simreduce.app.cli.completion import topology_argument
from simreduce.app.cli.group import command
from simreduce.app.cli.options import gpus_options, shape_of
from simreduce.app.cli.progress import Progress
from simreduce.app.cli.reply import (
    Reply,
    option_faults,
    options,
    output_paths,
    picture_options,
    report_options,
)
from simreduce.errors import InputError, did_you_mean
from simreduce.files.formats import Faults
from simreduce.files.formats.documents import Document
from simreduce.planners.algorithms.multi_ring import sample
from simreduce.planners.layouts import Layout, layout
from simreduce.planners.synthesis import optimum
from simreduce.planners.synthesis.network import Network, is_connected
from simreduce.planners.synthesis.relays import all_to_all, all_to_all_paths
from simreduce.planners.synthesis.rings import all_reduce_rate, best_order, hops, ring_packing
from simreduce.planners.synthesis.text import ring_text, tree_lines
from simreduce.planners.synthesis.trees import PACKINGS as BY_TREES, Trees
from simreduce.report.pictures import Panel, patterns_picture
from simreduce.report.topo import RINGS, TREES, Packed, PackingOutcome
from simreduce.topology import Topology, load_topology
from simreduce.units import plural

_GB = 1e9
_ROOTED = ("broadcast", "reduce")
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
def rings(topology: str, **given: Any) -> Reply:
    """Find the rings that share TOPOLOGY best, and the best order for a single one.

    Where direct links connect the GPUs, only these are used; otherwise the routes between them. Of
    more than 64 GPUs in equal machines, a few machines are searched: rings through all go on alike.
    The JSON document then has the GPUs and rings of these few, and says how many there are.
    """
    faults = option_faults()
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
@click.option(
    "-r",
    "--root",
    type=int,
    default=None,
    help="Broadcast from this rank, or reduce to it; default 0.",
)
@click.option("--bound", is_flag=True, help="Print the best rate alone; pack no trees.")
def trees(topology: str, collective: str, root: int | None, bound: bool, **given: Any) -> Reply:
    """Find the trees that share TOPOLOGY best; for all_to_all, paths over other GPUs.

    Where direct links connect the GPUs, only these are used; otherwise the routes between them.
    """
    faults = option_faults()
    read = _read(faults, topology, lambda whole: whole, **given)
    if collective not in PACKINGS:
        near = did_you_mean(collective, PACKINGS) or f"; known are {', '.join(PACKINGS)}"
        faults.add(f"--collective {collective}", f"no trees are packed for it{near}")
    elif root is not None and collective not in _ROOTED:
        faults.add(f"--root {root}", f"{collective} has no root; {' and '.join(_ROOTED)} have")
    if read and root is not None and not 0 <= root < read[1].n:
        faults.add(f"--root {root}", f"the ranks are 0 to {read[1].n - 1}")
    if bound and output_paths():
        faults.add("--bound", "there are no trees to draw; leave out --svg and --png")
    machine, shape = faults.require(read)
    network = shape.network()
    if not is_connected(network.ranks, network.edges):
        raise InputError(f"{topology}: some of these GPUs have no way to others")
    with Progress("packing trees"):
        found = None if bound else PACKINGS[collective](network, root or 0)
        outcome = _tree_outcome(network, collective, root or 0, found)
    if found is None:
        alone = Packed(machine, network, collective, outcome, collective=collective)
        return _reply(TREES, alone)
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
    shape = None
    if machine is not None:
        shape = faults.attempt("", _shape, topology, machine, searched, ngpus, gpus)
    return (machine, shape) if machine and shape else None


def _shape(
    topology: str,
    machine: Topology,
    searched: Callable[[Layout], Layout],
    ngpus: int | None,
    gpus: str | None,
) -> Layout:
    shape = shape_of(layout(machine), ngpus, gpus)
    try:
        if shape.n < 2:
            raise InputError(f"{shape.n} GPU has nobody to share with; take 2 at least")
        searched(shape).network()
    except ValueError as error:
        source = (
            f"--gpus {gpus}" if gpus is not None else topology if ngpus is None else f"-g {ngpus}"
        )
        raise InputError(f"{source}: {error}") from None
    return shape
