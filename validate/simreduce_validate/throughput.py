"""The published throughput of a DGX-1 with P100, against the training steps that simreduce predicts
for it.

tensorflow.org, performance benchmarks (tests of May 2017): images/s on synthetic data, mean of 5
runs of 100 steps. Inception-v3 and ResNet keep their variables on the CPU (`parameter_server`),
AlexNet and VGG-16 on every GPU (`replicated` with NCCL).

What a GPU computes is fitted to the 1-GPU column, and to nothing else: so that the step of one GPU,
transfers included, takes as long as published. For AlexNet and VGG-16 a second constant, a cost of
every step on more than one GPU, is fitted to the 2-GPU column. Everything else is predicted with
the calibration `dgx1p-tf2018`, which was fitted to other figures (`step_of_five`). What the
standard errors of its two constants come to stands behind "+-": each is moved by its own, up and
down, everything is fitted anew, and of each the larger difference is added in quadrature: a step
has kinks, where transfers begin not to be hidden. That is as if the constants' errors had nothing
to do with one another: the calibration has no covariance.

"Longer than 1 GPU" is what a step takes longer than that of one GPU: published, and predicted as a
bracket. Its near end is a forward pass in which every layer waits for its own variables, which is
what is simulated; its far end one that waits for all variables first. "Exposed" is what the
simulated step itself takes longer than its compute: one GPU reads its variables too, so that this
is not the same.

What the published column can tell is limited: below 0 there is nothing to predict, and it goes down
to -3.8 ms (Inception-v3, batch 32), so that about 4 ms of it are noise.

    python -m simreduce_validate.throughput               # the batch sizes of the main table
    python -m simreduce_validate.throughput --batch-32 --model resnet50

What is off. ResNet-50 on 2 GPUs is published with 11 ms more than on 1, on 4 with 8 and on 8 with
3: 8 GPUs have the most to transfer. A forward pass that waits for all variables would give 8, 8 and
46 ms: it meets 2 and 4 GPUs, and not 8. AlexNet and VGG-16: neither constant that the 2-GPU column
can fix explains the rest. A cost of every step does not grow, and the published exposure does, with
the number of GPUs (9.6, 23, 58 ms of AlexNet). As a rate of NCCL 1 it would be 2 GB/s a link, and
then the rings of 4 and 8 GPUs, which have more links, hide all behind the backward pass. Work per
GPU of the one process that launches all kernels and collectives would grow so; that this is the
cause is a conjecture, which nothing here tests.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import hypot

import simreduce as sr
from simreduce.engine import TENSORFLOW, Calibration
from simreduce.layouts import Layout
from simreduce.setup import Setup
from simreduce.topology import Topology
from simreduce.training import (
    StepJob,
    StepPrediction,
    method_for_mode,
    profile_from_seconds,
    simulate_step,
)
from simreduce.variable_update import Flags
from simreduce.workload import Model, load_model

MACHINE, CALIBRATION = "dgx1p", "dgx1p-tf2018"
GPUS = (1, 2, 4, 8)
SERVER, NCCL = (
    ("parameter_server", Flags(local_parameter_device="cpu")),
    ("replicated", Flags(all_reduce_spec="nccl")),
)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Images/s on 1, 2, 4 and 8 GPUs, and how the variables were kept."""

    model: str
    batch: int
    images: tuple[float, float, float, float]
    mode: tuple[str, Flags] = SERVER

    def seconds(self, gpus: int) -> float:
        """Of a published step."""
        return gpus * self.batch / self.images[GPUS.index(gpus)]

    def exposed(self, gpus: int) -> float:
        """Seconds by which a published step is longer than that of one GPU; below 0 where noise
        makes it shorter.
        """
        return self.seconds(gpus) - self.seconds(1)


PUBLISHED = (
    Throughput("inception3", 64, (142, 284, 569, 1131)),
    Throughput("resnet50", 64, (219, 422, 852, 1734)),
    Throughput("resnet152", 64, (91.8, 181, 356, 716)),
    Throughput("alexnet", 512, (2987, 5658, 10509, 17822), NCCL),
    Throughput("vgg16", 64, (154, 295, 584, 1081), NCCL),
)
"""The main table."""

PUBLISHED_32 = (
    Throughput("inception3", 32, (128, 259, 520, 995)),
    Throughput("resnet50", 32, (195, 368, 768, 1485)),
    Throughput("resnet152", 32, (82.7, 160, 317, 632)),
    Throughput("vgg16", 32, (144, 281, 549, 820), NCCL),
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one row: what was fitted, in seconds, and the step on each number of GPUs."""

    row: Throughput
    compute: float
    cost: float
    steps: Mapping[int, StepPrediction]

    def error(self, gpus: int) -> float:
        """Of images/s: 0.01 is 1 % too many."""
        return self.steps[gpus].images_per_second / self.row.images[GPUS.index(gpus)] - 1

    def exposed(self, gpus: int) -> float:
        """Seconds by which a predicted step is longer than that of one GPU."""
        return self.steps[gpus].seconds - self.steps[1].seconds

    def waiting(self, gpus: int) -> float:
        """The same, if the forward pass waited for all variables: reads go on as they do, and
        compute begins when the last is done. Compute is fitted to one GPU that waits so, too, and
        thus the difference is in what is not compute.
        """
        return (
            _outside(self.steps[gpus]) - _outside(self.steps[1]) + (self.cost if gpus > 1 else 0.0)
        )


def _outside(step: StepPrediction) -> float:
    """Seconds before the first layer, had it to wait for all reads, and after the last."""
    reads = max((bucket.finish for bucket in step.reads), default=0.0)
    return reads + step.seconds - step.update - max(span.end for span in step.spans)


def others(row: Throughput) -> list[tuple[Prediction, Prediction]]:
    """Two predictions for every constant that has a standard error: with it greater and less by
    that.
    """
    calibration = _machine()[2]
    return [
        (predict(row, one_off(calibration, name, 1)), predict(row, one_off(calibration, name, -1)))
        for name in calibration.errors
    ]


def one_off(calibration: Calibration, name: str, by: int) -> Calibration:
    """With so many standard errors of that constant added to it."""
    table, *path = name.split(".")
    error = by * calibration.errors[name]
    if table == "dispatch":
        dispatch = {**calibration.dispatch, path[0]: calibration.dispatch[path[0]] + error}
        return replace(calibration, dispatch=dispatch)
    link, figure = path
    before = calibration.links[link]
    changed = replace(before, **{figure: getattr(before, figure) + error})
    return replace(calibration, links={**calibration.links, link: changed})


def predict(row: Throughput, calibration: Calibration | None = None) -> Prediction:
    """Fit what may be fitted, predict the rest."""
    machine, shape, shipped = _machine()
    calibration = calibration or shipped
    model = load_model(row.model)

    def step(gpus: int, compute: float, cost: float = 0.0) -> StepPrediction:
        ranks = shape.subset(gpus)
        method = method_for_mode(row.mode[0], model.workload, ranks, row.mode[1])
        job = replace(_job(model, row.batch, compute), update=cost if gpus > 1 else 0.0)
        return simulate_step(job, method, Setup(machine, TENSORFLOW, calibration, part=ranks))

    compute = row.seconds(1)
    for _ in range(3):  # transfers hide ever the same: what is missing after one pass is rounding
        compute += row.seconds(1) - step(1, compute).seconds
    cost = max(row.seconds(2) - step(2, compute).seconds, 0.0) if row.mode == NCCL else 0.0
    return Prediction(row, compute, cost, {gpus: step(gpus, compute, cost) for gpus in GPUS})


@cache
def _machine() -> tuple[Topology, Layout, Calibration]:
    machine = sr.load_topology(MACHINE)
    return machine, sr.layout(machine), sr.load_calibration(CALIBRATION)


def _job(model: Model, batch: int, compute: float) -> StepJob:
    return StepJob(model, profile_from_seconds(model, compute), batch)


def report(rows: tuple[Throughput, ...]) -> Iterator[str]:
    """A line for every cell of the table."""
    yield f"{'':22}  {'images/s':^40}  {'longer than 1 GPU (ms)':^44}  {'exposed':>7}"
    yield (
        f"{'model':11}{'batch':>5}  {'GPUs':>4}  {'published':>9}  {'predicted':>29}  "
        f"{'published':>9}"
        f"  {'layer by layer':>15}  {'all first':>16}  {'(ms)':>7}"
    )
    for row in rows:
        found, moved = predict(row), others(row)
        for gpus in GPUS:
            yield _line(found, moved, gpus)
        cost = f", a step on several {found.cost * 1e3:.2f} ms" if found.cost else ""
        yield f"  fitted: compute {found.compute * 1e3:.2f} ms{cost}"


def spread(
    figure: Callable[[Prediction], float],
    found: Prediction,
    moved: Iterable[tuple[Prediction, Prediction]],
) -> float:
    """What the standard errors come to: of each constant the larger of both differences, in
    quadrature.
    """
    return hypot(*(max(abs(figure(each) - figure(found)) for each in both) for both in moved))


def _line(found: Prediction, moved: Sequence[tuple[Prediction, Prediction]], gpus: int) -> str:
    def cell(figure: Callable[[Prediction], float], digits: int, scale: float = 1.0) -> str:
        """With what the standard errors come to."""
        wide = spread(figure, found, moved)
        return f"{figure(found) * scale:.{digits}f} +- {wide * scale:.{digits}f}"

    row = found.row
    fitted = gpus == 1 or (gpus == 2 and row.mode == NCCL)
    images = cell(lambda each: each.steps[gpus].images_per_second, 1)
    return (
        f"{row.model:11}{row.batch:>5}  {gpus:>4}  {row.images[GPUS.index(gpus)]:>9g}"
        f"  {images:>18} {'(fitted)' if fitted else f'({found.error(gpus):+5.1%})':>10}  "
        f"{row.exposed(gpus) * 1e3:>9.2f}"
        f"  {cell(lambda each: each.exposed(gpus), 2, 1e3):>15}  "
        f"{cell(lambda each: each.waiting(gpus), 2, 1e3):>16}"
        f"  {found.steps[gpus].exposed * 1e3:>7.2f}"
    )


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--batch-32", action="store_true", help="the table of batch size 32 instead"
    )
    names = sorted({row.model for row in PUBLISHED})
    parser.add_argument(
        "--model", action="append", choices=names, help="this one only; may be repeated"
    )
    options = parser.parse_args()
    rows = PUBLISHED_32 if options.batch_32 else PUBLISHED
    for line in report(tuple(row for row in rows if row.model in (options.model or names))):
        print(line)


if __name__ == "__main__":
    main()
