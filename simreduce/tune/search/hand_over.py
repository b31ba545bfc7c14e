"""What to paste for a setting that was found."""

from __future__ import annotations

from collections.abc import Mapping

from simreduce.export import TARGETS, Choice, export, why_not
from simreduce.strategy import parse_strategy
from simreduce.tune.search.setting import Setting
from simreduce.tune.search.tuned import Tuned

_NCCL = "nccl"


def files_of(found: Tuned) -> Mapping[str, str]:
    """The files of the best setting for its target, by name; with those of NCCL where it is told
    something. Of `any`, for the first target that has a setting for it; none if none has.
    """
    setting = found.best.setting
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


def _choice(found: Tuned, setting: Setting) -> Choice:
    """The setting as exporters take it."""
    scenario, step = found.scenario, found.scenario.step
    cycle = setting.cycle
    if cycle is None and step is not None:
        cycle = step.cycle
    base = (
        scenario.setup
        if not setting.order
        else Setting("", order=setting.order).setup(scenario.setup)
    )
    return Choice(
        base,
        scenario.workload,
        parse_strategy(setting.strategy),
        rules=setting.rules,
        cycle=cycle,
        batch=step.job.batch if step else 0,
    )
