"""The page of a ranking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simreduce import tables, units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.defaults import (
    Default,
    advise,
    answer_row,
    colour_words,
    defaults,
    factors,
    faster,
    faster_than,
    sure_fact,
    sure_words,
    today_fact,
    told_apart,
)
from simreduce.pages.kinds.limits import help_section, limit_fact, nic_fact, path_section
from simreduce.pages.kinds.measured import measured_section, measured_words, was_measured
from simreduce.pages.kinds.names import meaning, names_block
from simreduce.pages.kinds.paste import instead_words, paste_section
from simreduce.pages.kinds.sections import (
    calibration_section,
    machine_section,
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
    best = answer_row(document)
    today = [] if best is None else defaults(rows)
    what = f"all-reduce of {document['workload']} ({units.format_size(document['size_bytes'])})"
    gpus = units.plural(document["ranks"], "GPU")
    known = None if best is None else factors(document, best["strategy"]).single
    beside = replace(beside, factor=known)
    sections = [
        *_choice_section(document, beside, best, today),
        *paste_section(beside.exports, str(best and best["strategy"]), _times(rows)),
        *measured_section(document),
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
        about=f"{what[0].upper()}{what[1:]} on {document['topology']}, {gpus}. "
        f"{units.plural(len(rows), 'plan')} simulated and proved.",
        answer=_answer(document, best, today, what),
        sure=_sure(document, best, today),
        facts=tuple(_facts(document, beside, best, today)),
        sections=tuple(sections),
    )


def _answer(document: Document, best: Document | None, today: list[Default], what: str) -> str:
    if best is None and was_measured(document):
        return "No measured step was right, so there is nothing to recommend."
    if best is None:
        return "No strategy has a plan that is proven right, so there is nothing to recommend."
    took = f"Run {best['strategy']}: one {what} takes {us(best['time_us'])}"
    if not today:
        return f"{took}."
    if today[0].strategy == best["strategy"]:
        return f"Keep what runs today, {best['strategy']}: one {what} takes {us(best['time_us'])}."
    first = today[0]
    if first.time_us < best["time_us"]:  # others are faster, but measuring chose
        return f"{took}; {first.who} today ({first.strategy}) is predicted to take less."
    ratio = faster_than(best["time_us"], first.time_us)
    beside = f"{ratio} {first.who} today ({first.strategy}, {us(first.time_us)})"
    apart = _from_today(document, best, today)
    took = f"one {what} takes {us(best['time_us'])}"
    return advise(f"Run {best['strategy']}", took, beside, first.strategy, apart=apart)


def _apart(document: Document, best: Document, other: Default) -> bool | None:
    ratio = factors(document, best["strategy"], other.strategy).ratio
    return told_apart(best["time_us"], other.time_us, ratio)


def _from_today(document: Document, best: Document, today: list[Default]) -> bool | None:
    """Whether the best is told apart from what runs today; None too if it is that."""
    if not today or today[0].strategy == best["strategy"]:
        return None
    return _apart(document, best, today[0])


def _sure(document: Document, best: Document | None, today: list[Default]) -> str:
    if best is None:
        return ""
    factor = factors(document, best["strategy"]).single
    words = sure_words(factor, document["calibration"], _from_today(document, best, today))
    return f"{words} {measured_words(document)}".strip()


def _facts(
    document: Document,
    beside: Beside,
    best: Document | None,
    today: list[Default],
) -> Iterable[Fact]:
    if best is None:
        return
    rate = f"{us(best['time_us'])}, {best['busbw_gb_per_s']:.1f} GB/s of bus bandwidth."
    rate = f"{meaning(best['strategy'])} {rate}".strip()
    fastest = next(row for row in document["candidates"] if not row["wrong"] or row is best)
    if was_measured(document):
        rate += " Chosen by what was measured."
    elif fastest is not best and fastest["time_us"] < best["time_us"]:
        rate += (
            f" {fastest['strategy']} takes {us(fastest['time_us'])}, but no setting of TensorFlow "
            "and no default of a framework runs it."
        )
    others = [instead_words(each, _times(document["candidates"])) for each in beside.exports
              if each.instead and each.name == "pytorch"]  # fmt: skip
    rate = " ".join([rate, *(f"{words}." for words in others)])
    yield Fact("What should I run?", best["strategy"], f"{rate}{_typed(document, best)}")
    yield today_fact(best["strategy"], best["time_us"], today)
    factor = factors(document, best["strategy"]).single
    yield Fact("How sure is that?", *sure_fact(factor, _from_today(document, best, today)))
    yield Fact("What limits it?", *limit_fact(beside))
    yield Fact("What would a second NIC buy?", *nic_fact(beside))


def _times(rows: Iterable[Document]) -> dict[str, str]:
    """How long each strategy takes, in words."""
    return {name["strategy"]: us(row["time_us"]) for row in rows for name in (row, *row["also"])}


def _typed(document: Document, best: Document) -> str:
    """A sentence if there is something to type."""
    some = any(best["settings"].get(target) for target in _TARGETS)
    known = document.get("recommended_by_target") or {}
    return " What to type is below." if some or any(known.values()) else ""


def _choice_section(
    document: Document, beside: Beside, best: Document | None, today: list[Default]
) -> Iterable[Section]:
    rows = document["candidates"]
    blocks: list[Block] = []
    if best is not None:
        blocks += _how(document, beside, best)
    if today and best is not None:
        blocks.append(_against(document, best, today))
    if rows:
        blocks.append(_ranking(document, best, today))
        blocks += names_block(row["strategy"] for row in rows)
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
    if blocks:
        yield Section("choice", "What to run", tuple(blocks))


def _how(document: Document, beside: Beside, best: Document) -> Iterable[Block]:
    """What to type for TensorFlow, unless that is in the section of all systems; where it has no
    setting for the best, the fastest that it has one for.
    """
    known = {each.title for each in beside.exports}
    by_name = {row["strategy"]: row for row in document["candidates"]}
    for row in document["candidates"]:
        by_name |= {each["strategy"]: {**row, **each} for each in row["also"]}
    for target, title in _TARGETS.items():
        name = best["strategy"]
        if not best["settings"].get(target):
            name = document["recommended_by_target"].get(target)
        if title in known and (name == best["strategy"] or name not in by_name):
            continue
        if name is None or name not in by_name:
            yield Paragraph(f"{title} has no setting for any of these strategies.")
            continue
        row = by_name[name]
        about = f"{title}: {name}"
        if name != best["strategy"]:
            about = f"{title} has no setting for it; its fastest is {name}, {us(row['time_us'])}"
        yield Code(str(row["settings"][target]), about)


def _against(document: Document, best: Document, today: list[Default]) -> Rows:
    columns = tables.columns(
        "what runs today|strategy|time|recommended is|more than the error",
        units="||(ms)||",
        left="what runs today|strategy|more than the error",
    )
    words = {None: "not known", True: "yes", False: "no"}
    rows = []
    for each in today:
        apart = words[_apart(document, best, each)]
        ratio = faster(best["time_us"], each.time_us)
        if each.strategy == best["strategy"]:
            ratio, apart = "the same", ""
        rows.append((each.who, each.strategy, f"{each.time_us / 1e3:.3f}", ratio, apart))
    return Rows(
        "Beside the defaults of frameworks: what runs today unless somebody changed it",
        Table(columns, tuple(rows)),
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
        f"Time of one all-reduce by strategy. {colour_words(marks)} The tick is what no run of the "
        f"plan can take less than.{more}"
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
