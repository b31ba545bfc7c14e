"""Settings of the all-reduces of tensor parallel ranks, by the libraries that serve models.

vLLM takes its own kernels for small tensors, PyTorch's symmetric memory for larger ones, then NCCL.
Where it is told to use NCCL's symmetric memory, it takes that first, but for sizes that it leaves
to its own kernels. Names, numbers of GPUs and sizes: vllm-project/vllm csrc/custom_all_reduce.cuh
and vllm/distributed/device_communicators/{all_reduce_utils,symm_mem}.py, 00d618a, read 2026-11;
NCCL's variables: pull 24532; sizes of older versions: pull 33839.

TensorRT-LLM has one strategy for all sizes, or takes one from a table by GPUs and size. A tensor
that its workspace does not hold goes to NCCL: NVIDIA/TensorRT-LLM
cpp/tensorrt_llm/common/customAllReduceUtils.h, b78a546, cpp/tensorrt_llm/thop/allreduceOp.cpp,
01e2c36, and `allreduce_strategy` of tensorrt_llm/llmapi/llm_args.py, read 2026-11.

FlashInfer's `allreduce_fusion` runs TensorRT-LLM's kernels, by one shot up to a size:
flashinfer-ai/flashinfer flashinfer/comm/trtllm_ar.py, 01021e5, read 2026-11.

PyTorch's operators are in pytorch/pytorch torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.cpp.
Its calls of NCCL run symmetric kernels on tensors of a `MemPool` of the backend's `mem_allocator`
that `register_mem_pool(pool, symm=True)` registers by ncclCommWindowRegister, from torch 2.9 on
(docs.nvidia.com/megatron-core/developer-guide/0.20.0, core.allocator.vmm_symm_allocator).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from simreduce import dtypes, units
from simreduce.export.choice import Choice, not_gradients
from simreduce.export.writers import Line, arguments, environment, mapping, yaml

_MIB = 1 << 20
_MB = 1_000_000
_BF16 = ("bfloat16",)
_NEWER = 100
"""The compute capability of Blackwell, 10.0."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """An all-reduce that a library has: what switches it on.

    It runs on so many GPUs as `most` has, up to so many bytes, on any number where that is None;
    between the two sizes of `left_out`, by GPUs, the library runs another. Versions `before` some
    pull run it from other sizes on, by GPUs. `types` are those of its elements; empty for all. Some
    are not `on_amd`'s GPUs.
    """

    switch: str
    most: Callable[[int], Mapping[int, int]] | None = None
    left_out: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    before: tuple[str, Mapping[int, int]] = ("", {})
    types: tuple[str, ...] = ()
    on_amd: bool = True

    def sizes(self, gpus: int) -> str:
        """From and up to which sizes the library runs it, by version; "" of all sizes."""
        if gpus not in self.left_out:
            return ""
        low, high = map(units.exact_size, self.left_out[gpus])
        when, least = self.before
        older = f" ({when}: from {units.exact_size(least[gpus])} on)" if gpus in least else ""
        return f"up to {low} and from {high} on{older}"


@dataclass(frozen=True)
class Server:
    """A library with its all-reduces by strategy, NCCL's first.

    `default` is the strategy that it takes by itself, by capability, GPUs, bytes and type. `write`
    makes its files of a strategy and the first comments. `on_amd` says whether it runs on AMD's
    GPUs.
    """

    title: str
    kernels: Mapping[str, Kernel]
    default: Callable[[Choice], str]
    write: Callable[[str, Sequence[str]], Mapping[str, str]]
    on_amd: bool = False

    def refusals(self, choice: Choice) -> list[str]:
        """Why it has no setting for a choice."""
        strategy, found = choice.resolved, not_gradients(choice, "a tensor parallel layer")
        names = {r.algorithm for r in strategy.ranges}
        if len(names) > 1 or not names <= {*self.kernels}:
            known = ", ".join(self.kernels)
            return [*found, f"{self.title} has {known}, one of them for all sizes"]
        if strategy.packing != "none":
            found.append(f"{self.title} packs nothing")
        if choice.facts.library != "nccl" and not self.on_amd:
            found.append(f"{self.title} runs on NVIDIA's GPUs")
        (name,) = names
        return [*found, *self.limits(name, choice)]

    def limits(self, name: str, choice: Choice) -> list[str]:
        """Why a kernel does not run so many GPUs, so many bytes or such elements."""
        kernel, found, gpus = self.kernels[name], list[str](), choice.setup.layout.n
        if kernel.types and not _types(choice) <= {*kernel.types}:
            found.append(f"{self.title} has {name} for {' and '.join(kernel.types)} only")
        if choice.facts.library != "nccl" and not kernel.on_amd:
            found.append(f"{self.title} has {name} on NVIDIA's GPUs only")
        if kernel.most is None:
            return found
        most = kernel.most(choice.setup.capability)
        if gpus not in most:
            some = _spans(most) or "none of this generation"
            found.append(f"{self.title} has {name} for so many GPUs: {some}")
        elif (large := _largest(choice)) > most[gpus]:
            found.append(
                f"{self.title} has {name} up to {units.exact_size(most[gpus])} on {gpus} GPUs, and"
                f" a tensor has {units.exact_size(large)}"
            )
        low, high = kernel.left_out.get(gpus, (0, 0))
        between = [size for size in _sizes(choice) if low < size < high]
        if between:
            words = f"{self.title} has {name} on {gpus} GPUs {kernel.sizes(gpus)}"
            found.append(f"{words}; a tensor has {units.exact_size(between[0])}")
        return found

    def nearest(self, _: Choice) -> list[str]:
        """Strategies that it has settings for, the nearest first."""
        return [*self.kernels][::-1]

    def files(self, choice: Choice) -> Mapping[str, str]:
        """The files of a choice by name."""
        name = choice.resolved.ranges[0].algorithm
        sizes, gpus = self.kernels[name].sizes(choice.setup.layout.n), choice.setup.layout.n
        which = f"{self.title} runs it on {gpus} GPUs for tensors {sizes}."
        return self.write(name, [choice.title, *[which] * bool(sizes)])


def _types(choice: Choice) -> set[str]:
    return {dtypes.NAMES[g.dtype] for g in choice.workload.gradients}


def _sizes(choice: Choice) -> list[int]:
    return [g.elements * dtypes.SIZES[g.dtype] for g in choice.workload.gradients]


def _largest(choice: Choice) -> int:
    return max(_sizes(choice))


def _spans(numbers: Iterable[int]) -> str:
    """`4, 8 to 72`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{low} to {high}" if low < high else f"{low}" for low, high in spans)


def _by_capability(
    known: Mapping[int, Mapping[int, int]], otherwise: Mapping[int, int]
) -> Callable[[int], Mapping[int, int]]:
    """The largest tensors by GPUs, as a function of the capability."""
    return lambda capability: known.get(capability, otherwise)


_VLLM_OWN = _by_capability(
    {
        90: {2: 64 * _MIB, 4: 32 * _MIB, 6: _MIB // 2, 8: _MIB // 4},
        100: {2: 2 * _MIB, 4: 2 * _MIB, 6: _MIB, 8: _MIB},
        103: {2: 4 * _MIB, 4: 4 * _MIB, 6: 8 * _MIB, 8: 4 * _MIB},
    },
    dict.fromkeys((2, 4, 6, 8), 8 * _MIB),
)
_VLLM_TORCH = _by_capability(
    {
        90: {4: 32 * _MIB, 6: 64 * _MIB, 8: 64 * _MIB},
        100: {6: 128 * _MIB, 8: 128 * _MIB},
        103: {6: 32 * _MIB, 8: 64 * _MIB},
    },
    {},
)
"""Largest tensors of PyTorch's kernels where vLLM takes multimem."""
_VLLM_SYMMETRIC = Kernel(
    "VLLM_USE_NCCL_SYMM_MEM=1",
    _by_capability({}, dict.fromkeys((4, *range(8, 73)), 1 << 50)),
    {4: (_MIB // 64, _MIB // 2), 8: (_MIB // 64, _MIB // 8)},
    ("before pull 33839, 2026-02", {4: 2 * _MIB, 8: _MIB}),
    on_amd=False,
)
"""NCCL's symmetric memory: of 4 and 8 GPUs but for some sizes, of more for all, up to the largest
NVLink domain."""
_VLLM_STAGES = {"oneshot": "1stage", "twoshot": "2stage"}
"""What VLLM_CUSTOM_ALLREDUCE_ALGO says."""


def _vllm_default(choice: Choice) -> str:
    """Its own kernels, one stage on 2 GPUs and below 512 or 256 KiB; PyTorch's; NCCL."""
    gpus, large = choice.setup.layout.n, _largest(choice)
    small = _MIB // 2 if gpus <= 4 else _MIB // 4
    own = "oneshot" if gpus == 2 or large < small else "twoshot"
    return next((n for n in (own, "multimem") if not VLLM.limits(n, choice)), "nccl")


def _write_vllm(name: str, comments: Sequence[str]) -> Mapping[str, str]:
    """The environment, with the option of `vllm serve` in a comment."""
    lines: list[Line] = [*comments]
    if name not in _VLLM_STAGES:
        lines.append("Run vllm serve with --disable-custom-all-reduce.")
    lines += [
        ("VLLM_ALLREDUCE_USE_SYMM_MEM", int(name == "multimem")),
        ("VLLM_USE_NCCL_SYMM_MEM", int(name == "symmetric")),
    ]
    if name in _VLLM_STAGES:
        lines.append(("VLLM_CUSTOM_ALLREDUCE_ALGO", _VLLM_STAGES[name]))
    if name == "symmetric":
        lines += [("NCCL_CUMEM_ENABLE", 1), ("NCCL_NVLS_ENABLE", 1)]
    return {"vllm.env": environment(lines)}


VLLM = Server(
    "vLLM",
    {
        "nccl": Kernel("--disable-custom-all-reduce"),
        "oneshot": Kernel("VLLM_CUSTOM_ALLREDUCE_ALGO=1stage", _VLLM_OWN),
        "twoshot": Kernel("VLLM_CUSTOM_ALLREDUCE_ALGO=2stage", _VLLM_OWN),
        "multimem": Kernel("VLLM_ALLREDUCE_USE_SYMM_MEM=1", _VLLM_TORCH, types=_BF16),
        "symmetric": _VLLM_SYMMETRIC,
    },
    _vllm_default,
    _write_vllm,
    on_amd=True,
)

_TENSORRT_OWN = _by_capability({}, {2: 16 * _MB, 4: 8 * _MB, 8: 8 * _MB})
"""Bytes of its workspace by the GPUs of its table."""
_TENSORRT_TWOSHOT = {90: {4: 2 * _MIB, 8: _MIB // 2}, 100: {4: 4 * _MIB, 8: 2 * _MIB}}
"""Bytes from which its table has two shots without a fusion, where a token has 2,048 elements or
more. On 4 H100 it has either of them below; on 2 GPUs one shot, but for some sizes.
"""


def _tensorrt_default(choice: Choice) -> str:
    """By the table of Hopper for all that is older than Blackwell."""
    if TENSORRT_LLM.limits("oneshot", choice):
        return "nccl"
    table = _TENSORRT_TWOSHOT[100 if choice.setup.capability >= _NEWER else 90]
    least = table.get(choice.setup.layout.n)
    return "oneshot" if least is None or _largest(choice) < least else "twoshot"


_TENSORRT_NAMES = {
    "nccl": "NCCL", "oneshot": "ONESHOT", "twoshot": "TWOSHOT", "symmetric": "NCCL_SYMMETRIC",
}  # fmt: skip

TENSORRT_LLM = Server(
    "TensorRT-LLM",
    {
        name: Kernel(
            f"allreduce_strategy: {word}", _TENSORRT_OWN if name.endswith("shot") else None
        )
        for name, word in _TENSORRT_NAMES.items()
    },
    _tensorrt_default,
    lambda name, comments: {
        "tensorrt_llm.yaml": yaml(comments, mapping({"allreduce_strategy": _TENSORRT_NAMES[name]}))
    },
)

_FLASHINFER_GPUS = _by_capability({}, dict.fromkeys((2, 4, 8), (1 << 31) - (2 << 20)))
"""Bytes of its buffer at most, of the numbers of GPUs that it chooses for."""
_FLASHINFER_ONESHOT = {2: 128 * _MIB, 4: 8 * _MIB, 8: 42 * _MIB // 16}
"""Bytes up to which it takes one shot: 512, 64 and 42 MiB over twice the GPUs; found on B200."""


def _flashinfer_default(choice: Choice) -> str:
    most = _FLASHINFER_ONESHOT.get(choice.setup.layout.n, 0)
    name = "oneshot" if _largest(choice) <= most else "twoshot"
    return "" if FLASHINFER.limits(name, choice) else name


FLASHINFER = Server(
    "FlashInfer",
    {
        name: Kernel(f"use_oneshot={name == 'oneshot'}", _FLASHINFER_GPUS)
        for name in ("twoshot", "oneshot")
    },
    _flashinfer_default,
    lambda name, comments: {
        "flashinfer.args": arguments(
            [[f"use_oneshot={name == 'oneshot'}"]],
            comments=[*comments[:-1], f"{comments[-1]}: of allreduce_fusion"],
        )
    },
)

PYTORCH: Mapping[str, str] = {
    "nccl": "torch.distributed.all_reduce",
    "oneshot": "torch.ops.symm_mem.one_shot_all_reduce",
    "twoshot": "torch.ops.symm_mem.two_shot_all_reduce_",
    "multimem": "torch.ops.symm_mem.multimem_all_reduce_",
    "symmetric": "torch.distributed.all_reduce after register_mem_pool(pool, symm=True)",
}
"""PyTorch's calls, of tensors in its symmetric memory, in a pool, or, by `nccl`, anywhere."""
