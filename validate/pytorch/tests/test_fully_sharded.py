"""FSDP2 issues the collectives of our schedule for an exported module, and trains right."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from torch import multiprocessing

sys.path.insert(0, str(Path(__file__).parent))  # for the processes that torch starts, too
from fully_sharded import Small, record

from simreduce import dtypes
from simreduce.engine.setup import Setup
from simreduce.export import export
from simreduce.export.framework import Choice
from simreduce.planners.strategy import parse_strategy
from simreduce.training.sharded import Do, Sharding, largest_unit, schedule, wrap
from simreduce.workload import Gradient, Layer, Model, Workload

BF16 = dtypes.code("bfloat16")
CASES = {
    "blocks": ("fsdp", Sharding(), 1),
    "blocks, one ahead": ("fsdp", Sharding(forward_prefetch=1), 1),
    "blocks, two ahead": ("fsdp", Sharding(forward_prefetch=2), 1),
    "blocks, stay": ("fsdp", Sharding(reshard_after_forward=False), 1),
    "blocks, two passes": ("fsdp", Sharding(), 2),
    "blocks, stay, two passes": ("fsdp", Sharding(reshard_after_forward=False), 2),
    "blocks, bf16": ("fsdp", Sharding(param_dtype=BF16), 1),
    "layers": ("fsdp", Sharding(units="layers"), 1),
    "layers, one ahead": ("fsdp", Sharding(units="layers", forward_prefetch=1), 1),
    "runs": ("fsdp", Sharding(units=1200), 1),
    "runs, one ahead": ("fsdp", Sharding(units=1200, forward_prefetch=1), 1),
    "model": ("fsdp", Sharding(units="model"), 1),
    "hybrid": ("hsdp", Sharding(group=2), 1),
    "zero3": ("zero3", Sharding(), 1),
}
LETTERS = {Do.GATHER: "g", Do.REDUCE: "r", Do.FORWARD: "F", Do.BACKWARD: "B"}


def _model() -> Model:
    """A layer for each module with parameters of its own."""
    made = {
        name: tuple(Gradient(f"{name}.{key}", p.numel()) for key, p in each.named_parameters())
        for name, each in Small().named_modules()
        if next(each.parameters(recurse=False), None) is not None
    }
    return Model("small", tuple(Layer(name, found) for name, found in made.items()))


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, dict]:
    folder, model = tmp_path_factory.mktemp("fsdp2"), _model()
    workload = Workload("small", tuple(g for each in model.layers for g in each.gradients))
    modules = []
    for i, (method, sharding, passes) in enumerate(CASES.values()):
        choice = Choice(
            Setup("switch:2"), workload, parse_strategy("nccl"), method=method, shards=sharding,
            unit=largest_unit(model, sharding.units), accumulate=passes,
        )  # fmt: skip
        place = folder / f"{i}.py"
        place.write_text(export("pytorch", choice)["simreduce_fsdp.py"], "utf-8")
        modules.append(str(place))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = folder / "found.json"
    multiprocessing.spawn(record, (2, port, modules, [*CASES], str(out)), nprocs=2)
    return dict(zip(CASES, json.loads(out.read_text("utf-8")), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_collectives_of_a_step(found, name):
    """Their order and their bytes; with blocks also when each of them computes."""
    method, sharding, passes = CASES[name]
    units = wrap(_model(), sharding.units)
    widths = [dtypes.SIZES[code] for code in sharding.wire(dtypes.code("float32"))]
    size = {Do.GATHER: widths[0], Do.REDUCE: widths[1]}
    ours = [
        LETTERS[each.do] + str(units[each.unit].elements * size[each.do])
        if each.do in size
        else LETTERS[each.do] + str(each.unit)
        for each in schedule(method, units, sharding, passes)
        if each.do in size or (each.do in LETTERS and each.unit and "blocks" in name)
    ]
    theirs = [each for each in found[name]["issued"] if each[0] in "gra" or "blocks" in name]

    assert ours == [each for each in theirs if each[0] != "a"]
    replicas = [each for each in theirs if each[0] == "a"]
    assert len(replicas) == (len(units) if name == "hybrid" else 0)


@pytest.mark.parametrize("name", CASES)
def test_parameters_are_shards_and_trained_right(found, name):
    replicas = "Replicate(), " if name == "hybrid" else ""

    assert found[name]["placements"] == [f"({replicas}Shard(dim=0){',' * (not replicas)})"]
    assert found[name]["halves"]
    assert found[name]["worst"] < (2e-2 if "bf16" in name else 1e-5)
