"""`simreduce run`: the ranking as text, as a document, and its page.

`simreduce tune`: the best setting as a document, as a plot, and as a report for terminals and
pages.

What `simreduce verify` proved, as documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from simreduce import units
from simreduce.computing import group_by
from simreduce.export.framework import METHODS
from simreduce.export.frameworks import TUNED
from simreduce.files.formats.documents import (
    ABSENT,
    ANYTHING,
    BYTES,
    COUNT,
    FLAG,
    GB_PER_SECOND,
    INTEGER,
    ITSELF,
    MICROSECONDS,
    PLACE,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    one_of,
    or_null,
)
from simreduce.files.tables import Column, Table, percent
from simreduce.report.bench import sizes_section
from simreduce.report.blocks import (
    BEST,
    TIME,
    TODAY,
    Attachments,
    Block,
    Chart,
    Code,
    Fact,
    Page,
    Rows,
    Section,
    Written,
    answer_first,
    differences,
    page_text,
    table_section,
)
from simreduce.report.explain import help_section, limit_fact, nic_fact, path_section
from simreduce.report.headings import (
    ACTIVATIONS_KEY,
    ADVICE,
    ADVICE_KEY,
    BY_BUDGET,
    DISTURBED,
    FACTOR_KEYS,
    HEAD_KEYS,
    HURRIED_KEY,
    MEASURED_KEY,
    MEASURED_KEYS,
    MOVED_KEY,
    OUTSIDE_KEY,
    REFUSED,
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
    outside_facts,
    page_title,
    sentence,
    sure,
    untried,
    untried_lines,
)
from simreduce.report.plots import Facet, Plot, PlotPoint, PlotSeries
from simreduce.report.plots.axes import Axis
from simreduce.report.sections import (
    calibration_section,
    copy_section,
    machine_section,
    meaning,
    measured_section,
    measured_words,
    names_block,
    record_section,
    repeat_section,
    timeline_section,
    us,
)
from simreduce.study.advice import runs_nccl, strategy_of
from simreduce.study.frameworks import call_words
from simreduce.study.ranking import lasting, lasting_us, same_reasons, took
from simreduce.study.tune.prove import Proof
from simreduce.study.tune.rank import FIRST, Candidate, StrategyRanking
from simreduce.study.tune.search.search import NEAR, Tuned
from simreduce.study.tune.search.targets import OBJECTIVES
from simreduce.study.tune.search.tune import advice_of as advice_of_tuned
from simreduce.study.tune.sizes import algbw, busbw
from simreduce.training.sharded import DDP
from simreduce.version import __version__


def ranking_table(
    ranking: StrategyRanking, most: int | None = None, *, details: bool = True
) -> str:
    """The advice, then one row per strategy, best first, or the best `most` of them.

    Without `details`, other names of plans are counted, and refusals of strategies that the
    scenario does not name.
    """
    lines = [
        *answer_first(_header(ranking), _recommendation(ranking)),
        *best_rows(ranking_rows(ranking), most),
        *_bounded_lines(ranking),
        *name_lines(ranking, _upstream(ranking), details=details),
        *untried_lines(ranking),
    ]
    return "\n".join(lines)


def ranking_rows(ranking: StrategyRanking) -> Table:
    """A row per strategy, best first; then those that were not simulated to their end."""
    document = RUN.write(ranking)
    return CANDIDATE.table([*document["candidates"], *document["bounded"]])


def preview_lines(outcomes: Iterable[tuple[int, object]]) -> list[str]:
    """The first rows of a ranking that is not complete, by its outcomes until now."""
    rows = sorted((c for _, c in outcomes if isinstance(c, Candidate)), key=lambda c: c.seconds)
    return [f"{c.seconds * 1e3:12.3f} ms  {c.strategy.text}" for c in rows[:FIRST]]


def _bounded_lines(ranking: StrategyRanking) -> list[str]:
    """Says what a time behind >= is."""
    what = f"Rows with >= ({len(ranking.bounded)}) say what a strategy takes at least"
    lines = [
        "",
        f"{what}: none is among the first {FIRST} or",
        "recommended (--all simulates them to the end).",
    ]
    return lines if ranking.bounded else []


def _header(ranking: StrategyRanking) -> list[str]:
    s, w = ranking.scenario, ranking.scenario.workload
    chained = f", each of {s.repeat} chained in one step" if s.repeat > 1 else ""
    size = f"{units.plural(w.elements, 'element')}, {units.format_size(w.nbytes)}"
    gradients = units.plural(len(w.gradients), "gradient")
    facts = [("workload", f"{w.name}: {gradients}, {size}")]
    sureness = nccl_sureness(s, [c.strategy for c in ranking.candidates])
    return header(ranking, facts, f"time of one all-reduce{chained}", sureness)


def _recommendation(ranking: StrategyRanking) -> list[str]:
    advice, fastest = ranking.advice, ranking.fastest
    if not advice or fastest is None:
        return ["No strategy has a plan that is proven right."]
    lines = advice_lines(advice, "an all-reduce")
    known = [each for found in advice for each in (found.option, found.fastest)]
    time = took(fastest.seconds, fastest.moved)
    if fastest.undispatched and fastest is not ranking.recommended:
        words = "and the dispatch of its copies, which this calibration does not know"
        lines.append(f"  {fastest.strategy.text} takes {time} {words}")
    elif all(lasting(fastest) < lasting(each) for each in known):
        how = call_words(fastest.strategy) or "no framework has a setting for it"
        lines.append(f"  {fastest.strategy.text} takes {time}, and {how}")
    tied = min((c for c in ranking.candidates if not c.wrong), key=lambda c: c.seconds)
    if tied.seconds < fastest.seconds:
        lines.append(f"  {tied.strategy.text} takes {took(tied.seconds, tied.moved)}")
    return [*lines, *more_lines(advice)]


def _upstream(ranking: StrategyRanking) -> list[str]:
    names = [name for c in ranking.candidates for name in (c, *c.also)]
    different = [c for c in names if c.upstream]
    if not different:
        return []
    lines = [f"  {c.strategy.text}: {c.upstream}" for c in different]
    return ["", "Upstream does something else under these names (--faithful ranks that):", *lines]


def _busiest(name: str, share: str) -> Callable[[Written], str]:
    """Shows what is busiest with its share of the time."""
    return lambda row: f"{row[name]} {row[share]:.0%}" if row.get(name) else "-"


def _time_cell(row: Written) -> str:
    if "at_least_us" in row:
        return f">={row['at_least_us'] / 1e3:.3f}"
    return f"{row['time_us'] / 1e3:.3f}"


_STRATEGY = (
    Key(
        "strategy", TEXT, "The strategy, as simreduce reads it.", "strategy.text",
        column=Column("strategy", left=True),
    ),
    Key("spec", TEXT, "Its algorithms without the packing.", "strategy.spec"),
    Key("packing", TEXT, "How it packs gradients.", "strategy.packing"),
)  # fmt: skip
_RUNTIME = Key(
    "runtime", TEXT, "The system that runs it.",
    column=Column("runtime", left=True, spare=2, keep="varied"),
)  # fmt: skip
_SETTINGS = Record(
    "settings",
    "Text to type; null where that system has no setting for the strategy.",
    Key("tf_cnn_benchmarks", or_null(TEXT), "Flags of tf_cnn_benchmarks."),
    Key("tensorflow", or_null(TEXT), "A call of TensorFlow."),
)
_CHOICE = (
    Key(
        "chosen_by", list_of(TEXT), "Rules of TensorFlow that would choose this plan here.",
        column=Column("chosen by", left=True, spare=7, missing=""),
    ),
    Key("upstream", TEXT, 'What upstream does instead under this name; "" for the same.'),
    Key("settings", _SETTINGS, "How to run it."),
)  # fmt: skip


CANDIDATE = Record(
    "candidate",
    "The prediction for one plan.",
    Key("place", COUNT, "Its place, from 1 for the fastest.", PLACE, column=Column("#")),
    *_STRATEGY,
    _RUNTIME,
    Key(
        "time_us", MICROSECONDS, "One all-reduce of the whole workload.", "seconds",
        column=Column("time", "(ms)", cell=_time_cell),
    ),
    replace(MOVED_KEY, about=f"{MOVED_KEY.about} Tried of those that decide what to run."),
    Key(
        "floor_us", MICROSECONDS, "No algorithm takes less here, by links alone.", "floor_seconds",
        column=Column("at least", "(ms)", on="html"),
    ),
    Key(
        "algbw_gb_per_s", GB_PER_SECOND, "Size over time.",
        get_in=lambda row, ranking: algbw(ranking.scenario.workload.nbytes, row.seconds),
        column=Column("algbw", "(GB/s)", spare=3, on="text"),
    ),
    Key(
        "busbw_gb_per_s", GB_PER_SECOND, "Algbw times 2(n-1)/n, as nccl-tests has it.",
        get_in=lambda row, ranking: busbw(
            ranking.scenario.workload.nbytes, row.seconds, len(ranking.scenario.setup.layout)),
        column=Column("busbw", "(GB/s)", spare=1),
    ),
    Key("transfers", COUNT, "Copies between devices.", column=Column("transfers", spare=5)),
    Key(
        "wrong", COUNT, "Elements whose sum is wrong; 0 for a plan that is proven.",
        column=Column("#wrong"),
    ),
    Key(
        "bottleneck", TEXT, 'The busiest link; "" if nothing moves.', "link",
        column=Column(
            "busiest link", "(share of the time)", left=True, spare=4,
            cell=_busiest("bottleneck", "bottleneck_share"),
        ),
    ),
    Key("bottleneck_share", RATIO, "The part of the time in which it is busy.", "link_share"),
    Key(
        "busiest_lane", TEXT,
        'The busiest lane, a queue of the runtime or of the hardware; "" for none.', "lane",
        column=Column(
            "busiest lane", "(share of the time)", left=True, spare=6,
            cell=_busiest("busiest_lane", "busiest_lane_share"),
        ),
    ),
    Key("busiest_lane_share", RATIO, "The part of the time in which it is busy.", "lane_share"),
    *_CHOICE,
    Key(
        "also",
        list_of(Record("also", "Another name of the same plan.", *_STRATEGY, *_CHOICE)),
        "Other strategies that make the same plan.",
    ),
    order="place strategy runtime time_us moved_us floor_us algbw_gb_per_s busbw_gb_per_s "
    "transfers bottleneck busiest_lane wrong chosen_by",
)  # fmt: skip
_BOUNDED = Record(
    "bounded",
    "A strategy that was not simulated to its end.",
    *_STRATEGY,
    _RUNTIME,
    Key("at_least_us", MICROSECONDS, "What it takes at least.", "seconds"),
    Key("reason", TEXT, "Why it takes as long."),
)


RUN = Document(
    "run",
    "`simreduce run --json`: every strategy for a workload on a machine, fastest first.",
    *HEAD_KEYS,
    Key(
        "faithful", FLAG, "Whether strategies do what upstream does, quirks included.",
        "scenario.faithful",
    ),
    DISTURBED,
    Key(
        "candidates", list_of(CANDIDATE),
        "Strategies that were simulated to the end, one for each plan, fastest first.",
    ),
    Key(
        "bounded", list_of(_BOUNDED),
        "Strategies that cannot be among the first, by what they take at least.",
    ),
    REFUSED_KEY,
    ADVICE_KEY,
    Key(
        "recommended", or_null(TEXT), "The strategy to use; null if no plan is proven.",
        "recommended.strategy.text",
    ),
    *FACTOR_KEYS,
    Key("complete", FLAG, "False if the command was stopped and strategies are untried."),
    HURRIED_KEY,
    *MEASURED_KEYS,
)  # fmt: skip
"""Of a `StrategyRanking`."""

_SHOWN = 12


def run_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce run --json`."""
    rows, found, best = document["candidates"], advice_of(document), answer_row(document)
    what = f"all-reduce of {document['workload']} ({units.format_size(document['size_bytes'])})"
    gpus = units.plural(document["ranks"], "GPU")
    factor = document["factor"] if found and runs_nccl(found["strategy"]) else None
    today = str(found["today_strategy"] or "").partition("+")[0] if found else ""
    beside = replace(beside, factor=factor)
    sections = [
        *_choice_section(document, best, found),
        *copy_section(beside.exports, str(best and best["strategy"]), _times(rows)),
        *measured_section(document),
        *machine_section(beside),
        *path_section(beside),
        *help_section(beside),
        *timeline_section(beside, f"What every device, link and lane does during one {what}."),
        *sizes_section(beside, today=today),
        *record_section(document),
        *calibration_section(beside, document),
        *repeat_section(beside, document),
    ]
    answer = "No strategy has a plan that is proven right, so there is nothing to recommend."
    if document.get("measured"):
        answer = "No measured step was right, so there is nothing to recommend."
    sure, cards = "", tuple[Fact, ...]()
    if best and found:
        answer = sentence(found, f"one {what}")
        sure = f"{caution(factor, document['calibration'])} {measured_words(document)}".strip()
        cards = tuple(_facts(document, beside, best, found))
    return Page(
        title=page_title(
            document, f"{document['workload']} on {document['topology']}: which reduction?"
        ),
        about=f"{what[0].upper()}{what[1:]} on {document['topology']}, {gpus}. "
        f"{units.plural(len(rows), 'plan')} simulated and proved.",
        answer=answer,
        sure=sure,
        facts=cards,
        sections=tuple(sections),
    )


def answer_row(document: Written) -> Written | None:
    """The row of what a ranking recommends."""
    best = document["recommended"]
    return next(
        (
            row
            for row in document["candidates"]
            if best in [row["strategy"], *(each["strategy"] for each in row["also"])]
        ),
        None,
    )


def advice_of(document: Written) -> Written | None:
    """The first advice of a ranking; where devices chose, that they did."""
    best = answer_row(document)
    found: Written | None = next(iter(document["advice"]), None)
    if best is None or found is None:
        return found
    if found["strategy"] in (best["strategy"], document["recommended"]):
        return found
    name = best["strategy"]
    return {
        **found, "do": f"Run {name}", "strategy": name, "time_us": best["time_us"], "change": True,
        "fastest": name, "fastest_strategy": name, "fastest_time_us": best["time_us"],
        "error_us": None,
    }  # fmt: skip


def _facts(document: Written, beside: Attachments, best: Written, found: Written) -> Iterable[Fact]:
    rate = (
        f"{found['strategy']}: {meaning(best['strategy'])} {us(best['time_us'])}, "
        f"{best['busbw_gb_per_s']:.1f} GB/s of bus bandwidth."
        f"{' Chosen by what was measured.' * bool(document.get('measured'))}"
    )
    right = [row for row in document["candidates"] if not row["wrong"]]
    first = min(right, key=lasting_us, default=best)
    settable = min(each["fastest_time_us"] for each in document["advice"])
    if not document.get("measured") and lasting_us(first) < settable:
        how = call_words(strategy_of(first["strategy"]))
        rate += f" {first['strategy']} takes {us(first['time_us'])}, "
        rate += f"and {how}." if how else "but no framework has a setting for it."
    rate += " What to type is below."
    yield from facts(found, rate, document["factor"], left=untried(document))
    yield Fact("What limits it?", *limit_fact(beside))
    yield Fact("What would a second NIC buy?", *nic_fact(beside))


def _times(rows: Iterable[Written]) -> dict[str, str]:
    """How long each strategy takes, in words."""
    return {name["strategy"]: us(row["time_us"]) for row in rows for name in (row, *row["also"])}


def _choice_section(
    document: Written, best: Written | None, found: Written | None
) -> Iterable[Section]:
    rows = document["candidates"]
    blocks: list[Block] = []
    if document["advice"]:
        blocks.append(frameworks_table(document["advice"]))
    if rows:
        blocks.append(_ranking(rows, best, found))
        blocks += names_block(row["strategy"] for row in rows)
    if document.get("refused"):
        caption = f"{len(document['refused'])} strategies are not possible here"
        each = [(refused["strategy"], refused["reason"]) for refused in document["refused"]]
        why = [{"strategy": s, "reason": reason} for s, reason in same_reasons(each, brief=True)]
        blocks.append(Rows(caption, REFUSED.table(why), folded=True))
    if blocks:
        yield Section("choice", "What to run", tuple(blocks))


def _ranking(rows: Sequence[Written], best: Written | None, found: Written | None) -> Chart:
    names = ([each["strategy"] for each in (row, *row["also"])] for row in rows)
    marks = [
        mark(found, *some) & TODAY | BEST * (row is best)
        for row, some in zip(rows, names, strict=True)
    ]
    words = "Time of one all-reduce by strategy"
    table = CANDIDATE.table(rows, on="html")
    return differences(words, table, rows, "strategy", "time_us", marks, _SHOWN)


_SETTINGS_SHOWN = 10
"""Rows of the table."""


_FEW = 2
"""Rules that are shown in a line."""

_TELLING = 0.5
"""The largest bound on what is left to gain that says anything."""

_TAKES = {"time": "one all-reduce", "step": "a training step"}


def tuned_text(found: Tuned, why: Iterable[str] = ()) -> str:
    """The report, with what its document lacks, and `why` there is nothing to paste."""
    w = found.scenario.workload
    gradients = units.plural(len(w.gradients), "gradient")
    workload = [("workload", f"{w.name}: {gradients}, {units.format_size(w.nbytes)}")]
    head = header(found, workload, f"time of {_TAKES[found.objective]}")
    more = [*_asides(found), *(f"Nothing to paste: {reason}" for reason in why)]
    return page_text(tune_report(TUNE.write(found)), more, head=head, most=_SETTINGS_SHOWN)


def files_text(files: Mapping[str, str]) -> str:
    """Files to paste, each below its name."""
    return "".join(f"\n# {name}\n{content.rstrip()}\n" for name, content in files.items())


def _asides(found: Tuned) -> Iterator[str]:
    """The memory of a GPU, what the update has of what sharding saves, and ticks of Horovod."""
    step, fit = found.scenario.step, found.advised.fit
    if fit and fit.fits is not None:
        yield f"A GPU {fit.words}."
    if found.fits_with:
        yield f"It would fit with {found.fits_with}."
    if (step and step.job.update and found.advised.setting.sharding is None
            and {*found.by_method} & {*METHODS} - {DDP}):  # fmt: skip
        saved = step.job.update * (1 - 1 / len(found.scenario.setup.layout))
        words = f"Sharding the update of {units.format_duration(step.job.update)}"
        yield f"{words} alone saves up to {units.format_duration(saved)}."
    if found.default.setting != found.best.setting and (cycle := found.by_tick(found.default)):
        within = f"The default is within one cycle of {units.format_duration(cycle)} of the fastest"
        yield f"{within}, and that hangs on when its ticks fall."


def _setting_cell(row: Written) -> str:
    """The setting in one line: many rules as their number."""
    ranges = f"[{units.plural(len(row['rules']), 'range')}]"
    setting: str = row["setting"]
    return re.sub(r"\[.*\]", ranges, setting) if len(row["rules"]) > _FEW else setting


_RULE = Record(
    "rule",
    "A choice that NCCL makes for calls of these sizes.",
    Key("from_bytes", BYTES, "The smallest call.", "least"),
    Key("to_bytes", or_null(BYTES), "The largest call; null: no limit.", "most"),
    Key("algorithm", TEXT, "NCCL's algorithm."),
    Key("protocol", TEXT, "NCCL's protocol."),
    Key("channels", INTEGER, "NCCL's channels; -1: its own choice."),
)
_ROW = Record(
    "row",
    "A setting, simulated.",
    Key(
        "setting", TEXT, "The setting in one line.", "setting.label",
        column=Column("setting", left=True, cell=_setting_cell),
    ),
    Key("note", TEXT, "What it is.", written=False, column=Column("", left=True, keep="known")),
    Key("strategy", TEXT, 'Its strategy; "" of a mode.', "setting.strategy"),
    Key(
        "rules", list_of(_RULE), "What NCCL is told for each size; empty: its own choice.",
        "setting.rules",
    ),
    Key(
        "min_nchannels", COUNT, "NCCL_MIN_NCHANNELS, where the setting has one.",
        lambda row: row.setting.channels or ABSENT, optional=True,
    ),
    Key(
        "gpu_indices", list_of(COUNT), "The order of the GPUs of each machine; empty: theirs.",
        "setting.order",
    ),
    Key(
        "method", TEXT, "`ddp`, a sharded method, or a mode of tf_cnn_benchmarks.",
        lambda row: row.setting.mode or row.setting.method,
    ),
    Key(
        "knobs", map_of(ANYTHING), "What differs from the defaults of a sharded method.",
        "setting.knobs",
    ),
    Key(
        "cycle_us", or_null(MICROSECONDS), "Horovod's cycle; null of other systems.",
        "setting.cycle",
    ),
    Key(
        "time_us", MICROSECONDS, "One all-reduce, or a step.", "seconds",
        column=Column("time", "(ms)"),
    ),
    replace(MOVED_KEY, about=f"{MOVED_KEY.about} Tried of the best and the default, not of steps."),
    Key(
        "told_apart",
        or_null(FLAG),
        "Whether the best is surely faster; null for the best, or if nothing is known of errors.",
        get_in=lambda row, found: None if row == found.best else found.apart(row),
        column=Column("told apart", left=True, missing=""),
    ),
    Key(
        "needed_bytes", or_null(BYTES), "What a GPU holds at most; null if it is not known.",
        "fit.needed",
    ),
    Key("fits", or_null(FLAG), "Whether it fits a GPU; null if that is not known.", "fit.fits"),
    Key("fits_chance", or_null(RATIO), "The chance that it does.", "fit.chance"),
    Key(
        "slower", RATIO, "How much slower than the best.", written=False,
        column=Column("slower", show=percent(1)),
    ),
    order="setting note time_us moved_us slower told_apart",
)  # fmt: skip


_SIZE = Record(
    "size_range",
    "From a size on, the fastest all-reduce of a small tensor that the target has.",
    Key(
        "size_bytes", BYTES, "The first size.", "nbytes",
        column=Column("from", show=units.exact_size),
    ),
    Key("algorithm", TEXT, "The strategy.", "strategy", column=Column("fastest", left=True)),
    Key(
        "time_us", MICROSECONDS, "Its time at that size.", "seconds",
        column=Column("", "(us)"),
    ),
    Key("default", TEXT, "What runs unless anybody says.", column=Column("unless told", left=True)),
    Key(
        "default_us", MICROSECONDS, "Its time at that size.", "default_seconds",
        column=Column("", "(us)"),
    ),
    Key("switch", TEXT, "What switches the fastest on.", column=Column("set or call", left=True)),
)  # fmt: skip
_PLACE = Record(
    "place",
    "A size of buckets. A time that is neither exact nor estimated is a lower bound.",
    Key(
        "bucket_bytes", BYTES, "The size.", "nbytes",
        column=Column("bucket", show=units.format_size),
    ),
    Key("time_us", MICROSECONDS, "The time with it.", "seconds", column=Column("time", "(ms)")),
    Key(
        "exact", FLAG, "Whether the time was simulated.",
        column=Column(
            "known",
            cell=lambda row: "exactly" if row["exact"]
            else "about" if row.get("estimated") else "at least",
        ),
    ),
    Key("estimated", FLAG, "Whether it lies between simulated calls."),
)  # fmt: skip
TUNE = Document(
    "tune",
    "`simreduce tune --json`: the best setting of a system, and those near it.",
    *HEAD_KEYS,
    DISTURBED,
    Key("target", one_of(*TUNED), "The system."),
    Key("objective", one_of(*OBJECTIVES), "The time of one all-reduce, or of a training step."),
    Key("advice", ADVICE, "What to set, and what that is worth.", advice_of_tuned),
    Key("advised", _ROW, "The setting to use: the default unless a change is worth it."),
    Key(
        "best",
        _ROW,
        "The fastest of those that are tried; a time that hangs on ties counts as the longer one.",
    ),
    Key("default", _ROW, "What runs if nothing is set."),
    Key("speedup", RATIO, "How many times as fast as the default the best is."),
    Key(
        "told_apart",
        or_null(FLAG),
        "Whether the best is surely faster than the default; null if nothing is known of errors.",
        lambda found: found.apart(found.default),
    ),
    replace(FACTOR_KEYS[0], get="sureness.factor"),
    replace(FACTOR_KEYS[1], get="sureness.ratio_factor"),
    Key("points", COUNT, "Settings of the space."),
    Key("simulated", COUNT, "Settings that were simulated.", lambda found: len(found.rows)),
    Key("calls", COUNT, "Single calls that were simulated for bounds."),
    Key(
        "complete",
        FLAG,
        "Whether bounds exclude all other settings of the space.",
    ),
    Key("stopped", FLAG, "Whether the command was stopped."),
    HURRIED_KEY,
    Key("composed", FLAG, "Whether some times are single calls put together."),
    Key(
        "bound_us",
        MICROSECONDS,
        "No setting of the space takes less; one between them may.",
        "bound",
    ),
    Key("floor_us", MICROSECONDS, "No all-reduce of the machine takes less.", "floor"),
    Key(
        "flat",
        or_null(
            Record(
                "flat",
                "Sizes of buckets around the best that are nearly as good.",
                Key("from_bytes", BYTES, "The smallest.", "0"),
                Key("to_bytes", BYTES, "The largest.", "1"),
            )
        ),
        "Where the size of buckets hardly matters; null if that is not known.",
    ),
    Key(
        "curve",
        list_of(_PLACE),
        "The time over the size of buckets; empty where there are none.",
    ),
    Key("rows", list_of(_ROW), "Settings that were simulated, fastest first."),
    Key(
        "by_size",
        list_of(_SIZE),
        "Where the fastest all-reduce of a small tensor changes, of what the target has; missing"
        " where it has one, and where NVLinks do not join all GPUs.",
        lambda found: found.sizes or ABSENT,
        optional=True,
    ),
    Key(
        "worth_measuring",
        list_of(TEXT),
        "Settings that may be faster than the best.",
        lambda found: [row.setting.label for row in found.worth_measuring()],
    ),
    replace(
        ACTIVATIONS_KEY,
        kind=or_null(ACTIVATIONS_KEY.kind),
        about=f"{ACTIVATIONS_KEY.about} Null without a step.",
        get=lambda found: found.scenario.step and found.scenario.step.activations.source,
    ),
    OUTSIDE_KEY,
    Key("unfit", COUNT, "Settings of the space that do not fit a GPU."),
    Key(
        "files",
        map_of(TEXT),
        "What to paste or save, by the name of the file.",
        lambda _: {},
    ),
    MEASURED_KEY,
)
"""Of what `tune` found, without its files."""


def sensitivity_plot(found: Tuned) -> Plot:
    """The time over the size of buckets, near the best and with its bounds."""
    scenario, document = found.scenario, TUNE.write(found)
    return Plot(
        f"{scenario.workload.name} on {scenario.setup.machine.name}: "
        f"{_setting_cell(document['best'])}",
        f"time of {_TAKES[found.objective]}, calibration {scenario.setup.calibration.name}",
        [_curve_facet(document)],
    )


def _curve_facet(document: Written) -> Facet:
    """The time over the size of buckets, hollow where it is a lower bound, and levels that no size
    changes.
    """
    curve = document.get("curve") or []
    simulated = [
        PlotPoint(
            place["bucket_bytes"],
            place["time_us"] * 1e-6,
            meets=place["exact"] or place.get("estimated", False),
        )
        for place in curve
    ]
    series = [PlotSeries("the best setting with buckets of this size", simulated)]
    for name, level, colour in (
        ("default", document["default"]["time_us"], "today"),
        ("bound of the settings that were tried", document["bound_us"], "others"),
        ("no setting takes less", document["floor_us"], "ink"),
    ):
        points = [PlotPoint(point.x, level * 1e-6) for point in simulated]
        series.append(PlotSeries(name, points, "dashed", "", colour))
    return Facet(Axis("size of a bucket", "bytes"), TIME, series)


def tune_report(document: Written) -> Page:
    """The report on a search, for a terminal and a page."""
    advice, target = document["advice"], document["advice"]["title"] or document["target"]
    factor = _factor(document)
    step, left = document["objective"] == "step", _left(document)
    answer = sentence(advice, _TAKES["step" if step else "time"])
    known = "Others may be faster" if advice["reason"] else "Nothing faster is known"
    gpus = units.plural(document["ranks"], "GPU")
    size = units.format_size(document["size_bytes"])
    told = caution(
        factor, document["calibration"], "times of the communication" if step else "times"
    )
    told += " What the time of compute is off by comes on top." * step
    return Page(
        title=page_title(
            document, f"{document['workload']} on {document['topology']}: best setting for {target}"
        ),
        about=f"{document['workload']} ({size}) on {document['topology']}, {gpus}; "
        f"{document['points']:,} settings for {target}.",
        answer=f"{answer} {known}: {left}." if left else answer,
        sure=f"{told} {measured_words(document)}".strip(),
        facts=tuple(_tuned_facts(document, advice)),
        sections=(
            _settings(document, advice),
            *table_section(
                "sizes-of-tensors", "Small tensors",
                f"All-reduces of small tensors in {target}, launched by CUDA graphs",
                _SIZE.table(document.get("by_size", ())),
            ),
            *_curve(document),
        ),
    )  # fmt: skip


def tune_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce tune --json`: the report, and what was measured and looked at."""
    page, found = tune_report(document), replace(beside, factor=_factor(document))
    first, *others = page.sections
    sections = (
        first,
        *measured_section(document),
        *others,
        *machine_section(found),
        *path_section(found),
        *help_section(found),
        *sizes_section(found),
        *record_section(document),
        *calibration_section(found, document),
        *repeat_section(found, document),
    )
    return replace(page, sections=sections)


def _left(document: Written) -> str:
    """How much of its space a search has tried that was stopped; "" for one that was not."""
    tried = f"{document['simulated']:,} of {document['points']:,} settings were simulated"
    return tried if document["stopped"] else ""


def _factor(document: Written) -> float | None:
    """Predictions of the advised setting are within this factor."""
    factor: float | None = document["factor"]
    return factor if runs_nccl(document["advised"]["strategy"]) else None


def _tuned_facts(document: Written, advice: Written) -> Iterator[Fact]:
    name, time = _setting_cell(document["advised"]), document["advised"]["time_us"]
    factor = _factor(document)
    more = f"{name}: {us(time)}."
    if flat := document["flat"]:
        low, high = (units.format_size(flat[key]) for key in ("from_bytes", "to_bytes"))
        near = units.format_share(NEAR - 1)
        sizes = f"of {low}" if low == high else f"from {low} to {high}"
        more += f" With buckets {sizes} times stay within {near} of the fastest."
    answer, why = sure(factor)
    if document["objective"] == "step":
        why += " That is of the communication; what compute is off by comes on top."
    yield from facts(advice, more, factor, (answer, why), _left(document))
    yield from outside_facts(document)
    yield from _methods(document["rows"])
    tried = f"Of {document['points']:,} settings, {document['simulated']} were simulated"
    if document.get("calls"):
        tried += f", with {units.plural(document['calls'], 'single call')}"
    if document.get("unfit"):
        tried += f"; {document['unfit']:,} do not fit"
    if document["complete"] and not advice["reason"]:
        answer, more = "none of these", f"{tried}; bounds exclude the others."
    elif document["stopped"]:
        answer, more = "not known", f"{tried}; others were not looked at."
    else:
        less = 1 - document["bound_us"] / (time or inf)
        answer, more = (
            "perhaps",
            tried
            + (
                f"; no setting of these is more than {less:.1%} faster."
                if less <= _TELLING
                else "."
            ),
        )
    if document.get("calls"):
        more += " Bounds from calls of nearby sizes are tested, not proven."
    if document.get("hurried"):
        more += f" Others are left out for time {BY_BUDGET}."
    yield Fact("Is there anything better?", answer, more)
    yield Fact(
        "How fast can it get?", f"{us(document['floor_us'])} at best",
        "No setting takes less: links alone need that long, or compute.",
    )  # fmt: skip
    worth = document.get("worth_measuring") or ["nothing"]
    yield Fact("What is worth measuring?", "; ".join(worth), "These may be as fast as the best." * (
        worth != ["nothing"]))  # fmt: skip


def _methods(rows: Iterable[Written]) -> Iterator[Fact]:
    """The best of each method, where there are several."""
    words = [
        f"{METHODS.get(name, name)} {us(row['time_us'])}"
        f"{' (does not fit)' * (row['fits'] is False)}"
        for name, (row, *_) in group_by(rows, lambda row: row["method"]).items()
    ]
    if len(words) > 1:
        yield Fact("And the other methods?", ", ".join(words))


def _settings(document: Written, advice: Written) -> Section:
    files = document["files"].items()
    blocks: list[Block] = [Code(text.rstrip("\n"), name) for name, text in files]
    rows, table = document["rows"], _settings_table(document)
    marks = [mark(advice, row["setting"]) for row in rows]
    about, most = "The fastest of the simulated settings", _SETTINGS_SHOWN
    blocks.append(differences(about, table, rows, "setting", "time_us", marks, most))
    return Section("choice", "What to set", tuple(blocks))


def _settings_table(document: Written) -> Table:
    """The simulated settings, which are the advised one and the default, and who does not fit."""
    best, named = document["best"]["time_us"], ("advised", "default")
    rows = [
        {
            **row,
            "slower": row["time_us"] / best - 1 if best else 0.0,
            "note": ", ".join(
                [name for name in named if document[name]["setting"] == row["setting"]]
                + ["does not fit"] * (row["fits"] is False)
            ),
        }
        for row in document["rows"]
    ]
    return _ROW.table(rows)


def _curve(document: Written) -> Iterable[Section]:
    curve = document.get("curve") or []
    if len(curve) > 1:
        about = "The time over the size of buckets, all else as in the best setting."
        chart = Chart(about, _curve_facet(document), _PLACE.table(curve))
        yield Section("bucket-sizes", "Over bucket sizes", (chart,))


def list_problems(proofs: Iterable[Proof]) -> list[str]:
    return [f"{title_of(p)} on {where(p)}: {problem}" for p in proofs for problem in p.problems]


def title_of(proof: Proof) -> str:
    return (
        proof.strategy
        if proof.collective == "all_reduce"
        else f"{proof.collective} {proof.strategy}"
    )


def where(proof: Proof) -> str:
    return units.plural(proof.ranks, "GPU") + (
        f" in {units.plural(proof.tasks, 'machine')}" if proof.tasks > 1 else ""
    )


def list_unproved(proofs: Iterable[Proof]) -> dict[str, str]:
    """By title, why nothing of it could be proved."""
    return {
        title: mine[-1].refused[-1]
        for title, mine in group_by(proofs, title_of).items()
        if not any(p.plans for p in mine)
    }


VERIFY = Document(
    "verify",
    "`simreduce verify --json`: whether plans sum right.",
    Key(
        "checked", COUNT, "Plans that were proved or found wrong.",
        lambda proofs: sum(p.plans for p in proofs),
    ),
    Key(
        "refused",
        list_of(
            Record(
                "refused",
                "A strategy that takes some of its cases only.",
                Key("collective", TEXT, "What is done."),
                Key("strategy", TEXT, "The strategy."),
                Key("ranks", COUNT, "GPUs."),
                Key("tasks", COUNT, "Machines."),
                Key("plans", COUNT, "Plans that were checked."),
                Key("refused", COUNT, "Cases that it refuses.", lambda proof: len(proof.refused)),
                Key("reason", TEXT, "Why, of the last one.", lambda proof: proof.refused[-1]),
            )
        ),
        "Strategies that refuse cases.",
        lambda proofs: [p for p in proofs if p.refused],
    ),
    Key(
        "unproved",
        list_of(
            Record(
                "unproved",
                "A strategy that takes none of its cases.",
                Key(
                    "strategy", TEXT, "The collective, unless it is an all-reduce; the strategy.",
                    "0",
                ),
                Key("reason", TEXT, "Why, of the last one.", "1"),
            )
        ),
        "Strategies of which nothing could be proved.",
        lambda proofs: list_unproved(proofs).items(),
    ),
    Key("problems", list_of(TEXT), "Everything that is wrong.", list_problems),
    Key(
        "complete", FLAG, "With `--all`: false if the command was stopped.", lambda _: ABSENT,
        optional=True,
    ),
)  # fmt: skip
"""Of proofs."""

FILES = Document(
    "verify-files",
    "`simreduce verify FILE --json`: whether algorithms of MSCCL leave the right sums.",
    Key("simreduce", TEXT, "The version of simreduce.", lambda _: __version__),
    Key(
        "files",
        list_of(
            Record(
                "file",
                "An algorithm.",
                Key("file", TEXT, "Its file.", "0"),
                Key("name", TEXT, "Its name.", "1.name"),
                Key("collective", TEXT, "What is done.", "1.collective"),
                Key("gpus", COUNT, "GPUs.", lambda file: len(file[1].gpus)),
                Key("chunks", COUNT, "Chunks of the tensor.", "1.chunks"),
                Key("channels", COUNT, "Channels.", "1.channels"),
                Key("steps", COUNT, "Steps of all thread blocks.", "1.steps"),
                Key("proved", FLAG, "Whether it is right.", lambda file: not file[2]),
                Key("problems", list_of(TEXT), "Everything that is wrong.", "2"),
            )
        ),
        "Every file.",
        ITSELF,
    ),
    command="verify",
)
"""Of files, each with its algorithm and its problems."""
