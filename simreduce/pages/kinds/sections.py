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
    """The machine, under load if loads are known."""
    machine, found = beside.machine, beside.explanation
    if machine is None:
        return
    about = f"{machine.name}: {machine.title or machine.name}, content {machine.digest}."
    if found is None:
        drawing = machine_picture(machine)
        yield Section("machine", "Machine", (Picture(drawing, about),))
        return
    loads = {each["name"]: each["share"] for each in found["links"]}
    busy = [each for each in found["links"] if each["share"] > 0]
    most = f" The busiest is {busy[0]['name']}: {busy[0]['share']:.0%} of the time." if busy else ""
    words = f"{about} How busy each link and memory is while {found['strategy']} runs.{most}"
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


def timeline_section(beside: Beside, words: str) -> Iterable[Section]:
    """The timeline, if there is one."""
    if beside.timeline is None or not beside.timeline.bars:
        return
    yield Section("timeline", "Timeline", (draw_timeline(beside.timeline, words),))


_OPS = {"copy": "copies", "add": "additions", "concat": "concatenations"}
_CAUSES = {
    "bandwidth": "bandwidth of {}",
    "bandwidth share": "sharing {} with other transfers",
    "latency": "latency of {}",
    "dispatch": "starting {}",
    "release": "waiting for the gradients",
    "lane wait": "waiting for {}",
}


def spent(found: Document) -> list[tuple[str, float]]:
    """What the critical path is spent on, by class of link: words and microseconds, most first.

    Waits for a lane count as what its holder did then.
    """
    sums: dict[str, float] = {}
    for part in found["critical_path"]["causes"]:
        cause, where = part["cause"], part["where"]
        if part["meanwhile"]:
            cause, where = part["meanwhile"], part["at"]
        words = _CAUSES.get(cause, "{}").format(_class_words(where, cause))
        sums[words] = sums.get(words, 0.0) + part["time_us"]
    return sorted(sums.items(), key=lambda item: (-item[1], item[0]))


def _class_words(where: str, cause: str) -> str:
    name = where.rsplit(" ", 1)[-1]
    if not name:
        return "the wires"
    if cause in ("dispatch", "release"):
        return _OPS.get(name, name)
    return "memory" if name == "memory" else f"{name} links"


def path_section(beside: Beside) -> Iterable[Section]:
    """What bounds the time."""
    found = beside.explanation
    if found is None:
        return
    parts = spent(found)
    whole = found["time_us"]
    columns = tables.columns("spent on|time|of the time", units="|(us)|", left="spent on")
    rows = tuple((words, f"{time:.2f}", f"{time / whole:.1%}") for words, time in parts)
    shown = [*parts[:5], *([("other", sum(t for _, t in parts[5:]))] if len(parts) > 5 else [])]
    ops = units.plural(found["critical_path"]["ops"], "operation")
    chart = Chart(
        "stack",
        f"The critical path of {found['strategy']}: a chain of {ops}, each of which begins when "
        f"the one before lets it. Its {us(whole)} are spent on:",
        {"unit": "us", "parts": [{"name": n, "value": t} for n, t in shown if t > 0]},
        Table(columns, rows),
        130,
    )
    floors = [
        ("the longest chain of operations, each alone", found["floors"]["critical_path_us"]),
        ("the most loaded link or memory at its full rate", found["floors"]["resource_us"]),
        ("the most loaded lane", found["floors"]["lane_us"]),
        ("the narrowest cut of the machine, for any algorithm", found["floors"]["cut_us"]),
    ]
    table = Table(
        tables.columns("lower bound|time|of the time", units="|(us)|", left="lower bound"),
        tuple((words, f"{time:.2f}", f"{time / whole:.1%}") for words, time in floors if time > 0),
    )
    yield Section(
        "path", "What limits it", (chart, Rows("No run of this plan takes less than", table))
    )


_SORTS = {
    "link": "{} links",
    "nic": "{} network links",
    "memory": "{}",
    "dispatch": "a {}",
    "cpu": "{} of CPU devices",
    "lane": "{}",
    "together": "{}",
}
_CHANGES = {
    ("lanes", "one more on each"): "one more lane on each of the {}",
    ("bandwidth", "+10%"): "10% more bandwidth of {}",
    ("latency", "-10%"): "10% less latency of {}",
    ("cost", "-10%"): "10% less to start {}",
    ("speed", "+10%"): "10% faster {}",
    ("queue", "none"): "no queue of {}",
}


def change_words(change: Document) -> str:
    """`one more lane on each of the ib_ndr network links`."""
    name = _SORTS.get(change["sort"], "{}").format(change["resource"])
    words = _CHANGES.get((change["figure"], change["change"]))
    return words.format(name) if words else f"{name}: {change['figure']} {change['change']}"


def help_section(beside: Beside) -> Iterable[Section]:
    """What a little more of each resource saves."""
    found = beside.explanation
    if found is None or not found["changes"]:
        return
    changes = found["changes"]
    columns = tables.columns("change|time|saves|of the time", units="|(us)|(us)|", left="change")
    rows = tuple(
        (
            change_words(c),
            f"{c['time_us']:.2f}",
            f"{c['saving_us']:.2f}",
            f"{c['saving_share']:.2%}",
        )
        for c in changes
    )
    caption = "The same plan, simulated again with one change"
    useful = [c for c in changes if c["saving_share"] > 5e-5][:10]
    if not useful:
        none = "None of these changes, by itself, makes this plan faster."
        yield Section(
            "help", "What would help", (Paragraph(none), Rows(caption, Table(columns, rows)))
        )
        return
    data = {
        "unit": "share",
        "names": [change_words(c) for c in useful],
        "values": [c["saving_share"] for c in useful],
        "marks": [1 if i == 0 else 0 for i, _ in enumerate(useful)],
    }
    words = f"{caption}: the part of the time that it saves. The table has those that save nothing."
    height = 30 * len(useful) + 50
    yield Section(
        "help", "What would help", (Chart("bars", words, data, Table(columns, rows), height),)
    )


def nic_fact(beside: Beside) -> tuple[str, str]:
    """What twice the network links would save, in a few words and a sentence."""
    found = beside.explanation
    if found is None:
        return "not known here", beside.missing or "This file has no simulated changes."
    nics = [c for c in found["changes"] if c["sort"] == "nic" and c["figure"] == "lanes"]
    if not nics:
        return "nothing", "This reduction crosses no link of a network."
    best = max(nics, key=lambda c: c["saving_share"])
    what = f"the same plan with one more lane on every {best['resource']} link"
    if best["saving_share"] < 5e-4:
        return "nothing", f"Simulated: {what} is no faster."
    return f"{best['saving_share']:.1%} less time", (
        f"Simulated: {what} takes {us(best['time_us'])} instead of {us(found['time_us'])}."
    )


def limit_fact(beside: Beside) -> tuple[str, str]:
    """What takes most of the time."""
    found = beside.explanation
    parts = spent(found) if found else []
    if found is None or not parts:
        return "not known here", beside.missing or "This file has no critical path."
    words, time = parts[0]
    more = f"{time / found['time_us']:.0%} of the critical path"
    if len(parts) > 1:
        more += f"; then {parts[1][0]}, {parts[1][1] / found['time_us']:.0%}"
    return words, f"{more}."


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
        name += " (runs today)" if name == today else ""
        size, rate = row["size_bytes"], row["busbw_gb_per_s"]
        lines.setdefault(name, []).append((size, rate))
        reach = rate * row["time_us"] / row["floor_us"] if row["floor_us"] else 0.0
        bound[size] = max(bound.get(size, 0.0), reach)
    shown: list[dict[str, Any]] = [
        {"name": name, "points": points} for name, points in list(lines.items())[:6]
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
        "The dashed line is what no run of the best of these plans can exceed."
    )
    data = {
        "x": "bytes",
        "y": "rate",
        "log": True,
        "name_x": "size",
        "name_y": "bus bandwidth",
        "lines": shown,
    }
    yield Section("sizes", "Over sizes", (Chart("curves", words, data, Table(columns, rows), 400),))


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
            "No published timings say how far off these predictions are. simreduce accuracy "
            "compares others with what was published."
        )
    return (
        f"80 % of published times of NCCL on such machines are within a factor of {factor:.2f} of "
        "what is predicted. Half of the published tables took no part in any fit; simreduce "
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
