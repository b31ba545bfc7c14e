"""What happens in one step: the events that its processes wait for, and what they write down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from simreduce.training.groups import Group
from simreduce.training.step import Bucket, Span

Process = Generator[simpy.Event, Any, None]
Waits = dict[tuple[int, int], list[simpy.Event]]
"""By group and layer: what is waited for."""


@dataclass(slots=True)
class Ledger:
    """`computed[g][layer]` is when group g has that layer's gradients, `updated[layer]` when the
    variables of a layer are ready for the next step. `unreduced` counts, by layer, gradients that
    are still on their way. `brought` is, by group and layer, when the variables are there that are
    read in this step.
    """

    begin: float
    groups: Sequence[Group]
    computed: list[list[simpy.Event]]
    updated: list[simpy.Event]
    unreduced: Counter[int]
    working: list[simpy.Event] = field(default_factory=list)
    moving: list[simpy.Event] = field(default_factory=list)
    buckets: list[Bucket] = field(default_factory=list)
    reads: list[Bucket] = field(default_factory=list)
    brought: Waits = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    end: float = 0.0

    @staticmethod
    def opened(
        env: simpy.Environment,
        begin: float,
        groups: Sequence[Group],
        layers: int,
        unreduced: Counter[int],
    ) -> Ledger:
        """Of a step that began then; what nobody reduces is updated at once."""
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

    def given(self, layer: int, ranks: Collection[int]) -> list[tuple[Group, simpy.Event]]:
        """The groups that some of `ranks` are in, and when each has a layer's gradients."""
        giving = set(ranks)
        return [
            (group, computed[layer])
            for group, computed in zip(self.groups, self.computed, strict=True)
            if group.ranks & giving
        ]

    def reduced(self, layers: Sequence[int]) -> None:
        """A gradient of each of these layers is there; with its last one a layer is up to date."""
        for layer in layers:
            self.unreduced[layer] -= 1
            if not self.unreduced[layer]:
                self.updated[layer].succeed()
