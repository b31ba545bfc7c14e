"""A closer look at one strategy of a ranking: what reports and the local page show beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeAlias

from simreduce.computing.workers import Work
from simreduce.errors import InputError
from simreduce.export import Exported, export_choice
from simreduce.export.frameworks import MESH_PROGRAMS
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.report.bench import BENCH, SizeTimes
from simreduce.report.blocks import MOST_BARS, Attachments, Written, timeline_of_threads
from simreduce.report.explain import EXPLAIN, Explained
from simreduce.report.ranking import answer_row
from simreduce.report.trace import recording_threads
from simreduce.study.advice import Advised
from simreduce.study.frameworks import files_of
from simreduce.study.ranking import ask, choice_of
from simreduce.study.scenario import Scenario
from simreduce.study.tune.meshes import MeshRanking, Ranking
from simreduce.study.tune.rank import Candidate, StrategyRanking, plain_specs
from simreduce.study.tune.sizes import bench
from simreduce.study.tune.whatif import savings
from simreduce.training.mesh import MeshJob
from simreduce.training.sharded import DDP

_SIZES = tuple(1 << power for power in range(16, 29, 2))
"""Bytes of the tensors of the curves: 64 KiB to 256 MiB."""


Show: TypeAlias = Callable[[str], AbstractContextManager[Work]]
"""Shows some work while it lasts: `simulating the plan`, `simulated {} of {} sizes`."""


def answer_of(ranking: StrategyRanking, document: Written) -> Candidate | None:
    """The candidate that a page answers with; None if no plan is proven. The document is that of
    the ranking.
    """
    row = answer_row(document)
    return next((c for c in ranking.candidates if row and c.strategy.text == row["strategy"]), None)


def exports_of(
    ranking: StrategyRanking, chosen: Candidate, most: int | None = None
) -> tuple[Exported, ...]:
    """Settings of a candidate for other systems: of a framework those that it is advised.

    Another system that has none for it gets the fastest of the first `most` strategies that it has
    one for.
    """
    proven = [c.strategy for c in ranking.candidates if not c.wrong][:most]
    found = export_choice(choice_of(ask(ranking.scenario, chosen.strategy), None), proven)
    advice = ranking.advice if chosen is ranking.recommended else ()
    return _as_advised(found, advice, ranking.scenario, chosen.strategy.text)


def step_exports(ranking: Ranking) -> tuple[Exported, ...]:
    """As `exports_of`, of the recommended step; none for modes, and for a mesh too large."""
    if isinstance(ranking, MeshRanking):
        return () if ranking.recommended.misfit else tuple(_mesh_exports(ranking.job))
    scenario, name = ranking.scenario, ranking.recommended.step.method
    if scenario.step.mode:
        return ()
    method, _, text = name.rpartition(", ")
    found = export_choice(
        choice_of(ask(scenario, parse_strategy(text)), scenario.step, method or DDP)
    )
    return _as_advised(found, ranking.advice, scenario, name)


def _mesh_exports(job: MeshJob) -> Iterator[Exported]:
    """The flags and files of every program that can run a mesh, or why it cannot."""
    for name, program in MESH_PROGRAMS.items():
        reasons = tuple(program.why_not(job))
        yield Exported(name, program.title, {} if reasons else program.export(job), reasons)


def _as_advised(
    found: Iterable[Exported], advice: Iterable[Advised], scenario: Scenario, shown: str
) -> tuple[Exported, ...]:
    """The settings with those that frameworks are advised, these first and in the order of advice.

    They are of another strategy than what is `shown`, where that differs.
    """
    advised = dict[str, Exported]()
    for each in advice:
        name = each.option.name
        method, _, text = name.rpartition(", ")
        if files := files_of(each.framework, scenario, parse_strategy(text), method or DDP):
            instead = name if name != shown else ""
            advised[each.framework] = Exported(each.framework, each.title, files, instead=instead)
    return (*advised.values(), *(each for each in found if each.name not in advised))


def look_closer(
    question: Scenario, strategy: Strategy, beside: Attachments, show: Show, bars: int = MOST_BARS
) -> tuple[Attachments, bool]:
    """With the load of each link, the critical path, what would help, and the timeline; and whether
    nothing is missing.
    """
    try:
        with show("simulating the plan"):
            asked = ask(question, strategy)
            recording = asked.setup.record(asked.compile_all())
    except InputError as error:  # too large to hold, or nothing can be recorded of it
        return replace(beside, missing=f"Not simulated in detail: {error.problems[0]}"), True
    with show("simulated {} of {} changes") as work:
        found = savings(recording, asked.setup, work.watch)
    with show("drawing the timeline"):
        threads = recording_threads(recording, asked.setup.topology)
        timeline = timeline_of_threads(threads, recording.result.path.op.tolist(), bars)
    moved = asked.setup.find_moved(recording.plan, recording.result.seconds)
    explanation = EXPLAIN.write(Explained(recording, found, asked.about, work.complete, moved))
    return replace(beside, explanation=explanation, timeline=timeline), work.complete


def bench_sizes(
    ranking: StrategyRanking, chosen: Candidate, most: int, show: Show
) -> tuple[Written | None, bool]:
    """The document of a bench of at most so many algorithms, those of the candidate and then the
    fastest, and whether nothing is missing; no document if the machine refuses all.
    """
    setup, strategies = ranking.scenario.setup, plain_specs(ranking, chosen, most)
    total = len(strategies) * len(_SIZES)
    try:
        with show("simulated {} of {} sizes") as work:
            rows = work.watch_until_stopped(bench(setup, strategies, _SIZES), total)
            done = [row for row in rows if row.unfinished is None]
    except InputError:
        return None, True
    return BENCH.write(SizeTimes(setup, done, complete=work.complete)), work.complete
