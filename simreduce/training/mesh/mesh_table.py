"""The table `[step]` of a scenario with a `mesh`: which jobs it asks about, and which cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

from simreduce.engine.setup import Setup
from simreduce.files.formats import (
    FLAG,
    LINE,
    Field,
    FieldValues,
    Format,
    ListOf,
    OneOrMore,
    Scalar,
    TableOf,
    choice,
    number,
    whole,
)
from simreduce.files.formats.syntax import Faults
from simreduce.planners.algorithms import KERNELS
from simreduce.planners.layouts import Layout
from simreduce.planners.strategy import parse_strategy
from simreduce.planners.strategy.compiler import compile_collective
from simreduce.training.eager import MEGATRON, RENAMED
from simreduce.training.gpus import Gpu, faster_gpu, gpu_for
from simreduce.training.memory import ATTENTIONS, FULL, FUSED, NONE, OP, POLICIES
from simreduce.training.mesh import (
    ALLTOALL,
    COPIES,
    DISPATCHES,
    DISTRIBUTED,
    FSDP,
    GRAPHS,
    NCCL,
    OPTIMIZERS,
    ORDER,
    OVERLAPS,
    P2P,
    PP,
    REPLICAS_FAR,
    ROUTER,
    TP,
    USUAL,
    Mesh,
    MeshJob,
    check_divides,
    fill,
    legal_ways,
    read_mesh,
    read_order,
    split_evenly,
    split_short,
)
from simreduce.training.mesh.parts import DEFAULT_GINI, busiest
from simreduce.training.mesh.pipeline import (
    NAMES,
    ONE_STAGE,
    check_schedule,
    load_schedule,
    why_not,
)
from simreduce.training.sharded import some_of
from simreduce.training.stacks import STACKS
from simreduce.workload import Gradient, Workload
from simreduce.workload.decoder import Decoder, Sequences

AUTO = "auto"
_TENSOR = Workload("one element", (Gradient("tensor", 1),))
MOST_PASSES = 1 << 15
"""Forward passes of all stages in a step, which take seconds to simulate."""
_LONG = 4096
"""Tokens that a context parallel rank has, at least, of those that `auto` tries."""


PIPELINE = Format(
    "pipeline",
    "How stages take turns.",
    Field("schedule", OneOrMore(LINE), f"{', '.join(NAMES)}; or a file with a line of actions for"
          " each rank, as PyTorch's pipelining writes them. Or a list, to rank.",
          default_words="`1f1b`, or `interleaved` with several stages on a GPU"),
    Field("virtual", OneOrMore(whole(1, 1024)), "Stages that a GPU holds; or a list.",
          default_words="1"),
    Field("layers", ListOf(whole(0, 10**6)), "Blocks of each stage.",
          default_words="as many on each; or one less on the first and the last; with `auto`, or"
          " fewer on the last"),
)  # fmt: skip

MESH = Format(
    "mesh",
    "A training step on a mesh of tensor, pipeline, context, expert and data parallel ranks: a"
    " `[step]` with a `mesh`.",
    Field("mesh", OneOrMore(LINE), 'Ways of each axis, as `"tp=8,pp=4"`; `dp` is the rest unless'
          ' stated, and `ep` divides it. `"dp_replicate=2,dp_shard=8"` are hybrid shards (HSDP) of'
          ' `fsdp`. Or a list, or `"auto"`: tensor parallel ranks within a'
          ' machine, stages, experts of one rank or of all tensor parallel ones, context parallel'
          ' ranks from 8,192 tokens on; unless stated also both orders of Megatron-LM, micro'
          ' batches of 1 to 8, every schedule but `gpipe`, all numbers of stages on a GPU, none or'
          ' full recomputation, and without stages `fsdp`.', required=True),
    Field("order", OneOrMore(Scalar("all axes, such as " + ORDER, LINE.schema,
                                    lambda v: read_order(str(v)))),
          "The axes, neighbours first; how ranks lie on the machine. Or a list, to rank.",
          default_words=f"`{ORDER}`"),
    Field("global_batch", whole(1, 10**9), "Sequences of a step.", required=True),
    Field("micro_batch", OneOrMore(whole(1, 10**6)), "Sequences of a micro batch; or a list.",
          default_words="1"),
    Field("recompute", some_of((*POLICIES, OP), "one policy of"), "Activations that backward passes"
          " make again; `op`: all but attention and every other product, as torchtitan does. Or a"
          " list.", default_words="`none`"),
    Field("attention", choice(ATTENTIONS, "attention"), "`fused` (FlashAttention) or `unfused`.",
          FUSED),
    Field("sequence_parallel", FLAG, "Whether tensor parallel ranks share sequences where they do"
          " not share heads.", default_words="`true` with tp"),
    Field("optimizer", some_of(OPTIMIZERS, "one optimizer of"), "`replicated`; `distributed`:"
          " replicas share its states (ZeRO-1); `fsdp`: and parameters and gradients. Or a list.",
          default_words="`distributed`"),
    Field("overlap", ListOf(choice(OVERLAPS, "overlap")), "What overlaps with compute: reductions"
          " of gradients, gathers of parameters, tensor parallel calls beside gradients (as in"
          " Megatron-LM) or beside all products (as in Transformer Engine), sends between stages"
          " (where they are interleaved), experts' all-to-all.",
          default_words='`["grad_reduce", "param_gather", "tp_grad"]`'),
    Field("precision", choice(("bf16", "fp16", "fp8"), "precision"), "Of products.",
          default_words="`bf16`, or `fp16` on a GPU without it"),
    Field("reduce", choice(("float32", "bfloat16"), "type"), "Of gradients that are reduced.",
          "float32"),
    Field("imbalance", number(1.0, 1e3), "Tokens of the busiest rank of experts over the mean.",
          default_words="1.0, or as drawn"),
    Field("interference", number(0.0, 10.0), "How much more kernels slow down beside a collective"
          " than by the part of the SMs that it holds, one a channel; 0: not at all.",
          default_words="what kernels of their shapes lose"),
    Field("router_seed", whole(0, 2**32 - 1), "Draws each block's popular experts, and the tokens"
          " of every rank, in place of `imbalance`."),
    Field("router_gini", number(0.0, 0.9), "The Gini coefficient of experts' popularity, whose law"
          " is a symmetric Dirichlet distribution: 0 is even; five models have 0.1 to 0.4.",
          default_words=f"{DEFAULT_GINI} with a `router_seed`"),
    Field("capacity_factor", number(0.01, 1e3), "Tokens of a rank that an expert takes, over the"
          " mean; others are dropped.", default_words="all are taken"),
    Field("pad_to_capacity", FLAG, "Whether every expert gets as many tokens as it takes.", False),
    Field("dispatch", choice(DISPATCHES, "dispatch"), "How tokens get to their experts: NCCL's"
          " `alltoall`, or `deepep` (DeepEP, HybridEP): once to each machine.", ALLTOALL),
    Field("tensor_all_reduce", choice((NCCL, *KERNELS), "all-reduce"), "What sums activations of"
          " tensor parallel ranks: NCCL, or a kernel that reads its peers, without"
          " `sequence_parallel`.", NCCL),
    Field("cuda_graphs", ListOf(choice(GRAPHS, "part")), "What the host launches as CUDA graphs:"
          " `attention`, the `router` with its counts of tokens.", default_words="nothing"),
    Field("gpu", LINE, "The GPU to compute as: a name, or a file (`compute`).",
          default_words="the machine's"),
    Field("kernels", choice(tuple(STACKS), "way"), "How the model runs: as by Megatron-LM, by"
          " torchtitan compiled or eager, by DeepSpeed or by MaxText.",
          default_words="that of `framework`, or `megatron`"),
    Field("speed", number(1e-6, 1e6), "Times as fast as `gpu` says.", 1.0),
    Field("pipeline", TableOf(PIPELINE), "How stages take turns."),
    refused=RENAMED,
)  # fmt: skip


class Refusal(NamedTuple):
    """A job that cannot be, by name, and every reason."""

    name: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class MeshQuestion:
    """Jobs to compare, and those that cannot be; `named` if the user listed every mesh."""

    jobs: tuple[MeshJob, ...]
    refused: tuple[Refusal, ...]
    named: bool


def parse_mesh(
    table: object, model: Sequences | None, setup: Setup | None, faults: Faults,
    beside: Callable[[str], str] = str, stack: str = MEGATRON,
) -> MeshQuestion | None:  # fmt: skip
    """The question of a `[step]` with a `mesh`; None if there is a fault, which `faults` notes.

    Kernels are those of the `stack` unless it says others.
    """
    before = len(faults.problems)
    values = TableOf(MESH).take(table, faults, "step")
    nodes = [setup.topology.nodes[name] for name in setup.layout.ranks] if setup else []
    named = values["gpu"] if values else None
    gpu = faults.attempt("step.gpu", gpu_for, named, nodes, beside) if nodes else None
    if values:
        if model:
            _check_router(values, model.shape, faults)
        for text in (values["pipeline"] or {}).get("schedule") or ():
            faults.attempt("step.pipeline.schedule", check_schedule, text, beside(text))
        if gpu:
            gpu = faster_gpu(gpu, values["speed"])
            values["precision"] = values["precision"] or ("bf16" if gpu.bf16 else "fp16")
            lacking = gpu.lacks(values["precision"])
            faults.add_broken("step", [("precision", bool(lacking), lacking)])
        for text in values["mesh"] or () if setup is None else ():
            if text != AUTO:
                faults.attempt("step", read_mesh, text)
    if len(faults.problems) > before or not (values and setup and gpu and model):
        return None
    values["kernels"] = values["kernels"] or stack
    found = list(_jobs(values, model.shape, model.tokens, setup.layout, gpu, faults, beside))
    jobs = tuple(each for each in found if isinstance(each, MeshJob))
    refused = tuple(each for each in found if isinstance(each, Refusal))
    named = AUTO not in values["mesh"]
    if not jobs and named and len(faults.problems) == before:
        for each in refused[:3]:
            for reason in each.reasons:
                faults.add("step", f"{each.name}: {reason}")
    elif not jobs and not named:
        why = "".join(f"; {each.name}: {each.reasons[0]}" for each in refused[:1])
        faults.add(
            "step.mesh", f"no mesh of {setup.layout.n} GPUs fits the model and the batch{why}"
        )
    return MeshQuestion(jobs, refused, named) if len(faults.problems) == before else None


def _jobs(
    values: FieldValues, shape: Decoder, tokens: int, layout: Any, gpu: Gpu, faults: Faults,
    beside: Callable[[str], str],
) -> Iterator[MeshJob | Refusal]:  # fmt: skip
    ranks, pipe = layout.n, values["pipeline"] or {}
    auto = AUTO in values["mesh"]
    meshes: list[Mesh] = []
    for text in values["mesh"]:
        if text == AUTO:
            meshes += _every_mesh(
                shape, ranks, max(map(len, layout.tasks)), values["order"] or _ORDERS, tokens
            )
        else:
            mesh = faults.attempt("step", read_mesh, text)
            filled = faults.attempt("step", fill, mesh, ranks) if mesh else None
            orders = values["order"] or [ORDER]
            meshes += [replace(filled, order=order) for order in orders] if filled else []
    micros = values["micro_batch"] or ([1, 2, 4, 8] if auto else [1])
    policies = values["recompute"] or ([NONE, FULL] if auto else [NONE])
    if auto and not values["recompute"] and values["attention"] != FUSED:
        policies = POLICIES
    known = values["kernels"], shape, values["attention"]
    policies = [policy_of_stack(each, *known) for each in policies]
    overlap, gini = values["overlap"], values["router_gini"]
    shared: Mapping[str, Any] = {
        "attention": values["attention"] or FUSED,
        "overlap": USUAL if overlap is None else frozenset(overlap),
        "bits": 8 if values["precision"] == "fp8" else 16,
        "half": "fp16" if values["precision"] == "fp16" or not gpu.bf16 else "bf16",
        "reduced": 2 if values["reduce"] == "bfloat16" else 4,
        "imbalance": values["imbalance"] or 1.0,
        "interference": values["interference"],
        "capacity": values["capacity_factor"] or 0.0,
        "pad": bool(values["pad_to_capacity"]),
        "dispatch": values["dispatch"] or ALLTOALL,
        "tensor_all_reduce": values["tensor_all_reduce"],
        "graphs": frozenset(values["cuda_graphs"] or ()),
        "kernels": values["kernels"],
    }
    router = values["router_seed"], DEFAULT_GINI if gini is None else gini
    listed = tuple(pipe["layers"]) if pipe and pipe["layers"] else None
    for mesh in dict.fromkeys(meshes):
        pairs = _pipelines(pipe, mesh, shape, auto=auto)
        whole = [FSDP] if auto and mesh.pp == 1 else []
        optimizers = values["optimizer"] or ([DISTRIBUTED, *whole] if mesh.copies == 1 else [FSDP])
        for (schedule, virtual), micro, policy, optimizer in product(
            pairs, micros, policies, optimizers
        ):
            parallel = values["sequence_parallel"]
            split = listed or split_evenly(shape.blocks, mesh.pp * virtual)
            if split is None and auto and virtual == 1:
                split = split_short(shape.blocks, mesh.pp)
            found = _job(
                shape, layout, mesh, gpu, micro, values["global_batch"], tokens,
                schedule if schedule in NAMES else beside(schedule), virtual, split,
                {**shared, "recompute": policy, "optimizer": optimizer,
                 "sequence_parallel": mesh.tp > 1 if parallel is None else parallel},
            )  # fmt: skip
            if isinstance(found, MeshJob) and shape.experts:
                found = replace(found, imbalance=busiest(found, *router))
            yield found


def _check_router(values: FieldValues, shape: Decoder, faults: Faults) -> None:
    """Note keys of experts that do not go together, or with the model."""
    own = ("router_seed", "router_gini", "capacity_factor", "pad_to_capacity", "dispatch")
    seeded, none = values["router_seed"] is not None, not shape.experts
    faults.add_broken("step", (
        ("cuda_graphs", none and ROUTER in (values["cuda_graphs"] or ()),
         "the model has no experts, so it has no router"),
        *((key, none and values[key] not in (None, False, ALLTOALL),
           "the model has no experts; leave it out") for key in own),
        ("imbalance", seeded and values["imbalance"] is not None,
         "router_seed draws it; give one of both"),
        ("router_gini", values["router_gini"] is not None and not seeded, "needs a router_seed"),
        ("pad_to_capacity", values["pad_to_capacity"] and not values["capacity_factor"],
         "needs a capacity_factor"),
    ))  # fmt: skip


def _pipelines(
    pipe: FieldValues | dict[str, Any], mesh: Mesh, shape: Decoder, *, auto: bool
) -> list[tuple[str, int]]:
    """Schedules with the stages of a GPU."""
    virtuals = (pipe["virtual"] if pipe else None) or [1]
    schedules = pipe["schedule"] if pipe else None
    if mesh.pp == 1 and auto:
        return [("1f1b", 1)]
    if auto and not (pipe and pipe["virtual"]):
        most = shape.blocks // mesh.pp
        ways = range(1, most + 1)
        virtuals = [v for v in ways if v == 1 or split_evenly(shape.blocks, mesh.pp * v)] or [1]
    if schedules is None and not auto:
        return [("1f1b" if v == 1 else "interleaved", v) for v in virtuals]
    found = product(_SCHEDULES if schedules is None else schedules, virtuals)
    if not auto:
        return [*found]
    return [(s, v) for s, v in found if not any(why_not(s, mesh.pp, v, _MANY * mesh.pp))]


_ORDERS = (ORDER, REPLICAS_FAR)
_SCHEDULES = tuple(name for name in NAMES if name != "gpipe")
"""What `auto` tries: GPipe takes as long as 1F1B, and keeps activations of all micro batches."""
_MANY = 4
"""Micro batches of each stage, of which every schedule that takes so many stages is for."""


def _every_mesh(
    shape: Decoder, ranks: int, node: int, orders: Iterable[str], tokens: int
) -> list[Mesh]:
    """Meshes that use all GPUs, with tensor parallel ranks within a machine, and context parallel
    ones for long sequences. Of the usual orders, one counts where both lay the ranks alike.
    """
    found = list[Mesh]()
    shares = [shape.heads, shape.groups] if shape.groups > 1 else [shape.heads]
    contexts = legal_ways([ranks, tokens // 2], min(node, tokens // _LONG)) or [1]
    for t, c in product(legal_ways([*shares, ranks], node), contexts):
        if ranks % (t * c):
            continue
        for p in legal_ways([ranks // (t * c)], shape.blocks):
            if split_short(shape.blocks, p) is None and split_evenly(shape.blocks, p) is None:
                continue
            d = ranks // (t * c * p)
            alike = (p == 1 or d == 1) and {*orders} <= {*_ORDERS}
            for order in [*orders][:1] if alike else orders:
                found += [
                    Mesh(tp=t, cp=c, ep=e, dp=d, pp=p, etp=etp, order=order)
                    for e, etp in _expert_ways(shape, t, c * d)
                ]
    return found


def _expert_ways(shape: Decoder, tensor: int, others: int) -> list[tuple[int, int]]:
    """Ways of experts, and tensor parallel ranks of each: one, or as many as all else has (0)."""
    if not shape.experts:
        return [(1, 0)]
    return [
        (ways, etp)
        for etp in ([1, 0] if tensor > 1 else [0])
        for ways in legal_ways([shape.experts, others * (tensor if etp else 1)], shape.experts)
    ]


def _job(
    shape: Decoder, layout: Layout, mesh: Mesh, gpu: Gpu, micro: int, batch: int, tokens: int,
    schedule: str, virtual: int, split: tuple[int, ...] | None, rest: Mapping[str, Any],
) -> MeshJob | Refusal:  # fmt: skip
    """The job, or every reason why it cannot be."""
    name = f"{mesh.name} micro_batch={micro} {schedule}"
    name += f" virtual={virtual}" if virtual > 1 else ""
    faults = Faults("")
    stages = mesh.pp * virtual
    if split is None:
        check_divides(faults, "pp", stages, "layers", shape.blocks)
        split = (0,) * stages
    elif sum(split) != shape.blocks or len(split) != stages:
        words = f"pipeline.layers has {sum(split)} layers in {len(split)} stages"
        faults.add("layers", f"{words}; it takes {shape.blocks} in {stages}")
    elif not all(split[1:-1]):
        faults.add("layers", "a stage between the first and the last has none")
    parallel = rest["sequence_parallel"]
    check_shape(faults, shape, mesh, tokens, parallel=parallel)
    _check_kernel(faults, layout, mesh, rest["tensor_all_reduce"], parallel=parallel)
    each = micro * mesh.dp
    micros = batch // each
    if batch % each or not micros:
        words = f"global_batch {batch} is no multiple of micro_batch x dp, {each}"
        faults.add("batch", f"{words}; {max(micros, 1) * each} is")
    elif micros * stages > MOST_PASSES:
        faults.add(
            "micro_batch",
            f"micro batches x stages are more than can be simulated: at most {MOST_PASSES}; raise"
            " micro_batch, or lower global_batch",
        )
    elif schedule in NAMES:
        for problem in why_not(schedule, mesh.pp, virtual, micros):
            faults.add("schedule", problem)
    elif found := faults.attempt("schedule", load_schedule, schedule, mesh.pp, virtual, micros):
        rest = {**rest, "placed": tuple(found.home[stage] for stage in range(stages))}
    if schedule in ONE_STAGE:  # as in Megatron-LM: only interleaved stages send beside compute
        rest = {**rest, "overlap": rest["overlap"] - {P2P}}
    if rest["recompute"] == OP:
        known = _counts_ops(shape, rest["attention"])
        words = "nobody counted op of experts, biases, latent or unfused attention; full is known"
        faults.check(known, "recompute", words)
    if mesh.copies > 1:
        words = f"is for optimizer = 'fsdp', whose shards it copies; this is {rest['optimizer']}"
        faults.check(rest["optimizer"] == FSDP, COPIES, words)
        check_divides(faults, COPIES, mesh.copies, "replicas (dp)", mesh.dp)
        if shape.experts:
            check_divides(faults, COPIES, mesh.copies, "replicas of experts", mesh.expert_data)
    faults.check(
        rest["optimizer"] != FSDP or mesh.pp <= 1,
        "optimizer",
        "fsdp with pp is not simulated; distributed is",
    )
    if faults.problems:
        return Refusal(name, tuple(each.removeprefix(": ") for each in faults.problems))
    return MeshJob(shape, mesh, gpu, micro, micros, tokens, schedule, virtual, split, **rest)


def policy_of_stack(word: str, stack: str, shape: Decoder, attention: str | None) -> str:
    """The policy of recomputation that a stack calls so, where it is known what that keeps."""
    return STACKS[stack].policy(word) if _counts_ops(shape, attention) else word


def _counts_ops(shape: Decoder, attention: str | None) -> bool:
    """Whether it is known what is kept op by op."""
    return not (shape.experts or shape.latent or shape.bias) and attention in (None, FUSED)


def _check_kernel(
    faults: Faults, layout: Layout, mesh: Mesh, kernel: str, *, parallel: bool
) -> None:
    """Note why a kernel cannot sum what tensor parallel ranks have."""
    if kernel == NCCL or mesh.tp == 1:
        return
    faults.check(
        not parallel,
        "tensor_all_reduce",
        "sequence parallel ranks gather and scatter, which NCCL does; set"
        " sequence_parallel = false",
    )
    plan = "all_reduce", parse_strategy(kernel), _TENSOR, layout.only(sorted(mesh.groups(TP)[0]))
    faults.attempt("tensor_all_reduce", compile_collective, *plan)


def check_shape(faults: Faults, shape: Decoder, mesh: Mesh, tokens: int, *, parallel: bool) -> None:
    """Note what an axis cannot divide."""
    for divides, axis, ways, what, count in (
        (True, "tp", mesh.tp, "heads", shape.heads),
        (mesh.tp % shape.groups, "tp", mesh.tp, "groups of keys and values", shape.groups),
        (shape.inner, "tp", mesh.tp, "columns of the feed-forward part", shape.inner),
        (mesh.cp > 1, "cp", 2 * mesh.cp,
         "tokens of a sequence (an early and a late part for each rank)", tokens),
        (parallel and mesh.tp > 1, "tp", mesh.tp * mesh.cp, "tokens of a sequence", tokens),
    ):  # fmt: skip
        if divides:
            check_divides(faults, axis, ways, what, count)
    for axis, ways in (("ep", mesh.ep), ("etp", mesh.etp)):
        none = ways > 1 and not shape.experts
        faults.check(not none, axis, f"the model has no experts for {ways} ways; leave {axis} out")
    if shape.experts:
        faults.check(
            mesh.expert_tensor >= mesh.tp or parallel,
            "etp",
            "tensor parallel ranks with experts of their own need sequence_parallel"
            "; so do Megatron-LM's",
        )
        check_divides(faults, "ep", mesh.ep, "experts", shape.experts)
        check_divides(faults, "etp", mesh.expert_tensor, "columns of an expert", shape.expert)
        ways = mesh.tp * mesh.cp * mesh.dp
        if ways % (mesh.expert_tensor * mesh.ep):
            words = f"ep x etp is {mesh.expert_tensor * mesh.ep}"
            faults.add("ep", f"{words}, which does not divide tp x cp x dp, {ways}")
        elif not mesh.order.endswith(PP) and mesh.groups(PP) != mesh.groups(PP, expert=True):
            words = "would have a stage's experts on other ranks than its attention"
            faults.add("order", f"{mesh.order} {words}; an order that ends in pp does not")
