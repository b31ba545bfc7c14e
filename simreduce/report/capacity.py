"""`simreduce capacity`: the choice, the options, what binds and when the choice changes, as a
document, as a report for terminals and pages, and as a plot.

`simreduce prices`: a price list, and those that are shipped, as documents and as text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from simreduce import units
from simreduce.errors import InputError
from simreduce.files import tables
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    ITSELF,
    PER_SECOND,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    keys_of,
    list_of,
    map_of,
    number_in,
    one_of,
    or_null,
    positive,
)
from simreduce.files.tables import Column, Table, percent
from simreduce.report.blocks import (
    Written,
)
from simreduce.report.headings import HURRIED_KEY, opening
from simreduce.report.plots import Facet, Plot, PlotPoint, PlotSeries
from simreduce.report.plots.axes import Axis
from simreduce.study.capacity.answer import (
    CapacityAnswer,
    RankedOptions,
    parts,
)
from simreduce.study.capacity.choose import (
    COPY,
    COST,
    HOURLY,
    MILLION,
    OBJECTIVES,
    TIME,
    CapacityTarget,
    Offer,
)
from simreduce.study.capacity.options import product
from simreduce.study.capacity.price_list import HOUR, PriceList, format_period
from simreduce.study.sweep import MESH
from simreduce.topology.loader import MOST_TRIED
from simreduce.units import format_amount
from simreduce.workload import ACTIVATION_SOURCES

_MINIMISED = {
    HOURLY: "price per hour",
    TIME: "time of the run",
    COPY: "price per hour and copy",
}
_NONE_MEETS = "none meets the target"
MONEY = number_in("currency")


def _part(name: str, about: str, **column: Any) -> Key:
    """A part of an option's configuration."""
    shown = {"left": True, **column}
    return Key(name, TEXT, about, f"candidate.key.{name}", column=Column(name, **shown))


def _finite(get: Callable[[Offer], float]) -> Callable[[Offer], float | None]:
    return lambda offer: found if math.isfinite(found := get(offer)) else None


def _of_run(get: Callable[[Offer], float]) -> Callable[[Offer, CapacityAnswer], float | None]:
    """A figure of the run; None where the question names none."""
    found = _finite(get)
    return lambda offer, answer: found(offer) if answer.question.target.samples else None


def _tokens(offer: Offer, answer: CapacityAnswer) -> float | None:
    """Tokens a second; None where those of a sample are not known."""
    rate, tokens = offer.candidate.rate, answer.question.target.tokens
    return rate * tokens if tokens and math.isfinite(rate) else None


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


def _of(record: Record, names: str) -> list[Key]:
    """The keys of a record that have these names."""
    return [key for key in record.keys if key.name in names.split()]


_STANDING = Key("standing", TEXT, "Whether it is the choice or on the frontier.", written=False,
    column=Column("", left=True))  # fmt: skip
_MONEY, _PRICE = "(money)", "(money/h)"
"""Units of columns until the currency is known."""
OFFER = Record(
    "offer", "A configuration at its price.",
    _STANDING,
    Key("option", TEXT, "What it is, in one line, in the words of the file.",
        "candidate.key.label"),
    Key("configuration", TEXT, "What it is in plain words, what all options share left out.",
        get_in=lambda offer, answer: answer.plain(offer.candidate.key)),
    Key("pay", one_of("rent", "buy"), "Whether its machine has a price per time or of the piece.",
        get_in=lambda offer, answer: answer.verb(offer.candidate.key),
        column=Column("", left=True, keep="varied")),
    _part("name", "The name of the option in the file.", keep="varied"),
    _part("machine", "The machine.", show=product),
    Key("nodes", COUNT, "How many.", "candidate.nodes", column=Column("nodes")),
    _part("network", 'What joins them; "" for one machine.', keep="known", spare=4),
    _part("method", "The method of the step.", keep="varied"),
    _part("strategy", "The strategy.", keep="known"),
    _part("batch", "Samples per GPU.", keep="varied", left=False),
    Key("mesh", or_null(TEXT), "The fastest mesh that fits, with what goes with it; null of other"
        " steps.", lambda offer: offer.candidate.row.chosen
        if offer.candidate.row.method == MESH else None,
        column=Column("mesh", left=True, keep="known", spare=8, cell=lambda offer:
            f"{offer['mesh'] or ''}{' (first of many)' * offer.get('first_mesh', False)}")),
    Key("first_mesh", FLAG, "Whether that is the first of many meshes, as the command ended before"
        " the others: the best step takes at most as long.", "candidate.first"),
    Key("gpus", COUNT, "All of its GPUs.", "candidate.devices", column=Column("GPUs", spare=6)),
    Key("step_time_s", SECONDS, "A step with its stragglers.", "candidate.step",
        column=Column("step", "(ms)", spare=3, show=_milliseconds)),
    Key("step_low_s", or_null(SECONDS), "The lower end of the simulated step's 80 % interval.",
        "candidate.row.low"),
    Key("step_high_s", or_null(SECONDS), "The upper end; null if nothing is known of errors.",
        "candidate.row.high", null_as="step_low_s"),
    Key("simulated_s", SECONDS, "A step without stragglers.", "candidate.simulated"),
    Key("compute_s", SECONDS, "The compute of a step.", "candidate.compute"),
    Key("exposed_s", SECONDS, "Communication that no compute hides.", "candidate.exposed",
        column=Column("exposed", "(ms)", spare=7, show=_milliseconds)),
    Key("efficiency", RATIO, "Its rate over that if nothing moved and none waited; at most 1.",
        "candidate.efficiency", column=Column("efficiency", spare=5, show=percent(1))),
    Key("goodput", RATIO, "The part of the time that makes progress.", "candidate.goodput",
        column=Column("goodput", show=percent(1), keep="known")),
    Key("samples_per_second", or_null(PER_SECOND),
        "Samples, lost time included; null for a step that takes no time.",
        _finite(lambda offer: offer.candidate.rate), column=Column(
            "samples/s", spare=2, show=format_amount, missing="unlimited", keep="known")),
    Key("tokens_per_second", or_null(PER_SECOND),
        "Tokens, lost time included; null where those of a sample are not known.", get_in=_tokens,
        column=Column("tokens/s", spare=2, show=format_amount, keep="known")),
    Key("hourly", MONEY, "The price of an hour.",
        column=Column("price", _PRICE, show=format_amount)),
    Key("per_million", or_null(MONEY),
        "A million of what is `counted`; null if it makes no progress.",
        _finite(lambda offer: offer.per_million),
        column=Column("1M", _MONEY, show=format_amount, missing="unlimited", keep="known")),
    Key("time_s", or_null(SECONDS), "The run; null without one, or if it makes no progress.",
        get_in=_of_run(lambda offer: offer.time),
        column=Column("time", show=format_period, missing="never", keep="known")),
    Key("cost", or_null(MONEY), "The run; null without one, or if it makes no progress.",
        get_in=_of_run(lambda offer: offer.cost),
        column=Column("cost", _MONEY, show=format_amount, missing="unlimited", keep="known")),
    Key("pays", map_of(RATIO), "How many units of each item of the price list it needs.",
        "candidate.quantities"),
    Key("needed_bytes", or_null(BYTES), "What a GPU holds at most; null of parameter servers.",
        "candidate.row.memory"),
    Key("activations", or_null(one_of(*ACTIVATION_SOURCES)),
        "Whether its activations were `given`, were `estimated`, or are `not_counted`.",
        "candidate.row.activations_source"),
    Key("bottleneck", TEXT, "The link or memory that transfers need for the longest.",
        lambda offer: offer.candidate.row.link or ""),
    Key("misses", list_of(TEXT), "The targets that it misses.",
        column=Column("misses", left=True, keep="known")),
    Key("on_frontier", FLAG, "Whether no option beats it in both cost and time.",
        get_in=lambda offer, answer: offer in answer.frontier),
    order="standing pay name machine nodes gpus network method strategy batch mesh",
)  # fmt: skip


def _amount(row: Written, value: float) -> str:
    """A value of an assumption, with its unit."""
    if row["unit"] == "s":
        return format_period(value)
    return f"x {value:.4g}" if row["unit"].startswith("times") else f"{value:.6g} {row['unit']}"


def _end(side: str, word: str, held: str, sign: int) -> Callable[[Written], str]:
    """Shows at which value the choice changes, or how far it is known to hold."""

    def show(row: Written) -> str:
        flip, inner = row[side], row.get(held)
        if flip is None:
            if row["within"] is None:
                return "never"
            factor = row["within"] ** sign if inner is None else inner / row["value"]
            return f"not {word} to x {factor:.3g}"
        at = _amount(row, flip["at"])
        if inner is not None:
            low, high = sorted((inner, flip["at"]))
            if high > low * (1.0 + 2.0 * row["tolerance"]):  # the search was stopped
                at = f"x {low:.4g} to {high:.4g}"
        return f"~{at}" if row["tolerance"] else at

    return show


def _becomes(flip: Written | None) -> str:
    """The choice beyond a value, with the name of the machine that other tables have."""
    if flip is None or not flip["becomes"]:
        return "" if flip is None else _NONE_MEETS
    count, _, words = flip["becomes"].partition(" x ")
    machine, comma, more = words.partition(",")
    return f"{count} x {product(machine)}{comma}{more}"


_FLIP = Record(
    "flip", "Where the choice changes.",
    Key("at", RATIO, "The value of the assumption, in its unit."),
    Key("becomes", or_null(TEXT), "The choice beyond it; null if none meets the target.",
        lambda flip: flip.becomes and flip.becomes.label),
)  # fmt: skip
ASSUMPTION = Record(
    "assumption", "An assumption, and how far it may be off.",
    Key("assumption", TEXT, "What is assumed.", "name", column=Column("assumption", left=True)),
    Key("value", RATIO, "Its value, in its unit.",
        column=Column("now", spare=1, cell=lambda row: _amount(row, row["value"]))),
    Key("nearest", RATIO, "How near its nearest change is, as a part of its value.",
        column=Column("nearest", show=percent(1), missing=""), written=False),
    Key("unit", TEXT, "The unit of the value."),
    Key("below", or_null(_FLIP), "The nearest change below; null for none.", "down", column=(
        Column("below", cell=_end("below", "down", "holds_down_to", -1)),
        Column("choice below", left=True, show=_becomes, missing=""),
    )),
    Key("above", or_null(_FLIP), "The nearest change above; null for none.", "up", column=(
        Column("above", cell=_end("above", "up", "holds_up_to", 1)),
        Column("choice above", left=True, show=_becomes, missing=""),
    )),
    Key("within", or_null(positive(RATIO)), "The factor that was tried; null for all values."),
    Key("tolerance", RATIO, "The width of where it changes, relatively; 0: exact."),
    Key("holds_down_to", or_null(RATIO),
        "The least value found with the same choice; null if that was not searched.",
        lambda assumption: assumption.holds and assumption.holds[0]),
    Key("holds_up_to", or_null(RATIO), "The greatest value found with the same choice, or null.",
        lambda assumption: assumption.holds and assumption.holds[1]),
    Key("complete", FLAG, "False if the search for its changes was ended early."),
)  # fmt: skip


def _end_cell(end: Written) -> str:
    return f"{units.plural(end['nodes'], 'node')} ({end['efficiency']:.1%})"


_END = Record(
    "end", "A number of nodes.",
    Key("nodes", COUNT, "That number."),
    Key("efficiency", RATIO, "The efficiency there."),
)  # fmt: skip
REACH = Record(
    "reach", "Up to how many nodes the target's efficiency holds.",
    Key("series", map_of(TEXT), "What the options share, all but the nodes.",
        lambda reach: {k: part for k, part in reach.series._asdict().items() if part},
        column=Column("options", left=True, show=lambda series: ", ".join(series.values()))),
    Key("up_to", or_null(_END), "The last that has it; null if none does.", "last",
        column=Column("up to", left=True, show=_end_cell, missing="never")),
    Key("below_at", or_null(_END), "The first that does not; null if all do.", "first_below",
        column=Column("below at", left=True, show=_end_cell, missing="")),
)  # fmt: skip
AT_RATE = Record(
    "at_rate", "The choice at a rate of computing. Its step is the longest possible one at a lower"
    " rate, and the shortest possible one at a higher rate.",
    Key("factor", RATIO, "That rate over the assumed one."),
    Key("flops_per_second", or_null(PER_SECOND), "FLOP/s of a GPU; null where GPUs differ.",
        "flops"),
    *keys_of("offer", *_of(OFFER, "step_time_s samples_per_second per_million time_s cost misses")),
)  # fmt: skip
ITEM = Record(
    "item", "A price.",
    Key("name", TEXT, "What is paid for.", column=Column("price", left=True)),
    Key("value", RATIO, "The price, in its unit.", column=Column("value", show="{:.10g}".format)),
    Key("unit", TEXT, "The unit, such as `USD/h`.", column=Column("unit", left=True)),
    Key("spread", TEXT, 'The time over which a piece is paid off; "" for a price per time.',
        column=Column("paid off over", left=True, keep="known")),
    Key("date", TEXT, 'When it was read; "" if the list does not say.',
        column=Column("of", left=True, keep="known")),
    Key("source", TEXT, 'Where it was published; "" if the list says so for all.',
        column=Column("source", left=True, keep="known")),
)  # fmt: skip
PRICE_LIST = Record(
    "prices", "A price list, or several that were joined.",
    Key("title", TEXT, "Its title."),
    Key("date", TEXT, "When its prices were read, from the first to the last."),
    Key("sources", list_of(TEXT), "Where they were published."),
    Key("items", list_of(ITEM), "Every price that counts.",
        lambda prices: prices.items.values()),
)  # fmt: skip


def _part_words(row: Written) -> str:
    """The part, and for which others it stands."""
    if not row["part"]:
        return "there is none"
    if row["kinds"] == 1:
        like = f", as any of {row['parts']}" if row["parts"] > 1 else ""
        return f"{row['part']}{like}"
    tried = min(row["kinds"], MOST_TRIED)
    return f"{row['part']}, the worst of {tried} tried of {row['parts']}"


def _target_words(row: Written) -> str:
    """Whether the target holds, or why the job cannot go on."""
    if row["reason"] or not row["part"]:
        return str(row["reason"])
    return "holds" if row["meets"] else f"misses {', '.join(row['misses'])}"


FAILURE = Record(
    "failure", "What is left of the choice while a part of it is not repaired.",
    Key("fails", TEXT, "The class of the part.", column=Column("fails", left=True)),
    Key("part", TEXT, 'The worst of its class that was simulated; "" for none.',
        column=Column("part", left=True, cell=_part_words)),
    Key("parts", COUNT, "How many parts the class has."),
    Key("kinds", COUNT, "How many of these differ by their links."),
    Key("left", or_null(RATIO), "What is left of the choice's samples a second: 0 where it cannot"
        " go on, null without such a part.", lambda failure: failure.left if failure.part else None,
        column=Column("of the rate", show=percent(1), missing="")),
    Key("samples_per_second", or_null(PER_SECOND), "Samples; null where it cannot go on.",
        lambda failure: failure.offer and failure.offer.candidate.rate,
        column=Column("samples/s", show=format_amount, missing="")),
    Key("meets", or_null(FLAG), "Whether the target still holds, if it stays so for all of the run;"
        " null without such a part.", lambda failure: failure.meets if failure.part else None),
    Key("misses", list_of(TEXT), "The targets that it misses.",
        lambda failure: failure.offer.misses if failure.offer else (),
        column=Column("target", left=True, cell=_target_words)),
    Key("reason", TEXT, 'Why the job cannot go on; "" if it can, or without such a part.'),
)  # fmt: skip
PART = Record(
    "part", "A part of the run.",
    Key("name", TEXT, "What takes the time.", column=Column("part", left=True)),
    Key("share", RATIO, "Its part of the time.", column=Column("of the time", show=percent(1))),
)  # fmt: skip
REFUSED = Record(
    "refused", "An option that is not possible.",
    Key("option", TEXT, "What it is.", lambda refused: refused[0],
        column=Column("option", left=True)),
    Key("reason", TEXT, "Why it is not possible.", lambda refused: refused[1],
        column=Column("why it is left out", left=True)),
)  # fmt: skip
TARGET = Record(
    "target", "What a configuration must meet; null where it need not.",
    Key("samples", or_null(RATIO), "Samples of the run; null without one."),
    Key("tokens_per_sample", or_null(COUNT), "Tokens of a sample; null if nobody says.",
        lambda target: target.tokens or None),
    Key("step_time_s", or_null(SECONDS), "The longest step.", "step_time",
        column=Column("step at most", keep="known", show=units.format_duration)),
    Key("efficiency", or_null(RATIO), "The least efficiency.",
        column=Column("efficiency at least", keep="known", show=percent(0))),
    Key("samples_per_second", or_null(PER_SECOND), "The least rate of samples.",
        column=Column("samples/s at least", keep="known", show=format_amount)),
    Key("tokens_per_second", or_null(PER_SECOND), "The least rate of tokens.",
        column=Column("tokens/s at least", keep="known", show=format_amount)),
    Key("cost_per_million_tokens", or_null(MONEY), "The highest cost of a million tokens.",
        column=Column("1M tokens at most", _MONEY, keep="known", show=format_amount)),
    Key("time_s", or_null(SECONDS), "The longest run.", "time",
        column=Column("time at most", keep="known", show=format_period)),
    Key("budget", or_null(MONEY), "The highest cost of the run.",
        column=Column("cost at most", _MONEY, keep="known", show=format_amount)),
    Key("hourly", or_null(MONEY), "The highest price of an hour.",
        column=Column("price at most", _PRICE, keep="known", show=format_amount)),
    Key("minimise", one_of(*OBJECTIVES), "What decides among those that meet it."),
)  # fmt: skip


COPIES_TARGET = Record(
    "target", "What a configuration must meet; null where it need not.",
    Key("slowdown", RATIO, "How many times as long as alone no job may take more than.",
        column=Column("slowdown at most", show="{:g}".format)),
    Key("copies", or_null(COUNT), "The least number of copies; null for one.",
        column=Column("copies at least", keep="known")),
    *_of(TARGET, "hourly"),
    Key(COPY, or_null(MONEY), "The highest price of an hour and copy.",
        column=Column("a copy at most", _PRICE, keep="known", show=format_amount)),
    Key("minimise", one_of(HOURLY, COPY), "What decides among those that meet it."),
)  # fmt: skip
COPIES_OFFER = Record(
    "offer", "A configuration at its price.",
    _STANDING,
    *_of(OFFER, "option configuration pay name machine nodes network gpus hourly pays"),
    Key("copies", COUNT, "Copies that fit, none slower than promised.", "candidate.copies",
        column=Column("copies")),
    Key("limit", TEXT, "Why no more fit.", "candidate.row.limit",
        column=Column("why no more", left=True)),
    Key("job", TEXT, "The job that loses most.", "candidate.row.job"),
    Key("alone_s", SECONDS, "A repetition of it, alone on these machines.", "candidate.row.alone",
        column=Column("alone", show=units.format_duration)),
    Key(COPY, or_null(MONEY), "The price of an hour over the copies; null if none fits.",
        lambda offer: offer.per_copy if math.isfinite(offer.per_copy) else None,
        column=Column("a copy", _PRICE, show=format_amount, missing="")),
    *_of(OFFER, "misses"),
    order="standing pay name machine nodes gpus network copies job alone_s hourly"
    f" {COPY} limit",
)  # fmt: skip
CAPACITY = Document(
    "capacity",
    "`simreduce capacity --json`: the cheapest machines that meet a target, and what that rests "
    "on.",
    Key("title", TEXT, "The title of the question.", "question.title"),
    Key("workload", TEXT, "The model.", "question.workload"),
    Key("topology", TEXT, 'The machine of the choice; "" without one.',
        lambda answer: answer.chosen.candidate.row.topology or "" if answer.chosen else ""),
    Key("topology_digest", TEXT, 'Names that machine\'s content; "" without a choice.',
        lambda answer: answer.chosen.candidate.row.topology_digest or "" if answer.chosen else ""),
    Key("currency", TEXT, "The currency of all prices.", "question.prices.currency"),
    Key("prices", PRICE_LIST, "The prices.", "question.prices"),
    Key("target", TARGET, "The target.", "question.target"),
    Key("counted", one_of("tokens", "samples"), "What a million is of: tokens where those of a"
        " sample are known.", lambda answer: _counted(answer.question.target)),
    Key("headline", TEXT, "The answer in a sentence.",
        lambda answer: choice_words(_headed(answer, OFFER))),
    Key("near_miss", TEXT, 'The option that nearly meets the target and is better than the choice,'
        ' or costs little more and is done much sooner, in a sentence; "" if none is.',
        lambda answer: near_words(answer)),  # noqa: PLW0108
    Key("paid_off", TEXT, 'How prices of what is bought became prices per hour; "" if all is'
        ' rented.'),
    Key("choice", or_null(OFFER), "The best that meets the target; null if none does.", "chosen"),
    Key("rivals", list_of(OFFER), "The best of each other machine that is not told apart from the"
        " choice, as kernels of one of both have constants that were fitted to other GPUs."),
    Key("kernels", list_of(TEXT), "Whose constants kernels have, where those of some options are of"
        " other GPUs."),
    Key("at_rates", list_of(AT_RATE), "The choice at other rates of computing, slowest first, and"
        " at that of the question; empty if times were measured."),
    Key("binds", list_of(PART), "What the time of the choice consists of, most first.",
        lambda answer: parts(answer.chosen.candidate) if answer.chosen else []),
    Key("options", list_of(OFFER), "Every option, in the order of the file.", "offers"),
    Key("frontier", list_of(TEXT), "Options that none beats in both cost and time.",
        lambda answer: [each.candidate.key.label for each in answer.frontier]),
    Key("efficiency_holds", list_of(REACH),
        "Where the target's efficiency ends; empty without one.", "reaches"),
    Key("sensitivity", list_of(ASSUMPTION), "When the choice changes.", "assumptions"),
    Key("sensitivity_asked", FLAG, "Whether changes of the choice were looked for.", "sensitivity"),
    Key("failures", list_of(FAILURE), "What is left of the choice when a part fails, by `fails`."),
    Key("refused", list_of(REFUSED), "Options without a time."),
    Key("waiting", list_of(TEXT), "Options that were not simulated, as the command ended before."),
    Key("notes", list_of(TEXT), "What a reader should know of prices and figures."),
    Key("complete", FLAG, "False if the command was stopped or changes were not all found."),
    HURRIED_KEY,
)  # fmt: skip
"""Of a `CapacityAnswer`."""
CAPACITY_JOBS = Document(
    "capacity-jobs",
    "`simreduce capacity --json` with `jobs`: the cheapest machines that hold copies of them.",
    *_of(CAPACITY, "title topology topology_digest currency prices paid_off"),
    Key("jobs", TEXT, "The file of jobs.", "question.workload"),
    Key("target", COPIES_TARGET, "The target.", "question.target"),
    Key("headline", TEXT, "The answer in a sentence.",
        lambda answer: choice_words(_headed(answer, COPIES_OFFER))),
    Key("choice", or_null(COPIES_OFFER), "The best that meets the target; null if none does.",
        "chosen"),
    Key("options", list_of(COPIES_OFFER), "Every option, in the order of the file.", "offers"),
    *_of(CAPACITY, "refused waiting notes"),
    Key("complete", FLAG, "False if the command was stopped."),
    HURRIED_KEY,
    command="capacity",
)  # fmt: skip
"""Of `RankedOptions` offers of copies."""


def options_plot(document: Written) -> Plot:
    """Cost against time of every option; of copies of jobs, the price of one against that of all.
    InputError if no option has a price.
    """
    facet = options_facet(document)
    if not facet.series:
        raise InputError("no configuration was evaluated: there is nothing to draw")
    known = any(point.low is not None for series in facet.series for point in series.points)
    asked = document["jobs"] if "jobs" in document else document["workload"]
    about = f"{asked}; numbers: nodes; filled: meets the target"
    notes = ["bars: 80 % interval of the predicted step"] * known
    return Plot(document["title"], about, [facet], notes=notes)


def options_facet(document: Written) -> Facet:
    """A line for options that differ in the number of nodes only, filled marks where they meet the
    target, a ring around the choice, and the frontier of cost and time.
    """
    rows, currency = document["options"], document["currency"]
    axes = Axis(f"price ({currency}/h)"), Axis(f"price of a copy ({currency}/h)", zero=False)
    if "counted" in document:
        samples, counted = document["target"]["samples"], document["counted"]
        many = f"{format_amount(samples or MILLION)} {'samples' if samples else counted}"
        time, cost = Axis(f"time of {many} (h)", log=True), f"cost of {many} ({currency})"
        axes = time, Axis(cost, zero=False)
    series: dict[str, list[PlotPoint]] = {}
    at: dict[str, PlotPoint] = {}
    for row, name in zip(rows, _series_names(rows), strict=True):
        x, y = _place(row, document)
        if x and y is not None:
            whole, ends = row.get("simulated_s"), (row.get("step_low_s"), row.get("step_high_s"))
            low, high = (x * end / whole if end and whole else None for end in ends)
            point = PlotPoint(x, y, low, high, str(row.get("nodes", "")), not row["misses"])
            series.setdefault(name, []).append(point)
            at[row["option"]] = PlotPoint(x, y)
    drawn = [
        PlotSeries(name, sorted(points, key=lambda p: p.x), interval="across")
        for name, points in series.items()
    ]
    best = [at[option] for option in document.get("frontier", ()) if option in at]
    if len(best) > 1:
        corners = [PlotPoint(b.x, a.y) for a, b in pairwise(best)]
        steps = sorted([*best, *corners], key=lambda p: (p.x, -p.y))
        drawn.append(PlotSeries("frontier", steps, "dotted", "", "ink"))
    if (choice := document["choice"]) and choice["option"] in at:
        drawn.append(PlotSeries("the choice", [at[choice["option"]]], "", "ring", "ink"))
    return Facet(*axes, drawn, height=380.0)


def _place(row: Written, document: Written) -> tuple[float | None, float | None]:
    """Hours and cost of the run or of a million of what is counted; of copies of jobs, prices."""
    if "counted" not in document:
        return row["hourly"], row[COPY]
    if document["target"]["samples"]:
        return row["time_s"] and row["time_s"] / HOUR, row["cost"]
    rate = row[f"{document['counted']}_per_second"]
    return rate and MILLION / rate / HOUR, row["per_million"]


def target_words(document: Written) -> str:
    """The limits of a target, and what decides among those that meet them."""
    target = document["target"]
    record = COPIES_TARGET if "slowdown" in target else TARGET
    table = _in_currency(record.table([target]), document)
    limits = [
        f"{column.name} {cell} {column.unit.strip('()')}".rstrip()
        for column, cell in zip(table.columns, table.rows[0], strict=True)
    ]
    return ", ".join(
        [*limits, f"the lowest {_MINIMISED.get(target['minimise'], 'cost of the run')}"]
    )


def _in_currency(table: Table, document: Written) -> Table:
    """The table with the currency of a document in its units."""
    heads = (replace(c, unit=c.unit.replace("money", document["currency"])) for c in table.columns)
    return replace(table, columns=tuple(heads))


def options_table(document: Written) -> Table:
    """Every option, those that meet the target first, the best of them at the top. Says which stand
    out, and leaves out figures that the question does not need.
    """
    options, target = document["options"], document["target"]
    standing = dict.fromkeys(document.get("frontier", ()), "frontier")
    standing |= {document["choice"]["option"]: "choice"} if document["choice"] else {}
    unneeded = {
        "per_million": target.get("samples") is not None,
        "samples_per_second": document.get("counted") == "tokens",
        "goodput": all(percent(1)(row.get("goodput", 1.0)) == "100.0%" for row in options),
    }
    hidden = dict.fromkeys((name for name, is_so in unneeded.items() if is_so), None)
    figure = _DECIDING.get(target["minimise"], target["minimise"])
    best_first = sorted(options, key=lambda row: (bool(row["misses"]), or_inf(row.get(figure))))
    rows = [{**row, "standing": standing.get(row["option"], ""), **hidden} for row in best_first]
    return _in_currency((OFFER if "counted" in document else COPIES_OFFER).table(rows), document)


_DECIDING = {COST: "per_million", TIME: "time_s"}
"""The figure of an option for what a target minimises, where it has another name."""


def or_inf(value: float | None) -> float:
    return math.inf if value is None else value


def money(document: Written, amount: float | None) -> str:
    """`393 USD`, `39.33 USD`, `0.00144 USD`: no cents of much, three digits of little."""
    if amount is None:
        return "no end"
    cents = amount < 1000 and round(amount, 2) != round(amount)
    text = f"{amount:.3g}" if abs(amount) < 1.0 else f"{amount:,.{2 if cents else 0}f}"
    return f"{text} {document['currency']}"


def _counted(target: CapacityTarget) -> str:
    return "tokens" if target.tokens else "samples"


def run_words(target: Written) -> list[str]:
    """`run of 300,000,000,000 tokens`; nothing where nobody names a run."""
    samples, tokens = target["samples"], target["tokens_per_sample"]
    if samples is None:
        return []
    many = f"run of {format_amount(samples)} samples"
    return [f"{many} ({format_amount(samples * tokens)} tokens)" if tokens else many]


def _headed(answer: RankedOptions[Any], record: Record) -> dict[str, Any]:
    """What a headline is made of."""
    return {
        "choice": answer.chosen and record.write(answer.chosen, answer),
        "waiting": answer.waiting,
        "currency": answer.question.prices.currency,
        "counted": _counted(answer.question.target),
        "slowdown": answer.question.target.slowdown,
        "rivals": [record.write(each, answer) for each in getattr(answer, "rivals", ())],
        "kernels": getattr(answer, "kernels", ()),
    }


def price_words(document: Written, offer: Written) -> str:
    """What a million costs, and the run if there is one: `0.0078 USD per 1M tokens`."""
    if offer["per_million"] is None:
        return "it makes no progress"
    words = f"{money(document, offer['per_million'])} per 1M {document['counted']}"
    if offer["time_s"] is None:
        return words
    time = format_period(offer["time_s"])
    return f"{words}; the run takes {time} and costs {money(document, offer['cost'])}"


def choice_words(document: Written) -> str:
    """What to rent or buy and what that costs, in plain words; that no option meets the target."""
    choice = document["choice"]
    if choice is None:
        some = "that was simulated " if document.get("waiting") else ""
        return f"No option {some}meets the target."
    what = f"{choice['pay'].capitalize()} {choice['configuration']}"
    hourly = f"{money(document, choice['hourly'])}/h"
    if "copies" in choice:
        copies = units.plural(choice["copies"], "copy", "copies")
        verb = "fits" if choice["copies"] == 1 else "fit"
        fits = f"{copies} {verb}, none of whose jobs takes more than {document['slowdown']:g} times"
        each = f"{money(document, choice[COPY])}/h"
        return f"{what}: {fits} as long as alone, {hourly}, {each} a copy; {choice['limit']}"
    what += f", and train with {choice['mesh']}" if choice.get("mesh") else ""
    words, told = f"{what}: {hourly}, {price_words(document, choice)}", "the order holds even so"
    if waiting := document.get("waiting"):
        left = units.plural(len(waiting), "option")
        words, told = f"{words}. {left} not simulated: one may be better", "the order is not known"
    if not document.get("kernels"):
        return words
    if document["rivals"]:
        names = (each["configuration"] for each in (choice, *document["rivals"]))
        told = f"not told apart: {' or '.join(names)}"
    return f"{words}. {opening('; '.join(document['kernels']))}; {told}"


_LITTLE_MORE, _MUCH_SOONER = 1.05, 0.8
"""Up to which part of the choice's cost what takes at most such a part of its time is named."""
_GAINS = {COST: "costs {} less", HOURLY: "costs {} less an hour", TIME: "is done {} sooner"}
_OF_TARGETS = {"step_time": "step time", "cost_per_million_tokens": "cost of a million tokens",
               "samples_per_second": "samples per second", "tokens_per_second": "tokens per second",
               "time": "time", "budget": "budget", "hourly": "price per hour"}  # fmt: skip


def near_words(answer: CapacityAnswer) -> str:
    """What nearly meets the target and is better than the choice, and by how much: `1 AWS
    p5.48xlarge misses the time by 4% and costs 20% less`. Else what costs little more and is done
    much sooner.
    """
    near, chosen, minimise = answer.near, answer.chosen, answer.question.target.minimise
    if near is None:
        return _sooner_words(answer, chosen) if chosen and minimise == COST else ""
    targets = " and the ".join(_OF_TARGETS.get(name, name) for name in near.misses)
    most = "at most " * (len(near.misses) > 1)
    words = f"{answer.plain(near.candidate.key)} misses the {targets} by {most}{near.short:.1%}"
    if chosen is None:
        return words
    better = 1 - near.values(minimise)[0] / chosen.values(minimise)[0]
    return f"{words} and {_GAINS[minimise].format(f'{better:.1%}')}"


def _sooner_words(answer: CapacityAnswer, chosen: Offer) -> str:
    little, soon = _LITTLE_MORE * chosen.cost, _MUCH_SOONER * chosen.time
    found = [o for o in answer.frontier if o.meets and o.cost <= little and o.time <= soon]
    if not found:
        return ""
    best = min(found, key=lambda each: each.cost)
    more, less = best.cost / chosen.cost - 1, 1 - best.time / chosen.time
    return f"{answer.plain(best.candidate.key)} costs {more:.1%} more and is done {less:.0%} sooner"


def sure_words(document: Written) -> tuple[str, str]:
    """How sure the choice's figures are: a few words, and a sentence.

    Where the rate of computing is assumed, they are those at other rates: an interval of the
    predicted step would be one of the assumption.
    """
    choice, rates = document["choice"], document["at_rates"]
    known = choice["step_low_s"] is not None
    if not rates:
        if not known:
            return "not known", "nothing is known of the error of its predicted step"
        words = f"with 80% probability the step is within {step_range(choice)} of the prediction"
        if choice.get("mesh"):
            return step_range(choice), f"{words}, as published ones are (simreduce accuracy mesh)"
        return step_range(choice), f"{words}, if its compute is right (simreduce accuracy)"
    slow, fast = rates[0], rates[-1]
    now = next((each for each in rates if each["factor"] == 1.0), slow)
    most, least = (price_words(document, each) for each in (slow, fast))
    targets = " and the ".join(_OF_TARGETS.get(name, name) for name in slow["misses"])
    missed = f", so that it would miss the {targets}" if targets else ""
    words = (
        f"{_rate(now)} is assumed, not measured. At {_rate(slow)} at most {most}{missed}. "
        f"At {_rate(fast)} at least {least}"
    )
    if known:
        words += f". The error of its communication adds {step_range(choice)} of a step, with 80%"
    dear, cheap = (money(document, each["per_million"]) for each in (slow, fast))
    return f"{cheap} to {dear} per 1M {document['counted']}", words


def rates_words(document: Written) -> str:
    """At which rates of computing the choice costs what `sure_words` begins with; "" for none."""
    rates = document["at_rates"]
    if not rates:
        return ""
    slow, fast = (_rate(each).removesuffix(" a GPU") for each in (rates[0], rates[-1]))
    return f"If a GPU computes at {slow} to {fast}: the rate is assumed, not measured"


def _rate(at: Written) -> str:
    """`400 TFLOP/s a GPU`, or the factor where GPUs differ."""
    flops = at["flops_per_second"]
    return (
        f"{at['factor']:g} times the rate" if flops is None else f"{flops / 1e12:.4g} TFLOP/s a GPU"
    )


def changes(document: Written) -> list[tuple[float, str, Written]]:
    """How near each change of the choice is, as a part of the value, its side and its assumption,
    the nearest first.
    """
    found = [
        (abs(each[side]["at"] / each["value"] - 1.0) if each["value"] else 0.0, side, each)
        for each in document["sensitivity"]
        for side in ("below", "above")
        if each[side] is not None
    ]
    return sorted(found, key=lambda change: change[0])


def nearest_change(document: Written) -> tuple[str, str]:
    """The nearest change of the choice and what it then is, or why there is none."""
    if not document["sensitivity_asked"]:
        return "not asked", "Without --no-sensitivity, prices and rates that change it are sought."
    found = changes(document)
    if not document["sensitivity"]:
        return "not known", "The command ended before it looked."
    if not found:
        return "not nearby", "No single price, rate or error that was tried changes it."
    near, side, each = found[0]
    names = {option["option"]: option["configuration"] for option in document["options"]}
    then = names.get(each[side]["becomes"], each[side]["becomes"]) or "no option meets the target"
    sign = "+" if side == "above" else "-"
    digits = 0 if near >= 0.095 else 1
    return f"{each['assumption']} {sign}{near:.{digits}%}", f"Then: {then}."


def step_range(choice: Written) -> str:
    """The 80 % interval of the choice's step, as parts of the prediction."""
    step, ends = choice["simulated_s"], (choice["step_low_s"], choice["step_high_s"])
    low, high = (end / step if step else 1.0 for end in ends)
    if max(1 - low, high - 1) < 1e-3:
        return "0.1%"
    return f"{low - 1:+.1%} to {high - 1:+.1%}"


def _series_names(rows: Sequence[Written]) -> list[str]:
    """The names of options that differ in the number of nodes only, such as `DGX H100, 2:1 fat
    tree`: their configurations without that number, and without a batch that follows from the
    number of GPUs. One machine has no network, and is of the series even so.
    """
    batches = {(row["gpus"], row.get("batch")) for row in rows}
    follows = len(batches) == len({row["gpus"] for row in rows})
    names = [row["configuration"].partition(" ")[2] or row["configuration"] for row in rows]
    if follows:
        names = [name.partition(", batch ")[0] for name in names]
    parts = {name: set(name.split(", ")) for name in names}
    longer = {name: [each for each in parts if parts[name] < parts[each]] for name in parts}
    return [longer[name][0] if len(longer[name]) == 1 else name for name in names]


_SHIPPED = Record(
    "list", "A price list.",
    Key("name", TEXT, "Its name.", "0", column=Column("list", left=True)),
    Key("title", TEXT, "What it holds.", "1.title", column=Column("what", left=True)),
    Key("date", TEXT, "When its prices were read, from the first to the last.", "1.date",
        column=Column("of", left=True)),
    Key("machines", list_of(TEXT), "Machines with a price.", lambda row: [*row[1].machines],
        column=Column("machines", left=True)),
)  # fmt: skip
LISTS = Document(
    "price-lists",
    "`simreduce prices --json`: the price lists that come with simreduce.",
    Key("lists", list_of(_SHIPPED), "Every list.", ITSELF),
    command="prices",
)
"""Of names with price lists."""
PRICES = Document(
    "price-list",
    "`simreduce prices NAME --json`: a price list, or several that were joined.",
    Key("currency", TEXT, "The currency of all prices."),
    Key("prices", PRICE_LIST, "The list.", ITSELF),
    Key("notes", list_of(TEXT), "Which of two prices counts, where lists differ."),
    command="prices",
)
"""Of a `PriceList`."""


def lists_text(lists: Sequence[tuple[str, PriceList]]) -> str:
    """A line for each list."""
    return "\n".join(_SHIPPED.table([_SHIPPED.write(each) for each in lists]).lines())


def prices_text(prices: PriceList) -> str:
    """Every price, then where they were published."""
    table = ITEM.table([ITEM.write(item) for item in prices.items.values()])
    return "\n".join([
        *tables.header(tables.label(prices.title, prices.date), ()), *table.lines(),
        *[""] * bool(prices.sources), *(f"Source: {source}" for source in prices.sources),
        *[""] * bool(prices.notes), *(f"Note: {note}." for note in prices.notes),
    ])  # fmt: skip
