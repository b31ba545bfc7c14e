"""What the page shows of a view, in steps: as soon as something is known, it is sent."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from simreduce.errors import InputError
from simreduce.export.targets import hand_over
from simreduce.formats import toml_text
from simreduce.pages import Beside, answer_row, make_page, page_parts, timeline_of_events
from simreduce.pages.values import Picture
from simreduce.pictures import Mark, heat_picture, to_svg
from simreduce.report.bench import bench_document
from simreduce.report.explain import explanation_document
from simreduce.report.ranking import preview_lines, ranking_document
from simreduce.scenario import Scenario
from simreduce.serve.view import Files, View
from simreduce.strategy import Strategy
from simreduce.topology import Topology, natural
from simreduce.topology.links import BOTH
from simreduce.trace import trace_events
from simreduce.tune.asked import ask, choice_of
from simreduce.tune.bench import BenchRow, bench
from simreduce.tune.known import Known
from simreduce.tune.rank import Candidate, Ranking, Row, plain_specs, rank
from simreduce.tune.whatif import savings

Message = dict[str, Any]
Say = Callable[[Message], None]

_BARS = 6000
"""Bars of the timeline. A report has more; here it is drawn again at every change."""
_SOON = 1.0
"""Seconds after which the ranking is shown before anything is looked at closely."""
_CURVES = 3
_SIZES = tuple(1 << power for power in range(16, 29, 2))
"""Bytes of the tensors of the curves: 64 KiB to 256 MiB."""


@dataclass(frozen=True, slots=True)
class Sayer:
    """Sends messages. `check` raises when nobody listens any more."""

    say: Say
    check: Callable[[], None]

    def progress(self, text: str, more: Callable[[], Message] = dict) -> Callable[[int, int], None]:
        """A callback for long work: how much of it is done, and what else is known by then."""

        def tell(done: int, total: int) -> None:
            self.check()
            self.say({"progress": [done, total, text], **more()})

        return tell


def answer(view: View, files: Files, known: Known, sayer: Sayer) -> None:
    """Say everything on a view: its machine, the ranking, one strategy closely, curves. `known` is
    what earlier answers found. InputError lists every fault of the view.
    """
    begun = time.monotonic()
    try:
        scenario = view.scenario(files)
    except InputError:
        with suppress(InputError):  # a picture shows which links there are
            sayer.say(_machine(view.whole(files), {}))
        raise
    whole = view.whole(files)
    sayer.say(_machine(whole, {}))
    shared = Beside(
        machine=whole,
        calibration=scenario.setup.calibration,
        commands=tuple(_commands(view, files)),
        files={"view.toml": toml_text(_table(view, scenario, files))},
        missing="Not computed yet.",
    )
    rows: list[Row] = []
    progress = sayer.progress("strategies simulated", lambda: {"preview": preview_lines(rows)})
    ranking = rank(scenario, 1, progress, seen=rows.append, known=known)
    document = ranking_document(ranking)
    chosen, look = _chosen(view, ranking, document)
    if chosen is None:
        sayer.say(_page(document, replace(shared, missing="No plan to look at."), ranking, ""))
        return
    if time.monotonic() - begun > _SOON:
        sayer.say(_page(document, shared, ranking, look))
    beside = _closer(scenario, chosen.strategy, shared, sayer)
    if beside.explanation is not None:
        loads = {each["name"]: each["share"] for each in beside.explanation["links"]}
        sayer.say(_machine(whole, loads))
    sayer.say(_page(document, beside, ranking, look))
    # What takes long and is looked at later.
    proven = [c.strategy for c in ranking.candidates if not c.wrong]
    exports = hand_over(choice_of(ask(scenario, chosen.strategy), None), proven)
    beside = replace(beside, exports=exports)
    sayer.say(_page(document, beside, ranking, look))
    sizes = _over_sizes(scenario, ranking, chosen, sayer)
    sayer.say(_page(document, replace(beside, sizes=sizes), ranking, look))


def _chosen(
    view: View, ranking: Ranking, document: Mapping[str, Any]
) -> tuple[Candidate | None, str]:
    """The candidate to look at, and its text if the view names it; else what the page answers."""
    for candidate in ranking.candidates:
        if view.look in [c.strategy.text for c in (candidate, *candidate.also)]:
            return candidate, candidate.strategy.text
    row = answer_row(document)
    texts = {c.strategy.text: c for c in ranking.candidates}
    return (texts[row["strategy"]] if row else None), ""


def _table(view: View, scenario: Scenario, files: Files) -> dict[str, Any]:
    """The view as a scenario file, which ranks the same strategies."""
    table = {**view.table(), "topology": files.get(view.machine, view.machine)}
    if scenario.strategies is not None:
        table["strategies"] = [each.text for each in scenario.strategies]
    return table


def _closer(scenario: Scenario, strategy: Strategy, beside: Beside, sayer: Sayer) -> Beside:
    """With the load of each link, the critical path, what would help, and the timeline."""
    try:
        case = ask(scenario, strategy).compile()
        recording = case.setup.record(case.plan)
    except InputError as error:  # too large to hold, or nothing can be recorded of it
        return replace(beside, missing=f"Not simulated in detail: {error.problems[0]}")
    found = savings(recording, case.setup, sayer.progress("changes simulated"))
    sayer.check()
    events = trace_events(recording, case.setup.topology)
    return replace(
        beside,
        explanation=explanation_document(recording, found, case.about),
        timeline=timeline_of_events(events, recording.result.path.op.tolist(), _BARS),
    )


def _over_sizes(
    scenario: Scenario, ranking: Ranking, chosen: Candidate, sayer: Sayer
) -> Mapping[str, Any] | None:
    """The document of a bench of the fastest algorithms; None if the machine refuses one."""
    strategies = plain_specs(ranking, chosen, _CURVES)
    setup, tell = scenario.setup, sayer.progress("sizes simulated")
    rows: list[BenchRow] = []
    try:
        for done, row in enumerate(bench(setup, strategies, _SIZES), 1):
            rows += [row] if isinstance(row, BenchRow) else []
            tell(done, len(strategies) * len(_SIZES))
    except InputError:
        return None
    return bench_document(
        rows, setup.layout.n, setup.machine.name, setup.runtime.name, setup.calibration.name,
        disturbance=setup.disturbance.text, complete=True,
    )  # fmt: skip


def _machine(whole: Topology, loads: Mapping[str, float]) -> Message:
    """The message with the picture of the machine, and with the names of its wires."""
    drawing = heat_picture(whole, loads)
    pairs = {
        f"{k.name} {k.link_class}": BOTH.join(sorted((k.source, k.target))) for k in whole.links
    }

    def wires(mark: Mark) -> str:
        found = [pairs.get(each, "") for each in mark.resources] if mark.kind == "link" else ()
        return "\n".join(dict.fromkeys(filter(None, found)))

    names = {pairs[f"{k.name} {k.link_class}"] for k in whole.links if not k.is_toll}
    words = f"{whole.name}: {whole.title or whole.name}."
    picture = to_svg(drawing, wires)
    wires_of = sorted(names, key=natural)
    return {"machine": {"svg": picture, "words": words, "wires": wires_of, "loaded": bool(loads)}}


def _page(document: Mapping[str, Any], beside: Beside, ranking: Ranking, look: str) -> Message:
    """The message with the answer and the sections, but for the picture of the machine."""
    page = make_page(document, beside)
    sections = []
    for section in page.sections:
        blocks = tuple(b for b in section.blocks if not isinstance(b, Picture))
        if blocks:
            sections.append(replace(section, blocks=blocks))
    parts = page_parts(replace(page, sections=tuple(sections)))
    names = [c.strategy.text for c in ranking.candidates]
    return {
        "page": {
            "title": page.title,
            "parts": [{"key": p.key, "html": p.html, "charts": p.charts} for p in parts],
            "strategies": names,
            "look": look,
        }
    }


def _command(view: View, files: Files) -> str:
    """The command that opens a page at a view."""
    mine = f"{shlex.quote(files[view.machine])} " if view.machine in files else ""
    return f"simreduce serve {mine}'{view.query}'"


def _commands(view: View, files: Files) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "This view, on your machine", (_command(view, files),)
    yield (
        "As a scenario: save what stands below as view.toml",
        ("simreduce run view.toml", "simreduce report view.toml"),
    )
