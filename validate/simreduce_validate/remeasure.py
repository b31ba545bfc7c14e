"""The best of a ranking once more, on real devices: what `simreduce run --measure` adds.

Predictions put thousands of settings in order; among the first of them, which are often within a
few per cent, devices decide. Of strategies that measuring does not tell apart either, the one that
was predicted to be faster is recommended.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import isfinite
from typing import Any

from simreduce import units
from simreduce.cli.options import gather
from simreduce.errors import InputError
from simreduce.report import how_lines
from simreduce.scenario import Scenario
from simreduce.tune import Candidate, Ranking
from simreduce_validate.campaign import Campaign
from simreduce_validate.devices import Devices, can_run, read_devices
from simreduce_validate.measuring import Interval
from simreduce_validate.measuring.provenance import processors
from simreduce_validate.running.backend import check_tensorflow

_COPIES = 5
"""Tensors' worth of memory that a strategy takes on every rank while it is ready: what is given,
what comes out, what is between. ResNet-50 on 8 CPU devices took 4.9.
"""

_COLUMNS = ("predicted", "strategy", "here", "measured", "95 % interval", "measured", "#faults")
_UNITS = ("place", "", "(ms)", "(ms)", "(ms)", "place", "")


@dataclass(frozen=True, slots=True)
class MeasuredCandidate:
    """One of a ranking, measured. `place` is that in the ranking, from 1; `predicted` the seconds
    of one all-reduce on the devices it was measured on, which need not be those of the scenario, or
    NaN; `faults` is all that makes the measured time meaningless.
    """

    place: int
    candidate: Candidate
    predicted: float
    measured: Interval
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredRanking:
    """Some of a ranking, in its order, measured in turns; what they ran on."""

    ranking: Ranking
    rows: tuple[MeasuredCandidate, ...]
    provenance: dict[str, Any]

    @property
    def fastest(self) -> tuple[MeasuredCandidate, ...]:
        """Those without faults, by measured median."""
        right = [row for row in self.rows if not row.faults]
        return tuple(sorted(right, key=lambda row: (row.measured.value, row.place)))

    @property
    def equals(self) -> tuple[MeasuredCandidate, ...]:
        """The fastest of those that can be recommended, and those whose intervals overlap with its
        own: they are not told apart.
        """
        runnable = [row for row in self.fastest if row.candidate.runnable]
        known = runnable or self.fastest
        return tuple(row for row in known if row.measured.low <= known[0].measured.high)

    @property
    def recommended(self) -> MeasuredCandidate | None:
        """Of `equals`, the one predicted to be fastest; None if every one has faults."""
        return min(self.equals, key=lambda row: row.place, default=None)


def read(scenario: Scenario | None, **options: Any) -> Devices:
    """The devices that the options ask for, to stand for those of the scenario. InputError tells
    all that is wrong, also if there is no scenario because something else is.
    """
    problems: list[str] = []
    devices = gather(problems, read_devices, scenario, None, None, **options)
    gather(problems, check_tensorflow)
    if problems or devices is None:
        raise InputError(problems)
    return devices


def remeasure(
    ranking: Ranking, top: int, devices: Devices, iters: int | None = None
) -> MeasuredRanking:
    """Time the first `top` of a ranking in turns, `iters` rounds or as many as some seconds have
    room for. InputError if these devices can do none of them.
    """
    scenario = ranking.scenario
    chosen = _first(ranking, top, devices)
    if not chosen:
        raise InputError("--measure: these devices can do no strategy of the ranking")
    campaign = Campaign(
        devices,
        scenario.setup.calibration,
        iters,
        chained=scenario.repeat,
        faithful=scenario.faithful,
    )
    cases = campaign.cases(scenario.workload, [candidate.strategy for _, candidate in chosen])
    together = in_turns(scenario.workload.nbytes, devices.layout.n)
    rows, provenance = campaign.measure(
        [cases[i : i + together] for i in range(0, len(cases), together)]
    )
    found = [
        MeasuredCandidate(place, candidate, row.predicted, row.interval, row.faults)
        for (place, candidate), row in zip(chosen, rows, strict=True)
    ]
    return MeasuredRanking(ranking, tuple(found), provenance)


def in_turns(nbytes: int, ranks: int, memory: int | None = None) -> int:
    """How many strategies are held ready at a time, and so timed in turns, if tensors have `nbytes`
    on each of so many ranks and this machine has so many bytes of memory: those that half of it has
    room for. The others are timed after them.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if memory is None else memory
    return max(1, memory // 2 // (_COPIES * nbytes * ranks))


def _first(ranking: Ranking, top: int, devices: Devices) -> list[tuple[int, Candidate]]:
    """The first `top` that are proven and that these devices can do, by place. If TensorFlow can be
    told to run none of them, the next that it can be as well: what is recommended is one that can
    be typed, if there is any.
    """
    scenario, chosen = ranking.scenario, list[tuple[int, Candidate]]()
    for place, candidate in enumerate(ranking.candidates, 1):
        if candidate.wrong or (len(chosen) >= top and not candidate.runnable):
            continue
        if len(chosen) >= top and any(c.runnable for _, c in chosen):
            break
        if can_run(candidate.strategy, devices, [scenario.workload], faithful=scenario.faithful):
            chosen.append((place, candidate))
    return chosen


def table(found: MeasuredRanking) -> str:
    """What was measured beside what was predicted for it, and the strategy to take."""
    places = {row.place: str(place) for place, row in enumerate(found.fastest, 1)}
    cells = [_COLUMNS, _UNITS, *(_cells(row, places.get(row.place, "-")) for row in found.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 1 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]  # fmt: skip
    faults = [
        f"  {row.candidate.strategy.text}: {fault}" for row in found.rows for fault in row.faults
    ]
    return "\n".join(["", *_header(found), *lines, *faults[:20], "", *_recommendation(found)])


def _header(found: MeasuredRanking) -> list[str]:
    settings, hardware = found.provenance["settings"], found.provenance["hardware"]
    links = f", {settings['links']}" if settings.get("links") else ""
    return [
        f"# measured on  {settings['backend']}, route {settings['route']}{links}",
        f"#              {processors(hardware)}, TensorFlow {found.provenance['versions']['tensorflow']}",
        f"# here         predicted for {settings['simulated']}, calibration {settings['calibration']}",
        "#",
    ]


def _cells(row: MeasuredCandidate, place: str) -> tuple[str, ...]:
    def ms(seconds: float) -> str:
        return f"{seconds * 1e3:.3f}" if isfinite(seconds) else "-"

    return (
        str(row.place),
        row.candidate.strategy.text,
        ms(row.predicted),
        ms(row.measured.value),
        f"{ms(row.measured.low)} to {ms(row.measured.high)}",
        place,
        str(len(row.faults)),
    )


def _recommendation(found: MeasuredRanking) -> list[str]:
    best = found.recommended
    if best is None:
        return ["Recommended: none, as no measured step was right"]
    lines = [
        f"Recommended: {best.candidate.strategy.text}, measured {units.format_duration(best.measured.value)}"
    ]
    fastest = found.fastest[0]
    if not fastest.candidate.runnable and best.candidate.runnable:
        lines.append(
            f"  ({fastest.candidate.strategy.text} is faster, {units.format_duration(fastest.measured.value)}, "
            "but no setting of TensorFlow runs it)"
        )
    if len(found.equals) > 1:
        names = ", ".join(row.candidate.strategy.text for row in found.equals)
        lines.append(f"  (not told apart: {names}; of these it is predicted to be fastest)")
    return lines + how_lines(found.ranking, best.candidate, "predicted")


def document(found: MeasuredRanking) -> dict[str, Any]:
    """The keys that it adds to the document of the ranking, or that stand in the place of the
    ranking's; times in microseconds.
    """
    best = found.recommended
    places = {row.place: place for place, row in enumerate(found.fastest, 1)}
    return {
        "measured": [
            {
                "place": row.place,
                "strategy": row.candidate.strategy.text,
                "predicted_time_us": row.predicted * 1e6 if isfinite(row.predicted) else None,
                "time_us": row.measured.value * 1e6,
                "low_us": row.measured.low * 1e6,
                "high_us": row.measured.high * 1e6,
                "place_measured": places.get(row.place),
                "faults": list(row.faults),
            }
            for row in found.rows
        ],
        "measured_on": found.provenance,
        "not_told_apart": [row.candidate.strategy.text for row in found.equals],
        "recommended": best.candidate.strategy.text if best else None,
    }
