"""`simreduce tune --placement`: what the order of nodes costs, as a document and as a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from simreduce import units
from simreduce.files import tables
from simreduce.files.formats.documents import (
    COUNT,
    FLAG,
    MICROSECONDS,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    one_of,
    or_null,
    positive,
)
from simreduce.files.tables import Column
from simreduce.report.blocks import Fact, Page, Section, Written, bars, page_text
from simreduce.report.headings import BY_BUDGET, DISTURBED, HEAD_KEYS, HURRIED_KEY
from simreduce.report.sections import us
from simreduce.study.tune.placement.search import Placement
from simreduce.topology.elements import natural
from simreduce.topology.switch_groups import SwitchGroup, label

_LITTLE = 5e-4
"""What an order saves is not worth a word below this part."""
_SHOWN = 96
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
    rows = [{**row, "shown": cut(grouped(groups, row["nodes"]))} for row in orders]
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
        sure=SURE,
        facts=(
            Fact("Which order?", cut(host_list(document["advised"])), shared),
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


SURE = "How sure: simreduce accuracy says how far off predicted times of NCCL are."


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
    words = (
        f"order {cut(host_list(found.advised))} takes {percent(seconds / found.given_seconds)} of"
        f" the time of the given order, {units.format_duration(seconds)} instead of {took} for"
        f" {_takes(found)}"
    )
    if (more := 1.0 - found.best_seconds / seconds) > _LITTLE:
        return f"{words}; {best} saves only {units.format_share(more)} more"
    return f"{words}: this job runs at {percent(found.ratio)} of the speed of {best}"


def best_order(*, complete: bool) -> str:
    """What the fastest order is called: only where no other is faster it is the best."""
    return "the best order" if complete else "the best order that was found"


def percent(part: float) -> str:
    """A part of a speed."""
    return f"{part * 100:.0f} %"


def _takes(found: Placement) -> str:
    return "a step" if found.batch is not None else "an all-reduce"


def host_list(names: Sequence[str]) -> str:
    """Nodes as a host list, ranges short: `n0-n3,n8`."""
    return ",".join(_runs([label(name) for name in names]))


def _runs(names: Sequence[str]) -> list[str]:
    found: list[list[str]] = []
    for name in names:
        if found and _next(found[-1][-1]) == name:
            found[-1].append(name)
        else:
            found.append([name])
    return [run[0] if len(run) == 1 else _short(run) for run in found]


def _short(run: Sequence[str]) -> str:
    head = run[0].rstrip("0123456789")
    return f"{head}[{run[0][len(head) :]}-{run[-1][len(head) :]}]"


def _next(name: str) -> str:
    head = name.rstrip("0123456789")
    number = name[len(head) :]
    return f"{head}{int(number) + 1:0{len(number)}}" if number and natural(name) else ""


def grouped(groups: Iterable[Sequence[str]], names: Sequence[str]) -> str:
    """The order with what shares switches in brackets, one after another."""
    leaf = {name: i for i, each in enumerate(groups) for name in each}
    runs = (list(run) for _, run in groupby(names, leaf.__getitem__))
    return " ".join(f"({host_list(run)})" for run in runs)


def changes_of_switch(network: SwitchGroup, names: Sequence[str]) -> int:
    """How often neighbours in the order, the last and the first included, share no switches."""
    leaf = {name: i for i, each in enumerate(network.leaves) for name in each.machines}
    pairs = zip(names, (*names[1:], names[0]), strict=True)
    return sum(leaf[a] != leaf[b] for a, b in pairs)


def cut(text: str) -> str:
    """A host list as long as tables show it."""
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


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
    for name, nodes, seconds in rows:
        groups = Counter(
            i for i, leaf in enumerate(found.network.leaves) for n in nodes if n in leaf.machines
        )
        yield {
            "order": name,
            "seconds": seconds if seconds < float("inf") else None,
            "ratio": seconds / found.given_seconds if seconds < float("inf") else None,
            "changes": changes_of_switch(found.network, nodes),
            "groups": len(groups),
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
    Key("files", map_of(TEXT), "The files of the order to use for what starts ranks, by name.",
        lambda _: {}),
    command="tune",
)  # fmt: skip
