"""One measured step of a mesh narrows what is predicted of others: it fits one constant of a GPU.

A step tells one number: how fast the GPU's products are, or, where it waits for its host most of
the time, how long that takes for a kernel. What the rest of the step takes is left as it is. Once
the others are known, a step is a + b / x in the rate of products, and a + b x in the host's time:
secants find the constant in a few steps.

How far off other steps then are is what errors of published steps of a GPU and a stack differ by
(`step_errors`): anchored on one run of 8,192 tokens, torchtitan's others of that length and model
are within 4 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simreduce import units
from simreduce.errors import InputError
from simreduce.files.formats.syntax import toml_text
from simreduce.study.scenario import Meshes
from simreduce.study.tune.meshes import seconds_of, spent_of
from simreduce.training.gpus import Gpu, gpu_among
from simreduce.training.mesh import MeshJob
from simreduce.training.mesh.passes import COMPUTE, HOST
from simreduce.training.step_errors import ask, measured_on, step_interval
from simreduce.training.step_logs import MeasuredSteps

_PRODUCTS = ("products", "products8", "products32")
_ROUNDS = 12
_NEAR = 1e-4
"""The part of a step within which a fit ends."""


@dataclass(frozen=True, slots=True)
class FittedMesh:
    """A mesh, and its seconds by the constants before and after; with 80 % it takes `low` to `high`
    times those after.
    """

    job: MeshJob
    before: float
    after: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class FittedStep:
    """A GPU whose `constants` are fitted to a measured step of `seconds`, by name, with the values
    before; the measured mesh is the first of `meshes`. `kept` is the file.
    """

    steps: MeasuredSteps
    seconds: float
    gpu: Gpu
    constants: Mapping[str, tuple[float, float]]
    meshes: Sequence[FittedMesh]
    text: str
    kept: str


def fit_step(steps: MeasuredSteps, question: Meshes, kept: str) -> FittedStep:
    """The constants of the GPU of a scenario whose first mesh was measured.

    InputError if that mesh is not named, if the log is of another batch, or if no constant explains
    the step.
    """
    found = question.question
    if not found.named or not found.jobs:
        raise InputError(f"{question.name}: step.mesh: name the mesh that was measured, first")
    job, setup = found.jobs[0], question.setup
    tokens = job.global_batch * job.sequence
    if steps.tokens not in (0, tokens) or steps.sequences not in (0, job.global_batch):
        theirs, own = steps.sequences, f"{job.global_batch} sequences"
        if steps.tokens:
            theirs, own = steps.tokens, f"{tokens} tokens"
        raise InputError(f"{steps.name}: a step has {theirs}, and that of {question.name} {own}")
    seconds = steps.step(tokens, setup.layout.n)
    names, factor = _find(question, job, seconds)
    measured = measured_on(job.kernels, job.shape)
    gpu = replace(_scaled(job.gpu, names, factor), measured=measured, title=kept)
    meshes = []
    for each in found.jobs:
        after = replace(each, gpu=gpu)
        sure = step_interval(ask(gpu, each.kernels, each.bits, each.shape))
        took = seconds_of(each, setup), seconds_of(after, setup)
        meshes.append(FittedMesh(each, *took, sure.low, sure.high))
    constants = {name: (getattr(job.gpu, name), getattr(gpu, name)) for name in names}
    title = f"{job.gpu.title}: {', '.join(constants)} fitted to {seconds:.4g} s of {job.mesh.name}"
    base = gpu_among([setup.topology.nodes[name] for name in setup.layout.ranks])
    text = toml_text({"title": title, "measured": gpu.measured, **_different(gpu, base)})
    return FittedStep(steps, seconds, gpu, constants, meshes, text, kept)


def _find(question: Meshes, job: MeshJob, seconds: float) -> tuple[tuple[str, ...], float]:
    """The constants that the step tells, and their factor."""
    by = spent_of(job, question.setup)
    hosted = by.get(HOST, 0.0) > by.get(COMPUTE, 0.0)
    names = ("host",) if hosted else _PRODUCTS

    def off(factor: float) -> float:
        gpu = _scaled(job.gpu, names, factor)
        return seconds_of(replace(job, gpu=gpu), question.setup) - seconds

    def at(place: float) -> float:
        return place if hosted else 1 / place  # the step is linear in both

    places = [1.0, 1.25]
    left = [off(at(place)) for place in places]
    for _ in range(_ROUNDS):
        if abs(left[-1]) < _NEAR * seconds or left[-1] == left[-2]:
            break
        slope = (left[-1] - left[-2]) / (places[-1] - places[-2])
        places.append(min(max(places[-1] - left[-1] / slope, 0.01), 100.0))
        left.append(off(at(places[-1])))
    factor = at(places[-1])
    whole = max(getattr(job.gpu, name) for name in names) * factor
    if abs(left[-1]) > 0.01 * seconds or (not hosted and whole > 1.0):
        usual, what = seconds + off(1.0), ", ".join(names)
        raise InputError(
            f"a step of {job.mesh.name} is predicted to take {units.format_duration(usual)}, and"
            f" no {what} make it {units.format_duration(seconds)}: check batch, mesh, overlap and"
            " recompute"
        )
    return names, factor


def _scaled(gpu: Gpu, names: Sequence[str], factor: float) -> Gpu:
    return replace(gpu, **{name: getattr(gpu, name) * factor for name in names})


def _teraflops(rate: float) -> str:
    return f"{rate / 1e12:.6g} TFLOP/s"


def _digits(value: float) -> float:
    return float(f"{value:.4g}")


_WRITTEN: Mapping[str, Callable[[Any], object]] = {
    "flops": _teraflops, "flops8": _teraflops, "flops_tf32": _teraflops, "flops32": _teraflops,
    "memory_bandwidth": units.exact_bandwidth,
    "units": int, "clusters": bool, "bf16": bool, "flash": bool,
    "products": _digits, "products8": _digits, "products32": _digits,
    "attention": _digits, "memory": _digits, "spread": _digits, "kernel": units.exact_duration,
    "host": units.exact_duration, "handover": units.exact_duration,
}  # fmt: skip
"""How a file says what a GPU has."""


def _different(gpu: Gpu, base: Gpu | None) -> dict[str, Any]:
    """What a file says of a GPU that is not as the machine's own; of another chip all rates, as
    those of the machine's are left out then.
    """
    other = gpu.flops != getattr(base, "flops", None)
    return {
        name: write(value)
        for name, write in _WRITTEN.items()
        for value in [getattr(gpu, name)]
        if value != getattr(base, name, None) or (other and name.startswith("flops"))
        if value or not name.startswith("flops")
    }
