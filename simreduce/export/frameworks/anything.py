"""`any`: whatever any framework can be told, for `simreduce tune`."""

from __future__ import annotations

from simreduce.export.framework import METHODS, Framework
from simreduce.export.frameworks.horovod import thresholds
from simreduce.export.frameworks.pytorch import PYTORCH, buckets

_PACKS = (1, 2, 3, 4, 6, 8, 12, 16)

ANY = Framework(
    "any",
    "",
    default=lambda _: "nccl",
    packings=lambda workload: [
        *((f"+packs={count}", 0) for count in _PACKS), *buckets(workload), *thresholds(workload),
    ],
    half=True,
    by_plans=True,
    modes=True,
    methods=tuple(METHODS),
    knobs={
        **PYTORCH.knobs,
        "limit_all_gathers": (2, 3, 4, 0),
        "forward_prefetch": (0, 1, 2),
        "streams": (1, 2),
    },
)  # fmt: skip
