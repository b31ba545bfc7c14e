"""The advice of `study.advice` as a record of documents, and in sentences, facts and lines.

A document's `advice` has a record for each framework, the one of the headline first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from simreduce import units
from simreduce.files.formats.documents import (
    FLAG,
    MICROSECONDS,
    TEXT,
    Key,
    Record,
    list_of,
    or_null,
)
from simreduce.files.tables import Column
from simreduce.report.blocks import Fact, Rows, Written
from simreduce.study.advice import Advised, runs_nccl
from simreduce.study.ties import lasting_us, moved_lines, took

ADVICE = Record(
    "advice",
    "What to do for a framework.",
    Key("framework", TEXT, 'As `simreduce export` takes it; "" without one.'),
    Key("title", TEXT, "As its makers write it.", column=Column("framework", left=True)),
    Key("change", FLAG, "Whether to change what runs today.", "changes"),
    Key("do", TEXT, "What to do, in its words.", column=Column("what to do", left=True)),
    Key("strategy", TEXT, "The strategy, the method before it, or the setting.", "option.name"),
    Key("time_us", MICROSECONDS, "The time with it.", "option.seconds",
        column=Column("time then", "(ms)")),
    Key("fits", FLAG, "Whether it fits the memory of a GPU, as far as that is known.",
        lambda found: not found.option.misfit),
    Key("today_fits", FLAG, "Whether what runs today does.",
        lambda found: found.today is None or not found.today.misfit),
    Key("today", TEXT, 'What runs today, in its words; "" if that was not simulated.',
        "today_words"),
    Key("today_strategy", or_null(TEXT), "The strategy of that.", "today.name"),
    Key("today_time_us", or_null(MICROSECONDS), "The time of that.", "today.seconds",
        column=Column("time today", "(ms)", missing="")),
    Key("fastest", TEXT, "The fastest that it has a setting for, in its words.", "fastest_words",
        column=Column("fastest of its settings", left=True)),
    Key("fastest_strategy", TEXT, "The strategy of that.", "fastest.name"),
    Key("fastest_time_us", MICROSECONDS, "The time of that.", "fastest.seconds",
        column=Column("time with it", "(ms)")),
    Key("reason", TEXT, 'Why the fastest is not what to do; "" if it is.'),
    Key("error_us", or_null(MICROSECONDS),
        "80 % of differences from today are within this of the predicted one: of what changes, or "
        "else of the fastest; null if that is not known.", "error"),
    Key("more", TEXT, 'What `simreduce tune` tries besides what this compares; "" for nothing.'),
)  # fmt: skip  # fmt: skip
ADVICE_KEY = Key(
    "advice", list_of(ADVICE),
    "What to do for each framework that could run it, that of the machine's time first.",
)  # fmt: skip


def advice_lines(advice: Iterable[Advised], what: str) -> list[str]:
    """The advice for the first framework, and a line for each of the others."""
    advice = [*advice]
    first, *others = [ADVICE.write(each, None) for each in advice]
    lines = [f"Recommended: {sentence(first, what)}"]
    lines += [f"  {text}" for text in moved_lines(advice[0].option.moved)]
    return [*lines, *(f"  {each['title']:17}  {sentence(each, '')}" for each in others)]


def more_lines(advice: Sequence[Advised]) -> list[str]:
    """Says that the first advice is of what was ranked, and what tries more."""
    return [f"  {_more(ADVICE.write(each, None))}" for each in advice[:1] if each.more]


def _more(found: Written) -> str:
    command = f"simreduce tune FILE --target {found['framework']}"
    return f"of the settings ranked here; `{command}` also tries {found['more']}"


def sentence(found: Written, what: str = "") -> str:
    """What to do, how long `what` takes then, and what it is worth.

    Where the fastest is not worth it, what it would save, and why that is not enough.
    """
    time = f"{what} takes {took_of(found)}" if what else took_of(found)
    time += "" if found["fits"] else ", and it needs more memory than a GPU has"
    if not found["change"]:
        text = f"{found['do']}: {time}."
        if found["fastest_strategy"] != found["strategy"]:
            gain = units.format_share(_gain(found))
            text += f" {opening(found['fastest'])} would save {gain}, {found['reason']}."
        return text
    return f"{found['do']}: {time}{_beside(found)}."


def opening(words: str) -> str:
    """The words as a sentence begins; what is typed keeps its case."""
    return words if "=" in words.partition(" ")[0] else f"{words[:1].upper()}{words[1:]}"


def _gain(found: Written) -> float:
    """The part of the time that the fastest would save."""
    return 1 - found["fastest_time_us"] / found["time_us"] if found["time_us"] else 0.0


def _beside(found: Written) -> str:
    """How much faster than today, if that is known."""
    today = found["today_time_us"]
    if today is None:
        return ""
    if not found["today_fits"]:
        return f"; {found['today']} need more memory than a GPU has"
    ratio = faster_than(lasting_us(found), today)
    return f", {ratio} {found['today']} ({units.format_duration(today * 1e-6)})"


def took_of(found: Written) -> str:
    """The time of a row in words, and what it becomes where starts are moved, if that tells."""
    moved = found.get("moved_us")
    return took(found["time_us"] * 1e-6, moved and moved * 1e-6)


def facts(
    found: Written, more: str, factor: float | None, sureness: tuple[str, str] | None = None
) -> Iterator[Fact]:
    """What to do, what it is worth, and how sure that is: the first cards of a page.

    The `sureness` is that of predictions within `factor`, unless it is given.
    """
    if found["more"]:
        more = f"{more} That is {_more(found)}."
    yield Fact("What should I do?", found["do"], more)
    yield Fact("What is it worth?", *_worth(found))
    answer, why = sureness or sure(factor if runs_nccl(found["strategy"]) else None)
    if found["error_us"]:
        error = units.format_duration(found["error_us"] * 1e-6)
        why = f"{why} The difference from today is off by less than {error} with 80%."
    yield Fact("How sure is that?", answer, why)


def _worth(found: Written) -> tuple[str, str]:
    """How much faster it is than what runs today, in a few words and a sentence."""
    from simreduce.study.scenario import WORTH  # noqa: PLC0415 - `bench` does without scenarios

    if found["today_time_us"] is None:
        return "not compared", "What runs today was not simulated."
    if not found["today_fits"]:
        return "it fits", f"{found['today']} need more memory than a GPU has."
    if found["change"]:
        now = f"Today: {found['today']}, {units.format_duration(found['today_time_us'] * 1e-6)}."
        return faster(lasting_us(found), found["today_time_us"]), now
    if found["fastest_strategy"] == found["strategy"]:
        return "it is the fastest", "Nothing that was tried takes less."
    gain = units.format_share(_gain(found))
    small = _gain(found) < WORTH
    answer = "nothing to gain" if small else f"perhaps {gain}, not surely"
    return answer, f"{opening(found['fastest'])} would save {gain}, {found['reason']}."


def sure(factor: float | None) -> tuple[str, str]:
    """How sure predictions are, in a few words and a sentence."""
    if factor is None:
        return "not known", "There are no published timings to compare these predictions with."
    return (
        f"within a factor of {factor:.2f}",
        "80% of published times are that near to predictions.",
    )


def caution(factor: float | None, calibration: str, what: str = "times") -> str:
    """How sure it is, in a sentence or two; `what` is predicted with that error."""
    if factor is None:
        return (
            "How sure: no published timings say how far off these predictions are. They rest on"
            f" the calibration {calibration}; measure before you spend money on them."
        )
    return f"How sure: 80% of measured {what} are within a factor of {factor:.2f} of predictions."


def mark(found: Written | None, name: str) -> int:
    """The colour of a bar: 1 for what to run, 2 for what runs today."""
    if found is None:
        return 0
    return 1 if name == found["strategy"] else 2 if name == found["today_strategy"] else 0


def frameworks_table(advice: Sequence[Written]) -> Rows:
    """A row for each framework."""
    return Rows("What to do with each framework", ADVICE.table(advice))


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
