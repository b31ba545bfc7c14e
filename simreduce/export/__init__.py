"""Files that make other systems run a strategy, for each target, or why there are none.

Settings of a system by its name: its files, and why it has no setting.

The tf_cnn_benchmarks flags and the TensorFlow call that run a strategy, where there are any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from simreduce.errors import InputError, StrategyError, did_you_mean
from simreduce.export.framework import Choice, Framework
from simreduce.export.frameworks import (
    FRAMEWORKS,
    LAUNCHERS,
    MESH_PROGRAMS,
    TARGETS,
    TRAINED,
    USUAL,
    VERSIONS,
    find_framework,
)
from simreduce.export.frameworks.nccl import NCCL
from simreduce.export.frameworks.tensorflow import call_of, flags_of
from simreduce.planners.layouts import OPEN, Layout
from simreduce.planners.strategy import Strategy, parse_strategy, resolve


def find_target(name: str) -> Framework:
    """The system of this name that takes strategies or an order of nodes; StrategyError names the
    nearest. A name may be that of a version.
    """
    if name in VERSIONS:
        return FRAMEWORKS[name]
    return find_framework(name, (*TARGETS, *LAUNCHERS), f"unknown target {name!r}", StrategyError)


def check_mesh_target(name: str) -> str:
    """The name of a program that trains on meshes; InputError names the nearest."""
    if name not in MESH_PROGRAMS:
        words = f"{name}: takes no mesh{did_you_mean(name, MESH_PROGRAMS)}"
        raise InputError(f"{words}; {', '.join(MESH_PROGRAMS)} do")
    return name


def why_not(name: str, choice: Choice) -> tuple[str, ...]:
    """Why a target has no setting for a choice; empty if it has."""
    return tuple(find_target(name).refusals(choice))


def export(name: str, choice: Choice) -> Mapping[str, str]:
    """The files for a target, by name.

    Raises `StrategyError` if it has no setting for the choice, with the reasons and the nearest
    strategy that it has one for.
    """
    target = find_target(name)
    if problems := target.refusals(choice):
        text = choice.strategy.text
        reasons = [f"{text}: no setting of {target.title} gives this: {each}" for each in problems]
        near = nearest(name, choice)
        raise StrategyError(
            [*reasons, *[f"{text}: the nearest setting is that of {near}"] * bool(near)]
        )
    return _files(target, choice)


def _files(target: Framework, choice: Choice) -> Mapping[str, str]:
    """The files for a target, with NCCL's where the strategy says how NCCL reduces."""
    named = any(":" in each.algorithm for each in choice.resolved.ranges)
    if not target.trains or not (named or choice.strategy.nccl != OPEN) or NCCL.refusals(choice):
        return target.files(choice)
    return {**target.files(choice), **NCCL.files(choice)}


def nearest(name: str, choice: Choice) -> str:
    """The nearest strategy that a target has a setting for, "" if none is known."""
    target = find_target(name)
    for text in target.nearest(choice):
        with suppress(StrategyError):
            if not target.refusals(replace(choice, strategy=parse_strategy(text))):
                return text
    return ""


@dataclass(frozen=True, slots=True)
class Exported:
    """The settings of a system for a choice.

    `files` are by name. Without a setting, `reasons` say why, and `nearest` is the nearest strategy
    that the system has one for, "" if none is known. The files may be of another strategy
    `instead`.
    """

    name: str
    title: str
    files: Mapping[str, str]
    reasons: tuple[str, ...] = ()
    nearest: str = ""
    instead: str = ""


def export_choice(choice: Choice, others: Sequence[Strategy] = ()) -> tuple[Exported, ...]:
    """Return the settings of each framework that trains, which are short, for a choice.

    A target without a setting for the choice gets its setting for the first of `others` that it can
    express. Targets with the choice itself come first, targets without any setting last, and of
    those alike the usual one.
    """
    found = (_exported(name, choice, others) for name in TRAINED)
    return tuple(sorted(found, key=lambda e: (bool(e.reasons), bool(e.instead), e.name != USUAL)))


def _exported(name: str, choice: Choice, others: Sequence[Strategy]) -> Exported:
    target, reasons = FRAMEWORKS[name], why_not(name, choice)
    if not reasons:
        return Exported(name, target.title, _files(target, choice))
    for each in others:
        other = replace(choice, strategy=each)
        if not why_not(name, other):
            return Exported(name, target.title, _files(target, other), instead=each.text)
    return Exported(name, target.title, {}, reasons, nearest(name, choice))


@dataclass(frozen=True, slots=True)
class StrategySettings:
    """Text to type; None where that system cannot run the strategy."""

    tf_cnn_benchmarks: str | None
    tensorflow: str | None


def settings(strategy: Strategy, layout: Layout, *, faithful: bool = False) -> StrategySettings:
    """Return settings for one process per machine, as both systems are run.

    They are for the plan that `faithful` gives, or for the plan without it.
    """
    strategy = resolve(strategy, layout)
    flags = flags_of(strategy, layout, faithful=faithful)
    return StrategySettings(flags, call_of(strategy, layout))
