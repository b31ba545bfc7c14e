"""Horovod's background thread: at every cycle it fuses the gradients that all devices have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil

import simpy

from simreduce.engine.events import LOW, Moment
from simreduce.training.executions import COMPUTE, Node
from simreduce.training.executor import Run
from simreduce.training.reductions import Fused, Reduction

_ROUNDING = 1e-12
"""Relative error allowed at the boundary of a cycle."""

Buffers = dict[tuple[int, ...], list[Reduction]]
Start = Callable[[Reduction, float], int]
"""Adds the reduction of gradients that are there since then to a run, and returns its node."""


class Negotiation:
    """The thread in one pass. `known` has reductions by buffer, which are compiled on first use."""

    def __init__(
        self, run: Run, rule: Fused, layer_of: Sequence[int], known: Buffers, start: Start
    ) -> None:
        self._run, self._rule, self._layer_of = run, rule, layer_of
        self._known, self._start = known, start
        self._arrived: list[int] = []
        self._since: dict[int, float] = {}
        self._reduced: dict[int, simpy.Event] = {}

    def arrive(self, layer: int, now: float) -> simpy.Event:
        """Note that all devices have a layer's gradients; the event is when they are reduced."""
        env = self._run.env
        if not self._arrived:
            # After all else at that instant: what is ready just then is in time.
            tick = Moment(env, now + to_cycle(now, self._rule.cycle), LOW)
            tick.callbacks.append(self._tick)
        mine = [i for i in reversed(range(len(self._layer_of))) if self._layer_of[i] == layer]
        self._arrived += mine
        self._since.update(dict.fromkeys(mine, now))
        self._reduced[layer] = env.event()
        return self._reduced[layer]

    def _tick(self, _: simpy.Event) -> None:
        """Start the buffers of what has arrived."""
        ready, self._arrived = self._arrived, []
        nodes = defaultdict[int, set[int]](set)
        for buffer in self._rule.buffers(ready):
            if buffer not in self._known:
                self._known[buffer] = self._rule.reductions(buffer)
            for reduction in self._known[buffer]:
                node = self._start(reduction, max(self._since[i] for i in reduction.gradients))
                for i in reduction.gradients:
                    nodes[self._layer_of[i]].add(node)
        for layer, after in nodes.items():
            self._run.add(Node("reduced", COMPUTE, tuple(after)), partial(self._end, layer))
        self._run.start()

    def _end(self, layer: int, _: float) -> simpy.Event:
        return self._reduced[layer].succeed()


def to_cycle(now: float, cycle: float) -> float:
    """Seconds from `now` to the next whole multiple of `cycle`, 0 at one."""
    if not cycle:
        return 0.0
    return max(ceil(now / cycle * (1.0 - _ROUNDING)) * cycle - now, 0.0)
