"""How sure predictions of NCCL are, in words."""

from __future__ import annotations

import math

from simreduce.setup import Setup


def nccl_sureness(setup: Setup, nbytes: int) -> str:
    """How far off NCCL's rows may be, for collectives of up to so many bytes; "" if that is not
    known.
    """
    if not (ends := setup.interval(nbytes, 1.0)):
        return ""
    factor = math.ceil(ends[1] * 20) / 20
    return f"nccl rows: the time is within a factor of {factor:.2f} with 80 % (simreduce accuracy)"
