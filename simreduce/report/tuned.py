"""`simreduce tune`: the best setting as a document, as a plot, and as a report for terminals and
pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import inf

from simreduce import units
from simreduce.computing.lists import group_by
from simreduce.export.framework import METHODS
from simreduce.export.frameworks import TUNED
from simreduce.files.formats.documents import (
    ABSENT,
    ANYTHING,
    BYTES,
    COUNT,
    FLAG,
    INTEGER,
    MICROSECONDS,
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
    TIME,
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
    page_text,
    table_section,
)
from simreduce.report.explain import help_section, path_section
from simreduce.report.headings import (
    ACTIVATIONS_KEY,
    ADVICE,
    BY_BUDGET,
    DISTURBED,
    FACTOR_KEYS,
    HEAD_KEYS,
    HURRIED_KEY,
    MEASURED_KEY,
    MOVED_KEY,
    caution,
    facts,
    header,
    mark,
    page_title,
    sentence,
    sure,
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
from simreduce.study.tune.search.targets import OBJECTIVES
from simreduce.study.tune.search.tune import advice_of
from simreduce.study.tune.search.tuned import NEAR, Tuned
from simreduce.training.sharded import DDP

_SHOWN = 10
"""Rows of the table."""


_FEW = 2
"""Rules that are shown in a line."""

_TAKES = {"time": "one all-reduce", "step": "a training step"}


def tuned_text(found: Tuned, why: Iterable[str] = ()) -> str:
    """The report, with what its document lacks, and `why` there is nothing to paste."""
    w = found.scenario.workload
    gradients = units.plural(len(w.gradients), "gradient")
    workload = [("workload", f"{w.name}: {gradients}, {units.format_size(w.nbytes)}")]
    head = header(found, workload, f"time of {_TAKES[found.objective]}")
    more = [*_asides(found), *(f"Nothing to paste: {reason}" for reason in why)]
    return page_text(tune_report(TUNE.write(found)), more, head=head, most=_SHOWN)


def files_text(files: Mapping[str, str]) -> str:
    """Files to paste, each below its name."""
    return "".join(f"\n# {name}\n{content.rstrip()}\n" for name, content in files.items())


def _asides(found: Tuned) -> Iterator[str]:
    """The memory of a GPU, what the update has of what sharding saves, and ticks of Horovod."""
    step, fit = found.scenario.step, found.advised.fit
    if fit and fit.fits is not None:
        yield f"A GPU {fit.words}."
    if step and step.job.update and any(n in METHODS and n != DDP for n in found.by_method):
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
    step = document["objective"] == "step"
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
        answer=sentence(advice, _TAKES["step" if step else "time"]),
        sure=f"{told} {measured_words(document)}".strip(),
        facts=tuple(_facts(document, advice)),
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


def _factor(document: Written) -> float | None:
    """Predictions of the advised setting are within this factor."""
    factor: float | None = document["factor"]
    return factor if runs_nccl(document["advised"]["strategy"]) else None


def _facts(document: Written, advice: Written) -> Iterator[Fact]:
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
        why += " That is of the communication; compute is an input, as sure as what was stated."
    yield from facts(advice, more, factor, (answer, why))
    yield from _methods(document["rows"])
    tried = f"Of {document['points']:,} settings, {document['simulated']} were simulated"
    if document.get("calls"):
        tried += f", with {units.plural(document['calls'], 'single call')}"
    if document.get("unfit"):
        tried += f"; {document['unfit']:,} do not fit"
    if document["complete"] and not advice["reason"]:
        answer, more = "none of these", f"{tried}; bounds exclude the others."
    else:
        less = f"{1 - document['bound_us'] / (time or inf):.1%}"
        answer, more = "perhaps", f"{tried}; no setting of these is more than {less} faster."
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
    found = group_by(rows, lambda row: row["method"])
    words = [
        f"{METHODS.get(name, name)} {us(row['time_us'])}"
        f"{' (does not fit)' * (row['fits'] is False)}"
        for name, (row, *_) in found.items()
    ]
    if len(words) > 1:
        yield Fact("And the other methods?", ", ".join(words))


def _settings(document: Written, advice: Written) -> Section:
    files = document["files"].items()
    blocks: list[Block] = [Code(text.rstrip("\n"), name) for name, text in files]
    shown = document["rows"][:_SHOWN]
    marks = [mark(advice, row["setting"]) for row in shown]
    about = f"The fastest {len(shown)} simulated settings. {colour_words(marks)}"
    blocks.append(bars(about, _settings_table(document), shown, "setting", "time_us", marks))
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
