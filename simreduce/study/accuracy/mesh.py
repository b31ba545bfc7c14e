"""Published steps of meshes beside predictions, each by constants fitted to other models.

`python -m simreduce.study.accuracy.mesh` fits the constants of `CONSTANTS` to all published steps
of a GPU, and again without each family of models, and writes them to `simreduce/files/published` of
a source tree (`steps-fitted.csv`), which `predict_steps` reads. Those of all families stand in
`simreduce/training/gpus.py` too. It takes about half an hour.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simreduce.engine.calibrate.fit import Fit, FreeConstant, fit_constants
from simreduce.engine.setup import Setup
from simreduce.files.published.steps import MODELS, SOURCES, PublishedStep, published_steps
from simreduce.study.accuracy.assess import median_and_p90
from simreduce.training.gpus import GPUS, Gpu
from simreduce.training.mesh.costs import Costs
from simreduce.training.mesh.job import (
    ALLTOALL,
    DISTRIBUTED,
    EXPERTS,
    GRAD_REDUCE,
    P2P,
    PARAM_GATHER,
    REPLICATED,
    TP_COMM,
    TP_GRAD,
    MeshJob,
    split_evenly,
)  # fmt: skip
from simreduce.training.mesh.simulate import simulate_mesh
from simreduce.training.mesh.ways import Mesh
from simreduce.training.recompute import FUSED, UNFUSED
from simreduce.workload import load_decoder

CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "A100": ("products", "memory", "host"),
    "H100": ("products", "products8", "attention"),
}
"""Those of a GPU that published steps determine, besides its spread."""
_SPREAD = "spread"
_FITTED = "steps-fitted.csv"
_EVERY = 5
"""Of the rows of one machine, which come from few measurements, a fit takes one in so many."""


class StepPoint(NamedTuple):
    """A published step, and the seconds that are predicted without its family of models."""

    step: PublishedStep
    predicted: float

    @property
    def error(self) -> float:
        """By what part the prediction is too long."""
        return self.predicted / self.step.seconds - 1.0


def job_of(step: PublishedStep, gpu: Gpu) -> MeshJob:
    """The job of a published step, with what its source leaves open as `SOURCES` says."""
    shape = load_decoder(MODELS.get(step.model, step.model)).shape
    each = step.tp * step.cp * step.pp
    mesh = Mesh(step.tp, step.cp, step.ep, step.gpus // each, step.pp, etp=step.ep > 1)
    split = split_evenly(shape.blocks, step.pp * step.virtual)
    source, overlap = step.source, {TP_GRAD}
    if source.recent:
        overlap = {GRAD_REDUCE, PARAM_GATHER, TP_COMM, P2P}
    elif source.plain:
        overlap = set()
    return MeshJob(
        shape, mesh, gpu, step.micro_batch,
        step.global_batch // (mesh.dp * step.micro_batch), step.sequence,
        "1f1b" if step.virtual == 1 else "interleaved", step.virtual, split or (),
        recompute=step.recompute, attention=FUSED if source.recent else UNFUSED,
        sequence_parallel=step.sequence_parallel,
        optimizer=REPLICATED if source.plain else DISTRIBUTED,
        overlap=frozenset(overlap | ({EXPERTS} if step.hidden else set())),
        bits=8 if step.precision == "fp8" else 16, reduced=2,
        dispatch=step.dispatch or ALLTOALL, graphs=frozenset(step.graphs),
    )  # fmt: skip


@dataclass
class MeshPredictor:
    """Predicts published steps; what they move is simulated once."""

    _costs: dict[tuple[str, int, Mesh], Costs] = field(default_factory=dict)
    _of_machine: dict[tuple[str, int], Costs] = field(default_factory=dict)

    def seconds(self, step: PublishedStep, gpu: Gpu) -> float:
        """The step of a GPU with these constants.

        Once the pipeline is full, each micro batch of 1F1B adds as much as the one before.
        """
        job = job_of(step, gpu)
        full = job.mesh.pp + 1
        if job.schedule != "1f1b" or job.micros <= full + 2:
            return self._simulate(step, job)
        one, two = (self._simulate(step, replace(job, micros=full + i)) for i in (0, 1))
        return two + (two - one) * (job.micros - full - 1)

    def _simulate(self, step: PublishedStep, job: MeshJob) -> float:
        costs = self.costs_of(step, job.mesh)
        return simulate_mesh(job, costs.setup, costs).seconds

    def costs_of(self, step: PublishedStep, mesh: Mesh) -> Costs:
        """What a mesh moves on the machine of a step."""
        machine = step.machine, step.gpus
        key = *machine, mesh
        if key not in self._costs:
            if machine not in self._of_machine:
                setup = Setup(step.machine, "nccl")
                if step.gpus < setup.layout.n:
                    setup = setup.but(part=setup.layout.only(range(step.gpus)))
                self._of_machine[machine] = Costs(setup, mesh)
            self._costs[key] = self._of_machine[machine].of_mesh(mesh)
        return self._costs[key]


@cache
def fitted_gpus() -> Mapping[tuple[str, str], Gpu]:
    """GPUs by name and by the family whose steps took no part in the fit ("" if all did)."""
    text = resources.files("simreduce.files.published").joinpath(_FITTED).read_text("utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        values = {name: float(row[name]) for name in (_SPREAD, *CONSTANTS[row["gpu"]])}
        found[row["gpu"], row["family"]] = with_constants(GPUS[row["gpu"]], values)
    return found


def with_constants(gpu: Gpu, values: Mapping[str, Any]) -> Gpu:
    """The GPU with other constants, by name."""
    return replace(gpu, **values)


def gpu_for(step: PublishedStep) -> Gpu:
    """The GPU by constants without the step's family; table 5 took part in no fit."""
    name = step.source.gpu
    return fitted_gpus().get((name, step.family), GPUS[name])


def predict_steps(steps: Sequence[PublishedStep]) -> Iterator[StepPoint]:
    """Every step, as it is predicted."""
    predictor = MeshPredictor()
    for step in steps:
        yield StepPoint(step, predictor.seconds(step, gpu_for(step)))


class StepGroup(NamedTuple):
    """Errors of the steps of a model in a set.

    `order` is the mean rank correlation of predicted and published times among meshes of equal
    GPUs and batch, and `regrets` are how much longer the mesh that is predicted fastest took than
    the fastest, by such `choices`; None without choices.
    """

    set: str
    model: str
    steps: int
    median: float
    p90: float
    bias: float
    choices: int
    order: float | None
    regret: float | None
    worst_regret: float | None


LEAST_CHOICES = 4
"""Meshes of equal model, GPUs and batch, below which nothing is chosen."""


def summarize_steps(points: Sequence[StepPoint]) -> list[StepGroup]:
    """By set, all models first, then model by model."""
    found = []
    for name in SOURCES:
        mine = [point for point in points if point.step.set == name]
        models = dict.fromkeys(point.step.model for point in mine)
        if len(models) > 1:
            found.append(_group(name, "all", mine))
        found += [_group(name, each, [p for p in mine if p.step.model == each]) for each in models]
    return found


def _group(name: str, model: str, points: Sequence[StepPoint]) -> StepGroup:
    errors = np.array([point.error for point in points])
    median, p90 = median_and_p90(errors)
    choices = [mine for mine in _choices(points) if len(mine) >= LEAST_CHOICES]
    orders, regrets = [_rank_correlation(c) for c in choices], [_regret(c) for c in choices]
    return StepGroup(
        name, model, len(points), median, p90, float(np.median(errors)), len(choices),
        float(np.mean(orders)) if orders else None,
        float(np.median(regrets)) if regrets else None, max(regrets, default=None),
    )  # fmt: skip


def _choices(points: Iterable[StepPoint]) -> Iterable[list[StepPoint]]:
    groups: defaultdict[object, list[StepPoint]] = defaultdict(list)
    for point in points:
        s = point.step
        groups[s.set, s.model, s.gpus, s.global_batch, s.precision].append(point)
    return groups.values()


def _rank_correlation(points: Sequence[StepPoint]) -> float:
    """Kendall's: pairs in the published order less those that are not, over all pairs."""
    pairs = [*combinations(points, 2)]
    right = sum((a.predicted < b.predicted) == (a.step.seconds < b.step.seconds) for a, b in pairs)
    return 2.0 * right / len(pairs) - 1.0


def _regret(points: Sequence[StepPoint]) -> float:
    chosen = min(points, key=lambda point: point.predicted)
    return chosen.step.seconds / min(point.step.seconds for point in points) - 1.0


class Scaling(NamedTuple):
    """How much longer a step takes on `gpus` than on `least` with the same batch on each GPU."""

    model: str
    precision: str
    least: int
    gpus: int
    published: float
    predicted: float


def scale_weakly(points: Iterable[StepPoint], least: int = 128) -> list[Scaling]:
    """The steps of each recipe on the most GPUs beside those on `least`."""
    found = []
    recipes: defaultdict[tuple[str, str], dict[int, StepPoint]] = defaultdict(dict)
    for point in points:
        if point.step.set == "dgx-cloud":
            recipes[point.step.model, point.step.precision][point.step.gpus] = point
    for recipe, mine in recipes.items():
        most = max(mine)
        if least in mine and most > least:
            one, many = mine[least], mine[most]
            published = many.step.seconds / one.step.seconds
            found.append(Scaling(*recipe, least, most, published, many.predicted / one.predicted))
    return found


class Tail(NamedTuple):
    """A recipe's step on `gpus`, from those on `few` and on `some` with the same batch on each GPU.

    `spread` is that of GPUs with which the slowest of them explains these two, 0 if it took no
    longer on more; `predicted` is the step by it, and `unchanged` that on `some`, in seconds.
    """

    model: str
    precision: str
    few: int
    some: int
    gpus: int
    spread: float
    published: float
    predicted: float
    unchanged: float

    @property
    def error(self) -> float:
        """By what part the prediction is too long."""
        return self.predicted / self.published - 1.0

    @property
    def error_unchanged(self) -> float:
        """By what part the step would be too long if it took as long as on `some`."""
        return self.unchanged / self.published - 1.0


def predict_tails(steps: Iterable[PublishedStep]) -> list[Tail]:
    """Each recipe's step on the most GPUs from those on the fewest and on the middle number."""
    found, one = [], replace(GPUS["H100"], spread=1.0)
    for recipe, mine in _recipes(steps).items():
        if len(mine) < 3:
            continue
        order = sorted(mine)
        few, some, many = order[0], order[(len(order) - 1) // 2], order[-1]
        low, high, most = (one.slowest(count) - 1.0 for count in (few, some, many))
        # t = mean (1 + spread z), whose two unknowns the two steps determine
        slope = max(0.0, (mine[some].seconds - mine[few].seconds) / (high - low))
        mean = mine[some].seconds - slope * high
        found.append(Tail(
            *recipe, few, some, many, slope / mean, mine[many].seconds, mean + slope * most,
            mine[some].seconds,
        ))  # fmt: skip
    return found


def _recipes(
    steps: Iterable[PublishedStep],
) -> Mapping[tuple[str, str], Mapping[int, PublishedStep]]:
    """The steps of recipes that were published on several numbers of GPUs, by that number."""
    found: defaultdict[tuple[str, str], dict[int, PublishedStep]] = defaultdict(dict)
    for step in steps:
        if step.set == "dgx-cloud":
            found[step.model, step.precision][step.gpus] = step
    return found


Predict = Callable[[PublishedStep, Gpu], float]


def fit_gpu(steps: Sequence[PublishedStep], start: Gpu, name: str, predict: Predict) -> Fit:
    """The constants of a GPU that fit these steps, with their standard errors."""

    def seconds(values: Mapping[str, float]) -> list[float]:
        gpu = with_constants(start, values)
        return [predict(step, gpu) for step in steps]

    constants = [
        FreeConstant(key, getattr(start, key), getattr(start, key) / 20, 1.0, hard=True)
        for key in CONSTANTS[name]
    ]
    return fit_constants(constants, seconds, [step.seconds for step in steps])


def fitted_steps(name: str) -> list[PublishedStep]:
    """The steps of a GPU that constants are fitted to; of a recipe, those on the fewest GPUs."""
    found = [s for s in published_steps() if s.source.gpu == name and s.set != "table-5"]
    one = [s for s in found if s.set == "vtrain-single"]
    several = [s for s in found if s.set == "vtrain-multi"]
    smallest: dict[tuple[str, str], PublishedStep] = {}
    for step in found:
        if step.set == "dgx-cloud":
            smallest.setdefault((step.model, step.precision), step)
    return [*one[::_EVERY], *several, *smallest.values()]


def fit_all(name: str, predict: Predict) -> Iterator[tuple[str, Fit]]:
    """The fit to all steps of a GPU (""), then without each family of models."""
    steps, start = fitted_steps(name), GPUS[name]
    for family in ("", *dict.fromkeys(step.family for step in steps)):
        others = [step for step in steps if step.family != family]
        start = replace(start, spread=round(find_spread(name, family), 4))
        fit = fit_gpu(others, start, name, predict)
        if not family:
            start = with_constants(start, fit.values)
        yield family, replace(fit, values={_SPREAD: start.spread, **fit.values})


def find_spread(name: str, family: str) -> float:
    """The spread of GPUs for which a recipe slows down with their number as published.

    Least squares on each recipe's steps on the most GPUs and on the fewest, without a family of
    models; 0 where nothing was published on several numbers of GPUs.
    """
    others = (s for s in published_steps() if s.source.gpu == name and s.family != family)
    one, pairs = replace(GPUS[name], spread=1.0), list[tuple[float, float]]()
    for mine in _recipes(others).values():
        few, many = mine[min(mine)], mine[max(mine)]
        more = one.slowest(many.gpus) - one.slowest(few.gpus)
        pairs.append((more, many.seconds / few.seconds - 1.0))
    squares = sum(more * more for more, _ in pairs)
    return sum(more * slower for more, slower in pairs) / squares if squares else 0.0


def write_fits(fits: Iterable[tuple[str, str, Fit]]) -> str:
    """The file of constants by GPU and by the family that is left out."""
    names = [_SPREAD, *dict.fromkeys(key for each in CONSTANTS.values() for key in each)]
    lines = [",".join(("gpu", "family", *names))]
    for gpu, family, fit in fits:
        cells = (f"{fit.values[key]:.4g}" if key in fit.values else "" for key in names)
        lines.append(",".join((gpu, family, *cells)))
    return "\n".join(lines) + "\n"


def _fit_shipped() -> None:
    """Write the constants of each GPU, and those without each family of models."""
    predictor = MeshPredictor()
    fits = ((n, family, fit) for n in CONSTANTS for family, fit in fit_all(n, predictor.seconds))
    folder = Path(__file__).parents[2] / "files" / "published"
    (folder / _FITTED).write_text(write_fits(fits), "utf-8")


if __name__ == "__main__":
    _fit_shipped()
