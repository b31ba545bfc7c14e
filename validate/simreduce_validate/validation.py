"""What `simreduce validate` reads from its options, and what it measures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from simreduce import dtypes
from simreduce.app.cli.reply import interruptible
from simreduce.app.cli.setups import is_typed, read_sizes, read_strategies
from simreduce.engine import NOMINAL
from simreduce.engine.calibrate import load_calibration
from simreduce.engine.setup import BY_STRATEGY
from simreduce.errors import InputError
from simreduce.files.formats.syntax import Faults
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.planners.strategy import Strategy
from simreduce.study.scenario import Scenario
from simreduce.study.scenario_files import load_scenario
from simreduce.study.tune.rank import candidates
from simreduce.study.tune.sizes import tensor
from simreduce.workload import Workload
from simreduce_validate.accuracy import Accuracy, assess
from simreduce_validate.campaign import Campaign, Interruption
from simreduce_validate.cases import Case, Timing
from simreduce_validate.devices import RUNTIME, can_run, nccl_refusal, read_devices, refusals
from simreduce_validate.running import BUILTINS, ROUTES
from simreduce_validate.running.builtin import COLLECTIVE, NCCL, check_builtin
from simreduce_validate.transfers import Transfer, transfers

_OF_THE_SCENARIO = {
    "--algo": "algo",
    "-b": "minbytes",
    "-e": "maxbytes",
    "-i": "stepbytes",
    "-f": "stepfactor",
    "-d": "datatype",
}
"""Options that say what a scenario says too, with the parameters of the command."""


@dataclass(frozen=True)
class Validation:
    """The timings of a campaign, and whether all of its `candidates` were measured."""

    campaign: Campaign
    timings: Sequence[Timing]
    provenance: Mapping[str, Any]
    candidates: int
    complete: bool = True

    @property
    def of_candidates(self) -> list[Timing]:
        """The timings without those of controls."""
        return [timing for timing in self.timings if timing.case.control is None]

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """How good the predictions were, beside TensorFlow's own choice."""
        return assess(self.timings, COLLECTIVE)

    @cached_property
    def transfers(self) -> list[list[Transfer]]:
        """The transfers of one step of each timing, measured and predicted; none without events."""
        return [self._transfers(timing) for timing in self.timings]

    def _transfers(self, timing: Timing) -> list[Transfer]:
        campaign = self.campaign
        if not timing.events:
            return []
        found = transfers(timing.case.plan, campaign.setup, timing.events)
        return [each._replace(predicted=math.nan) for each in found] if campaign.blind else found


def measure(
    campaign: Campaign, groups: Sequence[Sequence[Case]], out: Path | None = None
) -> Validation:
    """Measure all groups, or those that are complete before Ctrl-C or SIGTERM.

    Without a complete group, the interrupt goes on to the caller.
    """
    count = sum(case.control is None for group in groups for case in group)
    try:
        with interruptible():
            return Validation(campaign, *campaign.measure(groups, out), count)
    except Interruption as early:
        if not early.timings:
            raise
        return Validation(campaign, early.timings, early.provenance, count, complete=False)


def read_campaign(
    faults: Faults,
    *,
    topology: str | None,
    scenario: str | None,
    top: int,
    algo: tuple[str, ...],
    builtin: tuple[str, ...],
    minbytes: str,
    maxbytes: str | None,
    stepbytes: str,
    stepfactor: float,
    ngpus: int | None,
    gpus: str | None,
    datatype: str,
    iters: int,
    warmup_iters: int,
    chained: int | None,
    traced: bool,
    calibration: str | None,
    **options: Any,
) -> tuple[Campaign, list[list[Case]]]:
    """The campaign that the options ask for, and its cases by workload.

    Raises InputError with every fault, the earlier ones in `faults` included.
    """
    chosen = _read_scenario(faults, topology, scenario)
    times = chained or (chosen.repeat if chosen else 1)
    _check_step(faults, times, builtin, options["route"], traced=traced)
    where = chosen if topology is None else topology
    devices = faults.attempt("", read_devices, where, ngpus, gpus, **options)
    sizes = minbytes, maxbytes, stepbytes, stepfactor
    workloads = _read_workloads(faults, datatype, *sizes)
    texts = algo or (() if builtin else ("ring",))
    named = faults.attempt("", read_strategies, texts, list(ALGORITHMS))
    constants = chosen.setup.calibration if chosen else NOMINAL
    if calibration is not None:
        constants = faults.attempt("--calibration", load_calibration, calibration) or NOMINAL
    names = [name for text in builtin for name in text.split(",")]
    builtins = [name for name in names if faults.attempt("", check_builtin, name)]
    if devices is not None and (why := nccl_refusal(devices)):
        for name in builtins:
            if BUILTINS[name] == BUILTINS[NCCL]:
                faults.add(f"--builtin {name}", why)
    if faults.problems or devices is None or named is None:
        raise InputError(faults.problems)
    campaign = Campaign(devices, devices.setup(constants), iters, warmup_iters, times, traced)
    if chosen:
        workloads = [chosen.workload]
        strategies = best_of(campaign, chosen, top)
    else:
        for strategy, wanted in named:
            reasons = refusals(strategy, devices, workloads, chained=times) if wanted else ()
            for reason in reasons:
                faults.add(strategy.text, reason)
        faults.raise_any()
        strategies = [
            s for s, wanted in named if wanted or can_run(s, devices, workloads, chained=times)
        ]
    if not strategies and not builtins:
        raise InputError("none of the strategies can run on these devices")
    groups = [campaign.cases(each, strategies, builtins, twice=True) for each in workloads]
    return campaign, [campaign.with_controls(group) for group in groups]


def _read_scenario(faults: Faults, topology: str | None, scenario: str | None) -> Scenario | None:
    if scenario is None:
        if topology is None:
            form = "a name, a file or e.g. switch:4; or give a --scenario"
            faults.add("TOPOLOGY is missing", form)
        return None
    found = faults.attempt("", load_scenario, scenario)
    for option, name in _OF_THE_SCENARIO.items():
        if is_typed(name):
            faults.add(option, "the --scenario says what is reduced and how")
    if found and found.setup.runtime.name not in (RUNTIME, BY_STRATEGY.name):
        runtime = found.setup.runtime.name
        faults.add(f"--scenario {scenario}", f"runtime {runtime!r}; devices have {RUNTIME}'s only")
    return found


def _check_step(
    faults: Faults, times: int, builtin: Sequence[str], route: str, *, traced: bool
) -> None:
    """What a step of several all-reduces, and a route without a timeline, cannot do."""
    for option, given in (("--builtin", builtin), ("--transfers", traced)):
        if given and times > 1:
            faults.add(option, "not with several all-reduces in one step (--chained)")
    if traced and route != ROUTES[0]:
        faults.add("--transfers", f"--route {route} keeps no timeline; {ROUTES[0]} does")


def _read_workloads(faults: Faults, datatype: str, minbytes: str, *sizes: Any) -> list[Workload]:
    dtype = faults.attempt("--datatype", dtypes.code, datatype)
    found = faults.attempt("", read_sizes, minbytes, *sizes)
    if dtype is None or not found:
        return []
    if found[0] < dtypes.SIZES[dtype]:
        faults.add(f"-b {minbytes}", f"less than one element of {dtypes.NAMES[dtype]}")
        return []
    return [tensor(nbytes, dtype) for nbytes in found]


def best_of(campaign: Campaign, scenario: Scenario, top: int) -> list[Strategy]:
    """The strategies of a scenario that are predicted fastest on these devices."""
    workload = scenario.workload
    every = scenario.strategies or candidates(campaign.devices.layout)
    times = campaign.chained
    known = [s for s in every if can_run(s, campaign.devices, [workload], chained=times)]
    return [known[i] for i in campaign.order(campaign.cases(workload, known))[:top]]
