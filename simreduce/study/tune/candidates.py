"""Which strategies are worth trying on a machine, and which of them first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple

from simreduce.computing.watching import time_left
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.export import settings
from simreduce.export.bucket_sizes import bucket_sizes
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.planners.algorithms import ALGORITHMS, COLLECTIVES, TWO_LEVEL, warn_of_unloaded
from simreduce.planners.layouts import Layout
from simreduce.planners.packing.arrangement import FP16
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.planners.strategy.text import tensorflow_choice
from simreduce.study.frameworks import default_text, files_of, names_for, packings_of
from simreduce.study.scenario import Scenario, with_step
from simreduce.study.tune.composed import is_composed
from simreduce.workload import Gradient, Workload

COMMON = (
    "pscpu:32k:xring",  # the example of tf_cnn_benchmarks' documentation
    "xring+small=4096,10",
    "hierarchical_copy+small=65536,10",
    "hierarchical_copy+repack=8,fp16",
    "collective+merge=32",  # TensorFlow 1.14
    "collective+bucket=25M",
    "nccl+bucket=25M",
    "nccl+ddp",
    "nccl+fusion",
)
"""Settings in use with the packers that are not a number of packs."""

_FEWER = 8
"""Of the sizes of buckets, one in so many is ranked."""


def candidates(layout: Layout) -> list[Strategy]:
    """The strategies to try for a layout.

    They are every algorithm with the shard counts and numbers of packs that it proposes for this
    layout; common settings of the other packers; and the strategies that TensorFlow would choose.
    """
    warn_of_unloaded()
    texts = []
    for algorithm in (*ALGORITHMS.values(), *(ALGORITHMS[pair] for pair in TWO_LEVEL)):
        for shards in algorithm.choices(layout):
            spec = algorithm.name if shards == 1 else f"{algorithm.name}#{shards}"
            texts += [f"{spec}+packs={packs}" if packs else spec for packs in algorithm.packs]
    texts += [*COMMON, *tensorflow_choice(layout).values()]
    return [parse_strategy(text) for text in dict.fromkeys(texts)]


def candidates_of(scenario: Scenario) -> list[Strategy]:
    """The strategies to try for a scenario that names none.

    They are all of its layout; of a framework that it names, those that the framework has settings
    for, with some more sizes of its buckets.
    """
    layout, name = scenario.setup.layout, scenario.framework
    found = candidates(layout)
    if not name:
        return found
    if FRAMEWORKS[name].has_typed:
        return [each for each in found if getattr(settings(each, layout), name)]
    more = (parse_strategy(f"nccl{text}") for text in _some_packings(name, scenario))
    every = {each.text: each for each in (*more, *found)}
    return [each for each in every.values() if files_of(name, scenario, each) is not None]


def _some_packings(name: str, scenario: Scenario) -> list[str]:
    """The packings to rank: the default, and others with sizes two octaves from each other.

    DDP's are views of their buckets, which no copies are made of.
    """
    sizes = {0, *bucket_sizes(scenario.workload)[::-_FEWER]}
    found = [text for text, nbytes in packings_of(name, scenario) if nbytes in sizes]
    views = any(text.endswith(",view") for text in found)
    return [text for text in found if not (views and "=" in text) or text.endswith(",view")]


def sharing_candidates(layout: Layout) -> list[Strategy]:
    """Every algorithm that all-gathers, reduce-scatters and all-reduces."""
    warn_of_unloaded()
    shared = [name for name in COLLECTIVES["all_gather"] if name in COLLECTIVES["reduce_scatter"]]
    return [
        parse_strategy(name)
        for name in shared
        if name in ALGORITHMS and COLLECTIVES["all_gather"][name].choices(layout)
    ]


_BUCKET = 32 << 20
"""Bytes of the tensor whose plan says how promising an algorithm is: about a bucket of DDP."""

_LOOKING = 0.15
"""The part of a budget of time after which no algorithm is looked at any more."""

_PACE = 2_000_000
"""Ops a second that are planned, proven and simulated in a step, about: 27 million ops of GPT-2 XL
on 32 GPUs take 10 s.
"""


_PATIENCE = 60.0
"""Seconds for which what runs today is waited for, whatever the budget."""


class StrategyOrder(NamedTuple):
    """The places of strategies, those that promise most first, and of those to wait for.

    `least` has the seconds that a strategy needs at least to move the bytes of the workload, by
    place; infinite where that was not looked at. `late` are what frameworks run today and takes
    longer to simulate than there is time. Without a budget of time, there is none of all this.
    """

    order: Sequence[int]
    waited: Sequence[int] = ()
    least: Mapping[int, float] = MappingProxyType({})
    late: Sequence[int] = ()


def by_promise(strategies: Sequence[Strategy | None], scenario: Scenario) -> StrategyOrder:
    """The order in which to simulate strategies where there may not be time for all.

    Those come first that frameworks run today, which are waited for, but not if they alone take
    the time that is left; that of the first framework, which all else is compared with, may take
    longer (`_PATIENCE`). Then come those that need least for their bytes. Without a budget of time,
    the order is the given one.
    """
    setup, workload = scenario.setup, scenario.workload
    places = range(len(strategies))
    if (seconds := time_left()) == inf:
        return StrategyOrder(places)
    today = [*(default_text(name, scenario) for name in names_for(scenario)), "nccl"]
    first = [i for i in places if (s := strategies[i]) and s.text in today]
    first.sort(key=lambda i: today.index(getattr(strategies[i], "text", "")))

    @cache
    def rate(spec: str) -> float:
        return _find_rate(spec, setup) if time_left() > (1 - _LOOKING) * seconds else inf

    def least(strategy: Strategy | None) -> float:
        if strategy is None:
            return 0.0
        return rate(strategy.spec) * workload.nbytes / (2 if FP16 in strategy.packing else 1)

    def is_quick(strategy: Strategy | None, least: float = 0.0) -> bool:
        most = _PACE * max(time_left(), least)
        if strategy is None or (scenario.step and is_composed(with_step(scenario), strategy)):
            return True
        with suppress(InputError):
            return setup.many_ops(strategy, workload) <= most
        return False

    known = {i: least(strategies[i]) for i in places}
    waited = [i for i in first if is_quick(strategies[i], _PATIENCE * (i == first[0]))]
    late = [i for i in first if i not in waited]
    rest = sorted((i for i in places if i not in first), key=known.__getitem__)
    if late:  # those that differ from them by their packing are as large
        rest = sorted(rest, key=lambda i: not is_quick(strategies[i]))
    return StrategyOrder([*waited, *rest], waited, known, late)


def while_promising(
    coming: Iterable[tuple[int, Any]], promise: StrategyOrder
) -> Iterator[tuple[int, Any]]:
    """What comes, until the `seconds` of one are less than all others need for their bytes, as far
    as that is known. All, without a budget of time.
    """
    left, best = dict(promise.least), inf
    for place, outcome in coming:
        yield place, outcome
        left.pop(place, None)
        best = min(best, getattr(outcome, "seconds", inf))
        waited = any(each in left for each in promise.waited)
        if promise.least and not waited and all(best < least < inf for least in left.values()):
            return


def _find_rate(spec: str, setup: Setup) -> float:
    """Seconds that an algorithm needs for each byte at least; infinite if that takes long."""
    strategy = parse_strategy(spec)
    bucket = Workload("bucket", (Gradient("bucket", _BUCKET // 4, 0),))
    with suppress(InputError):
        if not setup.many_ops(strategy, bucket):
            own = setup.running(strategy)
            return own.find_rates(own.compile(strategy, bucket)).busy / bucket.nbytes
    return inf
