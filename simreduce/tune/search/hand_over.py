"""What to paste for a setting that was found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

from simreduce.export import TARGETS, Choice, export, mode_files, why_not
from simreduce.strategy import Strategy, parse_strategy
from simreduce.training.sharded import largest_unit
from simreduce.tune.rank import Candidate, Ranking, evaluate
from simreduce.tune.search.setting import Setting
from simreduce.tune.search.steps import reducing_scenario
from simreduce.tune.search.tuned import Tuned

_NCCL = "nccl"

_LOOKED_AT = 8
"""Settings that are looked at for each that devices are to measure."""


def files_of(found: Tuned) -> Mapping[str, str]:
    """The files of the best setting for its target, by name; with those of NCCL where it is told
    something. Of `any`, for the first target that has a setting for it; none if none has.
    """
    setting = found.best.setting
    if setting.mode:
        return mode_files(found.scenario.setup.layout, setting.mode, setting.device)
    names = list(TARGETS) if found.target == "any" else [found.target]
    for name in names:
        if not why_not(name, choice := _choice(found, setting)):
            files = dict(export(name, choice))
            break
    else:
        return {}
    if setting.rules and name != _NCCL:
        files |= export(_NCCL, _choice(found, Setting(_NCCL, setting.rules)))
    return files


def why_nothing(found: Tuned) -> tuple[str, ...]:
    """Why there is nothing to paste for the best setting; empty if there is."""
    if found.target == "any" or found.best.setting.mode:
        return ()
    return why_not(found.target, _choice(found, found.best.setting))


def ranking_of(found: Tuned, most: int, can_run: Callable[[Strategy], bool]) -> Ranking:
    """The best setting, what is worth measuring and the next, as a ranking for real devices: the
    first `most` that these can run, of a few times as many. Devices run strategies: of rules, only
    one for all sizes is one.
    """
    rows = dict.fromkeys((found.best, *found.worth_measuring(most), *found.rows))
    texts = dict.fromkeys(text for row in rows if (text := _as_strategy(row.setting)))
    looked_at = (parse_strategy(text) for text in [*texts][: _LOOKED_AT * most])
    chosen = islice(filter(can_run, looked_at), most)
    tried = [evaluate(found.scenario, strategy) for strategy in chosen]
    return Ranking(found.scenario, tuple(c for c in tried if isinstance(c, Candidate)), ())


def _as_strategy(setting: Setting) -> str:
    """The strategy that says all of a setting; "" if none does."""
    if setting.order or setting.mode or setting.sharding or len(setting.rules) > 1:
        return ""
    for rule in setting.rules:
        told = f"nccl:{rule.algorithm}+{rule.protocol}+channels={rule.channels}"
        return told + setting.strategy.removeprefix("nccl")
    return setting.strategy


def _choice(found: Tuned, setting: Setting) -> Choice:
    """The setting as exporters take it."""
    scenario, step = found.scenario, found.scenario.step
    cycle = setting.cycle
    if cycle is None and step is not None:
        cycle = step.cycle
    base = scenario.setup
    if setting.order:
        base = Setting("", order=setting.order).setup(base)
    choice = Choice(
        base,
        reducing_scenario(scenario, found.objective).workload,
        parse_strategy(setting.strategy),
        rules=setting.rules,
        cycle=cycle,
        batch=step.job.batch if step else 0,
        accumulate=step.job.accumulate if step else 1,
    )
    if setting.sharding is None or step is None:
        return choice
    return replace(
        choice,
        workload=scenario.workload,
        method=setting.method,
        shards=setting.sharding,
        unit=largest_unit(step.job.model, setting.sharding.units),
    )
