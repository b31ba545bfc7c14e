"""What runs today unless somebody says otherwise, and how sure a comparison with it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from simreduce.pages.kinds.measured import was_measured
from simreduce.pages.kinds.sections import us
from simreduce.pages.values import Fact

Document = Mapping[str, Any]


class Factors(NamedTuple):
    """80 % of predictions are within `single`, and 80 % of ratios of two within `ratio`; None for
    what is not known.
    """

    single: float | None
    ratio: float | None


_CHOOSERS = {
    "mirrored_strategy": "TensorFlow's MirroredStrategy",
    "select_cross_device_ops": "TensorFlow's choice of cross-device ops",
    "choose_the_best": "TensorFlow 1",
}
_FRAMEWORKS = {"nccl+ddp": "PyTorch's DDP", "nccl": "NCCL, a call for each gradient"}


@dataclass(frozen=True, slots=True)
class Default:
    """A row of a ranking that runs unless told otherwise, and who runs it."""

    who: str
    strategy: str
    time_us: float


def defaults(rows: Sequence[Document], time: str = "time_us") -> list[Default]:
    """Today's defaults among the rows, the one to compare with first."""
    found: list[Default] = []
    for name, who in _CHOOSERS.items():
        found += [Default(who, *_figures(row, time)) for row in rows if name in _chosen_by(row)]
    for strategy, who in _FRAMEWORKS.items():
        found += [Default(who, *_figures(row, time)) for row in rows if strategy in _names(row)]
    return found


def answer_row(document: Document) -> Document | None:
    """The row of a ranking that its page answers with: the recommended one; but what runs today
    where that is faster, which no setting of TensorFlow runs and other systems do.
    """
    rows: list[Document] = document["candidates"]
    best = next((row for row in rows if row["strategy"] == document["recommended"]), None)
    if best is None or was_measured(document):
        return best
    today = {each.strategy for each in defaults(rows)}
    others = [row for row in rows if row["strategy"] in today and not row["wrong"]]
    return min((best, *others), key=lambda row: row["time_us"])


def _figures(row: Document, time: str) -> tuple[str, float]:
    return row["strategy"], row[time]


def colour_words(marks: Sequence[int]) -> str:
    """What the colours of bars with these marks mean."""
    known = {1: "Blue: recommended", 2: "orange: what runs today"}
    words = "; ".join(words for mark, words in known.items() if mark in marks)
    return f"{words[0].upper()}{words[1:]}." if words else "Nothing is recommended."


def by_nccl(*strategies: str) -> bool:
    """Whether NCCL runs all of these: the factor is that of its predictions."""
    return all("nccl" in strategy for strategy in strategies)


def _chosen_by(row: Document) -> list[str]:
    return [rule for each in (row, *_also(row)) for rule in each.get("chosen_by", ())]


def _names(row: Document) -> list[str]:
    """Its strategies; steps may name the method before."""
    names = [row["strategy"], *(each["strategy"] for each in _also(row))]
    return [name.removeprefix("ddp, ") for name in names]


def _also(row: Document) -> list[Document]:
    """Other names of the plan; those of steps are plain text."""
    return [
        each if isinstance(each, Mapping) else {"strategy": each} for each in row.get("also", ())
    ]


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


def advise(what: str, took: str, beside: str, today: str, *, apart: bool | None) -> str:
    """The answer in a sentence: do `what`, which takes so long beside what runs `today`. Where that
    is within the error of predictions, either will do.
    """
    if apart is False:
        words = f"Keep {today}, or {what[0].lower()}{what[1:]}"
        return f"{words}: {took}, {beside}; predictions cannot tell them apart."
    return f"{what}: {took}, {beside}."


def today_fact(strategy: str, time_us: float, today: Sequence[Default]) -> Fact:
    """What is recommended, beside what runs today: in every framework that was ranked."""
    question = "How much faster than today?"
    if not today:
        return Fact(question, "not compared", "No default of a framework was ranked.")
    first = today[0]
    if first.strategy == strategy:
        return Fact(question, "it is what runs today", f"{first.who}.")
    now = f"Today: {first.who}, {first.strategy}, {us(first.time_us)}."
    for other in today[1:]:
        if other.strategy not in (strategy, first.strategy):
            now += f" {other.who}: {us(other.time_us)}, so {faster(time_us, other.time_us)}."
    return Fact(question, faster(time_us, first.time_us), now)


def factors(document: Document, *strategies: str) -> Factors:
    """What a document knows of the errors of predictions for these strategies: NCCL's only."""
    if not by_nccl(*strategies):
        return Factors(None, None)
    return Factors(document.get("factor"), document.get("ratio_factor"))


def told_apart(best: float, other: float, ratio_factor: float | None) -> bool | None:
    """Whether two predictions differ by more than the error of their ratio; None if that is not
    known.
    """
    return None if ratio_factor is None else other > best * ratio_factor


def sure_words(
    factor: float | None, calibration: str, apart: bool | None, what: str = "times"
) -> str:
    """How sure an answer is, in a sentence or two; `what` is predicted with that error."""
    if factor is None:
        return (
            "How sure: no published timings say how far off these predictions are. They rest on "
            f"the calibration {calibration}; measure before you spend money on them."
        )
    within = f"How sure: 80% of measured {what} are within a factor of {factor:.2f} of predictions."
    if apart is None:
        return within
    if apart:
        return f"{within} The gap to today's default is larger than that error explains."
    return (
        f"{within} The gap to today's default is smaller than that error: measure both before you "
        "change anything."
    )


def sure_fact(factor: float | None, apart: bool | None) -> tuple[str, str]:
    """The same in a few words and a sentence."""
    if factor is None:
        return "not known", "There are no published timings to compare these predictions with."
    about = "80% of published times are that near to predictions."
    if apart is not None:
        about += f" The gap to today's default is {'larger' if apart else 'smaller'} than that."
    return f"within a factor of {factor:.2f}", about
