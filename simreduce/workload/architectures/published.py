"""Decoders by name: their figures, with where they were published, and the longest sequences."""

from __future__ import annotations

from collections.abc import Mapping

from simreduce.workload.architectures.decoder import Decoder, Latent

_PADDED = 51200
"""Words of GPT-2's vocabulary (50,257), padded as Megatron-LM's published runs have them."""


def _gpt(blocks: int, width: int, heads: int, sequence: int = 2048) -> Decoder:
    """A model of GPT-3's kind: biases, dropout, a plain feed-forward part four times as wide."""
    return Decoder(
        blocks, width, heads, heads, width // heads, 4 * width, _PADDED, sequence,
        gated=False, bias=True, dropout=True, tied=True, positions=sequence,
    )  # fmt: skip


def _llama(blocks: int, width: int, heads: int, inner: int, words: int = 128256) -> Decoder:
    return Decoder(blocks, width, heads, 8, width // heads, inner, words, 8192)


def _nemotron(blocks: int, width: int, heads: int) -> Decoder:
    """Squared ReLU, no dropout, no biases; an output of its own."""
    return Decoder(
        blocks, width, heads, 8, width // heads, 4 * width, 256000, 4096, gated=False
    )  # fmt: skip


def _qwen3(blocks: int, width: int, heads: int, expert: int) -> Decoder:
    return Decoder(
        blocks, width, heads, 4, 128, 0, 151936, 4096, experts=128, active=8, expert=expert
    )


DECODERS: Mapping[str, tuple[Decoder, int]] = {
    # Brown et al. 2020, https://arxiv.org/abs/2005.14165, table 2.1
    "gpt-3-175b": (_gpt(96, 12288, 96), 2048),
    # Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, table 3
    "megatron-22b": (_gpt(48, 6144, 64), 2048),
    "megatron-530b": (_gpt(105, 20480, 128), 2048),
    "megatron-1t": (_gpt(128, 25600, 160), 2048),
    # Grattafiori et al. 2024, https://arxiv.org/abs/2407.21783, table 3; 131,072 tokens at most
    "llama-3-8b": (_llama(32, 4096, 32, 14336), 131072),
    "llama-3-70b": (_llama(80, 8192, 64, 28672), 131072),
    "llama-3.1-405b": (_llama(126, 16384, 128, 53248), 131072),
    # Parmar et al. 2024, https://arxiv.org/abs/2402.16819, table 1
    "nemotron-4-15b": (_nemotron(32, 6144, 48), 4096),
    # Nvidia 2024, https://arxiv.org/abs/2406.11704, table 1
    "nemotron-4-340b": (_nemotron(96, 18432, 96), 4096),
    # Jiang et al. 2024, https://arxiv.org/abs/2401.04088, table 1; trained on 32,768 tokens
    "mixtral-8x7b": (
        Decoder(32, 4096, 32, 8, 128, 0, 32000, 8192, experts=8, active=2, expert=14336),
        32768,
    ),
    # https://github.com/xai-org/grok-1, run.py: feed-forward parts of 2/3 of 8 times the width
    "grok-1": (
        Decoder(
            64, 6144, 48, 8, 128, 0, 131072, 8192, experts=8, active=2, expert=32768, tied=True,
        ),
        8192,
    ),
    # DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437, section 4.2
    "deepseek-v3": (
        Decoder(
            61, 7168, 128, 128, 128, 18432, 129280, 4096, experts=256, active=8, expert=2048,
            shared=1, dense=3, latent=Latent(1536, 512, 64), limited=(4, 8),
        ),
        131072,
    ),
    # Qwen Team 2025, https://arxiv.org/abs/2505.09388, table 2, and the configurations on
    # https://huggingface.co/Qwen: trained on 4,096 tokens first, 40,960 at most
    "qwen3-30b-a3b": (_qwen3(48, 2048, 32, 768), 40960),
    "qwen3-235b-a22b": (_qwen3(94, 4096, 64, 1536), 40960),
}  # fmt: skip
