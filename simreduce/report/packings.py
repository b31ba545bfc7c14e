"""`simreduce topo rings` and `topo trees` as documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from simreduce.formats.documents import (
    COUNT,
    GB_PER_SECOND,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    one_of,
    or_null,
)
from simreduce.synthesis.network import Network
from simreduce.synthesis.trees import SpanningTree
from simreduce.topology import Topology

_GB = 1e9

_HEAD = (
    Key("topology", TEXT, "The name of the machine."),
    Key("digest", TEXT, "Names the machine's content: equal machines have equal digests."),
    Key("gpus", list_of(TEXT), "The GPUs that were searched."),
    Key(
        "rate_gb_per_s",
        or_null(GB_PER_SECOND),
        "The tensor over the time, of what was found; null if nothing was packed.",
    ),
    Key("optimum_gb_per_s", GB_PER_SECOND, "The most that it can be."),
    Key("gap", or_null(RATIO), "The part of the optimum that is not reached."),
    Key("bottleneck", TEXT, "What limits it."),
    Key("network", one_of("direct", "routed"), "Whether only links between GPUs are used."),
)
_RING = Record(
    "ring",
    "A ring through all GPUs.",
    Key("order", list_of(TEXT), "The GPUs in its order."),
    Key("share_gb_per_s", GB_PER_SECOND, "What each of its links carries."),
)
RINGS = Document(
    "topo-rings",
    "`simreduce topo rings --json`: rings that share a machine best.",
    *_HEAD,
    Key("link_rate_gb_per_s", GB_PER_SECOND, "What all rings carry together."),
    Key("rings", list_of(_RING), "The rings."),
    Key("best_order", _RING, "The best single ring."),
    Key("machines", COUNT, "Machines, if only a few of equal ones were searched.", optional=True),
    Key("searched_machines", COUNT, "Of these, the ones that were searched.", optional=True),
    command="topo rings",
)
_HOPS = list_of(list_of(TEXT, 2))
TREES = Document(
    "topo-trees",
    "`simreduce topo trees --json`: trees that share a machine best.",
    *_HEAD,
    Key("collective", TEXT, "What they carry."),
    Key(
        "trees",
        list_of(
            Record(
                "tree",
                "A tree, or of an all-to-all a path.",
                Key("root", TEXT, "Its root."),
                Key("up", _HOPS, "Senders and receivers on the way to the root."),
                Key("down", _HOPS, "Senders and receivers on the way from it."),
                Key("share_gb_per_s", GB_PER_SECOND, "What each of its links carries."),
            )
        ),
        "The trees; not with `--bound`.",
        optional=True,
    ),
    command="topo trees",
)


class Outcome(NamedTuple):
    """Bytes/s of the whole tensor: reached, if anything was packed, and at best; and what limits
    it.
    """

    rate: float | None
    optimum: float
    bottleneck: str

    @property
    def gap(self) -> float | None:
        """The part of the optimum that is not reached; rounding is none."""
        if self.rate is None:
            return None
        gap = 1 - self.rate / self.optimum
        return gap if gap > 1e-9 else 0.0


def packing_keys(
    document: Document, machine: Topology, network: Network, outcome: Outcome
) -> dict[str, Any]:
    """The keys that both documents share."""
    return {
        **document.head(),
        "topology": machine.name,
        "digest": machine.digest,
        "gpus": list(network.names[: network.ranks]),
        "rate_gb_per_s": None if outcome.rate is None else outcome.rate / _GB,
        "optimum_gb_per_s": outcome.optimum / _GB,
        "gap": outcome.gap,
        "bottleneck": outcome.bottleneck,
        "network": "direct" if network.direct else "routed",
    }


def ring_keys(network: Network, ring: Sequence[int], rate: float) -> dict[str, Any]:
    """A ring that carries `rate` bytes/s."""
    return {"order": [network.names[r] for r in ring], "share_gb_per_s": rate / _GB}


def tree_keys(network: Network, tree: SpanningTree, rate: float) -> dict[str, Any]:
    """A tree that carries `rate` bytes/s."""
    return {
        "root": network.names[tree.root],
        "up": [[network.names[u], network.names[v]] for u, v in tree.up],
        "down": [[network.names[u], network.names[v]] for u, v in tree.down],
        "share_gb_per_s": rate / _GB,
    }
