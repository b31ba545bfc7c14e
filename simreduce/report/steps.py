"""`simreduce step`: the ranking by step and the timeline of the best, as text and a document."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Any

from simreduce import tables, units
from simreduce.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    MICROSECONDS,
    PER_SECOND,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    one_of,
    or_null,
)
from simreduce.report.factors import FACTOR_KEYS, factor_keys
from simreduce.report.heads import (
    DISTURBANCE_KEY,
    HEAD_KEYS,
    REFUSED_KEY,
    best_rows,
    document_head,
    header,
    refused_keys,
    refused_lines,
    same_plan_lines,
    untried_lines,
    with_runtimes,
)
from simreduce.report.sharing import SHARING_KEYS, misfit_lines, sharing_keys, sharing_lines
from simreduce.report.step_timeline import LEGEND, timeline
from simreduce.report.sure import nccl_sureness
from simreduce.tables import Table
from simreduce.training import Bucket, StepPrediction, device_label, lane
from simreduce.training.step import CONSISTENCIES
from simreduce.tune.steps import StepCandidate, StepRanking

_FIRST, _LAST = 8, 4
"""Buckets that are shown of many."""

_SAME = 1e-6
"""Part of a step below which a difference is none to tell."""

_COLUMNS = tables.columns(
    "#|strategy|runtime|step|exposed|samples/s|efficiency|memory|buckets|alone|# alone|#wrong",
    units="|||(ms)|(ms)|||(GB)||(ms)||",
    left="strategy|runtime",
    spare="# alone|alone|buckets|runtime|samples/s|memory|efficiency",
)
_BUCKET_COLUMNS = tables.columns(
    "bucket|collective|gradients|of|size|ready|start|finish|after compute",
    units="|||||(ms)|(ms)|(ms)|(ms)",
    left="bucket|collective|gradients|of",
    spare="of|ready|start|after compute|collective",
)


def step_table(ranking: StepRanking, most: int | None = None) -> str:
    """Header, one row per method if there are several, or the best `most` of them, the timeline of
    the best and its buckets.
    """
    lines = _header(ranking)
    if len(ranking.candidates) > 1:
        lines += [*best_rows(step_rows(ranking), most, indent=2), ""]
    lines += [
        *_best_step(ranking),
        *same_plan_lines((c.step.method, c.also) for c in ranking.candidates),
        *misfit_lines((c.step.method, c.fit) for c in ranking.candidates),
        *refused_lines(ranking.refused),
        *untried_lines(ranking.untried),
    ]
    return "\n".join(lines)


def _header(ranking: StepRanking) -> list[str]:
    s, w, job = ranking.scenario, ranking.scenario.workload, ranking.question.job
    passes = f"{_ms(fsum(job.profile.forward))} forward, {_ms(fsum(job.profile.backward))} backward"
    passes += f", {job.accumulate} times" if job.accumulate > 1 else ""
    slow = [
        f"{name} {factor:.4g} times as slow" for name, factor in job.slow.items() if factor != 1
    ]
    update = f", {_ms(job.update)} for the update" if job.update else ""
    after = "" if job.barrier else ", no barrier between steps"
    layers = units.plural(len(job.model.layers), "layer")
    gradients = f"{units.plural(len(w.gradients), 'gradient')}, {units.format_size(w.nbytes)}"
    facts = [
        ("model", f"{w.name}: {layers}, {gradients}"),
        ("compute", f"{job.batch} a GPU: {passes}{update} ({job.profile.source})"),
        ("", ", ".join(slow)),
    ]
    what = f"consistency {job.consistency}{after}"
    return header(s, facts, _runtimes(ranking), what, _sureness(ranking))


def _runtimes(ranking: StepRanking) -> list[str]:
    return [c.runtime for c in ranking.candidates]


def _sureness(ranking: StepRanking) -> str:
    """How far off NCCL's rows may be, if there are any."""
    by_nccl = any("nccl" in c.step.method for c in ranking.candidates)
    scenario = ranking.scenario
    largest = max((gradient.nbytes for gradient in scenario.workload.gradients), default=0)
    sharded = scenario.step is not None and scenario.step.sharding is not None
    collectives = ("all_gather", "reduce_scatter") if sharded else ("all_reduce",)
    return nccl_sureness(scenario.setup, largest, collectives) if by_nccl else ""


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def step_rows(ranking: StepRanking) -> Table:
    """A row per method, shortest step first.

    The last columns give the time of the reductions alone, and the place that this time would have.
    """
    candidates = ranking.candidates
    by_itself = sorted(candidates, key=lambda c: (c.alone, c.step.seconds, c.step.method))
    place = {id(c): i for i, c in enumerate(by_itself, 1)}
    rows = (_row(i, c, place[id(c)]) for i, c in enumerate(candidates, 1))
    table = with_runtimes(Table(_COLUMNS, tuple(rows)), _runtimes(ranking))
    known = any(c.step.memory for c in candidates)
    return table if known else tables.without("memory", table)


def _row(place: int, c: StepCandidate, place_alone: int) -> tuple[str, ...]:
    s = c.step
    return (
        str(place),
        s.method,
        c.runtime,
        f"{s.seconds * 1e3:.3f}",
        f"{s.exposed * 1e3:.3f}",
        f"{s.images_per_second:.1f}",
        f"{c.efficiency:.1%}",
        f"{s.memory.peak / 1e9:.2f}{' *' * (c.fits is False)}" if s.memory else "",
        str(len(s.buckets)),
        f"{c.alone * 1e3:.3f}",
        str(place_alone),
        str(c.wrong),
    )


def _best_step(ranking: StepRanking) -> list[str]:
    best, s = ranking.recommended, ranking.recommended.step
    names = [g.name for g in ranking.scenario.workload.gradients]
    ranks = ranking.scenario.setup.layout.ranks
    update = (f", update {_ms(s.update)}" if s.update else "") + (
        f", launch {_ms(s.launch)}" if s.launch else ""
    )
    exposed = f"communication {_ms(s.communication)}, exposed {_ms(s.exposed)}"
    lines = [
        (
            f"{s.method}: a step takes {_ms(s.seconds)}, {s.images_per_second:.1f} samples/s, "
            f"{best.efficiency:.1%} of what {_gpus(s)} do singly"
        ),
        f"  compute {_ms(s.compute)}{update}, {exposed}",
        *sharing_lines(s, best.fit),
    ]
    if s.waiting:
        lines.append(
            f"  GPUs wait {_ms(s.waiting)} of that on average for the slowest, "
            "whose compute this is"
        )
    if best.wrong:
        wrong = f"{units.plural(best.wrong, 'element')} {units.noun(best.wrong, 'is', 'are')}"
        lines.append(f"  {wrong} not as it should be: no candidate is proven right")
    if max(s.simulated) - min(s.simulated) > _SAME * s.seconds:
        lines.append(f"  {_times_of_steps(s)}")
    lines += ["", *timeline(s), LEGEND, "", *_buckets(s, names, ranks)]
    if s.slowest:
        lines += ["", *_slowest(s.slowest, names, ranks)]
    return lines


def _times_of_steps(s: StepPrediction) -> str:
    """How long steps took that were not alike, each value once while it lasts; of many the first,
    the longest and the last.
    """
    if not s.settled:
        return (
            f"{len(s.simulated)} steps did not come to be alike: this is the mean of the last "
            f"{len(s.later)}, which took {_ms(min(s.later))} to {_ms(max(s.later))}; "
            "the last one is shown"
        )
    times = [
        t
        for i, t in enumerate(s.simulated)
        if not i or abs(t - s.simulated[i - 1]) > _SAME * s.seconds
    ]
    kept = range(len(times))
    if len(times) > _FIRST:
        half, longest = _FIRST // 2, max(kept, key=times.__getitem__)
        shown = sorted({*kept[:half], longest, *kept[-half:]})
    else:
        shown = list(kept)
    texts: list[str] = []
    for i, before in zip(shown, [-1, *shown], strict=False):
        texts += ["..."] * (i > before + 1) + [f"{times[i] * 1e3:.3f}"]
    return f"steps took {', '.join(texts)} ms; this is the last"


def _slowest(s: StepPrediction, names: Sequence[str], devices: Sequence[str]) -> list[str]:
    """The step that lost most by what went wrong."""
    return [
        f"The slowest step took {_ms(s.seconds)}, of which {_ms(s.exposed)} were exposed:",
        "",
        *timeline(s),
        "",
        *_buckets(s, names, devices),
    ]


def _gpus(s: StepPrediction) -> str:
    return units.plural(s.devices, "GPU")


def _buckets(step: StepPrediction, names: Sequence[str], devices: Sequence[str]) -> list[str]:
    """What was reduced when; of many, the first and the last."""
    if not step.buckets:
        return ["  nothing is reduced"]
    rows: list[tuple[str, ...]] = []
    ended = max((span.end for span in step.spans), default=0.0)
    left_out = len(step.buckets) - _FIRST - _LAST
    for i, b in enumerate(step.buckets, 1):
        if left_out > 0 and _FIRST < i <= len(step.buckets) - _LAST:
            if i == _FIRST + 1:
                rows.append((f"... {left_out} more", *[""] * 8))
            continue
        late = max(b.finish - ended, 0.0)
        what = names[b.gradients[0]]
        if len(b.gradients) > 1:
            what = f"{len(b.gradients)}: {names[b.gradients[-1]]} to {what}"
        times = tuple(f"{t * 1e3:.3f}" for t in (b.ready, b.start, b.finish, late))
        of = device_label([devices[rank] for rank in b.ranks], len(devices))
        rows.append((str(i), lane(b), what, of, units.format_size(b.nbytes), *times))
    table = Table(_BUCKET_COLUMNS, tuple(rows))
    if not any(b.collective for b in step.buckets):
        table = tables.without("collective", table)
    return table.lines(indent=2)


_FIGURES = (
    Key("strategy", TEXT, "The method, with its strategy."),
    Key("runtime", TEXT, "The system that runs it."),
    Key("step_time_us", MICROSECONDS, "A step."),
    Key("compute_us", MICROSECONDS, "The compute of the slowest device."),
    Key("update_us", MICROSECONDS, "The update of the variables."),
    Key("launch_us", MICROSECONDS, "The cost of starting a step."),
    Key("communication_us", MICROSECONDS, "When at least one transfer is in flight."),
    Key("exposed_us", MICROSECONDS, "Communication that no compute hides."),
    Key("waiting_us", MICROSECONDS, "What devices wait on average for the slowest one's compute."),
    Key(
        "images_per_second",
        or_null(PER_SECOND),
        "Samples of all devices; null for a step that takes no time.",
    ),
    Key("scaling_efficiency", RATIO, "That over what all devices would do if each trained alone."),
    Key("alone_us", MICROSECONDS, "All transfers, with every gradient there from the start."),
    Key(
        "bottleneck",
        TEXT,
        'The link or memory that the transfers need for the longest; "" if nothing moves.',
    ),
    Key("wrong", COUNT, "Elements whose sum is wrong; 0 for a plan that is proven."),
    *SHARING_KEYS,
)
_BUCKET = Record(
    "bucket",
    "Gradients that are reduced together, or variables that are read.",
    Key("collective", TEXT, "What moves them, of a sharded method.", optional=True),
    Key("gradients", list_of(TEXT), "Their names."),
    Key("devices", list_of(TEXT), "The GPUs that take part."),
    Key("size_bytes", BYTES, "All of them; of a sharded method, what one collective moves."),
    Key("ready_us", MICROSECONDS, "From the start of the step until the first device has them."),
    Key("start_us", MICROSECONDS, "From the start of the step until they begin to move."),
    Key("finish_us", MICROSECONDS, "From the start of the step until they are there."),
)
STEP = Document(
    "step",
    "`simreduce step --json` of a scenario with `[step]`: training steps by method, shortest "
    "first, and the best one in full.",
    *(key for key in HEAD_KEYS if key.name != "runtime"),  # that of the best follows
    DISTURBANCE_KEY,
    Key("batch", COUNT, "Samples per GPU and pass."),
    Key("accumulate", COUNT, "Passes per step."),
    Key("compute_source", TEXT, "Where the times of the layers come from."),
    Key("consistency", one_of(*CONSISTENCIES), "Which gradients a step waits for."),
    Key("barrier", FLAG, "Whether a step begins when all devices have ended the one before."),
    *_FIGURES,
    Key("settled", FLAG, "Whether simulated steps became equal; else times are means."),
    Key("simulated_us", list_of(MICROSECONDS), "Every simulated step of the best, in order."),
    Key("slowest_us", MICROSECONDS, "The longest of them."),
    Key("buckets", list_of(_BUCKET), "What the best method reduces, by start."),
    Key("reads", list_of(_BUCKET), "Variables that devices read, by start."),
    Key(
        "candidates",
        list_of(
            Record(
                "candidate",
                "The step of a method.",
                Key("place", COUNT, "Its place, from 1 for the shortest."),
                *_FIGURES,
                Key("also", list_of(TEXT), "Other methods with the same step and plan."),
            )
        ),
        "Every method, shortest step first.",
    ),
    REFUSED_KEY,
    *FACTOR_KEYS,
    Key("complete", FLAG, "False if the command was stopped and methods are untried."),
)


def step_document(ranking: StepRanking) -> dict[str, Any]:
    """The document of `--json`: `STEP`. The step is that of the best."""
    s, job, best = ranking.scenario, ranking.question.job, ranking.recommended
    at, names = s.setup, [g.name for g in s.workload.gradients]
    return {
        **document_head(STEP, s, _runtimes(ranking)),
        "disturbance": at.disturbance.text,
        "batch": job.batch,
        "accumulate": job.accumulate,
        "compute_source": job.profile.source,
        "consistency": job.consistency,
        "barrier": job.barrier,
        **_figures(best),
        "settled": best.step.settled,
        "simulated_us": [t * 1e6 for t in best.step.simulated],
        "slowest_us": max(best.step.simulated) * 1e6,
        "buckets": [_bucket(b, names, at.layout.ranks) for b in best.step.buckets],
        "reads": [_bucket(b, names, at.layout.ranks) for b in best.step.reads],
        "candidates": [
            {"place": i, **_figures(c), "also": list(c.also)}
            for i, c in enumerate(ranking.candidates, 1)
        ],
        "refused": refused_keys(ranking.refused),
        **factor_keys(s),
        "complete": not ranking.untried,
    }


def _figures(c: StepCandidate) -> dict[str, Any]:
    s = c.step
    return {
        "strategy": s.method,
        "runtime": c.runtime,
        "step_time_us": s.seconds * 1e6,
        "compute_us": s.compute * 1e6,
        "update_us": s.update * 1e6,
        "launch_us": s.launch * 1e6,
        "communication_us": s.communication * 1e6,
        "exposed_us": s.exposed * 1e6,
        "waiting_us": s.waiting * 1e6,
        "images_per_second": s.images_per_second if s.seconds else None,
        "scaling_efficiency": c.efficiency,
        "alone_us": c.alone * 1e6,
        "bottleneck": c.bottleneck,
        "wrong": c.wrong,
        **sharing_keys(s, c.fit),
    }


def _bucket(b: Bucket, names: Sequence[str], devices: Sequence[str]) -> dict[str, Any]:
    return {
        **({"collective": b.collective} if b.collective else {}),
        "gradients": [names[i] for i in b.gradients],
        "devices": [devices[rank] for rank in b.ranks],
        "size_bytes": b.nbytes,
        "ready_us": b.ready * 1e6,
        "start_us": b.start * 1e6,
        "finish_us": b.finish * 1e6,
    }
