"""What `simreduce verify` proved, as documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from simreduce import units
from simreduce.formats.documents import (
    COUNT,
    FLAG,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
)
from simreduce.msccl import Algorithm
from simreduce.tune.prove import Proof


def list_problems(proofs: Iterable[Proof]) -> list[str]:
    return [f"{title(p)} on {where(p)}: {problem}" for p in proofs for problem in p.problems]


def title(proof: Proof) -> str:
    return (
        proof.strategy
        if proof.collective == "all_reduce"
        else f"{proof.collective} {proof.strategy}"
    )


def where(proof: Proof) -> str:
    return units.plural(proof.ranks, "GPU") + (
        f" in {units.plural(proof.tasks, 'machine')}" if proof.tasks > 1 else ""
    )


def by_title(proofs: Iterable[Proof]) -> list[tuple[str, list[Proof]]]:
    """The proofs of every strategy of every collective."""
    found: dict[str, list[Proof]] = {}
    for proof in proofs:
        found.setdefault(title(proof), []).append(proof)
    return list(found.items())


def list_unproved(proofs: Iterable[Proof]) -> dict[str, str]:
    """By title, why nothing of it could be proved."""
    return {
        title: mine[-1].refused[-1]
        for title, mine in by_title(proofs)
        if not any(p.plans for p in mine)
    }


VERIFY = Document(
    "verify",
    "`simreduce verify --json`: whether plans sum right.",
    Key("checked", COUNT, "Plans that were proved or found wrong."),
    Key(
        "refused",
        list_of(
            Record(
                "refused",
                "A strategy that takes some of its cases only.",
                Key("collective", TEXT, "What is done."),
                Key("strategy", TEXT, "The strategy."),
                Key("ranks", COUNT, "GPUs."),
                Key("tasks", COUNT, "Machines."),
                Key("plans", COUNT, "Plans that were checked."),
                Key("refused", COUNT, "Cases that it refuses."),
                Key("reason", TEXT, "Why, of the last one."),
            )
        ),
        "Strategies that refuse cases.",
    ),
    Key(
        "unproved",
        list_of(
            Record(
                "unproved",
                "A strategy that takes none of its cases.",
                Key("strategy", TEXT, "The collective, unless it is an all-reduce; the strategy."),
                Key("reason", TEXT, "Why, of the last one."),
            )
        ),
        "Strategies of which nothing could be proved.",
    ),
    Key("problems", list_of(TEXT), "Everything that is wrong."),
    Key("complete", FLAG, "With `--all`: false if the command was stopped.", optional=True),
)


def proofs_document(proofs: Sequence[Proof]) -> dict[str, Any]:
    """The document of `verify --json`: `VERIFY`."""
    return {
        **VERIFY.head(),
        "checked": sum(p.plans for p in proofs),
        "refused": [
            {
                "collective": p.collective,
                "strategy": p.strategy,
                "ranks": p.ranks,
                "tasks": p.tasks,
                "plans": p.plans,
                "refused": len(p.refused),
                "reason": p.refused[-1],
            }
            for p in proofs
            if p.refused
        ],
        "unproved": [
            {"strategy": title, "reason": reason} for title, reason in list_unproved(proofs).items()
        ],
        "problems": list_problems(proofs),
    }


FILES = Document(
    "verify-files",
    "`simreduce verify FILE --json`: whether algorithms of MSCCL leave the right sums.",
    Key("simreduce", TEXT, "The version of simreduce."),
    Key(
        "files",
        list_of(
            Record(
                "file",
                "An algorithm.",
                Key("file", TEXT, "Its file."),
                Key("name", TEXT, "Its name."),
                Key("collective", TEXT, "What is done."),
                Key("gpus", COUNT, "GPUs."),
                Key("chunks", COUNT, "Chunks of the tensor."),
                Key("channels", COUNT, "Channels."),
                Key("steps", COUNT, "Steps of all thread blocks."),
                Key("proved", FLAG, "Whether it is right."),
                Key("problems", list_of(TEXT), "Everything that is wrong."),
            )
        ),
        "Every file.",
    ),
    command="verify",
)


def files_document(found: Iterable[tuple[str, Algorithm, Sequence[str]]]) -> dict[str, Any]:
    """The document of `verify FILE --json`: `FILES`. `found` has files, what they hold and its
    problems.
    """
    head = FILES.head()
    rows = [_file_keys(*each) for each in found]
    return {**head, "simreduce": head["version"], "files": rows}


def _file_keys(file: str, made: Algorithm, problems: Sequence[str]) -> dict[str, Any]:
    return {
        "file": file, "name": made.name, "collective": made.collective, "gpus": len(made.gpus),
        "chunks": made.chunks, "channels": made.channels, "steps": made.steps,
        "proved": not problems, "problems": list(problems),
    }  # fmt: skip
