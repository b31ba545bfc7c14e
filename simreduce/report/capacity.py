"""`simreduce capacity`: the choice, the options, what binds and when the choice changes, as text
and as a plot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from simreduce import tables, units
from simreduce.capacity.answer import Answer, parts
from simreduce.capacity.choose import HOURLY, TIME, Key, Offer
from simreduce.capacity.flips import Assumption, Flip
from simreduce.capacity.options import NAMES, label
from simreduce.capacity.quantities import HOUR, format_amount, format_period
from simreduce.plots import CostPoint, Plot, draw_frontier
from simreduce.tables import Table

_COLUMNS = tables.columns(
    "|name|machine|nodes|GPUs|network|method|strategy|batch|step|exposed|efficiency|goodput"
    "|samples/s|price|time|cost|misses",
    left="|name|machine|network|method|strategy|misses",
    spare="exposed|GPUs|efficiency|network|step|samples/s|price",
)
_MOST_ROWS = 60
_MACHINE, _NODES, _NETWORK, _BATCH = (
    NAMES.index(name) for name in ("machine", "nodes", "network", "batch")
)
_OF_PLACE = {_NODES, _NETWORK, _BATCH}
"""Parts of a key that depend on the number of nodes."""
_MINIMISED = {HOURLY: "price per hour", TIME: "time of the run"}


def capacity_text(answer: Answer) -> str:
    """Header, every option, the choice and what it rests on."""
    lines = [*_header(answer), *capacity_rows(answer).lines(indent=2), _LEGEND, ""]
    lines += _choice(answer)
    lines += _reach_lines(answer)
    lines += _flip_lines(answer)
    if answer.waiting:
        count = units.plural(len(answer.waiting), "option")
        lines += ["", f"Stopped: {count} not simulated, the choice is among the others:"]
        lines += [f"  {name}" for name in answer.waiting[:_MOST_ROWS]]
    if answer.refused:
        lines += ["", f"No options ({len(answer.refused)}):"]
        lines += [f"  {name}: {reason}" for name, reason in answer.refused]
    lines += ["", *(f"Note: {note}." for note in answer.notes)] if answer.notes else []
    return "\n".join(lines)


_LEGEND = "  * the choice, + on the frontier of cost against time"


def _header(answer: Answer) -> list[str]:
    q = answer.question
    prices, target = q.prices, q.target
    run = f"run of {format_amount(target.samples)} samples"
    wanted = [
        ("step at most", target.step_time, units.format_duration),
        ("efficiency at least", target.efficiency, lambda value: f"{value:.0%}"),
        ("samples/s at least", target.samples_per_second, format_amount),
        ("time at most", target.time, format_period),
        ("cost at most", target.budget, lambda v: f"{format_amount(v)} {prices.currency}"),
        ("price at most", target.hourly, lambda v: f"{format_amount(v)} {prices.currency}/h"),
    ]
    limits = [f"{word} {show(value)}" for word, value, show in wanted if value is not None]
    lowest = _MINIMISED.get(target.minimise, "cost of the run")
    dated = f" ({prices.date})" if prices.date else ""
    facts = [
        ("workload", f"{q.workload}, {run}"),
        ("target", f"{', '.join([*limits, 'the lowest ' + lowest])}"),
        ("prices", f"{prices.title or 'of the file'}{dated}, in {prices.currency}"),
    ]
    if q.failures:
        f = q.failures
        words = f"a node fails every {format_period(f.mtbf)}, a checkpoint stops the job for"
        more = f"{format_period(f.checkpoint)}, a restart takes {format_period(f.restart)}"
        facts.append(("failures", f"{words} {more}"))
    return tables.header(q.title, facts)


def capacity_rows(answer: Answer) -> Table:
    """A row for each option, those that meet the target first, best first."""
    others = [each for each in answer.offers if not each.meets]
    shown = [*answer.ranked, *others]
    rows = tuple(_row(answer, each) for each in shown[:_MOST_ROWS])
    head = [*_COLUMNS]
    currency = answer.question.prices.currency
    below = {"step": "(ms)", "exposed": "(ms)", "price": f"({currency}/h)", "cost": f"({currency})"}
    table = Table(tuple(replace(c, unit=below.get(c.name, "")) for c in head), rows)
    return _without_constants(table)


def _without_constants(table: Table) -> Table:
    """Without columns of which all cells are empty, or that tell configurations apart and have one
    value only.
    """
    for i, column in [*enumerate(table.columns)][:0:-1]:
        cells = {row[i] for row in table.rows}
        idle = cells == {"100.0%"} if column.name == "goodput" else cells <= {""}
        if idle or (column.name in ("method", "batch", "name") and len(cells) == 1):
            table = tables.without(column.name, table)
    return table


def _row(answer: Answer, each: Offer) -> tuple[str, ...]:
    c = each.candidate
    name, machine, nodes, network, method, strategy, batch = c.key
    mark = "*" if each is answer.chosen else "+" if each in answer.frontier else ""
    return (
        mark, name, machine, nodes, str(c.devices), network, method, strategy, batch,
        f"{c.step * 1e3:.2f}", f"{c.exposed * 1e3:.2f}", f"{c.efficiency:.1%}",
        f"{c.goodput:.1%}", format_amount(c.rate), format_amount(each.hourly),
        format_period(each.time) if math.isfinite(each.time) else "never",
        format_amount(each.cost), ", ".join(each.misses),
    )  # fmt: skip


def _choice(answer: Answer) -> list[str]:
    chosen, currency = answer.chosen, answer.question.prices.currency
    if chosen is None:
        some = "that was simulated " if answer.waiting else ""
        return [f"No option {some}meets the target.", *_nearest(answer)]
    c = chosen.candidate
    took = f"{format_period(chosen.time)} and {format_amount(chosen.cost)} {currency}"
    lines = [
        f"{label(c.key)}: the run takes {took}, at {format_amount(chosen.hourly)} {currency}/h"
    ]
    shares = ", ".join(f"{part.name} {part.share:.1%}" for part in parts(c))
    lines.append(f"  time goes into {shares}")
    if c.bound:
        lines.append(f"  of the communication, {c.bound} binds")
    if answer.question.failures:
        nodes = c.nodes
        every = format_period(answer.question.failures.best_interval(nodes))
        fails = format_period(answer.question.failures.between(nodes))
        lines.append(f"  a failure every {fails}, a checkpoint every {every}")
    if c.low is not None and c.high is not None:
        ends = f"{c.low / c.simulated - 1:+.1%} to {c.high / c.simulated - 1:+.1%}"
        lines.append(
            f"  the step is within {ends} of the prediction with 80 % (simreduce accuracy)"
        )
    return lines


def _nearest(answer: Answer) -> list[str]:
    """What most options miss."""
    missed: dict[str, int] = {}
    for each in answer.offers:
        for name in each.misses:
            missed[name] = missed.get(name, 0) + 1
    count = len(answer.offers)
    return [f"  {name}: missed by {number} of {count}" for name, number in missed.items()]


def _reach_lines(answer: Answer) -> list[str]:
    """Up to where each series holds the efficiency."""
    if not answer.reaches:
        return []
    wanted = answer.question.target.efficiency or 0.0
    lines = ["", f"Efficiency of at least {wanted:.0%}:"]
    names = _Names(answer)
    for reach in answer.reaches:
        name = names.series(reach.series)
        last, below = reach.last, reach.first_below
        holds = "never"
        if last:
            holds = f"up to {units.plural(last.nodes, 'node')} ({last.efficiency:.1%})"
        ends = f", below at {below.nodes} ({below.efficiency:.1%})" if below else ""
        lines.append(f"  {name}: {holds}{ends}")
    return lines


def _flip_lines(answer: Answer) -> list[str]:
    if not answer.assumptions:
        return []
    names = _Names(answer)
    rows = [
        (a.name, _value(a), *_flip(a, a.down, "<", names), *_flip(a, a.up, ">", names))
        for a in answer.assumptions
    ]
    columns = tables.columns(
        "assumption|now|below|then|above|then ",
        left="assumption|then|then ",
        spare="now",
    )
    lines = ["", "The choice changes where", *Table(columns, tuple(rows)).lines(indent=2)]
    stopped = [a.name for a in answer.assumptions if not a.complete]
    if stopped:
        lines.append(f"  stopped before all was known of {', '.join(stopped)}")
    return lines


def _value(a: Assumption) -> str:
    if a.unit == "s":
        return format_period(a.value)
    return "x 1" if a.unit.startswith("times") else f"{a.value:.6g} {a.unit}"


def _flip(a: Assumption, flip: Flip | None, sign: str, names: _Names) -> tuple[str, str]:
    if flip is None:
        if a.within is None:
            return "never", ""
        down, up = a.holds or (a.value / a.within, a.value * a.within)
        word, end = ("down", down) if sign == "<" else ("up", up)
        return f"not {word} to x {end / a.value:.3g}", ""
    if a.unit == "s":
        at = format_period(flip.at)
    else:
        at = f"x {flip.at:.4g}" if a.unit.startswith("times") else f"{flip.at:.6g} {a.unit}"
    if a.holds is not None:
        inner, outer = sorted((a.holds[sign == ">"], flip.at))
        if outer > inner * (1.0 + 2.0 * a.tolerance):  # the search was stopped
            at = f"x {inner:.4g} to {outer:.4g}"
    then = "none meets the target" if flip.becomes is None else names.short(flip.becomes)
    return (f"~{at}" if a.tolerance else at), then


def capacity_plot(answer: Answer) -> Plot:
    """Cost against time of every option, a line for what differs in the number of nodes only."""
    q = answer.question
    names = _Names(answer)
    series: dict[str, list[CostPoint]] = {}
    scale, word = _time_unit([o.time for o in answer.offers if math.isfinite(o.time)])
    for each in answer.offers:
        c = each.candidate
        low, high = (
            None if end is None else each.time * end / c.simulated / scale
            for end in (c.low, c.high)
        )
        point = CostPoint(each.time / scale, each.cost, low, high, str(c.nodes), each.meets)
        series.setdefault(names.series(c.key) or c.machine, []).append(point)
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
        if any(o.candidate.low is not None for o in answer.offers)
        else "",
    )


class _Names:
    """Short names of configurations: what they all share is left out, and a batch that follows from
    the number of GPUs.
    """

    def __init__(self, answer: Answer) -> None:
        keys = [each.candidate.key for each in answer.offers]
        columns = [set(column) - {""} for column in zip(*keys, strict=True)]
        self._shared = {i for i, column in enumerate(columns) if len(column) <= 1}
        self._shared |= {_BATCH} if answer.question.global_batch else set()
        self._shared -= {_MACHINE, _NODES}
        self._networks: dict[Key, set[str]] = {}
        for key in keys:
            self._networks.setdefault(self._blank(key, _OF_PLACE), set()).add(key[_NETWORK])

    def short(self, key: Key) -> str:
        """A configuration: `8 x p5`."""
        return label(self._blank(key, self._shared))

    def series(self, key: Key) -> str:
        """Those that differ in the number of nodes only: `p5, fat_tree`."""
        gone = self._shared | {_NODES}
        if len(self._networks[self._blank(key, _OF_PLACE)] - {""}) <= 1:
            gone = gone | {_NETWORK}  # so that one machine, which has none, is of the series
        return ", ".join(part for part in self._blank(key, gone) if part)

    def _blank(self, key: Key, places: set[int]) -> Key:
        return tuple("" if i in places else part for i, part in enumerate(key))


def _time_unit(times: Sequence[float]) -> tuple[float, str]:
    """Seconds of a unit in which most of these times are small numbers, and its name."""
    middle = sorted(times)[len(times) // 2] if times else 1.0
    for seconds, word in ((24 * HOUR, "days"), (HOUR, "h"), (60.0, "min")):
        if middle >= 2 * seconds:
            return seconds, word
    return 1.0, "s"
