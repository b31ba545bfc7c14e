#!/bin/sh
# A reduce-scatter over gloo, so each backward pass of FSDP on CPUs, is an all-reduce of everything.
#
# Seen with PyTorch 2.13.0, CPython 3.11 (Linux, no GPU). `reduce_scatter_tensor` runs one all-reduce
# of the whole input and keeps a part of the result; `reduce_scatter` runs one all-reduce for each
# rank. With 4 ranks in a network namespace of their own, the loopback carried 6.0 times the input's
# bytes for either, as for an all-reduce, where a reduce-scatter needs 3.0, as an all-gather took.
# So FSDP over gloo moves a third more than it needs in each step, and a profile of it has no
# reduce-scatter among gloo's events: who counts collectives there finds all-reduces that the job
# never asked for. The operators (`c10d::_reduce_scatter_base_`) have the job's own.
#
# Output seen:
#   reduce_scatter_tensor: c10d::_reduce_scatter_base_ by gloo:all_reduce [720]
#   reduce_scatter: c10d::reduce_scatter_ by gloo:all_reduce [180] [180] [180] [180]
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy
cd "$folder"
cat > scatter.py <<'PYTHON'
import json

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile


def run(rank, ranks):
    dist.init_process_group("gloo", init_method="file://" + FILE, rank=rank, world_size=ranks)
    out, whole = torch.empty(180), torch.ones(720)
    parts = [torch.ones(180) for _ in range(ranks)]
    calls = {
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(out, whole),
        "reduce_scatter": lambda: dist.reduce_scatter(out, parts),
    }
    for name, call in calls.items():
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
            call()
        assert out.tolist() == [float(ranks)] * 180
        if rank == 0:
            profiler.export_chrome_trace("trace.json")
            with open("trace.json") as file:
                events = json.load(file)["traceEvents"]
            operator = {e["name"] for e in events if e["name"].startswith("c10d::")}
            carried = [e for e in events if e["name"].startswith("gloo:")]
            sizes = [str(e["args"]["Input Dims"][0]) for e in carried]
            by = {e["name"] for e in carried}
            print(f"{name}: {' '.join(operator)} by {' '.join(by)} {' '.join(sizes)}", flush=True)
    dist.destroy_process_group()


FILE = __file__ + ".store"
if __name__ == "__main__":
    torch.multiprocessing.spawn(run, (4,), nprocs=4)
PYTHON
"$folder/env/bin/python" -W ignore scatter.py 2> errors.txt | tee seen.txt
test "$(cat seen.txt)" = "reduce_scatter_tensor: c10d::_reduce_scatter_base_ by gloo:all_reduce [720]
reduce_scatter: c10d::reduce_scatter_ by gloo:all_reduce [180] [180] [180] [180]"
