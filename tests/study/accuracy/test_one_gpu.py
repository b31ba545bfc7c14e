"""Steps that one GPU was timed with, and what is predicted of them."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, chain
from math import log

import numpy as np
import pytest
from scipy.optimize import least_squares

from simreduce.errors import InputError
from simreduce.study.accuracy.one_gpu import (
    ROW,
    TimedStep,
    predict_passes,
    ready_seconds,
    timed_steps,
)
from simreduce.training import eager, interference
from simreduce.training.eager import BF16, TF32
from simreduce.training.gpus import GPUS
from simreduce.training.memory import ModelRun
from simreduce.training.running import run_profile
from simreduce.training.sharded import Sharding
from simreduce.workload.loader import load_model


def test_measured_steps_are_predicted():
    """Their passes too, and when the gradients of each layer are ready."""
    points = [point for point in predict_passes(timed_steps()) if point.of.forward]

    assert len(points) == 7
    for point in points:
        assert point.predicted == pytest.approx(point.published, rel=0.05)
        assert point.forward == pytest.approx(point.of.forward, rel=0.08)
        assert point.backward == pytest.approx(point.of.backward, rel=0.06)
        assert point.update == pytest.approx(point.of.update, rel=0.06)
        assert point.late < 0.06


FITTED = (
    "_LONG", "_TILED", "_START", "_OPERANDS", "_LOADED", "_WIDER", "_STREAM", "_CONVERTED",
    "_GATHERED", "_NORMED", "_NORM_BACKWARD", "_NORM_ROW", "_UPDATE", "_UPDATED", "_FORWARD_SCORE",
    "_BACKWARD_SCORE", "_FULL_SCORE", "_SORT", "_PYTHON", "_NATIVE",
)  # fmt: skip
"""Constants of steps: all that passes of transformers depend on."""
OF_TILES = ("_START", "_OPERANDS")
"""Those of `interference.tiling_of`."""


@pytest.mark.thorough
@pytest.mark.parametrize("off", [0.0, 0.3])
def test_steps_that_constants_are_not_fitted_to_are_predicted(monkeypatch, off):
    """All constants are fitted to the other six steps and times of their gradients, from values
    that are `off` by so much. No other step computes in TF32, so nothing says its rate.
    """
    steps, names = [step for step in timed_steps() if step.forward], FITTED
    where = {name: interference if name in OF_TILES else eager for name in names}
    shipped = {name: getattr(module, name) for name, module in where.items()}
    sizes = [np.size(shipped[name]) for name in names]
    start = np.random.default_rng(1).normal(0.0, off, sum(sizes))

    def errors(step: TimedStep) -> tuple[list[float], float]:
        model = load_model(step.workload)
        numerics = Sharding(pure=step.precision == BF16)
        found = run_profile(
            model, GPUS["H200"], step.batch, ModelRun(step.kernels, step.precision), numerics
        )
        forward, backward = sum(found.forward), sum(found.backward)
        ready = ready_seconds()[step.workload, step.precision]
        late = [
            10.0 * (seconds - ready[layer.name]) / step.backward
            for layer, seconds in zip(
                reversed(model.layers), accumulate(reversed(found.backward)), strict=True
            )
        ]
        apart = 3.0 * log(forward / step.forward), 3.0 * log(backward / step.backward)
        whole = (forward + backward + found.update) / step.seconds - 1.0
        return [*apart, log(found.update / step.update), *late[:: len(late) // 12]], whole

    def put(factors) -> None:
        for name, part in zip(names, np.split(factors, np.cumsum(sizes)[:-1]), strict=True):
            values = np.exp(part) * shipped[name]
            value = tuple(values) if len(part) > 1 else float(values[0])
            monkeypatch.setattr(where[name], name, value)
        anew = lru_cache(maxsize=None)(interference.tiling_of.__wrapped__)
        monkeypatch.setattr(eager, "tiling_of", anew)

    def residuals(factors, others):
        put(factors)
        return [*chain.from_iterable(errors(step)[0] for step in others), *0.03 * (factors - start)]

    for step in steps:
        others = [each for each in steps if each != step]
        fit = least_squares(residuals, start, diff_step=1e-3, max_nfev=12, args=(others,))
        put(fit.x)
        error = errors(step)[1]
        alone = step.precision == TF32 or step.workload.startswith("bert")
        assert abs(error) < (0.2 if step.precision == TF32 else 0.07 if alone else 0.03)


def test_published_steps_of_images_are_predicted():
    """No constant was fitted to them. In TF32 images lie as they do not for tensor cores, and the
    steps of 2018 had the first cuDNN of V100.
    """
    points = [point for point in predict_passes(timed_steps()) if not point.of.forward]
    resnets = [p for p in points if p.of.workload == "resnet50" and p.of.precision != "tf32"]
    others = [p for p in points if p not in resnets]

    assert {point.of.gpu for point in points} == {"V100", "A100"}
    assert len(resnets) == 7
    assert all(abs(point.error) < 0.06 for point in resnets)
    assert all(-0.3 < point.error < 0.0 for point in others)


def test_every_step_has_the_times_of_its_gradients():
    """The head's first, the tied embedding's last."""
    for step in (step for step in timed_steps() if step.forward):
        ready = ready_seconds()[step.workload, step.precision]
        assert max(ready, key=ready.__getitem__) == "embeddings"
        assert min(ready, key=ready.__getitem__) in ("head", "pooler")


def test_steps_of_a_user(tmp_path):
    """Of a batch of its own: nobody measured its gradients."""
    path = tmp_path / "mine.csv"
    path.write_text(f"{','.join(ROW.keys)}\nA100,gpt2,8,compiled,bf16,20,40,1,61,0,me\n", "utf-8")

    (point,) = predict_passes(timed_steps(str(path)))

    assert (point.of.forward, point.published, point.late) == (0.02, 0.061, None)
    assert (point.of.peak, point.peak_error) == (0, None)
    assert point.predicted == pytest.approx(point.forward + point.backward + point.update)


@pytest.mark.parametrize(("update", "has"), [("0", False), ("", True)])
def test_a_step_without_an_update(tmp_path, update, has):
    """It has none, or nobody timed it by itself."""
    path = tmp_path / "mine.csv"
    rows = f"{','.join(ROW.keys)}\nV100,vgg16,16,eager,fp32,,,{update},90,,\n"
    path.write_text(rows, "utf-8")

    (point,) = predict_passes(timed_steps(str(path)))

    assert (point.of.forward, point.of.backward, point.of.peak) == (None, None, 0)
    assert (point.update > 0.0) == has
    assert point.predicted == pytest.approx(point.forward + point.backward + point.update)


def test_every_fault_of_a_file_is_told(tmp_path):
    """With its line."""
    path = tmp_path / "mine.csv"
    path.write_text(f"{','.join(ROW.keys)}\nA100,gpt2,0,eagr,bf16,x,40,1,61,y,\n", "utf-8")

    with pytest.raises(InputError) as caught:
        timed_steps(str(path))

    text = "\n".join(caught.value.problems)
    told = "batch", "did you mean 'eager'", "forward_ms", "peak_mb"
    assert all(words in text for words in told)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("H9000,gpt2,1,eager,bf16,1,40,1,61,,", "no GPU 'H9000'; known are V100"),
        ("H200,t5-base,1,eager,bf16,1,40,1,61,,", "whose kernels are known"),
        ("H200,gpt22,1,eager,bf16,1,40,1,61,,", "did you mean 'gpt2'"),
        ("V100,gpt2,1,eager,tf32,1,40,1,61,,", "V100 has no products of tf32"),
        ("V100,gpt2,1,eager,bf16,1,40,1,61,,", "V100 has no products of bf16"),
        ("H200,gpt2,1,megatron,fp32,1,40,1,61,,", "as by Megatron-LM"),
        ("H200,gpt2,1,megatron,tf32,1,40,1,61,,", "as by Megatron-LM"),
        ("H200,gpt2,1,eager,bf16,1,40,1,61,inf,", "peak_mb: must be a number of MB"),
        (f"H200,gpt2,{'9' * 400},eager,bf16,1,40,1,61,,", "a whole number from 1 to 1000000000"),
        ("H200,gpt2,1000000001,eager,bf16,1,40,1,61,,", "a whole number from 1 to 1000000000"),
    ],
)
def test_what_cannot_be_predicted_is_told(tmp_path, row, says):
    """With its line, among those that can."""
    path, fine = tmp_path / "mine.csv", "H200,gpt2,1,eager,bf16,1,40,1,61,,"
    path.write_text("\n".join((",".join(ROW.keys), fine, row, fine)), "utf-8")

    with pytest.raises(InputError) as caught:
        timed_steps(str(path))

    (problem,) = caught.value.problems
    assert problem.startswith(f"{path}: line 3")
    assert says in problem
