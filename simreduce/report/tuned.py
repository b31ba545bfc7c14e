"""`simreduce tune`: the best setting as text and as a plot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from simreduce import tables, units
from simreduce.plots import Plot, draw_sensitivity
from simreduce.report.heads import header
from simreduce.scenario import Scenario
from simreduce.tables import Table
from simreduce.training.sharded import running_sharded
from simreduce.tune.search.setting import Setting, rules_text
from simreduce.tune.search.tuned import NEAR, Row, Tuned

_SHOWN = 10
"""Rows of the table."""

_FEW = 2
"""Rules that are shown in a line."""

_WHAT = {"time": "time of one all-reduce", "step": "time of a training step"}


def tuned_text(found: Tuned, why: Iterable[str] = ()) -> str:
    """The best setting, how good and how sure it is, the next ones, and `why` nothing to paste."""
    lines = [*_header(found), *_verdict(found)]
    lines += [f"  paste      nothing: {reason}" for reason in why]
    return "\n".join([*lines, "", *_table(found).lines()])


def files_text(files: Mapping[str, str]) -> str:
    """Files to paste, each below its name."""
    return "".join(f"\n# {name}\n{content.rstrip()}\n" for name, content in files.items())


def _header(found: Tuned) -> list[str]:
    scenario, w = found.scenario, found.scenario.workload
    gradients = units.plural(len(w.gradients), "gradient")
    facts = [("workload", f"{w.name}: {gradients}, {units.format_size(w.nbytes)}")]
    runtimes = [runtime_of(scenario, found.best.setting)]
    return header(scenario, facts, runtimes, _WHAT[found.objective], "")


def runtime_of(scenario: Scenario, setting: Setting) -> str:
    """The runtime that a setting runs in."""
    if setting.sharding is not None:
        return running_sharded(scenario.setup, setting.method).runtime.name
    return scenario.setup.running(setting.parsed).runtime.name


def _verdict(found: Tuned) -> list[str]:
    best, default = found.best, found.default
    words = f"{short(found, best.setting)}, {units.format_duration(best.seconds)}"
    lines = [f"Best for {found.target}: {words}"]
    if default.setting == best.setting:
        lines.append("  default    it is the default")
    else:
        words = f"{short(found, default.setting)}, {units.format_duration(default.seconds)}"
        lines.append(f"  default    {words}: the best is {found.speedup:.2f} times as fast")
        if default.misfit and not best.misfit:
            lines[-1] += ", and fits"
    lines += [f"  {word:9}  {text}" for word, text in _facts(found) if text]
    return lines


def _facts(found: Tuned) -> list[tuple[str, str]]:
    return [
        ("memory", _memory(found)),
        ("methods", _methods(found)),
        ("how sure", _sure(found)),
        ("searched", _searched(found)),
        ("bound", _bound(found)),
        ("proven", _proven(found)),
        ("sensitive", _sensitive(found)),
        ("measure", _measure(found)),
    ]


def short(found: Tuned, setting: Setting) -> str:
    """The setting in one line: many rules as their number, and without what the scenario says."""
    text, step = setting.label, found.scenario.step
    sharing = any(rule.collective != "all_reduce" for rule in setting.rules)
    if len(setting.rules) > _FEW or sharing:
        ranges = f"[{units.plural(len(setting.rules), 'range')}]"
        text = text.replace(f"[{rules_text(setting.rules)}]", ranges)
    given = Setting("", sharding=step.sharding if step else None).knobs
    for key in ("param_dtype", "reduce_dtype", "optimizer"):
        if key in given and setting.knobs.get(key) == given[key]:
            text = text.replace(f" {key}={given[key]}", "")
    return text


def _memory(found: Tuned) -> str:
    """What a GPU holds, where something does not fit or it shards."""
    fit, default = found.best.fit, found.default.fit
    if fit is None or (found.best.setting.sharding is None and not found.unfit and fit.fits):
        return ""
    held = found.scenario.step.activations if found.scenario.step else 0
    words = f"this {fit.words}" + ("" if held else "; activations not counted")
    if fit.fits is False:
        words = f"does not fit: {words}"
    if found.default.misfit and default and fit.fits is not False:
        words += f"; the default {default.words.partition(',')[0]}"
    return words


def _methods(found: Tuned) -> str:
    """The best of each method, where there are several."""
    rows = found.by_method
    if len(rows) < 2:
        return ""
    return ", ".join(
        f"{name} {units.format_duration(row.seconds)}{' (does not fit)' * row.misfit}"
        for name, row in rows.items()
    )


def _sure(found: Tuned) -> str:
    if found.default.setting == found.best.setting:
        return ""
    if found.sureness is None:
        return "nothing is known of the errors of these predictions"
    factor = found.sureness.factor
    ratio = found.sureness.ratio_factor
    apart = "told apart" if found.apart(found.default) else "not told apart"
    part = " without the compute" if found.base else ""
    return (
        f"{apart} from the default: times are within a factor of {factor:.2f} with 80 %, "
        f"ratios{part} within {ratio:.2f}"
    )


def _searched(found: Tuned) -> str:
    plans, what = len(found.rows), "step" if found.objective == "step" else "plan"
    simulated = units.plural(plans, what)
    if found.calls:
        simulated += f" and {units.plural(found.calls, 'single call')}"
    points = f"{found.points:,} settings: {simulated} simulated"
    if found.composed:
        calls = units.plural(found.calls, "simulated call")
        simulated = f"{units.plural(plans, what)} simulated or composed of {calls}"
        points = f"{found.points:,} settings: {simulated}"
    if found.estimated:
        calls = units.plural(found.calls, "simulated call")
        points = f"{found.points:,} settings, cycle by cycle, with times between {calls}; "
        points += f"{units.plural(plans, 'step')} simulated"
    if found.unfit:
        points += f", {found.unfit:,} do not fit"
    if found.stopped:
        return f"{points}, then stopped"
    if found.estimated:
        return f"{points}, no other is faster by its estimate"
    if found.spent:
        return f"{points}, then the effort was spent"
    return f"{points}, all others excluded by bounds"


def _bound(found: Tuned) -> str:
    floor = f"no all-reduce here takes less than {units.format_duration(found.floor)}"
    if found.objective == "step":
        floor = f"no step here takes less than {units.format_duration(found.floor)}"
    if found.complete:
        return f"no other setting is faster; {floor}"
    less = 1 - found.bound / found.best.seconds
    return f"no setting is more than {less:.1%} faster; {floor}"


def _proven(found: Tuned) -> str:
    """What bounds rest on; nothing to say where each is a floor of a whole plan."""
    if not found.calls:
        return ""
    tested = "bounds from calls of nearby sizes are tested, not proven"
    return f"floors of links, channels and latencies; {tested}"


def _sensitive(found: Tuned) -> str:
    if found.flat is None:
        return ""
    ranges = []
    for low, high in found.near:
        first, last = units.format_size(low), units.format_size(high)
        ranges.append(first if low == high else f"{first} to {last}")
    word = found.shape and f"{found.shape}: "
    worst = max(found.curve, key=lambda place: place.seconds * place.known)
    text = f"{word}buckets of {', '.join(ranges)} are within {NEAR - 1:.0%} of the best"
    if worst.seconds <= NEAR * found.best.seconds:
        return text
    more = f"{worst.seconds / found.best.seconds - 1:.0%}"
    return f"{text}, those of {units.format_size(worst.nbytes)} are {more} slower"


def _measure(found: Tuned) -> str:
    rows = found.worth_measuring()
    if not rows:
        return "nothing: all else that was simulated is told apart, or differs in bucket size only"
    return "not told apart: " + "; ".join(
        f"{short(found, row.setting)} ({units.format_duration(row.seconds)})" for row in rows
    )


def _table(found: Tuned) -> Table:
    columns = tables.columns(
        "#|setting|time|slower|told apart", units="||(ms)||", left="setting|told apart"
    )
    rows = tuple(_row(place, row, found) for place, row in enumerate(_top(found), 1))
    return Table(columns, rows)


def _top(found: Tuned) -> list[Row]:
    """The best, the next, and the default in any case."""
    rows = [found.best, *(row for row in found.rows if row != found.best)]
    top = rows[:_SHOWN]
    return top if found.default in top else [*top, found.default]


def _row(place: int, row: Row, found: Tuned) -> tuple[str, ...]:
    more = row.seconds / found.best.seconds - 1 if found.best.seconds else 0.0
    apart = {True: "yes", False: "no", None: "?"}[found.apart(row)]
    note = " (default)" * (row == found.default) + " (does not fit)" * row.misfit
    return (
        str(place),
        f"{short(found, row.setting)}{note}",
        f"{row.seconds * 1e3:.3f}",
        f"{max(more, 0.0) if not row.misfit else more:.1%}",
        "" if row == found.best else apart,
    )


def sensitivity_plot(found: Tuned) -> Plot:
    """The time over the size of buckets, near the best and with its bound."""
    points = [(place.nbytes, place.seconds) for place in found.curve if place.known]
    scenario, best = found.scenario, short(found, found.best.setting)
    return draw_sensitivity(
        points,
        [("bound", found.bound), ("default", found.default.seconds)],
        f"{scenario.workload.name} on {scenario.setup.machine.name}: {best}",
        f"{_WHAT[found.objective]}, calibration {scenario.setup.calibration.name}",
    )
