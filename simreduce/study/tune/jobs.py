"""Jobs beside each other, before and after a part of the machine fails, and how many copies fit.

All jobs start again on what is left: NCCL searches the machine anew, and a job that says how many
nodes it has takes others that are free. Of a class of parts, those that differ are simulated, the
first `MOST_TRIED` of them; the worst stands for its class, and the worst of all for the failure.
Parts differ by their links, and by the jobs and the traffic of the devices that these lead to; and
by the nodes of these, unless too many do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count, islice, product, zip_longest
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from simreduce.computing import group_by
from simreduce.computing.workers import Progress
from simreduce.errors import InputError
from simreduce.planners.layouts import node_names
from simreduce.study.job_files import MOST_JOBS, JobsQuestion, build_jobs, build_mix
from simreduce.study.scenario import LoadMachine
from simreduce.study.tune.placement.orders import Orders
from simreduce.topology import load_topology
from simreduce.topology.loader import (
    CLASSES,
    CORE,
    LEAF,
    MOST_TRIED,
    SPINE,
    distinct,
    members,
    part_named,
)
from simreduce.topology.routing.switching import SPLIT
from simreduce.topology.switch_groups import label, switch_groups
from simreduce.training.shared_fabric import JobOutcome, simulate_jobs

MOST_PLACED, _NEAR = 32, 1 << 14
"""Placements that are simulated, and exchanges of the best that are looked at."""
Places = tuple[tuple[int, ...], ...]
"""The nodes of each job."""
_UNKNOWN: Mapping[str, float] = MappingProxyType({})


class JobsFailure(NamedTuple):
    """The worst `part` for the jobs that was tried of those that `fails` means: of `kinds` that
    differ, and `parts` in all; "" if the machine has none. Without `outcomes` the jobs cannot go
    on, for a `reason`.
    """

    fails: str
    part: str = ""
    parts: int = 0
    kinds: int = 0
    outcomes: tuple[JobOutcome, ...] = ()
    reason: str = ""

    @property
    def slowdown(self) -> float:
        """How many times as long as alone on the whole machine the slowest job takes."""
        return max((each.slowdown for each in self.outcomes), default=inf if self.part else 0.0)


class JobsPlacement(NamedTuple):
    """How many placements of the jobs were `tried`, and the worst slowdown on the `given` nodes."""

    tried: int
    given: float


class CopiesFit(NamedTuple):
    """How many copies of a mix of jobs fit where none may take more than `promise` times as long as
    alone, after a failure too, and why no more do.
    """

    promise: float
    copies: int
    limit: str


class JobsAnswer(NamedTuple):
    """Jobs, what came of each, and of the parts that may fail; not `complete` if it was stopped. If
    copies of them `fit`, these are those that do, or one copy if none does. With a `placement`,
    they are on the nodes of the best that was tried, and `alone` is a repetition on the given ones.
    """

    question: JobsQuestion
    outcomes: tuple[JobOutcome, ...]
    failures: tuple[JobsFailure, ...] = ()
    complete: bool = True
    fit: CopiesFit | None = None
    placement: JobsPlacement | None = None

    @property
    def slowest(self) -> JobOutcome:
        """The job that loses most."""
        return max(self.outcomes, key=lambda each: each.slowdown)

    @property
    def lost(self) -> JobsFailure | None:
        """The worst failure; None if nothing fails."""
        parts = [each for each in self.failures if each.part]
        return max(parts, key=lambda each: each.slowdown, default=None)


def answer_jobs(question: JobsQuestion, progress: Progress | None = None) -> JobsAnswer:
    """Simulate the jobs, and then without each part that may fail; on other nodes too, if they are
    to be placed.

    With `progress`, Ctrl-C ends it with the repetitions, failures and placements so far, once every
    job has a repetition. InputError and Deadlock as of `simulate_jobs`.
    """
    given = _simulate(question, progress)
    if not (question.place and given.complete):
        return given
    names, tried = (
        node_names(question.setup.layout, question.setup.topology),
        {question.nodes: given},
    )
    alone, ended = {each.job.name: each.alone for each in given.outcomes}, False
    with suppress(KeyboardInterrupt):
        for nodes in islice(_placements(question, tried), MOST_PLACED - 1):
            if progress:
                progress(len(tried), MOST_PLACED)
            placed = question.place([[label(names[node]) for node in mine] for mine in nodes])
            tried[nodes] = _simulate(placed, None, alone)
        ended = True
    placement = JobsPlacement(len(tried), given.slowest.slowdown)
    return tried[_best(tried)]._replace(placement=placement, complete=ended)


def _best(tried: Mapping[Places, JobsAnswer]) -> Places:
    """The placement whose slowest job loses least; of those, the one whose jobs lose least in all;
    the first of these.
    """
    return min(tried, key=lambda nodes: sorted(
        (round(each.slowdown, 6) for each in tried[nodes].outcomes), reverse=True
    ))  # fmt: skip


def _placements(question: JobsQuestion, tried: Mapping[Places, JobsAnswer]) -> Iterator[Places]:
    """Placements besides the given one: packed by switch, spread over switches, and then those that
    exchange two nodes of the best, one of the slowest job first. Nodes of a job are in the order of
    their switches; of placements that differ by switches that are alike, one is tried.
    """
    names = node_names(question.setup.layout, question.setup.topology)
    orders = Orders(switch_groups(question.setup.topology), names)
    alike = not question.streams and {*CLASSES}.issuperset(question.fails)
    seen = set[tuple[int, ...]]()

    def new(nodes: Iterable[int]) -> Iterator[Places]:
        some = iter(nodes)
        placed = tuple(orders.by_switch([*islice(some, len(mine))]) for mine in question.nodes)
        flat = tuple(chain(*placed))
        key = orders.canonical(orders.leaves(flat)) if alike else flat
        if key not in seen:
            seen.add(key)
            yield placed

    [*new(chain(*question.nodes))]  # which was tried
    yield from new(chain(*orders.members))
    rows = zip_longest(*orders.members, fillvalue=-1)
    yield from new(node for row in rows for node in row if node >= 0)
    while True:
        best = _best(tried)
        order = [*dict.fromkeys([*chain(*best), *range(len(names))])]
        slow = best[tried[best].outcomes.index(tried[best].slowest)]
        places = sorted(range(sum(map(len, best))), key=lambda place: order[place] not in slow)
        for one, other in islice(product(places, range(len(order))), _NEAR):
            if orders.leaf_of[order[one]] != orders.leaf_of[order[other]]:
                swapped = list(order)
                swapped[one], swapped[other] = order[other], order[one]
                yield from new(swapped)
            if _best(tried) != best:
                break
        else:
            return


def _simulate(
    question: JobsQuestion, progress: Progress | None, alone: Mapping[str, float] = _UNKNOWN
) -> JobsAnswer:
    """Simulate the jobs, and then without each part that may fail. `alone` has the seconds of jobs
    by themselves, where these are known.
    """
    bare = [each for text in question.fails for each in _failures(question, text)]
    runs, begun = 1 + sum(each.part != "" for each in bare), count()

    def run(at: JobsQuestion, known: Mapping[str, float]) -> tuple[JobOutcome, ...]:
        before = next(begun)

        def watch(done: int, whole: int) -> None:
            assert progress is not None  # noqa: S101 - nobody else calls it
            progress(before * whole + done, runs * whole)

        return simulate_jobs(at.jobs, at.streams, known, progress and watch)

    outcomes = run(question, alone)
    whole = {each.job.name: each.alone for each in outcomes}

    def lose(failure: JobsFailure) -> JobsFailure:
        try:
            return failure._replace(outcomes=run(question.without(failure.part), whole))
        except InputError as error:
            problems = (each.removeprefix(f"{question.path}: ") for each in error.problems)
            return failure._replace(reason="; ".join(problems).partition(f"; {question.path}")[0])

    tried = list[JobsFailure]()
    with suppress(KeyboardInterrupt):
        for each in bare:
            if not all(one.complete for one in (tried[-1].outcomes if tried else outcomes)):
                break
            tried.append(lose(each) if each.part else each)
    failures = [
        max(some, key=lambda each: each.slowdown)
        for some in group_by(tried, lambda each: each.fails).values()
    ]
    runs_of = outcomes, *(each.outcomes for each in tried)
    ended = all(each.complete for run in runs_of for each in run) and len(tried) == len(bare)
    found = JobsAnswer(question, outcomes, tuple(failures), ended)
    if (lost := found.lost) is None:
        return found
    after = [each.times for each in lost.outcomes] or [(inf,)] * len(outcomes)
    pairs = zip(outcomes, after, strict=True)
    return found._replace(outcomes=tuple(replace(each, after=times) for each, times in pairs))


def _failures(question: JobsQuestion, text: str) -> list[JobsFailure]:
    """The parts that a text means, one of those alike; one without a part if there is none."""
    machine, users = question.setup.topology, defaultdict[str, set[str]](set)
    if text not in CLASSES:
        return [JobsFailure(text, part_named(machine, text), 1, 1)]
    for job in question.jobs:
        for name in job.setup.layout.ranks:
            users[name].add(job.name)
    for stream in question.streams:
        for name in {end for pair in stream.pairs for end in pair}:
            users[name].add(stream.name)
    # Equal paths differ where hashes, or the first of them, choose.
    chosen = machine.router.switching.choice != SPLIT
    switches = [name for kind in (LEAF, SPINE, CORE) for name in members(machine, kind)]
    marks: dict[str, object] = {name: name for name in switches if chosen}
    marks |= {name: frozenset(some) for name, some in users.items()}
    by_node = marks | {k: (some, machine.nodes[k].machine) for k, some in marks.items()}
    names = distinct(machine, [text], by_node)[text]
    if len(names) > MOST_TRIED:
        names = distinct(machine, [text], marks)[text]
    of = len(members(machine, text)), len(names)
    return [JobsFailure(text, name, *of) for name in names[:MOST_TRIED]] or [JobsFailure(text)]


def fit_jobs(
    path: Path,
    document: Mapping[str, Any],
    promise: float,
    load: LoadMachine = load_topology,
    mix: JobsQuestion | None = None,
) -> Iterator[JobsAnswer]:
    """Copy after copy of the jobs of tables that were read from the file at `path`, on the first
    nodes that are free; the last is the answer. ScenarioError as of `build_mix`, unless that has
    built the `mix`.
    """
    alone, found = dict[str, float](), None
    mix = mix or build_mix(path, document, load)
    used, whole = sum(map(len, mix.nodes)), len(mix.setup.layout.tasks)
    most = min(whole // used, MOST_JOBS // len(mix.jobs))
    for copies in range(1, most + 1):
        question = build_jobs(path, document, load, copies) if copies > 1 else mix
        # A copy has the nodes that it had among fewer, so its time alone is known.
        answer = _simulate(question, None, alone)
        alone = {each.job.name: each.alone for each in answer.outcomes}
        if limit := "; ".join(question.misfits) or _too_slow(answer, promise):
            fit = CopiesFit(promise, copies - 1, f"with {copies}, {limit}")
            yield (found or answer)._replace(fit=fit, complete=True)
            return
        limit = f"{copies * used} of {whole} nodes are taken"
        if (copies + 1) * len(mix.jobs) > MOST_JOBS:
            limit = f"at most {MOST_JOBS:,} jobs are simulated"
        found = answer._replace(fit=CopiesFit(promise, copies, limit), complete=copies == most)
        yield found


def _too_slow(answer: JobsAnswer, promise: float) -> str:
    """Which job takes longer than promised; "" if none does."""
    slow, lost = answer.slowest, answer.lost
    if slow.slowdown <= promise:
        return ""
    if slow.slowdown == inf and lost:
        return f"the jobs stop if {lost.part} fails: {lost.reason}"
    after = f" if {lost.part} fails" if lost else ""
    return f"{slow.job.name} takes {slow.slowdown:.2f} times as long{after}"
