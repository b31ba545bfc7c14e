"""Machines as immutable values: devices, switches, and the links between them.

Equal machines on one switch can be *folded*: one is simulated for all.

Machines that hang on one switch by equal links and do the same at the same time load their links
equally. A transfer crosses the sender's links out and the receiver's links in, and these carry the
same as the sender's own links in. So one machine is enough, whatever their number: a transfer to
another machine runs over the links of this one.

A `Folded` machine holds two of them. Routes are searched between the two, and each node and link of
the second represents the one in its place in the first.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import astuple, dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from simreduce.computing import group_by
from simreduce.errors import InputError, TopologyError, did_you_mean
from simreduce.files.formats.syntax import Faults
from simreduce.topology.elements import (
    DEFAULT_NIC_REACH,
    DEFAULT_REACH,
    REACHES,
    Cable,
    Link,
    Node,
    NodeKind,
    natural,
)
from simreduce.topology.formats import read_graph, wiring
from simreduce.topology.routing import NODE_ATTRIBUTES, Route
from simreduce.topology.routing.router import Router
from simreduce.topology.routing.rules import EqualMachines, RoutingRule, after_cut
from simreduce.topology.routing.switching import FIRST, Switching
from simreduce.units import first_few

if TYPE_CHECKING:
    from collections.abc import Iterable

    import networkx as nx

BOTH = "<>"
"""Between the names of two nodes: the links in both directions."""

_LEAST = 1e-6
"""The smallest factor of a link besides 0; a number closer to 0 is none to divide by."""

_SCALED, _WITHOUT = ", bandwidth of ", ", without "
"""In the source of a machine, before links and their factors, and before what failed."""


Rule = RoutingRule | EqualMachines | None
"""The routing rule of a network, or of equal machines on one; None where routes are searched."""


@dataclass(frozen=True)
class Topology:
    """A machine or a fabric; two are equal when name, source and content are.

    `links[i].id == i`. `devices` are the GPUs, machine by machine and gpu2 before gpu10; `hosts`
    are the CPUs in the same order. `digest` names the content (nodes, links and the rule for equal
    paths), whatever the machine is called.
    """

    name: str
    title: str
    source: str
    digest: str
    nodes: Mapping[str, Node] = field(compare=False, repr=False)
    links: tuple[Link, ...] = field(compare=False, repr=False)
    devices: tuple[str, ...] = field(compare=False, repr=False)
    hosts: tuple[str, ...] = field(compare=False, repr=False)
    router: Router = field(compare=False, repr=False)

    @classmethod
    def from_networkx(
        cls, graph: nx.Graph[Any], name: str = "", title: str = "", equal_cost: str = ""
    ) -> Topology:
        """The machine that a networkx graph describes, directed or not, with parallel edges or not.

        A node may carry the fields of `Node` as attributes, and an edge the fields of `Link`, all
        optional: `kind` is `gpu`, `bandwidth` 25 GB/s and `latency` 1 us unless stated, or what
        `link_class` has. Rates are numbers in bytes/s, of all `lanes` together and per direction,
        times numbers in seconds; text with a unit is read too. An undirected edge is a link in both
        directions. Numbers and tuples become names behind the kind: (0, 1) is `gpu0.1`. Attributes
        of other programs, such as `pos`, are ignored.

        GPUs do not forward, here as in `ring:8`: in `nx.hypercube_graph(3)` only neighbours have a
        route, and a plan with other transfers is refused when it is simulated. For a machine that
        routes in its network, as `torus:4x4`, add a node of kind `switch` for each GPU.

        `Topology.graph` gives an equal machine back. A routing rule that it carries (`fat_tree:64`)
        is kept while its nodes and the ends of its edges are. Raises `TopologyError` with every
        fault.

        >>> import networkx as nx
        >>> cube = Topology.from_networkx(nx.hypercube_graph(3))
        >>> route(cube, "gpu0.0.0", "gpu0.1.0").bandwidth
        25000000000.0
        """
        about, nodes, links = read_graph(graph, name=name, title=title, equal_cost=equal_cost)
        rule = graph.graph.get("rule")
        if rule and wiring((node.name for node in nodes), links) != graph.graph.get("wiring"):
            rule = None
        return assemble(
            about["name"] or "graph", about["title"] or "a networkx graph", about["source"],
            nodes, links, rule, about["equal_cost"],
        )  # fmt: skip

    @functools.cached_property
    def wires(self) -> tuple[Link, ...]:
        """The links that are no tolls."""
        return tuple(link for link in self.links if not link.is_toll)

    @functools.cached_property
    def wires_from(self) -> Mapping[str, list[Link]]:
        """The wires that begin at each node."""
        found = group_by(self.wires, lambda link: link.source)
        return {name: found.get(name, []) for name in self.nodes}

    @functools.cached_property
    def nodes_of(self) -> Mapping[str, list[Node]]:
        """The nodes of each machine."""
        return group_by(self.nodes.values(), lambda node: node.machine)

    @functools.cached_property
    def graph(self) -> nx.MultiDiGraph[str]:
        """The graph that routes are searched on, made when first needed.

        Nodes and edges carry the fields of `Node` and `Link` as attributes, and the key of an edge
        is the id of its link. The graph is frozen, and routes do not read its attributes. For
        another machine change a copy: `Topology.from_networkx(topology.graph.copy())`.
        """
        import networkx as nx  # noqa: PLC0415 - takes long to load; most machines do without

        graph, router = self.router.graph, self.router
        graph.graph.update(name=self.name, title=self.title, source=self.source)
        if router.switching != Switching():
            graph.graph["equal_cost"] = astuple(router.switching)
        if router.rule:
            graph.graph.update(rule=router.rule, wiring=wiring(self.nodes, self.links))
        return nx.freeze(graph)

    def scale(self, bandwidth: float = 1.0, latency: float = 1.0) -> Topology:
        """The same machine with every bandwidth, of links and memories, and every latency times a
        factor.
        """
        if not (
            bandwidth > 0 and math.isfinite(bandwidth) and latency >= 0 and math.isfinite(latency)
        ):
            raise ValueError(f"cannot scale bandwidth by {bandwidth} and latency by {latency}")
        nodes = [
            replace(n, memory_bandwidth=n.memory_bandwidth * bandwidth) for n in self.nodes.values()
        ]
        links = [
            replace(
                link,
                nominal=link.nominal * bandwidth,
                bandwidth=link.bandwidth * bandwidth,
                built=link.built and link.built * bandwidth,
                latency=link.latency * latency,
            )
            for link in self.links
        ]
        return self.vary(
            source=f"{self.source}, bandwidth x {bandwidth:g}, latency x {latency:g}",
            nodes=nodes,
            links=links,
        )

    def scale_links(self, factors: Mapping[str, float], where: str = "link_factors") -> Topology:
        """The same machine with the bandwidth of some links times a factor.

        `factors` are by class (including the links of a network), by node, or by name: `gpu0>gpu3`,
        `gpu0<>gpu3` for both directions. Routes stay as they are: of a transfer that is split, a
        path carries in proportion to what its slowest link has left. At a factor of 0 a link is not
        there, and routes are searched without it. TopologyError names what the machine does not
        have, and links that are cut in one direction only. Who then asks for a route that is gone
        reads `where` the factors stand.
        """
        links = _scaled(self, factors)
        rule = self.router.rule
        if rule and len(links) < len(self.links):
            rule = after_cut(rule, self.links, links)
        words = ", ".join(f"{name} x {factor:g}" for name, factor in factors.items())
        gone = [name for name, factor in factors.items() if not factor]
        return self.vary(
            source=f"{self.source}{_SCALED}{words}",
            links=links,
            rule=rule,
            cut=f"{where} cuts {first_few(gone)}" if gone else "",
        )

    def without(self, name: str, where: str = "fails") -> Topology:
        """The same machine without the links of a NIC or switch of that name.

        Of a node of several machines nothing is cut: nobody uses it. Who then asks for a route that
        is gone reads `where` that stands.
        """
        cut = self.scale_links({name: 0.0}, where) if name in self.nodes else self
        return cut.vary(source=f"{self.source}{_WITHOUT}{name}")

    @property
    def scaled(self) -> str:
        """Which links carry less or more than those of the machine, and what failed, in words; ""
        for nothing.
        """
        parts = re.split(f"({_SCALED}|{_WITHOUT})", self.source, maxsplit=1)
        return "".join(parts[1:]).removeprefix(", ")

    @functools.lru_cache(maxsize=16)  # noqa: B019 - few machines, each with many plans
    def limit_peers(self, reach: str) -> Topology:
        """The same machine with GPUs that copy to each other directly no farther than `reach`, one
        of `REACHES`, and else through the host.
        """
        nodes = [
            replace(n, peer=min(n.peer, reach, key=REACHES.index)) if n.kind == "gpu" else n
            for n in self.nodes.values()
        ]
        return self.vary(source=f"{self.source}, peer access {reach}", nodes=nodes)

    def vary(self, **changes: Any) -> Topology:
        """The same machine with other arguments of `assemble`."""
        return assemble(**{**self._arguments, **changes})

    def with_figures(
        self, nodes: Mapping[str, Node] | None = None, links: Iterable[Link] | None = None
    ) -> Topology:
        """The same machine with other figures of nodes or links. Transfers keep their routes."""
        table = self.nodes if nodes is None else MappingProxyType(nodes)
        cables = self.links if links is None else tuple(links)
        digest = _digest(table, cables, self.router)
        return replace(self, nodes=table, links=cables, digest=digest)

    @property
    def _arguments(self) -> dict[str, Any]:
        """Those of `assemble`, in their order."""
        router = self.router
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "nodes": tuple(self.nodes.values()),
            "links": self.links,
            "rule": router.rule,
            "switching": router.switching,
            "cut": router.cut,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only mapping cannot be pickled, and the graph says nothing that nodes and links do
        # not.
        return assemble, tuple(self._arguments.values())


def route(topology: Topology, source: str, target: str) -> Route:
    """The route of a transfer; raises `TopologyError` when there is none or a node is unknown."""
    return topology.router.route(source, target)


def find_links(topology: Topology, text: str) -> list[int]:
    """The links that `text` means: one by its name (`gpu0>gpu3`), those between two nodes
    (`gpu0<>gpu3`), all from and to a node, or all of a class. InputError names the nearest.
    """
    ends = set(text.split(BOTH)) if BOTH in text else set()
    for chosen in (
        [each.id for each in topology.links if each.name == text],
        [
            each.id
            for each in topology.links
            if {each.source, each.target} == ends and not each.is_toll
        ],
        [each.id for each in topology.links if text in (each.source, each.target)],
        [each.id for each in topology.links if each.link_class == text],
    ):
        if chosen:
            return chosen
    if ">" in text:
        why = _why_no_link(topology, text)
    else:
        classes = (each.link_class for each in topology.links)
        why = did_you_mean(text, dict.fromkeys([*topology.nodes, *classes]))
    raise InputError(f"{topology.name}: no link, node or link class {text!r}{why}")


def _why_no_link(topology: Topology, text: str) -> str:
    """The nearest link of the end that is a node, or which end is none, or where links lead."""
    sign = BOTH if BOTH in text else ">"
    source, _, target = text.partition("#")[0].partition(sign)
    links = topology.wires
    ahead = dict.fromkeys(each.target for each in links if each.source == source)
    behind = dict.fromkeys(each.source for each in links if each.target == target)
    for end in get_close_matches(target, ahead, 1) if target not in topology.nodes else ():
        return f" (did you mean '{source}{sign}{end}'?)"
    for end in get_close_matches(source, behind, 1) if source not in topology.nodes else ():
        return f" (did you mean '{end}{sign}{target}'?)"
    lacking = dict.fromkeys(end for end in (source, target) if end not in topology.nodes)
    why = [f"no node {end!r}{did_you_mean(end, topology.nodes)}" for end in lacking]
    return f": {', '.join(why) or f'links of {source} lead to ' + ', '.join(ahead)}"


def _scaled(topology: Topology, factors: Mapping[str, float]) -> list[Link]:
    """The links with their bandwidth times the factors of what `find_links` reads.

    Links times 0 are not there. TopologyError lists what the machine does not have, cuts of one
    direction, and factors too far from 1.
    """
    total = [1.0] * len(topology.links)
    faults = Faults()
    for text, factor in factors.items():
        for each in faults.attempt("", find_links, topology, text) or ():
            total[each] *= factor
    far = [k for k in topology.links if total[k.id] and not _LEAST <= total[k.id] <= 1.0 / _LEAST]
    if far:
        faults.add(
            topology.name,
            f"{far[0].name} would have {total[far[0].id]:g} times its bandwidth"
            f"; 0 cuts it, else from {_LEAST:g} to {1 / _LEAST:g}",
        )
    cut = {(k.source, k.target) for k in topology.links if not total[k.id]}
    left = {(k.source, k.target) for k in topology.links if total[k.id]}
    for a, b in sorted(cut):
        words = f"{a}>{b} is cut and {b}>{a} is not; cut both: {a}{BOTH}{b}"
        faults.check((b, a) not in left, topology.name, words)
    faults.raise_any(TopologyError)
    kept = [link for link in topology.links if total[link.id]]
    return [
        replace(
            link,
            id=i,
            nominal=link.nominal * total[link.id],
            bandwidth=link.bandwidth * total[link.id],
            built=link.built if total[link.id] == 1.0 else link.width,
        )
        for i, link in enumerate(kept)
    ]


def build(
    name: str, title: str, source: str, nodes: Iterable[Node], cables: Iterable[Cable],
    rule: Rule = None, switching: Switching = Switching(),  # noqa: B008 - it cannot be changed
) -> Topology:  # fmt: skip
    """A topology of nodes with distinct names and of cables between them, in the order given.

    Routes are searched for where no `rule` gives them. `equal_cost` says which of equal paths a
    transfer takes.
    """
    links: list[Link] = []
    seen: dict[frozenset[str], int] = {}
    for cable in cables:
        pair = frozenset((cable.source, cable.target))
        parallel = seen.get(pair, 0)
        seen[pair] = parallel + 1
        figures = (
            cable.link_class, cable.lanes, cable.nominal, cable.bandwidth, cable.latency,
            cable.holds_lane,
        )  # fmt: skip
        links.append(Link(cable.source, cable.target, *figures, len(links), parallel))
        links.append(Link(cable.target, cable.source, *figures, len(links), parallel))
    return assemble(name, title, source, nodes, links, rule, switching)


def assemble(
    name: str,
    title: str,
    source: str,
    nodes: Iterable[Node],
    links: Iterable[Link],
    rule: Rule = None,
    switching: Switching = Switching(),  # noqa: B008 - a value that cannot be changed
    cut: str = "",
) -> Topology:
    """A topology of nodes with distinct names and of directed links, numbered from 0.

    `cut` says which links are gone, for those who miss a route.
    """
    table = {node.name: node for node in nodes}
    links = tuple(links)
    router = Router(table, links, rule, switching, cut)
    return Topology(
        name=name,
        title=title,
        source=source,
        digest=_digest(table, links, router),
        nodes=MappingProxyType(table),
        links=links,
        devices=_in_order(table, "gpu"),
        hosts=_in_order(table, "cpu"),
        router=router,
    )


def _in_order(nodes: Mapping[str, Node], kind: NodeKind) -> tuple[str, ...]:
    chosen = [node for node in nodes.values() if node.kind == kind]
    return tuple(
        n.name for n in sorted(chosen, key=lambda n: (natural(n.machine), natural(n.name)))
    )


def _digest(nodes: Mapping[str, Node], links: Iterable[Link], router: Router) -> str:
    switching = router.switching
    chosen = router.several and switching.choice != FIRST
    plain = Switching(switching.choice, switching.seed)
    content: list[object] = [
        [
            # Stated only where they are not the default, so that older digests hold.
            [
                n.name,
                n.kind,
                n.model,
                n.memory_bandwidth,
                n.machine,
                n.transit,
                *([True] if n.reduces else []),
                *([n.peer] if n.peer != DEFAULT_REACH else []),
                *([f"gpudirect {n.gpudirect}"] if n.gpudirect != DEFAULT_NIC_REACH else []),
            ]
            for n in nodes.values()
        ],
        [
            [
                k.source,
                k.target,
                k.link_class,
                k.lanes,
                k.nominal,
                k.bandwidth,
                k.latency,
                k.holds_lane,
                *([k.built] if k.built is not None else []),
            ]
            for k in links
        ],
        *([[switching.choice, switching.seed]] if chosen else []),
        *([] if switching == plain else [astuple(switching)]),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Folded:
    """`machines` equal machines on one switch.

    `pair` is the graph of two of them; `devices` and `hosts` belong to the first. `one_task` says
    that the machines are single GPUs, all of one task.
    """

    name: str
    title: str
    machines: int
    one_task: bool
    pair: Topology
    devices: tuple[str, ...]
    hosts: tuple[str, ...]
    twin: Mapping[str, str] = field(repr=False)
    """The node in the second machine that is in the place of one in the first."""
    home: tuple[int, ...] = field(repr=False)
    """For each link of `pair`, the link of the first machine that represents it."""
    whole: Callable[[], Topology] | None = field(default=None, compare=False, repr=False)
    """Loads all machines. None if they are too many to hold, or are made of others."""

    @property
    def digest(self) -> str:
        """A digest of the content, like a topology's."""
        return hashlib.sha256(f"{self.machines} x {self.pair.digest}".encode()).hexdigest()[:12]


def fold(topology: Topology, machines: int | None = None) -> Folded:
    """Fold the equal machines of a topology into one.

    With `machines`, the one represents that many. Raises `TopologyError` if the machines cannot
    represent each other: if links or devices differ, if links join two machines, or if more than
    one switch does.
    """
    parts = _machines(topology)
    if len(parts) < 2:
        raise TopologyError(f"{topology.name}: one machine cannot be folded")
    hub, links_of = _find_hub(topology, parts)
    switching = topology.router.switching
    if topology.router.several and switching.choice != FIRST:
        raise TopologyError(
            f"{topology.name}: equal paths are {switching.choice}: equal machines are folded only "
            "if all take the first"
        )
    if not switching.isolated:
        raise TopologyError(
            f"{topology.name}: equal machines are folded only if congestion is isolated"
        )
    first, *others = [
        _Machine([topology.nodes[name] for name in part], hub, links)
        for part, links in zip(parts, links_of, strict=True)
    ]
    for other in others:
        difference = _difference(first, other)
        if difference:
            raise TopologyError(
                f"{topology.name}: {difference}, so one of the machines cannot stand for all"
            )
    second = others[0]
    links = [*first.links, *second.links]
    place = {link.id: i for i, link in enumerate(first.links)}
    place |= {twin.id: i for i, twin in enumerate(second.links)}
    pair = assemble(
        f"2 of {topology.name}", topology.title, topology.source,
        [*first.nodes, *second.nodes, topology.nodes[hub]],
        [replace(link, id=i) for i, link in enumerate(links)], switching=switching,
    )  # fmt: skip
    return Folded(
        name=topology.name,
        title=topology.title,
        machines=machines or len(parts),
        one_task=len({topology.nodes[name].machine for part in parts for name in part}) == 1,
        pair=pair,
        devices=tuple(name for name in topology.devices if name in first.place),
        hosts=tuple(name for name in topology.hosts if name in first.place),
        twin=dict(zip(first.place, second.place, strict=True)),
        home=tuple(place[link.id] for link in links),
        whole=None if machines not in (None, len(parts)) else partial(copy, topology),
    )


def _machines(topology: Topology) -> list[list[str]]:
    """The nodes of every machine; where there is only one, its GPUs are taken for the machines."""
    inside = (name for name, node in topology.nodes.items() if node.machine)
    found = group_by(inside, lambda name: topology.nodes[name].machine)
    return list(found.values()) if len(found) > 1 else [[name] for name in topology.devices]


def _find_hub(
    topology: Topology, machines: Sequence[Sequence[str]]
) -> tuple[str, list[list[Link]]]:
    """The one node outside all machines to which they are linked, and the links of each."""
    machine = {name: i for i, names in enumerate(machines) for name in names}
    hubs: dict[str, None] = {}
    links: list[list[Link]] = [[] for _ in machines]
    for link in topology.links:
        a, b = machine.get(link.source), machine.get(link.target)
        if a is not None:
            links[a].append(link)
            if b is None:
                hubs[link.target] = None
            elif a != b:
                raise TopologyError(
                    f"{topology.name}: {link.source!r} is linked to {link.target!r} of another "
                    "machine, so machines are nearer to some than to others and one cannot stand "
                    "for all"
                )
        elif b is not None:
            links[b].append(link)
    if len(hubs) != 1:
        named = ", ".join(repr(name) for name in list(hubs)[:3]) or "nothing"
        raise TopologyError(
            f"{topology.name}: its machines hang on {named}, not on one switch, so some are "
            "nearer to each other than to others and one cannot stand for all"
        )
    return next(iter(hubs)), links


class _Machine:
    """One machine: its nodes, its links, and the place of every node, the hub's being -1."""

    def __init__(self, nodes: Sequence[Node], hub: str, links: Sequence[Link]) -> None:
        self.nodes, self.links = nodes, links
        self.place = {node.name: i for i, node in enumerate(nodes)}
        ends = self.place | {hub: -1}
        self.joins = [(ends[link.source], ends[link.target], link.parallel) for link in links]


_NODE_FIGURES = tuple(key for key in NODE_ATTRIBUTES if key != "machine")
_LINK_FIGURES = ("link_class", "lanes", "nominal", "bandwidth", "latency", "holds_lane")


def _difference(one: _Machine, other: _Machine) -> str:
    """In words, the first difference; "" if there is none."""
    names = one.nodes[0].name, other.nodes[0].name
    if len(one.nodes) != len(other.nodes) or one.joins != other.joins:
        return f"{names[1]!r} stands in another kind of machine than {names[0]!r}"
    compared: tuple[tuple[tuple[str, ...], Iterable[tuple[Node | Link, Node | Link]]], ...] = (
        (_NODE_FIGURES, zip(one.nodes, other.nodes, strict=True)),
        (_LINK_FIGURES, zip(one.links, other.links, strict=True)),
    )
    for keys, pairs in compared:
        for (a, b), key in itertools.product(pairs, keys):
            mine, its = getattr(a, key), getattr(b, key)
            if mine != its:
                word = key.replace("_", " ")
                return f"{b.name} has {word} {its} where {a.name} has {mine}"
    return ""
