"""Links that are set to known rates are found to have them (root; a machine for itself)."""

from __future__ import annotations

import pytest
from simreduce_validate.running.links import Links

from simreduce.engine.calibrate import load_calibration
from validate.tests.commands import document

MBIT = 1e6 / 8


pytestmark = pytest.mark.usefixtures("shaped_links")


def calibrated(folder, options):
    document(
        f"calibrate switch:3 --backend shaped --out x.toml -n 7 --no-held-out {options}", folder
    )
    return load_calibration(str(folder / "x.toml"))


def test_rates_are_found_and_the_slow_port(tmp_path):
    links = Links(3, 200 * MBIT, slow={1: 100 * MBIT})
    found = calibrated(tmp_path, "--rate 200mbit --slow-port 1=100mbit")

    assert {"cable", "worker1>switch0", "switch0>worker1"} == set(found.links)
    assert links.goodput(0) == pytest.approx(found.links["cable"].bandwidth, rel=0.05)
    for name in ("worker1>switch0", "switch0>worker1"):
        assert links.goodput(1) == pytest.approx(found.links[name].bandwidth, rel=0.05)


def test_a_delay_is_found(tmp_path):
    """Half of it on each of the two links between workers."""
    links = Links(3, 200 * MBIT, 5e-3)
    found = calibrated(tmp_path, "--rate 200mbit --delay 5ms")

    assert 5e-3 == pytest.approx(2 * found.links["cable"].latency, rel=0.15)
    assert links.goodput(0) == pytest.approx(found.links["cable"].bandwidth, rel=0.05)
