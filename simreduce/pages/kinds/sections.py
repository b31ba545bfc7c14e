"""Sections that pages of several kinds share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from simreduce import tables, units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.timeline import draw_timeline
from simreduce.pages.values import Block, Chart, Code, Paragraph, Picture, Rows, Section
from simreduce.pictures import heat_picture, machine_picture
from simreduce.tables import Table

Document = Mapping[str, Any]

_MOST_LINKS = 12


def us(microseconds: float) -> str:
    """A time of a document in words."""
    return units.format_duration(microseconds * 1e-6)


def machine_section(beside: Beside) -> Iterable[Section]:
    """The machine, under load if loads are known: of a step or an update as a whole, or else of the
    plan that is explained.
    """
    machine, found = beside.machine, beside.look or beside.explanation
    if machine is None:
        return
    about = f"{machine.name}: {machine.title}." if machine.title else f"{machine.name}."
    if found is None or not found["links"]:
        more = (Paragraph(found["missing"]),) if found and found.get("missing") else ()
        drawing = machine_picture(machine)
        yield Section("machine", "Machine", (Picture(drawing, about), *more))
        return
    loads = {each["name"]: each["share"] for each in found["links"]}
    busy = [each for each in found["links"] if each["share"] > 0]
    most = f" The busiest is {busy[0]['name']}: {busy[0]['share']:.0%} of the time." if busy else ""
    words = f"{about} How busy each link and memory is while {_who(found)}.{most}"
    rows = tuple(
        (each["name"], f"{each['share']:.1%}", units.format_size(round(each["bytes"])))
        for each in busy
    )
    table = Table(tables.columns("link or memory|busy|carries", left="link or memory"), rows)
    caption = f"All {len(rows)} links and memories that carry something, busiest first"
    yield Section(
        "machine",
        "Machine and load",
        (Picture(heat_picture(machine, loads), words), Rows(caption, table, folded=True)),
    )


def _who(found: Document) -> str:
    """What keeps links busy."""
    if "spent" in found:
        return "updates are made"
    what = "a step of " if "path" in found else ""
    return f"{what}{found['strategy']} runs"


def timeline_section(beside: Beside, words: str) -> Iterable[Section]:
    """The timeline, if there is one."""
    if beside.timeline is None or not beside.timeline.bars:
        return
    yield Section("timeline", "Timeline", (draw_timeline(beside.timeline, words),))


def sizes_section(
    beside: Beside, document: Document | None = None, today: str = ""
) -> Iterable[Section]:
    """Curves over size with the highest bound of the plans; `today` is what runs today."""
    found = beside.sizes if document is None else document
    if found is None or not found["rows"]:
        return
    lines: dict[str, list[tuple[float, float]]] = {}
    bound: dict[float, float] = {}
    for row in found["rows"]:
        name = row["algorithm"].split("+chunk=")[0]
        size, rate = row["size_bytes"], row["busbw_gb_per_s"]
        lines.setdefault(name, []).append((size, rate))
        reach = rate * row["time_us"] / row["floor_us"] if row["floor_us"] else 0.0
        bound[size] = max(bound.get(size, 0.0), reach)
    shown: list[dict[str, Any]] = [
        {"name": f"{name} (runs today)", "points": points, "today": True}
        if name == today
        else {"name": name, "points": points}
        for name, points in list(lines.items())[:6]
    ]
    shown.append(
        {"name": "highest bound of these plans", "points": sorted(bound.items()), "dashed": True}
    )
    columns = tables.columns(
        "size|algorithm|time|bus bandwidth|at least|80% of measured times",
        units="||(us)|(GB/s)|(us)|(us)",
        left="algorithm|80% of measured times",
    )
    rows = tuple(
        (
            units.format_size(row["size_bytes"]),
            row["algorithm"],
            f"{row['time_us']:.2f}",
            f"{row['busbw_gb_per_s']:.2f}",
            f"{row['floor_us']:.2f}",
            f"{row['low_us']:.2f} to {row['high_us']:.2f}" if row["low_us"] else "",
        )
        for row in found["rows"]
    )
    collective = found["collective"].replace("_", "-")
    words = (
        f"Bus bandwidth of one {collective} of one tensor over its size, on {found['topology']}. "
        "The dotted line is what no run of the best of these plans can exceed."
    )
    table = Table(columns, rows)
    if len(bound) == 1:
        yield Section("sizes", "At one size", (_at_one_size(found, table),))
        return
    data = {
        "x": "bytes",
        "y": "rate",
        "log": True,
        "name_x": "size",
        "name_y": "bus bandwidth",
        "lines": shown,
    }
    yield Section("sizes", "Over sizes", (Chart("curves", words, data, table, 400),))


def _at_one_size(found: Document, table: Table) -> Chart:
    """Bars instead of curves of one point each."""
    shown = sorted(found["rows"], key=lambda row: float(row["time_us"]))[:15]
    collective = found["collective"].replace("_", "-")
    size = units.format_size(shown[0]["size_bytes"])
    words = (
        f"Time of one {collective} of {size} on {found['topology']}. Blue: the fastest. The tick "
        "is what no run of the plan can take less than."
    )
    data = {
        "unit": "us",
        "names": [row["algorithm"].split("+chunk=")[0] for row in shown],
        "values": [row["time_us"] for row in shown],
        "floors": [row["floor_us"] for row in shown],
        "marks": [1, *[0] * (len(shown) - 1)],
    }
    return Chart("bars", words, data, table, 26 * len(shown) + 46)


def calibration_section(beside: Beside, document: Document) -> Iterable[Section]:
    """Where the constants come from, and how far off they are."""
    name, found = document["calibration"], beside.calibration
    blocks: list[Block] = []
    if found is None:
        blocks.append(Paragraph(f"Calibration {name}. Its file is not at hand here."))
    else:
        blocks.append(Paragraph(f"Calibration {tables.label(found.name, found.title)}."))
    blocks.append(Paragraph(error_words(beside.factor)))
    if found is not None and found.provenance:
        columns = tables.columns("what|where it comes from", left="what|where it comes from")
        rows = tuple((key, text) for key, text in found.provenance.items())
        blocks.append(Rows(f"Provenance of {found.name}", Table(columns, rows)))
    if found is not None and (constants := _constants(beside)):
        columns = tables.columns("constant|value|standard error", left="constant")
        blocks.append(Rows(f"Constants of {found.name}", Table(columns, constants)))
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


def _constants(beside: Beside) -> tuple[tuple[str, ...], ...]:
    found = beside.calibration
    if found is None:
        return ()
    rows: list[tuple[str, float, Callable[[float], str]]] = [
        (f"dispatch.{k}", v, units.format_duration) for k, v in found.dispatch.items()
    ]
    for name, link in found.links.items():
        if link.bandwidth is not None:
            rows.append((f"links.{name}.bandwidth", link.bandwidth, units.format_bandwidth))
        if link.latency is not None:
            rows.append((f"links.{name}.latency", link.latency, units.format_duration))
    return tuple(
        (key, form(value), form(found.errors[key]) if key in found.errors else "")
        for key, value, form in rows
    )


def _text(document: Document, key: str) -> str:
    """The text of a key, "" where there is none."""
    return str(document.get(key) or "")


def repeat_section(
    beside: Beside, document: Document, more: Sequence[tuple[str, str]] = ()
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
    columns = tables.columns("what|which", left="what|which")
    table = Table(columns, tuple(fact for fact in facts if fact[1]))
    commands = tuple(Code("\n".join(texts), about) for about, texts in beside.commands)
    files = tuple(
        Code(text.rstrip("\n"), f"Content of {name}") for name, text in beside.files.items()
    )
    if not commands:
        commands = (Code(f"simreduce {document['command']} ... --json", "Kind of document"),)
    yield Section("repeat", "Repeat it", (*commands, *files, Rows("Versions and digests", table)))
