"""The sizes of a table, as nccl-tests counts them."""

from __future__ import annotations

import math

from simreduce.errors import InputError
from simreduce.workload import MOST_BYTES

MOST_SIZES = 10_000
"""Rows of the longest table."""


def sizes(minimum: int, maximum: int, step: int, factor: float) -> list[int]:
    """nccl-tests' sizes in bytes: times `factor` if it is above 1, else plus `step`."""
    problems = []
    if minimum < 1 or maximum < minimum:
        problems.append(
            f"the sizes go from -b {minimum} to -e {maximum}: needs 1 <= minbytes <= maxbytes"
        )
    if maximum > MOST_BYTES:
        name = "-b" if maximum == minimum else "-e"
        problems.append(f"{name} {maximum}: more than 1 PiB")
    if factor and not 1 <= factor < math.inf:
        problems.append(f"-f {factor}: the factor must be above 1 (or give -i, a step)")
    elif factor <= 1 and step < 1:
        problems.append(
            f"-i {step}: the step must be at least 1 byte (or give -f, a factor above 1)"
        )
    if problems:
        raise InputError(problems)
    found = [minimum]
    while (
        following := max(int(found[-1] * factor), found[-1] + 1) if factor > 1 else found[-1] + step
    ) <= maximum:
        if len(found) == MOST_SIZES:
            raise InputError(
                f"more than {MOST_SIZES} sizes; raise the step (-i) or the factor (-f)"
            )
        found.append(following)
    return found
