"""`simreduce capacity`: the choice, the options, what binds and when the choice changes, as a
document, as text and as a plot. Pages show the same tables and sentences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simreduce import units
from simreduce.files import tables
from simreduce.files.formats.documents import (
    BYTES,
    COUNT,
    FLAG,
    PER_SECOND,
    RATIO,
    SECONDS,
    TEXT,
    Document,
    Key,
    Record,
    list_of,
    map_of,
    number_in,
    one_of,
    or_null,
    positive,
)
from simreduce.files.tables import Column, Table, percent
from simreduce.report.plots import Plot, Point, draw_frontier
from simreduce.study.capacity.answer import Answer, fit_of, parts
from simreduce.study.capacity.choose import (
    HOURLY,
    OBJECTIVES,
    TIME,
    Configuration,
    Offer,
    WithinTarget,
)
from simreduce.study.capacity.fails import MOST
from simreduce.study.capacity.quantities import HOUR, format_amount, format_period
from simreduce.training.step import ACTIVATION_SOURCES

Written = Mapping[str, Any]
"""A document of `CAPACITY`, or an object in it."""

_MOST_ROWS = 60
_OF_PLACE = ("nodes", "network", "batch")
"""Parts of a configuration that depend on the number of nodes."""
_MINIMISED = {HOURLY: "price per hour", TIME: "time of the run"}
_NONE_MEETS = "none meets the target"
MONEY = number_in("currency")


def _part(name: str, about: str, **column: Any) -> Key:
    """A part of an option's configuration."""
    shown = {"left": True, "on": "text", **column}
    return Key(name, TEXT, about, f"candidate.key.{name}", column=Column(name, **shown))


def _finite(get: Callable[[Offer], float]) -> Callable[[Offer], float | None]:
    return lambda offer: found if math.isfinite(found := get(offer)) else None


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"


_MARKS = {"choice": "*", "frontier": "+", "": ""}
OFFER = Record(
    "offer", "A configuration at its price.",
    Key("standing", TEXT, "Whether it is the choice or on the frontier.", written=False, column=(
        Column("", left=True, on="text", show=_MARKS.__getitem__),
        Column("stands out", left=True, on="html"),
    )),
    Key("option", TEXT, "What it is, in one line.", "candidate.key.label",
        column=Column("option", left=True, on="html")),
    _part("name", "The name of the option in the file.", keep="varied"),
    _part("machine", "The machine."),
    Key("nodes", COUNT, "How many.", "candidate.nodes", column=Column("nodes", on="text")),
    _part("network", 'What joins them; "" for one machine.', keep="known", spare=4),
    _part("method", "The method of the step.", keep="varied"),
    _part("strategy", "The strategy.", keep="known"),
    _part("batch", "Samples per GPU.", keep="varied", left=False),
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
        column=Column("exposed", "(ms)", spare=7, show=_milliseconds, on="text")),
    Key("efficiency", RATIO, "Its rate over that if nothing moved and none waited; at most 1.",
        "candidate.efficiency", column=Column("efficiency", spare=5, show=percent(1))),
    Key("goodput", RATIO, "The part of the time that makes progress.", "candidate.goodput",
        column=Column("goodput", show=percent(1), on="text")),
    Key("samples_per_second", or_null(PER_SECOND),
        "Samples, lost time included; null for a step that takes no time.",
        _finite(lambda offer: offer.candidate.rate), column=Column(
            "samples/s", spare=2, show=format_amount, missing="unlimited", on="text")),
    Key("hourly", MONEY, "The price of an hour.",
        column=Column("price", spare=1, show=format_amount)),
    Key("time_s", or_null(SECONDS), "The whole run; null if it makes no progress.",
        _finite(lambda offer: offer.time),
        column=Column("time", show=format_period, missing="never")),
    Key("cost", or_null(MONEY), "The whole run; null if it makes no progress.",
        _finite(lambda offer: offer.cost),
        column=Column("cost", show=format_amount, missing="unlimited")),
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
    order="option standing name machine nodes gpus network method strategy batch",
)  # fmt: skip


def _amount(row: Written, value: float) -> str:
    """A value of an assumption, with its unit."""
    if row["unit"] == "s":
        return format_period(value)
    times = row["unit"].startswith("times")
    return f"x {value:.4g}" if times else f"{value:.6g} {row['unit']}"


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
    return "" if flip is None else flip["becomes"] or _NONE_MEETS


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
        column=Column("nearest", show=percent(1), missing="", on="html"), written=False),
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
_END = Record(
    "end", "A number of nodes.",
    Key("nodes", COUNT, "That number."),
    Key("efficiency", RATIO, "The efficiency there."),
)  # fmt: skip
ITEM = Record(
    "item", "A price.",
    Key("name", TEXT, "What is paid for.", column=Column("price", left=True)),
    Key("value", RATIO, "The price, in its unit.", column=Column("value", show="{:g}".format)),
    Key("unit", TEXT, "The unit, such as `USD/h`.", column=Column("unit", left=True)),
)  # fmt: skip


def _part_words(row: Written) -> str:
    """The part, and for which others it stands."""
    if not row["part"]:
        return "there is none"
    if row["kinds"] == 1:
        return f"{row['part']}, as any of {row['parts']}"
    tried = min(row["kinds"], MOST)
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
_MONEY, _PRICE = "money", "money/h"
_TARGET = Record(
    "target", "What a configuration must meet; null where it need not.",
    Key("samples", RATIO, "Samples of the run."),
    Key("step_time_s", or_null(SECONDS), "The longest step.", "step_time",
        column=Column("step at most", keep="known", show=units.format_duration)),
    Key("efficiency", or_null(RATIO), "The least efficiency.",
        column=Column("efficiency at least", keep="known", show=percent(0))),
    Key("samples_per_second", or_null(PER_SECOND), "The least rate of samples.",
        column=Column("samples/s at least", keep="known", show=format_amount)),
    Key("time_s", or_null(SECONDS), "The longest run.", "time",
        column=Column("time at most", keep="known", show=format_period)),
    Key("budget", or_null(MONEY), "The highest cost of the run.",
        column=Column("cost at most", _MONEY, keep="known", show=format_amount)),
    Key("hourly", or_null(MONEY), "The highest price of an hour.",
        column=Column("price at most", _PRICE, keep="known", show=format_amount)),
    Key("minimise", one_of(*OBJECTIVES), "What decides among those that meet it."),
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
    Key("prices", Record(
        "prices", "The price list.",
        Key("title", TEXT, "Its title."),
        Key("date", TEXT, "Of when it is."),
        Key("items", list_of(ITEM), "Every price that counts.",
            lambda prices: prices.items.values()),
    ), "The prices.", "question.prices"),
    Key("target", _TARGET, "The target.", "question.target"),
    Key("choice", or_null(OFFER), "The best that meets the target; null if none does.", "chosen"),
    Key("binds", list_of(PART), "What the time of the choice consists of, most first.",
        lambda answer: parts(answer.chosen.candidate) if answer.chosen else []),
    Key("options", list_of(OFFER), "Every option, in the order of the file.", "offers"),
    Key("frontier", list_of(TEXT), "Options that none beats in both cost and time.",
        lambda answer: [each.candidate.key.label for each in answer.frontier]),
    Key("efficiency_holds", list_of(Record(
        "reach", "Up to how many nodes the target's efficiency holds.",
        Key("series", map_of(TEXT), "What the options share, all but the nodes.",
            lambda reach: {k: part for k, part in reach.series._asdict().items() if part}),
        Key("up_to", or_null(_END), "The last that has it; null if none does.", "last"),
        Key("below_at", or_null(_END), "The first that does not; null if all do.", "first_below"),
    )), "Where the target's efficiency ends; empty without one.", "reaches"),
    Key("sensitivity", list_of(ASSUMPTION), "When the choice changes.", "assumptions"),
    Key("failures", list_of(FAILURE), "What is left of the choice when a part fails, by `fails`."),
    Key("refused", list_of(REFUSED), "Options without a time."),
    Key("waiting", list_of(TEXT), "Options that were not simulated, as the command was stopped."),
    Key("notes", list_of(TEXT), "What a reader should know of prices and figures."),
    Key("complete", FLAG, "False if the command was stopped or changes were not all found."),
)  # fmt: skip
"""Of an `Answer`."""


def capacity_text(answer: Answer) -> str:
    """Header, every option, the choice and what it rests on."""
    document, names = CAPACITY.write(answer), _Names(answer)
    offers = [*answer.ranked, *(each for each in answer.offers if not each.meets)]
    rows = [OFFER.write(each, answer) for each in offers[:_MOST_ROWS]]
    lines = [*_header(answer), *options_table(rows, document, on="text").lines(indent=2)]
    lines += ["  * the choice, + on the frontier of cost against time", ""]
    lines += _choice(answer, document)
    if answer.reaches:
        wanted = answer.question.target.efficiency or 0.0
        lines += ["", f"Efficiency of at least {wanted:.0%}:"]
        lines += [_holds(names.series(each.series), each) for each in answer.reaches]
    lines += _failure_lines(document)
    lines += _flip_lines(answer, names)
    if answer.waiting:
        count = units.plural(len(answer.waiting), "option")
        lines += ["", f"Stopped: {count} not simulated, the choice is among the others:"]
        lines += [f"  {name}" for name in answer.waiting[:_MOST_ROWS]]
    if answer.refused:
        lines += ["", f"No options ({len(answer.refused)}):"]
        lines += [f"  {name}: {reason}" for name, reason in answer.refused]
    lines += ["", *(f"Note: {note}." for note in answer.notes)] if answer.notes else []
    return "\n".join(lines)


def _header(answer: Answer) -> list[str]:
    q = answer.question
    prices, target = q.prices, q.target
    money = prices.currency
    wanted = _TARGET.table([_TARGET.write(target)])
    limits = [
        f"{column.name} {cell} {column.unit.replace(_MONEY, money)}".rstrip()
        for column, cell in zip(wanted.columns, wanted.rows[0], strict=True)
    ]
    lowest = _MINIMISED.get(target.minimise, "cost of the run")
    facts = [
        ("workload", f"{q.workload}, run of {format_amount(target.samples)} samples"),
        ("target", ", ".join([*limits, f"the lowest {lowest}"])),
        ("prices", f"{tables.label(prices.title or 'of the file', prices.date)}, in {money}"),
    ]
    if q.failures:
        f = q.failures
        words = f"a node fails every {format_period(f.mtbf)}, a checkpoint stops the job for"
        more = f"{format_period(f.checkpoint)}, a restart takes {format_period(f.restart)}"
        facts.append(("failures", f"{words} {more}"))
    return tables.header(q.title, facts)


def options_table(rows: Iterable[Written], document: Written, *, on: str) -> Table:
    """The table of written options, `on` text or html; with the goodput where time is lost."""
    standing = dict.fromkeys(document["frontier"], "frontier")
    standing |= {document["choice"]["option"]: "choice"} if document["choice"] else {}
    marked = [
        {**row, "standing": standing.get(row["option"], ""), "misses": ", ".join(row["misses"])}
        for row in rows
    ]
    table = OFFER.table(marked, on=on)
    money = document["currency"]
    below = {"price": f"({money}/h)", "cost": f"({money})"}
    heads = tuple(replace(each, unit=below.get(each.name, each.unit)) for each in table.columns)
    table = replace(table, columns=heads)
    lost = any(percent(1)(row.get("goodput", 1.0)) != "100.0%" for row in marked)
    return table if lost else tables.without("goodput", table)


def money(document: Written, amount: float | None) -> str:
    """`393 USD`, `39.33 USD`: no part of a cent, and no cents of much."""
    if amount is None:
        return "no end"
    cents = 0.0 < abs(amount) < 1.0 or (amount < 1000 and round(amount, 2) != round(amount))
    text = format_amount(amount) if abs(amount) < 0.01 else f"{amount:,.{2 if cents else 0}f}"
    return f"{text} {document['currency']}"


def choice_words(document: Written) -> str:
    """What the choice is, takes and costs; which targets the options miss if there is none."""
    choice = document["choice"]
    if choice is None:
        some = "that was simulated " if document.get("waiting") else ""
        return f"No option {some}meets the target."
    time = "never ends" if choice["time_s"] is None else f"takes {format_period(choice['time_s'])}"
    cost, hourly = (money(document, choice[key]) for key in ("cost", "hourly"))
    return f"{choice['option']}: the run {time} and costs {cost}, at {hourly} an hour"


def step_range(choice: Written) -> str:
    """The 80 % interval of the choice's step, as parts of the prediction."""
    step, ends = choice["simulated_s"], (choice["step_low_s"], choice["step_high_s"])
    low, high = (end / step if step else 1.0 for end in ends)
    if max(1 - low, high - 1) < 1e-3:
        return "0.1%"
    return f"{low - 1:+.1%} to {high - 1:+.1%}"


def _choice(answer: Answer, document: Written) -> list[str]:
    choice, failures = document["choice"], answer.question.failures
    lines = [choice_words(document)]
    if choice is None:
        missed = Counter(name for each in answer.offers for name in each.misses)
        count = len(answer.offers)
        return lines + [f"  {name}: missed by {n} of {count}" for name, n in missed.items()]
    shares = ", ".join(f"{part['name']} {part['share']:.1%}" for part in document["binds"])
    lines.append(f"  time goes into {shares}")
    if choice["bottleneck"]:
        lines.append(f"  of the communication, {choice['bottleneck']} binds")
    lines += [f"  a GPU {words}" for words in [_memory(answer)] if words]
    if failures:
        every = format_period(failures.best_interval(choice["nodes"]))
        fails = format_period(failures.between(choice["nodes"]))
        lines.append(f"  a failure every {fails}, a checkpoint every {every}")
    if choice["step_low_s"] is not None:
        words = f"if the compute is right, the step is within {step_range(choice)} with 80 %"
        lines.append(f"  {words} (simreduce accuracy)")
    return lines


def _memory(answer: Answer) -> str:
    """What a GPU of the choice holds of its memory; "" where that is not known."""
    chosen = answer.chosen
    if chosen is None or chosen.candidate.row.memory is None:
        return ""
    found = chosen.candidate
    option = next(each for each in answer.question.options if each.key == found.key)
    return fit_of(option, found.row).words if option.memory else ""


def _holds(name: str, reach: WithinTarget) -> str:
    """Up to where a series holds the efficiency."""
    last, below = reach.last, reach.first_below
    holds = "never"
    if last:
        holds = f"up to {units.plural(last.nodes, 'node')} ({last.efficiency:.1%})"
    ends = f", below at {below.nodes} ({below.efficiency:.1%})" if below else ""
    return f"  {name}: {holds}{ends}"


def _failure_lines(document: Written) -> list[str]:
    rows = document["failures"]
    head = ["", "Until it is repaired, a part that fails leaves the choice"]
    return [*head, *FAILURE.table(rows).lines(indent=2)] if rows else []


def _flip_lines(answer: Answer, names: _Names) -> list[str]:
    if not answer.assumptions:
        return []
    rows = [ASSUMPTION.write(each) for each in answer.assumptions]
    short = {each.candidate.key.label: names.short(each.candidate.key) for each in answer.offers}
    for flip in (row[side] for row in rows for side in ("below", "above")):
        if flip and flip["becomes"]:
            flip["becomes"] = short[flip["becomes"]]
    table = ASSUMPTION.table(rows)
    lines = ["", "The choice changes where", *table.lines(indent=2)]
    stopped = [a.name for a in answer.assumptions if not a.complete]
    if stopped:
        lines.append(f"  stopped before all was known of {', '.join(stopped)}")
    return lines


def capacity_plot(answer: Answer) -> Plot:
    """Cost against time of every option, a line for what differs in the number of nodes only."""
    q = answer.question
    names = _Names(answer)
    series: dict[str, list[Point]] = {}
    scale, word = _time_unit([o.time for o in answer.offers if math.isfinite(o.time)])
    for each in answer.offers:
        c = each.candidate
        low, high = (
            None if end is None else each.time * end / c.simulated / scale
            for end in (c.row.low, c.row.high)
        )
        point = Point(each.time / scale, each.cost, low, high, str(c.nodes), each.meets)
        series.setdefault(names.series(c.key) or c.key.machine, []).append(point)
    chosen = answer.chosen
    currency = q.prices.currency
    run = f"{format_amount(q.target.samples)} samples"
    return draw_frontier(
        series,
        [(o.time / scale, o.cost) for o in answer.frontier],
        None if chosen is None else (chosen.time / scale, chosen.cost),
        (f"time of {run} ({word})", f"cost of {run} ({currency})"),
        q.title,
        f"{q.workload}; numbers: nodes; filled: meets the target",
        "bars: 80 % interval of the predicted step"
        if any(o.candidate.row.low is not None for o in answer.offers)
        else "",
    )


class _Names:
    """Short names of configurations: what they all share is left out, and a batch that follows from
    the number of GPUs.
    """

    def __init__(self, answer: Answer) -> None:
        keys = [each.candidate.key for each in answer.offers]
        columns = zip(Configuration._fields, zip(*keys, strict=True), strict=False)
        self._shared = {name for name, column in columns if len({*column} - {""}) <= 1}
        self._shared |= {"batch"} if answer.question.global_batch else set()
        self._shared -= {"machine", "nodes"}
        self._networks: dict[Configuration, set[str]] = {}
        for key in keys:
            self._networks.setdefault(key.without(_OF_PLACE), set()).add(key.network)

    def short(self, key: Configuration) -> str:
        """A configuration: `8 x p5`."""
        return key.without(self._shared).label

    def series(self, key: Configuration) -> str:
        """Those that differ in the number of nodes only: `p5, fat_tree`."""
        gone = self._shared | {"nodes"}
        if len(self._networks[key.without(_OF_PLACE)] - {""}) <= 1:
            gone = gone | {"network"}  # so that one machine, which has none, is of the series
        return ", ".join(part for part in key.without(gone) if part)


def _time_unit(times: Sequence[float]) -> tuple[float, str]:
    """Seconds of a unit in which most of these times are small numbers, and its name."""
    middle = sorted(times)[len(times) // 2] if times else 1.0
    for seconds, word in ((24 * HOUR, "days"), (HOUR, "h"), (60.0, "min")):
        if middle >= 2 * seconds:
            return seconds, word
    return 1.0, "s"
