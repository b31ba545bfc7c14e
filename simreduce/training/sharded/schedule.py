"""The instructions of a sharded step, in the order PyTorch's FullyShardedDataParallel issues them.

The order of issue decides the order on each stream (torch/distributed/fsdp/_runtime_utils.py, the
hooks around a unit's passes). All-gathers and reduce-scatters of one process group share one NCCL
stream, so a reduce-scatter that is issued before an all-gather delays it (Zhao et al. 2023, section
3.3.2). That is why `backward_prefetch` issues the next all-gather first.

A unit has the layers whose parameters are gathered together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, groupby

from simreduce import dtypes
from simreduce.errors import InputError
from simreduce.training.sharded.settings import (
    BLOCKS,
    LAYERS,
    POST,
    PRE,
    WHOLE,
    ZERO1,
    ZERO2,
    ZERO3,
    Sharding,
)
from simreduce.workload import Layer, Model

_NUMBERED = re.compile(r"^(?:.*?[./])?\d+(?=[./]|$)")
"""The start of a layer's name, up to its first number: `h.3` of `h.3.mlp`."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Layers by index, with the parameters that they have, by index and in all.

    The `root` has what is in no block, and is kept from its first forward to its last backward
    pass.
    """

    name: str
    layers: tuple[int, ...]
    gradients: tuple[int, ...]
    elements: int
    root: bool = False

    def padded(self, group: int) -> int:
        """Elements of its flat parameter, a whole number on each of `group` ranks."""
        return -(-self.elements // group) * group


@dataclass(frozen=True, slots=True)
class Segment:
    """Layers of one unit that compute one after another."""

    unit: int
    layers: tuple[int, ...]


def wrap(model: Model, rule: str | int) -> tuple[Unit, ...]:
    """The units of a model, the root first, then in the order of the forward pass.

    `blocks` puts layers together whose names begin alike up to the first number, and the others
    into the root; `layers` makes a unit of each, `model` one of all, and a number of bytes closes a
    unit when it has that many. A layer without parameters belongs to the one before it. InputError
    if the model has no blocks.
    """
    members: dict[str, list[int]] = {}
    for i, key in enumerate(_keys(model, rule)):
        members.setdefault(key, []).append(i)
    first = [*accumulate((len(layer.gradients) for layer in model.layers), initial=0)]
    units = [
        Unit(
            key or "root",
            tuple(layers),
            tuple(g for i in layers for g in range(first[i], first[i + 1])),
            sum(g.elements for i in layers for g in model.layers[i].gradients),
            root=not key,
        )
        for key, layers in members.items()
    ]
    return tuple(sorted(units, key=lambda unit: not unit.root))


def largest_unit(model: Model, rule: str | int) -> int:
    """Return the most elements of a unit: the rule's bytes as elements, or the largest unit's."""
    if isinstance(rule, int):
        listed = [dtypes.SIZES[g.dtype] for layer in model.layers for g in layer.gradients]
        return max(rule // max(listed, default=1), 1)
    return max(unit.elements for unit in wrap(model, rule))


def segments(units: Sequence[Unit]) -> tuple[Segment, ...]:
    """The stretches of layers of one unit, in the order of the forward pass."""
    owner = sorted((layer, number) for number, unit in enumerate(units) for layer in unit.layers)
    return tuple(
        Segment(number, tuple(layer for layer, _ in run))
        for number, run in groupby(owner, key=lambda pair: pair[1])
    )


def _keys(model: Model, rule: str | int) -> list[str]:
    """The name of each layer's unit, "" for the root."""
    if rule == WHOLE:
        return [""] * len(model.layers)
    if isinstance(rule, int):
        return _by_bytes(model.layers, rule)
    found = [_NUMBERED.match(layer.name) for layer in model.layers]
    if rule == BLOCKS and not any(found):
        words = "no name of a layer has a number between dots, as h.0.mlp has"
        raise InputError(f'units = "{BLOCKS}": {words}; use "{LAYERS}" or a size')
    if rule == BLOCKS or (not rule and any(found)):
        return [match.group() if match else "" for match in found]
    return _by_bytes(model.layers, 1)


def _by_bytes(layers: Sequence[Layer], least: int) -> list[str]:
    """Layers in order, until each unit has `least` bytes of parameters."""
    keys, held = list[str](), least
    for layer in layers:
        size = sum(g.nbytes for g in layer.gradients)
        new = (held >= least and size) or not keys
        keys.append(layer.name if new else keys[-1])
        held = size + (0 if new else held)
    return keys


class Do(Enum):
    """Kinds of instruction.

    A unit is freed when the compute issued before has ended; its gradients are reduced then too.
    """

    GATHER = "all-gather"
    FORWARD = "forward"
    BACKWARD = "backward"
    FREE = "free"
    REDUCE = "reduce"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a schedule: `layers` compute in this order; `unit` is -1 for the update."""

    do: Do
    unit: int
    layers: tuple[int, ...] = ()


def schedule(
    method: str,
    units: Sequence[Unit],
    sharding: Sharding,
    passes: int = 1,
    *,
    no_sync: bool = True,
    barrier: bool = True,
) -> tuple[Instruction, ...]:
    """The instructions of one step of so many `passes`.

    `zero1` and `zero2` keep all parameters: each unit is gathered after the update, or without a
    `barrier` during the next forward pass. `zero1` reduces in the last pass, `zero2` and `zero3` in
    every one, as they hold no whole gradients; others in the last, or in every one without
    `no_sync`.
    """
    writer = _Writer(tuple(units), segments(units), sharding)
    sharded = method not in (ZERO1, ZERO2)
    late = {ZERO1: True, ZERO2: False, ZERO3: False}.get(method, no_sync)
    if not sharded and not barrier:
        writer.gather_all()
    for number in range(passes):
        sync = number == passes - 1 or not late
        if sharded:
            writer.forward()
            writer.backward(sync=sync)
        else:
            writer.whole_pass(sync=sync)
    writer.out.append(Instruction(Do.UPDATE, -1))
    if not sharded and barrier:
        writer.gather_all()
    return tuple(writer.out)


class _Writer:
    """Writes instructions, and knows which units are gathered."""

    def __init__(
        self, units: tuple[Unit, ...], stretches: tuple[Segment, ...], sharding: Sharding
    ) -> None:
        self._units, self._segments, self._sharding = units, stretches, sharding
        self._here: set[int] = set()
        self.out: list[Instruction] = []

    def forward(self) -> None:
        """Every unit is gathered before it computes, and freed after, but for the root."""
        ahead = self._sharding.forward_prefetch
        for unit in dict.fromkeys(s.unit for s in self._segments):
            if self._units[unit].root:
                self._gather(unit)
        for i, segment in enumerate(self._segments):
            self._gather(segment.unit)
            following = dict.fromkeys(s.unit for s in self._segments[i + 1 :])
            self._gather(*[u for u in following if u != segment.unit][:ahead])
            self._compute(Do.FORWARD, segment)
            if self._sharding.reshard_after_forward and not self._units[segment.unit].root:
                self._free(segment.unit)

    def backward(self, *, sync: bool) -> None:
        """In reverse; with `sync` each unit's gradients are reduced after its last pass.

        Without it, parameters stay where they stay after a forward pass.
        """
        prefetch, reshard = self._sharding.backward_prefetch, self._sharding.reshard_after_forward
        turned = self._segments[::-1]
        for i, segment in enumerate(turned):
            unit = segment.unit
            following = [s.unit for s in turned[i + 1 :] if s.unit != unit][:1]
            done = all(s.unit != unit for s in turned[i + 1 :])
            self._gather(unit)
            if prefetch == PRE:
                self._gather(*following)
            self._compute(Do.BACKWARD, segment)
            if (done and (sync or reshard)) or (reshard and not self._units[unit].root):
                self._free(unit)
            if prefetch == POST:
                self._gather(*following)
            if done and sync:
                self._reduce(unit)

    def whole_pass(self, *, sync: bool) -> None:
        """Both passes where every parameter is there."""
        for segment in self._segments:
            self._compute(Do.FORWARD, segment)
        for i, segment in enumerate(turned := self._segments[::-1]):
            self._compute(Do.BACKWARD, segment)
            if sync and all(s.unit != segment.unit for s in turned[i + 1 :]):
                self._reduce(segment.unit)

    def gather_all(self) -> None:
        """Every unit, in the order of the forward pass."""
        self._gather(*dict.fromkeys(s.unit for s in self._segments))

    def _gather(self, *units: int) -> None:
        for unit in units:
            if unit not in self._here and self._units[unit].elements:
                self.out.append(Instruction(Do.GATHER, unit))
                self._here.add(unit)

    def _free(self, unit: int) -> None:
        if unit in self._here:
            self.out.append(Instruction(Do.FREE, unit))
            self._here.remove(unit)

    def _compute(self, do: Do, segment: Segment) -> None:
        layers = segment.layers if do == Do.FORWARD else segment.layers[::-1]
        self.out.append(Instruction(do, segment.unit, layers))

    def _reduce(self, unit: int) -> None:
        if self._units[unit].elements:
            self.out.append(Instruction(Do.REDUCE, unit))


def most_gathered(
    instructions: Sequence[Instruction],
    units: Sequence[Unit],
    sizes: Sequence[int],
    sharding: Sharding,
) -> int:
    """Upper limit of the bytes that gathered units hold, where unit i has `sizes[i]`.

    While an all-gather is issued, at most `limit_all_gathers` - 1 freed units are still in use, and
    besides the new one those that were prefetched. Units are freed in the order in which they were
    gathered, so they are the latest few; the root comes on top, and again where a further pass
    gathers it while it is in use. Where units stay after the forward pass, these are all units of a
    pass; without a limit, all that the step gathers.
    """
    gathers = [i.unit for i in instructions if i.do == Do.GATHER]
    blocks = [sizes[unit] for unit in gathers if not units[unit].root]
    roots = [sizes[unit] for unit in gathers if units[unit].root]
    most = len(blocks)
    if sharding.limit_all_gathers and sharding.reshard_after_forward:
        ahead = max(sharding.forward_prefetch, int(sharding.backward_prefetch == PRE))
        most = min(sharding.limit_all_gathers + ahead, most)
    elif sharding.limit_all_gathers:
        kept = len({unit for unit in gathers if not units[unit].root})
        most = min(sharding.limit_all_gathers - 1 + kept, most)
    held = [sum(blocks[i : i + most]) for i in range(max(len(blocks) - most + 1, 1))]
    return sum(roots[:2]) + max(held, default=0)
