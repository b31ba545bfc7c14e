"""A process that answers one view at a time: `python -m simreduce.app.serve.worker`.

It reads lines of JSON from descriptor 0 (its settings, then questions), and writes messages to
descriptor 1. A line `"stop"` ends the work at hand at its next step. It ends with the process that
started it, whatever that one dies of, and may use so much memory and no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TextIO

from simreduce.app.look import answer_of, bench_sizes, exports_of, look_closer
from simreduce.app.serve.view import Files, View, read_view
from simreduce.computing.workers import Work, end_with_parent, limit_memory, within
from simreduce.errors import InputError, SimreduceError
from simreduce.files.formats.syntax import toml_text
from simreduce.report.blocks import Attachments, Picture, timeline_of_threads
from simreduce.report.drawing import Mark, to_svg
from simreduce.report.jobs import BESIDE
from simreduce.report.pages import make_page, page_parts
from simreduce.report.pictures import heat_picture
from simreduce.report.ranking import RUN, preview_lines
from simreduce.report.steps import MESHES
from simreduce.report.trace import ranking_threads
from simreduce.study.job_files import JobsQuestion
from simreduce.study.scenario import Meshes
from simreduce.study.tune.jobs import answer_jobs
from simreduce.study.tune.meshes import rank_meshes
from simreduce.study.tune.plan_cache import PlanCache
from simreduce.study.tune.rank import Candidate, StrategyRanking, rank
from simreduce.topology import Topology, natural
from simreduce.topology.elements import Link
from simreduce.topology.graph import BOTH
from simreduce.topology.routing import is_nvlink

Message = dict[str, Any]
Say = Callable[[Message], None]

_BARS = 6000
"""Bars of the timeline. A report has more; here it is drawn again at every change."""
_SOON = 1.0
"""Seconds after which the ranking is shown before anything is looked at closely."""
_FIRST = 1.2
"""Seconds after which the strategies that promise most are shown, before the others are there."""
_CURVES = 3


@dataclass(frozen=True, slots=True)
class Sayer:
    """Sends messages. `check` raises when nobody listens any more."""

    say: Say
    check: Callable[[], None]

    def show(self, text: str) -> AbstractContextManager[Said]:
        """Say how much of some work is done: of `simulated {} of {} sizes`, as sizes simulated."""
        self.check()
        return nullcontext(Said(self, text))

    def page(
        self,
        document: Mapping[str, Any],
        beside: Attachments,
        names: Sequence[str] = (),
        look: str = "",
    ) -> None:
        """Say the answer and the sections, but for the picture of the machine."""
        if beside.explanation is None:  # there is nothing but a picture, which takes long to draw
            beside = replace(beside, machine=None)
        page = make_page(document, beside)
        sections = [
            replace(
                each,
                blocks=tuple(
                    block
                    for block in each.blocks
                    if not (isinstance(block, Picture) and block.subject == "the machine")
                ),
            )
            for each in page.sections
        ]
        parts = page_parts(replace(page, sections=tuple(s for s in sections if s.blocks)))
        self.say(
            {
                "page": {
                    "title": page.title,
                    "parts": [{"key": p.key, "html": p.html, "charts": p.charts} for p in parts],
                    "strategies": [*names],
                    "look": look,
                }
            }
        )


class Said(Work):
    """Work of which a page hears how much is done, and with `preview` what is known by then."""

    def __init__(
        self, sayer: Sayer, text: str, preview: Callable[[list[Any]], list[str]] | None = None
    ) -> None:
        super().__init__()
        self._sayer, self._text, self._preview = sayer, text, preview

    def show(self) -> None:
        """Send a message."""
        done, _, what = self._text.partition(" {} of {} ")
        message: Message = {"progress": [*self.counts, f"{what} {done}"]}
        self._sayer.check()
        more = {"preview": self._preview(self.seen)} if self._preview else {}
        self._sayer.say(message | more)


def answer(view: View, files: Files, cache: PlanCache, sayer: Sayer) -> None:
    """Say everything on a view: its machine, the ranking, one strategy closely, curves. `cache` is
    what earlier answers found. InputError lists every fault of the view.
    """
    begun = time.monotonic()
    try:
        question = view.ask(files)
    except InputError:
        with suppress(InputError):  # a picture shows which links there are
            sayer.say(_machine(view.whole(files), {}))
        raise
    whole = view.whole(files)
    sayer.say(_machine(whole, {}))
    table = view.jobs_table(files)[1] if view.jobs else view.table(files)
    beside = Attachments(
        machine=None,
        calibration=question.setup.calibration,
        commands=tuple(_commands(view, files)),
        files={"view.toml": toml_text(table)},
        missing="Not computed yet.",
    )
    if isinstance(question, Meshes):
        _answer_meshes(question, beside, sayer)
        return
    if isinstance(question, JobsQuestion):
        sayer.check()
        sayer.page(BESIDE.write(answer_jobs(question)), replace(beside, missing=""))
        return
    work = Said(sayer, "simulated {} of {} strategies", preview_lines)
    for seconds in (_FIRST, inf):
        with within(seconds):
            ranking = rank(question, 1, work.watch, keep_refused=view.chooses, cache=cache)
        document = RUN.write(ranking)
        names = [candidate.strategy.text for candidate in ranking.candidates]
        chosen, look = _chosen(view, ranking, document)
        table = _table(view, ranking, files)
        shared = replace(beside, machine=whole, files={"view.toml": toml_text(table)})
        if not ranking.hurried:
            break
        sayer.page(document, replace(shared, hurried=_EARLY), names, look)
    if chosen is None:
        sayer.page(document, replace(shared, missing="No plan to look at."), names)
        return
    if time.monotonic() - begun > _SOON:
        sayer.page(document, shared, names, look)
    beside, _ = look_closer(question, chosen.strategy, shared, sayer.show, _BARS)
    if beside.explanation is not None:
        loads = {each["name"]: each["share"] for each in beside.explanation["links"]}
        sayer.say(_machine(whole, loads))
    sayer.page(document, beside, names, look)
    # What takes long and is looked at later.
    beside = replace(beside, exports=exports_of(ranking, chosen))
    sayer.page(document, beside, names, look)
    sizes, _ = bench_sizes(ranking, chosen, _CURVES, sayer.show)
    sayer.page(document, replace(beside, sizes=sizes), names, look)


def _answer_meshes(meshes: Meshes, beside: Attachments, sayer: Sayer) -> None:
    """Say which mesh is the fastest, and then who does what when in its step."""
    found = rank_meshes(meshes, 1, Said(sayer, "simulated {} of {} meshes").watch)
    document = MESHES.write(found)
    sayer.page(document, beside)
    sayer.check()
    timeline = timeline_of_threads(ranking_threads(found), most=_BARS)
    sayer.page(document, replace(beside, timeline=timeline, missing=""))


def _chosen(
    view: View, ranking: StrategyRanking, document: Mapping[str, Any]
) -> tuple[Candidate | None, str]:
    """The candidate to look at, and its text if the view names it; else what the page answers."""
    for candidate in ranking.candidates:
        if view.look in [c.strategy.text for c in (candidate, *candidate.also)]:
            return candidate, candidate.strategy.text
    return answer_of(ranking, document), ""


def _table(view: View, ranking: StrategyRanking, files: Files) -> dict[str, Any]:
    """The view as a scenario file, which ranks the same strategies, those that are possible."""
    table = view.table(files)
    refused = {name for name, _ in ranking.refused}
    texts = [s.text for s in ranking.scenario.strategies or () if s.text not in refused]
    return table | ({"strategies": texts} if texts else {})


def _machine(whole: Topology, loads: Mapping[str, float]) -> Message:
    """The message with the picture of the machine, and with the names of its wires."""
    drawing = heat_picture(whole, loads)
    pairs = {
        f"{k.name} {k.link_class}": BOTH.join(sorted((k.source, k.target))) for k in whole.links
    }

    def wires(mark: Mark) -> str:
        found = [pairs.get(each, "") for each in mark.resources] if mark.kind == "link" else ()
        return "\n".join(dict.fromkeys(filter(None, found)))

    degrees = Counter(link.source for link in whole.wires)
    names = {pairs[f"{k.name} {k.link_class}"]: _place(k, whole, degrees) for k in whole.wires}
    words = f"{whole.name}: {whole.title or whole.name}."
    picture = to_svg(drawing, wires)
    wires_of = sorted(names, key=lambda name: (names[name], natural(name)))
    return {"machine": {"svg": picture, "words": words, "wires": wires_of, "loaded": bool(loads)}}


def _place(link: Link, whole: Topology, degrees: Mapping[str, int]) -> int:
    """Where a link stands in the list of links to slow or cut: the only one of a GPU, without which
    nothing is possible, is last.
    """
    ends = (link.source, link.target)
    if any(degrees[end] == 1 and whole.nodes[end].kind == "gpu" for end in ends):
        return 2
    return 0 if is_nvlink(link) else 1


def _commands(view: View, files: Files) -> Iterator[tuple[str, tuple[str, ...]]]:
    mine = [shlex.quote(files[name]) for name in (view.machine, view.jobs) if name in files]
    serve = " ".join(["simreduce serve", *mine, f"'{view.query}'"])
    yield "This view, on your machine", (serve,)
    where = f" beside {files[view.jobs]}" if view.jobs else ""
    command = "jobs" if view.jobs else "step" if view.mesh else "run"
    yield (
        f"As a scenario: save what stands below as view.toml{where}",
        (f"simreduce {command} view.toml", "simreduce report view.toml"),
    )


_EARLY = "Still simulating: what promises least is missing so far."
_OFTEN = 0.1
"""Seconds between two messages on how far the work is."""
_WARM = "machine=dgx1v&size=1MiB&algo=nccl,ring,trees"


class _LeftError(Exception):
    """Nobody waits for the answer any more."""


class _Desk:
    """Reads questions and orders, writes messages."""

    def __init__(self, lines: TextIO, out: TextIO) -> None:
        self.questions: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._lines, self._out, self._told = lines, out, 0.0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        """Take lines as they come, also while an answer is computed."""
        for line in self._lines:
            found = json.loads(line)
            if found == "stop":
                self._stop.set()
            else:
                self._stop.clear()  # an order to stop came too late for the question before
                self.questions.put(found)
        os.kill(os.getpid(), signal.SIGKILL)  # who started this process is gone

    def check(self) -> None:
        """Raise if the work at hand is to stop."""
        if self._stop.is_set():
            raise _LeftError

    def say(self, message: dict[str, Any]) -> None:
        """Write a message; of those on progress, some."""
        now = time.monotonic()
        if "progress" in message and now - self._told < _OFTEN:
            return
        self._told = now
        self._out.write(json.dumps(message, separators=(",", ":")) + "\n")
        self._out.flush()


def main() -> None:
    """Answer until the questions end."""
    end_with_parent()
    lines = os.fdopen(0, encoding="utf-8")
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever prints, prints to stderr
    settings = json.loads(lines.readline())
    files, megabytes = settings["files"], settings["megabytes"]
    desk, cache = _Desk(lines, out), PlanCache()
    with contextlib.suppress(InputError):  # loads what is compiled before anybody waits for it
        answer(read_view(_WARM, {}), {}, cache, Sayer(lambda _: None, lambda: None))
    limit_memory(megabytes << 20)
    desk.say({"end": True})  # ready
    while True:
        question = desk.questions.get()
        try:
            answer(read_view(question["view"], files), files, cache, Sayer(desk.say, desk.check))
        except _LeftError:
            pass
        except InputError as error:
            desk.say({"faults": [*error.problems]})
        except SimreduceError as error:
            desk.say({"faults": [str(error)]})
        except MemoryError:
            cache = PlanCache()
            too_large = f"needs more than the {megabytes} MB that a page may use"
            desk.say({"faults": [f"{too_large}; try simreduce run"]})
        except Exception as error:  # noqa: BLE001 - a bug; the next question is answered
            traceback.print_exc()
            cache = PlanCache()
            where = "where simreduce serve was started"
            desk.say({"faults": [f"a bug of simreduce: {type(error).__name__}; see {where}"]})
        desk.say({"end": True})


if __name__ == "__main__":
    main()
