"""`simreduce run`: the ranking as text, as a document, and its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from simreduce import units
from simreduce.files.formats.documents import (
    COUNT,
    FLAG,
    GB_PER_SECOND,
    MICROSECONDS,
    PLACE,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    or_null,
)
from simreduce.files.tables import Column, Table
from simreduce.report.bench import sizes_section
from simreduce.report.blocks import (
    Attachments,
    Block,
    Chart,
    Fact,
    Page,
    Rows,
    Section,
    Written,
    bars,
    colour_words,
)
from simreduce.report.explain import help_section, limit_fact, nic_fact, path_section
from simreduce.report.headings import (
    ADVICE_KEY,
    DISTURBED,
    FACTOR_KEYS,
    HEAD_KEYS,
    HURRIED_KEY,
    MEASURED_KEYS,
    MOVED_KEY,
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
    page_title,
    sentence,
    untried_lines,
)
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
from simreduce.study.tune.rank import FIRST, Candidate, StrategyRanking
from simreduce.study.tune.sizes import algbw, busbw


def ranking_table(
    ranking: StrategyRanking, most: int | None = None, *, details: bool = True
) -> str:
    """One row per strategy, best first, or the best `most` of them; the advice comes last.

    Without `details`, other names of plans are counted, and refusals of strategies that the
    scenario does not name.
    """
    lines = [
        *_header(ranking),
        *best_rows(ranking_rows(ranking), most),
        *_bounded_lines(ranking),
        *name_lines(ranking, _upstream(ranking), details=details),
        *untried_lines(ranking),
        "",
        *_recommendation(ranking),
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
    rate = f"{us(best['time_us'])}, {best['busbw_gb_per_s']:.1f} GB/s of bus bandwidth."
    rate = f"{found['strategy']}: {meaning(best['strategy'])} {rate}".strip()
    if document.get("measured"):
        rate += " Chosen by what was measured."
    right = [row for row in document["candidates"] if not row["wrong"]]
    first = min(right, key=lasting_us, default=best)
    settable = min(each["fastest_time_us"] for each in document["advice"])
    if not document.get("measured") and lasting_us(first) < settable:
        how = call_words(strategy_of(first["strategy"]))
        rate += f" {first['strategy']} takes {us(first['time_us'])}, "
        rate += f"and {how}." if how else "but no framework has a setting for it."
    yield from facts(found, f"{rate} What to type is below.", document["factor"])
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
    today = found["today_strategy"] if found else ""
    first = [
        row
        for place, row in enumerate(rows)
        if place < _SHOWN or row is best or row["strategy"] == today
    ]
    marks = [1 if row is best else mark(found, row["strategy"]) for row in first]
    more = f" {len(first)} of {units.plural(len(rows), 'plan')}; the table has all."
    words = (
        f"Time of one all-reduce by strategy. {colour_words(marks)} The tick is what no run of the "
        f"plan can take less than.{more * (len(first) < len(rows))}"
    )
    table = CANDIDATE.table(rows, on="html")
    return bars(words, table, first, "strategy", "time_us", marks, "floor_us")
