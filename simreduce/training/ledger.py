"""The ledger of one step: the events that its processes wait for, and the times they record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from simreduce.plan import Plan
from simreduce.training.groups import DeviceGroup
from simreduce.training.step import Bucket, Span

Process = Generator[simpy.Event, Any, None]
Waits = dict[tuple[int, int], list[simpy.Event]]
"""Events that a forward pass waits for, by group and layer."""


@dataclass(slots=True)
class Ledger:
    """Events and records of one step, which began at `begin` seconds.

    `computed[g][layer]`: group g has the layer's gradients.
    `updated[layer]`: the layer's variables are ready for the next step.
    `unreduced[layer]`: how many gradients of the layer are in flight.
    `fetched`: the variables that this step reads have arrived.
    `moved`: every reduction and read, with its plan, and since when nobody else held it up.
    """

    begin: float
    groups: Sequence[DeviceGroup]
    computed: list[list[simpy.Event]]
    updated: list[simpy.Event]
    unreduced: Counter[int]
    passes: list[simpy.Event] = field(default_factory=list)
    transfers: list[simpy.Event] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)
    reads: list[Bucket] = field(default_factory=list)
    moved: list[tuple[Bucket, Plan, float | None]] = field(default_factory=list)
    fetched: Waits = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    end: float = 0.0

    @staticmethod
    def open(
        env: simpy.Environment,
        begin: float,
        groups: Sequence[DeviceGroup],
        layers: int,
        unreduced: Counter[int],
    ) -> Ledger:
        """The ledger of a new step. Layers without gradients to reduce are updated at once."""
        ledger = Ledger(
            begin,
            groups,
            [[env.event() for _ in range(layers)] for _ in groups],
            [env.event() for _ in range(layers)],
            Counter(unreduced),
        )
        for layer in range(layers):
            if not ledger.unreduced[layer]:
                ledger.updated[layer].succeed()
        return ledger

    def add(self, earlier: Sequence[Ledger]) -> None:
        """Add what earlier passes of the same step recorded."""
        for other in earlier:
            self.buckets += other.buckets
            self.reads += other.reads
            self.moved += other.moved
            self.spans += other.spans

    def gradients_of(
        self, layer: int, ranks: Collection[int]
    ) -> list[tuple[DeviceGroup, simpy.Event]]:
        """The groups of `ranks`, with the event when each has the layer's gradients."""
        wanted = set(ranks)
        return [
            (group, computed[layer])
            for group, computed in zip(self.groups, self.computed, strict=True)
            if group.ranks & wanted
        ]

    def count_reduced(self, layers: Sequence[int]) -> None:
        """Count one reduced gradient for each entry; a layer's last one updates it."""
        for layer in layers:
            self.unreduced[layer] -= 1
            if not self.unreduced[layer]:
                self.updated[layer].succeed()
