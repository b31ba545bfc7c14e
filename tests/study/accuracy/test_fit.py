"""Fits of NCCL's constants: known constants are found again, and what is not determined stays."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from simreduce.engine.calibrate import with_values
from simreduce.engine.runtime import NcclConstants
from simreduce.study.accuracy.fit import fit_nccl, left_out_residuals
from simreduce.study.tune.sizes import BY_DEFAULT, BenchCalls

BASE = NcclConstants()
TRUE = with_values(BASE, {"nccl.launch": 6e-6, "nccl.efficiency.nvlink.simple": 0.6})


@dataclass(frozen=True)
class Ring:
    """A stand-in for a case: a launch, steps, and bytes at a rate."""

    nbytes: int
    seconds: float = 0.0
    calls: BenchCalls = BY_DEFAULT
    link: str = "nvlink"
    group: str = "a"
    channels: int = 1
    posts: int = 0
    rerun: None = None

    names = (
        "nccl.launch",
        "nccl.launch_each",
        "nccl.launch_channel",
        "nccl.start.simple",
        "nccl.latency.nvlink.simple",
        "nccl.efficiency.nvlink.simple",
        "nccl.latency.net.simple",
    )

    def predict(self, constants: NcclConstants, _rerun: None = None) -> float:
        rate = 100e9 * constants.efficiency["nvlink", "simple"]
        steps = 14 * constants.latency["nvlink", "simple"]
        launch = constants.launch + constants.launch_channel
        return launch + constants.start["simple"] + steps + self.nbytes / rate


def measured(factor: float = 1.0, **changes: object) -> list[Ring]:
    rings = [Ring(1 << i, **changes) for i in range(4, 31, 2)]
    return [replace(ring, seconds=factor * ring.predict(TRUE)) for ring in rings]


def test_rates_are_found_and_what_is_not_determined_stays():
    found, fit = fit_nccl(measured(), BASE)

    assert found.efficiency["nvlink", "simple"] == pytest.approx(0.6, rel=0.02)
    assert found.latency["net", "simple"] == BASE.latency["net", "simple"]
    assert "nccl.latency.net.simple" in fit.vague
    assert max(abs(r) for r in fit.residuals) < 0.05


def test_a_group_left_out_is_predicted_by_the_others():
    cases = [*measured(group="a"), *measured(1.5, group="b")]
    found, fit = fit_nccl(cases, BASE)
    off = left_out_residuals(cases, BASE, found, list(fit.values))

    assert np.median(off[: len(off) // 2]) > np.median(fit.residuals[: len(off) // 2])
    assert np.median(off[len(off) // 2 :]) < np.median(fit.residuals[len(off) // 2 :])


def test_held_cases_are_predicted_without_their_group_and_change_nothing():
    """Also what took no part is without its group, and neither its times nor how many it has
    matter to the rest.
    """
    cases = [*measured(group="a"), *measured(1.5, group="b")]
    found, fit = fit_nccl(cases, BASE)
    alone = left_out_residuals(cases, BASE, found, list(fit.values))
    held = [*measured(group="a"), *measured(3.0, group="b"), *measured(group="c")]

    off = left_out_residuals(cases, BASE, found, list(fit.values), held)

    many = len(cases) // 2
    assert off[: 2 * many] == pytest.approx(alone)
    assert off[2 * many : 3 * many] == pytest.approx(alone[:many])
    assert off[3 * many : 4 * many] == pytest.approx(alone[many:] - np.log(2))
    assert off[4 * many :] == pytest.approx(fit.residuals[:many])


@pytest.mark.parametrize(("counts", "told"), [((0, 2), False), ((2, 4), True)])
def test_sites_with_equally_many_gpus_of_a_process_do_not_tell_what_each_takes(counts, told):
    """Every call waits for the process, which needs 30 us for each GPU."""
    true = with_values(TRUE, {"nccl.launch_each": 30e-6})
    cases = [
        replace(ring, seconds=true.per_call(ring.predict(TRUE), gpus))
        for i, gpus in enumerate(counts)
        for ring in measured(group=str(i), calls=BenchCalls(gpus))
    ]
    base = with_values(BASE, {"nccl.launch_each": 10e-6})
    found, _ = fit_nccl(cases, base)
    assert found.launch_each == pytest.approx(30e-6 if told else 10e-6, rel=0.05)
