"""One module per kind of document: what a page says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.report.bench import bench_page
from simreduce.report.blocks import Attachments, Page
from simreduce.report.pages.kinds.capacity import capacity_page
from simreduce.report.pages.kinds.explain import explain_page
from simreduce.report.pages.kinds.replicas import replicas_page
from simreduce.report.pages.kinds.sweep import sweep_page
from simreduce.report.pages.kinds.validate import validate_page
from simreduce.report.ranking import run_page
from simreduce.report.steps import step_page
from simreduce.report.tuned import tune_page

Document = Mapping[str, Any]


def _step_page(document: Document, beside: Attachments) -> Page:
    """The page of `simreduce step --json`, of a `[step]` or of `[replicas]`."""
    page = replicas_page if "replicas_to_aggregate" in document else step_page
    return page(document, beside)


KINDS: Mapping[str, Callable[[Document, Attachments], Page]] = {
    "run": run_page,
    "step": _step_page,
    "bench": bench_page,
    "explain": explain_page,
    "tune": tune_page,
    "validate": validate_page,
    "capacity": capacity_page,
    "sweep": sweep_page,
}
"""Pages by the `command` of a document that `--json` prints."""

__all__ = ["KINDS", "Attachments", "make_page"]


_STOPPED = {
    "tune": "",
    "capacity": "Not all values at which the choice changes were found.",
    "sweep": "The sweep has not run to its end.",
}
"""What is said of a document that is not complete, if not that its command was stopped."""


def _beware(document: Document) -> str:
    """What goes wrong on the machine, and what is missing: the first screen has to say so."""
    disturbed, found = document.get("disturbance"), ""
    if isinstance(disturbed, str) and disturbed:
        found = f" Disturbed: {disturbed}."
    if document.get("complete") is False:
        stopped = _STOPPED.get(document["command"], "The command was stopped before its end.")
        found += f" {stopped}" if stopped else ""
    return found


def make_page(document: Document, beside: Attachments, place: str = "the document") -> Page:
    """The page of a document. InputError if there is none for its kind, or it lacks a key."""
    kind = document.get("command")
    if not isinstance(kind, str) or kind not in KINDS:
        said = "has no key command" if kind is None else f"command is {quote(str(kind))}"
        near = did_you_mean(str(kind), KINDS) if kind is not None else ""
        raise InputError(f"{place}: {said}{near}; a report takes the --json of {', '.join(KINDS)}")
    try:
        page = KINDS[kind](document, beside)
        return replace(page, about=f"{page.about}{_beware(document)}")
    except KeyError as error:
        raise InputError(
            f"{place}: lacks the key {error.args[0]!r} of simreduce {kind} --json"
        ) from None
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise InputError(f"{place}: is no document of simreduce {kind} --json: {error}") from None
