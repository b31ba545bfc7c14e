"""What a program understood of the files that were exported for it, stored by program.

`tests/export/answers/PROGRAM.json` has the program's version, the date, and of each case the files
and what the program understood. Files have no version of simreduce in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simreduce.version import __version__

ANSWERS = Path(__file__).parents[3] / "tests" / "export" / "answers"


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """What a program understood of a case: the `files` that it read, and its own values by name."""

    target: str
    files: Mapping[str, str]
    understood: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """All that a program said: its title and version, the date, and its cases by name."""

    title: str
    version: str
    asked: str
    cases: Mapping[str, CaseAnswer]

    @property
    def words(self) -> str:
        """What `Framework.asked` says of it."""
        return f"{self.title} {self.version}, {self.asked}"


def without_version(files: Mapping[str, str]) -> dict[str, str]:
    """Files without simreduce's version in their titles."""
    return {n: text.replace(f"simreduce {__version__}:", "simreduce:") for n, text in files.items()}


def read_answer(path: Path) -> ProgramAnswer:
    """The stored answer of a program."""
    found = json.loads(path.read_text("utf-8"))
    cases = {name: CaseAnswer(**case) for name, case in found.pop("cases").items()}
    return ProgramAnswer(**found, cases=cases)


def write_answer(answer: ProgramAnswer) -> str:
    """The text of an answer's file."""
    return json.dumps(asdict(answer), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_answers(folder: Path = ANSWERS) -> dict[str, ProgramAnswer]:
    """All stored answers, by program."""
    return {path.stem: read_answer(path) for path in sorted(folder.glob("*.json"))}


def misses(meant: Mapping[str, Any], understood: Mapping[str, Any]) -> Iterator[str]:
    """What a program understood otherwise than it was meant, a line each."""
    # As JSON has it: a tuple is a list there.
    for key, value in json.loads(json.dumps(meant)).items():
        found = understood.get(key)
        if key not in understood or found != value:
            yield f"{key}: {json.dumps(value)} was meant, {json.dumps(found)} understood"
