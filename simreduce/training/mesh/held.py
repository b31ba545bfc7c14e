"""What a rank of a mesh holds: parameters, gradients, optimizer states and activations, by stage.

Mixed precision as Megatron-LM has it: parameters in 16 bits, gradients of `reduced` bytes, and for
each parameter a float32 master and two moments (12 bytes). The distributed optimizer shares those
among the replicas (ZeRO-1), `fsdp` all of it, of hybrid shards among those of a copy. Activations
are those of Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198) of all micro batches in
flight, and with full recomputation the inputs of blocks, with one block that is computed again.

Stacks keep more or less of logits, gated parts and inputs in 8 bits (`stacks`).

Not counted: buffers of communication beyond the gradients, workspaces, fragments of the allocator.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from simreduce.training.gpus import Gpu
from simreduce.training.memory import FULL, FUSED, NONE, OP
from simreduce.training.mesh import DISTRIBUTED, FSDP, MeshJob
from simreduce.training.mesh.parts import WIDTH
from simreduce.training.mesh.pipeline import FORWARD, WEIGHTS, Schedule
from simreduce.training.stacks import STACKS
from simreduce.training.step import ESTIMATED, Activations, Memory
from simreduce.workload.decoder import Divided

STATES = 12
"""Bytes of a parameter's float32 master and two moments of Adam."""


MOVED = 2.0
"""Times that an optimizer moves all bytes of states, gradient and parameter: in and out."""


def update_seconds(gpu: Gpu, parameters: float, reduced: int = 4, states: int = STATES) -> float:
    """Seconds of the update of so many parameters, each with a gradient of `reduced` bytes and so
    many bytes of `states`.
    """
    nbytes = parameters * MOVED * (states + reduced + WIDTH)
    return gpu.step + nbytes / (gpu.memory_bandwidth * gpu.memory)


class Parameters(NamedTuple):
    """Parameters of a rank, and of the experts among them."""

    plain: int = 0
    experts: int = 0

    @property
    def all(self) -> int:
        """Both."""
        return self.plain + self.experts


def block_parameters(job: MeshJob, block: int) -> Parameters:
    """Parameters of a block on a rank."""
    shape, t = job.shape, job.mesh.tp
    plain = _share(shape.attention, t)
    if not shape.has_experts(block):
        return Parameters(plain + _share(shape.feed_forward, t), 0)
    each = -(-shape.one_expert // job.mesh.expert_tensor)
    return Parameters(plain + _share(shape.around_experts, t), shape.experts // job.mesh.ep * each)


def stage_parameters(job: MeshJob, stage: int) -> Parameters:
    """Parameters of a stage on a rank."""
    shape, t, last = job.shape, job.mesh.tp, len(job.split) - 1
    plain, experts = added(block_parameters(job, block) for block in job.blocks(stage))
    if stage == 0:
        plain += _share(shape.embedding, t)
    if stage == last:
        plain += _share(shape.output, t)
        # A copy of the embedding, whose gradients are summed.
        if shape.tied and job.home[last] != job.home[0]:
            plain += _share(shape.embedding._replace(whole=0), t)
    return Parameters(plain, experts)


def _share(held: tuple[int, int], ways: int) -> int:
    return -(-held[0] // ways) + held[1]


def rank_parameters(job: MeshJob, rank: int) -> Parameters:
    """Parameters of all stages of a pipeline rank, by the places of a schedule."""
    return added(stage_parameters(job, stage) for stage in stages_of(job, rank))


def added(parameters: Iterable[Parameters]) -> Parameters:
    """All of these together."""
    return Parameters(*map(sum, zip(Parameters(), *parameters, strict=True)))


def stages_of(job: MeshJob, rank: int) -> list[int]:
    """The stages of a pipeline rank."""
    return [stage for stage, home in enumerate(job.home) if home == rank]


def block_activations(job: MeshJob, block: int) -> float:
    """Bytes that a block keeps of a micro batch on a rank."""
    shape, mesh, rows = job.shape, job.mesh, float(job.tokens)
    gated = STACKS[job.kernels].gated
    t = mesh.tp if job.sequence_parallel else 1
    if job.recompute == FULL:
        return rows * shape.width * WIDTH / t
    if job.recompute == OP:  # queries, values, attention and its sums, and of the rest up and down
        narrow = max(shape.narrow, shape.head * mesh.tp)
        given = (2 * shape.queries + narrow + shape.inner) / mesh.tp + shape.width * shape.gated
        given += shape.width * (1 + 2 * (t > 1)) / t  # the input, and what ranks scattered
        return rows * (given * WIDTH + 4.0 * shape.heads / mesh.tp)
    kept = job.attention != FUSED and job.recompute == NONE
    scores = rows * shape.scores(job.sequence) / mesh.tp if kept else 0.0
    if shape.has_experts(block):
        inner = shape.expert * (shape.active * job.imbalance + shape.shared)
        each = shape.kept_by_feed_forward(inner, gated)
        etp = mesh.expert_tensor  # inputs are gathered among them, outputs summed
        copies = etp + (1 if job.sequence_parallel else etp)
        routed = 2.0 * copies * shape.active * shape.width * job.imbalance
        each = Divided(each.split + routed, each.whole)
    else:
        inner = shape.inner
        each = shape.kept_by_feed_forward(inner, gated)
    parts = _shared(job, shape.kept_by_attention) + _shared(job, each)
    return rows * (parts - _shared(job, _saved_by8(job, inner)) + 2 * _gathered(job)) + scores


def _gathered(job: MeshJob) -> float:
    """Bytes of each token that an input has more where it is kept as it was gathered."""
    if not (STACKS[job.kernels].keeps_gathered and job.sequence_parallel):
        return 0.0
    return job.shape.width * WIDTH * (1 - 1 / job.mesh.tp)


def _saved_by8(job: MeshJob, inner: float) -> Divided[float]:
    """Bytes that a block of that inner width keeps less for each token where inputs of products
    are kept in 8 bits.
    """
    each = STACKS[job.kernels].input8
    less = WIDTH - each
    if job.bits > 8 or not less:
        return Divided(0.0, 0.0)
    # The inputs of queries, of up and of down; that of attention's output is a copy besides.
    return Divided(less * inner - each * job.shape.queries, 2 * less * job.shape.width)


def _shared(job: MeshJob, each: Divided[float]) -> float:
    t = job.mesh.tp
    return each.split / t + each.whole / (t if job.sequence_parallel else 1)


def stage_activations(job: MeshJob, stage: int) -> float:
    """Bytes that a stage keeps of a micro batch on a rank."""
    shape, rows, t = job.shape, float(job.tokens), job.mesh.tp
    found = sum(block_activations(job, block) for block in job.blocks(stage))
    ways = t if job.sequence_parallel else 1
    if stage == 0 and shape.dropout:
        found += rows * shape.width / ways
    if stage == len(job.split) - 1:
        logits = STACKS[job.kernels].logit * shape.words / t
        found += rows * (4.0 * shape.width / ways + _gathered(job) + logits)
    return found


def again(job: MeshJob, rank: int) -> float:
    """Bytes of the largest block that is computed again."""
    if job.recompute not in (FULL, OP):
        return 0.0
    plain, blocks = replace(job, recompute=NONE), map(job.blocks, stages_of(job, rank))
    return max((block_activations(plain, b) for stage in blocks for b in stage), default=0.0)


def held_by_stages(job: MeshJob, schedule: Schedule) -> Iterator[Memory]:
    """What a rank of each stage of the pipeline holds at most."""
    return (held_by(job, schedule, rank) for rank in range(job.mesh.pp))


def held_by(job: MeshJob, schedule: Schedule, rank: int) -> Memory:
    """What a pipeline rank holds; units that are gathered count as parameters."""
    mine = rank_parameters(job, rank)
    copies = job.mesh.copies
    plain, experts = job.mesh.dp * job.mesh.cp // copies, job.mesh.expert_data // copies
    ways = (plain, experts) if job.optimizer in (DISTRIBUTED, FSDP) else (1, 1)
    all_ways = ways if job.optimizer == FSDP else (1, 1)

    def shared(each: int, by: tuple[int, int]) -> int:
        return each * ceil(mine.plain / by[0]) + each * ceil(mine.experts / by[1])

    unit = _largest_unit(job, rank) if job.optimizer == FSDP else 0
    kept = {stage: stage_activations(job, stage) for stage in stages_of(job, rank)}
    most, flying = _in_flight(schedule, rank, kept)
    kinds = (
        shared(WIDTH, all_ways) + 2 * WIDTH * unit,
        shared(job.reduced, all_ways) + job.reduced * unit,
        shared(STATES, ways),
    )
    activations = Activations(round(most + again(job, rank)), ESTIMATED)
    held = Memory(*kinds, peak=sum(kinds), in_flight=flying, plain=False)
    return held.plus(activations)


def _largest_unit(job: MeshJob, rank: int) -> int:
    """Parameters of the largest unit of a rank: two are gathered at once, one has whole gradients.

    A unit is a block, the embedding or the output.
    """
    shape, stages = job.shape, stages_of(job, rank)
    found = [block_parameters(job, block).all for stage in stages for block in job.blocks(stage)]
    ends = [shape.embedding] * (0 in stages) + [shape.output] * (len(job.split) - 1 in stages)
    return max([*found, *(_share(end, job.mesh.tp) for end in ends)], default=0)


def _in_flight(schedule: Schedule, rank: int, kept: Mapping[int, float]) -> tuple[float, int]:
    """The most bytes of activations at once, and the most passes that keep some.

    A pass keeps them until its backward pass for weights is done.
    """
    now, count, most, flying = 0.0, 0, 0.0, 0
    for action in schedule.rows[rank]:
        for part in action.parts:
            if part.kind == FORWARD:
                now, count = now + kept[part.stage], count + 1
            most, flying = max(most, now), max(flying, count)
            if part.kind in (WEIGHTS, "B"):
                now, count = now - kept[part.stage], count - 1
    return most, flying
