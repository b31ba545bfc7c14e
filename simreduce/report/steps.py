"""`simreduce step`: the figures of training steps, of methods and of meshes, and their documents.

A closer look at a training step, or at an update of synchronous replicas, for pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from types import SimpleNamespace
from typing import Any, Literal

from simreduce import units
from simreduce.computing import grouped
from simreduce.engine import Use
from simreduce.export.frameworks import MESH_PROGRAMS
from simreduce.files.formats.documents import (
    ABSENT,
    BYTES,
    COUNT,
    FLAG,
    MICROSECONDS,
    PER_SECOND,
    PLACE,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    keys_of,
    list_of,
    map_of,
    one_of,
    or_null,
)
from simreduce.files.tables import Column, Table, percent
from simreduce.report.blocks import Written
from simreduce.report.explain import CHANGE, EXPLAIN, Explained
from simreduce.report.headings import (
    ACTIVATIONS_KEY,
    ADVICE,
    ADVICE_KEY,
    DISTURBED,
    FACTOR_KEYS,
    HEAD_KEYS,
    HURRIED_KEY,
    LINK,
    OUTSIDE_KEY,
    PERCENTILES_ABOUT,
    REFUSED_KEY,
    sentence,
)
from simreduce.study.scenario import WORTH
from simreduce.study.tune.meshes import MeshRanking, Ranking, programs_for
from simreduce.study.tune.steps import MethodRanking, StepCandidate
from simreduce.study.tune.whatif import Saving
from simreduce.study.tune.whatif_steps import Effect, StepLook, losses_by_kind, percentiles_of_step
from simreduce.training import Bucket, PathPiece, StepResult, device_label
from simreduce.training.mesh import ORDER
from simreduce.training.path import seconds_by_kind
from simreduce.training.step import CONSISTENCIES, SPENT_ON
from simreduce.training.step_errors import apart


def _needed(row: Written) -> str:
    needed = row["memory_bytes"]["needed"] if "memory_bytes" in row else None
    return "" if needed is None else f"{needed / 1e9:.2f}{' *' * (row.get('fits') is False)}"


def _held(name: str, about: str, get: str = "", *, known: bool = False, head: str = "") -> Key:
    """A figure of what a GPU holds, headed by its name unless by another `head`."""
    keep: Literal["known", "always"] = "known" if known else "always"
    column = Column(head or name.replace("_", " "), show=units.format_size, keep=keep)
    return Key(name, BYTES, about, get or name, column=column)


MEMORY = Record(
    "memory",
    "What a GPU holds.",
    Key(
        "place", COUNT, "The stage of the pipeline, from 1.", written=False,
        column=Column("stage", keep="known"),
    ),
    _held("parameters", "Parameters, all the time."),
    _held("gradients", "Gradients at the peak."),
    _held("optimizer", "The optimizer's states."),
    _held("gathered", "Gathered parameters, at most at once.", known=True),
    _held("gathered_limit", "What these may never exceed.", known=True),
    _held("unreduced", "Gradients that are not reduced yet, at most at once.", known=True),
    _held("peak", "The most of all at once."),
    _held("activations", "Activations; 0 if they are not counted.", "activations.nbytes"),
    _held("casts", "Parameters that autocast converts, until their backward pass.",
          "most.casts", known=True),
    _held("logits", "Logits with their gradients at the peak.", "most.logits", known=True),
    _held("buckets", "DDP's copies of gradients.", known=True),
    _held("nccl_buffers", "Buffers of NCCL's communicators, beside the peak.", known=True,
          head="NCCL"),
    Key("needed", BYTES, "The memory of a GPU on which that fits: with what the allocator reserves,"
        " CUDA's context, NCCL's buffers and 5 % left."),
    Key(
        "when", TEXT, "When it holds most.", lambda memory: memory.most.at or ABSENT, optional=True,
    ),
    Key(
        "in_flight", COUNT, "Passes whose activations are kept, at most.", written=False,
        column=Column("in flight", keep="known"),
    ),
    order="place parameters gradients optimizer activations casts logits buckets in_flight "
    "gathered gathered_limit unreduced peak when nccl_buffers needed",
)  # fmt: skip
_IN = {key.name: replace(key, name=f"{key.name}_bytes", column=()) for key in MEMORY.keys}
_HELD = Record(
    "held",
    "What a rank of a stage holds at most.",
    Key("place", COUNT, "The stage of the pipeline, from 1.", PLACE),
    *(_IN[name] for name in ("parameters", "gradients", "optimizer", "activations")),
    Key("in_flight", COUNT, "Passes whose activations are kept, at most."),
    _IN["peak"],
)
_EXPOSED = Key(
    "exposed_us", MICROSECONDS,
    "Communication, and waits for other ranks, that no compute hides.", "step.exposed",
    column=Column("exposed", "(ms)", spare=1),
)  # fmt: skip
_INTERFERENCE = Key(
    "interference_us", MICROSECONDS,
    "What the slowest device's passes take longer beside collectives.", "step.interference",
)  # fmt: skip
_MFU = Key(
    "mfu", or_null(RATIO), "Model FLOPs over those of the GPUs' data sheet; null where nobody knows"
    " the GPUs or the FLOPs.", column=Column("MFU", spare=3, show=percent(1), keep="known"),
)  # fmt: skip
FITS = Key(
    "fits", or_null(FLAG), "Whether it fits; null if that is not known.",
    lambda row: row.fit.fits if row.fit else ABSENT, optional=True,
)  # fmt: skip
_CHANCE = Key(
    "fits_chance", or_null(RATIO), "The chance that it does, by published memory.",
    lambda row: row.fit.chance if row.fit else ABSENT, optional=True,
)  # fmt: skip
_LIMIT = Key(
    "limit", TEXT, "What a rank does or waits for the longest.", "step.limit",
)  # fmt: skip
_SPENT = Key(
    "spent_us", map_of(MICROSECONDS), "What the slowest rank, or of a mesh the one that ends last,"
    " does or waits for.", "step.spent",
)  # fmt: skip
_INTERVAL = (
    Key("low_us", MICROSECONDS, "The lower end of its 80 % interval, by errors of published steps;"
        " of a compute time that is given, by those of what is exposed.", "interval.0"),
    Key("high_us", MICROSECONDS, "The upper end.", "interval.1"),
    Key("unsure", TEXT, 'Why that is wide; "" if it is not.', "sure.why"),
)  # fmt: skip
_OF_ALL = (
    OUTSIDE_KEY,
    Key("percentiles_us", map_of(MICROSECONDS), PERCENTILES_ABOUT, percentiles_of_step),
    Key(
        "path_us", map_of(MICROSECONDS), "The critical path of the first step, by kind of piece:"
        " passes, transfers by their lane, waits.", lambda ranking: _path(ranking.closely),
    ),
    Key(
        "interference_by_us", map_of(MICROSECONDS), "What kernels of the step to run lose beside"
        " collectives, by what they are: products, attention, and what moves bytes; empty where"
        " they are not known.", losses_by_kind,
    ),
)  # fmt: skip


def _path(step: StepResult) -> dict[str, float]:
    """Seconds of each kind of piece on the critical path; transfers by lane."""
    return {f"{kind} {lane}".strip(): t for kind, lane, t, _ in seconds_by_kind(step.path)}


_FIGURES = (
    Key(
        "strategy", TEXT, "The method, with its strategy.", "step.method",
        column=Column("strategy", left=True),
    ),
    Key(
        "runtime", TEXT, "The system that runs it.",
        column=Column("runtime", left=True, spare=4, keep="varied"),
    ),
    Key("step_time_us", MICROSECONDS, "A step.", "step.seconds", column=Column("step", "(ms)")),
    Key("compute_us", MICROSECONDS, "The compute of the slowest device.", "step.compute"),
    Key(
        "update_us", MICROSECONDS, "The update of the variables.", "step.update",
        column=Column("update", "(ms)", spare=8, keep="varied"),
    ),
    Key("launch_us", MICROSECONDS, "The cost of starting a step.", "step.launch"),
    Key(
        "communication_us", MICROSECONDS, "When at least one transfer is in flight.",
        "step.communication",
    ),
    _EXPOSED,
    _INTERFERENCE,
    Key(
        "waiting_us", MICROSECONDS,
        "What devices wait on average for the slowest one's compute.", "step.waiting",
    ),
    Key(
        "images_per_second", or_null(PER_SECOND),
        "Samples of all devices; null for a step that takes no time.",
        lambda c: c.step.samples_per_second if c.step.seconds else None,
        column=Column("samples/s", spare=3, show=units.format_rate, missing="inf"),
    ),
    _MFU,
    Key(
        "scaling_efficiency", RATIO,
        "That over what the devices would do if nothing moved and none waited; at most 1.",
        "efficiency", column=Column("efficiency", spare=1, show=percent(1)),
    ),
    Key(
        "alone_us", MICROSECONDS, "All transfers, with every gradient there from the start.",
        "alone", column=Column("alone", "(ms)", spare=6),
    ),
    Key(
        "bottleneck", TEXT,
        'The link or memory that the transfers need for the longest; "" if nothing moves.',
    ),
    Key(
        "wrong", COUNT, "Elements whose sum is wrong; 0 for a plan that is proven.",
        column=Column("#wrong"),
    ),
    Key(
        "composed", FLAG, "True if it is put together from simulated calls of NCCL, as all at once "
        "would take long.", lambda c: c.step.composed or ABSENT, optional=True,
    ),
    Key(
        "exposed_by_us", map_of(MICROSECONDS), "The exposed time that is due to each collective.",
        lambda c: c.step.exposed_by or ABSENT, optional=True,
    ),
    Key(
        "memory_bytes", MEMORY, "What a GPU holds, where that is known.",
        lambda c: c.step.memory or ABSENT, optional=True,
        column=Column("memory", "(GB)", spare=2, cell=_needed, keep="varied"),
    ),
    Key(
        "gpu_memory_bytes", or_null(BYTES),
        "The memory of the smallest GPU; null if it is not known.",
        lambda c: (c.fit.available or None) if c.fit else ABSENT, optional=True,
    ),
    FITS, _CHANCE,
    _LIMIT,
    _SPENT,
    *_INTERVAL,
)  # fmt: skip


def _collective(row: Written) -> str:
    """The lane of a bucket."""
    return str(row.get("collective", "reductions" if "gradients" in row else "")).replace("_", "-")


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)}: {names[-1]} to {names[0]}"


def _devices_of(bucket: Bucket, ranking: MethodRanking) -> list[str]:
    return [ranking.scenario.setup.layout.ranks[rank] for rank in bucket.ranks]


_BOUNDED = Record(
    "bounded-step",
    "A method that was not simulated.",
    Key("method", TEXT, "Its name and that of its strategy.", lambda each: each[0]),
    Key("at_least_us", MICROSECONDS, "What a step takes at least.", lambda each: each[1].seconds),
    Key("reason", TEXT, "Why what comes last takes as long.", lambda each: each[1].reason),
)
BUCKET = Record(
    "bucket",
    "Gradients that are reduced together, or variables that are read.",
    Key(
        "place", COUNT, "Its place, by start.", PLACE, written=False,
        column=Column("bucket", left=True),
    ),
    Key(
        "collective", TEXT, "What moves them, of a sharded method.",
        lambda bucket: bucket.collective or ABSENT, optional=True,
        column=Column("collective", left=True, spare=1, cell=_collective, keep="known"),
    ),
    Key(
        "gradients", list_of(TEXT, least=1), "Their names.",
        get_in=lambda bucket, ranking: [
            ranking.scenario.workload.gradients[i].name for i in bucket.gradients
        ],
        column=Column("gradients", left=True, missing="", show=_some),
    ),
    Key("devices", list_of(TEXT), "The GPUs that take part.", get_in=_devices_of),
    Key(
        "of", TEXT, "These GPUs in words.", get_in=lambda b, ranking: device_label(
            _devices_of(b, ranking), len(ranking.scenario.setup.layout.ranks)
        ), written=False,
        column=Column("of", left=True, spare=5, missing="", keep="known"),
    ),
    Key(
        "size_bytes", BYTES, "All of them; of a sharded method, what one collective moves.",
        "nbytes", column=Column("size", show=units.format_size, missing=""),
    ),
    Key(
        "ready_us", MICROSECONDS, "From the start of the step until the first device has them.",
        "ready", column=Column("ready", "(ms)", spare=4, missing=""),
    ),
    Key(
        "start_us", MICROSECONDS, "From the start of the step until they begin to move.", "start",
        column=Column("start", "(ms)", spare=3, missing=""),
    ),
    Key(
        "finish_us", MICROSECONDS, "From the start of the step until they are there.", "finish",
        column=Column("finish", "(ms)", missing=""),
    ),
    Key(
        "after_us", MICROSECONDS, "From the end of the compute until they are there.",
        optional=True, written=False,
        column=Column("after compute", "(ms)", spare=2, missing="", keep="known"),
    ),
)  # fmt: skip
CANDIDATE = Record(
    "candidate",
    "The step of a method.",
    Key("place", COUNT, "Its place, from 1 for the shortest.", PLACE, column=Column("#")),
    *_FIGURES,
    Key("also", list_of(TEXT), "Other methods with the same step and plan."),
    Key(
        "buckets", COUNT, "What it reduces.", lambda c: len(c.step.buckets), written=False,
        column=Column("buckets", spare=5, keep="known"),
    ),
    Key(
        "place_alone", COUNT, "The place that the reductions alone would have.",
        optional=True, written=False, column=Column("# alone", spare=7, keep="known"),
    ),
    order="place strategy runtime step_time_us exposed_us update_us images_per_second "
    "scaling_efficiency mfu memory_bytes buckets alone_us place_alone wrong",
)  # fmt: skip
STEP = Document(
    "step",
    "`simreduce step --json` of a scenario with `[step]`: training steps by method, shortest "
    "first, and the best one in full.",
    *(key for key in HEAD_KEYS if key.name != "runtime"),  # that of the best follows
    DISTURBED,
    Key("batch", COUNT, "Samples per GPU and pass.", "scenario.step.job.batch"),
    Key("accumulate", COUNT, "Passes per step.", "scenario.step.job.accumulate"),
    Key(
        "compute_source", TEXT, "Where the times of the layers come from.",
        "scenario.step.job.profile.source",
    ),
    ACTIVATIONS_KEY,
    Key(
        "consistency", one_of(*CONSISTENCIES), "Which gradients a step waits for.",
        "scenario.step.job.consistency",
    ),
    Key(
        "barrier", FLAG, "Whether a step begins when all devices have ended the one before.",
        "scenario.step.job.barrier",
    ),
    replace(ADVICE_KEY, kind=list_of(ADVICE, least=1)),
    *keys_of("recommended", *_FIGURES),
    Key(
        "settled", FLAG, "Whether simulated steps became equal; else times are means.",
        "recommended.step.settled",
    ),
    Key(
        "simulated_us", list_of(MICROSECONDS), "Every simulated step of the best, in order.",
        "recommended.step.simulated",
    ),
    Key(
        "slowest_us", MICROSECONDS, "The longest of them.",
        lambda ranking: max(ranking.recommended.step.simulated),
    ),
    *_OF_ALL,
    Key(
        "buckets", list_of(BUCKET), "What the best method reduces, by start.",
        "recommended.step.buckets",
    ),
    Key(
        "reads", list_of(BUCKET), "Variables that devices read, by start.",
        "recommended.step.reads",
    ),
    Key("candidates", list_of(CANDIDATE), "Methods that were simulated, shortest step first."),
    Key(
        "bounded", list_of(_BOUNDED),
        "Methods that cannot be among the first, by what they take at least.",
    ),
    REFUSED_KEY,
    *FACTOR_KEYS,
    Key("complete", FLAG, "False if the command was stopped and methods are untried."),
    HURRIED_KEY,
)  # fmt: skip


def _tenths(microseconds: float) -> str:
    return f"{microseconds / 1e3:.1f}"


def name_of(row: Written) -> str:
    """The method of a row and its strategy, or its mesh, and the order unless it is the usual."""
    if "mesh" not in row:
        return str(row["strategy"])
    order = row.get("order", ORDER)
    return str(row["mesh"]) if order == ORDER else f"{row['mesh']} {order}"


_MUCH = 0.05
"""The part of a step from which what takes it is named beside what takes most."""


def _limits(row: Written) -> str:
    """`compute 83%, pipeline 15%`."""
    spent = sorted(row["spent_us"].items(), key=lambda pair: -pair[1])[:2]
    parts = [(kind, time / row["time_us"]) for kind, time in spent]
    return ", ".join(f"{kind} {part:.0%}" for kind, part in parts if part > _MUCH)


def _stood_for(row: StepCandidate, ranking: MeshRanking) -> Sequence[StepCandidate]:
    """The rows that a row stands for, itself among them."""
    return ranking.folded.get(row.job, ()) if row.job else ()


def _as_good(row: StepCandidate, ranking: MeshRanking) -> Any:
    """`2 to 10 stages: within 0.7 %`."""
    rows = _stood_for(row, ranking)
    limit = min((each.seconds for each in rows), default=0.0) * (1 + WORTH)
    jobs = {each.job: each.seconds for each in rows if each.seconds <= limit and each.job}
    if len(jobs) < 2:
        return ABSENT
    varied = (
        ("{} stages", [job.virtual for job in jobs]),
        ("micro batches of {}", [job.micro_batch for job in jobs]),
        ("{}", [job.schedule for job in jobs]),
        ("{} recomputation", [job.recompute for job in jobs]),
        ("{}", [job.optimizer for job in jobs]),
        ("order {}", [job.mesh.order for job in jobs]),
    )
    said = (words.format(_ends(each)) for words, each in varied if len({*each}) > 1)
    off = max(jobs.values()) / min(jobs.values()) - 1
    return f"{', '.join(said)}: within {units.format_share(off)}"


def _ends(values: Sequence[int] | Sequence[str]) -> str:
    """`2 to 10` of numbers, `none or full` of names."""
    known = sorted({*values})
    return f"{known[0]} to {known[-1]}" if isinstance(known[0], int) else " or ".join(known)


MESH_CANDIDATE = Record(
    "candidate",
    "The step of a mesh.",
    Key("place", COUNT, "From 1.", PLACE, column=Column("#")),
    Key("mesh", TEXT, "Its ways.", "job.mesh.text",
        column=Column(
            "mesh", left=True, cell=lambda row: name_of(row) + "*" * (row["fits"] is False))),
    Key("order", TEXT, "How ranks lie on the machine: its axes, neighbours first.",
        "job.mesh.order"),
    Key("micro_batch", COUNT, "Sequences of a micro batch.", "job.micro_batch",
        column=Column("micro", "batch")),
    Key("micro_batches", COUNT, "Micro batches of a step on each replica.", "job.micros"),
    Key("settings", TEXT, "How to use it, in words.", "job.words"),
    Key("schedule", TEXT, "How stages take turns.", "job.schedule",
        column=Column("schedule", left=True)),
    Key("virtual", COUNT, "Stages of a GPU.", "job.virtual", column=Column("virtual", spare=2)),
    Key("recompute", TEXT, "Activations that are made again.", "job.recompute",
        column=Column("recompute", left=True)),
    Key("optimizer", TEXT, "How replicas share.", "job.optimizer",
        column=Column("optimizer", left=True, spare=3)),
    Key("imbalance", RATIO, "Tokens of the busiest rank of experts over the mean.",
        "job.imbalance"),
    Key("time_us", MICROSECONDS, "A step.", "step.seconds",
        column=Column("step", "(ms)", show=_tenths)),
    *_INTERVAL,
    Key("apart", FLAG, "Whether it is slower than the fastest that fits with 80 %, by errors of"
        " published meshes.", get_in=lambda row, ranking: ranking.is_apart(row)),
    Key("tokens_per_second", PER_SECOND, "Tokens of all replicas.", "step.tokens_per_second",
        column=Column("tokens/s", show=lambda rate: f"{rate:,.0f}")),
    replace(_EXPOSED, column=Column("exposed", "(ms)", spare=4, show=_tenths)),
    _INTERFERENCE,
    _MFU,
    Key("ways", COUNT, "Ways to use this mesh that were simulated; of the row that stands for them,"
        " the simplest of those that are as good.",
        get_in=lambda row, ranking: len(_stood_for(row, ranking)) or ABSENT, optional=True,
        column=Column("ways", keep="varied")),
    Key("as_good", TEXT, "What differs between those that are as good, and by how much.",
        get_in=_as_good, optional=True, column=Column("as good", left=True, keep="known")),
    Key("peak_bytes", BYTES, "What the fullest rank holds.", "step.memory.peak",
        column=Column("memory", "(GB)")),
    replace(FITS, optional=False), replace(_CHANCE, optional=False),
    replace(_LIMIT, column=Column("limited by", left=True, spare=1, cell=_limits)),
    Key("programs", list_of(TEXT), "Those that can run it, as `tune --target` takes them.",
        lambda row: programs_for(row.job)),
    _SPENT,
    Key("held", list_of(_HELD), "What a rank of each stage holds.", "step.held"),
)  # fmt: skip
_HEAD = {key.name: key for key in HEAD_KEYS}
_RANKED = (
    *(_HEAD[name] for name in ("scenario", "title", "topology", "topology_digest", "ranks")),
    Key("workload", TEXT, "The model.", "scenario.model.name"),
    Key("parameters", COUNT, "Its parameters.", lambda r: r.scenario.model.shape.parameters),
    Key("sequence", COUNT, "Tokens of a sequence.", "job.sequence"),
    Key("global_batch", COUNT, "Sequences of a step.", "job.global_batch"),
    Key("gpu", TEXT, "Whose rates of computing these are.", "job.gpu.title"),
    Key("framework", TEXT, 'Only what this can run is there; "": all.', "scenario.framework"),
    Key("memory_bytes", BYTES, "Of a GPU; 0 if nobody says.", "memory"),
    _HEAD["calibration"],
    _HEAD["nominal"],
    DISTURBED,
    ADVICE_KEY,
    Key("candidates", list_of(MESH_CANDIDATE), "Steps, fastest first; what does not fit is last."),
    *_OF_ALL,
    Key("refused", map_of(TEXT), "Meshes that cannot be, with the reasons.", lambda ranking: {
        name: "; ".join(reasons) for name, reasons in grouped(ranking.refused).items()
    }),
    Key("bounded", COUNT, "Meshes left out, as a lower bound is above the best, memory does not do,"
        " or another order of ranks changes nothing."),
    Key("complete", FLAG, "False if the command was stopped."),
)  # fmt: skip
MESHES = Document(
    "step-meshes",
    "`simreduce step --json` of a scenario with a `mesh`: meshes, fastest first.",
    *_RANKED,
    command="step",
)
"""Of `MeshRanking`."""
TUNED_MESHES = Document(
    "tune-meshes",
    "`simreduce tune --json` of a scenario with a `mesh`: what the target can run, fastest first.",
    *_RANKED,
    Key("files", map_of(TEXT), "What to paste or save, by the name of the file; empty if no mesh"
        " fits.", lambda _: {}),
    command="tune",
)  # fmt: skip
"""Of `MeshRanking`, without its files."""


def gradient_names(ranking: Ranking) -> list[str]:
    """The names of gradients in buckets; those of meshes have none."""
    if isinstance(ranking, MeshRanking):
        return []
    return [gradient.name for gradient in ranking.scenario.workload.gradients]


def step_rows(ranking: Ranking, *, every: bool = True) -> Table:
    """A row per method or mesh, shortest step first; of a mesh unless `every` way to use it.

    The last columns of methods give the time of the reductions alone, and the place that this time
    would have.
    """
    candidates = ranking.candidates
    if isinstance(ranking, MeshRanking):
        shown = [c for c in candidates if every or _stood_for(c, ranking)]
        found = (MESH_CANDIDATE.row(c, ranking, place) for place, c in enumerate(shown, 1))
        return MESH_CANDIDATE.table(found)
    by_itself = sorted(candidates, key=lambda c: (c.alone, c.seconds, c.step.method))
    places = {id(c): place for place, c in enumerate(by_itself, 1)}
    return CANDIDATE.table(
        CANDIDATE.row(c, ranking, place) | {"place_alone": places[id(c)]}
        for place, c in enumerate(candidates, 1)
    )


def step_document(ranking: Ranking) -> dict[str, Any]:
    """The document of `--json`: `STEP`, or `MESHES`. The step is that of the best."""
    if isinstance(ranking, MeshRanking):
        return MESHES.write(ranking)
    order = (*STEP.keys[:3], *(key for key in HEAD_KEYS if not key.optional))  # with the runtime
    head = dict.fromkeys(key.name for key in order)
    return head | STEP.write(ranking)


_MOST = 40
"""Transfers of the path that are listed, the longest first."""


def step_look_document(look: StepLook, ranking: Ranking) -> dict[str, Any]:
    """A closer look at the best step of a ranking, as JSON types: times in microseconds, shares
    from 0 to 1.

    `links` is None if they are not known; `missing` says why. `alone`
    is the document of an explanation of the longest transfer by itself.
    """
    whole, names = look.seconds, gradient_names(ranking)
    return {
        "strategy": ranking.recommended.step.method,
        "time_us": whole * 1e6,
        "missing": look.missing,
        "links": None if look.links is None else [*map(LINK.write, look.links)],
        "path": [
            {
                "kind": kind,
                "lane": lane,
                "time_us": seconds * 1e6,
                "share": seconds / whole if whole else 0.0,
                "pieces": count,
            }
            for kind, lane, seconds, count in seconds_by_kind(look.path)
        ],
        "transfers": _transfers(look.path, names),
        "alone": _alone(look, names),
        "changes": [CHANGE.write(saving, look) for saving in look.savings],
    }


def replicas_look_document(
    seconds: float, spent: Mapping[str, float], links: Sequence[Use], effects: Sequence[Effect]
) -> dict[str, Any]:
    """Of an update of so many seconds: the share of workers' time by what they do, the load of each
    link, and what changes save, with confidence intervals. Changes without a number are left out.
    """
    total, whole = sum(spent.values()) or 1.0, SimpleNamespace(seconds=seconds)
    return {
        "strategy": "the workers",
        "time_us": seconds * 1e6,
        "missing": "",
        "links": [*map(LINK.write, links)],
        "spent": {name: each / total for name, each in spent.items()},
        "changes": [
            {
                **CHANGE.write(Saving(effect.change, effect.seconds, effect.saved.mean), whole),
                "saving_low_us": effect.saved.low * 1e6,
                "saving_high_us": effect.saved.high * 1e6,
            }
            for effect in effects
            if all(map(isfinite, (effect.saved.low, effect.saved.high)))
        ],
    }


def _transfers(path: Sequence[PathPiece], names: Sequence[str]) -> list[dict[str, Any]]:
    found = [(piece, piece.bucket) for piece in path if piece.bucket and piece.kind != "turn"]
    found.sort(key=lambda each: -each[0].seconds)
    return [
        {
            "lane": piece.name,
            "what": _label(bucket, names),
            "size_bytes": bucket.nbytes,
            "time_us": piece.seconds * 1e6,
            "begin_us": piece.begin * 1e6,
        }
        for piece, bucket in found[:_MOST]
    ]


def path_words(path: Sequence[PathPiece]) -> list[tuple[float, float, str]]:
    """Each piece as (from, to, words), in microseconds."""
    return [(p.begin * 1e6, p.end * 1e6, f"{p.kind} {p.name}".strip()) for p in path]


def _label(bucket: Bucket, names: Sequence[str]) -> str:
    if not bucket.gradients:
        return units.plural(len(bucket.ranks), "rank") if bucket.nbytes else "nothing"
    first, last = names[bucket.gradients[-1]], names[bucket.gradients[0]]
    count = len(bucket.gradients)
    return first if count == 1 else f"{first} to {last} ({count} gradients)"


def _alone(look: StepLook, names: Sequence[str]) -> dict[str, Any] | None:
    if look.alone is None or look.longest is None:
        return None
    kind = next(p.name for p in look.path if p.bucket is look.longest).removesuffix("s")
    about = {
        **dict.fromkeys(
            ("question", "workload", "equal_paths", "nccl_settings", "disturbance"), ""
        ),
        "ranks": len(look.longest.ranks),
        "repeat": 1,
        "strategy": f"the {kind} of {_label(look.longest, names)}",
        "collective": look.longest.collective or "all_reduce",
        "size_bytes": look.longest.nbytes,
    }
    return EXPLAIN.write(Explained(look.alone, (), about))


def best_of(document: Written) -> Written:
    """The row of the step to run: of methods, whose advice may not be the first, the document."""
    if "global_batch" not in document:
        return document
    rows: list[Written] = document["candidates"]
    advised = document["advice"][0]["strategy"] if "advice" in document else ""
    return next((row for row in rows if row.get("settings") == advised), rows[0])


def mesh_answer(document: Written) -> str:
    """What to train on, in a sentence."""
    best = best_of(document)
    share = best["spent_us"].get(best["limit"], 0.0) / best["time_us"]
    why = f"{share:.0%} of it goes to {SPENT_ON.get(best['limit'], best['limit'])}"
    if best["fits"] is False:
        least = units.format_size(min(row["peak_bytes"] for row in document["candidates"]))
        return f"No mesh fits the memory of a GPU; the least that one needs is {least}."
    rate = f"{best['tokens_per_second']:,.0f} tokens/s"
    untried = "" if document["complete"] else " Others are untried: one may be faster."
    found = sentence(document["advice"][0], "a step")
    return f"{found}{untried} That is {rate}; {why}.{_programs(best)}"


def mesh_sure(document: Written) -> str:
    """How far off the time of that step may be, in a sentence."""
    best = best_of(document)
    if "low_us" not in best:  # as documents of versions before this key have it
        return "How sure: simreduce accuracy mesh says how far off such predictions are."
    low, high = (best[key] / best["time_us"] for key in ("low_us", "high_us"))
    usual = "so far off are published ones (simreduce accuracy mesh)"
    why = best.get("unsure") or document.get("nominal") or usual
    others = [row for row in document["candidates"] if row is not best and row["fits"] is not False]
    near = [row for row in others if row.get("apart") is False]
    said = units.plural(len(others), "other mesh", "other meshes")
    tell = f"within {apart() - 1:.0%} predictions do not tell"
    also = near and f" Of {said} that fit, {len(near)} may be as fast: {tell}."
    return f"How sure: with 80% a step takes {low:.2f} to {high:.2f} times that; {why}.{also or ''}"


def _programs(best: Written) -> str:
    """Who can run the best mesh, as a sentence."""
    if "programs" not in best:  # as documents of versions before this key have it
        return ""
    titles = [MESH_PROGRAMS[name].title for name in best["programs"] if name in MESH_PROGRAMS]
    if not titles:
        return " No program that simreduce exports to can run it; see simreduce tune --target."
    words = " and ".join(filter(None, (", ".join(titles[:-1]), titles[-1])))
    return f" {words} can run it."
