"""MSCCL++'s JSON of a strategy: one file for each range of sizes, proved before it is written."""

from __future__ import annotations

from simreduce.export.choice import Choice
from simreduce.export.framework import Framework
from simreduce.export.frameworks.msccl import named, nearest, refusals
from simreduce.planners.msccl import plan_text


def _files(choice: Choice) -> dict[str, str]:
    layout = choice.setup.layout
    machines = [next(i for i, task in enumerate(layout.tasks) if rank in task)
                for rank in range(layout.n)]  # fmt: skip
    return named(choice, "mscclpp", "json", lambda each: plan_text(each, machines))


MSCCLPP = Framework("mscclpp", "MSCCL++", _files, refusals, nearest, trains=False)
