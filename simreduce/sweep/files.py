"""The TOML file of a sweep, and planning its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simreduce.errors import InputError
from simreduce.formats import (
    ANYTHING,
    LINE,
    Faults,
    Field,
    Format,
    ListOf,
    MapOf,
    TableOf,
    choice,
    whole,
)
from simreduce.sweep.cells import KINDS
from simreduce.sweep.design import SAMPLES, SOBOL, Sample, combine
from simreduce.sweep.question import Question, read_question
from simreduce.sweep.store import Planned
from simreduce.sweep.values import Choices, parse_values
from simreduce.textfiles import flatten, parse_toml, read_text

SAMPLE = Format(
    "sample",
    "Some of the combinations instead of all.",
    Field("by", choice(SAMPLES, "sample"), "`random`, or `sobol`, which spreads evenly.", SOBOL),
    Field("count", whole(1, 10_000_000, "cells"), "How many.", required=True),
    Field("seed", whole(0, 2**63 - 1), "Where the sample starts.", 0),
)
SWEEP = Format(
    "sweep",
    "What to vary of a question.",
    Field("question", LINE, "A scenario, or a machine for one collective.", required=True),
    Field("title", LINE, "The title of reports.", default_words="the file's name"),
    Field("kind", choice(KINDS, "kind"), "`bench` for a machine; `step` for a scenario with"
          " `[step]`, else `run`.", default_words="by the question"),
    Field("over", MapOf(ANYTHING, key="KEY"), "Keys and their values: a list, or text such as"
          ' `"1..64*2"`.', required=True),
    Field("set", MapOf(ANYTHING, key="KEY"), "Keys that all cells have."),
    Field("zip", ListOf(ListOf(LINE, 2)), "Lists of keys whose values go side by side.",
          default_words="none: all combinations"),
    Field("sample", TableOf(SAMPLE), "Some of the combinations instead of all."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Specification:
    """A sweep before it is planned."""

    question: Question
    title: str
    over: Mapping[str, Choices]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    zipped: Sequence[Sequence[str]] = ()
    sample: Sample | None = None

    def plan(self) -> list[Planned]:
        """Every place of the sweep. InputError for keys that there are not, and for values that no
        place could have; what cannot be at some places is said there.
        """
        settings = combine(self.over, self.zipped, self.sample)
        self._check()
        return [self._planned(each) for each in settings]

    def _check(self) -> None:
        """InputError with the faults of every key, and of values that are wrong wherever."""
        faults = Faults()
        for key, values in (*self.over.items(), *((k, (v,)) for k, v in self.fixed.items())):
            for value in values if isinstance(values, tuple) else (values.at(0.0),):
                faults.attempt("", self.question.check, key, value)
        if faults.problems:  # an unknown key is one fault, whatever its values
            raise InputError(list(dict.fromkeys(faults.problems)))

    def _planned(self, settings: Mapping[str, Any]) -> Planned:
        try:
            return Planned(settings, self.question.cell({**self.fixed, **settings}))
        except InputError as error:
            return Planned(settings, None, "; ".join(error.problems))

    @property
    def document(self) -> dict[str, Any]:
        """What databases keep of it."""
        return {
            "question": self.question.name,
            "kind": self.question.kind,
            "title": self.title,
            "over": {key: _shown(values) for key, values in self.over.items()},
            "set": dict(self.fixed),
            "zip": [list(keys) for keys in self.zipped],
            "sample": self.sample and [self.sample.by, self.sample.count, self.sample.seed],
        }


def _shown(values: Choices) -> Any:
    if isinstance(values, tuple):
        return list(values)
    return f"{float(values.low)}..{float(values.high)}{values.unit}"


def is_sweep(text: str) -> bool:
    """Whether `text` is the file of a sweep."""
    path = Path(text)
    try:
        if path.suffix != ".toml" or not path.is_file():
            return False
        return "over" in parse_toml(text, read_text(path, InputError), InputError)
    except (InputError, OSError, ValueError):
        return False


def read_specification(
    text: str,
    over: Mapping[str, object],
    fixed: Mapping[str, object],
    zipped: Sequence[Sequence[str]] = (),
    sample: Sample | None = None,
    kind: str | None = None,
) -> Specification:
    """The sweep of the file `text`, or of a scenario or machine; what is given besides is added, or
    replaces what the file says. InputError lists every fault.
    """
    faults = Faults(text if is_sweep(text) else "")
    values: dict[str, Any] = {"over": {}, "set": {}, "zip": [], "sample": None, "title": None}
    name, asked = text, text
    if is_sweep(text):
        table = parse_toml(text, read_text(Path(text), InputError), InputError)
        values = dict(SWEEP.read(table, faults))
        asked, name = values["question"] or "", Path(text).stem
        kind = kind or values["kind"]
        near = Path(text).parent / asked
        asked = str(near) if asked.endswith(".toml") and near.is_file() else asked
        if values["sample"] and not sample:
            found = values["sample"]
            sample = Sample(found["by"], found["count"] or 1, found["seed"])
    question = faults.attempt("", read_question, asked, kind) if asked else None
    wanted = flatten(values["over"] or {}) | dict(over)
    own = {key: faults.attempt(f"over.{key}", parse_values, key, v) for key, v in wanted.items()}
    if not wanted and not faults.problems:
        faults.add("", f"{text}: nothing varies; give --over KEY=VALUES")
    faults.raise_any()
    assert question is not None  # noqa: S101 - else there is a fault
    return Specification(
        question,
        values["title"] or name,
        {key: found for key, found in own.items() if found is not None},
        flatten(values["set"] or {}) | dict(fixed),
        zipped or values["zip"] or (),
        sample,
    )
