"""Reads the documents that a page is made of."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from simreduce.errors import InputError
from simreduce.files.formats.json import read_json
from simreduce.report.pages.kinds import check_kinds

Document = Mapping[str, Any]


def read_document(text: str, place: str) -> Document:
    """Read what `--json` printed, or what `simreduce validate --out` kept, line by line.

    Raises InputError with every value that is not as the command writes it.
    """
    try:
        found = read_json(text, f"{place}: is no JSON document")
    except InputError:
        lines = [_line(line) for line in text.splitlines() if line.strip()]
        if len(lines) < 2 or not all(lines):
            raise
        found = _of_records([line for line in lines if line], place)
    if not isinstance(found, dict):
        raise InputError(f"{place}: is no document of simreduce: it must be a JSON object")
    document: Document = _of_records([found], place) if found.get("record") == "run" else found
    check_kinds(document, place)
    return document


def _line(text: str) -> dict[str, Any] | None:
    try:
        found = read_json(text, "")
    except InputError:
        return None
    return found if isinstance(found, dict) else None


def _of_records(lines: Sequence[Document], place: str) -> dict[str, Any]:
    """The records of a validation as its document; a candidate without samples has no row."""
    try:
        return _document(lines)
    except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
        raise InputError(f"{place}: is no file of simreduce validate --out: {error!r}") from None


def _document(lines: Sequence[Document]) -> dict[str, Any]:
    run = lines[0]
    provenance = run["provenance"]
    samples: dict[int, list[float]] = {}
    wrong: dict[int, list[str]] = {}
    candidates = [line for line in lines if line["record"] == "candidate"]
    for line in lines:
        if line["record"] == "sample":
            samples.setdefault(line["id"], []).append(float(line["us"]))
        elif line["record"] == "checked":
            wrong[line["id"]] = list(line["faults"])
    rows = []
    for line in candidates:
        mine = samples.get(line["id"])
        if not mine or line["then_us"] is not None:  # or a control
            continue
        rows.append(
            {
                "size_bytes": line["size_bytes"],
                "algorithm": line["algorithm"],
                "time_us": statistics.median(mine),
                "low_us": min(mine),
                "high_us": max(mine),
                "predicted_time_us": line["predicted_us"],
                "wrong": len(wrong.get(line["id"], [])),
            }
        )
    return {
        "command": "validate",
        "version": str(provenance.get("simreduce", "")),
        "topology": str(provenance.get("topology", "")),
        "ranks": int(provenance.get("ranks", 0)),
        "backend": str(provenance.get("backend", "")),
        "route": str(provenance.get("route", "")),
        "runtime": str(provenance.get("runtime", "")),
        "calibration": str(provenance.get("calibration", "")),
        "provenance": provenance,
        "rows": rows,
    }
