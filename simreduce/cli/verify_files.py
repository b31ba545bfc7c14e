"""`simreduce verify FILE...`: algorithms of MSCCL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simreduce import units
from simreduce.cli.options import echo_json
from simreduce.cli.terminal import show
from simreduce.errors import InputError
from simreduce.formats import Faults
from simreduce.msccl import Algorithm, problems_of, read_algorithm
from simreduce.report.verified import files_document
from simreduce.textfiles import read_text


def verify_files(files: Sequence[str], *, as_json: bool) -> int:
    """Print what each file proves; exit status 1 if one is wrong."""
    faults = Faults()
    read = [(file, faults.attempt("", _read, file)) for file in files]
    faults.raise_any()
    found = [(file, made, problems_of(made)) for file, made in read if made]
    if as_json:
        echo_json(files_document(found))
    else:
        for file, made, problems in found:
            for problem in problems:
                show(f"WRONG {file}: {problem}")
            if not problems:
                show(f"{file}: {_words(made)}: proved")
    return int(any(problems for _, _, problems in found))


def _read(file: str) -> Algorithm:
    return read_algorithm(read_text(Path(file), InputError), file)


def _words(made: Algorithm) -> str:
    parts = (
        units.plural(len(made.gpus), "GPU"),
        units.plural(made.chunks, "chunk"),
        units.plural(made.channels, "channel"),
        units.plural(made.steps, "step"),
    )
    return f"{made.collective} of {', '.join(parts)}"
