"""The table `[step.sharding]` of a scenario."""

from __future__ import annotations

from simreduce import dtypes, units
from simreduce.errors import did_you_mean, quote
from simreduce.files.formats import FLAG, Field, FieldValues, Format, Scalar, choice, whole
from simreduce.training.sharded.settings import (
    BACKWARD_PREFETCHES,
    OPTIMIZERS,
    PRE,
    UNIT_RULES,
    Sharding,
)

MOST_RANKS = 10**6
_MOST_UNITS = 10**6
_FLOATS = tuple(name for name in dtypes.NAMES if "float" in name)


def _units(value: object) -> str | int:
    if isinstance(value, str) and value in UNIT_RULES:
        return value
    if not isinstance(value, str) or not any(c.isdigit() for c in value):
        near = did_you_mean(value, UNIT_RULES) if isinstance(value, str) else ""
        known = f"{', '.join(UNIT_RULES)} or a size such as '64 MB'"
        raise ValueError(f"must be {known}, got {quote(value)}{near}")
    size = units.size(value)
    if size < 1:
        raise ValueError("a unit has at least 1 byte")
    return size


_UNITS = Scalar(
    f"one of {', '.join(UNIT_RULES)}, or a size",
    {"anyOf": [{"enum": list(UNIT_RULES)}, {"type": "string", "pattern": "[0-9]"}]},
    _units,
)

SHARDING = Format(
    "sharding",
    "How sharded methods share parameters, gradients and optimizer states among the GPUs; names and"
    " defaults are PyTorch's.",
    Field("group", whole(2, MOST_RANKS), "GPUs that hold one copy of the shards, for `hsdp`.",
          default_words="those of a machine"),
    Field("units", _UNITS, "What is gathered together: `blocks` (layers whose names are alike up to"
          " the first number; the rest is the root unit), `layers`, the whole `model`, or layers up"
          " to a size such as `64 MB`.", default_words="`blocks` if there are any, else `layers`"),
    Field("forward_prefetch", whole(0, _MOST_UNITS), "Units that a forward pass gathers ahead,"
          " before it computes one; PyTorch's `true` is 1.", 0),
    Field("backward_prefetch", choice(BACKWARD_PREFETCHES, "prefetch"), "When a backward pass"
          " issues the next all-gather: `pre` (before it computes a unit), `post` (after that, but"
          " before the reduce-scatter), or `none` (after the reduce-scatter).", PRE),
    Field("limit_all_gathers", whole(0, _MOST_UNITS), "An all-gather waits while so many freed"
          " units are in use; 0 for no limit. PyTorch's `true` is 2.", 2),
    Field("reshard_after_forward", FLAG, "Whether units are freed after the forward pass, and"
          " gathered again for the backward pass.", default=True),
    Field("param_dtype", choice(_FLOATS, "dtype"), "The element type in which parameters are"
          " gathered.", default_words="the workload's"),
    Field("reduce_dtype", choice(_FLOATS, "dtype"), "The element type in which gradients are"
          " reduced.", default_words="`param_dtype`"),
    Field("optimizer", choice(tuple(OPTIMIZERS), "optimizer"), "Its states count in the memory of a"
          " device.", "adam"),
    Field("streams", whole(1, 2), "Communicators of a shard group: with 2, gradients have their"
          " own.", 1),
)  # fmt: skip


def read_sharding(values: FieldValues | None) -> Sharding:
    """The settings of a table; the defaults without one."""
    if values is None:
        return Sharding()
    given = {key: values[key] for key in SHARDING.keys if values[key] is not None}
    for key in ("param_dtype", "reduce_dtype"):
        if key in given:
            given[key] = dtypes.code(given[key])
    return Sharding(**given)
