"""The page of a training step on a mesh: which one, why, its memory, and who does what when.

The page of synchronous replicas: updates of workers that do not compute equally long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simreduce import units
from simreduce.files import tables
from simreduce.files.tables import Table
from simreduce.report.blocks import (
    Attachments,
    Code,
    Fact,
    Page,
    Rows,
    Section,
    Written,
    bars,
    folded_when_long,
    stack,
)
from simreduce.report.explain import change_words, help_section, limit_words, nic_fact
from simreduce.report.headings import faster, page_title
from simreduce.report.meshes import answer, candidates_table, held_table, name_of
from simreduce.report.plots import Axis
from simreduce.report.replicas import backups_of, replicas_report, row_of
from simreduce.report.sections import (
    calibration_section,
    machine_section,
    repeat_section,
    timeline_section,
    us,
)
from simreduce.training.mesh.simulate import WAITS

_FEW = 12
"""Rows of a table that is open at once, and bars of a chart."""


def meshes_page(document: Mapping[str, Any], beside: Attachments) -> Page:
    """The page of `simreduce step --json` and `tune --json` for a scenario with a mesh."""
    best = document["candidates"][0]
    batch = units.plural(document["global_batch"], "sequence")
    return Page(
        title=page_title(document, f"{document['scenario']}: which mesh to train on"),
        about=f"{document['workload']}, {document['parameters'] / 1e9:.4g} billion parameters, on "
        f"{document['topology']} with {document['ranks']} GPUs; {batch} of "
        f"{document['sequence']} tokens a step.",
        answer=answer(document),
        sure="How sure: simreduce accuracy mesh says how far off such predictions are from "
        "published steps.",
        facts=tuple(_facts(document, best)),
        sections=(
            *_settings(document),
            *_candidates(document),
            *_spent(best),
            *_memory(document),
            *timeline_section(
                beside,
                "What one rank of each stage does, and what it sends and reduces, in one step.",
            ),
            *machine_section(beside),
            *calibration_section(beside, document),
            *repeat_section(beside, document),
        ),
    )


def _facts(document: Mapping[str, Any], best: Mapping[str, Any]) -> Iterable[Fact]:
    rate = f"{best['tokens_per_second']:,.0f} tokens/s"
    yield Fact("How long does a step take?", us(best["time_us"]), f"{rate}, {best['mfu']:.1%} MFU.")
    share = best["spent_us"].get(best["limit"], 0.0) / best["time_us"]
    yield Fact("What limits it?", WAITS[best["limit"]], f"{share:.0%} of the step.")
    have = document["memory_bytes"]
    more = f"A GPU has {units.format_size(have)}." if have else "Nobody says how much a GPU has."
    yield Fact("What does a GPU hold?", units.format_size(best["peak_bytes"]), more)
    others = [row for row in document["candidates"][1:] if row["mesh"] != best["mesh"]]
    if others and others[0]["fits"] is not False:
        second = others[0]
        slower = second["time_us"] / best["time_us"] - 1.0
        yield Fact("And the next best mesh?", second["mesh"], f"{slower:.1%} slower.")


def _settings(document: Mapping[str, Any]) -> Iterable[Section]:
    files = document.get("files") or {}
    if files:
        blocks = tuple(Code(text.rstrip("\n"), name) for name, text in files.items())
        yield Section("choice", "What to set", blocks)


def _candidates(document: Mapping[str, Any]) -> Iterable[Section]:
    rows = [
        {"name": _name(row), "time_us": row["time_us"]} for row in document["candidates"][:_FEW]
    ]
    table = candidates_table(document, on="html")
    words = "The fastest meshes by the time of a step. Blue: recommended."
    marks = [1, *[0] * (len(rows) - 1)]
    chart = bars(words, table, rows, "name", "time_us", marks)
    yield Section("meshes", "Meshes", (chart, folded_when_long("Every mesh", table, _FEW)))


def _name(row: Mapping[str, Any]) -> str:
    words = [name_of(row), f"micro {row['micro_batch']}"]
    words += [f"{row['schedule']} x {row['virtual']}"] if row["virtual"] > 1 else []
    return ", ".join(words + ([row["recompute"]] if row["recompute"] != "none" else []))


def _spent(best: Mapping[str, Any]) -> Iterable[Section]:
    parts = sorted(best["spent_us"].items(), key=lambda pair: -pair[1])
    named = [(WAITS.get(key, key), value) for key, value in parts]
    columns = tables.columns("spent on|time|of the step", left="spent on")
    rows = tuple((name, us(value), f"{value / best['time_us']:.1%}") for name, value in named)
    words = "What the rank that ends last does, and what it waits for."
    table = tables.Table(columns, rows)
    yield Section("limits", "What limits it", (stack(words, named, table),))


def _memory(document: Mapping[str, Any]) -> Iterable[Section]:
    held = document["candidates"][0]["held"]
    table = held_table(document, on="html")
    rows = [{**row, "name": f"stage {row['place']}"} for row in held]
    words, axis = "What a GPU of each stage holds at most.", Axis("memory", "bytes", log=False)
    chart = bars(words, table, rows, "name", "peak_bytes", [0] * len(held), axis=axis)
    yield Section("memory", "Memory by stage", (chart, Rows("In gigabytes", table)))


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
