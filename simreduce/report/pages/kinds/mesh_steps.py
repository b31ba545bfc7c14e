"""The page of synchronous replicas: updates of workers that do not compute equally long."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from simreduce.files import tables
from simreduce.files.tables import Table
from simreduce.report.blocks import (
    Attachments,
    Fact,
    Page,
    Section,
    Written,
    stack,
)
from simreduce.report.explain import change_words, help_section, limit_words, nic_fact
from simreduce.report.headings import faster
from simreduce.report.plots import Axis
from simreduce.report.replicas import backups_of, replicas_report, row_of
from simreduce.report.sections import (
    calibration_section,
    machine_section,
    repeat_section,
    timeline_section,
    us,
)

_ASK = "A report on the scenario itself simulates it."

_SPENT = {
    "compute": "computing gradients",
    "read": "reading variables",
    "send": "sending gradients",
    "wait": "waiting for a token of the next update",
}


def replicas_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce step --json` for a scenario with `[replicas]`: the report, and what
    limits updates.
    """
    page = replicas_report(document)
    return replace(
        page,
        facts=(*page.facts, *_limits(document, beside)),
        sections=(
            *page.sections,
            *_replicas_spent(beside),
            *help_section(beside),
            *machine_section(beside),
            *timeline_section(
                beside, "What every worker does, and when updates are made, in one repetition."
            ),
            *calibration_section(beside, document),
            *repeat_section(beside, document, [("seed", str(document["seed"]))]),
        ),
    )


def _limits(document: Written, beside: Attachments) -> Iterable[Fact]:
    look = beside.look
    yield Fact("What limits it?", *_limit(document, beside))
    if document["topology"]:
        yield Fact("What would a second NIC buy?", *nic_fact(beside))
    elif look is not None and look["changes"]:
        yield Fact("What would help most?", *_helps(look["changes"][0], look))


def _limit(document: Written, beside: Attachments) -> tuple[str, str]:
    if beside.look is None or not any(beside.look["spent"].values()):
        return "not known here", beside.missing or _ASK
    spent = sorted(beside.look["spent"].items(), key=lambda part: -part[1])
    parts = ((_SPENT.get(name, name), share) for name, share in spent)
    first, words = limit_words(parts, "the workers' time", 0)
    row, step = row_of(document, backups_of(document)), document["step_time_us"]
    ideal = row["ideal_step_time_us"] if row else None
    more = (
        f" An update that all begin together takes {us(ideal)} with free communication."
        if ideal is not None and step["mean"] is not None
        else ""
    )
    return first, f"{words}{more}"


def _helps(first: Written, look: Written) -> tuple[str, str]:
    if first["saving_low_us"] <= 0.0:
        return "nothing by itself", "None of the simulated changes makes an update faster for sure."
    words = faster(first["time_us"], look["time_us"])
    return change_words(first), f"An update takes {us(first['time_us'])}: {words}."


def _replicas_spent(beside: Attachments) -> Iterable[Section]:
    """The parts of the workers' time."""
    look = beside.look
    if look is None or not any(look["spent"].values()):
        return
    parts = sorted(look["spent"].items(), key=lambda part: -part[1])
    shown = [(_SPENT.get(name, name), share) for name, share in parts]
    columns = tables.columns("spent on|of the time", left="spent on")
    table = Table(columns, tuple((name, f"{share:.1%}") for name, share in shown))
    words = "What all workers together spend their time on, after the first updates are skipped."
    chart = stack(words, shown, table, Axis("of the time", "share", log=False))
    yield Section("limits", "What limits it", (chart,))
