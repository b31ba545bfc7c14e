"""A recorded run: nodes of ranks, each after others of its rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from simreduce.errors import InputError

COMPUTE, COLLECTIVE, SEND, RECEIVE = "compute", "collective", "send", "receive"
FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"


class ExecutionError(InputError):
    """A record that cannot be read, or that contradicts itself."""


class ExecutionNode(NamedTuple):
    """One thing that a rank did.

    `after` are indices of earlier nodes of the same rank, all of which it waits for, or the first
    that is done if it is `early`. Nodes of one `lane` run one at a time, those that are ready in
    their order. `seconds` is how long it took when it was recorded, None if nobody knows; a compute
    node takes that long again. `start` is when it began, in seconds.

    A collective has its name, the `nbytes` that one rank gives (all-gathers end with as much times
    the ranks), the `group` of ranks in order, empty for all, and a `root`, which counts within the
    group. A send and a receive have a `peer`. `dtype` is the type of what moves, by the name that
    `simreduce.dtypes` has for it or else by the record's, "" if nobody says.

    `step` counts training steps and `phase` is the part of one that a node belongs to (`FORWARD`,
    `BACKWARD`, `UPDATE`), where the record has marks of them.
    """

    name: str
    kind: str
    after: tuple[int, ...] = ()
    lane: str = ""
    seconds: float | None = None
    start: float | None = None
    collective: str = ""
    nbytes: int = 0
    group: tuple[int, ...] = ()
    root: int = 0
    peer: int = 0
    tag: int = 0
    dtype: str = ""
    step: int | None = None
    phase: str = ""
    early: bool = False


@dataclass(slots=True)
class NodeList:
    """The nodes of a rank while they are written, and the `last` of each lane."""

    nodes: list[ExecutionNode] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)

    def add(self, lane: str, after: Iterable[int], **facts: Any) -> int:
        """Add a node after others, and after the last of its lane; return its index."""
        before = [self.last[lane]] if lane in self.last else []
        after = tuple(dict.fromkeys((*before, *after)))
        self.nodes.append(ExecutionNode(after=after, lane=lane, **facts))
        self.last[lane] = len(self.nodes) - 1
        return self.last[lane]


@dataclass(frozen=True, slots=True)
class Execution:
    """The work of each recorded rank, out of `world` ranks.

    Ranks without a recording are taken to do what keeps the recorded ones from waiting. `notes` say
    what was left out. `cap` is DDP's `bucket_cap_mb` in bytes, 0 if the record does not say.
    """

    source: str
    nodes: Mapping[int, tuple[ExecutionNode, ...]]
    world: int
    notes: tuple[str, ...] = field(default=())
    cap: int = 0

    def members(self, node: ExecutionNode) -> tuple[int, ...]:
        """The ranks of a collective's group."""
        return node.group or tuple(range(self.world))

    @property
    def recorded(self) -> float | None:
        """Seconds from the first begin to the last end, None if the record has no times."""
        spans = [
            (node.start, node.start + node.seconds)
            for nodes in self.nodes.values()
            for node in nodes
            if node.start is not None and node.seconds is not None
        ]
        if not spans:
            return None
        return max(end for _, end in spans) - min(begin for begin, _ in spans)
