"""The formats of all files that simreduce reads and of all documents that it writes, and their
JSON Schemas.

`python -m simreduce.report.schemas` writes the schemas to `docs/schemas` of a source tree. An
editor uses one when a file begins with `#:schema https://.../docs/schemas/scenario.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from simreduce.engine.calibrate import CALIBRATION
from simreduce.files.formats import Format, json_schema
from simreduce.files.formats.documents import Output, output_schema
from simreduce.files.published import PUBLISHED
from simreduce.planners.nccl import SETTINGS
from simreduce.report import accuracy, capacity, ranking, sweeps, topo
from simreduce.report.bench import BENCH, NCCL_TESTS
from simreduce.report.capacity import LISTS, PRICES as PRICE_LIST
from simreduce.report.explain import EXPLAIN
from simreduce.report.jobs import BESIDE, PLACEMENT, REPLAY
from simreduce.report.ranking import RUN, TUNE
from simreduce.report.replicas import REPLICAS
from simreduce.report.step_fit import FITTED_STEP
from simreduce.report.steps import MESHES, STEP, TUNED_MESHES
from simreduce.report.sweeps import COMPARE, COMPARED_ORDERS
from simreduce.report.topo import NCCL
from simreduce.study.capacity import CAPACITY
from simreduce.study.capacity.price_list import PRICES
from simreduce.study.job_files import JOBS
from simreduce.study.scenario import SCENARIO
from simreduce.study.sweep.grid import SWEEP
from simreduce.topology.formats import CLUSTER, LINK_FIGURES, MACHINE
from simreduce.training import PROFILE
from simreduce.training.gpus import COMPUTE
from simreduce.workload.loader import GRADIENTS, MODEL

FORMATS: Mapping[str, Format] = {
    "calibration": CALIBRATION,
    "capacity": CAPACITY,
    "cluster": CLUSTER,
    "compute": COMPUTE,
    "gradients": GRADIENTS,
    "jobs": JOBS,
    "link_figures": LINK_FIGURES,
    "machine": MACHINE,
    "model": MODEL,
    "nccl": SETTINGS,
    "prices": PRICES,
    "profile": PROFILE,
    "published": PUBLISHED,
    "scenario": SCENARIO,
    "sweep": SWEEP,
}
"""Every format of files that simreduce reads, by the name of its schema."""

_OF_DEVICES = (
    "simreduce_validate.report.calibration:CALIBRATE",
    "simreduce_validate.report.documents:VALIDATE",
    "simreduce_validate.measuring.record:RECORD",
    "simreduce_validate.report.nccl_library:LIBRARY",
)
"""Outputs of the harness, which stands above this package. They are imported by name, as its
commands are.
"""


def outputs() -> dict[str, Output]:
    """Every output that simreduce writes for programs, by the name of its schema."""
    ours: list[Output] = [
        RUN, STEP, MESHES, REPLICAS, BENCH, NCCL_TESTS, EXPLAIN, TUNE, TUNED_MESHES, PLACEMENT,
        capacity.CAPACITY, capacity.CAPACITY_JOBS, LISTS, PRICE_LIST, sweeps.SWEEP, COMPARE,
        COMPARED_ORDERS, REPLAY, NCCL, ranking.VERIFY, ranking.FILES,
        topo.LIST, topo.SHOW, topo.CHECK, topo.P2P, topo.RINGS, topo.TREES,
        topo.GRAPHS, topo.MATRICES, topo.ROWS,
        BESIDE, accuracy.FITTED, FITTED_STEP, *(chapter.document for chapter in accuracy.CHAPTERS),
    ]  # fmt: skip
    for place in _OF_DEVICES:
        module, _, name = place.partition(":")
        ours.append(getattr(import_module(module), name))
    return {output.name: output for output in sorted(ours, key=lambda output: output.name)}


FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


def schemas() -> dict[str, dict[str, Any]]:
    """Each schema by its name: `run` of a document that simreduce writes, `scenario.toml` of a file
    that it reads.
    """
    written = {name: output_schema(output) for name, output in outputs().items()}
    return written | {f"{name}.toml": json_schema(form) for name, form in FORMATS.items()}


def schema_texts() -> dict[str, str]:
    """The text of each schema, by its place under `docs/schemas`."""
    found = {}
    for name, schema in schemas().items():
        stem = name.removesuffix(".toml")
        found[f"{stem}.json" if name != stem else f"output/{name}.json"] = schema_text(schema)
    return found


def schema_text(schema: Mapping[str, Any]) -> str:
    """A schema as files have it."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (FOLDER / "output").mkdir(parents=True, exist_ok=True)
    for name, text in schema_texts().items():
        (FOLDER / name).write_text(text, "utf-8")
