"""Seconds of single calls of NCCL by what it can be told: simulated where needed, else bounded.

NCCL's collectives of one communicator run one after another. So the calls of a packing take the sum
of what each takes alone, and no packing is faster than the sum of bounds.

Two bounds are proven. No call takes less than the latencies of its decision's longest chain, nor
than its busiest link or channel needs for its bytes, which are in proportion to those of the call
(`Setup.find_rates` of one small plan for each decision). Nor does it take less than the floors of
its own plan, which are looked at before it is simulated.

Three more are tried, not proven:

- a call takes as long as one that is smaller by up to `PRECISION`: so sizes that nearly agree share
  a simulation, equal machines can be folded, and one of alike channels stands for all;
- by one decision, a call takes no less than a smaller one, and no less per byte than a larger one,
  but for `SMALLER` and `PER_BYTE`: NCCL cuts large tensors in other ways than small ones;
- trees take no less than among a part of many equal machines, but for `PART`.

`tests/tune/search` tries these on random machines and sizes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from simreduce.engine import Rates
from simreduce.layouts import OPEN, Decision
from simreduce.nccl import facts
from simreduce.nccl.choice import estimates, nvls_channels, plan
from simreduce.setup import Setup
from simreduce.tune.search.one_call import COLLECTIVE, MANY, Asked, Rated, Size, machines

SMALLER, PER_BYTE = 0.8, 0.88
"""The factors of bounds from a smaller call, and from the bytes of a larger one."""

PART = 0.95
"""The factor of bounds from a part of the machines: trees of more send smaller chunks."""

_ALIKE = 1.25
"""By how much ops for each byte differ where NCCL cuts two calls into chunks of one size: it halves
chunks of smaller calls.
"""

CHANNELS = (1, 2, 4, 8, 12, 16, 24, 32)
"""Numbers of channels that are tried, with the most that the communicator has."""

_NOTHING = Rates(0.0, 0.0)

Do = Callable[[Sequence[Any]], list[Any]]
"""What `one_call.answer` says to each of several."""


def decisions(setup: Setup) -> list[Decision]:
    """What NCCL can be told on the setup's ranks: each algorithm and protocol that it allows there,
    with several numbers of channels. Before 2.5, it cannot be told.
    """
    if setup.nccl.version < (2, 5) or setup.layout.n < 2:
        return []
    at = plan(facts(setup.machine, setup.layout.ranks, setup.nccl), setup.nccl)
    step = setup.layout.decide(setup.layout.ranks, COLLECTIVE, 1, OPEN).step  # type: ignore[misc]
    most = at.model.channels
    found = []
    for algorithm, protocol in estimates(at, COLLECTIVE, 1 << 20):
        if algorithm not in ("ring", "tree", "nvls", "nvlstree"):
            continue
        counts = sorted({c for c in CHANNELS if c < most} | {most})
        if algorithm.startswith("nvls"):
            counts = [nvls_channels(at)]
        found += [Decision(algorithm, protocol, channels, step) for channels in counts]
    return found


@dataclass(slots=True)
class Calls:
    """What is known of calls on one setup. `counted` is how many have been simulated, `spent` with
    how many ops; from `effort` ops on, no more are. What may be faster by a part of `gap` at most
    is not looked for.
    """

    setup: Setup
    choices: Sequence[Decision]
    effort: float = inf
    gap: float = 0.0
    counted: int = 0
    spent: int = 0
    _known: dict[tuple[Decision, Size], float] = field(default_factory=dict)
    _ops: dict[tuple[Decision, Size], int] = field(default_factory=dict)
    _rates: dict[Decision, Rates] = field(default_factory=dict)
    _least: dict[tuple[Decision, Size], float] = field(default_factory=dict)
    _near: dict[Decision, list[tuple[int, float, int]]] = field(default_factory=dict)
    _coarse: set[tuple[Decision, Size]] = field(default_factory=set)

    def own(self, size: Size) -> Decision:
        """What NCCL chooses by itself."""
        layout = self.setup.layout
        assert layout.decide is not None  # noqa: S101 - a setup's layout has it
        return layout.decide(layout.ranks, COLLECTIVE, size.nbytes, OPEN)

    def known(self, how: Decision, size: Size) -> float | None:
        """The simulated seconds of a call by a decision; None if it was not simulated."""
        return self._known.get((how, size.rounded))

    def ops(self, how: Decision, size: Size) -> int:
        """The ops of a simulated call, of all machines; 0 if it was not simulated."""
        return self._ops.get((how, size.rounded), 0)

    def bound(self, how: Decision, size: Size) -> float:
        """Seconds that the call takes at least by this decision; exact if it was simulated."""
        size = size.rounded
        if (exact := self._known.get((how, size))) is not None:
            return exact
        rates, nbytes = self._rates.get(how, _NOTHING), size.nbytes
        least = self._least.get((how, size), 0.0)
        found = max(least, rates.latency, rates.busy * nbytes)
        if near := self._near.get(how):
            at = bisect_left(near, (nbytes,))
            if at:
                found = max(found, SMALLER * near[at - 1][1])
            if at < len(near):
                found = max(found, PER_BYTE * near[at][1] * nbytes / near[at][0])
        return found

    def between(self, how: Decision, size: Size) -> float | None:
        """Seconds of a call by a decision: simulated, or of trees on the line between those of the
        next smaller and larger simulated calls, if NCCL cuts both into chunks of one size, about.
        Else None.
        """
        if (exact := self.known(how, size)) is not None:
            return exact
        near, nbytes = self._near.get(how, []), size.nbytes
        at = bisect_left(near, (nbytes,))
        if how.algorithm == "ring" or not 0 < at < len(near):
            return None
        (low, fast, few), (high, slow, many) = near[at - 1 : at + 1]
        if not 1 / _ALIKE < few * high / max(many * low, 1) < _ALIKE:
            return None
        return fast + (slow - fast) * (nbytes - low) / (high - low)

    def surround(self, wanted: Sequence[tuple[Decision, Size]], do: Do, effort: int) -> None:
        """Simulate as few of these calls as leave the others `between`, until more than `effort`
        ops are spent: of each decision the smallest and the largest, then those in the middle.
        """
        most = self.spent + effort
        while self.spent <= most:
            left: dict[Decision, list[Size]] = {}
            for how, size in wanted:
                if self.between(how, size) is None:
                    left.setdefault(how, []).append(size.rounded)
            asked = []
            for how, found in left.items():
                sizes = sorted(found, key=lambda size: size.nbytes)
                near = self._near.get(how, [])
                ends = not near or sizes[0].nbytes < near[0][0] or sizes[-1].nbytes > near[-1][0]
                some = {sizes[0], sizes[-1]} if ends else {sizes[len(sizes) // 2]}
                some = {*sizes} if how.algorithm == "ring" else some
                asked += [Asked(how, size) for size in sorted(some)]
            if not asked:
                return
            self.ask(asked, do)

    def least(self, size: Size) -> float:
        """Seconds that the call takes at least, whatever NCCL is told."""
        return min((self.bound(how, size) for how in self.choices), default=0.0)

    def near_own(self, size: Size) -> Decision:
        """The choice nearest to NCCL's own."""
        own = self.own(size)
        alike = [how for how in self.choices if how[:2] == own[:2]]
        return min(alike or self.choices, key=lambda how: abs(how.channels - own.channels))

    def best(self, size: Size) -> tuple[float, Decision]:
        """The fastest decision for a size among those that were simulated, or else the one nearest
        to NCCL's own; and its seconds, or bound.
        """
        known = [(took, how) for how in self.choices if (took := self.known(how, size)) is not None]
        if not known:
            how = self.near_own(size)
            return self.bound(how, size), how
        return min(known, key=lambda each: each[0])

    def rate(self, do: Do, others: Iterable[Decision] = ()) -> None:
        """Read the rates of all choices, and of `others`: no simulation is needed for that."""
        new = [how for how in dict.fromkeys([*self.choices, *others]) if how not in self._rates]
        self._rates |= zip(new, do([Rated(how) for how in new]) if new else [], strict=True)

    def settle(
        self, sizes: Iterable[Size], do: Do, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Simulate until the fastest decision of every one of these sizes is known, or the effort
        is spent, or the bounds are `enough`.
        """
        pending = list(dict.fromkeys(size.rounded for size in sizes))
        while pending and self.spent < self.effort and not enough():
            asked = {size: each for size in pending if (each := self._next(size))}
            self.ask(list(asked.values()), do)
            pending = list(asked)

    def _next(self, size: Size) -> Asked | None:
        """The most promising decision that may still be the fastest."""
        large, best = machines(self.setup) >= MANY, self._best(size)
        choices = self.choices
        if large and best == inf:  # rings are quick to simulate there
            choices = [how for how in choices if how.algorithm == "ring"] or choices
        bounds = [(self.bound(how, size), (how, size) not in self._known) for how in choices]
        at = min(range(len(bounds)), key=bounds.__getitem__)
        if not bounds[at][1] or bounds[at][0] >= best * (1.0 - self.gap):
            return None
        how = choices[at]
        coarse = large and how.algorithm != "ring" and (how, size) not in self._coarse
        return Asked(how, size, coarse, best / PART if coarse else best)

    def _best(self, size: Size) -> float:
        """The shortest simulated time; infinite if there is none."""
        return min((self._known.get((how, size), inf) for how in self.choices), default=inf)

    def ask(self, asked: Sequence[Asked], do: Do) -> None:
        """Simulate those that are not known."""
        rounded = [each._replace(size=each.size.rounded) for each in asked]
        new = [e for e in dict.fromkeys(rounded) if (e.how, e.size) not in self._known]
        for each, found in zip(new, do(new) if new else [], strict=True):
            key = each.how, each.size
            self.counted += found.ops > 0
            self.spent += found.ops
            if not found.exact:
                least = found.seconds * (PART if each.coarse else 1.0)
                self._least[key] = max(self._least.get(key, 0.0), least)
                if each.coarse:
                    self._coarse.add(key)
                continue
            self._known[key], self._ops[key] = found.seconds, found.whole
            known = each.size.nbytes, found.seconds, found.whole
            insort(self._near.setdefault(each.how, []), known)
