"""DeepSpeed's configuration (`--deepspeed_config`) as the tables of a scenario.

Names, defaults and rules are those of DeepSpeed 0.19.6: `deepspeed/runtime/config.py` (batches),
`constants.py` and `zero/config.py`. ZeRO keeps parameters and gradients in the dtype of `fp16` or
`bf16`, with a master in 32 bits; without either, all has 32 bits. Reductions overlap with the
backward pass where `overlap_comm` says so: of stage 3 by default, of others not.

`"auto"` is a word of Transformers, whose trainer fills it in (`integrations/deepspeed.py`): buckets
by the model's width w are w x w elements, and 0.9 of that ahead of use; `bf16` counts as enabled,
and one pass of a step. A batch has to be given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simreduce.errors import InputError, did_you_mean, quote
from simreduce.files import read_text
from simreduce.files.formats import FLAG, Field, FieldValues, Format, Scalar, choice, whole
from simreduce.files.formats.syntax import Faults, read_json
from simreduce.workload.loader import load_decoder

_MOST = 1 << 20
"""Characters of a configuration; a record of so many is larger."""
AUTO = "auto"
_BATCH, _MICRO, _PASSES = (
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
)  # fmt: skip
_ZERO = "zero_optimization"
_MARKS = {_BATCH, _MICRO, _PASSES, _ZERO}


def _whole(value: object) -> int:
    if isinstance(value, float) and value.is_integer():  # as 5e8 reads
        value = int(value)
    return int(_COUNT.read(value))


_COUNT = whole(1, 10**13)
_ELEMENTS = Scalar(_COUNT.words, {"type": "number"}, _whole)
_STAGE = Format(
    _ZERO,
    "How ranks share states, gradients and parameters.",
    Field("stage", whole(0, 3), "0 to 3.", 0),
    Field("reduce_bucket_size", _ELEMENTS, "Elements reduced at a time.", 500_000_000),
    Field("stage3_prefetch_bucket_size", _ELEMENTS, "Elements gathered ahead.", 50_000_000),
    Field("overlap_comm", FLAG, "Whether reductions overlap.", default_words="of stage 3"),
)
_BATCHES = Format(
    "batches",
    "Samples and passes of a step.",
    *(Field(key, _ELEMENTS, key) for key in (_BATCH, _MICRO, _PASSES)),
    Field("communication_data_type", choice(("fp32", "fp16", "bf16"), "type"), "Of reductions."),
)
_LONG = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_OPTIMIZERS = {
    "adam": "adam", "adamw": "adam", "fusedadam": "adam", "lamb": "adam", "fusedlamb": "adam",
    "sgd": "momentum", "lion": "momentum", "fusedlion": "momentum", "adagrad": "momentum",
    "muon": "momentum",
}  # fmt: skip
"""By states of 4 bytes for each parameter: two, or one."""
_WITHOUT = "leave it out"
_RECORD = "record a step of the job with the PyTorch profiler, and give that file instead"
_REFUSED = {
    "offload_optimizer": f"states and updates on hosts are not simulated; {_RECORD}",
    "offload_param": f"parameters on hosts are not simulated; {_RECORD}",
    "cpu_offload": f"states and updates on hosts are not simulated; {_RECORD}",
    "cpu_offload_param": f"parameters on hosts are not simulated; {_RECORD}",
    "zero_hpz_partition_size": f"ZeRO++ is not simulated; {_WITHOUT}",
    "zero_quantized_weights": f"ZeRO++ is not simulated; {_WITHOUT}",
    "zero_quantized_gradients": f"ZeRO++ is not simulated; {_WITHOUT}",
    "mics_shard_size": 'MiCS is hybrid shards: write a scenario with method = "hsdp" in [step]',
    "zenflow": f"updates on hosts are not simulated; {_RECORD}",
}
"""Keys of ZeRO that change a step in ways which nothing here has, with what to bring."""
_REFUSED_OUTSIDE = {
    "tensor_parallel": "write a scenario with step.mesh, such as tp=4",
    "sequence_parallel_size": "write a scenario with step.mesh, such as cp=4",
    "expert_parallel": "write a scenario with step.mesh, such as ep=4",
    "elasticity": f"give {_MICRO} and {_PASSES}",
    "sparse_attention": _RECORD,
    "compression_training": _RECORD,
    "progressive_layer_drop": _RECORD,
}


def read_config(path: Path) -> dict[str, Any] | None:
    """The document of a file if it is such a configuration; None for any other file."""
    if path.suffix != ".json":
        return None
    try:
        text = read_text(path, InputError)
        found = read_json(text, "", InputError) if len(text) < _MOST else None
    except InputError:
        return None
    return found if isinstance(found, dict) and _MARKS & found.keys() else None


def tables_of_config(
    document: Mapping[str, Any], path: Path, given: Mapping[str, object],
    gpus: Callable[[], int],
) -> dict[str, Any]:  # fmt: skip
    """The tables of a scenario; what is `given` replaces its keys, and has the workload.

    `gpus` says how many GPUs there are, 0 if that is not known. Raises `InputError` with every
    fault.
    """
    faults = Faults(str(path))
    zero = document.get(_ZERO, {})
    zero = {"stage": int(zero)} if isinstance(zero, bool) else zero
    if not isinstance(zero, dict):
        faults.add(_ZERO, f"must be a table, got {quote(zero)}")
    zero = {**zero} if isinstance(zero, dict) else {}
    _refuse(zero, document, faults)
    wide = _width(given.get("workload"))
    if wide:
        usual = {"reduce_bucket_size": wide**2, "stage3_prefetch_bucket_size": int(0.9 * wide**2)}
        zero |= {key: value for key, value in usual.items() if zero.get(key) == AUTO}
    of_zero = {key: zero[key] for key in _STAGE.keys if zero.get(key, AUTO) != AUTO}
    outer = {key: document[key] for key in _BATCHES.keys if document.get(key, AUTO) != AUTO}
    shares = _STAGE.read(of_zero, faults, _ZERO)
    counts = _BATCHES.read(outer, faults)
    step = _batches(counts, given.get("batch"), faults, gpus)
    sharding, precision = _numerics(document, counts["communication_data_type"], faults)
    faults.raise_any()
    stage = shares["stage"]
    bucket = shares["stage3_prefetch_bucket_size" if stage == 3 else "reduce_bucket_size"]
    beside = stage == 3 if shares["overlap_comm"] is None else shares["overlap_comm"]
    if stage:
        # Units count the bytes of lists, which have 32 bits.
        sharding |= {"units": f"{4 * bucket} B", "overlap": beside}
    return {
        "title": f"The job of {path.name}",
        "framework": "deepspeed",
        "strategies": ["nccl" if stage else f"nccl+bucket={_UNSHARDED * 4}"],
        "step": {
            **step, **precision, "method": f"zero{stage}" if stage else "ddp", "sharding": sharding,
        },
    }  # fmt: skip


_UNSHARDED = 500_000_000
"""Elements that go into one buffer without ZeRO (`MEMORY_OPT_ALLREDUCE_SIZE`)."""


def _refuse(zero: Mapping[str, Any], document: Mapping[str, Any], faults: Faults) -> None:
    """Note what nothing here has, and misspelt names; DeepSpeed passes over those outside ZeRO."""
    for key, why in _REFUSED.items():
        value = zero.get(key)
        none = value is not True and value in (None, False, 1, -1, AUTO)
        off = none or (isinstance(value, dict) and value.get("device", "none") == "none")
        faults.check(off, f"{_ZERO}.{key}", why)
    for key, why in _REFUSED_OUTSIDE.items():
        value = document.get(key)
        size = value.get("autotp_size", value.get("enabled", 2)) if isinstance(value, dict) else 0
        off = not value or value == 1 or (isinstance(value, dict) and size in (0, 1, False))
        faults.check(off, key, f"is not read; {why}")
    known = {*_BATCHES.keys, _ZERO, *_REFUSED_OUTSIDE, *_KINDS}
    for key in document.keys() - known:
        near = did_you_mean(key, known)
        faults.check(not near or key in _OTHERS, key, f"unknown key{near}")


_KINDS = ("fp16", "bf16", "bfloat16", "amp", "torch_autocast", "optimizer")
_OTHERS = ("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "scheduler")


def _width(workload: object) -> int:
    try:
        return load_decoder(str(workload)).shape.width if workload else 0
    except InputError:
        return 0


def _batches(
    counts: FieldValues, batch: Any, faults: Faults, gpus: Callable[[], int]
) -> dict[str, Any]:
    """Samples of a GPU and passes, of which two of the three counts give the third."""
    whole, micro, passes = (counts[key] for key in (_BATCH, _MICRO, _PASSES))
    micro = batch if micro is None else micro
    given = micro is not None or whole is not None or counts.faulty
    faults.check(given, _MICRO, f'missing, or "{AUTO}"; give --batch')
    if whole is None or (micro is not None and passes is not None) or not (ranks := gpus()):
        return {"batch": micro or 1, "accumulate": passes or 1}
    each, times = (micro, "samples of a pass") if micro is not None else (passes or 1, "passes")
    words = f"{whole} samples are no multiple of {ranks} GPUs x {each} {times}"
    faults.check(whole % (ranks * each) == 0 and whole, _BATCH, words)
    other = max(whole // (ranks * each), 1)
    return {"batch": micro or other, "accumulate": other if micro is not None else each}


def _numerics(
    document: Mapping[str, Any], reduced: str | None, faults: Faults
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keys of `[step.sharding]` and of `[step]`."""

    def enabled(*keys: str) -> bool:
        tables = {key: document[key] for key in keys if isinstance(document.get(key), dict)}
        found = {key: table.get("enabled", False) for key, table in tables.items()}
        for key, value in found.items():
            words = f'must be true, false or "{AUTO}", got {quote(value)}'
            faults.check(value in (True, False, AUTO), f"{key}.enabled", words)
        return any(value in (True, AUTO if keys[0] == "bf16" else True) for value in found.values())

    half, brain = enabled("fp16"), enabled("bf16", "bfloat16")
    faults.check(not (half and brain), "fp16", "and bf16 cannot both be enabled")
    table = document.get("optimizer")
    name = str(table.get("type", "adam")) if isinstance(table, dict) else "adam"
    near = did_you_mean(name.lower(), _OPTIMIZERS)
    known = name.lower() in _OPTIMIZERS
    faults.check(
        known, "optimizer.type", f"{quote(name)} is none of {', '.join(_OPTIMIZERS)}{near}"
    )
    sharding = {"optimizer": _OPTIMIZERS.get(name.lower(), "adam")}
    if half or brain:
        sharding["param_dtype"] = "float16" if half else "bfloat16"
    if reduced:
        sharding["reduce_dtype"] = _LONG[reduced]
    by_autocast = enabled("torch_autocast", "amp")
    return sharding, {} if half or brain else {"precision": "amp" if by_autocast else "fp32"}
