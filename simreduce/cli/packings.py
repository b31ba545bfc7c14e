"""`simreduce topo rings` and `simreduce topo trees`: what was found for the graph at hand, and how
good it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click

from simreduce.algorithms.multi_ring import sample
from simreduce.cli.completion import topology_argument
from simreduce.cli.group import command
from simreduce.cli.options import echo_json, gpus_options, options, report_options, shape_of
from simreduce.cli.pictures import check_pictures, picture_options, write_pictures
from simreduce.cli.progress import Progress
from simreduce.cli.terminal import show
from simreduce.errors import InputError, did_you_mean
from simreduce.formats import Faults
from simreduce.formats.documents import Document
from simreduce.layouts import Layout, layout
from simreduce.pictures import Panel, patterns_picture
from simreduce.report.packings import (
    RINGS,
    TREES,
    Outcome,
    packing_keys,
    ring_keys,
    tree_keys,
)
from simreduce.synthesis import optimum
from simreduce.synthesis.network import Network, is_connected
from simreduce.synthesis.relays import all_to_all, all_to_all_paths
from simreduce.synthesis.rings import all_reduce_rate, best_order, hops, ring_packing
from simreduce.synthesis.text import ring_text, tree_lines
from simreduce.synthesis.trees import PACKINGS as BY_TREES, Trees
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
def rings(topology: str, as_json: bool, **given: Any) -> None:
    """Find the rings that share TOPOLOGY best, and the best order for a single one.

    Where direct links connect the GPUs, only these are used; otherwise the routes between them. Of
    more than 64 GPUs in equal machines, a few machines are searched: rings through all go on alike.
    The JSON document then has the GPUs and rings of these few, and says how many there are.
    """
    faults = Faults()
    machine, shape = _read(faults, topology, sample, as_json=as_json, **given)
    if faults.problems or machine is None or shape is None:
        raise InputError(faults.problems)
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
    document: dict[str, Any] = {
        "link_rate_gb_per_s": found.rate / _GB,
        "rings": [ring_keys(network, ring, x) for ring, x in found.patterns],
        "best_order": ring_keys(network, best, alone),
    }
    lines = [f"{x / _GB:8.2f} GB/s  {ring_text(network, ring)}" for ring, x in found.patterns]
    best_line = f"{alone / _GB:8.2f} GB/s  {ring_text(network, best)}"
    lines += ["", "The best order of one ring:", best_line]
    panels = [Panel(f"{x / _GB:.2f} GB/s", hops(ring), x) for ring, x in found.patterns]
    about = f"reduce-scatter and all-gather, {plural(len(panels), 'ring')}"
    if few is not shape:
        about += f" through {shape.task_count} equal machines as through these {few.task_count}"
        document |= {"machines": shape.task_count, "searched_machines": few.task_count}
    result = _Packing(RINGS, machine, network, about, outcome, document, lines, panels, shape.n)
    _show(result, as_json, given["svg"], given["png"])


def _ring_outcome(network: Network, rate: float, n: int) -> Outcome:
    """Of `n` ranks, of which `network` has some if not all."""
    if n > network.ranks:
        cut = optimum.narrowest_cut(network)
        text = f"the narrowest cut of {plural(len(network.tasks), 'machine')}, a bound"
        return Outcome(all_reduce_rate(n, rate), all_reduce_rate(n, cut), text)
    whole, part = optimum.scatter_then_gather(network), optimum.all_gather(network)
    return Outcome(all_reduce_rate(n, rate), whole, part.bottleneck(network))


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
def trees(
    topology: str, as_json: bool, collective: str, root: int | None, bound: bool, **given: Any
) -> None:
    """Find the trees that share TOPOLOGY best; for all_to_all, paths over other GPUs.

    Where direct links connect the GPUs, only these are used; otherwise the routes between them.
    """
    faults = Faults()
    machine, shape = _read(faults, topology, lambda whole: whole, as_json=as_json, **given)
    if collective not in PACKINGS:
        near = did_you_mean(collective, PACKINGS) or f"; known are {', '.join(PACKINGS)}"
        faults.add(f"--collective {collective}", f"no trees are packed for it{near}")
    elif root is not None and collective not in _ROOTED:
        faults.add(f"--root {root}", f"{collective} has no root; {' and '.join(_ROOTED)} have")
    if shape is not None and root is not None and not 0 <= root < shape.n:
        faults.add(f"--root {root}", f"the ranks are 0 to {shape.n - 1}")
    if bound and (given["svg"] or given["png"]):
        faults.add("--bound", "there are no trees to draw; leave out --svg and --png")
    if faults.problems or machine is None or shape is None:
        raise InputError(faults.problems)
    network = shape.network()
    if not is_connected(network.ranks, network.edges):
        raise InputError(f"{topology}: some of these GPUs have no way to others")
    with Progress("packing trees"):
        found = None if bound else PACKINGS[collective](network, root or 0)
        outcome = _tree_outcome(network, collective, root or 0, found)
    if found is None:
        alone = {"collective": collective}
        _show(_Packing(TREES, machine, network, collective, outcome, alone, (), ()), as_json)
        return
    document = {
        "collective": collective,
        "trees": [tree_keys(network, tree, x) for tree, x in found.patterns],
    }
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
    result = _Packing(TREES, machine, network, about, outcome, document, lines, panels)
    _show(result, as_json, given["svg"], given["png"])


def _tree_outcome(network: Network, collective: str, root: int, found: Trees | None) -> Outcome:
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
    return Outcome(rate, proved, limit.bottleneck(network))


class _Packing(NamedTuple):
    """What is printed and drawn."""

    kind: Document
    machine: Topology
    network: Network
    about: str
    outcome: Outcome
    document: dict[str, Any]
    lines: Sequence[str]
    panels: Sequence[Panel]
    gpus: int = 0  # 0: those of the network


def _show(packing: _Packing, as_json: bool, svg: str | None = None, png: str | None = None) -> None:
    """Draw and print a packing."""
    outcome, network, machine = packing.outcome, packing.network, packing.machine
    reached = f"at most {outcome.optimum / _GB:.2f}"
    reached = (
        f"{reached} GB/s" if outcome.rate is None else f"{outcome.rate / _GB:.2f} GB/s of {reached}"
    )
    reached += " over direct links" if network.direct else ""
    reached += f", {outcome.gap:.2%} short" if outcome.gap else ""
    if svg or png:
        title = f"{machine.name}: {packing.about}"
        subtitle = f"{reached}; bottleneck {outcome.bottleneck}"
        names = network.names[: network.ranks]
        write_pictures(patterns_picture(title, subtitle, names, packing.panels), svg, png)
    if as_json:
        echo_json({**packing_keys(packing.kind, machine, network, outcome), **packing.document})
        return
    about = f"# {machine.name} ({machine.digest}), {plural(packing.gpus or network.ranks, 'GPU')}"
    head = [f"{about}: {packing.about}", f"# {reached}", f"# bottleneck {outcome.bottleneck}"]
    lines = ["", *packing.lines] if packing.lines else []
    show("\n".join([*head, *lines]), svg, png)


def _read(
    faults: Faults,
    topology: str,
    searched: Callable[[Layout], Layout],
    *,
    ngpus: int | None,
    gpus: str | None,
    svg: str | None,
    png: str | None,
    as_json: bool,
) -> tuple[Topology | None, Layout | None]:
    machine = faults.attempt("", load_topology, topology)
    shape = None
    if machine is not None:
        shape = faults.attempt("", _shape, topology, machine, searched, ngpus, gpus)
    faults.attempt("", check_pictures, svg, png, as_json=as_json)
    return machine, shape


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
