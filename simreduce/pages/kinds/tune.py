"""The page of a search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from simreduce import tables, units
from simreduce.pages.kinds.beside import Beside
from simreduce.pages.kinds.defaults import advise, faster, faster_than, sure_fact, sure_words
from simreduce.pages.kinds.limits import help_section, path_section
from simreduce.pages.kinds.measured import measured_section, measured_words
from simreduce.pages.kinds.sections import (
    calibration_section,
    machine_section,
    repeat_section,
    sizes_section,
    us,
)
from simreduce.pages.values import Block, Chart, Code, Fact, Page, Section
from simreduce.tables import Table

Document = Mapping[str, Any]

_SHOWN = 10


def tune_page(document: Document, beside: Beside) -> Page:
    """The page of `simreduce tune --json`."""
    factor, target = document["factor"], _target(document)
    found = replace(beside, factor=factor)
    apart = None if _same(document) else document["told_apart"]
    gpus = units.plural(document["ranks"], "GPU")
    size = units.format_size(document["size_bytes"])
    sure = sure_words(factor, document["calibration"], apart)
    return Page(
        title=f"{document['workload']} on {document['topology']}: best setting for {target}",
        about=f"{document['workload']} ({size}) on {document['topology']}, {gpus}; "
        f"{document['points']:,} settings.",
        answer=_answer(document),
        sure=f"{sure} {measured_words(document)}".strip(),
        facts=tuple(_facts(document, factor, apart)),
        sections=(
            _settings(document),
            *measured_section(document),
            *_curve(document),
            *machine_section(found),
            *path_section(found),
            *help_section(found),
            *sizes_section(found),
            *calibration_section(found, document),
            *repeat_section(found, document),
        ),
    )


_TARGETS = {
    "pytorch": "PyTorch", "tensorflow": "TensorFlow", "horovod": "Horovod",
    "deepspeed": "DeepSpeed", "nccl": "NCCL", "jax": "JAX",
}  # fmt: skip


def _target(document: Document) -> str:
    """The name as its makers write it."""
    return _TARGETS.get(document["target"], str(document["target"]))


def _same(document: Document) -> bool:
    """Whether the best is the default."""
    return bool(document["best"]["setting"] == document["default"]["setting"])


def _answer(document: Document) -> str:
    best, default, target = document["best"], document["default"], _target(document)
    what = "a training step" if document["objective"] == "step" else "one all-reduce"
    took = f"{what} takes {us(best['time_us'])}"
    if _same(document):
        return f"Keep the default of {target}, {best['setting']}: {took}."
    ratio = faster_than(best["time_us"], default["time_us"])
    beside = f"{ratio} the default ({default['setting']}, {us(default['time_us'])})"
    what, apart = f"Set {best['setting']} for {target}", document["told_apart"]
    return advise(what, took, beside, "the default", apart=apart)


def _facts(document: Document, factor: float | None, apart: bool | None) -> Iterable[Fact]:
    best, default = document["best"], document["default"]
    took = us(best["time_us"])
    yield Fact(
        "What should I run?", best["setting"], f"{took}. The next section has what to paste."
    )
    yield Fact(
        "How much faster than today?",
        "it is the default" if _same(document) else faster(best["time_us"], default["time_us"]),
        f"Default: {default['setting']}, {us(default['time_us'])}.",
    )
    yield Fact("How sure is that?", *sure_fact(factor, apart))
    tried = f"Of {document['points']:,} settings, {document['simulated']} were simulated"
    if document["complete"]:
        yield Fact("Is there anything better?", "no", f"{tried}; bounds exclude all others.")
    else:
        less = f"{1 - document['bound_us'] / best['time_us']:.1%}"
        more = f"{tried}; no setting is more than {less} faster."
        yield Fact("Is there anything better?", "perhaps", more)
    yield Fact("What is the bound?", us(document["floor_us"]), "Nothing here takes less.")


def _settings(document: Document) -> Section:
    rows, best, default = document["rows"], document["best"], document["default"]
    files = document["files"].items()
    blocks: list[Block] = [Code(text.rstrip("\n"), name) for name, text in files]
    names = "setting|slower by more than the error"
    columns = tables.columns(names.replace("|", "|time|"), units="|(ms)|", left=names)
    words = {True: "yes", False: "no", None: "not known"}
    cells = tuple(
        (row["setting"], f"{row['time_us'] / 1e3:.3f}", words[row.get("told_apart")])
        for row in rows
    )
    shown = rows[:_SHOWN]
    marks = {default["setting"]: 2, best["setting"]: 1}
    data = {
        "unit": "us",
        "names": [row["setting"] for row in shown],
        "values": [row["time_us"] for row in shown],
        "marks": [marks.get(row["setting"], 0) for row in shown],
    }
    about = f"The fastest {len(shown)} simulated settings. Blue: the best; orange: the default."
    blocks.append(Chart("bars", about, data, Table(columns, cells), 26 * len(shown) + 46))
    return Section("choice", "What to set", tuple(blocks))


def _curve(document: Document) -> Iterable[Section]:
    curve = document.get("curve") or []
    if len(curve) < 2:
        return
    default = document["default"]["time_us"]
    points = [(each["bucket_bytes"], each["time_us"]) for each in curve]
    rows = tuple(
        (
            units.format_size(each["bucket_bytes"]),
            f"{each['time_us'] / 1e3:.3f}",
            "exactly" if each["exact"] else "about" if each.get("estimated") else "at least",
        )
        for each in curve
    )
    table = Table(tables.columns("bucket|time|known", units="|(ms)|"), rows)
    lines: list[dict[str, Any]] = [
        {"name": "the best setting with buckets of this size", "points": points},
        {"name": "default", "points": [(x, default) for x, _ in points], "dashed": True,
         "today": True},
        {"name": "bound", "points": [(x, document["floor_us"]) for x, _ in points], "dashed": True},
    ]  # fmt: skip
    data = {"x": "bytes", "y": "us", "name_x": "size of a bucket", "name_y": "time", "lines": lines}
    about = "The time over the size of buckets, all else as in the best setting."
    yield Section("bucket-sizes", "Over bucket sizes", (Chart("curves", about, data, table, 360),))
