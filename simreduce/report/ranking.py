"""`simreduce run`: the ranking as text, as a document, and its page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from simreduce import units
from simreduce.files import tables
from simreduce.files.formats.documents import (
    COUNT,
    FLAG,
    GB_PER_SECOND,
    ITSELF,
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
    Code,
    Fact,
    Page,
    Paragraph,
    Rows,
    Section,
    Written,
    bars,
    colour_words,
)
from simreduce.report.headings import (
    DISTURBED,
    FACTOR_KEYS,
    HEAD_KEYS,
    HURRIED_KEY,
    MEASURED_KEYS,
    MOVED_KEY,
    REFUSED,
    REFUSED_KEY,
    best_rows,
    header,
    nccl_sureness,
    refused_lines,
    same_plan_lines,
    untried_lines,
)
from simreduce.report.limits import help_section, limit_fact, nic_fact, path_section
from simreduce.report.sections import (
    calibration_section,
    copy_section,
    instead_words,
    machine_section,
    meaning,
    measured_section,
    measured_words,
    names_block,
    repeat_section,
    timeline_section,
    us,
)
from simreduce.study.advice import (
    Advice,
    Option,
    advise_ranking,
    faster,
    faster_row,
    lasting_us,
    moved_lines,
    recommend,
    told_apart,
    took,
)
from simreduce.study.tune.bench import algbw, busbw
from simreduce.study.tune.rank import FIRST, Candidate, Ranking


def ranking_table(ranking: Ranking, most: int | None = None) -> str:
    """One row per strategy, best first, or the best `most` of them; the recommendation below."""
    lines = [
        *_header(ranking),
        *best_rows(ranking_rows(ranking), most),
        "",
        *_recommendation(ranking),
        *_bounded_lines(ranking),
        *same_plan_lines(c.names for c in ranking.candidates),
        *_upstream(ranking),
        *refused_lines(ranking.refused),
        *untried_lines(ranking.untried, hurried=ranking.hurried),
    ]
    return "\n".join(lines)


def ranking_rows(ranking: Ranking) -> Table:
    """A row per strategy, best first; then those that were not simulated to their end."""
    document = RUN.write(ranking)
    return CANDIDATE.table([*document["candidates"], *document["bounded"]])


def preview_lines(outcomes: Iterable[tuple[int, object]]) -> list[str]:
    """The first rows of a ranking that is not complete, by its outcomes until now."""
    rows = sorted((c for _, c in outcomes if isinstance(c, Candidate)), key=lambda c: c.seconds)
    return [f"{c.seconds * 1e3:12.3f} ms  {c.strategy.text}" for c in rows[:FIRST]]


def _bounded_lines(ranking: Ranking) -> list[str]:
    """Says what a time behind >= is."""
    if not ranking.bounded:
        return []
    what = f"Rows with >= ({len(ranking.bounded)}) say what a strategy takes at least"
    return [
        "",
        f"{what}: none is among the first {FIRST} or",
        "recommended (--all simulates them to the end).",
    ]


def _header(ranking: Ranking) -> list[str]:
    s, w = ranking.scenario, ranking.scenario.workload
    chained = f", each of {s.repeat} chained in one step" if s.repeat > 1 else ""
    size = f"{units.plural(w.elements, 'element')}, {units.format_size(w.nbytes)}"
    gradients = units.plural(len(w.gradients), "gradient")
    facts = [("workload", f"{w.name}: {gradients}, {size}")]
    sureness = nccl_sureness(s, [c.strategy for c in ranking.candidates])
    return header(ranking, facts, f"time of one all-reduce{chained}", sureness)


def _recommendation(ranking: Ranking) -> list[str]:
    found = recommend(ranking.candidates)
    if found is None:
        return ["No strategy has a plan that is proven right."]
    best, foreign, bound = found.best, found.foreign, found.bound
    lines = [f"Recommended: {best.strategy.text}, {units.format_duration(best.seconds)}"]
    lines += [f"  {text}" for text in moved_lines(best.moved)]
    if tied := found.tied:
        lines.append(f"  ({tied.strategy.text} takes {took(tied.seconds, tied.moved)})")
    if foreign:
        lines.append(
            f"  ({foreign.strategy.text} is faster, {units.format_duration(foreign.seconds)}, "
            "but no setting of TensorFlow runs it)"
        )
    if bound:
        lines.append(
            f"  ({bound.strategy.text} takes {units.format_duration(bound.seconds)} and the "
            "dispatch of its copies, which this calibration does not know)"
        )

    def instead(target: str) -> tuple[Candidate, str] | None:
        if (other := ranking.fastest_by(target)) is None:
            return None
        time = took(other.seconds, other.moved)
        return other, f"it; its fastest is {other.strategy.text}, {time}"

    return lines + how_lines(best, instead)


def how_lines(best: Candidate, instead: Callable[[str], tuple[Candidate, str] | None]) -> list[str]:
    """The settings of a candidate for each target.

    For a target without a setting for it, `instead` gives another candidate, and says why.
    """
    return [
        *_how(best, instead, "tf_cnn_benchmarks", "tf_cnn_benchmarks", "flags"),
        *_how(best, instead, "tensorflow", "TensorFlow", "call"),
    ]


def _how(
    best: Candidate,
    instead: Callable[[str], tuple[Candidate, str] | None],
    target: str,
    title: str,
    what: str,
) -> list[str]:
    if own := getattr(best.settings, target):
        return [f"  {title:17}  {own}"]
    found = instead(target)
    if found is None:
        return [f"  {title:17}  has no {what} for any of them"]
    other, why = found
    return [
        f"  {title:17}  has no {what} for {why}:",
        f"  {'':17}  {getattr(other.settings, target)}",
    ]


def _upstream(ranking: Ranking) -> list[str]:
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


def _algbw(row: Candidate, ranking: Ranking) -> float:
    return algbw(ranking.scenario.workload.nbytes, row.seconds)


def _busbw(row: Candidate, ranking: Ranking) -> float:
    scenario = ranking.scenario
    return busbw(scenario.workload.nbytes, row.seconds, len(scenario.setup.layout))


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
        "algbw_gb_per_s", GB_PER_SECOND, "Size over time.", get_in=_algbw,
        column=Column("algbw", "(GB/s)", spare=3, on="text"),
    ),
    Key(
        "busbw_gb_per_s", GB_PER_SECOND, "Algbw times 2(n-1)/n, as nccl-tests has it.",
        get_in=_busbw, column=Column("busbw", "(GB/s)", spare=1),
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


def _fastest_by(target: str) -> Callable[[Ranking], str | None]:
    """The strategy to use with a target."""

    def text(ranking: Ranking) -> str | None:
        found = ranking.fastest_by(target)
        return found.strategy.text if found else None

    return text


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
    Key(
        "recommended_by_target",
        Record(
            "recommended_by_target",
            "The recommended strategy of each system; null without one.",
            Key(
                "tf_cnn_benchmarks", or_null(TEXT), "Of tf_cnn_benchmarks.",
                _fastest_by("tf_cnn_benchmarks"),
            ),
            Key("tensorflow", or_null(TEXT), "Of TensorFlow.", _fastest_by("tensorflow")),
        ),
        "The fastest proven strategy that each system has a setting for.",
        ITSELF,
    ),
    Key(
        "recommended", or_null(TEXT), "The strategy to use; null if no plan is proven.",
        "recommended.strategy.text",
    ),
    *FACTOR_KEYS,
    Key(
        "complete", FLAG, "False if the command was stopped and strategies are untried.",
        lambda ranking: not ranking.untried,
    ),
    HURRIED_KEY,
    *MEASURED_KEYS,
)  # fmt: skip
ranking_document = RUN.write
"""The document of a `Ranking`."""

_SHOWN = 12
_TARGETS = {"tf_cnn_benchmarks": "tf_cnn_benchmarks", "tensorflow": "TensorFlow"}


def run_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce run --json`."""
    rows, (best, advice) = document["candidates"], advise_ranking(document) or (None, None)
    what = f"all-reduce of {document['workload']} ({units.format_size(document['size_bytes'])})"
    gpus = units.plural(document["ranks"], "GPU")
    today = advice.today[0].name.partition("+")[0] if advice and advice.today else ""
    beside = replace(beside, factor=advice.factor if advice else None)
    sections = [
        *_choice_section(document, beside, best, advice),
        *copy_section(beside.exports, str(best and best["strategy"]), _times(rows)),
        *measured_section(document),
        *machine_section(beside),
        *path_section(beside),
        *help_section(beside),
        *timeline_section(beside, f"What every device, link and lane does during one {what}."),
        *sizes_section(beside, today=today),
        *calibration_section(beside, document),
        *repeat_section(beside, document),
    ]
    answer = "No strategy has a plan that is proven right, so there is nothing to recommend."
    if document.get("measured"):
        answer = "No measured step was right, so there is nothing to recommend."
    sure, facts = "", tuple[Fact, ...]()
    if best and advice:
        answer = advice.sentence(f"Run {advice.best.name}", f"one {what} takes {advice.best.took}")
        sure = f"{advice.caution(document['calibration'])} {measured_words(document)}".strip()
        facts = tuple(_facts(document, beside, best, advice))
    return Page(
        title=f"{document['workload']} on {document['topology']}: which reduction?",
        about=f"{what[0].upper()}{what[1:]} on {document['topology']}, {gpus}. "
        f"{units.plural(len(rows), 'plan')} simulated and proved.",
        answer=answer,
        sure=sure,
        facts=facts,
        sections=tuple(sections),
    )


def _facts(document: Written, beside: Attachments, best: Written, advice: Advice) -> Iterable[Fact]:
    rate = f"{Option.of(best, '').took}, {best['busbw_gb_per_s']:.1f} GB/s of bus bandwidth."
    rate = f"{meaning(best['strategy'])} {rate}".strip()
    if document.get("measured"):
        rate += " Chosen by what was measured."
    elif fastest := faster_row(document, best):
        rate += f" {fastest['strategy']} takes {Option.of(fastest, '').took}"
        tied = lasting_us(fastest) > lasting_us(best)
        rate += "." if tied else ", but no setting of TensorFlow and no default of a framework "
        rate += "" if tied else "runs it."
    others = [instead_words(each, _times(document["candidates"])) for each in beside.exports
              if each.instead and each.name == "pytorch"]  # fmt: skip
    rate = " ".join([rate, *(f"{words}." for words in others)])
    yield Fact("What should I run?", best["strategy"], f"{rate}{_typed(document, best)}")
    yield Fact("How much faster than today?", *advice.worth())
    yield Fact("How sure is that?", *advice.sure())
    yield Fact("What limits it?", *limit_fact(beside))
    yield Fact("What would a second NIC buy?", *nic_fact(beside))


def _times(rows: Iterable[Written]) -> dict[str, str]:
    """How long each strategy takes, in words."""
    return {name["strategy"]: us(row["time_us"]) for row in rows for name in (row, *row["also"])}


def _typed(document: Written, best: Written) -> str:
    """A sentence if there is something to type."""
    some = any(best["settings"].get(target) for target in _TARGETS)
    known = document.get("recommended_by_target") or {}
    return " What to type is below." if some or any(known.values()) else ""


def _choice_section(
    document: Written, beside: Attachments, best: Written | None, advice: Advice | None
) -> Iterable[Section]:
    rows = document["candidates"]
    blocks: list[Block] = []
    if best is not None:
        blocks += _type_blocks(document, beside, best)
    if advice and advice.today:
        blocks.append(_against(document, advice))
    if rows:
        blocks.append(_ranking(rows, best, advice))
        blocks += names_block(row["strategy"] for row in rows)
    if document.get("refused"):
        caption = f"{len(document['refused'])} strategies are not possible here"
        blocks.append(Rows(caption, REFUSED.table(document["refused"]), folded=True))
    if blocks:
        yield Section("choice", "What to run", tuple(blocks))


def _type_blocks(document: Written, beside: Attachments, best: Written) -> Iterable[Block]:
    """TensorFlow's settings for the best, or for the fastest that it has a setting for.

    Settings that the section of all systems shows are left out.
    """
    known = {each.title for each in beside.exports}
    by_name = {row["strategy"]: row for row in document["candidates"]}
    for row in document["candidates"]:
        by_name |= {each["strategy"]: {**row, **each} for each in row["also"]}
    for target, title in _TARGETS.items():
        name = best["strategy"]
        if not best["settings"].get(target):
            name = document["recommended_by_target"].get(target)
        if title in known and (name == best["strategy"] or name not in by_name):
            continue
        if name is None or name not in by_name:
            yield Paragraph(f"{title} has no setting for any of these strategies.")
            continue
        row = by_name[name]
        about = f"{title}: {name}"
        if name != best["strategy"]:
            about = f"{title} has no setting for it; its fastest is {name}, {us(row['time_us'])}"
        yield Code(str(row["settings"][target]), about)


def _against(document: Written, advice: Advice) -> Rows:
    columns = tables.columns(
        "what runs today|strategy|time|recommended is|more than the error",
        units="||(ms)||",
        left="what runs today|strategy|more than the error",
    )
    words = {None: "not known", True: "yes", False: "no"}
    rows = []
    for each in advice.today:
        cells = "the same", ""
        if each.name != advice.best.name:
            apart = told_apart(advice.best, each, document)
            cells = faster(advice.best.lasting_us, each.lasting_us), words[apart]
        rows.append((each.who, each.name, f"{each.time_us / 1e3:.3f}", *cells))
    return Rows(
        "Beside the defaults of frameworks: what runs today unless somebody changed it",
        Table(columns, tuple(rows)),
    )


def _ranking(rows: Sequence[Written], best: Written | None, advice: Advice | None) -> Chart:
    today = {option.name for option in advice.today[:1]} if advice else set()
    first = [
        row
        for place, row in enumerate(rows)
        if place < _SHOWN or row is best or row["strategy"] in today
    ]
    marks = [advice.mark(row["strategy"]) if advice else 0 for row in first]
    more = f" {len(first)} of {units.plural(len(rows), 'plan')}; the table has all."
    words = (
        f"Time of one all-reduce by strategy. {colour_words(marks)} The tick is what no run of the "
        f"plan can take less than.{more * (len(first) < len(rows))}"
    )
    table = CANDIDATE.table(rows, on="html")
    return bars(words, table, first, "strategy", "time_us", marks, "floor_us")
