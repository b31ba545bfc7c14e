"""`simreduce run`: the ranking as a table for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from simreduce import tables, units
from simreduce.formats.documents import (
    COUNT,
    FLAG,
    GB_PER_SECOND,
    MICROSECONDS,
    RATIO,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
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
from simreduce.report.measured import MEASURED_KEYS
from simreduce.report.sure import nccl_sureness
from simreduce.tables import Table
from simreduce.tune.busbw import algbw, busbw
from simreduce.tune.rank import FIRST, Bounded, Candidate, Ranking, Row

_COLUMNS = tables.columns(
    "#|strategy|runtime|time|algbw|busbw|transfers|busiest link|busiest lane|#wrong|chosen by",
    units="|||(ms)|(GB/s)|(GB/s)||(share of the time)|(share of the time)||",
    left="strategy|runtime|busiest link|busiest lane|chosen by",
    spare="chosen by|busiest lane|transfers|busiest link|algbw|runtime|busbw",
)


def ranking_table(ranking: Ranking, most: int | None = None) -> str:
    """One row per strategy, best first, or the best `most` of them; the recommendation below."""
    names = [
        (c.strategy.text, [other.strategy.text for other in c.also]) for c in ranking.candidates
    ]
    lines = [
        *_header(ranking),
        *best_rows(ranking_rows(ranking), most),
        "",
        *_recommendation(ranking),
        *_bounded_lines(ranking),
        *same_plan_lines(names),
        *_upstream(ranking),
        *refused_lines(ranking.refused),
        *untried_lines(ranking.untried),
    ]
    return "\n".join(lines)


def ranking_rows(ranking: Ranking) -> Table:
    """A row per strategy, best first; then those that were not simulated to their end."""
    rows = [_row(place, c, ranking) for place, c in enumerate(ranking.candidates, 1)]
    rows += [_bounded_row(c) for c in ranking.bounded]
    return with_runtimes(Table(_COLUMNS, tuple(rows)), _runtimes(ranking))


def preview_lines(found: Iterable[Row]) -> list[str]:
    """The first rows of a ranking that is not complete."""
    rows = sorted((c for c in found if isinstance(c, Candidate)), key=lambda c: c.seconds)
    return [f"{c.seconds * 1e3:12.3f} ms  {c.strategy.text}" for c in rows[:FIRST]]


def _runtimes(ranking: Ranking) -> list[str]:
    return [*(c.runtime for c in ranking.candidates), *(c.runtime for c in ranking.bounded)]


def _bounded_row(c: Bounded) -> tuple[str, ...]:
    known = "-", c.strategy.text, c.runtime, f">={c.seconds * 1e3:.3f}"
    return (*known, *("-",) * (len(_COLUMNS) - len(known) - 1), "")


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


def _row(place: int, c: Candidate, ranking: Ranking) -> tuple[str, ...]:
    nbytes, n = ranking.scenario.workload.nbytes, len(ranking.scenario.setup.layout)
    return (
        str(place),
        c.strategy.text,
        c.runtime,
        f"{c.seconds * 1e3:.3f}",
        f"{algbw(nbytes, c.seconds) / 1e9:.2f}",
        f"{busbw(nbytes, c.seconds, n) / 1e9:.2f}",
        str(c.transfers),
        _share(c.link, c.link_share),
        _share(c.lane, c.lane_share),
        str(c.wrong),
        ", ".join(c.chosen_by),
    )


def _share(name: str, share: float) -> str:
    return f"{name} {share:.0%}" if name else "-"


def _header(ranking: Ranking) -> list[str]:
    s, w = ranking.scenario, ranking.scenario.workload
    chained = f", each of {s.repeat} chained in one step" if s.repeat > 1 else ""
    size = f"{units.plural(w.elements, 'element')}, {units.format_size(w.nbytes)}"
    gradients = units.plural(len(w.gradients), "gradient")
    facts = [("workload", f"{w.name}: {gradients}, {size}")]
    what = f"time of one all-reduce{chained}"
    return header(s, facts, _runtimes(ranking), what, _sureness(ranking))


def _sureness(ranking: Ranking) -> str:
    """How far off NCCL's rows may be, if there are any."""
    by_nccl = any("nccl" in r.algorithm for c in ranking.candidates for r in c.strategy.ranges)
    scenario = ranking.scenario
    largest = max((gradient.nbytes for gradient in scenario.workload.gradients), default=0)
    return nccl_sureness(scenario.setup, largest) if by_nccl else ""


def _recommendation(ranking: Ranking) -> list[str]:
    best = ranking.recommended
    if best is None:
        return ["No strategy has a plan that is proven right."]
    fastest = next(c for c in ranking.candidates if not c.wrong)
    lines = [f"Recommended: {best.strategy.text}, {units.format_duration(best.seconds)}"]
    if best.runnable and not fastest.runnable:
        lines.append(
            f"  ({fastest.strategy.text} is faster, {units.format_duration(fastest.seconds)}, "
            "but no setting of TensorFlow runs it)"
        )
    proven = [c for c in ranking.candidates if not c.wrong]
    bound = next(iter([c for c in proven if c.runnable] or proven))
    if bound is not best:
        lines.append(
            f"  ({bound.strategy.text} takes {units.format_duration(bound.seconds)} and the "
            "dispatch of its copies, which this calibration does not know)"
        )

    def instead(target: str) -> tuple[Candidate, str] | None:
        if (other := ranking.fastest_by(target)) is None:
            return None
        time = units.format_duration(other.seconds)
        return other, f"it; its fastest is {other.strategy.text}, {time}"

    return lines + how_lines(best, instead)


def how_lines(best: Candidate, instead: Callable[[str], tuple[Candidate, str] | None]) -> list[str]:
    """What to type for a candidate, for each target.

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


_STRATEGY = (
    Key("strategy", TEXT, "The strategy, as simreduce reads it."),
    Key("spec", TEXT, "Its algorithms without the packing."),
    Key("packing", TEXT, "How it packs gradients."),
)
_SETTINGS = Record(
    "settings",
    "Text to type; null where that system has no setting for the strategy.",
    Key("tf_cnn_benchmarks", or_null(TEXT), "Flags of tf_cnn_benchmarks."),
    Key("tensorflow", or_null(TEXT), "A call of TensorFlow."),
)
_CHOICE = (
    Key("chosen_by", list_of(TEXT), "Rules of TensorFlow that would choose this plan here."),
    Key("upstream", TEXT, 'What upstream does instead under this name; "" for the same.'),
    Key("settings", _SETTINGS, "How to run it."),
)
RUN = Document(
    "run",
    "`simreduce run --json`: every strategy for a workload on a machine, fastest first.",
    *HEAD_KEYS,
    Key("faithful", FLAG, "Whether strategies do what upstream does, quirks included."),
    DISTURBANCE_KEY,
    Key(
        "candidates",
        list_of(
            Record(
                "candidate",
                "The prediction for one plan.",
                Key("place", COUNT, "Its place, from 1 for the fastest."),
                *_STRATEGY,
                Key("runtime", TEXT, "The system that runs it."),
                Key("time_us", MICROSECONDS, "One all-reduce of the whole workload."),
                Key("floor_us", MICROSECONDS, "The least time that any schedule takes."),
                Key("algbw_gb_per_s", GB_PER_SECOND, "Size over time."),
                Key("busbw_gb_per_s", GB_PER_SECOND, "Algbw times 2(n-1)/n, as nccl-tests has it."),
                Key("transfers", COUNT, "Copies between devices."),
                Key("wrong", COUNT, "Elements whose sum is wrong; 0 for a plan that is proven."),
                Key("bottleneck", TEXT, 'The busiest link; "" if nothing moves.'),
                Key("bottleneck_share", RATIO, "The part of the time in which it is busy."),
                Key(
                    "busiest_lane",
                    TEXT,
                    'The busiest lane, a queue of the runtime or of the hardware; "" for none.',
                ),
                Key("busiest_lane_share", RATIO, "The part of the time in which it is busy."),
                *_CHOICE,
                Key(
                    "also",
                    list_of(Record("also", "Another name of the same plan.", *_STRATEGY, *_CHOICE)),
                    "Other strategies that make the same plan.",
                ),
            )
        ),
        "Strategies that were simulated to the end, one for each plan, fastest first.",
    ),
    Key(
        "bounded",
        list_of(
            Record(
                "bounded",
                "A strategy that was not simulated to its end.",
                *_STRATEGY,
                Key("runtime", TEXT, "The system that runs it."),
                Key("at_least_us", MICROSECONDS, "What it takes at least."),
                Key("reason", TEXT, "Why it takes as long."),
            )
        ),
        "Strategies that cannot be among the first, by what they take at least.",
    ),
    REFUSED_KEY,
    Key(
        "recommended_by_target",
        Record(
            "recommended_by_target",
            "The recommended strategy of each system; null without one.",
            Key("tf_cnn_benchmarks", or_null(TEXT), "Of tf_cnn_benchmarks."),
            Key("tensorflow", or_null(TEXT), "Of TensorFlow."),
        ),
        "The fastest proven strategy that each system has a setting for.",
    ),
    Key("recommended", or_null(TEXT), "The strategy to use; null if no plan is proven."),
    *FACTOR_KEYS,
    Key("complete", FLAG, "False if the command was stopped and strategies are untried."),
    *MEASURED_KEYS,
)


def ranking_document(ranking: Ranking) -> dict[str, Any]:
    """The document of `--json`: `RUN`."""
    s = ranking.scenario
    nbytes, n = s.workload.nbytes, len(s.setup.layout)
    return {
        **document_head(RUN, s, _runtimes(ranking)),
        "faithful": s.faithful,
        "disturbance": s.setup.disturbance.text,
        "candidates": [
            {
                "place": place,
                **_strategy_keys(c),
                "runtime": c.runtime,
                "time_us": c.seconds * 1e6,
                "floor_us": c.floor_seconds * 1e6,
                "algbw_gb_per_s": algbw(nbytes, c.seconds) / 1e9,
                "busbw_gb_per_s": busbw(nbytes, c.seconds, n) / 1e9,
                "transfers": c.transfers,
                "wrong": c.wrong,
                "bottleneck": c.link,
                "bottleneck_share": c.link_share,
                "busiest_lane": c.lane,
                "busiest_lane_share": c.lane_share,
                **_choice_keys(c),
                "also": [{**_strategy_keys(other), **_choice_keys(other)} for other in c.also],
            }
            for place, c in enumerate(ranking.candidates, 1)
        ],
        "bounded": [
            {
                **_strategy_keys(c),
                "runtime": c.runtime,
                "at_least_us": c.seconds * 1e6,
                "reason": c.reason,
            }
            for c in ranking.bounded
        ],
        "refused": refused_keys(ranking.refused),
        "recommended_by_target": {
            target: fastest.strategy.text if (fastest := ranking.fastest_by(target)) else None
            for target in ("tf_cnn_benchmarks", "tensorflow")
        },
        "recommended": ranking.recommended.strategy.text if ranking.recommended else None,
        **factor_keys(s),
        "complete": not ranking.untried,
    }


def _strategy_keys(c: Row) -> dict[str, Any]:
    return {"strategy": c.strategy.text, "spec": c.strategy.spec, "packing": c.strategy.packing}


def _choice_keys(c: Candidate) -> dict[str, Any]:
    return {
        "chosen_by": list(c.chosen_by),
        "upstream": c.upstream,
        "settings": asdict(c.settings),
    }
