"""The page of a ranking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simreduce import tables, units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.defaults import (
    Default,
    by_nccl,
    defaults,
    faster,
    faster_than,
    sure_fact,
    sure_words,
    told_apart,
)
from simreduce.pages.kinds.sections import (
    calibration_section,
    help_section,
    limit_fact,
    machine_section,
    nic_fact,
    path_section,
    repeat_section,
    sizes_section,
    timeline_section,
    us,
)
from simreduce.pages.values import Block, Chart, Code, Fact, Page, Paragraph, Rows, Section
from simreduce.tables import Table

Document = Mapping[str, Any]

_SHOWN = 12
_TARGETS = {"tf_cnn_benchmarks": "tf_cnn_benchmarks", "tensorflow": "TensorFlow"}


def run_page(document: Document, beside: Beside) -> Page:
    """The page of `simreduce run --json`."""
    rows = document["candidates"]
    best = next((row for row in rows if row["strategy"] == document["recommended"]), None)
    today = [] if best is None else defaults(rows)
    what = f"all-reduce of {document['workload']} ({units.format_size(document['size_bytes'])})"
    ranks = units.plural(document["ranks"], "GPU")
    factor = _factor(document, beside)
    sections = [
        *_choice_section(document, best, today, factor),
        *machine_section(beside),
        *path_section(beside),
        *help_section(beside),
        *timeline_section(beside, f"What every device, link and lane does during one {what}."),
        *sizes_section(beside, today=today[0].strategy.partition("+")[0] if today else ""),
        *calibration_section(beside, document),
        *repeat_section(beside, document),
    ]
    return Page(
        title=f"{document['workload']} on {document['topology']}: which reduction?",
        about=f"{what[0].upper()}{what[1:]} on {document['topology']}, {ranks}. "
        f"{units.plural(len(rows), 'plan')} simulated and proved.",
        answer=_answer(best, today, what),
        sure=_sure(document, best, today, factor),
        facts=tuple(_facts(beside, best, today, factor)),
        sections=tuple(sections),
    )


def _factor(document: Document, beside: Beside) -> float | None:
    found = beside.factor if beside.factor is not None else document.get("factor")
    return None if found is None else float(found)


def _answer(best: Document | None, today: list[Default], what: str) -> str:
    if best is None:
        return "No strategy has a plan that is proven right, so there is nothing to recommend."
    took = f"Run {best['strategy']}: one {what} takes {us(best['time_us'])}"
    if not today:
        return f"{took}."
    if today[0].strategy == best["strategy"]:
        return f"Keep what runs today, {best['strategy']}: one {what} takes {us(best['time_us'])}."
    first = today[0]
    ratio = faster_than(best["time_us"], first.time_us)
    return f"{took}, {ratio} {first.who} today ({first.strategy}, {us(first.time_us)})."


def _apart(best: Document, today: list[Default], factor: float | None) -> bool | None:
    first = today[0] if today else None
    if first is None or first.strategy == best["strategy"]:
        return None
    known = factor if by_nccl(best["strategy"], first.strategy) else None
    return told_apart(best["time_us"], first.time_us, known)


def _sure(
    document: Document, best: Document | None, today: list[Default], factor: float | None
) -> str:
    if best is None:
        return ""
    known = factor if by_nccl(best["strategy"]) else None
    return sure_words(known, document["calibration"], _apart(best, today, factor))


def _facts(
    beside: Beside,
    best: Document | None,
    today: list[Default],
    factor: float | None,
) -> Iterable[Fact]:
    if best is None:
        return
    yield Fact(
        "What should I run?", best["strategy"],
        f"{us(best['time_us'])}, {best['busbw_gb_per_s']:.1f} GB/s of bus bandwidth. The first "
        "section says what to type.",
    )  # fmt: skip
    if today and today[0].strategy != best["strategy"]:
        yield Fact(
            "How much faster than today?",
            faster(best["time_us"], today[0].time_us),
            f"Today: {today[0].who}, {today[0].strategy}, {us(today[0].time_us)}.",
        )
    elif today:
        yield Fact("How much faster than today?", "it is what runs today", f"{today[0].who}.")
    else:
        yield Fact(
            "How much faster than today?", "not compared", "No default of a framework was ranked."
        )
    known = factor if by_nccl(best["strategy"]) else None
    yield Fact("How sure is that?", *sure_fact(known, _apart(best, today, factor)))
    yield Fact("What limits it?", *limit_fact(beside))
    yield Fact("What would a second NIC buy?", *nic_fact(beside))


def _choice_section(
    document: Document, best: Document | None, today: list[Default], factor: float | None
) -> Iterable[Section]:
    rows = document["candidates"]
    blocks: list[Block] = []
    if best is not None:
        blocks += _how(document, best)
    if today and best is not None:
        blocks.append(_against(best, today, factor))
    if rows:
        blocks.append(_ranking(document, best, today))
    if document.get("refused"):
        columns = tables.columns(
            "strategy|why it is not possible here", left="strategy|why it is not possible here"
        )
        refused = tuple((each["strategy"], each["reason"]) for each in document["refused"])
        blocks.append(
            Rows(
                f"{len(refused)} strategies are not possible here",
                Table(columns, refused),
                folded=True,
            )
        )
    yield Section("choice", "What to run", tuple(blocks))


def _how(document: Document, best: Document) -> Iterable[Block]:
    by_name = {row["strategy"]: row for row in document["candidates"]}
    for row in document["candidates"]:
        by_name |= {each["strategy"]: {**row, **each} for each in row["also"]}
    for target, title in _TARGETS.items():
        name = best["strategy"]
        if not best["settings"].get(target):
            name = document["recommended_by_target"].get(target)
        if name is None or name not in by_name:
            yield Paragraph(f"{title} has no setting for any of these strategies.")
            continue
        row = by_name[name]
        about = f"{title}: {name}"
        if name != best["strategy"]:
            about = f"{title} has no setting for it; its fastest is {name}, {us(row['time_us'])}"
        yield Code(str(row["settings"][target]), about)


def _against(best: Document, today: list[Default], factor: float | None) -> Rows:
    columns = tables.columns(
        "default|strategy|time|recommended is|told apart",
        units="||(ms)||",
        left="default|strategy|told apart",
    )
    words = {None: "not known", True: "yes", False: "no"}
    rows = []
    for each in today:
        known = factor if by_nccl(best["strategy"], each.strategy) else None
        apart = told_apart(best["time_us"], each.time_us, known)
        ratio = faster(best["time_us"], each.time_us)
        rows.append((each.who, each.strategy, f"{each.time_us / 1e3:.3f}", ratio, words[apart]))
    return Rows(
        "Beside what runs today unless somebody says otherwise", Table(columns, tuple(rows))
    )


def _ranking(document: Document, best: Document | None, today: list[Default]) -> Chart:
    rows = document["candidates"]
    first = rows[:_SHOWN]
    first += [
        row
        for row in rows[_SHOWN:]
        if row is best or row["strategy"] in {t.strategy for t in today[:1]}
    ]
    mine = today[0].strategy if today else ""
    marks = [1 if row is best else 2 if row["strategy"] == mine else 0 for row in first]
    more = (
        f" {len(first)} of {units.plural(len(rows), 'plan')}; the table has all."
        if len(first) < len(rows)
        else ""
    )
    words = (
        "Time of one all-reduce by strategy. Blue: recommended; orange: what runs today. The tick "
        f"is what no run of the plan can take less than.{more}"
    )
    data = {
        "unit": "us",
        "names": [row["strategy"] for row in first],
        "values": [row["time_us"] for row in first],
        "floors": [row["floor_us"] for row in first],
        "marks": marks,
    }
    columns = tables.columns(
        "#|strategy|runtime|time|at least|bus bandwidth|transfers|busiest link|busy|wrong elements",
        units="|||(ms)|(ms)|(GB/s)||||", left="strategy|runtime|busiest link",
    )  # fmt: skip
    cells = tuple(
        (
            str(row["place"]),
            row["strategy"],
            row["runtime"],
            f"{row['time_us'] / 1e3:.3f}",
            f"{row['floor_us'] / 1e3:.3f}",
            f"{row['busbw_gb_per_s']:.2f}",
            str(row["transfers"]),
            row["bottleneck"],
            f"{row['bottleneck_share']:.0%}",
            str(row["wrong"]),
        )
        for row in rows
    )
    return Chart("bars", words, data, Table(columns, cells), 26 * len(first) + 46)
