"""The page of a search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simreduce import tables, units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.defaults import sure_fact, sure_words, times_as_fast
from simreduce.pages.kinds.sections import (
    calibration_section,
    limit_fact,
    machine_section,
    nic_fact,
    repeat_section,
    us,
)
from simreduce.pages.values import Block, Chart, Code, Fact, Page, Section
from simreduce.tables import Table

Document = Mapping[str, Any]

_SHOWN = 10


def tune_page(document: Document, beside: Beside) -> Page:
    """The page of `simreduce tune --json`."""
    best, default = document["best"], document["default"]
    factor = document["factor"]
    found = replace(beside, factor=factor)
    what = "a training step" if document["objective"] == "step" else "one all-reduce"
    same = best["setting"] == default["setting"]
    answer = f"Set {best['setting']} for {document['target']}: {what} takes {us(best['time_us'])}"
    answer += f", {times_as_fast(best['time_us'], default['time_us'])} as the default ({default['setting']}, {us(default['time_us'])})."
    if same:
        answer = f"Keep the default of {document['target']}, {best['setting']}: {what} takes {us(best['time_us'])}."
    apart = None if same else document["told_apart"]
    all_of = "all others are excluded by bounds" if document["complete"] else (
        f"no setting is more than {1 - document['bound_us'] / best['time_us']:.1%} faster"
    )
    return Page(
        title=f"{document['workload']} on {document['topology']}: the best setting for {document['target']}",
        about=f"{document['workload']} ({units.format_size(document['size_bytes'])}) on "
        f"{document['topology']}, {units.plural(document['ranks'], 'GPU')}; {document['points']:,} settings.",
        answer=answer,
        sure=sure_words(factor, document["calibration"], apart),
        facts=(
            Fact("What should I run?", best["setting"], f"{us(best['time_us'])}. The next section has what to paste."),
            Fact("How much faster than today?", "it is the default" if same else times_as_fast(best["time_us"], default["time_us"]),
                 f"Default: {default['setting']}, {us(default['time_us'])}."),
            Fact("How sure is that?", *sure_fact(factor, apart)),
            Fact("Is there anything better?", "no" if document["complete"] else "perhaps",
                 f"Of {document['points']:,} settings, {document['simulated']} were simulated; {all_of}."),
            Fact("What is the bound?", us(document["floor_us"]), "Nothing here takes less."),
        ),
        sections=tuple([
            *_settings(document),
            *machine_section(found, document),
            *calibration_section(found, document),
            *repeat_section(found, document),
        ]),
    )  # fmt: skip


def _settings(document: Document) -> Iterable[Section]:
    rows = document["rows"]
    best, default = document["best"], document["default"]
    blocks: list[Block] = [Code(text.rstrip("\n"), name) for name, text in document["files"].items()]
    columns = tables.columns("setting|time|told apart from the best", units="|(ms)|", left="setting|told apart from the best")
    words = {True: "yes", False: "no", None: "not known"}
    cells = tuple((row["setting"], f"{row['time_us'] / 1e3:.3f}", words[row.get("told_apart")]) for row in rows)
    shown = rows[:_SHOWN]
    data = {
        "unit": "us",
        "names": [row["setting"] for row in shown],
        "values": [row["time_us"] for row in shown],
        "marks": [1 if row["setting"] == best["setting"] else 2 if row["setting"] == default["setting"] else 0 for row in shown],
    }
    about = f"The fastest {len(shown)} simulated settings. Blue: the best; orange: the default."
    blocks.append(Chart("bars", about, data, Table(columns, cells), 26 * len(shown) + 46))
    yield Section("choice", "What to set", tuple(blocks))
    curve = document.get("curve") or []
    if len(curve) > 1:
        points = [(p["bucket_bytes"], p["time_us"]) for p in curve]
        limit = [(p[0], document["floor_us"]) for p in points]
        table = Table(
            tables.columns("bucket|time|", units="|(ms)|", left=""),
            tuple((units.format_size(p["bucket_bytes"]), f"{p['time_us'] / 1e3:.3f}", "" if p["exact"] else "at least") for p in curve),
        )
        data = {"x": "bytes", "y": "us", "name_x": "size of a bucket", "name_y": "time", "lines": [
            {"name": best["setting"], "points": points},
            {"name": "default", "points": [(p[0], default["time_us"]) for p in points], "dashed": True},
            {"name": "bound", "points": limit, "dashed": True},
        ]}  # fmt: skip
        yield Section("sizes", "Over bucket sizes", (Chart("curves", "The time over the size of buckets, all else as in the best setting.", data, table, 360),))
