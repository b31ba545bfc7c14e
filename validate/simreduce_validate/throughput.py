"""The published throughput of a DGX-1 with P100, against the training steps that simreduce predicts for it.

tensorflow.org, performance benchmarks (tests of May 2017): images/s on synthetic data, mean of 5 runs of 100 steps. Inception-v3
and ResNet keep their variables on the CPU (`parameter_server`), AlexNet and VGG-16 on every GPU (`replicated` with NCCL).

What a GPU computes is fitted to the 1-GPU column, and to nothing else: so that the step of one GPU, transfers included,
takes as long as published. For AlexNet and VGG-16 a second constant, a cost of every step on more than one GPU, is fitted to
the 2-GPU column. Everything else is predicted with the calibration `dgx1p-tf2018`, which was fitted to other figures
(`step_of_five`). Exposed is what a step takes longer than that of one GPU.

    python -m simreduce_validate.throughput               # the batch sizes of the main table
    python -m simreduce_validate.throughput --batch-32 --model resnet50

What is off, and why. ResNet-50 on 2 GPUs is published with 11 ms more than on 1, on 4 with 8 and on 8 with 3: that is no
transfer, which 8 GPUs would have most of. AlexNet and VGG-16: neither constant that the 2-GPU column can fix explains the
rest. A cost of every step does not grow, and the published exposure does, with the number of GPUs (9.6, 23, 58 ms of
AlexNet). As a rate of NCCL 1 it would be 2 GB/s a link, and then the rings of 4 and 8 GPUs, which have more links, hide
all behind the backward pass. What grows so is work per GPU of the one process that launches all kernels and collectives,
which is not modelled.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import simreduce as sr
from simreduce.engine import TENSORFLOW, Calibration
from simreduce.layouts import Layout
from simreduce.topology import Topology
from simreduce.training import Job, Step, by_mode, from_seconds, simulate_step
from simreduce.variable_update import Flags
from simreduce.workload import Model, load_model

MACHINE, CALIBRATION = "dgx1p", "dgx1p-tf2018"
GPUS = (1, 2, 4, 8)
SERVER, NCCL = (
    ("parameter_server", Flags(local_parameter_device="cpu")),
    ("replicated", Flags(all_reduce_spec="nccl")),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Images/s on 1, 2, 4 and 8 GPUs, and how the variables were kept."""

    model: str
    batch: int
    images: tuple[float, float, float, float]
    mode: tuple[str, Flags] = SERVER

    def seconds(self, gpus: int) -> float:
        """Of a published step."""
        return gpus * self.batch / self.images[GPUS.index(gpus)]

    def exposed(self, gpus: int) -> float:
        """Seconds by which a published step is longer than that of one GPU; below 0 where noise makes it shorter."""
        return self.seconds(gpus) - self.seconds(1)


PUBLISHED = (
    Row("inception3", 64, (142, 284, 569, 1131)),
    Row("resnet50", 64, (219, 422, 852, 1734)),
    Row("resnet152", 64, (91.8, 181, 356, 716)),
    Row("alexnet", 512, (2987, 5658, 10509, 17822), NCCL),
    Row("vgg16", 64, (154, 295, 584, 1081), NCCL),
)
"""The main table."""

PUBLISHED_32 = (
    Row("inception3", 32, (128, 259, 520, 995)),
    Row("resnet50", 32, (195, 368, 768, 1485)),
    Row("resnet152", 32, (82.7, 160, 317, 632)),
    Row("vgg16", 32, (144, 281, 549, 820), NCCL),
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one row: what was fitted, in seconds, and the step on each number of GPUs."""

    row: Row
    compute: float
    cost: float
    steps: Mapping[int, Step]

    def error(self, gpus: int) -> float:
        """Of images/s: 0.01 is 1 % too many."""
        return self.steps[gpus].images_per_second / self.row.images[GPUS.index(gpus)] - 1

    def exposed(self, gpus: int) -> float:
        """Seconds by which a predicted step is longer than that of one GPU."""
        return self.steps[gpus].seconds - self.steps[1].seconds


def predict(row: Row) -> Prediction:
    """Fit what may be fitted, predict the rest."""
    machine, shape, calibration = _machine()
    model = load_model(row.model)

    def step(gpus: int, compute: float, cost: float = 0.0) -> Step:
        ranks = shape.subset(gpus)
        method = by_mode(row.mode[0], model.workload, ranks, row.mode[1])
        job = replace(_job(model, row.batch, compute), update=cost if gpus > 1 else 0.0)
        return simulate_step(job, method, machine, ranks.ranks, TENSORFLOW, calibration)

    compute = row.seconds(1)
    for _ in range(3):  # transfers hide ever the same: what is missing after one pass is rounding
        compute += row.seconds(1) - step(1, compute).seconds
    cost = max(row.seconds(2) - step(2, compute).seconds, 0.0) if row.mode == NCCL else 0.0
    return Prediction(row, compute, cost, {gpus: step(gpus, compute, cost) for gpus in GPUS})


@cache
def _machine() -> tuple[Topology, Layout, Calibration]:
    machine = sr.load_topology(MACHINE)
    return machine, sr.layout(machine), sr.load_calibration(CALIBRATION)


def _job(model: Model, batch: int, compute: float) -> Job:
    return Job(model, from_seconds(model, compute), batch)


def report(rows: tuple[Row, ...]) -> Iterator[str]:
    """A line for every cell of the table."""
    head = f"{'model':11}{'batch':>5}  {'GPUs':>4}  {'published':>10}  {'predicted':>19}  {'exposed: published':>18}  {'predicted':>10}"
    yield head
    for row in rows:
        found = predict(row)
        for gpus in GPUS:
            published = row.images[GPUS.index(gpus)]
            fitted = (
                " (fitted)"
                if gpus == 1 or (gpus == 2 and row.mode == NCCL)
                else f"   ({found.error(gpus):+5.1%})"
            )
            cells = f"{found.steps[gpus].images_per_second:>10.1f}{fitted:>9}"
            exposed = f"{row.exposed(gpus) * 1e3:>15.2f} ms  {found.exposed(gpus) * 1e3:>7.2f} ms"
            yield f"{row.model:11}{row.batch:>5}  {gpus:>4}  {published:>10g}  {cells}  {exposed}"
        cost = f", a step on several {found.cost * 1e3:.2f} ms" if found.cost else ""
        yield f"  fitted: compute {found.compute * 1e3:.2f} ms{cost}"


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-32", action="store_true", help="the table of batch size 32 instead")
    names = sorted({row.model for row in PUBLISHED})
    parser.add_argument("--model", action="append", choices=names, help="this one only; may be repeated")
    asked = parser.parse_args()
    rows = PUBLISHED_32 if asked.batch_32 else PUBLISHED
    for line in report(tuple(row for row in rows if row.model in (asked.model or names))):
        print(line)


if __name__ == "__main__":
    main()
