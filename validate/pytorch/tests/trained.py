"""What every process of the tests does: train a few steps with an exported module, and compare."""

from __future__ import annotations

import inspect
import json
import os
import runpy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchvision_models import MODELS, Block

STEPS = 4
"""DDP forms its buckets after the first step, and logs them before the third."""


def run(rank: int, world: int, port: int, cases: list[tuple[str, str]], out: str) -> None:
    """Run each (model, module) and let rank 0 write what it found."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    found = [
        (_sharded if Path(module).name.startswith("simreduce_fsdp") else _replicated)(
            model, runpy.run_path(module), rank
        )
        for model, module in cases
    ]
    if rank == 0:
        Path(out).write_text(json.dumps(found), "utf-8")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of PyTorch may abort while Python ends


def _replicated(name: str, module: dict[str, Any], rank: int) -> dict[str, Any]:
    """DDP's buckets, and the largest error of a gradient relative to the largest gradient."""
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model = make()
    wrapped = module["wrap"](model)
    torch.manual_seed(1 + rank)
    for _ in range(STEPS):
        model.zero_grad()
        x = batch()
        wrapped(x).sum().backward()
    reduced = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()  # the same batch, by this process alone
    worst = 0.0
    for gradient, parameter in zip(reduced, model.parameters(), strict=True):
        mean = parameter.grad.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        scale = float(mean.abs().max()) or 1.0
        worst = max(worst, float((gradient - mean).abs().max()) / scale)
    log = wrapped._get_ddp_logging_data()
    sizes = [int(size) for size in log["rebuilt_bucket_sizes"].split(", ")]
    return {"buckets": sizes, "error": worst}


def _sharded(name: str, module: dict[str, Any], rank: int) -> dict[str, Any]:
    """The largest error of a parameter after a step of SGD, relative to the largest change."""
    make, batch = MODELS[name]
    torch.manual_seed(0)
    alone = make()
    before = [p.detach().clone() for p in alone.parameters()]
    torch.manual_seed(0)
    wrap = module["wrap"]
    blocks = {"blocks": (Block,)} if "blocks" in inspect.signature(wrap).parameters else {}
    wrapped = wrap(make(), **blocks, device_id=torch.device("cpu"))
    torch.manual_seed(1 + rank)
    x = batch()
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.1)
    wrapped(x).sum().backward()
    optimizer.step()
    alone(x).sum().backward()
    worst = 0.0
    with wrapped.summon_full_params(wrapped):
        after = [p.detach().clone() for p in wrapped.parameters()]
    for old, new, own in zip(before, after, alone.parameters(), strict=True):
        mean = own.grad.clone()
        dist.all_reduce(mean)
        change = -0.1 * mean / dist.get_world_size()
        scale = float(change.abs().max()) or 1.0
        worst = max(worst, float((new - old - change).abs().max()) / scale)
    return {"error": worst}
