"""PyTorch runs the exported modules: its buckets are those of `+ddp`, and its gradients right."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from torch import multiprocessing

sys.path.insert(0, str(Path(__file__).parent))  # for the processes that torch starts, too
from simreduce_validate.models.torch_tracing import traced
from torchvision_models import MODELS
from trained import run

from simreduce.engine.setup import Setup
from simreduce.export import export
from simreduce.export.framework import Choice
from simreduce.planners.strategy import parse_strategy
from simreduce.workload import Gradient, Workload


@dataclass(frozen=True)
class Settings:
    """Settings of a sharded method."""

    reshard_after_forward: bool
    forward_prefetch: int = 1
    backward_prefetch: str = "post"
    limit_all_gathers: int = 2
    param_dtype: int | None = None
    reduce_dtype: int | None = None
    group: int = 0
    units: str | int = ""
    overlap: bool = True


REPLICATED = [
    ("resnet50", "nccl+ddp"),
    ("mobilenet_v2", "nccl+ddp"),
    ("transformer", "nccl+ddp"),
    ("transformer", "nccl+ddp=25,0.5"),
    ("mobilenet_v2", "nccl+ddp=2,0.25,view"),
    ("transformer", "nccl+ddp=5,fp16"),
    ("mobilenet_v2", "nccl+bucket=300K"),
    ("mobilenet_v2", "nccl+ddp=0.000001"),
    ("encoder", "nccl+ddp=1.5"),
    ("encoder", "nccl+ddp=0.3"),
]


def _workload(name: str) -> Workload:
    """The gradients as `simreduce model` lists them, where they are not used as registered."""
    make, batch = MODELS[name]
    if name == "encoder":
        return traced(make().to("meta").train(), [batch().to("meta")], name)[0].workload
    return Workload(name, tuple(Gradient(path, p.numel()) for path, p in make().named_parameters()))


def _trained(
    tmp_path: Path, world: int, cases: list[tuple[str, Choice]], target: str = "pytorch"
) -> list[dict]:
    """What `run` found for each model and choice."""
    modules = []
    for i, (name, choice) in enumerate(cases):
        [(file, text)] = export(target, choice).items()
        place = tmp_path / str(i) / file
        place.parent.mkdir()
        place.write_text(text, "utf-8")
        modules.append((name, str(place)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tmp_path / "found.json"
    multiprocessing.spawn(run, (world, port, modules, str(out)), nprocs=world)
    return json.loads(out.read_text("utf-8"))


def _ddp(name: str, strategy: str) -> tuple[str, Choice]:
    return name, Choice(Setup("switch:4"), _workload(name), parse_strategy(strategy))


def _predicted(choice: Choice) -> list[int]:
    gradients = choice.workload.gradients
    arranged = choice.resolved.packer.arrange(gradients)
    return [sum(gradients[i].nbytes for i in group) for group in arranged.groups]


def test_ddp_has_the_predicted_buckets_and_right_gradients_on_four_processes(tmp_path):
    cases = [_ddp(*case) for case in REPLICATED]

    found = _trained(tmp_path, 4, cases)

    assert len(found) == len(cases)
    for (_, choice), each in zip(cases, found, strict=True):
        text = f"{choice.strategy.text} for {choice.workload.name}"
        expected = _predicted(choice)
        assert each["buckets"] == expected, text
        assert each["error"] < (2e-3 if "fp16" in text else 1e-4), text


def test_ddp_has_the_predicted_buckets_of_a_model_whose_convolutions_have_biases(tmp_path):
    case = _ddp("vgg16", "nccl+ddp=25,1,view")

    [found] = _trained(tmp_path, 1, [case])

    assert found["buckets"] == _predicted(case[1])
    assert len(found["buckets"]) == 6


def test_fsdp1_takes_the_arguments_and_updates_parameters_right(tmp_path):
    workload = _workload("transformer")
    cases = [
        (
            "transformer",
            Choice(
                Setup("switch:4"), workload, parse_strategy("nccl"), method=method,
                shards=Settings(reshard_after_forward=method != "zero2", units=units),
                unit=workload.elements // 4,
            ),
        )
        for method, units in (("zero2", "blocks"), ("fsdp", "blocks"), ("fsdp", workload.elements))
    ]  # fmt: skip

    for each in _trained(tmp_path, 4, cases, "fsdp=1"):
        assert each["error"] < 1e-3
