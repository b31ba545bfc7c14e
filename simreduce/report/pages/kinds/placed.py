"""The pages of an order of nodes, and of jobs beside each other: who sits below which switches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from simreduce.report.blocks import Attachments, Page, Picture, Section, Written
from simreduce.report.jobs import jobs_report
from simreduce.report.pictures import RANKS_WORDS, ranks_picture
from simreduce.report.placement import placement_report
from simreduce.report.sections import calibration_section, machine_section, repeat_section


def placement_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce tune --placement --json` and `topo place --json`."""
    best, *_, given = document["orders"]
    orders = {each["order"]: each["nodes"] for each in (given, best)}
    return _with_places(placement_report(document), document, beside, document["switches"], orders)


def jobs_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce jobs --json`."""
    switches = [[f"n{node}" for node in group] for group in document["switches"]]
    orders = {each["job"]: [f"n{node}" for node in each["nodes"]] for each in document["jobs"]}
    return _with_places(jobs_report(document), document, beside, switches, orders)


def _with_places(
    page: Page,
    document: Written,
    beside: Attachments,
    switches: Sequence[Sequence[str]],
    orders: Mapping[str, Sequence[str]],
) -> Page:
    sections = (
        *page.sections,
        *_places(switches, orders),
        *machine_section(beside),
        *calibration_section(beside, document),
        *repeat_section(beside, document),
    )
    return replace(page, sections=sections)


def _places(
    switches: Sequence[Sequence[str]], orders: Mapping[str, Sequence[str]]
) -> Iterable[Section]:
    """A picture of nodes by the switches that they share, with a ring in each order."""
    if drawing := ranks_picture(switches, orders):
        yield Section("places", "Where ranks are", (Picture(drawing, RANKS_WORDS, "ranks"),))
