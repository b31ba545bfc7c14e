"""How gradients are put together before they are reduced, one file each; `PACKERS` is the registry.

A packer is a frozen value with one verb, `arrange(gradients) -> Arrangement`: a rule, and nothing else. `pack` and
`unpack` carry any arrangement out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simreduce.packing.arrangement import Arrangement, Field, Packer, pack, place, unpack
from simreduce.packing.concat_and_split import ConcatAndSplit
from simreduce.packing.none import NoPacking

PACKERS: Mapping[str, Callable[[str], Packer]] = {"packs": ConcatAndSplit.parse}
"""Packer by the key users type after `+`; the value parses what stands after `=`."""

__all__ = [
    "PACKERS",
    "Arrangement",
    "ConcatAndSplit",
    "Field",
    "NoPacking",
    "Packer",
    "pack",
    "place",
    "unpack",
]
