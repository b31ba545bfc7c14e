"""`simreduce step`: the ranking by step and the timeline of the best: text, document, page.

A closer look at a training step, or at an update of synchronous replicas, for pages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import fsum, inf, isfinite
from types import SimpleNamespace
from typing import Any

from simreduce import units
from simreduce.engine import Use
from simreduce.files import tables
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
from simreduce.report.bench import sizes_section
from simreduce.report.blocks import (
    Attachments,
    Block,
    Fact,
    Page,
    Paragraph,
    Section,
    Written,
    bars,
    colour_words,
    folded_when_long,
    stack,
)
from simreduce.report.explain import (
    CHANGE,
    explanation_document,
    help_section,
    limit_fact,
    limit_of_step,
    nic_fact,
    path_section,
    step_path_section,
)
from simreduce.report.headings import (
    ACTIVATIONS_KEY,
    ADVICE,
    ADVICE_KEY,
    DISTURBED,
    FACTOR_KEYS,
    HEAD_KEYS,
    HURRIED_KEY,
    LINK,
    PERCENTILES_ABOUT,
    REFUSED_KEY,
    advice_lines,
    best_rows,
    caution,
    facts,
    frameworks_table,
    header,
    mark,
    more_lines,
    name_lines,
    nccl_sureness,
    page_title,
    percentile_lines,
    sentence,
    sure,
    untried_lines,
)
from simreduce.report.sections import (
    calibration_section,
    copy_section,
    machine_section,
    meaning,
    names_block,
    record_section,
    repeat_section,
    timeline_section,
    us,
)
from simreduce.report.timelines import LEGEND, timeline
from simreduce.study.advice import runs_nccl, strategy_of
from simreduce.study.tune.composed import ERROR
from simreduce.study.tune.steps import MethodRanking
from simreduce.study.tune.whatif import Saving
from simreduce.study.tune.whatif_steps import Effect, StepLook, percentiles_of_step
from simreduce.training import Bucket, Memory, PathPiece, StepResult, device_label
from simreduce.training.gpus import slowest_of
from simreduce.training.memory import MemoryFit
from simreduce.training.step import (
    CONSISTENCIES,
    NOT_COUNTED,
    compute_caution,
    later_half,
    seconds_by_kind,
)

_FIRST, _LAST = 8, 4
"""Buckets that are shown of many."""

_SAME = 1e-6
"""Part of a step below which a difference is none to tell."""


def step_table(ranking: MethodRanking, most: int | None = None, *, details: bool = True) -> str:
    """Header, one row per method if there are several, or the best `most` of them; then the step of
    the recommended one. The advice comes last.

    Without `details`, the timeline, its buckets and other names are left out, and refusals of
    strategies that the scenario does not name are counted.
    """
    lines = _header(ranking)
    if len(ranking.candidates) > 1:
        lines += [*best_rows(step_rows(ranking), most, indent=2), ""]
    lines += _best_step(ranking, details=details)
    misfits = [f"  {c.step.method} {c.fit.words}" for c in ranking.candidates if c.fit and c.misfit]
    own = ["", f"Does not fit ({len(misfits)}):", *misfits] if misfits else []
    more = ["its timeline and buckets", *[f"{len(misfits)} that do not fit"] * bool(misfits)]
    lines += name_lines(ranking, own, more, details=details)
    composed = composed_words([c.step.method for c in ranking.candidates if c.step.composed])
    lines += ["", composed] if composed else []
    answer = [*advice_lines(ranking.advice, "a step"), *more_lines(ranking.advice)]
    return "\n".join([*lines, *untried_lines(ranking), "", *answer])


def composed_words(names: Sequence[str]) -> str:
    """A sentence on methods whose steps are composed; "" without any."""
    cycles = ", or one cycle of Horovod" if any("+fusion" in name for name in names) else ""
    steps = units.noun(len(names), "the step", "steps")
    if not names:
        return ""
    return (
        f"composed of simulated calls of NCCL, within {ERROR:.1%}{cycles} of simulating all at "
        f"once: {steps} of {units.first_few(names)}"
    )


def _header(ranking: MethodRanking) -> list[str]:
    s, w, job = ranking.scenario, ranking.scenario.workload, ranking.question.job
    passes = f"{_ms(fsum(job.profile.forward))} forward, {_ms(fsum(job.profile.backward))} backward"
    passes += f", {job.accumulate} times" if job.accumulate > 1 else ""
    slow = [
        f"{name} {factor:.4g} times as slow" for name, factor in job.slow.items() if factor != 1
    ]
    if job.spread:
        count, factor = s.setup.layout.n, slowest_of(s.setup.layout.n, job.spread)
        slow.append(f"the slowest of {count} {factor:.4g} times as slow (spread {job.spread:.1%})")
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
    sharded = s.step.sharding is not None
    collectives = ("all_gather", "reduce_scatter") if sharded else ("all_reduce",)
    strategies = [strategy_of(c.step.method) for c in ranking.candidates]
    return header(ranking, facts, what, nccl_sureness(s, strategies, collectives))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def step_rows(ranking: MethodRanking) -> Table:
    """A row per method, shortest step first.

    The last columns give the time of the reductions alone, and the place that this time would have.
    """
    candidates = ranking.candidates
    by_itself = sorted(candidates, key=lambda c: (c.alone, c.step.seconds, c.step.method))
    places = {id(c): place for place, c in enumerate(by_itself, 1)}
    rows = (
        CANDIDATE.row(c, ranking, place) | {"place_alone": places[id(c)]}
        for place, c in enumerate(candidates, 1)
    )
    return CANDIDATE.table(rows)


def _best_step(ranking: MethodRanking, *, details: bool) -> list[str]:
    best, s = ranking.recommended, ranking.recommended.step
    update = (f", update {_ms(s.update)}" if s.update else "") + (
        f", launch {_ms(s.launch)}" if s.launch else ""
    )
    exposed = f"communication {_ms(s.communication)}, exposed {_ms(s.exposed)}"
    more = [f"kernels take {_ms(s.interference)} longer beside it"] * bool(s.interference)
    more += [f"MFU {best.mfu:.1%}"] if best.mfu is not None else []
    lines = [
        (
            f"{s.method}: a step takes {_ms(s.seconds)}, {s.samples_per_second:.1f} samples/s, "
            f"{best.efficiency:.1%} of what {units.plural(s.devices, 'GPU')} do if nothing moves"
        ),
        f"  compute {_ms(s.compute)}{update}, {exposed}",
        *[f"  {', '.join(more)}"] * bool(more),
        *sharing_lines(s, best.fit),
    ]
    if s.waiting:
        wait = f"  GPUs wait {_ms(s.waiting)} of that on average for the slowest"
        lines.append(f"{wait}, whose compute this is")
    lines += [f"  {line}" for line in percentile_lines(percentiles_of_step(ranking))]
    if best.wrong:
        wrong = f"{units.plural(best.wrong, 'element')} {units.noun(best.wrong, 'is', 'are')}"
        lines.append(f"  {wrong} not as it should be: no candidate is proven right")
    if max(s.simulated) - min(s.simulated) > _SAME * s.seconds:
        lines.append(f"  {_times_of_steps(s)}")
    if not details:
        return lines
    lines += ["", *timeline(s), LEGEND, "", *_buckets(s, ranking)]
    if s.slowest:  # the step that lost most by what went wrong
        took, exposed = _ms(s.slowest.seconds), _ms(s.slowest.exposed)
        lines += ["", f"The slowest step took {took}, of which {exposed} were exposed:", ""]
        lines += [*timeline(s.slowest), "", *_buckets(s.slowest, ranking)]
    return lines


def _times_of_steps(s: StepResult) -> str:
    """How long steps took that were not alike, each value once while it lasts; of many the first,
    the longest and the last.
    """
    if not s.settled:
        later = later_half(s.simulated)
        return (
            f"{len(s.simulated)} steps did not come to be alike: this is the mean of the last "
            f"{len(later)}, which took {_ms(min(later))} to {_ms(max(later))}; "
            "the last one is shown"
        )
    times = [
        t
        for i, t in enumerate(s.simulated)
        if not i or abs(t - s.simulated[i - 1]) > _SAME * s.seconds
    ]
    kept = range(len(times))
    half, longest = _FIRST // 2, max(kept, key=times.__getitem__)
    few = len(times) <= _FIRST
    shown = [*kept] if few else sorted({*kept[:half], longest, *kept[-half:]})
    texts: list[str] = []
    for i, before in zip(shown, [-1, *shown], strict=False):
        texts += ["..."] * (i > before + 1) + [f"{times[i] * 1e3:.3f}"]
    return f"steps took {', '.join(texts)} ms; this is the last"


def _buckets(step: StepResult, ranking: MethodRanking) -> list[str]:
    """The table of buckets; of many, the first and the last."""
    if not step.buckets:
        return ["  nothing is reduced"]
    ended = max((span.end for span in step.spans), default=0.0)
    rows = [
        BUCKET.row(bucket, ranking, place) | {"after_us": max(bucket.finish - ended, 0.0) * 1e6}
        for place, bucket in enumerate(step.buckets, 1)
    ]
    left_out = len(rows) - _FIRST - _LAST
    if left_out > 0:
        rows[_FIRST:-_LAST] = [{"place": f"... {left_out} more"}]
    return BUCKET.table(rows).lines(indent=2)


def sharing_lines(step: StepResult, fit: MemoryFit | None) -> list[str]:
    """How much of the exposed time is due to each collective, and the memory of a device."""
    lines = []
    parts = [f"{name.replace('_', '-')} {_ms(seconds)}" for name, seconds in step.exposed_by]
    if parts:
        lines.append(f"  exposed by {', '.join(parts)}")
    has = f" of {units.format_size(fit.available)}" if fit and fit.available else ""
    if step.memory:
        lines += [f"  {line}" for line in _memory(step.memory, has)]
    if fit and fit.fits is False:
        lines.append(f"  this does not fit: it {fit.words}")
    elif fit and fit.available and not step.memory:
        lines.append(f"  it {fit.words}")
    elif step.memory and not has:
        lines.append("  whether that fits is not known: no `memory` of its GPUs is given")
    return lines


def _memory(memory: Memory, has: str) -> list[str]:
    size = units.format_size
    kept = (
        f"parameters {size(memory.parameters)}, gradients {size(memory.gradients)}, "
        f"optimizer {size(memory.optimizer)}"
    )
    found = memory.activations
    if found.source != NOT_COUNTED:
        kept += f", activations {size(found.nbytes)} ({found.source})"
    more = [
        f"{size(nbytes)} {words}"
        for nbytes, words in (
            (memory.gathered, f"gathered (limit {size(memory.gathered_limit)})"),
            (memory.unreduced, "of gradients to reduce"),
        )
        if nbytes
    ]
    lines = [f"a GPU holds {size(memory.peak)}{has} at most: {kept}"]
    lines += [f"  and for a while {' and '.join(more)}"] if more else []
    if found.source == NOT_COUNTED:
        lines[-1] += f"; {found.words}"
    return lines


def _samples(row: Written, form: str = ".1f") -> str:
    """Samples a second, which are infinitely many if a step takes no time."""
    rate = row["images_per_second"]
    return f"{inf if rate is None else rate:{form}}"


def _peak(row: Written) -> str:
    peak = row["memory_bytes"]["peak"] if "memory_bytes" in row else None
    return "" if peak is None else f"{peak / 1e9:.2f}{' *' * (row.get('fits') is False)}"


MEMORY = Record(
    "memory",
    "What a GPU holds.",
    Key("parameters", BYTES, "Parameters, all the time."),
    Key("gradients", BYTES, "Gradients, all the time."),
    Key("optimizer", BYTES, "The optimizer's states."),
    Key("gathered", BYTES, "Gathered parameters, at most at once."),
    Key("gathered_limit", BYTES, "What these may never exceed."),
    Key("unreduced", BYTES, "Gradients that are not reduced yet, at most at once."),
    Key("peak", BYTES, "The most of all at once."),
    Key("activations", BYTES, "Activations; 0 if they are not counted.", "activations.nbytes"),
)
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
    Key(
        "exposed_us", MICROSECONDS, "Communication that no compute hides.", "step.exposed",
        column=Column("exposed", "(ms)"),
    ),
    Key(
        "interference_us", MICROSECONDS,
        "What the slowest device's passes take longer beside collectives.", "step.interference",
    ),
    Key(
        "waiting_us", MICROSECONDS,
        "What devices wait on average for the slowest one's compute.", "step.waiting",
    ),
    Key(
        "images_per_second", or_null(PER_SECOND),
        "Samples of all devices; null for a step that takes no time.",
        lambda c: c.step.samples_per_second if c.step.seconds else None,
        column=Column("samples/s", spare=3, cell=_samples),
    ),
    Key(
        "mfu", or_null(RATIO), "Model FLOPs over those of the GPUs' data sheet, of products in 16"
        " bits; null where nobody knows the GPUs or the FLOPs.",
    ),
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
        column=Column("memory", "(GB)", spare=2, cell=_peak, keep="known"),
    ),
    Key(
        "gpu_memory_bytes", or_null(BYTES),
        "The memory of the smallest GPU; null if it is not known.",
        lambda c: (c.fit.available or None) if c.fit else ABSENT, optional=True,
    ),
    Key(
        "fits", or_null(FLAG), "Whether it fits; null if that is not known.",
        lambda c: c.fit.fits if c.fit else ABSENT, optional=True,
    ),
)  # fmt: skip


def _collective(row: Written) -> str:
    """The lane of a bucket."""
    known = row.get("collective", "reductions" if "gradients" in row else "")
    return str(known).replace("_", "-")


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)}: {names[-1]} to {names[0]}"


def _devices_of(bucket: Bucket, ranking: MethodRanking) -> list[str]:
    return [ranking.scenario.setup.layout.ranks[rank] for rank in bucket.ranks]


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
    "scaling_efficiency memory_bytes buckets alone_us place_alone wrong",
)  # fmt: skip
STEP = Document(
    "step",
    "`simreduce step --json` of a scenario with `[step]`: training steps by method, shortest "
    "first, and the best one in full.",
    *(key for key in HEAD_KEYS if key.name != "runtime"),  # that of the best follows
    DISTURBED,
    Key("batch", COUNT, "Samples per GPU and pass.", "question.job.batch"),
    Key("accumulate", COUNT, "Passes per step.", "question.job.accumulate"),
    Key(
        "compute_source", TEXT, "Where the times of the layers come from.",
        "question.job.profile.source",
    ),
    ACTIVATIONS_KEY,
    Key(
        "consistency", one_of(*CONSISTENCIES), "Which gradients a step waits for.",
        "question.job.consistency",
    ),
    Key(
        "barrier", FLAG, "Whether a step begins when all devices have ended the one before.",
        "question.job.barrier",
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
    Key("percentiles_us", map_of(MICROSECONDS), PERCENTILES_ABOUT, percentiles_of_step),
    Key(
        "buckets", list_of(BUCKET), "What the best method reduces, by start.",
        "recommended.step.buckets",
    ),
    Key(
        "reads", list_of(BUCKET), "Variables that devices read, by start.",
        "recommended.step.reads",
    ),
    Key("candidates", list_of(CANDIDATE), "Every method, shortest step first."),
    REFUSED_KEY,
    *FACTOR_KEYS,
    Key("complete", FLAG, "False if the command was stopped and methods are untried."),
    HURRIED_KEY,
)  # fmt: skip


def step_document(ranking: MethodRanking) -> dict[str, Any]:
    """The document of `--json`: `STEP`. The step is that of the best."""
    order = (*STEP.keys[:3], *(key for key in HEAD_KEYS if not key.optional))  # with the runtime
    head = dict.fromkeys(key.name for key in order)
    return head | STEP.write(ranking)


_SHOWN = 15
"""Bars of a chart."""

_MOSTLY = 0.5
"""The part of a step from which its communication says how sure it is."""

_ASK = "A report on the scenario itself simulates the step with it."


def step_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce step --json`, of a `[step]` or of `[replicas]`."""
    rows, found = document["candidates"], document["advice"][0]
    factor = document["factor"] if runs_nccl(found["strategy"]) else None
    beside = replace(beside, factor=factor)
    ranks = units.plural(document["ranks"], "GPU")
    today = str(found["today_strategy"] or "").rpartition(", ")[2].partition("+")[0]
    composed = composed_words([row["strategy"] for row in rows if row.get("composed")])
    composed = composed[:1].upper() + composed[1:]
    alone = "The same reductions by themselves, with every gradient there from the start."
    alone = alone if beside.explanation and not beside.look else ""
    sections = [
        _methods(document, found),
        *copy_section(beside.exports, document["strategy"]),
        *_with_words(machine_section(beside), alone),
        *(step_path_section(beside) if beside.look else _with_words(path_section(beside), alone)),
        *_with_words(help_section(beside), alone),
        *timeline_section(beside, "What computes and what moves during one step."),
        *_bucket_section(document),
        *sizes_section(beside, today=today),
        *record_section(document),
        *calibration_section(beside, document),
        *repeat_section(beside, document, [("compute", str(document["compute_source"]))]),
    ]
    return Page(
        title=page_title(
            document, f"{document['workload']} on {document['topology']}: the training step"
        ),
        about=f"{document['workload']}, {units.format_size(document['size_bytes'])} of gradients, "
        f"batch {document['batch']} a GPU, {ranks} of {document['topology']}. "
        f"{units.plural(len(rows), 'method')} simulated.{composed and f' {composed}.'}",
        answer=sentence(found, "a step"),
        sure=caution(factor, document["calibration"], "times of the communication")
        + f" {compute_caution(document['compute_source'])}",
        facts=tuple(_facts(document, beside, found)),
        sections=tuple(sections),
    )


def _with_words(sections: Iterable[Section], words: str) -> Iterable[Section]:
    first = (Paragraph(words),) if words else ()
    for each in sections:
        yield Section(each.key, each.title, (*first, *each.blocks))


def _facts(document: Written, beside: Attachments, found: Written) -> Iterable[Fact]:
    name, rate = found["strategy"], _samples(document, ",.0f")
    more = (
        f"{name}: {meaning(name)} {us(document['step_time_us'])} a step, {rate} samples/s, "
        f"{document['scaling_efficiency']:.1%} of the rate of the GPUs if nothing moved."
    )
    yield from facts(found, more, document["factor"], _sure(document, found))
    yield Fact("What limits it?", *_limit(document, beside))
    nic = nic_fact(beside) if beside.look else ("not known here", beside.missing or _ASK)
    yield Fact("What would a second NIC buy?", *nic)


def _sure(document: Written, found: Written) -> tuple[str, str]:
    """How sure the time of a step is: what of it is an input, and how far off the rest may be."""
    factor = document["factor"] if runs_nccl(found["strategy"]) else None
    share = document["exposed_us"] / (document["step_time_us"] or inf)
    answer, _ = sure(factor)
    if share < _MOSTLY:
        answer = "as sure as its compute"
    off = (
        "with an error that no published timings tell"
        if factor is None
        else (f"and 80% of published times are within a factor of {factor:.2f} of predictions")
    )
    return answer, (
        f"{1 - share:.1%} of the step is compute ({document['compute_source']}). The other"
        f" {share:.1%}, communication that is not hidden, is predicted, {off}."
    )


def _limit(document: Written, beside: Attachments) -> tuple[str, str]:
    """The largest part of the step, in a word and a sentence."""
    if beside.look is not None:
        return limit_of_step(beside.look)
    whole = document["step_time_us"] or inf  # no part of no time
    compute, exposed = (document[key] / whole for key in ("compute_us", "exposed_us"))
    by_itself = limit_fact(beside)[0] if beside.explanation else ""
    if exposed >= 0.5:
        alone = f" By themselves they wait for {by_itself}." if by_itself else ""
        hidden = f"{exposed:.0%} of the step is communication that it does not hide."
        return "reductions", f"{hidden}{alone}"
    hidden = f"{exposed:.1%} is communication that it does not hide."
    alone = f" The reductions by themselves: {by_itself}." if by_itself else ""
    return "compute", f"{compute:.1%} of the step; {hidden}{alone}"


def _methods(document: Written, found: Written) -> Section:
    rows = document["candidates"]
    marks = [mark(found, row["strategy"]) for row in rows[:_SHOWN]]
    words = f"Time of a step by method. {colour_words(marks)}"
    table = CANDIDATE.table(rows, on="html")
    parts = [
        ("compute", document["compute_us"]),
        ("update", document["update_us"]),
        ("launch", document["launch_us"]),
        ("exposed communication", document["exposed_us"]),
    ]
    whole = document["step_time_us"] or inf  # no part of no time
    shares = Table(
        tables.columns("part|time|of the step", units="|(ms)|", left="part"),
        tuple((name, f"{t / 1e3:.3f}", f"{t / whole:.1%}") for name, t in parts),
    )
    blocks: tuple[Block, ...] = (
        stack(f"What a step of {document['strategy']} spends its time on.", parts, shares),
        bars(words, table, rows[:_SHOWN], "strategy", "step_time_us", marks),
        *names_block(row["strategy"] for row in rows),
    )
    return Section("choice", "What to run", (frameworks_table(document["advice"]), *blocks))


def _bucket_section(document: Written) -> Iterable[Section]:
    rows = [{"place": place, **each} for place, each in enumerate(document["buckets"], 1)]
    if rows:
        caption = f"What is reduced when: {units.plural(len(rows), 'bucket')}"
        yield Section("buckets", "Buckets", (folded_when_long(caption, BUCKET.table(rows), 20),))


_MOST = 40
"""Transfers of the path that are listed, the longest first."""


def step_look_document(look: StepLook, strategy: str, names: Sequence[str]) -> dict[str, Any]:
    """Return a closer look at a step, as JSON types: times in microseconds, shares from 0 to 1.

    `names` are the gradients'. `links` is None if they are not known; `missing` says why. `alone`
    is the document of an explanation of the longest transfer by itself.
    """
    whole = look.seconds
    return {
        "strategy": strategy,
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
        return "nothing"
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
    return explanation_document(look.alone, (), about)
