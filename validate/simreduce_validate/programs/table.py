"""The table of docs/how-to/export.md: targets, the programs asked, and what was compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from simreduce_validate.programs.answers import ANSWERS, ProgramAnswer, read_answers
from simreduce_validate.programs.asking import read_programs


def asked_of(answers: Mapping[str, ProgramAnswer]) -> dict[str, tuple[str, ...]]:
    """What `Framework.asked` says, by target: each program with version and date."""
    found = dict[str, tuple[str, ...]]()
    for answer in answers.values():
        for target in dict.fromkeys(case.target for case in answer.cases.values()):
            found[target] = (*found.get(target, ()), answer.words)
    return found


def table(folder: Path = ANSWERS) -> Iterator[str]:
    """The lines of the table, those asked first."""
    programs, unasked = read_programs()
    yield "| target | program and version | asked | what was compared |"
    yield "| --- | --- | --- | --- |"
    for name, answer in read_answers(folder).items():
        for target, compared in programs[name].targets.items():
            row = f"{answer.title} {answer.version} | {answer.asked} | {compared}"
            yield f"| `{target}` | {row} |"
    for target, reason in unasked.items():
        yield f"| `{target}` | none | | unasked: {reason} |"
