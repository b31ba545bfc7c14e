"""Published times of dispatch and combine, which bring tokens to experts and back.

`dispatch.csv` has the newest release of each kernel, of those with the most SMs. Bandwidths count a
token once for each rank (`nvlink`) or machine (`rdma`) that it goes to, its own among them.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from simreduce.files.published.reading import shipped_rows

TITLE = "DeepEP, README of 2025-10-14 and 2026-07-14: H800 with 400 Gbit/s a GPU, and B200"
URL = "https://github.com/deepseek-ai/DeepEP"
HIDDEN, EXPERTS, ACTIVE = 7168, 256, 8
"""DeepSeek-V3's hidden size, experts, and those of a token; dispatch in 8 bits with 4 bytes for
every 128 elements, combine in 16 bits.
"""
BYTES = {"dispatch": HIDDEN + 4 * HIDDEN // 128, "combine": 2 * HIDDEN}
"""Bytes of a token, by the direction."""


class PublishedDispatch(NamedTuple):
    """A call of `ranks`, each with `tokens`: `seconds`, or else bytes a second over a `link`."""

    kernel: str
    machine: str
    ranks: int
    tokens: int
    direction: str
    seconds: float | None
    rate: float
    link: str


@cache
def published_dispatches() -> tuple[PublishedDispatch, ...]:
    """All of them, dispatch and combine of each kernel."""
    found = []
    for row in shipped_rows("dispatch.csv"):
        for way in BYTES:
            us, gbps = row[f"{way}_us"], row[f"{way}_gbps"]
            found.append(
                PublishedDispatch(
                    row["kernel"], row["machine"], int(row["ranks"]), int(row["tokens"]), way,
                    float(us) * 1e-6 if us else None, float(gbps or 0) * 1e9,
                    row["link"],
                )
            )  # fmt: skip
    return tuple(found)
