"""The calls of NCCL that a step makes.

Their seconds by each of its decisions are simulated where needed, else bounded.

NCCL's collectives of one communicator run one after another. So the calls of a packing take the sum
of what each takes alone, and no packing is faster than the sum of bounds.

Two bounds are proven. No call takes less than the latencies of its decision's longest chain, nor
than its busiest link or channel needs for its bytes, which are in proportion to the call's
(`Setup.find_rates` of one small plan for each decision). Nor does it take less than the floors of
its own plan, which are looked at before it is simulated.

Three more are tried, not proven:

- a call takes as long as one that is smaller by up to `PRECISION`: so sizes that nearly agree share
  a simulation, equal machines can be folded, and one of alike channels represents all;
- by one decision, a call takes no less than a smaller one, and no less per byte than a larger one,
  but for `SMALLER` and `PER_BYTE`: NCCL cuts large tensors in other ways than small ones;
- trees take no less than among a part of many equal machines, but for `PART`.

`tests/study/tune/search` tries these on random machines and sizes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from simreduce.computing import grouped
from simreduce.computing.arrays import Floats
from simreduce.engine import LeastSeconds
from simreduce.engine.setup import Setup
from simreduce.planners.layouts import Decision
from simreduce.planners.nccl import facts
from simreduce.planners.nccl.choice import estimates
from simreduce.planners.nccl.constants import Rule
from simreduce.study.tune.search.packings import (
    COLLECTIVE,
    MANY,
    CallSetting,
    CallSize,
    choice_of_nccl,
    find_rates,
    simulate_call,
)
from simreduce.study.tune.search.setting import Do, Tried, with_channels
from simreduce.study.tune.whatif import ring_limit

SMALLER, PER_BYTE = 0.8, 0.88
"""The factors of bounds from a smaller call, and from the bytes of a larger one."""

PART = 0.95
"""The factor of bounds from a part of the machines: trees of more send smaller chunks."""

_ALIKE = 1.25
"""By how much ops for each byte differ where NCCL cuts two calls into chunks of one size: it halves
chunks of smaller calls.
"""

_CHANNELS = (1, 2, 4, 8, 12, 16, 24, 32)
"""Numbers of channels that are tried, with the most that the communicator has or may be given."""

_PLANNED = {COLLECTIVE: ("ring", "tree", "nvls", "nvlstree")}
"""The algorithms with plans, by collective; all-gathers and reduce-scatters have `_SHARDED`."""

_SHARDED = ("ring", "nvls")

_NOTHING = LeastSeconds(0.0, 0.0)

MOST_RANGES = 8
"""Default limit of the number of ranges of sizes with one choice each."""

_SAME = 1.0 + 1e-9


def decisions(setup: Setup, collective: str = COLLECTIVE) -> list[Decision]:
    """The decisions that NCCL can be set to on the setup's ranks.

    They are each algorithm and protocol that it allows there, with several numbers of channels;
    none before NCCL 2.5.
    """
    if setup.nccl.release < (2, 5) or setup.layout.n < 2:
        return []
    at = setup.communicator
    own = choice_of_nccl(setup, COLLECTIVE, 1)
    most = max(at.model.channels, more_channels(setup))
    counts = sorted({c for c in _CHANNELS if c < most} | {at.model.channels, most})
    return [
        own._replace(algorithm=algorithm, protocol=protocol, channels=channels, part=0)
        for algorithm, protocol in estimates(at, collective, 1 << 20)
        if algorithm in _PLANNED.get(collective, _SHARDED)
        for channels in ([at.model.running_nvls()] if algorithm.startswith("nvls") else counts)
    ]


def more_channels(setup: Setup) -> int:
    """The NCCL_MIN_NCHANNELS to try; 0 where the library takes no fewer rings than elsewhere."""
    limit = ring_limit(setup)
    return limit.channels if limit and limit.channels > setup.communicator.model.channels else 0


def needed_channels(setup: Setup, rules: Iterable[Rule]) -> int:
    """The NCCL_MIN_NCHANNELS by which a communicator has the channels of rules; 0 where it does."""
    most = max((rule.channels for rule in rules), default=0)
    return most if most > setup.communicator.model.channels and most <= more_channels(setup) else 0


@dataclass(slots=True)
class StepCalls:
    """The calls of one setup, as far as they are known.

    `counted` is how many have been simulated, `spent` with how many ops; from `effort` ops on, no
    more are. A decision that may be faster by a part of `gap` at most is not simulated.
    """

    setup: Setup
    choices: Sequence[Decision]
    effort: float = inf
    gap: float = 0.0
    counted: int = 0
    spent: int = 0
    _times: dict[tuple[Decision, CallSize], Tried] = field(default_factory=dict)
    _rates: dict[Decision, LeastSeconds] = field(default_factory=dict)
    _least: dict[tuple[Decision, CallSize], float] = field(default_factory=dict)
    _near: dict[Decision, list[tuple[int, float, int]]] = field(default_factory=dict)

    def own(self, size: CallSize, channels: int = 0) -> Decision:
        """NCCL's own choice, with so many channels as NCCL_MIN_NCHANNELS if they are given."""
        return choice_of_nccl(with_channels(self.setup, channels), COLLECTIVE, size.nbytes)

    def chosen(self, rules: Sequence[Rule], size: CallSize, channels: int = 0) -> Decision:
        """NCCL's choice for a call by `rules`, or its own where none is for that size."""
        own = self.own(size, channels)
        rule = next((r for r in rules if r.least <= size.nbytes <= (r.most or size.nbytes)), None)
        if rule is None:
            return own
        return own._replace(
            algorithm=rule.algorithm, protocol=rule.protocol, channels=rule.channels, part=0
        )

    def known(self, how: Decision, size: CallSize) -> float | None:
        """The simulated seconds of a call by a decision; None if it was not simulated."""
        found = self._times.get((how, size.rounded))
        return found.seconds if found else None

    def ops(self, how: Decision, size: CallSize) -> int:
        """The ops of a simulated call, of all machines; 0 if it was not simulated."""
        return self._times.get((how, size.rounded), Tried(inf)).whole

    def bound(self, how: Decision, size: CallSize) -> float:
        """Seconds that the call takes at least by this decision; exact if it was simulated."""
        size = size.rounded
        if (exact := self._times.get((how, size))) is not None:
            return exact.seconds
        rates, nbytes = self._rates.get(how, _NOTHING), size.nbytes
        found = max(self._least.get((how, size), 0.0), rates.latency, rates.busy * nbytes)
        if near := self._near.get(how):
            if at := bisect_left(near, (nbytes,)):
                found = max(found, SMALLER * near[at - 1][1])
            if at < len(near):
                found = max(found, PER_BYTE * near[at][1] * nbytes / near[at][0])
        return found

    def between(self, how: Decision, size: CallSize) -> float | None:
        """Seconds of a call by a decision.

        They are simulated, or of trees on the line between the next smaller and larger simulated
        calls, if NCCL cuts both into chunks of about one size. Else None.
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

    def surround(self, wanted: Sequence[tuple[Decision, CallSize]], do: Do, effort: int) -> None:
        """Simulate as few of these calls as leave the others `between`.

        It ends when more than `effort` ops are spent. Of each decision the smallest and the largest
        come first, then those in the middle.
        """
        most = self.spent + effort
        while self.spent <= most:
            unknown = (each for each in wanted if self.between(*each) is None)
            left = grouped((how, size.rounded) for how, size in unknown)
            asked = []
            for how, found in left.items():
                sizes = sorted(found, key=lambda size: size.nbytes)
                near = self._near.get(how, [])
                ends = not near or sizes[0].nbytes < near[0][0] or sizes[-1].nbytes > near[-1][0]
                some = {sizes[0], sizes[-1]} if ends else {sizes[len(sizes) // 2]}
                some = {*sizes} if how.algorithm == "ring" else some
                asked += [CallSetting(how, size) for size in sorted(some)]
            if not asked:
                return
            self.ask(asked, do)

    def least(self, size: CallSize) -> float:
        """Seconds that the call takes at least, by whichever decision."""
        return min((self.bound(how, size) for how in self.choices), default=0.0)

    def near_own(self, size: CallSize) -> Decision:
        """The choice nearest to NCCL's own."""
        own = self.own(size)
        alike = [how for how in self.choices if how[:2] == own[:2]]
        return min(alike or self.choices, key=lambda how: abs(how.channels - own.channels))

    def best(self, size: CallSize) -> tuple[float, Decision]:
        """The fastest simulated decision for a size, or else the one nearest to NCCL's own.

        It comes with its seconds, or bound.
        """
        known = [(took, how) for how in self.choices if (took := self.known(how, size)) is not None]
        if not known:
            how = self.near_own(size)
            return self.bound(how, size), how
        return min(known, key=lambda each: each[0])

    def rate(self, do: Do, others: Iterable[Decision] = ()) -> None:
        """Read the rates of all choices, and of `others`: no simulation is needed for that."""
        new = [how for how in dict.fromkeys([*self.choices, *others]) if how not in self._rates]
        self._rates |= zip(new, do(find_rates, new), strict=True)

    def settle(
        self, sizes: Iterable[CallSize], do: Do, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Simulate until the fastest decision of every one of these sizes is known.

        It ends earlier when the effort is spent, or the bounds are `enough`.
        """
        pending = list(dict.fromkeys(size.rounded for size in sizes))
        while pending and self.spent < self.effort and not enough():
            asked = {size: each for size in pending if (each := self._next(size))}
            self.ask(list(asked.values()), do)
            pending = list(asked)

    def _next(self, size: CallSize) -> CallSetting | None:
        """The most promising decision that may still be the fastest."""
        known = {how: found for how in self.choices if (found := self._times.get((how, size)))}
        large = len(self.setup.layout.tasks) >= MANY
        best = min((found.seconds for found in known.values()), default=inf)
        choices = self.choices
        if large and best == inf:  # rings are quick to simulate there
            choices = [how for how in choices if how.algorithm == "ring"] or choices
        bounds = [(self.bound(how, size), how not in known) for how in choices]
        at = min(range(len(bounds)), key=bounds.__getitem__)
        if not bounds[at][1] or bounds[at][0] >= best * (1.0 - self.gap):
            return None
        how = choices[at]
        # What has a bound of its own was simulated among a part of the machines before.
        coarse = large and how.algorithm != "ring" and (how, size) not in self._least
        return CallSetting(how, size, coarse, best / PART if coarse else best)

    def ask(self, asked: Iterable[CallSetting], do: Do) -> None:
        """Simulate those calls that are not known."""
        rounded = dict.fromkeys(each._replace(size=each.size.rounded) for each in asked)
        new = [each for each in rounded if (each.how, each.size) not in self._times]
        for each, found in zip(new, do(simulate_call, new), strict=True):
            key = each.how, each.size
            self.counted += found.ops > 0
            self.spent += found.ops
            if found.exact:
                self._times[key] = found
                insort(
                    self._near.setdefault(each.how, []),
                    (each.size.nbytes, found.seconds, found.whole),
                )
            else:
                least = found.seconds * (PART if each.coarse else 1.0)
                self._least[key] = max(self._least.get(key, 0.0), least)

    def rules(self, called: Iterable[CallSize], do: Do) -> tuple[Rule, ...]:
        """The fastest choice by ranges of sizes for these calls, which are settled.

        There are no rules if NCCL chooses the same by itself.
        """
        times = Counter(called)
        sizes = sorted(times, key=lambda size: (size.nbytes, size))
        costs = self._costs(times, sizes)
        cost, found = partition(costs)
        if cost > costs.min(axis=1).sum() * _SAME:  # the best of all need more ranges
            found = self._fewer_ranges(times, sizes, do)
        chosen = [self.choices[choice] for choice in found]
        if chosen == [self.own(size) for size in sizes]:
            return ()
        return make_rules(self.setup, COLLECTIVE, [size.nbytes for size in sizes], chosen)

    def _fewer_ranges(
        self, times: Counter[CallSize], sizes: Sequence[CallSize], do: Do
    ) -> list[int]:
        """The best ranges with decisions that are the fastest for some size.

        A call that is not known counts with its bound; it is simulated if the best ranges then rest
        on it.
        """
        winners = {self.best(size)[1] for size in sizes}
        while True:
            _, found = partition(self._costs(times, sizes, winners))
            asked = [
                CallSetting(self.choices[choice], size)
                for choice, size in zip(found, sizes, strict=True)
                if self.known(self.choices[choice], size) is None
            ]
            if not asked:
                return found
            self.ask(asked, do)

    def _costs(
        self,
        times: Counter[CallSize],
        sizes: Sequence[CallSize],
        bounded: Collection[Decision] = (),
    ) -> Floats:
        """Seconds of all calls of each size by each decision that was simulated, or the least by
        those that are `bounded`; else infinite.
        """
        costs = np.full((len(sizes), len(self.choices)), inf)
        for row, size in enumerate(sizes):
            for column, how in enumerate(self.choices):
                if how in bounded or self.known(how, size) is not None:
                    costs[row, column] = times[size] * self.bound(how, size)
            if not np.isfinite(costs[row]).any():  # the effort was spent before
                how = self.near_own(size)
                costs[row, self.choices.index(how)] = times[size] * self.bound(how, size)
        return costs


def make_rules(
    setup: Setup, collective: str, sizes: Sequence[int], chosen: Sequence[Decision]
) -> tuple[Rule, ...]:
    """One rule for each range of sizes, ascending, with the same choice: from half the smallest
    to twice the largest, beyond which nothing was simulated.
    """
    known = facts(setup.machine, setup.layout.ranks, setup.nccl)
    rules, least = list[Rule](), sizes[0] // 2
    for at, how in enumerate(chosen, 1):
        last = at == len(chosen)
        if last or how != chosen[at]:
            most = 2 * sizes[-1] if last else boundary(sizes[at - 1], sizes[at])
            rules.append(Rule(collective, least, most, *how[:3], known.nodes, known.n))
            least = most + 1
    return tuple(rules)


def partition(costs: Floats, most: int = MOST_RANGES) -> tuple[float, list[int]]:
    """The cheapest cut of the sizes, ascending, into up to `most` ranges: dynamic programming.

    Each range has one choice. Returns the cost of the cut, and the choice of each size.

    `costs` has a row for each size and a column for each choice; infinite where a choice is
    impossible. Among equally cheap cuts, one with the fewest ranges. The cost is the sum over the
    sizes, so it is exact where calls take turns, as NCCL's do.

    >>> partition(np.array([[1.0, 5.0], [1.0, 5.0], [9.0, 5.0]]))
    (7.0, [0, 0, 1])
    """
    sizes, choices = costs.shape
    # total[r, s, c]: the cheapest cut of sizes 0 to s into r ranges where the last takes c.
    total = np.full((most + 1, sizes, choices), np.inf)
    came = np.zeros((most + 1, sizes, choices), dtype=np.int64)
    for ranges in range(1, most + 1):
        for size in range(sizes):
            stay = total[ranges, size - 1] if size else np.full(choices, np.inf)
            switch, at = (np.inf if size or ranges > 1 else 0.0), 0
            if size and ranges > 1:
                at = int(np.argmin(total[ranges - 1, size - 1]))
                switch = float(total[ranges - 1, size - 1, at])
            stays = stay <= switch
            came[ranges, size] = np.where(stays, -1, at)
            total[ranges, size] = np.where(stays, stay, switch) + costs[size]
    ends = total[1:, -1].min(axis=1)
    ranges = 1 + int(np.argmax(ends <= ends.min() * _SAME))
    cost, choice, found = float(ends[ranges - 1]), int(np.argmin(total[ranges, -1])), []
    for size in reversed(range(sizes)):
        found.append(choice)
        before = int(came[ranges, size, choice])
        if before >= 0 and ranges > 1:
            choice, ranges = before, ranges - 1
    return cost, found[::-1]


def boundary(low: int, high: int) -> int:
    """The largest size of a range whose last size is `low`.

    The next range begins with `high`. It is a power of two between them if there is one, else
    `low`.
    """
    power = 1 << max(low - 1, 0).bit_length()
    return power if low <= power < high else low
