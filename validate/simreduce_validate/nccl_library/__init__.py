"""NCCL's own library, asked without a GPU what it would do on a machine.

The unchanged libnccl.so.2 of NVIDIA's wheels runs on fake GPUs, whose sources are in
`validate/nccl`: a CUDA runtime and driver of documented calls, NVML, a network without wires, and a
tuner that prints. The library then says its graphs, rings, trees, tuning table, costs, choices, and
what it would launch. Nothing of it is copied or changed on disk, and no time is measured.

- `tools` takes the wheels and builds the fakes;
- `asking` runs the library, a process for each node;
- `log` reads what it says;
- `answers` stores that, a line an answer;
- `comparing` sets it beside our predictions;
- `python -m simreduce_validate.nccl_library` asks again what is stored (`make ask-nccl`).
"""
