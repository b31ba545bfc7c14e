"""Savings by a little more of each resource.

The same plan is simulated again with one thing changed, or with several that help only together.

What a library's limit of rings costs: the same call on each number of GPUs, and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from math import lcm
from typing import Any

import numpy as np

from simreduce import units
from simreduce.computing import group_by
from simreduce.computing.workers import Watch, until_stopped, unwatched
from simreduce.engine import NCCL, LinkConstants, Recording
from simreduce.engine.lowering import Lowered
from simreduce.engine.lowering.resources import CPU, Resources
from simreduce.engine.runtime import Call
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.plan import Kind, Plan
from simreduce.planners.layouts import layout
from simreduce.planners.nccl.time_model import RingLimit
from simreduce.planners.strategy import parse_strategy
from simreduce.study.ranking import Question
from simreduce.study.tune.sizes import DIVIDED, busbw_factor, tensor
from simreduce.topology import DIRECTIONS, Folded, Link, Topology
from simreduce.topology.routing.switching import CHOICES, Switching

MORE, LESS = 1.1, 0.9
TIED = 1e-3
"""Changes that save no more than this part of the time alone may help together."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that is different: `figure` of `resource`, changed by `amount`, as `+10%`.

    Resources are link classes, `gpu memory`, kinds of op, kinds of lane, and of a calibration's
    `[cpu]` its `cores` and their `memory`; `sort` says which (`link`, `nic` for the links of a
    network, `memory`, `dispatch`, `lane`, `cpu`, `routing`, and `together` for several that tie).
    """

    sort: str
    resource: str
    figure: str
    amount: str
    apply: Callable[[Setup], Setup]


COMPUTE = Change("compute", "compute", "speed", "+10%", lambda setup: setup)
"""Faster devices or workers. What computes belongs to the job, not to the machine."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A change and the seconds of the plan with it."""

    change: Change
    seconds: float
    saved: float


def savings(recording: Recording, setup: Setup, watch: Watch = unwatched) -> tuple[Saving, ...]:
    """Every change of `changes` to what this plan meets, and other routes, as `compare` gives
    them.
    """
    plan, before = recording.plan, recording.result.seconds
    tried = (
        *changes(setup, recording.resources, [(plan, recording.lowered)]),
        *routings(setup),
    )
    return compare(tried, before, lambda change: change.apply(setup).find_seconds(plan), watch)


def compare(
    tried: Sequence[Change],
    before: float,
    simulate: Callable[[Change], float],
    watch: Watch = unwatched,
) -> tuple[Saving, ...]:
    """Return the saving of every change, largest first.

    `simulate` gives a change's seconds, where nothing changed took `before`. Changes of one figure
    that help only together are one saving more. A change that costs time saves less than 0. Ctrl-C
    leaves out the changes that are not simulated yet, if there is a saving.
    """
    found: list[Saving] = []

    def save(change: Change) -> Saving:
        after = simulate(change)
        return Saving(change, after, before - after)

    def each() -> Iterator[Change]:
        for change in tried:
            found.append(save(change))
            if change is tried[-1]:
                weak = [s for s in found if abs(s.saved) <= TIED * before]
                for same in group_by(weak, lambda saving: saving.change.figure).values():
                    found.extend(_tied(same, save, TIED * before))
            yield change

    until_stopped(watch(each(), len(tried)), lambda _: found)
    return tuple(sorted(found, key=lambda s: -s.saved))


def _tied(
    weak: Sequence[Saving], simulate: Callable[[Change], Saving], least: float
) -> list[Saving]:
    """The fewest of these changes that together save `least` seconds more than each alone."""
    best = None
    for left_out in (None, *weak):  # first all of them, and then without those that add nothing
        some = [s for s in weak if s is not left_out]
        if len(some) < 2:
            break
        joint = simulate(_together([s.change for s in some]))
        if joint.saved - sum(s.saved for s in some) > least:
            best, weak = joint, some
        elif left_out is None:
            break
    return [best] if best else []


def _together(parts: Sequence[Change]) -> Change:
    resources = " + ".join(part.resource for part in parts)
    apply = partial(reduce, lambda setup, part: part.apply(setup), parts)
    return Change("together", resources, parts[0].figure, parts[0].amount, apply)


def changes(
    setup: Setup, resources: Resources, plans: Iterable[tuple[Plan, Lowered]]
) -> Iterator[Change]:
    """The changes to try: one for each figure that these plans meet, each with its lowering.

    These are of the links they cross, the memories, dispatch and lanes they use.
    """
    used, paid, lanes = set[int](), dict[str, None](), dict[str, None]()
    for plan, lowered in plans:
        each = lowered.by_op
        used.update(np.unique(each.uses).tolist())
        kinds = np.unique(plan.kind[each.overhead + each.work > 0]).tolist()
        paid |= dict.fromkeys(Kind(k).name.lower() for k in kinds)
        held = np.unique(each.lanes).tolist()
        lanes |= dict.fromkeys(lane_kind(lowered.lane_names[lane]) for lane in held)
    links = setup.topology.links
    crossed = [links[i] for i in sorted(used) if i < len(links)]
    for name, mine in group_by(crossed, lambda link: link.link_class).items():
        sort = "nic" if any(_network(setup.topology, link) for link in mine) else "link"
        yield Change(sort, name, "bandwidth", "+10%", partial(_links, name, bandwidth=MORE))
        yield Change(sort, name, "lanes", "one more on each", partial(_more_lanes, name))
        if any(resources.latency[link.id] for link in mine):
            yield Change(sort, name, "latency", "-10%", partial(_links, name, latency=LESS))
    index = {i: name for name, i in resources.memory.items()}
    kinds = [setup.topology.nodes[index[i]].kind for i in sorted(used) if i in index]
    yield from (
        Change("memory", f"{kind} memory", "bandwidth", "+10%", partial(_memory, kind))
        for kind in dict.fromkeys(kinds)
    )
    yield from (
        Change("dispatch", name, "cost", "-10%", partial(_dispatch, name))
        for name in paid
        if setup.calibration.dispatch.get(name) or setup.calibration.issue.get(name)
    )
    if used & set(resources.cores.values()) or CPU in lanes:
        yield Change("cpu", "cores", "speed", "+10%", _cores)
    if used & set(resources.shared_memory.values()):
        yield Change("cpu", "memory", "bandwidth", "+10%", _shared_memory)
    yield from (
        Change("lane", name, "queue", "none", partial(_no_queue, name))
        for name in lanes
        if name != CPU
    )


def routings(setup: Setup) -> Iterator[Change]:
    """Every other choice among equal paths, where there are some."""
    chosen = setup.topology.router.switching
    others = [each for each in CHOICES if each != chosen.choice]
    for choice in others if setup.topology.router.several else ():
        switching = partial(_switching, replace(chosen, choice=choice))
        yield Change("routing", "equal paths", "equal_cost", choice, switching)


def network_changes(topology: Topology) -> Iterator[Change]:
    """One more lane on every link of each class that joins machines, whatever a plan uses."""
    classes = (link.link_class for link in topology.links if _network(topology, link))
    for name in dict.fromkeys(classes):
        yield Change("nic", name, "lanes", "one more on each", partial(_more_lanes, name))


def lane_kind(lane: str) -> str:
    """`gpu0>gpu1 nccl 5` is of the kind `nccl`."""
    return " ".join(word for word in lane.split(" ")[1:] if not word.lstrip("-").isdecimal())


def _network(topology: Topology, link: Link) -> bool:
    """Whether a link belongs to the network between machines."""
    return "switch" in (topology.nodes[link.source].kind, topology.nodes[link.target].kind)


def _on(machine: Topology, setup: Setup) -> Setup:
    """The setup on the same machine with other figures."""
    return setup.but(machine=machine, part=setup.part)


def _switching(other: Switching, setup: Setup) -> Setup:
    return _on(setup.topology.vary(switching=other), setup)


def _with_links(setup: Setup, name: str, change: Callable[[Link], Link]) -> Topology:
    """The machine with other links of a class. Transfers keep the routes they have."""
    return setup.topology.with_figures(
        links=(change(each) if each.link_class == name else each for each in setup.topology.links)
    )


def _links(name: str, setup: Setup, bandwidth: float = 1.0, latency: float = 1.0) -> Setup:
    """Scale the figures of every link of a class.

    The figures may come from the topology or from the calibration, there for the class, a direction
    or one link.
    """

    def link(each: Link) -> Link:
        return replace(each, bandwidth=each.bandwidth * bandwidth, latency=each.latency * latency)

    def scaled(old: LinkConstants) -> LinkConstants:
        return LinkConstants(
            None if old.bandwidth is None else old.bandwidth * bandwidth,
            None if old.latency is None else old.latency * latency,
        )

    members = {name, *(f"{name}:{way}" for way in DIRECTIONS)}
    members.update(each.name for each in setup.topology.links if each.link_class == name)
    constants = {
        key: scaled(old) if key in members else old for key, old in setup.calibration.links.items()
    }
    return _on(_with_links(setup, name, link), _calibrated(setup, links=constants))


def _more_lanes(name: str, setup: Setup) -> Setup:
    def link(each: Link) -> Link:
        more = each.lanes + 1
        return replace(each, lanes=more, bandwidth=each.bandwidth * (more / each.lanes))

    return _on(_with_links(setup, name, link), setup)


def _memory(kind: str, setup: Setup) -> Setup:
    nodes = {
        name: replace(each, memory_bandwidth=each.memory_bandwidth * MORE)
        if each.kind == kind
        else each
        for name, each in setup.topology.nodes.items()
    }
    return _on(setup.topology.with_figures(nodes=nodes), setup)


def _calibrated(setup: Setup, **changes: Any) -> Setup:
    return setup.but(calibration=replace(setup.calibration, **changes))


def _dispatch(name: str, setup: Setup) -> Setup:
    known = setup.calibration
    costs = {key: dict(getattr(known, key)) for key in ("dispatch", "issue")}
    for known_costs in costs.values():
        if name in known_costs:
            known_costs[name] *= LESS
    return _calibrated(setup, **costs)


def _cores(setup: Setup) -> Setup:
    cpu = setup.calibration.cpu
    assert cpu  # noqa: S101 - something waits for it
    costs = {name: cost / MORE for name, cost in setup.calibration.dispatch.items()}
    rates = {name: rate * MORE for name, rate in cpu.rates.items()}
    cpu = replace(cpu, message=cpu.message / MORE, rates=rates, past_own=cpu.past_own * MORE)
    return _calibrated(setup, dispatch=costs, cpu=cpu)


def _shared_memory(setup: Setup) -> Setup:
    cpu = setup.calibration.cpu
    assert cpu  # noqa: S101 - something is written to it
    return _calibrated(setup, cpu=replace(cpu, memory=cpu.memory * MORE))


def _no_queue(name: str, setup: Setup) -> Setup:
    def without(queues: Callable[[Call], tuple[str, ...]]) -> Callable[[Call], tuple[str, ...]]:
        return lambda call: tuple(lane for lane in queues(call) if lane_kind(lane) != name)

    own = setup.runtime
    lanes, pipes, host = map(without, (own.lanes, own.pipes, own.host))
    return setup.but(runtime=replace(own, lanes=lanes, pipes=pipes, host=host))


_SAMPLE = 64_000_000
"""Bytes of the all-reduce with which a warning says what the limit costs."""
_WORTH = 0.95
_PART = 16
"""Bytes by which parts of ranks are aligned."""


@dataclass(frozen=True, slots=True)
class OnGpus:
    """The call on some of the GPUs of a node: its seconds, and bus bandwidth in bytes/s."""

    gpus: int
    seconds: float
    busbw: float


@dataclass(frozen=True, slots=True)
class FewRings:
    """A call whose library takes only `rings` rings on so many GPUs of a node.

    `counts` has the same call, of `nbytes`, on 2 GPUs and more, and `lifted` it with
    NCCL_MIN_NCHANNELS, so many `channels`.
    """

    gpus: int
    rings: int
    channels: int
    nbytes: int
    counts: Sequence[OnGpus]
    lifted: OnGpus


def few_rings(question: Question) -> FewRings | None:
    """What the limit costs; None where there is none, or more channels make the call no faster."""
    setup = question.setup
    limit = ring_limit(setup) if question.strategy.by_nccl else None
    if limit is None:
        return None
    whole = layout(setup.machine)
    question = _divisible(question, len(whole.tasks[0]))
    if (gain := _gain(question, limit)) is None:
        return None
    counts = [
        _ask(replace(question, setup=setup.but(part=whole.only(range(n)))))
        for n in range(2, len(whole.tasks[0]) + 1)
    ]
    return FewRings(
        setup.layout.n, *limit, question.workload.nbytes, [each for each in counts if each], gain[1]
    )


def _divisible(question: Question, most: int) -> Question:
    """The question of a size that 2 to `most` GPUs cut into equal parts, if the collective cuts."""
    workload, whole = question.workload, lcm(*range(2, most + 1)) * _PART
    cut = question.strategy.collective in DIVIDED and workload.nbytes >= whole
    if not cut or len(workload.gradients) > 1:
        return question
    return replace(
        question, workload=tensor(workload.nbytes // whole * whole, workload.gradients[0].dtype)
    )


def library_warning(setup: Setup, runtimes: Iterable[str]) -> str:
    """What the limit costs an all-reduce by one of these runtimes, and what to set; whose constants
    the times have; and whether bytes go another way than NCCL's. "" where there is no limit, or
    more channels are not faster, the constants are the generation's own, and the way is NCCL's.
    """
    if NCCL.name not in set(runtimes):
        return ""
    limit = ring_limit(setup)
    slow = _warning(setup, limit) if limit else ""
    return "; ".join(filter(None, [slow, setup.borrowed, setup.split]))


@lru_cache(maxsize=64)
def _warning(setup: Setup, limit: RingLimit) -> str:
    strategy = parse_strategy("nccl")
    gain = _gain(Question(strategy, tensor(_SAMPLE, 0), setup.running(strategy)), limit)
    if gain is None:
        return ""
    now, then = (units.format_duration(each.seconds) for each in gain)
    return (
        f"RCCL takes {limit.rings} rings on {setup.layout.n} GPUs of a node: an all-reduce of"
        f" {units.format_size(_SAMPLE)} takes {now}, {then} with"
        f" NCCL_MIN_NCHANNELS={limit.channels}"
    )


def _gain(question: Question, limit: RingLimit) -> tuple[OnGpus, OnGpus] | None:
    """The call as it is, and with more channels; None unless these make it faster."""
    settings = replace(question.setup.nccl, min_channels=limit.channels)
    own, lifted = map(_ask, (question, replace(question, setup=question.setup.but(nccl=settings))))
    if own is None or lifted is None or lifted.seconds > _WORTH * own.seconds:
        return None
    return own, lifted


def ring_limit(setup: Setup) -> RingLimit | None:
    """The rings that the library allows on the GPUs; None where it allows as many as elsewhere."""
    return None if isinstance(setup.machine, Folded) else setup.communicator.model.ring_limit


def _ask(question: Question) -> OnGpus | None:
    try:
        seconds = question.setup.simulate(question.compile()).seconds
    except InputError:
        return None
    n = question.setup.layout.n
    return OnGpus(
        n,
        seconds,
        question.workload.nbytes / seconds * busbw_factor(question.strategy.collective, n),
    )
