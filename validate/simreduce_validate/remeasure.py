"""`simreduce run --measure`: time the best of a ranking on real devices.

Predictions order thousands of settings. The first of them are often within a few per cent, and
devices decide between those. Of strategies that measuring cannot tell apart, the one predicted to
be faster is recommended.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Any

from simreduce import units
from simreduce.errors import InputError
from simreduce.files.formats.syntax import Faults
from simreduce.files.tables import Table, columns
from simreduce.study.scenario import Scenario
from simreduce.study.tune.rank import Candidate, StrategyRanking
from simreduce_validate.campaign import Campaign
from simreduce_validate.devices import Devices, can_run, read_devices
from simreduce_validate.measuring import Interval
from simreduce_validate.measuring.provenance import links_text, software
from simreduce_validate.running.backend import check_tensorflow

_COLUMNS = columns(
    "predicted|strategy|here|measured|95 % interval|measured|#faults",
    left="strategy",
    units="place||(ms)|(ms)|(ms)|place|",
)


@dataclass(frozen=True, slots=True)
class MeasuredCandidate:
    """A candidate of a ranking, measured.

    `place` is its place in the ranking, from 1. `predicted` are the seconds of one all-reduce on
    the measured devices, which need not be those of the scenario, or NaN. `faults` says why the
    measured time means nothing.
    """

    place: int
    candidate: Candidate
    predicted: float
    measured: Interval
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredRanking:
    """Some candidates of a ranking, in its order, measured in turns; and their provenance."""

    ranking: StrategyRanking
    rows: tuple[MeasuredCandidate, ...]
    provenance: dict[str, Any]

    @property
    def fastest(self) -> tuple[MeasuredCandidate, ...]:
        """The candidates without faults, by measured median."""
        right = [row for row in self.rows if not row.faults]
        return tuple(sorted(right, key=lambda row: (row.measured.value, row.place)))

    @property
    def equals(self) -> tuple[MeasuredCandidate, ...]:
        """The fastest candidate that can be recommended, and all whose intervals overlap with its
        own.
        """
        runnable = [row for row in self.fastest if row.candidate.runnable]
        known = runnable or self.fastest
        return tuple(row for row in known if row.measured.low <= known[0].measured.high)

    @property
    def recommended(self) -> MeasuredCandidate | None:
        """The one of `equals` predicted to be fastest; None if every candidate has faults."""
        return min(self.equals, key=lambda row: row.place, default=None)


def read(scenario: Scenario | None, **options: Any) -> Devices:
    """The devices that the options ask for, to stand for those of the scenario.

    Raises InputError with every fault, also without a scenario.
    """
    faults = Faults()
    devices = faults.attempt("", read_devices, scenario, None, None, **options)
    faults.attempt("", check_tensorflow)
    if faults.problems or devices is None:
        raise InputError(faults.problems)
    return devices


def remeasure(
    ranking: StrategyRanking, top: int, devices: Devices, iters: int | None = None
) -> MeasuredRanking:
    """Time the first `top` of a ranking in turns, for `iters` rounds or a few seconds.

    Raises InputError if these devices can run none of them.
    """
    scenario = ranking.scenario
    chosen = _first(ranking, top, devices)
    if not chosen:
        raise InputError("--measure: these devices can run no strategy of the ranking")
    campaign = Campaign(
        devices,
        devices.setup(scenario.setup.calibration),
        iters,
        chained=scenario.repeat,
        faithful=scenario.faithful,
    )
    cases = campaign.cases(scenario.workload, [candidate.strategy for _, candidate in chosen])
    rows, provenance = campaign.measure([cases])
    found = [
        MeasuredCandidate(place, candidate, row.predicted, row.interval, row.faults)
        for (place, candidate), row in zip(chosen, rows, strict=True)
    ]
    return MeasuredRanking(ranking, tuple(found), provenance)


def _first(ranking: StrategyRanking, top: int, devices: Devices) -> list[tuple[int, Candidate]]:
    """The first `top` candidates, with their places, that are proven and that these devices run.

    If TensorFlow has a setting for none of them, the next one that it has a setting for too: a
    recommendation should be one that a user can type.
    """
    scenario, chosen = ranking.scenario, list[tuple[int, Candidate]]()
    for place, candidate in enumerate(ranking.candidates, 1):
        if candidate.wrong or (len(chosen) >= top and not candidate.runnable):
            continue
        if len(chosen) >= top and any(c.runnable for _, c in chosen):
            break
        if can_run(
            candidate.strategy,
            devices,
            [scenario.workload],
            faithful=scenario.faithful,
            chained=scenario.repeat,
        ):
            chosen.append((place, candidate))
    return chosen


def table(found: MeasuredRanking) -> str:
    """Measured beside predicted times, then the strategy to take."""
    places = {row.place: str(place) for place, row in enumerate(found.fastest, 1)}
    rows = tuple(_cells(row, places.get(row.place, "-")) for row in found.rows)
    lines = Table(_COLUMNS, rows).lines()
    faults = [
        f"  {row.candidate.strategy.text}: {fault}" for row in found.rows for fault in row.faults
    ]
    return "\n".join(["", *_header(found), *lines, *faults[:20], "", *_recommendation(found)])


def _header(found: MeasuredRanking) -> list[str]:
    settings, links = found.provenance["settings"], links_text(found.provenance)
    predicted = f"{settings['simulated']}, calibration {settings['calibration']}"
    return [
        f"# measured on  {settings['backend']}, route {settings['route']}{links}",
        f"#              {software(found.provenance)}",
        f"# here         predicted for {predicted}",
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
        (
            f"Recommended: {best.candidate.strategy.text}, measured "
            f"{units.format_duration(best.measured.value)}"
        )
    ]
    fastest = found.fastest[0]
    if not fastest.candidate.runnable and best.candidate.runnable:
        lines.append(
            f"  ({fastest.candidate.strategy.text} is faster, "
            f"{units.format_duration(fastest.measured.value)}, "
            "but no setting of TensorFlow runs it)"
        )
    if len(found.equals) > 1:
        names = ", ".join(row.candidate.strategy.text for row in found.equals)
        lines.append(f"  (not told apart: {names}; of these it is predicted to be fastest)")
    return [*lines, *_how_lines(found, best.candidate)]


def _how_lines(found: MeasuredRanking, best: Candidate) -> list[str]:
    """The settings of a candidate for each target, or those of the fastest that it has one for."""
    lines = []
    for target, title, what in (
        ("tf_cnn_benchmarks", "tf_cnn_benchmarks", "flags"),
        ("tensorflow", "TensorFlow", "call"),
    ):
        if own := getattr(best.settings, target):
            lines.append(f"  {title:17}  {own}")
        elif (other := _instead(found, target)) is None:
            lines.append(f"  {title:17}  has no {what} for any of them")
        else:
            lines.append(f"  {title:17}  has no {what} for {other[1]}:")
            lines.append(f"  {'':17}  {getattr(other[0].settings, target)}")
    return lines


def _instead(found: MeasuredRanking, target: str) -> tuple[Candidate, str] | None:
    """The fastest candidate that `target` has a setting for: of the measured ones, if there is one.

    Times of the ranking are those of another machine, so they do not stand beside measured ones.
    """
    for row in found.fastest:
        if getattr(row.candidate.settings, target):
            time = units.format_duration(row.measured.value)
            text = f"{row.candidate.strategy.text}, measured {time}"
            return row.candidate, f"it; the fastest measured with one is {text}"
    if (other := found.ranking.fastest_by(target)) is None:
        return None
    machine = found.ranking.scenario.setup.topology.name
    return other, f"a measured one; predicted fastest on {machine} is {other.strategy.text}"


def document(found: MeasuredRanking) -> dict[str, Any]:
    """Keys that are added to the document of the ranking, or replace its own; times in us."""
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
