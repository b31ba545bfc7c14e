"""What is left of a choice when a node, a NIC or a switch fails, and until it is repaired.

The job starts again on what is left: NCCL searches the machine anew, a node that is gone takes no
samples, and every other GPU keeps its batch. Prices stay. Parts that links tell apart are
simulated, the first of each kind and `MOST` kinds at most; the worst stands for its class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from simreduce.study.capacity.choose import CapacityCandidate, Offer, offer
from simreduce.study.capacity.options import CapacityOption
from simreduce.study.capacity.question import CapacityQuestion
from simreduce.study.scenario import beside
from simreduce.topology import load_topology
from simreduce.topology.failing import distinct, members

MOST = 4
"""Kinds of parts of a class that are simulated."""

Simulate = Callable[[Sequence[CapacityOption]], Sequence[CapacityCandidate | str | None]]
"""The candidates of options; why a step cannot be simulated; None for what was stopped."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A class of parts, one of which fails.

    `part` is the worst that was tried, of `kinds` that differ and `parts` in all; "" where the
    machine has none. `left` is a part of the rate, 0 where the job cannot go on, for a `reason`.
    """

    fails: str
    part: str = ""
    parts: int = 0
    kinds: int = 0
    offer: Offer | None = None
    left: float = 0.0
    reason: str = ""

    @property
    def meets(self) -> bool:
        """Whether the target still holds."""
        return self.offer is not None and self.offer.meets


def failures(
    question: CapacityQuestion,
    option: CapacityOption,
    chosen: CapacityCandidate,
    simulate: Simulate,
) -> list[Failure]:
    """For each class that the question names, the worst failure. What was stopped is left out."""
    text = beside(Path(question.folder, "-"), str(option.scenario["topology"]))
    machine = load_topology(text)
    kinds = distinct(machine, question.fails)
    asked = [(kind, name) for kind, names in kinds.items() for name in names[:MOST]]
    without = [replace(option, scenario={**option.scenario, "fails": name}) for _, name in asked]
    replies = dict(zip(asked, simulate(without), strict=True))
    found = []
    for kind in question.fails:
        count = len(members(machine, kind))
        if not count:
            found.append(Failure(kind))
        tried = [
            _failure(question, Failure(kind, name, count, len(kinds[kind])), chosen, c)
            for (each, name), c in replies.items()
            if each == kind and c is not None
        ]
        found += sorted(tried, key=lambda each: each.left)[:1]
    return found


def _failure(
    question: CapacityQuestion,
    bare: Failure,
    chosen: CapacityCandidate,
    found: CapacityCandidate | str,
) -> Failure:
    """What a part leaves."""
    if isinstance(found, str):
        return replace(bare, reason=found.partition("; ")[0])  # not where the fault is written
    at = offer(found, question.prices, question.target)
    return replace(bare, offer=at, left=found.rate / chosen.rate if chosen.rate else 0.0)
