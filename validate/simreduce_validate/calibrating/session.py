"""A calibration session: measure micro-plans, fit constants, try them on other strategies."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from simreduce.app.cli.reply import Progress
from simreduce.computing.arrays import Floats
from simreduce.engine import Calibration
from simreduce.engine.kernel.store import make_kernel
from simreduce.engine.runtime import ISSUED, no_lanes
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
    fit_roughly,
    slow_ports,
)
from simreduce_validate.calibrating.controls import Key, control_plans
from simreduce_validate.calibrating.design import WHOLE, whole
from simreduce_validate.campaign import Campaign
from simreduce_validate.cases import Case, Timing
from simreduce_validate.devices import Devices, refusals
from simreduce_validate.running import Measurement
from simreduce_validate.running.backend import Backend
from simreduce_validate.running.execution import StepCounts
from simreduce_validate.running.protocol import FirstStep

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

FIRST_ROUNDS = 3
"""Rounds of the micro-plans before the first, rough fit."""

_WORTH = 2 * FIRST_ROUNDS
"""With no more rounds than these, the final fit comes as soon."""

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
    """What a calibration found, from timings of micro-plans and those of held-out strategies.

    `rough`: from `FIRST_ROUNDS` rounds, whose last results are not checked yet.
    """

    calibration: Calibration
    fit: Fit
    timings: Sequence[Timing]
    relay: Relay | None = None
    tried: Sequence[Timing] = ()
    rough: bool = False

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """How good the predictions for the held-out strategies were."""
        return assess(self.tried)


def measure_micros(
    campaign: Campaign,
    design: Design,
    out: Path,
    opened: Backend,
    begin: Callable[[list[Timing]], None] = lambda _timings: None,
) -> tuple[list[Timing], dict[str, Any]]:
    """Time the micro-plans of a design; returns their timings in its order, and the provenance.

    A plan takes turns with others that move about as many bytes, since a large plan leaves cold
    caches. Where steps settle, all plans take turns, so that a slow minute slows all of them.
    `begin` gets the timings so far once every plan has `FIRST_ROUNDS` samples, if the number of
    rounds is not given or more than twice that, and no first step had a fault.
    """
    adapt = campaign.devices.stage.adapt
    cases = [
        Case(micro.name, adapt(micro.plan), micro.nbytes // 4, 0, "sum", math.nan)
        for micro in all_micros(design)
    ]
    order = sorted(range(len(cases)), key=lambda i: int(cases[i].plan.nbytes.sum()))
    many = len(order) if campaign.devices.stage.one_process else _IN_TURNS
    groups = [[cases[i] for i in order[at : at + many]] for at in range(0, len(order), many)]
    seen: list[list[float]] = [[] for _ in cases]
    firsts: dict[int, FirstStep] = {}

    def watch(place: int, seconds: float, first: FirstStep) -> None:
        seen[order[place]].append(seconds)
        firsts[order[place]] = first
        if len(seen[order[place]]) == FIRST_ROUNDS and min(map(len, seen)) == FIRST_ROUNDS:
            timings = [
                Timing(case, Measurement(np.array(seen[i]), step.faults, step.departures, step))
                for i, case in enumerate(cases)
                for step in [firsts[i]]
            ]
            if not any(timing.faults for timing in timings):
                begin(timings)

    rounds = campaign.repetitions
    watched = replace(campaign, watch=watch) if not rounds or rounds > _WORTH else campaign
    timings, provenance = watched.measure(groups, out, opened)
    back = dict(zip(order, timings, strict=True))
    return [back[i] for i in range(len(cases))], provenance


def measurement_of(seconds: Floats, faults: tuple[str, ...] = ()) -> Measurement:
    """Samples of which nothing else is known."""
    return Measurement(seconds, faults, (), FirstStep((), (), StepCounts(), 0.0))


def all_micros(design: Design) -> list[Micro]:
    """Every micro-plan to measure: those to fit, the pairs, and the relay."""
    pairs = [micro for _, *both in design.pairs for micro in both]
    return [*design.micros, *pairs, *([design.relay] if design.relay else [])]


def learn(
    design: Design, devices: Devices, timings: Sequence[Timing], *, rough: bool = False
) -> Session:
    """Fit the constants of a design to the timings of its micro-plans; a `rough` fit ends early.

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

    with Progress("fitting the constants"):
        medians = [timing.measured.median for timing in fitted]
        fit = (fit_roughly if rough else fit_constants)(constants, predict, medians)
    fit = replace(fit, vague={name: why + _stand_in(name, fit) for name, why in fit.vague.items()})
    controls = _control_seconds(design, devices, timings)
    found = replace(assemble(base, fit.values), errors=fit.errors, controls=controls)
    relay = _compare_relay(setup.but(calibration=found), timings[-1]) if design.relay else None
    return Session(found, fit, timings, relay, rough=rough)


def _stand_in(name: str, fit: Fit) -> str:
    """Which constant stands for one that has no value, in words."""
    other = ISSUED.get(name.removeprefix("issue."), "") if name not in fit.values else ""
    return f"; issue.{other} stands for it" if other else ""


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


@contextmanager
def open_devices(campaign: Campaign, design: Design, *, held_out: bool) -> Iterator[Backend]:
    """The devices that a session needs, until the `with` block ends. While they start, the kernel
    of the simulator is compiled, unless it has been before.
    """
    adapt, devices = campaign.devices.stage.adapt, campaign.devices
    plans = [adapt(micro.plan) for micro in all_micros(design)]
    workload = tensor(_SIZES[0], 0)
    strategies = [parse_strategy(name) for name in HELD_OUT * held_out]
    there = [each for each in strategies if not refusals(each, devices, [workload])]
    plans += [campaign.compile(each, workload) for each in there]
    compiled = Future[None]()
    threading.Thread(target=_compile, args=(compiled,), daemon=True).start()
    with devices.open(campaign.devices_used(plans)) as backend:
        compiled.result()
        yield backend


def _compile(done: Future[None]) -> None:
    try:
        make_kernel()
        done.set_result(None)
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        done.set_exception(error)


def measure_held_out(campaign: Campaign, out: Path, opened: Backend) -> list[Timing]:
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
    return campaign.measure([campaign.with_controls(group) for group in groups], out, opened)[0]


def held_out_cases(campaign: Campaign, nbytes: int) -> list[Case]:
    """The held-out strategies at one size.

    On two or three devices, some have the same plan as a chain, which may be in the fit.
    """
    devices, workload = campaign.devices, tensor(nbytes, 0)
    learnt = WHOLE if devices.stage.one_process else ()
    plans = {devices.stage.adapt(whole(devices, name, nbytes).plan).digest for name in learnt}
    strategies = [s for s in map(parse_strategy, HELD_OUT) if not refusals(s, devices, [workload])]
    return [case for case in campaign.cases(workload, strategies) if case.plan.digest not in plans]
