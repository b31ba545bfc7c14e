"""Jobs beside each other, before and after a part of the machine fails, and how many copies fit.

All jobs start again on what is left: NCCL searches the machine anew, and a job that says how many
nodes it has takes others that are free. Nodes that nothing joins to the rest count as lost. Of a
class of parts, those that differ are simulated, the first `MOST_TRIED` of them; the worst stands
for its class, and the worst of all for the failure.
Parts differ by their links, and by the jobs and the traffic of the devices that these lead to; and
by the nodes of these, unless too many do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, count, islice, product, takewhile, zip_longest
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from simreduce import units
from simreduce.computing import group_by, grouped
from simreduce.computing.workers import Progress, until_stopped
from simreduce.engine import NCCL
from simreduce.errors import InputError
from simreduce.planners.layouts import node_names
from simreduce.study.advice import Sureness
from simreduce.study.job_files import MOST_JOBS, JobsQuestion, build_jobs, build_mix
from simreduce.study.scenario import WORTH, LoadMachine
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

MOST_PLACED, MOST_COMPARED, _NEAR = 32, 8, 1 << 14
"""Placements that are simulated, of which so many after failures, and exchanges of the best that
are looked at.
"""
Places = tuple[tuple[int, ...], ...]
"""The nodes of each job."""
_NO_MORE_JOBS = f"at most {MOST_JOBS} jobs are simulated"
_UNKNOWN: Mapping[str, float] = MappingProxyType({})


def finite(value: float | None) -> float | None:
    """A figure of a job; None for what a failure stops."""
    return value if value is not None and value < inf else None


class JobsFailure(NamedTuple):
    """The worst `part` for the jobs that was tried of those that `fails` means: of `kinds` that
    differ, and `parts` in all; "" if the machine has none. Jobs that cannot go on, for a `reason`,
    take for ever; the `outcomes` of others are those without them, and without traffic that is
    `idle` then. `whose` are the jobs on the node of the part. `worst` has each job with the part of
    these that costs it most, and its slowdown.
    """

    fails: str
    part: str = ""
    parts: int = 0
    kinds: int = 0
    outcomes: tuple[JobOutcome, ...] = ()
    reason: str = ""
    whose: str = ""
    worst: tuple[tuple[str, str, float], ...] = ()
    idle: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """The part, and whose it is."""
        return f"{self.part} (of {self.whose})" if self.whose else self.part

    @property
    def slowest(self) -> JobOutcome | None:
        """The job that loses most; None if there is no such part."""
        return max(self.outcomes, key=lambda each: each.slowdown, default=None)

    @property
    def slowdown(self) -> float:
        """How many times as long as alone on the whole machine it takes."""
        return self.slowest.slowdown if self.slowest else inf

    @property
    def stops(self) -> list[str]:
        """The jobs that cannot go on."""
        return [each.job.name for each in self.outcomes if each.slowdown == inf]

    @property
    def cost(self) -> tuple[int, float]:
        """The greater, the worse: first by how many jobs stop."""
        return len(self.stops), self.slowdown


class CopiesFit(NamedTuple):
    """How many copies of a mix of jobs fit where none may take more than `promise` times as long as
    alone, after a failure too, and why no more do.
    """

    promise: float
    copies: int
    limit: str


class JobsAnswer(NamedTuple):
    """Jobs, what came of each, and of the parts that may fail, of which `lost` is the worst; not
    `complete` if it was stopped.

    If copies of them `fit`, these are those that do, or one copy if none does. Where so many
    placements were `tried`, they are on the nodes of the best of these, unless the given one is
    `kept`, as none is worth a move; and `alone` is a repetition on the given nodes, where the
    slowest job's slowdown is `given`, and `healthy` while nothing fails.
    """

    question: JobsQuestion
    outcomes: tuple[JobOutcome, ...]
    failures: tuple[JobsFailure, ...]
    lost: JobsFailure | None
    complete: bool
    fit: CopiesFit | None = None
    tried: int = 0
    given: float = 0.0
    kept: bool = False
    healthy: float = 0.0

    @property
    def slowest(self) -> JobOutcome:
        """The job that loses most."""
        return max(self.outcomes, key=lambda each: each.slowdown)

    @property
    def factor(self) -> float | None:
        """Times of each job's calls of NCCL are within this factor with 80 %; None if that is not
        known of one.
        """
        found, jobs = list[float](), self.question.jobs
        for job in jobs:
            if job.plan and job.setup.runtime.name == NCCL.name:
                ends = job.setup.interval(int(job.plan.nbytes.max()), 1.0)
                found += [Sureness(*ends).factor] if ends else []
        return max(found) if len(found) == len(jobs) else None

    @property
    def alone(self) -> dict[str, float]:
        """Seconds of the jobs by themselves, by name."""
        return {each.job.name: each.alone for each in self.outcomes}

    @property
    def loss(self) -> str:
        """What that job loses, in words, and by which failure."""
        slow, after = self.slowest, f" if {self.lost.words} fails" if self.lost else ""
        if self.lost and (names := self.lost.stops):
            who = "the jobs" if len(names) == len(self.outcomes) else units.first_few(names)
            return f"{who} {units.noun(len(names), 'stops', 'stop')}{after}: {self.lost.reason}"
        return f"{slow.job.name} takes {slow.slowdown:.2f} times as long as alone{after}"


def answer_jobs(question: JobsQuestion, progress: Progress | None = None) -> JobsAnswer:
    """Simulate the jobs, and then without each part that may fail; on other nodes too, if they are
    to be placed: all of these while nothing fails, and then the best of them after each failure.

    With `progress`, Ctrl-C ends it with the repetitions, failures and placements so far, once every
    job has a repetition. InputError and Deadlock as of `simulate_jobs`.
    """
    each = sum(job.count for job in question.jobs)
    parts = sum(bool(failure.part) for failure in _parts(question)) if progress else 0
    more = MOST_PLACED - 1 + (MOST_COMPARED - 1) * parts if question.place else 0
    total = each * (1 + parts + more)
    told = (progress(each * i, total) for i in count(1)) if progress else iter(())
    within = (lambda done, _: progress(done, total)) if progress else None
    given = _simulate(question, within, told=told)
    if not (question.place and given.complete):
        return given
    names = node_names(question.setup.layout, question.setup.topology)
    whole = given._replace(outcomes=tuple(replace(job, after=()) for job in given.outcomes))
    calm = {question.nodes: whole}
    tried, ended = {question.nodes: given} if question.fails else calm, False
    with suppress(*((KeyboardInterrupt,) if progress else ())):
        for nodes in islice(_placements(question, names, calm), MOST_PLACED - 1):
            next(told, None)
            with suppress(InputError):  # of nodes that cannot run a job
                placed = question.place([[label(names[node]) for node in mine] for mine in nodes])
                calm[nodes] = _simulate(replace(placed, fails=()), None, given.alone)
        others = [nodes for nodes in calm if nodes not in tried]
        others.sort(key=lambda nodes: _slowdowns(calm[nodes]))
        for nodes in others[: MOST_COMPARED - 1]:
            placed, best = replace(calm[nodes].question, fails=question.fails), tried[_best(tried)]
            found = _simulate(placed, None, given.alone, told, calm[nodes].outcomes, best)
            tried |= {nodes: found if found.complete else best}  # which the first of equal ones is
        ended = True
    best = tried[_best(tried)]
    pairs = zip(_slowdowns(given), _slowdowns(best), strict=True)
    differ = (
        before <= after for before, after in pairs
        if max(before, after) > min(before, after) * (1 + WORTH)
    )  # fmt: skip
    kept = next(differ, True)
    return (given if kept else best)._replace(
        tried=len(tried), given=given.slowest.slowdown, kept=kept, complete=ended,
        healthy=calm[question.nodes].slowest.slowdown,
    )  # fmt: skip


def _slowdowns(found: JobsAnswer) -> list[float]:
    """How many times as long as alone jobs take, the slowest first."""
    return sorted((round(each.slowdown, 6) for each in found.outcomes), reverse=True)


def _best(tried: Mapping[Places, JobsAnswer]) -> Places:
    """The placement whose slowest job loses least; of those, the next slowest decides; the first of
    equal ones.
    """
    return min(tried, key=lambda nodes: _slowdowns(tried[nodes]))


def _placements(
    question: JobsQuestion, names: Sequence[str], tried: Mapping[Places, JobsAnswer]
) -> Iterator[Places]:
    """Placements: the given one, packed by switch, spread over switches, and then those that
    exchange two nodes of the best, one of the slowest job first. Nodes of a job are in the order of
    their switches; of placements that differ by switches that are alike, one is tried.
    """
    orders, seen = Orders(switch_groups(question.setup.topology), names), set[tuple[int, ...]]()
    alike = not question.streams and {*CLASSES}.issuperset(question.fails)

    def new(nodes: Iterable[int]) -> Iterator[Places]:
        some = iter(nodes)
        placed = tuple(orders.by_switch([*islice(some, len(mine))]) for mine in question.nodes)
        flat = tuple(chain(*placed))
        key = orders.canonical(orders.leaves(flat)) if alike else flat
        if key not in seen and placed not in tried:
            yield placed
        seen.add(key)

    spread = (node for node in chain(*zip_longest(*orders.members, fillvalue=-1)) if node >= 0)
    for nodes in (chain(*question.nodes), chain(*orders.members), spread):
        yield from new(nodes)
    while True:
        best = _best(tried)
        order = [*dict.fromkeys([*chain(*best), *range(len(names))])]
        slow = best[tried[best].outcomes.index(tried[best].slowest)]
        places = sorted(range(sum(map(len, best))), key=lambda place: order[place] not in slow)
        pairs = islice(product(places, range(len(order))), _NEAR)
        for one, other in takewhile(lambda _: _best(tried) == best, pairs):  # noqa: B023 - at once
            if orders.leaf_of[order[one]] != orders.leaf_of[order[other]]:
                swapped = dict(enumerate(order)) | {one: order[other], other: order[one]}
                yield from new(swapped.values())
        if _best(tried) == best:
            return


def _simulate(
    question: JobsQuestion, progress: Progress | None = None,
    alone: Mapping[str, float] = _UNKNOWN, told: Iterator[object] | None = None,
    whole: tuple[JobOutcome, ...] = (), best: JobsAnswer | None = None,
) -> JobsAnswer:  # fmt: skip
    """Simulate the jobs, unless the `whole` is known, and then without each part that may fail.

    `alone` has the seconds of jobs by themselves, where these are known. `told` takes a step at
    each failure. The answer is not complete if a failure makes it worse than the `best` of others;
    parts like the worst of that one are tried first.
    """
    whole = whole or simulate_jobs(question.jobs, question.streams, alone, progress)
    known = {each.job.name: each.alone for each in whole}

    def lose(failure: JobsFailure) -> JobsFailure:
        next(told or iter(()), None)
        after, reason, idle = dict[str, JobOutcome](), "", list[str]()
        try:
            left = question.without(failure.part)
            found = simulate_jobs(left.jobs, left.streams, known)
            after, reason = {each.job.name: each for each in found}, "; ".join(left.lost.values())
            idle = [name for name in left.lost if name not in known]
        except InputError as error:
            problems = "; ".join(error.problems).replace(f"{question.path}: ", "")
            reason = problems.partition("; fails cuts ")[0]
        outcomes = (after.get(each.job.name, replace(each, times=(inf,))) for each in whole)
        return failure._replace(outcomes=tuple(outcomes), reason=reason, idle=tuple(idle))

    parts = _parts(question) if all(each.complete for each in whole) else []
    limit = best.slowest.slowdown * (1 + 1e-6) if best else inf
    worst = (best.lost.fails, best.lost.whose) if best and best.lost else ("", "")
    order = sorted(parts, key=lambda each: (each.fails, each.whose) != worst)
    coming = (lose(each) if each.part else each for each in order)
    fine = takewhile(lambda each: not each.part or each.slowdown <= limit, coming)
    tried = until_stopped(fine, lambda _: progress is not None)
    tried.sort(key=lambda each: question.fails.index(each.fails))
    of_each = group_by(tried, lambda each: each.fails).values()
    failures = tuple(_worst(some) for some in of_each)
    real = (each for each in failures if each.part)
    lost = max(real, key=lambda each: each.cost, default=None)
    if lost is not None:
        pairs = zip(whole, lost.outcomes, strict=True)
        whole = tuple(replace(each, after=left.times) for each, left in pairs)
    complete = all(each.complete for each in whole) and len(tried) == len(parts)
    return JobsAnswer(question, whole, failures, lost, complete)


def _parts(question: JobsQuestion) -> list[JobsFailure]:
    """All parts whose failures are simulated."""
    return [each for text in question.fails for each in _failures(question, text)]


def _worst(tried: Sequence[JobsFailure]) -> JobsFailure:
    """The worst failure of parts of one kind for the jobs, with the worst of them for each job."""
    lost = grouped(
        (each.job.name, (each.slowdown, failure.part))
        for failure in tried
        for each in failure.outcomes
    )
    worst = ((job, *max(some, key=lambda pair: pair[0])[::-1]) for job, some in lost.items())
    return max(tried, key=lambda each: each.cost)._replace(worst=tuple(worst))


def _failures(question: JobsQuestion, text: str) -> list[JobsFailure]:
    """The parts that a text means, one of those alike; one without a part if there is none."""
    machine = question.setup.topology
    if text not in CLASSES:
        part = part_named(machine, text)
        return [JobsFailure(text, part, 1, 1, whose=_owners(question, part))]
    # Equal paths differ where hashes, or the first of them, choose.
    chosen = (LEAF, SPINE, CORE) if machine.router.switching.choice != SPLIT else ()
    marks: dict[str, object] = {name: name for kind in chosen for name in members(machine, kind)}
    marks |= {rank: job.name for job in question.jobs for rank in job.setup.layout.ranks}
    for stream in question.streams:
        ends = {end for pair in stream.pairs for end in pair}
        marks |= {end: (marks.get(end), stream.name) for end in ends}
    by_node = {name: (mark, machine.nodes[name].machine) for name, mark in marks.items()}
    names = distinct(machine, [text], by_node)[text]
    if len(names) > MOST_TRIED:
        names = distinct(machine, [text], marks)[text]
    of = len(members(machine, text)), len(names)
    return [
        JobsFailure(text, name, *of, whose=_owners(question, name)) for name in names[:MOST_TRIED]
    ] or [JobsFailure(text)]


def _owners(question: JobsQuestion, part: str) -> str:
    """The jobs on the node that is this part or has it; "" for none."""
    nodes = question.setup.topology.nodes
    machine = nodes[part].machine if part in nodes else part
    found = (
        job.name
        for job in question.jobs
        if machine and any(nodes[rank].machine == machine for rank in job.setup.layout.ranks)
    )
    return " and ".join(found)


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
    mix, found = mix or build_mix(path, document, load), None
    used, whole = sum(map(len, mix.nodes)), len(mix.setup.layout.tasks)
    most = min(whole // used, MOST_JOBS // len(mix.jobs))
    for copies in range(1, most + 1):
        question = build_jobs(path, document, load, copies) if copies > 1 else mix
        # A copy has the nodes that it had among fewer, so its time alone is known.
        answer = _simulate(question, None, found.alone if found else _UNKNOWN)
        if question.misfits or answer.slowest.slowdown > promise:
            why = "; ".join(question.misfits) or answer.loss
            fit = CopiesFit(promise, copies - 1, f"with {copies}, {why}")
            yield (found or answer)._replace(fit=fit, complete=True)
            return
        more = copies < most or whole // used == most
        limit = f"{copies * used} of {whole} nodes are taken" if more else _NO_MORE_JOBS
        found = answer._replace(fit=CopiesFit(promise, copies, limit), complete=copies == most)
        yield found
