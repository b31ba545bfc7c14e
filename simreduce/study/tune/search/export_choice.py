"""The files to paste for the best setting, and the settings to measure on devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice

from simreduce.export import Choice, export, mode_files, why_not
from simreduce.export.frameworks import TARGETS
from simreduce.planners.nccl.constants import Rule
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.study.question import ask, choice_of
from simreduce.study.tune.rank import Candidate, StrategyRanking, evaluate
from simreduce.study.tune.search.setting import Setting, reducing_scenario
from simreduce.study.tune.search.targets import STEP
from simreduce.study.tune.search.tuned import Tuned

_NCCL = "nccl"

_LOOKED_AT = 8
"""Settings that are checked for each that devices shall measure."""


def files_of(found: Tuned, setting: Setting | None = None) -> Mapping[str, str]:
    """The files of a setting for its target, by name, with NCCL's where it sets NCCL.

    It is the advised setting unless one is given. For `any`, the files of the first target that can
    be set to it; none if no target can.
    """
    setting = setting or found.advised.setting
    if setting.mode:
        return mode_files(found.scenario.setup.layout, setting.mode, setting.device)
    names, choice = TARGETS if found.target == "any" else [found.target], _choice(found, setting)
    name = next((each for each in names if not why_not(each, choice)), None)
    if name is None:
        return {}
    files = dict(export(name, choice))
    if (setting.rules or setting.channels) and name != _NCCL:
        files |= nccl_files(found, setting.rules, setting.channels)
    return files


def nccl_files(found: Tuned, rules: tuple[Rule, ...] = (), channels: int = 0) -> Mapping[str, str]:
    """NCCL's own files, by rules or by its own choice, with so many channels at least."""
    return export(_NCCL, _choice(found, Setting(_NCCL, rules, channels)))


def why_nothing(found: Tuned) -> tuple[str, ...]:
    """Why there is nothing to paste for the advised setting; empty if there is."""
    setting = found.advised.setting
    if found.target == "any" or setting.mode:
        return ()
    return why_not(found.target, _choice(found, setting))


def ranking_of(found: Tuned, most: int, can_run: Callable[[Strategy], bool]) -> StrategyRanking:
    """The best setting, those worth measuring and the next, as a ranking for real devices.

    These are the first `most` that devices can run, of a few times as many. Devices run strategies:
    one rule for all sizes is part of one, several are not.
    """
    rows = dict.fromkeys((found.best, *found.worth_measuring(most), *found.rows))
    texts = dict.fromkeys(text for row in rows if (text := _as_strategy(row.setting)))
    looked_at = map(parse_strategy, islice(texts, _LOOKED_AT * most))
    tried = [evaluate(found.scenario, each) for each in islice(filter(can_run, looked_at), most)]
    return StrategyRanking(found.scenario, tuple(c for c in tried if isinstance(c, Candidate)), ())


def _as_strategy(setting: Setting) -> str:
    """The strategy that says all of a setting; "" if none does."""
    if setting.order or setting.mode or setting.sharding or len(setting.rules) > 1:
        return ""
    for rule in setting.rules:
        return (
            f"nccl:{rule.algorithm}+{rule.protocol}+channels={rule.channels}"
            + setting.strategy.removeprefix("nccl")
        )
    return "" if setting.channels else setting.strategy


def _choice(found: Tuned, setting: Setting) -> Choice:
    """The setting as exporters take it."""
    reduces = found.objective == STEP and setting.sharding is None
    own = reducing_scenario(found.scenario) if reduces else found.scenario
    own = replace(setting, rules=()).scenario(own)
    return replace(
        choice_of(ask(own, parse_strategy(setting.strategy)), own.step, setting.method),
        rules=setting.rules,
    )
