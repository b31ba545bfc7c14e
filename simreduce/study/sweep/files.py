"""The TOML file of a sweep, and planning its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simreduce.errors import InputError
from simreduce.files.formats import (
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
from simreduce.files.textfiles import flatten, is_file, parse_toml, read_text
from simreduce.planners.algorithms import NAMES
from simreduce.study.sweep.cells import KINDS, REPLICAS
from simreduce.study.sweep.grid import (
    SAMPLES,
    SOBOL,
    Choices,
    Sample,
    check_design,
    combine,
    parse_values,
)
from simreduce.study.sweep.question import SweepQuestion, clashes, read_question
from simreduce.study.sweep.store import Planned
from simreduce.study.tune.bench import ROOTED

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
          " `[step]`, `replicas` for one with `[replicas]`, `jobs` for one with `[[job]]`, else"
          " `run`.",
          default_words="by the question"),
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

    question: SweepQuestion
    title: str
    over: Mapping[str, Choices]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    zipped: Sequence[Sequence[str]] = ()
    sample: Sample | None = None

    def plan(self) -> list[Planned]:
        """Every place of the sweep; what cannot be at a place is said there."""
        return [self._planned(each) for each in combine(self.over, self.zipped, self.sample)]

    def check(self, faults: Faults) -> None:
        """Note every unknown or repeated key, and every value that no place could have."""
        names = {f"over.{key}": key for key in self.over} | {
            f"set.{key}": key for key in self.fixed
        }
        values = {f"set.{key}": (value,) for key, value in self.fixed.items()}
        for key, each in self.over.items():
            values[f"over.{key}"] = each if isinstance(each, tuple) else (each.at(0.0),)
        attempts = {
            place: faults.attempt(place, self.question.key_of, n) for place, n in names.items()
        }
        keys = {place: key for place, key in attempts.items() if key is not None}
        collectives = [
            value
            for place, key in keys.items()
            for value in values[place]
            if key == "collective" and value in NAMES
        ]
        for place, key in keys.items():
            for value in values[place]:
                faults.attempt(place, self.question.check, key, value, collectives)
        if "root" in keys.values() and not {*collectives} & {*ROOTED}:
            faults.add("", f"root: only {' and '.join(ROOTED)} have one; give collective too")
        for problem in clashes(keys):
            faults.add("", problem)
        jittered = "jitter" in keys.values() or "jitter" in self.question.document.get(
            "disturb", {}
        )
        if "seed" in keys.values() and not jittered:
            faults.add(
                "",
                "seed: only jitter draws from it; give jitter too"
                f"{', or replicas.seed' if self.question.kind == REPLICAS else ''}",
            )

    def _planned(self, settings: Mapping[str, Any]) -> Planned:
        try:
            return Planned(settings, self.question.cell({**self.fixed, **settings}))
        except InputError as error:
            return Planned(settings, None, "; ".join(error.problems))

    @property
    def document(self) -> dict[str, Any]:
        """The form that databases keep, as JSON values."""
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
        if path.suffix != ".toml" or not is_file(text):
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
    """The sweep of the file `text`, or of a scenario or machine.

    What is given besides is added, or replaces what the file says. InputError lists every fault.
    """
    values: dict[str, Any] = {"over": {}, "set": {}, "zip": [], "sample": None, "title": None}
    name, asked = text, text
    faults = Faults()
    if is_sweep(text):
        faults = Faults(text)
        table = parse_toml(text, read_text(Path(text), InputError), InputError)
        values = dict(SWEEP.read(table, faults))
        asked, name = values["question"] or "", Path(text).stem
        kind = kind or values["kind"]
        near = Path(text).parent / asked
        asked = str(near) if asked.endswith(".toml") and is_file(str(near)) else asked
        if values["sample"] and not sample:
            found = values["sample"]
            sample = Sample(found["by"], found["count"] or 1, found["seed"])
    question = faults.attempt("", read_question, asked, kind) if asked else None
    # What is given besides replaces what the file says of a key, whether it varies there or not.
    wanted = {k: v for k, v in flatten(values["over"] or {}).items() if k not in fixed} | dict(over)
    held = {k: v for k, v in flatten(values["set"] or {}).items() if k not in over} | dict(fixed)
    if not wanted and not faults.problems:
        place = "" if is_sweep(text) else f"{text}: "
        faults.add("", f"{place}nothing varies; give --over KEY=VALUES")
    own: dict[str, Choices] = {}
    unread: dict[str, Choices] = {}  # their lists have no length yet
    for key, given in wanted.items():
        own[key], problems = parse_values(key, given)
        for problem in problems:
            faults.add(f"over.{key}", problem)
            unread[key] = ()
    pairs = zipped or values["zip"] or ()
    for problem in check_design(own | unread, pairs, sample):
        faults.add("", problem)
    if question is None:
        raise InputError(faults.problems)
    found = Specification(question, values["title"] or name, own, held, pairs, sample)
    found.check(faults)
    faults.raise_any()
    return found
