"""NCCL's environment, and the CSV of its example tuner plugin.

The environment says one algorithm, protocol and number of channels for a collective
(`NCCL_ALGO=allreduce:tree`, since 2.24; before, for all). The plugin says them by size. Names:
NCCL's user guide, environment variables, 2.30; NVIDIA/nccl, plugins/tuner/example/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

from simreduce.errors import InputError
from simreduce.export.framework import METHODS, REPLICATED, Choice, Framework, holding, not_by_nccl
from simreduce.export.writers import Line, environment
from simreduce.planners.layouts import OPEN
from simreduce.planners.nccl import Facts, Settings, choose, facts, plan
from simreduce.planners.nccl.choice import rule_of
from simreduce.planners.nccl.constants import (
    ALL_PAIRS,
    ANY_SIZE,
    COLLECTIVES,
    NAMED,
    TUNER_ALGORITHMS,
    Rule,
)
from simreduce.planners.nccl.environment import allows, assignments
from simreduce.planners.nccl.library import library_of
from simreduce.planners.packing.arrangement import NoPacking
from simreduce.planners.strategy import NO_LIMIT, Range, Strategy, parse_strategy

ENVIRONMENT = "nccl.env"
TUNER = "nccl_tuner.csv"
_PLUGIN = (
    ("NCCL_TUNER_PLUGIN", "libnccl-tuner-example.so"), ("NCCL_TUNER_CONFIG_FILE", TUNER),
)  # fmt: skip
_LOADED = (2, 28)
"""The first version that loads a plugin whose rules work (version 5 of the interface)."""
_SOURCES = "Of the sources of NCCL 2.30.3 or later: earlier ones crash at the first rule they obey."
_TOO_OLD = "NCCL's example tuner plugin, which needs NCCL 2.28 or later"
_NO_LISTS: tuple[Line, ...] = (
    "RCCL would take kernels of MSCCL before it asks the plugin or looks here.",
    ("RCCL_MSCCL_ENABLE", 0),
)
_BY_COLLECTIVE = (2, 24)
"""The first version whose NCCL_ALGO names collectives."""

_CALLS = {"symmetric": "ncclCommWindowRegister", "registered": "ncclCommRegister"}
"""What an application calls for a setting without a variable."""

_LARGEST = 1 << 40
"""Bytes above which nothing changes."""
_LIKE = {
    "ring": "ring", "bidirectional_ring": "ring", "multi_ring": "ring", "best_ring": "ring",
    "xring": "ring", "collective": "ring", "chain": "tree", "binary_tree": "tree",
    "double_tree": "tree", "binomial_tree": "tree", "trees": "tree", "in_switch": "nvls",
}  # fmt: skip
"""NCCL's algorithm that is nearest to one of ours."""

_HEADER = "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks"
_WIDEST = 200
"""Characters of a comment; the plugin reads 255 of a line, and takes the rest for another."""

Decided = tuple[str, str, int]
"""Algorithm, protocol and channels."""


def _refusals(choice: Choice) -> list[str]:
    strategy, ranges = choice.strategy, choice.resolved.ranges
    found = not_by_nccl(choice) + holding(
        {
            f"NCCL has no settings of algorithms for {strategy.collective}": (
                strategy.collective not in COLLECTIVES
            ),
            "RCCL has no setting that asks for MSCCL's kernels: it takes them by itself": any(
                each.algorithm == f"nccl:{ALL_PAIRS}" for each in ranges
            ),
        }
    )
    if found or len(ranges) < 2:
        return found
    return holding(
        {
            "NCCL sees packs and chooses by their size, not by that of gradients": (
                not isinstance(choice.resolved.packer, NoPacking)
            ),
            "limits in elements are different sizes for gradients of several dtypes": (
                len({gradient.dtype for gradient in choice.workload.gradients}) > 1
            ),
        }
    )


def _nearest(choice: Choice) -> list[str]:
    strategy = choice.resolved
    packing = "" if isinstance(strategy.packer, NoPacking) else f"+{strategy.packing}"
    like = _LIKE.get(strategy.ranges[0].algorithm.partition("/")[0])
    return [f"nccl:{like}{packing}"] * bool(like) + [f"nccl{packing}", "nccl"]


def _environment(choice: Choice) -> str:
    """Lines `NAME=value`. Where the choice depends on the size, they load the plugin."""
    alike, settings = _as_one_rule(choice), choice.setup.nccl
    strategy = alike or choice.resolved
    name = library_of(choice.facts).title(settings)
    by_size = (bool(choice.rules) and not alike) or len(strategy.ranges) > 1
    lines = _by_plugin(choice) if by_size else _pinned(strategy, settings)
    pinned = {line[0] for line in lines if not isinstance(line, str)}
    given = {**assignments(settings), "NCCL_BUFFSIZE": str(settings.buffer)}
    lines += [(name, value) for name, value in given.items() if name not in pinned]
    lists = any(";" in str(line[1]) for line in lines if not isinstance(line, str))
    called = [call for name, call in _CALLS.items() if getattr(settings, name)]
    at = plan(choice.facts, settings)
    asks_first = at.model.lists_first and (by_size or pinned & {"NCCL_ALGO", "NCCL_PROTO"})
    limit, more = at.model.ring_limit, list[Line]()
    if limit and at.model.channels < limit.channels and "NCCL_MIN_NCHANNELS" not in pinned:
        where = f"{limit.rings} rings on {at.facts.n} GPUs of a node"
        more = [
            f"{name} takes {where}. For more bandwidth of large calls:",
            f"NCCL_MIN_NCHANNELS={limit.channels}",
        ]
    return environment(
        [
            f"{choice.title}, {name}",
            *lines,
            *["The quotes are the shell's: NCCL reads none in an nccl.conf."] * lists,
            *[f"As predicted where applications call {' and '.join(called)}."] * bool(called),
            *(_NO_LISTS if asks_first else ()),
            *more,
            *[f"Chosen for calls of {choice.called}, and obeyed by calls of all sizes."]
            * bool(alike),
            *(() if by_size else _or_by_plugin(choice)),
        ]
    )


def _loads(choice: Choice) -> bool:
    """Whether the library loads a plugin whose rules work."""
    return library_of(choice.facts).version(choice.setup.nccl) >= _LOADED


def _by_plugin(choice: Choice) -> list[Line]:
    """The lines that load the plugin, where it has to choose."""
    if not _loads(choice):
        return [f"The choice depends on the size, which no variable says; {TUNER} is for", _TOO_OLD]
    known = " and ".join(str(each.n) for each in (choice.facts, *_parts(choice)))
    return [
        "The choice depends on the size: build NCCL's example tuner plugin.", _SOURCES, *_PLUGIN,
        f"Its rules are for communicators of {known} ranks; others take rings.",
    ]  # fmt: skip


def _or_by_plugin(choice: Choice) -> list[Line]:
    """The same as comments, where variables say it."""
    if not _loads(choice):
        return [f"Or by the rules in {TUNER}, with {_TOO_OLD}."]
    return [
        f"Or by the rules in {TUNER}, with NCCL's example tuner plugin:",
        _SOURCES,
        *(f"{name}={value}" for name, value in _PLUGIN),
    ]


def _as_one_rule(choice: Choice) -> Strategy | None:
    """The strategy that variables say, where rules say the same of all calls of the workload: one
    algorithm and protocol, and one number of channels unless NCCL takes that by itself.
    """
    at, calls = choice.facts, choice.setup.calls_of(choice.resolved, choice.workload)
    rules = [
        next((r for r in choice.rules if r.matches(c.collective, c.nbytes, at.nodes, at.n)), None)
        for c in calls
    ]
    known = [rule for rule in rules if rule]
    hows = {(rule.algorithm, rule.protocol) for rule in known}
    if choice.method != REPLICATED or len(hows) != 1 or len(known) < len(calls):
        return None
    [(algorithm, protocol)] = hows
    pick = partial(choose, at, settings=choice.setup.nccl, algorithm=algorithm, protocol=protocol)
    channels = {rule.channels for rule in known}
    text = f"nccl:{algorithm}+{protocol}"
    with suppress(InputError):
        own = [pick(call.collective, call.nbytes).channels for call in calls]
        if own == [rule.channels for rule in known]:
            return parse_strategy(text)
        return parse_strategy(f"{text}+channels={channels.pop()}") if len(channels) == 1 else None
    return None


def _pinned(strategy: Strategy, settings: Settings) -> list[Line]:
    """The variables of an algorithm, a protocol and channels, where the strategy states them."""
    of = f"{strategy.collective.replace('_', '')}:"
    prefix = of if settings.release >= _BY_COLLECTIVE else ""
    algorithm = strategy.ranges[0].algorithm.partition(":")[2]
    _, protocol, channels, *_ = strategy.nccl
    table = {
        "NCCL_ALGO": algorithm and f"{prefix}{algorithm}",
        "NCCL_PROTO": protocol and f"{prefix}{protocol}",
        "NCCL_MIN_NCHANNELS": channels,
        "NCCL_MAX_NCHANNELS": channels,
    }
    lines: list[Line] = [(name, value) for name, value in table.items() if value]
    return lines or ["NCCL chooses algorithm, protocol and channels itself, as predicted."]


def _rules_of(choice: Choice) -> list[Rule]:
    """The rules by collective and size for each communicator of the job, and last for any other.

    Collectives of which the strategy does not speak have what NCCL chooses itself, and unknown
    communicators take rings, because the plugin leaves one channel to calls without a rule.
    """
    found, known = list[Rule](), (choice.facts, *_parts(choice))
    for collective in COLLECTIVES:
        for at in known:
            found += _spans(_picks(choice, at, collective), collective, at.nodes, at.n)
        found += _spans(_rings(choice, collective), collective, -1, -1)
        # Where a communicator lacks LL128, its rule is passed over.
        found.append(Rule(collective, 0, None, "ring", "simple", 0, -1, -1))
    return found


def _parts(choice: Choice) -> list[Facts]:
    """The communicators of a job beside that of all ranks: of hybrid shards the ranks that hold one
    copy, and those that hold the same shard.
    """
    setup, layout = choice.setup, choice.setup.layout
    folded = len(layout.ranks) > len(setup.machine.devices)
    if choice.method != "hsdp" or choice.shards is None or folded:
        return []
    size = choice.shards.group or min(map(len, layout.tasks))
    groups = layout.ranks[:size], layout.ranks[::size]
    return [facts(setup.machine, group, setup.nccl) for group in groups if len(group) > 1]


def _tuner_text(rules: Iterable[Rule], title: str = "") -> str:
    """The file that has these rules, under a comment; `numPipeOps` and `regBuff` match anything."""
    algorithms = {ours: theirs for theirs, ours in TUNER_ALGORITHMS.items()}
    collectives = {ours: theirs for theirs, ours in NAMED.items()}
    rows = (
        (
            collectives[rule.collective], rule.least, ANY_SIZE if rule.most is None else rule.most,
            algorithms[rule.algorithm], rule.protocol, rule.channels, rule.nodes, rule.ranks,
            -1, -1,
        )
        for rule in rules
    )  # fmt: skip
    lines = (",".join(map(str, row)) for row in rows)
    heads = [f"# {line}"[:_WIDEST] for line in (title, f"{_HEADER},numPipeOps,regBuff") if line]
    return "\n".join([*heads, *lines, ""])


def _picks(choice: Choice, at: Facts, collective: str) -> Callable[[int], Decided]:
    """Return a function from the bytes of a call to the decision that NCCL runs it by."""
    settings, strategy = choice.setup.nccl, choice.resolved
    own = collective == strategy.collective
    _, protocol, channels, *_ = strategy.nccl if own else OPEN
    if any(rule.collective == collective for rule in choice.rules):
        settings, own = replace(settings, tuner=choice.rules), False
    known = plan(at, settings)

    @cache
    def pick(nbytes: int) -> Decided:
        algorithm = _range(choice, nbytes).algorithm.partition(":")[2] if own else ""
        made = choose(
            at, collective, nbytes, settings, algorithm=algorithm, protocol=protocol, listed=False
        )
        rule = None if algorithm or protocol else rule_of(known, collective, nbytes)
        return made.algorithm, made.protocol, channels or (rule.channels if rule else 0)

    return pick


def _rings(choice: Choice, collective: str) -> Callable[[int], Decided]:
    """The same for rings of NCCL's own protocol and channels, unless NCCL_ALGO leaves none."""
    settings = replace(choice.setup.nccl, tuner=())
    ring = "ring" * allows(settings.algorithms, collective, "ring")

    @cache
    def pick(nbytes: int) -> Decided:
        made = choose(choice.facts, collective, nbytes, settings, algorithm=ring, listed=False)
        return made.algorithm, made.protocol, 0

    return pick


def _range(choice: Choice, nbytes: int) -> Range:
    """The range of a gradient of so many bytes."""
    ranges = choice.resolved.ranges
    fitting = (r for r in ranges if r.limit == NO_LIMIT or nbytes <= r.limit * choice.width)
    return next(fitting, ranges[-1])


def _spans(
    pick: Callable[[int], Decided], collective: str, nodes: int, ranks: int
) -> Iterator[Rule]:
    """Rules of maximal stretches of sizes with one decision, the first from 0 on and the last
    without an end: searched for between 8 sizes in each octave.
    """
    grid = sorted({8 + i << octave >> 3 for octave in range(40) for i in range(8)} | {_LARGEST})
    edges = [size for low, high in pairwise(grid) for size in _edges(pick, low, high)]
    ends = [*(size - 1 for size in edges), None]
    for least, most, decided in zip([0, *edges], ends, map(pick, [1, *edges]), strict=True):
        yield Rule(collective, least, most, *decided, nodes, ranks)


def _edges(pick: Callable[[int], Decided], low: int, high: int) -> list[int]:
    """The sizes above `low`, to `high`, at which the decision is another than below."""
    if pick(low) == pick(high):
        return []
    if high - low == 1:
        return [high]
    middle = (low + high) // 2
    return _edges(pick, low, middle) + _edges(pick, middle, high)


NCCL = Framework(
    "nccl",
    "NCCL",
    lambda choice: {
        ENVIRONMENT: _environment(choice),
        TUNER: _tuner_text(_rules_of(choice), choice.title),
    },
    _refusals,
    _nearest,
    default=lambda _: "nccl",
    default_words="NCCL's own choice",
    packings=lambda _: [],
    packs=False,
    named=tuple(name for name in METHODS if name != REPLICATED),
)
