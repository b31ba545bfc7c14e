"""The pages of an order of nodes, and of jobs beside each other: who sits below which switches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from simreduce import units
from simreduce.report.blocks import Attachments, Fact, Page, Picture, Rows, Section, Written, bars
from simreduce.report.jobs import JOB
from simreduce.report.pictures import RANKS_WORDS, ranks_picture
from simreduce.report.placement import ORDER
from simreduce.report.sections import calibration_section, machine_section, repeat_section, us

_SURE = "How sure: simreduce accuracy says how far off predicted times of NCCL are."


def placement_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce tune --placement --json` and `topo place --json`."""
    orders = document["orders"]
    best, given = orders[0], orders[-1]
    table = ORDER.table(orders, on="html")
    timed = [each for each in orders if each["time_us"] is not None]
    marks = [1 if each is best else 2 if each is given else 0 for each in timed]
    words = "The time in each order: the best (blue) and the given one (orange)."
    chart = bars(words, table, timed, "order", "time_us", marks)
    bound = document["bound_us"]
    least = f"No order takes less than {us(bound)}." if bound else "No bound is known."
    return Page(
        title=f"{document['title']}: the order of nodes",
        about=f"{document['workload']}, {document['strategy']} on {document['topology']}.",
        answer=f"{document['answer'][:1].upper()}{document['answer'][1:]}.",
        sure=_SURE,
        facts=(
            Fact("Which order?", ", ".join(document["advised"])),
            Fact("How long does the best take?", f"{document['ratio']:.0%} of the given one"),
            Fact("Is there a better one?", "no" if document["complete"] else "perhaps", least),
        ),
        sections=(
            Section("orders", "Orders", (chart, Rows("The orders", table))),
            *_places(
                document["switches"],
                {each["order"]: each["nodes"] for each in (given, best)},
            ),
            *machine_section(beside),
            *calibration_section(beside, document),
            *repeat_section(beside, document),
        ),
    )


def jobs_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce jobs --json`."""
    jobs = document["jobs"]
    table = JOB.table(jobs, on="html")
    rows = [
        {"name": f"{each['job']}{how}", "us": each[key] * 1e6}
        for each in jobs
        for how, key in ((", beside the others", "seconds"), (", alone", "alone_s"))
    ]
    words = "A repetition of each job, beside the others (orange) and alone."
    chart = bars(words, table, rows, "name", "us", [2, 0] * len(jobs))
    worst = max(jobs, key=lambda each: each["slowdown"])
    longest = f"as long as alone, its longest repetition {worst['worst']:.2f} times."
    return Page(
        title=f"{document['title']}: jobs beside each other",
        about=f"{units.plural(len(jobs), 'job')} on {document['topology']}.",
        answer=document["answer"],
        sure=_SURE,
        facts=(
            Fact("Which job loses most?", worst["job"], f"{worst['slowdown']:.2f} times {longest}"),
            Fact("Whom does it meet?", worst["meets"]),
            Fact(
                "Do all lose alike?",
                f"{document['fairness']:.3f}",
                "Jain's index of their speeds: 1 if all lose the same part.",
            ),
        ),
        sections=(
            Section("jobs", "Jobs", (chart, Rows("The jobs", table))),
            *_places(
                [[f"n{node}" for node in group] for group in document["switches"]],
                {each["job"]: [f"n{node}" for node in each["nodes"]] for each in jobs},
            ),
            *machine_section(beside),
            *calibration_section(beside, document),
            *repeat_section(beside, document),
        ),
    )


def _places(
    switches: Sequence[Sequence[str]], orders: Mapping[str, Sequence[str]]
) -> Iterable[Section]:
    """A picture of nodes by the switches that they share, with a ring in each order."""
    if drawing := ranks_picture(switches, orders):
        yield Section("places", "Where ranks are", (Picture(drawing, RANKS_WORDS, "ranks"),))
