"""vLLM's settings of the all-reduces of tensor parallel ranks.

By default vLLM takes its own kernels for small tensors, PyTorch's symmetric memory for larger ones,
then NCCL. Names, numbers of GPUs and sizes: vllm-project/vllm csrc/custom_all_reduce.cuh and
vllm/distributed/device_communicators/{all_reduce_utils,symm_mem}.py, 00d618a, read 2026-11; NCCL's
variables: pull 24532.
"""

from __future__ import annotations

from simreduce import dtypes, units
from simreduce.export.choice import Choice, not_gradients

ENVIRONMENT = "vllm.env"
_MIB = 1 << 20
_OWN = {"oneshot": "1stage", "twoshot": "2stage"}
"""What VLLM_CUSTOM_ALLREDUCE_ALGO says, by strategy."""
_OWN_MOST = {
    90: {2: 64 * _MIB, 4: 32 * _MIB, 6: _MIB // 2, 8: _MIB // 4},
    100: {2: 2 * _MIB, 4: 2 * _MIB, 6: _MIB, 8: _MIB},
}
_OWN_ELSEWHERE = dict.fromkeys((2, 4, 6, 8), 8 * _MIB)
_TORCH_MOST = {
    90: {4: 32 * _MIB, 6: 64 * _MIB, 8: 64 * _MIB},
    100: {6: 128 * _MIB, 8: 128 * _MIB},
}
"""Largest tensors by capability and GPUs; PyTorch's where vLLM takes multimem."""
_LEAST_SYMMETRIC = 4
KNOWN = ("nccl", *_OWN, "multimem", "symmetric")
"""The strategies that it has settings for."""


def refusals(choice: Choice) -> list[str]:
    """Why vLLM has no setting for a choice."""
    strategy, found = choice.resolved, not_gradients(choice, "a tensor parallel layer")
    names = {r.algorithm for r in strategy.ranges}
    if len(names) > 1 or not names <= {*KNOWN}:
        return [*found, f"vLLM has {', '.join(KNOWN)}, one of them for all sizes"]
    if strategy.packing != "none":
        found.append("vLLM packs nothing")
    (name,), gpus, capability = names, choice.setup.layout.n, choice.setup.capability
    most: dict[int, int] | None = None
    if name in _OWN:
        most = _OWN_MOST.get(capability, _OWN_ELSEWHERE)
    elif name == "multimem":
        most = _TORCH_MOST.get(capability, {})
        if any(dtypes.NAMES[g.dtype] != "bfloat16" for g in choice.workload.gradients):
            found.append("vLLM has multimem for bfloat16 only")
    elif name == "symmetric" and gpus < _LEAST_SYMMETRIC:
        found.append(f"vLLM has symmetric for {_LEAST_SYMMETRIC} GPUs and more, not for {gpus}")
    if most is not None and gpus not in most:
        some = ", ".join(map(str, most)) or "none of this generation"
        found.append(f"vLLM has {name} for so many GPUs: {some}")
    elif most is not None:
        large = max(g.elements * dtypes.SIZES[g.dtype] for g in choice.workload.gradients)
        if large > most[gpus]:
            found.append(
                f"vLLM has {name} up to {units.exact_size(most[gpus])} on {gpus} GPUs, and a"
                f" tensor has {units.exact_size(large)}"
            )
    return found


def nearest(_: Choice) -> list[str]:
    """Strategies that vLLM has settings for, the nearest first."""
    return ["symmetric", "multimem", "oneshot", "nccl"]


def files(choice: Choice) -> dict[str, str]:
    """The environment, with the option of `vllm serve` in a comment."""
    name = choice.resolved.ranges[0].algorithm
    lines = [f"# {choice.title}"]
    if name not in _OWN:
        lines.append("# Run vllm serve with --disable-custom-all-reduce.")
    lines += [
        f"VLLM_ALLREDUCE_USE_SYMM_MEM={int(name == 'multimem')}",
        f"VLLM_USE_NCCL_SYMM_MEM={int(name == 'symmetric')}",
    ]
    if name in _OWN:
        lines.append(f"VLLM_CUSTOM_ALLREDUCE_ALGO={_OWN[name]}")
    if name == "symmetric":
        lines += ["NCCL_CUMEM_ENABLE=1", "NCCL_NVLS_ENABLE=1"]
    return {ENVIRONMENT: "\n".join([*lines, ""])}
