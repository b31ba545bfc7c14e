"""One module per kind of document: what a page says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files.formats.documents import Record
from simreduce.report.bench import BENCH, bench_page
from simreduce.report.blocks import Attachments, Page, Written
from simreduce.report.capacity import CAPACITY, CAPACITY_JOBS
from simreduce.report.capacity_page import capacity_page
from simreduce.report.explain import EXPLAIN
from simreduce.report.jobs import BESIDE, PLACEMENT
from simreduce.report.pages.kinds.reductions import (
    READ,
    explain_page,
    jobs_page,
    placement_page,
    validate_page,
)
from simreduce.report.pages.kinds.sweep import sweep_page
from simreduce.report.ranking import RUN, run_page
from simreduce.report.replicas import REPLICAS, replicas_page
from simreduce.report.step_page import step_page
from simreduce.report.steps import MESHES, STEP, TUNED_MESHES
from simreduce.report.sweeps import SWEEP
from simreduce.report.tuned import TUNE, tune_page

KINDS: Mapping[str, tuple[Record, Callable[[Written, Attachments], Page]]] = {
    "run": (RUN, run_page),
    "step": (STEP, step_page),
    "bench": (BENCH, bench_page),
    "explain": (EXPLAIN, explain_page),
    "tune": (TUNE, tune_page),
    "validate": (READ, validate_page),
    "capacity": (CAPACITY, capacity_page),
    "sweep": (SWEEP, sweep_page),
    "jobs": (BESIDE, jobs_page),
}
"""Keys and pages by the `command` of a document that `--json` prints."""

_OTHERS: Mapping[tuple[str, str], tuple[Record, Callable[[Written, Attachments], Page]]] = {
    ("step", "replicas_to_aggregate"): (REPLICAS, replicas_page),
    ("step", "global_batch"): (MESHES, step_page),
    ("tune", "global_batch"): (TUNED_MESHES, step_page),
    ("tune", "distinct_orders"): (PLACEMENT, placement_page),
    ("capacity", "jobs"): (CAPACITY_JOBS, capacity_page),
}
"""Of a command's `--json` on `[replicas]`, a mesh, an order or jobs, by a key of its own."""

__all__ = ["KINDS", "Attachments", "check_kinds", "kind_of", "make_page"]


_STOPPED = {
    "tune": "",
    "capacity": "Not all values at which the choice changes were found.",
    "sweep": "The sweep has not run to its end.",
}
"""What is said of a document that is not complete, if not that its command was stopped."""


_HURRIED = "Left out for lack of time: what promises least. A longer --budget simulates more."


def _beware(document: Written) -> str:
    """The disturbance of the machine and what is missing, for the first screen."""
    disturbed, found = document.get("disturbance"), ""
    if isinstance(disturbed, str) and disturbed:
        found = f" Disturbed: {disturbed}."
    if document.get("hurried"):
        found += f" {_HURRIED}"
    elif document.get("complete") is False:
        stopped = _STOPPED.get(document["command"], "The command was stopped before its end.")
        found += f" {stopped}" if stopped else ""
    return found


def kind_of(
    document: Written, place: str
) -> tuple[str, Record, Callable[[Written, Attachments], Page]]:
    """The command of a document, its keys and its page; InputError if it has none."""
    kind = document.get("command")
    if not isinstance(kind, str) or kind not in KINDS:
        said = "has no key command" if kind is None else f"command is {quote(str(kind))}"
        near = did_you_mean(str(kind), KINDS) if kind is not None else ""
        raise InputError(f"{place}: {said}{near}; a report takes the --json of {', '.join(KINDS)}")
    other = (found for (of, key), found in _OTHERS.items() if kind == of and key in document)
    return kind, *next(other, KINDS[kind])


def check_kinds(document: Written, place: str) -> None:
    """Raise InputError with every value that is not as its command writes it.

    A key may be missing, as in documents of versions that did not have it yet.
    """
    kind, keys, _ = kind_of(document, place)
    wrong = [f"{each.place} must be {each.words}" for each in keys.misfits(document)]
    if wrong:
        about = f"{place}: is no document of simreduce {kind} --json"
        raise InputError([f"{about}: {words}" for words in wrong])


def make_page(document: Written, beside: Attachments, place: str = "the document") -> Page:
    """The page of a document. InputError if there is none for its kind, or it lacks a key.

    `check_kinds` has checked what others wrote.
    """
    kind, _, page_of = kind_of(document, place)
    try:
        page = page_of(document, beside)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    except KeyError as error:
        for each in filter(None, (document, beside.explanation, beside.sizes)):
            kind, keys, _ = kind_of(each, place)
            if error.args[0] in keys.names():
                lacks = f"lacks the key {error.args[0]!r} of simreduce {kind} --json"
                raise InputError(f"{place}: {lacks}") from None
        raise
    return replace(page, about=f"{page.about}{_beware(document)}")
