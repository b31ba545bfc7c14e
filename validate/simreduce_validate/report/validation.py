"""Measured beside predicted times as text, in nccl-tests' columns twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

import simreduce as sr
from simreduce import dtypes, units
from simreduce.files.tables import Column, Table, comments, page_width
from simreduce.study.tune.sizes import algbw, busbw
from simreduce_validate.campaign import Campaign
from simreduce_validate.cases import Timing
from simreduce_validate.measuring import noise
from simreduce_validate.measuring.provenance import links_text, software
from simreduce_validate.measuring.statistics import FEW, LEVEL, range_level
from simreduce_validate.report.accuracy import accuracy_lines
from simreduce_validate.report.answer import answer_lines
from simreduce_validate.transfers import Transfer
from simreduce_validate.validation import Validation

_RATES = (("time", "(us)", 7), ("algbw", "(GB/s)", 6), ("busbw", "(GB/s)", 6))
_GROUPS = "                                                measured                  predicted"
_WIDTH = 150
"""Characters of lines that have room for the two groups."""
_COLUMNS = (
    Column("size", "(B)", width=12),
    Column("count", "(elements)", width=12, spare=4),
    Column("type", width=8, spare=5),
    Column("redop", width=6, spare=6),
    *(Column(name, unit, width=width) for name, unit, width in _RATES),
    *(Column(name, unit, width=width) for name, unit, width in (_RATES[0], _RATES[2])),
    Column("error"),
    Column("#faults"),
    Column("transfers", spare=3),
    Column("algorithm", left=True),
)
_TRANSFER_COLUMNS = (
    Column("op", width=8),
    Column("bytes", width=10),
    Column("measured (us)"),
    Column("predicted (us)"),
    Column("residual (us)"),
    Column("", left=True),
)

_MOST_TRANSFERS = 40
_MOST_FAULTS = 20


def validation_lines(found: Validation, kept: str | None, *, details: bool) -> Iterator[str]:
    """The header, a row for each candidate, the answer in five lines, then the transfers.

    `kept` is the file with the samples, if there is one. With `details`, the statistics too.
    """
    campaign, timings = found.campaign, found.of_candidates
    head = [
        f"simreduce {sr.__version__}: {title(campaign)}, {calibration(campaign)}",
        *_about(found),
    ]
    columns = _COLUMNS
    if page_width(_WIDTH) < _WIDTH:  # where groups would not stand above their columns
        columns = (*_COLUMNS[:4], replace(_COLUMNS[4], name="measured"), *_COLUMNS[5:7],
                   replace(_COLUMNS[7], name="predicted"), *_COLUMNS[8:])  # fmt: skip
    else:
        head.append(_GROUPS)
    yield from comments(head)
    cells = tuple(_cells(timing, campaign.devices.layout.n) for timing in timings)
    yield from Table(columns, cells).lines(comment=True)
    where = f"every sample in {kept}" if kept else "nowhere; --out FILE keeps every sample"
    hint = "" if details else "; --details has all statistics"
    answer = answer_lines(timings, found.accuracy, where + hint)
    statistics = [*accuracy_lines(found.accuracy), *noise_lines(timings)] if details else []
    yield from comments((*answer, *statistics))
    faults = fault_lines(found.timings)
    yield f"# Faults               : {len(faults)} {'FAILED' if faults else 'OK'}"
    yield from (f"#   {fault}" for fault in faults[:_MOST_FAULTS])
    for timing, transfers in zip(found.timings, found.transfers, strict=True):
        yield from transfer_lines(timing, transfers)


def title(campaign: Campaign) -> str:
    """What is reduced on which devices, for the head of a table and of a plot."""
    devices = campaign.devices
    count = units.plural(devices.layout.n, "device")
    where = f"{count} of {devices.stage.backend}, route {devices.route}"
    return f"all-reduce on {where}"


def calibration(campaign: Campaign) -> str:
    """The calibration of the predictions, for the same heads."""
    return f"calibration {campaign.setup.calibration.name}"


def _about(found: Validation) -> list[str]:
    campaign, devices = found.campaign, found.campaign.devices
    simulated = f"simulated as {devices.stage.machine.name}, runtime tensorflow"
    return [
        f"topology {devices.topology.name} ({devices.topology.digest}), {simulated}",
        f"{software(found.provenance)}{links_text(found.provenance)}",
        samples_line(found.of_candidates, campaign.chained),
        *warnings(campaign),
    ]


def warnings(campaign: Campaign) -> list[str]:
    """What makes predictions worthless."""
    if not campaign.devices.stage.on_cpus or campaign.setup.calibration.cpu is not None:
        return []
    what = "nothing is predicted"
    if not campaign.blind:
        step, copy = campaign.setup.calibration.step, campaign.setup.calibration.dispatch["copy"]
        each = f"{units.format_duration(step)} a process, {units.format_duration(copy)} a copy"
        what = f"predictions have the session's messages ({each}) and ignore what else CPUs cost"
    return [f"the calibration knows no CPU devices: {what}; see simreduce calibrate"]


def _cells(timing: Timing, ranks: int) -> tuple[str, ...]:
    case, seconds = timing.case, timing.measured.median
    predicted = ("-", "-", "-")
    if math.isfinite(timing.predicted):
        rate = busbw(case.nbytes, timing.predicted, ranks) / 1e9
        predicted = (f"{timing.predicted * 1e6:.1f}", f"{rate:.2f}", f"{timing.error:+.0%}")
    return (
        str(case.nbytes),
        str(case.count),
        dtypes.NAMES[case.dtype],
        case.redop,
        f"{seconds * 1e6:.1f}",
        f"{algbw(case.nbytes, seconds) / 1e9:.2f}",
        f"{busbw(case.nbytes, seconds, ranks) / 1e9:.2f}",
        *predicted,
        str(len(timing.faults)),
        str(sum(timing.measured.prepared.executed.transfers.values())),
        f"{case.algorithm}{' again' if case.repeats is not None else ''}",
    )


def samples_line(timings: Sequence[Timing], chained: int = 1) -> str:
    """What a time is the median of."""
    settled = [timing.settled for timing in timings]
    fewest, most = min(settled), max(settled)
    each = "one step" if most <= 1 else f"the median of {most} steps"
    if fewest < most:
        each = f"the median of {fewest} to {most} steps"
    after = " after as many warm-up steps" if most else ""
    reduced = f"; a step is {chained} all-reduces" if chained > 1 else ""
    samples = units.plural(len(timings[0].measured.seconds), "sample")
    return f"medians of {samples}, each {each}{after}{reduced}"


def fault_lines(timings: Sequence[Timing]) -> list[str]:
    """Every reason why times mean nothing."""
    return [
        f"{'control: ' * bool(timing.case.control)}{timing.case.algorithm}, "
        f"{timing.case.nbytes} bytes: {fault}"
        for timing in timings
        for fault in timing.faults
    ]


def noise_lines(timings: Sequence[Timing]) -> list[str]:
    """How far medians can be trusted: their intervals, outliers and drift."""
    found = [noise(timing.measured.seconds) for timing in timings]
    widths = [(t.interval.high - t.interval.low) / 2 / t.measured.median for t in timings]
    samples = units.plural(sum(len(t.measured.seconds) for t in timings), "sample")
    outliers = sum(len(each.outliers) for each in found)
    lines = [
        (
            f"medians: +-{np.median(widths):.1%} (the worst +-{max(widths):.1%}) "
            f"with {_level(timings):.3g} %"
        ),
        f"outliers: {outliers} of {samples}; they count",
    ]
    lines += [
        f"drift: {timing.case.algorithm}, {timing.case.nbytes} bytes: "
        f"the second half took {each.drift.value:+.1%} "
        f"({each.drift.low:+.1%} to {each.drift.high:+.1%})"
        for timing, each in zip(timings, found, strict=True)
        if each.drifts
    ]
    return lines


def _level(timings: Sequence[Timing]) -> float:
    """Percent of intervals that hold their medians, less with few samples."""
    fewest = min((len(timing.measured.seconds) for timing in timings), default=FEW + 1)
    return 100.0 * (LEVEL if fewest > FEW else range_level(fewest))


def transfer_lines(timing: Timing, found: Sequence[Transfer]) -> list[str]:
    """The transfers of one step in the order of their ends, or the worst of very many."""
    if not found:
        return []
    worst = sorted(found, key=lambda t: -abs(t.residual))[:_MOST_TRANSFERS]
    shown = found if len(found) <= _MOST_TRANSFERS else sorted(worst, key=lambda t: t.measured)
    residuals = np.abs([each.residual for each in found])
    case, count = timing.case, units.plural(len(found), "transfer")
    about = f"# {case.algorithm}, {case.nbytes} bytes: {count} of one step"
    if not np.isnan(residuals).any():
        median, largest = (
            units.format_duration(float(each)) for each in (np.median(residuals), residuals.max())
        )
        about += f", predicted end less measured end: median {median}, worst {largest}"
    return [
        about,
        *Table(_TRANSFER_COLUMNS, tuple(map(_transfer_cells, shown))).lines(comment=True),
    ]


def _transfer_cells(transfer: Transfer) -> tuple[str, ...]:
    predicted = ("-", "-")
    if not math.isnan(transfer.predicted):
        predicted = (f"{transfer.predicted * 1e6:.1f}", f"{transfer.residual * 1e6:+.1f}")
    return (
        str(transfer.op),
        str(transfer.nbytes),
        f"{transfer.measured * 1e6:.1f}",
        *predicted,
        f"{transfer.source}>{transfer.target}",
    )
