"""The page of a capacity plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from simreduce import units
from simreduce.report.blocks import Attachments, Block, Chart, Fact, Page, Paragraph, Rows, Section
from simreduce.report.capacity import (
    ASSUMPTION,
    FAILURE,
    ITEM,
    PART,
    REFUSED,
    choice_words,
    money,
    options_table,
    step_range,
)
from simreduce.report.sections import machine_section, repeat_section
from simreduce.study.capacity.quantities import format_amount, format_period

Document = Mapping[str, Any]


def capacity_page(document: Document, beside: Attachments) -> Page:
    """The page of `simreduce capacity --json`."""
    choice, title = document["choice"], document["title"]
    options = units.plural(len(document["options"]), "option")
    samples = format_amount(document["target"]["samples"])
    return Page(
        title=title if title.endswith("?") else f"{title}: which machines to rent?",
        about=f"{document['workload']}, {samples} samples; {options} simulated and priced.",
        answer=f"Rent {choice_words(document)}." if choice else choice_words(document),
        sure=_sure(document),
        facts=tuple(_facts(document, choice)) if choice else (),
        sections=(
            _options(document),
            *_binds(document),
            *_fails(document),
            *_flips(document),
            _prices(document["prices"]),
            *machine_section(beside),
            *repeat_section(beside, document),
        ),
    )


def _sure(document: Document) -> str:
    choice, notes = document["choice"], "; ".join(document["notes"])
    more = f" Note: {notes}." if notes else ""
    if choice is None:
        return more.strip()
    if choice["step_low_s"] is None:
        return f"How sure: nothing is known of the error of its predicted step.{more}"
    return (
        f"How sure: with 80% probability the step is within {step_range(choice)} of the prediction,"
        f" if it computes as fast as the file says.{more}"
    )


def _facts(document: Document, choice: Document) -> Iterable[Fact]:
    gpus = units.plural(choice["gpus"], "GPU")
    cost, hourly = (money(document, choice[key]) for key in ("cost", "hourly"))
    took = "never" if choice["time_s"] is None else format_period(choice["time_s"])
    yield Fact("What should I rent?", choice["option"], f"{gpus}.")
    yield Fact("What does it cost?", cost, f"{hourly} an hour for {took}.")
    if choice["step_low_s"] is None:
        yield Fact("How sure is that?", "not known", "The calibration has no errors for it.")
    else:
        more = "That is how far the step is off the prediction, with 80% probability."
        yield Fact("How sure is that?", step_range(choice), more)
    binds: list[Document] = document["binds"] or [{"name": "nothing", "share": 0.0}]
    first = binds[0]
    more = f"{first['share']:.1%} of the time"
    if choice["bottleneck"]:
        more += f"; of the communication, {choice['bottleneck']} binds"
    yield Fact("What limits it?", first["name"], f"{more}.")
    yield Fact("When does the choice change?", *_nearest(document))


def _changes(document: Document) -> list[tuple[float, str, Document]]:
    """How near each change of the choice is, its side and its assumption, the nearest first."""
    found = [
        (_distance(each, side), side, each)
        for each in document["sensitivity"]
        for side in ("below", "above")
        if each[side] is not None
    ]
    return sorted(found, key=lambda change: change[0])


def _distance(each: Document, side: str) -> float:
    """How far the change is, as a part of today's value."""
    return abs(each[side]["at"] / each["value"] - 1.0) if each["value"] else 0.0


def _nearest(document: Document) -> tuple[str, str]:
    changes = _changes(document)
    if not changes:
        return "not nearby", "No single price, rate or error that was tried changes it."
    near, side, each = changes[0]
    then = str(each[side]["becomes"] or "no option meets the target")
    sign = "+" if side == "above" else "-"
    digits = 0 if near >= 0.095 else 1
    return f"{each['assumption']} {sign}{near:.{digits}%}", f"Then: {then}."


_CHOICE = "the choice"


def _fails(document: Document) -> Iterable[Section]:
    """What is left of the choice when a part fails, if that was asked."""
    if rows := document.get("failures"):
        words = "What is left of the choice until a part that fails is repaired."
        yield Section("fails", "If a part fails", (Rows(words, FAILURE.table(rows, on="html")),))


def _options(document: Document) -> Section:
    chosen = document["choice"] and document["choice"]["option"]
    groups: dict[str, list[tuple[float, float, str]]] = {}
    longest = max((each["time_s"] or 0.0 for each in document["options"]), default=0.0)
    unit, word = (86400.0, "days") if longest > 3 * 86400 else (3600.0, "hours")
    for each in document["options"]:
        if each["time_s"] is None or each["cost"] is None:
            continue
        name = _CHOICE if each["option"] == chosen else each["machine"]
        groups.setdefault(name, []).append((each["time_s"] / unit, each["cost"], each["option"]))
    table = options_table(document["options"], document, on="html")
    blocks: list[Block] = [Rows("Every option", table)]
    if groups:
        data = {
            "x": "plain",
            "y": "plain",
            "name_x": f"time of the run in {word}",
            "name_y": f"cost in {document['currency']}",
            "groups": [
                {"name": name, "points": groups[name], "best": name == _CHOICE}
                for name in sorted(groups, key=lambda name: name != _CHOICE)
            ],
        }
        words = "Cost of every option over the time of the run: lower and further left is better."
        blocks = [Chart("points", words, data, table, 420)]
    if document["refused"]:
        table = REFUSED.table(document["refused"])
        blocks.append(Rows("Left out", table, folded=len(table.rows) > 12))
    return Section("options", "Options", tuple(blocks))


def _binds(document: Document) -> Iterable[Section]:
    parts = [part for part in document["binds"] if part["share"] > 0]
    if parts:
        values = [{"name": part["name"], "value": part["share"]} for part in parts]
        data = {"unit": "share", "parts": values}
        words = "What the choice spends its time on."
        chart = Chart("stack", words, data, PART.table(parts))
        yield Section("limits", "What limits it", (chart,))


def _flips(document: Document) -> Iterable[Section]:
    """The assumptions, those whose changes are nearest first."""
    every, changes = document["sensitivity"], _changes(document)
    if not every:
        return
    block: Block = Paragraph("No single price, rate or error that was tried changes the choice.")
    if changes:
        nearest = {each["assumption"]: near for near, _, each in reversed(changes)}
        rows = [{**each, "nearest": nearest.get(each["assumption"])} for each in every]
        rows.sort(key=lambda row: math.inf if row["nearest"] is None else row["nearest"])
        words = "The nearest values at which another option is chosen, nearest first"
        block = Rows(words, ASSUMPTION.table(rows, on="html"))
    yield Section("changes", "When the choice changes", (block,))


def _prices(prices: Document) -> Section:
    dated = f", {prices['date']}" if prices["date"] else ""
    caption = f"{prices['title'] or 'Prices of the file'}{dated}"
    return Section("prices", "Prices", (Rows(caption, ITEM.table(prices["items"])),))
