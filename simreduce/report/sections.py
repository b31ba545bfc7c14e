"""Sections that pages of several kinds share."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

from simreduce import units
from simreduce.engine import Calibration
from simreduce.engine.calibrate import unit_of
from simreduce.export import Exported
from simreduce.files import tables
from simreduce.planners import packing
from simreduce.planners.algorithms import ALGORITHMS
from simreduce.report.blocks import (
    Attachments,
    Block,
    Chart,
    Code,
    Paragraph,
    Picture,
    Rows,
    Section,
    Written,
    timeline_chart,
)
from simreduce.report.headings import LINK, MEASURED
from simreduce.report.plots import Facet, PlotPoint, PlotSeries
from simreduce.report.plots.axes import Axis, log_ends
from simreduce.study.advice import strategy_of

_LINES = 40
"""Longer files are written by a command."""

_REASONS = 3
"""Reasons that are shown at most."""


def us(microseconds: float) -> str:
    """A time of a document in words."""
    return units.format_duration(microseconds * 1e-6)


def machine_section(beside: Attachments) -> Iterable[Section]:
    """The machine, under load if loads are known: of a step or an update as a whole, or else of the
    plan that is explained.
    """
    from simreduce.report.pictures import (  # noqa: PLC0415 - only pages need networkx
        heat_picture,
        machine_picture,
    )

    machine, found = beside.machine, beside.look or beside.explanation
    if machine is None:
        return
    about = f"{machine.name}: {machine.title}." if machine.title else f"{machine.name}."
    if found is None or not found["links"]:
        more = (Paragraph(found["missing"]),) if found and found.get("missing") else ()
        yield Section("machine", "Machine", (Picture(machine_picture(machine), about), *more))
        return
    loads = {each["name"]: each["share"] for each in found["links"]}
    busy = [each for each in found["links"] if each["share"] > 0]
    most = f" The busiest is {busy[0]['name']}: {busy[0]['share']:.0%} of the time." if busy else ""
    words = f"{about} How busy each link and memory is while {_who(found)}.{most}"
    table = LINK.table(busy, on="html")
    caption = f"All {len(busy)} links and memories that carry something, busiest first"
    yield Section(
        "machine",
        "Machine and load",
        (Picture(heat_picture(machine, loads), words), Rows(caption, table, folded=True)),
    )


def _who(found: Written) -> str:
    """Words for the work that keeps links busy."""
    if "spent" in found:
        return "updates are made"
    what = "a step of " if "path" in found else ""
    return f"{what}{found['strategy']} runs"


def timeline_section(beside: Attachments, words: str) -> Iterable[Section]:
    """The timeline, if there is one."""
    if beside.timeline is not None and beside.timeline.bars:
        yield Section("timeline", "Timeline", (timeline_chart(beside.timeline, words),))


def record_section(document: Written) -> Iterable[Section]:
    """What the record of a job does not say; nothing of other jobs."""
    if lines := document.get("record"):
        sentences = " ".join(f"{line[0].upper()}{line[1:]}." for line in lines)
        yield Section("record", "What the record does not say", (Paragraph(sentences),))


def calibration_section(beside: Attachments, document: Written) -> Iterable[Section]:
    """Where the constants come from, and how far off they are."""
    name, found = document["calibration"], beside.calibration
    about = f"{name}. Its file is not at hand here"
    if found is not None:
        about = tables.label(found.name, found.title)
    blocks: list[Block] = [
        Paragraph(f"Calibration {about}."),
        Paragraph(error_words(beside.factor)),
    ]
    if nominal := _text(document, "nominal"):
        blocks.append(Paragraph(f"{nominal[0].upper()}{nominal[1:]}."))
    if found is not None and found.provenance:
        table = tables.texts("what|where it comes from", found.provenance.items())
        blocks.append(Rows(f"Provenance of {found.name}", table))
    if found is not None and (constants := _constants(found)):
        columns = tables.columns("constant|value|standard error", left="constant")
        blocks.append(Rows(f"Constants of {found.name}", tables.Table(columns, constants)))
    yield Section("calibration", "Calibration and its error", tuple(blocks))


def error_words(factor: float | None) -> str:
    """How far off predictions of NCCL are."""
    if factor is None:
        return (
            "No published timings say how far off these predictions are. The command simreduce "
            "accuracy compares others with published timings."
        )
    return (
        f"80% of published times of NCCL on such machines are within a factor of {factor:.2f} of "
        "predictions. Half of the published tables took no part in any fit; the command simreduce "
        "accuracy lists them all."
    )


def show_constant(name: str, value: float) -> str:
    """A constant of a calibration by its dotted name, with its unit."""
    unit = unit_of(name)
    if unit == "time":
        return units.format_duration(value)
    return units.format_bandwidth(value) if unit == "rate" else f"{value:.3g}"


def _constants(found: Calibration) -> tuple[tuple[str, str, str], ...]:
    """Costs of ops and figures of links, each with its standard error if it has one."""
    values: dict[str, float | None] = {f"dispatch.{key}": v for key, v in found.dispatch.items()}
    values |= {f"issue.{key}": v for key, v in found.issue.items()}
    for name, link in found.links.items():
        values |= {f"links.{name}.bandwidth": link.bandwidth, f"links.{name}.latency": link.latency}
    return tuple(
        (
            name,
            show_constant(name, value),
            show_constant(name, found.errors[name]) if name in found.errors else "",
        )
        for name, value in values.items()
        if value is not None
    )


def _text(document: Written, key: str) -> str:
    """The text of a key, "" where there is none."""
    return str(document.get(key) or "")


def repeat_section(
    beside: Attachments, document: Written, more: Sequence[tuple[str, str]] = ()
) -> Iterable[Section]:
    """Commands, versions and digests."""
    found = beside.explanation or {}
    facts = [
        ("simreduce", str(document["version"])),
        *beside.versions.items(),
        ("machine", _text(document, "topology")),
        ("digest of the machine", _text({**found, **document}, "topology_digest")),
        ("runtime", _text(document, "runtime")),
        ("calibration", _text(document, "calibration")),
        ("disturbance", _text(document, "disturbance")),
        *more,
    ]
    table = tables.texts("what|which", (fact for fact in facts if fact[1]))
    commands = tuple(Code("\n".join(texts), about) for about, texts in beside.commands)
    files = tuple(
        Code(text.rstrip("\n"), f"Content of {name}") for name, text in beside.files.items()
    )
    if not commands:
        commands = (Code(f"simreduce {document['command']} ... --json", "Kind of document"),)
    yield Section("repeat", "Repeat it", (*commands, *files, Rows("Versions and digests", table)))


def _meanings(text: str) -> Iterator[tuple[str, str]]:
    """The parts of a strategy's name with their meanings; a method may stand before it."""
    strategy = strategy_of(text)
    if strategy is None:
        return
    for each in strategy.ranges:
        with suppress(KeyError):  # rules of TensorFlow are no algorithms
            yield each.algorithm, ALGORITHMS[each.algorithm].summary
    packer = strategy.packing.partition("=")[0]
    if packer in packing.SUMMARIES:
        yield f"+{packer}", packing.SUMMARIES[packer]
    if strategy.chunk:
        yield "+chunk", "a pipeline, in chunks of so many bytes"


def meaning(strategy: str) -> str:
    """The meaning of a strategy as a sentence; "" where its parts are not known."""
    words = "; ".join(meaning for _, meaning in _meanings(strategy))
    return f"{words[0].upper()}{words[1:]}." if words else ""


def names_block(strategies: Iterable[str]) -> Iterator[Rows]:
    """A folded table of the parts of these names."""
    found = dict(part for text in strategies for part in _meanings(text))
    if found:
        table = tables.texts("part of a name|what it does", found.items())
        yield Rows("What these names mean", table, folded=True)


def copy_section(
    exports: Sequence[Exported], strategy: str, times: Mapping[str, str] = MappingProxyType({})
) -> Iterable[Section]:
    """The section with settings to paste, if there are any; `times` in words, by strategy."""
    if exports:
        yield Section("paste", "What to paste", tuple(_blocks(exports, strategy, times)))


def _blocks(
    exports: Sequence[Exported], strategy: str, times: Mapping[str, str]
) -> Iterable[Block]:
    """The files of each system that has a setting for a strategy, and a folded table of those that
    have none.
    """
    for each in exports:
        time = f", {times[each.instead]}" if each.instead in times else ""
        about = f"{each.title} with {each.instead}{time}: " if each.instead else f"{each.title}: "
        for name, text in each.files.items():
            lines = text.count("\n")
            if lines <= _LINES:
                yield Code(text.rstrip("\n"), f"{about}{name}")
            else:
                yield Code(
                    _ask(each.name, each.instead or strategy), f"{about}{name}, {lines} lines, by"
                )
    without = [each for each in exports if each.reasons]
    if not without:
        return
    rows = [(e.title, "; ".join(e.reasons[:_REASONS]), e.nearest or "none") for e in without]
    table = tables.texts("system|why it has no setting|nearest with one", rows)
    names = ", ".join(each.title for each in without)
    yield Rows(f"No setting for {strategy}: {names}", table, folded=True)


def _ask(target: str, strategy: str) -> str:
    """The command that writes the files of a strategy, or of a method and its strategy."""
    method, _, algo = strategy.rpartition(", ")
    words = ["simreduce", "export", target, "SCENARIO", "--algo", algo, "--out", "DIR"]
    return shlex.join([*words, "--method", method] if method else words)


def measured_words(document: Written) -> str:
    """Which of them was fastest, and how far off predictions were, in a sentence; "" if nothing was
    measured.
    """
    right = [row for row in document.get("measured") or () if not row["faults"]]
    if not right:
        return ""
    best = min(right, key=lambda row: row["time_us"])
    words = f"Measured on {_where(document)}: {best['strategy']} is fastest, {us(best['time_us'])}"
    if errors := prediction_errors(right):
        words += f"; predictions for these devices are at most {errors[-1]:.0%} off"
    return f"{words}."


def measured_section(document: Written) -> Iterable[Section]:
    """Measured times, if somebody asked for them."""
    if "measured" not in document:
        return
    rows = document["measured"]
    if not rows:
        words = "Measuring failed or was stopped; what was simulated is whole."
        yield Section("measured", "Measured", (Paragraph(words),))
        return
    table = MEASURED.table(rows)
    right = ((row["strategy"], row) for row in rows if not row["faults"])
    blocks = Paragraph(_measured_about(document, rows)), measured_block(right, table)
    yield Section("measured", "Measured", blocks)


def _measured_about(document: Written, rows: Sequence[Written]) -> str:
    equal = document.get("not_told_apart", [])
    more = ""
    if len(equal) > 1:
        more = f" Measuring does not tell apart {', '.join(equal)}."
    wrong = sum(1 for row in rows if row["faults"])
    if wrong:
        more += f" {units.plural(wrong, 'candidate')} gave wrong results or failed; see the table."
    return (
        f"The first {len(rows)} of the ranking, timed in turns on {_where(document)}. Predictions "
        f"in this section are for these devices, not for {document['topology']}.{more}"
    )


def _where(document: Written) -> str:
    """The devices, as far as the document names them."""
    found = document.get("measured_on")
    settings = found.get("settings", {}) if found else {}
    known = [f"{settings['backend']} devices"] if settings.get("backend") else ["real devices"]
    if settings.get("simulated"):
        known.append(f"taken to be {settings['simulated']}")
    return ", ".join(known)


def prediction_errors(rows: Iterable[Written]) -> list[float]:
    """How far off predictions are, as parts of what was measured, the least first."""
    known = [row for row in rows if row["predicted_time_us"] is not None and row["time_us"]]
    return sorted(
        abs(float(row["predicted_time_us"]) / float(row["time_us"]) - 1.0) for row in known
    )


def measured_block(
    rows: Iterable[tuple[str, Written]], table: tables.Table, what: str = "Measured times"
) -> Block:
    """Measured over predicted times of named rows, or the table where nothing is predicted."""
    groups: dict[str, list[PlotPoint]] = {}
    for name, row in rows:
        if row["predicted_time_us"] is not None:
            size = units.format_size(row["size_bytes"]) if "size_bytes" in row else ""
            x, y = row["predicted_time_us"] * 1e-6, row["time_us"] * 1e-6
            groups.setdefault(name, []).append(PlotPoint(x, y, label=size))
    if not groups:
        return Rows("Measured times", table)
    words = f"{what} over predicted ones. On the dashed line both are equal."
    every = [time for points in groups.values() for point in points for time in point[:2]]
    equal = [PlotPoint(end, end) for end in (log_ends(every) if min(every) > 0 else ())]
    series = [PlotSeries(name, points, "") for name, points in groups.items()]
    series.append(PlotSeries("equal", equal, "dashed", "", "ink"))
    axes = Axis("predicted", "seconds"), Axis("measured", "seconds")
    return Chart(words, Facet(*axes, series), table)
