#!/bin/sh
# A step of DistributedDataParallel over gloo, recorded and converted to a Chakra trace with
# success, has no collective in it and no time.
#
# Seen with PyTorch 2.13.0, mlc-chakra 1.0.0, CPython 3.11 (Linux, no GPU). PyTorch's
# ExecutionTraceObserver writes a node `c10d::allreduce_` for the step's bucket. `chakra_converter
# PyTorch` reads that file, logs "Conversion successful", and writes a trace of COMP_NODE and
# METADATA_NODE alone: it makes collectives of a GPU's kernels only, by their names, and durations
# come from the profiler's timeline, which `chakra_trace_link` has to join first. Its metadata has
# no `version` either, though `chakra_generator` of the same package writes 1.0.0. Who tries a tool
# chain on a laptop gets a trace that a simulator runs in no time, without a word.
#
# Output seen:
#   recorded: 1 of c10d::allreduce_
#   converted: types COMP_NODE METADATA_NODE, durations 0, version ''
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet torch==2.13.0 numpy protobuf networkx
# The converter and its format alone; what it needs to link and to draw traces is left out.
"$folder/env/bin/pip" install --quiet --no-deps mlc-chakra==1.0.0
cd "$folder"
cat > step.py <<'PYTHON'
import torch
import torch.distributed as dist
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 8))


def step():
    model(torch.randn(4, 64)).sum().backward()


step()
observer = ExecutionTraceObserver().register_callback("host.json")
with profile(activities=[ProfilerActivity.CPU], execution_trace_observer=observer) as profiler:
    step()
    profiler.step()
dist.destroy_process_group()
PYTHON
"$folder/env/bin/python" step.py > step.log 2>&1
"$folder/env/bin/python" -m chakra.src.converter.converter PyTorch \
  --input host.json --output host.et > convert.log 2>&1
grep --quiet "Conversion successful" convert.log
"$folder/env/bin/python" - <<'PYTHON' | tee seen.txt
import json

from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node, NodeType
from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd

names = [node["name"] for node in json.load(open("host.json"))["nodes"]]
print(f"recorded: {names.count('c10d::allreduce_')} of c10d::allreduce_")
trace, head, node, kinds, took = openFileRd("host.et"), GlobalMetadata(), Node(), set(), 0
decodeMessage(trace, head)
while decodeMessage(trace, node):
    kinds.add(NodeType.Name(node.type))
    took += node.duration_micros
print(f"converted: types {' '.join(sorted(kinds))}, durations {took}, version {head.version!r}")
PYTHON
test "$(cat seen.txt)" = "recorded: 1 of c10d::allreduce_
converted: types COMP_NODE METADATA_NODE, durations 0, version ''"
