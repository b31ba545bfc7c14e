"""The text and the page of a report on capacity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from simreduce import units
from simreduce.files import tables
from simreduce.report.blocks import (
    Attachments,
    Block,
    Chart,
    Fact,
    Page,
    Paragraph,
    Rows,
    Section,
    Written,
    folded_when_long,
    page_text,
    stack,
    table_section,
)
from simreduce.report.capacity import (
    ASSUMPTION,
    CAPACITY,
    CAPACITY_JOBS,
    FAILURE,
    ITEM,
    PART,
    REACH,
    REFUSED,
    changes,
    choice_words,
    money,
    nearest_change,
    options_facet,
    options_table,
    or_inf,
    price_words,
    rates_words,
    run_words,
    sure_words,
    target_words,
)
from simreduce.report.headings import opening
from simreduce.report.plots.axes import Axis
from simreduce.report.sections import machine_section, repeat_section
from simreduce.study.capacity.answer import (
    CapacityAnswer,
    RankedOptions,
    fit_of,
)
from simreduce.study.capacity.choose import (
    COPY,
    CopiesOffer,
)
from simreduce.study.capacity.price_list import format_period


def capacity_text(answer: CapacityAnswer) -> str:
    """The report, with what its document lacks: failures, and the memory of a GPU."""
    return page_text(capacity_report(CAPACITY.write(answer)), _asides(answer))


def copies_text(answer: RankedOptions[CopiesOffer]) -> str:
    """The report on copies of jobs."""
    return page_text(copies_report(CAPACITY_JOBS.write(answer)))


def _asides(answer: CapacityAnswer) -> Iterator[str]:
    failures, chosen = answer.question.failures, answer.chosen
    if failures:
        yield (
            f"A node fails every {format_period(failures.mtbf)}, a checkpoint stops the job for "
            f"{format_period(failures.checkpoint)}, a restart takes "
            f"{format_period(failures.restart)}."
        )
    if failures and chosen:
        every = format_period(failures.best_interval(chosen.candidate.nodes))
        fails = format_period(failures.between(chosen.candidate.nodes))
        yield f"The choice: a failure every {fails}, a checkpoint every {every}."
    if chosen and chosen.candidate.row.memory is not None:
        found = chosen.candidate
        option = next(each for each in answer.question.options if each.key == found.key)
        if option.memory:
            yield f"A GPU {fit_of(option, found.row).words}."


def capacity_report(document: Written) -> Page:
    """The report on options for a run or a rate, for a terminal and a page."""
    choice = document["choice"]
    asked = ", ".join([document["workload"], *run_words(document["target"])])
    words = f"Every option by the time and the cost of a million {document['counted']}"
    if document["target"]["samples"]:
        words = "Every option by its cost and the time of the run"
    return Page(
        title=_title(document),
        about=_about(document, asked),
        answer=_answer(document),
        sure=_sure(document),
        facts=tuple(_facts(document, choice)) if choice else (),
        sections=(
            _options(document, words),
            *_binds(document),
            *table_section("efficiency", "Efficiency", "Up to where the target's efficiency holds",
                           REACH.table(document.get("efficiency_holds", ()))),
            *table_section("fails", "If a part fails",
                           "What is left of the choice until a part that fails is repaired",
                           FAILURE.table(document.get("failures", ()))),
            *_flips(document),
            *_waiting(document),
        ),
    )  # fmt: skip


def copies_report(document: Written) -> Page:
    """The report on copies of jobs, for a terminal and a page."""
    words, choice = "Every option by its price per hour and that of a copy", document["choice"]
    return Page(
        title=_title(document),
        about=_about(document, f"Copies of {document['jobs']}"),
        answer=f"{document['headline'].rstrip('.')}.",
        sure=_paid_and_notes(document),
        facts=tuple(_facts_of_copies(document, choice)) if choice else (),
        sections=(_options(document, words), *_waiting(document)),
    )


def capacity_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce capacity --json`: the report, with prices and how to repeat it."""
    page = copies_report(document) if "jobs" in document else capacity_report(document)
    more = (
        _prices(document["prices"]),
        *machine_section(beside),
        *repeat_section(beside, document),
    )
    return replace(page, sections=(*page.sections, *more))


def _title(document: Written) -> str:
    title: str = document["title"]
    return title if title.endswith("?") else f"{title}: which machines?"


def _about(document: Written, asked: str) -> str:
    options = units.plural(len(document["options"]), "option")
    prices = tables.label(document["prices"]["title"] or "of the file", document["prices"]["date"])
    return (
        f"{asked}; {options} simulated and priced. Wanted: {target_words(document)}. Prices: "
        f"{prices}, in {document['currency']}."
    )


def _answer(document: Written) -> str:
    """What to rent or buy, and what nearly meets the target for less; if nothing meets it, what is
    missed how often.
    """
    words = f"{choice_words(document).rstrip('.')}."
    if document["choice"] is None:
        missed = Counter(name for each in document["options"] for name in each["misses"])
        count = len(document["options"])
        words += "".join(f" {name}: missed by {n} of {count}." for name, n in missed.items())
    words += f" Nearly: {document['near_miss']}." if document.get("near_miss") else ""
    if first := sum(each.get("first_mesh", False) for each in document["options"]):
        words += (
            f" Of {units.plural(first, 'option')} only the first mesh was simulated: others may be"
            " faster."
        )
    return words


def _paid_and_notes(document: Written) -> str:
    notes = "; ".join(document["notes"])
    paid = f"{opening(document['paid_off'])}. " if document["paid_off"] else ""
    return f"{paid}Note: {notes}." if notes else paid.strip()


def _sure(document: Written) -> str:
    how = f"How sure: {sure_words(document)[1]}. " if document["choice"] else ""
    return f"{how}{_paid_and_notes(document)}".strip()


def _facts(document: Written, choice: Written) -> Iterator[Fact]:
    gpus = units.plural(choice["gpus"], "GPU")
    more = f"{gpus}; in the words of the file, {choice['option']}."
    yield Fact(f"What should I {choice['pay']}?", choice["configuration"], more)
    hourly = f"{money(document, choice['hourly'])}/h"
    yield Fact("What does it cost?", hourly, f"{opening(price_words(document, choice))}.")
    short, words = sure_words(document)
    yield Fact("How sure is that?", short, f"{opening(rates_words(document) or words)}.")
    binds: list[Written] = document["binds"] or [{"name": "nothing", "share": 0.0}]
    first = binds[0]
    more = f"{first['share']:.1%} of the time"
    if choice["bottleneck"]:
        more += f"; of the communication, the link {choice['bottleneck']} is the busiest"
    yield Fact("What limits it?", first["name"], f"{more}.")
    yield Fact("When does the choice change?", *nearest_change(document))


def _facts_of_copies(document: Written, choice: Written) -> Iterator[Fact]:
    gpus = units.plural(choice["gpus"], "GPU")
    yield Fact(f"What should I {choice['pay']}?", choice["configuration"], f"{gpus}.")
    copies = units.plural(choice["copies"], "copy", "copies")
    yield Fact("How many copies does it hold?", copies, f"{opening(choice['limit'])}.")
    hourly, each = (f"{money(document, choice[key])}/h" for key in ("hourly", COPY))
    yield Fact("What does it cost?", hourly, f"{each} a copy.")


def _options(document: Written, words: str) -> Section:
    """Every option as a point and as a row, and those without a time. `words` say what the chart
    shows.
    """
    table, facet = options_table(document), options_facet(document)
    blocks: list[Block] = [Rows("Every option", table)]
    if facet.series:
        words += ". Numbers: nodes; filled: meets the target. Lower and further left is better."
        blocks = [Chart(words, facet, table)]
    if document["refused"]:
        blocks.append(folded_when_long("Left out", REFUSED.table(document["refused"]), 12))
    return Section("options", "Options", tuple(blocks))


def _binds(document: Written) -> Iterator[Section]:
    parts = [part for part in document["binds"] if part["share"] > 0]
    if parts:
        shares = [(part["name"], part["share"]) for part in parts]
        words = "What the choice spends its time on."
        chart = stack(words, shares, PART.table(parts), Axis("of the time", "share", log=False))
        yield Section("limits", "What limits it", (chart,))


def _flips(document: Written) -> Iterator[Section]:
    """The assumptions, those whose changes are nearest first."""
    every, found = document["sensitivity"], changes(document)
    if not every:
        return
    block: Block = Paragraph("No single price, rate or error that was tried changes the choice.")
    if found:
        nearest = {each["assumption"]: near for near, _, each in reversed(found)}
        rows = [{**each, "nearest": nearest.get(each["assumption"])} for each in every]
        rows.sort(key=lambda row: or_inf(row["nearest"]))
        words = "The nearest values at which another option is chosen, nearest first"
        block = Rows(words, ASSUMPTION.table(rows))
    stopped = [each["assumption"] for each in every if each.get("complete") is False]
    more = [Paragraph(f"Stopped before all was known of {', '.join(stopped)}.")] * bool(stopped)
    yield Section("changes", "When the choice changes", (block, *more))


def _waiting(document: Written) -> tuple[Section, ...]:
    return table_section(
        "waiting", "Not simulated",
        "Not simulated before the command ended; with --db, it goes on from there",
        tables.texts("option", ((name,) for name in document.get("waiting", ()))),
    )  # fmt: skip


def _prices(prices: Written) -> Section:
    dated = f", {prices['date']}" if prices["date"] else ""
    caption = f"{prices['title'] or 'Prices of the file'}{dated}"
    return Section("prices", "Prices", (Rows(caption, ITEM.table(prices["items"])),))
