"""Sharded data parallelism: ZeRO's stages, PyTorch's FSDP, and FSDP with replicas.

Sharded data parallelism: methods, and settings by the names that PyTorch gives them.

The table `[step.sharding]` of a scenario.

The keys of `[step]` on methods and accumulation, and which of them go together.

The instructions of a sharded step, in the order PyTorch's FullyShardedDataParallel issues them.

The order of issue decides the order on each stream (torch/distributed/fsdp/_runtime_utils.py, the
hooks around a unit's passes). All-gathers and reduce-scatters of one process group share one NCCL
stream, so a reduce-scatter that is issued before an all-gather delays it (Zhao et al. 2023, section
3.3.2). That is why `backward_prefetch` issues the next all-gather first.

A unit has the layers whose parameters are gathered together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, groupby
from types import MappingProxyType

from simreduce import dtypes, units
from simreduce.computing import grouped
from simreduce.errors import InputError, did_you_mean, quote
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
from simreduce.workload import Layer, Model

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
    have a communicator of their own. Without `overlap`, a reduction ends before the backward pass
    goes on.

    Dtypes by code, of all-gathers and of reductions; None for that of the gradient list. If `pure`,
    shards and optimizer states have the parameters' dtype too, and there are no masters.
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
    overlap: bool = True
    pure: bool = False

    @property
    def plain(self) -> Sharding:
        """The dtypes and the optimizer alone, which `tune` leaves as they are."""
        return Sharding(
            param_dtype=self.param_dtype, reduce_dtype=self.reduce_dtype, optimizer=self.optimizer,
            pure=self.pure,
        )  # fmt: skip

    def wire(self, listed: int) -> tuple[int, int]:
        """The dtypes of all-gathers and of reductions, where the gradient list has `listed`."""
        param = listed if self.param_dtype is None else self.param_dtype
        return param, param if self.reduce_dtype is None else self.reduce_dtype


def state_bytes(optimizer: str, param_dtype: int, *, pure: bool = False) -> int:
    """Return the bytes of optimizer states for a parameter.

    They include the float32 master that parameters of another dtype need unless all is `pure`.
    """
    if pure:
        return OPTIMIZERS[optimizer] * dtypes.SIZES[param_dtype] // MASTER
    return OPTIMIZERS[optimizer] + (0 if dtypes.NAMES[param_dtype] == "float32" else MASTER)


MOST_RANKS = 10**6
_MOST_UNITS = 10**6
_FLOAT = choice(tuple(name for name in dtypes.NAMES if "float" in name), "dtype")
_DTYPE = Scalar(_FLOAT.words, _FLOAT.schema, lambda value: dtypes.code(_FLOAT.read(value)))
"""The code of a dtype that gradients may have, by its name."""


def _units(value: object) -> str | int:
    if isinstance(value, str) and value in UNIT_RULES:
        return value
    if not isinstance(value, str) or not any(c.isdigit() for c in value):
        near = did_you_mean(value, UNIT_RULES) if isinstance(value, str) else ""
        raise ValueError(
            f"must be {', '.join(UNIT_RULES)} or a size such as '64 MB', got {quote(value)}{near}"
        )
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
          " to a size such as `64 MB`.", default_words="`blocks` if there are any, else `layers`;"
          ' with `framework = "deepspeed"` its 500,000,000 elements'),
    Field("forward_prefetch", whole(0, _MOST_UNITS), "Units that a forward pass gathers ahead,"
          " before it computes one; PyTorch's `true` is 1.", 0),
    Field("backward_prefetch", choice(BACKWARD_PREFETCHES, "prefetch"), "When a backward pass"
          " issues the next all-gather: `pre` (before it computes a unit), `post` (after that, but"
          " before the reduce-scatter), or `none` (after the reduce-scatter).", PRE),
    Field("limit_all_gathers", whole(0, _MOST_UNITS), "An all-gather waits while so many freed"
          " units are in use; 0 for no limit. PyTorch's `true` is 2.", 2),
    Field("reshard_after_forward", FLAG, "Whether units are freed after the forward pass, and"
          " gathered again for the backward pass.", default=True),
    Field("param_dtype", _DTYPE, "The element type in which parameters are"
          " gathered.", default_words="the workload's"),
    Field("reduce_dtype", _DTYPE, "The element type in which gradients are"
          " reduced.", default_words="`param_dtype`"),
    Field("optimizer", choice(tuple(OPTIMIZERS), "optimizer"), "Its states count in the memory of a"
          " device, and in what the update of `gpu` moves.", "adam"),
    Field("streams", whole(1, 2), "Communicators of a shard group: with 2, gradients have their"
          " own.", 1),
    Field("overlap", FLAG, "Whether gradients are reduced beside the backward pass; it waits for"
          " every reduction else. DeepSpeed's `overlap_comm`.", default=True),
)  # fmt: skip


def read_sharding(values: FieldValues | None) -> Sharding:
    """The settings of a table; the defaults without one."""
    return Sharding(**{key: value for key, value in (values or {}).items() if value is not None})


DDP = "ddp"
"""The method without shards."""


def some_of(
    known: Sequence[str], words: str = "one of", same: Mapping[str, str] = MappingProxyType({})
) -> OneOrMore[str]:
    """One of some words, or a list of them; some are the `same` as others."""

    def read(value: object) -> str:
        if isinstance(value, str) and value in known:
            return same.get(value, value)
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ValueError(f"must be one of {', '.join(known)}, got {quote(value)}{near}")

    return OneOrMore(Scalar(f"{words} {', '.join(known)}", {"enum": list(known)}, read))


SAME_METHODS: Mapping[str, str] = {"fsdp2": FSDP}
"""Other names of methods: PyTorch's `fully_shard` issues what FullyShardedDataParallel does."""

METHODS_KIND = some_of((DDP, *METHODS, *SAME_METHODS), same=SAME_METHODS)


def method_rules(values: FieldValues) -> Sequence[tuple[str, object, str]]:
    """The faults of methods, passes, and keys that not every method has a use for: each key,
    whether it is at fault, and why.
    """
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
    members = grouped((key, i) for i, key in enumerate(_keys(model, rule)))
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
        raise InputError(
            f'units = "{BLOCKS}": no name of a layer has a number between dots, as h.0.mlp has;'
            f' use "{LAYERS}" or a size'
        )
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
    stretches, sharded = segments(units), method not in (ZERO1, ZERO2)
    late = {ZERO1: True, ZERO2: False, ZERO3: False}.get(method, no_sync)
    every = [Instruction(Do.GATHER, segment.unit) for segment in stretches]
    wanted = [] if sharded or barrier else [*every]
    for number in range(passes):
        sync = number == passes - 1 or not late
        if sharded:
            wanted += _forward(units, stretches, sharding)
            wanted += _backward(units, stretches, sharding, sync=sync)
        else:
            wanted += _whole_pass(stretches, sync=sync)
    wanted.append(Instruction(Do.UPDATE, -1))
    if not sharded and barrier:
        wanted += every
    return tuple(_effective(wanted, units))


def _forward(
    units: Sequence[Unit], stretches: Sequence[Segment], sharding: Sharding
) -> Iterator[Instruction]:
    """Every unit is gathered before it computes, and freed after, but for the root."""
    yield from (Instruction(Do.GATHER, s.unit) for s in stretches if units[s.unit].root)
    for i, segment in enumerate(stretches):
        following = dict.fromkeys(s.unit for s in stretches[i + 1 :] if s.unit != segment.unit)
        ahead = [*following][: sharding.forward_prefetch]
        yield from (Instruction(Do.GATHER, unit) for unit in (segment.unit, *ahead))
        yield Instruction(Do.FORWARD, segment.unit, segment.layers)
        if sharding.reshard_after_forward and not units[segment.unit].root:
            yield Instruction(Do.FREE, segment.unit)


def _backward(
    units: Sequence[Unit], stretches: Sequence[Segment], sharding: Sharding, *, sync: bool
) -> Iterator[Instruction]:
    """In reverse; with `sync` each unit's gradients are reduced after its last pass.

    Without it, parameters stay where they stay after a forward pass.
    """
    prefetch, reshard = sharding.backward_prefetch, sharding.reshard_after_forward
    turned = stretches[::-1]
    for i, segment in enumerate(turned):
        unit, later = segment.unit, [s.unit for s in turned[i + 1 :]]
        ahead = [Instruction(Do.GATHER, other) for other in later if other != unit][:1]
        done = unit not in later
        yield Instruction(Do.GATHER, unit)
        yield from ahead if prefetch == PRE else ()
        yield Instruction(Do.BACKWARD, unit, segment.layers[::-1])
        if (done and (sync or reshard)) or (reshard and not units[unit].root):
            yield Instruction(Do.FREE, unit)
        yield from ahead if prefetch == POST else ()
        if done and sync:
            yield Instruction(Do.REDUCE, unit)


def _whole_pass(stretches: Sequence[Segment], *, sync: bool) -> Iterator[Instruction]:
    """Both passes where every parameter is there."""
    yield from (Instruction(Do.FORWARD, s.unit, s.layers) for s in stretches)
    turned = stretches[::-1]
    for i, segment in enumerate(turned):
        yield Instruction(Do.BACKWARD, segment.unit, segment.layers[::-1])
        if sync and all(s.unit != segment.unit for s in turned[i + 1 :]):
            yield Instruction(Do.REDUCE, segment.unit)


def _effective(wanted: Iterable[Instruction], units: Sequence[Unit]) -> Iterator[Instruction]:
    """Those that do something: no unit is gathered twice or freed twice, and one without parameters
    has none to move.
    """
    here = set[int]()
    for each in wanted:
        idle = {Do.GATHER: each.unit in here, Do.FREE: each.unit not in here}.get(each.do, False)
        moves = each.do in (Do.GATHER, Do.FREE, Do.REDUCE)
        if idle or (moves and not units[each.unit].elements):
            continue
        if each.do in (Do.GATHER, Do.FREE):
            here ^= {each.unit}
        yield each


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
