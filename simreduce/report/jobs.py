"""`simreduce jobs`: jobs beside each other on one machine, as a document and as a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from simreduce import units
from simreduce.engine.background import Stream
from simreduce.files import tables
from simreduce.files.formats.documents import (
    ABSENT,
    COUNT,
    FLAG,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    or_null,
)
from simreduce.files.tables import Column
from simreduce.planners.layouts import node_names
from simreduce.report.blocks import Fact, Page, Section, Written, bars, page_text
from simreduce.report.headings import CALIBRATION_KEY, NOMINAL_KEY
from simreduce.report.placement import SURE
from simreduce.report.topo import topology_keys
from simreduce.study.job_files import CopiesFit, JobsQuestion
from simreduce.topology.switch_groups import switch_groups
from simreduce.training.shared_fabric import JobOutcome, fairness

_SHOWN = 3
_SLOWER = 1.01
"""A job that is slower than this, beside alone, is worth a word."""


class Beside(NamedTuple):
    """Jobs, and what came of each."""

    question: JobsQuestion
    outcomes: Sequence[JobOutcome]
    fit: CopiesFit | None = None

    @property
    def complete(self) -> bool:
        """Whether no more copies are to be tried, or all repetitions were simulated."""
        if self.fit:
            return self.fit.final
        return all(len(each.times) == each.job.count for each in self.outcomes)

    @property
    def switches(self) -> list[list[int]]:
        """The nodes of jobs that share switches."""
        setup, used = self.question.setup, {node for some in self.question.nodes for node in some}
        place = {
            name: node
            for node, name in enumerate(node_names(setup.layout, setup.topology))
            if node in used
        }
        groups = switch_groups(setup.topology).among(place)
        return [[place[name] for name in group] for group in groups]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What came of each job, what it does and where, and whom it meets."""
        question = self.question
        return [
            {"outcome": outcome, "does": does, "nodes": nodes, "meets": _meets(outcome)}
            for outcome, does, nodes in zip(
                self.outcomes, question.does, question.nodes, strict=False
            )
        ]


def _meets(outcome: JobOutcome) -> str:
    """The link that a job shares with others, and who needs how much of it."""
    if not outcome.shared:
        return "nobody"
    share = outcome.shared[0]
    each = [f"{name} {part:.0%}" for name, part in share.others.items()]
    return f"{share.link}: {share.own:.0%}; {', '.join(each)}"


_SHARE = Record(
    "shared",
    "A link that the job uses beside others.",
    Key("link", TEXT, "The link, or memory."),
    Key("own", RATIO, "The part of its time that the job's bytes need at full rate, while the job"
        " runs."),
    Key("others", map_of(RATIO), "What others offer it in that time, by job or traffic.",
        lambda share: dict(share.others)),
)  # fmt: skip
JOB = Record(
    "job",
    "A job.",
    Key("job", TEXT, "Its name.", "outcome.job.name", column=Column("job", left=True)),
    Key("nodes", list_of(COUNT), "Its nodes.", lambda row: list(row["nodes"]),
        column=Column("nodes", cell=lambda row: str(len(row["nodes"])))),
    Key("gpus", COUNT, "Its GPUs.", lambda row: len(row["outcome"].job.setup.layout),
        column=Column("GPUs")),
    Key("does", TEXT, "What it repeats.", "does", column=Column("repeats", left=True)),
    Key("count", COUNT, "How often.", lambda row: len(row["outcome"].times),
        column=Column("times")),
    Key("start_s", SECONDS, "When it begins.", "outcome.job.start"),
    Key("seconds", SECONDS, "A repetition beside the others, the mean.", "outcome.seconds",
        column=Column("each", show=units.format_duration)),
    Key("alone_s", SECONDS, "A repetition alone on the machine.", "outcome.alone",
        column=Column("alone", show=units.format_duration)),
    Key("slowdown", RATIO, "The first over the second.", "outcome.slowdown",
        column=Column("slowdown", show=lambda value: f"{value:.2f}x")),
    Key("worst", RATIO, "The longest repetition over one alone.", "outcome.worst",
        column=Column("worst", show=lambda value: f"{value:.2f}x")),
    Key("times_s", list_of(SECONDS), "Each repetition.", lambda row: list(row["outcome"].times)),
    Key("shared", list_of(_SHARE), "Links that it shares, the one that all need for the longest"
        " first.", "outcome.shared"),
    Key("meets", TEXT, "The first of them, in words.", "meets",
        column=Column("meets", left=True)),
)  # fmt: skip
_STREAM = Record(
    "traffic",
    "Traffic that is no job's.",
    Key("name", TEXT, "Its name."),
    Key("pairs", COUNT, "Pairs of devices that exchange it.", lambda each: len(each.pairs)),
    Key("size_bytes", COUNT, "A message.", "nbytes"),
    Key("rate_bytes_per_s", or_null(RATIO), "What all pairs offer; null where it is as much as"
        " links allow, or comes in bursts.", "rate"),
    Key("every_s", or_null(SECONDS), "The time between bursts; null without.", "period"),
)  # fmt: skip
BESIDE = Document(
    "jobs",
    "`simreduce jobs --json`: jobs beside each other on one machine.",
    Key("name", TEXT, "The file's name.", "question.name"),
    Key("title", TEXT, "Its title.", "question.title"),
    *topology_keys("question.setup.topology"),
    replace(CALIBRATION_KEY, get="question.setup.calibration.name"),
    replace(NOMINAL_KEY, get=lambda found: found.question.nominal or ABSENT),
    Key("answer", TEXT, "The answer in a sentence.", lambda found: _answer(found)),  # noqa: PLW0108
    Key("jobs", list_of(JOB, least=1), "The jobs.", "rows"),
    Key("switches", list_of(list_of(COUNT)), "Nodes of jobs that share their switches."),
    Key("traffic", list_of(_STREAM), "What else moves.", "question.streams"),
    Key("promise", RATIO, "How many times as long as alone a job may take; missing unless asked"
        " for.", lambda found: found.fit.promise if found.fit else ABSENT, optional=True),
    Key("copies", COUNT, "How many copies of the file's jobs fit so; missing unless asked for.",
        lambda found: found.fit.copies if found.fit else ABSENT, optional=True),
    Key("limit", TEXT, "Why no more do; missing unless asked for.",
        lambda found: found.fit.limit if found.fit else ABSENT, optional=True),
    Key("complete", FLAG, "False if the command was stopped before more copies were tried, or"
        " before all repetitions."),
    Key("fairness", RATIO, "Jain's index of the jobs' speeds beside alone: 1 if all lose the same"
        " part.", lambda found: fairness([each.slowdown for each in found.outcomes])),
)  # fmt: skip
"""Of `Beside`."""


def jobs_text(found: Beside) -> str:
    """The answer, a row for each job, and how even their losses are."""
    setup = found.question.setup
    machine = setup.topology
    facts = [
        ("topology", f"{machine.name}: {machine.title}, {machine.digest}"),
        ("calibration", tables.label(setup.calibration.name, setup.calibration.title)),
        ("", found.question.nominal),
        ("nccl", setup.nccl.text),
        *(("traffic", _of_stream(each)) for each in found.question.streams),
        ("disturbed", setup.disturbed),
    ]
    stopped = (
        [] if found.complete or found.fit else ["Stopped: figures are of the repetitions so far."]
    )
    head = tables.header(found.question.title, facts)
    return page_text(jobs_report(BESIDE.write(found)), stopped, head=head)


def jobs_report(document: Written) -> Page:
    """The report on jobs beside each other, for a terminal and a page."""
    jobs = document["jobs"]
    rows = [
        {"name": f"{each['job']}{how}", "us": each[key] * 1e6}
        for each in jobs
        for how, key in ((", beside the others", "seconds"), (", alone", "alone_s"))
    ]
    words = "A repetition of each job. Orange: beside the others; the other bar: alone."
    chart = bars(words, JOB.table(jobs), rows, "name", "us", [2, 0] * len(jobs))
    worst = max(jobs, key=lambda each: each["slowdown"])
    longest = f"as long as alone, its longest repetition {worst['worst']:.2f} times."
    return Page(
        title=f"{document['title']}: jobs beside each other",
        about=f"{units.plural(len(jobs), 'job')} on {document['topology']}.",
        answer=document["answer"],
        sure=SURE,
        facts=(
            Fact("Which job loses most?", worst["job"], f"{worst['slowdown']:.2f} times {longest}"),
            Fact("Whom does it meet?", worst["meets"]),
            Fact(
                "Do all lose alike?",
                f"{document['fairness']:.3f}",
                "Jain's index of their speeds: 1 if all lose the same part.",
            ),
        ),
        sections=(Section("jobs", "Jobs", (chart,)),),
    )


def _of_stream(stream: Stream) -> str:
    """Traffic in words: `checkpoint, 4 pairs, 1 GB each, every 100 ms`."""
    rate, period, pairs = stream.rate, stream.period, units.plural(len(stream.pairs), "pair")
    how = "as fast as links allow"
    if rate is not None:
        how = f"{units.format_bandwidth(rate)} in all, at random times"
    elif period is not None:
        how = f"every {units.format_duration(period)}"
    return f"{stream.name}: {pairs}, {units.format_size(stream.nbytes)} each, {how}"


def _answer(found: Beside) -> str:
    if fit := found.fit:
        copies = units.plural(fit.copies, "copy", "copies")
        verb = "fits" if fit.copies == 1 else "fit"
        words = f"{copies} of these jobs {verb} at {fit.promise:g} times as long as alone"
        return f"{words}: {fit.limit}." if found.complete else f"{words}; stopped before more."
    slow = sorted(found.outcomes, key=lambda each: -each.slowdown)
    slow = [each for each in slow if each.slowdown > _SLOWER]
    if not slow:
        return "No job is more than 1% slower than alone."
    worst = slow[0]
    share = worst.shared[0] if worst.shared else None
    why = ""
    if share:
        other = max(share.others, key=share.others.__getitem__)
        why = f"; it meets {other} on {share.link}"
    more = [f"{each.job.name} {each.slowdown:.2f}" for each in slow[1:_SHOWN]]
    also = f" ({', '.join(more)})" if more else ""
    return f"{worst.job.name} takes {worst.slowdown:.2f} times as long as alone{why}{also}."
