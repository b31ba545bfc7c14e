"""The ledger of one step: what it has of the nodes of its execution, and the times they record."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from simreduce.plan import Plan
from simreduce.training.step import Bucket, Span


@dataclass(slots=True)
class Ledger:
    """Nodes and records of one step from `begin` to `end` in seconds, with `faults` to come.

    Of its last pass, it has the nodes of all `transfers`, those after which a layer's variables are
    `updated` for the next step, and the reads that have `fetched` a layer's for a group. `moved`
    has every reduction and read, with its plan, and since when nobody else held it up.
    """

    begin: float
    faults: int
    transfers: list[int] = field(default_factory=list)
    updated: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    fetched: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    buckets: list[Bucket] = field(default_factory=list)
    reads: list[Bucket] = field(default_factory=list)
    moved: list[tuple[Bucket, Plan, float | None]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    end: float = 0.0
