"""PyTorch: arguments of DistributedDataParallel, fully_shard (FSDP2) and FullyShardedDataParallel
(FSDP1), as a module.

Names and meaning: torch 2.13, `torch/nn/parallel/distributed.py` (`BucketCapacityConfig`),
`torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py`,
`torch/distributed/fsdp/_fully_shard/` (public since 2.6) and
`torch/distributed/fsdp/fully_sharded_data_parallel.py`. `bucket_cap_mb` may be a fraction; the cap
of the first bucket is `torch.distributed._DEFAULT_FIRST_BUCKET_BYTES`, read while `bucket_cap_mb`
is unset, and `bucket_cap_mb_list` has both since 2.13.

FSDP2 gathers the next unit of a backward pass before it computes one, and limits no all-gathers on
the host (`_fsdp_param_group.py`): neither is told. `fully_shard` of a list makes one unit of it.

Operators on tensors in its symmetric memory are in pytorch/pytorch
torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.cpp. Its calls of NCCL run symmetric kernels on
tensors of a `MemPool` of the backend's `mem_allocator` that `register_mem_pool(pool, symm=True)`
registers by ncclCommWindowRegister, from torch 2.9 on
(docs.nvidia.com/megatron-core/developer-guide/0.20.0, core.allocator.vmm_symm_allocator).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from simreduce import dtypes
from simreduce.export.framework import (
    REPLICATED,
    Choice,
    Framework,
    Shards,
    bucket_sizes,
    holding,
    like_nccl,
    not_by_nccl,
    not_gradients,
)
from simreduce.planners.packing import (
    BytesPerPack,
    ConcatAndSplit,
    DdpBuckets,
    Fusion,
    GradientRepacking,
)
from simreduce.planners.packing.arrangement import Packer
from simreduce.units import MIB
from simreduce.workload import Workload

VIEW = "+ddp=25,1,view"
"""DDP's own caps with `gradient_as_bucket_view`."""

_ONE_BUCKET = 1 << 50
_STRATEGIES = {
    "zero2": "SHARD_GRAD_OP", "zero3": "FULL_SHARD", "fsdp": "FULL_SHARD", "hsdp": "HYBRID_SHARD",
}  # fmt: skip
_PREFETCH = {"pre": "BACKWARD_PRE", "post": "BACKWARD_POST"}
_FSDP2, _FSDP1 = "fsdp=2", "fsdp=1"


def _refusals(choice: Choice) -> list[str]:
    """Why DDP and FSDP2 have no setting for a choice."""
    if choice.method == REPLICATED:
        return _not_replicated(choice)
    shards, can = choice.shards, f"FSDP1 ({_FSDP1}) has a choice"
    prefetch, limit = (shards.backward_prefetch, shards.limit_all_gathers) if shards else ("pre", 2)
    return [
        *not_by_nccl(choice),
        *_not_sharded(choice),
        *holding(
            {
                f"FSDP2 always gathers ahead in a backward pass (pre), not {prefetch}; {can}": (
                    prefetch != "pre"
                ),
                f"FSDP2 takes no limit_all_gathers, and this is {limit}; {can}": limit != 2,
            }
        ),
    ]


def _refusals_1(choice: Choice) -> list[str]:
    """Why DDP and FSDP1 have no setting for a choice."""
    if choice.method == REPLICATED:
        return _not_replicated(choice)
    shards = choice.shards
    ahead, limit = (shards.forward_prefetch, shards.limit_all_gathers) if shards else (0, 0)
    return [
        *not_by_nccl(choice),
        *_not_sharded(choice),
        *holding(
            {
                f"FSDP1 gathers at most 1 unit ahead in a forward pass, not {ahead}": ahead > 1,
                f"limit_all_gathers is 2 units or no limit, not {limit}": limit not in (0, 2),
            }
        ),
    ]


def _not_replicated(choice: Choice) -> list[str]:
    text = f"+{choice.resolved.packing}"
    alone = _has_alone(choice)
    found = {
        "DDP reduces every bucket alike, whatever the sizes of its gradients": (
            len(choice.resolved.ranges) > 1
        ),
        "DDP copies a gradient into its bucket that is alone in it, too": alone,
        f"DDP's buckets are never those of {text} for {choice.workload.name}": (
            not alone and _buckets_of(choice) is None
        ),
    }
    return [*not_by_nccl(choice), *not_gradients(choice, "DDP"), *holding(found)]


def _not_sharded(choice: Choice) -> list[str]:
    why = f"FSDP has no {choice.method}; DeepSpeed has, and FSDP has zero2 and zero3"
    waits = choice.shards is not None and not choice.shards.overlap
    return holding({
        why: choice.method not in _STRATEGIES,
        "FSDP reduces beside the backward pass: leave overlap out": waits,
    })  # fmt: skip


def _nearest(choice: Choice) -> list[str]:
    """Strategies that DDP has settings for, the nearest first."""
    match choice.resolved.packer:
        case Fusion(nbytes) | BytesPerPack(nbytes) if nbytes:
            return like_nccl(choice, [f"+ddp={nbytes / MIB:g}", "+ddp"])
    return like_nccl(choice, ["+ddp"])


def _buckets_of(choice: Choice) -> DdpBuckets | None:
    """DDP's buckets that pack the workload as the strategy does, if there are any, where no
    gradient is alone.
    """
    packer = choice.resolved.packer
    if isinstance(packer, DdpBuckets):
        return packer
    cap, fp16 = _alike(packer)
    found = DdpBuckets(cap, cap, fp16=fp16)
    return found if cap and choice.packs_alike(found) else None


def _has_alone(choice: Choice) -> bool:
    """Whether a gradient is reduced where it is, as it is alone in its pack; DDP copies it."""
    if isinstance(choice.resolved.packer, DdpBuckets):
        return False
    own = choice.arrange(choice.resolved.packer)
    return own is not None and any(len(group) == 1 for group in own.groups)


def _alike(packer: Packer) -> tuple[int, bool]:
    """The cap of buckets like those of a packer, 0 if there are none, and their half precision."""
    match packer:
        case BytesPerPack(size, fp16):
            return (size + 1 if size else _ONE_BUCKET), fp16
        case ConcatAndSplit(1):
            return _ONE_BUCKET, False
        case GradientRepacking(packs, fp16) if packs <= 1:
            return _ONE_BUCKET * packs, fp16
        case Fusion(threshold, fp16):
            return threshold, fp16
    return 0, False


def _ddp(choice: Choice) -> str:
    """A module with a function that wraps a model."""
    buckets = _buckets_of(choice) or DdpBuckets()
    arguments, before = _caps(buckets)
    meaning = dict.fromkeys(arguments, _meaning(choice, buckets))
    arguments["gradient_as_bucket_view"] = str(buckets.view)
    casts = buckets.fp16 or buckets.bf16
    name = "fp16_compress_hook" if buckets.fp16 else "bf16_compress_hook"
    hook = f"wrapped.register_comm_hook(None, default_hooks.{name})"
    return "\n".join([
        f'"""{choice.title}."""', "",
        *["import torch.distributed as dist"] * any("dist." in line for line in before),
        *["from torch.distributed.algorithms.ddp_comm_hooks import default_hooks"] * casts,
        "from torch.nn.parallel import DistributedDataParallel", "",
        *_table(arguments, meaning), "", "",
        "def wrap(model, **more):",
        '    """The model, with gradients that DDP averages in these buckets."""',
        *[f"    {line}" for line in before],
        "    wrapped = DistributedDataParallel(model, **ARGUMENTS, **more)",
        *[f"    {hook}"] * casts,
        "    return wrapped", *_passes(choice), "",
    ])  # fmt: skip


def _caps(buckets: DdpBuckets) -> tuple[dict[str, str], list[str]]:
    """The arguments for the caps, and what to do before."""
    cap, first = (f"{size / MIB:.17g}" for size in (buckets.cap, buckets.first_cap))
    if cap == first:
        return {"bucket_cap_mb": cap}, []
    unset = DdpBuckets()
    if buckets.cap == unset.cap:
        size = f"dist._DEFAULT_FIRST_BUCKET_BYTES = {buckets.first_cap}"
        return {}, [size] * (buckets.first_cap != unset.first_cap)
    return {"bucket_cap_mb_list": f"[{first}, {cap}]"}, ["# The list needs PyTorch 2.13 or newer."]


def _meaning(choice: Choice, buckets: DdpBuckets) -> str:
    """What buckets are that need no size to be said; "" of all others, and of one gradient."""
    arranged = choice.arrange(buckets)
    if arranged is None or len(choice.workload.gradients) == 1:
        return ""
    groups = arranged.groups
    if len(groups) == 1:
        return "one bucket"
    if all(len(group) == 1 for group in groups):
        return "a bucket for each gradient"
    sizes = {round(size / MIB, 3) for size in (buckets.first_cap, buckets.cap, DdpBuckets().cap)}
    return "the default size, the first bucket too" * (len(sizes) == 1)


def _table(arguments: Mapping[str, str], meaning: Mapping[str, str] | None = None) -> list[str]:
    """The arguments, each with what it means; `export.framework` reads that too."""
    notes = {key: f"  # {words}" for key, words in (meaning or {}).items() if words}
    lines = (f'    "{key}": {value},{notes.get(key, "")}' for key, value in arguments.items())
    return ["ARGUMENTS = {", *lines, "}"]


def _passes(choice: Choice) -> list[str]:
    """A function that runs several passes and reduces in the last, for a step of several."""
    if choice.accumulate == 1:
        return []
    return [
        "", "",
        "def backward(wrapped, losses):",
        f'    """Add up the gradients of {choice.accumulate} losses, which functions return, and',
        "    reduce them with the last.", '    """',
        "    *others, last = losses",
        "    with wrapped.no_sync():",
        "        for loss in others:",
        "            loss().backward()",
        "    last().backward()",
    ]  # fmt: skip


def _fully_shard(choice: Choice) -> str:
    """A module with a function that shards a model by FSDP2.

    The root stays gathered until its backward pass has ended.
    """
    shards, mesh = choice.shards, _mesh_2(choice)
    stays = choice.method == "zero2" or (shards is not None and not shards.reshard_after_forward)
    precision = _precision(shards, "MixedPrecisionPolicy")
    mixed, ahead = precision != "None", shards.forward_prefetch if shards else 0
    arguments = {
        "reshard_after_forward": str(not stays),
        **({"mp_policy": precision} if mixed else {}),
    }
    rule = shards.units if shards else ""
    by_size = isinstance(rule, int)
    given, what, units, note = _units_2(rule, choice.unit)
    imported = [*["MixedPrecisionPolicy"] * mixed, "fully_shard"]
    return "\n".join([
        f'"""{choice.title}."""', "",
        *["import torch"] * mixed,
        *["from torch.distributed.device_mesh import init_device_mesh"] * bool(mesh),
        f"from torch.distributed.fsdp import {', '.join(imported)}",
        "", *_table(arguments), "", "",
        f"def wrap({', '.join(('model', *given, '**more'))}):",
        f'    """The model in units: {what}."""', *mesh,
        f"    units = {units}  # {note}",
        "    for unit in reversed(units):",
        "        fully_shard(unit, **ARGUMENTS, **more)",
        '    fully_shard(model, **{**ARGUMENTS, "reshard_after_forward": False}, **more)',
        *_ahead(ahead, by_size=by_size),
        "    return model", *(_RUNS if by_size else ()), *_passes_2(choice, stays=stays), "",
    ])  # fmt: skip


def _units_2(rule: str | int, unit: int) -> tuple[tuple[str, ...], str, str, str]:
    """What a function that shards a model is given, what it does, its units, and what they are."""
    if isinstance(rule, int):
        what = f"for each run of layers with {unit:,} parameters or more"
        return (), f"one {what}", f"_runs(model, {unit})", f"a unit {what}"
    if rule == "model":
        return (), "one", "[]", "the whole model as one unit: fully_shard(model)"
    if rule == "layers":
        own = "next(m.parameters(recurse=False), None) is not None"
        units = f"[m for m in model.modules() if {own}]"
        what = "one for each module with parameters of its own"
        return (), what, units, "a unit for each linear or norm layer"
    what = "one for each module of the classes `blocks`, and one for the rest"
    units = "[m for m in model.modules() if isinstance(m, tuple(blocks))]"
    return ("blocks",), what, units, "a unit for each block: fully_shard(block)"


_RUNS = '''

def _runs(model, least):
    """Modules with parameters of their own, in runs of so many parameters or more."""
    runs, held = [], least
    for module in model.modules():
        own = sum(each.numel() for each in module.parameters(recurse=False))
        if own and held >= least:
            runs, held = [*runs, []], 0
        if own:
            runs[-1].append(module)
            held += own
    return runs'''.splitlines()


def _ahead(count: int, *, by_size: bool) -> list[str]:
    """What gathers units ahead in a forward pass, in the order in which a model has them."""
    if not count:
        return []
    note = f"set_modules_to_forward_prefetch: {count} of the next units"
    first = "[model, *(unit[0] for unit in units)]" if by_size else "[model, *units]"
    return [
        f"    ahead = {count}  # {note}",
        f"    order = {first}",
        "    for i, unit in enumerate(order):",
        "        unit.set_modules_to_forward_prefetch(order[i + 1 : i + 1 + ahead])",
    ]


def _mesh_2(choice: Choice) -> list[str]:
    """The mesh of replicas and shards, whose names FSDP2 asks for."""
    if choice.method != "hsdp":
        return []
    layout = choice.setup.layout
    group = (choice.shards.group if choice.shards else 0) or len(layout.tasks[0])
    return [
        f"    ways = {layout.n // group}, {group}  # shards within groups of {group} GPUs",
        '    if "mesh" not in more:',
        '        names = ("replicate", "shard")',
        '        more["mesh"] = init_device_mesh("cuda", ways, mesh_dim_names=names)',
    ]


def _passes_2(choice: Choice, *, stays: bool) -> list[str]:
    """As `_passes`; ZeRO's stages reduce in every pass."""
    if choice.accumulate == 1 or choice.method in ("zero2", "zero3"):
        return []

    def switch(on: bool) -> list[str]:
        calls = ["requires_gradient_sync", *["reshard_after_backward"] * stays]
        return [f"    wrapped.set_{call}({on})" for call in calls]

    return [
        "", "",
        "def backward(wrapped, losses):",
        f'    """Add up the gradients of {choice.accumulate} losses, which functions return, and',
        "    reduce them with the last.", '    """',
        "    *others, last = losses", *switch(False),
        "    for loss in others:",
        "        loss().backward()",
        *switch(True),
        "    last().backward()",
    ]  # fmt: skip


def _fsdp(choice: Choice) -> str:
    """A module with a function that wraps a model in shards by FSDP1."""
    shards, kind = choice.shards, _STRATEGIES[choice.method]
    if shards and not shards.reshard_after_forward:
        kind = "_HYBRID_SHARD_ZERO2" if choice.method == "hsdp" else "SHARD_GRAD_OP"
    mesh = _mesh(choice)
    prefetch = _PREFETCH.get(shards.backward_prefetch if shards else "pre")
    precision = _precision(shards, "MixedPrecision")
    mixed = precision != "None"
    arguments = {
        "sharding_strategy": f"ShardingStrategy.{kind}",
        "backward_prefetch": f"BackwardPrefetch.{prefetch}" if prefetch else "None",
        "forward_prefetch": str(bool(shards and shards.forward_prefetch)),
        "limit_all_gathers": str(not shards or shards.limit_all_gathers > 0),
        "mixed_precision": precision,
        "use_orig_params": "True",
    }
    imported = ["BackwardPrefetch", "FullyShardedDataParallel", *["MixedPrecision"] * mixed,
                "ShardingStrategy"]  # fmt: skip
    rule = shards.units if shards else ""
    by_size, whole = isinstance(rule, int), rule == "model"
    policy = "size_based_auto_wrap_policy" if by_size else "ModuleWrapPolicy"
    return "\n".join([
        f'"""{choice.title}."""', "",
        *["from functools import partial", ""] * by_size, *["import torch"] * mixed,
        *["from torch.distributed.device_mesh import init_device_mesh"] * bool(mesh),
        f"from torch.distributed.fsdp import {', '.join(imported)}",
        *[f"from torch.distributed.fsdp.wrap import {policy}"] * (not whole),
        "", *_table(arguments), "", "",
        *_wrap(rule, choice.unit), *mesh,
        "    return FullyShardedDataParallel(model, auto_wrap_policy=policy, **ARGUMENTS, **more)",
        *_passes(choice), "",
    ])  # fmt: skip


def _wrap(rule: str | int, unit: int) -> list[str]:
    """The head of the function that wraps a model, up to its policy and what that means.

    Sizes say nothing of blocks: the root may be larger than each of them.
    """
    if isinstance(rule, int):
        least = f"{unit:,} parameters or more"
        policy = f"partial(size_based_auto_wrap_policy, min_num_params={unit})"
        return [
            "def wrap(model, **more):",
            f'    """The model in units: one for each module of {least}."""',
            f"    policy = {policy}  # a unit for each module of {least}",
        ]
    if rule == "model":
        return [
            "def wrap(model, **more):", '    """The model as one unit."""',
            "    policy = None  # the whole model as one unit",
        ]  # fmt: skip
    what = "linear or norm layer" if rule == "layers" else "block"
    which = ", those of its layers" if rule == "layers" else ""
    return [
        "def wrap(model, blocks, **more):",
        f'    """The model in units: one for each module of the classes `blocks`{which}."""',
        f"    policy = ModuleWrapPolicy(blocks)  # a unit for each {what}",
    ]


def _mesh(choice: Choice) -> list[str]:
    """A mesh of replicas and shards, for shard groups other than the GPUs of a machine."""
    group, layout = choice.shards.group if choice.shards else 0, choice.setup.layout
    if choice.method != "hsdp" or not group or {group} == {len(task) for task in layout.tasks}:
        return []
    mesh = f'init_device_mesh("cuda", ({layout.n // group}, {group}))'
    return [f'    more.setdefault("device_mesh", {mesh})  # shards within groups of {group} GPUs']


def _precision(shards: Shards | None, name: str) -> str:
    if shards is None or (shards.param_dtype is None and shards.reduce_dtype is None):
        return "None"
    given = {"param_dtype": shards.param_dtype, "reduce_dtype": shards.reduce_dtype}
    known = (f"{key}=torch.{dtypes.NAMES[code]}" for key, code in given.items() if code is not None)
    return f"{name}({', '.join(known)})"


def buckets(workload: Workload) -> list[tuple[str, int]]:
    """Caps; first caps beside the cap that DDP has unset, as PyTorch knows them only then.

    Recorded buckets have no views: a record of copies into buckets has them in its compute.
    """
    sizes = bucket_sizes(workload)
    if workload.finest:
        return [(f"+ddp={size / MIB:g}", size) for size in sizes]
    words = (",view", "")
    found = [(f"+ddp={size / MIB:g}{word}", size) for word in words for size in sizes]
    firsts = [size for size in sizes if size < 25 * MIB]
    found += [(f"+ddp=25,{first / MIB:g}{w}", 25 * MIB) for w in words for first in firsts]
    return [*found, (VIEW, 0)]


def _files(
    fsdp: Callable[[Choice], str],
) -> Callable[[Choice], Mapping[str, str]]:
    """The files of a choice, with this writer of sharded methods."""

    def write(choice: Choice) -> Mapping[str, str]:
        if choice.method == REPLICATED:
            return {"simreduce_ddp.py": _ddp(choice)}
        return {"simreduce_fsdp.py": fsdp(choice)}

    return write


_HOOK = "register_comm_hook(None, default_hooks.{half}_compress_hook)"
_STAY: Mapping[str, Sequence[object]] = {"reshard_after_forward": (True, False)}

_NEWEST = Framework(
    "pytorch",
    "PyTorch",
    _files(_fully_shard),
    _refusals,
    _nearest,
    version=_FSDP2,
    default=lambda _: "nccl+ddp",
    switches={
        "nccl": "torch.distributed.all_reduce",
        "oneshot": "torch.ops.symm_mem.one_shot_all_reduce",
        "twoshot": "torch.ops.symm_mem.two_shot_all_reduce_",
        "multimem": "torch.ops.symm_mem.multimem_all_reduce_",
        "symmetric": "torch.distributed.all_reduce after register_mem_pool(pool, symm=True)",
    },
    published=2020,
    packings=buckets,
    half=True,
    in_half={REPLICATED: _HOOK, "": "MixedPrecisionPolicy(reduce_dtype=torch.{dtype})"},
    accumulation="no_sync() for {} passes",
    methods=(REPLICATED, "fsdp", "hsdp"),
    named=("zero2", "zero3"),
    knobs={**_STAY, "forward_prefetch": (0, 1, 2)},
)

FSDP1 = replace(
    _NEWEST,
    name=_FSDP1,
    version="",
    files=_files(_fsdp),
    refusals=_refusals_1,
    published=0,
    in_half={REPLICATED: _HOOK, "": "MixedPrecision(reduce_dtype=torch.{dtype})"},
    knobs={
        **_STAY,
        "backward_prefetch": (*_PREFETCH, "none"),
        "limit_all_gathers": (2, 0),
        "forward_prefetch": (0, 1),
    },
)

PYTORCH = replace(_NEWEST, others=(FSDP1,), asked=("PyTorch 2.13.0, 2026-12-01",))
