"""Published times of all-reduces by kernels, and by NCCL beside them, all launched by CUDA graphs.

`kernels.csv` has what was published, with the strategy that does the same. vLLM copies tensors to
buffers that GPUs share and back (`copies`), which its times hold. Times were printed to 1 us but
for one set.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from simreduce.files.published.reading import shipped_rows


class KernelSet(NamedTuple):
    """A publication: what it is, and whether it takes no part in any fit."""

    title: str
    held: bool


KERNEL_SETS = {
    "vllm-24532": KernelSet(
        "github.com/vllm-project/vllm/pull/24532 (2025-09-09): H100", held=False
    ),
    "vllm-37756": KernelSet(
        "github.com/vllm-project/vllm/pull/37756 (2026-03-21): B300, taken for B200; 6 GPUs, by the"
        " sizes that its table of settings gives each number",
        held=False,
    ),
    "vllm-24111": KernelSet(
        "github.com/vllm-project/vllm/pull/24111 (2025-09-02): H100", held=False
    ),
    "vllm-42324": KernelSet(
        "github.com/vllm-project/vllm/pull/42324: SM 9.0, taken for 8 H100, the last of its tables,"
        " and B200",
        held=True,
    ),
    "sglang-22734": KernelSet(
        "github.com/sgl-project/sglang/pull/22734: H200, one node, taken for 8 GPUs", held=True
    ),
}
"""By name; looked up 2026-11."""


class PublishedKernel(NamedTuple):
    """An all-reduce of `nbytes`, which took `seconds` with its `copies` of the whole tensor."""

    set: str
    machine: str
    gpus: int
    nbytes: int
    implementation: str
    strategy: str
    copies: int
    seconds: float

    @property
    def held(self) -> bool:
        """Whether its set takes no part in any fit."""
        return KERNEL_SETS[self.set].held


@cache
def published_kernels() -> tuple[PublishedKernel, ...]:
    """All of them."""
    return tuple(
        PublishedKernel(
            row["set"], row["machine"], int(row["gpus"]), int(row["size_bytes"]),
            row["implementation"], row["strategy"], int(row["copies"]),
            float(row["time_us"]) * 1e-6,
        )
        for row in shipped_rows("kernels.csv")
    )  # fmt: skip
