"""The page of a training step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simreduce import tables, units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.defaults import (
    Default,
    advise,
    colour_words,
    defaults,
    factors,
    faster_than,
    sure_fact,
    sure_words,
    today_fact,
    told_apart,
)
from simreduce.pages.kinds.limits import help_section, limit_fact, nic_fact, path_section
from simreduce.pages.kinds.names import meaning, names_block
from simreduce.pages.kinds.paste import paste_section
from simreduce.pages.kinds.replicas import replicas_page
from simreduce.pages.kinds.sections import (
    calibration_section,
    machine_section,
    repeat_section,
    sizes_section,
    timeline_section,
    us,
)
from simreduce.pages.kinds.step_path import limit_of_step, step_path_section
from simreduce.pages.values import Block, Chart, Fact, Page, Paragraph, Rows, Section
from simreduce.tables import Table

Document = Mapping[str, Any]


def step_page(document: Document, beside: Beside) -> Page:
    """The page of `simreduce step --json`, of a `[step]` or of `[replicas]`."""
    if "replicas_to_aggregate" in document:
        return replicas_page(document, beside)
    if not isinstance(document["strategy"], str):
        raise TypeError("its strategy is no text")
    rows = document["candidates"]
    today = defaults(rows, "step_time_us")
    known = factors(document, document["strategy"]).single
    beside = replace(beside, factor=known)
    ranks = units.plural(document["ranks"], "GPU")
    name = document["strategy"]
    samples = f"{_rate(document):,.0f} samples/s"
    fixed = document["compute_us"] + document["update_us"] + document["launch_us"]
    apart = None
    if today and today[0].strategy != name:
        ratio = factors(document, name, today[0].strategy).ratio
        apart = told_apart(document["step_time_us"] - fixed, today[0].time_us - fixed, ratio)
    alone = "The same reductions by themselves, with every gradient there from the start."
    alone = alone if beside.explanation and not beside.look else ""
    sections = [
        _methods(document, today),
        *paste_section(beside.exports, document["strategy"]),
        *_alone(machine_section(beside), alone),
        *(step_path_section(beside) if beside.look else _alone(path_section(beside), alone)),
        *_alone(help_section(beside), alone),
        *timeline_section(beside, "What computes and what moves during one step."),
        *_buckets(document),
        *sizes_section(beside, today=today[0].strategy.partition("+")[0] if today else ""),
        *calibration_section(beside, document),
        *repeat_section(beside, document, [("compute", str(document["compute_source"]))]),
    ]
    return Page(
        title=f"{document['workload']} on {document['topology']}: the training step",
        about=f"{document['workload']}, {units.format_size(document['size_bytes'])} of gradients, "
        f"batch {document['batch']} a GPU, {ranks} of {document['topology']}. "
        f"{units.plural(len(rows), 'method')} simulated.",
        answer=_answer(document, today, samples, apart),
        sure=sure_words(known, document["calibration"], apart, "times of the communication")
        + f" The time of compute is an input: {document['compute_source']}.",
        facts=tuple(_facts(document, beside, today, known, apart)),
        sections=tuple(sections),
    )


def _alone(sections: Iterable[Section], words: str) -> Iterable[Section]:
    first = (Paragraph(words),) if words else ()
    for each in sections:
        yield Section(each.key, each.title, (*first, *each.blocks))


def _answer(document: Document, today: list[Default], samples: str, apart: bool | None) -> str:
    took = f"a step takes {us(document['step_time_us'])}, {samples}"
    name = document["strategy"]
    if not today:
        return f"Run {name}: {took}."
    first = today[0]
    if first.strategy == name:
        return f"Keep what runs today, {name}: {took}."
    ratio = faster_than(document["step_time_us"], first.time_us)
    beside = f"{ratio} {first.who} today ({first.strategy}, {us(first.time_us)})"
    return advise(f"Run {name}", took, beside, first.strategy, apart=apart)


def _facts(
    document: Document,
    beside: Beside,
    today: list[Default],
    known: float | None,
    apart: bool | None,
) -> Iterable[Fact]:
    name = document["strategy"]
    yield Fact(
        "What should I run?", name,
        f"{meaning(name)} {us(document['step_time_us'])} a step, "
        f"{_efficiency(document['scaling_efficiency'])}.".strip(),
    )  # fmt: skip
    yield today_fact(name, document["step_time_us"], today)
    yield Fact("How sure is that?", *sure_fact(known, apart))
    yield Fact("What limits it?", *_limit(document, beside))
    nic = nic_fact(beside) if beside.look else ("not known here", beside.missing or _ASK)
    yield Fact("What would a second NIC buy?", *nic)


def _efficiency(share: float) -> str:
    """The rate beside that of as many GPUs that each train alone."""
    more = " (alone, each updates every variable)" if share > 1.0005 else ""
    return f"{share:.1%} of the rate of the GPUs, each alone{more}"


_ASK = "A report on the scenario itself simulates the step with it."


def _limit(document: Document, beside: Beside) -> tuple[str, str]:
    """What takes most of the step."""
    if beside.look is not None:
        return limit_of_step(beside.look)
    whole = document["step_time_us"] or math.inf  # no part of no time
    compute, exposed = (document[key] / whole for key in ("compute_us", "exposed_us"))
    by_itself = limit_fact(beside)[0] if beside.explanation else ""
    if exposed >= 0.5:
        alone = f" By themselves they wait for {by_itself}." if by_itself else ""
        hidden = f"{exposed:.0%} of the step is communication that it does not hide."
        return "reductions", f"{hidden}{alone}"
    hidden = f"{exposed:.1%} is communication that it does not hide."
    alone = f" The reductions by themselves: {by_itself}." if by_itself else ""
    return "compute", f"{compute:.1%} of the step; {hidden}{alone}"


def _methods(document: Document, today: list[Default]) -> Section:
    rows = document["candidates"]
    mine = today[0].strategy if today else ""
    data: dict[str, Any] = {
        "unit": "us",
        "names": [row["strategy"] for row in rows[:15]],
        "values": [row["step_time_us"] for row in rows[:15]],
        "marks": [
            1 if row["strategy"] == document["strategy"] else 2 if row["strategy"] == mine else 0
            for row in rows[:15]
        ],
    }
    columns = tables.columns(
        "#|method|step|exposed|samples/s|efficiency|reductions alone|wrong elements",
        units="||(ms)|(ms)|||(ms)|", left="method",
    )  # fmt: skip
    cells = tuple(
        (
            str(row["place"]),
            row["strategy"],
            f"{row['step_time_us'] / 1e3:.3f}",
            f"{row['exposed_us'] / 1e3:.3f}",
            f"{_rate(row):.1f}",
            f"{row['scaling_efficiency']:.1%}",
            f"{row['alone_us'] / 1e3:.3f}",
            str(row["wrong"]),
        )
        for row in rows
    )
    parts = [
        ("compute", document["compute_us"]),
        ("update", document["update_us"]),
        ("launch", document["launch_us"]),
        ("exposed communication", document["exposed_us"]),
    ]
    whole = document["step_time_us"] or math.inf  # no part of no time
    shares = Table(
        tables.columns("part|time|of the step", units="|(ms)|", left="part"),
        tuple((name, f"{t / 1e3:.3f}", f"{t / whole:.1%}") for name, t in parts),
    )
    stack = {"unit": "us", "parts": [{"name": n, "value": t} for n, t in parts if t > 0]}
    blocks: tuple[Block, ...] = (
        Chart("stack", f"What a step of {document['strategy']} spends its time on.", stack, shares),
        Chart(
            "bars", f"Time of a step by method. {colour_words(data['marks'])}",
            data, Table(columns, cells), 26 * len(data["names"]) + 46,
        ),
        *names_block(row["strategy"] for row in rows),
    )  # fmt: skip
    return Section("choice", "What to run", blocks)


def _buckets(document: Document) -> Iterable[Section]:
    buckets = document["buckets"]
    if not buckets:
        return
    columns = tables.columns(
        "#|collective|gradients|size|ready|start|finish",
        units="||||(ms)|(ms)|(ms)",
        left="collective|gradients",
    )
    rows = []
    for i, b in enumerate(buckets, 1):
        names = b["gradients"]
        what = names[0] if len(names) == 1 else f"{len(names)}: {names[-1]} to {names[0]}"
        times = (f"{b[key] / 1e3:.3f}" for key in ("ready_us", "start_us", "finish_us"))
        kind = b.get("collective", "all_reduce").replace("_", "-")
        rows.append((str(i), kind, what, units.format_size(b["size_bytes"]), *times))
    caption = f"What is reduced when: {units.plural(len(rows), 'bucket')}"
    yield Section(
        "buckets", "Buckets", (Rows(caption, Table(columns, tuple(rows)), folded=len(rows) > 20),)
    )


def _rate(row: Mapping[str, Any]) -> float:
    """Samples a second, which are infinitely many if a step takes no time."""
    found = row["images_per_second"]
    return math.inf if found is None else float(found)
