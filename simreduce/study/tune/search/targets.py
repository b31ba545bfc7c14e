"""Settings of a framework that `tune` tries, the defaults first.

Also the all-reduces of small tensors that a target has, and where each is the fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import inf
from typing import NamedTuple

from simreduce import dtypes
from simreduce.errors import InputError, StrategyError
from simreduce.export.framework import Choice, bucket_sizes
from simreduce.export.frameworks import FRAMEWORKS
from simreduce.planners.layouts import Layout
from simreduce.planners.packing import why_too_fine
from simreduce.planners.packing.arrangement import FP16
from simreduce.planners.strategy import parse_strategy
from simreduce.study.frameworks import packings_of
from simreduce.study.ranking import TIED
from simreduce.study.scenario import Scenario, StepScenario
from simreduce.study.tune.search.packings import GradientPacking, distinct
from simreduce.study.tune.search.setting import Setting
from simreduce.study.tune.sizes import tensor
from simreduce.training.sharded import DDP, HSDP, UNIT_RULES, ZERO1, ZERO2, Sharding, wrap
from simreduce.workload import Model

TIME, STEP = OBJECTIVES = ("time", "step")


def nccl_packings(target: str, scenario: Scenario, *, half: bool) -> list[GradientPacking]:
    """Return the packings of a target whose reductions NCCL runs, the default first.

    Those of what packs nothing, as NCCL itself, come from the scenario's strategies.
    """
    chosen = FRAMEWORKS[target]
    texts = packings_of(target, scenario)
    if not chosen.packs:
        own = [s.packing for s in scenario.strategies or () if s.reduced_by_nccl]
        texts = [("" if packing == "none" else f"+{packing}", 0) for packing in own] or texts
    if half and chosen.half:  # views keep their dtype
        texts += [(f"{text},{FP16}", n) for text, n in texts[1:] if "view" not in text]
    packings = distinct(
        [
            (text, nbytes)
            for text, nbytes in texts
            if not why_too_fine(parse_strategy(f"nccl{text}").packer, scenario.workload.finest)
        ],
        scenario.workload.gradients,
    )
    if not packings:
        raise InputError(f"{target}: none of its packings takes these gradients")
    return packings


def methods_of(target: str, scenario: Scenario) -> tuple[str, ...]:
    """The methods of a step that are tried.

    They are the ones that the scenario names, or else all that the target has by itself; of a
    recorded job, whose layers are not known, `ddp` alone. InputError if it has none that is named.
    """
    own, step = FRAMEWORKS[target].methods, scenario.step
    if scenario.workload.finest:
        return (DDP,)
    if step is None or step.sharding is None:
        return own
    known = (*own, *FRAMEWORKS[target].named)
    found = tuple(dict.fromkeys(m for m in step.methods if m in known))
    if not found:
        raise InputError(
            f"{scenario.name}: {target} cannot be told {' or '.join(step.methods)};"
            f" it has {', '.join(known)}"
        )
    return found


def points_of(
    target: str,
    methods: Iterable[str],
    scenario: StepScenario,
    strategies: Sequence[str],
    *,
    half: bool,
) -> list[Setting]:
    """Every point of the sharded ones of these methods, the default of each first."""
    return [
        Setting(strategy, method=method, sharding=sharding)
        for method in methods
        if method != DDP
        for strategy in strategies
        for sharding in _shardings(target, method, scenario, half=half)
    ]


def _shardings(target: str, method: str, scenario: StepScenario, *, half: bool) -> list[Sharding]:
    """The settings of a target's method, its default first."""
    step, framework = scenario.step, FRAMEWORKS[target]
    base = framework.default_shards(step.numerics, scenario.workload)
    if not framework.packs:
        return [base]
    units = _units(step.job.model, framework.coarser, base)
    gathers = method not in (ZERO1, ZERO2)  # else nothing is gathered ahead, or freed
    knobs = {k: values for k, values in framework.knobs.items() if gathers or k == "streams"}
    groups = _groups(scenario.setup.layout) if method == HSDP else [0]
    if not groups:
        return []
    base = replace(base, group=groups[0])
    found = [
        replace(base, units=unit, group=group, **dict(zip(knobs, values, strict=True)))  # type: ignore[arg-type]
        for unit, group, *values in product(units, groups, *knobs.values())
    ]
    if half and base.reduce_dtype is None and base.param_dtype is None:
        code = dtypes.code("float16")
        found += [replace(each, reduce_dtype=code) for each in found]
        found += [replace(each, param_dtype=code) for each in found if each.reduce_dtype == code]
    return list(dict.fromkeys([base, *found]))


def _units(model: Model, coarser: int, base: Sharding) -> list[str | int]:
    """Rules that put layers together, without rules that make the same units as one before."""
    sizes = bucket_sizes(model.workload)[:: coarser or 8]
    found: dict[object, str | int] = {}
    for rule in (base.units, *(() if coarser else UNIT_RULES), *sizes):
        with suppress(InputError):  # no layer is in a block
            found.setdefault(tuple(unit.layers for unit in wrap(model, rule)), rule)
    return list(found.values())


def _groups(layout: Layout) -> list[int]:
    """Ranks of a shard group: 0 for all of a machine, then every other whole part of all."""
    n, sizes = layout.n, {len(task) for task in layout.tasks}
    found = [size for size in range(2, n) if n % size == 0]
    own = min(sizes) if len(sizes) == 1 else 0
    return [0, *(size for size in found if size != own)] if own in found else found


SIZES = tuple(1 << power for power in range(10, 25))
"""1 KiB to 16 MiB."""


class SizeRange(NamedTuple):
    """The fastest strategy from a size on, what switches it on, and its time at that size; beside
    it what runs unless anybody says, with its time.
    """

    nbytes: int
    strategy: str
    switch: str
    seconds: float
    default: str
    default_seconds: float


def size_ranges(target: str, scenario: Scenario) -> tuple[SizeRange, ...]:
    """Where the fastest changes, launched by CUDA graphs; nothing of targets without kernels for
    small tensors, and where NVLinks do not join all GPUs.
    """
    setup = scenario.setup.but(call_cost=0.0)
    known, layout = FRAMEWORKS[target], setup.layout
    if not known.switches or layout.task_count > 1 or layout.n < 2 or not layout.joined:
        return ()
    dtype, found = scenario.workload.gradients[0].dtype, list[SizeRange]()
    for nbytes in SIZES:
        choice = Choice(setup, tensor(nbytes, dtype), parse_strategy("nccl"))
        took = times_of(target, choice)
        best = min(took, key=took.__getitem__, default="")
        before = took.get(found[-1].strategy, inf) if found else inf
        if best and before > took[best] * TIED:
            default = known.default(choice).partition("+")[0]  # one tensor is not packed
            now = took.get(default, took[best])
            found.append(SizeRange(nbytes, best, known.switches[best], took[best], default, now))
    return tuple(found)


def times_of(target: str, choice: Choice) -> Mapping[str, float]:
    """The seconds of the strategies that a target has for small tensors, where it has a setting
    for one and the machine a plan.
    """
    known, took = FRAMEWORKS[target], dict[str, float]()
    for text in known.switches:
        strategy = parse_strategy(text)
        if known.tried and known.refusals(replace(choice, strategy=strategy)):
            continue
        running = choice.setup.running(strategy)
        with suppress(StrategyError):
            took[text] = running.summarise(running.compile(strategy, choice.workload)).seconds
    return took
