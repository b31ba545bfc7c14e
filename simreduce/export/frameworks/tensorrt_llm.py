"""TensorRT-LLM: `allreduce_strategy`.

It has one strategy for all sizes, or takes one from a table by GPUs and size. A tensor that its
workspace does not hold goes to NCCL: NVIDIA/TensorRT-LLM cpp/tensorrt_llm/common/
customAllReduceUtils.h, b78a546, cpp/tensorrt_llm/thop/allreduceOp.cpp, 01e2c36, and
`allreduce_strategy` of tensorrt_llm/llmapi/llm_args.py, read 2026-11.
"""

from __future__ import annotations

from simreduce.export.choice import Choice
from simreduce.export.serving import MIB, Kernel, Server, largest
from simreduce.export.writers import mapping, yaml

_MB = 1_000_000
_OWN = {0: {2: 16 * _MB, 4: 8 * _MB, 8: 8 * _MB}}
"""Bytes of its workspace by the GPUs of its table."""
_TWOSHOT = {90: {4: 2 * MIB, 8: MIB // 2}, 100: {4: 4 * MIB, 8: 2 * MIB}}
"""Bytes from which its table has two shots without a fusion, where a token has 2,048 elements or
more. On 4 H100 it has either of them below; on 2 GPUs one shot, but for some sizes.
"""
_NAMES = {
    "nccl": "NCCL", "oneshot": "ONESHOT", "twoshot": "TWOSHOT", "symmetric": "NCCL_SYMMETRIC",
}  # fmt: skip

_SERVER = Server(
    "TensorRT-LLM",
    {
        name: Kernel(f"allreduce_strategy: {word}", _OWN if name.endswith("shot") else {})
        for name, word in _NAMES.items()
    },
    lambda name, comments: {
        "tensorrt_llm.yaml": yaml(comments, mapping({"allreduce_strategy": _NAMES[name]}))
    },
)


def _default(choice: Choice) -> str:
    """By the table of Hopper for all that is older than Blackwell."""
    if _SERVER.limits("oneshot", choice):
        return "nccl"
    table = _TWOSHOT[100 if choice.setup.capability >= 100 else 90]
    least = table.get(choice.setup.layout.n)
    return "oneshot" if least is None or largest(choice) < least else "twoshot"


TENSORRT_LLM = _SERVER.framework("tensorrt_llm", _default)
