"""Ask NCCL's library what is stored, and store it: `make ask-nccl`.

    python -m simreduce_validate.nccl_library --answers FOLDER [--nccl 2.32.3] [MACHINE]...

Without machines it asks of all in `questions`. With `--plugin SOURCES` it asks what NCCL's example
tuner plugin, built from a checkout of NCCL, makes of `tuner.csv` in the folder. Lines of other
machines in a version's file stay, and so does the date of an answer that is still the same. Status
1 if a machine could not be asked for.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from simreduce.app.cli.reply import STOPPED, interruptible
from simreduce.errors import InputError
from simreduce.files import write_file
from simreduce_validate.nccl_library.answers import LibraryAnswer, read_answers, write_answer
from simreduce_validate.nccl_library.asking import ask
from simreduce_validate.nccl_library.comparing import compare
from simreduce_validate.nccl_library.questions import questions
from simreduce_validate.nccl_library.tools import (
    VERSIONS,
    Tools,
    build_example,
    full_version,
    prepare,
)

_WITH_PLUGIN = ("dgx-h100", "dgx-h100x2")
"""Machines that are asked for with the example plugin."""
_RULED = tuple(1 << k for k in (10, 14, 18, 21, 24, 28, 30, 33))
"""Bytes of calls with it, from 1 KiB to 8 GiB."""


@contextmanager
def _stage(words: str) -> Iterator[None]:
    print(f"{words} ...", flush=True)
    yield


def _key(answer: LibraryAnswer) -> tuple[str, str]:
    return answer.machine, str(sorted(answer.settings.items()))


def store(folder: Path, answers: Sequence[LibraryAnswer]) -> int:
    """Put answers of one version into its file, and say how many are new or changed."""
    path = folder / f"{answers[0].version}.jsonl"
    old = {_key(answer): answer for answer in read_answers(path)} if path.exists() else {}
    new = {_key(answer): answer for answer in answers}
    same = {k for k in new if k in old and replace(new[k], asked=old[k].asked) == old[k]}
    kept = {**old, **{key: answer for key, answer in new.items() if key not in same}}
    write_file(str(path), (write_answer(answer) for _, answer in sorted(kept.items())))
    return len(new) - len(same)


def _summary(answer: LibraryAnswer) -> str:
    differing = Counter(found.kind for found in compare(answer).figures if not found.equal)
    return ", ".join(f"{count} {kind} differ" for kind, count in differing.items()) or "as we say"


def _ask_with_plugin(
    machine: str, tools: Tools, settings: Mapping[str, str], folder: Path, sources: Path
) -> LibraryAnswer:
    """An answer with the example plugin and the rules in a folder, by their names alone."""
    rules, built = folder / "tuner.csv", build_example(sources, tools)
    paths = {"NCCL_TUNER_PLUGIN": built, "NCCL_TUNER_CONFIG_FILE": rules}
    given = {**settings, **{key: str(path) for key, path in paths.items()}}
    found = ask(machine, tools, given, _RULED)
    return replace(found, settings={**settings, **{k: path.name for k, path in paths.items()}})


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask, store after every answer, and print how each compares with our predictions."""
    parser = argparse.ArgumentParser(prog="simreduce_validate.nccl_library", description=__doc__)
    parser.add_argument("machines", nargs="*", metavar="MACHINE")
    parser.add_argument("--nccl", default=",".join(VERSIONS), metavar="VERSION,...")
    parser.add_argument("--answers", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--tools", type=Path, metavar="FOLDER")
    parser.add_argument("--plugin", type=Path, metavar="SOURCES")
    given = parser.parse_args(arguments)
    given.answers.mkdir(parents=True, exist_ok=True)
    failed = False
    for version in map(full_version, given.nccl.split(",")):
        named = given.machines or (_WITH_PLUGIN if given.plugin else ())
        asked: list[tuple[str, Mapping[str, str]]] = [(name, {}) for name in named]
        tools = prepare(version, _stage, given.tools)
        for machine, settings in asked or questions(version):
            begin, words = time.monotonic(), [machine, *(f"{k}={v}" for k, v in settings.items())]
            try:
                if given.plugin:
                    more = given.answers, given.plugin
                    answer = _ask_with_plugin(machine, tools, settings, *more)
                else:
                    answer = ask(machine, tools, settings)
                text = "changed" if store(given.answers, [answer]) else "same"
                if not given.plugin:  # tests/planners/nccl/test_tuner.py compares these
                    text += f", {_summary(answer)}"
            except InputError as error:
                text, failed = f"not asked: {error}", True
            print(
                f"{version} {' '.join(words)}: {text}, {time.monotonic() - begin:.1f} s", flush=True
            )
    return int(failed)


if __name__ == "__main__":
    try:
        with interruptible():  # SIGTERM too ends nodes, and removes their files
            sys.exit(main())
    except InputError as error:
        sys.exit(f"simreduce: {error}")
    except KeyboardInterrupt:
        sys.exit(STOPPED)
