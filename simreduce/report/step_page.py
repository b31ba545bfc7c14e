"""Training steps, of methods or of meshes, as text and as a page: both show the same blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import fsum, inf

from simreduce import units
from simreduce.export.frameworks import MESH_PROGRAMS
from simreduce.files import tables
from simreduce.files.tables import Table
from simreduce.report.bench import sizes_section
from simreduce.report.blocks import (
    BEST,
    LEGEND,
    Attachments,
    Block,
    Code,
    Fact,
    Page,
    Paragraph,
    Rows,
    Section,
    Written,
    answer_first,
    bars,
    differences,
    folded_when_long,
    section_lines,
    stack,
    timeline,
)
from simreduce.report.explain import (
    help_section,
    limit_fact,
    limit_of_step,
    nic_fact,
    path_section,
    step_path_section,
)
from simreduce.report.headings import (
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
    opening,
    outside_facts,
    outside_words,
    page_title,
    percentile_words,
    refused_lines,
    sentence,
    sure,
    untried,
    untried_lines,
)
from simreduce.report.plots.axes import Axis
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
from simreduce.report.steps import (
    BUCKET,
    CANDIDATE,
    MEMORY,
    MESH_CANDIDATE,
    best_of,
    mesh_answer,
    mesh_sure,
    name_of,
    step_document,
    step_look_document,
    step_rows,
)
from simreduce.study.advice import runs_nccl, strategy_of
from simreduce.study.tune.composed import ERROR
from simreduce.study.tune.meshes import MeshRanking, Ranking
from simreduce.study.tune.rank import FIRST
from simreduce.study.tune.steps import MethodRanking
from simreduce.study.tune.whatif_steps import look_at_step
from simreduce.training import StepResult
from simreduce.training.gpus import slowest_of
from simreduce.training.mesh import OVERLAPS, USUAL, MeshJob
from simreduce.training.mesh.pipeline import grid, load_schedule
from simreduce.training.simulation import MemoryFit
from simreduce.training.step import SPENT_ON, compute_caution
from simreduce.training.step_errors import EXACT, StepInterval

_FIRST, _LAST = 8, 4
"""Buckets that are shown of many."""

_CLOSER = "its critical path, what would help, its timeline"
"""What details have besides."""

_LEFT_OUT = "a lower bound says slower, memory does not do, or another order changes nothing"
"""Why meshes are left out."""

_NOT_FIRST = f"none is among the first {FIRST} or recommended (--all simulates them)"
"""Why strategies are left out."""

_SAME = 1e-6
"""Part of a step below which a difference is none to tell."""

_FEW = 20
"""Rows of a table below the ranking in a text."""

_SHOWN = 15
"""Bars of a chart."""

_MOSTLY = 0.5
"""The part of a step from which its communication says how sure it is."""


def step_text(
    ranking: Ranking, most: int | None = None, *, details: bool = True, closer: str = "--details"
) -> str:
    """The advice, one row per method or mesh, or the best `most` of them; then what the step of the
    recommended one spends its time on, and holds.

    Without `details`, the critical path, what would help, the timeline, its buckets and other names
    are left out, and refusals of strategies that the scenario does not name are counted. `closer`
    is the command or option that has them.
    """
    document = step_document(ranking)
    if isinstance(ranking, MeshRanking):
        answer = [mesh_answer(document), outside_words(document), mesh_sure(document)]
    else:
        answer = [
            *advice_lines(ranking.advice, "a step"), outside_words(document),
            *more_lines(ranking.advice),
        ]  # fmt: skip
    answer = [
        *filter(None, answer), "", _figures(document), *_fit_lines(ranking.recommended.fit),
        *[f"  it would fit with {ranking.fits_with}"] * bool(ranking.fits_with),
    ]  # fmt: skip
    table = best_rows(step_rows(ranking, every=details), most, indent=2)
    lines = [*answer_first(_header(ranking), answer), *table]
    sections = [*_spent_section(document), *_memory_section(document)]
    if details:
        beside = Attachments(look=step_look_document(look_at_step(ranking, closely=False), ranking))
        sections += [*step_path_section(beside), *help_section(beside)]
    for section in sections:
        lines += section_lines(section, _FEW)
    if details:
        lines += _drawn_lines(ranking)
    misfits = [f"  {c.step.method} {c.fit.words}" for c in ranking.candidates if c.fit and c.misfit]
    own = ["", f"Does not fit ({len(misfits)}):", *misfits] if misfits else []
    if isinstance(ranking, MeshRanking):
        if misfits:
            rows, have = units.plural(len(misfits), "row"), units.format_size(ranking.memory)
            lines += ["", f"{rows} marked *: more memory than the {have} that a GPU has"]
        lines += own if details else ["", f"{_CLOSER}: {closer} shows them"]
        if ranking.bounded:
            lines += ["", f"{ranking.bounded} left out: {_LEFT_OUT}"]
        lines += refused_lines(ranking.refused) if ranking.scenario.question.named else []
    else:
        if ranking.bounded:
            least = units.format_duration(ranking.bounded[0][1].seconds)
            what = f"{units.plural(len(ranking.bounded), 'other')} would take {least} or more"
            lines += ["", f"{what}: {_NOT_FIRST}"]
        more = [f"{_CLOSER} and buckets", *[f"{len(misfits)} that do not fit"] * bool(misfits)]
        lines += name_lines(ranking, own, more, details=details)
    composed = composed_words([c.step.method for c in ranking.candidates if c.step.composed])
    lines += ["", composed] if composed else []
    return "\n".join([*lines, *untried_lines(ranking, ordered=isinstance(ranking, MethodRanking))])


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


def _header(ranking: Ranking) -> list[str]:
    if isinstance(ranking, MeshRanking):
        return _mesh_header(ranking)
    s, w, job = ranking.scenario, ranking.scenario.workload, ranking.scenario.step.job
    forward, backward = (
        _ms(fsum(each) * 1e6) for each in (job.profile.forward, job.profile.backward)
    )
    passes = f"{forward} forward, {backward} backward"
    passes += f", {job.accumulate} times" if job.accumulate > 1 else ""
    slow = [
        f"{name} {factor:.4g} times as slow" for name, factor in job.slow.items() if factor != 1
    ]
    if job.spread:
        count, factor = s.setup.layout.n, slowest_of(s.setup.layout.n, job.spread)
        slow.append(f"the slowest of {count} {factor:.4g} times as slow (spread {job.spread:.1%})")
    update = f", {_ms(job.update * 1e6)} for the update" if job.update else ""
    after = "" if job.barrier else ", no barrier between steps"
    layers = units.plural(len(job.model.layers), "layer")
    gradients = f"{units.plural(len(w.gradients), 'gradient')}, {units.format_size(w.nbytes)}"
    facts = [
        ("model", f"{w.name}: {layers}, {gradients}"),
        ("compute", f"{job.batch} a GPU: {passes}{update} ({job.profile.source})"),
        ("", ", ".join(slow)),
        ("", _sure_of_kernels(ranking.recommended.sure)),
    ]
    what = f"consistency {job.consistency}{after}"
    sharded = s.step.sharding is not None
    collectives = ("all_gather", "reduce_scatter") if sharded else ("all_reduce",)
    strategies = [strategy_of(c.step.method) for c in ranking.candidates]
    return header(ranking, facts, what, nccl_sureness(s, strategies, collectives))


def _sure_of_kernels(sure: StepInterval) -> str:
    """How far off predicted kernels may be, in words; "" of times that are given."""
    if sure == EXACT:
        return ""
    words = f"with 80 % kernels take {sure.low:.2f} to {sure.high:.2f} times as long"
    return f"{words} ({sure.why or 'simreduce accuracy gpu'})"


def _mesh_header(ranking: MeshRanking) -> list[str]:
    scenario, job, at = ranking.scenario, ranking.job, ranking.scenario.setup
    program = MESH_PROGRAMS.get(scenario.framework)
    beside = ", ".join(each for each in OVERLAPS if each in job.overlap) or "nothing"
    assumed = " (unless step.overlap says others)" if job.overlap == USUAL else ""
    facts = [
        ("topology", f"{at.topology.name}: {at.topology.title}, {at.layout.n} ranks"),
        ("model", f"{scenario.model.name}: {job.shape.parameters / 1e9:.4g} billion parameters"),
        ("step", f"{job.global_batch} sequences of {job.sequence} tokens"),
        ("overlap", f"beside compute: {beside}{assumed}"),
        ("framework", f"{program.title}, what it can run" if program else ""),
        ("computing", f"{job.gpu.title}, products of {job.bits} bits"),
        ("calibration", tables.label(at.calibration.name, at.calibration.title)),
        ("", ranking.nominal),
        ("disturbed", at.disturbed),
    ]  # fmt: skip
    return tables.header(scenario.title, facts)


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.3f} ms"


def _fit_lines(found: MemoryFit | None) -> list[str]:
    """What a GPU needs, and whether it has that."""
    if found is None:
        return []
    unknown = "  whether that fits is not known: no `memory` of its GPUs is given"
    short = "this does not fit: " if found.fits is False else ""
    return [f"  {short}it {found.words}", *[unknown] * (found.fits is None)]


def _drawn_lines(ranking: Ranking) -> list[str]:
    """The timeline of the best step, and its buckets or the grid of its pipeline."""
    step = ranking.closely
    lines = ["", *timeline(step), LEGEND]
    if isinstance(ranking, MeshRanking):
        return [*lines, *(_grid_lines(ranking.job) if ranking.job.mesh.pp > 1 else ())]
    lines += ["", *_buckets(step, ranking)]
    if step.slowest:  # the step that lost most by what went wrong
        took, exposed = (_ms(t * 1e6) for t in (step.slowest.seconds, step.slowest.exposed))
        lines += [
            "", f"The slowest step took {took}, of which {exposed} were exposed:", "",
            *timeline(step.slowest), "", *_buckets(step.slowest, ranking),
        ]  # fmt: skip
    return lines


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


def _grid_lines(job: MeshJob) -> list[str]:
    """Who does what when, in ticks of a forward pass; a backward pass takes two."""
    schedule = load_schedule(job.schedule, job.mesh.pp, job.virtual, job.micros)
    rows, width = grid(schedule), tables.page_width(78) - 9
    shown = ("".join(map(_letter, row))[:width] for row in rows)
    return [
        "",
        f"{schedule.name}: a column is the time of a forward pass, . a bubble",
        *(f"stage {place:2} {row}" for place, row in enumerate(shown, 1)),
    ]


def _letter(cell: str) -> str:
    kind = cell.strip("0123456789")  # of both at once, "(" and more
    return "." if not cell else "B" if cell.startswith("(") else kind[0]


def _time(row: Written) -> float:
    """The microseconds of a row's step."""
    return float(row["time_us"] if "time_us" in row else row["step_time_us"])


def _spent(best: Written) -> dict[str, float]:
    """Microseconds by what a step spends them on, the most first."""
    known = best.get("spent_us")
    if known is None:  # as documents of versions before this key have it
        keys = {
            "compute": "compute", "update": "update", "host": "launch", "data": "exposed",
            "interference": "interference",
        }  # fmt: skip
        known = {kind: us for kind, key in keys.items() if (us := best.get(f"{key}_us"))}
    return dict(sorted(known.items(), key=lambda pair: -pair[1]))


def step_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce step --json` and of `tune --json` for a scenario with a mesh."""
    best, rows = best_of(document), document["candidates"]
    found = None if "global_batch" in document else document["advice"][0]
    factor = document["factor"] if found and runs_nccl(found["strategy"]) else None
    beside = replace(beside, factor=factor)
    composed = opening(composed_words([row["strategy"] for row in rows if row.get("composed")]))
    alone = "The same reductions by themselves, with every gradient there from the start."
    alone = alone if beside.explanation and not beside.look else ""
    count = units.plural(len(rows), *(["method"] if found else ["mesh", "meshes"]))
    more = []
    if found:
        today = str(found["today_strategy"] or "").rpartition(", ")[2].partition("+")[0]
        what = (
            f"{units.format_size(document['size_bytes'])} of gradients, batch "
            f"{document['batch']} a GPU"
        )
        answer = sentence(found, "a step")
        confidence = (
            f"{caution(factor, document['calibration'], 'times of the communication')} "
            f"{compute_caution(document['compute_source'])}"
        )
        more = [("compute", str(document["compute_source"]))]
    else:
        today, answer = "", mesh_answer(document)
        batch = units.plural(document["global_batch"], "sequence")
        what = (
            f"{document['parameters'] / 1e9:.4g} billion parameters, {batch} of "
            f"{document['sequence']} tokens a step"
        )
        confidence = mesh_sure(document)
    return Page(
        title=page_title(
            document, f"{document['workload']} on {document['topology']}: the training step"
        ),
        about=f"{document['workload']}, {what}, {units.plural(document['ranks'], 'GPU')} of "
        f"{document['topology']}. {count} simulated.{composed and f' {composed}.'}",
        answer=answer,
        sure=confidence,
        facts=tuple(_facts(document, best, beside, found)),
        sections=(
            *_files_section(document),
            _choice_section(document, found),
            *copy_section(beside.exports, name_of(best)),
            *_spent_section(document),
            *_memory_section(document),
            *_with_words(machine_section(beside), alone),
            *(
                step_path_section(beside) if beside.look
                else _with_words(path_section(beside), alone)
            ),
            *_with_words(help_section(beside), alone),
            *timeline_section(beside, "What computes and what moves during one step."),
            *_bucket_section(document),
            *sizes_section(beside, today=today),
            *record_section(document),
            *calibration_section(beside, document),
            *repeat_section(beside, document, more),
        ),
    )  # fmt: skip


def _with_words(sections: Iterable[Section], words: str) -> Iterable[Section]:
    first = (Paragraph(words),) if words else ()
    for each in sections:
        yield Section(each.key, each.title, (*first, *each.blocks))


def _facts(
    document: Written, best: Written, beside: Attachments, found: Written | None
) -> Iterable[Fact]:
    figures = f"{_figures(document)}."
    if found:
        more = " ".join(filter(None, [figures, meaning(found["strategy"])]))
        yield from facts(found, more, document["factor"], _sure(document, found), untried(document))
    else:
        yield Fact("How long does a step take?", us(_time(best)), figures)
    yield Fact("What limits it?", *_limit(best, beside))
    held = [row.get("peak", 0) for row in _held(best)]
    if held:
        have = document["gpu_memory_bytes" if found else "memory_bytes"]
        more = f"A GPU has {units.format_size(have)}." if have else "Nobody says what a GPU has."
        yield Fact("What does a GPU hold?", units.format_size(max(held)), more)
    others = [row for row in _choices(document) if name_of(row) != name_of(best)]
    if others and others[0].get("fits") is not False and found is None:
        slower = _time(others[0]) / _time(best) - 1.0
        yield Fact("And the next best mesh?", name_of(others[0]), f"{slower:.1%} slower.")
    ask = beside.missing or "A report on the scenario itself simulates the step with it."
    nic = nic_fact(beside) if beside.look else ("not known here", ask)
    yield Fact("What would a second NIC buy?", *nic)
    yield from outside_facts(document)


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


def _limit(best: Written, beside: Attachments) -> tuple[str, str]:
    """What most of the step is spent on, in words and a sentence."""
    if beside.look is not None and "held" not in best:
        return limit_of_step(beside.look)
    spent, whole = _spent(best), _time(best) or inf  # no part of no time
    limit = best.get("limit") or next(iter(spent))
    alone = f" The reductions by themselves: {limit_fact(beside)[0]}." if beside.explanation else ""
    return SPENT_ON.get(limit, limit), f"{spent.get(limit, 0.0) / whole:.1%} of the step.{alone}"


def _files_section(document: Written) -> Iterable[Section]:
    """The files of a mesh for the program that is to run it."""
    if files := document.get("files"):
        blocks = tuple(Code(text.rstrip("\n"), name) for name, text in files.items())
        yield Section("set", "What to set", blocks)


def _choices(document: Written) -> list[Written]:
    """The rows of methods, or the row that stands for each mesh."""
    rows: list[Written] = document["candidates"]
    return [row for row in rows if "ways" in row] or rows


def _choice_section(document: Written, found: Written | None) -> Section:
    """What to do for each framework, and the fastest steps."""
    best = best_of(document)
    rows = [
        {**row, "name": row.get("settings") or name_of(row), "time": _time(row)}
        for row in _choices(document)
    ]
    marks = [
        mark(found, row["name"], *row.get("also", ()))
        if found
        else BEST * (row["place"] == best["place"])
        for row in rows
    ]
    for row in rows:
        row["name"] += " (does not fit)" * (row.get("fits") is False)
    table = (CANDIDATE if found else MESH_CANDIDATE).table(rows, on="html")
    blocks: list[Block] = [frameworks_table(document["advice"])] if found else []
    blocks.append(differences("Time of a step", table, rows, "name", "time", marks, _SHOWN))
    return Section("choice", "What to run", (*blocks, *names_block(name_of(row) for row in rows)))


def _figures(document: Written) -> str:
    """How long the step to run takes, its rate, and the part of the GPUs' rate that it uses."""
    best, words = best_of(document), list[str]()
    if "mesh" in best:
        words.append(f"{best['tokens_per_second']:,.0f} tokens/s")
    else:
        rate, gpus = best["images_per_second"], units.plural(document["ranks"], "GPU")
        words.append(f"{units.format_rate(inf if rate is None else rate)} samples/s")
        words.append(f"{best['scaling_efficiency']:.1%} of what {gpus} do if nothing moves")
    if (mfu := best.get("mfu")) is not None:
        words += [f"MFU {mfu:.1%}{', more than its GPUs can do: check the times' * (mfu > 1)}"]
    return f"{name_of(best)}: a step takes {_ms(_time(best))}, {', '.join(words)}"


_KERNELS = {"products": "products", "attention": "attention", "bytes": "what moves bytes"}


def _notes(document: Written) -> Iterator[str]:
    """What the step to run exposes and waits for, what is wrong, and how steps differed."""
    best = best_of(document)
    keys = {"communication_us": "communication", "exposed_us": "exposed"}
    yield ", ".join(f"{words} {_ms(best[key])}" for key, words in keys.items() if best.get(key))
    by = best.get("exposed_by_us") or {}
    exposed = ", ".join(f"{name.replace('_', '-')} {_ms(time)}" for name, time in by.items())
    yield exposed and f"exposed by {exposed}"
    by = document.get("interference_by_us") or {}
    lost = ", ".join(f"{_KERNELS[kind]} {_ms(time)}" for kind, time in by.items())
    yield lost and f"beside collectives kernels lose {_ms(sum(by.values()))}: {lost}"
    if best.get("waiting_us"):
        yield (
            f"GPUs wait {_ms(best['waiting_us'])} of the compute on average for the slowest, whose"
            " compute that is"
        )
    if best.get("wrong"):
        wrong = f"{units.plural(best['wrong'], 'element')} {units.noun(best['wrong'], 'is', 'are')}"
        yield f"{wrong} not as it should be: no candidate is proven right"
    times = document.get("simulated_us") or [0.0]
    if max(times) - min(times) > _SAME * _time(best):
        yield _times_of_steps(document)
    yield percentile_words(document.get("percentiles_us") or {})


def _times_of_steps(document: Written) -> str:
    """How long steps took that were not alike, each value once while it lasts; of many the first,
    the longest and the last.
    """
    times, near = document["simulated_us"], _SAME * document["step_time_us"]
    if not document["settled"]:
        later = times[len(times) // 2 :]
        return (
            f"{len(times)} steps did not come to be alike: this is the mean of the last "
            f"{len(later)}, which took {_ms(min(later))} to {_ms(max(later))}; "
            "the last one is shown"
        )
    times = [t for i, t in enumerate(times) if not i or abs(t - times[i - 1]) > near]
    kept = range(len(times))
    half, longest = _FIRST // 2, max(kept, key=times.__getitem__)
    few = len(times) <= _FIRST
    shown = [*kept] if few else sorted({*kept[:half], longest, *kept[-half:]})
    texts: list[str] = []
    for i, before in zip(shown, [-1, *shown], strict=False):
        texts += ["..."] * (i > before + 1) + [f"{times[i] / 1e3:.3f}"]
    return f"steps took {', '.join(texts)} ms; this is the last"


def _spent_section(document: Written) -> Iterable[Section]:
    """What the slowest rank does and waits for, and what is to be noted of it."""
    best = best_of(document)
    spent, whole = _spent(best), _time(best) or inf  # no part of no time
    parts = [(SPENT_ON.get(kind, kind), time) for kind, time in spent.items()]
    table = Table(
        tables.columns("spent on|time|of the step", units="|(ms)|", left="spent on"),
        tuple((name, f"{time / 1e3:.3f}", f"{time / whole:.1%}") for name, time in parts),
    )
    words = f"What a step of {name_of(best)} spends its time on."
    notes = opening("; ".join(filter(None, _notes(document))))
    blocks: list[Block] = [stack(words, parts, table)]
    blocks += [Paragraph(f"{notes}.")] if notes else []
    yield Section("spent", "Where the time goes", tuple(blocks))


def _held(best: Written) -> list[dict[str, float]]:
    """What a GPU holds, by stage, without what is nothing."""
    rows = best.get("held") or filter(None, [best.get("memory_bytes")])
    return [
        {name.removesuffix("_bytes"): value for name, value in row.items() if value} for row in rows
    ]


def _memory_section(document: Written) -> Iterable[Section]:
    """What a GPU holds at most, of each stage."""
    rows = _held(best_of(document))
    if not rows:
        return
    when = best_of(document).get("memory_bytes", {}).get("when", "")
    words = "What a GPU holds at most" + f", in {when}" * bool(when)
    table = MEMORY.table(rows)
    blocks: list[Block] = [Rows(words, table)]
    if len(rows) > 1:
        named = [{"name": f"stage {row['place']}", "peak": row.get("peak", 0.0)} for row in rows]
        axis = Axis("memory", "bytes", log=False)
        blocks = [bars(f"{words}.", table, named, "name", "peak", [0] * len(rows), axis=axis)]
    yield Section("memory", "Memory", tuple(blocks))


def _bucket_section(document: Written) -> Iterator[Section]:
    rows = [{"place": place, **each} for place, each in enumerate(document.get("buckets", ()), 1)]
    if rows:
        caption = f"What is reduced when: {units.plural(len(rows), 'bucket')}"
        yield Section("buckets", "Buckets", (folded_when_long(caption, BUCKET.table(rows), 20),))
