"""The page of an explanation."""

from __future__ import annotations

from dataclasses import replace

from simreduce import units
from simreduce.report.advised import caution, sure
from simreduce.report.bench import sizes_section
from simreduce.report.blocks import Attachments, Fact, Page, Written
from simreduce.report.explain import (
    change_words,
    help_section,
    limit_fact,
    nic_fact,
    path_section,
    spent,
)
from simreduce.report.sections import (
    calibration_section,
    machine_section,
    repeat_section,
    timeline_section,
    us,
)
from simreduce.study.advice import runs_nccl


def explain_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce explain --json`."""
    found = replace(beside, explanation=document)
    words, time = (spent(document) or [("nothing", 0.0)])[0]
    whole = document["time_us"]
    collective = document["collective"].replace("_", "-")
    what = f"{collective} of {document['workload']} ({units.format_size(document['size_bytes'])})"
    useful = [c for c in document["changes"] if c["saving_share"] > 5e-4]
    factor = beside.factor if runs_nccl(document["strategy"]) else None
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
        sure=caution(factor, document["calibration"]),
        facts=(
            Fact(
                "How long does it take?",
                us(whole),
                f"By its links, no algorithm takes less than {floor:.0%} of that here."
                if floor < 0.995
                else "No algorithm takes less here.",
            ),
            Fact("What limits it?", *limit_fact(found)),
            Fact("What would help most?", *helps),
            Fact("What would a second NIC buy?", *nic_fact(found)),
            Fact("How sure is that?", *sure(factor)),
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
