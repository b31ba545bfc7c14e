"""Calibration on three sizes of a table: it finds what another machine of the kind differs by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simreduce.accuracy.predict import setup_for
from simreduce.accuracy.three_sizes import Calibrated, calibrate_on_three, three_sizes_lines
from simreduce.published import PublishedTable
from simreduce.tune.bench import tensor

SIZES = tuple(1 << power for power in range(10, 29, 3))
TABLE = PublishedTable(
    "mine", "a page", "v100-mesh-4", None, "all_reduce", 0, "2.18", (), "", "gpu", True, "",
    tuple((size, 1.0) for size in SIZES),
)  # fmt: skip


def other_machine() -> PublishedTable:
    """Launches take twice as long and links reach 80 % of what others of the generation do."""
    setup = setup_for(TABLE)
    known = setup.constants
    slower = {
        key: value * (0.8 if key[0] == "nvlink" else 1.0)
        for key, value in known.nccl.efficiency.items()
    }
    constants = replace(
        known.nccl,
        launch=2 * known.nccl.launch,
        efficiency=slower,
    )
    at = setup.but(calibration=replace(known, nccl=constants))
    times = [(n, at.simulate(at.compile("nccl", tensor(n, 0))).seconds) for n in SIZES]
    return replace(TABLE, times=tuple(times))


def test_three_sizes_tell_how_a_machine_differs():
    (found,) = calibrate_on_three([other_machine()])
    assert len(SIZES) - 3 == len(found)
    before, after = (np.median(np.abs([getattr(p, n) for p in found])) for n in ("before", "after"))
    assert before > 0.1
    assert after < 0.03


def test_a_short_table_is_left_out():
    assert [[]] == list(calibrate_on_three([replace(TABLE, times=TABLE.times[:5])]))


def test_errors_stand_by_machines_and_size():
    large = Calibrated(TABLE, False, False, 1 << 24, 0.3, -0.06)
    far = replace(large, several=True, bracketed=True, nbytes=8)
    lines = three_sizes_lines([large, replace(large, nbytes=8), far])
    shown = [line.split() for line in lines[1:4]]
    assert ["one", "<=", "1"] == [*shown[0][:2], shown[0][2][:1]]
    assert ["5%,", "20%", "*"] == shown[1][-3:]
    assert "30.0%" in shown[1]
    assert "(EFA," in shown[2]
