"""How much longer a step takes because its slowest worker is slower than the mean.

The compute of a step waits for the slowest of n workers, whose times are independent draws from a
distribution. Only its shape counts: the step's own compute time is the mean. So compute takes
E[largest of n] / E[one] times as long, which `Distribution.order_statistic` gives.

Not modelled: communication that a slow worker's wait would hide, and workers that are slow for
many steps (that is the `--slow` of a simulation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simreduce.formats import Faults, Field, Format, Values, choice, inside
from simreduce.training.distributions import Distribution
from simreduce.training.replicas.compute import ComputeTime

GPU, NODE = "gpu", "node"


def _has_mean(values: Values, faults: Faults, path: str) -> None:
    times: Distribution | None = values["compute"]
    if times is not None and not 0.0 < times.expected < math.inf:
        faults.add(inside(path, "compute"), "must have a mean above 0 s that is finite")


STRAGGLERS = Format(
    "stragglers",
    "How unequal compute times of workers are, step by step.",
    Field("compute", ComputeTime(), "The distribution of a worker's compute time; only its shape"
          " counts.", required=True),
    Field("of", choice((GPU, NODE), "worker"), "What draws a time: every GPU, or every node.",
          NODE),
    check=_has_mean,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stragglers:
    """A distribution of compute times of each GPU or node."""

    compute: Distribution
    of: str = NODE

    def factor(self, nodes: int, devices: int) -> float:
        """Times as long as the mean that the slowest worker computes."""
        workers = nodes if self.of == NODE else devices
        return self.compute.order_statistic(workers, workers) / self.compute.expected


def read_stragglers(values: Values | None) -> Stragglers | None:
    """The value of a `[stragglers]` table; None without one, or if it has a fault."""
    if values is None or values["compute"] is None:
        return None
    return Stragglers(values["compute"], values["of"])
