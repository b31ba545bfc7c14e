"""Seconds of passes: a stage's kernels one after another, with what it waits for in between."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from simreduce.engine.setup import Setup
from simreduce.errors import InputError, WorkloadError
from simreduce.training.gpus import Gpu, Times
from simreduce.training.mesh.costs import Costs
from simreduce.training.mesh.held import update_seconds
from simreduce.training.mesh.job import EP, Mesh, MeshJob
from simreduce.training.mesh.parts import BlockPart, MeshCall, Parts
from simreduce.training.mesh.pipeline import BACKWARD, FORWARD, INPUTS, WEIGHTS, Action
from simreduce.training.profile import KERNELS_OF, Profile
from simreduce.training.recompute import FUSED, NONE
from simreduce.workload import Model, load_decoder

COMPUTE, HOST = "compute", "host"


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
    _known: dict[object, Pass] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.parts = Parts(self.job)
        self._slowest = self.job.gpu.slowest(self.job.mesh.ranks, self.job.part)

    def of(self, action: Action) -> Pass:
        """The pass of an action; of one beside another, all-to-alls hide behind all kernels."""
        if not action.beside:
            return self._of(action.stage, action.kind)
        parts = tuple((part.stage, part.kind) for part in action.parts)
        return self._once(parts, lambda: self._at_once(action))

    def _once(self, key: object, find: Callable[[], Pass]) -> Pass:
        """What was found for a key before, or is now."""
        if key not in self._known:
            self._known[key] = find()
        return self._known[key]

    def _at_once(self, action: Action) -> Pass:
        by = dict(add_up(self._of(part.stage, part.kind) for part in action.parts).by)
        if EP in by:
            moved, lost = map(sum, zip(*map(self._routed, action.parts), strict=True))
            by[EP] = max(moved - by[COMPUTE], lost)
        return Pass(sum(by.values()), by)

    def _routed(self, action: Action) -> tuple[float, float]:
        """Seconds of the all-to-alls of a pass by themselves, and what kernels lose beside them."""
        rank, moved, lost = self.job.home[action.stage], 0.0, 0.0
        for part in self.layers(action.stage, action.kind):
            for call in part.calls:
                if call.axis == EP:
                    cost = self.costs.of(call, rank)
                    moved += call.times * cost.seconds
                    lost += call.times * cost.seconds * self.job.slows(cost.channels)
        return moved, lost

    def layers(self, stage: int, kind: str) -> list[Pass]:
        """The passes of each part of a stage, in the order in which they run."""
        parts = self.parts.of_stage(stage)
        order: Iterable[BlockPart] = parts if kind == FORWARD else reversed(parts)
        rank = self.job.home[stage]
        found = [
            self._once((part.name, kind, rank), partial(self._part, part, kind, rank))
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
        return self._once(key, lambda: add_up(self.layers(*key)))

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
        repeated, calls = Times(), tuple[MeshCall, ...]()
        if kind in (BACKWARD, INPUTS):
            repeated, calls = self.parts.repeats(part)
        computes = {
            FORWARD: times.forward,
            BACKWARD: times.inputs + times.weights + repeated.forward,
            INPUTS: times.inputs + repeated.forward,
            WEIGHTS: times.weights,
        }[kind]
        launched = {FORWARD: 1, BACKWARD: 2, INPUTS: 1, WEIGHTS: 1}[kind]
        launched += 1 if repeated.forward >= times.forward else 0
        kernels = times.kernels * launched
        own: Sequence[MeshCall] = {FORWARD: part.forward, WEIGHTS: ()}.get(kind, part.backward)
        by = defaultdict[str, float](float, {COMPUTE: computes * self._slowest})
        for call in (*own, *calls):
            cost = self.costs.of(call, rank)
            slows = self.job.slows(cost.channels)
            by[call.axis] += call.exposed(cost.seconds, slows, weights=kind != INPUTS)
            kernels += call.times
        late = kernels * self.job.gpu.host + launched * part.host - sum(by.values())
        if late > 0.0:
            by[HOST] = late
        return Pass(sum(by.values()), by, (*own, *calls))


def add_up(passes: Iterable[Pass]) -> Pass:
    """Passes one after another."""
    by = defaultdict[str, float](float)
    for each in passes:
        for axis, seconds in each.by.items():
            by[axis] += seconds
    return Pass(sum(by.values()), dict(by))


def kernels_profile(
    model: Model, gpu: Gpu, batch: int, attention: str = FUSED, policy: str = NONE
) -> Profile:
    """The times of a decoder's layers for a batch on one GPU, and of the update of all parameters.

    Its layers are the parts of a mesh: the embedding, which may be of words and positions, two for
    each block, and the output. InputError if it is no decoder.
    """
    try:
        decoder = load_decoder(model.name)
    except WorkloadError:
        words = "is no decoder such as gpt2 or llama-3-8b, whose kernels are known"
        raise InputError(f"{model.name} {words}; give a time, a rate or a profile") from None
    shape, held = decoder.shape, sum(gradient.elements for gradient in model.workload.gradients)
    if held != shape.parameters or len(model.layers) < 2 * shape.blocks + 2:
        raise InputError(f"{model.name}: its layers are not those of the decoder of that name")
    job = MeshJob(
        shape, Mesh(), gpu, batch, 1, decoder.tokens, "1f1b", 1, (shape.blocks,),
        recompute=policy, attention=attention,
    )  # fmt: skip
    passes = MeshPasses(job, Costs(Setup("switch:1"), job.mesh))
    more = (0.0,) * (len(model.layers) - 2 * shape.blocks - 2)
    forward = tuple(each.seconds for each in passes.layers(0, FORWARD))
    backward = tuple(each.seconds for each in reversed(passes.layers(0, BACKWARD)))
    return Profile(
        (*forward[:1], *more, *forward[1:]), (*backward[:1], *more, *backward[1:]),
        f"{KERNELS_OF} {gpu.title}", update_seconds(gpu, shape.parameters),
    )  # fmt: skip
