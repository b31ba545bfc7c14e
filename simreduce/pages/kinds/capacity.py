"""The page of a capacity plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simreduce import tables, units
from simreduce.capacity.quantities import format_amount, format_period
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.sections import machine_section, repeat_section
from simreduce.pages.values import Block, Chart, Fact, Page, Paragraph, Rows, Section
from simreduce.tables import Table

Document = Mapping[str, Any]


def capacity_page(document: Document, beside: Beside) -> Page:
    """The page of `simreduce capacity --json`."""
    choice = document["choice"]
    options = units.plural(len(document["options"]), "option")
    samples = format_amount(document["target"]["samples"])
    return Page(
        title=f"{document['title']}: which machines to rent?"
        if not document["title"].endswith("?")
        else document["title"],
        about=f"{document['workload']}, {samples} samples; {options} simulated and priced.",
        answer=_answer(document),
        sure=_sure(document),
        facts=tuple(_facts(document, choice)) if choice else (),
        sections=(
            _options(document),
            *_binds(document),
            *_flips(document),
            _prices(document),
            *machine_section(beside),
            *repeat_section(beside, document),
        ),
    )


def _money(document: Document, amount: float | None) -> str:
    """`393 USD`, `39.33 USD`: no part of a cent, and no cents of much."""
    if amount is None:
        return "no end"
    cents = 0.0 < abs(amount) < 1.0 or (amount < 1000 and round(amount, 2) != round(amount))
    text = format_amount(amount) if abs(amount) < 0.01 else f"{amount:,.{2 if cents else 0}f}"
    return f"{text} {document['currency']}"


def _period(seconds: float | None) -> str:
    return "never" if seconds is None else format_period(seconds)


def _answer(document: Document) -> str:
    choice = document["choice"]
    if choice is None:
        return "No option meets the target."
    took = f"the run takes {_period(choice['time_s'])} and costs {_money(document, choice['cost'])}"
    return f"Rent {choice['option']}: {took}, at {_money(document, choice['hourly'])} an hour."


def _sure(document: Document) -> str:
    choice, notes = document["choice"], "; ".join(document["notes"])
    more = f" Note: {notes}." if notes else ""
    if choice is None:
        return more.strip()
    if choice["step_low_s"] is None:
        return f"How sure: nothing is known of the error of its predicted step.{more}"
    return (
        f"How sure: with 80% probability the step is within {_range(choice)} of the prediction, "
        f"if it computes as fast as the file says.{more}"
    )


def _range(choice: Document) -> str:
    low, high = (choice[key] / choice["simulated_s"] for key in ("step_low_s", "step_high_s"))
    if max(1 - low, high - 1) < 1e-3:
        return "0.1%"
    return f"{low - 1:+.1%} to {high - 1:+.1%}"


def _facts(document: Document, choice: Document) -> Iterable[Fact]:
    gpus = units.plural(choice["gpus"], "GPU")
    yield Fact("What should I rent?", choice["option"], f"{gpus}.")
    yield Fact(
        "What does it cost?",
        _money(document, choice["cost"]),
        f"{_money(document, choice['hourly'])} an hour for {_period(choice['time_s'])}.",
    )
    if choice["step_low_s"] is None:
        yield Fact("How sure is that?", "not known", "The calibration has no errors for it.")
    else:
        more = "That is how far the step is off the prediction, with 80% probability."
        yield Fact("How sure is that?", _range(choice), more)
    first: Document = (
        document["binds"][0] if document["binds"] else {"name": "nothing", "share": 0.0}
    )
    more = f"{first['share']:.1%} of the time"
    if choice["bottleneck"]:
        more += f"; of the communication, {choice['bottleneck']} binds"
    yield Fact("What limits it?", first["name"], f"{more}.")
    yield Fact("When does the choice change?", *_nearest(document))


def _changes(document: Document) -> list[tuple[float, Document, str, Document]]:
    """(how near, assumption, side, change) of every change of the choice, the nearest first."""
    found = [
        (_distance(each, side), each, side, each[side])
        for each in document["sensitivity"]
        for side in ("below", "above")
        if each[side] is not None
    ]
    return sorted(found, key=lambda change: change[0])


def _distance(each: Document, side: str) -> float:
    """How far the change is, as a part of today's value."""
    now = 1.0 if each["unit"].startswith("times") else float(each["value"])
    return abs(float(each[side]["at"]) / now - 1.0) if now else 0.0


def _nearest(document: Document) -> tuple[str, str]:
    changes = _changes(document)
    if not changes:
        return "not nearby", "No single price, rate or error that was tried changes it."
    near, each, side, change = changes[0]
    then = str(change["becomes"] or "no option meets the target")
    sign = "+" if side == "above" else "-"
    digits = 0 if near >= 0.095 else 1
    return f"{each['assumption']} {sign}{near:.{digits}%}", f"Then: {then}."


_CHOICE = "the choice"


def _now(each: Document) -> str:
    """`14.75 USD/h`, `as in the prediction`."""
    if each["unit"].startswith("times the ") and each["value"] == 1.0:
        return str(each["unit"]).removeprefix("times the ").replace("prediction", "as predicted")
    return f"{each['value']:.6g} {each['unit']}"


def _options(document: Document) -> Section:
    choice, frontier = document["choice"], set(document["frontier"])
    chosen = choice["option"] if choice else None
    groups: dict[str, list[tuple[float, float, str]]] = {}
    longest = max((each["time_s"] or 0.0 for each in document["options"]), default=0.0)
    unit, word = (86400.0, "days") if longest > 3 * 86400 else (3600.0, "hours")
    for each in document["options"]:
        if each["time_s"] is None or each["cost"] is None:
            continue
        name = _CHOICE if each["option"] == chosen else each["machine"]
        groups.setdefault(name, []).append((each["time_s"] / unit, each["cost"], each["option"]))
    columns = tables.columns(
        "option|stands out|GPUs|step|efficiency|time|cost|an hour|misses",
        units=f"|||(ms)|||({document['currency']})|({document['currency']})|",
        left="option|stands out|misses",
    )
    rows = tuple(
        (
            each["option"],
            "choice" if each["option"] == chosen
            else "frontier" if each["option"] in frontier else "",
            str(each["gpus"]),
            f"{each['step_time_s'] * 1e3:.2f}",
            f"{each['efficiency']:.1%}",
            _period(each["time_s"]),
            "" if each["cost"] is None else format_amount(each["cost"]),
            format_amount(each["hourly"]),
            ", ".join(each["misses"]),
        )
        for each in document["options"]
    )  # fmt: skip
    table = Table(columns, rows)
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
        head = tables.columns("option|why it is left out", left="option|why it is left out")
        refused = tuple((each["option"], each["reason"]) for each in document["refused"])
        blocks.append(Rows("Left out", Table(head, refused), folded=len(refused) > 12))
    return Section("options", "Options", tuple(blocks))


def _binds(document: Document) -> Iterable[Section]:
    parts = [part for part in document["binds"] if part["share"] > 0]
    if not parts:
        return
    columns = tables.columns("part|of the time", left="part")
    table = Table(columns, tuple((part["name"], f"{part['share']:.1%}") for part in parts))
    data = {
        "unit": "share",
        "parts": [{"name": part["name"], "value": part["share"]} for part in parts],
    }
    words = "What the choice spends its time on."
    yield Section("limits", "What limits it", (Chart("stack", words, data, table),))


def _flips(document: Document) -> Iterable[Section]:
    changes = _changes(document)
    if not document["sensitivity"]:
        return
    if not changes:
        words = "No single price, rate or error that was tried changes the choice."
        yield Section("changes", "When the choice changes", (Paragraph(words),))
        return
    columns = tables.columns(
        "assumption|now|changes where it is|by|then", left="assumption|changes where it is|then"
    )
    rows = tuple(
        (
            each["assumption"],
            _now(each),
            f"{side} {change['at']:.5g}{' times' if each['unit'].startswith('times') else ''}",
            f"{near:.1%}",
            change["becomes"] or "no option meets the target",
        )
        for near, each, side, change in changes
    )
    words = "The nearest values at which another option is chosen, nearest first"
    yield Section("changes", "When the choice changes", (Rows(words, Table(columns, rows)),))


def _prices(document: Document) -> Section:
    prices = document["prices"]
    rows = tuple((each["name"], f"{each['value']:g}", each["unit"]) for each in prices["items"])
    table = Table(tables.columns("price|value|unit", left="price|unit"), rows)
    dated = f", {prices['date']}" if prices["date"] else ""
    caption = f"{prices['title'] or 'Prices of the file'}{dated}"
    return Section("prices", "Prices", (Rows(caption, table),))
