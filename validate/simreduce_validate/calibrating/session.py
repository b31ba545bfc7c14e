"""A calibration session: measure micro-plans, fit constants, try them on other strategies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from simreduce.engine import Calibration
from simreduce.engine.runtime import no_lanes
from simreduce.engine.setup import Setup
from simreduce.planners.strategy import parse_strategy
from simreduce.study.tune.sizes import tensor
from simreduce_validate.accuracy import Accuracy, assess
from simreduce_validate.calibrating import (
    Design,
    Fit,
    FreeConstant,
    Micro,
    assemble,
    fit_constants,
    slow_ports,
)
from simreduce_validate.calibrating.controls import Key, control_plans
from simreduce_validate.calibrating.design import WHOLE, whole
from simreduce_validate.campaign import Campaign
from simreduce_validate.cases import Case, Timing
from simreduce_validate.devices import Devices, refusals

HELD_OUT = (
    "ring",
    "halving_doubling",
    "direct",
    "double_tree",
    "reduce_to_one",
    "hierarchical_copy",
    "xring",
    "pscpu",
)
"""Strategies to try the constants on, unless the fit has their plans."""

_IN_TURNS = 8
"""Plans timed in turns, as many as strategies are: the more others ran in between, the longer a
step takes.
"""

_SIZES = (1 << 14, 1 << 18, 1 << 22)
_ALL_SIZES = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26)
"""Bytes of the held-out strategies. One process is fast enough for all sizes."""

_LARGE = 1 << 20
"""Bytes from which each size takes turns by itself."""

_PATIENCE = 3.0
"""Seconds. Steps that are predicted to take longer are not tried."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Two transfers from one device to another at once, of which the first goes on to a third.

    Seconds as measured, as predicted if the transfers queue, and if they share the route.
    """

    measured: float
    queued: float
    shared: float


@dataclass(frozen=True)
class Session:
    """What a calibration found, from timings of micro-plans and those of held-out strategies."""

    calibration: Calibration
    fit: Fit
    timings: Sequence[Timing]
    relay: Relay | None = None
    tried: Sequence[Timing] = ()

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """How good the predictions for the held-out strategies were."""
        return assess(self.tried)


def measure_micros(
    campaign: Campaign, design: Design, out: Path
) -> tuple[list[Timing], dict[str, Any]]:
    """Time the micro-plans of a design; returns their timings in its order, and the provenance.

    A plan takes turns with others that move about as many bytes, since a large plan leaves cold
    caches. Where steps settle, all plans take turns, so that a slow minute slows all of them.
    """
    adapt = campaign.devices.stage.adapt
    cases = [
        Case(micro.name, adapt(micro.plan), micro.nbytes // 4, 0, "sum", math.nan)
        for micro in all_micros(design)
    ]
    order = sorted(range(len(cases)), key=lambda i: int(cases[i].plan.nbytes.sum()))
    many = len(order) if campaign.devices.stage.one_process else _IN_TURNS
    groups = [[cases[i] for i in order[at : at + many]] for at in range(0, len(order), many)]
    timings, provenance = campaign.measure(groups, out)
    back = dict(zip(order, timings, strict=True))
    return [back[i] for i in range(len(cases))], provenance


def all_micros(design: Design) -> list[Micro]:
    """Every micro-plan to measure: those to fit, the pairs, and the relay."""
    pairs = [micro for _, *both in design.pairs for micro in both]
    return [*design.micros, *pairs, *([design.relay] if design.relay else [])]


def learn(design: Design, devices: Devices, timings: Sequence[Timing]) -> Session:
    """Fit the constants of a design to the timings of its micro-plans.

    Ports that differ get constants of their own, and the pairs that showed them join the fit.
    """
    ports = _port_rates(design, timings)
    many = len(design.micros) + (2 * len(design.pairs) if ports else 0)
    fitted, base = timings[:many], design.base
    constants = (
        *design.constants,
        *(FreeConstant.about(name, rate) for name, rate in ports.items()),
    )
    setup = devices.setup(base)

    def predict(values: Mapping[str, float]) -> list[float]:
        found = setup.but(calibration=assemble(base, values))
        return [found.find_seconds(timing.case.plan) for timing in fitted]

    fit = fit_constants(constants, predict, [timing.measured.median for timing in fitted])
    controls = _control_seconds(design, devices, timings)
    found = replace(assemble(base, fit.values), errors=fit.errors, controls=controls)
    relay = _compare_relay(setup.but(calibration=found), timings[-1]) if design.relay else None
    return Session(found, fit, timings, relay)


def _control_seconds(
    design: Design, devices: Devices, timings: Sequence[Timing]
) -> dict[Key, float]:
    seconds = {timing.case.plan.digest: timing.measured.median for timing in timings}
    micros = control_plans(devices, design.controls)
    adapt = devices.stage.adapt
    return {key: seconds[adapt(micro.plan).digest] for key, micro in micros.items()}


def _port_rates(design: Design, timings: Sequence[Timing]) -> dict[str, float]:
    """Approximate rates of the ports that differ, by the names of the constants.

    The difference of two sizes cancels every cost that does not depend on the size.
    """
    if not design.pairs:
        return {}
    first = len(design.micros)
    medians = [timing.measured.median for timing in timings[first : first + 2 * len(design.pairs)]]
    seconds = {
        pair: large - small
        for (pair, *_), small, large in zip(design.pairs, medians[::2], medians[1::2], strict=True)
    }
    _, small, large = design.pairs[0]
    out, into = slow_ports(seconds, large.nbytes - small.nbytes)
    names = large.plan.devices
    return {f"links.{names[i]}>switch0.bandwidth": rate for i, rate in out.items()} | {
        f"links.switch0>{names[i]}.bandwidth": rate for i, rate in into.items()
    }


def _compare_relay(setup: Setup, timing: Timing) -> Relay:
    sharing = setup.but(runtime=replace(setup.runtime, pipes=no_lanes))
    plan = timing.case.plan
    queued, shared = (each.find_seconds(plan) for each in (setup, sharing))
    return Relay(timing.measured.median, queued, shared)


def measure_held_out(campaign: Campaign, out: Path) -> list[Timing]:
    """Time strategies that are not in the fit, beside what its constants predict."""
    one_process, groups = campaign.devices.stage.one_process, []
    for nbytes in _ALL_SIZES if one_process else _SIZES:
        cases = held_out_cases(campaign, nbytes)
        groups += [quick] if (quick := [c for c in cases if c.predicted < _PATIENCE]) else []
    # Small sizes take turns together, so that a slow second slows all of them. Large ones would
    # leave them few rounds.
    if one_process:
        small = [case for group in groups for case in group if case.nbytes < _LARGE]
        groups = [small, *(group for group in groups if group[0].nbytes >= _LARGE)]
    return campaign.measure([campaign.with_controls(group) for group in groups], out)[0]


def held_out_cases(campaign: Campaign, nbytes: int) -> list[Case]:
    """The held-out strategies at one size.

    On two or three devices, some have the same plan as a chain, which may be in the fit.
    """
    devices, workload = campaign.devices, tensor(nbytes, 0)
    learnt = WHOLE if devices.stage.one_process else ()
    plans = {devices.stage.adapt(whole(devices, name, nbytes).plan).digest for name in learnt}
    strategies = [s for s in map(parse_strategy, HELD_OUT) if not refusals(s, devices, [workload])]
    return [case for case in campaign.cases(workload, strategies) if case.plan.digest not in plans]
