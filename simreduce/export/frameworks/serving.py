"""Libraries that serve models, and their all-reduces of tensor parallel ranks.

vLLM: its environment, and options of `vllm serve`.

It takes its own kernels for small tensors, PyTorch's symmetric memory for larger ones, then NCCL.
Where it is told to use NCCL's symmetric memory, it takes that first, but for sizes that it leaves
to its own kernels. Names, numbers of GPUs and sizes: vllm-project/vllm csrc/custom_all_reduce.cuh
and vllm/distributed/device_communicators/{all_reduce_utils,symm_mem}.py, 00d618a, read 2026-11;
NCCL's variables: pull 24532; sizes of older versions: pull 33839.

TensorRT-LLM: `allreduce_strategy`.

It has one strategy for all sizes, or takes one from a table by GPUs and size. A tensor that its
workspace does not hold goes to NCCL: NVIDIA/TensorRT-LLM cpp/tensorrt_llm/common/
customAllReduceUtils.h, b78a546, cpp/tensorrt_llm/thop/allreduceOp.cpp, 01e2c36, and
`allreduce_strategy` of tensorrt_llm/llmapi/llm_args.py, read 2026-11.

FlashInfer: an argument of `allreduce_fusion`.

It runs TensorRT-LLM's kernels, by one shot up to a size: flashinfer-ai/flashinfer
flashinfer/comm/trtllm_ar.py, 01021e5, read 2026-11.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from simreduce import dtypes, units
from simreduce.computing import group_by
from simreduce.export.framework import Choice, Framework, holding, not_gradients
from simreduce.export.writers import Line, arguments, environment, mapping, yaml
from simreduce.units import MIB


@dataclass(frozen=True, slots=True)
class Kernel:
    """An all-reduce that a library has: what switches it on.

    It runs on so many GPUs as `most` has for their compute capability, or else for 0, up to so many
    bytes, and on any number where that is empty; between the two sizes of `left_out`, by GPUs, the
    library runs another. Versions `before` some pull run it from other sizes on, by GPUs. `types`
    are those of its elements; empty for all. Some are not `on_amd`'s GPUs.
    """

    switch: str
    most: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
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

    `write` makes its files of a strategy and the first comments. `on_amd` says whether it runs on
    AMD's GPUs.
    """

    title: str
    kernels: Mapping[str, Kernel]
    write: Callable[[str, Sequence[str]], Mapping[str, str]]
    on_amd: bool = False

    def refusals(self, choice: Choice) -> list[str]:
        """Why it has no setting for a choice."""
        strategy, found = choice.resolved, not_gradients(choice, "a tensor parallel layer")
        names = {r.algorithm for r in strategy.ranges}
        if len(names) > 1 or not names <= {*self.kernels}:
            known = ", ".join(self.kernels)
            return [*found, f"{self.title} has {known}, one of them for all sizes"]
        found += holding(
            {
                f"{self.title} packs nothing": strategy.packing != "none",
                f"{self.title} runs on NVIDIA's GPUs": (
                    choice.facts.library != "nccl" and not self.on_amd
                ),
            }
        )
        return [*found, *self.limits(names.pop(), choice)]

    def limits(self, name: str, choice: Choice) -> list[str]:
        """Why a kernel does not run so many GPUs, so many bytes or such elements."""
        kernel, gpus, has = self.kernels[name], choice.setup.layout.n, f"{self.title} has {name}"
        types = {dtypes.NAMES[g.dtype] for g in choice.workload.gradients}
        found = holding(
            {
                f"{has} for {' and '.join(kernel.types)} only": (
                    kernel.types and not types <= {*kernel.types}
                ),
                f"{has} on NVIDIA's GPUs only": choice.facts.library != "nccl"
                and not kernel.on_amd,
            }
        )
        if not kernel.most:
            return found
        most = kernel.most.get(choice.setup.capability, kernel.most[0])
        if gpus not in most:
            some = _spans(most) or "none of this generation"
            return [*found, f"{has} for so many GPUs: {some}"]
        size, large = units.exact_size, largest(choice)
        low, high = kernel.left_out.get(gpus, (0, 0))
        sizes = (gradient.nbytes for gradient in choice.workload.gradients)
        between = next((nbytes for nbytes in sizes if low < nbytes < high), 0)
        words = f"{has} on {gpus} GPUs {kernel.sizes(gpus)}"
        return found + holding(
            {
                f"{has} up to {size(most[gpus])} on {gpus} GPUs, and a tensor has {size(large)}": (
                    large > most[gpus]
                ),
                f"{words}; a tensor has {size(between)}": between,
            }
        )

    def files(self, choice: Choice) -> Mapping[str, str]:
        """The files of a choice by name."""
        name = choice.resolved.ranges[0].algorithm
        sizes, gpus = self.kernels[name].sizes(choice.setup.layout.n), choice.setup.layout.n
        which = f"{self.title} runs it on {gpus} GPUs for tensors {sizes}."
        return self.write(name, [choice.title, *[which] * bool(sizes)])

    def framework(
        self, name: str, default: Callable[[Choice], str], asked: tuple[str, ...]
    ) -> Framework:
        """The library as commands know it, with the strategy that it takes by itself."""
        return Framework(
            name,
            self.title,
            self.files,
            self.refusals,
            lambda _: [*self.kernels][::-1],
            default=default,
            switches={name: kernel.switch for name, kernel in self.kernels.items()},
            trains=False,
            by_plans=True,
            asked=asked,
        )


def largest(choice: Choice) -> int:
    """Bytes of the largest tensor."""
    return max(gradient.nbytes for gradient in choice.workload.gradients)


def _spans(numbers: Iterable[int]) -> str:
    """`4, 8 to 72` of ascending numbers."""
    runs = group_by(enumerate(numbers), lambda pair: pair[1] - pair[0]).values()
    spans = ((run[0][1], run[-1][1]) for run in runs)
    return ", ".join(f"{low} to {high}" if low < high else f"{low}" for low, high in spans)


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
_KERNELS_READ = (
    "Without --fail-on-environ-validation: vLLM does not know VLLM_CUSTOM_ALLREDUCE_ALGO, which its"
    " kernels read."
)
"""0.33.0, asked."""


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
        _KERNELS_READ if name in _STAGES else "Run vllm serve with --disable-custom-all-reduce.",
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
VLLM = _SERVER.framework("vllm", _default, asked=("vLLM 0.33.0, 2026-12-01",))


_MB = 1_000_000
_TENSORRT_LLM_OWN = {0: {2: 16 * _MB, 4: 8 * _MB, 8: 8 * _MB}}
"""Bytes of its workspace by the GPUs of its table."""
_TWOSHOT = {90: {4: 2 * MIB, 8: MIB // 2}, 100: {4: 4 * MIB, 8: 2 * MIB}}
"""Bytes from which its table has two shots without a fusion, where a token has 2,048 elements or
more. On 4 H100 it has either of them below; on 2 GPUs one shot, but for some sizes.
"""
_NAMES = {
    "nccl": "NCCL", "oneshot": "ONESHOT", "twoshot": "TWOSHOT", "symmetric": "NCCL_SYMMETRIC",
}  # fmt: skip

_TENSORRT_LLM_SERVER = Server(
    "TensorRT-LLM",
    {
        name: Kernel(
            f"allreduce_strategy: {word}", _TENSORRT_LLM_OWN if name.endswith("shot") else {}
        )
        for name, word in _NAMES.items()
    },
    lambda name, comments: {
        "tensorrt_llm.yaml": yaml(comments, mapping({"allreduce_strategy": _NAMES[name]}))
    },
)


def _tensorrt_llm_default(choice: Choice) -> str:
    """By the table of Hopper for all that is older than Blackwell."""
    if _TENSORRT_LLM_SERVER.limits("oneshot", choice):
        return "nccl"
    table = _TWOSHOT[100 if choice.setup.capability >= 100 else 90]
    least = table.get(choice.setup.layout.n)
    return "oneshot" if least is None or largest(choice) < least else "twoshot"


TENSORRT_LLM = _TENSORRT_LLM_SERVER.framework("tensorrt_llm", _tensorrt_llm_default, asked=())


_GPUS = {0: dict.fromkeys((2, 4, 8), (1 << 31) - (2 << 20))}
"""Bytes of its buffer at most, of the numbers of GPUs that it chooses for."""
_ONESHOT = {2: 128 * MIB, 4: 8 * MIB, 8: 42 * MIB // 16}
"""Bytes up to which it takes one shot: 512, 64 and 42 MiB over twice the GPUs; found on B200."""

_FLASHINFER_SERVER = Server(
    "FlashInfer",
    {name: Kernel(f"use_oneshot={name == 'oneshot'}", _GPUS) for name in ("twoshot", "oneshot")},
    lambda name, comments: {
        "flashinfer.args": arguments(
            [[f"use_oneshot={name == 'oneshot'}"]],
            comments=[*comments[:-1], f"{comments[-1]}: of allreduce_fusion"],
        )
    },
)


def _flashinfer_default(choice: Choice) -> str:
    name = "oneshot" if largest(choice) <= _ONESHOT.get(choice.setup.layout.n, 0) else "twoshot"
    return "" if _FLASHINFER_SERVER.limits(name, choice) else name


FLASHINFER = _FLASHINFER_SERVER.framework(
    "flashinfer", _flashinfer_default, asked=("FlashInfer 0.7.4, 2026-12-01",)
)
