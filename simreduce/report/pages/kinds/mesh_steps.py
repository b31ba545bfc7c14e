"""The page of synchronous replicas: updates of workers that do not compute equally long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simreduce import units
from simreduce.files import tables
from simreduce.files.tables import Table
from simreduce.report.blocks import (
    Attachments,
    Chart,
    Fact,
    Page,
    Paragraph,
    Rows,
    Section,
)
from simreduce.report.explain import change_words, help_section, nic_fact
from simreduce.report.headings import faster
from simreduce.report.replicas import backups_table
from simreduce.report.sections import (
    calibration_section,
    machine_section,
    repeat_section,
    timeline_section,
    us,
)

Document = Mapping[str, Any]

ASK = "A report on the scenario itself simulates it."

_SPENT = {
    "compute": "computing gradients",
    "read": "reading variables",
    "send": "sending gradients",
    "wait": "waiting for a token of the next update",
}


def replicas_page(document: Document, beside: Attachments) -> Page:
    """The page of `simreduce step --json` for a scenario with `[replicas]`."""
    workers, needed = document["workers"], document["replicas_to_aggregate"]
    backups = max(workers - needed, 0)
    where = f" on {document['topology']}" if document["topology"] else ""
    repetitions = units.plural(document["repetitions"], "repetition")
    sent = document["workload"] or units.plural(document["variables"], "variable")
    return Page(
        title=f"{document['scenario']}: updates of synchronous replicas",
        about=f"{units.plural(workers, 'worker')}{where}, {sent}; an update takes "
        f"{units.plural(needed, 'gradient')}, so {units.plural(backups, 'worker')} "
        f"{units.noun(backups, 'is a backup', 'are backups')}. {repetitions} of "
        f"{document['updates']} updates simulated.",
        answer=_answer(document, backups),
        sure=_sure(document),
        facts=tuple(_replicas_facts(document, beside, backups)),
        sections=(
            *_backups(document, backups),
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


def _answer(document: Document, backups: int) -> str:
    step, best = document["step_time_us"], document["best_backups"]
    if step["mean"] is None:
        return "Training stops in every repetition: not all updates are ever made."
    took = f"One update takes {us(step['mean'])}"
    if best is None:
        return f"{took} with {units.plural(backups, 'backup')}."
    now, then = (_row(document, each) for each in (backups, best))
    if best == backups or now is None or then is None:
        return f"Keep {units.plural(backups, 'backup')}: {took[0].lower()}{took[1:]}."
    if now["as_good_as_the_best"]:
        return (
            f"Keep {units.plural(backups, 'backup')}: {took[0].lower()}{took[1:]}. {best} is "
            "better by less than the random times explain."
        )
    mine, other = (each["gradients_per_second"]["mean"] for each in (then, now))
    number = units.plural(best, "backup") if best else "no backups"
    return (
        f"Use {number}: {mine:.1f} gradients enter updates in a second, "
        f"{mine / other - 1.0:.1%} more than with {backups}."
    )


def _row(document: Document, backups: int) -> Document | None:
    return next((each for each in document["backups"] if each["backups"] == backups), None)


def _range(step: Document) -> str:
    if step["low"] is None or step["high"] is None:
        return "not known: there is one repetition"
    return f"{us(step['low'])} to {us(step['high'])}"


def _sure(document: Document) -> str:
    step = document["step_time_us"]
    blocked = document["blocked"]
    stops = (
        f" In {blocked} of {units.plural(document['repetitions'], 'repetition')} training stops."
        if blocked
        else ""
    )
    if step["mean"] is None:
        return stops.strip()
    return (
        f"How sure: with {document['confidence']:.0%} confidence the mean of more repetitions is "
        f"{_range(step)}. That is the error of the random compute times alone; no published "
        f"timings say how far off the model of the machine is.{stops}"
    )


def _replicas_facts(document: Document, beside: Attachments, backups: int) -> Iterable[Fact]:
    step, look = document["step_time_us"], beside.look
    took = "never made" if step["mean"] is None else us(step["mean"])
    share = document["dropped_share"]
    some = share is not None  # there are gradients
    dropped = f"{share:.1%} of the gradients come too late and are dropped." if some else ""
    yield Fact("How many backups?", *_choice(document, backups))
    yield Fact(f"How long does an update take with {backups}?", took, dropped)
    if step["mean"] is not None:
        yield Fact(
            "How sure is that?",
            _range(step),
            f"The mean, with {document['confidence']:.0%} confidence.",
        )
    yield Fact("What limits it?", *_limit(document, beside, backups))
    if document["topology"]:
        yield Fact("What would a second NIC buy?", *nic_fact(beside))
    elif look is not None and look["changes"]:
        yield Fact("What would help most?", *_helps(look["changes"][0], look))


def _choice(document: Document, backups: int) -> tuple[str, str]:
    if not document["backups"]:
        return str(backups), "Given; simreduce step --backups tries others."
    best = document["best_backups"]
    if best is None:
        return "none will do", "Training stops with every number of them."
    equal = [
        str(each["backups"])
        for each in document["backups"]
        if each["as_good_as_the_best"] and each["backups"] != best
    ]
    if str(backups) in equal:
        return f"{backups}, as now", f"{best} is better by less than the random times explain."
    more = f" {' and '.join(equal)} may be as good." if equal else ""
    return str(best), f"Most gradients in a second, of those tried.{more}"


def _limit(document: Document, beside: Attachments, backups: int) -> tuple[str, str]:
    if beside.look is None or not any(beside.look["spent"].values()):
        return "not known here", beside.missing or ASK
    parts = sorted(beside.look["spent"].items(), key=lambda part: -part[1])
    (name, share), (second, other) = parts[0], parts[1]
    row, step = _row(document, backups), document["step_time_us"]
    ideal = row["ideal_step_time_us"] if row else None
    more = (
        f" An update that all begin together takes {us(ideal)} with free communication."
        if ideal is not None and step["mean"] is not None
        else ""
    )
    then = f"then {_SPENT.get(second, second)}, {other:.0%}"
    return _SPENT.get(name, name), f"{share:.0%} of the workers' time; {then}.{more}"


def _helps(first: Document, look: Document) -> tuple[str, str]:
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
    shown = [{"name": _SPENT.get(name, name), "value": share} for name, share in parts]
    columns = tables.columns("spent on|of the time", left="spent on")
    rows = tuple((each["name"], f"{each['value']:.1%}") for each in shown)
    words = "What all workers together spend their time on, after the first updates are skipped."
    data = {"unit": "share", "parts": [each for each in shown if each["value"] > 0]}
    chart = Chart("stack", words, data, Table(columns, rows), 130)
    yield Section("limits", "What limits it", (chart,))


def _backups(document: Document, now: int) -> Iterable[Section]:
    """Updates and gradients over the number of backups."""
    found = document["backups"]
    rated = [each for each in found if each["gradients_per_second"]["mean"] is not None]
    table = backups_table(document, on="html")
    if not rated:
        ask = Paragraph("simreduce step --backups compares numbers of backups.")
        block = Rows("Every number that was tried", table) if found else ask
        yield Section("choice", "How many backups", (block,))
        return
    best = document["best_backups"]
    data = {
        "unit": "plain",
        "name": "gradients a second",
        "names": [units.plural(each["backups"], "backup") for each in rated],
        "values": [each["gradients_per_second"]["mean"] for each in rated],
        "marks": [
            1 if each["backups"] == best else 2 if each["backups"] == now else 0 for each in rated
        ],
    }
    words = (
        "Gradients that enter updates in a second, with the same random times. Blue: the best; "
        "orange: the scenario's. Fewer gradients in an update make it faster, and worth less."
    )
    chart = Chart("bars", words, data, table, 30 * len(rated) + 66)
    yield Section("choice", "How many backups", (chart,))
