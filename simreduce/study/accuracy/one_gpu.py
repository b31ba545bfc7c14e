"""Predicts measured training steps of one GPU, and when backward had each layer's gradients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeVar

from simreduce import dtypes
from simreduce.errors import InputError
from simreduce.files.formats import LINE, Field, Format, Scalar, choice, refusal, text_of
from simreduce.files.formats.syntax import Faults, read_csv
from simreduce.files.published import shipped_rows, text_of_rows
from simreduce.study.accuracy import Point
from simreduce.training.eager import BF16, BY_MEGATRON, FP32, MEGATRON, PRECISIONS, RUNS, TF32
from simreduce.training.gpus import GPUS, gpu_of
from simreduce.training.memory import ModelRun, replicated_memory
from simreduce.training.running import run_profile
from simreduce.training.sharded import Sharding
from simreduce.training.step import Profile
from simreduce.training.step_table import MOST_SAMPLES
from simreduce.workload import Model, in_dtype
from simreduce.workload.loader import NAMES, load_model

T = TypeVar("T", int, float)
SOURCES = {
    "simreduce": (
        "one H200 by itself, driver 580.159.04, CUDA 13.0, 2026-11-28, measured by simreduce's"
        " makers: Hugging Face's Transformers, no dropout, fused AdamW"
    ),
    "nvidia": (
        "NVIDIA's Deep Learning Examples, ResNet-50 v1.5, PyTorch 21.03, channels last with amp"
        " and not with tf32: https://github.com/NVIDIA/DeepLearningExamples, 2022-10"
    ),
    "nvidia-tf": "the same by TensorFlow 1.15 with XLA, 20.06",
    "experiments": (
        "torchvision's ResNet-50, channels last with amp:"
        " https://github.com/sandeepkumar-skb/pytorch_experiments, 2021"
    ),
    "u39kun": (
        "torchvision's models, PyTorch 0.3 and TensorFlow 1.5, cuDNN 7.0, both passes alone:"
        " https://github.com/u39kun/deep-learning-benchmark, 2018-02"
    ),
}
"""Where the shipped times come from."""


class TimedStep(NamedTuple):
    """A step of one GPU, in seconds: its passes, the update, and all; and the most bytes that
    PyTorch allocated, 0 where nobody says. A pass that nobody timed is None; an update of 0 was no
    part of the step. `source` says who timed it.
    """

    gpu: str
    workload: str
    batch: int
    kernels: str
    precision: str
    forward: float | None
    backward: float | None
    update: float | None
    seconds: float
    peak: int
    source: str = ""


def _within(
    least: float, most: float, words: str, example: str, read: Callable[[str], T]
) -> Scalar[T]:
    """Text that `read` makes a number within limits of."""

    def take(text: str) -> T:
        with suppress(ValueError, OverflowError):
            if least <= (value := read(text)) <= most:
                return value
        raise refusal(words, text)

    return text_of(take, words, example)


_COUNT = _within(1, MOST_SAMPLES, f"a whole number from 1 to {MOST_SAMPLES}", "16", int)
_TIME = _within(1e-9, 1e6, "a time above 0 in ms", "12.5", lambda text: float(text) * 1e-3)


def _if_timed(least: float, words: str) -> Scalar[float | None]:
    """A time in ms, of at least so many; None where nobody says."""
    timed = _within(least, 1e6, words, "12.5", lambda text: float(text) * 1e-3)

    def take(text: str) -> float | None:
        return timed.read(text) if text else None

    return text_of(take, words, "12.5")


_PASS = _if_timed(1e-9, "a time above 0 in ms")
_SIZE = _within(
    0, 10**18, "a number of MB", "25079.7", lambda text: round(float(text or "0") * 1e6)
)
ROW = Format(
    "row",
    "A training step that was timed.",
    Field("gpu", LINE, "The model of the GPU.", required=True),
    Field("workload", LINE, "The model.", required=True),
    Field("batch", _COUNT, "Samples.", required=True),
    Field("kernels", choice(RUNS, "way"), "How it runs.", required=True),
    Field("precision", choice(PRECISIONS, "precision"), "Of products.", required=True),
    Field("forward_ms", _PASS, "The forward pass; empty if nobody says."),
    Field("backward_ms", _PASS, "The backward pass; empty if nobody says."),
    Field("update_ms", _if_timed(0.0, "a time in ms"),
          "The optimizer; 0 if the step has none, empty if nobody says."),
    Field("step_ms", _TIME, "All of it.", required=True),
    Field("peak_mb", _SIZE,
          "The most memory that PyTorch allocates, in 10^6 bytes; empty if nobody says.", 0),
    Field("source", LINE, "Who timed it.", ""),
)  # fmt: skip


def timed_steps(file: str = "") -> Sequence[TimedStep]:
    """The steps in a file, or those that are shipped. InputError lists every fault: also of what
    cannot be predicted, as its GPU or its model's kernels are not known.
    """
    faults, content = Faults(file), text_of_rows(file, "passes.csv")
    lines = read_csv(content, ROW.keys, ",".join(ROW.keys), faults, InputError)
    found = list[TimedStep]()
    for place, row in lines:
        before = len(faults.problems)
        found.append(TimedStep(*ROW.read(row, faults, place).values()))
        if len(faults.problems) == before:
            faults.attempt(place, _predict, found[-1])
    faults.raise_any()
    return found


@cache
def _shipped() -> frozenset[TimedStep]:
    """Those whose gradients were timed."""
    return frozenset(timed_steps())


@lru_cache(maxsize=256)
def _predict(step: TimedStep) -> tuple[Model, Profile]:
    """Its model and the profile of that. InputError if it has none."""
    if (gpu := gpu_of(step.gpu)) is None:
        raise InputError(f"no GPU {step.gpu!r}; known are {', '.join(GPUS)}")
    narrow = step.kernels == MEGATRON and step.precision in (FP32, TF32)
    if why := BY_MEGATRON if narrow else gpu.lacks(step.precision):
        raise InputError(why)
    model = load_model(step.workload)
    numerics = _numerics(model, step.precision)
    run = ModelRun(step.kernels, step.precision)
    return model, run_profile(model, gpu, step.batch, run, numerics)


def _numerics(model: Model, precision: str) -> Sharding:
    """Image models are trained by SGD with momentum, others by Adam."""
    return Sharding(optimizer="momentum" if model.name in NAMES else "adam", pure=precision == BF16)


@cache
def ready_seconds() -> dict[tuple[str, str], dict[str, float]]:
    """When backward had all gradients of each layer, by the workload and precision of a step."""
    found = defaultdict[tuple[str, str], dict[str, float]](dict)
    for row in shipped_rows("gradients.csv"):
        found[row["workload"], row["precision"]][row["layer"]] = float(row["ready_ms"]) * 1e-3
    return found


@dataclass(frozen=True, slots=True)
class PassPoint(Point[TimedStep]):
    """A step with its passes and update as predicted, in seconds.

    `late` is the largest error of the time at which a layer's gradients are ready, as a part of
    backward; None where nobody measured it. `peak` has the bytes that PyTorch allocates at most.
    """

    forward: float
    backward: float
    update: float
    late: float | None
    peak: int | None

    @property
    def peak_error(self) -> float | None:
        """By what part the predicted peak is too high."""
        return self.peak / self.of.peak - 1.0 if self.peak and self.of.peak else None


def predict_passes(steps: Iterable[TimedStep]) -> Iterator[PassPoint]:
    """Each step as it is predicted."""
    for step in steps:
        model, found = _predict(step)
        update = 0.0 if step.update == 0.0 else found.update
        yield PassPoint(
            step, step.seconds, found.seconds + update, sum(found.forward),
            sum(found.backward), update, _late(step, model, found),
            _peak(model, step.batch, ModelRun(step.kernels, step.precision)),
        )  # fmt: skip


def _peak(model: Model, batch: int, run: ModelRun) -> int | None:
    """The most that PyTorch allocates in a step of one GPU; None where nobody counted it."""
    if not (held := run.activations(model, batch)).moments:
        return None
    numerics = _numerics(model, run.precision)
    whole = in_dtype(model, dtypes.code("bfloat16")) if numerics.pure else model
    return replicated_memory(whole.workload, numerics).plus(held).peak


def _late(step: TimedStep, model: Model, found: Profile) -> float | None:
    measured = ready_seconds().get((step.workload, step.precision))
    if measured is None or step.backward is None or step not in _shipped():
        return None
    ready = accumulate(reversed(found.backward))
    layers = zip(reversed(model.layers), ready, strict=True)
    errors = [abs(seconds - measured[layer.name]) for layer, seconds in layers]
    return max(errors) / step.backward
