"""Simulates the step of a mesh: writes its execution, and runs it.

Writes the step of a mesh as an execution: what one rank of each pipeline stage does.

All replicas and all tensor, context and expert parallel ranks of a stage do the same at the same
time, so one of them stands for all; `costs` simulates what all of them move. Calls of these axes
are within a pass, whose end they delay alike each time, so a pass is one node. Gradients are
reduced, and parameters gathered, block by block where that overlaps: there the last backward, or
the first forward pass of a stage is written block by block. For other programs, every rank is
written, with nodes of all calls (`write_ranks`).

A rank's passes run one after another on its lane `compute`. Micro batches go to the next stage and
back on a lane for each direction; receives are posted as early as they can be, and unless `p2p`
overlaps a rank waits until what it sends has arrived.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

import simpy

from simreduce.computing.workers import as_piece
from simreduce.training.calls import CallCost
from simreduce.training.executions import (
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    UPDATE,
    Execution,
    ExecutionNode,
    NodeList,
)
from simreduce.training.executor import Ran, Slows, run_nodes
from simreduce.training.mesh import (
    DISTRIBUTED,
    EP,
    FSDP,
    GRAD_REDUCE,
    NCCL,
    P2P,
    PARAM_GATHER,
    PP,
    REPLICATED,
    TP,
    MeshJob,
)
from simreduce.training.mesh.held import (
    Parameters,
    added,
    block_parameters,
    held_by_stages,
    rank_parameters,
    stage_parameters,
    update_seconds,
)
from simreduce.training.mesh.parts import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    DISPATCH,
    REDUCE_SCATTER,
    RING,
    WIDTH,
    MeshCall,
)
from simreduce.training.mesh.passes import (
    COMPUTE as KERNELS,
    ENDS,
    EXPERT_REPLICAS,
    HOST,
    REPLICAS,
    SAME_EXPERT_SHARDS,
    SAME_SHARDS,
    Costs,
    MeshPasses,
    Pass,
    phase_of,
)
from simreduce.training.mesh.pipeline import (
    BACKWARD,
    FORWARD,
    IN_A_V,
    ONE_STAGE,
    WEIGHTS,
    Action,
    Schedule,
    load_schedule,
)
from simreduce.training.passes import ROUNDING, spans_of
from simreduce.training.path import STAGES, run_path
from simreduce.training.step import DATA, SLOWED, Bucket, StepResult

LANE = "compute"
MOST_NODES = 2_000_000
"""Of all ranks; of larger steps those of the first pipeline are written."""
Spent = dict[int, Mapping[str, float]]
"""What nodes do and wait for by axis, by their identity."""
BUCKET, EACH = 40_000_000, 1_000_000
"""Parameters of a bucket: as many, or `EACH` for every replica if that is more, as in Megatron-LM's
`distributed_data_parallel.py`, so that rings of many ranks keep large chunks.
"""


@dataclass(kw_only=True)
class _Rank(NodeList):
    """The nodes of a rank: what was `sent` that its kernels wait for, and of each peer what is
    `coming` from it, in its order, and what is `there` and not used yet.
    """

    rank: int
    sent: list[int] = field(default_factory=list)
    coming: dict[int, Iterator[Action]] = field(default_factory=dict)
    there: dict[int, int] = field(default_factory=dict)

    def add(self, lane: str, after: Iterable[int], **facts: Any) -> int:
        """Add a node after others and after the last of its lane; kernels wait for what is sent."""
        if lane == LANE:
            after, self.sent = [*self.sent, *after], []
        return super().add(lane, after, **facts)


def write_step(job: MeshJob, schedule: Schedule, passes: MeshPasses, spent: Spent) -> Execution:
    """The execution of a step: nodes of the first rank of every stage's group.

    `spent` gets what the passes of each node do and wait for, by its identity.
    """
    writer = _Writer(job, schedule, passes, spent, job.mesh.groups(PP)[0], apart=False)
    return _execution(job, schedule, writer.nodes())


def write_ranks(job: MeshJob, passes: MeshPasses, most: int = MOST_NODES) -> Execution:
    """The execution of every rank, with nodes of all that they move.

    If these are more than `most`, it has the ranks of the first pipeline, as a note of it says.
    Passes of two micro batches at once stay one node each.
    """
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    first, *rows = job.mesh.groups(PP)
    nodes = _Writer(job, schedule, passes, {}, first, apart=True).nodes()
    whole = sum(map(len, nodes.values())) * (1 + len(rows))
    if whole > most:
        note = f"of {job.mesh.ranks:,} ranks, those of the first pipeline: all have {whole:,} nodes"
        return replace(_execution(job, schedule, nodes), notes=(note,))
    for row in rows:
        nodes |= _Writer(job, schedule, passes, {}, row, apart=True).nodes()
    return _execution(job, schedule, dict(sorted(nodes.items())))


def _execution(
    job: MeshJob, schedule: Schedule, nodes: Mapping[int, tuple[ExecutionNode, ...]]
) -> Execution:
    return Execution(f"{schedule.name} on {job.mesh.text}", nodes, job.mesh.ranks)


class _Writer:
    """Writes the ranks of a pipeline, a `row`; with nodes of all calls if they are `apart`."""

    def __init__(
        self, job: MeshJob, schedule: Schedule, passes: MeshPasses, spent: Spent,
        row: Sequence[int], *, apart: bool,
    ) -> None:  # fmt: skip
        self.job, self.schedule, self.passes, self.spent = job, schedule, passes, spent
        self.home, self.row, self.apart = schedule.home, row, apart
        self._group = cache(passes.costs.group_of)
        self.sent = passes.parts.sent
        self.bucket = max(BUCKET, EACH * job.mesh.dp * job.mesh.cp)
        self.words = -(-job.shape.embedding.split // job.mesh.tp)  # of the embedding, on a rank

    def nodes(self) -> dict[int, tuple[ExecutionNode, ...]]:
        """The nodes of every rank of the pipeline."""
        written = [self.write(place) for place in range(self.job.mesh.pp)]
        return {rank.rank: tuple(rank.nodes) for rank in written}

    def write(self, place: int) -> _Rank:
        """The nodes of the rank of a stage."""
        rank, job = _Rank(rank=self.row[place]), self.job
        gathered = self._gather_first(rank, place)
        passes, reduced = self.schedule.rows[place], list[int]()
        backward = {p.stage: i for i, a in enumerate(passes) for p in a.parts if p.kind != FORWARD}
        ends = {i: stage for stage, i in backward.items()}
        for i, action in enumerate(passes):
            after = [node for part in action.parts for node in self._receive(rank, part, place)]
            if job.optimizer == FSDP:
                reduced += self._sharded_pass(rank, action, after)
            elif i in ends and GRAD_REDUCE in job.overlap and not action.beside:
                reduced += self._last_pass(rank, action, after)
            else:
                first = action.kind == FORWARD and not action.beside
                self._pass(rank, action, after, gathered.pop(action.stage, ()) if first else ())
                if i in ends and GRAD_REDUCE in job.overlap:  # two passes at once
                    reduced += self._reduce(
                        rank, stage_parameters(job, ends[i]), [rank.last[LANE]], "all"
                    )
            for part in action.parts:
                self._send(rank, part, place)
        self._end(rank, place, reduced)
        return rank

    def _pass(
        self, rank: _Rank, action: Action, after: Sequence[int], gathers: Sequence[Sequence[int]]
    ) -> None:
        """A pass: one node, or its parts, each when the nodes that gather its parameters are done,
        if any.
        """
        if action.beside or not (self.apart or gathers):
            self._compute(rank, str(action), self.passes.of(action), after, action.kind)
            return
        for i, found in enumerate(self.passes.layers(action.stage, action.kind)):
            waits = [*(after if not i else ()), *(gathers[i] if gathers else ())]
            self._compute(rank, f"{action}.{i}", found, waits, action.kind)

    def _compute(
        self, rank: _Rank, name: str, found: Pass, after: Sequence[int], kind: str
    ) -> None:
        """What a part, or a whole pass, computes; apart from its calls if these are written.

        The first call comes before it and the others after it, but for those that hide behind it.
        """
        calls = found.calls if self.apart else ()
        shown = [call for call in calls if not call.behind]
        for call in shown[:1]:
            self._call(rank, call, name, after)
        start = [*after, *([rank.last[LANE]] if LANE in rank.last else [])]
        seconds = sum(found.by.get(key, 0.0) for key in (KERNELS, HOST)) if calls else found.seconds
        facts = {"name": name, "kind": COMPUTE, "seconds": seconds, "phase": phase_of(kind)}
        node = rank.add(LANE, after, **facts)
        self.spent[id(rank.nodes[node])] = found.by
        for call in calls:
            if call.behind:
                rank.sent += self._beside(rank, call, name, start)
        for call in shown[1:]:
            self._call(rank, call, name)

    def _call(self, rank: _Rank, call: MeshCall, name: str, after: Sequence[int] = ()) -> None:
        """A call between kernels."""
        facts = self._facts(rank, call, name)
        for _ in range(call.times):
            rank.add(LANE, after, **facts)

    def _beside(self, rank: _Rank, call: MeshCall, name: str, after: Sequence[int]) -> list[int]:
        """A call beside kernels; round a ring, each sends to the next and hears from another."""
        facts, found = self._facts(rank, call, name), list[int]()
        for _ in range(call.times):
            if call.collective != RING:
                found = [rank.add(call.axis, after, **facts)]
                continue
            group = self._group(call.axis, rank.rank)
            place = group.index(rank.rank)
            ends = (SEND, group[(place + 1) % len(group)]), (RECEIVE, group[place - 1])
            found = [
                rank.add(f"{call.axis} {kind}", after, name=facts["name"], nbytes=call.nbytes,
                         kind=kind, peer=peer)
                for kind, peer in ends
            ]  # fmt: skip
        return found

    def _facts(self, rank: _Rank, call: MeshCall, name: str) -> dict[str, Any]:
        kind = ALL_TO_ALL if call.collective == DISPATCH else call.collective
        return {
            "name": f"{kind} {name}", "kind": COLLECTIVE, "collective": kind,
            "nbytes": call.nbytes, "group": self._group(call.axis, rank.rank),
        }  # fmt: skip

    def _last_pass(self, rank: _Rank, action: Action, after: list[int]) -> list[int]:
        """The last backward pass of a stage, block by block, each reduced when it is done."""
        layers, reduced = self.passes.layers(action.stage, action.kind), list[int]()
        for parts, held in self._buckets(self._by_part(action.stage)[::-1]):
            for i in parts:
                name = f"{action}.{i}"
                self._compute(rank, name, layers[i], after if not i else (), action.kind)
            reduced += self._reduce(rank, held, [rank.last[LANE]], name)
        return reduced

    def _buckets(self, sizes: Sequence[Parameters]) -> Iterator[tuple[range, Parameters]]:
        """The parts of each bucket of parameters, and what it holds."""
        first, waiting = 0, Parameters()
        for i, size in enumerate(sizes, 1):
            waiting = added((waiting, size))
            if waiting.all >= self.bucket or i == len(sizes):
                yield range(first, i), waiting
                first, waiting = i, Parameters()

    def _sharded_pass(self, rank: _Rank, action: Action, after: list[int]) -> list[int]:
        """A pass whose units are gathered one ahead of what computes, and backward reduced.

        A unit is a block, the embedding or the output. As PyTorch's `backward_prefetch` has it, the
        next one is gathered before gradients are reduced; two are there at once.
        """
        layers = self.passes.layers(action.stage, action.kind)
        sizes = self._by_part(action.stage)
        first = 1 if action.stage == 0 else 0
        cuts = [0, *range(first, first + 2 * len(self.job.blocks(action.stage)) + 1, 2), len(sizes)]
        units = [range(a, b) for a, b in pairwise(cuts) if a < b]
        if action.kind != FORWARD:
            sizes = sizes[::-1]
            units = [range(len(sizes) - u.stop, len(sizes) - u.start) for u in reversed(units)]
        held = [added(sizes[i] for i in unit) for unit in units]
        reduced, done, gathered = list[int](), list[int](), dict[int, list[int]]()
        for number, unit in enumerate(units):
            name = f"{action}.{number}"
            for ahead in (number, number + 1):
                if ahead < len(units) and ahead not in gathered:
                    gathered[ahead] = self._gather(rank, held[ahead], name, done[-1:])
            for i in unit:
                waits = [*(after if not number else ()), *gathered[number]]
                self._compute(rank, name, layers[i], waits, action.kind)
            done.append(rank.last[LANE])
            if action.kind != FORWARD:
                reduced += self._reduce(rank, held[number], [done[-1]], name)
        return reduced

    def _by_part(self, stage: int) -> list[Parameters]:
        """The parameters of each part of a stage, in the order of the forward pass."""
        job = self.job
        found: list[Parameters] = []
        for block in job.blocks(stage):  # attention, then the rest
            plain, experts = block_parameters(job, block)
            found += [Parameters(plain - plain // 2), Parameters(plain // 2, experts)]
        ends = stage_parameters(job, stage).plain - sum(each.plain for each in found)
        first, last = stage == 0, stage == len(job.split) - 1
        words = self.words if first and last else ends * first
        return [
            *[Parameters(words)] * first, *found, *[Parameters(ends - words)] * last,
        ]  # fmt: skip

    def _reduce(self, rank: _Rank, held: Parameters, after: Sequence[int], name: str) -> list[int]:
        """The reductions of gradients, of those that are no experts' first."""
        kind = ALL_REDUCE if self.job.optimizer == REPLICATED else REDUCE_SCATTER
        found = list[int]()
        for axis, count, ways in self._shared(rank, held):
            done, nbytes = after, count * self.job.reduced
            if ways > 1:
                done = [self._collective(rank, f"{kind} {name}", axis, kind, nbytes, after)]
            if self.job.mesh.copies > 1:  # of hybrid shards: the copies of a rank's own
                copies = SAME_SHARDS if axis == REPLICAS else SAME_EXPERT_SHARDS
                what = f"{ALL_REDUCE} {name}", copies, ALL_REDUCE, -(-nbytes // ways)
                done = [self._collective(rank, *what, done)]
            found += done if done is not after else ()
        return found

    def _shared(self, rank: _Rank, held: Parameters) -> Iterator[tuple[str, int, int]]:
        """The parameters of a rank: the axis of their replicas, and how many these are."""
        for axis, count in ((REPLICAS, held.plain), (EXPERT_REPLICAS, held.experts)):
            if count:
                yield axis, count, len(self._group(axis, rank.rank))

    def _gather(
        self, rank: _Rank, held: Parameters, name: str, after: Sequence[int] = ()
    ) -> list[int]:
        """The all-gathers of parameters that replicas share."""
        return [
            self._collective(
                rank, f"gather {name}", axis, ALL_GATHER, -(-count * WIDTH // ways), after
            )
            for axis, count, ways in self._shared(rank, held)
            if ways > 1
        ]

    def _collective(
        self, rank: _Rank, name: str, axis: str, kind: str, nbytes: int, after: Sequence[int] = (),
        group: tuple[int, ...] = (),
    ) -> int:  # fmt: skip
        return rank.add(
            axis, after, name=name, kind=COLLECTIVE, collective=kind,
            nbytes=nbytes, group=group or self._group(axis, rank.rank),
        )  # fmt: skip

    def _gather_first(self, rank: _Rank, place: int) -> dict[int, list[list[int]]]:
        """Parameters that the update of the step before left on other replicas, by stage and part:
        the nodes that gather its bucket.
        """
        job = self.job
        if job.optimizer != DISTRIBUTED or PARAM_GATHER not in job.overlap:
            return {}
        found: dict[int, list[list[int]]] = {}
        for stage in sorted(s for s, home in self.home.items() if home == place):
            for parts, held in self._buckets(self._by_part(stage)):
                bucket = self._gather(rank, held, f"{stage}.{parts[-1]}")
                found.setdefault(stage, []).extend([bucket] * len(parts))
        return {stage: rows for stage, rows in found.items() if any(rows)}

    def _transfer(
        self, rank: _Rank, kind: str, part: Action, peer: int, after: Sequence[int] = ()
    ) -> int:
        """A send or a receive of what a pass gives to another rank. Those of one stage and way are
        in the order of micro batches.
        """
        way = "forward" if part.kind == FORWARD else "backward"
        return rank.add(
            f"{kind} of stage {part.stage} {way}", after, name=f"{kind} of {part}", kind=kind,
            peer=self.row[peer], nbytes=self.sent, tag=self._tag(part.stage, part.kind, part.micro),
        )  # fmt: skip

    def _tag(self, stage: int, kind: str, micro: int) -> int:
        return ((kind != FORWARD) * self.schedule.stages + stage) * self.schedule.micros + micro

    def _receive(self, rank: _Rank, part: Action, place: int) -> Iterable[int]:
        """What a pass needs from another rank, if anything."""
        peer = self._other(part, place, -1)
        if peer is None:
            return ()
        source = part.stage + (-1 if part.kind == FORWARD else 1)
        needed = self._tag(source, part.kind, part.micro)
        coming = rank.coming.setdefault(peer, self._sends(peer, place))
        while needed not in rank.there:
            sent = next(coming)
            received = self._transfer(rank, RECEIVE, sent, peer)
            rank.there[self._tag(sent.stage, sent.kind, sent.micro)] = received
        return (rank.there.pop(needed),)

    def _sends(self, place: int, peer: int) -> Iterator[Action]:
        """The passes of a rank whose results go to a peer, in the order in which they do."""
        parts = (part for action in self.schedule.rows[place] for part in action.parts)
        return (part for part in parts if self._other(part, place, 1) == peer)

    def _other(self, part: Action, place: int, way: int) -> int | None:
        """The other rank that gives a pass what it needs (way -1), or gets its result (way 1)."""
        stage = part.stage + (way if part.kind == FORWARD else -way)
        if part.kind == WEIGHTS or self.home.get(stage, place) == place:
            return None
        return self.home[stage]

    def _send(self, rank: _Rank, part: Action, place: int) -> None:
        """What a pass gives to another rank."""
        peer = self._other(part, place, 1)
        if peer is not None:
            node = self._transfer(rank, SEND, part, peer, (rank.last[LANE],))
            rank.sent += [] if P2P in self.job.overlap else [node]

    def _end(self, rank: _Rank, place: int, reduced: list[int]) -> None:
        """Reductions that are left, the shared embedding, the update, and gathers after it."""
        job, mine = self.job, rank_parameters(self.job, place)
        after = [rank.last[LANE], *reduced]
        if GRAD_REDUCE not in job.overlap and job.optimizer != FSDP:
            after += self._reduce(rank, mine, [rank.last[LANE]], "all")
        last = self.home[len(job.split) - 1]
        if job.shape.tied and self.home[0] != last and place in (self.home[0], last):
            ends, nbytes = (self.row[self.home[0]], self.row[last]), self.words * job.reduced
            what = "embedding", ENDS, ALL_REDUCE, nbytes
            after.append(self._collective(rank, *what, after, ends))
        sharded = job.optimizer in (DISTRIBUTED, FSDP)
        count = sum(n / (ways if sharded else 1) for _, n, ways in self._shared(rank, mine))
        took = update_seconds(job.gpu, count, job.reduced)
        rank.add(LANE, after, name="update", kind=COMPUTE, seconds=took, phase=UPDATE)
        if job.optimizer == DISTRIBUTED and PARAM_GATHER not in job.overlap:
            rank.last.update(dict.fromkeys((REPLICAS, EXPERT_REPLICAS), rank.last[LANE]))
            self._gather(rank, mine, "all")


@as_piece
def simulate_mesh(job: MeshJob, costs: Costs, *, closely: bool = False) -> StepResult:
    """The step of a job, whose mesh has the `costs`.

    Only if `closely` it keeps when every node ran.
    """
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    spent: Spent = {}
    passes = MeshPasses(job, costs)
    execution = write_step(job, schedule, passes, spent)
    ran = _run(execution, passes)
    held = tuple(held_by_stages(job, schedule))
    seconds = max(each.end for each in ran)
    found = StepResult(
        job.text, job.mesh.ranks, job.global_batch, seconds, _spent(ran, spent), held,
        tokens=job.sequence,
    )  # fmt: skip
    if not closely:
        return found
    moved = {id(each.node): _transfer(execution, each) for each in ran if each.node.kind != COMPUTE}
    spans = [
        replace(span, device=f"stage {stage}, rank {rank}")
        for stage, rank in enumerate(execution.nodes, 1)
        for span in spans_of(each for each in ran if each.rank == rank)
    ]
    sent = (moved[id(each.node)] for each in ran if each.node.kind in (COLLECTIVE, SEND))
    return replace(
        found, ran=ran, path=run_path(ran, buckets=moved), spans=tuple(spans), buckets=tuple(sent)
    )


def _transfer(execution: Execution, each: Ran) -> Bucket:
    """What a node moved, on the lane of its replicas or between stages."""
    node, collective = each.node, each.node.kind == COLLECTIVE
    ranks = execution.members(node) if collective else (each.rank, node.peer)
    where = node.lane if collective else STAGES
    return Bucket((), ranks, node.nbytes, each.begin, each.since, each.end, where)


def _run(execution: Execution, passes: MeshPasses) -> tuple[Ran, ...]:
    env, job, costs = simpy.Environment(), passes.job, passes.costs
    places = {rank: place for place, rank in enumerate(execution.nodes)}

    def cost(node: ExecutionNode, group: tuple[int, ...]) -> CallCost:
        if node.kind == COLLECTIVE:
            ends = tuple(places[rank] for rank in group) if node.lane == ENDS else ()
            sums = (node.lane, node.collective) == (TP, ALL_REDUCE)
            by = job.tensor_all_reduce if sums else NCCL
            call = MeshCall(node.lane, node.collective, node.nbytes, spread=ends, by=by)
            return costs.of(call, places.get(group[0], 0))
        return costs.send(node.nbytes, places[group[0]], places[group[1]])

    return run_nodes(
        execution, env,
        lambda node, group: env.timeout(cost(node, group).seconds),
        Slows(lambda node, group: cost(node, group).held, passes.law()),
    )  # fmt: skip


def at_least(job: MeshJob, costs: Costs) -> float:
    """A lower bound of a step: the passes of a rank, one after another, for the slowest rank.

    Before them, the first micro batch passes the stages before its first one; and where backward is
    whole, the last comes back through these. For 1F1B with equal stages that is the step itself,
    with the bubble of (p - 1) / m (Narayanan et al. 2021, arXiv 2104.04473). Where passes overlap,
    all-to-alls count as hidden.
    """
    passes, stages = MeshPasses(job, costs), range(len(job.split))
    overlaps = job.schedule in IN_A_V or bool(job.placed)
    whole = job.schedule in (*ONE_STAGE, "interleaved")

    def seconds(stage: int, kind: str) -> float:
        found = passes.of(Action(stage, kind, 0))
        return found.seconds - (found.by.get(EP, 0.0) if overlaps else 0.0)

    forward = [seconds(stage, FORWARD) for stage in stages]
    backward = [seconds(stage, BACKWARD) for stage in stages]
    found = []
    for rank in range(job.mesh.pp):
        mine = [stage for stage in stages if job.home[stage] == rank]
        busy = sum(forward[stage] + backward[stage] for stage in mine) * job.micros
        before = sum(forward[: mine[0]]) + (sum(backward[: mine[0]]) if whole else 0.0)
        found.append(busy + before)
    return max(found)


def _spent(ran: tuple[Ran, ...], spent: Spent) -> tuple[tuple[str, float], ...]:
    """What the rank that ends last did, by axis; waits by what they waited for."""
    last = max(ran, key=lambda each: each.end)
    mine = sorted((each for each in ran if each.rank == last.rank), key=lambda each: each.begin)
    moved = sorted((e.end, e.node.kind) for e in mine if e.node.kind != COMPUTE)
    ends = [end for end, _ in moved]
    found, now = defaultdict[str, float](float), 0.0
    for each in mine:
        if each.node.lane != LANE:
            continue
        if each.begin > now:
            late = bisect_right(ends, each.begin) - 1
            data = late >= 0 and ends[late] > now and moved[late][1] == COLLECTIVE
            found[DATA if data else "pipeline"] += each.begin - now
        known = spent.get(id(each.node), {UPDATE: each.node.seconds or 0.0})
        for axis, seconds in known.items():
            found[axis] += seconds
        found[SLOWED] += max(each.end - each.begin - sum(known.values()), 0.0)
        now = each.end
    found[DATA] += last.end - now
    return tuple(pair for pair in found.items() if pair[1] > ROUNDING * last.end)
