"""From a plan on a topology, under a runtime and a calibration, to the arrays that the kernel runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from simreduce.arrays import AnyInts, Bools, Floats, Ints, blocks, ranges, row_starts
from simreduce.engine.calibration import Calibration, Processor
from simreduce.engine.disturbance import CALM, Disturbance
from simreduce.engine.lowering.calls import Calls, jittered, worked
from simreduce.engine.lowering.dependencies import turned_round
from simreduce.engine.lowering.processor import CPU, NO_WORK, Work, work, working_set
from simreduce.engine.lowering.resources import Resources
from simreduce.engine.runtime import IDEAL, Call, Runtime
from simreduce.errors import InputError, did_you_mean
from simreduce.plan import Executor, Kind, Plan
from simreduce.plan.plan import IN_PLACE, NO_STREAM
from simreduce.topology import Folded, Node, Routes, Topology


@dataclass(frozen=True, slots=True)
class Lowered:
    """One plan, ready to run: `call[op]` is its place in `calls`.

    An op waits for its operands, its controls and the op before it on its stream, each counted
    once. AnyInts of ops are 32 bits wide where they fit.
    """

    call: AnyInts
    calls: Calls
    amount: Floats
    waits: AnyInts  # how many ops each one waits for
    successor_start: AnyInts
    successors: AnyInts  # ascending in every row
    lane_names: tuple[str, ...]

    def part(self, plan: Plan, first: int) -> Lowered:
        """What `plan` lowers to with the same working set, whose ops are those from `first` on of
        what this is of. Without jitter, which goes by op.
        """
        mine = slice(first, first + len(plan))
        which, call = np.unique(self.call[mine], return_inverse=True)
        waiting = self._waiting(plan, first)
        return Lowered(
            call.astype(self.call.dtype),
            self.calls.only(which),
            self.amount[mine],
            *waiting,
            self.lane_names,
        )

    def _waiting(self, plan: Plan, first: int) -> tuple[AnyInts, AnyInts, AnyInts]:
        """Who waits for whom in `plan`, as in `part`. On streams, others beside it would be waited
        for.
        """
        if (plan.stream != NO_STREAM).any():
            return turned_round(plan)
        start = self.successor_start[first : first + len(plan) + 1]
        successors = self.successors[start[0] : start[-1]] - np.int32(first)
        return self.waits[first : first + len(plan)], start - start[0], successors

    @property
    def predecessor_start(self) -> AnyInts:
        """Where the rows of what ops wait for would begin."""
        return row_starts(self.waits)

    @property
    def overhead(self) -> Floats:
        """Of every op."""
        return self.calls.overhead[self.call]

    @property
    def work(self) -> Floats:
        """Of every op."""
        return self.calls.work[self.call]

    @property
    def latency(self) -> Floats:
        """Of every op."""
        return self.calls.latency[self.call]

    @property
    def holds(self) -> Bools:
        """Of every op."""
        return self.calls.holds[self.call]

    @property
    def cap(self) -> Floats:
        """Of every op."""
        return self.calls.cap[self.call]

    @property
    def lane_start(self) -> Ints:
        """Where the rows of `lanes` begin, by op."""
        return row_starts(np.diff(self.calls.lane_start)[self.call])

    @property
    def lanes(self) -> Ints:
        """By op."""
        return self.calls.lanes[self._rows(self.calls.lane_start)]

    @property
    def is_pipe(self) -> Bools:
        """Of every entry of `lanes`."""
        calls = self.calls
        count = np.diff(calls.lane_start)
        within = np.arange(len(calls.lanes)) - np.repeat(calls.lane_start[:-1], count)
        return (within >= np.repeat(calls.early, count))[self._rows(calls.lane_start)]

    @property
    def use_start(self) -> Ints:
        """Where the rows of `uses` and `weight` begin, by op."""
        return row_starts(np.diff(self.calls.use_start)[self.call])

    @property
    def uses(self) -> Ints:
        """By op."""
        return self.calls.uses[self._rows(self.calls.use_start)]

    @property
    def weight(self) -> Floats:
        """By op."""
        return self.calls.weight[self._rows(self.calls.use_start)]

    def _rows(self, start: Ints) -> Ints:
        return ranges(start[self.call], np.diff(start)[self.call])


def lower(
    plan: Plan, topology: Topology | Folded, runtime: Runtime, calibration: Calibration, resources: Resources,
    lanes: dict[str, int] | None = None, disturbance: Disturbance = CALM, held: Mapping[str, float] | None = None,
) -> Lowered:  # fmt: skip
    """Costs, lanes and resources of every op. InputError if the plan names devices that the
    topology lacks, or is folded and the topology is not, or the other way round.

    `lanes` numbers the lanes by name; give the same dict again to number those of several plans
    alike. `held` is the `working_set` of the step that the plan is a part of; None: the plan is all
    of it.
    """
    lanes = {} if lanes is None else lanes
    site = _site(plan, topology)
    call, heads = _heads(plan, runtime)
    processor = calibration.cpu
    cores = _work(plan, heads, site, runtime, calibration, disturbance, held)
    use_start, uses, weight, delay, holds = _uses(heads, site, runtime, resources, cores)
    lane_start, early, lane_ids = _lanes(heads, site, runtime, cores, lanes)
    overhead = _overhead(heads, plan.devices, runtime, calibration, disturbance)
    if processor:
        overhead[cores.calls] = cores.turns(processor)
        delay[cores.calls] += cores.rests(processor)
        holds[cores.calls] = False
    calls = Calls(
        overhead=overhead,
        work=np.zeros_like(delay),
        latency=delay,
        holds=holds,
        cap=np.full_like(delay, np.inf),
        lane_start=lane_start,
        early=early,
        lanes=lane_ids,
        use_start=use_start,
        uses=uses,
        weight=weight,
    )
    waits, successor_start, successors = turned_round(plan)
    amount = _amount(plan, call, np.diff(use_start) > 0)
    if processor:
        call, calls, amount = worked(
            call,
            amount,
            calls,
            cores,
            resources.moving.values(),
            _unit(processor, resources),
            disturbance,
        )
    if disturbance.jitter:
        call, calls = jittered(call, calls, disturbance)
    return Lowered(call, calls, amount, waits, successor_start, successors, tuple(lanes))


def occupying(lanes: Ints, seconds: float, lane_names: tuple[str, ...]) -> Lowered:
    """One op that moves nothing and holds `lanes` for so long."""
    none, nothing = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    count = np.array([len(lanes)])
    calls = Calls(
        overhead=np.array([seconds]), work=np.zeros(1), latency=np.zeros(1), holds=np.ones(1, dtype=np.bool_), cap=np.array([np.inf]),
        lane_start=row_starts(count), early=count, lanes=lanes, use_start=row_starts(nothing), uses=none, weight=np.zeros(0),
    )  # fmt: skip
    return Lowered(nothing, calls, np.zeros(1), nothing, row_starts(nothing), none, lane_names)


def _amount(plan: Plan, call: AnyInts, moves: Bools) -> Floats:
    """The bytes that each op moves, if its call moves any."""
    amount = np.empty(len(plan))
    for some in blocks(len(plan)):
        np.multiply(plan.sizes(some), moves[call[some]], out=amount[some])
    return amount


def check_routes(plan: Plan, topology: Topology | Folded) -> None:
    """TopologyError if a transfer of the plan has no way through the topology."""
    site = _site(plan, topology)
    _, heads = _heads(plan, IDEAL)
    copies = heads.kind == Kind.COPY
    site.topology.router.routes(site.place[heads.source[copies]], site.place[heads.target[copies]])


class _Site(NamedTuple):
    """Where a plan runs. By device of the plan, and then by device of another machine if it is
    folded: its place in the topology, and the node whose name its lanes bear. `home` is the link
    that stands for each link, None for itself.
    """

    topology: Topology
    place: Ints
    nodes: tuple[Node, ...]
    home: Ints | None


def _site(plan: Plan, topology: Topology | Folded) -> _Site:
    folded = topology.machines if isinstance(topology, Folded) else 1
    if folded != plan.machines:
        raise InputError(
            f"{topology.name}: the plan is that of {_machines(plan.machines)}, and the topology {_machines(folded)}"
        )
    graph = topology.pair if isinstance(topology, Folded) else topology
    missing = [d for d in plan.devices if d not in graph.nodes]
    if missing:
        raise InputError(
            [
                f"{topology.name}: the plan needs a device {d!r}{did_you_mean(d, graph.nodes)}"
                for d in missing
            ]
        )
    names, nodes, home = list(plan.devices), [graph.nodes[d] for d in plan.devices], None
    if isinstance(topology, Folded):
        twins = [topology.twin[name] for name in names]
        nodes += [replace(graph.nodes[t], name=name) for t, name in zip(twins, names, strict=True)]
        names += twins
        home = np.array(topology.home, dtype=np.int64)
    place = np.array([graph.router.index[name] for name in names], dtype=np.int64)
    return _Site(graph, place, tuple(nodes), home)


def _machines(count: int) -> str:
    return (
        f"one of {count} equal machines (folded)"
        if count > 1
        else "all devices, none of them folded"
    )


class _Heads(NamedTuple):
    """By call, of which the first is that of ops that cost nothing: what tells it from others.

    `source` and `target` are devices of the plan, or past them those of another machine; `channel`
    is -1 without a stream, `passes` is how many times its own size an op moves: a sum of n values
    reads n and writes one, a join reads and writes every byte once. `away` is how many machines on
    the target is, if the machines are folded and something may queue for it.
    """

    executor: AnyInts
    kind: AnyInts
    source: AnyInts
    target: AnyInts
    channel: AnyInts
    passes: AnyInts
    away: AnyInts


_ONE: Ints = np.array([-1], dtype=np.int64)
"""The same for all ops."""
_NOTHING = _Heads(
    *np.array([[Executor.TF], [Kind.INPUT], [0], [0], [-1], [0], [0]], dtype=np.int64)
)


def _heads(plan: Plan, runtime: Runtime) -> tuple[AnyInts, _Heads]:
    """The call of every op, and the calls in ascending order."""
    queues = runtime.queues
    call = np.zeros(len(plan), dtype=np.int32)
    if queues or runtime.local or runtime.dispatch:
        ops = np.flatnonzero((plan.kind != Kind.CONCAT) | (plan.arg != IN_PLACE)).astype(np.int32)
        source = plan.source[ops]
    else:
        ops = np.flatnonzero(plan.kind == Kind.COPY).astype(np.int32)
        source = plan.device[plan.operands[plan.operand_start[ops]]]
    if not len(ops):
        return call, _NOTHING
    away = _away(plan, ops)
    heads = _Heads(
        executor=plan.executor[ops],
        kind=plan.kind[ops],
        source=source,
        target=plan.device[ops] + len(plan.devices) * (away > 0).astype(np.int32),
        channel=np.where(plan.stream == NO_STREAM, -1, plan.stream // len(plan.devices))[ops]
        if queues
        else _ONE,
        passes=_passes(plan)[ops] if runtime.local else _ONE,
        away=away if queues else _ONE,
    )
    which, distinct = _distinct(heads)
    call[ops] = which + 1
    return call, _Heads(*(np.concatenate(pair) for pair in zip(_NOTHING, distinct, strict=True)))


def _away(plan: Plan, ops: AnyInts) -> AnyInts:
    """How many machines on the operand of each op is, if it is a copy. They are taken for copies to
    another machine, which are as many and as large, so that the way they take is the sender's way
    out and then the receiver's way in.
    """
    return np.where(plan.kind[ops] == Kind.COPY, plan.arg[ops], 0) if plan.machines > 1 else _ONE


def _passes(plan: Plan) -> Ints:
    """See `_Heads`."""
    return np.where(
        plan.kind == Kind.COPY, 1, np.where(plan.kind == Kind.CONCAT, 2, plan.operand_count + 1)
    )


def _distinct(rows: _Heads) -> tuple[AnyInts, _Heads]:
    """The distinct rows in ascending order, and the place among them of each; a column may be of
    one number.
    """
    low = [int(column.min()) for column in rows]
    size = [int(column.max()) - least + 1 for column, least in zip(rows, low, strict=True)]
    key = np.zeros(max(len(column) for column in rows), dtype=np.int64)
    for column, least, many in zip(rows, low, size, strict=True):
        if many > 1:
            key *= many
            key += column
            key -= least
    which: AnyInts
    if math.prod(size) > 4 * len(key) + (1 << 20):
        distinct, which = np.unique(key, return_inverse=True)
    else:
        which = np.zeros(math.prod(size), dtype=np.int32)
        which[key] = 1
        distinct = np.flatnonzero(which)
        which[distinct] = np.arange(len(distinct), dtype=np.int32)
        which = which[key]
    columns = []
    for least, many in zip(low[::-1], size[::-1], strict=True):
        columns.append(distinct % many + least)
        distinct = distinct // many
    return which, _Heads(*columns[::-1])


def _work(
    plan: Plan,
    heads: _Heads,
    site: _Site,
    runtime: Runtime,
    calibration: Calibration,
    disturbance: Disturbance,
    held: Mapping[str, float] | None,
) -> Work:
    """What calls ask of the cores of CPU devices."""
    if calibration.cpu is None or not runtime.dispatch:
        return NO_WORK
    if held is None:
        held = working_set(plan, site.nodes[: len(plan.devices)], calibration.cpu)
    source, target = (
        [site.nodes[i] for i in column.tolist()] for column in (heads.source, heads.target)
    )
    passes = heads.passes if runtime.local else np.zeros(len(heads.kind), dtype=np.int64)
    return work(
        heads.kind, heads.executor, passes, source, target, calibration.cpu, calibration.dispatch, disturbance.slow,
        held,
    )  # fmt: skip


def _unit(processor: Processor, resources: Resources) -> float:
    """What a core copies, in bytes/s, or else what it does fastest; where nothing is known of that,
    what the machine's fastest part does.
    """
    rates = processor.rates
    return rates.get("copy") or max(
        rates.values(), default=max(filter(math.isfinite, resources.capacity))
    )


def _overhead(
    heads: _Heads,
    devices: Sequence[str],
    runtime: Runtime,
    calibration: Calibration,
    disturbance: Disturbance,
) -> Floats:
    """The dispatch cost of calls that are dispatched, by their source: NCCL's steps run inside one
    kernel.
    """
    cost = np.array([calibration.dispatch.get(kind.name.lower(), 0.0) for kind in Kind])[heads.kind]
    # That variables are read and kept costs CPU devices only (`processor`).
    cost[(heads.executor != Executor.TF) | np.isin(heads.kind, (Kind.INPUT, Kind.OUTPUT))] = 0.0
    if disturbance.slow:
        cost *= np.array([disturbance.slow.get(name, 1.0) for name in devices])[heads.source]
    return cost if runtime.dispatch else np.zeros_like(cost)


def _uses(
    heads: _Heads, site: _Site, runtime: Runtime, resources: Resources, cores: Work
) -> tuple[Ints, Ints, Floats, Floats, Bools]:
    """Rows of resources and their weights; the latency of the way, and whether the lanes are held
    on it.
    """
    is_copy = heads.kind == Kind.COPY
    start, found, holding, shares = _ways(
        _Heads(*(column[is_copy] for column in heads)), site, runtime
    )
    delay, holds = np.zeros(len(is_copy)), np.ones(len(is_copy), dtype=np.bool_)
    hops = np.diff(start)
    rows = np.repeat(np.arange(len(hops), dtype=np.int32), hops)
    # Summed from left to right: the bits do not depend on how many calls there are.
    waits = np.array(resources.latency)[found]
    delay[is_copy] = np.bincount(
        rows, waits if shares is None else waits * shares, minlength=len(hops)
    )
    holds[is_copy] = holding
    hops, links, often = (
        (hops, found, shares) if shares is not None else _at_home(hops, found, site)
    )
    memory = np.array([resources.memory.get(node.name, -1) for node in site.nodes], dtype=np.int64)[
        heads.target
    ]
    works = (
        (memory >= 0) & runtime.local & ~np.isin(heads.kind, (Kind.INPUT, Kind.OUTPUT, Kind.COPY))
    )
    count = works.astype(np.int64)
    count[is_copy] = hops
    rated, through = cores.per_byte > 0.0, cores.through > 0.0
    working = rated | (cores.at_once > 0.0)
    moving = rated & bool(resources.moving)
    for has in (working, moving, through):
        count[cores.calls[has]] += 1
    use_start = row_starts(count)
    uses, weight = np.empty(use_start[-1], dtype=np.int32), np.ones(use_start[-1])
    on_links = np.ones(len(uses), dtype=np.bool_)
    at_memory = use_start[:-1][works]
    uses[at_memory], weight[at_memory], on_links[at_memory] = (
        memory[works],
        heads.passes[works],
        False,
    )
    # The cores come last, before them those that move bytes, and what is shared of memory before
    # these. `worked` says how much of cores.
    last = use_start[1:][cores.calls] - 1
    for has, at, whose, each in (
        (working, last, resources.cores, np.ones(len(working))),
        (moving, last - working, resources.moving, np.ones(len(moving))),
        (through, last - working - moving, resources.shared_memory, cores.through),
    ):
        uses[at[has]] = [whose[owner] for owner, one in zip(cores.owner, has, strict=True) if one]
        weight[at[has]], on_links[at[has]] = each[has], False
    uses[on_links], weight[on_links] = links, often
    return use_start, uses, weight, delay, holds


def _at_home(hops: Ints, links: AnyInts, site: _Site) -> tuple[Ints, AnyInts, Floats | float]:
    """Rows of links, each in the place of those that it stands for, and how often: a link that a
    transfer takes on its way out and the one from elsewhere on its way in carries both.
    """
    if site.home is None:
        return hops, links, 1.0
    row = np.repeat(np.arange(len(hops)), hops)
    key, often = np.unique(row * len(site.home) + site.home[links], return_counts=True)
    count = np.bincount(key // len(site.home), minlength=len(hops))
    return count.astype(np.int64), key % len(site.home), often.astype(np.float64)


def _ways(heads: _Heads, site: _Site, runtime: Runtime) -> Routes:
    """The links of copies, and whether they hold their lanes on the way: through the hosts of both
    machines if they are staged, as the route leads if not.
    """
    router = site.topology.router
    source, target = site.place[heads.source], site.place[heads.target]
    machines, host = _hosts(site.topology)
    crosses = (machines[source] != machines[target]) & (heads.executor == Executor.TF)
    if not (runtime.staged and crosses.any()):
        return router.routes(source, target)
    # Where there is no host to stop at, or the copy begins or ends there, a leg is empty.
    out = np.where(crosses & (host[source] >= 0), host[source], source)
    into = np.where(crosses & (host[target] >= 0), host[target], out)
    legs = [router.routes(a, b) for a, b in ((source, out), (out, into), (into, target))]
    hops = np.stack([np.diff(leg.start) for leg in legs])
    start = row_starts(hops.sum(axis=0))
    links, shares = np.empty(start[-1], dtype=np.int32), np.ones(start[-1])
    at = start[:-1]
    for leg, count in zip(legs, hops, strict=True):
        entry = ranges(at, count)
        links[entry] = leg.links
        shares[entry] = 1.0 if leg.shares is None else leg.shares
        at = at + count
    staged = np.count_nonzero(hops, axis=0) > 1
    holding = staged | np.all([leg.holds_lane for leg in legs], axis=0)
    whole = all(leg.shares is None for leg in legs)
    return Routes(start, links, holding, None if whole else shares)


def _hosts(topology: Topology) -> tuple[Ints, Ints]:
    """Of every node: the number of its machine, and the place of that machine's first host, -1 if
    it has none.
    """
    first = {
        topology.nodes[name].machine: topology.router.index[name]
        for name in reversed(topology.hosts)
    }
    number: dict[str, int] = {}
    machines = [number.setdefault(node.machine, len(number)) for node in topology.nodes.values()]
    hosts = [first.get(node.machine, -1) for node in topology.nodes.values()]
    return np.array(machines, dtype=np.int64), np.array(hosts, dtype=np.int64)


def _lanes(
    heads: _Heads, site: _Site, runtime: Runtime, cores: Work, numbers: dict[str, int]
) -> tuple[Ints, Ints, Ints]:
    """Rows of lanes and then pipes, whose names are numbered as they come, and how many are lanes."""
    owner = {
        call: (f"{name} {CPU}",)
        for call, name, s in zip(
            cores.calls.tolist(), cores.owner, cores.in_turn.tolist(), strict=True
        )
        if s
    }
    if not runtime.queues:
        none = np.zeros(len(heads.kind) + 1, dtype=np.int64)
        return none, none[1:], none[:0]
    nodes = site.nodes
    rows: list[list[int]] = [[]]
    early = [0]
    rows_of_heads = np.stack(heads, axis=1)[1:].tolist()
    for number, (executor, kind, source, target, channel, _, away) in enumerate(
        rows_of_heads, start=1
    ):
        here, there = nodes[source], nodes[target]
        if away > 1 and here.machine != there.machine:
            there = replace(there, machine=f"{here.machine}+{away}")
        call = Call(Executor(executor), Kind(kind), here, there, channel)
        lanes = (*runtime.lanes(call), *owner.get(number, ()))
        rows.append(
            [numbers.setdefault(name, len(numbers)) for name in (*lanes, *runtime.pipes(call))]
        )
        early.append(len(lanes))
    return (
        row_starts(np.array([len(row) for row in rows])),
        np.array(early, dtype=np.int64),
        np.array([lane for row in rows for lane in row], dtype=np.int64),
    )
