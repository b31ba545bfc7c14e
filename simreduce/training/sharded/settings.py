"""Sharded data parallelism: methods, and settings by the names that PyTorch gives them."""

from __future__ import annotations

from dataclasses import dataclass

from simreduce import dtypes

ZERO1, ZERO2, ZERO3, FSDP, HSDP = METHODS = ("zero1", "zero2", "zero3", "fsdp", "hsdp")
"""`zero1` shards optimizer states, `zero2` gradients too, `zero3` and `fsdp` parameters too (ZeRO,
Rajbhandari et al. 2020; PyTorch's FullyShardedDataParallel, Zhao et al. 2023). `hsdp` shards within
groups of ranks and keeps a replica in each.
"""

BLOCKS, LAYERS, WHOLE = UNIT_RULES = ("blocks", "layers", "model")
PRE, POST, NONE = BACKWARD_PREFETCHES = ("pre", "post", "none")

OPTIMIZERS = {"adam": 8, "momentum": 4, "sgd": 0}
"""Bytes of state for a parameter, in float32, besides the parameter itself."""

MASTER = 4
"""Bytes of a parameter in float32."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Settings of sharded methods.

    `group` ranks hold one copy of the shards (`hsdp` only; 0: the GPUs of a machine). `units` is a
    rule of `UNIT_RULES`, a number of bytes, or "" for blocks where the model has any, else layers.

    Of a forward pass, `forward_prefetch` units besides the next are gathered ahead.
    `backward_prefetch` says when the next unit's all-gather is issued: before or after the
    backward pass of a unit, or after its reduce-scatter. An all-gather waits while
    `limit_all_gathers` freed units are still in use; 0 is no limit. With `streams` 2, gradients
    have a communicator of their own.

    Dtypes by code, of all-gathers and of reductions; None for that of the gradient list.
    """

    group: int = 0
    units: str | int = ""
    forward_prefetch: int = 0
    backward_prefetch: str = PRE
    limit_all_gathers: int = 2
    reshard_after_forward: bool = True
    param_dtype: int | None = None
    reduce_dtype: int | None = None
    optimizer: str = "adam"
    streams: int = 1

    def wire(self, listed: int) -> tuple[int, int]:
        """The dtypes of all-gathers and of reductions, where the gradient list has `listed`."""
        param = listed if self.param_dtype is None else self.param_dtype
        return param, param if self.reduce_dtype is None else self.reduce_dtype


def state_bytes(optimizer: str, param_dtype: int) -> int:
    """Return the bytes of optimizer states for a parameter.

    They include the float32 master that parameters of another dtype need.
    """
    mixed = dtypes.NAMES[param_dtype] != "float32"
    return OPTIMIZERS[optimizer] + (MASTER if mixed else 0)
