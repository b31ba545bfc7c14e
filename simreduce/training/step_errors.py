"""How sure a predicted step is: intervals made of the errors of published steps.

The errors are log(predicted / published) by constants that were fitted to other families of models.
What is weighed is families: each counts once for a set, however many of its meshes were published.
They count less where the GPU, the stack or the kind of model differs.

Steps of a GPU whose constants are those of another one, and steps of a stack of which none were
published, differ by more. Their intervals are made of errors of published steps that were
predicted in the same way: steps of A100 by the constants of H100 and the other way round, of B200
by those of H100, and steps of torchtitan and Hugging Face by Megatron-LM's kernels. Which of two
GPUs lends its constants is chance, so those errors count with either sign. Where both are unknown,
the logarithms of the ends add up as independent errors do.

Two meshes of a model, a GPU and a stack err together: `apart` has by what factor predictions of
two have to differ. So do all steps of a site: where constants are fitted to one of them, another
one of the same model is off by as much as published errors of a site and a model differ, whose bias
is gone and whose noise is that of two; one of another model by as much as those of a site.

`python -m simreduce.study.accuracy.step_errors` writes the errors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from functools import cache, lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simreduce.computing import grouped
from simreduce.engine.calibrate.intervals import SURE, ends_of, weighted_quantile
from simreduce.files.published import shipped_rows
from simreduce.training.gpus import Gpu

if TYPE_CHECKING:
    from simreduce.workload.decoder import Decoder

ERRORS = "steps-errors.csv"
KNOWN, BY_GPU, BY_STACK = "", "gpu", "stack"
"""What of a step was not known when it was predicted: nothing, its GPU or its stack."""
SAME, OTHER = "same", "other"
"""The model of a measured step."""
_GPU, _STACK, _KIND = 0.5, 0.5, 0.1
"""Weights of an error where the GPU, the stack, or experts differ."""


class StepErrors(NamedTuple):
    """log(predicted / published) of steps that differ in nothing but their mesh.

    They are of a `family` of models in a `set`, on a GPU and by a stack, with experts or without;
    `lacks` says what was not known of them.
    """

    lacks: str
    set: str
    family: str
    gpu: str
    stack: str
    experts: bool
    errors: tuple[float, ...]

    def of(self, names: Collection[str]) -> bool:
        """Whether its set, its family, its GPU or its stack is among these."""
        return bool({self.set, self.family, self.gpu, self.stack} & {*names})


class Asked(NamedTuple):
    """A step to be sure of: its GPU, whether constants are `lent` to that, and its stack.

    Where constants are fitted to a step of that GPU by that stack, `measured` says of which model:
    this one (`SAME`) or another.
    """

    gpu: str
    lent: bool
    stack: str
    experts: bool = False
    measured: str = ""


def ask(gpu: Gpu, stack: str, bits: int = 16, shape: Decoder | None = None) -> Asked:
    """What is asked of a step with products of so many bits on a GPU, of a decoder if it is one."""
    ran = gpu.measured.partition(" ")[0]
    same = shape is not None and gpu.measured == measured_on(ran, shape)
    measured = (SAME if same else OTHER) if ran == stack else ""
    return Asked(gpu.title, bool(gpu.lent(bits)), stack, bool(shape and shape.experts), measured)


def measured_on(stack: str, shape: Decoder) -> str:
    """What a file of a GPU says of the step that its constants are fitted to."""
    return f"{stack} {shape.blocks}x{shape.width}"


class StepInterval(NamedTuple):
    """With 80 % a step takes `low` to `high` times what is predicted; `why` it is wide, or ""."""

    low: float
    high: float
    why: str = ""


EXACT = StepInterval(1.0, 1.0)
"""That of what is given, not predicted."""


@cache
def published_step_errors() -> tuple[StepErrors, ...]:
    """Those that come with simreduce."""
    return tuple(
        StepErrors(
            row["lacks"], row["set"], row["family"], row["gpu"], row["stack"],
            row["experts"] == "yes", tuple(map(float, row["errors"].split())),
        )
        for row in shipped_rows(ERRORS)
    )  # fmt: skip


@lru_cache(maxsize=256)
def step_interval(asked: Asked, without: frozenset[str] = frozenset()) -> StepInterval:
    """The 80 % interval of a step, from errors without these sets, families, GPUs and stacks."""
    rows = [row for row in published_step_errors() if not row.of(without)]
    strange = not any(row.stack == asked.stack for row in rows if row.lacks != BY_STACK)
    lacks = [BY_GPU] * asked.lent + [BY_STACK] * strange
    sides = [_ends(asked, rows, BY_GPU if asked.lent else KNOWN)]
    sides += [_ends(asked, rows, BY_STACK)] if strange else []
    low, high = (math.hypot(*each) for each in zip(*sides, strict=True))
    if asked.measured:
        same = asked.measured == SAME
        within = math.hypot(*(math.log(_within(same, of, without)) for of in lacks or [KNOWN]))
        if lacks:  # what was not known before is known no worse now
            within = min(within, (low + high) / 2)
        return StepInterval(math.exp(-within), math.exp(within))
    said = {
        f"constants of {asked.gpu} are another GPU's": asked.lent,
        f"no step of {asked.stack} was published": strange,
    }
    return StepInterval(math.exp(-low), math.exp(high), " and ".join(k for k in said if said[k]))


def _within(same: bool, lacks: str, without: frozenset[str]) -> float:
    """The factor within which 80 % of pairs of a site differ, of the same model or of any."""
    return _pairs(lambda row: (row.set, row.family if same else ""), without, lacks)


def _ends(asked: Asked, rows: Collection[StepErrors], lacks: str) -> tuple[float, float]:
    """The logarithms of the ends by which a published time may be below and above a prediction."""
    mine = [row for row in rows if row.lacks == lacks] or [*rows]
    counts = Counter[tuple[str, str]]()
    for row in mine:
        counts[row.set, row.family] += len(row.errors)
    signs = (1.0, -1.0) if lacks == BY_GPU else (1.0,)
    each = [(row, sign * error) for row in mine for error in row.errors for sign in signs]
    weights = [_near(asked, row, lacks) / counts[row.set, row.family] for row, _ in each]
    families = np.unique([f"{row.set} {row.family}" for row, _ in each], return_inverse=True)[1]
    low, high = ends_of(np.array([error for _, error in each]), np.array(weights), families)
    return max(low, 0.0), max(-high, 0.0)


def _near(asked: Asked, row: StepErrors, lacks: str) -> float:
    """The weight of an error; of what nobody knows all GPUs or stacks say as much."""
    gpu = 1.0 if row.gpu == asked.gpu or lacks == BY_GPU else _GPU
    stack = 1.0 if row.stack == asked.stack or lacks == BY_STACK else _STACK
    return gpu * stack * (1.0 if row.experts == asked.experts else _KIND)


@lru_cache(maxsize=64)
def apart(without: frozenset[str] = frozenset()) -> float:
    """By what factor predictions of two meshes differ at least, where with 80 % the one that is
    predicted to be faster is: of a model on a GPU by a stack.

    Of published meshes with equal GPUs and batch.
    """
    return _pairs(id, without)


def _pairs(
    alike: Callable[[StepErrors], object], without: frozenset[str], lacks: str = KNOWN
) -> float:
    """The factor within which 80 % of pairs of errors that are alike differ, where that was not
    known; those of each kind count once. Infinite without pairs.
    """
    rows = (r for r in published_step_errors() if r.lacks == lacks and not r.of(without))
    groups = grouped((alike(row), error) for row in rows for error in row.errors)
    found = [[abs(a - b) for a, b in combinations(each, 2)] for each in groups.values() if each[1:]]
    if not found:
        return math.inf
    values = np.array([pair for pairs in found for pair in pairs])
    weights = np.array([1 / len(pairs) for pairs in found for _ in pairs])
    part = 1 - (1 - SURE) * (1 - 1 / len(found))  # few kinds say less of the next one
    return math.exp(weighted_quantile(values, weights, part))
