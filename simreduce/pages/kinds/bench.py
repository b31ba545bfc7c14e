"""The page of a table over sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from simreduce import units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.defaults import faster_than, sure_fact, sure_words
from simreduce.pages.kinds.limits import help_section, path_section
from simreduce.pages.kinds.names import names_block
from simreduce.pages.kinds.sections import (
    calibration_section,
    machine_section,
    repeat_section,
    sizes_section,
    us,
)
from simreduce.pages.values import Fact, Page, Section

Document = Mapping[str, Any]


def bench_page(document: Document, beside: Beside) -> Page:
    """The page of `simreduce bench --json`."""
    rows = document["rows"]
    if not rows:
        raise ValueError("it has no rows")
    largest = max(row["size_bytes"] for row in rows)
    at = sorted(
        (row for row in rows if row["size_bytes"] == largest), key=lambda row: row["time_us"]
    )
    best, factor = at[0], _factor(rows)
    size, collective = units.format_size(largest), document["collective"].replace("_", "-")
    name = best["algorithm"].split("+chunk=")[0]
    answer = (
        f"At {size}, {name} is the fastest: {us(best['time_us'])}, "
        f"{best['busbw_gb_per_s']:.1f} GB/s of bus bandwidth"
    )
    other = next((row for row in at[1:]), None)
    if other is not None:
        ratio = faster_than(best["time_us"], other["time_us"])
        answer += f", {ratio} {other['algorithm'].split('+chunk=')[0]}"
    else:
        rate = f"{best['busbw_gb_per_s']:.1f} GB/s of bus bandwidth"
        answer = f"At {size}, {name} takes {us(best['time_us'])}: {rate}"
    at_least = best["floor_us"] / best["time_us"] if best["time_us"] else 0.0
    found = replace(beside, factor=factor)
    several = len({row["size_bytes"] for row in rows}) > 1
    first = "Fastest at the largest size" if several else "What is the fastest?"
    facts = (
        Fact(first, name, f"{us(best['time_us'])} for {size}."),
        *([Fact("Fastest at each size", *_by_size(rows))] if several else []),
        Fact("How sure is that?", *sure_fact(factor, None)),
        Fact(
            "How near the bound?",
            f"{at_least:.0%}",
            f"No run of this plan takes less than {us(best['floor_us'])}.",
        ),
        Fact("Busiest link", best["bottleneck"] or "none", f"With {name} at {size}."),
    )
    ranks = units.plural(document["ranks"], "rank")
    return Page(
        title=f"{collective[0].upper()}{collective[1:]} on {document['topology']}: how fast?",
        about=f"{collective[0].upper()}{collective[1:]} of one tensor on {document['topology']}, "
        f"{ranks}. {units.plural(len(rows), 'run')} simulated, at "
        f"{units.plural(len({row['size_bytes'] for row in rows}), 'size')}.",
        answer=f"{answer}.",
        sure=_sure(factor, document["calibration"]),
        facts=facts,
        sections=(
            *_with_names(sizes_section(found, document), rows),
            *machine_section(found),
            *path_section(found),
            *help_section(found),
            *calibration_section(found, document),
            *repeat_section(found, document),
        ),
    )


def _with_names(sections: Iterable[Section], rows: list[Document]) -> Iterator[Section]:
    """The sections, and in each what the names of algorithms mean."""
    for each in sections:
        names = names_block(row["algorithm"] for row in rows)
        yield replace(each, blocks=(*each.blocks, *names))


def _by_size(rows: list[Document]) -> tuple[str, str]:
    """Which algorithms are the fastest, and where."""
    best: dict[int, Document] = {}
    for row in rows:
        size = row["size_bytes"]
        if size not in best or row["time_us"] < best[size]["time_us"]:
            best[size] = row
    spans: list[tuple[str, int, int]] = []
    for size in sorted(best):
        name = best[size]["algorithm"].split("+chunk=")[0]
        if spans and spans[-1][0] == name:
            spans[-1] = (name, spans[-1][1], size)
        else:
            spans.append((name, size, size))
    words = [f"{name} from {units.format_size(low)}" for name, low, _ in spans]
    if len(spans) == 1:
        return spans[0][0], "At every size."
    return f"{len({name for name, *_ in spans})} algorithms", f"{'; '.join(words[:5])}."


def _factor(rows: list[Document]) -> float | None:
    """Of the largest size whose time has an interval."""
    known = [row for row in rows if row.get("high_us")]
    row = max(known, key=lambda row: row["size_bytes"], default=None)
    return max(row["high_us"] / row["time_us"], row["time_us"] / row["low_us"]) if row else None


def _sure(factor: float | None, calibration: str) -> str:
    return sure_words(factor, calibration, None)
