"""Published steps of meshes beside predictions, as text and as a document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simreduce.files.formats.documents import (
    COUNT,
    FLAG,
    MICROSECONDS,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    or_null,
)
from simreduce.files.published.dispatch import TITLE
from simreduce.files.published.steps import SOURCES
from simreduce.files.tables import Column, percent, signed_percent
from simreduce.study.accuracy.dispatch import DispatchPoint
from simreduce.study.accuracy.mesh import (
    LEAST_CHOICES,
    StepPoint,
    predict_tails,
    scale_weakly,
    summarize_steps,
)


@dataclass(frozen=True)
class ComparedSteps:
    """Steps, and calls of experts, beside predictions; not `complete` if it was stopped."""

    points: Sequence[StepPoint]
    complete: bool
    dispatches: Sequence[DispatchPoint] = ()


_GROUP = Record(
    "group",
    "The steps of a model in a set.",
    Key("set", TEXT, "The publication's table.", column=Column("set", left=True)),
    Key("model", TEXT, "The model, or `all`.", column=Column("model", left=True)),
    Key("steps", COUNT, "Published steps.", column=Column("steps")),
    Key(
        "median", RATIO, "Half of the errors are below this.",
        column=Column("median", show=percent(1)),
    ),
    Key("p90", RATIO, "The 90th percentile of errors.", column=Column("90 %", show=percent(1))),
    Key(
        "bias", RATIO, "The median of signed errors: above 0, predictions are too long.",
        column=Column("bias", show=signed_percent(1)),
    ),
    Key(
        "choices", COUNT,
        f"Groups of {LEAST_CHOICES} meshes or more with equal GPUs and batch.",
        column=Column("choices"),
    ),
    Key(
        "order", or_null(RATIO),
        "The mean of Kendall's rank correlation of predicted and published times in a choice.",
        column=Column("order", show="{:.2f}".format),
    ),
    Key(
        "regret", or_null(RATIO),
        "The part by which the mesh that is predicted fastest is slower than the fastest; median.",
        column=Column("regret", show=percent(1)),
    ),
    Key(
        "worst_regret", or_null(RATIO), "The largest of them.",
        column=Column("worst", show=percent(1)),
    ),
)  # fmt: skip
_SCALING = Record(
    "scaling",
    "A recipe on more GPUs, with the same batch on each.",
    Key("model", TEXT, "The model.", column=Column("model", left=True)),
    Key("precision", TEXT, "Of products.", column=Column("precision", left=True)),
    Key("least_gpus", COUNT, "GPUs to begin with.", "least", column=Column("from", "GPUs")),
    Key("gpus", COUNT, "GPUs.", column=Column("to", "GPUs")),
    Key(
        "published", RATIO, "The published time over that on the fewer GPUs.",
        column=Column("published", show="{:.3f}".format),
    ),
    Key(
        "predicted", RATIO, "The predicted time over that on the fewer GPUs.",
        column=Column("predicted", show="{:.3f}".format),
    ),
    Key(
        "error", RATIO, "The part by which the predicted ratio is too high.",
        lambda each: each.predicted / each.published - 1.0,
        column=Column("error", show=signed_percent(1)),
    ),
)  # fmt: skip
_TAIL = Record(
    "tail",
    "A recipe's step on the most GPUs, from those on two smaller numbers with the same batch on"
    " each: all wait for the slowest.",
    Key("model", TEXT, "The model.", column=Column("model", left=True)),
    Key("precision", TEXT, "Of products.", column=Column("precision", left=True)),
    Key("few", COUNT, "GPUs of the first step.", column=Column("from", "GPUs")),
    Key("some", COUNT, "GPUs of the second step.", column=Column("and", "GPUs")),
    Key("gpus", COUNT, "GPUs of the third.", column=Column("to", "GPUs")),
    Key("spread", RATIO, "The spread of GPUs' speeds that explains the first two.",
        column=Column("spread", show=percent(1))),
    Key("published_s", SECONDS, "The published time of the third.", "published",
        column=Column("published", "(s)", show="{:.2f}".format)),
    Key("predicted_s", SECONDS, "Its time by that spread.", "predicted",
        column=Column("predicted", "(s)", show="{:.2f}".format)),
    Key("error", RATIO, "The part by which that is too long.",
        column=Column("error", show=signed_percent(1))),
    Key("error_unchanged", RATIO, "The part by which it would be too long at the second's time.",
        column=Column("if unchanged", show=signed_percent(1))),
)  # fmt: skip
_POINT = Record(
    "point",
    "A published step.",
    Key("set", TEXT, "The publication's table.", "step.set"),
    Key("model", TEXT, "The model.", "step.model"),
    Key("gpus", COUNT, "GPUs.", "step.gpus"),
    Key("tp", COUNT, "Tensor parallel ways.", "step.tp"),
    Key("cp", COUNT, "Context parallel ways.", "step.cp"),
    Key("ep", COUNT, "Expert parallel ways.", "step.ep"),
    Key("pp", COUNT, "Pipeline stages.", "step.pp"),
    Key("virtual", COUNT, "Stages of a GPU.", "step.virtual"),
    Key("global_batch", COUNT, "Sequences of a step.", "step.global_batch"),
    Key("micro_batch", COUNT, "Sequences of a micro batch.", "step.micro_batch"),
    Key("precision", TEXT, "Of products.", "step.precision"),
    Key("published_s", SECONDS, "The published time.", "step.seconds"),
    Key("predicted_s", SECONDS, "The predicted time.", "predicted"),
)  # fmt: skip
_DISPATCH = Record(
    "dispatch",
    "A published call that brings tokens to experts, or back.",
    Key("kernel", TEXT, "DeepEP's kernel.", "call.kernel", column=Column("kernel", left=True)),
    Key("machine", TEXT, "The machine.", "call.machine", column=Column("machine", left=True)),
    Key("ranks", COUNT, "Expert parallel ranks.", "call.ranks", column=Column("ranks")),
    Key("tokens", COUNT, "Tokens of a rank.", "call.tokens", column=Column("tokens")),
    Key(
        "direction", TEXT, "`dispatch` or `combine`.", "call.direction",
        column=Column("direction", left=True),
    ),
    Key(
        "published_us", MICROSECONDS, "The published time.", "seconds",
        column=Column("published", "(us)", show="{:.0f}".format),
    ),
    Key(
        "predicted_us", MICROSECONDS, "The predicted time.", "predicted",
        column=Column("predicted", "(us)", show="{:.0f}".format),
    ),
    Key(
        "error", RATIO, "The part by which the predicted time is too long.",
        column=Column("error", show=signed_percent(1)),
    ),
)  # fmt: skip


ACCURACY_MESH = Document(
    "accuracy-mesh",
    "`simreduce accuracy mesh --json`: published steps of meshes beside predictions.",
    Key(
        "groups", list_of(_GROUP), "Errors by set and model.",
        lambda found: summarize_steps(found.points),
    ),
    Key(
        "scaling", list_of(_SCALING), "Recipes on more GPUs.",
        lambda found: scale_weakly(found.points),
    ),
    Key(
        "tails", list_of(_TAIL), "Recipes on the most GPUs, from two smaller numbers.",
        lambda found: predict_tails(point.step for point in found.points),
    ),
    Key("points", list_of(_POINT), "Every published step."),
    Key("dispatches", list_of(_DISPATCH), "Calls that bring tokens to experts, or back."),
    Key("complete", FLAG, "False if the command was stopped and steps are missing."),
    command="accuracy mesh",
)  # fmt: skip
"""Of `ComparedSteps`."""


def mesh_lines(found: ComparedSteps) -> Iterator[str]:
    """Errors by set and model, weak scaling, and what the sets are."""
    document: Mapping[str, Any] = ACCURACY_MESH.write(found)
    if document["groups"]:
        yield from _GROUP.table(document["groups"]).lines()
    if document["scaling"]:
        yield from ("#", "# the same batch on each of more GPUs, as a part of the time on fewer:")
        yield from _SCALING.table(document["scaling"]).lines()
    if document["tails"]:
        yield from ("#", "# the most GPUs from two smaller numbers, as all wait for the slowest:")
        yield from _TAIL.table(document["tails"]).lines()
    if document["dispatches"]:
        if document["groups"]:
            yield from ("#", "# tokens to experts and back, by no fitted constant:")
        yield from _DISPATCH.table(document["dispatches"]).lines()
    yield "#"
    if document["groups"]:
        yield "# each model by constants of the GPU that were fitted to the others"
    for name in dict.fromkeys(point.step.set for point in found.points):
        yield f"# {name}: {SOURCES[name].title}"
    if document["dispatches"]:
        yield f"# deepep: {TITLE}"
