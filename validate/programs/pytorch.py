"""PyTorch and torchrun: what they make of `simreduce_ddp.py`, `simreduce_fsdp.py`, `torchrun.sh`.

Two processes over gloo train a model with gradients of the sizes in `ask.json`, wrapped by the
module. `torchrun.sh` runs once for each host, with `hostname` of that host, and with the address of
the first replaced by this machine's.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import profile

STEPS = 3
"""DDP forms its buckets after the first step, and logs them before the third."""


class Block(nn.Module):
    """Parameters that are used in an order, or else in their own."""

    def __init__(self, sizes: list[int], order: list[int] | None = None) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.full((size,), 1e-3) for size in sizes)
        self.order = order or [*range(len(sizes))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i in self.order:
            x = x * (1 + self.weights[i].mean())
        return x


class Model(nn.Module):
    """Blocks, with parameters of its own before them."""

    def __init__(
        self, own: list[int], blocks: list[list[int]], order: list[int] | None = None
    ) -> None:
        super().__init__()
        self.own = Block(own, order)
        self.blocks = nn.ModuleList(Block(sizes) for sizes in blocks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.own(x)
        for block in self.blocks:
            x = block(x)
        return x.sum()


def _ddp(module: dict[str, Any], sizes: list[int], order: list[int]) -> dict[str, Any]:
    model = module["wrap"](Model(sizes, [], order))

    def step() -> None:
        losses = [lambda: model(torch.ones(2))] * 2
        if "backward" in module:
            module["backward"](model, losses)
        else:
            losses[0]().backward()

    for _ in range(STEPS):
        step()
    with profile() as recorded:
        step()
    log = model._get_ddp_logging_data()
    return {
        "buckets": [int(size) for size in log["rebuilt_bucket_sizes"].split(", ")],
        "gradient_as_bucket_view": bool(log["gradient_as_bucket_view"]),
        "hook": log.get("comm_hook") or None,
        "all-reduces": sum("gloo:all_reduce" in each.name for each in recorded.events()),
    }


def _fsdp(module: dict[str, Any], own: list[int], blocks: list[list[int]]) -> dict[str, Any]:
    """What either generation of FSDP makes of the model; the root is the first unit."""
    first = "sharding_strategy" in module["ARGUMENTS"]
    named = inspect.signature(module["wrap"]).parameters
    classes = {"blocks": (Block,)} if "blocks" in named else {}
    more = {"device_id": torch.device("cpu")} if first else {}
    model = module["wrap"](Model(own, blocks), **classes, **more)
    model(torch.ones(2)).backward()
    shown = _first(model) if first else _second(model)
    return {"FSDP": 1 if first else 2} | {
        key: value.pop() if isinstance(value, set) and len(value) == 1 else value
        for key, value in shown.items()
    }


def _first(model: nn.Module) -> dict[str, Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel

    units = [each for each in model.modules() if isinstance(each, FullyShardedDataParallel)]
    flat = [each._handle.flat_param for each in units if each._handle]
    sizes = [zip(each._numels_with_padding, each._is_padding_mask, strict=True) for each in flat]
    kinds = {each.sharding_strategy.name for each in units}
    return {
        "units": [sum(size for size, padding in unit if not padding) for unit in sizes],
        "reshard_after_forward": {kind in ("FULL_SHARD", "HYBRID_SHARD") for kind in kinds},
        "backward_prefetch": {each.backward_prefetch and each.backward_prefetch.name
                              for each in units},
        "forward_prefetch": {each.forward_prefetch for each in units},
        "limit_all_gathers": {each.limit_all_gathers for each in units},
        "param_dtype": {str(each.mixed_precision.param_dtype) for each in units},
        "reduce_dtype": {str(each.mixed_precision.reduce_dtype) for each in units},
    }  # fmt: skip


def _second(model: nn.Module) -> dict[str, Any]:
    from torch.distributed.fsdp import FSDPModule

    found = [each._get_fsdp_state() for each in model.modules() if isinstance(each, FSDPModule)]
    states = [state for i, state in enumerate(found) if state not in found[:i]]
    groups = [state._fsdp_param_group for state in states if state._fsdp_param_group]
    policies = [state._mp_policy for state in states]
    return {
        "units": [sum(each._orig_size.numel() for each in group.fsdp_params) for group in groups],
        "reshard_after_forward": {group._reshard_after_forward for group in groups[1:]},
        "forward_prefetch": any(state._states_to_forward_prefetch for state in states),
        "param_dtype": {str(each.param_dtype) for each in policies},
        "reduce_dtype": {str(each.reduce_dtype) for each in policies},
    }


def _train(rank: int, port: int, given: dict[str, Any], out: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    [name] = [each for each in ("simreduce_ddp.py", "simreduce_fsdp.py") if Path(each).exists()]
    module = runpy.run_path(name)
    if name == "simreduce_ddp.py":
        found = _ddp(module, given["gradients"], given["order"])
    else:
        found = _fsdp(module, given["own"], given["blocks"])
    if rank == 0:
        Path(out).write_text(json.dumps(found), "utf-8")
    dist.barrier()
    os._exit(0)  # threads of PyTorch may abort while Python ends


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


WORKER = """\
import os, sys
names = ("RANK", "GROUP_RANK", "LOCAL_RANK", "WORLD_SIZE")
with open(os.environ["RANKS"], "a") as file:
    file.write(" ".join(os.environ[name] for name in names) + "\\n")
"""
TORCHRUN = """\
#!/bin/sh
for word; do
  shift
  case "$word" in --master-addr=*)
    echo "${word#*=}" > "$MASTER"
    word=--master-addr=127.0.0.1
  esac
  set -- "$@" "$word"
done
exec "$REAL" "$@"
"""


def _torchrun() -> dict[str, Any]:
    """The ranks of each host, and the address that the script names."""
    with tempfile.TemporaryDirectory() as folder:
        wrapper, worker = Path(folder, "torchrun"), Path(folder, "worker.py")
        wrapper.write_text(TORCHRUN)
        worker.write_text(WORKER)
        ranks, master, running = Path(folder, "ranks"), Path(folder, "master"), []
        port, script = _free_port(), Path("torchrun.sh").read_text("utf-8")
        Path("here.sh").write_text(script.replace("--master-port=29500", f"--master-port={port}"))
        for host in Path("hosts").read_text("utf-8").split():
            own = Path(folder, "bin", host)
            own.mkdir(parents=True)
            (own / "hostname").write_text(f"#!/bin/sh\necho {host}\n")
            shutil.copy(wrapper, own)
            for each in own.iterdir():
                each.chmod(0o755)
            environment = os.environ | {
                "PATH": f"{own}:{os.environ['PATH']}", "RANKS": str(ranks), "MASTER": str(master),
                "REAL": shutil.which("torchrun"),
            }  # fmt: skip
            running.append(subprocess.Popen(["sh", "here.sh", worker], env=environment))
        if {each.wait() for each in running} != {0}:
            sys.exit("torchrun failed")
        rows = sorted([*map(int, line.split())] for line in ranks.read_text().splitlines())
        hosts = Path("hosts").read_text("utf-8").split()
        return {
            "ranks": [[hosts[node], local] for _, node, local, _ in rows],
            "world_size": rows[0][3],
            "master": master.read_text().strip(),
        }


def main(folder: str) -> None:
    """Print what PyTorch understood of the files of a folder."""
    os.chdir(folder)
    given = json.loads(Path("ask.json").read_text("utf-8"))
    if Path("torchrun.sh").exists():
        found = _torchrun()
    else:
        torch.multiprocessing.spawn(_train, (_free_port(), given, "found.json"), nprocs=2)
        found = json.loads(Path("found.json").read_text("utf-8"))
    version = torch.__version__.partition("+")[0]
    print(json.dumps({"version": version, "understood": found}, sort_keys=True))


if __name__ == "__main__":
    main(sys.argv[1])
