"""The order of nodes that ranks are laid out on, and the choice among free ones.

The search of the order of nodes that takes the least time.

Up to `LISTED` orders are all looked at, best bound first, until no bound is below the best time.
Of more, swaps between switches lower the bound from several starts, and the best found so far are
simulated; then swaps are simulated too, until the effort is spent. The given order and the one
sorted by switch are always simulated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from itertools import islice
from math import inf
from typing import Any, TypeAlias, TypeVar

import numpy as np

from simreduce.computing.arrays import Floats, Ints
from simreduce.computing.workers import Progress
from simreduce.errors import InputError
from simreduce.export.frameworks import USUAL
from simreduce.planners.layouts import layout, node_names
from simreduce.study.frameworks import default_text
from simreduce.study.ranking import Ending
from simreduce.study.scenario import MachineQuestion, Meshes, Scenario
from simreduce.study.tune.placement.orders import (
    Cuts,
    Leaves,
    Orders,
    bytes_between,
    mesh_bytes,
    mesh_seconds,
)
from simreduce.study.tune.search.search import WIDTH
from simreduce.study.tune.search.setting import (
    SAME,
    SearchOutcome,
    Setting,
    Tried,
    evaluate,
    keeping,
    reducing_scenario,
    refusal,
    search,
)
from simreduce.topology.switch_groups import SwitchGroup, machine_kinds, switch_groups
from simreduce.training.sharded import DDP

LISTED = 1 << 16
"""Orders up to which all are listed."""
EFFORT = 6_000_000
"""Ops of plans that are simulated before a search settles for what it has."""
_LEAST = 16
"""Orders that are simulated however large their plans are."""
_MESH_OPS = 200_000
"""What a step of a mesh counts for."""
_STARTS = 12
"""Orders drawn at random that a search begins from, besides those that are near at hand."""
_NEAREST = 256
"""Steps from the best order that are looked at, those with the lowest bounds."""
_POOL = 48
"""Orders with low bounds that are simulated."""
_MEAN = 1e-2
"""What the mean over all cuts counts beside the busiest: of equal bounds the fewest bytes cross."""

Nodes: TypeAlias = tuple[int, ...]
Steps: TypeAlias = tuple[Ints, Ints, Ints]
"""Of each step the place whose node moves, the place it swaps with (-1: none), and where to."""
Placed: TypeAlias = Scenario | Meshes
"""What runs on the nodes; of meshes, the first."""
N = TypeVar("N", float, Floats)
P = TypeVar("P", bound=MachineQuestion)


@dataclass(frozen=True)
class Placement(Ending):
    """The best order of nodes that was found, beside the given one and the one sorted by switch.

    Orders hold names. Times are seconds of a step, or of one all-reduce. `orders` are the distinct
    ones there are, None if they were not listed, and `simulated` those whose time is known. No
    order takes less than `bound`. `kept`: the best is worth too little, and the given order stays.
    """

    scenario: Placed
    setting: Setting
    given: tuple[str, ...]
    best: tuple[str, ...]
    sorted: tuple[str, ...]
    given_seconds: float
    best_seconds: float
    sorted_seconds: float
    network: SwitchGroup
    simulated: int
    bound: float
    free: tuple[str, ...] = ()
    orders: int | None = None
    stopped: bool = False

    @property
    def ratio(self) -> float:
        """The time of the best order over that of the given one: the given order runs at that part
        of the speed it could have.
        """
        return self.best_seconds / self.given_seconds

    @property
    def kept(self) -> bool:
        """Whether the given order stays, as the best saves too little."""
        return 1.0 - self.ratio < max(self.scenario.worth, SAME)

    @property
    def advised(self) -> tuple[str, ...]:
        """The order to use. Where both are worth it, and the best is not worth more than the one
        sorted by switch, that is easier to read and to keep.
        """
        if self.kept:
            return self.given
        part = 1.0 - max(self.scenario.worth, SAME)
        most = min(self.best_seconds / part, self.given_seconds * part)
        return self.sorted if self.sorted_seconds < most else self.best

    @property
    def advised_seconds(self) -> float:
        """Its time."""
        times = {self.given: self.given_seconds, self.sorted: self.sorted_seconds}
        return times.get(self.advised, self.best_seconds)

    @property
    def complete(self) -> bool:
        """Whether no order is faster than the best."""
        return self.bound >= self.best_seconds * (1.0 - 1e-6)

    @property
    def workload(self) -> str:
        """The name of what is reduced or trained."""
        if isinstance(self.scenario, Meshes):
            return f"{self.scenario.model.name}, {self.scenario.job.text}"
        return self.scenario.workload.name

    @property
    def batch(self) -> int | None:
        """Samples per GPU of a step, or all sequences of a mesh's; None of an all-reduce."""
        if isinstance(self.scenario, Meshes):
            return self.scenario.job.global_batch
        return self.scenario.step.job.batch if self.scenario.step else None

    @property
    def work_digest(self) -> str:
        """Names the content of what is reduced or trained."""
        asked = self.scenario
        text = json.dumps(
            asked.job if isinstance(asked, Meshes) else (asked.workload.gradients, asked.step),
            default=_plain,
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _plain(value: object) -> object:
    """JSON of what is none."""
    if isinstance(value, frozenset):
        return sorted(value)
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value)}
    return dict(value) if isinstance(value, Mapping) else repr(value)


def place(
    scenario: Placed, free: Sequence[str] = (), *, workers: int = 1, effort: int = EFFORT,
    progress: Progress = lambda _done, _all: None,
) -> Placement:  # fmt: skip
    """The best order of the nodes of a scenario, which may be exchanged for others that are `free`.

    Ctrl-C, or the end of a budget of time, ends the search with what there is. Raises InputError
    where there is nothing to order.
    """
    given = node_names(scenario.setup.layout, scenario.setup.topology)
    candidates = tuple(dict.fromkeys((*given, *free)))
    if len(candidates) < 2:
        raise InputError(f"{scenario.name}: all ranks are on one node, which has no order")
    found = _Placing(_on(scenario, candidates), given, candidates, effort, progress)
    asked: Any = found.scenario
    with keeping(asked, workers, lambda: found.outcome.best < inf) as (do, ended):
        found.run(do)
    return replace(found.answer(scenario), **ended)


def on_nodes(scenario: P, names: Sequence[str]) -> P:
    """The scenario on these nodes, in their order."""
    machine, order = scenario.setup.topology, scenario.setup.layout.order
    whole = layout(machine)
    place = {name: i for i, name in enumerate(node_names(whole, machine))}
    part = whole.on([place[name] for name in names])
    return scenario.but(part=part.with_order(order) if order else part)


def _on(scenario: Placed, names: Sequence[str]) -> Placed:
    """`on_nodes`; InputError where the scenario leaves out some GPUs of a node."""
    found, kept = on_nodes(scenario, names), {*scenario.setup.layout.ranks}
    machine = scenario.setup.topology
    nodes = {machine.nodes[rank].machine for rank in kept}
    if any(r not in kept for r in found.setup.layout.ranks if machine.nodes[r].machine in nodes):
        raise InputError(
            f"{scenario.name}: placement takes whole nodes, and some GPUs are left out"
        )
    return found


@dataclass
class _Placing:
    """A search: `scenario` is on all `free` nodes, of which `given` are those of the job."""

    scenario: Placed
    given: tuple[str, ...]
    free: tuple[str, ...]
    effort: int
    progress: Progress
    outcome: SearchOutcome[Nodes] = field(default_factory=SearchOutcome)
    spent: int = 0
    runs: int = 0
    count: int | None = None

    def __post_init__(self) -> None:
        self.network = switch_groups(self.scenario.setup.topology)
        self.orders = Orders(self.network, self.free)
        self.start: Nodes = tuple(range(len(self.given)))
        self.by_switch = self.orders.by_switch(self.start)
        kinds = machine_kinds(self.scenario.setup.topology)
        one_kind = len({kinds[name] for name in self.free}) == 1
        self.base = _setting(self.scenario)
        # Bounds are of one plan between equal machines, which sharded steps have not.
        plain = isinstance(self.scenario, Scenario) and self.base.sharding is None
        self.bounded = one_kind and plain

    def run(self, do: Any) -> None:
        """Simulate the given order and the one sorted by switch; then search until nothing can be
        better, or the effort is spent.
        """
        for nodes in dict.fromkeys((self.start, self.by_switch)):
            [tried] = self._simulate(do, [nodes])
            self.outcome.seconds[nodes] = tried.seconds
        if self.outcome.seconds[self.start] == inf:
            _check(self.scenario, self.base)
        self.cuts = Cuts(self.orders, self._moved())
        pool = list(islice(self.orders.all(len(self.start)), LISTED + 1))
        self.count = len(pool) if len(pool) <= LISTED else None
        if self.count is None:
            pool = self._pool()
        known = {self.orders.canonical(self.orders.leaves(nodes)) for nodes in self.outcome.seconds}
        longest, mean = self.cuts.seconds(pool)
        rows = zip(longest.tolist(), mean.tolist(), pool, strict=True)
        points = [
            (bound if self.bounded else 0.0, self.orders.nodes(leaves))
            for bound, _, leaves in sorted(rows, key=lambda row: (_value(*row[:2]), row[2]))
            if leaves not in known
        ]
        part = 0.5 if self.count is None else 1.0
        search(
            points, lambda _: None, partial(self._simulate, do), self.outcome, WIDTH,
            lambda: self._is_spent(part), self.progress,
        )  # fmt: skip
        if self.count is None:
            self._climb(do)

    def _simulate(self, do: Any, some: Sequence[Nodes]) -> list[Tried]:
        found: list[Tried] = do(
            partial(_seconds, limit=self.outcome.best),
            [replace(self.base, nodes=nodes) for nodes in some],
        )
        self.runs += len(found)
        self.spent += sum(max(each.ops, self._ops) for each in found)
        return found

    _ops = 0

    def _is_spent(self, part: float = 1.0) -> bool:
        return self.spent > part * self.effort and self.runs >= _LEAST * part

    def _moved(self) -> Any:
        """The bytes between the nodes in the places of the given order."""
        if isinstance(self.scenario, Meshes):
            self._ops = _MESH_OPS
            setup = replace(self.base, nodes=self.start).setup(self.scenario.setup)
            return mesh_bytes(self.scenario, setup)
        scenario = replace(self.base, nodes=self.start).scenario(self.scenario)
        strategy = self.base.reduction
        setup = scenario.setup.running(strategy)
        plan = (
            setup.compile(strategy, scenario.workload)
            if scenario.step is None or self.base.sharding is not None
            else scenario.step.method(self.base.parsed, setup.layout).whole
        )
        self._ops = len(plan)
        return bytes_between(plan, setup.layout)

    def _pool(self) -> list[Leaves]:
        """Orders with low bounds, found by swaps between switches."""
        draw = np.random.default_rng(0)
        filled = sorted(self.orders.members, key=len, reverse=True)
        large = [node for nodes in filled for node in nodes][: len(self.start)]
        starts = [list(self.start), list(self.by_switch), large, list(self.orders.by_switch(large))]
        count = len(self.start)
        starts += [draw.permutation(len(self.free))[:count].tolist() for _ in range(_STARTS)]
        seen: dict[Leaves, float] = {}
        for start in starts:
            self._descend(self.orders.leaves(start), seen)
        best = sorted(seen, key=lambda each: (seen[each], each))
        found = dict.fromkeys(self.orders.canonical(each) for each in best[: 4 * _POOL])
        return list(found)[:_POOL]

    def _descend(self, at: Leaves, seen: dict[Leaves, float]) -> None:
        """Take the step that lowers the bound most while there is one; `seen` keeps what passes."""
        [value] = _value(*self.cuts.seconds([at]))
        seen[at] = value
        while True:
            near = self._near(at)
            if not len(near[0]):
                return
            values = _value(*self.cuts.steps(at, *near))
            best = int(values.argmin())
            if values[best] >= value * (1.0 - SAME):
                return
            at, value = _step(at, near, best), float(values[best])
            seen[at] = value

    def _near(self, at: Leaves) -> Steps:
        """The steps from an order: swaps of two places, and moves to groups with spare nodes."""
        leaves = np.array(at)
        used = np.bincount(leaves, minlength=len(self.orders.members))
        spare = np.flatnonzero([len(m) > n for m, n in zip(self.orders.members, used, strict=True)])
        one, other = np.triu_indices(len(at), 1)
        swaps = leaves[one] != leaves[other]
        one, other = one[swaps], other[swaps]
        moved, to = (each.reshape(-1) for each in np.meshgrid(np.arange(len(at)), spare))
        moves = leaves[moved] != to
        moved, to = moved[moves], to[moves]
        return (
            np.concatenate([one, moved]),
            np.concatenate([other, np.full(len(moved), -1)]),
            np.concatenate([leaves[other], to]),
        )

    def _climb(self, do: Any) -> None:
        """Simulate orders a step from the best one, those with the lowest bounds first."""
        tried = {self.orders.canonical(self.orders.leaves(nodes)) for nodes in self.outcome.seconds}
        while not self._is_spent():
            best = min(self.outcome.seconds, key=self.outcome.seconds.__getitem__)
            at = self.orders.leaves(best)
            near = self._near(at)
            longest, mean = self.cuts.steps(at, *near)
            nearest = [
                number
                for number in np.argsort(_value(longest, mean), kind="stable")[:_NEAREST].tolist()
                if not self.bounded or longest[number] < self.outcome.best
            ]
            steps = dict.fromkeys(self.orders.canonical(_step(at, near, n)) for n in nearest)
            if not (new := [leaves for leaves in steps if leaves not in tried][:WIDTH]):
                return
            tried.update(new)
            some = [self.orders.nodes(leaves) for leaves in new]
            tries = zip(some, self._simulate(do, some), strict=True)
            self.outcome.seconds |= {nodes: each.seconds for nodes, each in tries if each.exact}

    def answer(self, asked: Placed) -> Placement:
        """The best order found, and what is known of the others."""
        seconds = self.outcome.seconds
        least = self.outcome.best * (1.0 + SAME)
        best = min(
            [nodes for nodes, took in seconds.items() if took <= least],
            key=lambda n: (n != self.start, n != self.by_switch, n),
        )
        bound = self.outcome.bound if self.bounded and self.count is not None else 0.0
        return Placement(
            scenario=asked, setting=self.base,
            given=self.given, best=self._names(best), sorted=self._names(self.by_switch),
            given_seconds=seconds[self.start], best_seconds=seconds[best],
            sorted_seconds=seconds.get(self.by_switch, inf),
            network=self.network, simulated=len(seconds), bound=bound,
            free=self.free, orders=self.count,
        )  # fmt: skip

    def _names(self, nodes: Nodes) -> tuple[str, ...]:
        return tuple(self.free[node] for node in nodes)


def _value(longest: N, mean: N) -> N:
    """What orders are compared by before they are simulated."""
    return longest + _MEAN * mean


def _step(at: Leaves, near: Steps, number: int) -> Leaves:
    """The order after a step."""
    one, other, leaf = (int(each[number]) for each in near)
    found = list(at)
    if other >= 0:
        found[other] = found[one]
    found[one] = leaf
    return tuple(found)


def _setting(scenario: Placed) -> Setting:
    """What runs on the nodes: the first strategy that the scenario names, else its framework's
    own.
    """
    if isinstance(scenario, Meshes):
        return Setting("nccl")
    named = scenario.strategies[0].text if scenario.strategies else ""
    step = scenario.step
    if step is not None and step.mode:
        return Setting("", mode=step.mode, device=step.flags.local_parameter_device)
    text = named or default_text(scenario.framework or USUAL, scenario) or "nccl"
    if step is None or DDP in step.methods or step.sharding is None:
        return Setting(text if step is not None or named else "nccl")
    return Setting("nccl", method=step.methods[0], sharding=step.sharding)


def _seconds(scenario: Placed, setting: Setting, limit: float) -> Tried:
    """Seconds of one order of nodes."""
    if isinstance(scenario, Meshes):
        return Tried(mesh_seconds(scenario, setting.setup(scenario.setup)))
    return evaluate(
        scenario if setting.sharding is not None else reducing_scenario(scenario), setting, limit
    )


def _check(scenario: Placed, setting: Setting) -> None:
    """StrategyError that says why the given order has no time."""
    if isinstance(scenario, Meshes):
        raise InputError(f"{scenario.name}: the mesh has no step on these nodes")
    own, strategy = replace(setting, nodes=()).scenario(scenario), setting.parsed

    def plan() -> object:
        return strategy and own.setup.running(strategy).compile(strategy, own.workload)

    raise refusal(setting.label, plan, "has no plan on these nodes, or never finishes")
