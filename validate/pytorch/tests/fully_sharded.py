"""What two processes do to record the collectives of a model that an exported module shards."""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH, BLOCKS = 8, 3


class Block(nn.Module):
    """A block; each of another size, so that sizes tell units apart."""

    def __init__(self, i: int) -> None:
        super().__init__()
        inner = WIDTH * (2 + i)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, inner), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Small(nn.Module):
    """A model whose parameters all have rows for two processes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.h = nn.ModuleList(Block(i) for i in range(BLOCKS))
        self.last = nn.Linear(WIDTH, 2 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.h:
            x = block(x)
        return self.last(x)


def record(rank: int, world: int, port: int, modules: list[str], ways: list[str], out: str) -> None:
    """Train two steps with each module; rank 0 writes what the second did."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    log: list[str] = []
    _watch("all_gather_single", "g", log)
    _watch("reduce_scatter_single", "r", log)
    _watch("all_reduce", "a", log)
    found = [_case(runpy.run_path(each), way, log) for each, way in zip(modules, ways, strict=True)]
    if rank == 0:
        Path(out).write_text(json.dumps(found), "utf-8")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of PyTorch may abort while Python ends


def _watch(name: str, letter: str, log: list[str]) -> None:
    """Log each call of a collective with the bytes of its larger side."""
    call: Callable[..., Any] = getattr(dist, name)

    def logged(*given: Any, **named: Any) -> Any:
        tensors = [each for each in (*given, *named.values()) if isinstance(each, torch.Tensor)]
        log.append(f"{letter}{max(each.nbytes for each in tensors)}")
        return call(*given, **named)

    setattr(dist, name, logged)


def _case(module: dict[str, Any], way: str, log: list[str]) -> dict[str, Any]:
    """What the second step issued, how parameters lie, and how far they are from those of a
    process that trains alone on all batches.
    """
    torch.manual_seed(0)
    alone, steps = Small(), count(1)
    torch.manual_seed(0)
    model, blocks = Small(), _blocks(module)
    for i, block in enumerate(model.h, 1):
        block.up.register_forward_hook(lambda *_, i=i: log.append(f"F{i}"))
        block.down.register_full_backward_pre_hook(lambda *_, i=i: log.append(f"B{i}"))
    names = ("replicate", "shard")
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=names) if way == "hybrid" else None
    more = {"mesh": mesh} if mesh else {}
    sharded = module["wrap"](model, **blocks, **more)
    optimizers = [torch.optim.SGD(each.parameters(), 0.1) for each in (sharded, alone)]
    passes = 2 if "backward" in module else 1
    for _ in range(2):
        log.clear()
        number = next(steps)
        batches = [
            [_batch(number, i, rank) for i in range(passes)]
            for rank in range(dist.get_world_size())
        ]
        own = [lambda x=x: sharded(x).square().mean() for x in batches[dist.get_rank()]]
        module["backward"](sharded, own) if passes > 1 else own[0]().backward()
        for batch in batches:
            for x in batch:
                (alone(x).square().mean() / len(batches)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    issued = list(log)
    pairs = zip(sharded.parameters(), alone.parameters(), strict=True)
    worst = max(float((ours.full_tensor() - own).abs().max()) for ours, own in pairs)
    return {
        "issued": issued,
        "worst": worst,
        "placements": sorted({str(tuple(each.placements)) for each in sharded.parameters()}),
        "halves": all(2 * p.to_local().numel() == p.numel() for p in sharded.parameters()),
    }


def _blocks(module: dict[str, Any]) -> dict[str, Any]:
    names = module["wrap"].__code__.co_varnames[: module["wrap"].__code__.co_argcount]
    return {"blocks": (Block,)} if "blocks" in names else {}


def _batch(step: int, number: int, rank: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(100 * step + 10 * number + rank)
    return torch.randn(4, WIDTH, generator=made)
