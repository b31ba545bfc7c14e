"""FlashInfer: an argument of `allreduce_fusion`.

It runs TensorRT-LLM's kernels, by one shot up to a size: flashinfer-ai/flashinfer
flashinfer/comm/trtllm_ar.py, 01021e5, read 2026-11.
"""

from __future__ import annotations

from simreduce.export.choice import Choice
from simreduce.export.serving import MIB, Kernel, Server, largest
from simreduce.export.writers import arguments

_GPUS = {0: dict.fromkeys((2, 4, 8), (1 << 31) - (2 << 20))}
"""Bytes of its buffer at most, of the numbers of GPUs that it chooses for."""
_ONESHOT = {2: 128 * MIB, 4: 8 * MIB, 8: 42 * MIB // 16}
"""Bytes up to which it takes one shot: 512, 64 and 42 MiB over twice the GPUs; found on B200."""

_SERVER = Server(
    "FlashInfer",
    {name: Kernel(f"use_oneshot={name == 'oneshot'}", _GPUS) for name in ("twoshot", "oneshot")},
    lambda name, comments: {
        "flashinfer.args": arguments(
            [[f"use_oneshot={name == 'oneshot'}"]],
            comments=[*comments[:-1], f"{comments[-1]}: of allreduce_fusion"],
        )
    },
)


def _default(choice: Choice) -> str:
    name = "oneshot" if largest(choice) <= _ONESHOT.get(choice.setup.layout.n, 0) else "twoshot"
    return "" if _SERVER.limits(name, choice) else name


FLASHINFER = _SERVER.framework("flashinfer", _default)
