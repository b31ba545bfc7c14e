"""A recorded job as a workload and the times of its step.

The gradients are the buckets that the job reduced, in the order in which they became ready. A
bucket is ready when all compute before its all-reduce is done, with communication taken out of the
record: that is the profile of the backward pass. What waits for all-reduces is the update.

A record has no gradients within buckets. So a workload of it can be cut as the record is, or
coarser (`Workload.finest`). For a workload that has the gradients (`load_profile` with another
model), the record gives the times: those within a bucket become ready in proportion to their bytes.

Only data-parallel jobs whose gradients are all-reduced among all ranks are read so.

A replay runs a record as it is: its compute takes as long as it took, and its collectives run as
plans on a machine's fabric. `executor` says when nodes run. Ranks that were not recorded keep
nobody waiting, but take part: their links carry what they send. NCCL's kernels slow no others down,
as recorded times have that already.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import median_low

import numpy as np
import simpy

from simreduce import dtypes, units
from simreduce.computing import group_by, grouped, once
from simreduce.computing.workers import Watch, unwatched
from simreduce.engine import Fabric
from simreduce.engine.setup import Setup
from simreduce.errors import Deadlock, InputError, quote
from simreduce.files.formats.syntax import Faults
from simreduce.planners.packing import DdpBuckets
from simreduce.planners.strategy import parse_strategy
from simreduce.training import step as profiles
from simreduce.training.calls import GroupPlans, is_calm
from simreduce.training.executions import (
    BACKWARD,
    COLLECTIVE,
    COMPUTE,
    FORWARD,
    GROUP,
    UPDATE,
    Execution,
    ExecutionError,
    ExecutionNode,
)
from simreduce.training.executions.reading import ALONE, is_record, read_executions
from simreduce.training.executor import Movement, Ran, Run, length_of, run_nodes
from simreduce.training.step import Profile
from simreduce.units import MIB
from simreduce.workload import Gradient, Layer, Model, loader

_REPLAY_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Replay:
    """A finished replay, which took `seconds` from begin to end.

    `exposed` is how long the slowest recorded rank computed nothing while something of its own was
    under way.
    """

    execution: Execution
    seconds: float
    exposed: float
    computed: float
    moved: tuple[Movement, ...]
    ran: tuple[Ran, ...]


def replay_execution(
    execution: Execution, setup: Setup, algorithm: str, watch: Watch = unwatched
) -> Replay:
    """The run on `setup`, rank i on its i-th device.

    InputError with all that the machine or the algorithm cannot do, or in which ranks disagree.
    """
    chosen = setup.running(parse_strategy(algorithm))
    plans = GroupPlans(chosen, algorithm)
    _replay_check(execution, plans)
    env = simpy.Environment()
    fabric = Fabric(env, chosen.topology, chosen.constants, chosen.runtime, chosen.disturbance)

    known, apart = dict[int, float](), is_calm(chosen) and _takes_turns(execution)

    def move(node: ExecutionNode, group: tuple[int, ...]) -> simpy.Event:
        if (plan := plans.of(node, group)) and not apart:
            return fabric.submit(plan)
        seconds = plan and once(known, id(plan), partial(chosen.find_seconds, plan))
        return env.timeout(seconds or 0.0)

    names, slow = enumerate(chosen.layout.ranks), chosen.disturbance.slow
    run = Run(execution, env, move, {rank: slow.get(name, 1.0) for rank, name in names})
    found = watch(run.finish(), run.total)
    ran = tuple(sorted(found, key=lambda each: (each.begin, each.rank)))
    mine: dict[int, list[Ran]] = {rank: [] for rank in execution.nodes}
    for each in ran:
        mine[each.rank].append(each)
    exposed, computed = max(map(_exposed, mine.values()), key=lambda found: found[0])
    seconds = max((each.end for each in ran), default=0.0)
    return Replay(execution, seconds, exposed, computed, tuple(run.moved), ran)


def _takes_turns(execution: Execution) -> bool:
    """Whether all ranks make the same collectives on one lane, so that none is beside another."""
    moves = [node for nodes in execution.nodes.values() for node in nodes if node.kind != COMPUTE]
    alike = {(execution.members(node), node.lane) for node in moves if node.kind == COLLECTIVE}
    return len(alike) == 1 and all(node.kind == COLLECTIVE for node in moves)


def replay_compute(execution: Execution) -> tuple[Ran, ...]:
    """The run where all that moves takes no time, in the order of ends."""
    env = simpy.Environment()
    return run_nodes(execution, env, lambda _node, _group: env.timeout(0.0))


def _replay_check(execution: Execution, plans: GroupPlans) -> None:
    """Compile all that the run needs."""
    faults = Faults(execution.source)
    n = plans.setup.layout.n
    faults.check(
        execution.world <= n,
        "",
        f"has {execution.world} ranks, and {plans.setup.topology.name} has {n} devices",
    )
    faults.raise_any()
    for rank, nodes in execution.nodes.items():
        for node in nodes:
            if node.kind == COLLECTIVE:
                group = execution.members(node)
                if not all(member < n for member in group):
                    faults.add(node.name, f"rank {max(group)} of its group: there are {n} devices")
                elif rank not in group:
                    faults.add(node.name, f"rank {rank} is not in its group {group}")
                elif not 0 <= node.root < len(group):
                    faults.add(node.name, f"root {node.root}: its group has {len(group)} ranks")
                elif len(group) > 1 and node.nbytes:
                    facts = node.collective, node.nbytes, group, node.root
                    faults.attempt(node.name, plans.plan, *facts)
            elif node.kind != COMPUTE and node.peer >= n:
                faults.add(node.name, f"rank {node.peer} is its peer: there are {n} devices")
            if len(faults.problems) > _REPLAY_SHOWN:
                faults.raise_any()
    faults.raise_any()


def _exposed(mine: Sequence[Ran]) -> tuple[float, float]:
    """Return the seconds in which a rank's work is exposed, and in which it computes.

    Exposed means that something is under way and it computes nothing.
    """
    computes = length_of([(e.begin, e.end) for e in mine if e.node.kind == COMPUTE])
    return length_of([(e.begin, e.end) for e in mine]) - computes, computes


_REDUCED = ("float", "bfloat")
"""How names of types of gradients begin; other numbers that are summed are none."""
_FORWARD = 1 / 3
"""The forward pass's part of both, where a record does not say; a backward pass has twice the work.
"""
_NOISE = 1e-9
"""Part of a time that sums of floats are off by."""
_CLOSE = 0.01
"""How far off the bytes of gradients may be from those of buckets, which some programs pad."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of a job: its buckets, first ready first.

    `ready` are the seconds from the start of the backward pass until each bucket is. The
    `forward` pass, the `backward` pass and the `update` are in seconds too. The job had so many
    `ranks`.
    """

    model: Model
    sizes: tuple[int, ...]
    ready: tuple[float, ...]
    forward: float
    backward: float
    update: float
    notes: tuple[str, ...]
    ranks: int

    @property
    def is_timed(self) -> bool:
        """Whether the record has times of compute."""
        return self.forward + self.backward > 0.0

    def profile(self, model: Model) -> Profile:
        """The times of a model's layers; InputError unless its gradients fill the buckets."""
        held, whole = sum(self.sizes), model.workload.nbytes
        if abs(whole - held) > _CLOSE * held:
            raise InputError(
                f"its buckets hold {units.format_size(held)}, and the gradients of {model.name} "
                f"{units.format_size(whole)}"
            )
        layers = [sum(g.nbytes for g in layer.gradients) for layer in model.layers]
        ends = np.cumsum([0, *reversed(layers)]) * (held / whole)
        times = np.interp(ends, np.cumsum([0, *self.sizes]), [0.0, *self.ready])
        times[-1] = self.backward
        backward = np.diff(times)[::-1]
        shares = (
            backward / self.backward if self.backward else np.full(len(layers), 1 / len(layers))
        )
        return Profile(
            tuple((self.forward * shares).tolist()), tuple(backward.tolist()),
            f"recorded in {self.model.name}", self.update, self.notes,
        )  # fmt: skip


def load_model(text: str) -> Model:
    """The model that `text` names, or the buckets of the record there."""
    return read_recorded(text).model if is_record(text) else loader.load_model(text)


def load_profile(text: str, model: Model | None) -> Profile | None:
    """The times in the file `text`, a profile or a record, for the layers of `model`.

    Without a model, None after the faults that need none.
    """
    if not is_record(text):
        return profiles.load_profile(text, model)
    found = read_recorded(text)
    if not found.is_timed:
        raise InputError(f"{text}: has no times of compute")
    faults = Faults(text)
    profile = faults.attempt("", found.profile, model) if model else None
    faults.raise_any()
    return profile


def ranks_of(texts: Iterable[str]) -> tuple[str, int]:
    """The record with the most ranks among files that can be read, and these; "" and 0 if none
    is one.
    """
    found = {text: read_recorded(text).ranks for text in texts if is_record(text)}
    return max(found.items(), key=lambda each: each[1], default=("", 0))


def read_recorded(path: str) -> RecordedStep:
    """The step that a record has; ExecutionError says why it is none of a data-parallel job."""
    try:
        found = os.stat(path)  # noqa: PTH116 - Path.stat raises for names that no file can have
        version = found.st_mtime_ns, found.st_size
    except (OSError, ValueError):
        version = 0, 0
    return _read(path, version)


@lru_cache(maxsize=2)
def _read(path: str, _version: tuple[int, int]) -> RecordedStep:
    """A record is large, and its workload and its profile are asked for one after the other."""
    execution = read_executions([path])
    _check(execution)
    (nodes,) = execution.nodes.values()
    sums, notes = _gradients(execution, nodes)
    try:
        ran = replay_compute(Execution(path, {0: nodes}, 1))
    except Deadlock as error:
        raise ExecutionError(str(error)) from None
    runs, order = sorted(ran, key=lambda each: each.number), [each.number for each in ran]
    steps = _steps(nodes, sums, _waits(nodes, order, frozenset(sums)), runs)
    found = [_timed(runs, step) for step in steps]
    took = [sum(times[1:]) for times in found]
    at = took.index(median_low(took))
    ready, forward, backward, update = found[at]
    buckets = [nodes[i] for i in steps[at].sums]
    if len(steps) > 1:
        notes.append(f"of {len(steps)} equal steps, the one with the median time")
    if forward == 0.0 and any(node.phase for node in nodes):
        notes.append("no forward pass is recorded, and none is counted")
    elif forward == 0.0 and backward:
        forward = min(backward * _FORWARD, ready[0])
        ready, backward = tuple(end - forward for end in ready), backward - forward
        notes.append("a third of both passes counts as the forward pass, which is not marked")
    if not any(node.dtype for node in buckets):
        notes.append("gradients count as float32, as no type is recorded")
    sizes = tuple(node.nbytes for node in buckets)
    rest = backward > ready[-1] * (1 + _NOISE)
    model = _model(Path(path).name, buckets, _finest(sizes, execution.cap), rest=rest)
    model.workload  # noqa: B018 - raises for what no workload can be
    said = (*(note for note in execution.notes if note != ALONE), *notes)
    return RecordedStep(model, sizes, ready, forward, backward, update, said, execution.world)


_MOST_RANKS = 1 << 20


def _check(execution: Execution) -> None:
    """ExecutionError with all that a data-parallel job of one recorded rank does not do."""
    faults, path = Faults(execution.source), execution.source
    nodes = [node for row in execution.nodes.values() for node in row]
    if execution.world > _MOST_RANKS:
        words = f"a job of {quote(execution.world)} ranks; at most {_MOST_RANKS:,} are read"
        raise ExecutionError([f"{path}: {words}"])
    everyone = [*range(execution.world)]
    others: Counter[str] = Counter()
    for node in nodes:
        ranks = sorted({*execution.members(node)}) if node.kind == COLLECTIVE else everyone
        name = node.collective.replace("_", "-")
        if ranks != everyone:
            shown = ", ".join(map(str, ranks[:_SHOWN])) + ", ..." * (len(ranks) > _SHOWN)
            others[f"{name} among ranks {shown} of {execution.world}"] += 1
        elif node.kind == COLLECTIVE and node.collective not in ("all_reduce", "broadcast"):
            others[f"{name} among all ranks"] += 1
        elif node.kind not in (COLLECTIVE, COMPUTE):
            others[f"{node.kind} of one rank"] += 1
    for what, count in others.items():
        faults.add("", f"has {units.plural(count, 'call')} of {what}, which no gradients need")
    groups = sorted({node.lane for node in nodes if node.lane.split(" ")[0] == GROUP})
    names = ", ".join(quote(lane.removeprefix(GROUP).strip()) for lane in groups)
    faults.check(len(groups) <= 1, "", f"has process groups {names}, and does not say their ranks")
    if not any(node.kind == COMPUTE for node in nodes):
        faults.add("", "has no compute, so where its steps begin and end is not known")
    elif not others and not any(node.collective == "all_reduce" for node in nodes):
        faults.add("", "has no all-reduce, so no gradients")
    if faults.problems:
        faults.add(
            "", "only all-reduces among all ranks make a data-parallel job; "
            f"`simreduce replay {path} --topology MACHINE` runs what was recorded",
        )  # fmt: skip
        faults.raise_any(ExecutionError)


_SHOWN = 4


def _gradients(execution: Execution, nodes: Sequence[ExecutionNode]) -> tuple[list[int], list[str]]:
    """The all-reduces of gradients by index, and notes on what is left out.

    ExecutionError if nothing is left.
    """
    why_none = {i: _why_none(node) for i, node in enumerate(nodes) if node.kind != COMPUTE}
    sums = [i for i, why in why_none.items() if not why]
    left = grouped((why, nodes[i].nbytes) for i, why in why_none.items() if why)
    notes = [
        f"left out: {why} ({units.plural(len(some), 'call')}, {units.format_size(sum(some))})"
        for why, some in left.items()
    ]
    if not sums:
        raise ExecutionError([f"{execution.source}: no gradients are reduced", *notes])
    return sums, notes


def _why_none(node: ExecutionNode) -> str:
    """What a collective is if it reduces no gradients."""
    rules = (
        (node.collective == "broadcast", "broadcasts, as of buffers"),
        ("barrier" in node.name.lower() or not node.nbytes, "barriers"),
        (node.dtype and not node.dtype.startswith(_REDUCED), f"all-reduces of {node.dtype}"),
        (node.phase not in ("", BACKWARD), "all-reduces outside of the backward pass"),
    )
    return next((what for fits, what in rules if fits), "")


@dataclass(frozen=True, slots=True)
class _Step:
    """Nodes of a step by index: its all-reduces, its passes, and what waits for the all-reduces."""

    sums: list[int]
    passes: list[int]
    update: list[int]


def _steps(
    nodes: Sequence[ExecutionNode], sums: Sequence[int], waits: Sequence[int], runs: Sequence[Ran]
) -> list[_Step]:
    """The steps that reduce what most of them do; of as many, the larger ones.

    A record's marks say which are steps. Without marks, a step is what waits for the all-reduces of
    the one before, if that makes equal steps; the update of one then counts with the next. Else the
    record is of one step.
    """
    marks: Sequence[int | None] = [node.step for node in nodes]
    in_order = sorted(sums, key=lambda i: (runs[i].begin, i))
    if all(mark is None for mark in marks):
        turns = group_by(in_order, waits.__getitem__)
        alike = len({tuple(nodes[i].nbytes for i in row) for row in turns.values()}) == 1
        marks = waits if alike and len(turns) > 1 else [0] * len(nodes)
    rows = group_by(in_order, marks.__getitem__)
    sizes = {mark: tuple(nodes[i].nbytes for i in row) for mark, row in rows.items()}
    chosen, _ = max(Counter(sizes.values()).items(), key=lambda each: (each[1], sum(each[0])))
    found = {mark: _Step(row, [], []) for mark, row in rows.items() if sizes[mark] == chosen}
    last = {mark: max(waits[i] for i in step.sums) for mark, step in found.items()}
    for i, node in enumerate(nodes):
        if node.kind == COMPUTE and (mark := marks[i]) in found:
            late = node.phase == UPDATE if node.phase else waits[i] > last[mark]
            (found[mark].update if late else found[mark].passes).append(i)
    return list(found.values())


def _waits(nodes: Sequence[ExecutionNode], order: Sequence[int], sums: frozenset[int]) -> list[int]:
    """How many all-reduces in turn each node comes after, with compute that waited between them.

    `order` has every node after those that it waits for.
    """
    found = [0] * len(nodes)
    for i in order:
        computes = nodes[i].kind == COMPUTE
        found[i] = max((found[j] + (j in sums and computes) for j in nodes[i].after), default=0)
    return found


def _timed(runs: Sequence[Ran], step: _Step) -> tuple[tuple[float, ...], float, float, float]:
    """When buckets are ready after the forward pass, and the seconds of both passes and the update.

    The forward pass takes no time where nothing is marked as it.
    """
    starts = [runs[i].begin for i in step.sums]
    begin = min([starts[0], *(runs[i].begin for i in step.passes)])
    marked = [runs[i].end for i in step.passes if runs[i].node.phase == FORWARD]
    forward = min(max(marked, default=begin), starts[0])
    backward = max([starts[-1], *(runs[i].end for i in step.passes)])
    end = max([backward, *(runs[i].end for i in step.update)])
    ready = tuple(start - forward for start in starts)
    return ready, forward - begin, backward - forward, end - backward


def _finest(sizes: Sequence[int], cap: int) -> int:
    """The smallest size of buckets that may be made of buckets with these sizes, in bytes.

    It is the cap that the job had. A record without it shows buckets that reached their cap, but
    for the first and the last; DDP's default is taken where they may have.
    """
    inner = sizes[1:-1] if len(sizes) > 2 else [max(sizes)]
    least, usual = min(inner), DdpBuckets().cap
    found = cap or (usual if usual <= least < 2 * usual else least)
    return found // MIB * MIB or found


def _model(name: str, buckets: Sequence[ExecutionNode], finest: int, *, rest: bool) -> Model:
    """A layer for each bucket, the last ready first; one before them for the rest of the pass."""
    layers = [Layer("rest", (), counted=False)] if rest else []
    for place, node in reversed(list(enumerate(buckets))):
        dtype = dtypes.NAMES.index(node.dtype) if node.dtype in dtypes.NAMES else 0
        gradient = Gradient(f"bucket{place}", -(-node.nbytes // dtypes.SIZES[dtype]), dtype)
        layers.append(Layer(gradient.name, (gradient,), counted=False))
    return Model(name, tuple(layers), finest=finest)
