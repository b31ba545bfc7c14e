"""Published steps of meshes beside predictions, each by constants fitted to other models.

`python -m simreduce.study.accuracy.mesh` fits the constants of `CONSTANTS` to all published steps
of a GPU, and again without each family of models, and writes them to `simreduce/files/published` of
a source tree (`steps-fitted.csv`), which `predict_steps` reads. Those of all families stand in
`simreduce/training/gpus.py` too. It takes about half an hour.

Published throughputs of sharded training (PyTorch's FSDP) beside predictions.

MosaicML published tokens a second of MPT models on A100 with 40 GB and on many numbers of GPUs:
https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/benchmarking/README.md, "A100 40GB
with 1600 Gbps node-node interconnect (RoCE)", FULL_SHARD, bfloat16, 2048 tokens a sequence. Of
those, the rows whose batch of a GPU is the same on several numbers of GPUs are here, but for one of
1b on 32 GPUs, which is 18 % below both of its neighbours.

The compute of a GPU is fitted to the first number of GPUs, so what is compared is what more GPUs
cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from simreduce import dtypes
from simreduce.computing import grouped
from simreduce.engine.calibrate.fit import Fit, FreeConstant, fit_constants
from simreduce.engine.setup import Setup
from simreduce.files.formats.syntax import Faults
from simreduce.files.published import (
    MODELS,
    SOURCES,
    PublishedStep,
    published_steps,
    shipped_rows,
    steps_of,
)
from simreduce.planners.strategy import parse_strategy
from simreduce.study.accuracy import Point, PointGroup, group_predicted, in_order
from simreduce.topology import load_topology
from simreduce.training import StepJob, StepResult, profile_from_seconds
from simreduce.training.gpus import GPUS, Gpu, gpu_for as load_gpu_for
from simreduce.training.memory import FUSED, UNFUSED
from simreduce.training.mesh import (  # fmt: skip
    ALLTOALL,
    DISTRIBUTED,
    EXPERTS,
    FSDP,
    GRAD_REDUCE,
    P2P,
    PARAM_GATHER,
    REPLICATED,
    TP_COMM,
    TP_GRAD,
    Mesh,
    MeshJob,
    check_divides,
    split_evenly,
)
from simreduce.training.mesh.mesh_table import MOST_PASSES, check_shape, policy_of_stack
from simreduce.training.mesh.passes import Costs
from simreduce.training.mesh.pipeline import why_not
from simreduce.training.mesh.write import simulate_mesh
from simreduce.training.sharded import Sharding
from simreduce.training.sharded.collectives import sharded_method
from simreduce.training.sharded.simulation import simulate_sharded_step
from simreduce.training.stacks import TORCHTITAN, TORCHTITAN_EAGER
from simreduce.workload import Model
from simreduce.workload.decoder import Decoder
from simreduce.workload.loader import load_decoder

T = TypeVar("T")

StepPoint = Point[PublishedStep]
"""A published step, and the seconds that are predicted without its family of models."""

CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "A100": ("products", "memory", "host"),
    "H100": ("products", "products8", "attention"),
}
"""Those of a GPU that published steps determine, besides its spread."""
_SPREAD = "spread"
_FITTED = "steps-fitted.csv"
EVERY = 5
"""Of the rows of one machine, which come from few measurements, a fit takes one in so many."""


def job_of(step: PublishedStep, gpu: Gpu) -> MeshJob:
    """The job of a published step, with what its source leaves open as `SOURCES` says."""
    shape = load_decoder(MODELS.get(step.model, step.model)).shape
    each = step.tp * step.cp * step.pp
    mesh = Mesh(step.tp, step.cp, step.ep, step.gpus // each, step.pp, etp=int(step.ep > 1))
    split = split_evenly(shape.blocks, step.pp * step.virtual)
    source, overlap = step.source, {TP_GRAD}
    titan = source.stack in (TORCHTITAN, TORCHTITAN_EAGER)
    if source.recent:
        overlap = {GRAD_REDUCE, PARAM_GATHER, TP_COMM, P2P}
    elif titan:
        overlap = {GRAD_REDUCE, PARAM_GATHER, TP_GRAD} | ({TP_COMM} if step.hidden else set())
    elif source.plain:
        overlap = set()
    attention = FUSED if source.recent or titan else UNFUSED
    return MeshJob(
        shape, mesh, gpu, step.micro_batch,
        step.global_batch // (mesh.dp * step.micro_batch), step.sequence,
        "1f1b" if step.virtual == 1 else "interleaved", step.virtual, split or (),
        recompute=policy_of_stack(step.recompute, source.stack, shape, attention),
        attention=attention, sequence_parallel=step.sequence_parallel,
        optimizer=FSDP if titan else REPLICATED if source.plain else DISTRIBUTED,
        overlap=frozenset(overlap | ({EXPERTS} if step.hidden and step.ep > 1 else set())),
        bits=step.bits, reduced=4 if titan else 2,
        kernels=source.stack,
        dispatch=step.dispatch or ALLTOALL, graphs=frozenset(step.graphs),
    )  # fmt: skip


def predict_seconds(step: PublishedStep, gpu: Gpu, stack: str = "") -> float:
    """The step of a GPU with these constants, by a stack; what a mesh moves is simulated once.

    Once the pipeline is full, each micro batch of 1F1B adds as much as the one before.
    """
    job = job_of(step, gpu)
    job = replace(job, kernels=stack or job.kernels)
    costs, full = costs_of(step.machine, step.gpus, job.mesh), job.mesh.pp + 1
    if job.schedule != "1f1b" or job.micros <= full + 2:
        return simulate_mesh(job, costs).seconds
    few = (replace(job, micros=full + i) for i in (0, 1))
    one, two = (simulate_mesh(each, costs).seconds for each in few)
    return two + (two - one) * (job.micros - full - 1)


@cache
def costs_of(machine: str, gpus: int, mesh: Mesh) -> Costs:
    """What a mesh moves on the first GPUs of a machine."""
    return _machine_costs(machine, gpus).of_mesh(mesh)


@cache
def _machine_costs(machine: str, gpus: int) -> Costs:
    """What any mesh moves there: its calls that others have too are simulated once."""
    setup = Setup(machine, "nccl")
    part = setup.layout.only(range(min(gpus, setup.layout.n)))
    return Costs(setup.but(part=part) if gpus < setup.layout.n else setup, Mesh())


@cache
def fitted_gpus() -> Mapping[tuple[str, str], Gpu]:
    """GPUs by name and by the family whose steps took no part in the fit ("" if all did)."""
    return {
        (row["gpu"], row["family"]): replace(
            GPUS[row["gpu"]],
            **dict[str, Any](
                (name, float(row[name])) for name in (_SPREAD, *CONSTANTS[row["gpu"]])
            ),
        )
        for row in shipped_rows(_FITTED)
    }


def gpu_for(step: PublishedStep) -> Gpu:
    """The GPU by constants without the step's family; table 5 took part in no fit."""
    if step.topology:
        machine = load_topology(step.topology)
        return load_gpu_for(step.gpu or None, [machine.nodes[name] for name in machine.devices])
    return fitted_gpus().get((step.source.gpu, step.family), GPUS[step.source.gpu])


def steps_in(file: str) -> Sequence[PublishedStep]:
    """The steps of a user's file that can be predicted, or the shipped ones. InputError lists every
    fault of all rows.
    """
    found, faults = steps_of(file), Faults(file)
    for place, step in enumerate(found if file else (), 1):
        faults.attempt(f"step {place}", _check, step)
    faults.raise_any()
    return found


def _check(step: PublishedStep) -> None:
    """Raises InputError unless a step's model, GPU, machine, mesh and batch go together."""
    shape, faults = load_decoder(MODELS.get(step.model, step.model)).shape, Faults("")
    there, gpu = len(load_topology(step.topology).devices), faults.attempt("gpu", gpu_for, step)
    each, stages = step.tp * step.cp * step.pp, step.pp * step.virtual
    replicas = max(step.gpus // each, 1)
    faults.check(step.gpus <= there, "gpus", f"{step.gpus}, and {step.topology} has {there}")
    check_divides(faults, "gpus", each, "GPUs", step.gpus)
    check_divides(faults, "global_batch", replicas * step.micro_batch, "sequences",
                  step.global_batch)  # fmt: skip
    if split_evenly(shape.blocks, stages) is None:
        check_divides(faults, "pp", stages, "layers", shape.blocks)
    if gpu and (lacking := gpu.lacks(step.precision)):
        faults.add("precision", lacking)
    if gpu and not faults.problems:
        job = job_of(step, gpu)
        check_shape(faults, shape, job.mesh, step.sequence, parallel=step.sequence_parallel)
        few = step.virtual == 1 or job.micros * stages <= MOST_PASSES  # of 1F1B some say all
        words = f"micro batches x stages are {job.micros * stages}; at most {MOST_PASSES}"
        faults.check(few, "micro_batch", words)
        for problem in why_not(job.schedule, step.pp, step.virtual, job.micros):
            faults.add("virtual", problem)
    faults.raise_any()


def predict_steps(steps: Sequence[PublishedStep]) -> Iterator[StepPoint]:
    """Every step, as it is predicted."""
    return (Point(step, step.seconds, predict_seconds(step, gpu_for(step))) for step in steps)


LEAST_CHOICES = 4
"""Meshes of equal model, GPUs and batch, below which nothing is chosen."""


class StepGroup(NamedTuple):
    """The steps of a model in a set, or of all its models.

    `choices` are those of them among which meshes of equal GPUs and batch are chosen.
    """

    set: str
    model: str
    steps: PointGroup[StepPoint]
    choices: Sequence[PointGroup[StepPoint]]


def group_steps(points: Iterable[StepPoint]) -> Iterator[StepGroup]:
    """By set, all models first, then model by model."""
    sets = group_predicted(points, lambda p: p.of.set)
    for name in sorted(sets, key=[*SOURCES, *sets].index):
        models = group_predicted(sets[name].points, lambda p: p.of.model)
        every = {"all": sets[name]} if len(models) > 1 else {}
        for model, mine in (every | models).items():
            found = group_predicted(
                mine.points,
                lambda p: (p.of.model, p.of.gpus, p.of.global_batch, p.of.precision),
            )
            large = [each for each in found.values() if len(each.points) >= LEAST_CHOICES]
            yield StepGroup(name, model, mine, large)


def correlate_ranks(group: PointGroup[StepPoint]) -> float:
    """Kendall's: pairs in the published order less those that are not, over all pairs."""
    right = in_order(combinations(group.points, 2))
    return 2.0 * sum(right) / len(right) - 1.0


@dataclass(frozen=True, slots=True)
class Scaling(Point[PublishedStep]):
    """How many times as long a step takes as on the `least` GPUs with the same batch on each."""

    least: int


def scale_weakly(points: Iterable[StepPoint], least: int = 128) -> Iterator[Scaling]:
    """The steps of each recipe on the most GPUs beside those on `least`."""
    for mine in _recipes({point.of: point for point in points}):
        if least in mine and (most := max(mine)) > least:
            one, many = mine[least], mine[most]
            ratios = many.published / one.published, many.predicted / one.predicted
            yield Scaling(many.of, *ratios, least)


@dataclass(frozen=True, slots=True)
class Tail(Point[PublishedStep]):
    """A recipe's step, from those on `few` and on `some` GPUs with the same batch on each GPU.

    `spread` is that of GPUs with which the slowest of them explains these two, 0 if it took no
    longer on more. `unchanged` is the step on `some`, in seconds.
    """

    few: int
    some: int
    spread: float
    unchanged: float


def predict_tails(steps: Iterable[PublishedStep]) -> Iterator[Tail]:
    """Each recipe's step on the most GPUs from those on the fewest and on the middle number."""
    one = replace(GPUS["H100"], spread=1.0)
    for mine in [each for each in _recipes({step: step for step in steps}) if len(each) > 2]:
        order = sorted(mine)
        few, some, many = order[0], order[(len(order) - 1) // 2], order[-1]
        low, high, most = (one.slowest(count) - 1.0 for count in (few, some, many))
        # t = mean (1 + spread z), whose two unknowns the two steps determine
        slope = max(0.0, (mine[some].seconds - mine[few].seconds) / (high - low))
        mean = mine[some].seconds - slope * high
        predicted, took = mean + slope * most, mine[many].seconds
        yield Tail(mine[many], took, predicted, few, some, slope / mean, mine[some].seconds)


def _recipes(found: Mapping[PublishedStep, T]) -> Iterator[Mapping[int, T]]:
    """What was found of the steps of recipes, by their number of GPUs."""
    recipes = grouped(
        ((step.model, step.precision), (step.gpus, each))
        for step, each in found.items()
        if step.set == "dgx-cloud"
    )
    return map(dict, recipes.values())


Predict = Callable[[PublishedStep, Gpu], float]


def fit_gpu(steps: Sequence[PublishedStep], start: Gpu, name: str, predict: Predict) -> Fit:
    """The constants of a GPU that fit these steps, with their standard errors."""

    def seconds(values: Mapping[str, Any]) -> list[float]:
        gpu = replace(start, **values)
        return [predict(step, gpu) for step in steps]

    return fit_constants(
        [
            FreeConstant(key, getattr(start, key), getattr(start, key) / 20, 1.0, hard=True)
            for key in CONSTANTS[name]
        ],
        seconds,
        [step.seconds for step in steps],
    )


def fitted_steps(name: str) -> list[PublishedStep]:
    """The steps of a GPU that constants are fitted to; of a recipe, those on the fewest GPUs."""
    found = [s for s in published_steps() if s.source.gpu == name and s.set != "table-5"]
    return [
        *[s for s in found if s.set == "vtrain-single"][::EVERY],
        *[s for s in found if s.set == "vtrain-multi"],
        *[mine[min(mine)] for mine in _recipes({step: step for step in found})],
    ]


def fit_all(name: str, predict: Predict) -> Iterator[tuple[str, Fit]]:
    """The fit to all steps of a GPU (""), then without each family of models."""
    steps, start = fitted_steps(name), GPUS[name]
    for family in ("", *dict.fromkeys(step.family for step in steps)):
        start = replace(start, spread=round(find_spread(name, family), 4))
        fit = fit_gpu([step for step in steps if step.family != family], start, name, predict)
        if not family:
            start = replace(start, **dict[str, Any](fit.values))
        yield family, replace(fit, values={_SPREAD: start.spread, **fit.values})


def find_spread(name: str, family: str) -> float:
    """The spread of GPUs for which a recipe slows down with their number as published.

    Least squares on each recipe's steps on the most GPUs and on the fewest, without a family of
    models; 0 where nothing was published on several numbers of GPUs.
    """
    others = (s for s in published_steps() if s.source.gpu == name and s.family != family)
    one = replace(GPUS[name], spread=1.0)
    ends = [(mine[min(mine)], mine[max(mine)]) for mine in _recipes({s: s for s in others})]
    pairs = [
        (one.slowest(many.gpus) - one.slowest(few.gpus), many.seconds / few.seconds - 1.0)
        for few, many in ends
    ]
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


if __name__ == "__main__":
    fits = ((n, family, fit) for n in CONSTANTS for family, fit in fit_all(n, predict_seconds))
    folder = Path(__file__).parents[2] / "files" / "published"
    (folder / _FITTED).write_text(write_fits(fits), "utf-8")


_TOKENS, _WORDS = 2048, 50368
_ROUNDS = 3
"""In so many rounds the compute comes to be what the first row leaves for it."""


@dataclass(frozen=True, slots=True)
class Series:
    """Tokens a second and GPU of a model, by number of GPUs.

    `parameters` are as published, with so many sequences a GPU. With `again`, the backward pass
    computes the forward pass again.
    """

    name: str
    blocks: int
    width: int
    parameters: int
    batch: int
    tokens: dict[int, int]
    again: bool = False

    @property
    def model(self) -> Model:
        """GPT-2 with another number of words and of positions."""
        times = 3 if self.again else 2
        shape = Decoder(
            self.blocks, self.width, 1, 1, self.width, 4 * self.width, _WORDS, _TOKENS,
            gated=False, bias=True, tied=True, positions=_TOKENS,
        )  # fmt: skip
        return Model(
            f"MPT {self.name}",
            tuple(replace(each, backward=times * each.forward) for each in shape.layers(_TOKENS)),
        )


SERIES = (
    Series("125m", 12, 768, 125_311_488, 26, {16: 130535, 32: 127122, 64: 125234, 128: 123936}),
    Series("350m", 24, 1024, 355_985_408, 18, {16: 55413, 32: 53811, 64: 52689, 128: 51934}),
    Series("760m", 24, 1536, 760_470_528, 12, {16: 29607, 32: 29648, 64: 29344, 128: 28940}),
    Series("1b", 24, 2048, 1_315_950_592, 10, {64: 19001, 128: 18647}),
    Series("3b", 32, 2560, 2_651_837_440, 6, {32: 9914, 64: 9736, 128: 9538}),
    Series("7b", 32, 4096, 6_658_859_008, 18, {32: 3725, 64: 3665, 128: 3623}, again=True),
    Series("13b", 40, 5120, 12_853_954_560, 16, {64: 1976, 128: 1972}, again=True),
)


@dataclass(frozen=True, slots=True)
class ShardedPoint(Point[Series]):
    """Published and predicted tokens a second and GPU of a model on so many GPUs.

    `exposed` are the seconds of communication that no compute hides. The compute of `fitted` ones
    was fitted to them.
    """

    gpus: int
    exposed: float
    fitted: bool


def predict_sharded(chosen: Iterable[Series]) -> Iterator[ShardedPoint]:
    """Every row of the models, as it is predicted."""
    for series in chosen:
        model, first = series.model, min(series.tokens)
        whole = series.batch * _TOKENS / series.tokens[first]
        compute = whole
        for _ in range(_ROUNDS):
            compute += whole - _step(series, model, first, compute).seconds
        for gpus, tokens in series.tokens.items():
            step = _step(series, model, gpus, compute)
            predicted = series.batch * _TOKENS / step.seconds
            yield ShardedPoint(series, tokens, predicted, gpus, step.exposed, gpus == first)


def _step(series: Series, model: Model, gpus: int, compute: float) -> StepResult:
    """A step of FSDP on machines with 8 A100 and 8 ports of 200 Gbit/s.

    It has Composer's defaults: the next unit is gathered after the backward pass of one.
    """
    job = StepJob(model, profile_from_seconds(model, compute), series.batch)
    setup = Setup(f"dgx-a100x{gpus // 8}", "nccl")
    sharding = Sharding(backward_prefetch="post", param_dtype=dtypes.code("bfloat16"))
    return simulate_sharded_step(
        job, sharded_method("fsdp", parse_strategy("nccl"), job, setup.layout, sharding), setup
    ).step
