"""Units of a sharded model: layers whose parameters are gathered together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from simreduce import dtypes
from simreduce.errors import InputError
from simreduce.training.sharded.settings import BLOCKS, LAYERS, WHOLE
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
    keys = _keys(model, rule)
    members: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        members.setdefault(key, []).append(i)
    first = [0]
    for layer in model.layers:
        first.append(first[-1] + len(layer.gradients))
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
    keys: list[str] = []
    name, held = "", least
    for layer in layers:
        size = sum(g.nbytes for g in layer.gradients)
        if (held >= least and size) or not name:
            name, held = layer.name, 0
        keys.append(name)
        held += size
    return keys
