"""What two processes do to record the order in which FullyShardedDataParallel issues."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel as Fsdp,
    ShardingStrategy,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

WIDTH, BLOCKS = 8, 3

SETTINGS: dict[str, dict[str, Any]] = {
    "pre": {"backward_prefetch": BackwardPrefetch.BACKWARD_PRE},
    "post": {"backward_prefetch": BackwardPrefetch.BACKWARD_POST},
    "none": {"backward_prefetch": None},
    "stay": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
}


class _Block(nn.Module):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH + 1 + i, bias=False)
        self.down = nn.Linear(WIDTH + 1 + i, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.h = nn.ModuleList(_Block(i) for i in range(BLOCKS))
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.h:
            x = block(x)
        return self.last(x).sum()


def record(rank: int, world: int, port: int, out: str) -> None:
    """Record every case of SETTINGS, with and without no_sync; rank 0 writes them."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    log: list[str] = []
    units: dict[int, int] = {}
    _watch("all_gather", "g", log, units)
    _watch("reduce_scatter_single", "r", log, units)
    found = {
        name + (", no_sync" if no_sync else ""): _case(settings, log, units, no_sync=no_sync)
        for name, settings in SETTINGS.items()
        for no_sync in (False, True)
    }
    if rank == 0:
        Path(out).write_text(json.dumps(found), "utf-8")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # threads of PyTorch may abort while Python ends


def _watch(name: str, letter: str, log: list[str], units: dict[int, int]) -> None:
    """Log each call of a collective with the unit whose parameters are as many as its elements."""
    call: Callable[..., Any] = getattr(dist, name)

    def logged(output: Any, given: torch.Tensor, **more: Any) -> Any:
        whole = max(sum(t.numel() for t in output) if letter == "g" else 0, given.numel())
        log.append(f"{letter}{units[whole]}")
        return call(output, given, **more)

    setattr(dist, name, logged)


def _case(
    settings: dict[str, Any], log: list[str], units: dict[int, int], *, no_sync: bool
) -> list[str]:
    """The second step, whose order is as in all later ones; with `no_sync` its first pass."""
    model = _Model()
    ends = [*model.first.parameters(), *model.last.parameters()]
    groups = [ends, *(list(block.parameters()) for block in model.h)]
    units.update({sum(p.numel() for p in group): i for i, group in enumerate(groups)})
    for i, block in enumerate(model.h, 1):
        block.up.register_forward_hook(lambda *_, i=i: log.append(f"F{i}"))
        block.down.register_full_backward_pre_hook(lambda *_, i=i: log.append(f"B{i}"))
    sharded = Fsdp(
        model,
        auto_wrap_policy=ModuleWrapPolicy({_Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
        **settings,
    )
    for _ in range(2):
        log.clear()
        with sharded.no_sync() if no_sync else nullcontext():
            sharded(torch.randn(4, WIDTH)).backward()
        second = list(log)
        if no_sync:
            sharded(torch.randn(4, WIDTH)).backward()
    return second
