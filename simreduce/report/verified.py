"""What `simreduce verify` proved, as documents."""

from __future__ import annotations

from collections.abc import Iterable

from simreduce import units
from simreduce.computing.lists import group_by
from simreduce.files.formats.documents import (
    ABSENT,
    COUNT,
    FLAG,
    ITSELF,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
)
from simreduce.study.tune.prove import Proof
from simreduce.version import __version__


def list_problems(proofs: Iterable[Proof]) -> list[str]:
    return [f"{title_of(p)} on {where(p)}: {problem}" for p in proofs for problem in p.problems]


def title_of(proof: Proof) -> str:
    return (
        proof.strategy
        if proof.collective == "all_reduce"
        else f"{proof.collective} {proof.strategy}"
    )


def where(proof: Proof) -> str:
    return units.plural(proof.ranks, "GPU") + (
        f" in {units.plural(proof.tasks, 'machine')}" if proof.tasks > 1 else ""
    )


def list_unproved(proofs: Iterable[Proof]) -> dict[str, str]:
    """By title, why nothing of it could be proved."""
    return {
        title: mine[-1].refused[-1]
        for title, mine in group_by(proofs, title_of).items()
        if not any(p.plans for p in mine)
    }


VERIFY = Document(
    "verify",
    "`simreduce verify --json`: whether plans sum right.",
    Key(
        "checked", COUNT, "Plans that were proved or found wrong.",
        lambda proofs: sum(p.plans for p in proofs),
    ),
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
                Key("refused", COUNT, "Cases that it refuses.", lambda proof: len(proof.refused)),
                Key("reason", TEXT, "Why, of the last one.", lambda proof: proof.refused[-1]),
            )
        ),
        "Strategies that refuse cases.",
        lambda proofs: [p for p in proofs if p.refused],
    ),
    Key(
        "unproved",
        list_of(
            Record(
                "unproved",
                "A strategy that takes none of its cases.",
                Key(
                    "strategy", TEXT, "The collective, unless it is an all-reduce; the strategy.",
                    "0",
                ),
                Key("reason", TEXT, "Why, of the last one.", "1"),
            )
        ),
        "Strategies of which nothing could be proved.",
        lambda proofs: list_unproved(proofs).items(),
    ),
    Key("problems", list_of(TEXT), "Everything that is wrong.", list_problems),
    Key(
        "complete", FLAG, "With `--all`: false if the command was stopped.", lambda _: ABSENT,
        optional=True,
    ),
)  # fmt: skip
"""Of proofs."""

FILES = Document(
    "verify-files",
    "`simreduce verify FILE --json`: whether algorithms of MSCCL leave the right sums.",
    Key("simreduce", TEXT, "The version of simreduce.", lambda _: __version__),
    Key(
        "files",
        list_of(
            Record(
                "file",
                "An algorithm.",
                Key("file", TEXT, "Its file.", "0"),
                Key("name", TEXT, "Its name.", "1.name"),
                Key("collective", TEXT, "What is done.", "1.collective"),
                Key("gpus", COUNT, "GPUs.", lambda file: len(file[1].gpus)),
                Key("chunks", COUNT, "Chunks of the tensor.", "1.chunks"),
                Key("channels", COUNT, "Channels.", "1.channels"),
                Key("steps", COUNT, "Steps of all thread blocks.", "1.steps"),
                Key("proved", FLAG, "Whether it is right.", lambda file: not file[2]),
                Key("problems", list_of(TEXT), "Everything that is wrong.", "2"),
            )
        ),
        "Every file.",
        ITSELF,
    ),
    command="verify",
)
"""Of files, each with its algorithm and its problems."""
