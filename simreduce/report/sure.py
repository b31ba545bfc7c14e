"""How sure predictions of NCCL are, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simreduce.setup import Setup


def nccl_sureness(setup: Setup, nbytes: int, collectives: Sequence[str] = ("all_reduce",)) -> str:
    """How far off NCCL's rows may be, for collectives of up to so many bytes; "" if that is not
    known.
    """
    found = [setup.interval(nbytes, 1.0, collective) for collective in collectives]
    ends = [each for each in found if each]
    if not ends:
        return ""
    low = math.floor(min(low for low, _ in ends) * 20) / 20
    high = math.ceil(max(high for _, high in ends) * 20) / 20
    return (
        f"nccl rows: with 80 % it takes {low:.2f} to {high:.2f} times as long (simreduce accuracy)"
    )
