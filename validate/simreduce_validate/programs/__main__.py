"""Ask programs what they understand of exported files, and store it: `make ask-programs`.

    python -m simreduce_validate.programs --environments FOLDER [--newest] [PROGRAM]...

Without programs it asks all of `validate/programs/programs.toml`. Prints what each understood
otherwise than meant, and the rows of the table in docs/how-to/export.md. The date of an answer that
is still the same stays. Status 1 if a program was not asked, or understood something otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from simreduce.app.cli.reply import STOPPED, interruptible
from simreduce.errors import InputError, near_or_all
from simreduce.files import write_file
from simreduce_validate.programs.answers import (
    ANSWERS,
    CaseAnswer,
    ProgramAnswer,
    misses,
    read_answer,
    without_version,
    write_answer,
)
from simreduce_validate.programs.asking import AskedProgram, ask, prepare, read_programs
from simreduce_validate.programs.cases import cases_of
from simreduce_validate.programs.table import table


def _ask(program: AskedProgram, folder: Path, *, newest: bool) -> tuple[ProgramAnswer, list[str]]:
    """What a program said of all its cases, and what it understood otherwise."""
    place = prepare(program, folder, newest=newest)
    found, wrong, version = dict[str, CaseAnswer](), list[str](), ""
    for case in cases_of(program.name):
        made = case.make()
        try:
            version, understood = ask(program, place, case)
        except (InputError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise InputError(f"{case.name}: {error}") from None
        found[case.name] = CaseAnswer(case.target, without_version(made.files), understood)
        wrong += [f"{case.name}: {miss}" for miss in misses(made.meant, understood)]
    return ProgramAnswer(program.title, version, time.strftime("%Y-%m-%d"), found), wrong


def _store(path: Path, answer: ProgramAnswer) -> str:
    """Write an answer; one that is the same keeps its date."""
    old = read_answer(path) if path.exists() else None
    as_stored = json.loads(write_answer(answer))
    if old and as_stored == json.loads(write_answer(replace(old, asked=answer.asked))):
        return f"same as on {old.asked}"
    write_file(str(path), [write_answer(answer)])
    return "changed" if old else "new"


def _chosen(names: Sequence[str]) -> Iterator[AskedProgram]:
    programs, _ = read_programs()
    for name in names or programs:
        if name not in programs:
            raise InputError(f"{name}: no program{near_or_all(name, programs, '; one of ')}")
        yield programs[name]


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, store, and print what is understood otherwise."""
    parser = argparse.ArgumentParser(prog="simreduce_validate.programs", description=__doc__)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    parser.add_argument("--environments", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--answers", type=Path, default=ANSWERS, metavar="FOLDER")
    parser.add_argument("--newest", action="store_true")
    given = parser.parse_args(arguments)
    given.answers.mkdir(parents=True, exist_ok=True)
    failed = False
    for program in [*_chosen(given.programs)]:
        begin = time.monotonic()
        try:
            answer, wrong = _ask(program, given.environments, newest=given.newest)
            stored = _store(given.answers / f"{program.name}.json", answer)
            lines = [f"{answer.words}: {len(answer.cases)} cases, {stored}", *wrong]
        except InputError as error:
            wrong = lines = [f"not asked: {error}"]
        failed |= bool(wrong)
        took = f"{time.monotonic() - begin:.0f} s"
        print("\n  ".join([f"{program.name} ({took}): {lines[0]}", *lines[1:]]), flush=True)
    print("\n".join(["", *table(given.answers)]))
    return int(failed)


if __name__ == "__main__":
    try:
        with interruptible():
            sys.exit(main())
    except InputError as error:
        sys.exit(f"simreduce: {error}")
    except KeyboardInterrupt:
        sys.exit(STOPPED)
