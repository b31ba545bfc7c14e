"""How gradients are put together before they are reduced, one file each; `PACKERS` is the registry.

A packer is a frozen value with two verbs, applied on every device: `pack(builder, gradients) -> tensors` and
`unpack(builder, pieces, like) -> gradients`. Tensors follow each other in the address space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from simreduce.packing.concat_and_split import ConcatAndSplit
from simreduce.packing.none import NoPacking
from simreduce.plan import PlanBuilder, Value


class Packer(Protocol):
    """What `compile` asks of a packer."""

    def pack(self, b: PlanBuilder, gradients: Sequence[Value]) -> list[Value]:
        """The tensors to reduce, made on one device from its gradients (which are adjacent, in order)."""

    def unpack(self, b: PlanBuilder, pieces: Sequence[Value], like: Sequence[Value]) -> list[Value]:
        """Results on one device for every gradient in `like`, from the reduced pieces in address order."""


PACKERS: Mapping[str, Callable[[str], Packer]] = {"packs": ConcatAndSplit.parse}
"""Packer by the key users type after `+`; the value parses what stands after `=`."""

__all__ = ["PACKERS", "ConcatAndSplit", "NoPacking", "Packer"]
