"""What PyTorch adds to every call of a collective, on one core: `CALL_COST` of scenarios.

    .venv-pytorch/bin/python validate/pytorch/call_cost.py

A call of a process group returns after some time, in which the thread that issues a backward pass
does nothing else. DDP adds its own for each bucket: it marks gradients as ready, runs a hook and
finishes the bucket; a hook that communicates nothing shows how much. One process of Gloo does
without a network and without GPUs, whose kernels are launched besides (NCCL's `launch`).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_LAYERS = 256
_ROUNDS = 60
_WARM = 20


def issue_seconds() -> float:
    """Seconds until a call of an all-reduce of 1 KiB returns."""
    tensor = torch.ones(256)

    def call() -> float:
        begun = time.perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        took = time.perf_counter() - begun
        work.wait()
        return took

    return _median(call, 10 * _ROUNDS)


def bucket_seconds() -> float:
    """Seconds that a bucket of DDP adds to a backward pass, without its call."""
    one, many = (_backward_seconds(cap) for cap in (100, 1e-5))
    return (many - one) / (_LAYERS - 1)


def _backward_seconds(cap: float) -> float:
    layers = (nn.Linear(16, 16, bias=False) for _ in range(_LAYERS))
    model = DistributedDataParallel(
        nn.Sequential(*layers), bucket_cap_mb=cap, gradient_as_bucket_view=True
    )
    model.register_comm_hook(None, _nothing)
    inputs = torch.randn(1, 16)

    def backward() -> float:
        loss = model(inputs).sum()
        begun = time.perf_counter()
        loss.backward()
        return time.perf_counter() - begun

    return _median(backward, _ROUNDS)


# DDP compares annotations with classes, and here they would be texts.
def _nothing(_, bucket):  # noqa: ANN001, ANN202
    found: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    found.set_result(bucket.buffer())
    return found


def _median(work: Callable[[], float], rounds: int) -> float:
    return statistics.median([work() for _ in range(rounds)][_WARM:])


def measure() -> tuple[float, float]:
    """Seconds of a call, and of a bucket besides its call."""
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", GLOO_SOCKET_IFNAME="lo"
    )
    torch.set_num_threads(1)
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        return issue_seconds(), bucket_seconds()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    call, bucket = measure()
    print(f"PyTorch {torch.__version__}: a call returns after {call * 1e6:.1f} us")
    print(f"a bucket of DDP takes {bucket * 1e6:.1f} us besides its call")
