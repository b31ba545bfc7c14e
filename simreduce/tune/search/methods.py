"""Which methods a target can be told, and with which settings of their shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from simreduce import dtypes
from simreduce.errors import InputError
from simreduce.layouts import Layout
from simreduce.scenario import Scenario
from simreduce.training.sharded import DDP, METHODS, Sharding, wrap
from simreduce.training.sharded.settings import (
    BACKWARD_PREFETCHES,
    FSDP,
    HSDP,
    UNIT_RULES,
    ZERO1,
    ZERO2,
    ZERO3,
)
from simreduce.tune.search.packings import bucket_sizes
from simreduce.workload import Model

_TOLD: Mapping[str, tuple[str, ...]] = {
    "pytorch": (DDP, FSDP, HSDP),
    "deepspeed": (DDP, ZERO1, ZERO2, ZERO3),
    "any": (DDP, *METHODS),
}
"""The methods that a target tries if the scenario names none; the others reduce only."""

_NAMED: Mapping[str, tuple[str, ...]] = {
    "pytorch": (ZERO2, ZERO3),
    "jax": (FSDP, ZERO3),
    "nccl": METHODS,
}
"""More that a target runs if the scenario names them."""

_DEEPSPEED = 500_000_000
"""Elements of DeepSpeed's `reduce_bucket_size` and `allgather_bucket_size`."""

_COARSER = {"deepspeed": 1, "jax": 1}
"""Of the sizes of units, one in so many is tried; in eight where units have other rules too."""

_HALF = "float16"

Knobs = Mapping[str, Sequence[object]]
_PYTORCH: Knobs = {
    "reshard_after_forward": (True, False),
    "backward_prefetch": BACKWARD_PREFETCHES,
    "limit_all_gathers": (2, 0),
    "forward_prefetch": (0, 1),
}
"""Arguments of FullyShardedDataParallel, its defaults first."""

_ANY: Knobs = {
    **_PYTORCH,
    "limit_all_gathers": (2, 3, 4, 0),
    "forward_prefetch": (0, 1, 2),
    "streams": (1, 2),
}


def methods_of(target: str, scenario: Scenario) -> tuple[str, ...]:
    """The methods of a step that are tried: those that the scenario names, or else all that the
    target can be told. InputError if it can be told none of those that are named.
    """
    told = _TOLD.get(target, (DDP,))
    step = scenario.step
    if step is None or step.sharding is None:
        return told
    known = (*told, *_NAMED.get(target, ()))
    found = tuple(dict.fromkeys(m for m in step.methods if m in known))
    if not found:
        words = f"{target} cannot be told {' or '.join(step.methods)}"
        raise InputError(f"{scenario.name}: {words}; it has {', '.join(known)}")
    return found


def default_sharding(target: str, scenario: Scenario) -> Sharding:
    """What a target does unless told, with the scenario's dtypes and optimizer."""
    assert scenario.step is not None  # noqa: S101 - the caller has looked
    own = scenario.step.sharding or Sharding()
    if target == "nccl":
        return own
    base = Sharding(
        param_dtype=own.param_dtype, reduce_dtype=own.reduce_dtype, optimizer=own.optimizer
    )
    if target == "deepspeed":
        width = dtypes.SIZES[scenario.workload.gradients[0].dtype]
        return replace(base, units=_DEEPSPEED * width)
    return base


def shardings_of(
    target: str, method: str, scenario: Scenario, layout: Layout, *, half: bool
) -> list[Sharding]:
    """The settings that a target can be told of a method, its default first."""
    step = scenario.step
    assert step is not None  # noqa: S101 - the caller has looked
    base = default_sharding(target, scenario)
    if target == "nccl":
        return [base]
    model = step.job.model
    units = _units(model, target, base)
    knobs = _ANY if target == "any" else _PYTORCH if target == "pytorch" else {}
    if method in (ZERO1, ZERO2):  # nothing is gathered ahead, or freed
        knobs = {key: values for key, values in knobs.items() if key == "streams"}
    groups = _groups(layout) if method == HSDP else [0]
    if not groups:
        return []
    base = replace(base, group=groups[0])
    found = [
        replace(base, units=unit, group=group, **dict(zip(knobs, values, strict=True)))  # type: ignore[arg-type]
        for unit, group, *values in product(units, groups, *knobs.values())
    ]
    if half:
        found += [replace(each, **wire) for wire in _half(base) for each in found]
    return list(dict.fromkeys([base, *found]))


def _half(base: Sharding) -> Iterator[dict[str, Any]]:
    """Half precision of reductions, and of all-gathers too."""
    code = dtypes.code(_HALF)
    if base.reduce_dtype is None and base.param_dtype is None:
        yield {"reduce_dtype": code}
        yield {"param_dtype": code, "reduce_dtype": code}


def _units(model: Model, target: str, base: Sharding) -> list[str | int]:
    """Rules by which layers are put together, those that make the same units once."""
    rules: list[str | int] = [base.units]
    if target not in _COARSER:
        rules += UNIT_RULES
    rules += bucket_sizes(model.workload.gradients)[:: _COARSER.get(target, 8)]
    found: dict[object, str | int] = {}
    for rule in rules:
        try:
            found.setdefault(tuple(unit.layers for unit in wrap(model, rule)), rule)
        except InputError:  # no layer is in a block
            continue
    return list(found.values())


def _groups(layout: Layout) -> list[int]:
    """Ranks of a shard group: 0 for those of a machine, then every other whole part of all."""
    n, sizes = layout.n, {len(task) for task in layout.tasks}
    found = [size for size in range(2, n) if n % size == 0]
    own = min(sizes) if len(sizes) == 1 else 0
    return [0, *(size for size in found if size != own)] if own in found else found
