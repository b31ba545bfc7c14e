"""Sharded data parallelism: methods, and settings by the names that PyTorch gives them.

The table `[step.sharding]` of a scenario.

The keys of `[step]` on methods and accumulation, and which of them go together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simreduce import dtypes, units
from simreduce.errors import did_you_mean, quote
from simreduce.files.formats import (
    FLAG,
    Field,
    FieldValues,
    Format,
    OneOrMore,
    Scalar,
    choice,
    whole,
)

ZERO1, ZERO2, ZERO3, FSDP, HSDP = METHODS = ("zero1", "zero2", "zero3", "fsdp", "hsdp")
"""`zero1` shards optimizer states, `zero2` gradients too, `zero3` and `fsdp` parameters too (ZeRO,
Rajbhandari et al. 2020; PyTorch's FullyShardedDataParallel, Zhao et al. 2023). `hsdp` shards within
groups of ranks and keeps a replica in each.
"""

BLOCKS, LAYERS, WHOLE = UNIT_RULES = ("blocks", "layers", "model")
PRE, POST, NONE = BACKWARD_PREFETCHES = ("pre", "post", "none")

OPTIMIZERS = {"adam": 8, "momentum": 4, "sgd": 0}
"""Bytes of state for a parameter, in float32, besides the parameter itself."""

MASTER = 4
"""Bytes of a parameter in float32."""


@dataclass(frozen=True, slots=True)
class Sharding:
    """Settings of sharded methods.

    `group` ranks hold one copy of the shards (`hsdp` only; 0: the GPUs of a machine). `units` is a
    rule of `UNIT_RULES`, a number of bytes, or "" for blocks where the model has any, else layers.

    Of a forward pass, `forward_prefetch` units besides the next are gathered ahead.
    `backward_prefetch` says when the next unit's all-gather is issued: before or after the
    backward pass of a unit, or after its reduce-scatter. An all-gather waits while
    `limit_all_gathers` freed units are still in use; 0 is no limit. With `streams` 2, gradients
    have a communicator of their own.

    Dtypes by code, of all-gathers and of reductions; None for that of the gradient list.
    """

    group: int = 0
    units: str | int = ""
    forward_prefetch: int = 0
    backward_prefetch: str = PRE
    limit_all_gathers: int = 2
    reshard_after_forward: bool = True
    param_dtype: int | None = None
    reduce_dtype: int | None = None
    optimizer: str = "adam"
    streams: int = 1

    def wire(self, listed: int) -> tuple[int, int]:
        """The dtypes of all-gathers and of reductions, where the gradient list has `listed`."""
        param = listed if self.param_dtype is None else self.param_dtype
        return param, param if self.reduce_dtype is None else self.reduce_dtype


def state_bytes(optimizer: str, param_dtype: int) -> int:
    """Return the bytes of optimizer states for a parameter.

    They include the float32 master that parameters of another dtype need.
    """
    mixed = dtypes.NAMES[param_dtype] != "float32"
    return OPTIMIZERS[optimizer] + (MASTER if mixed else 0)


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


DDP = "ddp"
"""The method without shards."""


def some_of(known: Sequence[str], words: str = "one of") -> OneOrMore[str]:
    """One of some words, or a list of them."""

    def read(value: object) -> str:
        if isinstance(value, str) and value in known:
            return value
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ValueError(f"must be one of {', '.join(known)}, got {quote(value)}{near}")

    return OneOrMore(Scalar(f"{words} {', '.join(known)}", {"enum": list(known)}, read))


METHODS_KIND = some_of((DDP, *METHODS))


Rule = tuple[str, object, str]
"""A key, whether it is at fault, and why."""


def method_rules(values: FieldValues) -> Sequence[Rule]:
    """The faults of methods, passes, and keys that not every method has a use for."""
    methods, given = values["method"] or (DDP,), values.given
    sharded = [method for method in methods if method != DDP]
    own = values["sharding"].given if values["sharding"] else set()
    several, no_barrier = values["accumulate"] > 1, values["barrier"] is False
    weak = values["consistency"] != "strong"
    late = [method for method in methods if method not in (DDP, ZERO1, ZERO2)]
    first = sharded[0] if sharded else ""
    alone = first if DDP not in methods else ""
    mode, by_hand = "variable_update" in given, "no_sync" in given
    return (
        *(
            (key, mode and key in given, "tf_cnn_benchmarks has none; leave out variable_update")
            for key in ("method", "accumulate", "no_sync")
        ),
        ("sharding", "sharding" in given and "method" not in given,
         'is for a method; give one, such as method = "fsdp"'),
        ("sharding.group", "group" in own and HSDP not in methods and "method" not in values.faulty,
         "is for hsdp; the others share among all GPUs"),
        ("streams", alone and "streams" in given,
         f"{first} does not use it; step.sharding.streams says how many"),
        ("cycle", alone and "cycle" in given, f"{first} does not use it"),
        ("consistency", sharded and "consistency" in given and weak,
         f"{first} reduces the gradients of its own step"),
        ("barrier", no_barrier and late,
         f"{late[0] if late else ''} gathers updated parameters in the next step"),
        ("accumulate", no_barrier and several, "needs a barrier"),
        ("accumulate", several and weak, 'needs consistency = "strong"'),
        ("no_sync", by_hand and "accumulate" not in given,
         "is for a step of several passes; give accumulate"),
        ("no_sync", by_hand and "accumulate" in given and not {DDP, FSDP, HSDP} & {*methods},
         f"{methods[0]} has a rule of its own"),
    )  # fmt: skip
