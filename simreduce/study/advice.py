"""The advice of all reports: what to do, what it is worth, and how sure that is.

For each framework that could run a job, `decide` compares the settings that were simulated with
what the framework does unless it is told. A change has to be worth it; else the default is kept.
Every output prints what is decided here: text, documents, pages, notebooks and exported files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from math import inf, isnan, sqrt
from typing import TYPE_CHECKING, Any, TypeVar

from simreduce import units
from simreduce.engine.calibrate.intervals import NcclCall
from simreduce.engine.setup import Setup
from simreduce.errors import InputError
from simreduce.planners.strategy import Strategy, parse_strategy
from simreduce.study.ranking import lasting

if TYPE_CHECKING:
    from simreduce.study.scenario import Scenario

_SAME = 1e-6
"""Part of a time below which a difference is none."""


R = TypeVar("R", bound=Any)
"""A row of a ranking or a search, whose modules know this one."""


@dataclass(frozen=True, slots=True)
class Option:
    """Something to run, with its seconds; `moved` are those where starts are moved, if that tells.

    A `misfit` needs more memory than a GPU has: `needed` bytes, if known. The time of an
    `undispatched` one is only a lower bound; `shortest` is the lower end of the interval of a time.
    Of options that are as good, the one with the least `simplicity` is run. `unsimulated` seconds
    of copies are not in its time.
    `row` is what it was made of.
    """

    name: str
    seconds: float
    moved: float | None = None
    misfit: bool = False
    needed: int = 0
    undispatched: bool = False
    shortest: float = inf
    simplicity: Any = 0
    unsimulated: float = 0.0
    row: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Advised:
    """What to do for a framework: run `option`, or keep `today`, its default.

    `fastest` is the fastest that it has a setting for; where that is not the `option`, `reason`
    says why. `do` is an imperative in the words of the framework, `today_words` and `fastest_words`
    name the default and the fastest in them. Without a framework (`title` is ""), it is the
    fastest of all. With 80 % the difference between the fastest, or what changes, and today's is
    within `error` seconds of the predicted one; None if that is not known. `tune` tries `more`.
    The `caveat` is what its time does not show.
    """

    framework: str
    title: str
    option: Option
    today: Option | None
    fastest: Option
    reason: str
    do: str
    today_words: str = ""
    fastest_words: str = ""
    error: float | None = None
    more: str = ""
    caveat: str = ""

    @property
    def changes(self) -> bool:
        """Whether something else is to run than today, as far as that is known."""
        return self.option is not self.today

    @property
    def state(self) -> str:
        """`cannot_run` if nothing that was tried fits, `change` what runs, or `keep` it."""
        return "cannot_run" if self.option.misfit else "change" if self.changes else "keep"


Doubt = Callable[[Option, Option], str]
"""Why the gain of an option over today's may be none; "" if it is one."""


def decide(
    options: Iterable[Option], today: Option | None, worth: float, doubt: Doubt
) -> tuple[Option, Option, str]:
    """Return the option to run, the fastest, and why that is not the one to run.

    It is today's unless another saves that part of its time, `worth`, and there is no `doubt` that
    it does. Of those, one that is within `worth` of the best, the simplest; where all these are in
    doubt, the simplest of the next. What is not simulated counts against an option. Where none
    fits a GPU, it is the one that needs the least memory.
    """
    given = [*options]
    fitting = [each for each in given if not each.misfit]
    if not fitting:
        nearest = min(
            given,
            key=lambda each: (each.needed, lasting(each), each is not today, each.simplicity),
        )
        return nearest, nearest, ""
    ranked = sorted(
        fitting,
        key=lambda each: (lasting(each), each is not today, each.simplicity),
    )
    fastest = ranked[0]
    if fastest.undispatched:  # its time is only a lower bound: one of NCCL may be as fast
        limit = lasting(fastest)
        fastest = next((each for each in ranked if each.shortest <= limit), fastest)
    best = min(map(_counted, [fastest, *(each for each in ranked if not each.undispatched)]))
    limit = best * (1 + worth)
    near = [
        each
        for each in ranked
        if _counted(each) <= limit and (each is fastest or not each.undispatched)
    ]
    if today is None or today.misfit:
        return min(near, key=lambda each: each.simplicity), fastest, ""
    if lasting(fastest) >= lasting(today) * (1 - _SAME):
        return today, today, ""
    enough = _counted(today) * (1 - worth)
    good = [
        each
        for each in ranked
        if (each is fastest or not each.undispatched)
        and (each is not today and _counted(each) <= enough)
    ]
    reason = too_little(worth)
    if fastest.unsimulated and lasting(fastest) <= enough:
        reason = (
            f"less than the {units.format_duration(fastest.unsimulated)} of copies into flat"
            " parameters, which are not simulated"
        )
    # Those near the best come first, then those as near to each other.
    good.sort(
        key=lambda e: (max(1.0, -((1 - _counted(e) / best) // (worth or _SAME))), e.simplicity)
    )
    for each in good:
        why = _LACKING if each.undispatched and not today.undispatched else doubt(each, today)
        if not why:
            return each, fastest, "" if each in near else reason
        if each is fastest:
            reason = why
    return today, fastest, reason


def too_little(worth: float) -> str:
    """The reason against what saves less than is worth a change."""
    return f"less than the {units.format_share(worth)} that a change has to save"


def _counted(option: Option) -> float:
    """Its time with what is not simulated."""
    return lasting(option) + option.unsimulated


_LACKING = "but its time lacks the dispatch of copies, which this calibration does not know"


def recommend_setting(rows: Sequence[R]) -> R:
    """Return the fastest setting; of those as fast, the one with fewest words.

    Times that hang on ties in queues are compared by the longer of both.
    """
    alike = [row for row in rows if row.misfit == rows[0].misfit]
    limit = min(map(lasting, alike)) * (1 + _SAME)
    return min(
        (row for row in alike if lasting(row) <= limit), key=lambda row: row.setting.tie_break
    )


@dataclass(frozen=True, slots=True)
class Sureness:
    """How far off predictions of calls of these sizes are.

    With 80 % the time is `low` to `high` times the prediction, so within `factor`; the ratio of two
    whose errors are not correlated is within `ratio_factor`.
    """

    low: float
    high: float

    @property
    def factor(self) -> float:
        """The factor of one prediction."""
        return max(1 / self.low, self.high)

    @property
    def ratio_factor(self) -> float:
        """The factor of a ratio of two predictions."""
        return float((self.high / self.low) ** sqrt(0.5))  # what both are off by cancels


def sureness_of(scenario: Scenario, sizes: Sequence[int]) -> Sureness | None:
    """How sure predictions of NCCL are where calls have these bytes.

    The band with the largest call decides, where most time is spent; None if nothing is known.
    """
    ends = scenario.setup.interval(max(sizes, default=0), 1.0)
    return Sureness(*ends) if ends else None


Calls = Callable[[R], "Sequence[NcclCall] | None"]
"""The calls of NCCL that the time of an option or row hangs on; None where others move bytes."""


def hanging(ready: Sequence[float], finish: Sequence[float]) -> list[int]:
    """The places of calls that the end of a step hangs on, from when they are ready and finish:
    the last one, and those that it queues behind.
    """
    order = sorted(range(len(finish)), key=finish.__getitem__, reverse=True)
    queued = takewhile(lambda pair: finish[pair[1]] > ready[pair[0]], pairwise(order))
    return [*order[:1], *(before for _, before in queued)]


def scaled(calls: Sequence[NcclCall], seconds: float) -> list[NcclCall]:
    """The calls of a time that is all theirs, by their shares: equal ones where those of some are
    not known.
    """
    whole = sum(call.seconds for call in calls) or 1.0
    if isnan(whole):
        return [call._replace(seconds=seconds / len(calls)) for call in calls]
    return [call._replace(seconds=seconds * call.seconds / whole) for call in calls]


def difference_error(setup: Setup, one: R, other: R, calls: Calls[R]) -> float | None:
    """Seconds within which the difference of two predictions is with 80 %.

    None if that is not known: it is known of NCCL's times.
    """
    mine, theirs = calls(one), calls(other)
    return None if mine is None or theirs is None else setup.difference_error(mine, theirs)


def strategy_of(text: str) -> Strategy | None:
    """Return the strategy of a row; in a row of a step, the method precedes it.

    None for the strategy of a plugin that is not loaded here, and for modes.
    """
    try:
        return parse_strategy(text.rpartition(", ")[2])
    except InputError:
        return None


def runs_nccl(text: str) -> bool:
    """Whether NCCL reduces in this strategy, so that the errors of its times are its own."""
    found = strategy_of(text)
    return found is not None and found.reduced_by_nccl
