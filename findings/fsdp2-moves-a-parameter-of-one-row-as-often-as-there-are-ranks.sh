#!/bin/sh
# FSDP2 does not shard a parameter whose first dimension is 1, and its all-gather moves it as often
# as there are ranks.
#
# Seen with PyTorch 2.13.0, CPython 3.11 (Linux, gloo, 4 processes, no GPU). `fully_shard` shards
# parameters on dimension 0 and pads each by itself, so that all ranks have as many rows. Embeddings
# of positions often have the shape (1, tokens, width), as in vision transformers: the first rank
# holds all of it, the others none, and yet each sends as much as the first. Sharded by its tokens
# (`shard_placement_fn` with Shard(1)) it moves once. FullyShardedDataParallel, which flattens what
# it shards, has no such case. A model that counts bytes by parameters misses it.
#
# Output seen:
#   Shard(0): elements 25088, on ranks 25088 0 0 0, gathered 100352
#   Shard(1): elements 25088, on ranks 6272 6272 6272 6272, gathered 25088
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cd "$folder"
cat > shard.py <<'PYTHON'
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

RANKS, gathered = 4, []
gather = dist.all_gather_single


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(1, 196, 128))

    def forward(self, x):
        return x + self.table


def logged(output, *given, **named):
    gathered.append(output.numel())
    return gather(output, *given, **named)


def run(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    dist.all_gather_single = logged
    for dimension in (0, 1):
        model = Positions()
        elements = model.table.numel()
        fully_shard(model, shard_placement_fn=lambda _, dimension=dimension: Shard(dimension))
        own = torch.tensor(model.table.to_local().numel())
        found = [torch.tensor(0) for _ in range(RANKS)]
        dist.all_gather(found, own)
        gathered.clear()
        model(torch.ones(2, 196, 128)).sum().backward()
        if rank == 0:
            held = " ".join(str(int(each)) for each in found)
            print(f"Shard({dimension}): elements {elements}, on ranks {held}, gathered {gathered[0]}")
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run, (port,), nprocs=RANKS)
PYTHON
"$folder/env/bin/python" shard.py 2> log.txt | tee seen.txt
cat > expected.txt <<'TEXT'
Shard(0): elements 25088, on ranks 25088 0 0 0, gathered 100352
Shard(1): elements 25088, on ranks 6272 6272 6272 6272, gathered 25088
TEXT
cmp expected.txt seen.txt
