"""`simreduce jobs`: jobs beside each other on one machine, as a document and as a report.

`simreduce tune --placement`: what the order of nodes costs, as a document and as a report.

`simreduce replay`: a recorded run on another machine, as text and as a document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from math import fsum, inf
from typing import Any, NamedTuple

from simreduce import units
from simreduce.computing import group_by
from simreduce.engine.background import Stream
from simreduce.engine.setup import Setup
from simreduce.errors import cut
from simreduce.files import tables
from simreduce.files.formats.documents import (
    ABSENT,
    BYTES,
    COUNT,
    FLAG,
    MICROSECONDS,
    PER_SECOND,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    KeyKind,
    Record,
    list_of,
    map_of,
    one_of,
    or_null,
    positive,
)
from simreduce.files.tables import Column
from simreduce.planners.layouts import node_names
from simreduce.report.blocks import (
    Chart,
    Fact,
    Page,
    Section,
    Written,
    bars,
    first_rows,
    page_text,
    table_section,
)
from simreduce.report.capacity import FAILURE
from simreduce.report.headings import (
    BY_BUDGET,
    CALIBRATION_KEY,
    DISTURBED,
    HEAD_KEYS,
    HURRIED_KEY,
    NCCL_KEY,
    NOMINAL_KEY,
    caution,
    factor_keys,
)
from simreduce.report.plots import Facet, PlotPoint, PlotSeries
from simreduce.report.plots.axes import Axis
from simreduce.report.sections import us
from simreduce.report.steps import FITS
from simreduce.report.topo import topology_keys
from simreduce.study.advice import runs_nccl
from simreduce.study.scenario import WORTH, Scenario
from simreduce.study.tune.jobs import JobsAnswer, finite
from simreduce.study.tune.placement import Placement
from simreduce.topology.switch_groups import label, switch_groups
from simreduce.training.recorded import Replay
from simreduce.training.shared_fabric import JobOutcome, fairness

_LITTLE = 5e-4
"""What an order saves is not worth a word below this part."""
HOSTS_SHOWN = 96
"""Characters of a host list in a table."""


def placement_text(found: Placement) -> str:
    """What the given order costs, which one is better, and how good that is."""
    scenario = found.scenario
    at = scenario.setup
    more = len(found.free) - len(found.given)
    free = f", {more} more free" if more else ""
    what = f"order of nodes by the time of {_takes(found)}"
    head = tables.header(
        scenario.title,
        [
            ("topology", f"{at.topology.name}: {at.topology.title}, {at.topology.digest}"),
            ("workload", f"{found.workload}, {found.setting.label}"),
            ("nodes", f"{units.plural(len(found.given), 'node')}{free}, {what}"),
            ("calibration", tables.label(at.calibration.name, at.calibration.title)),
            ("disturbed", at.disturbed),
        ],
    )
    return page_text(placement_report(PLACEMENT.write(found)), head=head)


def placement_report(document: Written) -> Page:
    """The report on orders of nodes, for a terminal and a page."""
    orders = document["orders"]
    best, given = orders[0], orders[-1]
    groups = document["switches"]
    # A document of others may have nodes that are in no group.
    lone = {node for row in orders for node in row["nodes"]}.difference(*groups)
    places = [*groups, *([node] for node in lone)]
    rows = [{**row, "shown": cut(bracketed(places, row["nodes"]), HOSTS_SHOWN)} for row in orders]
    timed = [each for each in orders if each["time_us"] is not None]
    marks = [1 if each is best else 2 if each is given else 0 for each in timed]
    words = "The time in each order. Blue: the best; orange: the given one."
    shared = f"{len(groups)} groups of nodes that share their switches, in brackets in the table."
    if len(groups) == 1:
        shared = "All nodes share their switches: their order changes nothing."
    return Page(
        title=f"{document['title']}: the order of nodes",
        about=f"{document['workload']}, {document['strategy']} on {document['topology']}.",
        answer=f"{document['answer'][:1].upper()}{document['answer'][1:]}.",
        sure=caution(document["factor"], document["calibration"]),
        facts=(
            Fact("Which order?", cut(host_list(document["advised"]), HOSTS_SHOWN), shared),
            Fact("How long does the best take?", f"{document['ratio']:.0%} of the given one"),
            Fact(
                "Is there a better one?",
                "no" if document["complete"] else "perhaps",
                _searched(document),
            ),
        ),
        sections=(
            Section(
                "orders",
                "Orders",
                (bars(words, ORDER.table(rows), timed, "order", "time_us", marks),),
            ),
        ),
    )


def _searched(document: Written) -> str:
    done = f"Simulated {units.plural(document['simulated'], 'order')}"
    if document["distinct_orders"] is None:
        return f"{done}, of too many to list."
    done += f" of {units.plural(document['distinct_orders'], 'distinct order')}"
    if document.get("hurried"):
        return f"{done} {BY_BUDGET}."
    bound = document["bound_us"]
    return f"{done}. {f'No order takes less than {us(bound)}.' if bound else 'No bound is known.'}"


def verdict(found: Placement) -> str:
    """The answer in a sentence."""
    took = units.format_duration(found.given_seconds)
    if found.kept:
        words = f"keep the given order: it takes {took}"
        if found.ratio < 1.0 - 1e-9:
            words += f", and the best order found saves only {units.format_share(1 - found.ratio)}"
        return words
    seconds, best = found.advised_seconds, best_order(complete=found.complete)
    order, part = cut(host_list(found.advised), HOSTS_SHOWN), seconds / found.given_seconds
    words = (
        f"order {order} takes {percent(part)} of the time of the given order,"
        f" {units.format_duration(seconds)} instead of {took} for {_takes(found)}"
    )
    if (more := 1.0 - found.best_seconds / seconds) > _LITTLE:
        return f"{words}; {best} saves only {units.format_share(more)} more"
    return f"{words}: this job runs at {percent(found.ratio)} of the speed of {best}"


def _factor(found: Placement) -> float | None:
    """As `factor_keys`; None of a mesh, and where others than NCCL reduce."""
    scenario = found.scenario
    if isinstance(scenario, Scenario) and runs_nccl(found.setting.strategy):
        return factor_keys(scenario)["factor"]
    return None


def best_order(*, complete: bool) -> str:
    """What the fastest order is called: only where no other is faster it is the best."""
    return "the best order" if complete else "the best order that was found"


def percent(part: float) -> str:
    """A part of a speed."""
    return f"{part * 100:.0f} %"


def _takes(found: Placement) -> str:
    return "a step" if found.batch is not None else "an all-reduce"


def host_list(names: Iterable[str]) -> str:
    """Nodes as a host list, ranges short: `n0-n3,n8`."""
    runs: list[list[str]] = []
    for name in map(label, names):
        if runs and _next(runs[-1][-1]) == name:
            runs[-1].append(name)
        else:
            runs.append([name])
    return ",".join(run[0] if len(run) == 1 else _short(run) for run in runs)


def _short(run: Sequence[str]) -> str:
    head = run[0].rstrip("0123456789")
    return f"{head}[{run[0][len(head) :]}-{run[-1][len(head) :]}]"


def _next(name: str) -> str:
    head = name.rstrip("0123456789")
    number = name[len(head) :]
    return f"{head}{int(number) + 1:0{len(number)}}" if number else ""


def bracketed(groups: Iterable[Sequence[str]], names: Sequence[str]) -> str:
    """The order with what shares switches in brackets, one after another."""
    leaf = {name: i for i, each in enumerate(groups) for name in each}
    runs = (list(run) for _, run in groupby(names, leaf.__getitem__))
    return " ".join(f"({host_list(run)})" for run in runs)


def _shared(found: Placement) -> list[list[str]]:
    """The nodes of the given and the best order that share switches."""
    groups = found.network.among((*found.given, *found.best, *found.sorted))
    return [list(map(label, group)) for group in groups]


def _orders(found: Placement) -> Iterable[dict[str, object]]:
    """The three orders, the best first."""
    rows = (
        ("best", found.best, found.best_seconds),
        ("by switch", found.sorted, found.sorted_seconds),
        ("given", found.given, found.given_seconds),
    )
    leaf = {name: i for i, each in enumerate(found.network.leaves) for name in each.machines}
    for name, nodes, seconds in rows:
        leaves = [leaf[node] for node in nodes]
        yield {
            "order": name,
            "seconds": seconds if seconds < float("inf") else None,
            "ratio": seconds / found.given_seconds if seconds < float("inf") else None,
            "changes": sum(a != b for a, b in pairwise([*leaves, leaves[0]])),
            "groups": len({*leaves}),
            "nodes": [label(each) for each in nodes],
        }


ORDER = Record(
    "order",
    "An order of nodes.",
    Key("order", one_of("best", "by switch", "given"), "The best, the given nodes sorted by the"
        " switches they share, or the given order.", column=Column("order", left=True)),
    Key("time_us", or_null(positive(MICROSECONDS)), "Time of a step or an all-reduce; null if it"
        " was not simulated.", "seconds", column=Column("time", "(ms)")),
    Key("ratio", or_null(RATIO), "Its time over that of the given order.",
        column=Column("given = 1", show="{:.3f}".format)),
    Key("switch_changes", COUNT, "How often the next node in the order, the first after the last,"
        " shares no switches.", "changes", column=Column("changes of switch")),
    Key("switch_groups", COUNT, "Groups of nodes that share their switches.", "groups",
        column=Column("groups")),
    Key("nodes", list_of(TEXT), "The nodes in the order of their ranks."),
    Key("shown", TEXT, "The nodes; those that share switches are in brackets.",
        column=Column("nodes", left=True), written=False),
)  # fmt: skip
_NAMES = ("scenario", "title", "topology")
_SETUP = ("topology_digest", "equal_paths", "ranks", "nccl_settings", "calibration", "call_cost_us")
QUESTION = (
    *_SETUP, "version", "runtime", "disturbance", "workload", "batch", "strategy", "work_digest",
)  # fmt: skip
"""Keys of what takes the time, whatever the order."""
PLACEMENT = Document(
    "placement",
    "`simreduce tune --placement --json` and `simreduce topo place --json`: the order of nodes that"
    " takes the least time.",
    *(key for key in HEAD_KEYS if key.name in (*_NAMES, *_SETUP)),
    Key("runtime", TEXT, "The runtime, or `by_strategy`.", "scenario.setup.runtime.name"),
    DISTURBED,
    Key("workload", TEXT, "The name of what is reduced or trained."),
    Key("batch", or_null(COUNT), "Samples per GPU of a step, or all sequences of a mesh's; null of"
        " an all-reduce."),
    Key("strategy", TEXT, "What runs on the nodes.", "setting.label"),
    Key("work_digest", TEXT, "Names the content of the workload, and of the step or mesh."),
    Key("answer", TEXT, "The answer in a sentence.", verdict),
    Key("advised", list_of(TEXT), "The order to use: the given one unless another is worth it, and"
        " the one sorted by switch unless the best is worth more.",
        lambda found: [label(name) for name in found.advised]),
    Key("kept", FLAG, "Whether the given order stays."),
    Key("ratio", RATIO, "The time of the best order over that of the given one: the speed of the"
        " given order over that of the best."),
    Key("orders", list_of(ORDER, least=1), "The best order, the one sorted by switch and the given"
        " one.", _orders),
    Key("switches", list_of(list_of(TEXT)), "Nodes of these orders that share their switches.",
        _shared),
    Key("distinct_orders", or_null(COUNT), "Orders that are not alike; null where they are too many"
        " to list.", "orders"),
    Key("simulated", COUNT, "Orders whose time is known."),
    Key("bound_us", or_null(MICROSECONDS), "No order takes less; null if that is not known.",
        lambda found: found.bound or None),
    Key("complete", FLAG, "Whether no order is faster than the best."),
    HURRIED_KEY,
    Key("factor", or_null(RATIO), "80 % of NCCL's times are within this factor of the prediction;"
        " null if that is not known.", _factor),
    Key("files", map_of(TEXT), "The files of the order to use for what starts ranks, by name.",
        lambda _: {}),
    command="tune",
)  # fmt: skip


_SHOWN = 3
_SLOWER = 1.01
"""A job that is slower than this, beside alone, is worth a word."""


def _switches(found: JobsAnswer) -> list[list[int]]:
    """The nodes of jobs that share switches."""
    setup, used = found.question.setup, {node for some in found.question.nodes for node in some}
    place = {
        name: node
        for node, name in enumerate(node_names(setup.layout, setup.topology))
        if node in used
    }
    return [[place[name] for name in group] for group in switch_groups(setup.topology).among(place)]


def _rows(found: JobsAnswer) -> list[dict[str, Any]]:
    """What came of each job, what it does and where, and whom it meets."""
    question = found.question
    each = zip(found.outcomes, question.does, question.nodes, question.fits, strict=True)
    return [
        {"outcome": outcome, "does": does, "nodes": nodes, "meets": _meets(outcome), "fit": fit}
        for outcome, does, nodes, fit in each
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
_TIMES, _STOPS = "{:.2f}x".format, "stops"


def _of_failure(
    name: str, kind: KeyKind, about: str, get: Callable[[JobOutcome], float | None], column: Column
) -> Key:
    """A figure of jobs that only failures give."""
    about += "; null if it stops the job, missing unless parts may fail."
    return Key(
        name, or_null(kind), about, optional=True,
        get=lambda row: finite(get(row["outcome"])) if row["outcome"].after else ABSENT,
        column=replace(column, keep="known"),
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
    _of_failure("failed_s", SECONDS, "A repetition beside the others after the worst failure, the"
        " mean", lambda outcome: outcome.failed, Column("failed", show=units.format_duration)),
    _of_failure("by_neighbours", RATIO, "The seconds beside the others over those alone",
        lambda outcome: outcome.by_neighbours, Column("by neighbours", show=_TIMES)),
    _of_failure("by_failure", RATIO, "The seconds after the failure over those before",
        lambda outcome: outcome.by_failure, Column("by failure", show=_TIMES)),
    Key("slowdown", or_null(RATIO), "How many times as long as alone on the whole machine a"
        " repetition takes: beside the others, and after the worst failure if parts may fail. This"
        " is what a promise is about; null if the failure stops the job.",
        lambda row: finite(row["outcome"].slowdown),
        column=Column("slowdown", show=_TIMES, missing=_STOPS)),
    Key("worst", or_null(RATIO), "The longest such repetition over one alone.",
        lambda row: finite(row["outcome"].worst),
        column=Column("worst", show=_TIMES, missing=_STOPS)),
    Key("times_s", list_of(SECONDS), "Each repetition.", lambda row: list(row["outcome"].times)),
    Key("needs_bytes", BYTES, "What each of its GPUs needs at least; missing without a step.",
        lambda row: row["fit"].needed if row["fit"] else ABSENT, optional=True),
    replace(FITS, get=lambda row: row["fit"].fits if row["fit"] else ABSENT),
    Key("shared", list_of(_SHARE), "Links that it shares, the one that all need for the longest"
        " first.", "outcome.shared"),
    Key("meets", TEXT, "The first of them, in words.", "meets",
        column=Column("meets", left=True)),
    Key("load_bytes_per_s", list_of(PER_SECOND), "What it moves on `load_link` in each stretch of"
        " `load_every_s`; a transfer counts with its mean rate.",
        lambda row: list(row["outcome"].load.rates)),
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
_WORST = Record(
    "worst",
    "What a job loses at most by one of the parts that were tried.",
    Key("job", TEXT, "The job.", "0", column=Column("job", left=True)),
    Key("part", TEXT, "The part that fails.", "1", column=Column("if this fails", left=True)),
    Key(
        "slowdown",
        or_null(RATIO),
        "How many times as long as alone it takes; null if it stops.",
        lambda found: finite(found[2]),
        column=Column("slowdown", show=_TIMES, missing=_STOPS),
    ),
)
_FAILURE = Record(
    "failure",
    "The worst of the parts that a word of `fails` means.",
    *(key for key in FAILURE.keys if key.name in ("fails", "part", "parts", "kinds")),
    Key("whose", TEXT, 'The jobs on the node of the part; "" for none.',
        column=Column("of", left=True, keep="known")),
    Key("worst", list_of(_WORST), "Each job, by the part of these whose failure costs it most."),
    Key("stops", list_of(TEXT), "The jobs that it stops, and traffic with an end that is lost.",
        lambda failure: [*failure.stops, *failure.idle],
        column=Column("stops", left=True, keep="known", show=units.first_few)),
    Key("job", TEXT, 'The job that loses most; "" if jobs stop, or without such a part.',
        lambda failure: failure.slowest.job.name if failure.slowest and not failure.stops else "",
        column=Column("job", left=True)),
    Key("slowdown", or_null(RATIO), "How many times as long as alone on the whole machine it takes;"
        " null if jobs stop, or without such a part.",
        lambda failure: finite(failure.slowdown) if failure.part else None,
        column=Column("slowdown", show=_TIMES, missing="")),
    Key("reason", TEXT, 'Why these cannot go on; "" if all can, or without such a part.',
        column=Column("why they stop", left=True, keep="known")),
)  # fmt: skip
BESIDE = Document(
    "jobs",
    "`simreduce jobs --json`: jobs beside each other on one machine.",
    Key("name", TEXT, "The file's name.", "question.path.stem"),
    Key("title", TEXT, "Its title.", "question.title"),
    *topology_keys("question.setup.topology"),
    replace(CALIBRATION_KEY, get="question.setup.calibration.name"),
    replace(NOMINAL_KEY, get=lambda found: found.question.nominal or ABSENT),
    Key("answer", TEXT, "The answer in a sentence.", lambda found: _answer(found)),  # noqa: PLW0108
    Key("jobs", list_of(JOB, least=1), "The jobs.", _rows),
    Key("load_link", TEXT, "The link that all jobs need for the longest, of those that several use"
        " if there are such.", lambda found: found.outcomes[0].load.link),
    Key("load_every_s", SECONDS, "The length of a stretch of time whose mean load is there.",
        lambda found: found.outcomes[0].load.every),
    Key("failures", list_of(_FAILURE), "The worst part of each kind that may fail, one at a time;"
        " missing unless asked for.", lambda found: found.failures or ABSENT, optional=True),
    Key("placements", COUNT, "How many placements were tried, of which this is the best; missing"
        " unless asked for.", lambda found: found.tried or ABSENT,
        optional=True),
    Key("kept", FLAG, "Whether the given nodes stay, as no placement that was tried is faster by"
        " more than 1 %; missing unless placements were tried.",
        lambda found: found.kept if found.tried else ABSENT, optional=True),
    Key("given_slowdown", or_null(RATIO), "How many times as long as alone the slowest job takes on"
        " the given nodes; null if a failure stops it, missing unless placements were tried.",
        lambda found: finite(found.given) if found.tried else ABSENT,
        optional=True),
    Key("given_healthy_slowdown", RATIO, "The slowdown of the slowest job on the given nodes while"
        " nothing fails; missing unless placements were tried with failures.",
        lambda found: found.healthy if found.tried and found.lost else ABSENT, optional=True),
    Key("switches", list_of(list_of(COUNT)), "Nodes of jobs that share their switches.",
        _switches),
    Key("traffic", list_of(_STREAM), "What else moves.", "question.streams"),
    Key("promise", RATIO, "How many times as long as alone a job may take; missing unless asked"
        " for.", lambda found: found.fit.promise if found.fit else ABSENT, optional=True),
    Key("copies", COUNT, "How many copies of the file's jobs fit so; missing unless asked for.",
        lambda found: found.fit.copies if found.fit else ABSENT, optional=True),
    Key("limit", TEXT, "Why no more do; missing unless asked for.",
        lambda found: found.fit.limit if found.fit else ABSENT, optional=True),
    Key("factor", or_null(RATIO), "80 % of the times of each job's calls of NCCL are within this"
        " factor of the prediction; null if that is not known of one."),
    Key("complete", FLAG, "False if the command was stopped before more copies were tried, or"
        " before all repetitions."),
    Key("fairness", RATIO, "Jain's index of the jobs' speeds beside alone: 1 if all lose the same"
        " part.", lambda found: fairness([each.by_neighbours for each in found.outcomes])),
)  # fmt: skip
"""Of `JobsAnswer`."""


def jobs_text(found: JobsAnswer) -> str:
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
    worst = max(jobs, key=lambda each: inf if each["slowdown"] is None else each["slowdown"])
    longest = "The failure stops it." if None in (worst["slowdown"], worst["worst"]) else (
        f"{worst['slowdown']:.2f} times as long as alone, its longest repetition"
        f" {worst['worst']:.2f} times."
    )  # fmt: skip
    lost = max(
        (each for each in document.get("failures", ()) if each["part"]), default=None,
        key=lambda each: inf if each["slowdown"] is None else each["slowdown"],
    )  # fmt: skip
    return Page(
        title=f"{document['title']}: jobs beside each other",
        about=f"{units.plural(len(jobs), 'job')} on {document['topology']}.",
        answer=document["answer"],
        sure=caution(document["factor"], document["calibration"], "times of the communication"),
        facts=(
            *_healthy(document, lost),
            Fact(
                f"Which loses most if {lost['part']} fails?" if lost else "Which job loses most?",
                worst["job"],
                longest,
            ),
            Fact("Whom does it meet?", worst["meets"]),
            *_placed(document),
            Fact(
                "Do all lose alike?",
                f"{document['fairness']:.3f}",
                "Jain's index of their speeds: 1 if all lose the same part.",
            ),
        ),
        sections=(
            Section("jobs", "Jobs", (chart,)),
            *table_section(
                "fails",
                "If a part fails",
                "All jobs, until a part that fails is repaired",
                _FAILURE.table(document.get("failures", ())),
            ),
            *table_section(
                "worst",
                "The worst failure of each job",
                "Each job, until the part that is worst for it is repaired",
                _WORST.table(
                    [row for each in document.get("failures", ()) for row in each["worst"]]
                    if len(jobs) > 1
                    else []
                ),
            ),
        ),
    )


def _healthy(document: Written, lost: Written | None) -> Iterator[Fact]:
    """The job that loses most while nothing fails, if parts may fail."""
    rows = [(each["seconds"] / (each["alone_s"] or inf), each["job"]) for each in document["jobs"]]
    if lost:
        slow, job = max(rows, key=lambda row: row[0])
        given = "" if document.get("kept", True) else (
            f"; {document['given_healthy_slowdown']:.2f} times on the given nodes"
        )  # fmt: skip
        why = " A failure decides which nodes are better." if "placements" in document else ""
        words = f"{slow:.2f} times as long as alone{given}.{why}"
        yield Fact("Which job loses most while nothing fails?", job, words)


def _placed(document: Written) -> Iterator[Fact]:
    """The nodes of the best placement of jobs that was tried, if any were."""
    if "placements" in document:
        if document.get("kept"):
            words = _none_better(document["placements"])
            yield Fact("On which nodes?", "as placed", f"{words[0].upper()}{words[1:]}.")
            return
        slow, jobs = document["given_slowdown"], document["jobs"]
        given = f"take {slow:.2f} times as long as alone" if slow else "stop"
        yield Fact(
            "On which nodes?",
            "; ".join(f"{each['job']}: {host_list(map(str, each['nodes']))}" for each in jobs),
            f"The best of {units.plural(document['placements'], 'placement')} that were tried, in"
            f" the order of ranks; on the given nodes the slowest job would {given}.",
        )


def _none_better(tried: int) -> str:
    others = units.plural(tried - 1, "other placement")
    return (
        f"none of {others} that {units.noun(tried - 1, 'was', 'were')} tried is faster by more"
        f" than {units.format_share(WORTH)}"
    )


def load_section(document: Written) -> Iterable[Section]:
    """The load of the busiest link over time, by job; none if the document has none."""
    if not document.get("load_link"):
        return
    link, every = document["load_link"], document["load_every_s"]
    loads = [(job["job"], job["load_bytes_per_s"]) for job in document["jobs"]]
    series = [
        PlotSeries(
            name,
            [PlotPoint(k * every, rate) for k, rate in enumerate([*rates, *rates[-1:]])],
            mark="area",
        )
        for name, rates in loads
    ]
    rows = (
        (
            name,
            f"{fsum(rates) / (len(rates) or 1) / 1e9:.4g}",
            f"{max(rates, default=0.0) / 1e9:.4g}",
        )
        for name, rates in loads
    )
    columns = tables.columns("job|mean|highest", units="|(GB/s)|(GB/s)", left="job")
    words = (
        f"Bytes/s on {link} by job, the link that all jobs need for the longest; a transfer counts"
        " with its mean rate. Traffic that is no job's is not drawn."
    )
    facet = Facet(Axis("time", "seconds", log=False), Axis("load", "bytes/s", log=False), series)
    chart = Chart(words, facet, tables.Table(columns, tuple(rows)))
    yield Section("load", "Load over time", (chart,))


def _of_stream(stream: Stream) -> str:
    """Traffic in words: `checkpoint, 4 pairs, 1 GB each, every 100 ms`."""
    rate, period, pairs = stream.rate, stream.period, units.plural(len(stream.pairs), "pair")
    how = "as fast as links allow"
    if rate is not None:
        how = f"{units.format_bandwidth(rate)} in all, at random times"
    elif period is not None:
        how = f"every {units.format_duration(period)}"
    return f"{stream.name}: {pairs}, {units.format_size(stream.nbytes)} each, {how}"


def _answer(found: JobsAnswer) -> str:
    if fit := found.fit:
        copies = units.plural(fit.copies, "copy", "copies")
        verb = "fits" if fit.copies == 1 else "fit"
        words = f"{copies} of these jobs {verb} at {fit.promise:g} times as long as alone"
        return f"{words}: {fit.limit}." if found.complete else f"{words}; stopped before more."
    few = "".join(f"{each}: it cannot run. " for each in found.question.misfits)
    slow = sorted(found.outcomes, key=lambda each: -each.slowdown)
    slow = [each for each in slow if each.slowdown > _SLOWER]
    if not slow:
        even = f", even if {found.lost.words} fails" if found.lost else ""
        return f"{few}{_where(found)}No job is more than 1% slower than alone{even}."
    if slow[0].slowdown == inf:
        return f"{few}{found.loss.replace('the jobs stop', 'The jobs stop', 1)}."
    worst, parts, why = slow[0], "", ""
    if found.lost:
        parts = (
            f", {worst.by_neighbours:.2f} times beside the others, and {worst.by_failure:.2f} "
            "times that after it"
        )
    for share in worst.shared[:1]:
        other = max(share.others, key=share.others.__getitem__)
        why = f"; it meets {other} on {share.link}"
    more = [f"{each.job.name} {each.slowdown:.2f}" for each in slow[1:_SHOWN]]
    also = f" ({', '.join(more)})" if more else ""
    return f"{few}{_where(found)}{found.loss}{parts}{why}{also}."


def _where(found: JobsAnswer) -> str:
    """On which nodes to run the jobs, if they were to be placed."""
    if not found.tried:
        return ""
    each = zip(found.question.jobs, found.question.nodes, strict=True)
    places = (f"{job.name} on {host_list(map(str, nodes))}" for job, nodes in each)
    given = f"{found.given:.2f} times as long" if found.given < inf else "for ever"
    if found.kept:
        return f"Keep the given nodes: {_none_better(found.tried)}. "
    return f"Run {', '.join(places)}; on the given nodes the slowest takes {given}. "


_MOST = 30


class Replayed(NamedTuple):
    """A recorded run on the machine of `setup`, whose collectives run by `strategy`."""

    found: Replay
    setup: Setup
    strategy: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Equal collectives, those with most time in all first, with means of their calls."""
        kinds = group_by(self.found.moved, lambda one: (one.collective, one.nbytes, len(one.group)))
        rows = []
        for (collective, nbytes, ranks), calls in kinds.items():
            known = [call.recorded for call in calls if call.recorded is not None]
            whole = fsum(call.end - call.met for call in calls)
            rows.append(
                {
                    "collective": collective,
                    "nbytes": nbytes,
                    "ranks": ranks,
                    "calls": len(calls),
                    "each": whole / len(calls),
                    "waits": fsum(call.met - call.arrived for call in calls) / len(calls),
                    "recorded": fsum(known) / len(known) if known else None,
                    "total": len(calls) * (whole / len(calls)),
                }
            )
        return sorted(rows, key=lambda row: (-row["total"], row["collective"], row["nbytes"]))


def replay_text(replayed: Replayed) -> str:
    """Header, the run, a row for equal collectives."""
    found, setup, strategy = replayed
    execution, machine = found.execution, setup.topology
    recorded = units.plural(len(execution.nodes), "recorded rank")
    nodes = units.plural(sum(map(len, execution.nodes.values())), "node")
    facts = [
        ("trace", f"{recorded} of {execution.world}, {nodes}"),
        *(("", note) for note in execution.notes),
        ("topology", f"{machine.name}: {machine.title}, {machine.digest}"),
        ("strategy", strategy),
        ("nccl", setup.nccl.text),
        ("", setup.nominal([strategy])),
        ("calibration", tables.label(setup.calibration.name, setup.calibration.title)),
        ("disturbed", setup.disturbed),
    ]
    took, hidden = units.format_duration(found.seconds), units.format_duration(found.exposed)
    lines = [
        *tables.header(execution.source, facts),
        f"{took}: {units.format_duration(found.computed)} of compute, and {hidden} of waiting and",
        "communication that no compute hides, of the recorded rank with most of that",
    ]
    if (before := execution.recorded) is not None and before > 0:
        change = found.seconds / before - 1
        lines.append(f"recorded: {units.format_duration(before)}; here {change:+.1%}")
    lines += ["", *first_rows(_ROW.table([_ROW.row(row) for row in replayed.rows]), _MOST)]
    return "\n".join(lines)


_ROW = Record(
    "collective",
    "Equal collectives, or equal sends with their receives.",
    Key("collective", TEXT, "What is done.", column=Column("collective", left=True)),
    Key(
        "size_bytes", BYTES, "The tensor.", "nbytes",
        column=Column("size", show=units.format_size),
    ),
    Key("ranks", COUNT, "Ranks that take part.", column=Column("ranks", spare=3)),
    Key("calls", COUNT, "How many.", column=Column("calls")),
    Key(
        "seconds", SECONDS, "One, from when its last rank is there; the mean.", "each",
        column=Column("each", show=units.format_duration),
    ),
    Key(
        "wait_seconds", SECONDS, "From its first rank to its last; the mean.", "waits",
        column=Column("waits", spare=2, show=units.format_duration),
    ),
    Key(
        "recorded_seconds", or_null(SECONDS),
        "The shortest time that a rank recorded, the mean; null without one.", "recorded",
        column=Column("recorded", spare=1, show=units.format_duration),
    ),
    Key(
        "total_us", MICROSECONDS, "All calls.", "total", column=Column("all", "(ms)"),
        written=False,
    ),
)  # fmt: skip
REPLAY = Document(
    "replay",
    "`simreduce replay --json`: a recorded run on another machine.",
    Key("trace", TEXT, "What was recorded, and by what.", "found.execution.source"),
    Key(
        "recorded_ranks", list_of(COUNT), "Ranks with a recording.",
        lambda replayed: sorted(replayed.found.execution.nodes),
    ),
    Key("ranks", COUNT, "All ranks of the run.", "found.execution.world"),
    *topology_keys("setup.topology"),
    Key("strategy", TEXT, "How collectives run."),
    replace(NCCL_KEY, get="setup.nccl.text"),
    replace(CALIBRATION_KEY, get="setup.calibration.name"),
    Key(
        "notes", list_of(TEXT), "What the recording lacks, and what was assumed.",
        "found.execution.notes",
    ),
    Key("seconds", SECONDS, "The run, from begin to end.", "found.seconds"),
    Key(
        "recorded_seconds", or_null(SECONDS), "The recorded run; null if that is not known.",
        "found.execution.recorded",
    ),
    Key(
        "compute_seconds", SECONDS, "Compute of the recorded rank with most exposed time.",
        "found.computed",
    ),
    Key(
        "exposed_seconds", SECONDS, "Waiting and communication of that rank, without compute.",
        "found.exposed",
    ),
    Key(
        "collectives", list_of(_ROW), "What ranks exchange, that with most time first.", "rows"
    ),
)  # fmt: skip
"""Of `Replayed`."""
