"""Exports are those that real programs read, and mean what these understood.

`make ask-programs` asks them, and stores what they said in `tests/export/answers`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from simreduce_validate.programs.answers import (
    ANSWERS,
    ProgramAnswer,
    misses,
    read_answers,
    without_version,
    write_answer,
)
from simreduce_validate.programs.asking import SCRIPTS, AskedProgram, read_programs
from simreduce_validate.programs.cases import ExportCase, cases_of
from simreduce_validate.programs.table import asked_of, table

from simreduce.export.frameworks import FRAMEWORKS, LAUNCHERS, MESH_PROGRAMS, TARGETS

PROGRAMS, UNASKED = read_programs()
CASES = [case for name in PROGRAMS for case in cases_of(name)]
DOCS = Path(__file__).parents[2] / "docs" / "how-to" / "export.md"


@cache
def answers() -> dict[str, ProgramAnswer]:
    return read_answers()


def changed(case: ExportCase) -> list[str]:
    """What is no longer as a program was asked, or not as it understood it."""
    stored, made = answers()[case.program].cases[case.name], case.make()
    found = [*misses(made.meant, stored.understood)]
    if stored.target != case.target or stored.files != without_version(made.files):
        found.append("the files are others")
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.program}: {case.name}")
def test_the_export_is_what_the_program_read_and_means_what_it_understood(case):
    words = f"{case.name}: ask anew: make ask-programs PROGRAMS={case.program}"
    assert not changed(case), words


def test_a_changed_file_and_a_changed_meaning_are_seen():
    case = next(case for case in CASES if case.program == "jax")
    made = case.make()
    name, text = next(iter(made.files.items()))
    file = replace(case, make=lambda: replace(made, files={name: f"{text}#"}))
    meaning = replace(case, make=lambda: replace(made, meant={**made.meant, "a flag": 1}))

    assert changed(file) == ["the files are others"]
    assert changed(meaning) == ["a flag: 1 was meant, null understood"]


def test_every_stored_answer_is_of_a_case_as_the_program_writes_it():
    assert {path.name for path in ANSWERS.iterdir()} == {f"{name}.json" for name in PROGRAMS}
    for name, answer in answers().items():
        assert {*answer.cases} == {case.name for case in cases_of(name)}
        assert write_answer(answer) == (ANSWERS / f"{name}.json").read_text("utf-8")


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.name)
def test_a_program_was_asked_in_its_pinned_version_for_its_targets_twice(program: AskedProgram):
    pinned = any("==" in each for each in (*program.requirements, *program.alone))
    assert pinned or program.system or program.source.get("tag")
    assert (SCRIPTS / (program.script or f"{program.name}.py")).is_file()
    cases = [case.target for case in cases_of(program.name)]
    assert {*cases} == {*program.targets}
    assert all(cases.count(target) >= 2 for target in program.targets)


def test_each_target_was_asked_or_says_why_not_and_names_the_versions():
    asked = asked_of(answers())

    assert {*asked, *UNASKED} == {*TARGETS, *LAUNCHERS, *MESH_PROGRAMS}
    assert not {*asked} & {*UNASKED}
    assert {each.name: each.asked for each in FRAMEWORKS.values() if each.asked} == asked


def test_the_documentation_has_the_table():
    assert "\n".join(table()) in DOCS.read_text("utf-8")


def test_what_was_meant_but_is_not_understood_is_missed():
    assert [*misses({"a": (1, 2), "b": None}, {"a": [1, 2], "b": None, "c": 3})] == []
    assert len([*misses({"a": (1, 2), "b": None}, json.loads('{"a": [2, 1]}'))]) == 2
