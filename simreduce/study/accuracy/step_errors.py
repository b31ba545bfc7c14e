"""Errors of predicted steps, which intervals are made of, and how often these hold.

`python -m simreduce.study.accuracy.step_errors` writes `steps-errors.csv`; it takes five minutes.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from simreduce.computing import grouped
from simreduce.errors import InputError
from simreduce.files.published import PublishedStep, published_steps
from simreduce.study.accuracy.mesh import EVERY, StepPoint, gpu_for, predict_seconds
from simreduce.study.accuracy.one_gpu import predict_passes, timed_steps
from simreduce.training.eager import MEGATRON
from simreduce.training.gpus import GPUS, Gpu
from simreduce.training.stacks import TORCHTITAN, TORCHTITAN_EAGER
from simreduce.training.step_errors import (
    BY_GPU,
    BY_STACK,
    ERRORS,
    KNOWN,
    StepErrors,
    ask,
    step_interval,
)

_LENT = ("products", "products8", "attention", "memory", "kernel", "host", "spread")
_LENDERS = {"A100": "H100", "H100": "A100"}


def weighed_steps() -> list[PublishedStep]:
    """All published steps, but of the rows of one machine, which come from few measurements, one
    in so many.
    """
    found = published_steps()
    alone = [step for step in found if step.set == "vtrain-single"]
    return [step for step in found if step.set != "vtrain-single"] + alone[::EVERY]


def find_errors() -> Iterator[StepErrors]:
    """The errors of published steps: as they are predicted, by constants of another GPU, and by
    Megatron-LM's kernels.
    """
    steps = weighed_steps()
    lent = [step for step in steps if gpu_for(step).lent(step.bits)]
    own = [step for step in steps if step not in lent]
    yield from _group(KNOWN, own, [predict_seconds(step, gpu_for(step)) for step in own])
    yield from _group(BY_GPU, lent, [predict_seconds(step, gpu_for(step)) for step in lent])
    lent = [step for step in own if step.source.gpu in _LENDERS]
    yield from _group(BY_GPU, lent, [predict_seconds(step, _lent(step)) for step in lent])
    titan = [step for step in own if step.source.stack in (TORCHTITAN, TORCHTITAN_EAGER)]
    yield from _group(
        BY_STACK, titan, [predict_seconds(step, gpu_for(step), MEGATRON) for step in titan]
    )
    yield from _one_gpu()


def _lent(step: PublishedStep) -> Gpu:
    """The step's GPU with the constants of another one."""
    lender = GPUS[_LENDERS[step.source.gpu]]
    return replace(gpu_for(step), **{name: getattr(lender, name) for name in _LENT})


def covered(points: Sequence[StepPoint]) -> float:
    """The part of published times inside the 80 % intervals of predictions; those leave out the
    errors of a step's family of models.
    """
    inside = 0
    for point in points:
        step, gpu = point.of, gpu_for(point.of)
        asked = ask(gpu, step.source.stack, step.bits)._replace(experts=step.ep > 1)
        ends = step_interval(asked, frozenset({step.family}))
        inside += ends.low <= point.published / point.predicted <= ends.high
    return inside / len(points)


def _group(
    lacks: str, steps: Sequence[PublishedStep], seconds: Iterable[float]
) -> Iterator[StepErrors]:
    found = grouped(
        ((step.set, step.family, step.source.gpu, step.source.stack, step.ep > 1,
          step.model, step.gpus, step.global_batch, step.precision),
         math.log(predicted / step.seconds))
        for step, predicted in zip(steps, seconds, strict=True)
    )  # fmt: skip
    return (StepErrors(lacks, *key[:5], tuple(errors)) for key, errors in found.items())


def _one_gpu() -> Iterator[StepErrors]:
    """Steps of one GPU, by their own kernels and, of decoders, by Megatron-LM's."""
    for step in timed_steps():
        for lacks in (KNOWN, BY_STACK):
            asked = step if lacks == KNOWN else step._replace(kernels=MEGATRON)
            try:
                (point,) = predict_passes([asked])
            except InputError:
                continue
            known = step.source or "measured", step.workload, step.gpu, step.kernels
            yield StepErrors(lacks, *known, False, (math.log1p(point.error),))


def write_errors(found: Iterable[StepErrors]) -> str:
    """The errors as CSV, to three digits."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(StepErrors._fields)
    for row in found:
        errors = " ".join(f"{error:.3f}" for error in row.errors)
        table.writerow((*row[:5], "yes" if row.experts else "no", errors))
    return text.getvalue()


if __name__ == "__main__":
    folder = Path(__file__).parents[2] / "files" / "published"
    (folder / ERRORS).write_text(write_errors(find_errors()), "utf-8")
