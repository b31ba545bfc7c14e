"""Calibration on three sizes of a table: it finds what another machine of the kind differs by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simreduce.engine import Calibration
from simreduce.engine.calibrate.intervals import (
    ELSEWHERE,
    GENERATION,
    MACHINE,
    published_errors,
    spread,
)
from simreduce.engine.runtime import NcclConstants
from simreduce.engine.setup import Setup
from simreduce.files.published import PublishedTable
from simreduce.report.accuracy import THREE_SIZES
from simreduce.study.accuracy import AccuracyComparison, setup_for
from simreduce.study.accuracy.fit import FitCase, fit_machine
from simreduce.study.accuracy.hold_out import Calibrated, calibrate_on_three
from simreduce.study.tune.sizes import BY_DEFAULT, tensor
from tests.engine.calibrate.covering import coverage

MIB = 1 << 20
SIZES = tuple(1 << power for power in range(10, 29, 3))
TABLE = PublishedTable(
    "mine", "a page", "v100-mesh-4", None, "all_reduce", 0, "2.18", (), "", "gpu", True, "",
    tuple((size, 1.0) for size in SIZES),
)  # fmt: skip


def other_machine() -> PublishedTable:
    """Launches take 2.4 us longer and links reach 80 % of what others of the generation do."""
    setup = setup_for(TABLE)
    known = setup.constants
    slower = {
        key: value * (0.8 if key[0] == "nvlink" else 1.0)
        for key, value in known.nccl.efficiency.items()
    }
    constants = replace(
        known.nccl,
        launch=known.nccl.launch + 2.4e-6,
        efficiency=slower,
    )
    at = setup.but(calibration=replace(known, nccl=constants))
    times = [(n, at.simulate(at.compile("nccl", tensor(n, 0))).seconds) for n in SIZES]
    return replace(TABLE, times=tuple(times))


def test_three_sizes_tell_how_a_machine_differs():
    (found,) = calibrate_on_three([other_machine()])
    assert len(SIZES) - 3 == len(found)
    before, after = (np.median(np.abs([getattr(p, n) for p in found])) for n in ("before", "error"))
    assert before > 0.1
    assert after < 0.03


def test_three_times_count_in_full():
    """A time that is far from the generation's is believed, not taken for an outlier."""
    setup = setup_for(TABLE)
    sizes = (1 << 10, 1 << 20, 1 << 28)
    plans = [setup.compile("nccl", tensor(size, 0)) for size in sizes]
    cases = [
        FitCase(
            setup,
            plan,
            size,
            factor * setup.simulate(plan).seconds,
            BY_DEFAULT,
            "nvlink",
            "a",
        )
        for plan, size, factor in zip(plans, sizes, (1.0, 1.0, 1.6), strict=True)
    ]
    nccl, fit = fit_machine(cases)

    assert max(abs(residual) for residual in fit.residuals) < 0.1
    assert nccl.measured == {"all_reduce": (4,)}


def test_the_interval_is_that_of_errors_after_a_calibration():
    """It is the wider, the less the log agreed with the constants before; where it agreed well,
    narrower than without a log.
    """

    def calibrated(misfit: float) -> Setup:
        found = NcclConstants(measured={"all_reduce": (4,)}, misfit=misfit)
        return Setup("v100-mesh-4", calibration=Calibration("mine", nccl=found))

    def width(setup: Setup) -> float:
        low, high = setup.interval(MIB, 1.0)
        return high / low

    setup = calibrated(0.1)
    assert setup.interval(MIB, 1.0) == spread("all_reduce", "nvlink", MIB, file=MACHINE, misfit=0.1)
    assert setup.interval(MIB, 1.0, "broadcast") == spread("broadcast", "nvlink", MIB)
    assert width(setup) < width(calibrated(0.3))
    assert width(setup) < width(Setup("v100-mesh-4"))


@pytest.mark.parametrize(
    ("machine", "file"),
    [("a100-mesh-4", ELSEWHERE), ("h100-mesh-4", ELSEWHERE), ("v100-mesh-4x2", GENERATION)],
)
def test_constants_of_another_machine_have_the_interval_of_one_without_a_log(machine, file):
    """That of unknown machines where its nodes are others."""
    own = Setup("v100-mesh-4")
    measured = {"all_reduce": (4, 8)}
    mine = Calibration(
        "mine", nccl=NcclConstants(measured=measured, misfit=0.1),
        provenance={"machine": f"v100-mesh-4 ({own.machine.digest})"},
    )  # fmt: skip
    here, there = own.but(calibration=mine), Setup(machine, calibration=mine)

    assert here.interval(MIB, 1.0) == spread("all_reduce", "nvlink", MIB, file=MACHINE, misfit=0.1)
    assert there.interval(MIB, 1.0) == spread("all_reduce", there.link_class, MIB, file=file)
    assert (here.fitted_on, there.fitted_on) == ("", f"v100-mesh-4 ({own.machine.digest})")


def test_the_shipped_intervals_cover_calibrated_machines_that_took_no_part_in_them():
    found = [row for row in published_errors(MACHINE) if row.link != "other_net"]
    covered = [(inside, len(row.errors)) for row, inside in coverage(found)]

    assert 0.72 <= sum(i * n for i, n in covered) / sum(n for _, n in covered) <= 0.92


def test_a_short_table_is_left_out():
    assert [[]] == list(calibrate_on_three([replace(TABLE, times=TABLE.times[:5])]))


def test_errors_stand_by_machines_and_size():
    large = Calibrated(TABLE, 1.0, 0.94, "nvlink", 1 << 24, 0.3)
    far = replace(large, link="other_net", nbytes=8)
    found = AccuracyComparison([large, replace(large, nbytes=8), far])
    lines = [*THREE_SIZES.lines(found)]
    shown = [line.split() for line in lines[1:4]]
    assert ["one", "<=", "1"] == [*shown[0][:2], shown[0][2][:1]]
    assert ["5%,", "20%", "*"] == shown[1][-3:]
    assert "30.0%" in shown[1]
    assert "(EFA," in shown[2]


def test_a_machine_with_a_slow_link_or_folded_is_no_other():
    mine = Calibration("mine", provenance={"machine": "dgx-a100x4 (000000000000)"})

    assert {"": "dgx-a100x4", "dgx-a100x4 (000000000000)": "dgx-a100x2"} == {
        Setup(name, calibration=mine).fitted_on: name for name in ("dgx-a100x4", "dgx-a100x2")
    }
