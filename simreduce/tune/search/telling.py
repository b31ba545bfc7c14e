"""What NCCL is best told for the collectives of a sharded step, by their sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from simreduce.nccl import facts
from simreduce.nccl.choice import estimates, nvls_channels, plan
from simreduce.nccl.tuner import Rule
from simreduce.setup import Setup
from simreduce.training.sharded.collectives import Key
from simreduce.tune.search.calls import CHANNELS
from simreduce.tune.search.ranges import Segment, boundaries
from simreduce.tune.search.setting import Setting

_ALGORITHMS = ("ring", "nvls")
"""Of those that gather and scatter, the ones whose plans are known."""

Choice = tuple[str, str, int]
"""Algorithm, protocol and channels."""


def choices(setup: Setup, collective: str) -> list[Choice]:
    """What NCCL can be told for a collective; nothing before 2.5."""
    if setup.nccl.version < (2, 5):
        return []
    at = plan(facts(setup.machine, setup.layout.ranks, setup.nccl), setup.nccl)
    most = at.model.channels
    found = []
    for algorithm, protocol in estimates(at, collective, 1 << 20):
        counts = sorted({c for c in CHANNELS if c < most} | {most})
        if algorithm == "nvls":
            counts = [nvls_channels(at)]
        if algorithm in _ALGORITHMS:
            found += [(algorithm, protocol, channels) for channels in counts]
    return found


def tell(
    setting: Setting,
    keys: Sequence[Key],
    nbytes: Callable[[Key], int],
    setup: Setup,
    do: Callable[[Sequence[Any]], list[Any]],
) -> Setting:
    """The setting with the fastest choice for each collective of a step, each of which `do`
    simulates with every choice.
    """
    asked = [(key, how) for key in keys for how in choices(setup, key.collective)]
    texts = [f"nccl:{how[0]}+{how[1]}+channels={how[2]}" for _, how in asked]
    found = do(
        [
            (replace(setting, strategy=text), key)
            for text, (key, _) in zip(texts, asked, strict=True)
        ]
    )
    best: dict[Key, tuple[float, Choice]] = {}
    for (key, how), seconds in zip(asked, found, strict=True):
        best[key] = min(best.get(key, (seconds, how)), (seconds, how))
    return replace(setting, rules=tuple(_rules(best, nbytes, setup)))


def _rules(
    best: Mapping[Key, tuple[float, Choice]], nbytes: Callable[[Key], int], setup: Setup
) -> Iterator[Rule]:
    """One rule for each range of sizes with the same choice."""
    known = facts(setup.machine, setup.layout.ranks, setup.nccl)
    ordered = sorted(best, key=lambda key: (key.collective, nbytes(key)))
    for collective, some in groupby(ordered, key=lambda key: key.collective):
        mine = list(some)
        sizes, at, segments = [nbytes(key) for key in mine], 0, []
        for _, run in groupby(mine, key=lambda key: best[key][1]):
            begin, at = at, at + len(list(run))
            segments.append(Segment(begin, at, 0))
        ends = boundaries(sizes, segments)
        for segment, least, most in zip(
            segments, [0, *(end + 1 for end in ends)], [*ends, None], strict=True
        ):
            how = best[mine[segment.begin]][1]
            yield Rule(collective, least, most, *how, known.nodes, known.n)
