"""No packing: every gradient is a tensor of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce.plan import PlanBuilder, Value


@dataclass(frozen=True, slots=True)
class NoPacking:
    """Gradients as they are."""

    def pack(self, b: PlanBuilder, gradients: Sequence[Value]) -> list[Value]:  # noqa: ARG002
        """The gradients themselves."""
        return list(gradients)

    def unpack(self, b: PlanBuilder, pieces: Sequence[Value], like: Sequence[Value]) -> list[Value]:  # noqa: ARG002
        """The pieces themselves: an algorithm that leaves a gradient in pieces gives several results for it."""
        return list(pieces)
