"""Time that a cluster loses: to nodes that fail, and to the slowest worker of a step.

Failures of nodes are independent and exponential: N nodes of mean time M1 between failures fail
every M = M1 / N on average, and a failure of one stops all. The job writes a checkpoint every tau
seconds of progress, which takes delta; after a failure it starts again from the last one, which
takes R. A segment is repeated until no failure falls into it, and failures also fall into restarts
and checkpoints. The expected time of a segment is then (Daly 2006, A higher order estimate of the
optimum checkpoint interval for restart dumps, Future Generation Computer Systems 22, equation 20)

    M exp(R/M) (exp((tau + delta)/M) - 1)

and goodput is tau over that. Its best tau solves (1 - tau/M) exp((tau + delta)/M) = 1:

    tau = M (1 + W(-exp(-1 - delta/M)))

W is Lambert's function. To first order that is Young's sqrt(2 delta M) (Young 1974).

Not modelled of failures: nodes that run out (spares are there), work that is lost between a failure
and its detection (count it into the restart), failures that come in groups, checkpoints that
overlap with compute (count only the time that they stop the job).

The compute of a step waits for the slowest of n workers, whose times are independent draws from a
distribution. Only its shape counts: the step's own compute time is the mean. So compute takes
E[largest of n] / E[one] times as long, which `Distribution.order_statistic` gives.

Not modelled of stragglers: communication that a slow worker's wait would hide, and workers that are
slow for many steps (that is the `--slow` of a simulation).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simreduce.files.formats import Faults, Field, FieldValues, Format, choice, inside
from simreduce.study.capacity.quantities import PERIOD, SOME_PERIOD
from simreduce.training.distributions import Distribution
from simreduce.training.replicas.compute import ComputeTime

GPU, NODE = "gpu", "node"


FAILURES = Format(
    "failures",
    "How often nodes fail and what a failure costs.",
    Field("mtbf", SOME_PERIOD, "Mean time between failures of one node.", required=True),
    Field("checkpoint", PERIOD, "Time that writing a checkpoint stops the job.", required=True),
    Field(
        "restart",
        PERIOD,
        "Time from a failure until the job computes again, detection included.",
        required=True,
    ),
    Field(
        "interval",
        SOME_PERIOD,
        "Time of progress between two checkpoints.",
        default_words="the best for each number of nodes",
    ),
)


def _has_mean(values: FieldValues, faults: Faults, path: str) -> None:
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
class Failures:
    """The seconds of failures and checkpoints.

    They are of a node between failures, of a checkpoint, of a restart, and between checkpoints
    (None: the best).
    """

    mtbf: float
    checkpoint: float
    restart: float
    interval: float | None = None

    def between(self, nodes: int) -> float:
        """Seconds between failures of so many nodes."""
        return self.mtbf / nodes

    def best_interval(self, nodes: int) -> float:
        """Seconds of progress between two checkpoints: those given, else the best."""
        return self.interval or best_interval(self.between(nodes), self.checkpoint)

    def goodput(self, nodes: int) -> float:
        """The part of the time in which so many nodes make progress, from 0 to 1."""
        interval = self.best_interval(nodes)
        return goodput(self.between(nodes), self.checkpoint, self.restart, interval)


def best_interval(mtbf: float, checkpoint: float) -> float:
    """Seconds of progress between checkpoints that give the highest goodput.

    0 where checkpoints cost nothing.
    """
    if checkpoint == 0.0:
        return 0.0
    from scipy.special import lambertw  # noqa: PLC0415 - takes a while to load

    ratio = checkpoint / mtbf
    if ratio < 1e-6:  # 1 + W would lose digits; this is its series (Corless et al. 1996, 4.22)
        p = math.sqrt(-2.0 * math.expm1(-ratio))
        return mtbf * p * (1 + p * (-1 / 3 + p * (11 / 72 + p * (-43 / 540 + p * 769 / 17280))))
    return mtbf * (1.0 + float(lambertw(-math.exp(-1.0 - ratio)).real))


def goodput(mtbf: float, checkpoint: float, restart: float, interval: float) -> float:
    """The part of the time that makes progress; see the head of this module.

    `mtbf` is that of all nodes together.
    """
    again = restart / mtbf
    segment = (interval + checkpoint) / mtbf
    if again > 700.0 or segment > 700.0:  # beyond what exp can hold: no progress
        return 0.0
    if interval == 0.0:
        return math.exp(-again) if checkpoint == 0.0 else 0.0
    return interval / mtbf / (math.exp(again) * math.expm1(segment))


@dataclass(frozen=True, slots=True)
class Stragglers:
    """A distribution of compute times of each GPU or node."""

    compute: Distribution
    of: str = NODE

    def factor(self, nodes: int, devices: int) -> float:
        """Times as long as the mean that the slowest worker computes."""
        workers = nodes if self.of == NODE else devices
        return self.compute.order_statistic(workers, workers) / self.compute.expected
