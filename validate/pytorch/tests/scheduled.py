"""What four processes do to record the order of passes of PyTorch's pipeline schedules."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

WORLD, MICROS, WIDTH = 4, 8, 4
CASES: dict[str, tuple[Any, int]] = {
    "gpipe": (schedules.ScheduleGPipe, 1),
    "1f1b": (schedules.Schedule1F1B, 1),
    "interleaved": (schedules.ScheduleInterleaved1F1B, 2),
    "zero_bubble": (schedules.ScheduleInterleavedZeroBubble, 2),
    "zbv": (schedules.ScheduleZBVZeroBubble, 2),
    "dualpipe": (schedules.ScheduleDualPipeV, 2),
}
"""By our name: PyTorch's class, and the stages of a process."""
IN_A_V = ("zbv", "dualpipe")


def stages_of(name: str, rank: int, p: int, virtual: int) -> list[int]:
    """The stages of a rank."""
    return [rank, 2 * p - 1 - rank] if name in IN_A_V else list(range(rank, p * virtual, p))


def record(rank: int, port: int, out: str) -> None:
    """Run a step of every schedule; each process writes what it did in which order."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    log: list[str] = []
    _watch(log)
    found = {}
    for name, (kind, virtual) in CASES.items():
        log.clear()
        stages = [
            PipelineStage(
                nn.Linear(WIDTH, WIDTH), stage, WORLD * virtual, torch.device("cpu"),
                group=dist.group.WORLD,
            )
            for stage in stages_of(name, rank, WORLD, virtual)
        ]  # fmt: skip
        schedule = kind(
            stages if virtual > 1 else stages[0],
            MICROS,
            loss_fn=nn.functional.mse_loss,
            scale_grads=False,
        )
        whole = torch.ones(MICROS, WIDTH)
        first = (whole,) if stages[0].is_first else ()
        schedule.step(*first, target=whole, losses=[])
        found[name] = list(log)
        dist.barrier()
    Path(out, f"{rank}.json").write_text(json.dumps(found), "utf-8")
    dist.destroy_process_group()
    os._exit(0)  # threads of PyTorch may abort while Python ends


def _watch(log: list[str]) -> None:
    """Log each pass of a stage as an action of the schedule."""

    def logged(call: Callable[..., Any], letter: Callable[[dict[str, Any]], str]) -> Any:
        def run(self: Any, micro: int, *given: Any, **more: Any) -> Any:
            log.append(f"{self.stage_index}{letter(more)}{micro}")
            return call(self, micro, *given, **more)

        return run

    base: Any = _PipelineStageBase
    base.forward_one_chunk = logged(base.forward_one_chunk, lambda _: "F")
    base.backward_one_chunk = logged(
        base.backward_one_chunk, lambda more: "B" if more.get("full_backward", True) else "I"
    )
    base.backward_weight_one_chunk = logged(base.backward_weight_one_chunk, lambda _: "W")
