"""Stacks: the programs that train on a mesh, and what each computes besides Megatron-LM's kernels.

`deepspeed` and `maxtext` have no figures of their own: their steps are Megatron-LM's, and what
published steps of a stack are off by is in its intervals (`step_errors`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simreduce.training.eager import MEGATRON
from simreduce.training.gpus import Gpu
from simreduce.training.memory import OP, SELECTIVE

TORCHTITAN, TORCHTITAN_EAGER, DEEPSPEED, MAXTEXT = (
    "torchtitan", "torchtitan-eager", "deepspeed", "maxtext",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stack:
    """What a stack's step has, where that is not as Megatron-LM's.

    Fused attention reaches the part `attention` of the rate of GPUs from Hopper on, at most. Other
    kernels move `moves` times the bytes of fused ones. `copied` are bytes that FSDP copies for each
    parameter, forward and backward. `selective` recomputation is that policy. Without `balanced`,
    context parallel ranks have consecutive tokens. `asynchronous` tensor parallel sums hide in
    forward passes alone.

    Of each logit it holds `logit` bytes where the loss begins its backward pass. A gated part keeps
    `gated` bytes for each element of its inner width, and inputs of products in 8 bits have
    `input8` bytes an element. Where it `keeps_gathered`, inputs that tensor parallel ranks
    gathered are not gathered again.
    """

    title: str
    attention: float = 1.0
    moves: float = 1.0
    copied: tuple[float, float] = (0.0, 0.0)
    selective: str = SELECTIVE
    balanced: bool = True
    asynchronous: bool = False
    logit: float = 4.0
    gated: float = 6.0
    input8: float = 1.0
    keeps_gathered: bool = False

    def policy(self, word: str) -> str:
        """The policy of recomputation that a stack calls so."""
        return self.selective if word == SELECTIVE else word

    def adapt(self, gpu: Gpu) -> Gpu:
        """The GPU as this stack's kernels use it."""
        attention = min(gpu.attention, self.attention) if gpu.clusters else gpu.attention
        return replace(gpu, attention=attention, memory=gpu.memory / self.moves)

    def uneven(self, ranks: int) -> float:
        """The attention of the busiest context parallel rank over the mean.

        Without a balance, the last of c ranks has 2c - 1 of the c x c halves of chunks that causal
        attention computes.
        """
        return 1.0 if self.balanced else (2 * ranks - 1) / ranks


# FlashAttention 2 reaches 35 % of an H100 (Shah et al. 2024, https://arxiv.org/abs/2407.08608).
# FSDP2 copies what it gathered out of its buffer (2 bytes read and written) in both passes, and
# gradients into the one that it reduces (2 bytes read, 4 written)
# (`torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py`).
# Long sequences of 2 to 8 context parallel ranks, and Llama 3 70B with and without AsyncTP (5 % in
# step time), in `steps.csv`, are by ranks of consecutive tokens and sums that hide in forward
# passes; eager kernels move what makes the one published pair of eager and compiled steps differ.
# Logits are there in 16 bits and in 32, and so are their gradients: published steps of Llama 3 8B
# took 66.4 to 90.7 GB, and without the gradients 16 to 37 GB of that would be unaccounted for.
# torchao's products in 8 bits keep their inputs in 16; Transformer Engine's in 8
# (`pytorch/module/linear.py`), and Megatron-LM's fused SwiGLU keeps its two inputs alone.
_TITAN = Stack(
    "torchtitan, compiled",
    0.35,
    copied=(4.0, 10.0),
    selective=OP,
    balanced=False,
    asynchronous=True,
    logit=12.0,
    gated=8.0,
    input8=2.0,
    keeps_gathered=True,
)
STACKS: Mapping[str, Stack] = {
    MEGATRON: Stack("Megatron-LM"),
    TORCHTITAN: _TITAN,
    TORCHTITAN_EAGER: replace(_TITAN, title="torchtitan, eager", moves=2.5),
    DEEPSPEED: Stack("Megatron-DeepSpeed"),
    MAXTEXT: Stack("MaxText"),
}
"""By the word that `kernels` of a `[step]` with a mesh takes."""
