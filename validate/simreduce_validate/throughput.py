"""Published throughput of a DGX-1 with P100 beside predicted training steps.

tensorflow.org, performance benchmarks (tests of May 2017): images/s on synthetic data, mean of 5
runs of 100 steps. Inception-v3 and ResNet keep their variables on the CPU (`parameter_server`),
AlexNet and VGG-16 on every GPU (`replicated` with NCCL).

    simreduce accuracy throughput               # the batch sizes of the main table
    simreduce accuracy throughput --batch-32 --model resnet50

Two things are fitted. The compute of one GPU makes a 1-GPU step, transfers included, as long as
published. For AlexNet and VGG-16, a constant cost of a step on several GPUs does so on 2 GPUs. The
calibration `dgx1p-tf2018` predicts the rest; it was fitted to other figures (`step_of_five`).

"+-" is the effect of the calibration's standard errors. Each constant is moved up and down by its
own error, and all is fitted again. The larger differences add in quadrature, which takes the
constants' errors for independent: the calibration has no covariance.

"Longer than 1 GPU" is published, and predicted as a bracket. At its near end, which is simulated,
every layer of the forward pass waits for its own variables. At its far end the pass waits for all
variables first. "Exposed" is the simulated step less its compute. A step of one GPU reads its
variables too, so the two differ.

About 4 ms of the published figures are noise: they go down to -3.8 ms (Inception-v3, batch 32).

ResNet-50 is published with 11 ms more on 2 GPUs, 8 on 4 and 3 on 8, although 8 GPUs transfer most.
The far end gives 8, 8 and 46 ms. For AlexNet and VGG-16, no constant fitted to 2 GPUs explains the
rest. The published exposure grows with the number of GPUs (9.6, 23, 58 ms of AlexNet), and a cost
of every step does not. As a rate of NCCL 1 it would be 2 GB/s a link, at which the rings of 4 and 8
GPUs, with more links, hide everything behind the backward pass. The work per GPU of the process
that launches all kernels would grow so; nothing here tests this conjecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import hypot

import click

from simreduce.app.cli import command
from simreduce.app.cli.reply import Progress
from simreduce.app.cli.terminal import show, wide_option
from simreduce.engine import Calibration
from simreduce.engine.setup import Setup
from simreduce.files.formats.syntax import Faults
from simreduce.files.tables import Table, columns
from simreduce.training import (
    StepJob,
    StepResult,
    method_for_mode,
    profile_from_seconds,
    simulate_step,
)
from simreduce.training.variable_update import Flags
from simreduce.workload.loader import load_model
from simreduce_validate.calibrating.constants import assemble

MACHINE, CALIBRATION = "dgx1p", "dgx1p-tf2018"
GPUS = (1, 2, 4, 8)
_COLUMNS = columns(
    "model|batch|GPUs|published|predicted||published|layer by layer|all first|exposed",
    left="model",
    units="|||images/s|images/s||longer (ms)|longer (ms)|longer (ms)|(ms)",
)
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
        """Seconds of a published step."""
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
class ThroughputPrediction:
    """One row: what was fitted, in seconds, and the step on each number of GPUs."""

    row: Throughput
    compute: float
    cost: float
    steps: Mapping[int, StepResult]

    def error(self, gpus: int) -> float:
        """The error of images/s: 0.01 is 1 % too many."""
        return self.steps[gpus].samples_per_second / self.row.images[GPUS.index(gpus)] - 1

    def exposed(self, gpus: int) -> float:
        """Seconds by which a predicted step is longer than that of one GPU."""
        return self.steps[gpus].seconds - self.steps[1].seconds

    def waiting(self, gpus: int) -> float:
        """The same if the forward pass waited for all variables.

        Reads go on as they do, and compute begins when the last is done. Compute is fitted to one
        GPU that waits so too, so the difference is in what is not compute.
        """
        cost = self.cost if gpus > 1 else 0.0
        return _outside(self.steps[gpus]) - _outside(self.steps[1]) + cost


def _outside(step: StepResult) -> float:
    """Seconds before the first layer, had it to wait for all reads, and after the last."""
    reads = max((bucket.finish for bucket in step.reads), default=0.0)
    return reads + step.seconds - step.update - max(span.end for span in step.spans)


def vary(row: Throughput) -> list[tuple[ThroughputPrediction, ThroughputPrediction]]:
    """Two predictions by constant: with it greater and less by its standard error."""
    calibration = _load_setup().calibration
    return [
        (predict(row, shift(calibration, name, 1)), predict(row, shift(calibration, name, -1)))
        for name in calibration.errors
    ]


def shift(calibration: Calibration, name: str, by: int) -> Calibration:
    """The calibration with `by` standard errors added to one constant."""
    table, _, path = name.partition(".")
    error = by * calibration.errors[name]
    if table == "dispatch":
        value = calibration.dispatch[path] + error
    else:
        link, figure = path.rsplit(".", 1)
        value = getattr(calibration.links[link], figure) + error
    return assemble(calibration, {name: value})


def predict(row: Throughput, calibration: Calibration | None = None) -> ThroughputPrediction:
    """Fit what may be fitted, predict the rest."""
    setup, model = _load_setup(), load_model(row.model)
    setup = setup.but(calibration=calibration)

    def step(gpus: int, compute: float, cost: float = 0.0) -> StepResult:
        ranks = setup.layout.subset(gpus)
        method = method_for_mode(row.mode[0], model.workload, ranks, row.mode[1])
        job = StepJob(model, profile_from_seconds(model, compute), row.batch)
        job = replace(job, update=cost if gpus > 1 else 0.0)
        return simulate_step(job, method, setup.but(part=ranks))

    compute = row.seconds(1)
    for _ in range(3):  # the transfers hidden hardly change: one pass leaves rounding
        compute += row.seconds(1) - step(1, compute).seconds
    cost = max(row.seconds(2) - step(2, compute).seconds, 0.0) if row.mode == NCCL else 0.0
    return ThroughputPrediction(
        row, compute, cost, {gpus: step(gpus, compute, cost) for gpus in GPUS}
    )


@cache
def _load_setup() -> Setup:
    return Setup(MACHINE, "tensorflow", CALIBRATION)


def report(rows: Sequence[Throughput]) -> list[str]:
    """A line for every cell of the published table, then the fitted seconds."""
    cells, notes = [], []
    with Progress("predicted {} of {} models") as show:
        for done, row in enumerate(rows):
            show(done, len(rows))
            found, varied = predict(row), vary(row)
            cells += [_cells(found, varied, gpus) for gpus in GPUS]
            cost = f", a step on several {found.cost * 1e3:.2f} ms" if found.cost else ""
            name = f"{row.model}, batch {row.batch}"
            notes.append(f"{name}: fitted compute {found.compute * 1e3:.2f} ms{cost}")
    return [*Table(_COLUMNS, tuple(cells)).lines(), *notes]


def spread(
    figure: Callable[[ThroughputPrediction], float],
    found: ThroughputPrediction,
    varied: Iterable[tuple[ThroughputPrediction, ThroughputPrediction]],
) -> float:
    """The effect of the standard errors: the larger one of each constant, in quadrature."""
    return hypot(*(max(abs(figure(each) - figure(found)) for each in both) for both in varied))


def _cells(
    found: ThroughputPrediction,
    varied: Sequence[tuple[ThroughputPrediction, ThroughputPrediction]],
    gpus: int,
) -> tuple[str, ...]:
    def cell(
        figure: Callable[[ThroughputPrediction], float], digits: int, scale: float = 1.0
    ) -> str:
        error = spread(figure, found, varied)
        return f"{figure(found) * scale:.{digits}f} +- {error * scale:.{digits}f}"

    row = found.row
    fitted = gpus == 1 or (gpus == 2 and row.mode == NCCL)
    return (
        row.model,
        str(row.batch),
        str(gpus),
        f"{row.images[GPUS.index(gpus)]:g}",
        cell(lambda each: each.steps[gpus].samples_per_second, 1),
        "(fitted)" if fitted else f"({found.error(gpus):+.1%})",
        f"{row.exposed(gpus) * 1e3:.2f}",
        cell(lambda each: each.exposed(gpus), 2, 1e3),
        cell(lambda each: each.waiting(gpus), 2, 1e3),
        f"{found.steps[gpus].exposed * 1e3:.2f}",
    )


@command(examples="simreduce accuracy throughput --model resnet50")
@click.option("--batch-32", is_flag=True, help="Show the table of batch size 32 instead.")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(sorted({row.model for row in PUBLISHED})),
    help="Show this model only. Repeatable.",
)
@wide_option
def throughput(faults: Faults, batch_32: bool, models: tuple[str, ...]) -> None:
    """Compare the published throughput of a DGX-1 with predictions."""
    faults.raise_any()
    rows = PUBLISHED_32 if batch_32 else PUBLISHED
    show("\n".join(report([row for row in rows if not models or row.model in models])))
