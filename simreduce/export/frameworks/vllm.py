"""vLLM: its environment, and options of `vllm serve`.

It takes its own kernels for small tensors, PyTorch's symmetric memory for larger ones, then NCCL.
Where it is told to use NCCL's symmetric memory, it takes that first, but for sizes that it leaves
to its own kernels. Names, numbers of GPUs and sizes: vllm-project/vllm csrc/custom_all_reduce.cuh
and vllm/distributed/device_communicators/{all_reduce_utils,symm_mem}.py, 00d618a, read 2026-11;
NCCL's variables: pull 24532; sizes of older versions: pull 33839.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simreduce.export.choice import Choice
from simreduce.export.serving import MIB, Kernel, Server, largest
from simreduce.export.writers import Line, environment

_OWN = {
    0: dict.fromkeys((2, 4, 6, 8), 8 * MIB),
    90: {2: 64 * MIB, 4: 32 * MIB, 6: MIB // 2, 8: MIB // 4},
    100: {2: 2 * MIB, 4: 2 * MIB, 6: MIB, 8: MIB},
    103: {2: 4 * MIB, 4: 4 * MIB, 6: 8 * MIB, 8: 4 * MIB},
}
_TORCH = {
    0: {},
    90: {4: 32 * MIB, 6: 64 * MIB, 8: 64 * MIB},
    100: {6: 128 * MIB, 8: 128 * MIB},
    103: {6: 32 * MIB, 8: 64 * MIB},
}
"""Largest tensors of PyTorch's kernels where vLLM takes multimem."""
_SYMMETRIC = Kernel(
    "VLLM_USE_NCCL_SYMM_MEM=1",
    {0: dict.fromkeys((4, *range(8, 73)), 1 << 50)},
    {4: (MIB // 64, MIB // 2), 8: (MIB // 64, MIB // 8)},
    ("before pull 33839, 2026-02", {4: 2 * MIB, 8: MIB}),
    on_amd=False,
)
"""NCCL's symmetric memory: of 4 and 8 GPUs but for some sizes, of more for all, up to the largest
NVLink domain."""
_STAGES = {"oneshot": "1stage", "twoshot": "2stage"}
"""What VLLM_CUSTOM_ALLREDUCE_ALGO says."""


def _default(choice: Choice) -> str:
    """Its own kernels, one stage on 2 GPUs and below 512 or 256 KiB; PyTorch's; NCCL."""
    gpus, large = choice.setup.layout.n, largest(choice)
    small = MIB // 2 if gpus <= 4 else MIB // 4
    own = "oneshot" if gpus == 2 or large < small else "twoshot"
    return next((n for n in (own, "multimem") if not _SERVER.limits(n, choice)), "nccl")


def _write(name: str, comments: Sequence[str]) -> Mapping[str, str]:
    """The environment, with the option of `vllm serve` in a comment."""
    symmetric = name == "symmetric"
    lines: list[Line] = [
        *comments,
        *["Run vllm serve with --disable-custom-all-reduce."] * (name not in _STAGES),
        ("VLLM_ALLREDUCE_USE_SYMM_MEM", int(name == "multimem")),
        ("VLLM_USE_NCCL_SYMM_MEM", int(symmetric)),
        ("VLLM_CUSTOM_ALLREDUCE_ALGO", _STAGES.get(name)),
        ("NCCL_CUMEM_ENABLE", 1 if symmetric else None),
        ("NCCL_NVLS_ENABLE", 1 if symmetric else None),
    ]
    return {"vllm.env": environment(lines)}


_SERVER = Server(
    "vLLM",
    {
        "nccl": Kernel("--disable-custom-all-reduce"),
        "oneshot": Kernel("VLLM_CUSTOM_ALLREDUCE_ALGO=1stage", _OWN),
        "twoshot": Kernel("VLLM_CUSTOM_ALLREDUCE_ALGO=2stage", _OWN),
        "multimem": Kernel("VLLM_ALLREDUCE_USE_SYMM_MEM=1", _TORCH, types=("bfloat16",)),
        "symmetric": _SYMMETRIC,
    },
    _write,
    on_amd=True,
)
VLLM = _SERVER.framework("vllm", _default)
