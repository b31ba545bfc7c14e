"""`simreduce tune`: the best setting as text, as a document, as a plot, and its page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any

from simreduce import units
from simreduce.export.choice import METHODS
from simreduce.export.frameworks import FRAMEWORKS, TUNED
from simreduce.files.formats.documents import (
    ABSENT,
    ANYTHING,
    BYTES,
    COUNT,
    FLAG,
    INTEGER,
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
from simreduce.report.advised import ADVICE, caution, facts, mark, sentence, sure
from simreduce.report.bench import sizes_section
from simreduce.report.blocks import (
    Attachments,
    Block,
    Chart,
    Code,
    Fact,
    Page,
    Section,
    Written,
    bars,
    colour_words,
)
from simreduce.report.explain import help_section, path_section
from simreduce.report.headings import (
    ACTIVATIONS_KEY,
    BY_BUDGET,
    DISTURBED,
    FACTOR_KEYS,
    HEAD_KEYS,
    HURRIED_KEY,
    MEASURED_KEY,
    MOVED_KEY,
    header,
    page_title,
)
from simreduce.report.plots import Axis, Facet, Plot, PlotPoint, PlotSeries
from simreduce.report.sections import (
    calibration_section,
    machine_section,
    measured_section,
    measured_words,
    record_section,
    repeat_section,
    us,
)
from simreduce.study.advice import runs_nccl
from simreduce.study.tune.search.advised import advice_of
from simreduce.study.tune.search.setting import Setting, rules_text
from simreduce.study.tune.search.targets import OBJECTIVES, methods_of
from simreduce.study.tune.search.tuned import NEAR, SettingRow, Tuned
from simreduce.training.sharded import DDP

_SHOWN = 10
"""Rows of the table."""


_FEW = 2
"""Rules that are shown in a line."""

_TAKES = {"time": "an all-reduce", "step": "a step"}
_WHAT = {"time": "time of one all-reduce", "step": "time of a training step"}


def tuned_text(found: Tuned, why: Iterable[str] = ()) -> str:
    """The best setting, how good and how sure it is, the next ones, and `why` nothing to paste."""
    lines = [*_header(found), *_verdict(found)]
    lines += [f"  paste      nothing: {reason}" for reason in why]
    lines += ["", *_table(found).lines()]
    if found.sizes:
        title = FRAMEWORKS[found.target].title
        what = f"All-reduces of small tensors in {title}, launched by CUDA graphs:"
        lines += ["", what, *_SIZE.table(map(_SIZE.row, found.sizes)).lines()]
    return "\n".join(lines)


def files_text(files: Mapping[str, str]) -> str:
    """Files to paste, each below its name."""
    return "".join(f"\n# {name}\n{content.rstrip()}\n" for name, content in files.items())


def _header(found: Tuned) -> list[str]:
    w = found.scenario.workload
    gradients = units.plural(len(w.gradients), "gradient")
    facts = [("workload", f"{w.name}: {gradients}, {units.format_size(w.nbytes)}")]
    return header(found, facts, _WHAT[found.objective])


def _verdict(found: Tuned) -> list[str]:
    return [
        sentence(ADVICE.write(advice_of(found), None), _TAKES[found.objective]),
        *(f"  {word:9}  {text}" for word, text in _facts(found) if text),
    ]


def _facts(found: Tuned) -> list[tuple[str, str]]:
    return [
        ("fastest", _fastest(found)),
        ("memory", _memory(found)),
        ("methods", _methods(found)),
        ("how sure", _sure(found)),
        ("searched", _searched(found)),
        ("bound", _bound(found)),
        ("proven", _proven(found)),
        ("sensitive", _sensitive(found)),
        ("measure", _measure(found)),
    ]


def _fastest(found: Tuned) -> str:
    """The fastest setting in simreduce's words, unless it is the one to use."""
    best = found.best
    if best.setting == found.advised.setting:
        return "" if best == found.default else f"{short(found, best.setting)}, as simreduce has it"
    return f"{short(found, best.setting)}, {units.format_duration(best.seconds)}"


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
    """The memory of a GPU, and whether activations count."""
    fit, default = found.advised.fit, found.default.fit
    if fit is None or fit.fits is None:
        return ""
    words = f"this {fit.words}"
    if fit.fits is False:
        words = f"does not fit: {words}"
    if found.default.misfit and default and fit.fits is not False:
        words += f"; the default {default.words.partition(',')[0]}"
    return words


def _methods(found: Tuned) -> str:
    """The best of each method, where there are several, and what sharding the update saves."""
    rows = found.by_method
    if len(rows) < 2:
        return ""
    text = ", ".join(
        f"{METHODS.get(name, name)} {units.format_duration(row.seconds)}"
        f"{' (does not fit)' * row.misfit}"
        for name, row in rows.items()
    )
    step, sharded = found.scenario.step, [n for n in rows if n in METHODS and n != DDP]
    if step is None or not step.job.update or not sharded:
        return text
    saved = step.job.update * (1 - 1 / len(found.scenario.setup.layout))
    words = f"sharding the update of {units.format_duration(step.job.update)}"
    return f"{text}; of that, {words} alone saves up to {units.format_duration(saved)}"


def _sure(found: Tuned) -> str:
    if found.default.setting == found.best.setting:
        return ""
    if found.sureness is None:
        return "nothing is known of the errors of these predictions"
    apart = "told apart" if found.apart(found.default) else "not told apart"
    if cycle := found.by_tick(found.default):
        within = f"within one cycle of {units.format_duration(cycle)}"
        return f"{apart} from the fastest: {within}, and that hangs on when its ticks fall"
    words = f"the default is {apart} from the fastest"
    if (error := found.error(found.default)) is None:
        return words
    gap = units.format_duration(found.default.seconds - found.best.seconds)
    off = units.format_duration(error)
    return f"{words}: the difference of {gap} is off by less than {off} with 80 %"


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
    if found.hurried:
        return f"{points}, {_untried(found)} left out for time {BY_BUDGET}"
    if found.stopped:
        return f"{points}, then stopped"
    if found.estimated:
        return f"{points}, no other of them is faster by its estimate"
    if found.spent:
        return f"{points}, then the effort was spent"
    return f"{points}, all others excluded by bounds"


def _untried(found: Tuned) -> str:
    """The settings that a budget of time left out."""
    step = found.objective == "step"
    methods = methods_of(found.target, found.scenario) if step else ()
    none = [method for method in methods if method not in found.by_method]
    return f"the others (all of {', '.join(none)})" if none else "the others"


def _bound(found: Tuned) -> str:
    floor = f"no all-reduce here takes less than {units.format_duration(found.floor)}"
    if found.objective == "step":
        floor = f"no step here takes less than {units.format_duration(found.floor)}"
    if found.complete:
        return f"no other setting that is tried is faster; {floor}"
    less = 1 - found.bound / found.best.seconds
    return f"no setting that is tried is more than {less:.1%} faster; {floor}"


def _proven(found: Tuned) -> str:
    """The proof of the bounds; "" where each is a floor of a whole plan."""
    if not found.calls:
        return ""
    tested = "bounds from calls of nearby sizes are tested, not proven"
    return f"floors of links, channels and latencies; {tested}"


def _sensitive(found: Tuned) -> str:
    if found.flat is None:
        return ""
    name, size = FRAMEWORKS[found.target].bucket
    ranges = []
    for low, high in found.near:
        first, last = size(low), size(high)
        ranges.append(first if low == high else f"{first} to {last}")
    word = found.shape and f"{found.shape}: "
    word += "any " if found.shape == "flat" and len(found.near) == 1 else ""
    worst = max(found.curve, key=lambda place: place.seconds * place.known)
    text = f"{word}{name} {', '.join(ranges)} is within {NEAR - 1:.0%} of the fastest"
    if worst.seconds <= NEAR * found.best.seconds:
        return text
    more = f"{worst.seconds / found.best.seconds - 1:.0%}"
    return f"{text}, {size(worst.nbytes)} is {more} slower"


def _measure(found: Tuned) -> str:
    rows = found.worth_measuring()
    if not rows:
        return "nothing: all else that was simulated is told apart, or differs in bucket size only"
    return "not told apart: " + "; ".join(
        f"{short(found, row.setting)} ({units.format_duration(row.seconds)})" for row in rows
    )


def _table(found: Tuned) -> Table:
    return _ROW.table(_ROW.row(row, found, place) for place, row in enumerate(_top(found), 1))


def _top(found: Tuned) -> list[SettingRow]:
    """The best, the next, and the default in any case."""
    rows = [found.best, *(row for row in found.rows if row != found.best)]
    top = rows[:_SHOWN]
    return [*top, *(row for row in dict.fromkeys((found.advised, found.default)) if row not in top)]


def _short_row(row: SettingRow, found: Tuned) -> str:
    note = (
        " (advised)" * (row == found.advised)
        + " (default)" * (row == found.default)
        + " (does not fit)" * row.misfit
    )
    return f"{short(found, row.setting)}{note}"


def _slower(row: SettingRow, found: Tuned) -> float:
    more = row.seconds / found.best.seconds - 1 if found.best.seconds else 0.0
    return more if row.misfit else max(more, 0.0)


def _told(row: SettingRow, found: Tuned) -> str:
    if row == found.best:
        return ""
    return {True: "yes", False: "no", None: "?"}[found.apart(row)]


def _known_cell(row: Written) -> str:
    return "exactly" if row["exact"] else "about" if row.get("estimated") else "at least"


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
    Key("place", COUNT, "From 1.", PLACE, column=Column("#", on="text"), written=False),
    Key(
        "short", TEXT, "The setting in one line.", get_in=_short_row, written=False,
        column=Column("setting", left=True, on="text"),
    ),
    Key(
        "setting", TEXT, "The setting in one line.", "setting.label",
        column=Column("setting", left=True, on="html"),
    ),
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
        column=Column("slower by more than the error", left=True, missing="not known", on="html"),
    ),
    Key(
        "needed_bytes", or_null(BYTES), "What a GPU holds at most; null if it is not known.",
        "fit.needed",
    ),
    Key("fits", or_null(FLAG), "Whether it fits a GPU; null if that is not known.", "fit.fits"),
    Key(
        "slower", RATIO, "How much slower than the best.", get_in=_slower, written=False,
        column=Column("slower", show=percent(1), on="text"),
    ),
    Key(
        "told", TEXT, "Whether the best is surely faster.", get_in=_told, written=False,
        column=Column("told apart", left=True, on="text"),
    ),
)  # fmt: skip


def _microseconds(us: float) -> str:
    return f"{us:.2f}"


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
        column=Column("", "(us)", show=_microseconds),
    ),
    Key("default", TEXT, "What runs unless anybody says.", column=Column("unless told", left=True)),
    Key(
        "default_us", MICROSECONDS, "Its time at that size.", "default_seconds",
        column=Column("", "(us)", show=_microseconds),
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
        "exact", FLAG, "Whether the time was simulated.", column=Column("known", cell=_known_cell),
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
    Key("advice", ADVICE, "What to set, and what that is worth.", advice_of),
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
    Key("unfit", COUNT, "Settings of the space that do not fit a GPU."),
    Key(
        "files",
        map_of(TEXT),
        "What to paste or save, by the name of the file.",
        lambda _: {},
    ),
    MEASURED_KEY,
)


def tuned_document(found: Tuned, files: Written) -> dict[str, Any]:
    """The document of `--json`: `TUNE`, with files to paste."""
    return TUNE.write(found) | {"files": dict(files)}


def sensitivity_plot(found: Tuned) -> Plot:
    """The time over the size of buckets, near the best and with its bound."""
    points = [PlotPoint(place.nbytes, place.seconds) for place in found.curve if place.known]
    scenario, best = found.scenario, short(found, found.best.setting)
    series = [PlotSeries("simulated", points)]
    for name, seconds in (("bound", found.bound), ("default", found.default.seconds)):
        level = [PlotPoint(point.x, seconds) for point in points]
        series.append(PlotSeries(name, level, "dashed", ""))
    x, y = Axis("bytes of a bucket", "bytes"), Axis("time", "seconds", log=False)
    return Plot(
        f"{scenario.workload.name} on {scenario.setup.machine.name}: {best}",
        f"{_WHAT[found.objective]}, calibration {scenario.setup.calibration.name}",
        [Facet(x, y, series)],
    )


def tune_page(document: Written, beside: Attachments) -> Page:
    """The page of `simreduce tune --json`."""
    advice, target = document["advice"], document["advice"]["title"] or document["target"]
    factor = document["factor"] if runs_nccl(document["advised"]["strategy"]) else None
    step = document["objective"] == "step"
    what = "a training step" if step else "one all-reduce"
    found = replace(beside, factor=factor)
    gpus = units.plural(document["ranks"], "GPU")
    size = units.format_size(document["size_bytes"])
    told = caution(
        factor, document["calibration"], "times of the communication" if step else "times"
    )
    told += " The time of compute is taken as the scenario gives it." * step
    return Page(
        title=page_title(
            document, f"{document['workload']} on {document['topology']}: best setting for {target}"
        ),
        about=f"{document['workload']} ({size}) on {document['topology']}, {gpus}; "
        f"{document['points']:,} settings for {target}.",
        answer=sentence(advice, what),
        sure=f"{told} {measured_words(document)}".strip(),
        facts=tuple(_page_facts(document, advice)),
        sections=(
            _settings(document, advice),
            *measured_section(document),
            *_curve(document),
            *machine_section(found),
            *path_section(found),
            *help_section(found),
            *sizes_section(found),
            *record_section(document),
            *calibration_section(found, document),
            *repeat_section(found, document),
        ),
    )


def _page_facts(document: Written, advice: Written) -> Iterable[Fact]:
    name, time = document["advised"]["setting"], document["advised"]["time_us"]
    factor = document["factor"] if runs_nccl(document["advised"]["strategy"]) else None
    more = f"{name}: {us(time)}. The next section has what to paste."
    if flat := document["flat"]:
        low, high = (units.format_size(flat[key]) for key in ("from_bytes", "to_bytes"))
        near = units.format_share(NEAR - 1)
        more += f" With buckets from {low} to {high} times stay within {near} of the fastest."
    answer, why = sure(factor)
    if document["objective"] == "step":
        why += " That is of the communication; compute is an input, as sure as what was stated."
    yield from facts(advice, more, factor, (answer, why))
    tried = f"Of {document['points']:,} settings, {document['simulated']} were simulated"
    if document["complete"] and not advice["reason"]:
        yield Fact(
            "Is there anything better?", "none of these", f"{tried}; bounds exclude the others."
        )
    else:
        less = f"{1 - document['bound_us'] / (time or inf):.1%}"
        more = f"{tried}; no setting of these is more than {less} faster."
        yield Fact("Is there anything better?", "perhaps", more)
    yield Fact(
        "How fast can it get?", f"{us(document['floor_us'])} at best",
        "No setting takes less: links alone need that long, or compute.",
    )  # fmt: skip


def _settings(document: Written, advice: Written) -> Section:
    rows, files = document["rows"], document["files"].items()
    blocks: list[Block] = [Code(text.rstrip("\n"), name) for name, text in files]
    shown = rows[:_SHOWN]
    marks = [mark(advice, row["setting"]) for row in shown]
    about = f"The fastest {len(shown)} simulated settings. {colour_words(marks)}"
    table = _ROW.table(rows, on="html")
    blocks.append(bars(about, table, shown, "setting", "time_us", marks))
    return Section("choice", "What to set", tuple(blocks))


def _curve(document: Written) -> Iterable[Section]:
    curve = document.get("curve") or []
    if len(curve) < 2:
        return
    default = document["default"]["time_us"]
    points = [(each["bucket_bytes"], each["time_us"]) for each in curve]
    lines: list[dict[str, Any]] = [
        {"name": "the best setting with buckets of this size", "points": points},
        {"name": "default", "points": [(x, default) for x, _ in points], "dashed": True,
         "today": True},
        {"name": "no setting takes less",
         "points": [(x, document["floor_us"]) for x, _ in points], "dashed": True},
    ]  # fmt: skip
    data = {"x": "bytes", "y": "us", "name_x": "size of a bucket", "name_y": "time", "lines": lines}
    about = "The time over the size of buckets, all else as in the best setting."
    chart = Chart("curves", about, data, _PLACE.table(curve), 360)
    yield Section("bucket-sizes", "Over bucket sizes", (chart,))
