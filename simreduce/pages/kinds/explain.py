"""The page of an explanation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simreduce import units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.defaults import by_nccl, sure_fact, sure_words
from simreduce.pages.kinds.limits import (
    change_words,
    help_section,
    limit_fact,
    nic_fact,
    path_section,
    spent,
)
from simreduce.pages.kinds.sections import (
    calibration_section,
    machine_section,
    repeat_section,
    sizes_section,
    timeline_section,
    us,
)
from simreduce.pages.values import Fact, Page

Document = Mapping[str, Any]


def explain_page(document: Document, beside: Beside) -> Page:
    """The page of `simreduce explain --json`."""
    found = replace(beside, explanation=document)
    words, time = (spent(document) or [("nothing", 0.0)])[0]
    whole = document["time_us"]
    collective = document["collective"].replace("_", "-")
    what = f"{collective} of {document['workload']} ({units.format_size(document['size_bytes'])})"
    useful = [c for c in document["changes"] if c["saving_share"] > 5e-4]
    factor = beside.factor if by_nccl(document["strategy"]) else None
    share = time / whole if whole else 0.0
    answer = (
        f"{document['strategy']} takes {us(whole)}: {share:.0%} of the critical path is {words}."
    )
    if useful:
        helps = f"{change_words(useful[0])}", f"Saves {useful[0]['saving_share']:.1%} of the time."
    else:
        helps = "nothing by itself", "None of the simulated changes makes the plan faster."
    floor = document["floor_us"] / whole if whole else 1.0
    return Page(
        title=f"{document['strategy']} on {document['topology']}: what limits it?",
        about=f"{what[0].upper()}{what[1:]}, {units.plural(document['ranks'], 'rank')} of "
        f"{document['topology']}.",
        answer=answer,
        sure=sure_words(factor, document["calibration"], None),
        facts=(
            Fact(
                "How long does it take?",
                us(whole),
                f"No run of the plan takes less than {floor:.0%} of that."
                if floor < 0.995
                else "No run of the plan takes less.",
            ),
            Fact("What limits it?", *limit_fact(found)),
            Fact("What would help most?", *helps),
            Fact("What would a second NIC buy?", *nic_fact(found)),
            Fact("How sure is that?", *sure_fact(factor, None)),
        ),
        sections=(
            *path_section(found),
            *help_section(found),
            *machine_section(found),
            *timeline_section(found, f"What every device, link and lane does during one {what}."),
            *sizes_section(found),
            *calibration_section(found, document),
            *repeat_section(found, document),
        ),
    )
