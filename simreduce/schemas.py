"""The formats of all files that simreduce reads, and their JSON Schemas.

`python -m simreduce.schemas` writes the schemas to `docs/schemas` of a source tree. An editor uses
one when a file begins with `#:schema https://.../docs/schemas/scenario.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from simreduce.calibrate import CALIBRATION
from simreduce.capacity.prices import PRICES
from simreduce.capacity.question import CAPACITY
from simreduce.formats import Format, json_schema, reference
from simreduce.nccl import SETTINGS
from simreduce.published import PUBLISHED
from simreduce.scenario import SCENARIO
from simreduce.sweep import SWEEP
from simreduce.topology.file_formats import CLUSTER, LINK_FIGURES, MACHINE
from simreduce.training import PROFILE
from simreduce.workload import GRADIENTS, MODEL

FORMATS: Mapping[str, Format] = {
    "calibration": CALIBRATION,
    "capacity": CAPACITY,
    "cluster": CLUSTER,
    "gradients": GRADIENTS,
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
"""Every format, by the name of its schema."""
FOLDER = Path(__file__).parents[1] / "docs" / "schemas"


def schema_texts() -> dict[str, str]:
    """The text of each schema, by the name of its file."""
    return {
        f"{name}.json": json.dumps(json_schema(form), indent=2, ensure_ascii=False) + "\n"
        for name, form in FORMATS.items()
    }


def reference_texts() -> dict[str, str]:
    """The reference of each format in Markdown, by its name."""
    return {name: reference(form) for name, form in FORMATS.items()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in schema_texts().items():
        (FOLDER / name).write_text(text, "utf-8")
