"""The page of a capacity plan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from simreduce import units
from simreduce.files.tables import Table
from simreduce.report.blocks import Attachments, Block, Chart, Fact, Page, Paragraph, Rows, Section
from simreduce.report.capacity import (
    ASSUMPTION,
    FAILURE,
    ITEM,
    PART,
    REFUSED,
    changes,
    choice_words,
    copies_table,
    money,
    nearest_change,
    options_table,
    price_words,
    rates_words,
    run_words,
    sentence,
    sure_words,
    target_words,
)
from simreduce.report.sections import machine_section, repeat_section

Document = Mapping[str, Any]


def capacity_page(document: Document, beside: Attachments) -> Page:
    """The page of `simreduce capacity --json`."""
    choice, title = document["choice"], document["title"]
    options = units.plural(len(document["options"]), "option")
    asked = ", ".join([document["workload"], *run_words(document["target"])])
    wanted = target_words(document["target"], document["currency"])
    return Page(
        title=title if title.endswith("?") else f"{title}: which machines?",
        about=f"{asked}; {options} simulated and priced. Wanted: {wanted}.",
        answer=_answer(document),
        sure=_sure(document),
        facts=tuple(_facts(document, choice)) if choice else (),
        sections=(
            _options(
                document,
                _of_run(document) if document["target"]["samples"] else _of_hour(document),
                options_table(document["options"], document, on="html"),
            ),
            *_binds(document),
            *_fails(document),
            *_flips(document),
            _prices(document["prices"]),
            *machine_section(beside),
            *repeat_section(beside, document),
        ),
    )


def capacity_jobs_page(document: Document, beside: Attachments) -> Page:
    """The page of `simreduce capacity --json` with jobs."""
    choice, title = document["choice"], document["title"]
    options = units.plural(len(document["options"]), "option")
    wanted = target_words(document["target"], document["currency"])
    notes = "; ".join(document["notes"])
    paid = f"{sentence(document['paid_off'])}. " if document["paid_off"] else ""
    axes = _Axes(
        "Price of a copy with every option over its price per hour",
        f"price in {document['currency']} per hour",
        f"price of a copy in {document['currency']} per hour",
        (
            [each["hourly"] for each in document["options"]],
            [each["hourly_per_copy"] for each in document["options"]],
        ),
    )
    return Page(
        title=title if title.endswith("?") else f"{title}: which machines?",
        about=f"Copies of {document['jobs']}; {options} simulated and priced. Wanted: {wanted}.",
        answer=f"{document['headline'].rstrip('.')}.",
        sure=f"{paid}Note: {notes}." if notes else paid.strip(),
        facts=tuple(_facts_of_copies(document, choice)) if choice else (),
        sections=(
            _options(document, axes, copies_table(document["options"], document, on="html")),
            _prices(document["prices"]),
            *machine_section(beside),
            *repeat_section(beside, document),
        ),
    )


def _facts_of_copies(document: Document, choice: Document) -> Iterable[Fact]:
    gpus = units.plural(choice["gpus"], "GPU")
    yield Fact(f"What should I {choice['pay']}?", choice["configuration"], f"{gpus}.")
    copies = units.plural(choice["copies"], "copy", "copies")
    yield Fact("How many copies does it hold?", copies, f"{sentence(choice['limit'])}.")
    hourly, each = (f"{money(document, choice[key])}/h" for key in ("hourly", "hourly_per_copy"))
    yield Fact("What does it cost?", hourly, f"{each} a copy.")


def _answer(document: Document) -> str:
    """What to rent or buy, and what nearly meets the target for less."""
    near = f" {document['near_miss']}." if document.get("near_miss") else ""
    return f"{choice_words(document).rstrip('.')}.{near}"


def _sure(document: Document) -> str:
    notes = "; ".join(document["notes"])
    more = f" Note: {notes}." if notes else ""
    if document["choice"] is None:
        return more.strip()
    paid = f" {sentence(document['paid_off'])}." if document["paid_off"] else ""
    return f"How sure: {sure_words(document)[1]}.{paid}{more}"


def _facts(document: Document, choice: Document) -> Iterable[Fact]:
    gpus = units.plural(choice["gpus"], "GPU")
    yield Fact(f"What should I {choice['pay']}?", choice["configuration"], f"{gpus}.")
    hourly = f"{money(document, choice['hourly'])}/h"
    yield Fact("What does it cost?", hourly, f"{sentence(price_words(document, choice))}.")
    short, words = sure_words(document)
    yield Fact("How sure is that?", short, f"{sentence(rates_words(document) or words)}.")
    binds: list[Document] = document["binds"] or [{"name": "nothing", "share": 0.0}]
    first = binds[0]
    more = f"{first['share']:.1%} of the time"
    if choice["bottleneck"]:
        more += f"; of the communication, the link {choice['bottleneck']} is the busiest"
    yield Fact("What limits it?", first["name"], f"{more}.")
    yield Fact("When does the choice change?", *nearest_change(document))


_CHOICE = "the choice"


class _Axes(NamedTuple):
    """What a chart of options shows: in words, by its axes, and the values of each."""

    words: str
    x: str
    y: str
    values: tuple[list[float | None], list[float | None]]


def _of_run(document: Document) -> _Axes:
    """Cost over time of the run."""
    times = [each["time_s"] for each in document["options"]]
    longest = max((time or 0.0 for time in times), default=0.0)
    unit, word = (86400.0, "days") if longest > 3 * 86400 else (3600.0, "hours")
    return _Axes(
        "Cost of every option over the time of the run",
        f"time of the run in {word}",
        f"cost in {document['currency']}",
        (
            [time and time / unit for time in times],
            [each["cost"] for each in document["options"]],
        ),
    )


def _of_hour(document: Document) -> _Axes:
    """What a million costs over the price of an hour."""
    counted, currency = document["counted"], document["currency"]
    return _Axes(
        f"Cost of a million {counted} with every option over its price per hour",
        f"price in {currency} per hour",
        f"cost in {currency} per 1M {counted}",
        (
            [each["hourly"] for each in document["options"]],
            [each["per_million"] for each in document["options"]],
        ),
    )


def _fails(document: Document) -> Iterable[Section]:
    """What is left of the choice when a part fails, if that was asked."""
    if rows := document.get("failures"):
        words = "What is left of the choice until a part that fails is repaired."
        yield Section("fails", "If a part fails", (Rows(words, FAILURE.table(rows, on="html")),))


def _options(document: Document, axes: _Axes, table: Table) -> Section:
    chosen = document["choice"] and document["choice"]["option"]
    groups: dict[str, list[tuple[float, float, str]]] = {}
    for each, x, y in zip(document["options"], *axes.values, strict=True):
        if x is not None and y is not None:
            name = _CHOICE if each["option"] == chosen else each["machine"]
            groups.setdefault(name, []).append((x, y, each["option"]))
    blocks: list[Block] = [Rows("Every option", table)]
    if groups:
        data = {
            "x": "plain",
            "y": "plain",
            "name_x": axes.x,
            "name_y": axes.y,
            "groups": [
                {"name": name, "points": groups[name], "best": name == _CHOICE}
                for name in sorted(groups, key=lambda name: name != _CHOICE)
            ],
        }
        blocks = [
            Chart("points", f"{axes.words}: lower and further left is better.", data, table, 420)
        ]
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
    every, found = document["sensitivity"], changes(document)
    if not every:
        return
    block: Block = Paragraph("No single price, rate or error that was tried changes the choice.")
    if found:
        nearest = {each["assumption"]: near for near, _, each in reversed(found)}
        rows = [{**each, "nearest": nearest.get(each["assumption"])} for each in every]
        rows.sort(key=lambda row: math.inf if row["nearest"] is None else row["nearest"])
        words = "The nearest values at which another option is chosen, nearest first"
        block = Rows(words, ASSUMPTION.table(rows, on="html"))
    yield Section("changes", "When the choice changes", (block,))


def _prices(prices: Document) -> Section:
    dated = f", {prices['date']}" if prices["date"] else ""
    caption = f"{prices['title'] or 'Prices of the file'}{dated}"
    return Section("prices", "Prices", (Rows(caption, ITEM.table(prices["items"])),))
