"""Parts that reports on a scenario share: headers, lines below a table, keys of documents.

Among them is the advice of `study.advice`: a record of documents, sentences, facts and lines. A
document's `advice` has a record for each framework, the one of the headline first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from simreduce import units
from simreduce.files import tables
from simreduce.files.formats.documents import (
    ABSENT,
    ANYTHING,
    BYTES,
    COUNT,
    FLAG,
    MICROSECONDS,
    RATIO,
    TEXT,
    Key,
    Record,
    list_of,
    map_of,
    number_in,
    one_of,
    or_null,
)
from simreduce.files.tables import Column, Table, percent
from simreduce.report.blocks import BEST, TODAY, Fact, Rows, Written, first_rows
from simreduce.study.advice import Advised, runs_nccl, sureness_of
from simreduce.study.ranking import RankedRows, by_reason, lasting_us, moved_lines, took
from simreduce.study.tune.whatif import library_warning
from simreduce.workload import ACTIVATION_SOURCES

if TYPE_CHECKING:
    from simreduce.planners.strategy import Strategy
    from simreduce.study.scenario import Scenario
    from simreduce.study.tune.rank import StrategyRanking
    from simreduce.study.tune.search.search import Tuned
    from simreduce.study.tune.steps import MethodRanking


def runtimes_text(runtimes: Iterable[str]) -> str:
    """The runtime of all rows, or where to look for that of each."""
    names = sorted(set(runtimes))
    return one_runtime(names, f"by strategy ({' or '.join(names)})" if names else "by strategy")


def one_runtime(runtimes: Iterable[str], several: str) -> str:
    """The runtime of all rows, or what stands for `several`."""
    names = set(runtimes)
    return names.pop() if len(names) == 1 else several


def best_rows(table: Table, most: int | None, *, indent: int = 0) -> list[str]:
    """The lines of a ranking's table, or of its best `most` rows and how to see the others."""
    return first_rows(table, most, "--all shows them", indent)


def equal_paths_text(choice: str) -> str:
    """Which of equal paths transfers take, and where to see what that does."""
    return choice and f"{choice} (equal_cost; simreduce explain tries the others)"


def fitted_on_text(machine: str) -> str:
    """Says that constants of NCCL are those of another machine."""
    return machine and f"constants of NCCL were fitted on {machine}, not on this machine"


def page_title(document: Mapping[str, Any], otherwise: str) -> str:
    """The title that the scenario of a document has, or else another."""
    title = str(document.get("title", ""))
    return otherwise if title in ("", document.get("scenario")) else title


def record_lines(scenario: Scenario) -> list[str]:
    """What the record of a job does not say, a line each; none of other scenarios."""
    finest, step = scenario.workload.finest, scenario.step
    known = (
        f"gradients are its buckets: none below {units.exact_size(finest)} can be tried "
        "unless --workload has finer ones"
    )
    return [known] * (finest > 0) + list(step.job.profile.notes if step else ())


def header(
    found: StrategyRanking | MethodRanking | Tuned,
    facts: Iterable[tuple[str, str]],
    what: str,
    warning: str = "",
) -> list[str]:
    """The header of a report: `facts` about the question, and `what` it predicts."""
    scenario = found.scenario
    at = scenario.setup
    ranks = units.plural(len(at.layout), "rank")
    cost = units.format_duration(at.call_cost)
    faithful, known = ", faithful to upstream" * scenario.faithful, record_lines(scenario)
    return tables.header(
        scenario.title,
        [
            ("topology", f"{at.topology.name}: {at.topology.title}, {ranks}, {at.topology.digest}"),
            ("equal paths", equal_paths_text(at.equal_paths)),
            *facts,
            *zip(["record", *[""] * len(known)], known, strict=False),
            ("runtime", f"{runtimes_text(found.runtimes)}, {what}{faithful}"),
            ("nccl", at.nccl.text),
            ("calibration", tables.label(at.calibration.name, at.calibration.title)),
            ("", fitted_on_text(at.fitted_on)),
            ("", found.nominal),
            ("", warning),
            ("warning", library_warning(at, found.runtimes)),
            ("call cost", f"{cost} of the framework for each call of NCCL" * bool(at.call_cost)),
            ("disturbed", at.disturbed),
        ],
    )


def nccl_sureness(
    scenario: Scenario,
    strategies: Iterable[Strategy | None],
    collectives: Sequence[str] = ("all_reduce",),
) -> str:
    """How far off NCCL's rows may be, in words; "" without such rows, or if that is not known."""
    if not any(each and each.reduced_by_nccl for each in strategies):
        return ""
    largest = max((gradient.nbytes for gradient in scenario.workload.gradients), default=0)
    found = [scenario.setup.interval(largest, 1.0, collective) for collective in collectives]
    ends = [each for each in found if each]
    if not ends:
        return ""
    low = math.floor(min(low for low, _ in ends) * 20) / 20
    high = math.ceil(max(high for _, high in ends) * 20) / 20
    return (
        f"nccl rows: with 80 % it takes {low:.2f} to {high:.2f} times as long (simreduce accuracy)"
    )


OUTSIDE_KEY = Key(
    "outside", map_of(RATIO), "Samples a second over those of the step with what changes its "
    "numerics or its machine: gradients in half precision, twice the samples between reductions, "
    "one more NIC. Empty where at most 5 % of the step is exposed.",
)  # fmt: skip


def outside_words(document: Mapping[str, Any]) -> str:
    """What would be gained with other numerics or another machine; "" if that was not tried."""
    found = document.get("outside", {})
    gains = [f"{name} {ratio:.2f} x" for name, ratio in found.items() if ratio >= 1.01]
    shown = ", ".join(gains) or f"{' or '.join(found)} would gain less than 1 %"
    words = f"  outside of what keeps numerics and the machine, samples/s: {shown}"
    return words if found else ""


def outside_facts(document: Written) -> Iterator[Fact]:
    """The same as a card of a page."""
    if found := document.get("outside"):
        most = f"up to {max(found.values()):.2f} times the samples/s"
        yield Fact("And with other numerics?", most, f"{opening(outside_words(document).strip())}.")


PERCENTILES_ABOUT = (
    "What the best step takes at most in 50, 90 and 99 % of all draws of GPUs, whose times differ"
    " by `spread`; empty if they do not."
)


def percentile_words(found: Mapping[str, float]) -> str:
    """How long a step takes on unlucky draws of GPUs, in microseconds; "" if they do not differ."""
    shown = ", ".join(f"{name} {time / 1e3:.1f} ms" for name, time in found.items())
    return shown and f"by the draw of GPUs, all of which wait for the slowest: {shown}"


def same_plan_lines(rows: Iterable[Sequence[str]]) -> list[str]:
    """The other names of each row, if any row has some."""
    lines: list[str] = []
    for name, *others in rows:
        if others:
            lines += wrap(
                f"{name} = {', '.join(others)}", tables.page_width(100),
                initial_indent="  ", subsequent_indent="    ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return ["", "The same plan under other names:", *lines] if lines else []


def refused_lines(refused: Sequence[tuple[str, str]]) -> list[str]:
    """The strategies that the machine refuses, and why: each reason once."""
    count = len({name for name, _ in refused})
    lines = [f"  {line}" for line in by_reason(refused, brief=True)]
    return ["", f"Not possible here ({count}):", *lines] if lines else []


def name_lines(
    ranking: StrategyRanking | MethodRanking,
    own: Iterable[str],
    more: Sequence[str] = (),
    *,
    details: bool,
) -> list[str]:
    """Other names of rows, lines of the ranking's `own`, and what the machine refuses.

    Without `details` these are counted beside `more`, but for refusals of strategies that the
    scenario names.
    """
    refused = refused_lines(ranking.refused)
    if details:
        return [*same_plan_lines(row.names for row in ranking.candidates), *own, *refused]
    count = sum(1 for row in ranking.candidates if row.also)
    words = [*more, *[f"{units.plural(count, 'plan')} under several names"] * bool(count)]
    if refused and not ranking.scenario.strategies:
        many = units.plural(len(ranking.refused), "strategy", "strategies")
        words, refused = [*words, f"{many} not possible here"], []
    return [*refused, *(["", f"{', '.join(words)}: --details shows them"] if words else [])]


def untried_lines(ranking: RankedRows[Any, Any], *, ordered: bool = True) -> list[str]:
    """The line of a ranking that Ctrl-C ended, or a budget of time; `ordered` if those that promise
    most are first.
    """
    others = units.plural(ranking.untried, "other")
    if ranking.hurried:
        promise = f" that {units.noun(ranking.untried, 'promises', 'promise')} least" * ordered
        return ["", f"left out for time: {others}{promise} {BY_BUDGET}"]
    return [] if ranking.complete else ["", f"stopped with {others} untried"]


BY_BUDGET = "(--budget; how many depends on this machine's speed)"
"""What stands behind what a budget of time leaves out."""

HURRIED_KEY = Key(
    "hurried",
    FLAG,
    "True if a budget ended it. What a budget of time (--budget) leaves out depends on the speed "
    "of the machine that computed it. A budget of work, the default of simreduce report, leaves "
    "out the same on every machine.",
)


def factor_keys(scenario: Scenario) -> dict[str, float | None]:
    """80 % of the times of NCCL for such a workload are within `factor` of what is predicted, and
    of ratios of two by other algorithms within `ratio_factor`; None if nothing is known of errors.
    """
    sure = sureness_of(scenario, [gradient.nbytes for gradient in scenario.workload.gradients])
    return {name: getattr(sure, name, None) for name in ("factor", "ratio_factor")}


TOPOLOGY_KEYS = (
    Key("topology", TEXT, "The name of the machine."),
    Key("topology_digest", TEXT, "Names the machine's content: equal machines have equal digests."),
)
EQUAL_PATHS_KEY = Key(
    "equal_paths", TEXT,
    "Which of equal paths through a network transfers take: `split` over all, `hashed` to one of "
    "them, or the `first`, and what flows that are held do to others (`congestion`); empty where "
    "there is one path and they do nothing.",
)  # fmt: skip
MOVED_KEY = Key(
    "moved_us", MICROSECONDS,
    "The time where every start moves by up to 0.1 % of it, if that is more than 5 % off: copies "
    "then tie in queues. Missing also where it is not tried: by NCCL, of folded machines, under "
    "faults or jitter, above 131,072 transfers.",
    lambda found: ABSENT if found.moved is None else found.moved, optional=True,
    column=Column("if starts move", "(ms)", keep="known"),
)  # fmt: skip
NCCL_KEY = Key(
    "nccl_settings", TEXT,
    'NCCL\'s settings where they are not its defaults, as `--nccl` takes them; "" if they are.',
)  # fmt: skip
NOMINAL_KEY = Key(
    "nominal", TEXT, "Which times rest on no measurement; missing if none are known to.",
    optional=True,
)  # fmt: skip
WARNING_KEY = Key(
    "warning", TEXT, "What the library is slow at here and what to set, or what makes its times "
    "less sure; missing where there is nothing to say.",
    lambda found: library_warning(found.scenario.setup, found.runtimes) or ABSENT, optional=True,
)  # fmt: skip
CALIBRATION_KEY = Key("calibration", TEXT, "The constants that times were predicted with.")
DISTURBANCE_KEY = Key("disturbance", TEXT, 'What goes wrong, in words; "" for nothing.')
DISTURBED = replace(DISTURBANCE_KEY, get="scenario.setup.disturbed")
HEAD_KEYS = (
    Key("scenario", TEXT, "The scenario's name or file.", "scenario.name"),
    Key("title", TEXT, "Its title, or its name.", "scenario.title"),
    replace(TOPOLOGY_KEYS[0], get="scenario.setup.topology.name"),
    replace(TOPOLOGY_KEYS[1], get="scenario.setup.topology.digest"),
    replace(EQUAL_PATHS_KEY, get="scenario.setup.equal_paths"),
    Key("workload", TEXT, "The name of what is reduced.", "scenario.workload.name"),
    Key("size_bytes", BYTES, "All gradients.", "scenario.workload.nbytes"),
    Key(
        "record", list_of(TEXT), "What the record of a job does not say; missing of other jobs.",
        lambda found: record_lines(found.scenario) or ABSENT, optional=True,
    ),
    Key("ranks", COUNT, "GPUs that take part.", lambda found: len(found.scenario.setup.layout)),
    Key(
        "runtime", TEXT, "The runtime of all strategies, or `by_strategy` if they differ.",
        lambda found: one_runtime(found.runtimes, found.scenario.setup.runtime.name),
    ),
    replace(NCCL_KEY, get="scenario.setup.nccl.text"),
    replace(NOMINAL_KEY, get=lambda found: found.nominal or ABSENT),
    WARNING_KEY,
    replace(CALIBRATION_KEY, get="scenario.setup.calibration.name"),
    Key(
        "call_cost_us", MICROSECONDS,
        "What the framework adds to each call of NCCL, or of a kernel such as `oneshot`.",
        "scenario.setup.call_cost",
    ),
)  # fmt: skip
"""First keys of a document of a ranking, or of what `tune` found."""
ACTIVATIONS_KEY = Key(
    "activations",
    one_of(*ACTIVATION_SOURCES),
    "Whether the memory of activations was `given`, was `estimated` from the architecture, or is "
    "`not_counted`.",
    "scenario.step.activations.source",
)
REFUSED = Record(
    "refused",
    "A strategy that the machine refuses.",
    Key("strategy", TEXT, "The strategy.", "0", column=Column("strategy", left=True)),
    Key(
        "reason", TEXT, "Why it is not possible here.", "1",
        column=Column("why it is not possible here", left=True),
    ),
)  # fmt: skip
REFUSED_KEY = Key(
    "refused", list_of(REFUSED), "Strategies that are not possible on this machine.",
)  # fmt: skip
FACTOR_KEYS = (
    Key(
        "factor",
        or_null(RATIO),
        "80 % of NCCL's times for such a workload are within this factor of the prediction; null "
        "if nothing is known of errors.",
        lambda found: factor_keys(found.scenario)["factor"],
    ),
    Key(
        "ratio_factor",
        or_null(RATIO),
        "80 % of the ratios of NCCL's times by two algorithms or protocols are within this factor "
        "of the prediction; null if nothing is known of errors. Errors of one are correlated: "
        "`error_us` counts that.",
        lambda found: factor_keys(found.scenario)["ratio_factor"],
    ),
)


LINK = Record(
    "link",
    "A link or a memory.",
    Key("name", TEXT, "Its name.", column=Column("link or memory", left=True)),
    Key(
        "share", RATIO, "The part of the time in which it is busy.",
        column=Column("busy", show=percent(1)),
    ),
    Key(
        "bytes", number_in("B"), "What it carries; not whole where routes are split.", "nbytes",
        column=Column("carries", show=lambda nbytes: units.format_size(round(nbytes))),
    ),
)  # fmt: skip


def error_cell(row: Mapping[str, Any]) -> str:
    """How far off the prediction is, as a part of what was measured."""
    predicted, time = row["predicted_time_us"], row["time_us"]
    known = not row.get("faults") and predicted is not None and time
    return f"{predicted / time - 1.0:+.0%}" if known else ""


MEASURED = Record(
    "measured",
    "A strategy, timed on real devices.",
    Key("place", COUNT, "Its place by prediction, from 1.", column=Column("predicted", "(place)")),
    Key("strategy", TEXT, "The strategy.", column=Column("strategy", left=True)),
    Key(
        "predicted_time_us", or_null(MICROSECONDS),
        "Predicted for the measured devices; null without a prediction.",
        column=Column("here", "(ms)", missing=""),
    ),
    Key("time_us", MICROSECONDS, "The median.", column=Column("measured", "(ms)", missing="")),
    Key(
        "low_us", MICROSECONDS, "The lower end of the median's 95 % interval.",
        column=Column("from", "(ms)", missing=""),
    ),
    Key(
        "high_us", MICROSECONDS, "The upper end of that interval.",
        column=Column("to", "(ms)", missing=""),
    ),
    Key(
        "place_measured", or_null(COUNT), "Its place by measured time, from 1; null with faults.",
        column=Column("error", cell=error_cell),
    ),
    Key(
        "faults", list_of(TEXT), "What was wrong with the results.",
        column=Column("faults", left=True, show="; ".join),
    ),
)  # fmt: skip
MEASURED_KEY = Key(
    "measured",
    or_null(list_of(MEASURED)),
    "The strategies that `--measure` timed; null if it failed.",
    optional=True,
)
MEASURED_KEYS = (
    MEASURED_KEY,
    Key(
        "measured_on",
        Record(
            "measured_on",
            "What measured, as `provenance` of `validate`.",
            Key(
                "settings",
                map_of(ANYTHING),
                "Settings of the measurement and of its devices.",
                optional=True,
            ),
            others=ANYTHING,
        ),
        "Hardware, versions and settings.",
        optional=True,
    ),
    Key(
        "not_told_apart",
        list_of(TEXT),
        "The fastest measured strategy, and those whose intervals overlap with its own.",
        optional=True,
    ),
)


ADVICE = Record(
    "advice",
    "What to do for a framework.",
    Key("framework", TEXT, 'As `simreduce export` takes it; "" without one.'),
    Key("title", TEXT, "As its makers write it.", column=Column("framework", left=True)),
    Key("change", FLAG, "Whether to change what runs today.", "changes"),
    Key("state", one_of("change", "keep", "cannot_run"), "Whether to change what runs today, to "
        "keep it as nothing that was tried is worth a change, or that nothing of it can run."),
    Key("do", TEXT, "What to do, in its words.", column=Column("what to do", left=True)),
    Key("strategy", TEXT, "The strategy, the method before it, or the setting.", "option.name"),
    Key("time_us", MICROSECONDS, "The time with it.", "option.seconds",
        column=Column("time then", "(ms)")),
    Key("fits", FLAG, "Whether it fits the memory of a GPU, as far as that is known.",
        lambda found: not found.option.misfit),
    Key("today_fits", FLAG, "Whether what runs today does.",
        lambda found: found.today is None or not found.today.misfit),
    Key("today", TEXT, 'What runs today, in its words; "" if that was not simulated.',
        "today_words"),
    Key("today_strategy", or_null(TEXT), "The strategy of that.", "today.name"),
    Key("today_time_us", or_null(MICROSECONDS), "The time of that.", "today.seconds",
        column=Column("time today", "(ms)", missing="")),
    Key("fastest", TEXT, "The fastest that it has a setting for, in its words.", "fastest_words",
        column=Column("fastest of its settings", left=True)),
    Key("fastest_strategy", TEXT, "The strategy of that.", "fastest.name"),
    Key("fastest_time_us", MICROSECONDS, "The time of that.", "fastest.seconds",
        column=Column("time with it", "(ms)")),
    Key("reason", TEXT, 'Why the fastest is not what to do; "" if it is.'),
    Key("error_us", or_null(MICROSECONDS),
        "80 % of differences from today are within this of the predicted one: of what changes, or "
        "else of the fastest; null if that is not known.", "error"),
    Key("caveat", TEXT, 'What its time does not show; "" for nothing.'),
    Key("more", TEXT, 'What `simreduce tune` tries besides what this compares; "" for nothing.'),
)  # fmt: skip  # fmt: skip
ADVICE_KEY = Key(
    "advice", list_of(ADVICE),
    "What to do for each framework that could run it, that of the machine's time first.",
)  # fmt: skip


def advice_lines(advice: Iterable[Advised], what: str) -> list[str]:
    """The advice for the first framework, and a line for each of the others."""
    advice = [*advice]
    first, *others = [ADVICE.write(each, None) for each in advice]
    lines = [f"Recommended: {sentence(first, what)}"]
    lines += [f"  {text}" for text in moved_lines(advice[0].option.moved)]
    return [*lines, *(f"  {each['title']:17}  {sentence(each, '')}" for each in others)]


def more_lines(advice: Sequence[Advised]) -> list[str]:
    """Says that the first advice is of what was ranked, and what tries more."""
    return [f"  {_more(ADVICE.write(each, None))}" for each in advice[:1] if each.more]


def _more(found: Written) -> str:
    command = f"simreduce tune FILE --target {found['framework']}"
    return f"of the settings ranked here; `{command}` also tries {found['more']}"


def sentence(found: Written, what: str = "") -> str:
    """What to do, how long `what` takes then, and what it is worth.

    Where the fastest is not worth it, what it would save, and why that is not enough.
    """
    time = f"{what} takes {took_of(found)}" if what else took_of(found)
    time += "" if found["fits"] else ", and it needs more memory than a GPU has"
    time += _beside(found) if found["change"] and found["fits"] else ""
    text = f"{found['do']}: {time}{', ' * bool(found['caveat'])}{found['caveat']}."
    if found["reason"]:
        gain = units.format_share(_gain(found))
        text += f" {opening(found['fastest'])} would save {gain}, {found['reason']}."
    return text


def opening(words: str) -> str:
    """The words as a sentence begins; what is typed keeps its case."""
    return words if "=" in words.partition(" ")[0] else f"{words[:1].upper()}{words[1:]}"


def _gain(found: Written) -> float:
    """The part of the time that the fastest would save."""
    return 1 - found["fastest_time_us"] / found["time_us"] if found["time_us"] else 0.0


def _beside(found: Written) -> str:
    """How much faster than today, if that is known."""
    today = found["today_time_us"]
    if today is None:
        return ""
    if not found["today_fits"]:
        return f"; {found['today']} need more memory than a GPU has"
    ratio = faster_than(lasting_us(found), today)
    return f", {ratio} {found['today']} ({units.format_duration(today * 1e-6)})"


def took_of(found: Written) -> str:
    """The time of a row in words, and what it becomes where starts are moved, if that tells."""
    moved = found.get("moved_us")
    return took(found["time_us"] * 1e-6, moved and moved * 1e-6)


def facts(
    found: Written,
    more: str,
    factor: float | None,
    sureness: tuple[str, str] | None = None,
    left: str = "",
) -> Iterator[Fact]:
    """What to do, what it is worth, and how sure that is: the first cards of a page.

    The `sureness` is that of predictions within `factor`, unless it is given; `left` says what
    was not tried by what was stopped.
    """
    if found["more"]:
        more = f"{more} That is {_more(found)}."
    yield Fact("What should I do?", found["do"], more)
    yield Fact("What is it worth?", *_worth(found, left))
    answer, why = sureness or sure(factor if runs_nccl(found["strategy"]) else None)
    if found["error_us"]:
        error = units.format_duration(found["error_us"] * 1e-6)
        why = f"{why} The difference from today is off by less than {error} with 80%."
    yield Fact("How sure is that?", answer, why)


def _worth(found: Written, left: str) -> tuple[str, str]:
    """How much faster it is than what runs today, in a few words and a sentence."""
    from simreduce.study.scenario import WORTH  # noqa: PLC0415 - `bench` does without scenarios

    if not found["fits"]:
        return "nothing fits", "A GPU has too little memory for all that was tried."
    if found["today_time_us"] is None:
        return "not compared", "What runs today was not simulated."
    if not found["today_fits"]:
        return "it fits", f"{found['today']} need more memory than a GPU has."
    if found["change"]:
        now = f"Today: {found['today']}, {units.format_duration(found['today_time_us'] * 1e-6)}"
        now += f"{', ' * bool(found['caveat'])}{found['caveat']}."
        return faster(lasting_us(found), found["today_time_us"]), now
    if found["fastest_strategy"] == found["strategy"]:
        if left:
            return "nothing faster is known", f"{opening(left)}."
        return "it is the fastest", "Nothing that was tried takes less."
    gain = units.format_share(_gain(found))
    small = _gain(found) < WORTH
    answer = "nothing to gain" if small else f"perhaps {gain}, not surely"
    return answer, f"{opening(found['fastest'])} would save {gain}, {found['reason']}."


def sure(factor: float | None) -> tuple[str, str]:
    """How sure predictions are, in a few words and a sentence."""
    if factor is None:
        return "not known", "There are no published timings to compare these predictions with."
    return (
        f"within a factor of {factor:.2f}",
        "80% of published times are that near to predictions.",
    )


def untried(document: Written) -> str:
    """Says that a ranking was stopped; "" if it was not."""
    return "others are untried" * (not document["complete"])


def caution(factor: float | None, calibration: str, what: str = "times") -> str:
    """How sure it is, in a sentence or two; `what` is predicted with that error."""
    if factor is None:
        return (
            "How sure: no published timings say how far off these predictions are. They rest on"
            f" the calibration {calibration}; measure before you spend money on them."
        )
    return f"How sure: 80% of measured {what} are within a factor of {factor:.2f} of predictions."


def mark(found: Written | None, *names: str) -> int:
    """The mark of a bar with these names: what to run, what runs today, both or neither."""
    if found is None:
        return 0
    return BEST * (found["strategy"] in names) + TODAY * (found["today_strategy"] in names)


def frameworks_table(advice: Sequence[Written]) -> Rows:
    """A row for each framework."""
    return Rows("What to do with each framework", ADVICE.table(advice))


def faster(best: float, other: float) -> str:
    """`1.17 times as fast`, `0.1% faster`, `as fast`, `0.1% slower`."""
    ratio = other / best if best else 1.0
    if abs(ratio - 1) >= 0.1:
        return f"{ratio:.2f} times as fast"
    if abs(ratio - 1) < 5e-4:
        return "as fast"
    return f"{ratio - 1:.1%} faster" if ratio > 1 else f"{1 - ratio:.1%} slower"


def faster_than(best: float, other: float) -> str:
    """`1.17 times as fast as`, `0.1% faster than`."""
    words = faster(best, other)
    return f"{words} as" if words.endswith("fast") else f"{words} than"
