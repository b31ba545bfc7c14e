"""torchtitan: `torchtitan.args` or `torchtitan.toml` by its parser, the mesh and the stages.

    python validate/programs/torchtitan.py FOLDER [MODULE [CONFIG]]

Releases from 0.3 on and main read the arguments, beside the MODULE and the CONFIG of a model
(llama3 and llama3_70b unless stated); releases up to 0.2 read the TOML. Requirements of each, in an
environment of its own, without a GPU:

    0.3:   torch==2.13.0 triton==3.9.0 torchtitan==0.3.0
    0.2:   torch==2.13.0 triton==3.9.0 torchtitan==0.2.2
    main:  torch==2.13.0 triton==3.9.0 grain==0.2.18 torch_checkpointing==0.1.1 datasets==4.7.0
           tokenizers safetensors tyro==1.0.17 tensorboard wandb einops pillow spmd_types==0.2.3,
           and PYTHONPATH at a checkout of github.com/pytorch/torchtitan, commit
           b5bcd76c66d0acb1a08b176d9639425bc55e0b2a
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
from importlib import import_module, metadata
from math import prod
from pathlib import Path
from typing import Any

OWN = Path(__file__).parent
sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != OWN]
"""This file has the name of the program."""

DEGREES = {
    "dp_replicate": "data_parallel_replicate_degree",
    "dp_shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree",
    "tp": "tensor_parallel_degree",
    "pp": "pipeline_parallel_degree",
}
EXPERTS = {"ep": "expert_parallel_degree", "etp": "expert_tensor_parallel_degree"}


def main(folder: str, module: str = "llama3", config: str = "llama3_70b") -> None:
    """Print what torchtitan understood of the file of a folder."""
    file = Path(folder, "torchtitan.args")
    asked = ["--job.config_file", str(file.with_suffix(".toml"))]
    if file.exists():
        words = shlex.split(file.read_text("utf-8").replace("\\\n", " "))
        asked = ["--module", module, "--config", config, *words]
    found = import_module("torchtitan.config").ConfigManager().parse_args(asked)
    chosen, mesh = found.activation_checkpoint, _mesh(found.parallelism)
    tables = {
        "training": dataclasses.asdict(found.training),
        "parallelism": dataclasses.asdict(found.parallelism),
        "mesh": {name: getattr(mesh, name) for name in (*DEGREES, *EXPERTS) if hasattr(mesh, name)},
    }
    understood = {
        **{f"{table}.{key}": value for table, row in tables.items() for key, value in row.items()},
        "recompute": chosen and getattr(chosen, "mode", type(chosen).__qualname__),
        **(_stages(found, mesh) if file.exists() and mesh.pp > 1 else {}),
    }
    if (given := Path(folder, "ask.json")).exists():
        names = json.loads(given.read_text("utf-8"))["names"]
        understood = {name: value for name, value in understood.items() if name in names}
    known = {each.name for each in metadata.distributions()}
    version = metadata.version("torchtitan") if "torchtitan" in known else "main"
    print(json.dumps({"version": version, "understood": understood}, sort_keys=True))


def _mesh(parallelism: Any) -> Any:
    """The mesh of all its ranks, as torchtitan makes and checks it."""
    dims = import_module("torchtitan.distributed").ParallelDims
    ways = {name: getattr(parallelism, degree) for name, degree in DEGREES.items()}
    ranks = prod(ways.values())
    if hasattr(dims, "from_config"):
        return dims.from_config(parallelism, ranks)
    ways |= {name: getattr(parallelism, degree) for name, degree in EXPERTS.items()}
    return dims(world_size=ranks, **ways)


def _stages(found: Any, mesh: Any) -> dict[str, Any]:
    """The schedule's class, and the layers of each stage."""
    own = vars(import_module("torchtitan.distributed.pipeline_parallel"))
    counts = own["_get_pipeline_metadata"](mesh, found.parallelism, found.model_spec.model)
    parts = own["_generate_llm_fqn_per_model_part"](*counts)
    schedule = own["get_schedule_class"](found.parallelism.pipeline_parallel_schedule)
    layers = [sum(name.startswith("layers.") for name in part) for part in parts]
    return {"schedule": schedule.__name__, "layers": layers}


if __name__ == "__main__":
    main(*sys.argv[1:])
