"""The common part of all searches: the aim, the default, the floors and the answer.

The answer of `tune`.

It has the best setting, how sure and how near the bound it is, and the settings that may be as
good.

Also the files to paste for it, and the settings to measure on devices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, takewhile
from math import inf
from typing import Any, Generic

from simreduce import dtypes
from simreduce.computing import group_by
from simreduce.computing.workers import Progress
from simreduce.engine import NCCL
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.export import export, why_not
from simreduce.export.framework import Choice
from simreduce.export.frameworks import TARGETS, USUAL
from simreduce.export.frameworks.nccl import ENVIRONMENT
from simreduce.export.frameworks.tensorflow import mode_files
from simreduce.planners.nccl.constants import Rule
from simreduce.planners.packing import Fusion
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.study.advice import Sureness, difference_error, recommend_setting, sureness_of
from simreduce.study.ranking import Ending, ask, choice_of, in_order, lasting
from simreduce.study.scenario import WORTH, Scenario, in_cycles
from simreduce.study.tune.rank import Candidate, StrategyRanking, evaluate as evaluate_strategy
from simreduce.study.tune.search.packings import OverlapEstimate, estimate_overlap, read_packing
from simreduce.study.tune.search.setting import (
    S,
    S_co,
    SearchOutcome,
    Setting,
    Working,
    evaluate,
    least_fit,
    reducing_scenario,
)
from simreduce.study.tune.search.targets import STEP, TIME, SizeRange, methods_of
from simreduce.training.calls import FIXED
from simreduce.training.sharded import DDP, ZERO1, ZERO2, wrap
from simreduce.training.sharded.simulation import running_sharded
from simreduce.training.simulation import MemoryFit
from simreduce.workload import Workload

NEAR = 1 + WORTH
"""Times within this factor of the best count as flat."""

_UNKNOWN = 1.5
"""The factor of predictions whose errors are not known."""


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting that was simulated, and its seconds.

    Of a step, `fit` compares what a GPU holds at least with its memory. `moved` are the seconds
    where starts are moved (`Simulator.find_moved`), if that was tried and tells.
    """

    setting: Setting
    seconds: float
    fit: MemoryFit | None = None
    moved: float | None = field(default=None, kw_only=True)

    @property
    def misfit(self) -> bool:
        """Whether a GPU has too little memory."""
        return self.fit is not None and self.fit.fits is False


@dataclass(frozen=True, slots=True)
class BucketTime:
    """A size of buckets in bytes and the seconds with it, everything else as in the best setting.

    The seconds are `exact`, or `estimated` between simulated calls, or else a lower bound.
    """

    nbytes: int
    seconds: float
    exact: bool = True
    estimated: bool = False

    @property
    def known(self) -> bool:
        """Whether the seconds are more than a bound."""
        return self.exact or self.estimated


@dataclass(frozen=True)
class Tuned(Ending):
    """The answer of one or several searches. Times are seconds of one all-reduce, or of a step.

    `rows` are the settings that were simulated, fastest first; settings that do not fit the memory
    of a GPU come after all others. `points` is the size of the space; `unfit` of them do not fit;
    `calls` counts the single calls that were simulated for bounds. No point of the space takes less
    than `bound`; no all-reduce of the machine less than `floor`. `base` is the part of a step that
    no setting changes: its compute.

    `stopped`: Ctrl-C ended the search, or a budget of time (`hurried`); `spent`: its effort did.
    `composed`: some times are sums of single calls, as plans are huge; `estimated`: times of
    settings without a row lie between simulated calls. `sizes` are all-reduces of small tensors.
    `outside`: what is gained with other numerics or another machine (`StepCase.outside`).
    `fits_with` is the first change with which the advised setting fits, if it does not
    (`steps.first_fit`).
    """

    scenario: Scenario
    target: str
    objective: str
    rows: tuple[SettingRow, ...]
    default: SettingRow
    points: int
    calls: int
    bound: float
    floor: float
    base: float = 0.0
    sureness: Sureness | None = None
    curve: tuple[BucketTime, ...] = ()
    stopped: bool = False
    composed: bool = False
    unfit: int = 0
    estimated: bool = False
    spent: bool = False
    chosen: SettingRow | None = None
    reason: str = ""
    sizes: tuple[SizeRange, ...] = ()
    outside: Mapping[str, float] = field(default_factory=dict)
    fits_with: str = ""

    @property
    def framework(self) -> str:
        """The target, if it is one framework."""
        return self.target if self.target != "any" else ""

    @property
    def advised(self) -> SettingRow:
        """The setting to use (`search.tune`): `reason` says why it is not the best."""
        return self.chosen or self.best

    @property
    def best(self) -> SettingRow:
        """The fastest setting, by `study.advice.recommend_setting`."""
        return recommend_setting(self.rows)

    @property
    def runtimes(self) -> list[str]:
        """The runtime of the advised setting."""
        setup, best = self.scenario.setup, self.advised.setting
        shards = best.sharding is not None
        own = running_sharded(setup, best.method) if shards else setup.running(best.parsed)
        return [own.runtime.name]

    @property
    def nominal(self) -> str:
        """Which times of rows and of small tensors rest on no measurement."""
        sized = [strategy for each in self.sizes for strategy in (each.strategy, each.default)]
        return self.scenario.setup.nominal([*sized, *(row.setting.label for row in self.rows)])

    @property
    def complete(self) -> bool:
        """Whether the best is proven to be the best of the space."""
        return not self.stopped and self.bound >= self.best.seconds * (1 - 1e-6)

    @property
    def speedup(self) -> float:
        """How many times as fast as the default the best is; where times hang on ties, by the
        longer of both.
        """
        return lasting(self.default) / lasting(self.best) if self.best.seconds else 1.0

    def apart(self, row: SettingRow) -> bool | None:
        """Whether the best is surely faster than another setting.

        False where errors, or where ticks fall, may well turn them round; None if the errors are
        not known.
        """
        if self.sureness is not None and self.by_tick(row):
            return False
        error = self.error(row)
        return None if error is None else row.seconds - self.best.seconds > error

    def error(self, row: SettingRow, best: SettingRow | None = None) -> float | None:
        """Seconds within which a setting's difference from the best is with 80 %, if known."""
        if self.sureness is None:
            return None
        return difference_error(self.scenario.setup, best or self.best, row, self.hanging_on)

    def hanging_on(self, row: SettingRow) -> list[NcclCall] | None:
        """The calls of NCCL that the time of a setting hangs on; None if others move bytes.

        Sharded methods wait for all of theirs at most.
        """
        setting, strategy, step = row.setting, row.setting.parsed, self.scenario.step
        if strategy is None or not strategy.reduced_by_nccl:
            return None
        how, setup = strategy.nccl, setting.setup(self.scenario.setup)
        call = partial(setup.call, algorithm=how.algorithm, protocol=how.protocol)
        if setting.sharding is None or step is None:
            return self._overlap.calls(
                read_packing(
                    setting.strategy.removeprefix(strategy.spec), self._reducing.workload.gradients
                ),
                call,
                row.seconds,
            )
        listed = step.job.model.workload.gradients[0].dtype
        gather, reduce = (dtypes.SIZES[d] for d in setting.sharding.wire(listed))
        units = [u.elements for u in wrap(step.job.model, setting.sharding.units) if u.elements]
        gathered = 1 if setting.method in (ZERO1, ZERO2) else 2
        found = [call(size * gather, collective="all_gather") for size in units] * gathered
        return found + [call(size * reduce, collective="reduce_scatter") for size in units]

    def asked(self, setting: Setting) -> Scenario:
        """The scenario in which a setting was simulated."""
        return self._reducing if setting.sharding is None else self.scenario

    @cached_property
    def _reducing(self) -> Scenario:
        is_step = self.objective == STEP
        return reducing_scenario(self.scenario) if is_step else self.scenario.without_step()

    @cached_property
    def _overlap(self) -> OverlapEstimate:
        return estimate_overlap(self._reducing.but(runtime=NCCL))

    def cycle(self, row: SettingRow) -> float:
        """Seconds between ticks of Horovod in the steps of a setting; 0 without ticks or an end.

        A step waits for its last tick, anything up to a cycle: that hangs on when gradients are
        ready, which nobody knows as exactly.
        """
        step, strategy = self.scenario.step, row.setting.parsed
        if self.objective != STEP or step is None or strategy is None:
            return 0.0
        own = in_cycles(step, self.target).cycle
        own = own if row.setting.cycle is None else row.setting.cycle
        return own if isinstance(strategy.packer, Fusion) and own != FIXED else 0.0

    def by_tick(self, row: SettingRow, best: SettingRow | None = None) -> float:
        """Seconds of the longer cycle, if a setting is slower than the best by less; else 0."""
        best = best or self.best
        cycle = max(self.cycle(row), self.cycle(best))
        return cycle if row.seconds - best.seconds < cycle else 0.0

    def worth_measuring(self, most: int = 3) -> tuple[SettingRow, ...]:
        """Settings that may be faster than the best, fastest first.

        Of settings that differ in bucket size only, the fastest. The default is always among them
        if it may be.
        """
        near = [row for row in self.rows if not row.misfit and self._near(row)]
        kinds = group_by(near, lambda row: _kind(row.setting))
        kinds.pop(_kind(self.best.setting), None)
        firsts = (rows[0] for rows in kinds.values())
        rest = [row for row in firsts if row.setting != self.default.setting][: most - 1]
        same = self.default.setting == self.best.setting or self.default.misfit
        return (*rest, *(() if same or not self._near(self.default) else (self.default,)))

    @property
    def by_method(self) -> Mapping[str, SettingRow]:
        """The fastest of each method or mode, fastest first."""
        ways = group_by(self.rows, lambda row: row.setting.mode or row.setting.method)
        return {way: rows[0] for way, rows in ways.items()}

    def _near(self, row: SettingRow) -> bool:
        """Whether a measurement may put a setting before the best."""
        apart = self.apart(row)
        return row.seconds < _UNKNOWN * self.best.seconds if apart is None else not apart

    @property
    def flat(self) -> tuple[int, int] | None:
        """The smallest and the largest bucket around the best whose times are `NEAR` it.

        Buckets are in bytes. None without a curve, or where a time that says so is not known.
        """
        if not self.curve:
            return None
        limit = self.best.seconds * NEAR
        at = min(range(len(self.curve)), key=lambda i: (not self.curve[i].known,
                                                        self.curve[i].seconds))  # fmt: skip
        below, above = (
            list(takewhile(lambda place: place.seconds <= limit, some))
            for some in (self.curve[at::-1], self.curve[at:])
        )
        known = all(place.known for place in (*below, *above))
        return (below[-1].nbytes, above[-1].nbytes) if known else None


def _kind(setting: Setting) -> tuple[object, ...]:
    """The key of settings that differ in the number of bytes only."""
    if (strategy := setting.parsed) is None:
        return setting.mode, setting.device
    return (
        strategy.spec,
        type(strategy.packer),
        tuple(word for word in strategy.packing.split(",") if word in ("view", "fp16")),
        setting.rules,
        setting.channels,
        setting.cycle,
        setting.order,
        setting.method,
    )


def join(before: Tuned, after: Tuned) -> Tuned:
    """One answer of two searches of different settings, one after the other."""
    rows = in_order((*before.rows, *after.rows))
    # The bound of settings that do not fit says nothing of the best one that does.
    return replace(
        before,
        scenario=after.scenario,
        rows=tuple(rows),
        points=before.points + after.points,
        calls=before.calls + after.calls,
        bound=min(inf if before.best.misfit and not rows[0].misfit else before.bound, after.bound),
        floor=min(before.floor, after.floor),
        base=min(before.base, after.base),
        curve=before.curve if rows[0] in before.rows else (),
        stopped=before.stopped or after.stopped,
        hurried=before.hurried or after.hurried,
        unfit=before.unfit + after.unfit,
        spent=before.spent or after.spent,
    )


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
        files |= nccl_files(found, setting.strategy, setting.rules, setting.channels)
    return files


def nccl_files(
    found: Tuned, strategy: str = _NCCL, rules: tuple[Rule, ...] = (), channels: int = 0
) -> Mapping[str, str]:
    """NCCL's own files for the packs of a strategy, by rules or by its own choice, with so many
    channels at least.
    """
    return export(_NCCL, _choice(found, Setting(strategy, rules, channels)))


def sizes_words(found: Tuned, setting: Setting) -> str:
    """Which calls NCCL's variables were chosen for, where rules are told by them; else ""."""
    env = files_of(found, setting)[ENVIRONMENT] if found.target == _NCCL and setting.rules else ""
    text = f"for calls of {_choice(found, setting).called}; others keep NCCL's own choice only with"
    return f"{text} its tuner plugin" if "\nNCCL_ALGO=" in env else ""


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
    tried = [
        evaluate_strategy(found.scenario, each) for each in islice(filter(can_run, looked_at), most)
    ]
    return StrategyRanking(found.scenario, tuple(c for c in tried if isinstance(c, Candidate)), ())


def _as_strategy(setting: Setting) -> str:
    """The strategy that says all of a setting; "" if none does."""
    unsaid = setting.order or setting.mode or setting.sharding or setting.channels
    return "" if unsaid else setting.as_strategy


def _choice(found: Tuned, setting: Setting) -> Choice:
    """The setting as exporters take it."""
    reduces = found.objective == STEP and setting.sharding is None
    own = reducing_scenario(found.scenario) if reduces else found.scenario
    own = replace(setting, rules=()).scenario(own)
    return replace(
        choice_of(ask(own, parse_strategy(setting.strategy)), own.step, setting.method),
        rules=setting.rules,
    )


EFFORT = 40_000_000
"""Ops of whole plans that are simulated before a search settles for what it has."""

WIDTH = 4
"""Settings that are simulated at a time, however many processes there are: so that the answer is
the same everywhere.
"""


@dataclass(frozen=True)
class Aim(Generic[S_co]):
    """A scenario, and the target whose settings are tried.

    If the scenario has a step, it is shortened; with `half`, half precision on the wire is tried
    too.
    """

    scenario: S_co
    target: str = USUAL
    half: bool = False
    workers: int = 1
    effort: int = EFFORT
    progress: Progress = lambda _done, _all: None

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The methods that are tried."""
        return methods_of(self.target, self.scenario) if self.scenario.step else (DDP,)

    @cached_property
    def misfit(self) -> bool:
        """Whether only methods that shard may fit the memory of a GPU."""
        if self.scenario.step is None or len(self.methods) == 1:
            return False
        return least_fit(self.scenario.step, self.scenario.setup, Setting("nccl")).fits is False

    @cached_property
    def reducing(self) -> S_co:
        """The scenario for DDP, where buffers may be settled before the step."""
        scenario = reducing_scenario(self.scenario)
        if scenario.step is None:
            return scenario
        return replace(scenario, step=in_cycles(scenario.step, self.target))

    @cached_property
    def overlap(self) -> OverlapEstimate:
        """Bounds of DDP by the times of its calls."""
        return estimate_overlap(self.reducing.but(runtime=NCCL))


class Search(ABC, Generic[S]):
    """A search of some settings for an aim, in the way of one system.

    It simulates `scenario`, that of the aim unless another is given, after the answer of other
    searches, `before`; `outcome` has what it found.
    """

    def __init__(
        self,
        aim: Aim[S],
        before: Tuned | None = None,
        scenario: S | None = None,
        default: Setting | None = None,
    ) -> None:
        self.aim, self.scenario = aim, aim.scenario if scenario is None else scenario
        self.before, self.default = before, default
        self.outcome: SearchOutcome[Any] = SearchOutcome()

    def first(self, do: Working[S]) -> None:
        """Simulate the default, if the search has one."""
        if self.default is not None:
            [tried] = do(evaluate, [self.default])
            self.outcome.seconds[self.default] = tried.seconds

    @abstractmethod
    def run(self, do: Working[S]) -> None:
        """Search, until an interrupt at most."""

    def curve(self, best: Setting, do: Working[S]) -> tuple[BucketTime, ...]:  # noqa: ARG002 - few have one
        """Times of other sizes of buckets than the best setting's; empty if there are none."""
        return ()

    @property
    def seconds(self) -> Mapping[Setting, float]:
        """Seconds by setting."""
        return self.outcome.seconds

    @property
    def floors(self) -> tuple[float, float]:
        """Two bounds in seconds.

        No algorithm takes less than the bytes, or half as many, need to cross the narrowest cut; no
        setting changes the compute of a step.
        """
        workload, setup, overlap = (
            self.scenario.workload,
            self.scenario.setup,
            self.aim.overlap,
        )
        small = Workload("one", (replace(workload.gradients[0], elements=setup.layout.n),))
        cut = setup.simulate(setup.compile("nccl", small)).floors.cut
        least = cut * workload.nbytes / small.nbytes / (2 if self.aim.half else 1)
        return max(least, overlap.compute) + overlap.update, overlap.alone

    def fit(self, setting: Setting) -> MemoryFit | None:
        """The memory that a setting needs at least; None of an all-reduce and of modes."""
        known = self.aim.scenario
        if known.step is None or setting.mode:
            return None
        return least_fit(known.step, known.setup, setting)

    def answer(self, *, stopped: bool = False) -> Tuned:
        """The answer of this search alone."""
        seconds, (floor, base) = self.seconds, self.floors
        found = [SettingRow(s, t, self.fit(s)) for s, t in seconds.items() if t < inf]
        rows = in_order(sorted(found, key=lambda row: row.setting.tie_break))
        last = rows[-1] if rows else SettingRow(Setting(""), inf)
        listed = self.outcome.excluded or not stopped  # else it was stopped before that
        bound = self.outcome.bound if listed else min(floor, self.outcome.best)
        return Tuned(
            scenario=self.scenario,
            target=self.aim.target,
            objective=STEP if self.aim.scenario.step else TIME,
            rows=tuple(rows),
            default=next((row for row in rows if row.setting == self.default), last),
            points=len(seconds),
            calls=0,
            bound=min([max(bound, floor) if stopped else bound, *(r.seconds for r in rows)]),
            floor=floor,
            base=base,
            sureness=sureness_of(
                self.scenario, [each.nbytes for each in self.scenario.workload.gradients]
            ),
            stopped=stopped,
        )
