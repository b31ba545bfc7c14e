"""Horovod's background thread: at every cycle it fuses the gradients that all devices have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil

import simpy

from simreduce.engine.events import LOW, Moment
from simreduce.training.executor import Run
from simreduce.training.reductions import Fused, Reduction

_ROUNDING = 1e-12
"""Relative error allowed at the boundary of a cycle."""

Buffers = dict[tuple[int, ...], list[Reduction]]
Start = Callable[[Reduction, float], int]
"""Adds the reduction of gradients that are there since then to a run, and returns its node."""


class Negotiation:
    """The thread in one pass. `known` has reductions by buffer, which are compiled on first use.

    `updated` are the nodes that update each layer: first one that waits for the thread, then the
    reductions of its gradients too.
    """

    def __init__(
        self, run: Run, rule: Fused, layer_of: Sequence[int], updated: Mapping[int, list[int]],
        known: Buffers, start: Start,
    ) -> None:  # fmt: skip
        self._run, self._rule, self._layer_of = run, rule, layer_of
        self._of_layer: dict[int, list[int]] = {}
        for gradient in reversed(range(len(layer_of))):
            self._of_layer.setdefault(layer_of[gradient], []).append(gradient)
        self._updated, self._known, self._start = updated, known, start
        self._arrived: list[int] = []
        self._since: dict[int, float] = {}
        self._next = run.env.event()

    def arrive(self, layer: int, now: float) -> simpy.Event:
        """Note that all devices have a layer's gradients; the event is when the thread looks."""
        if not self._arrived:
            # After all else at that instant: what is ready just then is in time.
            self._next = Moment(self._run.env, now + to_cycle(now, self._rule.cycle), LOW)
            self._next.callbacks.append(self._tick)
        mine = self._of_layer[layer]
        self._arrived += mine
        self._since.update(dict.fromkeys(mine, now))
        return self._next

    def _tick(self, _: simpy.Event) -> None:
        """Start the buffers of what has arrived."""
        ready, self._arrived = self._arrived, []
        for buffer in self._rule.buffers(ready):
            if buffer not in self._known:
                self._known[buffer] = self._rule.reductions(buffer)
            for reduction in self._known[buffer]:
                node = self._start(reduction, max(self._since[i] for i in reduction.gradients))
                for layer in {self._layer_of[i] for i in reduction.gradients}:
                    self._run.join(self._updated[layer][0], node)
                    self._updated[layer].append(node)
        self._run.start()


def to_cycle(now: float, cycle: float) -> float:
    """Seconds from `now` to the next whole multiple of `cycle`, 0 at one."""
    if not cycle:
        return 0.0
    return max(ceil(now / cycle * (1.0 - _ROUNDING)) * cycle - now, 0.0)
