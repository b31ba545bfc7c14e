"""The advice of all reports: what to do, what it is worth, and how sure that is.

`recommend...` choose from the rows of a ranking or a search, with times in seconds. `advise...`
compare the choice with what runs today; their figures come from documents, with times in
microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from simreduce import units
from simreduce.errors import InputError
from simreduce.planners.strategy import Strategy, parse_strategy

if TYPE_CHECKING:
    from simreduce.study.scenario import Scenario

Row = Mapping[str, Any]

_CHOOSERS = {
    "mirrored_strategy": "TensorFlow's MirroredStrategy",
    "select_cross_device_ops": "TensorFlow's choice of cross-device ops",
    "choose_the_best": "TensorFlow 1",
}
FRAMEWORKS = {"nccl+ddp": "PyTorch's DDP", "nccl": "NCCL, a call for each gradient"}


R = TypeVar("R", bound=Any)
"""A row of a ranking or a search, whose modules know this one."""


def lasting(row: Any) -> float:
    """The time by which rows are compared: no tie in queues must decide.

    Where a time hangs on ties it is the longer of both, in seconds of rows and in microseconds of
    what documents say.
    """
    return float(max(row.seconds, row.moved or 0.0))


def lasting_us(row: Row) -> float:
    """As `lasting`, of a row of a document."""
    return float(max(row["time_us"], row.get("moved_us", 0.0)))


@dataclass(frozen=True, slots=True)
class Recommendation(Generic[R]):
    """The strategy to run, the `best`, and the ones that look faster.

    `foreign` is faster, but no setting of TensorFlow runs it. `bound` seems to be faster, but its
    time is only a lower bound; `tied` too, but only as long as copies tie in queues.
    """

    best: R
    foreign: R | None
    bound: R | None
    tied: R | None


def recommend(rows: Sequence[R]) -> Recommendation[R] | None:
    """Recommend the fastest proven strategy that tf_cnn_benchmarks or TensorFlow can run.

    If there is none, it is the fastest proven one; None if no plan is proven. A lower bound is not
    recommended before a time of NCCL that may be as short, and times that hang on ties in queues
    are compared by the longer of both. `rows` are fastest first.
    """
    proven = sorted((row for row in rows if not row.wrong), key=lasting)
    known = [row for row in proven if row.runnable] or proven
    best = _first_sure(known)
    if best is None:
        return None
    foreign = proven[0] if best.runnable and not proven[0].runnable else None
    tied = min(known, key=lambda row: float(row.seconds))
    return Recommendation(
        best,
        foreign,
        None if known[0] is best else known[0],
        tied if tied.seconds < min(best.seconds, known[0].seconds) else None,
    )


def recommend_for(rows: Iterable[R], has_setting: Callable[[R], object]) -> R | None:
    """Recommend the fastest proven strategy that a system has a setting for, as `recommend` does.

    It may be another name of a row.
    """
    names = (name for row in rows if not row.wrong for name in (row, *row.also))
    return _first_sure(sorted((name for name in names if has_setting(name)), key=lasting))


def _first_sure(rows: Sequence[R]) -> R | None:
    """The first row. If its time is only a lower bound, the first of NCCL that may be as fast."""
    if not rows or not rows[0].undispatched:
        return next(iter(rows), None)
    return next((row for row in rows if row.shortest <= lasting(rows[0])), rows[0])


def recommend_step(rows: Sequence[R]) -> R:
    """Recommend the fastest method that is proven right and fits; `rows` are fastest first.

    If none fits, it is the fastest that is right, and if none is right, the fastest.
    """
    right = [row for row in rows if not row.wrong] or rows
    return next((row for row in right if row.fits is not False), right[0])


def recommend_step_for(rows: Iterable[Any], has_setting: Callable[[str], object]) -> str | None:
    """Recommend the first method that sums right and has a setting, by any name of its step."""
    names = (name for row in rows if not row.wrong for name in row.names)
    return next(filter(has_setting, names), None)


def recommend_setting(rows: Sequence[R]) -> R:
    """Recommend the fastest setting; of those as fast, the one with fewest words.

    Times that hang on ties in queues are compared by the longer of both.
    """
    alike = [row for row in rows if row.misfit == rows[0].misfit]
    limit = min(map(lasting, alike)) * (1 + 1e-6)
    return min(
        (row for row in alike if lasting(row) <= limit), key=lambda row: row.setting.tie_break
    )


@dataclass(frozen=True, slots=True)
class Sureness:
    """How far off predictions of calls of these sizes are.

    With 80 % the time is `low` to `high` times the prediction, so within `factor`; the ratio of two
    whose errors know nothing of each other is within `ratio_factor`.
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

    def apart(self, fast: float, slow: float) -> bool:
        """Whether a prediction is faster than another by more than the error of their ratio."""
        return slow > fast * self.ratio_factor


def sureness_of(scenario: Scenario, sizes: Sequence[int]) -> Sureness | None:
    """How sure predictions of NCCL are where calls have these bytes.

    The band with the largest call decides, where most time is spent; None if nothing is known.
    """
    ends = scenario.setup.interval(max(sizes, default=0), 1.0)
    return Sureness(*ends) if ends else None


@dataclass(frozen=True, slots=True)
class Option:
    """Something to run, with its time in microseconds; `who` runs it by default.

    `moved_us` is its time where starts are moved, if that tells: options are compared by the longer
    of both, `lasting_us`.
    """

    name: str
    time_us: float
    who: str = ""
    moved_us: float | None = None

    @classmethod
    def of(cls, row: Row, name: str, who: str = "", time: str = "time_us") -> Option:
        """The option of a row of a document, whose key `time` has its time."""
        return cls(name, row[time], who, row.get("moved_us"))

    @property
    def lasting_us(self) -> float:
        """The time by which it is compared."""
        return max(self.time_us, self.moved_us or 0.0)

    @property
    def took(self) -> str:
        """Its time in words."""
        return took(self.time_us * 1e-6, self.moved_us and self.moved_us * 1e-6)


@dataclass(frozen=True, slots=True)
class Advice:
    """Run `best` rather than the first of `today`, which are the defaults of frameworks.

    80 % of predictions are within `factor`, None if that is not known. `apart` says whether the
    gap to what runs today is larger than the error of predictions, None if that is not known or
    `best` is what runs today.
    """

    best: Option
    today: tuple[Option, ...]
    factor: float | None
    apart: bool | None

    @property
    def changes(self) -> bool:
        """Whether it is known what runs today, and that is not the best."""
        return bool(self.today) and self.today[0].name != self.best.name

    def sentence(self, what: str, took: str, now: str = "") -> str:
        """The answer: do `what`, which takes so long.

        Where that is within the error of predictions of what runs today, called `now`, either will
        do.
        """
        if not self.today:
            return f"{what}: {took}."
        first = self.today[0]
        if not self.changes:
            return f"Keep what runs today, {self.best.name}: {took}."
        if (
            first.lasting_us < self.best.lasting_us
        ):  # measuring chose, or the faster one does not fit
            return f"{what}: {took}; {first.who} today ({first.name}) is predicted to take less."
        ratio = faster_than(self.best.lasting_us, first.lasting_us)
        beside = f"{took}, {ratio} {first.who} today ({first.name}, {first.took})"
        if self.apart is False:
            either = f"Keep {now or first.name}, or {what[0].lower()}{what[1:]}"
            return f"{either}: {beside}; predictions cannot tell them apart."
        return f"{what}: {beside}."

    def worth(self) -> tuple[str, str]:
        """How much faster the best is than what runs today, in a few words and a sentence."""
        if not self.today:
            return "not compared", "No default of a framework was ranked."
        first = self.today[0]
        if not self.changes:
            return "it is what runs today", f"{first.who}."
        now = f"Today: {first.who}, {first.name}, {first.took}."
        for other in self.today[1:]:
            if other.name not in (self.best.name, first.name):
                ratio = faster(self.best.lasting_us, other.lasting_us)
                now += f" {other.who}: {other.took}, so {ratio}."
        return faster(self.best.lasting_us, first.lasting_us), now

    def sure(self) -> tuple[str, str]:
        """How sure it is, in a few words and a sentence."""
        if self.factor is None:
            return "not known", "There are no published timings to compare these predictions with."
        about = "80% of published times are that near to predictions."
        if self.apart is not None:
            about += f" The gap to today's default is {'larger' if self.apart else 'smaller'}"
            about += " than that."
        return f"within a factor of {self.factor:.2f}", about

    def caution(self, calibration: str, what: str = "times") -> str:
        """How sure it is, in a sentence or two; `what` is predicted with that error."""
        if self.factor is None:
            return (
                "How sure: no published timings say how far off these predictions are. They rest on"
                f" the calibration {calibration}; measure before you spend money on them."
            )
        within = f"80% of measured {what} are within a factor of {self.factor:.2f} of predictions."
        gap = {
            None: "",
            True: " The gap to today's default is larger than that error explains.",
            False: " The gap to today's default is smaller than that error: measure both before "
            "you change anything.",
        }
        return f"How sure: {within}{gap[self.apart]}"

    def mark(self, name: str) -> int:
        """The colour of a bar: 1 for the best, 2 for what runs today."""
        now = self.today[0].name if self.today else ""
        return 1 if name == self.best.name else 2 if name == now else 0


def advise(
    best: Option, today: Sequence[Option], errors: Mapping[str, Any], fixed_us: float = 0.0
) -> Advice:
    """Return the advice by the `factor` and `ratio_factor` of `errors`, which are of NCCL's times.

    `fixed_us` of each time is no prediction.
    """
    factor = errors.get("factor") if runs_nccl(best.name) else None
    apart = None
    if today and today[0].name != best.name:
        apart = told_apart(best, today[0], errors, fixed_us)
    return Advice(best, tuple(today), factor, apart)


def advise_ranking(document: Row) -> tuple[Row, Advice] | None:
    """Return the row that reports answer a ranking with, and the advice; None if there is none."""
    best = answer_row(document)
    if best is None:
        return None
    option = Option.of(best, best["strategy"])
    return best, advise(option, defaults(document["candidates"]), document)


def advise_step(document: Row) -> Advice:
    """Return the advice of training steps; all but the exposed communication is an input."""
    best = Option(document["strategy"], document["step_time_us"])
    fixed = document["compute_us"] + document["update_us"] + document["launch_us"]
    return advise(best, defaults(document["candidates"], "step_time_us"), document, fixed)


def advise_setting(document: Row, system: str) -> Advice:
    """Return the advice of a search for the best setting of a system, against its default."""
    best, default = document["best"], document["default"]
    today = Option.of(default, default["setting"], f"{system}'s default")
    option = Option.of(best, best["setting"])
    apart = None if option.name == today.name else document["told_apart"]
    return Advice(option, (today,), document["factor"], apart)


def told_apart(
    best: Option, other: Option, errors: Mapping[str, Any], fixed_us: float = 0.0
) -> bool | None:
    """Whether two predictions differ by more than the error of their ratio.

    None if that is not known: it is known for NCCL's times.
    """
    ratio = errors.get("ratio_factor")
    if ratio is None or not runs_nccl(best.name, other.name):
        return None
    return bool(other.time_us - fixed_us > (best.time_us - fixed_us) * ratio)


def strategy_of(text: str) -> Strategy | None:
    """Return the strategy of a row; in a row of a step, the method precedes it.

    None for the strategy of a plugin that is not loaded here, and for modes.
    """
    try:
        return parse_strategy(text.rpartition(", ")[2])
    except InputError:
        return None


def runs_nccl(*texts: str) -> bool:
    """Whether NCCL reduces in all these strategies, so that the errors of its times are theirs."""
    found = [strategy_of(text) for text in texts]
    return all(each is not None and each.reduced_by_nccl for each in found)


def defaults(rows: Sequence[Row], time: str = "time_us") -> list[Option]:
    """Today's defaults among the rows of a ranking, the one to compare with first."""
    found = [
        Option.of(row, row["strategy"], who, time)
        for name, who in _CHOOSERS.items()
        for row in rows
        if any(name in each.get("chosen_by", ()) for each in (row, *_also(row)))
    ]
    return found + [
        Option.of(row, row["strategy"], who, time)
        for strategy, who in FRAMEWORKS.items()
        for row in rows
        if any(each["strategy"].removeprefix("ddp, ") == strategy for each in (row, *_also(row)))
    ]


def _also(row: Row) -> Iterator[Row]:
    """Yield rows for the other names of the plan; in steps, these are plain text."""
    for each in row.get("also", ()):
        yield each if isinstance(each, Mapping) else {"strategy": each}


def answer_row(document: Mapping[str, Any]) -> Row | None:
    """The row of a ranking that reports answer with: the recommended one.

    But it is what runs today where that is faster, which no setting of TensorFlow runs and other
    systems do.
    """
    rows: list[Row] = document["candidates"]
    best = next((row for row in rows if row["strategy"] == document["recommended"]), None)
    if best is None or document.get("measured"):
        return best
    today = {each.name for each in defaults(rows)}
    others = [row for row in rows if row["strategy"] in today and not row["wrong"]]
    return min((best, *others), key=lasting_us)


def faster_row(document: Row, best: Row) -> Row | None:
    """The proven row before the answer of a ranking that nothing of TensorFlow or today runs."""
    if document.get("measured"):
        return None
    first = next(row for row in document["candidates"] if not row["wrong"] or row is best)
    return first if first["time_us"] < best["time_us"] else None


def moved_lines(moved: float | None) -> list[str]:
    """Says what a time becomes, in seconds, where starts are moved, if that tells."""
    if moved is None:
        return []
    return [f"or {units.format_duration(moved)} if starts move by 0.1% (queues tie)"]


def took(seconds: float, moved: float | None = None) -> str:
    """A time in words, and what it becomes where starts are moved, if that tells."""
    return ", ".join([units.format_duration(seconds), *moved_lines(moved)])


def faster(best: float, other: float) -> str:
    """`1.17 times as fast`, `0.1% faster`, `as fast`, `0.1% slower`."""
    ratio = other / best if best else 1.0
    if abs(ratio - 1) >= 0.1:
        return f"{ratio:.2f} times as fast"
    if abs(ratio - 1) < 5e-4:
        return "as fast"
    return f"{ratio - 1:.1%} faster" if ratio > 1 else f"{1 - ratio:.1%} slower"


def faster_than(best: float, other: float) -> str:
    """`1.17 times as fast as`, `0.1% faster than`."""
    words = faster(best, other)
    return f"{words} as" if words.endswith("fast") else f"{words} than"
