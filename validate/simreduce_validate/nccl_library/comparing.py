"""What NCCL's library said of a machine, beside what `simreduce nccl` says.

Each kind of figure counts its values and those that differ. A value counts as equal if it is so to
the digits that are printed: one decimal in the table, four in costs and estimates, which the
library sums in single precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simreduce.errors import StrategyError
from simreduce.files.formats.syntax import Faults
from simreduce.planners.nccl import (
    NcclChoice,
    Settings,
    choose,
    estimates,
    graphs,
    p2p,
    plan,
    read_settings,
    ring_orders,
    tree_parents,
)
from simreduce.planners.nccl.channel_search import Graph
from simreduce.planners.nccl.choice import NcclPlan
from simreduce.planners.nccl.constants import CURRENT, version_text
from simreduce.topology import Topology, load_topology
from simreduce_validate.nccl_library.answers import (
    AnsweredCall,
    AnsweredGraph,
    LibraryAnswer,
    Rows,
    release_of,
)
from simreduce_validate.nccl_library.asking import COLLECTIVES

KINDS = {
    "speeds of paths": "the widest path of a GPU, and all of them, GB/s",
    "graphs": "channels, GB/s inside and between nodes, paths, whether rings cross NICs",
    "orders": "GPUs and NICs of each channel of a graph",
    "channels": "rings, NVLS, sends, and sends of a pair",
    "rings": "ranks of each channel, from rank 0 on",
    "trees": "the parent of each rank of the first node",
    "table": "us and GB/s of the tuning table",
    "costs": "us of an algorithm and a protocol at a size",
    "estimates": "us of the choice",
    "choices": "algorithm and protocol",
    "channels of calls": "those that the choice names",
    "blocks": "those of the kernel",
    "threads": "those of a block",
}
"""The kinds of figures, in the order in which one follows from another, and what they are."""


_HALF_A_DIGIT = 0.5e-4
"""Microseconds: half of the last digit of what ask.c prints."""
_ROUNDING = 1e-5
"""Relative; sums of floats are off by up to 5e-6."""


class ComparedFigure(NamedTuple):
    """A figure of the library's, and ours; `where` says which of its kind it is."""

    kind: str
    where: str
    library: Any
    ours: Any
    equal: bool


class ComparedCall(NamedTuple):
    """A call of an answer and what we say of it: the choice, or why there is none, and microseconds
    by algorithm and protocol.
    """

    call: AnsweredCall
    choice: NcclChoice | StrategyError
    costs_us: Mapping[str, float]


class ComparedAnswer(NamedTuple):
    """An answer of the library beside what we say of the machine."""

    answer: LibraryAnswer
    machine: Topology
    figures: Sequence[ComparedFigure]
    """All of them, in the order of `KINDS`."""
    calls: Sequence[ComparedCall]


def settings_of(answer: LibraryAnswer) -> Settings:
    """Our settings for an answer: its variables, and its version or the newest that we know."""
    return _settings(answer.release, answer.settings)


def _settings(release: tuple[int, int], variables: Mapping[str, str]) -> Settings:
    faults = Faults()
    known = version_text(min(release, CURRENT))
    found = read_settings({"version": known, **variables}, faults, "")
    faults.raise_any()
    return found


def answered(
    machine: Topology, version: str, variables: Mapping[str, str], sizes: Sequence[int]
) -> list[str]:
    """The collectives that variables leave an algorithm for.

    From 2.24 on the library fails in others, as in all but all-reduces with NCCL_ALGO=Tree, and
    says nothing more. Raises `StrategyError` if none is left.
    """
    settings = _settings(release_of(version), variables)
    known = plan(machine, settings).facts
    found, lost = list[str](), list[StrategyError]()
    for collective in COLLECTIVES:
        try:
            for nbytes in sizes:
                choose(known, collective, nbytes, settings)
            found.append(collective)
        except StrategyError as error:
            lost.append(error)
    if not found:
        raise lost[0]
    return found


def compare(answer: LibraryAnswer, machine: Topology | None = None) -> ComparedAnswer:
    """Every figure of an answer beside ours."""
    machine = machine or load_topology(answer.machine)
    at = plan(machine, settings_of(answer))
    calls = [_ours(call, at) for call in answer.calls]
    of_calls = (figure for each in calls for figure in _call(each))
    figures = (
        *_search(answer, at), *_channels(answer, at), *_table(answer, at),
        *sorted(of_calls, key=lambda found: [*KINDS].index(found.kind)),
    )  # fmt: skip
    return ComparedAnswer(answer, machine, figures, calls)


def _same(kind: str, where: str, library: Any, ours: Any) -> ComparedFigure:
    return ComparedFigure(kind, where, library, ours, library == ours)


def _near(kind: str, where: str, library: float | None, ours: float | None) -> ComparedFigure:
    equal = (
        library is not None
        and ours is not None
        and abs(library - ours) <= _HALF_A_DIGIT + _ROUNDING * abs(library)
    )
    return ComparedFigure(kind, where, library, ours, equal)


def _search(answer: LibraryAnswer, at: NcclPlan) -> Iterator[ComparedFigure]:
    box = at.facts.boxes[0]
    widest = round(at.paths.widest(), 1)
    yield _same("speeds of paths", "widest", answer.widest_gb_per_s, widest)
    yield _same("speeds of paths", "total", answer.total_gb_per_s, round(box.total, 1))
    found = graphs(at.facts, at.settings)
    ours: dict[str, Graph | None] = {"ring": found.ring, "tree": found.tree, "nvls": found.nvls}
    theirs = {graph.pattern.rpartition("_")[2]: graph for graph in answer.graphs}
    for pattern, graph in ours.items():
        said = theirs.get(pattern)
        if said or graph:
            yield _same("graphs", pattern, said and _head(said), graph and _our_head(graph))
    numbers = {nic.name: number for number, nic in enumerate(box.nics)}
    for pattern, graph in ours.items():
        if (said := theirs.get(pattern)) and graph:
            # 2.23 prints the first NIC of a channel in place of the second.
            ends = 1 if answer.release == (2, 23) else 2
            # A channel of NVLS has one GPU, its head; up to 2.26 zeros follow it in the log.
            most = 1 if pattern == "nvls" else None
            nics = [[numbers[n] for n in (c.net_in, c.net_out) if n] for c in graph.channels]
            orders = [
                (c.gpus[:most], tuple(each[:ends]))
                for c, each in zip(graph.channels, nics, strict=True)
            ]
            in_log = [
                (gpus[:most], each[:ends]) for gpus, each in zip(said.gpus, said.nics, strict=True)
            ]
            yield _same("orders", pattern, in_log, orders)


def _head(graph: AnsweredGraph) -> tuple[Any, ...]:
    speeds = graph.speed_intra, graph.speed_inter
    return graph.channels, *speeds, graph.types, graph.crosses, graph.same_channels


def _our_head(graph: Graph) -> tuple[Any, ...]:
    speeds = graph.speed_intra, graph.speed_inter
    return graph.count, *speeds, graph.types, bool(graph.cross_nic), bool(graph.same_channels)


def _turned(rings: Rows) -> Rows:
    """Rings as they are from rank 0 on."""
    return tuple((*ring[(at := ring.index(0)) :], *ring[:at]) for ring in rings)


def _channels(answer: LibraryAnswer, at: NcclPlan) -> Iterator[ComparedFigure]:
    ours = ring_orders(at.facts, at.settings)
    yield _same("channels", "rings", len(answer.rings), len(ours))
    if answer.p2p_channels is not None:
        nvls = at.model.running_nvls() if at.graphs.nvls else 0
        yield _same("channels", "nvls", answer.nvls_channels, nvls)
        sends = p2p(at.facts, at.settings)
        yield _same("channels", "sends", answer.p2p_channels, sends.channels)
        pair = answer.p2p_channels_per_peer, sends.channels_per_peer
        yield _same("channels", "sends of a pair", *pair)
    yield _same("rings", "all", _turned(answer.rings), _turned(ours))
    local = len(answer.tree_parents[0]) if answer.tree_parents else 0
    parents = tuple(tuple(each[:local]) for each in tree_parents(at.facts, at.settings))
    if local:
        yield _same("trees", "all", answer.tree_parents, parents)


def _table(answer: LibraryAnswer, at: NcclPlan) -> Iterator[ComparedFigure]:
    """From 2.31 on the table also has what is off, which then has no costs; ours has it at 0."""
    on = {(call.collective, pair) for call in answer.calls for pair in call.costs_us}
    for collective, row in answer.table.items():
        for pair, cell in row.items():
            algorithm, _, protocol = pair.partition("+")
            key = collective, algorithm, protocol
            known = at.model.latency.get(key), at.model.bandwidth.get(key)
            if answer.release >= (2, 31) and (collective, pair) not in on:
                yield ComparedFigure("table", f"{collective} {pair}", None, known, not known[1])
                continue
            equal = all(
                ours is not None and abs(ours - said) < 0.051
                for ours, said in zip(known, cell, strict=True)
            )
            yield ComparedFigure("table", f"{collective} {pair}", cell, known, equal)
        for (name, *words), bandwidth in at.model.bandwidth.items():
            if name == collective and bandwidth > 0 and (pair := "+".join(words)) not in row:
                yield ComparedFigure("table", f"{collective} {pair}", None, bandwidth, equal=False)


def _ours(call: AnsweredCall, at: NcclPlan) -> ComparedCall:
    every = estimates(at, call.collective, call.nbytes)
    costs = {f"{a}+{p}": seconds * 1e6 for (a, p), seconds in every.items()}
    try:
        return ComparedCall(
            call, choose(at.facts, call.collective, call.nbytes, at.settings), costs
        )
    except StrategyError as error:
        return ComparedCall(call, error, costs)


def _call(found: ComparedCall) -> Iterator[ComparedFigure]:
    call, choice, ours = found
    where = f"{call.collective} {call.nbytes}"
    for pair in dict.fromkeys((*call.costs_us, *ours)) if call.costs_us else ():
        yield _near("costs", f"{where} {pair}", call.costs_us.get(pair), ours.get(pair))
    if isinstance(choice, StrategyError):
        yield ComparedFigure("choices", where, call.algorithm, str(choice), equal=False)
    else:
        yield from _chosen(where, call, choice)


def _chosen(where: str, call: AnsweredCall, chosen: NcclChoice) -> Iterator[ComparedFigure]:
    if call.estimate_us is not None:
        yield _near("estimates", where, call.estimate_us, chosen.seconds * 1e6)
    if call.algorithm:
        said = f"{call.algorithm}+{call.protocol}"
        yield _same("choices", where, said, f"{chosen.algorithm}+{chosen.protocol}")
    if call.channels is not None:
        yield _same("channels of calls", where, call.channels, chosen.channels)
    if call.blocks is not None:
        yield _same("blocks", where, call.blocks, chosen.channels)
        yield _same("threads", where, call.threads, chosen.threads)
