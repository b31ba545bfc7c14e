"""The page of a training step on a mesh: which one, why, its memory, and who does what when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simreduce import units
from simreduce.files import tables
from simreduce.report.blocks import (
    Attachments,
    Chart,
    Code,
    Fact,
    Page,
    Rows,
    Section,
    bars,
    folded_when_long,
    stack,
)
from simreduce.report.headings import page_title
from simreduce.report.meshes import answer, candidates_table, held_table, name_of
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
    yield Section("limits", "What limits it", (stack(words, named, table, 150),))


def _memory(document: Mapping[str, Any]) -> Iterable[Section]:
    held = document["candidates"][0]["held"]
    table = held_table(document, on="html")
    data = {
        "unit": "bytes",
        "names": [f"stage {row['place']}" for row in held],
        "values": [row["peak_bytes"] for row in held],
        "marks": [0] * len(held),
    }
    words = "What a GPU of each stage holds at most."
    chart = Chart("bars", words, data, table, 26 * len(held) + 46)
    yield Section("memory", "Memory by stage", (chart, Rows("In gigabytes", table)))
