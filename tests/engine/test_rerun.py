"""A plan that is simulated again with other constants takes as long as when it is lowered anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simreduce.engine import NOMINAL, NcclConstants, Rerun
from simreduce.engine.setup import Setup
from simreduce.workload import Gradient, Workload

CONSTANTS = (
    NcclConstants(launch=1e-6, message=3e-6, first_pass=2.0),
    replace(NcclConstants(), channel_rate={"simple": 9e9, "ll": 1e9, "ll128": 2e9, "nvls": 3e9}),
)


@pytest.mark.parametrize(
    ("machine", "strategy", "collective"),
    [
        ("dgx-a100x2", "nccl:tree+ll128+channels=4", "all_reduce"),
        ("dgx-a100x2", "nccl:ring+ll+channels=2", "broadcast"),
        ("dgx-h100", "nccl:nvls", "all_reduce"),
        ("dgx1v", "nccl", "all_to_all"),
    ],
)
def test_the_same_bits_as_a_simulation(machine, strategy, collective):
    setup = Setup(machine)
    plan = setup.compile(strategy, Workload("one", (Gradient("t", 1 << 16),)), collective)
    again = Rerun(plan, setup.machine, setup.runtime, NOMINAL)
    for constants in (*CONSTANTS, CONSTANTS[0]):
        calibration = replace(NOMINAL, nccl=constants)
        known, found = setup.but(calibration=calibration).simulate(plan), again(constants)
        assert np.array_equal(known.finish, found.finish)
        assert np.array_equal(known.start, found.start)
