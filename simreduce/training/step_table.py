"""The table `[step]` of a scenario: what a training step computes, and how it reduces gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from simreduce import dtypes, units
from simreduce.errors import did_you_mean
from simreduce.files.formats import (
    FLAG,
    LINE,
    SIZE,
    Field,
    FieldValues,
    Format,
    ListOf,
    Scalar,
    TableOf,
    ValueKind,
    choice,
    number,
    quantity,
    whole,
)
from simreduce.files.formats.syntax import Faults, inside
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import Strategy
from simreduce.topology import Topology
from simreduce.training.calls import CYCLE, Method, method_for_mode, method_for_strategy
from simreduce.training.eager import (
    AMP,
    BF16,
    BY_MEGATRON,
    EAGER,
    FP32,
    MEGATRON,
    PRECISIONS,
    RENAMED,
    RUNS,
    TF32,
)
from simreduce.training.executions.reading import is_record
from simreduce.training.gpus import SPREAD, Gpu, gpu_for, gpu_of
from simreduce.training.memory import (
    ATTENTIONS,
    FUSED,
    NONE,
    OP,
    POLICIES,
    UNFUSED,
    ModelRun,
    read_policy,
    repeated,
)
from simreduce.training.recorded import load_profile
from simreduce.training.running import run_profile
from simreduce.training.sharded import (
    DDP,
    METHODS_KIND,
    SHARDING,
    Sharding,
    method_rules,
    read_sharding,
    wrap,
)
from simreduce.training.step import (
    CONSISTENCIES,
    GIVEN,
    RELAXED,
    STAGED,
    STRONG,
    UNCOUNTED,
    Activations,
    Profile,
    StepJob,
    profile_from_rate,
    profile_from_seconds,
)
from simreduce.training.variable_update import MODES, Flags
from simreduce.workload import Model, in_dtype

MOST_SAMPLES = 10**9
MOST_STREAMS = 10**6
MOST_PASSES = 10**4
SHORTEST, LONGEST = 1e-9, 3.6e6
"""Limits in seconds of a cycle, and of a step."""

_EXAMPLES = ("2 ms", "100 us")
_AT_MOST = quantity(units.duration, "a time", _EXAMPLES, (0.0, LONGEST, "at most 1000 h"))
_TIMES = ("time", "rate", "profile", "gpu")
_INSTEAD = "; or give a time, a rate or a profile"


def _cycle(value: object) -> float:
    seconds = units.duration(value)
    if seconds and not SHORTEST <= seconds <= LONGEST:
        raise ValueError("must be from 1 ns to 1000 h, or 0 s for none")
    return seconds


def _rate(value: object) -> float:
    rate = units.flops(value)
    if rate <= 0.0:
        raise ValueError("must be a rate above 0")
    return rate


_RATE = quantity(_rate, "a rate of computing", ("6.5 TFLOP/s",))


class _Rates(ValueKind[dict[str, float]]):
    """One rate for all GPUs, as that of "", or a table of rates by GPU or model."""

    def __init__(self) -> None:
        schema = {"anyOf": [_RATE.schema, {"type": "object", "additionalProperties": _RATE.schema}]}
        super().__init__("a rate of computing, or a table of rates by GPU or model", schema)

    def take(self, value: object, faults: Faults, path: str) -> dict[str, float] | None:
        """Read one rate, or every rate of a table; None if one is wrong."""
        rates = value if isinstance(value, dict) else {"": value}
        found = {
            name: _RATE.take(rate, faults, inside(path, name) if name else path)
            for name, rate in rates.items()
        }
        known = {name: rate for name, rate in found.items() if rate is not None}
        return known if len(known) == len(found) else None


_FLAGS = (
    Field("local_parameter_device", choice(("cpu", "gpu"), "device"),
          "Where a GPU keeps its copy of the variables.", default_words="`gpu`"),
    Field("all_reduce_spec", LINE, "The all-reduce, such as `nccl` or `pscpu:32k:xring`."),
    Field("hierarchical_copy", FLAG, "Whether to use the hierarchical copy.",
          default_words="`false`"),
    Field("network_topology", LINE, "Its machine, `dgx1` or `gcp_v100`.", default_words="`dgx1`"),
    Field("packing", LINE, "How to pack gradients, such as `packs=8`."),
    Field("ps_tasks", ListOf(whole(0)), "Tasks whose CPUs are parameter servers.",
          default_words="all tasks"),
)  # fmt: skip


def _check(values: FieldValues, faults: Faults, path: str) -> None:
    """Note the faults of keys that do not go together."""
    given = [key for key in _TIMES if key in values.given]
    words = f"give at most one of {', '.join(_TIMES)}; it has {' and '.join(given)}"
    faults.check(len(given) < 2, path, words)
    mode, consistency, by_mode = (
        values["variable_update"], values["consistency"], "variable_update" in values.given,
    )  # fmt: skip
    faults.add_broken(path, (
        ("precision", values["kernels"] == MEGATRON and values["precision"] in (FP32, TF32),
         BY_MEGATRON),
        ("recompute", values["recompute"] not in (None, *POLICIES)
         and MEGATRON in (values["kernels"], values["variable_update"] and MEGATRON),
         "is of PyTorch's kernels: eager or compiled"),
        ("recompute", values["recompute"] == OP and values["attention"] == UNFUSED,
         "keeps what fused attention gives; leave attention out"),
        ("update", values["barrier"] is False and values["update"],
         "needs a barrier, a time at which all variables are updated"),
        *method_rules(values),
        ("consistency", consistency == STAGED and mode != "parameter_server",
         '"staged" delays reads, which need variable_update = "parameter_server"'),
        ("consistency", consistency == RELAXED and mode in _NO_ALL_REDUCE,
         f'"relaxed" delays all-reduces; {mode} {_NO_ALL_REDUCE.get(mode)}'),
        ("spread", mode == "independent" and values["spread"],
         f"needs GPUs that wait for each other; {mode} has none"),
        *((each.key, not by_mode and each.key in values.given,
           "is for variable_update; strategies say how to reduce") for each in _FLAGS),
    ))  # fmt: skip


_NO_ALL_REDUCE = {
    "parameter_server": "sends gradients to their servers",
    "distributed_replicated": "sends gradients to their servers",
    "independent": "reduces nothing",
}

STEP = Format(
    "step",
    "A training step: what it computes, and how it reduces gradients.",
    Field("batch", whole(1, MOST_SAMPLES), "Samples per GPU. With `--batch`, a time or a profile of"
          " this batch changes in proportion.", required=True),
    Field("time", _AT_MOST, "Time of the forward and backward pass of one batch on one GPU, spread"
          " over the layers by FLOPs. Give at most one of time, rate, profile and gpu."),
    Field("rate", _Rates(), "FLOP/s that a GPU achieves; or a table by GPU or model."),
    Field("profile", LINE, "A file with measured times by layer, or a recorded job as `simreduce"
          " replay` reads it; beside the scenario or not."),
    Field("speed", number(1e-6, 1e6), "Times as fast as time, rate, profile or gpu say.", 1.0),
    Field("spread", SPREAD, "The standard deviation of these times, from GPU to GPU or from step to"
          " step, as a part, such as 0.02: all wait for the slowest, the more of them the longer.",
          0.0, default_words="0, or that of GPUs whose kernels are known"),
    Field("gpu", LINE, "The GPU to compute as, a name or a file (`compute`): passes take what the"
          " model's kernels do on it, and the update what its bytes do.",
          default_words="the machine's, without time, rate and profile"),
    Field("kernels", choice(RUNS, "way"), "How the model runs: `eager` PyTorch, `compiled` by"
          " `torch.compile`, or as by Megatron-LM (`megatron`).", EAGER),
    Field("precision", choice(PRECISIONS, "precision"), "Of products: `amp` is 16 bits by autocast"
          " with parameters in float32, `bf16` has all in bfloat16; `tf32` and `fp32` have all in"
          " float32.", AMP),
    Field("interference", number(0.0, 10.0), "How much more kernels slow down beside a collective"
          " of NCCL than by the part of the SMs that it holds, one a channel; 0: not at all.",
          default_words="what kernels of their shapes lose, on GPUs that are known; 0 with a"
          " recorded job, which has it in its times"),
    Field("update", _AT_MOST, "Time to update the variables, once a step.",
          default_words="`0 s`, or what a recorded job took, or the bytes of `gpu`"),
    Field("cycle", quantity(_cycle, "a time", _EXAMPLES), "Time between two runs of Horovod's"
          " background thread (`+fusion`).", default_words="`1 ms`"),
    Field("streams", whole(0, MOST_STREAMS), "Reductions in flight at once; 0 for no limit.",
          default_words="as the library has it"),
    Field("barrier", FLAG, "Whether a step ends when all its work is done; otherwise a layer's next"
          " forward pass waits for its own variables only.", True),
    Field("variable_update", choice(MODES, "mode"),
          "A mode of tf_cnn_benchmarks instead of strategies, with those flags below that it"
          " reads."),
    Field("method", METHODS_KIND, "`ddp`: every GPU has all parameters, and strategies reduce the"
          " gradients. Sharded: `zero1`, `zero2`, `zero3`, `fsdp` (or `fsdp2`), `hsdp`; strategies"
          " say how to gather and reduce. Or a list of them, to rank.", default_words="`ddp`"),
    Field("sharding", TableOf(SHARDING), "How sharded methods share what.",
          default_words="PyTorch's defaults"),
    Field("accumulate", whole(1, MOST_PASSES), "Forward and backward passes in a step, of `batch`"
          " samples each, whose gradients add up.", 1),
    Field("no_sync", FLAG, "Whether only the last of these passes reduces gradients (PyTorch's"
          " `no_sync()`); otherwise every pass does.", True),
    Field("activations", SIZE, "Memory of a GPU for the activations of one batch; counted"
          " with what else it holds. With `--batch`, it changes in proportion.",
          default_words="counted for shipped transformers, AlexNet, VGG-16 and ResNets by `kernels`"
          " and `precision`; else not counted"),
    Field("recompute", Scalar("a policy", {"type": "string"}, read_policy), "Activations that"
          " backward passes make again: `selective`, attention by itself; `full`, all of a block"
          " but its input; `every 2`, that of every second block; `op`, all but attention and every"
          " other product (torchtitan's). That forward work counts on top of time, rate or profile,"
          " which are without it.", NONE),
    Field("attention", choice(ATTENTIONS, "attention"), "`fused` (FlashAttention) keeps no scores"
          " of attention, `unfused` keeps them: the estimate of activations depends on it, and what"
          " `gpu` takes.", FUSED),
    Field("consistency", choice(CONSISTENCIES, "consistency"), "`relaxed` reduces the gradients of"
          " the step before; `staged` computes with variables read a step earlier.", STRONG),
    *_FLAGS,
    check=_check,
    refused=RENAMED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepQuestion:
    """The question that `[step]` asks.

    Without a `mode`, strategies reduce the gradients by each of `methods`. `sharding` is None
    unless a method was asked for. `run` says how the model runs.
    """

    job: StepJob
    mode: str = ""
    flags: Flags = field(default_factory=Flags)
    streams: int | None = None
    cycle: float = CYCLE
    methods: tuple[str, ...] = (DDP,)
    sharding: Sharding | None = None
    activations: Activations = UNCOUNTED
    run: ModelRun = ModelRun()  # noqa: RUF009 - a named tuple

    @property
    def numerics(self) -> Sharding:
        """The sharding, with its dtypes; without one that of the model's gradients."""
        return _numerics(self.sharding, self.run)

    @property
    def replicated(self) -> StepQuestion:
        """The question for `ddp`, whose gradients have the dtype in which `sharding` reduces."""
        if self.sharding is None or self.sharding.wire(-1)[1] < 0:
            return self
        model = in_dtype(self.job.model, self.sharding.wire(-1)[1])
        return replace(self, job=replace(self.job, model=model))

    def method(
        self, strategy: Strategy | None, layout: Layout, *, faithful: bool = False
    ) -> Method:
        """The reductions of `strategy`, or of the mode if it is None. StrategyError if refused."""
        workload = self.job.model.workload
        if strategy is None:
            return method_for_mode(
                self.mode, workload, layout, self.flags, streams=self.streams, cycle=self.cycle
            )
        return method_for_strategy(
            strategy, workload, layout, faithful=faithful, streams=self.streams, cycle=self.cycle
        )


def parse_step(
    table: object,
    model: Model | None,
    topology: Topology | None,
    faults: Faults,
    beside: Callable[[str], str] = str,
    batch: int | None = None,
) -> StepQuestion | None:
    """The question of a `[step]` table; None if there is a fault, which `faults` notes.

    Without a model or a machine, it notes the faults that need none.

    `beside` finds files. A `batch` replaces the table's: measured times change in proportion.
    """
    if isinstance(table, dict) and batch is not None and "batch" not in table:
        table = {"batch": batch, **table}
    before = len(faults.problems)
    values = TableOf(STEP).take(table, faults, "step")
    if values is None:
        return None
    measured = values["batch"] or 1
    batch = measured if batch is None else batch
    run = ModelRun(
        MEGATRON if values["variable_update"] else values["kernels"] or EAGER,
        values["precision"] or AMP,
        values["recompute"] or NONE,
        values["attention"] or FUSED,
    )
    if model and run.precision == BF16:
        model = in_dtype(model, dtypes.code("bfloat16"))
    sharding = read_sharding(values["sharding"]) if "method" in values.given else None
    if sharding and run.precision == BF16 and sharding.param_dtype is None:
        sharding = replace(sharding, pure=True)
    elif sharding and dtypes.SIZES[sharding.wire(0)[0]] == 2 and "precision" not in values.given:
        run = run._replace(precision=BF16)  # parameters that are gathered in 16 bits
    numerics = _numerics(sharding, run)
    profile, slow, gpu, kernels = _compute(
        values, model, batch, run, numerics, topology, beside, faults, before
    )
    spread = gpu.spread if gpu and "spread" not in values.given else values["spread"]
    if profile and batch != measured and not (gpu or values["rate"]):
        profile = profile.rescale(measured, batch)
    if profile and values["speed"] not in (None, 1.0):
        profile = profile.faster(values["speed"])
    faults.check(
        not profile or profile.seconds + profile.update <= LONGEST,
        "step.time, rate or profile",
        "more than 1000 h",
    )
    policy = values["recompute"] or NONE
    if policy != NONE and model is not None:
        shares = faults.attempt("step.recompute", repeated, model, policy)
        if profile and shares and gpu is None:
            profile = profile.repeat(shares, f"{policy} recomputation on top")
    flags = {key: values[key] for key in _FLAG_KEYS if values[key] is not None}
    mode = values["variable_update"] or ""
    if mode:
        used, when = _used(mode, flags, topology)
        faults.add_broken("step", (
            (key, key in values.given and key not in used, f"{mode}{when} does not use it")
            for key in (*_FLAG_KEYS, "cycle", "streams")
        ))  # fmt: skip
    methods: tuple[str, ...] = tuple(values["method"] or (DDP,))
    if sharding and methods != (DDP,) and model is not None and model.finest:
        faults.add(
            "step.method",
            f"{', '.join(m for m in methods if m != DDP)} shards what layers hold, which a "
            "recorded job does not say; replay runs it",
        )
    elif sharding and methods != (DDP,) and model is not None:
        faults.attempt("step.sharding.units", wrap, model, sharding.units)
    if len(faults.problems) > before or profile is None or model is None:
        return None
    own = profile.update if values["barrier"] else 0.0
    update = own if values["update"] is None else values["update"]
    job = StepJob(
        model, profile, batch, update, values["consistency"], values["barrier"], slow,
        values["accumulate"], values["no_sync"], spread,
        interference=_interference(values, beside), gpu=gpu, kernels=kernels,
    )  # fmt: skip
    cycle = CYCLE if values["cycle"] is None else values["cycle"]
    activations = _activations(values, run, job, measured)
    return StepQuestion(
        job, mode, Flags(**flags), values["streams"], cycle, methods, sharding, activations, run
    )


def _numerics(sharding: Sharding | None, run: ModelRun) -> Sharding:
    return sharding or Sharding(pure=run.precision == BF16)


def _interference(values: FieldValues, beside: Callable[[str], str]) -> float | None:
    """That which is given; a recorded job has it in its times already; None for the law."""
    if values["interference"] is not None:
        return float(values["interference"])
    profile = values["profile"]
    return 0.0 if profile is not None and is_record(beside(profile)) else None


def _activations(values: FieldValues, run: ModelRun, job: StepJob, measured: int) -> Activations:
    """Those that the user gives, else those of the architecture."""
    if values["activations"] is not None:
        return Activations(values["activations"], GIVEN).rescale(measured, job.batch)
    return run.activations(job.model, job.batch, job.accumulate)


_FLAG_KEYS = tuple(each.key for each in _FLAGS)


def _used(mode: str, flags: Mapping[str, Any], topology: Topology | None) -> tuple[set[str], str]:
    """The keys that a mode reads, of its flags, `cycle` and `streams`, and the condition for it."""
    reduction = {"packing", "streams"}
    if mode == "independent":
        return set(), ""
    if mode in ("parameter_server", "distributed_replicated"):
        used = {"local_parameter_device", "streams"}
        boxes = {topology.nodes[name].machine for name in topology.devices} if topology else ()
        alone = mode == "parameter_server" and len(boxes) == 1
        return (used, " on one machine") if alone else (used | {"ps_tasks"}, "")
    if mode == "horovod":
        packing = flags.get("packing") or "fusion"
        fuses = isinstance(packing, str) and packing.startswith("fusion")
        return (reduction | {"cycle"}, "") if fuses else (reduction, " without fusion")
    if mode == "replicated" and not flags.get("all_reduce_spec"):
        copies = bool(flags.get("hierarchical_copy"))
        other = "network_topology" if copies else "local_parameter_device"
        when = f" {'with' if copies else 'without'} hierarchical_copy"
        return reduction | {"hierarchical_copy", other}, when
    return reduction | {"all_reduce_spec"}, " with all_reduce_spec" if mode == "replicated" else ""


def _compute(
    values: FieldValues,
    model: Model | None,
    batch: int,
    run: ModelRun,
    numerics: Sharding,
    topology: Topology | None,
    beside: Callable[[str], str],
    faults: Faults,
    before: int,
) -> tuple[Profile | None, Mapping[str, float], Gpu | None, Callable[[Gpu], Profile] | None]:
    """The profile, how many times as long each device takes, the GPU to compute as, and the profile
    of any GPU.

    There were so many faults `before` those of the table.
    """
    profile, slow, gpu, kernels = None, dict[str, float](), None, None
    if values["profile"] is not None:
        profile = faults.attempt("step.profile", load_profile, beside(values["profile"]), model)
    if values["rate"] is not None:
        rates = _rates(values["rate"], topology, faults)
        best = max(rates.values(), default=0.0)
        if best and model is not None:
            profile = faults.attempt("step.rate", profile_from_rate, model, batch, best)
            slow = {name: best / rate for name, rate in rates.items()}
    if values["time"] is not None and model is not None:
        profile = profile_from_seconds(model, values["time"])
    measured = {"time", "rate", "profile"} & values.given
    misspelt = values["gpu"] is None and len(faults.problems) > before  # they may mean a time
    nodes = [topology.nodes[name] for name in topology.devices] if topology else []
    if topology is not None and not measured and not misspelt:
        gpu = faults.attempt("step.gpu", gpu_for, values["gpu"], nodes, beside, _INSTEAD)
    known = [gpu] if gpu else [gpu_of(kind) for kind in dict.fromkeys(n.model for n in nodes)]
    if not _lacks([each for each in known if each], values, faults) and gpu and model:
        ran = run._replace(kernels=values["kernels"] or EAGER)
        kernels = partial(run_profile, model, batch=batch, run=ran, numerics=numerics)
        profile = faults.attempt("step.gpu", kernels, gpu)
    return profile, slow, gpu, kernels


def _lacks(gpus: Sequence[Gpu], values: FieldValues, faults: Faults) -> bool:
    """Whether a GPU lacks what the table names, the precision or the type of gathered parameters.

    `faults` notes it, whatever gives the times.
    """
    before, gathered = len(faults.problems), (values["sharding"] or {}).get("param_dtype")
    for gpu in gpus:
        words = {"precision": values["precision"] or AMP}
        if gathered == dtypes.code("bfloat16"):
            words["sharding.param_dtype"] = BF16
        for key, word in words.items():
            why = gpu.lacks(word)
            faults.check(not why, f"step.{key}", why)
    return len(faults.problems) > before


def _rates(
    given: Mapping[str, float], topology: Topology | None, faults: Faults
) -> dict[str, float]:
    """FLOP/s of every GPU: by its name, its model, or for all."""
    model = {name: topology.nodes[name].model for name in topology.devices} if topology else {}
    known = {*model, *model.values()}
    unknown = [name for name in given if name and topology and name not in known]
    for name in unknown:
        faults.add(f"step.rate.{name}", f"no GPU or model has this name{did_you_mean(name, known)}")
    found = {
        name: given.get(name, given.get(kind, given.get("", 0.0))) for name, kind in model.items()
    }
    for kind, rate in dict.fromkeys((kind, found[name]) for name, kind in model.items()):
        gpu = gpu_of(kind)
        if gpu and rate > gpu.flops:
            most = f"more than the {gpu.flops / 1e12:g} TFLOP/s of dense products of 16 bits"
            faults.add(
                "step.rate", f"{rate / 1e12:g} TFLOP/s is {most} on the data sheet of {gpu.title}"
            )
    without = [name for name, rate in found.items() if not rate and not unknown]
    faults.check(not without, "step.rate", f"there is none for {', '.join(without[:5])}")
    return {} if unknown or without else found
