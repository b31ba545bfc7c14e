"""Seconds of passes: a stage's kernels one after another, with what it waits for in between.

What a collective of a mesh takes: NCCL's plans of all its groups that share machines, at once.

All groups of an axis do the same at the same time. Those that have ranks on the machines of one
group may share its links, so they are simulated beside it; that group's end counts for all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

from simreduce import dtypes
from simreduce.computing import group_by, once
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.engine.setup import Setup
from simreduce.errors import InputError, WorkloadError
from simreduce.plan import Plan, side_by_side
from simreduce.planners.strategy import parse_strategy
from simreduce.training.calls import (
    NOTHING,
    CallCost,
    GroupPlans,
    arriving,
    held_by,
    leading,
    slowest_gpu,
)
from simreduce.training.executions import BACKWARD as BACKWARD_PHASE, FORWARD as FORWARD_PHASE
from simreduce.training.gpus import Gpu, Times
from simreduce.training.interference import Beside, Law, Loses, by_share
from simreduce.training.memory import FULL, OP, ModelRun
from simreduce.training.mesh import CP, DP, EP, ETP, NCCL, PP, TP, Mesh, MeshJob
from simreduce.training.mesh.held import update_seconds
from simreduce.training.mesh.parts import (
    ALL_TO_ALL,
    DISPATCH,
    BlockPart,
    MeshCall,
    Parts,
    reached,
)
from simreduce.training.mesh.pipeline import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action
from simreduce.training.sharded import Sharding, state_bytes
from simreduce.training.step import KERNELS_OF, Profile
from simreduce.workload import Model
from simreduce.workload.decoder import Sequences
from simreduce.workload.loader import load_decoder

REPLICAS, EXPERT_REPLICAS, ENDS = "dp+cp", "edp", "ends"
SAME_SHARDS, SAME_EXPERT_SHARDS = "dp_replicate", "edp_replicate"
"""Of hybrid shards, ranks of all copies that hold the same."""
"""Groups that sum gradients: of what is no expert, of experts, and of the embedding at both ends
of a pipeline."""
_MOST_OPS = 1 << 19
"""Above this, one group stands for those beside it."""


Group = tuple[int, ...]


@dataclass
class Costs:
    """The costs of a mesh's calls on a machine, each simulated once."""

    setup: Setup
    mesh: Mesh
    _known: dict[tuple[object, ...], CallCost] = field(default_factory=dict, repr=False)
    _simulated: dict[object, CallCost] = field(default_factory=dict, repr=False)
    _by: dict[str, GroupPlans] = field(default_factory=dict, repr=False)

    def of_mesh(self, mesh: Mesh) -> Costs:
        """The costs of another mesh on the machine; what both have is simulated once."""
        return replace(self, mesh=mesh, _known={})

    @property
    def calls(self) -> frozenset[NcclCall]:
        """The calls of NCCL in all plans that were made."""
        return frozenset(call for plans in self._by.values() for call in plans.calls)

    @cached_property
    def rates(self) -> tuple[float, float]:
        """Bytes a second that links bring a GPU in a collective of all ranks, and in all."""
        return arriving(self.setup), slowest_gpu(self.setup)

    def _plans(self, by: str = NCCL) -> GroupPlans:
        """The plans of a strategy."""
        return once(self._by, by, lambda: GroupPlans(self.setup.running(parse_strategy(by)), by))

    @cached_property
    def _machine(self) -> list[int]:
        """The machine of each rank."""
        tasks = enumerate(self._plans().setup.layout.tasks)
        found = {rank: i for i, task in tasks for rank in task}
        return [found[rank] for rank in range(self.mesh.ranks)]

    def of(self, call: MeshCall, stage: int) -> CallCost:
        """One call of the ranks of a stage."""
        nbytes = max(leading(call.nbytes), 1)
        facts = call.axis, call.collective, nbytes, stage, call.spread, call.by
        found = once(self._known, facts, lambda: self._of(*facts))
        return found._replace(seconds=found.seconds * call.nbytes / nbytes)

    def group(self, axis: str, stage: int) -> Group:
        """The group of an axis that has the first rank of a stage."""
        return self.group_of(axis, self.mesh.groups(PP)[0][stage])

    def group_of(self, axis: str, rank: int) -> Group:
        """The group of an axis that has a rank."""
        return next(group for group in self._groups(axis) if rank in group)

    def send(self, nbytes: int, stage: int, to: int) -> CallCost:
        """A send between the ranks of two stages, all replicas at once."""

        def send() -> CallCost:
            pairs: list[Group] = [(row[stage], row[to]) for row in self.mesh.groups(PP)]
            near = tuple(self._beside(pairs[0], pairs))
            return once(
                self._simulated,
                ("send", nbytes, near),
                lambda: self._together([self._plans().transfer(nbytes, *pair) for pair in near]),
            )

        return once(self._known, ("send", nbytes, stage, to), send)

    def _groups(self, axis: str) -> tuple[Group, ...]:
        if axis == REPLICAS:
            return self.mesh.shards(DP, CP)
        if axis == EXPERT_REPLICAS:
            return self.mesh.shards(DP, expert=True)
        if axis in (SAME_SHARDS, SAME_EXPERT_SHARDS):
            expert = axis == SAME_EXPERT_SHARDS
            return self.mesh.same_shards(*((DP,) if expert else (DP, CP)), expert=expert)
        if axis in (EP, ETP):
            return self.mesh.groups({ETP: TP}.get(axis, axis), expert=True)
        return self.mesh.groups(axis)

    def _of(
        self, axis: str, collective: str, nbytes: int, stage: int, spread: tuple[int, ...], by: str
    ) -> CallCost:
        if axis == ENDS:
            pairs = [tuple(row[place] for place in spread) for row in self.mesh.groups(PP)]
            return self._call(collective, nbytes, tuple(self._beside(pairs[0], pairs)))
        if len(self.group(axis, stage)) < 2:
            return NOTHING
        place = self._alike(axis, stage)
        mine = [g for g in self._groups(axis) if self.mesh.stage_of(g[0]) == place]
        if collective == DISPATCH:
            return self._dispatch(nbytes, self.group(axis, place), mine, spread)
        near = tuple(self._beside(self.group(axis, place), mine))
        return self._call(collective, nbytes, near, by)

    def _dispatch(
        self, nbytes: int, group: Group, groups: Sequence[Group], spread: tuple[int, ...]
    ) -> CallCost:
        """Until each token of a group is at the ranks of its experts; `nbytes` are those of a copy
        for each.

        A copy goes to each machine, over the network between ranks of equal place, and there to
        each rank. Chunks overlap, so the slower of both counts.
        """
        rails, nodes = list[Group](), list[Group]()
        for each in self._beside(group, groups):
            machines = group_by(each, self._machine.__getitem__)
            if len({len(ranks) for ranks in machines.values()}) > 1:
                return self._call(ALL_TO_ALL, nbytes, tuple(self._beside(group, groups)))
            rails += zip(*machines.values(), strict=True)
            nodes += map(tuple, machines.values())
        experts, active, *limits = spread
        once = nbytes / active

        def copies(places: int, over: list[Group]) -> CallCost:
            ways = len(over[0])
            each = once * reached(experts, active, places, *limits) / ways
            whole = max(leading(int(each)), 1)
            found = self._call(ALL_TO_ALL, whole * ways, tuple(over)) if ways > 1 else NOTHING
            return found._replace(seconds=found.seconds * each / whole)

        return max(copies(len(rails[0]), rails), copies(len(group), nodes))

    def _call(
        self, collective: str, nbytes: int, near: tuple[Group, ...], by: str = NCCL
    ) -> CallCost:
        """Seconds of a collective of groups that share links, for any mesh that has these."""
        known = self._plans(by)

        def simulate() -> CallCost:
            one = known.plan(collective, nbytes, near[0])
            few = near if len(one) * len(near) <= _MOST_OPS else near[:1]
            return self._together([known.plan(collective, nbytes, each) for each in few])

        return once(self._simulated, (collective, nbytes, near, by), simulate)

    def _alike(self, axis: str, stage: int) -> int:
        """The first stage whose groups of an axis lie on equal machines in the same way."""
        shape = self._shape(axis, stage)
        return next(s for s in range(stage + 1) if s == stage or self._shape(axis, s) == shape)

    def _shape(self, axis: str, stage: int) -> object:
        """How the ranks of a group lie: their places in their machines, and which are together."""
        group, tasks = self.group(axis, stage), self._plans().setup.layout.tasks
        size = len(tasks[0])
        if any(len(task) != size for task in tasks):
            return stage
        machines = {m: i for i, m in enumerate(dict.fromkeys(self._machine[r] for r in group))}
        return tuple((machines[self._machine[rank]], rank % size) for rank in group)

    def _beside(self, group: Group, groups: Sequence[Group]) -> list[Group]:
        """The group, then those with ranks on its machines."""
        mine = {self._machine[rank] for rank in group}
        others = [g for g in groups if g != group and mine & {self._machine[r] for r in g}]
        return [group, *others]

    def _together(self, plans: list[Plan]) -> CallCost:
        """The first of plans that run at once."""
        names = dict.fromkeys(name for plan in plans for name in plan.devices)
        whole = plans[0] if len(plans) == 1 else side_by_side(plans, tuple(names))
        setup = self._plans().setup
        seconds = setup.find_seconds(whole)
        return CallCost(seconds, *held_by(setup, plans[0], seconds=seconds))


COMPUTE, HOST = "compute", "host"
PHASES = {FORWARD_PHASE: FORWARD, BACKWARD_PHASE: BACKWARD}
"""Passes by phase."""


class Pass(NamedTuple):
    """A pass takes `seconds`; `by` says of which axis it waits for how long, and computes.

    Of one part, it has the `calls` too.
    """

    seconds: float
    by: Mapping[str, float]
    calls: tuple[MeshCall, ...] = ()


@dataclass
class MeshPasses:
    """The passes of a job's stages."""

    job: MeshJob
    costs: Costs
    given: Loses | None = None
    _known: dict[object, Pass] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.parts = Parts(self.job)
        self._slowest = self.job.gpu.slowest(self.job.mesh.ranks, self.job.part)

    @cached_property
    def loses(self) -> Loses:
        """What its kernels lose by themselves, which calls within passes hide behind."""
        return self.given or _law_of_kernels(self.job, self.costs.rates)

    def law(self) -> Loses:
        """What whole passes of the job lose: those that wait for the host or for calls less."""
        if self.job.interference is not None:
            return self.loses

        def seconds(gpu: Gpu, kind: str) -> float:
            slow = MeshPasses(replace(self.job, gpu=gpu), self.costs, self.loses)
            stages = range(len(self.job.split))
            return sum(slow.of(Action(stage, kind, 0)).seconds for stage in stages)

        def passes(beside: Beside, only: str) -> Mapping[str, float]:
            gpu = self.job.gpu.next_to(beside, only)
            both = {phase: seconds(gpu, kind) for phase, kind in PHASES.items()}
            return both | {"": sum(both.values())}

        return Law(passes, *self.costs.rates)

    def of(self, action: Action) -> Pass:
        """The pass of an action; of one beside another, all-to-alls hide behind all kernels."""
        if not action.beside:
            return self._of(action.stage, action.kind)
        parts = tuple((part.stage, part.kind) for part in action.parts)
        return once(self._known, parts, lambda: self._at_once(action))

    def _at_once(self, action: Action) -> Pass:
        by = dict(add_up(self._of(part.stage, part.kind) for part in action.parts).by)
        if EP in by:
            moved, lost = map(sum, zip(*map(self._routed, action.parts), strict=True))
            by[EP] = max(moved - by[COMPUTE], lost)
        return Pass(sum(by.values()), by)

    def _routed(self, action: Action) -> tuple[float, float]:
        """Seconds of the all-to-alls of a pass by themselves, and what kernels lose beside them."""
        rank, moved, lost = self.job.home[action.stage], 0.0, 0.0
        phase = phase_of(action.kind)
        for part in self.layers(action.stage, action.kind):
            for call in part.calls:
                if call.axis == EP:
                    cost = self.costs.of(call, rank)
                    moved += call.times * cost.seconds
                    lost += call.times * cost.seconds * self.loses((cost.held,), phase)
        return moved, lost

    def layers(self, stage: int, kind: str) -> list[Pass]:
        """The passes of each part of a stage, in the order in which they run."""
        parts = self.parts.of_stage(stage)
        order: Iterable[BlockPart] = parts if kind == FORWARD else reversed(parts)
        rank = self.job.home[stage]
        found = [
            once(self._known, (part.name, kind, rank), partial(self._part, part, kind, rank))
            for part in order
        ]
        by = defaultdict[str, float](float, {HOST: self.job.gpu.handover})
        calls = self.parts.arrivals(stage, backward=kind != FORWARD) if kind != WEIGHTS else ()
        for call in calls:
            by[call.axis] += self.costs.of(call, rank).seconds
        first = add_up([Pass(0.0, by), found[0]])
        return [first._replace(calls=(*calls, *found[0].calls)), *found[1:]]

    def _of(self, stage: int, kind: str) -> Pass:
        key = self._alike(stage), kind
        return once(self._known, key, lambda: add_up(self.layers(*key)))

    def _alike(self, stage: int) -> int:
        """The first stage on the same rank that has as many blocks of each kind."""
        job, last = self.job, len(self.job.split) - 1
        if stage in (0, last):
            return stage

        def shape(s: int) -> tuple[int, int]:
            return len(job.blocks(s)), sum(map(job.shape.has_experts, job.blocks(s)))

        same = (s for s in range(1, stage) if job.home[s] == job.home[stage])
        return next((s for s in same if shape(s) == shape(stage)), stage)

    def _part(self, part: BlockPart, kind: str, rank: int) -> Pass:
        times = part.times
        again = kind in (BACKWARD, INPUTS)
        repeated, calls = self.parts.repeats(part) if again else (Times(), ())
        computes = {
            FORWARD: times.forward,
            BACKWARD: times.inputs + times.weights + repeated.forward,
            INPUTS: times.inputs + repeated.forward,
            WEIGHTS: times.weights,
        }[kind]
        launched = {FORWARD: 1, BACKWARD: 2, INPUTS: 1, WEIGHTS: 1}[kind]
        most = self.job.recompute in (FULL, OP)
        launched += 1 if repeated.forward and most else 0
        kernels = times.kernels * launched
        own: Sequence[MeshCall] = {FORWARD: part.forward, WEIGHTS: ()}.get(kind, part.backward)
        by = defaultdict[str, float](float, {COMPUTE: computes * self._slowest})
        for call in (*own, *calls):
            cost = self.costs.of(call, rank)
            lost = self.loses((cost.held,), phase_of(kind))
            by[call.axis] += call.exposed(cost.seconds, lost, weights=kind != INPUTS)
            kernels += call.times
        late = kernels * self.job.gpu.host + launched * part.host - sum(by.values())
        if late > 0.0:
            by[HOST] = late
        return Pass(sum(by.values()), by, (*own, *calls))


@lru_cache(maxsize=256)
def _law_of_kernels(job: MeshJob, rates: tuple[float, float]) -> Loses:
    """What kernels of a job's passes lose by themselves."""
    if job.interference is not None:
        return by_share(job.interference, job.gpu.units)

    def passes(beside: Beside, only: str) -> Mapping[str, float]:
        parts = Parts(replace(job, gpu=job.gpu.next_to(beside, only)))
        stages = map(parts.of_stage, range(len(job.split)))
        times = [part.times for stage in stages for part in stage]
        first = sum(each.forward for each in times)
        second = sum(each.inputs + each.weights for each in times)
        return {FORWARD_PHASE: first, BACKWARD_PHASE: second, "": first + second}

    return Law(passes, *rates)


def phase_of(kind: str) -> str:
    """The phase of a pass."""
    return FORWARD_PHASE if kind == FORWARD else BACKWARD_PHASE


def add_up(passes: Iterable[Pass]) -> Pass:
    """Passes one after another."""
    by = defaultdict[str, float](float)
    for each in passes:
        for axis, seconds in each.by.items():
            by[axis] += seconds
    return Pass(sum(by.values()), dict(by))


def decoder_of(model: Model) -> Sequences:
    """The decoder that a model is. InputError if it is none."""
    try:
        decoder = load_decoder(model.name)
    except WorkloadError:
        raise InputError(
            f"{model.name} is no model whose kernels are known: a decoder such as gpt2 or"
            " llama-3-8b, BERT, ViT or an image model; give a time, a rate or a profile"
        ) from None
    shape, held = decoder.shape, sum(gradient.elements for gradient in model.workload.gradients)
    if held != shape.parameters or len(model.layers) < 2 * shape.blocks + 2:
        raise InputError(f"{model.name}: its layers are not those of the decoder of that name")
    return decoder


def kernels_profile(
    model: Model, gpu: Gpu, batch: int, run: ModelRun, numerics: Sharding
) -> Profile:
    """The times of a decoder's layers for a batch on one GPU, and of the update of all parameters
    by the optimizer of `numerics`.

    Its layers are the parts of a mesh: the embedding, which may be of words and positions, two for
    each block, and the output. InputError if it is no decoder.
    """
    decoder = decoder_of(model)
    shape = decoder.shape
    job = MeshJob(
        shape, Mesh(), gpu, batch, 1, decoder.tokens, "1f1b", 1, (shape.blocks,),
        recompute=run.recompute, attention=run.attention,
    )  # fmt: skip
    passes = MeshPasses(job, Costs(Setup("switch:1"), job.mesh))
    more = (0.0,) * (len(model.layers) - 2 * shape.blocks - 2)
    forward = tuple(each.seconds for each in passes.layers(0, FORWARD))
    backward = tuple(each.seconds for each in reversed(passes.layers(0, BACKWARD)))
    return Profile(
        (*forward[:1], *more, *forward[1:]), (*backward[:1], *more, *backward[1:]),
        f"{KERNELS_OF} {gpu.title}, megatron{f' ({lent})' if (lent := gpu.lent()) else ''}",
        update_seconds(
            gpu, shape.parameters, 2 if numerics.pure else 4,
            state_bytes(numerics.optimizer, dtypes.code("bfloat16"), pure=numerics.pure),
        ),
    )  # fmt: skip
